use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Samples, SamplesError};

fn samples() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-1e6..1e6f64, 1..300)
}

proptest! {
    #[test]
    fn a_quantile_is_the_lowest_sample_that_is_high_enough(samples in samples(), per_mille in 0..=1000u32) {
        let summary = Samples::new(&samples[..]).unwrap();
        let quantile = summary.quantile(per_mille);
        let enough = |value: f64| {
            let not_above = samples.iter().filter(|&&sample| sample <= value).count();
            not_above * 1000 >= samples.len() * per_mille as usize
        };
        prop_assert!(samples.contains(&quantile) && enough(quantile));
        prop_assert!(samples.iter().all(|&sample| sample >= quantile || per_mille > 0 && !enough(sample)));
    }

    #[test]
    fn the_order_of_samples_is_nothing(samples in samples()) {
        let mut reversed = samples.clone();
        reversed.reverse();
        prop_assert_eq!(Samples::new(samples), Samples::new(reversed));
    }

    #[test]
    fn the_mean_and_the_median_lie_where_they_must(samples in samples()) {
        let summary = Samples::new(&samples[..]).unwrap();
        let exact = samples.iter().sum::<f64>() / samples.len() as f64;
        prop_assert!((summary.mean() - exact).abs() <= 1e-7, "{} {exact}", summary.mean());
        let median = summary.median();
        let below = samples.iter().filter(|&&sample| sample < median).count();
        let above = samples.iter().filter(|&&sample| sample > median).count();
        prop_assert!(2 * below <= samples.len() && 2 * above <= samples.len());
        prop_assert!(summary.min() <= summary.p50() && summary.p50() <= median.max(summary.p50()));
        prop_assert!(summary.p50() <= summary.p99() && summary.p99() <= summary.max());
    }
}

#[test]
fn one_sample_is_all_of_them() {
    let one = Samples::new([4.0]).unwrap();
    assert_eq!([one.min(), one.max(), one.p50(), one.p99(), one.median(), one.mean()], [4.0; 6]);
    assert_eq!((one.quantile(0), one.quantile(5000), one.count()), (4.0, 4.0, 1));
}

#[test]
fn ranks_are_whole() {
    let hundred = Samples::new((1..=100).map(f64::from).collect::<Vec<_>>()).unwrap();
    assert_eq!((hundred.p99(), hundred.quantile(999), hundred.quantile(1)), (99.0, 100.0, 1.0));
}

#[test]
fn large_numbers_do_not_overflow() {
    let large = Samples::new([f64::MAX, f64::MAX]).unwrap();
    assert_eq!((large.median(), large.mean()), (f64::MAX, f64::MAX));
}

#[test]
fn ratios_are_of_pairs() {
    let ratios = Samples::ratios(&[2.0, 30.0, 8.0], &[1.0, 10.0, 8.0]).unwrap();
    assert_eq!(ratios.sorted(), [1.0, 2.0, 3.0]);
    assert_eq!(ratios.median(), 2.0);
}

#[test]
fn numbers_that_say_nothing_are_refused() {
    assert_eq!(Samples::new(vec![]), Err(SamplesError::Empty));
    let error = Samples::new([1.0, f64::INFINITY]).unwrap_err();
    assert_eq!(error.to_string(), "sample 1 is inf, not a finite number");
    let error = Samples::ratios(&[1.0], &[0.0]).unwrap_err();
    assert_eq!(error.to_string(), "sample 0 is inf, not a finite number");
    let error = Samples::ratios(&[1.0], &[]).unwrap_err();
    assert_eq!(error.to_string(), "1 measurements and 0 of the baseline are not pairs");
}

#[test]
fn the_median_s_interval_covers_it_as_often_as_it_says() {
    let samples = |count: u32| Samples::new((1..=count).map(f64::from).collect::<Vec<_>>()).unwrap();
    assert_eq!(samples(1).median_interval(), (1.0, 1.0));
    assert_eq!(samples(5).median_interval(), (1.0, 5.0));
    // Tables of the sign test give ranks 40 and 61 of 100.
    assert_eq!(samples(100).median_interval(), (40.0, 61.0));
    // Draws of 99 out of a skewed distribution with median 1: the interval must hold it in 95 % or
    // more.
    let mut state = 7_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let held = (0..2000)
        .filter(|_| {
            let draws: Vec<f64> = (0..99).map(|_| 4.0 * uniform().powi(2)).collect();
            let (low, high) = Samples::new(draws).unwrap().median_interval();
            low <= 1.0 && 1.0 <= high
        })
        .count();
    assert!((1880..=1980).contains(&held), "{held} of 2000");
}
