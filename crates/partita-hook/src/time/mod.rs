//! Shares of time: what the GPU does for the tenant is measured, and waits when the tenant's budget
//! is spent.
//!
//! Launches go in units ([`units`]): a wait for the tenant's gate, an event, some launches, an
//! event. How many launches make a unit follows from their measured length
//! ([`Pacer`](partita_core::time::Pacer)), so that most launches cost no call of the driver. A
//! graph is a unit of its own. What is captured is not touched; its graph is charged when it is
//! launched.
//!
//! A thread looks at the events now and then ([`watch`]), reports to the tenant's account when the
//! GPU was busy, and opens or closes the gate as the account says. The account lies in shared
//! memory, any process of the tenant changes it ([`TimeMap`](partita_ledger::TimeMap)), and each
//! has such a thread while it has work in flight; so it is nobody's task alone, and nobody's death
//! stops the others.

pub mod beside;
pub mod calls;
pub mod clock;
pub mod meter;
pub mod neighbours;
pub mod streams;
pub mod units;
pub mod watch;
