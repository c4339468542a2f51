//! The interposer in real CUDA programs, on every route of theirs.

use crate::common;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Answering, World, compile, gpu_program, is_real, text, tpcs};
use partita_abi::exports::{EXPORTS, Policy};
use partita_testing::succeed;

/// Runs a program as a tenant in its own fault domain; returns its lines.
fn lines(world: &World, options: &str, program: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command =
        world.partita("run --isolation own".split_whitespace().chain(options.split_whitespace()));
    command.arg("--").arg(program).args(arguments);
    text(&succeed(&mut command).stdout).lines().map(str::to_owned).collect()
}

#[test]
fn every_route_to_memory_is_charged_credited_and_refused_to_the_byte() {
    let world = World::new();
    let program = compile(&world, "routes");
    // It makes more contexts than usual.
    assert_eq!(lines(&world, "--sm 25% --mem 1GiB --mem-driver 8GiB", &program, &[]), ["every route ok"]);
}

/// A process that receives a descriptor can change the mark on it. The hook charges the mapped
/// bytes, whatever the mark says.
#[test]
fn a_mark_that_says_less_than_there_is_saves_nothing() {
    let world = World::new();
    let program = compile(&world, "relabel");
    // The child's piece counts beside the mapped ones, until it is released.
    assert_eq!(lines(&world, "--mem 160MiB", &program, &["8", "0"]), ["3"]);
    assert_eq!(lines(&world, "--mem 160MiB", &program, &["8", "1"]), ["2"]);
}

/// Descriptors in a program that tries to be charged too little. A descriptor does not identify the
/// memory behind it, and every holder can change its mark (`docs/boundaries.md`). If these numbers
/// change, that page must change too.
#[test]
fn a_copied_mark_and_an_open_descriptor_hold_uncharged_memory() {
    let world = World::new();
    let program = compile(&world, "relabel");
    // All 384 MiB, charged as one piece of 48.
    assert_eq!(lines(&world, "--mem 160MiB", &program, &["8", "2"]), ["8"]);
    // All 384 MiB, charged to no tenant; memory that is imported again is charged, and refused
    // beyond the quota.
    assert_eq!(lines(&world, "--mem 160MiB", &program, &["8", "3"]), ["8 0 3"]);
}

#[test]
fn what_several_processes_hold_is_charged_once() {
    let world = World::new();
    let program = compile(&world, "shared");
    assert_eq!(lines(&world, "--sm 25% --mem 1GiB", &program, &[]), ["every share ok"]);
}

