//! Limits that change under a running program: every route of launches obeys at once, and a launch
//! that cannot fit is refused or widened, never left to hang.

use crate::common;

use std::collections::BTreeMap;
use std::process::Command;

use common::{Answering, World, compile, gpu_program, is_real, sms_of, text};

/// `tests/hook/live.c` as a tenant.
struct Program(Answering);

impl Program {
    /// `cooperative` is the number of blocks of the cooperative graph.
    fn start(world: &World, options: &str, cooperative: u32) -> Self {
        let mut command = world.partita("run --name live --isolation own".split_whitespace());
        command.args(options.split_whitespace()).arg("--").arg(compile(world, "live")).arg(&gpu_program().1);
        command.args(["528", &cooperative.to_string()]);
        let mut program = Answering::start(&mut command);
        assert_eq!(program.tenant.next_line(), "ready");
        Self(program)
    }

    /// The SMs of each route, all of whose blocks ran.
    fn round(&mut self) -> BTreeMap<String, String> {
        let lines = self.0.ask("round").into_iter().map(|line| {
            let (route, rest) = line.split_once(" sms ").unwrap_or_else(|| panic!("{line}"));
            let (sms, blocks) = rest.split_once(" blocks ").unwrap_or_else(|| panic!("{line}"));
            assert_eq!(blocks, "528", "{line}");
            (route.to_owned(), sms.to_owned())
        });
        lines.collect()
    }

    /// Launches a graph of 64 kernels so often: the SMs, and the nanoseconds of the last launch on
    /// the GPU's clock.
    fn chain(&mut self, launches: u32) -> (Vec<u32>, u64) {
        let lines = self.0.ask(&format!("chain {launches}"));
        let (ns, sms) =
            lines[0].strip_prefix("chain 0 ns ").and_then(|rest| rest.split_once(" sms")).expect("a chain");
        (
            sms.split_whitespace().map(|sm| sm.parse().expect("a number")).collect(),
            ns.parse().expect("a number"),
        )
    }
}

const ROUTES: [&str; 8] =
    ["captured", "context", "default", "ex", "graph-0", "graph-1", "per-thread", "stream"];

#[test]
fn every_route_obeys_new_limits_at_its_next_launch() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-7", 8);
    for set in ["0-7", "8-15", "1,9,17,25", "0-65", "60-65", "0-7"] {
        world.ok(&format!("set live --sm tpc:{set}"));
        let seen = program.round();
        assert_eq!(seen.keys().collect::<Vec<_>>(), ROUTES.iter().collect::<Vec<_>>());
        for (route, found) in seen {
            assert_eq!(found, sms_of(set), "{route} on {set}");
        }
    }
    // A change of another limit does not change where graphs run.
    world.ok("set live --mem 2GiB");
    assert!(program.round().values().all(|found| *found == sms_of("0-7")));
}

#[test]
fn a_graph_is_as_fast_on_new_limits_as_on_its_first() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-7", 8);
    let sms =
        |sms: String| sms.split_whitespace().map(|sm| sm.parse().expect("a number")).collect::<Vec<u32>>();
    let (_, at_first) = program.chain(3);
    let mut readings = vec![at_first];
    for set in ["8-15", "1,9,17,25", "0-65", "0-7"] {
        world.ok(&format!("set live --sm tpc:{set}"));
        let allowed = sms(sms_of(set));
        for launches in [1, 15, 2, 30] {
            let (seen, ns) = program.chain(launches);
            assert!(seen.iter().all(|sm| allowed.contains(sm)), "{seen:?} on {set}");
            readings.push(ns);
        }
    }
    println!("{readings:?} ns");
    if !is_real() {
        // 64 kernels take 0.45 µs more each until the executable is made again.
        for set in readings[1..].chunks(4) {
            assert!(set[0] > at_first + 64 * 400 && set[1] > at_first + 64 * 400, "{readings:?}");
            assert!(set[2] < at_first + 640 && set[3] < at_first + 640, "{readings:?}");
        }
    }
}

#[test]
fn what_cannot_fit_is_refused_at_the_call() {
    let world = World::new();
    // Four TPCs of one GPC on the H200s seen, and four that lie in four.
    let mut program = Program::start(&world, "--sm tpc:1,9,17,25", 16);
    // Too large for the device, too: no option helps, and no message suggests one.
    assert_eq!(program.0.line("cooperative 265"), "cooperative 720");
    assert_eq!(program.0.line("cluster 8"), "cluster 0");
    assert_eq!(program.0.line("cluster 16"), "cluster 912");
    assert_eq!(program.0.line("cooperative 16"), "cooperative 0");
    assert_eq!(program.0.line("cooperative 17"), "cooperative 720");
    assert_eq!(program.0.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(program.0.line("clusters 8"), "clusters 0 2 largest 0 8");
    assert_eq!(program.0.line("clusters 16"), "clusters 0 0 largest 0 8");
    // Smaller than the living graph needs: checked at its next launch.
    world.ok("set live --sm tpc:0-2");
    assert_eq!(program.0.line("cluster 4"), "cluster 912");
    assert_eq!(program.0.line("cluster 2"), "cluster 0");
    assert_eq!(program.0.line("cooperative 16"), "cooperative 720");
    assert_eq!(program.0.line("graph-cooperative"), "graph-cooperative 720");
    assert_eq!(program.0.line("clusters 2"), "clusters 0 6 largest 0 2");
    world.ok("set live --sm 100%");
    assert_eq!(program.0.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(program.0.line("cluster 16"), "cluster 0");
    let row = world.row("live");
    assert_eq!((&row["on_misfit"], &row["widened_launches"]), (&"error".into(), &0.into()));
    // The first of each kind names the largest possible size and the option that helps.
    let said = program.0.complaints();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "partita: live: a launch with clusters of 16 blocks was refused: the largest cluster that fits this partition (8 of 132 \
             SMs) has 8 blocks; use --on-misfit widen to run such launches on the whole GPU, or a larger --sm",
            "partita: live: a cooperative launch of 17 blocks of 1024 threads was refused: this partition (8 of 132 SMs) runs at most \
             16 of them at once; use --sm-count partition if the program sizes its grid by the number of SMs, --on-misfit widen to run \
             such launches on the whole GPU, or a larger --sm",
        ]
    );
}

