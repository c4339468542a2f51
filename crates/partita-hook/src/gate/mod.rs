//! The gate between tenants of a GPU: those of low priority wait while those of high priority have
//! work in flight.
//!
//! A stream of a process of high priority has a lane in the GPU's gate file
//! ([`GateMap`](partita_ledger::GateMap)). Before the first launch after a rest the hook closes it,
//! by a store; behind the last, the GPU opens it, by a write in the stream: after every graph, and
//! before every call with which the program waits, copies that it waits for among them, or asks
//! whether it is done. So nobody synchronises, and no process takes part between the last kernel's
//! end and the next one's beginning. In front of launches of low priority waits for all lanes go
//! into the stream ([`low`]), so what is queued already stops as well; how many launches pass
//! between two follows from their measured lengths ([`pace`]).
//!
//! A process of low priority that has met a lane starts the one thread that the hook ever has. It
//! sleeps, and every few milliseconds opens the lanes of those that have died and of those that
//! hold others for too long.

pub mod inside;
pub mod lanes;
pub mod look;
pub mod low;
pub mod pace;
pub mod pass;
pub mod slices;
pub mod waits;
