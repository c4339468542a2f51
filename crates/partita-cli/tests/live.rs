//! Limits that change under a running program: every route of launches obeys at once, and what
//! cannot fit is refused or widened, never left to hang.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Tenant, World, gpu_program, is_real, text, tpcs};

/// `tests/hook/live.c` as a tenant.
struct Program {
    tenant: Tenant,
    input: std::process::ChildStdin,
}

fn compiled(world: &World) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hook/live.c");
    let program = world.dir().join("live");
    let given = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(&source).arg("-ldl").output();
    let given = given.expect("cc runs");
    assert!(given.status.success(), "{}", text(&given.stderr));
    program
}

impl Program {
    /// `cooperative` is the number of blocks of the cooperative graph.
    fn start(world: &World, options: &str, cooperative: u32) -> Self {
        let mut command = world.partita("run --name live --isolation own".split_whitespace());
        command.args(options.split_whitespace()).arg("--").arg(compiled(world)).arg(&gpu_program().1);
        command.args(["528", &cooperative.to_string()]).stdin(Stdio::piped());
        let mut tenant = Tenant::start(&mut command);
        let input = tenant.child.stdin.take().expect("a pipe");
        assert_eq!(tenant.next_line(), "ready");
        Self { tenant, input }
    }

    fn ask(&mut self, what: &str) -> Vec<String> {
        writeln!(self.input, "{what}").expect("the program reads");
        let mut lines = Vec::new();
        loop {
            match self.tenant.next_line() {
                done if done == "done" => return lines,
                line => lines.push(line),
            }
        }
    }

    fn line(&mut self, what: &str) -> String {
        let lines = self.ask(what);
        assert_eq!(lines.len(), 1, "{what}: {lines:?}");
        lines[0].clone()
    }

    /// The SMs of each route, all of whose blocks ran.
    fn round(&mut self) -> BTreeMap<String, String> {
        let lines = self.ask("round").into_iter().map(|line| {
            let (route, rest) = line.split_once(" sms ").unwrap_or_else(|| panic!("{line}"));
            let (sms, blocks) = rest.split_once(" blocks ").unwrap_or_else(|| panic!("{line}"));
            assert_eq!(blocks, "528", "{line}");
            (route.to_owned(), sms.to_owned())
        });
        lines.collect()
    }
}

/// SMs of TPCs, as the program prints them.
fn sms(set: &str) -> String {
    let mut sms: Vec<u32> = tpcs(set).iter().flat_map(|tpc| [2 * tpc, 2 * tpc + 1]).collect();
    sms.sort_unstable();
    sms.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
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
            assert_eq!(found, sms(set), "{route} on {set}");
        }
    }
    // Another limit than the set changes nothing of where graphs run.
    world.ok("set live --mem 2GiB");
    assert!(program.round().values().all(|found| *found == sms("0-7")));
}

#[test]
fn what_cannot_fit_is_refused_at_the_call() {
    let world = World::new();
    // Four TPCs of one GPC on the H200s seen, and four that lie in four.
    let mut program = Program::start(&world, "--sm tpc:1,9,17,25", 16);
    assert_eq!(program.line("cluster 8"), "cluster 0");
    assert_eq!(program.line("cluster 16"), "cluster 912");
    assert_eq!(program.line("cooperative 16"), "cooperative 0");
    assert_eq!(program.line("cooperative 17"), "cooperative 720");
    assert_eq!(program.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(program.line("clusters 8"), "clusters 0 2 largest 0 8");
    assert_eq!(program.line("clusters 16"), "clusters 0 0 largest 0 8");
    // Smaller than what the living graph needs: judged at its next launch.
    world.ok("set live --sm tpc:0-2");
    assert_eq!(program.line("cluster 4"), "cluster 912");
    assert_eq!(program.line("cluster 2"), "cluster 0");
    assert_eq!(program.line("cooperative 16"), "cooperative 720");
    assert_eq!(program.line("graph-cooperative"), "graph-cooperative 720");
    assert_eq!(program.line("clusters 2"), "clusters 0 6 largest 0 2");
    world.ok("set live --sm 100%");
    assert_eq!(program.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(program.line("cluster 16"), "cluster 0");
    let row = world.row("live");
    assert_eq!((&row["on_misfit"], &row["widened_launches"]), (&"error".into(), &0.into()));
}

#[test]
fn what_cannot_fit_runs_wide_where_that_is_allowed() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-3 --on-misfit widen", 64);
    assert_eq!(program.line("cluster 8"), "cluster 0");
    assert_eq!(program.line("cooperative 64"), "cooperative 0");
    assert_eq!(program.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(program.line("graph-cooperative"), "graph-cooperative 0");
    // Only those; what fits stays inside, before and after.
    assert!(program.round().values().all(|found| *found == sms("0-3")));
    assert_eq!(world.row("live")["widened_launches"], 4);
    world.ok("set live --on-misfit error");
    assert_eq!(program.line("cluster 8"), "cluster 912");
    assert_eq!(program.line("graph-cooperative"), "graph-cooperative 720");
    world.ok("set live --sm tpc:0-31");
    assert_eq!(program.line("graph-cooperative"), "graph-cooperative 0");
    assert_eq!(world.row("live")["widened_launches"], 4);
    // One line for the program's user, however many launches.
    drop(program.input);
    assert_eq!(program.tenant.exit_code(), 0);
    let mut said = String::new();
    let mut stderr = program.tenant.child.stderr.take().expect("a pipe");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("readable");
    assert_eq!(said.lines().filter(|line| line.contains("whole GPU")).count(), 1, "{said}");
}

#[test]
fn a_process_is_enough_to_name_its_tenant() {
    let world = World::new();
    let mut program = Program::start(&world, "--sm tpc:0-7", 8);
    let pid = world.row("live")["processes"][0]["pid"].as_u64().expect("a process that uses CUDA");
    let said = world.ok(&format!("set --pid {pid} --sm tpc:3,11"));
    assert!(said.starts_with("live: 4 SMs (tpc:3,11)"), "{said}");
    assert!(program.round().values().all(|found| *found == sms("3,11")));
    let told = world.ok(&format!("ps --pid {pid}"));
    assert!(told.starts_with(&format!("process {pid}: tenant live on ")), "{told}");
    assert!(told.contains("TPCs  3,11"), "{told}");
    world.ok(&format!("set --pid {pid} --sm gpc:1"));
    let row: serde_json::Value = serde_json::from_str(&world.ok(&format!("ps --pid {pid} --json"))).unwrap();
    assert_eq!(row["gpcs"].as_array().unwrap().len(), 1, "{row}");
    assert_eq!(
        (&row["gpcs"][0]["gpc"], &row["gpcs"][0]["tpcs"]),
        (&1.into(), &row["gpcs"][0]["tpcs_of_gpc"])
    );
    // `partita run` itself and a child that never used CUDA are of the tenant too.
    let run = program.tenant.child.id();
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
    // Everybody may look into the world's directory; nobody else may change what is not theirs.
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
        assert!(text(&output.stderr).contains("belongs to root"), "{output:?}");
    }
    assert_eq!(std::fs::read(&limits).expect("readable"), before);
    // The file itself is its owner's to write.
    let mut writer = Command::new("sh");
    writer.arg("-c").arg(format!("echo x >> '{}'", limits.display()));
    std::os::unix::process::CommandExt::uid(&mut writer, 65_534);
    assert!(!writer.output().expect("sh runs").status.success());
    assert!(program.round().values().all(|found| *found == sms("0-7")));
}
