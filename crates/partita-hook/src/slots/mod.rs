//! Shares of the GPU's task slots: how many kernels of this process run at once.
//!
//! A GPU runs a fixed number of kernels at once, for all clients of an MPS service together. So a
//! tenant with neighbours has a share of them, and its processes divide it
//! ([`share`]). A process that uses few streams is not counted at all. One with more has every
//! stream in a table ([`streams`]), and launches as it likes while the streams that it uses fill no
//! more than half of its part. From then on each launch stands in a queue
//! ([`Queues`](partita_core::task_slots::Queues)): behind it the GPU writes how many launches of
//! its stream have ended, and the next launch in the queue waits for that number on the GPU
//! ([`hold`]).
//!
//! Such a wait is for a launch that was made before, so these waits alone never form a circle. A
//! program may add one: a stream that waits for memory, for a host function or for another process
//! may wait for what stands behind it in a queue. The GPU also writes when a stream has come to a
//! launch, so the hook's thread sees streams that wait for something of the program's own, and lets
//! on whoever waits behind them ([`watch`]).

pub mod hold;
pub mod pools;
pub mod seen;
pub mod share;
pub mod streams;
pub mod watch;
