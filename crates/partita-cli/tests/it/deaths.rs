//! Violent deaths of clients of MPS with work in flight. Neighbours continue, a process that waits
//! for the program sees its end at once, and `ps` shows work that never ends until it is released.
//!
//! `PARTITA_TEST_GPU=real` runs them on the machine's first GPU, `PARTITA_TEST_LONG=1` runs each
//! death a hundred times.

use crate::common;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Tenant, World, compile, is_real, text};
use partita_testing::{ATTACKER, is_long};
use rustix::process::Signal;

const DEATHS: [&str; 6] = ["kill", "segv", "abort", "_exit", "return", "exec"];

/// A program that dies, and a neighbour.
struct Scene {
    world: World,
    program: PathBuf,
    workloads: PathBuf,
}

impl Scene {
    fn new() -> Self {
        Self::of(World::in_memory())
    }

    fn of(world: World) -> Self {
        let program = compile(&world, "deaths");
        let workloads = world.dir().join("workloads.ptx");
        fs::write(&workloads, partita_abi::workloads::WORKLOADS_MODULE.to_bytes()).unwrap();
        Self { world, program, workloads }
    }

    fn neighbour(&self) -> Tenant {
        let mut tenant = Tenant::start(&mut self.world.gpu("--name neighbour --sm 10%", "loop"));
        let line = tenant.next_line();
        assert!(line.starts_with("sms"), "the neighbour begins with {line}");
        tenant
    }

    /// A program that has its work in flight, in tenant `dies`.
    fn dying(&self, work: &str, death: &str, holder: &str) -> Tenant {
        self.dying_with("--sm 10%", work, death, holder)
    }

    fn dying_with(&self, options: &str, work: &str, death: &str, holder: &str) -> Tenant {
        let mut command = self.world.partita(format!("run --name dies {options} --").split(' '));
        command.arg(&self.program).arg(&self.workloads).args([work, death]);
        let mut tenant = Tenant::start(command.env("PARTITA_HOLDER", holder).stdin(Stdio::piped()));
        assert_eq!(tenant.next_line(), "ready");
        tenant
    }

    fn has_tenant(&self) -> bool {
        self.world.ps().iter().any(|row| row["name"] == "dies")
    }

    fn gone(&self, name: &str) {
        let deadline = Instant::now() + common::PATIENCE;
        while self.world.ps().iter().any(|row| row["name"] == name) {
            assert!(Instant::now() < deadline, "{name} is there: {:?}", self.world.ps());
        }
    }

    fn problem(&self) -> String {
        let rows = self.world.ps();
        let row = rows.iter().find(|row| row["name"] == "dies");
        row.and_then(|row| row["problem"].as_str()).unwrap_or_default().to_owned()
    }

    fn eventually(&self, what: &str, neighbour: &mut Tenant, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + common::PATIENCE;
        while !is_so() {
            self.goes_on(neighbour, what);
            assert!(Instant::now() < deadline, "{what}: never; {:?}", self.world.ps());
        }
        self.goes_on(neighbour, what);
    }

    fn goes_on(&self, neighbour: &mut Tenant, what: &str) {
        for _ in 0..5 {
            let line = neighbour.next_line();
            assert!(
                line.starts_with("sms"),
                "{what}: the neighbour says {line}; {}",
                self.world.service_logs()
            );
        }
    }
}

fn breaks(neighbour: &mut Tenant, what: &str) {
    let line = std::iter::repeat_with(|| neighbour.next_line()).find(|line| !line.starts_with("sms"));
    assert!(line.as_deref().is_some_and(|line| line.ends_with("error 700")), "{what}: {line:?}");
    assert_eq!(neighbour.exit_code(), 91);
}

/// Has the program die, and waits for `partita run` to end as it always did: with the program's
/// exit code and the end of its output, whatever its work does.
fn die(dying: &mut Tenant, death: &str) {
    let mut input = dying.child.stdin.take().unwrap();
    input.write_all(b"die\n").unwrap();
    if death == "exec" {
        assert_eq!(dying.next_line(), "executed");
        return drop(input);
    }
    let expected = match death {
        "kill" => 128 + 9,
        "segv" => 128 + 11,
        "abort" => 128 + 6,
        _ => 0,
    };
    assert_eq!(dying.exit_code(), expected, "{death}");
    let mut said = String::new();
    dying.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!said.contains("holder"), "{death}: {said}");
}

/// The violent deaths of one run.
fn rounds() -> impl Iterator<Item = &'static str> {
    DEATHS.into_iter().flat_map(|death| vec![death; if is_long() { 100 } else { 1 }])
}

