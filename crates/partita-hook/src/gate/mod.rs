//! The gate between tenants of a GPU: low-priority tenants wait while high-priority tenants have
//! work in flight.
//!
//! A stream of a high-priority process has a lane in the GPU's gate file
//! ([`GateMap`](partita_ledger::GateMap)). Before the first launch after a pause the hook closes
//! it, by a store. After the last one the GPU opens it, by a write in the stream: after every
//! graph, and before every call with which the program waits or queries, including copies that
//! wait. So there is no synchronisation, and no process takes part between the end of the last
//! kernel and the beginning of the next. Before low-priority launches, waits for all lanes go into
//! the stream ([`low`]), so that queued work stops as well; the number of launches between two
//! waits follows from their measured lengths ([`pace`]).
//!
//! A low-priority process that has met a lane starts the only thread of the hook. It sleeps, and
//! every few milliseconds opens the lanes of dead processes and of those that block others for too
//! long.

pub mod inside;
pub mod lanes;
pub mod look;
pub mod low;
pub mod pace;
pub mod pass;
pub mod pieces;
pub mod slices;
pub mod waits;
