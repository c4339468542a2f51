//! Which GPU a command is about, and the list of them.

use clap::Args;
use partita::gpu::{self, Gpu, Selector};
use partita::gpus::{self, Selectors};
use partita::install::Install;

use crate::{Failure, tell};

/// Which GPU.
#[derive(Debug, Args)]
pub struct GpuOption {
    /// The GPU: an index (0), a UUID or a unique beginning of one (GPU-1a2b), or sim:NAME
    ///
    /// Simulated devices are sim:h200, sim:a100 and sim:gtx1060-3gb; sim:h200:1 is the second of a
    /// simulated machine with several (PARTITA_SIM_GPUS). Without this option it is the machine's
    /// first GPU; where there is none, sim:h200 is used and said so.
    #[arg(long, value_name = "GPU", env = "PARTITA_GPU", hide_env_values = true)]
    pub gpu: Option<String>,
}

/// Which GPUs, where a program may have several.
#[derive(Debug, Args)]
pub struct GpusOption {
    /// The GPUs: an index (0), a UUID or a unique beginning of one (GPU-1a2b), sim:NAME, several
    /// with commas (0,1), or all
    ///
    /// Several GPUs are seen by the program in the order given, and each gets a partition of its
    /// own. Simulated devices are sim:h200, sim:a100 and sim:gtx1060-3gb; sim:h200:0,1 are the
    /// first two of a simulated machine with several (PARTITA_SIM_GPUS). Without this option it is
    /// the machine's first GPU; where there is none, sim:h200 is used and said so.
    #[arg(long, value_name = "GPU[,GPU]…", env = "PARTITA_GPU", hide_env_values = true)]
    pub gpu: Option<String>,
}

/// The selector of `--gpu`, if it was given.
///
/// # Errors
/// It is no selector, or names several GPUs.
pub fn selector(option: &GpuOption) -> Result<Option<Selector>, Failure> {
    let given = option.gpu.as_deref().filter(|text| !text.is_empty());
    if let Some(list) = given.filter(|text| text.contains(',') || *text == "all") {
        return Err(Failure::Told(format!("--gpu {list}: this command is about one GPU; name one of them")));
    }
    Ok(given.map(str::parse).transpose()?)
}

/// The selectors of `--gpu` where it takes several, if it was given.
///
/// # Errors
/// One is no selector.
pub fn selectors(text: Option<&str>) -> Result<Option<Selectors>, Failure> {
    Ok(text.filter(|text| !text.is_empty()).map(str::parse).transpose()?)
}

/// The GPUs of `--gpu`, with a notice where a simulated one stands in for a missing GPU.
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

/// The GPU of `--gpu`, with a notice where a simulated one stands in for a missing GPU.
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
