//! The hook in place of HAMi-core's library: no `partita run`, but a container's environment. Its
//! core limits and priorities are in `hami_cores.rs`.

use crate::common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::container::{CACHE, CORES, Container, MEMORY, container_of, directories, driver, program};
use common::{Answering, World, is_real, text};
use partita_testing::succeed;

/// The simulated board. The driver's part of a context is free up to 1 GiB a process, and its size
/// depends on the board.
const DEVICE: &str = "PARTITA_SIM_DEVICE";
/// 64 contexts together are free of charge.
const SMALL: &str = "gtx1060-3gb";
/// Several contexts of a process are.
const MIDDLE: &str = "a100";

#[test]
fn a_memory_limit_is_the_total_and_holds() {
    let world = World::plan().own().start();
    let container = Container::new(&world, "c").with(MEMORY, "256m");
    let (lines, said) = container.allocates("a 100\na 157\ns 157\na 156\nf 0\ns 100\n");
    assert_eq!(lines, ["0 156", "2 156", "2 156", "0 0", "0 100", "0 0"]);
    assert_eq!(said, "", "the limits in force are not reported");
    // Binary, in whichever unit.
    for limit in ["262144k", "268435456", "256M"] {
        assert_eq!(container_of(&world, "units", MEMORY, limit).allocates("a 1\n").0, ["0 255"], "{limit}");
    }
    // Without a limit it is the device's.
    let (lines, _) = container_of(&world, "none", MEMORY, "0").allocates("a 1\n");
    let free: u64 = lines[0].strip_prefix("0 ").unwrap().parse().unwrap();
    assert!(free > 4096, "{lines:?}");
}

#[test]
fn every_route_to_memory_is_charged_and_refused_as_under_partita_run() {
    let world = World::plan().own().alone().start();
    let container = Container::new(&world, "c").with(MEMORY, "1g").with(DEVICE, MIDDLE);
    for (name, expected) in [
        ("routes", "every route ok\n"),
        ("shared", "every share ok\n"),
        ("threads", "every account agrees\n"),
    ] {
        if is_real() && name == "routes" {
            eprintln!(
                "skipped on a GPU: its contexts take more than is free, and HAMi has no variable for that"
            );
            continue;
        }
        let container = match name {
            "threads" => container_of(&world, "t", MEMORY, "512m"),
            _ => Container {
                world: &world,
                dir: container.dir.clone(),
                variables: container.variables.clone(),
            },
        };
        let output = succeed(&mut container.command(&program(&world, name)));
        assert_eq!(text(&output.stdout), expected, "{output:?}");
    }
}

#[test]
fn libcuda_is_held_however_it_is_opened() {
    let world = World::plan().own().start();
    let escapes = program(&world, "escapes");
    let container = Container::new(&world, "c").with(MEMORY, "64m");
    for (how, expected) in [("path", "held"), ("deepbind", "held"), ("late", "held")] {
        let output = succeed(container.command(&escapes).arg(how));
        assert_eq!(text(&output.stdout).trim_end(), expected, "{how}: {output:?}");
    }
    let output = succeed(container.command(&escapes).arg("namespace"));
    assert!(
        text(&output.stdout).contains("a new linker namespace would leave the tenant's limits"),
        "{output:?}"
    );
}

#[test]
fn the_management_library_says_the_same_before_and_after_the_first_process_uses_the_gpu() {
    let world = World::plan().own().start();
    let container = Container::new(&world, "c").with(MEMORY, "2g");
    let mut command = container.command(&program(&world, "nvml"));
    let mut asked = Answering::start(&mut command);
    assert_eq!(asked.line("l"), "total 2048 used 0 free 2048 processes");
    assert!(asked.ask("i").is_empty() && asked.ask("a").is_empty());
    assert_eq!(asked.line("l"), "total 2048 used 64 free 1984 processes self:64");
}