/// Ways in which a program may leave its tenant by accident, and a careless program's changes of
/// its environment.
#[test]
fn libcuda_is_held_however_it_is_opened_or_not_opened_at_all() {
    let world = World::new();
    let program = compile(&world, "escapes");
    let asked = |arguments: &[&str]| lines(&world, "--sm 25% --mem 64MiB", &program, arguments);
    assert_eq!(asked(&["path"]), ["held"]);
    assert_eq!(asked(&["deepbind"]), ["held"]);
    let [refused, held] = &asked(&["namespace"])[..] else { panic!("two lines") };
    assert!(refused.contains("a new linker namespace would leave the tenant's limits"), "{refused}");
    assert_eq!(held, "held");
    // It clears its environment, or names another tenant's directory: it keeps the limits that it
    // was started with.
    assert_eq!(asked(&["late"]), ["held"]);
    // Linked against the driver's library itself, so that its own dependencies come first.
    let library = world.dir().join("liblinked.so");
    let driver = world.dir().join("driver");
    std::fs::create_dir(&driver).unwrap();
    let stub = "int cuInit(unsigned f) { return 1; } int cuCtxCreate_v2(void **c, unsigned f, int d) { return 1; } \
                int cuMemGetInfo_v2(unsigned long *f, unsigned long *t) { return 1; }";
    std::fs::write(driver.join("stub.c"), stub).unwrap();
    let cc = || {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]);
        cc
    };
    succeed(cc().arg(driver.join("libcuda.so")).arg(driver.join("stub.c")).arg("-Wl,-soname,libcuda.so.1"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook/linked.c");
    succeed(cc().arg(&library).arg(source).arg("-L").arg(&driver).arg("-lcuda"));
    assert_eq!(asked(&["linked-deep", library.to_str().unwrap()]), ["held"]);
    // cuInit alone is reached past the hook: the first context makes the process part of its
    // tenant.
    assert_eq!(asked(&["init-elsewhere"]), ["held"]);
}

#[test]
fn the_linkers_functions_lead_to_the_hook_however_they_are_looked_up() {
    let world = World::new();
    let program = compile(&world, "escapes");
    // It makes several contexts.
    assert_eq!(lines(&world, "--sm 25% --mem 64MiB --mem-driver 8GiB", &program, &["linker"]), ["held"; 7]);
}

/// The driver reads freed memory if it is given a stream that has ended with its context: NVIDIA's
/// sample `simpleDrvRuntime` crashed at its exit (H200, driver 580.159.04).
#[test]
fn contexts_may_end_with_their_streams_in_them() {
    let world = World::plan().in_memory().start();
    let program = compile(&world, "ended_contexts");
    // Each of them starts while the holder of the one before may still keep its limits.
    for options in ["--sm 40%", "--sm 20%..40%", "--sm 40% --priority low", "--priority high", "--time 50%"] {
        for contexts in ["alone", "beside"] {
            let mut command = world.partita(["run"].into_iter().chain(options.split_whitespace()));
            command.arg("--").arg(&program).arg(&gpu_program().1).arg(contexts);
            assert_eq!(text(&succeed(&mut command).stdout), "done\n", "{options}, {contexts}");
        }
    }
}

#[test]
fn entry_points_are_those_of_the_name_that_was_asked_for() {
    let world = World::new();
    let program = compile(&world, "escapes");
    assert_eq!(lines(&world, "--sm 25% --mem 64MiB", &program, &["names"]), ["many", "0"]);
}

#[test]
fn the_driver_is_what_the_linker_finds_for_its_name() {
    let world = World::new();
    let program = compile(&world, "escapes");
    let asked = |arguments: &[&str]| lines(&world, "--sm 25% --mem 64MiB", &program, arguments);
    // A tracer or a stub with its own cuInit, which a look-up finds first.
    let (source, shim) = (world.dir().join("shim.c"), world.dir().join("libshim.so"));
    std::fs::write(
        &source,
        "int cuInit(unsigned f) { return 999; } int cuMemAlloc_v2(void *p, unsigned long n) { return 999; }",
    )
    .unwrap();
    succeed(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source));
    assert_eq!(asked(&["shim", shim.to_str().unwrap()]), ["999", "held"]);
    if is_real() {
        eprintln!("skipped on a GPU: the copy of the driver is the simulated one");
        return;
    }
    // A second copy of the driver: whichever is opened first, limits hold through both.
    let copy = world.dir().join("libcopy.so");
    std::fs::copy(partita_testing::build().join("libpartita_simcuda.so"), &copy).unwrap();
    for order in ["copy", "copy-later"] {
        assert_eq!(asked(&[order, copy.to_str().unwrap()]), ["held", "held"], "{order}");
    }
}

#[test]
fn a_program_with_a_sanitizer_is_held() {
    let world = World::new();
    // ThreadSanitizer reserves the addresses of the simulator's memory: the hook's own tests cover
    // it.
    for sanitizer in ["address", "undefined"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook/escapes.c");
        let program = world.dir().join(sanitizer);
        let mut cc = Command::new("cc");
        cc.arg(format!("-fsanitize={sanitizer}")).args(["-w", "-pthread", "-o"]).arg(&program).arg(&source);
        if !cc.arg("-ldl").stderr(Stdio::null()).status().is_ok_and(|done| done.success()) {
            eprintln!("skipped: cc has no {sanitizer} sanitizer here");
            continue;
        }
        // The test ignores what it finds of the driver's own memory at the end; the user's option
        // stays. CUDA programs need the shadow gap: the driver maps addresses there.
        let mut command = world.partita("run --isolation own --sm 25% --mem 64MiB --".split_whitespace());
        command.arg(&program).arg("path").env("ASAN_OPTIONS", "detect_leaks=0:protect_shadow_gap=0");
        let output = succeed(&mut command);
        assert_eq!(
            (text(&output.stdout), text(&output.stderr)),
            ("held\n".to_owned(), String::new()),
            "{sanitizer}"
        );
    }
}

