//! The vendor's matrix products, in a child process.

use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;

use partita_driver::Gpu;
use partita_driver::numerics::{self, CUBLAS_NAMES, Format};
use serde::{Deserialize, Serialize};

use crate::gpu_job::on_gpu;

/// The name of the job.
pub const JOB: &str = "numerics";

/// The vendor's matrix products on a partition.
#[derive(Debug, Serialize, Deserialize)]
pub struct NumericsResult {
    /// cuBLAS's version; `None` if no cuBLAS was found.
    pub cublas: Option<String>,
    /// The number of SMs that the job sees, as a program would.
    pub sms: u32,
    /// How many products were compared.
    pub products: usize,
    /// Those that are wrong, as text.
    pub wrong: Vec<String>,
    /// The largest relative error.
    pub worst: f64,
}

/// Multiplies matrices with the first cuBLAS of `libraries` that there is.
pub fn multiply(libraries: &[PathBuf]) -> Result<NumericsResult, String> {
    on_gpu(|gpu| {
        let paths = libraries
            .iter()
            .filter_map(|path| CString::new(path.as_os_str().as_encoded_bytes()).ok())
            .chain(CUBLAS_NAMES.map(Into::into));
        for library in paths {
            match numerics::check(gpu, &library) {
                Ok(result) => return Ok(summary(gpu, &result)),
                Err(partita_driver::Error::Load(_)) => {}
                Err(error) => return Err(format!("{}: {error}", library.to_string_lossy())),
            }
        }
        Ok(NumericsResult { cublas: None, sms: gpu.facts().sms, products: 0, wrong: Vec::new(), worst: 0.0 })
    })
}

fn summary(gpu: &Gpu<'_>, result: &numerics::Numerics) -> NumericsResult {
    let wrong = result.products.iter().filter(|product| !product.is_right()).map(|product| {
        let format = match product.format {
            Format::Fp16 => "fp16",
            Format::Bf16 => "bf16",
        };
        format!(
            "{format} {}x{}x{} (relative error {:.2e})",
            product.m, product.n, product.k, product.relative_error
        )
    });
    NumericsResult {
        cublas: Some(numerics::version_text(result.cublas_version)),
        sms: gpu.facts().sms,
        products: result.products.len(),
        wrong: wrong.collect(),
        worst: result.products.iter().map(|product| product.relative_error).fold(0.0, f64::max),
    }
}

/// Where the toolkit and the Python packages of the `python3` in PATH put cuBLAS.
pub fn cublas_candidates() -> Vec<PathBuf> {
    let names = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"];
    let mut directories = vec![PathBuf::from("/usr/local/cuda/lib64")];
    let python = Command::new("python3").args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
    let packages =
        python.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for packages in packages.lines().filter(|line| line.starts_with('/')) {
        let vendor = std::fs::read_dir(PathBuf::from(packages).join("nvidia"));
        directories.extend(vendor.into_iter().flatten().flatten().map(|part| part.path().join("lib")));
    }
    let paths = directories.iter().flat_map(|directory| names.map(|name| directory.join(name)));
    paths.filter(|path| path.exists()).collect()
}
