//! C programs that mask themselves, on simulated GPUs of several generations or on a real one.

mod common;

use std::process::Command;

use common::{Link, World, stderr_of};
use partita_testing::{GENERATIONS, build, devices, is_real, needs_simulator};

#[test]
fn a_program_of_the_originals_users_runs_unchanged() {
    let world = World::new();
    for link in [Link::Shared, Link::Archive] {
        let program = world.compile("published", link);
        for device in devices(&GENERATIONS) {
            assert_eq!(world.passes(&program, device, &[], &[]), "");
        }
    }
}

#[test]
fn every_function_of_table_one_and_of_the_variants() {
    let world = World::new();
    let program = world.compile("table1", Link::Shared);
    for device in devices(&["h200", "a100", "gtx1060-3gb"]) {
        let stderr = world.passes(&program, device, &[], &[]);
        assert!(stderr.contains("blocks ran on TPCs 2,"), "the program echoes to stderr: {stderr}");
    }
}

#[test]
fn the_papers_listings_behave_as_described() {
    let world = World::new();
    let streams = "otherStream ran on TPCs 0-4, urgentStream on TPCs 5-8, the rest on TPC 0\n";
    let gpcs = "one launch ran on the TPCs of GPCs 0 and 1, the next one on all\n";
    let too_many = "64 bits do not name every TPC of this GPU\n";
    for (listing, says, says_of_large) in [("listing1", streams, streams), ("listing2", gpcs, too_many)] {
        let program = world.compile(listing, Link::Shared);
        for device in devices(&["gtx1060-3gb", "a100", "h200"]) {
            let output = world.command(&program, device).output().unwrap();
            stderr_of(&output, listing);
            // Of these boards, the real ones have more than 64 TPCs, too.
            let says = if ["h200", "real"].contains(&device) { says_of_large } else { says };
            assert_eq!(String::from_utf8_lossy(&output.stdout), says, "{device}");
        }
    }
}

/// Defects 1 and 2: no launch could use TPCs from 64 on, and 64-bit masks of streams could not name
/// them.
#[test]
fn no_tpc_is_out_of_reach() {
    let world = World::new();
    let program = world.compile("wide", Link::Shared);
    for device in devices(&["h200", "b200"]) {
        world.passes(&program, device, &[], &[]);
    }
}

/// Defects 3 and 8, and masks that would hang.
#[test]
fn a_mask_of_all_tpcs_counts_and_one_of_no_tpc_is_refused() {
    let world = World::new();
    let program = world.compile("wishes", Link::Shared);
    for device in devices(&["h200", "gb10"]) {
        let stderr = world.passes(&program, device, &[], &[]);
        assert!(
            stderr.contains("libsmctrl: libsmctrl_set_global_mask: ") && stderr.contains("would never end"),
            "{stderr}"
        );
        assert_eq!(world.passes(&program, device, &[], &[("LIBSMCTRL_QUIET", "1")]), "");
    }
    if !is_real() {
        world.passes(&program, "a100", &["no-all"], &[]);
    }
}

/// Defects 4 to 6: newer generations, old drivers, unlisted drivers and offsets, and a variable
/// that would have broken it.
#[test]
fn unlisted_drivers_are_proved() {
    if needs_simulator("it uses another driver's offset") {
        return;
    }
    let world = World::new();
    let program = world.compile("published", Link::Shared);
    for (device, variables) in [
        ("gtx1060-3gb", &[("PARTITA_SIM_DRIVER", "8.0")][..]),
        ("a100", &[("PARTITA_SIM_DRIVER", "11.8")]),
        ("h200", &[("PARTITA_SIM_DRIVER", "12.9"), ("MASK_OFF", "40")]),
        ("h200", &[("PARTITA_SIM_STREAM_OFFSET", "0x6e4")]),
        ("b200", &[("PARTITA_SIM_DRIVER", "13.2")]),
    ] {
        assert_eq!(world.passes(&program, device, &[], variables), "");
    }
}

