//! What the law sees, and what it answers.

use alloc::vec::Vec;

use super::said::{Event, Reason};
use crate::histogram::Histogram;

/// What a tenant's TPCs are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// 99 of 100 bursts take so long at most, in nanoseconds.
    Within(u64),
    /// A multiple of what they take on all that the tenant can have, in thousandths.
    OfAlone(u32),
    /// As much work as possible.
    Throughput,
}

/// A tenant at a look.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Its number, the same at each look.
    pub id: u64,
    /// What it wants.
    pub wanted: Wanted,
    /// The TPCs that it has at least.
    pub least_tpcs: u32,
    /// Those that it may have at most.
    pub most_tpcs: u32,
    /// Those that it holds.
    pub held_tpcs: u32,
    /// All its bursts, or steps, so far.
    pub times: &'a Histogram,
    /// Its launches so far.
    pub launches: u64,
}

/// What there is to divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The TPCs of the tenants of the look, of those that divide the rest, and free ones.
    pub tpcs: u32,
    /// How many other tenants divide the rest evenly, each with a TPC at least.
    pub resting: u32,
}

/// A tenant that should hold another number of TPCs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Order {
    /// The tenant.
    pub id: u64,
    /// What it holds.
    pub from_tpcs: u32,
    /// What it should hold.
    pub tpcs: u32,
    /// Why.
    pub reason: Reason,
}

/// What a look comes to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Look {
    /// Who should hold another number of TPCs. Those that shrink leave room for those that grow.
    pub orders: Vec<Order>,
    /// What else became of tenants.
    pub events: Vec<(u64, Event)>,
}

/// What a tenant's bursts were like on a number of TPCs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// The TPCs.
    pub tpcs: u32,
    /// Bursts.
    pub count: u64,
    /// Their mean time, in nanoseconds.
    pub mean_ns: f64,
    /// What 99 of 100 took at most, within a 64th, in nanoseconds.
    pub p99_ns: u64,
}

/// How a tenant stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// The bound, in nanoseconds; `None` without a target, and before it is learnt.
    pub bound_ns: Option<u64>,
    /// What 99 of 100 of the last bursts took at most, in nanoseconds.
    pub p99_ns: Option<u64>,
    /// Whether the target holds; `None` without a target, and before there are bursts.
    pub holds: Option<bool>,
    /// Whether it holds all that it can have and is violated.
    pub unmet: bool,
    /// The fewest TPCs on which the target is known to hold.
    pub enough_tpcs: Option<u32>,
    /// Seconds to the next trial; `None` in one.
    pub next_trial_s: Option<f64>,
    /// What it was like on each number of TPCs, the fewest first.
    pub levels: Vec<Level>,
}
