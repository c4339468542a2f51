//! Elastic tenants: what is idle is borrowed, and given back when its owner has work.

use crate::common;

use std::time::{Duration, Instant};

use common::{Answering, PATIENCE, World, compile, gpu_program, is_real, tpcs};

/// What a kernel on these TPCs says of its SMs. Under MPS a GPU renumbers those that are enabled
/// from 0, so that only their count shows there.
fn sms_of(set: &str) -> String {
    match is_real() {
        true => common::sms_of(&format!("0-{}", tpcs(set).len() - 1)),
        false => common::sms_of(set),
    }
}

/// `tests/hook/elastic.c` as a tenant.
struct Program(Answering);

impl Program {
    fn start(world: &World, name: &str, options: &str) -> Self {
        let line = format!("run --name {name} {options} --");
        let mut command = world.partita(line.split_whitespace());
        command.arg(compile(world, "elastic")).arg(&gpu_program().1);
        let mut program = Answering::start(&mut command);
        assert_eq!(program.tenant.next_line(), "ready");
        Self(program)
    }

    fn tell(&mut self, what: &str) {
        let said = self.0.ask(what);
        assert!(said.is_empty(), "{said:?}");
    }

    /// The SMs on which all blocks of a kernel ran.
    fn sms(&mut self) -> String {
        let said = self.0.ask("census").join(" ");
        let said = said.trim().strip_prefix("sms ").unwrap_or_else(|| panic!("{said}")).to_owned();
        let (sms, blocks) = said.split_once(" blocks ").unwrap_or_else(|| panic!("{said}"));
        assert_eq!(blocks, "528");
        sms.to_owned()
    }

    /// Waits until its kernels run on these TPCs.
    fn comes_to(&mut self, tpcs: &str) {
        let deadline = Instant::now() + PATIENCE;
        let wanted = sms_of(tpcs);
        loop {
            let found = self.sms();
            if found == wanted {
                return;
            }
            assert!(Instant::now() < deadline, "{found}, not {wanted}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn a_borrower_has_what_is_idle_and_gives_it_back() {
    let world = World::in_memory();
    let mut owner = Program::start(&world, "owner", "--sm tpc:0-32");
    let mut borrower = Program::start(&world, "borrower", "--sm tpc:40-59..100%");
    // All TPCs: the owner rests, and nobody owns the others.
    borrower.comes_to("0-65");
    for _ in 0..5 {
        owner.tell("launch");
        // The owner has not waited for its work yet: the very next unit is off its TPCs.
        for _ in 0..3 {
            assert_eq!(borrower.sms(), sms_of("33-65"));
        }
        owner.tell("sync");
        borrower.comes_to("0-65");
        assert_eq!(owner.sms(), sms_of("0-32"), "what it has itself never changes");
    }
    // An owner that is killed at work holds nobody.
    owner.tell("launch");
    assert_eq!(borrower.sms(), sms_of("33-65"));
    world.ok("kill owner");
    borrower.comes_to("0-65");
    // The ceiling, and the end of borrowing.
    world.ok("set borrower --sm tpc:40-59..25tpc");
    borrower.comes_to("0-4,40-59");
    world.ok("set borrower --sm tpc:40-59");
    borrower.comes_to("40-59");
    // It was started with a ceiling, so it can have one again.
    world.ok("set borrower --sm tpc:40-59..25tpc");
    borrower.comes_to("0-4,40-59");
}

/// A program that never waits, and one with more streams than can be asked.
#[test]
fn owners_that_poll_and_owners_with_pools_of_streams_lend() {
    let world = World::in_memory();
    let mut owner = Program::start(&world, "owner", "--sm tpc:0-32");
    let mut borrower = Program::start(&world, "borrower", "--sm tpc:40-59..100%");
    borrower.comes_to("0-65");
    for end in ["poll", "streams", "poll", "sync"] {
        owner.tell("launch");
        assert_eq!(borrower.sms(), sms_of("33-65"));
        owner.tell(if end == "streams" { "poll" } else { end });
        if end == "streams" {
            owner.tell(end);
        }
        borrower.comes_to("0-65");
    }
}

#[test]
fn two_borrowers_never_count_on_the_same_tpcs() {
    let world = World::in_memory();
    let mut one = Program::start(&world, "one", "--sm tpc:0-9..100%");
    let mut two = Program::start(&world, "two", "--sm tpc:10-19..100%");
    one.comes_to("0-65");
    one.tell("launch");
    for _ in 0..20 {
        let _ = two.sms();
        two.tell("launch");
        let (a, b) = (one.sms(), two.sms());
        // Each has waited for its own work, and rests: what it had may be the other's by now. What
        // both own is apart in any case.
        assert!(!a.is_empty() && !b.is_empty());
        one.tell("launch");
        two.tell("launch");
        let (held, other) = (one.sms(), common::sms_of("10-19"));
        let held: Vec<&str> = held.split(' ').collect();
        let others = other.split(' ').filter(|sm| held.contains(sm)).count();
        match is_real() {
            true => assert!(held.len() <= 2 * (66 - 10), "TPCs of one at work: {held:?}"),
            false => assert_eq!(others, 0, "TPCs of one at work"),
        }
        two.tell("sync");
    }
}

#[test]
fn what_cannot_borrow_is_refused_with_the_reason() {
    let world = World::in_memory();
    for (options, reason) in [
        ("--sm 30%..100% --via persistent", "by masks"),
        ("--sm 30%..100% --isolation own", "take turns"),
        ("--sm 30%..100% --time 50%", "borrowed time"),
        ("--sm 50%..30%", "larger one last"),
        ("--sm 30%..tpc:0-9", "is a number"),
    ] {
        let error = world.refused(&format!("run {options} -- true"));
        assert!(error.contains(reason), "{options}: {error}");
    }
    let _plain = Program::start(&world, "plain", "--sm 10%");
    assert!(world.refused("set plain --sm 10%..100%").contains("was started without one"));
    let both = world.refused("run --borrow --sm 30%..50% -- true");
    assert!(both.contains("--sm 30%..50% has a ceiling"), "{both}");
    assert!(world.ok("run --dry-run --sm 10% --borrow -- true").contains("sm 10%..100%"));
}
