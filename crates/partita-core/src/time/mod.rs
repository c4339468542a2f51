//! Shares of a GPU's time and priorities: the control laws.
//!
//! Nothing here reads a clock or touches a GPU. The code that owns a tenant's gate reports to a
//! [`Budget`] how long the GPU was busy for the tenant; the answer says whether the gate is open
//! and when to look again ([`Decision`]). The code that delays low-priority work asks a [`Hold`]
//! whether a closed gate still has effect, a [`Pacer`] how many kernels may pass between two gates,
//! and a [`GraphShape`] where the gates are inside a graph. Another law, for comparison, is the
//! token bucket in [`tokens`].
//!
//! # Why the budget is stable
//! The balance is an integrator: it grows by the share of the time that passes and shrinks by the
//! time *measured* to be busy. There is no gain, no estimate of load and no model of the kernels,
//! hence nothing to tune and nothing to oscillate. Let a tenant always have work, let `s` be its
//! share, [`Law::slice_ns`] the balance at which a closed gate opens, and `o` the longest overrun:
//! the kernels of one unit that still run when the gate closes, and the time until the next look.
//! Then
//!
//! * an open gate closes at the first look that finds the balance at 0 or below, so the balance is
//!   never below `−o`;
//! * a closed gate opens at the first look that finds it at `slice_ns`, so it is never above that
//!   and what a late look adds.
//!
//! Since balance = `s`·T − busy(T), the share achieved over T differs from `s` by at most max(`o`,
//! `slice_ns`)/T, for kernels of any length, mixed or in bursts: **the error does not accumulate
//! and goes to 0 as 1/T**. A kernel that is longer than the budget of many periods overdraws once;
//! the debt is carried and paid by waiting o·(1−s)/s. A tenant without work saves at most one
//! period's share ([`Law::period_ns`]), so it cannot starve others later.
//!
//! The debt of a soft budget, which runs on the idle time of others, is limited to one period's
//! share. When they return it waits for less than one period, which is the meaning of giving back
//! within one period.
//!
//! # One budget of many processes
//! Each process of a tenant measures its own work and reports when the GPU was busy for it. A
//! [`TimeAccount`] is the budget with a [`Timeline`] of the reports, so that kernels of two
//! processes at the same time are charged once. It consists of a few words: processes that share it
//! need only exchange them as a whole.
//!
//! # Why no tenant starves behind a gate
//! A [`Hold`] lets a gate have effect for [`Hold::hold_ns_max`] at a time and then passes work for
//! [`Hold::pass_ns`], so waiting work gets pass/(hold+pass) of the time, whatever the other tenant
//! does.

mod account;
mod budget;
mod gate;
mod shape;
mod share;
#[cfg(test)]
mod tests;
mod timeline;
pub mod tokens;

pub use account::{ACCOUNT_WORDS, TimeAccount};
pub use budget::{Budget, Decision, Law, Policy, Situation};
pub use gate::{Hold, Pacer, Priority};
pub use shape::GraphShape;
pub use share::{ParseTimeShareError, TimeShare};
pub use timeline::Timeline;
