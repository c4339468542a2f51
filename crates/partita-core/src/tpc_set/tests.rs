use std::collections::BTreeSet;
use std::format;
use std::string::ToString;
use std::vec::Vec;

use proptest::collection::btree_set;
use proptest::prelude::*;

use super::TpcSet;

type Model = BTreeSet<u8>;

fn set_of(model: &Model) -> TpcSet {
    model.iter().copied().collect()
}

fn model_of(set: TpcSet) -> Model {
    set.iter().collect()
}

/// Sparse, dense and run-like sets, over the whole width.
fn models() -> impl Strategy<Value = Model> {
    let runs = prop::collection::vec((any::<u8>(), 0u8..40), 0..6);
    let of_runs = runs.prop_map(|runs| runs.iter().flat_map(|&(a, n)| a..=a.saturating_add(n)).collect());
    prop_oneof![btree_set(any::<u8>(), 0..12), btree_set(any::<u8>(), 0..257), of_runs]
}

proptest! {
    #[test]
    fn algebra_is_that_of_sets(a in models(), b in models()) {
        let (x, y) = (set_of(&a), set_of(&b));
        prop_assert_eq!(model_of(x | y), &a | &b);
        prop_assert_eq!(model_of(x & y), &a & &b);
        prop_assert_eq!(model_of(x - y), &a - &b);
        prop_assert_eq!(model_of(x ^ y), &a ^ &b);
        prop_assert_eq!(x.complement_within(y), y - x);
        prop_assert_eq!(model_of(!x), (0..=255).filter(|tpc| !a.contains(tpc)).collect::<Model>());
        prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x == y, a == b);
        let mut assigned = x;
        assigned |= y;
        assigned &= x;
        assigned ^= y;
        assigned -= y;
        prop_assert_eq!(assigned, x - y);
    }

    #[test]
    fn members_are_those_of_the_model(a in models(), tpc: u8, count in 0u32..300) {
        let x = set_of(&a);
        prop_assert_eq!(x.len() as usize, a.len());
        prop_assert_eq!(x.is_empty(), a.is_empty());
        prop_assert_eq!(x.first_tpc(), a.first().copied());
        prop_assert_eq!(x.last_tpc(), a.last().copied());
        prop_assert_eq!(x.contains(tpc), a.contains(&tpc));
        prop_assert_eq!(x.iter().len(), a.len());
        prop_assert!(x.iter().eq(a.iter().copied()));
        prop_assert!(x.iter().rev().eq(a.iter().rev().copied()));
        prop_assert!(x.lowest(count).iter().eq(a.iter().copied().take(count as usize)));
        let (mut set, mut model) = (x, a.clone());
        prop_assert_eq!(set.insert(tpc), model.insert(tpc));
        prop_assert_eq!(model_of(set), model.clone());
        prop_assert_eq!(set.remove(tpc), model.remove(&tpc));
        prop_assert_eq!(model_of(set), model);
    }

    #[test]
    fn iterating_from_both_ends_meets(a in models(), from_back: Vec<bool>) {
        let mut iter = set_of(&a).iter();
        let mut seen = Model::new();
        for back in from_back.into_iter().chain([true; 256]) {
            let Some(tpc) = (if back { iter.next_back() } else { iter.next() }) else { break };
            prop_assert!(seen.insert(tpc));
        }
        prop_assert_eq!(seen, a);
    }

    #[test]
    fn ranges_are_those_of_the_model(start in 0u16..400, end in 0u16..400) {
        let model: Model = (start..end).filter_map(|tpc| u8::try_from(tpc).ok()).collect();
        prop_assert_eq!(TpcSet::range(start..end), set_of(&model));
        prop_assert_eq!(TpcSet::first(end.into()), TpcSet::range(0..end));
    }

    #[test]
    fn text_round_trips(a in models()) {
        let x = set_of(&a);
        let text = x.to_string();
        prop_assert_eq!(text.parse(), Ok(x));
        prop_assert_eq!(text.replace(',', " , ").replace('-', " - ").parse(), Ok(x));
        prop_assert_eq!(format!("{x:>9}"), format!("{text:>9}"));
        // Adjacent runs would be one run.
        let runs: Vec<_> = x.runs().collect();
        prop_assert!(runs.windows(2).all(|pair| u16::from(*pair[0].end()) + 1 < u16::from(*pair[1].start())));
    }

    #[test]
    fn hex_and_words_round_trip(a in models()) {
        let x = set_of(&a);
        prop_assert_eq!(TpcSet::from_words(x.to_words()), x);
        prop_assert_eq!(TpcSet::from_words32(x.to_words32()), x);
        for hex in [format!("{x:#x}"), format!("{x:x}"), format!("{x:064x}"), format!("{x:#x}").to_uppercase()] {
            prop_assert_eq!(TpcSet::from_hex(&hex), Ok(x), "{}", hex);
        }
        prop_assert_eq!(format!("{x:#x}").parse(), Ok(x));
        let minimal = format!("{x:x}");
        prop_assert!(minimal == "0" || !minimal.starts_with('0'));
        for tpc in 0..=255u8 {
            let word = x.to_words32()[usize::from(tpc) / 32];
            prop_assert_eq!(word >> (tpc % 32) & 1 == 1, a.contains(&tpc));
        }
    }

    #[test]
    fn order_is_that_of_numbers(a in models(), b in models()) {
        let (x, y) = (set_of(&a), set_of(&b));
        prop_assert_eq!(x.cmp(&y), format!("{x:064x}").cmp(&format!("{y:064x}")));
    }

    #[test]
    fn any_text_is_a_set_or_an_error(text in "[0-9a-fx, \\-none]{0,12}|\\PC{0,8}") {
        match text.parse::<TpcSet>() {
            Ok(set) => prop_assert_eq!(set.to_string().parse(), Ok(set)),
            Err(error) => {
                let quoted = format!("`{text}`");
                prop_assert!(error.to_string().contains(&quoted));
            }
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    for (text, reason) in [
        ("", "a number is missing"),
        ("1,,2", "a number is missing"),
        ("3-", "a number is missing"),
        ("9-3", "the range 9-3 is reversed"),
        ("0-256", "256 is above 255"),
        ("99999999999999999999", "is above 255"),
        ("+1", "`+1` is not a number"),
        ("1-2-3", "`2-3` is not a number"),
        ("0x", "a number is missing"),
        ("0x1g", "`g` is not a hexadecimal digit"),
        ("0x10000000000000000000000000000000000000000000000000000000000000000", "more than 256 bits"),
    ] {
        let error = text.parse::<TpcSet>().unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn leading_zeros_are_no_bits() {
    let text = format!("0x{:0>80}", "81");
    assert_eq!(text.parse(), Ok([0, 7].into_iter().collect::<TpcSet>()));
}
