//! `partita run` in a terminal: Ctrl-C, Ctrl-Z and `fg`, programs that read the terminal, a
//! terminal that goes away, and no terminal at all.

use crate::common;

use std::fs::File;
use std::process::Command;
use std::time::Instant;

use common::typist::{CTRL_C, CTRL_Z, Typist};
use common::{PATIENCE, Tenant, World, with_env_of};
use rustix::termios::Winsize;

/// A program that answers signals, and reports when it is ready.
fn answering(signal: &str, answer: &str) -> String {
    format!("sh -c 'trap \"{answer}\" {signal}; echo ready; while :; do sleep 0.01; done'")
}

#[test]
fn ctrl_c_ends_the_work_of_a_client_first_and_leaves_its_neighbour_alone() {
    let world = World::new();
    let mut other = Tenant::start(&mut world.gpu("--name other --sm 10%", "loop"));
    other.next_line();
    let (program, kernels) = common::gpu_program();
    // A process of the tenant other than the first: Ctrl-C is for the whole job.
    let inner = format!("sh -c '{} {} loop; exit 7'", program.display(), kernels.display());
    for round in 0..3 {
        let mut typist =
            Typist::shell(&world, &format!("$partita run --name ends{round} --sm 10% -- {inner}; echo over"));
        typist.wait_for("sms");
        let clients = || world.ok("mps clients");
        assert!(clients().contains(&format!("ends{round}")), "{}", clients());
        typist.type_in(CTRL_C);
        typist.wait_for("over");
        drop(typist);
        for _ in 0..20 {
            let line = other.next_line();
            assert!(line.starts_with("sms"), "{line}");
        }
    }
    let log = world.ok("mps logs");
    if !common::is_real() {
        assert_eq!(log.matches("terminate_client").count(), 3, "{log}");
    }
    assert!(world.ok("mps status --json").contains("\"clients_killed\": 0"));
}

#[test]
fn a_program_with_a_handler_gets_ctrl_c_once_and_its_exit_code_passes() {
    let world = World::new();
    let program = answering("INT", "echo answers; sleep 0.2; echo leaves; exit 3");
    let mut typist = Typist::shell(&world, &format!("$partita run --sm 10% -- {program}; echo code $?."));
    typist.wait_for("ready");
    typist.type_in(CTRL_C);
    let said = typist.wait_for("code 3.");
    assert_eq!(said.matches("answers").count(), 1, "{said}");
    assert!(said.contains("leaves"), "{said}");
}

#[test]
fn ctrl_z_stops_all_of_it_and_fg_goes_on() {
    let world = World::new();
    let program = answering("INT", "exit 4");
    // The shell continues when the job has stopped.
    let script =
        format!("$partita run --name job --sm 10% -- {program}; echo stopped; read x; fg; echo code $?.");
    let mut typist = Typist::shell(&world, &script);
    typist.wait_for("ready");
    typist.type_in(CTRL_Z);
    typist.wait_for("stopped");
    let states = || {
        let of = |(pid, name): (u32, String)| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state =
                stat.rsplit_once(')').map_or(' ', |(_, rest)| rest.trim_start().chars().next().unwrap());
            (name, state)
        };
        world.processes().into_iter().map(of).collect::<Vec<_>>()
    };
    let is_stopped = |name: &str| states().iter().any(|(other, state)| other == name && *state == 'T');
    let deadline = Instant::now() + PATIENCE;
    while !(is_stopped("sh") && is_stopped("partita")) {
        assert!(Instant::now() < deadline, "{:?}", states());
    }
    typist.type_in("\n");
    while states().iter().any(|(_, state)| *state == 'T') {
        assert!(Instant::now() < deadline, "{:?}", states());
    }
    typist.type_in(CTRL_C);
    typist.wait_for("code 4.");
}

#[test]
fn programs_read_the_terminal_and_set_its_modes() {
    let world = World::new();
    let mut typist =
        Typist::shell(&world, "$partita run --sm 10% -- sh -c 'read x; echo got $x'; echo code $?.");
    typist.type_in("hello\n");
    typist.wait_for("got hello");
    typist.wait_for("code 0.");
    // Key by key.
    let keys = "stty -icanon min 1; echo ready; x=$(head -c 3); stty icanon; echo \"<$x>\"";
    let mut typist =
        Typist::shell(&world, &format!("$partita run --sm 10% -- sh -c '{keys}'; echo code $?."));
    typist.wait_for("ready");
    typist.type_in("abc");
    typist.wait_for("<abc>");
    typist.wait_for("code 0.");
}

