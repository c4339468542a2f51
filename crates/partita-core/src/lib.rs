//! Units, TPC sets, topology, shares and partition plans.
//!
//! Everything here is pure: values go in, values come out. There is no clock, no I/O and no unsafe
//! code, and the crate is `no_std`, because it is linked into the library that runs inside every
//! tenant's process as well as into the tools.
//!
//! | type | what it is |
//! |---|---|
//! | [`TpcSet`] | a set of *enabled* TPCs, in logical numbering unless said otherwise |
//! | [`Topology`] | which GPC each TPC lies in, and which bit of the hardware's mask stands for it |
//! | [`survey::Survey`] | what independent sources say of where the units lie, and whether they agree |
//! | [`Share`] | what a user asks for: `30%`, `40sm`, `20tpc`, `gpc:0-2`, `tpc:0-9` |
//! | [`plan`], [`replan`] | which TPCs a tenant gets, beside those that are there, who stay as they are |
//! | [`compact`], [`repack`] | the same with others making room: the fewest moves, and an order to make them in |
//! | [`Clusters`] | what clusters of thread blocks a set of TPCs can run |
//! | [`Residence`] | whether a launch can ever run on a set, or would wait for ever |
//! | [`ByteSize`] | a memory size: `20GiB`, `512MiB` |
//! | [`kept`] | the names under which calibrations are kept |
//! | [`hami`] | limits as HAMi-core is given them, by variables of the environment |
//! | [`time`] | shares of the GPU's time, and who waits for whom |
//! | [`Count`] | a number of things in words: `1 TPC`, `2 TPCs` |
//! | [`Samples`] | percentiles, mean and ratios of measurements |
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod calendar;
mod count;
mod gpc_set;
pub mod hami;
pub mod kept;
mod plan;
mod residence;
mod share;
mod size;
mod stats;
#[cfg(test)]
mod testing;
pub mod time;
mod topology;
mod tpc_set;
pub mod visible;

pub use calendar::date_of;
pub use count::Count;
pub use gpc_set::GpcSet;
pub use plan::{
    Ask, Clusters, Compaction, Holder, Move, NotEnough, Placement, Plan, PlanError, Present, Repacking,
    Store, Taken, compact, plan, repack, replan,
};
pub use residence::{Misfit, Residence, resident_blocks};
pub use share::{ParseShareError, Share, ShareError};
pub use size::{ByteSize, ParseByteSizeError};
pub use stats::{Samples, SamplesError};
pub use topology::{Gpc, Topology, TopologyError, Tpc, UnknownSm, survey};
pub use tpc_set::{ParseTpcSetError, TpcSet};