#[test]
fn what_cannot_fit_runs_wide_where_that_is_allowed() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-3 --on-misfit widen", 64);
    assert_eq!(program.0.line("cluster 8"), "cluster 0");
    assert_eq!(program.0.line("cooperative 64"), "cooperative 0");
    assert_eq!(program.0.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(program.0.line("graph-cooperative"), "graph-cooperative 0");
    // Only those; launches that fit stay inside, before and after.
    assert!(program.round().values().all(|found| *found == sms_of("0-3")));
    assert_eq!(world.row("live")["widened_launches"], 4);
    world.ok("set live --on-misfit error");
    assert_eq!(program.0.line("cluster 8"), "cluster 912");
    assert_eq!(program.0.line("graph-cooperative"), "graph-cooperative 720");
    world.ok("set live --sm tpc:0-31");
    assert_eq!(program.0.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(world.row("live")["widened_launches"], 4);
    // One line for the program's user, however many launches.
    let said = program.0.complaints();
    assert_eq!(said.lines().filter(|line| line.contains("runs on the whole GPU")).count(), 1, "{said}");
}

#[test]
fn a_process_is_enough_to_name_its_tenant() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-7", 8);
    let pid = world.row("live")["processes"][0]["pid"].as_u64().expect("a process that uses CUDA");
    let said = world.ok(&format!("set --pid {pid} --sm tpc:3,11"));
    assert!(said.starts_with("live: 4 SMs (tpc:3,11)"), "{said}");
    assert!(program.round().values().all(|found| *found == sms_of("3,11")));
    let told = world.ok(&format!("ps --pid {pid}"));
    assert!(told.starts_with("tenant live of "), "{told}");
    assert!(told.contains("  TPCs       3,11\n"), "{told}");
    world.ok(&format!("set --pid {pid} --sm gpc:1"));
    let row: serde_json::Value = serde_json::from_str(&world.ok(&format!("ps --pid {pid} --json"))).unwrap();
    assert_eq!(row["gpcs"].as_array().unwrap().len(), 1, "{row}");
    assert_eq!(
        (&row["gpcs"][0]["gpc"], &row["gpcs"][0]["tpcs"]),
        (&1.into(), &row["gpcs"][0]["tpcs_of_gpc"])
    );
    // `partita run` itself and a child that never used CUDA belong to the tenant too.
    let run = program.0.tenant.child.id();
    assert!(world.ok(&format!("ps --pid {run}")).contains("tenant live"));
    let own = std::process::id();
    let line = world.refused(&format!("set --pid {own} --sm 10%"));
    assert!(
        line.contains(&format!("process {own} is of no tenant")) && line.contains("partita run"),
        "{line}"
    );
    let line = world.refused("ps --pid 4294967");
    assert!(line.contains("there is no such process"), "{line}");
}

#[test]
fn another_user_s_tenant_cannot_be_changed() {
    if !rustix::process::geteuid().is_root() || is_real() {
        eprintln!("skipped: needs root, to become another user, and a simulated GPU");
        return;
    }
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-7", 8);
    let pid = world.row("live")["processes"][0]["pid"].as_u64().expect("a process");
    let limits = world.gpu_dir().join("live/limits");
    let before = std::fs::read(&limits).expect("readable");
    // All users may enter the world's directory; they may change only their own tenants.
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(world.dir(), all).expect("permissions");
    for whose in ["live".to_owned(), format!("--pid {pid}")] {
        let base = world.partita(format!("set {whose} --sm 10%").split_whitespace());
        let mut other = Command::new(base.get_program());
        other.args(base.get_args());
        common::with_env_of(&mut other, &base);
        std::os::unix::process::CommandExt::uid(&mut other, 65_534);
        let output = other.output().expect("partita runs");
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(text(&output.stderr).contains(&format!("belongs to {}", world.owner())), "{output:?}");
    }
    assert_eq!(std::fs::read(&limits).expect("readable"), before);
    // The file itself is its owner's to write.
    let mut writer = Command::new("sh");
    writer.arg("-c").arg(format!("echo x >> '{}'", limits.display()));
    std::os::unix::process::CommandExt::uid(&mut writer, 65_534);
    assert!(!writer.output().expect("sh runs").status.success());
    assert!(program.round().values().all(|found| *found == sms_of("0-7")));
}