#[test]
fn a_process_that_was_refused_has_no_use_of_the_gpu() {
    let world = World::new();
    let program = compile(&world, "escapes");
    let elsewhere = ["PARTITA_LEDGER=/nowhere", program.to_str().unwrap(), "refused"];
    let said = lines(&world, "--sm 25% --mem 64MiB", Path::new("env"), &elsewhere);
    assert_eq!(said, ["101 3 3 3 3 refused refused"]);
}

/// Calls that the pairs of
/// [`calls_about_one_object…`](calls_about_one_object_at_the_same_moment_leave_the_account_right)
/// leave out.
const NOT_IN_PAIRS: [&str; 11] = [
    // Copies and queries change the ownership of memory no more than the synchronisations among the
    // pairs.
    "cuMemcpy",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    // The same as cuCtxDestroy, cuGraphAddMemAllocNode and cuDeviceSetMemPool to the hook.
    "cuCtxDetach",
    "cuGraphAddNode",
    "cuMemSetMemPool",
    // Owns no memory.
    "cuGreenCtxDestroy",
    // The simulated driver has none.
    "cuMulticastBindAddr",
    "cuMulticastBindMem",
    "cuMulticastUnbind",
];

/// `PARTITA_TEST_RACES` is the number of tries of each pair: 6, or 24 in a long run.
#[test]
fn calls_about_one_object_at_the_same_moment_leave_the_account_right() {
    let world = World::plan().alone().start();
    let program = compile(&world, "pairs");
    let base = |name: &str| {
        let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        name.trim_end_matches("_v4").trim_end_matches("_v3").trim_end_matches("_v2").to_owned()
    };
    let calls = text(&succeed(Command::new(&program).arg("calls")).stdout);
    let in_pairs: Vec<String> = calls.lines().map(base).collect();
    let left_out: Vec<&str> = EXPORTS
        .iter()
        .filter(|export| matches!(export.policy, Policy::Charge | Policy::Release))
        .map(|export| export.name)
        .filter(|name| !in_pairs.contains(&base(name)))
        .filter(|name| !NOT_IN_PAIRS.iter().any(|known| name.starts_with(known)))
        .collect();
    assert!(left_out.is_empty(), "charged, and in no pair: {left_out:?}");
    let usual = if partita_testing::is_long() { "24" } else { "6" };
    let races = std::env::var("PARTITA_TEST_RACES").unwrap_or_else(|_| usual.to_owned());
    // A real driver need not survive two threads that end the same context, array or graph, and
    // allocates memory for pools and heaps in pieces of its own. Two threads that free the same
    // pointer, or map memory while it is released, make 580.159.04 read freed memory, without the
    // hook too (`docs/hardware.md`).
    let survived = ["mapped memory", "memory that only its mapping holds"];
    let kinds = text(&succeed(Command::new(&program).arg("kinds")).stdout);
    for kind in kinds.lines().filter(|kind| !is_real() || survived.contains(kind)) {
        let only = format!("PAIRS_OF={kind}");
        let arguments = [only.as_str(), program.to_str().unwrap(), &races];
        let said = lines(&world, "--mem 1GiB --mem-driver 64GiB", Path::new("env"), &arguments);
        let [sum] = &said[..] else { panic!("{said:#?}") };
        eprintln!("{kind}: {sum}");
        assert!(sum.ends_with(" 0 wrong, 0 bytes over"), "{sum}");
    }
}

#[test]
fn a_pool_that_is_destroyed_is_charged_until_the_device_has_its_memory_back() {
    let world = World::plan().alone().start();
    let program = compile(&world, "pool_end");
    assert_eq!(lines(&world, "--mem 1GiB", &program, &[]), ["done"]);
}