#[test]
fn a_program_that_has_read_the_terminal_has_ctrl_c_ctrl_z_and_fg() {
    let world = World::new();
    let program =
        "sh -c 'trap \"echo answers\" INT; while read x; do echo got $x; done; echo leaves; exit 5'";
    let script = format!("$partita run --sm 10% -- {program}; echo stopped; read x; fg; echo code $?.");
    let mut typist = Typist::shell(&world, &script);
    typist.type_in("one\n");
    typist.wait_for("got one");
    typist.type_in(CTRL_Z);
    typist.wait_for("stopped");
    // First the shell reads, and then the program, in the foreground again.
    typist.type_in("\n");
    typist.type_in("two\n");
    typist.wait_for("got two");
    // A shell that waits in `read` handles a signal after it.
    typist.type_in(CTRL_C);
    typist.wait_for("answers");
    typist.type_in("\x04");
    typist.wait_for("leaves");
    typist.wait_for("code 5.");
}

#[test]
fn a_shell_inside_has_job_control_of_its_own() {
    let world = World::new();
    let mut typist = Typist::shell(&world, "PS1='$ ' $partita run --sm 10% -- sh -i; echo code $?.");
    typist.wait_for("$ ");
    typist.type_in("sleep 1000\n");
    let runs = || world.processes().iter().any(|(_, name)| name == "sleep");
    let deadline = Instant::now() + PATIENCE;
    while !runs() {
        assert!(Instant::now() < deadline);
    }
    typist.type_in(CTRL_C);
    typist.wait_for("$ ");
    typist.type_in("echo still $((6 * 7))\n");
    typist.wait_for("still 42");
    typist.type_in("exit 6\n");
    typist.wait_for("code 6.");
}

#[test]
fn a_job_in_the_background_stops_when_it_reads_and_goes_on_in_the_foreground() {
    let world = World::new();
    let program = "sh -c 'echo begins; read x; echo got $x'";
    let mut typist = Typist::shell(
        &world,
        &format!("$partita run --sm 10% -- {program} & read y; echo mine $y; fg; echo code $?."),
    );
    typist.wait_for("begins");
    let is_stopped = || {
        world
            .processes()
            .iter()
            .filter(|(pid, name)| {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                name == "partita"
                    && stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
            })
            .count()
            == 1
    };
    let deadline = Instant::now() + PATIENCE;
    while !is_stopped() {
        assert!(Instant::now() < deadline, "{:?}", world.processes());
    }
    typist.type_in("a\n");
    typist.wait_for("mine a");
    typist.type_in("b\n");
    typist.wait_for("got b");
    typist.wait_for("code 0.");
}

#[test]
fn the_script_around_it_has_the_terminal_afterwards() {
    let world = World::new();
    let partita = common::program().display();
    // No job control: the script and `partita run` are one group.
    let script = format!("{partita} run --sm 10% -- sh -c 'read x; echo first $x'; read y; echo second $y");
    let mut typist = Typist::new(&world, &["sh", "-c", &script]);
    typist.type_in("a\n");
    typist.wait_for("first a");
    typist.type_in("b\n");
    typist.wait_for("second b");
}

#[test]
fn without_a_shell_around_it_ctrl_z_does_nothing_and_ctrl_c_works() {
    let world = World::new();
    let program = common::program().display().to_string();
    let answer = "trap \"exit 3\" INT; trap \"echo winch\" WINCH; echo ready; while :; do sleep 0.01; done";
    // As `ssh -t` and containers do.
    let mut typist = Typist::new(&world, &[&program, "run", "--sm", "10%", "--", "sh", "-c", answer]);
    typist.wait_for("ready");
    typist.type_in(CTRL_Z);
    let size = Winsize { ws_row: 50, ws_col: 132, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&typist.keys, size).unwrap();
    typist.wait_for("winch");
    typist.type_in(CTRL_C);
    assert_eq!(typist.exit_code(), Some(3));
}

#[test]
fn a_terminal_that_goes_away_ends_the_program() {
    let world = World::new();
    let program = common::program().display().to_string();
    let mut typist = Typist::new(
        &world,
        &[&program, "run", "--sm", "10%", "--", "sh", "-c", "echo ready; exec sleep 1000"],
    );
    typist.wait_for("ready");
    // A hang-up: the terminal's other side is closed.
    typist.keys = File::open("/dev/null").unwrap();
    assert_eq!(typist.exit_code(), Some(128 + 1));
    assert!(!world.processes().iter().any(|(_, name)| name == "sleep"));
}

#[test]
fn without_a_terminal_the_program_stays_in_the_group() {
    let world = World::new();
    let base = world.partita(["run", "--sm", "10%", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    let mut command = Command::new("setsid");
    command.arg(base.get_program()).args(base.get_args());
    with_env_of(&mut command, &base);
    world.as_its_user(&mut command);
    let mut tenant = Tenant::start(&mut command);
    assert_eq!(tenant.next_line(), "ready");
    // A signal of a batch system or a container to a whole group reaches both.
    let group = rustix::process::Pid::from_raw(tenant.child.id() as i32).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    tenant.child.wait().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while world.processes().iter().any(|(_, name)| name == "sleep") {
        assert!(Instant::now() < deadline);
    }
}
