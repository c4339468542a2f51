use std::vec::Vec;

use proptest::prelude::*;

use super::{BUCKETS, Bounds, Histogram, LONG_NS, SHORT_NS, bucket_of};
use crate::Samples;

fn of(times_ns: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    times_ns.iter().for_each(|time_ns| histogram.add(*time_ns));
    histogram
}

/// Times of every length: a power of two, and what is below it.
fn times() -> impl Strategy<Value = Vec<u64>> {
    let time = (0u32..42, any::<u64>()).prop_map(|(bits, noise)| (1u64 << bits) + noise % (1 << bits));
    prop::collection::vec(time, 1..200)
}

fn any_histogram() -> impl Strategy<Value = Histogram> {
    let count = prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), 0u64..9];
    (prop::collection::vec(count, BUCKETS), any::<u64>())
        .prop_map(|(counts, sum_ns)| Histogram::new(counts.try_into().expect("as many"), sum_ns))
}

#[test]
fn buckets_follow_each_other_without_a_gap() {
    assert_eq!(Bounds::of(0).low_ns, 0);
    for bucket in 1..BUCKETS {
        assert_eq!(Bounds::of(bucket).low_ns, Bounds::of(bucket - 1).high_ns + 1, "{bucket}");
    }
    assert_eq!(Bounds::of(BUCKETS - 1), Bounds { low_ns: LONG_NS, high_ns: u64::MAX });
    assert_eq!(Bounds::of(usize::MAX), Bounds::of(BUCKETS - 1));
}

#[test]
fn a_histogram_without_times_has_no_quantiles() {
    assert_eq!(Histogram::default().quantile(500), None);
    assert_eq!((Histogram::default().count(), Histogram::default().sum_ns()), (0, 0));
}

proptest! {
    #[test]
    fn a_time_is_in_its_bucket_and_near_the_middle(time_ns in any::<u64>(), bits in 0u32..64) {
        let time_ns = time_ns >> bits;
        let bounds = Bounds::of(bucket_of(time_ns));
        prop_assert!(bounds.low_ns <= time_ns && time_ns <= bounds.high_ns);
        if (SHORT_NS..LONG_NS).contains(&time_ns) {
            prop_assert!(bounds.middle_ns().abs_diff(time_ns) <= time_ns / 16);
        }
    }

    #[test]
    fn a_quantile_is_the_bucket_of_the_exact_one(times_ns in times(), per_mille in 0u32..1001) {
        let exact = Samples::new(times_ns.iter().map(|time_ns| *time_ns as f64).collect::<Vec<_>>());
        let exact = exact.expect("finite").quantile(per_mille) as u64;
        prop_assert_eq!(of(&times_ns).quantile(per_mille), Some(Bounds::of(bucket_of(exact))));
    }

    #[test]
    fn merged_is_counted_together_and_the_difference_takes_it_apart(one in times(), other in times()) {
        let mut merged = of(&one);
        merged.merge(&of(&other));
        prop_assert_eq!(merged, of(&[one.clone(), other.clone()].concat()));
        prop_assert_eq!(merged.since(&of(&one)), of(&other));
        prop_assert_eq!(merged.since(&merged), Histogram::default());
        prop_assert_eq!(merged.count(), (one.len() + other.len()) as u64);
        prop_assert_eq!(merged.sum_ns(), one.iter().chain(&other).sum::<u64>());
    }

    #[test]
    fn every_time_is_below_a_power_of_two(times_ns in times()) {
        let histogram = of(&times_ns);
        let mut below = 0;
        for (high_ns, count) in histogram.by_powers() {
            below += count;
            prop_assert_eq!(below, times_ns.iter().filter(|time_ns| **time_ns <= high_ns).count() as u64);
        }
        prop_assert_eq!(below, histogram.count());
    }

    /// No numbers of a damaged place panic, and each result is a histogram again.
    #[test]
    fn any_numbers_saturate(one in any_histogram(), other in any_histogram(), per_mille in any::<u32>()) {
        let mut merged = one;
        merged.merge(&other);
        merged.add(u64::MAX);
        for made in [one, merged, one.since(&other)] {
            prop_assert!(made.count() >= *made.counts().iter().max().unwrap_or(&0));
            prop_assert_eq!(made.quantile(per_mille).is_none(), made.count() == 0);
            prop_assert!(made.quantile(500).map(|at| at.low_ns) <= made.quantile(990).map(|at| at.low_ns));
            prop_assert_eq!(Histogram::new(*made.counts(), made.sum_ns()).sum_ns(), made.sum_ns());
        }
        prop_assert_eq!(one.since(&one).count(), 0);
    }
}