#[test]
fn whatever_thread_frees_it_in_whatever_order_the_account_is_the_devices() {
    let world = World::plan().alone().start();
    let program = compile(&world, "threads");
    assert_eq!(lines(&world, "--sm 25% --mem 512MiB", &program, &[]), ["every account agrees"]);
}

#[test]
fn sixty_four_racing_processes_never_have_a_byte_too_much_nor_are_refused_what_fits() {
    let world = World::new();
    let program = compile(&world, "race");
    assert_eq!(lines(&world, "--sm 25% --mem 512MiB --mem-driver 64GiB", &program, &[]), ["done"]);
}

#[test]
fn what_the_quota_has_no_room_for_spills_to_the_host_where_that_is_wanted() {
    let world = World::new();
    let program = compile(&world, "spill");
    let mut command =
        world.partita("run --sm 25% --mem 256MiB --spill host --name spills".split_whitespace());
    let mut tenant = Answering::start(command.arg("--").arg(&program));
    let spilled = |mib: u64| {
        let row = world.row("spills");
        assert_eq!(row["spill"], "host");
        assert_eq!(row["memory_spilled_bytes"], mib << 20);
        assert_eq!(row["processes"][0]["spilled_bytes"], mib << 20);
    };
    assert_eq!(tenant.line("a 192"), "0 64");
    spilled(0);
    // Each allocation decides: one that fits stays on the device.
    assert_eq!(tenant.line("a 128"), "0 64");
    spilled(128);
    assert_eq!(tenant.line("a 64"), "0 0");
    assert_eq!(tenant.line("s 32"), "0 0");
    spilled(160);
    let told = world.line("ps");
    assert!(text(&told.stderr).contains("spills: 160MiB of host memory beyond its quota"), "{told:?}");
    assert_eq!(world.row("spills")["memory_used_bytes"], 256 << 20);
    assert_eq!(tenant.line("f 1"), "0 0");
    assert_eq!(tenant.line("r 3"), "0 0");
    spilled(0);
    assert_eq!(tenant.line("f 0"), "0 192");
    world.ok("set spills --spill none");
    assert_eq!(tenant.line("a 193"), "2 192");
    assert_eq!(tenant.line("s 193"), "2 192");
}

/// Contexts, variables of modules and stacks: free up to the allowance, charged beyond it, refused
/// if the quota has no room, and credited at their end.
#[test]
fn what_the_driver_takes_for_itself_is_shown_and_charged_beyond_the_allowance() {
    const GIB: u64 = 1 << 30;
    let world = World::new();
    let program = compile(&world, "driver_memory");
    let mut command =
        world.partita("run --sm 25% --mem 4GiB --isolation own --name takes".split_whitespace());
    let mut tenant = Answering::start(command.arg("--").arg(&program));
    let mut ask = |what: &str| {
        let answer = tenant.line(what);
        let (code, left) = answer.split_once(' ').expect("two numbers");
        (code.parse::<u32>().unwrap(), left.parse::<u64>().unwrap())
    };
    let number = |field: &str| world.row("takes")[field].as_u64().unwrap();
    // A small allocation, by which the context is there: 0.5 GiB on an H200 and on the simulator.
    assert_eq!(ask("a 1048576"), (0, 4 * GIB - (1 << 20)));
    let context = number("memory_driver_bytes");
    assert!(context < GIB, "{context}");
    assert!(context > 1 << 28, "{context}");
    assert_eq!(number("memory_driver_allowance_bytes"), GIB);
    // On a GPU, modules have some memory beside their variables.
    let left = |taken: u64| 4 * GIB - (1 << 20) - taken.saturating_sub(GIB);
    let is_charged = |(code, free): (u32, u64), at_least: u64| {
        let taken = number("memory_driver_bytes");
        assert_eq!((code, free), (0, left(taken)));
        assert_eq!(number("memory_used_bytes"), 4 * GIB - free);
        assert!((at_least..at_least + (16 << 20)).contains(&taken), "{taken} for {at_least}");
        taken
    };
    let one = is_charged(ask("l 400"), context + (400 << 20));
    let two = is_charged(ask("l 1900"), one + (1900 << 20));
    // Loaded at its first launch.
    let three = is_charged(ask("y 1024"), two + GIB);
    // A refused one fails as on a full device, and changes nothing.
    assert_eq!(ask("l 3000"), (2, left(three)));
    assert_eq!(number("memory_driver_bytes"), three);
    // To the byte.
    assert_eq!(ask(&format!("a {}", left(three) + 1)).0, 2);
    assert_eq!(ask(&format!("a {}", left(three))), (0, 0));
    assert_eq!(ask("l 64").0, 2);
    // The driver keeps no memory of unloaded modules.
    assert_eq!(ask("u 2"), (0, two.saturating_sub(GIB).abs_diff(three.saturating_sub(GIB))));
    assert_eq!(number("memory_driver_bytes"), two);
    // Another allowance counts from the driver's next request on.
    world.ok("set takes --mem-driver 8GiB");
    assert_eq!(ask("l 64").0, 0);
    assert_eq!(number("memory_used_bytes"), (1 << 20) + left(three));
    let row = &world.row("takes")["processes"][0];
    assert_eq!(row["driver_bytes"], world.row("takes")["memory_driver_bytes"]);
}

