//! The division of SMs by MPS itself: policies as values in, percentages and SM counts out.
//!
//! The policies are those of the MPS guide, section 2.3.5.2. A percentage is a ceiling and reserves
//! nothing: clients may share SMs. It also changes the SM count that a library sees, with which
//! some compute wrong results: code that sets one has to test the products first.

use serde::Serialize;

/// The SMs of a device, with the facts that the rounding of limits needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sms {
    /// SMs of the device.
    pub count: u32,
    /// SMs of a TPC: the step size of limits.
    pub per_tpc: u32,
}

/// TPCs of the smallest limit. On an H200 that is 8 SMs, from 1 to 7 %; four TPCs on other devices
/// is an inference.
const TPCS_LEAST: u32 = 4;

impl Sms {
    /// SMs that a client of this percentage gets: rounded down to whole TPCs.
    ///
    /// An H200 (132 SMs): 10 % gives 12, 25 % 32, 36 % 46, 50 % 66, 75 % 98. A device of 188: 50 %
    /// gives 94, 25 % 46.
    #[must_use]
    pub fn of_percentage(self, percent: f64) -> u32 {
        // Exact where a share is whole: 50 % of 132 must not become 65.999….
        let exact = (f64::from(self.count) * percent.clamp(0.0, 100.0) / 100.0 + 1e-9).floor() as u32;
        (exact / self.step() * self.step()).max(self.least())
    }

    /// SMs of a context that requests this many (`CU_EXEC_AFFINITY_TYPE_SM_COUNT`): rounded up. An
    /// H200: 2 gives 8, 33 gives 34.
    #[must_use]
    pub fn of_affinity(self, wanted: u32) -> u32 {
        wanted.next_multiple_of(self.step()).max(self.least()).min(self.count)
    }

    /// The smallest whole percentage that gives this many SMs, or the next larger possible number.
    #[must_use]
    pub fn percentage_for(self, wanted: u32) -> Option<u32> {
        (1..=100).find(|&percent| self.of_percentage(f64::from(percent)) >= wanted.min(self.count))
    }

    fn step(self) -> u32 {
        self.per_tpc.max(1)
    }

    fn least(self) -> u32 {
        (TPCS_LEAST * self.step()).min(self.count)
    }
}

/// The policy for dividing the SMs.
#[derive(Debug, Clone, PartialEq)]
pub enum Policy {
    /// `100 % / n`: nearly the least that still uses the device when all clients work; a client
    /// that is alone uses only its part.
    Uniform {
        /// Clients.
        clients: u32,
    },
    /// `100 % / (n / 2)`: twice as much, so that idle SMs are used.
    Half {
        /// Clients.
        clients: u32,
    },
    /// In the ratio of each client's measured load, in any unit.
    Weighted {
        /// Loads, one a client.
        loads: Vec<f64>,
    },
    /// These SM counts.
    Exact {
        /// SMs, one a client.
        sms: Vec<u32>,
    },
}

/// The share of one client.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Allotment {
    /// The percentage to set.
    pub percent: f64,
    /// The SMs that the driver gives for it.
    pub sms: u32,
}

/// Divides a device's SMs: one share for each client.
///
/// # Errors
/// A message about the policy's mistake, with the remedy.
pub fn divide(device: Sms, policy: &Policy) -> Result<Vec<Allotment>, String> {
    let give = |percent: f64| {
        let percent = percent.min(100.0);
        Allotment { percent, sms: device.of_percentage(percent) }
    };
    let some = |clients: u32| match clients {
        0 => Err("a policy divides among clients, and there are 0: give --clients with a number above 0"
            .to_owned()),
        clients => Ok(clients),
    };
    match policy {
        Policy::Uniform { clients } => {
            let clients = some(*clients)?;
            Ok(vec![give(whole(100.0 / f64::from(clients))); clients as usize])
        }
        Policy::Half { clients } => {
            let clients = some(*clients)?;
            Ok(vec![give(whole(200.0 / f64::from(clients))); clients as usize])
        }
        Policy::Weighted { loads } => {
            if let Some(load) = loads.iter().find(|load| !(load.is_finite() && **load > 0.0)) {
                return Err(format!(
                    "{load} is not a load: give each client's as a number above 0, as --loads 30,70"
                ));
            }
            let all: f64 = loads.iter().sum();
            some(loads.len() as u32)?;
            Ok(loads.iter().map(|load| give(whole(load / all * 100.0))).collect())
        }
        Policy::Exact { sms } => {
            some(sms.len() as u32)?;
            sms.iter()
                .map(|&wanted| match (wanted, device.percentage_for(wanted)) {
                    (0, _) => {
                        Err("a client needs at least one SM: leave it out instead of giving it 0".to_owned())
                    }
                    (wanted, _) if wanted > device.count => {
                        Err(format!("{wanted} SMs are more than the device has: it has {}", device.count))
                    }
                    (wanted, Some(percent)) if device.of_percentage(f64::from(percent)) == wanted => {
                        Ok(give(f64::from(percent)))
                    }
                    (wanted, percent) => {
                        let above =
                            percent.map_or(device.count, |percent| device.of_percentage(f64::from(percent)));
                        Err(format!(
                            "no percentage gives {wanted} SMs: the next possible number is {above}, in steps \
                             of {} from {} on; a mask gives whole TPCs, `partita run --sm {}sm`",
                            device.step(),
                            device.least(),
                            // A number that masks can give.
                            wanted.next_multiple_of(device.step()).min(device.count)
                        ))
                    }
                })
                .collect()
        }
    }
}

/// Percentages have one decimal: that of the control program's output.
fn whole(percent: f64) -> f64 {
    (percent * 10.0).floor().max(1.0) / 10.0
}

