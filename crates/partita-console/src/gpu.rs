//! The GPU that a command uses, and the list of them.

use clap::Args;
use partita::gpu::{self, Gpu, Selector};
use partita::gpus::{self, Selectors};
use partita::install::Install;

use crate::{Failure, complete, tell};

/// Which GPU.
#[derive(Debug, Args)]
pub struct GpuOption {
    /// The GPU: an index (0), a UUID or a unique beginning of one (GPU-1a2b), or sim:NAME
    ///
    /// Simulated GPUs are sim:h200, sim:a100, sim:gtx1060-3gb and others, which the error for an
    /// unknown one lists; sim:h200:1 is the second of a simulated machine with several
    /// (PARTITA_SIM_GPUS). The default is the machine's first GPU;
    /// on a machine without a GPU it is sim:h200, with a notice.
    #[arg(long, value_name = "GPU", env = "PARTITA_GPU", hide_env_values = true, add = complete::gpus())]
    pub gpu: Option<String>,
}

/// The GPUs, for programs that may have several.
#[derive(Debug, Args)]
pub struct GpusOption {
    /// The GPUs: an index (0), a UUID or a unique beginning of one (GPU-1a2b), sim:NAME, several
    /// with commas (0,1), or all
    ///
    /// The program sees several GPUs in the order given, with a partition on each. Simulated GPUs
    /// are sim:h200, sim:a100, sim:gtx1060-3gb and others, which the error for an unknown one
    /// lists; sim:h200:0,1 are the first two of a simulated machine with several
    /// (PARTITA_SIM_GPUS). `partita run` also takes any (or sim:h200:any): the GPU on which the
    /// program fits best. The default is the machine's first GPU; on a machine without a GPU it is
    /// sim:h200, with a notice.
    #[arg(long, value_name = "GPU[,GPU]…", env = "PARTITA_GPU", hide_env_values = true, add = complete::gpus())]
    pub gpu: Option<String>,
}

/// The selector of `--gpu`, if it was given.
///
/// # Errors
/// It is not a selector, or names several GPUs.
pub fn selector(option: &GpuOption) -> Result<Option<Selector>, Failure> {
    let given = option.gpu.as_deref().filter(|text| !text.is_empty());
    let is_several = |text: &&str| text.contains(',') || ["all", "any"].contains(text);
    if let Some(list) = given.filter(is_several) {
        let is_from_environment = std::env::var("PARTITA_GPU").is_ok_and(|value| value == list);
        let origin = if is_from_environment { "PARTITA_GPU=" } else { "--gpu " };
        return Err(Failure::Told(format!(
            "{origin}{list}: this command works on one GPU; name one of them with --gpu"
        )));
    }
    Ok(given.map(str::parse).transpose()?)
}

/// The selectors of `--gpu` where it may name several, if it was given.
///
/// # Errors
/// One is not a selector.
pub fn selectors(text: Option<&str>) -> Result<Option<Selectors>, Failure> {
    Ok(text.filter(|text| !text.is_empty()).map(str::parse).transpose()?)
}

/// The GPUs of `--gpu`. Prints a notice if a simulated one replaces a missing GPU.
///
/// # Errors
/// There is no such GPU.
pub fn select_several(install: &Install, option: &GpusOption) -> Result<Vec<Gpu>, Failure> {
    let selected = gpus::select(install, selectors(option.gpu.as_deref())?.as_ref())?;
    if let Some(notice) = &selected.notice {
        tell(notice);
    }
    Ok(selected.gpus)
}

/// The GPU of `--gpu`. Prints a notice if a simulated one replaces a missing GPU.
///
/// # Errors
/// There is no such GPU.
pub fn select(install: &Install, option: &GpuOption) -> Result<Gpu, Failure> {
    let selected = gpu::select(install, selector(option)?.as_ref())?;
    if let Some(notice) = &selected.notice {
        tell(notice);
    }
    Ok(selected.gpu)
}
