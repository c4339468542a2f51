//! Units, TPC sets, topology, shares and partition plans.
//!
//! Everything here is pure: values go in, values come out. There is no clock, no I/O and no unsafe
//! code, and the crate is `no_std`, because it is linked into the library that runs inside every
//! tenant's process as well as into the tools.
//!
//! | type | what it is |
//! |---|---|
//! | [`TpcSet`] | a set of *enabled* TPCs, in logical numbers unless stated otherwise |
//! | [`Topology`] | the GPC of each TPC, and its bit in the hardware's mask |
//! | [`survey::Survey`] | the places of the units by independent sources, and whether they agree |
//! | [`Share`] | a user's request: `30%`, `40sm`, `20tpc`, `gpc:0-2`, `tpc:0-9` |
//! | [`plan`], [`replan`] | which TPCs a tenant gets, without a change to present tenants |
//! | [`compact`], [`repack`] | the same with others making room: the fewest moves, in order |
//! | [`Clusters`] | the clusters of thread blocks that a set of TPCs can run |
//! | [`Residence`] | whether a launch can ever run on a set, or would wait for ever |
//! | [`ByteSize`] | a memory size: `20GiB`, `512MiB` |
//! | [`kept`] | the names of cached calibrations |
//! | [`hami`] | limits in HAMi-core's environment variables |
//! | [`time`] | shares of the GPU's time, and priorities |
//! | [`elastic`] | what a tenant borrows of idle TPCs |
//! | [`slo`] | targets for times, and who holds how many TPCs so that they hold |
//! | [`gpu_choice`] | on which GPU a new tenant fits best |
//! | [`mig`] | plans for MIG instances |
//! | [`vf`] | plans for virtual functions and vGPUs |
//! | [`Words`] | limits whose value is one of a few words |
//! | [`task_slots`] | shares of the kernels that a GPU runs at once |
//! | [`Count`] | a number of things in words: `1 TPC`, `2 TPCs` |
//! | [`Samples`] | percentiles, mean and ratios of measurements |
//! | [`histogram`] | times in buckets: quantiles, sums and differences of what others counted |
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod calendar;
mod count;
pub mod elastic;
mod gpc_set;
pub mod gpu_choice;
pub mod hami;
pub mod histogram;
pub mod kept;
pub mod memory;
pub mod mig;
mod plan;
mod quota;
mod residence;
mod share;
mod size;
pub mod slo;
mod stats;
pub mod task_slots;
#[cfg(test)]
mod testing;
pub mod time;
mod topology;
mod tpc_set;
pub mod vf;
pub mod visible;
mod words;

pub use calendar::date_of;
pub use count::Count;
pub use gpc_set::GpcSet;
pub use plan::{
    Access, Ask, Clusters, Compaction, Holder, Move, NoneFree, NotEnough, Part, Placement, Plan, PlanError,
    Present, Remedy, Repacking, Resize, Store, Taken, all_free, compact, level, plan, plan_beside, repack,
    replan,
};
pub use quota::Quota;
pub use residence::{Misfit, Residence, resident_blocks};
pub use share::{ParseShareError, Share, ShareError};
pub use size::{ByteSize, ParseByteSizeError};
pub use stats::{Samples, SamplesError};
pub use topology::{Gpc, Topology, TopologyError, Tpc, UnknownSm, survey};
pub use tpc_set::{ParseTpcSetError, TpcSet};
pub use words::{UnknownWord, Words};
