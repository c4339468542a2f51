//! One file a command: arguments to requests, results to text.

pub mod demo;
pub mod devices;
pub mod doctor;
pub mod generate;
pub mod internal;
pub mod kill;
pub mod mps;
pub mod prove;
pub mod ps;
pub mod run;
pub mod set;
pub mod sim;
pub mod topology;

use partita::gpu::{self, Gpu, Selector};
use partita::install::Install;
use partita::limits::OnMisfit;
use partita::offered::{Priority, TimeShare};
use partita_core::{ByteSize, Share};

use crate::args::{GpuOption, OnMisfitArg, PriorityArg};
use crate::fail::{Failure, tell};

/// The selector of `--gpu`, if it was given.
fn selector(option: &GpuOption) -> Result<Option<Selector>, Failure> {
    let given = option.gpu.as_deref().filter(|text| !text.is_empty());
    Ok(given.map(str::parse).transpose()?)
}

/// The GPU of `--gpu`; says so if it is a simulated one that nobody asked for.
fn select(install: &Install, option: &GpuOption) -> Result<Gpu, Failure> {
    let selected = gpu::select(install, selector(option)?.as_ref())?;
    if let Some(notice) = &selected.notice {
        tell(notice);
    }
    Ok(selected.gpu)
}

fn share(text: Option<&str>) -> Result<Option<Share>, Failure> {
    let parse = |text: &str| text.parse().map_err(|error| Failure::Told(format!("--sm: {error}")));
    text.map(parse).transpose()
}

fn memory(text: Option<&str>) -> Result<Option<ByteSize>, Failure> {
    let parse = |text: &str| text.parse().map_err(|error| Failure::Told(format!("--mem: {error}")));
    text.map(parse).transpose()
}

fn time(text: Option<&str>) -> Result<TimeShare, Failure> {
    text.map_or(Ok(TimeShare::default()), |text| text.parse().map_err(Failure::Told))
}

fn on_misfit(argument: OnMisfitArg) -> OnMisfit {
    match argument {
        OnMisfitArg::Error => OnMisfit::Error,
        OnMisfitArg::Widen => OnMisfit::Widen,
    }
}

fn priority(argument: PriorityArg) -> Priority {
    match argument {
        PriorityArg::High => Priority::High,
        PriorityArg::Normal => Priority::Normal,
        PriorityArg::Low => Priority::Low,
    }
}

/// A size as people read it: exact where that is short.
fn bytes(bytes: u64) -> String {
    const SHORT: usize = 8;
    let exact = ByteSize(bytes).to_string();
    if exact.len() <= SHORT { exact } else { ByteSize(bytes).approximate().to_string() }
}
