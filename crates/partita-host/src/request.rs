//! The request of `partita run`.

use std::ffi::OsString;
use std::time::Duration;

use partita_core::time::TimeShare;
use partita_mps::partition::PartitionName;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus::Selectors;
use crate::limits::LimitSet;
use crate::mps::ready::READY_LIMIT;
use crate::offered::Via;
use crate::registry::{Registry, Tenant};
use crate::time::{self, Turn};
use crate::{slo, text};

/// What to run and how. A command sends its serialized form to `partitad` in system mode.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RunRequest {
    /// `--gpu`.
    #[serde(with = "text::option")]
    pub gpus: Option<Selectors>,
    /// The limits.
    pub limits: LimitSet,
    /// `--name`; `None` for one made from the program's name.
    pub name: Option<String>,
    /// `--mps-deadline`: the timeout for a server that is not ready; `None` for [`READY_LIMIT`].
    #[serde(skip)]
    pub mps_deadline: Option<Duration>,
    /// `--compact`: others make room, as few as need be.
    pub compact: bool,
    /// `--wait`: how long it waits for room, in the order of all that wait; `Duration::MAX` without
    /// a limit, `None` for a refusal instead.
    pub wait: Option<Duration>,
    /// `--mps-partition`: a static partition of the GPU's MPS service instead of a mask.
    #[serde(with = "text::option")]
    pub mps_partition: Option<PartitionName>,
    /// The program's description in `ps`; `None` for its command line.
    pub description: Option<String>,
    /// Why it is on its GPU, if Partita chose that.
    #[serde(default)]
    pub placed: Option<String>,
    /// Partita chose that it takes turns.
    #[serde(default)]
    pub is_put_in_turns: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// For a tenant that is made for containers and lives without a process (`cdi`): the limits as
    /// they were asked for, before anything was settled.
    #[serde(skip)]
    pub prepared: Option<LimitSet>,
    /// The policy of the site makes the tenant, for a program that was started without Partita
    /// (`outside`).
    #[serde(skip)]
    pub is_outside: bool,
}

impl RunRequest {
    /// Whether it shares its TPCs with other tenants, in turns.
    pub(crate) fn takes_turns(&self) -> bool {
        self.limits.takes_turns() && self.mps_partition.is_none()
    }

    /// Whether Partita chooses its GPU.
    pub(crate) fn chooses_gpu(&self) -> bool {
        matches!(self.gpus, Some(Selectors::Any(_)))
    }

    /// Whether its TPCs are an even part of what the shares of others leave, because it asks for no
    /// share of anything. A chain, which has a description, divides its TPCs itself and keeps them.
    pub(crate) fn shares_evenly(&self) -> bool {
        let asks = self.limits.share.is_some() || self.takes_turns() || self.mps_partition.is_some();
        !asks && self.description.is_none()
    }

    /// The same with what depends on the tenants that are there.
    ///
    /// Where tenants that take turns leave no compute units, a request without `--sm` takes turns
    /// too. Its isolation is settled if it takes turns without `--via time`: it has the whole GPU
    /// in its turns, or runs at the same time as the tenants with masks. In turns a target or a
    /// goal settles its priority. A program that could not meet its target with masks before takes
    /// turns, if no tenant there has compute units of its own.
    ///
    /// # Errors
    /// As [`Registry::lock`].
    pub(crate) fn settled(&self, registry: &Registry, gpus: &[Gpu]) -> Result<Self, Error> {
        let mut settled = self.clone();
        let has_own = || {
            let is_of_mps =
                |tenant: &Tenant| tenant.meta.as_ref().is_ok_and(|meta| meta.mps_partition.is_some());
            let has_own = |tenant: &Tenant| {
                gpus.iter().any(|gpu| gpu.key() == tenant.gpu_key)
                    && tenant.limits().is_ok_and(|limits| is_of_mps(tenant) || !limits.takes_turns())
            };
            Ok::<_, Error>(registry.lock()?.tenants()?.iter().any(has_own))
        };
        if let [gpu] = gpus
            && !registry.is_system()
            && self.prepared.is_none()
            && self.mps_partition.is_none()
            && slo::is_for_turns(&self.limits, &gpu.facts.uuid, &self.command)
            && !has_own()?
        {
            settled.limits.via = Some(Via::Time);
            settled.is_put_in_turns = true;
        }
        if settled.shares_evenly() && settled.limits.via() == Via::Auto {
            let tenants = registry.lock()?.tenants()?;
            let keys = || gpus.iter().map(Gpu::key);
            let turns =
                keys().filter_map(|key| time::join(tenants.iter().filter(|tenant| tenant.gpu_key == key)));
            // Its share is the same on each of its GPUs.
            let least = |one, other| match (one, other) {
                (Turn::Time(one), Turn::Time(other)) => Turn::Time(TimeShare(one.0.min(other.0))),
                (one, _) => one,
            };
            match turns.reduce(least) {
                // A share of time holds no target.
                Some(Turn::Time(_)) if slo::is_asked(&self.limits) => {}
                Some(Turn::Time(share)) => settled.limits.time = Some(share),
                Some(Turn::Priority(priority)) => {
                    settled.limits.priority = slo::priority_in_turns(&self.limits).or(Some(priority));
                }
                None => {}
            }
        }
        if settled.takes_turns() && settled.limits.via() == Via::Auto && !has_own()? {
            settled.limits.via = Some(Via::Time);
        }
        if settled.takes_turns() {
            settled.limits.priority = slo::priority_in_turns(&settled.limits);
        }
        Ok(settled)
    }

    pub(crate) fn mps_limit(&self) -> Duration {
        self.mps_deadline.unwrap_or(READY_LIMIT)
    }
}

/// The time of `--wait`: a number with its unit.
///
/// # Errors
/// How to write it.
pub fn wait_time(text: &str) -> Result<Duration, String> {
    let at = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit_s = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_s));
    let seconds = seconds.filter(|_| unit_s > 0);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| "give a time with its unit: 30s, 10m or 2h; --wait alone has no limit".to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use partita_core::time::{Policy, Priority, TimeShare};
    use partita_core::{ByteSize, Quota, Share};

    use super::{RunRequest, wait_time};
    use crate::limits::LimitSet;

    #[test]
    fn a_request_is_the_same_after_it_was_sent() {
        let request = RunRequest {
            gpus: Some("sim:h200,1".parse().unwrap()),
            limits: LimitSet {
                share: Some(Share::Percent(12_500)),
                memory: Some(ByteSize((5 << 30) + 1).into()),
                driver_allowance: Some(ByteSize(0)),
                priority: Some(Priority::Low),
                time: Some(TimeShare(125)),
                time_policy: Some(Policy::Soft),
                ..LimitSet::default()
            },
            compact: true,
            wait: Some(Duration::from_secs(90)),
            command: vec!["a program".into(), "--x".into()],
            ..RunRequest::default()
        };
        let percent = LimitSet { memory: Some(Quota::Percent(12_500)), ..LimitSet::default() };
        let percent = RunRequest { limits: percent, ..RunRequest::default() };
        for request in [request, percent, RunRequest::default()] {
            let sent = serde_json::to_string(&request).unwrap();
            let received: RunRequest = serde_json::from_str(&sent).unwrap();
            assert_eq!(format!("{received:?}"), format!("{request:?}"));
        }
    }

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("0s", 0), ("30s", 30), ("10m", 600), ("2h", 7200)] {
            assert_eq!(wait_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in
            ["", "30", "s", "-1s", "1.5h", "1d", "10 s", "99999999999999999999s", "18446744073709551615h"]
        {
            assert!(wait_time(text).is_err(), "{text}");
        }
    }
}
