use std::vec::Vec;

use proptest::prelude::*;

use super::{Claim, RESERVE_BYTES, Reserve, To, divide, left, most, unused};

const GIB: u64 = 1 << 30;

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let to = |(kind, bytes)| match kind {
        0 => To::Promise(bytes),
        1 => To::Rest(bytes),
        _ => To::Unheld(bytes),
    };
    let claim = ((0..3u8, 0..1u64 << 37).prop_map(to), 0..1u64 << 33, 0..4u32);
    let claim = claim.prop_map(|(to, driver, user)| Claim { to, driver, user });
    prop::collection::vec(claim, 0..12)
}

fn reserves() -> impl Strategy<Value = Vec<Reserve>> {
    let reserve = (0..1u64 << 38, prop::collection::vec(0..4u32, 1..3));
    prop::collection::vec(reserve.prop_map(|(bytes, users)| Reserve { bytes, users }), 0..4)
}

fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().sum()
}

proptest! {
    #[test]
    fn promises_rests_and_the_driver_fit_into_the_memory(
        total in 0..1u64 << 40,
        claims in claims(),
        reserves in reserves(),
    ) {
        let is_held =
            !reserves.is_empty() || claims.iter().any(|claim| matches!(claim.to, To::Promise(_)));
        let Ok(most) = divide(total, &claims, &reserves) else {
            prop_assert!(is_held);
            prop_assert!(left(total, &claims).is_err());
            return Ok(());
        };
        if !is_held {
            prop_assert!(most.iter().all(Option::is_none));
            return Ok(());
        }
        let mut given = RESERVE_BYTES + sum(claims.iter().map(|claim| claim.driver));
        let mut parts = Vec::new();
        for (claim, most) in claims.iter().zip(&most) {
            match claim.to {
                To::Promise(bytes) => prop_assert_eq!(*most, Some(bytes)),
                // What a tenant has, it keeps.
                To::Rest(used) => parts.push((claim.user, most.unwrap().checked_sub(used).unwrap())),
                To::Unheld(_) => prop_assert_eq!(*most, None),
            }
            let (To::Promise(used) | To::Rest(used) | To::Unheld(used)) = claim.to;
            given += most.unwrap_or(used);
        }
        prop_assert!(given <= total);
        let kept = unused(&claims, &reserves);
        let free = left(total, &claims).unwrap();
        // Those for whom nothing is kept do not grow into what is.
        let of_none = |user: &u32| !reserves.iter().any(|reserve| reserve.users.contains(user));
        let strangers: Vec<u64> =
            parts.iter().filter(|(user, _)| of_none(user)).map(|(_, part)| *part).collect();
        prop_assert!(sum(strangers.iter().copied()) <= free.saturating_sub(sum(kept.iter().copied())));
        prop_assert!(strangers.windows(2).all(|pair| pair[0] == pair[1]));
        prop_assert!(parts.iter().all(|(_, part)| strangers.first().is_none_or(|least| part >= least)));
        // Nothing is withheld but what is kept for absent ones and what equal divisions leave.
        if !parts.is_empty() {
            let absent = |reserve: &Reserve| !parts.iter().any(|(user, _)| reserve.users.contains(user));
            let absent = reserves.iter().zip(&kept).filter(|(reserve, _)| absent(reserve));
            let withheld = sum(absent.map(|(_, bytes)| *bytes));
            let lost = (parts.len() * (1 + reserves.len())) as u64;
            prop_assert!(total - given <= withheld + lost);
        }
    }

    #[test]
    fn the_most_can_be_promised_and_no_byte_more(
        total in 0..1u64 << 40,
        others in claims(),
        driver in 0..1u64 << 33,
        user in 0..4u32,
        reserves in reserves(),
    ) {
        let claim = Claim { to: To::Rest(0), driver, user };
        let room = |claim: Claim| {
            let claims: Vec<Claim> = others.iter().copied().chain([claim]).collect();
            left(total, &claims).map(|left| (left, sum(unused(&claims, &reserves))))
        };
        let with = |bytes| Claim { to: To::Promise(bytes), ..claim };
        let none = Claim { to: To::Promise(0), driver: 0, user };
        let Ok(before) = room(none) else {
            prop_assert!(most(total, &others, None, claim, &reserves).is_err());
            return Ok(());
        };
        let lacks = |(left, kept): (u64, u64)| kept.saturating_sub(left);
        let is_right = |bytes| room(with(bytes)).is_ok_and(|after| lacks(after) <= lacks(before));
        match most(total, &others, None, claim, &reserves) {
            Ok(bytes) => {
                prop_assert!(is_right(bytes) && !is_right(bytes + 1));
                // What it has already, it may keep, whatever was reserved since.
                let again = most(total, &others, Some(with(bytes)), claim, &[]).unwrap();
                prop_assert!(again >= bytes);
                let claimed = with(again);
                prop_assert_eq!(most(total, &others, Some(claimed), claim, &reserves), Ok(again));
            }
            Err(missing) => {
                prop_assert!(!is_right(0));
                prop_assert!(most(total.saturating_add(missing), &others, None, claim, &[]).is_ok());
            }
        }
    }

    #[test]
    fn what_is_reserved_is_promised_to_its_users_whatever_others_ask_for(
        total in 1u64 << 34..1 << 40,
        percents in prop::collection::vec(0..34u64, 1..4),
        asked in prop::collection::vec((0..5u32, prop::option::of(0..1u64 << 38), 0..1u64 << 31), 0..10),
    ) {
        // Of each user one, and user 4 has none.
        let whole = total - RESERVE_BYTES;
        let reserves: Vec<Reserve> = percents
            .iter()
            .enumerate()
            .map(|(user, percent)| Reserve { bytes: whole / 100 * percent, users: [user as u32].into() })
            .collect();
        let mut claims: Vec<Claim> = Vec::new();
        for (user, promise, driver) in asked {
            let to = promise.map_or(To::Rest(0), To::Promise);
            let claim = Claim { to, driver, user };
            if most(total, &claims, None, claim, &reserves).is_ok_and(|most| promise.unwrap_or(0) <= most) {
                claims.push(claim);
                // Those without a promise use all that they may.
                let held = divide(total, &claims, &reserves).unwrap();
                for (claim, most) in claims.iter_mut().zip(held) {
                    if let (To::Rest(used), Some(most)) = (&mut claim.to, most) {
                        *used = most;
                    }
                }
            }
        }
        for (user, bytes) in unused(&claims, &reserves).into_iter().enumerate() {
            let claim = Claim { to: To::Rest(0), driver: 0, user: user as u32 };
            prop_assert!(most(total, &claims, None, claim, &reserves).unwrap() >= bytes);
        }
    }
}

