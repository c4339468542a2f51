//! What `partita top --once --json` prints: one look at the GPUs and their users.

use std::collections::BTreeMap;

use partita::audit::{GpuLoad, Outsider};
use partita::ps::TenantRow;
use partita::queue::WaitingRow;
use serde::{Deserialize, Serialize};

/// One look, as it is printed.
#[derive(Debug, Serialize)]
pub struct Look {
    /// The GPUs.
    pub gpus: Vec<GpuLoad>,
    /// The tenants, as in `partita ps --json`.
    pub tenants: Vec<TenantRow>,
    /// The programs that wait for room, as in `partita ps --waiting --json`.
    pub waiting: Vec<WaitingRow>,
    /// Programs that are in no tenant.
    pub outsiders: Vec<Outsider>,
    /// Why something is missing.
    pub unseen: Vec<String>,
}

/// One look, as frames need it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Reading {
    pub gpus: Vec<Gpu>,
    pub tenants: Vec<Tenant>,
    pub waiting: Vec<Waiting>,
    pub outsiders: Vec<Outside>,
    pub unseen: Vec<String>,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Gpu {
    pub gpu: String,
    pub memory_total_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
    pub busy_percent: Option<u32>,
    pub memory_busy_percent: Option<u32>,
}

/// A tenant on one GPU.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Tenant {
    pub name: String,
    pub user: String,
    pub gpu: String,
    pub sms: Option<u32>,
    pub sms_of_device: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_quota_bytes: Option<u64>,
    pub memory_spilled_bytes: Option<u64>,
    pub time: Option<Time>,
    pub priority: Option<String>,
    pub via: Option<String>,
    pub launches: Option<u64>,
    pub bursts: Option<Times>,
    pub slo: Option<String>,
    pub target: Option<Target>,
    pub stopped: Option<bool>,
    pub processes: Vec<Process>,
    pub origin: Option<String>,
    pub command: Option<Vec<String>>,
}

/// A share of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Time {
    pub share_percent: f64,
    pub used_percent: Option<f64>,
}

/// How long bursts of work take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Times {
    pub count: u64,
    pub sum_s: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

/// How a target stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Target {
    pub holds: Option<bool>,
    pub unmet: bool,
}

/// A process of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Process {
    pub pid: i32,
    pub launches: u64,
}

/// A program that waits for room.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Waiting {
    pub name: String,
    pub user: String,
    pub gpus: Vec<String>,
    pub ahead: usize,
    pub waited_s: u64,
    pub pid: u32,
}

/// A program that is in no tenant.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Outside {
    pub gpu: String,
    pub pid: u32,
    pub user: String,
    pub memory_used_bytes: Option<u64>,
    pub command: Vec<String>,
}

/// Kernel launches of a tenant between two looks. A process that came meanwhile launched all of its
/// kernels since; one that left is not counted.
pub fn launches_between(before: &Tenant, now: &Tenant) -> Option<u64> {
    now.launches?;
    let earlier: BTreeMap<i32, u64> =
        before.processes.iter().map(|process| (process.pid, process.launches)).collect();
    let of = |process: &Process| {
        let before = earlier.get(&process.pid).copied().unwrap_or(0);
        // A later process with the same number has fewer.
        process.launches.checked_sub(before).unwrap_or(process.launches)
    };
    Some(now.processes.iter().map(of).fold(0, u64::saturating_add))
}

/// The seconds inside bursts that have ended between two looks. A tenant that was started again
/// has fewer bursts than before.
pub fn burst_s_between(before: &Tenant, now: &Tenant) -> Option<f64> {
    let (before, now) = (before.bursts?, now.bursts?);
    let is_same = now.count >= before.count && now.sum_s >= before.sum_s;
    is_same.then_some(now.sum_s - before.sum_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(processes: &[(i32, u64)]) -> Tenant {
        let processes: Vec<Process> =
            processes.iter().map(|&(pid, launches)| Process { pid, launches }).collect();
        Tenant {
            launches: Some(processes.iter().map(|process| process.launches).sum()),
            processes,
            ..Tenant::default()
        }
    }

    #[test]
    fn launches_are_those_of_processes_that_live() {
        let before = tenant(&[(1, 100), (2, 50)]);
        for (now, launches) in [
            (tenant(&[(1, 100), (2, 50)]), 0),
            (tenant(&[(1, 130), (2, 51)]), 31),
            // One ended, another came.
            (tenant(&[(1, 130), (3, 7)]), 37),
            // The number was used again.
            (tenant(&[(1, 5)]), 5),
        ] {
            assert_eq!(launches_between(&before, &now), Some(launches), "{now:?}");
        }
        assert_eq!(launches_between(&before, &Tenant { launches: None, ..tenant(&[(1, 200)]) }), None);
    }

    #[test]
    fn bursts_are_those_that_ended_between() {
        let tenant = |count, sum_s| Tenant {
            bursts: Some(Times { count, sum_s, ..Times::default() }),
            ..Tenant::default()
        };
        assert_eq!(burst_s_between(&tenant(4, 1.0), &tenant(5, 1.5)), Some(0.5));
        assert_eq!(burst_s_between(&tenant(4, 1.0), &tenant(4, 1.0)), Some(0.0));
        // It was started again.
        assert_eq!(burst_s_between(&tenant(4, 1.0), &tenant(1, 3.0)), None);
        assert_eq!(burst_s_between(&Tenant::default(), &tenant(1, 3.0)), None);
    }
}