#[test]
fn limits_of_single_devices_go_with_the_devices_however_they_are_chosen() {
    if is_real() {
        eprintln!("skipped on a real GPU: two are needed, with these totals");
        return;
    }
    let world = World::plan().own().start();
    let visible = program(&world, "visible");
    let container = || {
        Container::new(&world, "c")
            .with("PARTITA_SIM_GPUS", "2")
            .with(MEMORY, "256m")
            .with("CUDA_DEVICE_MEMORY_LIMIT_1", "128m")
    };
    let totals = |container: Container<'_>| {
        let output = succeed(&mut container.command(&visible));
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout).trim_end().to_owned()
    };
    assert_eq!(totals(container()), "256 128");
    let uuids: Vec<String> = directories(&container().root())
        .iter()
        .map(|gpu| gpu.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(uuids.len(), 2);
    // The program's view decides which of them is the first.
    let first = container().with("CUDA_VISIBLE_DEVICES", &uuids[0]);
    let (zero, one) = if totals(first) == "256" { (&uuids[0], &uuids[1]) } else { (&uuids[1], &uuids[0]) };
    for (chosen, expected) in [
        ("0", "256"),
        ("1", "128"),
        ("1,0", "128 256"),
        ("0,1,7", "256 128"),
        (zero.as_str(), "256"),
        (&one[..16], "128"),
        (&format!("{one},{zero}"), "128 256"),
    ] {
        assert_eq!(totals(container().with("CUDA_VISIBLE_DEVICES", chosen)), expected, "{chosen}");
    }
    // The container's own order comes before the machine's.
    let turned = format!("{one},{zero}");
    let listed = |list: &str| {
        let container = Container::new(&world, "listed")
            .with("PARTITA_SIM_GPUS", "2")
            .with("NVIDIA_VISIBLE_DEVICES", list);
        container.with("CUDA_DEVICE_MEMORY_LIMIT_0", "64m").with("CUDA_DEVICE_MEMORY_LIMIT_1", "32m")
    };
    assert_eq!(totals(listed(&turned)), "32 64");
    assert_eq!(totals(listed(&turned).with("CUDA_VISIBLE_DEVICES", one)), "64");
    let unlisted =
        container_of(&world, "unlisted", "NVIDIA_VISIBLE_DEVICES", one).with("PARTITA_SIM_GPUS", "2");
    let reason = unlisted.with("CUDA_DEVICE_MEMORY_LIMIT_0", "64m").refused();
    assert!(reason.contains(zero.as_str()) && reason.contains("does not name"), "{reason}");
}

/// Two tenants' totals never differ, so there is only one tenant.
#[test]
fn sixty_four_processes_that_start_at_once_are_one_tenant() {
    let world = World::plan().own().start();
    let crowd = program(&world, "crowd");
    for round in 0..3 {
        let container = container_of(&world, &format!("c{round}"), MEMORY, "512m").with(DEVICE, SMALL);
        let output = succeed(container.command(&crowd).arg("64"));
        assert_eq!(text(&output.stdout), "done 512\n", "{output:?}");
        assert_eq!(text(&output.stderr), "");
        assert_eq!(container.tenants().len(), 1, "{:?}", container.tenants());
    }
}

#[test]
fn racing_processes_never_have_a_byte_too_much_nor_are_refused_what_fits() {
    let world = World::plan().own().start();
    let container = Container::new(&world, "c").with(MEMORY, "512m").with(DEVICE, SMALL);
    let output = succeed(&mut container.command(&program(&world, "race")));
    assert_eq!(text(&output.stdout), "done\n", "{output:?}");
}

#[test]
fn a_process_killed_while_a_tenant_is_made_delays_no_other_and_leaves_nothing() {
    let world = World::plan().own().start();
    let spill = program(&world, "spill");
    let container = Container::new(&world, "c").with(MEMORY, "256m");
    let mut half_made = 0;
    for step in 0..60u32 {
        let _ = fs::remove_dir_all(container.root());
        let mut child =
            container.command(&spill).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        // From the first directory that it makes, a little later each time.
        let start = Instant::now();
        while !container.root().exists() {
            assert!(start.elapsed() < common::PATIENCE, "it makes no tenant");
        }
        let reached = Instant::now();
        while reached.elapsed() < Duration::from_micros(20) * step {}
        child.kill().unwrap();
        child.wait().unwrap();
        let found = container.tenants();
        half_made += u32::from(found.is_empty() || found.iter().any(|dir| is_work(dir)));
        // The next one continues with the remains, and does not wait.
        let start = Instant::now();
        assert_eq!(container.allocates("a 1\n").0, ["0 255"], "step {step}");
        assert!(start.elapsed() < Duration::from_secs(30), "a lock of the dead was waited for");
        let found = container.tenants();
        assert!(found.len() == 1 && !is_work(&found[0]), "step {step}: {found:?}");
    }
    println!("{half_made} of 60 were killed before their tenant was there");
}

