//! Limits whose mechanism the hook cannot enforce are refused, and never treated as no limits.

use crate::common;

use common::{Fixture, limits};
use partita_ledger::{HookState, Limits, MECHANISM_NONE};

/// The error of a program whose limits name this mechanism.
fn refusal(mechanism: u32) -> String {
    let output = Fixture::new(&Limits { mechanism, ..limits() }).run("launch_path.c", &[]);
    assert!(!output.status.success(), "{output:?}");
    assert!(output.status.code().is_some(), "the program ends by itself: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_mechanism_of_a_later_release_is_refused() {
    for unknown in [3, 4, 7, u32::MAX] {
        let said = refusal(unknown);
        assert!(
            said.contains(&format!("name mechanism {unknown}, which this library does not know")),
            "{said}"
        );
    }
}

#[test]
fn without_a_partition_a_launch_goes_as_it_is_without_allocation_lock_or_system_call() {
    let fixture = Fixture::new(&Limits { mechanism: MECHANISM_NONE, ..limits() });
    let output = fixture.run("launch_path.c", &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[..2], ["0", "0"], "allocations and locks on the launch path");
    assert_eq!(
        words[2], "00000000:00000000,00000000,00000000,00000000",
        "no mask, whatever set the limits name"
    );
    assert_eq!(words[3], "0000ffff,0000ffff,0000ffff,0000ffff", "the program's own mask stays");
    assert_eq!(words[5..7], ["0", "0"], "a cluster of 15 is the driver's to judge");
    let slot = fixture.usage().slots().next().expect("one slot").expect("readable");
    assert_eq!((slot.state.flags, slot.launches), (HookState::ATTACHED, 0));
}
