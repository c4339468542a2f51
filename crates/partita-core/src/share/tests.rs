use std::format;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::{Share, ShareError, percent_of, smallest};
use crate::testing::{h200, round_robin, topologies};
use crate::{GpcSet, Topology, Tpc, TpcSet};

fn shares() -> impl Strategy<Value = Share> {
    let sets = || prop::collection::btree_set(any::<u8>(), 1..20);
    prop_oneof![
        (1..=100_000u32).prop_map(Share::Percent),
        (1..=100u32).prop_map(|percent| Share::Percent(percent * 1000)),
        (1..=u32::MAX).prop_map(Share::Sms),
        (1..=u32::MAX).prop_map(Share::Tpcs),
        sets().prop_map(|ids| Share::Gpcs(ids.into_iter().collect::<GpcSet>())),
        sets().prop_map(|ids| Share::Exact(ids.into_iter().collect::<TpcSet>())),
    ]
}

fn device(tpc_count: u16) -> Topology {
    let tpcs = (0..tpc_count).map(|i| Tpc { gpc: (i % 8) as u8, physical: i });
    Topology::new(2, tpcs.collect::<Vec<_>>()).unwrap()
}

fn share(text: &str) -> Share {
    text.parse().unwrap()
}

#[test]
fn forms() {
    for (text, expected) in [
        ("30%", Share::Percent(30_000)),
        (" 12.5 % ", Share::Percent(12_500)),
        ("0.001%", Share::Percent(1)),
        ("33.3330%", Share::Percent(33_333)),
        ("100%", Share::Percent(100_000)),
        ("40sm", Share::Sms(40)),
        ("40 SMs", Share::Sms(40)),
        ("20TPC", Share::Tpcs(20)),
        ("1tpc", Share::Tpcs(1)),
        ("gpc:0-2", Share::Gpcs([0, 1, 2].into_iter().collect())),
        ("gpc: 7, 3", Share::Gpcs([3, 7].into_iter().collect())),
        ("tpc:0-9", Share::Exact(TpcSet::first(10))),
        ("tpc:0x3ff", Share::Exact(TpcSet::first(10))),
    ] {
        assert_eq!(text.parse(), Ok(expected), "{text}");
    }
}

