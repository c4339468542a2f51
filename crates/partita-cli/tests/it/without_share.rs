//! Programs without `--sm` divide what the shares of others leave, evenly, and lock no other out.

use crate::common;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use common::{Tenant, World, text, tpcs};
use partita_testing::eventually;
use rustix::process::{Pid, Signal};

fn set(world: &World, name: &str) -> BTreeSet<u32> {
    tpcs(world.row(name)["tpcs"].as_str().unwrap()).into_iter().collect()
}

/// The SMs of these tenants, which have no TPC in common.
fn sms<const N: usize>(world: &World, names: [&str; N]) -> [u64; N] {
    let sets = names.map(|name| set(world, name));
    let all: BTreeSet<u32> = sets.iter().flatten().copied().collect();
    assert_eq!(all.len(), sets.iter().map(BTreeSet::len).sum::<usize>(), "{names:?}");
    names.map(|name| world.row(name)["sms"].as_u64().unwrap())
}

#[test]
fn programs_without_a_share_have_even_parts() {
    let world = World::new();
    let _a = world.idle("--name a");
    assert_eq!(sms(&world, ["a"]), [132]);
    let b = world.idle("--name b");
    assert_eq!(sms(&world, ["a", "b"]), [66, 66]);
    let output = world.line("run --name c -- true");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("no --sm: c has 44 of 132 SMs of ") && said.lines().count() == 1, "{said}");
    // It has ended, and the others have what it had.
    assert_eq!(sms(&world, ["a", "b"]), [66, 66]);
    // A share is a promise, and comes first.
    let mut d = world.idle("--name d --sm 50%");
    assert_eq!(sms(&world, ["a", "b", "d"]).into_iter().sum::<u64>(), 132);
    assert_eq!(sms(&world, ["d"]), [66]);
    let refused = world.refused("run --name e --sm 50% -- true");
    assert!(refused.contains("31 of 66 TPCs are free"), "{refused}");
    // Named TPCs that one of them has.
    let taken: u32 = *set(&world, "a").first().unwrap();
    let _e = world.idle(&format!("--name e --sm tpc:{taken}"));
    assert_eq!(set(&world, "e"), [taken].into());
    assert_eq!(sms(&world, ["a", "b", "d", "e"]), [32, 32, 66, 2]);
    // What a share gives up is divided too; one that gets a share is no longer divided.
    world.ok("set d --sm 10%");
    assert_eq!(sms(&world, ["a", "b", "d", "e"]), [60, 58, 12, 2]);
    world.ok("set a --sm 20tpc");
    assert_eq!(sms(&world, ["a", "b", "d", "e"]), [40, 78, 12, 2]);
    drop(b);
    let _f = world.idle("--name f");
    assert_eq!(sms(&world, ["a", "d", "e", "f"]), [40, 12, 2, 78]);
    // The next change, of whatever kind, divides what a killed one had.
    let run = d.child.id();
    let programs = std::fs::read_to_string(format!("/proc/{run}/task/{run}/children")).unwrap();
    d.signal(Signal::KILL);
    d.child.wait().unwrap();
    for pid in programs.split_whitespace() {
        let _ = rustix::process::kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL);
    }
    eventually("it has ended", || world.ps().len() == 3);
    world.ok("set a --place spread");
    assert_eq!(sms(&world, ["a", "e", "f"]), [40, 2, 90]);
}

#[test]
fn a_running_program_obeys_its_smaller_and_its_larger_part() {
    let world = World::new();
    let mut tenant = Tenant::start(&mut world.gpu("--name busy --isolation own", "loop"));
    assert_eq!(common::sms(&tenant.next_line()).len(), 132);
    let mut follows = |world: &World, counts: RangeInclusive<usize>| {
        assert!(counts.contains(&(set(world, "busy").len() * 2)), "{counts:?}");
        let expected: Vec<u32> =
            set(world, "busy").into_iter().flat_map(|tpc| [2 * tpc, 2 * tpc + 1]).collect();
        let mut lines = 0;
        while common::sms(&tenant.next_line()) != expected {
            lines += 1;
            assert!(lines < 10_000, "{counts:?} SMs never take hold");
        }
    };
    let other = world.idle("--name other --isolation own");
    follows(&world, 66..=66);
    let share = world.idle("--name share --sm 50% --isolation own");
    follows(&world, 32..=34);
    drop(other);
    follows(&world, 66..=66);
    drop(share);
    follows(&world, 132..=132);
    world.ok("kill busy");
}

#[test]
fn a_spread_part_has_tpcs_of_every_gpc() {
    let world = World::new();
    let gpcs = |name: &str| world.row(name)["gpcs"].as_array().unwrap().len();
    let _wide = world.idle("--name wide --place spread");
    let all = gpcs("wide");
    let _other = world.idle("--name other");
    assert_eq!(sms(&world, ["wide", "other"]), [66, 66]);
    assert!(gpcs("wide") == all && gpcs("other") <= all);
}

#[test]
fn what_is_asked_for_has_a_unit_and_a_range() {
    let world = World::new();
    for (asked, parts) in [
        ("--mem 40", &["`40`", "it has no unit", "20GiB"][..]),
        ("--mem -1GiB", &["`-1GiB`", "negative"]),
        ("--mem 0%", &["`0%`", "above 0%"]),
        ("--mem 0.1%", &["--mem 0.1%", "1GiB", "ask for more"]),
        ("--sm -5%", &["`-5%`", "30%"]),
        ("--time 0.001%", &["0.001%", "0.1% to 100%"]),
        ("--time 0%", &["0.1% to 100%"]),
        ("--time -5%", &["-5%", "0.1% to 100%"]),
    ] {
        let said = world.refused(&format!("run {asked} -- true"));
        for part in parts {
            assert!(said.contains(part), "{asked}: {said}");
        }
    }
    let total = {
        let gpus: serde_json::Value = serde_json::from_str(&world.ok("devices --json")).unwrap();
        gpus[0]["memory_total_bytes"].as_u64().unwrap()
    };
    // Two halves fit, with what the driver takes for itself.
    let _halves = ["one", "two"].map(|name| world.idle(&format!("--name {name} --sm 10% --mem 50%")));
    let quota = world.row("two")["memory_quota_bytes"].as_u64().unwrap();
    let both = 2 * (quota + (1 << 30)) + (512 << 20);
    assert!(both <= total && both > total / 100 * 98, "{both} of {total}");
    world.ok("set two --mem 25%");
    assert!(world.row("two")["memory_quota_bytes"].as_u64().unwrap() < quota / 2);
}
