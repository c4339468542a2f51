//! Shares of time: the tenant's GPU time is measured, and its work waits when the budget is spent.
//!
//! Launches go in units ([`units`]): a wait for the tenant's gate, an event, some launches, an
//! event. The number of launches in a unit follows from their measured length
//! ([`Pacer`](partita_core::time::Pacer)), so that most launches cost no call of the driver. A
//! graph is a unit by itself. Captures are not touched; a graph is charged when it is launched.
//!
//! A thread polls the events now and then ([`watch`]), reports the GPU's busy times to the tenant's
//! account, and opens or closes the gate as the account requires. The account is in shared memory,
//! every process of the tenant changes it ([`TimeMap`](partita_ledger::TimeMap)), and each has such
//! a thread while it has work in flight. So no single process is responsible, and no death stops
//! the others.

pub mod beside;
pub mod calls;
pub mod clock;
pub mod meter;
pub mod neighbours;
pub mod streams;
pub mod tokens;
pub mod units;
pub mod utilization;
pub mod watch;
