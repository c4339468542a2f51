//! Core limits and priorities of containers that have HAMi-core's variables, and no `partita run`.

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::container::{CACHE, CORES, Container, MEMORY, program, proved};
use common::{Answering, World, gpu_program, is_real, needs_simulator, text};
use partita_testing::succeed;

/// The SMs on which every route to a launch of `tests/hook/launches.c` ran its blocks.
fn sms(container: &Container<'_>) -> BTreeSet<u32> {
    let mut command = container.command(&program(container.world, "launches"));
    let output = succeed(command.arg(&gpu_program().1).args(["264", "1"]));
    let lines = text(&output.stdout);
    let of_line = |line: &str| -> Option<BTreeSet<u32>> {
        let (_, sms) = line.split_once(" sms")?;
        let (sms, _) = sms.split_once(" blocks")?;
        Some(sms.split_whitespace().map(|sm| sm.parse().unwrap()).collect())
    };
    let sets: Vec<_> = lines.lines().filter_map(of_line).collect();
    assert!(sets.len() >= 4, "{lines}");
    sets.into_iter().fold(BTreeSet::new(), |all, set| &all | &set)
}

#[test]
fn a_core_limit_is_a_mask_where_the_board_was_proved() {
    if needs_simulator("numbers of SMs are those of an H200") {
        return;
    }
    let world = World::plan().own().start();
    let proved = proved(&world);
    let container = |name: &str, cores: &str| {
        Container::new(&world, name).with(CORES, cores).with("PARTITA_CACHE_DIR", &proved)
    };
    // 30 % of 66 TPCs is 19.
    let first = sms(&container("one", "30"));
    assert_eq!(first.len(), 38, "{first:?}");
    assert_eq!(sms(&container("one", "30")), first, "a tenant keeps its TPCs");
    // Beside each other, each has its own; each alone always finds the same.
    let beside = |name: &str| {
        let cache = world.dir().join("one").join(name).display().to_string();
        container("one", "30").with(CACHE, &cache)
    };
    let (second, third) = (sms(&beside("second.cache")), sms(&beside("third.cache")));
    assert!(first.is_disjoint(&second) && first.is_disjoint(&third) && second.is_disjoint(&third));
    // A fourth has no room: tenants without living processes make room.
    let fourth = sms(&beside("fourth.cache"));
    assert_eq!(fourth.len(), 38);
    // Only requested limits apply: memory is the device's.
    let (lines, said) = container("two", "50").with("LIBCUDA_LOG_LEVEL", "3").allocates("a 1\n");
    assert!(lines[0].starts_with("0 1"), "{lines:?}");
    assert!(said.contains("no memory limit, core limit 50% by mask: TPCs "), "{said}");
    // Policies.
    for (policy, count) in [("default", 38), ("force", 38), ("disable", 132)] {
        let container = container(policy, "30").with("GPU_CORE_UTILIZATION_POLICY", policy);
        assert_eq!(sms(&container).len(), count, "{policy}");
    }
    let reason = container("small", "1").refused();
    assert!(
        reason.contains("less than one of the 66 TPCs") && reason.contains("ask for 2% or more"),
        "{reason}"
    );
}

#[test]
fn living_tenants_keep_their_tpcs_and_a_limit_beyond_the_device_is_shared_and_told() {
    if needs_simulator("numbers of SMs are those of an H200") {
        return;
    }
    let world = World::plan().own().start();
    let proved = proved(&world);
    let beside = |name: &str, cores: &str| {
        let cache = world.dir().join("c").join(name).display().to_string();
        Container::new(&world, "c").with(CORES, cores).with("PARTITA_CACHE_DIR", &proved).with(CACHE, &cache)
    };
    let spill = program(&world, "spill");
    let mut living: Vec<Answering> = Vec::new();
    for name in ["a.cache", "b.cache"] {
        let mut tenant = Answering::start(&mut beside(name, "50").command(&spill));
        assert!(tenant.line("a 1").starts_with("0 "));
        living.push(tenant);
    }
    let sets: Vec<String> =
        beside("a.cache", "50").rows().iter().map(|row| row["tpcs"].as_str().unwrap().to_owned()).collect();
    assert_eq!(sets.len(), 2);
    assert_ne!(sets[0], sets[1]);
    let (lines, said) = beside("late.cache", "20").allocates("a 1\n");
    assert!(lines[0].starts_with("0 "), "{lines:?}");
    assert!(said.contains("leave no TPCs for it alone"), "{said}");
    let (_, said) = beside("late.cache", "20").with("LIBCUDA_LOG_LEVEL", "0").allocates("a 1\n");
    assert_eq!(said, "", "once for a tenant, and not at all at level 0");
    drop(living);
}

#[test]
fn beside_tenants_of_partita_run_it_has_tpcs_of_its_own() {
    if needs_simulator("numbers of SMs are those of an H200") {
        return;
    }
    let world = World::plan().own().start();
    let proved = proved(&world);
    let _run = world.idle("--sm 60% --isolation own");
    let theirs = world.ps()[0]["tpcs"].as_str().unwrap().to_owned();
    let theirs: BTreeSet<u32> = common::tpcs(&theirs).iter().flat_map(|tpc| [2 * tpc, 2 * tpc + 1]).collect();
    let container = Container::new(&world, "c").with(CORES, "40").with("PARTITA_CACHE_DIR", &proved);
    let own = sms(&container.with("PARTITA_RUN_DIR", world.run_dir().to_str().unwrap()));
    assert_eq!(own.len(), 52, "{own:?}");
    assert!(own.is_disjoint(&theirs), "{own:?} {theirs:?}");
}

