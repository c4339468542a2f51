//! One file a command: arguments to requests, results to text.

pub mod apply;
pub mod background;
pub mod batch;
pub mod cdi;
pub mod compare;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod exec;
pub mod generate;
mod info;
pub mod kill;
pub mod mig;
pub mod mps;
pub mod other;
pub mod policy;
pub mod prove;
pub mod ps;
pub mod run;
pub mod set;
pub mod sim;
pub mod system;
pub mod terminal;
pub mod top;
pub mod topology;
pub mod vf;

use partita::partition::{ClusterRow, MoveRow};
use partita_core::ByteSize;

/// A size for readers.
fn bytes(bytes: u64) -> String {
    ByteSize(bytes).short()
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