#[test]
fn what_is_no_share_says_why_and_what_is() {
    for (text, reason) in [
        ("", "it is empty"),
        ("30", "it has no unit"),
        ("0.5", "it has no unit"),
        ("half", "none of the known forms"),
        ("-5%", "`-5` is not a number"),
        ("+5%", "`+5` is not a number"),
        (".5%", "`.5` is not a number"),
        ("5.%", "`5.` is not a number"),
        ("1.2.3%", "`1.2.3` is not a number"),
        ("1e1%", "`1e1` is not a number"),
        ("%", "`` is not a number"),
        ("sm", "`` is not a number"),
        ("1.5sm", "`1.5` is not a number"),
        ("0%", "at least one TPC"),
        ("0sm", "at least one TPC"),
        ("0tpc", "at least one TPC"),
        ("tpc:0x0", "at least one TPC"),
        ("100.001%", "above 100%"),
        ("99999999999%", "above 100%"),
        ("4294968%", "above 100%"),
        ("12.3456%", "more than three decimals"),
        ("4294967296tpc", "no device has so many"),
        ("gpc:", "a number is missing"),
        ("gpc:2-1", "the range 2-1 is reversed"),
        ("gpc:0x1", "`0x1` is not a number"),
        ("tpc:300", "300 is above 255"),
    ] {
        let error = text.parse::<Share>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{text}` is not a share of the GPU: ")), "{error}");
        assert!(error.contains(reason), "{text}: {error}");
        assert!(error.ends_with("write 30% or 12.5%, 40sm, 20tpc, gpc:0-2 or tpc:0-9"), "{error}");
    }
}

#[test]
fn rounding() {
    let h200 = h200();
    for (text, tpcs) in [
        ("100%", 66),
        ("50%", 33),
        ("34%", 22),
        ("33%", 21),
        ("33.33%", 22),
        ("33.3%", 21),
        ("12.5%", 8),
        ("16.67%", 11),
        ("16.66%", 11),
        ("2%", 1),
        ("1.493%", 1),
        ("132sm", 66),
        ("2sm", 1),
        ("66tpc", 66),
        ("gpc:0", 9),
        ("gpc:0,7", 17),
        ("tpc:0-9", 10),
    ] {
        assert_eq!(share(text).tpcs_wanted(&h200), Ok(tpcs), "{text}");
    }
    let nine = round_robin(&[5, 4], 8);
    assert_eq!(share("50%").tpcs_wanted(&nine), Ok(4));
}

#[test]
fn what_a_device_cannot_give_says_what_it_can() {
    let h200 = h200();
    for (asked, message) in [
        (
            share("1%"),
            "1% of the 66 TPCs of this device is less than one TPC, the smallest part; ask for 1.493% or 1tpc",
        ),
        (share("1sm"), "1sm is not a whole number of TPCs: a TPC of this device has 2 SMs; ask for 2sm"),
        (
            share("33sm"),
            "33sm is not a whole number of TPCs: a TPC of this device has 2 SMs; ask for 32sm or 34sm",
        ),
        (
            share("133sm"),
            "133sm is not a whole number of TPCs: a TPC of this device has 2 SMs; ask for 132sm or less",
        ),
        (
            share("4294967295sm"),
            "4294967295sm is not a whole number of TPCs: a TPC of this device has 2 SMs; ask for 132sm or less",
        ),
        (share("67tpc"), "67tpc is more than the device: it has 66 TPCs of 2 SMs; ask for 100% or less"),
        (share("gpc:6-9"), "gpc:6-9: this device has no GPC 8-9; its GPCs are 0-7"),
        (share("tpc:60-70"), "tpc:60-70: this device has no TPC 66-70; its TPCs are 0-65"),
        (Share::Tpcs(0), "0tpc is nothing: a partition needs at least one TPC; ask for 1tpc or more"),
        (
            Share::Exact(TpcSet::EMPTY),
            "tpc:none is nothing: a partition needs at least one TPC; ask for 1tpc or more",
        ),
        (Share::Percent(100_001), "100.001% is more than the device; ask for 100% or less"),
    ] {
        assert_eq!(asked.tpcs_wanted(&h200).unwrap_err().to_string(), message);
    }
}

/// The promise, for every number of TPCs and every way to cut 100 % into equal parts, which is
/// where the most is forgiven.
#[test]
fn equal_parts_of_the_whole_always_fit() {
    for n in 1..=256 {
        for k in 1..=n + 1 {
            let each = percent_of(100_000 / k, n);
            assert!(each * k <= n, "{k} tenants of {n} TPCs");
        }
        let Share::Percent(smallest) = smallest(n) else { unreachable!() };
        assert_eq!(percent_of(smallest, n), 1);
        assert_eq!(percent_of(smallest - 1, n), 0);
        assert_eq!(percent_of(100_000, n), n);
    }
}

proptest! {
    #[test]
    fn text_round_trips(share in shares()) {
        prop_assert_eq!(share.to_string().parse(), Ok(share));
        prop_assert_eq!(share.to_string().to_uppercase().parse(), Ok(share));
    }

    #[test]
    fn any_text_is_a_share_or_an_error(text in "[0-9.%smtpcg:,\\- ]{0,10}|\\PC{0,8}") {
        if let Ok(share) = text.parse::<Share>() {
            prop_assert_eq!(share.to_string().parse(), Ok(share));
        }
    }

    /// The promise, for parts of any size.
    #[test]
    fn parts_of_the_whole_always_fit(n in 1..=256u32, cuts in prop::collection::vec(0..=100_000u32, 0..40)) {
        let mut cuts = cuts;
        cuts.extend([0, 100_000]);
        cuts.sort_unstable();
        let given: u32 = cuts.windows(2).map(|pair| percent_of(pair[1] - pair[0], n)).sum();
        prop_assert!(given <= n, "{given} of {n}");
    }

    #[test]
    fn rounding_is_down_but_for_a_hair(n in 1..=256u32, milli in 1..=100_000u32) {
        let (exact, given) = (f64::from(milli) * f64::from(n) / 1e5, f64::from(percent_of(milli, n)));
        prop_assert!(given < exact + 1.0 / f64::from(n + 2) + 1e-9);
        prop_assert!(given > exact - 1.0);
    }

    #[test]
    fn a_count_has_a_percentage(n in 1..=256u16, tpcs in 0..300u32) {
        let device = device(n);
        match Share::percent_of_tpcs(tpcs, &device) {
            Some(share) => prop_assert_eq!(share.tpcs_wanted(&device), Ok(tpcs)),
            None => prop_assert!(tpcs == 0 || tpcs > u32::from(n)),
        }
    }

    #[test]
    fn what_is_wanted_is_some_of_the_device(device in topologies(12, 9), share in shares()) {
        match share.tpcs_wanted(&device) {
            Ok(wanted) => prop_assert!((1..=device.tpc_count()).contains(&wanted)),
            Err(ShareError::BrokenTpc { .. }) => prop_assert_eq!(device.sms_per_tpc(), 2),
            Err(error) => prop_assert!(error.to_string().contains(&share.to_string())),
        }
    }
}