#[test]
fn a_promise_lowers_what_the_others_may_grow_to() {
    let claim = |to| Claim { to, driver: GIB, user: 0 };
    let total = 81 * GIB + RESERVE_BYTES;
    let two = [claim(To::Rest(0)), claim(To::Rest(10 * GIB))];
    assert_eq!(divide(total, &two, &[]), Ok([None, None].into()));
    let with = |promised| divide(total, &[two[0], two[1], claim(To::Promise(promised))], &[]);
    assert_eq!(with(48 * GIB), Ok([Some(10 * GIB), Some(20 * GIB), Some(48 * GIB)].into()));
    assert_eq!(with(68 * GIB), Ok([Some(0), Some(10 * GIB), Some(68 * GIB)].into()));
    assert_eq!(with(70 * GIB), Err(2 * GIB));
}

#[test]
fn a_reserve_is_for_its_users_alone() {
    const ALICE: u32 = 1;
    const EVE: u32 = 2;
    let total = 80 * GIB + RESERVE_BYTES;
    let reserves = [Reserve { bytes: 40 * GIB, users: [ALICE].into() }];
    let rest = |user, used| Claim { to: To::Rest(used * GIB), driver: GIB, user };
    let most = |others: &[Claim], before, claim| super::most(total, others, before, claim, &reserves);
    // The driver's memory counts as her own.
    assert_eq!(most(&[], None, rest(EVE, 0)), Ok(39 * GIB));
    assert_eq!(most(&[], None, rest(ALICE, 0)), Ok(79 * GIB));
    assert_eq!(divide(total, &[rest(EVE, 0)], &reserves), Ok([Some(39 * GIB)].into()));
    // Without a promise she shares the rest, and has the reserve beside.
    let two = [rest(EVE, 0), rest(ALICE, 0)];
    assert_eq!(
        divide(total, &two, &reserves),
        Ok([Some(39 * GIB / 2), Some(39 * GIB / 2 + 39 * GIB)].into())
    );
    // It was reserved when Eve had 60 GiB already: she keeps them, gets no more, and may give some.
    let much = rest(EVE, 59);
    assert_eq!(
        divide(total, &[much, rest(ALICE, 0)], &reserves),
        Ok([Some(59 * GIB), Some(19 * GIB)].into())
    );
    assert_eq!(most(&[], Some(much), rest(EVE, 0)), Ok(59 * GIB));
    assert_eq!(most(&[much], None, rest(EVE, 0)), Err(GIB));
    assert_eq!(most(&[much], None, rest(ALICE, 0)), Ok(19 * GIB));
    // A claim counts once, against the first reserve of its user.
    let two = [reserves[0].clone(), Reserve { bytes: 10 * GIB, users: [ALICE, EVE].into() }];
    assert_eq!(unused(&[rest(ALICE, 29)], &two), [10 * GIB, 10 * GIB]);
    assert_eq!(unused(&[rest(ALICE, 44)], &two), [0, 5 * GIB]);
}