/// The allowance is for each process, and four times for all of them.
#[test]
fn what_the_driver_takes_free_of_charge_is_bounded_for_all_processes() {
    const MIB: u64 = 1 << 20;
    let world = World::new();
    let program = compile(&world, "allowance");
    let options = "run --sm 25% --mem 64GiB --mem-driver 600MiB --isolation own --name many";
    let mut tenant =
        Answering::start(world.partita(options.split_whitespace()).arg("--").arg(&program).arg("6"));
    assert_eq!(tenant.line(""), "0");
    let row = world.row("many");
    let number = |field: &str| row[field].as_u64().unwrap();
    // Each context is within its own allowance.
    let taken = number("memory_driver_bytes");
    assert!((6 * 400 * MIB..6 * 600 * MIB).contains(&taken), "{taken}");
    assert_eq!(number("memory_used_bytes"), taken - 4 * 600 * MIB);
    // Where the quota has no room, the context is refused.
    let options = "run --sm 25% --mem 100MiB --mem-driver 600MiB --isolation own --name few";
    let mut tenant =
        Answering::start(world.partita(options.split_whitespace()).arg("--").arg(&program).arg("6"));
    assert_eq!(tenant.line(""), "2");
    assert!(world.row("few")["memory_used_bytes"].as_u64().unwrap() <= 100 * MIB);
}

/// The audit names memory that neither the ledger nor the allowance covers.
#[test]
fn a_process_with_more_than_its_ledger_says_is_named() {
    let world = World::new();
    let program = compile(&world, "escapes");
    let options = "run --mem 64MiB --isolation own --name fat";
    let mut command = world.partita(options.split_whitespace());
    command.arg("--").arg(&program).arg("beyond");
    if is_real() {
        // The kernel driver is asked for this memory, and the hook refuses it there.
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("the tenant's quota has no room"), "{said}");
        return;
    }
    let mut tenant = Answering::start(&mut command);
    assert_eq!(tenant.line(""), "had");
    let audit = world.line("ps --audit");
    assert_eq!(audit.status.code(), Some(1), "{audit:?}");
    assert!(text(&audit.stdout).contains(" BEYOND"), "{audit:?}");
    let said = text(&audit.stderr);
    assert!(said.starts_with("partita: fat: process ") && said.contains("neither the ledger nor"), "{said}");
}

/// Without an allowance a quota covers everything that a tenant takes of the device.
#[test]
fn without_an_allowance_everything_counts() {
    const GIB: u64 = 1 << 30;
    let world = World::new();
    let program = compile(&world, "driver_memory");
    let options = "run --sm 25% --mem 2GiB --mem-driver 0B --isolation own --name strict";
    let mut tenant = Answering::start(world.partita(options.split_whitespace()).arg("--").arg(&program));
    assert!(tenant.line("l 100").starts_with("0 "));
    let row = world.row("strict");
    let taken = row["memory_driver_bytes"].as_u64().unwrap();
    assert!(taken >= 100 << 20, "{taken}");
    assert_eq!(row["memory_used_bytes"], taken);
    assert_eq!(tenant.line(&format!("a {}", 2 * GIB - taken)), "0 0");
    assert!(tenant.line("l 1").starts_with("2 "));
}