/// Whether a directory belongs to a tenant in creation or removal.
fn is_work(dir: &Path) -> bool {
    dir.file_name().unwrap().to_str().unwrap().starts_with('.')
}

#[test]
fn a_switch_turns_everything_off() {
    let world = World::plan().own().start();
    let container =
        Container::new(&world, "c").with(MEMORY, "64m").with(CORES, "?").with("CUDA_DISABLE_CONTROL", "true");
    let (lines, said) = container.allocates("a 128\n");
    assert!(lines[0].starts_with("0 ") && said.is_empty(), "{lines:?} {said}");
    assert!(container.tenants().is_empty());
}

#[test]
fn a_child_with_other_variables_or_none_is_still_of_its_tenant() {
    let world = World::plan().own().start();
    let spill = program(&world, "spill");
    let elsewhere = world.dir().join("elsewhere.cache").display().to_string();
    let container = Container::new(&world, "c").with(MEMORY, "64m");
    let as_child = |change: &str| {
        let mut command = container.command(Path::new("/bin/sh"));
        // The shell stays, as a container's first process does.
        command.args(["-c", &format!("env {change} \"$0\"; :")]).arg(&spill);
        container.answers(command, "a 100\na 64\n").0
    };
    for change in [
        String::new(),
        format!("-u {MEMORY}"),
        format!("-u {MEMORY} -u {CACHE}"),
        format!("{MEMORY}=20g"),
        format!("{MEMORY}=garbage"),
        format!("{MEMORY}=20g {CACHE}={elsewhere}"),
        "CUDA_DISABLE_CONTROL=true".to_owned(),
    ] {
        assert_eq!(as_child(&change), ["2 64", "0 0"], "{change}");
    }
    let kept = format!(
        "-i LD_PRELOAD={} {}",
        partita_testing::build().join("libpartita.so").display(),
        driver(&world).iter().map(|(name, value)| format!("{name}='{value}' ")).collect::<String>()
    );
    assert_eq!(
        as_child(&kept),
        ["2 64", "0 0"],
        "an empty environment, where /etc/ld.so.preload names the library"
    );
    assert_eq!(container.tenants().len(), 1, "{:?}", container.tenants());
}

#[test]
fn limits_are_those_of_the_first_process_while_any_lives_and_of_the_next_one_after() {
    let world = World::plan().own().start();
    let spill = program(&world, "spill");
    let with = |limit: &str| Container::new(&world, "c").with(MEMORY, limit);
    let mut living = Answering::start(&mut with("64m").command(&spill));
    assert_eq!(living.line("a 1"), "0 63");
    assert_eq!(with("128m").allocates("a 1\n").0, ["0 62"]);
    let (_, said) = with("128m").with("LIBCUDA_LOG_LEVEL", "3").allocates("a 1\n");
    assert!(said.contains("held by the limits that its tenant has"), "{said}");
    // The owner may change them meanwhile.
    let rows = with("64m").rows();
    assert_eq!((rows.len(), &rows[0]["memory_quota_bytes"]), (1, &(64u64 << 20).into()));
    let name = rows[0]["name"].as_str().unwrap().to_owned();
    let set = with("64m").partita(&format!("set {name} --mem 96MiB"));
    assert!(set.status.success(), "{set:?}");
    assert_eq!(living.line("a 1"), "0 94");
    drop(living);
    assert_eq!(with("128m").allocates("a 1\n").0, ["0 127"]);
}