#[test]
fn a_core_limit_that_cannot_be_enforced_is_refused_and_never_dropped() {
    let world = World::plan().own().start();
    let container = || Container::new(&world, "c").with(CORES, "30").with(MEMORY, "1g");
    let reason = container().refused();
    assert!(reason.contains("partita doctor") && reason.contains("share of time"), "{reason}");
    assert!(container().tenants().is_empty(), "no tenant exists whose limits do not hold");
    // Without the core limit nothing has to be proved.
    assert_eq!(container().with("GPU_CORE_UTILIZATION_POLICY", "disable").allocates("a 24\n").0, ["0 1000"]);
    for whole in ["0", "100", "250"] {
        assert_eq!(container().with(CORES, whole).allocates("a 24\n").0, ["0 1000"], "{whole}");
    }
    if !is_real() {
        // A calibration of another board, or written by another user, is no proof.
        let proved = proved(&world);
        let cache = world.dir().join("copied");
        fs::create_dir(&cache).unwrap();
        for entry in fs::read_dir(&proved).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with("sm90.json") {
                let content = fs::read_to_string(entry.path()).unwrap();
                fs::write(
                    cache.join(&name),
                    content.replace("\"gpu_uuid\": \"GPU-", "\"gpu_uuid\": \"GPU-0"),
                )
                .unwrap();
            }
        }
        let reason = container().with("PARTITA_CACHE_DIR", cache.to_str().unwrap()).refused();
        assert!(reason.contains("another driver or GPU"), "{reason}");
    }
}

/// The tests of `--time` show its precision.
#[test]
fn where_no_board_was_proved_a_core_limit_is_a_share_of_time() {
    let world = World::plan().own().in_memory().start();
    let container = Container::new(&world, "c").with(CORES, "30").with("LIBCUDA_LOG_LEVEL", "3");
    let mut asked = Answering::start(container.command(&program(&world, "gate")).arg(&gpu_program().1));
    assert_eq!(asked.tenant.next_line(), "ready");
    for _ in 0..20 {
        assert_eq!(
            (asked.line("launch"), asked.line("graph"), asked.line("sync")),
            ("ok".into(), "ok".into(), "ok".into())
        );
    }
    let rows = container.rows();
    assert_eq!(
        (rows.len(), &rows[0]["time"]["share_percent"], &rows[0]["tpcs"]),
        (1, &30.0.into(), &"all".into()),
        "{rows:?}"
    );
    drop(asked);
    let (_, said) = container.with(CORES, "45").allocates("a 1\n");
    assert!(said.contains("core limit 45% by time"), "{said}");
}

#[test]
fn priorities_hold_between_containers_that_share_a_directory_in_memory() {
    let (world, disk) = (World::plan().own().in_memory().start(), World::plan().own().start());
    let gate = program(&world, "gate");
    let start = |name: &str, priority: &str| {
        let cache = world.dir().join("c").join(name).display().to_string();
        let container = Container::new(&world, "c").with(CACHE, &cache).with("CUDA_TASK_PRIORITY", priority);
        let mut asked = Answering::start(container.command(&gate).arg(&gpu_program().1));
        assert_eq!(asked.tenant.next_line(), "ready");
        asked
    };
    let mut low = start("low.cache", "1");
    let mut high = start("high.cache", "0");
    let rows = Container::new(&world, "c").rows();
    let priorities: BTreeSet<&str> = rows.iter().map(|row| row["priority"].as_str().unwrap()).collect();
    assert_eq!(priorities, BTreeSet::from(["high", "low"]));
    let mut is_held = || {
        assert_eq!(high.line("launch"), "ok");
        assert_eq!(low.line("launch"), "ok");
        let until = Instant::now() + Duration::from_millis(15);
        let mut held = true;
        while held && Instant::now() < until {
            held = low.line("query") != "idle";
        }
        assert_eq!(high.line("sync"), "ok");
        assert_eq!(low.line("sync"), "ok");
        held
    };
    assert!((0..20).any(|_| is_held()), "low never waits for high");
    drop((low, high));
    // On a disk there is no gate. A tenant that would wait is refused, one that others would wait
    // for gets a notice.
    let gated = |priority: &str| {
        Container::new(&disk, priority).with(MEMORY, "64m").with("CUDA_TASK_PRIORITY", priority)
    };
    if fs::metadata(disk.dir()).is_ok() && !is_tmpfs(disk.dir()) {
        let reason = gated("1").refused();
        assert!(
            reason.contains("CUDA_TASK_PRIORITY=1 cannot be enforced") && reason.contains("tmpfs"),
            "{reason}"
        );
        let (lines, said) = gated("0").allocates("a 1\n");
        assert_eq!(lines, ["0 63"]);
        assert!(said.contains("CUDA_TASK_PRIORITY=0 gives this tenant nothing"), "{said}");
    }
}

fn is_tmpfs(dir: &Path) -> bool {
    let told = succeed(Command::new("stat").args(["-f", "-c", "%T"]).arg(dir));
    text(&told.stdout).trim() == "tmpfs"
}