#[test]
fn a_next_mask_is_its_threads_and_masks_are_never_torn() {
    let world = World::new();
    let program = world.compile("threads", Link::Shared);
    for device in devices(&["h200"]) {
        world.passes(&program, device, &[], &[]);
    }
}

#[test]
fn the_hardwares_numbering_is_available() {
    let world = World::new();
    let first = world.compile("published", Link::Shared);
    let program = world.compile("numbering", Link::Shared);
    for device in devices(&["h200"]) {
        // Fills the cache of calibrations.
        world.passes(&first, device, &[], &[]);
        let mut topology = Command::new(build().join("partita"));
        world.set_environment(&mut topology, device);
        topology.args(["topology", "--json", "--gpu", if is_real() { "0" } else { "sim:h200" }]);
        let output = topology.env("PARTITA_RUN_DIR", world.path("run")).output().unwrap();
        let stderr = stderr_of(&output, "partita topology");
        assert_eq!(stderr, "");
        let chart: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let units = chart["units"].as_array().unwrap();
        let places: Vec<String> = units.iter().map(|unit| unit["bit"].to_string()).collect();
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        world.passes(&program, device, &places, &[("LIBSMCTRL_QUIET", "1")]);
        let variables = [("LIBSMCTRL_QUIET", "1"), ("LIBSMCTRL_NUMBERING", "physical")];
        world.passes(&program, device, &places, &variables);
    }
}

#[test]
fn copies_in_one_process_act_as_one() {
    let world = World::new();
    let program = world.compile("copies", Link::Archive);
    let library = build().join("libsmctrl.so");
    for device in devices(&["h200"]) {
        for first in ["archive", "shared"] {
            world.passes(&program, device, &[library.to_str().unwrap(), first], &[("LIBSMCTRL_QUIET", "1")]);
        }
    }
}

/// Defects 6, 7 and 10: where a call cannot work, it returns an error and the program continues.
#[test]
fn a_call_that_cannot_work_returns_an_error_and_does_not_exit() {
    let world = World::new();
    let program = world.compile("refused", Link::Shared);
    let nothing = world.path("nothing-kept");
    let nothing = [("PARTITA_CACHE_DIR", nothing.to_str().unwrap()), ("LIBSMCTRL_PARTITA", "/dev/null/none")];
    for device in devices(&["h200"]) {
        let stderr = world.passes(&program, device, &["busy"], &[]);
        assert!(stderr.starts_with("libsmctrl: libsmctrl_set_global_mask: the driver refused"), "{stderr}");
        assert!(
            world.passes(&program, device, &["no-calibration", "named"], &nothing).contains("partita doctor")
        );
    }
    if !is_real() {
        // For these descriptors, the bits do not follow from the driver's numbers.
        world.passes(&program, "b200", &["no-calibration"], &nothing);
        world.passes(&program, "a100", &["no-calibration", "named"], &nothing);
    }
}

#[test]
fn without_a_driver_a_program_continues() {
    let world = World::new();
    let program = world.compile("no_driver", Link::Shared);
    let output = Command::new(program).env("LD_LIBRARY_PATH", build()).output().unwrap();
    if output.status.code() == Some(77) {
        eprintln!("skipped: this machine has a driver");
        return;
    }
    let stderr = stderr_of(&output, "no-driver");
    let begins = "libsmctrl: libsmctrl_set_global_mask: the library cannot be opened: libcuda.so.1";
    assert!(stderr.starts_with(begins), "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_tenant_narrows_its_partition_and_never_leaves_it() {
    if needs_simulator("tests of the command cover tenants on a real GPU") {
        return;
    }
    let world = World::new();
    let program = world.compile("tenant", Link::Shared);
    let mut run = Command::new(build().join("partita"));
    world.set_environment(&mut run, "h200");
    run.env("PARTITA_RUN_DIR", world.path("run"));
    run.args(["run", "--gpu", "sim:h200", "--isolation", "own", "--sm", "tpc:8-23", "--"]);
    let output = run.arg(&program).arg(world.path("kernels.ptx")).args(["8", "23"]).output().unwrap();
    stderr_of(&output, "partita run");
}
