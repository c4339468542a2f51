//! Other projects' interposers, for measurements in the same run: each a library whose path is a
//! parameter. None of them is part of this repository, and the program does not search for any.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};

/// The quota, in the form of both projects.
const MEMORY: &str = "1024m";

/// A library to preload, from `NAME=PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The name of its rows: `hami-core`, `vgpu-manager`, or another library that reads HAMi-core's
    /// variables.
    pub name: String,
    /// The library's path.
    path: PathBuf,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(Self { name: name.to_owned(), path: path.into() })
            }
            _ => Err("a peer is NAME=PATH, as hami-core=/usr/local/vgpu/libvgpu.so".to_owned()),
        }
    }
}

impl Peer {
    /// The command line to put before a program's to run it under the library, with a quota of 1
    /// GiB and a core limit. The library stores its files in `scratch`, a directory of this run.
    ///
    /// # Errors
    /// If there is no such library.
    pub fn words(&self, scratch: &Path, core_percent: u32) -> Result<Vec<OsString>> {
        let percent = core_percent.to_string();
        let preload =
            self.path.canonicalize().with_context(|| format!("{}: {}", self.name, self.path.display()))?;
        let cache = scratch.join(format!("{}-{core_percent}.cache", self.name));
        let variables: &[(&str, &OsStr)] = match self.name.as_str() {
            "vgpu-manager" => {
                &[("CUDA_MEM_LIMIT_0", MEMORY.as_ref()), ("CUDA_CORE_LIMIT_0", percent.as_ref())]
            }
            _ => &[
                ("CUDA_DEVICE_MEMORY_LIMIT", MEMORY.as_ref()),
                ("CUDA_DEVICE_SM_LIMIT", percent.as_ref()),
                ("CUDA_DEVICE_MEMORY_SHARED_CACHE", cache.as_ref()),
                // Otherwise it relies on its cluster's monitor, which is missing here.
                ("GPU_CORE_UTILIZATION_POLICY", "force".as_ref()),
                ("LIBCUDA_LOG_LEVEL", "0".as_ref()),
            ],
        };
        let assigned = |(name, value): (&str, &OsStr)| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        };
        let variables = variables.iter().copied().chain([("LD_PRELOAD", preload.as_ref())]);
        Ok([OsString::from("env")].into_iter().chain(variables.map(assigned)).collect())
    }
}
