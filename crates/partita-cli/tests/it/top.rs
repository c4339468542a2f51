//! `partita top`, in a terminal and without one.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::Signal;
use rustix::termios::{LocalModes, Winsize};

use crate::common::typist::{CTRL_C, CTRL_Z, Typist};
use crate::common::{self, Tenant, World, text};

/// Another screen, and back.
const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";

fn looping(world: &World, options: &str) -> Tenant {
    let mut tenant = Tenant::start(&mut world.gpu(options, "loop"));
    tenant.next_line();
    tenant
}

fn resize(typist: &Typist, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&typist.keys, size).unwrap();
}

/// A shell that runs `partita top` in a terminal of 80 columns.
fn start(world: &World, before: &str, after: &str) -> Typist {
    let mut typist = Typist::shell(world, &format!("read x; {before} $partita top; {after}"));
    resize(&typist, 80, 24);
    typist.type_in("\n");
    typist
}

fn local_modes(typist: &Typist) -> LocalModes {
    rustix::termios::tcgetattr(&typist.keys).unwrap().local_modes
}

#[test]
fn keys_sort_resize_and_end_tenants() {
    let world = World::new();
    let mut tenants =
        ["--name serve --sm 50%", "--name train --sm 20%"].map(|options| looping(&world, options));
    let mut typist = start(&world, "TERM=xterm", "echo code $?.");
    typist.wait_for(ENTERS);
    typist.wait_for("2 tenants  sorted by name");
    typist.wait_for(">serve");
    // A window that grows shows more, and at once.
    resize(&typist, 200, 40);
    typist.wait_for(common::gpu_program().0.to_str().unwrap());
    resize(&typist, 80, 24);
    for word in ["SMs", "time", "memory", "launches", "name"] {
        typist.type_in("s");
        typist.wait_for(&format!("sorted by {word}"));
    }
    typist.type_in("h");
    typist.wait_for("any key goes back");
    typist.type_in("x");
    typist.wait_for(">serve");
    typist.type_in("\x1b[B");
    typist.wait_for(">train");
    // A wrong size is refused as `partita set` refuses it, and nothing changes.
    typist.type_in("r99%\r");
    typist.wait_for("does not fit");
    assert_eq!(world.row("train")["sms"], 26);
    typist.type_in("r10%\r");
    typist.wait_for("train: 12 SMs");
    assert_eq!(world.row("train")["sms"], 12);
    // Only a yes ends it.
    typist.type_in("e");
    typist.wait_for("end train?");
    typist.type_in("n");
    typist.wait_for("e end");
    typist.type_in("e");
    typist.wait_for("end train?");
    typist.type_in("y");
    typist.wait_for("train: ended");
    typist.wait_for("1 tenant  sorted");
    assert_eq!(world.ps().len(), 1);
    typist.type_in("q");
    typist.wait_for(LEAVES);
    typist.wait_for("code 0.");
    tenants[1].exit_code();
    tenants[0].next_line();
}

#[test]
fn the_terminal_is_as_before_after_ctrl_c_and_ctrl_z() {
    let world = World::new();
    let mut typist = start(&world, "TERM=xterm NO_COLOR=1", "echo stopped; read x; fg; echo code $?.");
    let before = local_modes(&typist);
    typist.wait_for(ENTERS);
    let frame = typist.wait_for("q quit");
    assert!(frame.contains("no tenant runs") && !frame.contains("\x1b[32m"), "{frame:?}");
    assert_ne!(local_modes(&typist), before, "keys come without Enter");
    typist.type_in(CTRL_Z);
    typist.wait_for(LEAVES);
    typist.wait_for("stopped");
    assert_eq!(local_modes(&typist), before);
    typist.type_in("\n");
    typist.wait_for(ENTERS);
    typist.wait_for("q quit");
    typist.type_in(CTRL_C);
    typist.wait_for(LEAVES);
    typist.wait_for("code 130.");
    assert_eq!(local_modes(&typist), before);
}

#[test]
fn a_dumb_terminal_gets_lines_of_text() {
    let world = World::new();
    let mut typist = start(&world, "TERM=dumb", "echo code $?.");
    // The second frame follows the first.
    let text = typist.wait_for("partita top") + &typist.wait_for("partita top");
    assert!(text.contains("NAME") && !text.contains('\x1b'), "{text:?}");
    typist.type_in(CTRL_C);
    typist.wait_for("code 130.");
}

#[test]
fn without_a_terminal_there_are_frames_as_text_and_as_json() {
    let world = World::new();
    let mut tenant = looping(&world, "--name serve --sm 50% --mem 4GiB");
    let mut outside =
        Tenant::start(world.bare(&common::gpu_program().0).arg(&common::gpu_program().1).arg("loop"));
    outside.next_line();
    let once = world.ok("top --once");
    assert!(once.contains("1 tenant, 1 program outside of tenants"), "{once}");
    let pid = outside.child.id();
    assert!(
        once.contains(&format!(" {pid} ")) && once.contains(" serve ") && !once.contains('\x1b'),
        "{once}"
    );
    let mut child =
        world.partita(["top", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines: Vec<serde_json::Value> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .take(2)
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let launches = |line: &serde_json::Value| line["tenants"][0]["launches"].as_u64().unwrap();
    assert!(launches(&lines[1]) > launches(&lines[0]), "{lines:?}");
    for line in &lines {
        assert_eq!(
            (&line["tenants"][0]["name"], &line["outsiders"][0]["pid"]),
            (&"serve".into(), &pid.into())
        );
        assert!(line["gpus"][0]["memory_used_bytes"].as_u64() > Some(0), "{line}");
    }
    drop(outside);
    tenant.signal(Signal::TERM);
    tenant.exit_code();
}