#[test]
fn without_a_holder_a_death_in_the_middle_of_work_breaks_the_neighbour() {
    let scene = Scene::new();
    // Finite kernels rarely do so on hardware, and always in the simulation.
    for work in if is_real() { &["endless"][..] } else { &["endless", "finite"] } {
        let mut neighbour = scene.neighbour();
        let mut dying = scene.dying(work, "kill", "off");
        dying.child.stdin.take().unwrap().write_all(b"die\n").unwrap();
        assert_eq!(dying.exit_code(), 128 + 9);
        breaks(&mut neighbour, work);
        // Its own holder lets go when it sees the fault.
        scene.gone("neighbour");
    }
}

#[test]
fn finite_work_of_the_dead_ends_and_then_their_tenant_is_gone() {
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    for death in rounds() {
        let work = match death {
            "abort" => "streams",
            "segv" => "copies",
            _ => "finite",
        };
        let mut dying = scene.dying(work, death, "on");
        die(&mut dying, death);
        scene.eventually(death, &mut neighbour, || !scene.has_tenant());
    }
    // The GPU still copies what the program had pinned, though the process has other memory now.
    for work in ["copies", "sudden-copies"] {
        die(&mut scene.dying(work, "exec", "on"), "exec");
        scene.eventually("exec", &mut neighbour, || !scene.has_tenant());
    }
    // This copy is made in pieces, because there is a neighbour.
    die(&mut scene.dying("copy", "kill", "on"), "kill");
    scene.eventually("copy", &mut neighbour, || !scene.has_tenant());
    // Without work in flight nothing is held: the tenant is gone with its `partita run`.
    let mut dying = scene.dying("none", "_exit", "on");
    die(&mut dying, "_exit");
    scene.eventually("no work", &mut neighbour, || !scene.has_tenant());
}

/// The program exits right behind its launch: its library puts a fence there, and the holder need
/// not find out whether the compute units are free.
#[test]
fn a_program_that_exits_with_work_in_flight_leaves_a_fence_behind_it() {
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    let without_fence = || {
        let incidents = scene.world.service_logs();
        [r#""because":"free""#, r#""because":"waited""#].map(|because| incidents.matches(because).count())
    };
    for work in ["sudden-finite", "sudden-copies"] {
        // An exit waits for another thread's call of the driver only for a moment.
        let has_fence = (0..5).any(|_| {
            let before = without_fence();
            die(&mut scene.dying(work, "return", "on"), "return");
            scene.eventually(work, &mut neighbour, || !scene.has_tenant());
            without_fence() == before
        });
        assert!(has_fence, "{work}: {}", scene.world.service_logs());
    }
}

/// No fence is behind these copies, and no compute unit runs them.
#[test]
fn copies_that_were_begun_just_before_the_death_are_held() {
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    // If it had some milliseconds before the signal came, a fence is there all the same.
    let held = ["waited", "passed"].map(|because| format!(r#""because":"{because}""#));
    let was_held = |incidents: &String| held.iter().any(|because| incidents.contains(because));
    // On a busy machine the copies may have ended before the death.
    let mut tries = (0..10).map(|_| {
        die(&mut scene.dying("sudden-copies", "kill", "on"), "kill");
        scene.eventually("copies", &mut neighbour, || !scene.has_tenant());
        scene.world.service_logs()
    });
    assert!(tries.any(|incidents| was_held(&incidents)), "{}", scene.world.service_logs());
}

/// Its service is for both GPUs, and a GPU is in one service at a time.
#[test]
fn a_start_on_one_gpu_waits_for_a_dead_tenant_of_two() {
    if is_real() {
        return;
    }
    let two = World::plan().in_memory().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())]);
    let scene = Scene::of(two);
    for _ in 0..3 {
        let mut dying = scene.dying_with("--gpu sim:h200:all --sm 10%", "finite", "kill", "on");
        die(&mut dying, "kill");
        let mut next = Tenant::start(&mut scene.world.gpu("--gpu sim:h200 --sm 10%", "census"));
        let line = next.next_line();
        assert!(line.starts_with("sms"), "{line}");
        assert_eq!(next.exit_code(), 0);
    }
    let stopped = scene.world.keeper("mps stop --gpu sim:h200:all").output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
}

/// A dead tenant's target needs its compute units until its work has ended.
#[test]
fn a_start_with_a_target_waits_for_a_dead_tenant_with_one() {
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    let target = "--sm 60% --slo p99=5ms";
    let mut dying = scene.dying_with(target, "finite", "kill", "on");
    die(&mut dying, "kill");
    let output = scene.world.line(&format!("run {target} -- true"));
    assert!(output.status.success(), "{output:?}");
    scene.goes_on(&mut neighbour, "a start");
}