/// A stack comes with a launch: 3.9 GiB on an H200 for 16 KiB a thread.
#[test]
fn a_stack_that_the_quota_has_no_room_for_is_refused_at_the_launch() {
    if !is_real() {
        eprintln!("skipped on the simulator: its kernels have no stacks");
        return;
    }
    let world = World::new();
    let program = compile(&world, "driver_memory");
    let mut command = world.partita("run --sm 25% --mem 1GiB --isolation own".split_whitespace());
    let mut tenant = Answering::start(command.arg("--").arg(&program));
    assert_eq!(tenant.line("k 1"), "0 1073741824");
    assert_eq!(tenant.line("k 16"), "2 1073741824");
    assert_eq!(tenant.line("k 1"), "0 1073741824");
}

/// Rows and managed memory as well: with the driver's pitch, at one address for host and device,
/// and freed like any other.
#[test]
fn rows_and_managed_memory_spill_to_the_host_too() {
    let world = World::new();
    let program = compile(&world, "spill");
    let mut command = world.partita("run --sm 25% --mem 64MiB --spill host --name spills".split_whitespace());
    let mut tenant = Answering::start(command.arg("--").arg(&program));
    let spilled = |mib: u64| assert_eq!(world.row("spills")["memory_spilled_bytes"], mib << 20);
    let used = |mib: u64| assert_eq!(world.row("spills")["memory_used_bytes"], mib << 20);
    // An allocation that fits is on the device.
    assert_eq!(tenant.line("p 4"), "0 60");
    assert_eq!(tenant.line("k 0"), "device");
    assert_eq!(tenant.line("m 2"), "0 58");
    assert_eq!(tenant.line("k 1"), "device managed");
    assert_eq!(tenant.line("v 1"), "0 58");
    assert_eq!(tenant.line("a 57"), "0 1");
    spilled(0);
    assert_eq!(tenant.line("p 3"), "0 1");
    assert_eq!(tenant.line("k 3"), "host");
    spilled(3);
    assert_eq!(tenant.line("m 2"), "0 1");
    assert_eq!(tenant.line("k 4"), "host");
    spilled(5);
    assert_eq!(tenant.line("v 4"), "0 1");
    assert_eq!(tenant.line("x 4"), "0 1");
    // Memory that is not managed cannot be moved, and a batch with it is refused as by the driver.
    assert_eq!(tenant.line("x 2"), "1 1");
    used(63);
    // Room for the requested bytes, but not for those that the driver's pitch adds: all of it goes
    // to the host.
    assert_eq!(tenant.line("b 50"), "0 0");
    assert_eq!(tenant.line("p 1"), "0 0");
    assert_eq!(tenant.line("k 6"), "host");
    spilled(6);
    // A call that is invalid with any memory is refused as without the hook.
    assert_eq!(tenant.line("e 1"), "2 2 0");
    assert_eq!(tenant.line("w 0"), "2 0");
    spilled(6);
    for (freed, rest) in [("f 3", 3), ("r 4", 1), ("f 6", 0)] {
        assert_eq!(tenant.line(freed), "0 0");
        spilled(rest);
    }
    for (freed, left) in [("f 0", "0 4"), ("f 1", "0 6"), ("f 2", "0 63"), ("f 5", "0 64")] {
        assert_eq!(tenant.line(freed), left);
    }
    world.ok("set spills --spill none");
    assert_eq!(tenant.line("p 65"), "2 64");
    assert_eq!(tenant.line("m 65"), "2 64");
}

