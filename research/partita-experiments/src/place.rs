//! The TPCs of each benchmark of a scenario on a device.

use partita_core::{Ask, Placement, PlanError, Present, Share, Topology, TpcSet, plan};
use thiserror::Error;

use crate::dialect::{Benchmark, Config, SmMask, Task};

/// Why a benchmark has no TPCs on a device.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PlaceError {
    /// The mask leaves nothing.
    #[error("{title}: {mask} leaves none of the device's TPCs {all}, and a launch with no TPC never ends")]
    Empty {
        /// The benchmark.
        title: String,
        mask: SmMask,
        /// The device's TPCs.
        all: TpcSet,
    },
    /// The partition is not available.
    #[error("{title}: {reason}")]
    Plan {
        /// The benchmark.
        title: String,
        /// The planner's message.
        reason: PlanError,
    },
}

/// The set of each benchmark, logical; `None` for no restriction.
///
/// A share that is a number gets TPCs that no earlier partition in the list has; one that names its
/// TPCs gets those, shared or not.
///
/// # Errors
/// [`PlaceError`].
pub fn sets(config: &Config, topology: &Topology) -> Result<Vec<Option<TpcSet>>, PlaceError> {
    let mut taken = TpcSet::EMPTY;
    let mut sets = Vec::new();
    for one in &config.benchmarks {
        let set = of(one, topology, taken)?;
        if one.partition.is_some() {
            taken |= set.unwrap_or_default();
        }
        sets.push(set);
        if let Task::Multikernel { kernels } = &one.task {
            for mask in kernels.iter().filter_map(|kernel| kernel.sm_mask) {
                enabled(one, mask, topology)?;
            }
        }
    }
    Ok(sets)
}

/// The rest of a device under a mask.
///
/// # Errors
/// [`PlaceError::Empty`].
pub fn enabled(one: &Benchmark, mask: SmMask, topology: &Topology) -> Result<TpcSet, PlaceError> {
    let set = mask.enabled(topology);
    if set.is_empty() {
        return Err(PlaceError::Empty { title: one.title().to_owned(), mask, all: topology.all() });
    }
    Ok(set)
}

fn of(one: &Benchmark, topology: &Topology, taken: TpcSet) -> Result<Option<TpcSet>, PlaceError> {
    if let Some(mask) = one.sm_mask {
        return enabled(one, mask, topology).map(Some);
    }
    let Some(share) = one.partition else { return Ok(None) };
    let is_named = matches!(share, Share::Exact(_) | Share::Gpcs(_));
    let others = Present { name: "partitions before it".to_owned(), set: taken };
    let present = if is_named || taken.is_empty() { &[][..] } else { std::slice::from_ref(&others) };
    let placement = if is_named { Placement::Packed } else { one.placement };
    let planned = plan(topology, present, Ask { share, placement });
    let planned = planned.map_err(|reason| PlaceError::Plan { title: one.title().to_owned(), reason })?;
    Ok(Some(planned.set))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_sim::catalogue;

    fn sets_of(members: [&str; 3], device: &str) -> Result<Vec<String>, String> {
        let one = |member| {
            format!(
                r#"{{"filename": "timer_spin.so", "thread_count": 32, "block_count": 1, "data_size": 0, "additional_info": 1{member}}}"#
            )
        };
        let list = members.map(one).join(",");
        let text = format!(
            r#"{{"name": "x", "max_iterations": 1, "max_time": 0, "cuda_device": 0, "benchmarks": [{list}]}}"#
        );
        let config = Config::parse(&text).unwrap();
        let topology = catalogue::device(device).unwrap().topology;
        let sets = sets(&config, &topology).map_err(|error| error.to_string())?;
        Ok(sets.iter().map(|set| set.map_or("all".to_owned(), |set| set.to_string())).collect())
    }

    #[test]
    fn shares_are_disjoint_and_names_are_taken_at_their_word() {
        let device = "gtx1060-3gb";
        let found = sets_of([r#", "partition": "50%""#, r#", "partition": "tpc:0-8""#, ""], device);
        assert_eq!(found.unwrap(), ["1,3,5,7", "0-8", "all"]);
        let two = sets_of([r#", "partition": "50%""#, r#", "partition": "5tpc""#, ""], device).unwrap();
        assert_eq!(two, ["1,3,5,7", "0,2,4,6,8", "all"]);
        let spread = sets_of([r#", "partition": "2tpc", "placement": "spread""#, "", ""], device).unwrap();
        assert_eq!(spread[0], "0-1");
        let error =
            sets_of([r#", "partition": "60%""#, r#", "partition": "5tpc", "label": "B""#, ""], device);
        assert!(error.unwrap_err().starts_with("B: 5tpc "));
        let error = sets_of([r#", "sm_mask": "~0x200""#, "", ""], device).unwrap_err();
        assert_eq!(
            error,
            "timer_spin: ~0x200 leaves none of the device's TPCs 0-8, and a launch with no TPC never ends"
        );
    }
}