/// SM counts for a pool of contexts that a program makes beforehand, because making one at launch
/// costs time and memory (MPS guide, section 5.2): each rounded as the driver does it, without
/// repetition, ascending.
///
/// # Errors
/// If the contexts do not fit on the device beside `in_use` others.
pub fn affinity_pool(
    device: Sms,
    wanted: &[u32],
    in_use: u32,
    contexts_max: u32,
) -> Result<Vec<u32>, String> {
    let mut pool: Vec<u32> = wanted.iter().map(|&sms| device.of_affinity(sms)).collect();
    pool.sort_unstable();
    pool.dedup();
    let room = contexts_max.saturating_sub(in_use);
    if pool.len() > room as usize {
        return Err(format!(
            "a pool of {} contexts does not fit: {in_use} of the device's {contexts_max} client contexts are in use; make it smaller",
            pool.len()
        ));
    }
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const H200: Sms = Sms { count: 132, per_tpc: 2 };

    #[test]
    fn percentages_round_as_measured() {
        for (percent, sms) in
            [(1.0, 8), (7.0, 8), (10.0, 12), (25.0, 32), (36.0, 46), (50.0, 66), (75.0, 98), (100.0, 132)]
        {
            assert_eq!(H200.of_percentage(percent), sms, "{percent} %");
        }
        let large = Sms { count: 188, per_tpc: 2 };
        assert_eq!([50.0, 25.0].map(|percent| large.of_percentage(percent)), [94, 46]);
        assert_eq!(Sms { count: 9, per_tpc: 1 }.of_percentage(1.0), 4);
        assert_eq!(Sms { count: 2, per_tpc: 1 }.of_percentage(1.0), 2, "never more than there are");
    }

    #[test]
    fn affinities_round_as_measured() {
        assert_eq!([2, 10, 33, 64, 500].map(|wanted| H200.of_affinity(wanted)), [8, 10, 34, 64, 132]);
    }

    fn shares(policy: &Policy) -> Vec<(f64, u32)> {
        divide(H200, policy).unwrap().iter().map(|one| (one.percent, one.sms)).collect()
    }

    #[test]
    fn the_policies_of_the_guide() {
        assert_eq!(shares(&Policy::Uniform { clients: 4 }), [(25.0, 32); 4]);
        assert_eq!(shares(&Policy::Half { clients: 4 }), [(50.0, 66); 4]);
        assert_eq!(shares(&Policy::Uniform { clients: 3 })[0], (33.3, 42));
        assert_eq!(shares(&Policy::Half { clients: 1 }), [(100.0, 132)], "not more than all");
        assert_eq!(shares(&Policy::Weighted { loads: vec![3.0, 7.0] }), [(30.0, 38), (70.0, 92)]);
        // The guide's example: 24 and 60 of 84 SMs.
        let device = Sms { count: 84, per_tpc: 2 };
        let exact = divide(device, &Policy::Exact { sms: vec![24, 60] }).unwrap();
        assert_eq!(exact.iter().map(|one| one.sms).collect::<Vec<_>>(), [24, 60]);
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_what_can() {
        for (policy, words) in [
            (Policy::Uniform { clients: 0 }, "--clients"),
            (Policy::Weighted { loads: vec![] }, "--clients"),
            (Policy::Weighted { loads: vec![1.0, 0.0] }, "0 is not a load"),
            (Policy::Weighted { loads: vec![f64::NAN] }, "NaN is not a load"),
            (Policy::Exact { sms: vec![0] }, "at least one SM"),
            (Policy::Exact { sms: vec![134] }, "more than the device has"),
            (Policy::Exact { sms: vec![33] }, "the next possible number is 34"),
            (Policy::Exact { sms: vec![4] }, "the next possible number is 8"),
        ] {
            let error = divide(H200, &policy).unwrap_err();
            assert!(error.contains(words), "{policy:?}: {error}");
        }
    }

    #[test]
    fn a_pool_is_rounded_and_fits() {
        // The guide's: 1, 2, a third and two thirds of the rest.
        assert_eq!(affinity_pool(H200, &[1, 2, 43, 86], 0, 48).unwrap(), [8, 44, 86]);
        assert!(affinity_pool(H200, &[8, 16, 24], 46, 48).unwrap_err().contains("46 of the device's 48"));
    }

    proptest! {
        #[test]
        fn limits_are_steps_within_the_device(count in 1u32..300, per_tpc in 1u32..3, percent in 0.0f64..120.0, wanted in 0u32..400) {
            let count = count.next_multiple_of(per_tpc);
            let device = Sms { count, per_tpc };
            for sms in [device.of_percentage(percent), device.of_affinity(wanted)] {
                prop_assert!(sms <= count && sms >= 1 && (sms % per_tpc == 0));
            }
            prop_assert!(device.of_affinity(wanted) >= wanted.min(count));
            prop_assert!(device.of_percentage(percent) <= device.of_percentage(percent + 1.0));
            if let Some(percent) = device.percentage_for(wanted) {
                prop_assert!(device.of_percentage(f64::from(percent)) >= wanted.min(count));
            }
        }

        #[test]
        fn uniform_and_weighted_never_give_out_more_than_all(loads in prop::collection::vec(0.1f64..1000.0, 1..10)) {
            let parts = [Policy::Uniform { clients: loads.len() as u32 }, Policy::Weighted { loads }];
            for policy in parts {
                let given: f64 = divide(H200, &policy).unwrap().iter().map(|one| one.percent).sum();
                prop_assert!(given <= 100.0 + 1.0, "{given}");
            }
        }
    }
}