/// What waits at the gate of a share of time would wait for ever.
#[test]
fn work_of_a_dead_tenant_with_a_share_of_time_ends_too() {
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    for options in ["--sm 10% --time 10%", "--via time --time 10%"] {
        let mut dying = scene.dying_with(options, "finite", "kill", "on");
        die(&mut dying, "kill");
        scene.eventually(options, &mut neighbour, || !scene.has_tenant());
    }
}

/// It has used up its share, so its gate is closed for ever.
#[test]
fn endless_work_of_a_dead_tenant_with_a_share_of_time_is_shown() {
    let scene = Scene::new();
    for options in ["--sm 10% --time 10%", "--via time --time 10%"] {
        let mut neighbour = scene.neighbour();
        let mut dying = scene.dying_with(options, "endless", "kill", "on");
        die(&mut dying, "kill");
        scene.eventually(options, &mut neighbour, || {
            scene.problem().contains("work on the GPU has not ended")
        });
        drop(neighbour);
        scene.gone("dies");
        scene.gone("neighbour");
    }
}

#[test]
fn endless_work_of_the_dead_is_shown_and_let_go_of_with_the_last_neighbour() {
    let scene = Scene::new();
    for death in rounds() {
        let mut neighbour = scene.neighbour();
        let mut dying = scene.dying("endless", death, "on");
        die(&mut dying, death);
        scene.eventually(death, &mut neighbour, || scene.problem().contains("work on the GPU has not ended"));
        if death != "exec" {
            let error = common::refusal(&mut scene.world.gpu("--name dies --sm 10%", "census"));
            assert!(error.contains("dies"), "its name is taken: {error}");
        }
        drop(neighbour);
        drop(dying);
        scene.gone("dies");
        scene.gone("neighbour");
    }
}

/// In system mode all users have one service.
#[test]
fn a_death_of_another_users_program_breaks_nothing() {
    if !common::is_system() {
        eprintln!("skipped: users share a service in system mode alone");
        return;
    }
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    for work in ["finite", "sudden-finite", "endless", "sudden-endless"] {
        let name = format!("dies-{work}");
        let mut command = scene.world.as_user(ATTACKER, ["run", "--sm", "10%", "--name", &name, "--"]);
        command.arg(&scene.program).arg(&scene.workloads).args([work, "kill"]);
        let mut dying = Tenant::start(command.stdin(Stdio::piped()));
        assert_eq!(dying.next_line(), "ready");
        die(&mut dying, "kill");
        let row = || scene.world.ps_of_root().into_iter().find(|row| row["name"] == name.as_str());
        if work.ends_with("endless") {
            let is_shown =
                || row().unwrap()["problem"].as_str().is_some_and(|said| said.contains("has not ended"));
            scene.eventually(work, &mut neighbour, is_shown);
        } else {
            scene.eventually(work, &mut neighbour, || row().is_none());
        }
    }
    drop(neighbour);
    let deadline = Instant::now() + common::PATIENCE;
    while !scene.world.ps_of_root().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", scene.world.ps_of_root());
    }
}

/// No fence is behind the work of these: the holder looks at their compute units.
#[test]
fn work_that_was_launched_just_before_the_death_is_held_until_it_has_ended() {
    for death in ["kill", "_exit"].into_iter().take(if is_long() { 2 } else { 1 }) {
        let scene = Scene::new();
        let mut neighbour = scene.neighbour();
        die(&mut scene.dying("sudden-endless", death, "on"), death);
        scene.eventually(death, &mut neighbour, || scene.problem().contains("has not ended"));
        // Longer than work without a fence is held where the compute units do not tell.
        let shown = Instant::now();
        while shown.elapsed().as_secs() < 4 {
            scene.goes_on(&mut neighbour, death);
        }
        assert!(scene.problem().contains("has not ended"), "{death}: {:?}", scene.world.ps());
        drop(neighbour);
        scene.gone("dies");

        let mut neighbour = scene.neighbour();
        die(&mut scene.dying("sudden-finite", death, "on"), death);
        scene.eventually(death, &mut neighbour, || !scene.has_tenant());
    }
}