#[test]
fn an_unknown_request_is_refused_and_the_program_continues() {
    let world = World::plan().own().start();
    let refused = |variable: &str, value: &str| Container::new(&world, "c").with(variable, value).refused();
    for (variable, value) in [
        (MEMORY, "lots"),
        (MEMORY, "-1"),
        (MEMORY, "99999999999999999999g"),
        ("CUDA_DEVICE_MEMORY_LIMIT_77", "1g"),
        (CORES, "half"),
        ("CUDA_DEVICE_SM_LIMIT_0", "\u{1b}[31m"),
        ("CUDA_TASK_PRIORITY", "urgent"),
    ] {
        let reason = refused(variable, value);
        assert!(reason.starts_with(variable) && reason.contains("is not understood"), "{reason}");
        assert!(!reason.contains('\u{1b}'), "nothing is passed on to the terminal");
    }
    for (cache, part) in [
        ("pod.cache", "absolute path"),
        ("/no/such/directory/pod.cache", "No such file or directory"),
        (&format!("{}/", world.dir().display()), "path of a file"),
    ] {
        let container = Container::new(&world, "c").with(CACHE, cache);
        let reason = container.with(MEMORY, "64m").refused();
        assert!(reason.contains(part), "{reason}");
        // Without a limit nothing is lost, so the program has the GPU.
        let (lines, said) = Container::new(&world, "c").with(CACHE, cache).allocates("a 1\n");
        assert!(lines[0].starts_with("0 ") && said.is_empty(), "{lines:?} {said}");
    }
}

#[test]
fn hami_cores_own_file_is_neither_read_nor_written() {
    let world = World::plan().own().start();
    let container = Container::new(&world, "c").with(MEMORY, "64m");
    let cache = container.dir.join("pod.cache");
    let content: Vec<u8> =
        (0..4096u32).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(&cache, &content).unwrap();
    let before = fs::metadata(&cache).unwrap().modified().unwrap();
    assert_eq!(container.allocates("a 1\n").0, ["0 63"]);
    assert_eq!(fs::read(&cache).unwrap(), content);
    assert_eq!(fs::metadata(&cache).unwrap().modified().unwrap(), before);
    // A foreign file in the way stays, too.
    let other = container_of(&world, "blocked", MEMORY, "64m");
    fs::write(other.root(), "somebody's").unwrap();
    assert!(other.refused().contains("is no directory; remove it"));
    assert_eq!(fs::read(other.root()).unwrap(), b"somebody's");
    // A ledger that is damaged, while no process lives.
    let damaged = container_of(&world, "damaged", MEMORY, "64m");
    assert_eq!(damaged.allocates("a 1\n").0, ["0 63"]);
    fs::write(damaged.tenants()[0].join("limits"), "nonsense").unwrap();
    assert!(damaged.refused().contains("instead of 4096"), "{}", damaged.refused());
}

/// Runs a script with the container's directory as `$1` in a new mount namespace; `None` if this
/// machine does not allow one.
fn in_own_mounts(container: &Container<'_>, script: &str) -> Option<Output> {
    let may = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no mount namespace can be had here");
        return None;
    }
    let mut command = container.command(Path::new("unshare"));
    command.args(["-rm", "sh", "-c", script]).arg(program(container.world, "spill")).arg(&container.dir);
    Some(command.output().expect("unshare runs"))
}

#[test]
fn a_directory_that_is_full_or_cannot_be_written_is_a_refusal() {
    let world = World::plan().own().start();
    for (options, expected) in [("size=64k", "No space left on device"), ("ro", "Read-only file system")] {
        let container = Container::new(&world, "c").with(MEMORY, "64m");
        let script = format!(
            "mount -t tmpfs -o {options} none \"$1\" && \"$0\"; code=$?; find \"$1\" -type f ! -name .lock; exit $code"
        );
        let Some(output) = in_own_mounts(&container, &script) else { return };
        let said = text(&output.stderr);
        assert!(said.contains(expected) && said.contains("cuInit: 101"), "{said}");
        assert_eq!(text(&output.stdout), "", "{options}: nothing is left");
    }
}

