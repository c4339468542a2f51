use std::vec::Vec;

use proptest::prelude::*;

use super::{Claim, RESERVE_BYTES, To, divide, left};

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    let to = |(kind, bytes)| match kind {
        0 => To::Promise(bytes),
        1 => To::Rest(bytes),
        _ => To::Unheld(bytes),
    };
    let claim = ((0..3u8, 0..1u64 << 37).prop_map(to), 0..1u64 << 33);
    let claim = claim.prop_map(|(to, driver)| Claim { to, driver });
    prop::collection::vec(claim, 0..12)
}

proptest! {
    #[test]
    fn promises_rests_and_the_driver_fit_into_the_memory(total in 0..1u64 << 39, claims in claims()) {
        let Ok(most) = divide(total, &claims) else {
            prop_assert!(claims.iter().any(|claim| matches!(claim.to, To::Promise(_))));
            prop_assert!(left(total, &claims).is_err());
            return Ok(());
        };
        if !claims.iter().any(|claim| matches!(claim.to, To::Promise(_))) {
            prop_assert!(most.iter().all(Option::is_none));
            return Ok(());
        }
        let mut given: u64 = RESERVE_BYTES + claims.iter().map(|claim| claim.driver).sum::<u64>();
        let mut parts = Vec::new();
        for (claim, most) in claims.iter().zip(&most) {
            match claim.to {
                To::Promise(bytes) => prop_assert_eq!(*most, Some(bytes)),
                // What a tenant has, it keeps.
                To::Rest(used) => parts.push(most.unwrap().checked_sub(used).unwrap()),
                To::Unheld(_) => prop_assert_eq!(*most, None),
            }
            let (To::Promise(used) | To::Rest(used) | To::Unheld(used)) = claim.to;
            given += most.unwrap_or(used);
        }
        prop_assert!(given <= total);
        prop_assert!(parts.windows(2).all(|pair| pair[0] == pair[1]));
        // Nothing is withheld but what an equal division leaves.
        if !parts.is_empty() {
            prop_assert!(total - given < parts.len() as u64);
        }
    }

    #[test]
    fn what_is_left_can_be_promised_and_no_byte_more(total in 0..1u64 << 39, mut claims in claims()) {
        match left(total, &claims) {
            Ok(bytes) => {
                claims.push(Claim { to: To::Promise(bytes), driver: 0 });
                prop_assert!(divide(total, &claims).is_ok());
                claims.push(Claim { to: To::Promise(1), driver: 0 });
                prop_assert_eq!(divide(total, &claims), Err(1));
            }
            Err(missing) => prop_assert_eq!(left(total + missing, &claims), Ok(0)),
        }
    }
}

#[test]
fn a_promise_lowers_what_the_others_may_grow_to() {
    const GIB: u64 = 1 << 30;
    let claim = |to| Claim { to, driver: GIB };
    let total = 81 * GIB + RESERVE_BYTES;
    let two = [claim(To::Rest(0)), claim(To::Rest(10 * GIB))];
    assert_eq!(divide(total, &two), Ok([None, None].into()));
    let with = |promised| [two[0], two[1], claim(To::Promise(promised))];
    assert_eq!(divide(total, &with(48 * GIB)), Ok([Some(10 * GIB), Some(20 * GIB), Some(48 * GIB)].into()));
    assert_eq!(divide(total, &with(68 * GIB)), Ok([Some(0), Some(10 * GIB), Some(68 * GIB)].into()));
    assert_eq!(divide(total, &with(70 * GIB)), Err(2 * GIB));
}
