//! `partita run --wait`: programs that wait for room on a GPU, and the rule of their order.
//!
//! Starts on a GPU are in the order of their arrival. While a program waits for room there, no
//! later one starts on that GPU, however small it is: so a large program is never starved by small
//! ones, and what a program waits for can only become more. A program on several GPUs waits for all
//! of them, and holds none meanwhile. Programs on other GPUs do not wait for it.
//!
//! A place in the queue counts for as long as its `partita run` lives, so a killed one holds nobody
//! up.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::tenant::GpuMeta;
use crate::process::ProcessId;

/// A program that waits for room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    /// Its place: later ones have higher numbers.
    pub number: u64,
    /// The tenant's name.
    pub name: String,
    /// Its user.
    pub user: u32,
    /// The GPUs that it waits for.
    pub gpus: Vec<GpuMeta>,
    /// Its `partita run`.
    pub run: ProcessId,
    /// When it began to wait.
    pub since_unix_s: u64,
}

impl Waiter {
    fn waits_for(&self, gpu_key: &str) -> bool {
        self.gpus.iter().any(|gpu| gpu.key == gpu_key)
    }
}

/// Those that must start before a program on these GPUs, in order. `own`: the program's place;
/// `None` before it has one.
pub(crate) fn ahead<'q>(queue: &'q [Waiter], own: Option<u64>, gpu_keys: &[String]) -> Vec<&'q Waiter> {
    let is_ahead = |waiter: &&Waiter| {
        own.is_none_or(|own| waiter.number < own) && gpu_keys.iter().any(|key| waiter.waits_for(key))
    };
    let mut found: Vec<&Waiter> = queue.iter().filter(is_ahead).collect();
    found.sort_by_key(|waiter| waiter.number);
    found
}

pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GPUS: usize = 3;
    const UNITS: u32 = 10;

    fn gpu(at: usize) -> GpuMeta {
        GpuMeta { key: at.to_string(), uuid: String::new(), index: None, label: String::new(), sim: None }
    }

    fn waiter(number: u64, gpus: &[usize]) -> Waiter {
        Waiter {
            number,
            name: number.to_string(),
            user: 0,
            gpus: gpus.iter().copied().map(gpu).collect(),
            run: ProcessId { pid: 1, start_ticks: 1 },
            since_unix_s: 0,
        }
    }

    fn keys(waiter: &Waiter) -> Vec<String> {
        waiter.gpus.iter().map(|gpu| gpu.key.clone()).collect()
    }

    #[test]
    fn only_earlier_ones_of_the_same_gpu_are_ahead() {
        let queue = [waiter(7, &[1]), waiter(2, &[0, 1]), waiter(4, &[2])];
        let ahead = |own, gpus: &[&str]| -> Vec<u64> {
            let gpus: Vec<String> = gpus.iter().map(|key| (*key).to_owned()).collect();
            super::ahead(&queue, own, &gpus).iter().map(|waiter| waiter.number).collect()
        };
        assert_eq!(ahead(None, &["1"]), [2, 7]);
        assert_eq!(ahead(Some(7), &["1"]), [2]);
        assert_eq!(ahead(Some(2), &["0", "1"]), [0_u64; 0]);
        assert_eq!(ahead(None, &["0", "2"]), [2, 4]);
        assert_eq!(ahead(None, &["3"]), [0_u64; 0]);
    }

    /// What happens on a machine.
    #[derive(Debug, Clone)]
    enum Step {
        /// A program arrives that wants so many units of each of these GPUs.
        Arrive(Vec<usize>, u32),
        /// The waiter at this place of the queue is killed.
        Die(usize),
        /// The tenant at this place ends.
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (proptest::sample::subsequence((0..GPUS).collect::<Vec<_>>(), 1..=GPUS), 1..=UNITS)
                .prop_map(|(gpus, units)| Step::Arrive(gpus, units)),
            1 => (0_usize..8).prop_map(Step::Die),
            2 => (0_usize..8).prop_map(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn starts_are_in_order_and_the_queue_never_stands_still(steps in prop::collection::vec(step(), 1..60)) {
            let mut queue: Vec<(Waiter, u32)> = Vec::new();
            let mut running: Vec<(Waiter, u32)> = Vec::new();
            let mut started: Vec<Waiter> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Arrive(gpus, units) => queue.push((waiter(number as u64, &gpus), units)),
                    Step::Die(at) if at < queue.len() => drop(queue.remove(at)),
                    Step::End(at) if at < running.len() => drop(running.remove(at)),
                    Step::Die(_) | Step::End(_) => {}
                }
                // Each asks the planner, the last one first: the order of questions is no order.
                let free = |running: &[(Waiter, u32)], key: &str| {
                    let used = running.iter().filter(|(other, _)| other.waits_for(key));
                    UNITS - used.map(|(_, units)| units).sum::<u32>()
                };
                for _ in 0..queue.len() {
                    for at in (0..queue.len()).rev() {
                        let known: Vec<Waiter> = queue.iter().map(|(waiter, _)| waiter.clone()).collect();
                        let (waiter, units) = queue[at].clone();
                        let is_first = ahead(&known, Some(waiter.number), &keys(&waiter)).is_empty();
                        if is_first && keys(&waiter).iter().all(|key| free(&running, key) >= units) {
                            running.push(queue.remove(at));
                            // Nothing that still waits for one of its GPUs came before it.
                            for (other, _) in &queue {
                                let meets = keys(&waiter).iter().any(|key| other.waits_for(key));
                                prop_assert!(!meets || other.number > waiter.number);
                            }
                            started.push(waiter);
                            break;
                        }
                    }
                }
                // On each GPU, starts are in the order of arrival.
                for key in (0..GPUS).map(|at| at.to_string()) {
                    let of_gpu = started.iter().filter(|one| one.waits_for(&key)).map(|one| one.number);
                    prop_assert!(of_gpu.is_sorted());
                }
                // Those that wait have a reason: one ahead of them, or no room.
                let known: Vec<Waiter> = queue.iter().map(|(waiter, _)| waiter.clone()).collect();
                for (waiter, units) in &queue {
                    let has_room = keys(waiter).iter().all(|key| free(&running, key) >= *units);
                    let ahead = ahead(&known, Some(waiter.number), &keys(waiter));
                    prop_assert!(!has_room || !ahead.is_empty(), "{waiter:?} could start");
                }
                // The first one waits for tenants alone, so the queue moves when these end.
                if let Some(first) = known.first() {
                    prop_assert!(ahead(&known, Some(first.number), &keys(first)).is_empty());
                }
            }
        }
    }
}