/// The setup of HAMi's device plugin: the file in place of theirs, and named in
/// `/etc/ld.so.preload`, which every program obeys.
#[test]
fn the_file_in_place_of_libvgpu_limits_a_whole_container_and_disturbs_no_program() {
    let world = World::plan().own().start();
    let container = Container::new(&world, "c").with(MEMORY, "64m");
    let library = container.dir.join("libvgpu.so");
    fs::copy(partita_testing::build().join("libpartita.so"), &library).unwrap();
    let script = r#"mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work &&
        mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc && echo "$1/libvgpu.so" > /etc/ld.so.preload &&
        exec sh -c '
            env | grep -c CUDA_DEVICE; ls / | grep -c etc; (echo one; echo two) | sort -r
            printf "a 65\na 64\n" | "$0"
            printf "a 65\na 64\n" | env -i LD_LIBRARY_PATH="$LD_LIBRARY_PATH" PARTITA_SIM_DIR="$PARTITA_SIM_DIR" \
                PARTITA_SIM_DEVICE="$PARTITA_SIM_DEVICE" PARTITA_SIMGPU="$PARTITA_SIMGPU" "$0"; :' "$0""#;
    let mut may = Command::new("unshare");
    may.args(["-rm", "sh", "-c"]).arg(
        "mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w && mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w /etc",
    );
    if !may.output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no overlay of /etc can be had here");
        return;
    }
    let mut command = container.command(Path::new("unshare"));
    command
        .env_remove("LD_PRELOAD")
        .args(["-rm", "sh", "-c", script])
        .arg(program(&world, "spill"))
        .arg(&container.dir);
    let output = command.output().expect("unshare runs");
    let lines = text(&output.stdout);
    let lines: Vec<&str> = lines.lines().filter(|&line| line != "done").collect();
    assert_eq!(lines, ["2", "1", "two", "one", "2 64", "0 0", "2 64", "0 0"], "{output:?}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn other_variables_do_what_the_table_says() {
    let world = World::plan().own().start();
    // An allocation that does not fit gets host memory.
    let container = Container::new(&world, "spills").with(MEMORY, "64m").with("CUDA_OVERSUBSCRIBE", "true");
    assert_eq!(container.allocates("a 48\na 48\n").0, ["0 16", "0 16"]);
    // No process is killed.
    let container = Container::new(&world, "killer").with(MEMORY, "64m").with("ACTIVE_OOM_KILLER", "true");
    let (lines, said) = container.allocates("a 65\na 64\n");
    assert_eq!(lines, ["2 64", "0 0"]);
    assert!(said.contains("ACTIVE_OOM_KILLER is not obeyed"), "{said}");
    // More than the device has, the device refuses.
    let (lines, _) = Container::new(&world, "more").with(MEMORY, "9999g").allocates("a 1\n");
    assert!(lines[0].starts_with("0 "), "{lines:?}");
    // Levels: silent, ignored requests, all requests.
    let level = |name: &str, level: &str| {
        let container = Container::new(&world, name).with(MEMORY, "64m").with("ACTIVE_OOM_KILLER", "1");
        container.with("LIBCUDA_LOG_LEVEL", level).allocates("a 1\n").1.lines().count()
    };
    assert_eq!((level("zero", "0"), level("one", "1"), level("four", "4")), (0, 1, 2));
    // The limits again where a container starts again.
    let again = || {
        let container = Container::new(&world, "again").with(MEMORY, "64m");
        container.with("LIBCUDA_LOG_LEVEL", "3").allocates("a 1\n").1
    };
    for said in [again(), again()] {
        assert_eq!(said.matches("memory limit 64MiB").count(), 1, "{said}");
    }
    // vgpu-manager's.
    let container =
        Container::new(&world, "vgpu").with("CUDA_MEM_LIMIT_0", "64m").with("CUDA_MEM_OVERSOLD_0", "false");
    assert_eq!(container.allocates("a 65\na 64\n").0, ["2 64", "0 0"]);
    let container =
        Container::new(&world, "oversold").with("CUDA_MEM_LIMIT", "64m").with("CUDA_MEM_OVERSOLD", "true");
    assert_eq!(container.allocates("a 65\n").0, ["0 64"]);
    let container =
        Container::new(&world, "soft").with("CUDA_MEM_LIMIT", "64m").with("CUDA_CORE_SOFT_LIMIT", "60");
    assert!(container.allocates("a 1\n").1.contains("CUDA_CORE_SOFT_LIMIT is not obeyed"));
}
