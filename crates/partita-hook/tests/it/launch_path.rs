//! The hook's work on every launch, against a driver that does nothing else.

use crate::common;

use common::{Fixture, limits};
use partita_core::time::Hold;
use partita_ledger::{FLAG_GATED, FLAG_TIMED, HookState, Limits, TimeMap};

#[test]
fn a_launch_is_masked_without_allocation_lock_or_system_call() {
    let fixture = Fixture::new(&limits());
    let output = fixture.run("launch_path.c", &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    // Seccomp's strict mode answers a system call with SIGKILL.
    assert!(
        output.status.success(),
        "{:?} {text} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[0], "0", "allocations and frees on the launch path");
    assert_eq!(words[1], "0", "locks taken on the launch path");
    assert_eq!(words[2], "80000000:00000000,fffffffe,ffffffff,ffffffff", "the tenant's mask, marked valid");
    assert_eq!(words[3], "0000ffff,ffffffff,ffffffff,ffffffff", "the program's own mask intersected");
    assert_eq!(
        words[4], "00000000,fffffffe,ffffffff,ffffffff",
        "an empty intersection leaves the tenant's set"
    );
    assert_eq!(
        words[5], "912",
        "a compiled-in cluster of 15 on at most 14 SMs (CUDA_ERROR_INVALID_CLUSTER_SIZE)"
    );
    assert_eq!(words[6], "0", "a cluster of 3");

    let slot = fixture.usage().slots().next().expect("one slot").expect("readable");
    // 1 to warm up, 10,000 counted, 2 with masks, 1 cluster that fits, 10,000 under seccomp.
    assert_eq!(slot.launches, 20_004);
    assert_eq!(slot.state.flags, HookState::ATTACHED | HookState::MASK_VERIFIED);
}

#[test]
fn a_launch_with_a_share_of_time_takes_no_lock_and_few_calls() {
    let limits = partita_ledger::Limits { flags: FLAG_TIMED, time_permille: 990, ..limits() };
    let fixture = Fixture::new(&limits);
    TimeMap::create(&fixture.file("time"), 0o600).expect("the time file");
    // A machine that holds the program up makes its units shorter, so one run in a few has to be
    // right, and only runs that kept their processor are judged.
    let mut runs = Vec::new();
    let is_seen = (0..5).any(|_| {
        let output = fixture.run("timed_path.c", &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{:?} {said}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let words = text.split_whitespace().map(|word| word.parse().expect("a number"));
        let numbers: Vec<u64> = words.collect();
        let [allocations, locks, waits, records, waited_us] = numbers[..] else { panic!("{text}") };
        assert_eq!(allocations, 0, "allocations on the launch path");
        runs.push([locks, waits, records, waited_us]);
        // It waits for a lock where the hook's thread was held up with the stream in its hands.
        locks == 0 && are_few(waits, records)
    });
    let told = "waits for locks, units of 20000 launches, events for them, and µs ready without a \
        processor, in each run";
    if !is_seen && runs.iter().all(|[.., waited_us]| *waited_us > UNDISTURBED_US_MAX) {
        eprintln!("skipped: others took the processor in every run; {told}: {runs:?}");
        return;
    }
    assert!(is_seen, "{told}: {runs:?}");
}

/// For how long the threads of a run that counts as undisturbed may have been without a processor;
/// a run takes 200 ms.
const UNDISTURBED_US_MAX: u64 = 1000;

/// Kernels of 10 µs in units of a millisecond: a hundred in each, if nothing interrupts the
/// program. An event where each begins, and one where it ends unless it was found to be over.
fn are_few(waits: u64, records: u64) -> bool {
    (20_000 / 256..=20_000 / 10).contains(&waits) && (waits..=2 * waits + 4).contains(&records)
}

/// `CLOCK_MONOTONIC`, by which lanes are closed.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) }, 0);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The output of `gate_path.c` with other processes' lanes, of which one closes in between.
fn gate_path(lanes: usize, argument: &str) -> Vec<Vec<u64>> {
    let limits = Limits { flags: FLAG_GATED, priority: 1, ..limits() };
    let fixture = Fixture::new(&limits);
    let gate = fixture.gate();
    let lanes: Vec<_> = (0..lanes).map(|_| gate.claim().expect("claimed").expect("free")).collect();
    let said = fixture.talk("gate_path.c", &[argument], |line| {
        (line == "close").then(|| {
            // As late as is accepted: the hook's thread opens lanes that are closed for too long.
            gate.close(lanes[0], 2, now_ns() + Hold::default().hold_ns_max - 1_000_000);
            "closed".to_owned()
        })
    });
    assert_eq!(said.complaints, Vec::<String>::new());
    let words = |line: &String| line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    said.lines.iter().map(words).collect()
}

#[test]
fn short_kernels_of_low_priority_wait_once_in_a_unit_and_long_ones_one_by_one() {
    // A machine that holds the program up while the lane is closed sees it opened again: one
    // undisturbed run in a few is asked for.
    let is_stopped = (0..5).any(|_| {
        let said = gate_path(3, "");
        let [short, long, again, open, closed, behind, counted] = &said[..] else { panic!("{said:?}") };
        assert_eq!(counted[..], [0, 0], "allocations and locks on the launch path");
        // Twenty of 10 µs are a unit of 200 µs; one in about 35 is measured by two events.
        assert_eq!(short[..3], [1000, 3000, 0], "{said:?}");
        assert!((20_000 / 25..=20_000 / 10).contains(&short[3]), "{said:?}");
        assert_eq!(long[..3], [2000, 6000, 0], "{said:?}");
        assert_eq!(again[..3], [100, 300, 0], "{said:?}");
        assert!(open[0] <= 1, "{said:?}");
        // In the middle of a unit, the work after a lane has closed waits, and all later work with
        // it.
        (closed[0], behind[0]) == (1, 0)
    });
    assert!(is_stopped);
}

#[test]
fn where_waits_come_one_by_one_alone_they_do() {
    let said = gate_path(2, "one-by-one");
    assert_eq!(said[0][..3], [0, 0, 2000], "{said:?}");
    assert_eq!(said[1][..3], [0, 0, 4000], "{said:?}");
}

#[test]
fn a_foreign_ledger_is_refused_at_cu_init() {
    let fixture = Fixture::new(&limits());
    for (name, bytes) in [("truncated", vec![0u8; 100]), ("foreign", vec![0x5a; 4096]), ("empty", Vec::new())]
    {
        let path = fixture.path("limits");
        std::fs::remove_file(&path).expect("the limits file");
        std::fs::write(&path, bytes).expect("writable");
        let output = fixture.run("launch_path.c", &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        // The program reports that cuInit failed.
        assert_eq!(output.status.code(), Some(3), "{name}: {said}");
        assert_eq!(said.lines().count(), 1, "{name}: {said}");
        assert!(said.starts_with("partita: ") && said.contains("limits"), "{name}: {said}");
        assert!(output.stdout.is_empty(), "{name}: nothing belongs on standard output");
    }
}

#[test]
fn after_an_unexpected_descriptor_nothing_more_is_launched() {
    // The board was calibrated with version 3.0 descriptors, but the driver makes 4.0.
    let fixture = Fixture::new(&partita_ledger::Limits { qmd_version: 0x30, ..limits() });
    let output = fixture.run("launch_path.c", &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[2], "00000000:00000000,00000000,00000000,00000000", "no write to it: {text}");
    assert_eq!(words[6], "3", "CUDA_ERROR_NOT_INITIALIZED from then on: {text}");
    let slot = fixture.usage().slots().next().expect("one slot").expect("readable");
    assert_eq!(slot.state.flags, HookState::UNMASKED | HookState::REFUSED);
    assert_eq!(slot.launches, 0);
}

#[test]
fn what_the_driver_refuses_in_clients_of_mps_is_said_once() {
    let output = Fixture::new(&limits()).run("nested.c", &[]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "811 811\n", "the driver's own code");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "partita: nested: the driver refused a kernel that can launch kernels itself (dynamic parallelism), as it does in every client \
         of MPS; use --isolation own, and with a partition --on-misfit widen\n"
    );
}
