//! What `partita run` is asked for.

mod text;

use std::ffi::OsString;
use std::time::Duration;

use partita_core::time::{Policy, Priority};
use partita_core::{ByteSize, Share};
use partita_mps::partition::PartitionName;
use serde::{Deserialize, Serialize};

use crate::gpus::Selectors;
use crate::limits::{OnMisfit, SmCount, Spill};
use crate::mps::ready::READY_LIMIT;
use crate::offered::{TimeShare, Via};
use crate::place::Place;
use crate::registry::Isolation;

/// What to run and how. Its serialized form is what a command sends to `partitad` in system mode.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RunRequest {
    /// `--gpu`.
    #[serde(with = "text")]
    pub gpus: Option<Selectors>,
    /// `--sm`, on each of the GPUs; none for every TPC that is free.
    #[serde(with = "text")]
    pub share: Option<Share>,
    /// `--mem`, on each of the GPUs; none for no quota.
    #[serde(with = "text")]
    pub memory: Option<ByteSize>,
    /// `--mem-driver`; none for [`DRIVER_ALLOWANCE_BYTES`](partita_ledger::DRIVER_ALLOWANCE_BYTES).
    #[serde(with = "text")]
    pub driver_allowance: Option<ByteSize>,
    /// `--name`; none for one made of the program's name.
    pub name: Option<String>,
    /// `--isolation`.
    pub isolation: Isolation,
    /// `--on-misfit`.
    pub on_misfit: OnMisfit,
    /// `--sm-count`.
    pub sm_count: SmCount,
    /// `--priority`.
    #[serde(with = "text::named")]
    pub priority: Priority,
    /// `--time`, on each of the GPUs; none for no share of time, which cannot be given later.
    pub time: Option<TimeShare>,
    /// `--time-policy`.
    #[serde(with = "text::named")]
    pub time_policy: Policy,
    /// `--via`.
    pub via: Via,
    /// `--restart`. Only the command itself needs it, and the next one.
    #[serde(skip)]
    pub restart: Restart,
    /// `--mps-deadline`: how long to wait for a server that is not ready; none for [`READY_LIMIT`].
    #[serde(skip)]
    pub mps_deadline: Option<Duration>,
    /// `--spill`.
    pub spill: Spill,
    /// `--place`; none for packed.
    pub place: Option<Place>,
    /// `--compact`: others make room, as few as need be.
    pub compact: bool,
    /// `--mps-partition`: a static partition of the GPU's MPS service instead of a mask.
    #[serde(with = "text")]
    pub mps_partition: Option<PartitionName>,
    /// What `ps` calls the program; none for its command line.
    pub description: Option<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl RunRequest {
    /// Whether it has no mask: the whole GPU in turns, or what MPS gives.
    pub(crate) fn is_whole(&self) -> bool {
        self.via == Via::Time || self.mps_partition.is_some()
    }

    pub(crate) fn mps_limit(&self) -> Duration {
        self.mps_deadline.unwrap_or(READY_LIMIT)
    }
}

/// `--restart`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// Never.
    #[default]
    Never,
    /// When a fault that a neighbour caused, or a neighbour's end, took its work on the GPU, and as
    /// often as that happens.
    OnNeighbourFault,
}