/// `nvidia-smi` does not call the driver and may run before the program does: it reports the same.
#[test]
fn the_management_library_and_cuda_agree_on_memory_and_show_the_tenants_processes_alone() {
    let world = World::new();
    let program = compile(&world, "nvml");
    let tenant = |options: &str| {
        let mut command = world.partita("run".split_whitespace().chain(options.split_whitespace()));
        Answering::start(command.arg("--").arg(&program))
    };
    let mut one = tenant("--sm 25% --mem 2GiB --name one");
    let mut two = tenant("--sm 25% --mem 1GiB --name two");
    assert_eq!(one.line("l"), "total 2048 used 0 free 2048 processes");
    assert!(one.ask("i").is_empty());
    assert_eq!(one.line("l"), "total 2048 used 0 free 2048 processes self:0");
    assert!(one.ask("a").is_empty());
    assert_eq!(one.line("l"), "total 2048 used 64 free 1984 processes self:64");
    // Its neighbour sees none of it, before and after it starts CUDA itself.
    assert_eq!(two.line("l"), "total 1024 used 0 free 1024 processes");
    assert!(two.ask("i").is_empty() && two.ask("a").is_empty() && two.ask("a").is_empty());
    assert_eq!(two.line("l"), "total 1024 used 128 free 896 processes self:128");
    assert_eq!(one.line("l"), "total 2048 used 64 free 1984 processes self:64");
    // Both report a new quota from now on.
    world.ok("set one --mem 1GiB");
    assert_eq!(one.line("l"), "total 1024 used 64 free 960 processes self:64");
}

/// The real one, which finds the management library by itself.
#[test]
fn nvidia_smi_shows_the_quota() {
    let world = World::new();
    if !is_real() {
        eprintln!("skipped: nvidia-smi comes with the driver");
        return;
    }
    let asked = "--query-gpu=memory.total,memory.used,memory.free --format=csv,noheader,nounits";
    let mut command =
        world.partita("run --isolation own --sm 25% --mem 2GiB -- nvidia-smi".split_whitespace());
    let told = text(&succeed(command.args(asked.split_whitespace())).stdout);
    // Other GPUs of the machine have lines of their own.
    assert_eq!(told.lines().next(), Some("2048, 0, 2048"));
}

#[test]
fn every_route_to_a_launch_is_masked_or_refused() {
    let world = World::new();
    let program = compile(&world, "launches");
    let kernels = gpu_program().1.to_str().expect("UTF-8");
    // Four TPCs of one GPC on the H200s seen.
    let given = lines(&world, "--sm tpc:1,9,17,25 --mem 1GiB", &program, &[kernels, "128", "8"]);
    let expected: String =
        tpcs("1,9,17,25").iter().flat_map(|tpc| [2 * tpc, 2 * tpc + 1]).map(|sm| format!(" {sm}")).collect();
    for route in [
        "cuLaunchKernel",
        "default-stream",
        "per-thread-stream",
        "cuLaunchKernelEx",
        "graph",
        "graph-again",
        "captured-graph",
    ] {
        assert!(given.contains(&format!("{route} sms{expected} blocks 128")), "{route}: {given:#?}");
    }
    // Sixteen blocks of 1024 threads fill eight SMs; 128 do not fit at once, and would wait for
    // ever.
    assert!(given.contains(&format!("cooperative sms{expected} blocks 16")), "{given:#?}");
    assert!(given.contains(&"cooperative-too-large error 720".to_owned()), "{given:#?}");
    assert!(given.contains(&"cooperative-ex-too-large error 720".to_owned()), "{given:#?}");
    // A cluster of eight has its eight SMs; one of sixteen would wait for ever.
    assert!(given.contains(&format!("cluster sms{expected} blocks 16")), "{given:#?}");
    assert!(given.contains(&"cluster-too-large error 912".to_owned()), "{given:#?}");
}

#[test]
fn a_program_that_sets_a_smaller_mask_keeps_it_inside_its_partition() {
    let world = World::new();
    if is_real() {
        eprintln!("skipped on a real GPU: writes at an offset that only the simulated driver promises");
        return;
    }
    let program = compile(&world, "stream_mask");
    let kernels = gpu_program().1.to_str().expect("UTF-8");
    let given = lines(&world, "--sm tpc:0-3 --mem 1GiB", &program, &[kernels]);
    assert_eq!(
        given,
        ["inside sms 2 3 blocks 64", "across sms 6 7 blocks 64", "outside sms 0 1 2 3 4 5 6 7 blocks 64"]
    );
}

