//! Several processes on one GPU: sharing memory, taking turns, running together under MPS, dying.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use common::World;
use partita_testing::build;

/// A program that takes instructions.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(world: &World, case: &str, env: &[(&str, &str)]) -> Self {
        let mut child = world.spawn("processes", case, env);
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ready(world: &World, case: &str, env: &[(&str, &str)]) -> Self {
        let mut program = Self::start(world, case, env);
        assert_eq!(program.line(), "ready");
        program
    }

    fn go(&mut self) {
        self.input.write_all(b"go\n").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// A daemon of the simulated MPS service, ended with the test.
struct Service {
    pipe: PathBuf,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

impl Service {
    fn start(world: &World) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let service = Self { pipe: dir.path().join("pipe"), log: dir.path().join("log"), _dir: dir };
        std::fs::create_dir(&service.pipe).unwrap();
        std::fs::create_dir(&service.log).unwrap();
        assert!(service.control(world).arg("-d").status().unwrap().success());
        service
    }

    fn control(&self, world: &World) -> Command {
        let mut command = world.command(build().join("partita-sim-mps-control"));
        command.env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe).env("CUDA_MPS_LOG_DIRECTORY", &self.log);
        command
    }

    fn ask(&self, world: &World, line: &str) -> String {
        let mut child = self.control(world).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
    }

    fn env(&self) -> [(&str, &str); 1] {
        [("CUDA_MPS_PIPE_DIRECTORY", self.pipe.to_str().unwrap())]
    }

    fn stop(self, world: &World) {
        self.ask(world, "quit -t 1");
        common::eventually("the daemon has ended", || self.daemon().is_none());
    }

    /// The daemon's process while it runs.
    fn daemon(&self) -> Option<i32> {
        std::fs::read_to_string(self.pipe.join("nvidia-cuda-mps-control.pid")).ok()?.trim().parse().ok()
    }
}

