//! A program's own partitions (green contexts) inside its tenant's.

use crate::common;

use std::collections::BTreeSet;

use common::{Answering, World, compile, gpu_program, is_real, sms_of};

fn start(world: &World, options: &str) -> Answering {
    let mut command = world.partita("run --name parts --isolation own".split_whitespace());
    command.args(options.split_whitespace()).arg("--").arg(compile(world, "green"));
    let mut program = Answering::start(command.arg(&gpu_program().1).arg("528"));
    assert_eq!(program.tenant.next_line(), "ready");
    program
}

/// The SMs on which the blocks of a launch ran, all of them.
fn ran(program: &mut Answering, route: &str) -> BTreeSet<u32> {
    let line = program.line(&format!("run {route}"));
    let sms = line.strip_prefix("run 0 sms ").and_then(|rest| rest.strip_suffix(" blocks 528"));
    let sms = sms.unwrap_or_else(|| panic!("{route}: {line}"));
    sms.split(' ').map(|sm| sm.parse().expect("a number")).collect()
}

fn of(set: &str) -> BTreeSet<u32> {
    sms_of(set).split(' ').map(|sm| sm.parse().expect("a number")).collect()
}

#[test]
fn they_are_made_of_the_tenants_tpcs_disjoint_and_enforced() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-31");
    assert_eq!(program.line("resources"), "device 64 context 64 least 8 together 8");
    assert!(program.line("split 65 0").starts_with("split 1: "));
    assert_eq!(program.line("split 16 1"), "split 0: 4 of 16, 0");
    assert_eq!(program.line("create 0 0"), "create 0 of 16 16");
    assert_eq!(program.line("create 1 2"), "create 0 of 32 32");
    let tenant = of("0-31");
    assert_eq!(ran(&mut program, "plain"), tenant);
    let (one, other) = (ran(&mut program, "stream 0"), ran(&mut program, "stream 1"));
    assert_eq!((one.len(), other.len()), (16, 32));
    assert!(one.is_disjoint(&other) && one.is_subset(&tenant) && other.is_subset(&tenant));
    for route in ["default 0", "graph 0"] {
        assert_eq!(ran(&mut program, route), one, "{route}");
    }
    for route in ["default 1", "graph 1"] {
        assert_eq!(ran(&mut program, route), other, "{route}");
    }
    assert_eq!(ran(&mut program, "plain"), tenant);
}

#[test]
fn the_tenants_limits_of_the_moment_hold_in_them() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-31");
    program.ask("resources");
    program.ask("split 16 1");
    assert_eq!(program.line("create 0 0"), "create 0 of 16 16");
    let before = ran(&mut program, "stream 0");
    for set in ["0-3", "0-15", "40-47", "0-65", "0-31"] {
        world.ok(&format!("set parts --sm tpc:{set}"));
        let tenant = of(set);
        let both: BTreeSet<u32> = before.intersection(&tenant).copied().collect();
        let expected = if both.is_empty() { tenant.clone() } else { both };
        for route in ["stream 0", "default 0", "graph 0"] {
            assert_eq!(ran(&mut program, route), expected, "{route} on {set}");
        }
        assert_eq!(ran(&mut program, "plain"), tenant, "on {set}");
    }
}

#[test]
fn what_cannot_fit_one_is_refused_at_the_call() {
    let world = World::new();
    // Whole GPCs, so that a group of 16 SMs has some of one.
    let mut program = start(&world, "--sm 100%");
    program.ask("resources");
    assert_eq!(program.line("split 16 0"), "split 0: 8 of 16, 4");
    assert_eq!(program.line("create 0 0"), "create 0 of 16 16");
    assert_eq!(program.line("cooperative stream 0 32"), "cooperative 0");
    assert_eq!(program.line("cooperative stream 0 33"), "cooperative 720");
    assert_eq!(program.line("cooperative graph 0 33"), "cooperative 720");
    assert_eq!(program.line("cooperative graph 0 32"), "cooperative 0");
    assert_eq!(program.line("cooperative plain 33"), "cooperative 0");
    // The later contexts have parts that the driver does not guarantee to schedule together, and on
    // hardware it refuses clusters in them (`docs/hardware.md`).
    let fits = program.line("cluster 0 8");
    match is_real() {
        true => assert_eq!(fits, "cluster 912 active 0"),
        false => assert!(fits.starts_with("cluster 0 active "), "{fits}"),
    }
    assert_eq!(program.line("cluster 0 16"), "cluster 912 active 0");
}

#[test]
fn contexts_of_one_group_share_its_set_and_others_stay_disjoint() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-31");
    program.ask("resources");
    program.ask("split 16 1");
    assert_eq!(program.line("create 0 0"), "create 0 of 16 16");
    let one = ran(&mut program, "stream 0");
    assert_eq!(ran(&mut program, "graph 0"), one);
    // The driver ends a process that launches work recorded by a destroyed context.
    assert_eq!(program.line("destroy 0"), "destroy 0");
    assert_eq!(program.line("create 1 1"), "create 0 of 16 16");
    let other = ran(&mut program, "stream 1");
    assert_eq!((one.len(), other.len()), (16, 16));
    assert!(one.is_disjoint(&other));
    assert_eq!(program.line("create 0 0"), "create 0 of 16 16");
    assert_eq!(ran(&mut program, "stream 2"), one);
    assert_eq!(program.line("cooperative graph 2 33"), "cooperative 720");
    assert_eq!(program.line("cooperative graph 2 32"), "cooperative 0");
}

#[test]
fn more_sets_than_can_be_told_apart_are_refused_with_a_line() {
    let world = World::new();
    let mut program = start(&world, "--sm tpc:0-65");
    program.ask("resources");
    assert_eq!(program.line("split 2 1"), "split 0: 66 of 2, 0");
    // Each pair of neighbours is a separate set, and so is each group.
    let made = program.line("every");
    let made = made.strip_prefix("every 801 after ").expect("a refusal in the end");
    let made: usize = made.parse().expect("a number");
    assert!((50..=66).contains(&made), "{made}");
    // A set that was used before still works.
    assert_eq!(program.line("create 0 0"), "create 0 of 2 2");
    assert_eq!(ran(&mut program, "stream 0").len(), 2);
    let said = program.complaints();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(
        said.trim_end(),
        format!(
            "partita: green: a green context was refused: in a partition a process makes them of at most {made} different groups of SMs, \
             destroyed ones included; use groups again"
        )
    );
}

#[test]
fn without_a_mask_the_driver_answers() {
    let world = World::in_memory();
    let mut program = start(&world, "--via time --priority low");
    assert_eq!(program.line("resources"), "device 132 context 132 least 8 together 8");
    program.ask("split 16 0");
    assert_eq!(program.line("create 0 0"), "create 0 of 16 16");
    assert_eq!(ran(&mut program, "stream 0").len(), 16);
    assert_eq!(program.complaints(), "");
}
