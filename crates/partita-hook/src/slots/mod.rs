//! Shares of the GPU's task slots: how many kernels of this process run at once.
//!
//! A GPU runs a fixed number of kernels at once, for all clients of an MPS service together. So a
//! tenant with neighbours has a share of them, and its processes divide it
//! ([`share`]). The hook does not count the launches of a process that uses few streams. A process
//! with more has each stream in a table ([`streams`]). Its launches skip the queues while the
//! streams that it uses fill no more than half of its part. From then on each launch stands in a
//! queue ([`Queues`](partita_core::task_slots::Queues)): after it the GPU writes how many launches
//! of its stream have ended, and the next launch in the queue waits for that number on the GPU
//! ([`hold`]).
//!
//! A launch waits only for launches that were made before it, so these waits alone form no circle.
//! A program may add one: a stream that waits for memory, for a host function or for another
//! process may wait for a launch that stands behind it in a queue. The GPU also writes when a
//! stream has reached a launch. So the hook's thread finds streams that wait for the program
//! itself, and releases the launches that wait behind them ([`watch`]).

pub mod bursts;
pub mod finished;
pub mod hold;
pub mod in_use;
pub mod pools;
pub mod rest;
pub mod seen;
pub mod share;
pub mod streams;
pub mod watch;
