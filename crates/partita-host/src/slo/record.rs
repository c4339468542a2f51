//! What the controller writes down of a tenant, for `ps`, `explain` and the next controller.

use std::collections::VecDeque;

use partita_core::slo::Standing;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::mps::incident::now_unix_ms;
use crate::process::user_name;
use crate::registry::{GpuMeta, Registry, Tenant};

/// Steps that are kept; older ones are dropped.
const STEPS_MAX: usize = 64;

/// How a target stands.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TargetRow {
    /// The longest time for 99 of 100, in microseconds; `None` before its own time is learnt.
    pub bound_us: Option<f64>,
    /// What 99 of 100 of the last bursts or steps took at most, in microseconds.
    pub p99_us: Option<f64>,
    /// Whether the target holds; `None` as long as that is not known.
    pub holds: Option<bool>,
    /// Whether it is violated with all TPCs that the tenant can have.
    pub unmet: bool,
    /// The fewest TPCs on which it is known to hold.
    pub enough_tpcs: Option<u32>,
}

/// What its bursts or steps were like on a number of TPCs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LevelRow {
    /// The TPCs.
    pub tpcs: u32,
    /// How many bursts.
    pub count: u64,
    /// Their mean time, in microseconds.
    pub mean_us: f64,
    /// What 99 of 100 took at most, within a 64th, in microseconds.
    pub p99_us: f64,
}

/// A decision, or what became of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// When, in milliseconds since 1970. Later steps of a tenant have greater times, even if the
    /// clock was set back.
    pub at_unix_ms: u64,
    /// A word for it.
    pub what: String,
    /// TPCs before.
    pub from_tpcs: u32,
    /// TPCs after.
    pub tpcs: u32,
    /// Why, in words.
    pub why: String,
}

/// `slo.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The number of the process that controls it, or did so last.
    pub controller: Option<u32>,
    /// When it looked last and wrote, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// `--slo` that the rest is about.
    pub slo: Option<String>,
    /// What 99 of 100 bursts take on all TPCs that it can have, in nanoseconds, if it was learnt.
    pub alone_ns: Option<u64>,
    /// How its target stands; `None` without one.
    pub target: Option<TargetRow>,
    /// Seconds to the next trial; `None` in one.
    pub next_trial_s: Option<f64>,
    /// What its bursts or steps were like on each number of TPCs.
    pub levels: Vec<LevelRow>,
    /// The last decisions, the oldest first.
    pub steps: VecDeque<StepRow>,
}

impl StepRow {
    /// Whether it says something about the target: that it cannot be met, is met again, or was
    /// learnt. The other steps move TPCs.
    #[must_use]
    pub fn is_about_target(&self) -> bool {
        ["unmet", "met", "learnt"].contains(&self.what.as_str())
    }
}

impl Record {
    /// A tenant's record; an empty one if the file is missing or damaged.
    pub fn of(tenant: &Tenant) -> Self {
        serde_json::from_slice(&tenant.slo_record()).unwrap_or_default()
    }

    /// Adds a step.
    pub(super) fn add(&mut self, now_unix_ms: u64, what: &str, from_tpcs: u32, tpcs: u32, why: String) {
        let after = self.steps.back().map_or(0, |last| last.at_unix_ms.saturating_add(1));
        while self.steps.len() >= STEPS_MAX {
            self.steps.pop_front();
        }
        let (at_unix_ms, what) = (now_unix_ms.max(after), what.to_owned());
        self.steps.push_back(StepRow { at_unix_ms, what, from_tpcs, tpcs, why });
    }

    /// Takes over how a tenant stands.
    pub(super) fn stand(&mut self, standing: &Standing, has_target: bool) {
        let us = |ns: u64| ns as f64 / 1e3;
        self.target = has_target.then(|| TargetRow {
            bound_us: standing.bound_ns.map(us),
            p99_us: standing.p99_ns.map(us),
            holds: standing.holds,
            unmet: standing.unmet,
            enough_tpcs: standing.enough_tpcs,
        });
        self.next_trial_s = standing.next_trial_s;
        let row = |level: &partita_core::slo::Level| LevelRow {
            tpcs: level.tpcs,
            count: level.count,
            mean_us: level.mean_ns / 1e3,
            p99_us: us(level.p99_ns),
        };
        self.levels = standing.levels.iter().map(row).collect();
    }

    /// Writes it into the tenant's directory.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn write(&mut self, tenant: &Tenant) -> Result<(), Error> {
        self.controller = Some(std::process::id());
        self.at_unix_ms = now_unix_ms();
        let bytes = serde_json::to_vec(self).map_err(|error| Error::io("slo.json")(error.into()))?;
        tenant.write_slo_record(&bytes)
    }
}

/// The last decisions on a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// The tenant.
    pub tenant: String,
    /// The name of its user.
    pub user: String,
    /// Its GPU.
    pub gpu: GpuMeta,
    /// The decisions, and what became of them, the oldest first.
    pub steps: Vec<StepRow>,
}

/// The last decisions on all tenants that have or had a target or a goal.
///
/// # Errors
/// [`Error::RunDirectory`], [`Error::Io`].
pub fn decided(registry: &Registry) -> Result<Vec<Decided>, Error> {
    let tenants = registry.lock()?.tenants()?;
    let of = |tenant: &Tenant| {
        let meta = tenant.meta.as_ref().ok()?;
        let steps: Vec<StepRow> = Record::of(tenant).steps.into();
        let (tenant, user) = (tenant.name.clone(), user_name(tenant.user));
        (!steps.is_empty()).then(|| Decided { tenant, user, gpu: meta.gpu.clone(), steps })
    };
    Ok(tenants.iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Record, STEPS_MAX};

    proptest! {
        #[test]
        fn steps_are_in_order_whatever_the_clock_says(times in prop::collection::vec(any::<u64>(), 0..200)) {
            let mut record = Record::default();
            for now_unix_ms in times.iter().map(|time| time >> 1) {
                record.add(now_unix_ms, "late", 1, 2, String::new());
                prop_assert!(record.steps.back().unwrap().at_unix_ms >= now_unix_ms);
            }
            prop_assert_eq!(record.steps.len(), times.len().min(STEPS_MAX));
            let steps = Vec::from(record.steps);
            prop_assert!(steps.windows(2).all(|pair| pair[0].at_unix_ms < pair[1].at_unix_ms));
        }
    }
}
