use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn neighbour(least_tpcs: u32, needs_tpcs: u32) -> Neighbour {
    Neighbour { least_tpcs, needs_tpcs, shares_rest: false, duty_permille: None, limited: Limited::Unknown }
}

fn offer(tenants: Vec<Neighbour>) -> Offer {
    Offer { tpcs: 66, free_bytes: 100, least_tpcs: 8, least_bytes: 0, tenants }
}

fn best(wish: &Wish, offers: &[Offer]) -> (usize, Why) {
    let place = rank(wish, offers)[0];
    (place.at, place.why)
}

#[test]
fn each_rule_decides_if_those_before_it_do_not() {
    let wish = Wish::default();
    let alone = offer(Vec::new());
    assert_eq!(best(&wish, core::slice::from_ref(&alone)), (0, Why::Only));
    assert_eq!(best(&wish, &[alone.clone(), alone.clone()]), (0, Why::First));
    assert_eq!(
        best(&wish, &[offer(vec![neighbour(60, 60)]), offer(vec![neighbour(50, 50)])]),
        (1, Why::Fits)
    );
    let with_memory = |offer: Offer| Offer { least_bytes: 10, ..offer };
    let full = Offer { free_bytes: 9, ..alone.clone() };
    let fits = with_memory(offer(vec![neighbour(50, 50)]));
    assert_eq!(best(&wish, &[with_memory(full.clone()), fits]), (1, Why::Fits));
    assert_eq!(best(&wish, &[full, alone.clone()]), (1, Why::Memory(100, 9)));
    // A target needs 60, so that 8 more would take from it.
    assert_eq!(
        best(&wish, &[offer(vec![neighbour(8, 60)]), offer(vec![neighbour(50, 50)])]),
        (1, Why::Targets)
    );
    // The new tenant's own need is known from another run.
    let known = Wish { enough_tpcs: Some(40), ..wish };
    let (half, most) = (offer(vec![neighbour(33, 33)]), offer(vec![neighbour(20, 20)]));
    assert_eq!(best(&known, &[half.clone(), most.clone()]), (1, Why::Targets));
    assert_eq!(best(&wish, &[half, most]), (1, Why::Room(46, 33)));
    let limited = |limited, duty_permille| {
        offer(vec![Neighbour { limited, duty_permille: Some(duty_permille), ..neighbour(8, 8) }])
    };
    let by_other = Wish { limited: Limited::ByOther, ..wish };
    let two = [limited(Limited::ByOther, 100), limited(Limited::ByCompute, 900)];
    assert_eq!(best(&by_other, &two), (1, Why::Alike));
    assert_eq!(best(&wish, &two), (0, Why::Quiet(100, 900)));
    // Those that divide the rest get a part of it.
    let shared = offer(vec![Neighbour { shares_rest: true, ..neighbour(1, 1) }]);
    let promised = offer(vec![neighbour(20, 20)]);
    let sharing = Wish { shares_rest: true, ..wish };
    assert_eq!(best(&sharing, &[shared.clone(), promised.clone()]), (1, Why::Room(46, 32)));
    assert_eq!(best(&wish, &[shared, promised]).0, 0);
    let idle = offer(vec![Neighbour { duty_permille: Some(0), ..neighbour(0, 0) }]);
    assert_eq!(best(&wish, &[idle, alone]), (1, Why::Fewer(0, 1)));
}

#[test]
fn what_limits_a_program_follows_from_its_times() {
    assert_eq!(Limited::of(&[]), Limited::Unknown);
    assert_eq!(Limited::of(&[(8, 1_000)]), Limited::Unknown);
    assert_eq!(Limited::of(&[(8, 1_000), (33, 260)]), Limited::ByCompute);
    assert_eq!(Limited::of(&[(33, 990), (8, 1_000)]), Limited::ByOther);
    assert_eq!(Limited::of(&[(8, 1_000), (16, 690)]), Limited::Unknown);
}

fn any_offer() -> impl Strategy<Value = Offer> {
    let limited = prop_oneof![Just(Limited::Unknown), Just(Limited::ByCompute), Just(Limited::ByOther)];
    let tenant = (0u32..70, 0u32..70, any::<bool>(), prop::option::of(0u32..3_000), limited);
    let tenant = tenant.prop_map(|(least_tpcs, needs_tpcs, shares_rest, duty_permille, limited)| Neighbour {
        least_tpcs,
        needs_tpcs,
        shares_rest,
        duty_permille,
        limited,
    });
    (0u32..140, 0u64..100, 0u32..70, 0u64..100, prop::collection::vec(tenant, 0..4)).prop_map(
        |(tpcs, free_bytes, least_tpcs, least_bytes, tenants)| Offer {
            tpcs,
            free_bytes,
            least_tpcs,
            least_bytes,
            tenants,
        },
    )
}

fn can_hold(offer: &Offer) -> bool {
    let promised: u32 = offer.tenants.iter().map(|tenant| tenant.least_tpcs).sum();
    promised + offer.least_tpcs <= offer.tpcs && offer.least_bytes <= offer.free_bytes
}

proptest! {
    #[test]
    fn the_best_can_hold_it_if_any_can(
        offers in prop::collection::vec(any_offer(), 1..6),
        enough_tpcs in prop::option::of(0u32..70), shares_rest in any::<bool>(), turn in 0usize..6,
    ) {
        let wish = Wish { enough_tpcs, shares_rest, limited: Limited::ByOther };
        let places = rank(&wish, &offers);
        // Every GPU once; those that can hold it before the others.
        let mut at: Vec<usize> = places.iter().map(|place| place.at).collect();
        let fits: Vec<bool> = at.iter().map(|at| can_hold(&offers[*at])).collect();
        prop_assert!(fits.windows(2).all(|pair| pair[0] >= pair[1]), "{:?}", fits);
        prop_assert!(places.iter().zip(&fits).all(|(place, fits)| place.fits == *fits));
        at.sort_unstable();
        prop_assert_eq!(at, (0..offers.len()).collect::<Vec<_>>());
        // The same again, and the same GPU in any order of the machine but for equals.
        prop_assert_eq!(&rank(&wish, &offers), &places);
        let mut turned = offers.clone();
        turned.rotate_left(turn % offers.len());
        let other = rank(&wish, &turned)[0];
        let (one, other) = (&offers[places[0].at], &turned[other.at]);
        prop_assert!(Worth::of(&wish, one) == Worth::of(&wish, other));
        prop_assert!(!places[0].why.to_string().is_empty());
    }

    #[test]
    fn numbers_of_any_size_are_compared(
        tpcs in any::<u32>(), least in any::<u32>(), needs in any::<u32>(), ns in any::<u64>(), more in any::<u64>(),
    ) {
        let offer = Offer { tpcs, free_bytes: u64::MAX, least_tpcs: least, least_bytes: 0, tenants: vec![neighbour(least, needs); 3] };
        let _ = rank(&Wish { enough_tpcs: Some(u32::MAX), ..Wish::default() }, &[offer.clone(), offer]);
        let _ = Limited::of(&[(least, ns), (needs, more)]);
    }
}
