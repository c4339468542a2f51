//! One file a command: arguments to requests, results to text.

pub mod batch;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod generate;
pub mod kill;
pub mod mps;
pub mod other;
pub mod prove;
pub mod ps;
pub mod run;
pub mod set;
pub mod sim;
pub mod system;
pub mod topology;

use partita::limits::{OnMisfit, Spill};
use partita::offered::TimeShare;
use partita::partition::{ClusterRow, MoveRow, Place};
use partita_core::time::{Policy, Priority};
use partita_core::{ByteSize, Share};

use crate::args::{OnMisfitArg, PlaceArg, PriorityArg, SpillArg, TimePolicyArg};
use partita_console::Failure;

fn share(text: Option<&str>) -> Result<Option<Share>, Failure> {
    let parse = |text: &str| text.parse().map_err(|error| Failure::Told(format!("--sm: {error}")));
    text.map(parse).transpose()
}

fn memory(text: Option<&str>) -> Result<Option<ByteSize>, Failure> {
    size("--mem", text)
}

fn driver_allowance(text: Option<&str>) -> Result<Option<ByteSize>, Failure> {
    size("--mem-driver", text)
}

fn size(option: &str, text: Option<&str>) -> Result<Option<ByteSize>, Failure> {
    let parse = |text: &str| text.parse().map_err(|error| Failure::Told(format!("{option}: {error}")));
    text.map(parse).transpose()
}

fn time(text: Option<&str>) -> Result<Option<TimeShare>, Failure> {
    text.map(|text| text.parse().map_err(Failure::Told)).transpose()
}

fn time_policy(argument: TimePolicyArg) -> Policy {
    match argument {
        TimePolicyArg::Hard => Policy::Hard,
        TimePolicyArg::Soft => Policy::Soft,
    }
}

fn spill(argument: SpillArg) -> Spill {
    match argument {
        SpillArg::None => Spill::None,
        SpillArg::Host => Spill::Host,
    }
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

/// A size for readers: exact if that is short.
fn bytes(bytes: u64) -> String {
    const SHORT: usize = 8;
    let exact = ByteSize(bytes).to_string();
    if exact.len() <= SHORT { exact } else { ByteSize(bytes).approximate().to_string() }
}

fn place(argument: PlaceArg) -> Place {
    match argument {
        PlaceArg::Packed => Place::Packed,
        PlaceArg::Spread => Place::Spread,
    }
}

/// The clusters that a partition can run, in one line.
fn cluster_text(clusters: &ClusterRow) -> String {
    let active = clusters.active.iter().filter(|one| one.clusters > 0);
    let active: Vec<String> = active.map(|one| format!("{} of {}", one.clusters, one.blocks)).collect();
    format!(
        "clusters of up to {} blocks; active at once, a block an SM: {}",
        clusters.largest_sms,
        active.join(", ")
    )
}

/// The move of a tenant that makes room, in one line.
fn move_text(made: &MoveRow) -> String {
    let tpcs = if made.tpcs == 1 { "TPC" } else { "TPCs" };
    format!("{}: {} {tpcs} moved from tpc:{} to tpc:{}\n", made.tenant, made.tpcs, made.from, made.to)
}