/// A profiler in the program gets the same answers and callbacks as without Partita, and the mask
/// holds whatever it disables.
#[test]
fn a_profiler_sees_what_it_sees_without_partita_and_the_mask_holds() {
    let world = World::in_memory();
    let program = compile(&world, "tool");
    let kernels = gpu_program().1.to_str().expect("UTF-8");
    for when in ["late", "early"] {
        let arguments = [kernels, when];
        let bare = text(&succeed(world.bare(&program).args(arguments)).stdout);
        let (bare_ran, bare) =
            bare.trim_end().rsplit_once('\n').map(|(rest, ran)| (ran, rest)).expect("lines");
        for options in ["--sm tpc:0-3 --mem 1GiB", "--sm tpc:0-3 --priority low", "--mem 1GiB"] {
            let given = lines(&world, options, &program, &arguments);
            let (ran, given) = given.split_last().expect("lines");
            assert_eq!(given.join("\n"), bare, "{when} {options}");
            let expected =
                if options.contains("--sm") { "ran sms 0 1 2 3 4 5 6 7 blocks 64" } else { bare_ran };
            assert_eq!(ran, expected, "{when} {options}");
        }
    }
}

/// As Nsight Compute does: it preloads a library that exports the driver's names, and answers
/// `dlopen` with the library whose `cuInit` comes first.
#[test]
fn a_tool_that_stands_in_for_the_driver_is_called_and_held() {
    let world = World::new();
    let program = compile(&world, "behind_stand_in");
    let library = world.dir().join("libstand-in.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook/stand_in.c");
    succeed(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl"));
    let script = r#"LD_PRELOAD=$LD_PRELOAD:$0 exec "$1""#;
    let mut command = world.partita("run --isolation own --sm 25% --mem 64MiB -- sh -c".split_whitespace());
    let told = text(&succeed(command.arg(script).arg(&library).arg(&program)).stdout);
    assert_eq!(told, "cuInit 0, stand-in called 1, total 64 MiB\n");
}

#[test]
fn forks_and_execs_stay_in_the_tenant() {
    let world = World::new();
    let program = compile(&world, "follow");
    let given = lines(&world, "--sm 25% --mem 1GiB", &program, &[]);
    assert_eq!(
        given,
        [
            "parent 10",
            "child 30",
            "parent beside child 30",
            "after exec 40",
            "parent after child 10",
            "parent after a fork in use 10",
        ]
    );
}

/// All start, the one quota limits all, and killed processes leave nothing.
#[test]
fn a_thousand_processes_are_one_tenant() {
    let world = World::new();
    let program = compile(&world, "thousand");
    // A real driver takes most of a second to start.
    let count = if is_real() { 100 } else { 1000 };
    let mut command =
        world.partita("run --name crowd --isolation own --sm 25% --mem 64MiB --".split_whitespace());
    let mut tenant = Answering::start(command.arg(&program).arg(count.to_string()));
    assert_eq!(tenant.tenant.next_line(), format!("{count} started, 0 wrong"));
    let processes = || world.row("crowd")["processes"].as_array().expect("a list").len();
    assert_eq!(processes(), count);
    writeln!(tenant.input).unwrap();
    assert_eq!(tenant.tenant.next_line(), "ended");
    assert_eq!(processes(), 0);
    writeln!(tenant.input).unwrap();
    assert_eq!(tenant.tenant.exit_code(), 0);
}

#[test]
fn every_simulated_device_takes_tenants() {
    if common::needs_simulator("it is about the catalogue") {
        return;
    }
    // One generation of launch descriptors each; neither has clusters, so the control interface
    // proves their GPCs.
    for (device, share) in [("sim:a100", "25%"), ("sim:gtx1060-3gb", "3sm")] {
        let world = World::new();
        let program = compile(&world, "routes");
        let options = format!("--gpu {device} --sm {share} --mem 1GiB");
        assert_eq!(lines(&world, &options, &program, &[]), ["every route ok"], "{device}");
        let options = format!("--gpu {device} --sm gpc:1 --mem 1GiB");
        assert_eq!(lines(&world, &options, &program, &[]), ["every route ok"], "{device}");
    }
}