impl Drop for Service {
    /// A test that fails must not leave a daemon.
    fn drop(&mut self) {
        if let Some(pid) = self.daemon() {
            // SAFETY: the daemon that this service started, by the file that it removes when it
            // ends.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }
}

#[test]
fn memory_and_events_are_shared_by_handles() {
    World::new("ipc").run("processes", "ipc");
}

#[test]
fn physical_memory_is_shared_by_descriptors() {
    World::new("fds").run("processes", "descriptors");
}

/// Greatest and median time of the victim's kernels beside a neighbour on other SMs, in
/// microseconds.
fn beside_a_neighbour(world: &World, env: &[(&str, &str)]) -> (f64, f64) {
    let mut neighbour = Program::ready(world, "neighbour", env);
    let mut victim = Program::ready(world, "victim", env);
    victim.go();
    let line = victim.line();
    let times: Vec<f64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
    victim.go();
    victim.end();
    neighbour.go();
    assert_eq!(neighbour.line(), "done");
    neighbour.end();
    (times[0], times[1])
}

#[test]
fn processes_take_turns_and_run_together_under_mps() {
    let world = World::new("turns");
    let (greatest, _) = beside_a_neighbour(&world, &[]);
    assert!(greatest > 1_500.0, "a whole slice of the other one: {greatest} us");
    let service = Service::start(&world);
    // The median, because a busy host may hold a single launch up.
    let (_, median) = beside_a_neighbour(&world, &service.env());
    assert!(median < 200.0, "free SMs are used at once: {median} us");
    service.stop(&world);
}

#[test]
fn a_killed_process_leaves_nothing() {
    let world = World::new("killed");
    let mut watcher = Program::ready(&world, "victim", &[]);
    let before: u64 = world.run("processes", "memory_left").trim().parse().unwrap();
    let holder = Program::ready(&world, "holder", &[]);
    let during: u64 = world.run("processes", "memory_left").trim().parse().unwrap();
    assert!(before - during >= 10 * 1024 + 500, "{before} MiB, then {during} MiB");
    holder.kill();
    common::eventually("the memory is back", || {
        world.run("processes", "memory_left").trim().parse::<u64>().unwrap() == before
    });
    // Without MPS no other process is affected.
    watcher.go();
    assert!(watcher.line().contains(' '));
    watcher.end();
}

#[test]
fn an_mps_clients_death_hurts_its_neighbours_unless_it_was_terminated() {
    let world = World::new("mpsdeath");
    let service = Service::start(&world);
    let env = service.env();
    // Killed with work in flight: the neighbour sees an illegal address.
    let mut neighbour = Program::ready(&world, "neighbour", &env);
    let holder = Program::ready(&world, "holder", &env);
    holder.kill();
    assert_eq!(neighbour.line(), "700");
    drop(neighbour.input);
    neighbour.child.wait().unwrap();
    service.stop(&world);

    // A normal exit under an endless kernel that writes memory is such a death, too.
    let service = Service::start(&world);
    let env = service.env();
    let mut neighbour = Program::ready(&world, "neighbour", &env);
    let mut writer = Program::ready(&world, "writer", &env);
    writer.go();
    writer.end();
    assert_eq!(neighbour.line(), "700");
    drop(neighbour.input);
    neighbour.child.wait().unwrap();
    service.stop(&world);

    // Termination first: the client's work ends, its neighbour continues. The same holds when the
    // client exits normally under a kernel that touches no memory.
    let service = Service::start(&world);
    let env = service.env();
    let mut neighbour = Program::ready(&world, "neighbour", &env);
    let holder = Program::ready(&world, "holder", &env);
    let server = service.ask(&world, "get_server_list");
    let clients = service.ask(&world, &format!("get_client_list {server}"));
    let pid = holder.child.id().to_string();
    assert!(clients.lines().any(|line| line.trim() == pid), "{clients}");
    service.ask(&world, &format!("terminate_client {server} {pid}"));
    holder.kill();
    let mut leaver = Program::ready(&world, "leaver", &env);
    leaver.go();
    leaver.end();
    std::thread::sleep(Duration::from_millis(50));
    neighbour.go();
    assert_eq!(neighbour.line(), "done");
    neighbour.end();
    service.stop(&world);
}

#[test]
fn nothing_is_taken_from_a_dead_client_while_another_process_has_its_descriptors() {
    let world = World::new("mpsheld");
    let service = Service::start(&world);
    let env = service.env();
    let mut neighbour = Program::ready(&world, "neighbour", &env);
    let mut held = Program::ready(&world, "shared_descriptors", &env);
    held.child.kill().unwrap();
    held.child.wait().unwrap();
    // The neighbour's kernels go on beside that of the dead.
    let mut beside = Program::ready(&world, "neighbour", &env);
    std::thread::sleep(Duration::from_millis(100));
    beside.go();
    assert_eq!(beside.line(), "done");
    beside.end();
    held.go();
    assert_eq!(neighbour.line(), "700");
    drop(neighbour.input);
    neighbour.child.wait().unwrap();
    service.stop(&world);
}

#[test]
fn a_daemon_that_is_late_hears_of_the_fault_of_clients_that_have_left() {
    let world = World::new("mpslate");
    let service = Service::start(&world);
    let mut client = Program::ready(&world, "late_fault", &service.env());
    let daemon = service.daemon().unwrap();
    // SAFETY: the daemon that this service started, which still runs.
    unsafe { libc::kill(daemon, libc::SIGSTOP) };
    client.go();
    assert_eq!(client.line(), "700");
    let pid = client.child.id();
    client.end();
    // SAFETY: as above.
    unsafe { libc::kill(daemon, libc::SIGCONT) };
    common::eventually("the fault is in the log", || {
        let log = std::fs::read_to_string(service.log.join("server.log")).unwrap();
        log.contains("have a sticky error set") && log.contains(&format!("] {pid}\n"))
    });
    service.stop(&world);
}

#[test]
fn a_thread_percentage_limits_the_sms() {
    let world = World::new("percent");
    let service = Service::start(&world);
    for (percentage, sms) in [("10", 12), ("25", 32), ("50", 66), ("100", 132)] {
        let env = [
            service.env()[0],
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage),
            ("PARTITA_SIM_WATCHDOG_MS", "1000"),
        ];
        let mut client = Program::start(&world, "client", &env);
        let line = client.line();
        let numbers: Vec<i64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers[..3], [1, sms, sms], "{percentage} %: {line}");
        assert_eq!(numbers[4..], [0, 8], "an affinity of 3 SMs gives 8: {line}");
        client.end();
    }
    service.stop(&world);
    // Without MPS: no limit, and no affinity.
    let mut client = Program::start(&world, "client", &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")]);
    assert_eq!(client.line(), "0 132 132 131 224 0");
    client.end();
}

#[test]
fn contexts_can_have_percentages_of_their_own() {
    let world = World::new("percontext");
    let service = Service::start(&world);
    let per_context = ("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "1");
    let run = |env: &[(&str, &str)]| world.run_with("processes", "percentages", env);
    let own = run(&[service.env()[0], per_context]);
    // A value that is no percentage gives all; an affinity has its own number.
    assert_eq!(own, "32 132 12 132 104 20\n");
    // Without the variable the process's percentage holds, which it has from its start.
    let whole = run(&[service.env()[0], ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")]);
    assert_eq!(whole, "66 66 66 66 66 20\n");
    assert_eq!(service.ask(&world, "set_default_active_thread_percentage 50"), "50.0");
    let server = service.ask(&world, "get_server_list");
    service.ask(&world, &format!("shutdown_server {server}"));
    assert_eq!(run(&[service.env()[0], per_context]), "32 66 12 66 66 20\n", "at most the server's");
    service.stop(&world);
}

#[test]
fn a_pool_of_contexts_takes_cooperative_grids_by_its_sizes() {
    let world = World::new("pool");
    let service = Service::start(&world);
    let said = world.run_with("processes", "pool", &service.env());
    // SMs wanted and granted, blocks an SM, and SMs that the grid ran on.
    assert_eq!(said, "1 8 2 8\n2 8 2 8\n43 44 2 44\n86 86 2 86\n");
    service.stop(&world);
}

#[test]
fn streams_share_as_many_queues_as_the_variable_says() {
    let world = World::new("queues");
    for (value, expected) in [("1", "in turns\n"), ("32", "together\n"), ("0", "together\n")] {
        let said = world.run_with("processes", "queues", &[("CUDA_DEVICE_MAX_CONNECTIONS", value)]);
        assert_eq!(said, expected, "{value}");
    }
    assert_eq!(world.run("processes", "queues"), "together\n");
}

#[test]
fn blocks_of_clients_below_normal_give_way() {
    let world = World::new("below");
    let service = Service::start(&world);
    let median_us = |priority| {
        let env = [service.env()[0], ("CUDA_MPS_CLIENT_PRIORITY", priority)];
        let mut crowd = Program::ready(&world, "crowd", &env);
        let mut victim = Program::ready(&world, "victim", &service.env());
        victim.go();
        let line = victim.line();
        crowd.go();
        assert_eq!(crowd.line(), "done");
        crowd.end();
        victim.end();
        line.split_once(' ').unwrap().1.parse::<u32>().unwrap()
    };
    // The victim's kernel waits for one block of 10 ms, or for all of those that wait.
    let (below, normal) = (median_us("1"), median_us("0"));
    assert!(2 * below < normal && normal > 20_000, "{below} and {normal} µs");
    service.stop(&world);
}

#[test]
fn smids_can_be_virtual_under_mps() {
    let world = World::new("smid");
    let service = Service::start(&world);
    let env = [
        service.env()[0],
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
        ("PARTITA_SIM_MPS_VIRTUAL_SMID", "1"),
    ];
    let mut client = Program::start(&world, "client", &env);
    let line = client.line();
    assert!(line.starts_with("1 66 66 65 "), "{line}");
    client.end();
    service.stop(&world);
}

#[test]
fn many_starters_get_one_board() {
    let world = World::new("race");
    let mut clients: Vec<Program> = (0..12).map(|_| Program::start(&world, "victim", &[])).collect();
    for client in &mut clients {
        assert_eq!(client.line(), "ready");
    }
    let sockets = std::fs::read_dir(world.dir()).unwrap();
    let sockets =
        sockets.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "sock"));
    assert_eq!(sockets.count(), 1);
    clients.into_iter().for_each(Program::end);
}

#[test]
fn a_killed_board_is_an_error_and_the_next_program_gets_a_new_one() {
    let world = World::new("deadboard");
    let mut client = Program::ready(&world, "holder", &[]);
    let board = board_of(&world);
    // SAFETY: the process was just found to be this world's board.
    unsafe { libc::kill(board, libc::SIGKILL) };
    // A stale socket is no obstacle.
    let left: u64 = world.run("processes", "memory_left").trim().parse().unwrap();
    assert!(left > 100_000);
    client.go();
    client.kill();
}

#[test]
fn a_board_whose_directory_was_removed_exits_and_does_not_recreate_it() {
    let world = World::new("removed");
    let temp = tempfile::tempdir().unwrap();
    let (above, dir) = (temp.path().to_owned(), temp.path().join("board"));
    let client = Program::ready(&world, "holder", &[("PARTITA_SIM_DIR", dir.to_str().unwrap())]);
    assert!(board_in(&dir).is_some());
    temp.close().unwrap();
    client.kill();
    common::eventually("the board has ended", || board_in(&dir).is_none());
    assert!(!above.exists());
}

fn board_of(world: &World) -> i32 {
    board_in(&world.dir()).expect("a board runs")
}

/// The process of a directory's board, by its command line.
fn board_in(dir: &Path) -> Option<i32> {
    let dir = dir.to_str().unwrap();
    let mut found = None;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        if line.contains("partita-simgpu") && line.contains(dir) {
            found = entry.file_name().to_string_lossy().parse().ok();
        }
    }
    found
}