/// A look waits behind the work of the dead. If its process were killed, that would be one more
/// death with work in flight. If the server ended its work, the neighbours could lose theirs: the
/// service may stand still for another reason.
#[test]
fn a_look_that_waits_is_left_alone() {
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    die(&mut scene.dying("sudden-everywhere", "kill", "on"), "kill");
    let looks = |pid: &serde_json::Value| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("mps-vacancy")
    };
    let present = || -> Vec<i64> {
        let clients: serde_json::Value = serde_json::from_str(&scene.world.ok("mps clients --json")).unwrap();
        let pids = clients.as_array().unwrap().iter().map(|client| &client["pid"]);
        pids.filter(|pid| looks(pid)).map(|pid| pid.as_i64().unwrap()).collect()
    };
    scene.eventually("shown", &mut neighbour, || scene.problem().contains("has not ended"));
    // The process of a look becomes a client after that.
    scene.eventually("a look", &mut neighbour, || present().len() == 1);
    let first = present();
    // Longer than a look may take, and than the pause before the next one.
    let shown = Instant::now();
    while shown.elapsed().as_secs() < 4 {
        scene.goes_on(&mut neighbour, "a look that waits");
    }
    assert_eq!(present(), first, "it waits, and no other one begins");
    drop(neighbour);
    scene.gone("dies");
    let deadline = Instant::now() + common::PATIENCE;
    while looks(&first[0].into()) {
        assert!(Instant::now() < deadline, "the look does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The holder looks at the compute units of the first process, and another one of the tenant begins
/// meanwhile. If that one works, a look finds them taken by it. If it does nothing, looks go on
/// until the work has ended, also if that takes longer than unknown work is held.
#[test]
fn the_dead_are_released_though_another_process_of_their_tenant_begins() {
    // The first look begins 200 to 300 ms after the death, and takes as long at least.
    const TWO: &str = r#""$1" "$2" sudden-$3 kill; sleep 0.35; shift 3; exec "$@""#;
    for (work, next) in [("brief", "loop"), ("finite", "idle"), ("lasting", "idle")] {
        let scene = Scene::new();
        let mut neighbour = scene.neighbour();
        let (program, workloads) = (scene.program.as_os_str(), scene.workloads.as_os_str());
        let (busy, kernels) = common::gpu_program();
        let second: &[&OsStr] = match next {
            "loop" => &[busy.as_os_str(), kernels.as_os_str(), "loop".as_ref()],
            _ => &[program, workloads, "none".as_ref(), "kill".as_ref()],
        };
        let mut command = scene.world.partita("run --name dies --sm 10% -- sh -c".split(' '));
        command.arg(TWO).args(["sh".as_ref(), program, workloads, work.as_ref()]).args(second);
        let mut tenant = Tenant::start(command.stdin(Stdio::piped()));
        assert_eq!(tenant.next_line(), "ready");
        tenant.child.stdin.as_mut().unwrap().write_all(b"die\n").unwrap();
        let line = tenant.next_line();
        assert!(line == "ready" || line.starts_with("sms"), "{line}");
        scene.eventually(work, &mut neighbour, || scene.problem().is_empty());
    }
}

/// Nothing is left to protect when the server has ended, and a daemon that does not answer cannot
/// say so. In a long run: commands to such a daemon take seconds.
#[test]
fn the_end_of_the_server_releases_the_dead_also_if_the_daemon_hangs() {
    if is_real() || !is_long() {
        return;
    }
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    die(&mut scene.dying("endless", "kill", "on"), "kill");
    scene.eventually("shown", &mut neighbour, || scene.problem().contains("has not ended"));
    let status = scene.world.ok("mps status --json");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let process = |pid: &serde_json::Value| {
        rustix::process::Pid::from_raw(pid.as_i64().unwrap().try_into().unwrap()).unwrap()
    };
    let (daemon, server) = (process(&status["daemon"]), process(&status["servers"][0]["pid"]));
    rustix::process::kill_process(daemon, Signal::STOP).unwrap();
    rustix::process::kill_process(server, Signal::KILL).unwrap();
    let deadline = Instant::now() + common::PATIENCE;
    while scene.has_tenant() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let is_there = scene.has_tenant();
    rustix::process::kill_process(daemon, Signal::CONT).unwrap();
    assert!(!is_there, "{:?}", scene.world.ps());
}

#[test]
fn an_administrator_ends_what_never_ends_and_is_told_what_it_costs() {
    let scene = Scene::new();
    let mut neighbour = scene.neighbour();
    let mut dying = scene.dying("endless", "kill", "on");
    die(&mut dying, "kill");
    scene.eventually("shown", &mut neighbour, || {
        scene.problem().contains("`partita kill dies` lets go of it")
    });
    let killed = scene.world.line("kill dies");
    assert!(killed.status.success(), "{killed:?}");
    assert!(text(&killed.stderr).contains("if another client of MPS fails now"), "{killed:?}");
    assert!(!scene.has_tenant());
    breaks(&mut neighbour, "killed");
}
