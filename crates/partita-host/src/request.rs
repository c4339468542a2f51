//! The request of `partita run`.

use std::ffi::OsString;
use std::time::Duration;

use partita_mps::partition::PartitionName;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpus::Selectors;
use crate::limits::LimitSet;
use crate::mps::ready::READY_LIMIT;
use crate::offered::Via;
use crate::registry::{Registry, Tenant};
use crate::text;
use crate::time::{self, Turn};

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
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The tenant is for containers, and lives without a process (`cdi`).
    #[serde(skip)]
    pub is_prepared: bool,
}

impl RunRequest {
    /// Whether it shares its TPCs with other tenants, in turns.
    pub(crate) fn takes_turns(&self) -> bool {
        self.limits.takes_turns() && self.mps_partition.is_none()
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
    /// in its turns, or runs at the same time as the tenants with masks.
    ///
    /// # Errors
    /// As [`Registry::lock`].
    pub(crate) fn settled(&self, registry: &Registry, gpus: &[Gpu]) -> Result<Self, Error> {
        let mut settled = self.clone();
        if self.shares_evenly() && self.limits.via() == Via::Auto {
            let tenants = registry.lock()?.tenants()?;
            let keys = || gpus.iter().map(Gpu::key);
            let turns =
                keys().find_map(|key| time::join(tenants.iter().filter(|tenant| tenant.gpu_key == key)));
            match turns {
                Some(Turn::Time(share)) => settled.limits.time = Some(share),
                Some(Turn::Priority(priority)) => settled.limits.priority = Some(priority),
                None => {}
            }
        }
        if settled.takes_turns() && self.limits.via() == Via::Auto {
            let has_own = |tenant: &Tenant| {
                let is_of_mps = tenant.meta.as_ref().is_ok_and(|meta| meta.mps_partition.is_some());
                gpus.iter().any(|gpu| gpu.key() == tenant.gpu_key)
                    && tenant.limits().is_ok_and(|limits| is_of_mps || !limits.takes_turns())
            };
            if !registry.lock()?.tenants()?.iter().any(has_own) {
                settled.limits.via = Some(Via::Time);
            }
        }
        Ok(settled)
    }

    pub(crate) fn mps_limit(&self) -> Duration {
        self.mps_deadline.unwrap_or(READY_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use partita_core::time::{Policy, Priority, TimeShare};
    use partita_core::{ByteSize, Quota, Share};

    use super::RunRequest;
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
}
