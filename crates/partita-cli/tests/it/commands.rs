//! Further commands: help, devices, simulated environments, doctor, demo.

use crate::common;

use std::fs;
use std::process::Command;

use common::{World, needs_simulator, text};
use partita_testing::succeed;

#[test]
fn help_and_manuals_are_complete() {
    let world = World::new();
    let help = world.ok("--help");
    for command in [
        "devices",
        "topology",
        "run",
        "set",
        "ps",
        "kill",
        "doctor",
        "demo",
        "mps",
        "sim",
        "completions",
        "help",
        "version",
        "bench",
        "chain",
    ] {
        assert!(help.contains(command), "{command} is not in {help}");
        let own = world.ok(&format!("{command} --help"));
        assert!(own.contains("Usage: partita"), "{own}");
        assert_eq!(world.ok(&format!("help {command}")), own);
    }
    assert!(!help.contains("internal"), "{help}");
    assert_eq!(world.ok("help"), help);
    assert_eq!(world.ok("help chain start"), world.ok("chain start --help"));
    assert!(world.refused("help nonsense").contains("nonsense"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(world.ok(&format!("completions {shell}")).contains("PARTITA_COMPLETE"), "{shell}");
    }
    assert!(world.ok("man").contains(".TH partita 1"));
    assert!(world.ok("man mps stop").contains("partita\\-mps\\-stop"));
    assert!(world.ok("man chain start").contains("partita\\-chain\\-start"));
    assert!(world.ok("man bench").contains("partita\\-bench"));
    assert!(world.refused("man chain nonsense").contains("partita-chain-nonsense"));
    assert!(world.refused("man nonsense").contains("partita-nonsense"));
    let dir = world.dir().join("prefix");
    world.ok(&format!("generate {}", dir.display()));
    let page = fs::read_to_string(dir.join("share/man/man1/partita-run.1")).unwrap();
    assert!(page.contains("partita") && page.contains("isolation"));
    for page in ["partita-bench.1", "partita-chain-start.1", "partitad.1", "partitad-keeper.1"] {
        assert!(dir.join("share/man/man1").join(page).exists(), "{page}");
    }
    assert!(dir.join("share/bash-completion/completions/partita").exists());
    let version = format!("partita {}", env!("CARGO_PKG_VERSION"));
    let said = world.ok("--version");
    assert_eq!(world.ok("version"), said);
    // In a checkout, the commit too.
    let commit = said.strip_prefix(&version).and_then(|rest| rest.strip_suffix('\n')).unwrap();
    let number = commit.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
    let is_commit = |text: &str| text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(commit.is_empty() || number.is_some_and(is_commit), "{said}");
}

/// `partita bench` and `partita chain` are separate programs.
#[test]
fn a_command_whose_program_is_not_installed_is_named() {
    let world = World::new();
    let mut command = world.partita(["chain", "ps"]);
    let output = command.env("PARTITA_LIB_DIR", world.dir()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert!(said.contains("partita-chain") && said.contains(world.dir().to_str().unwrap()), "{said}");
    for words in ["bench --seed x", "chain ps --nonsense", "chain nonsense"] {
        let said = world.refused(words);
        let program = words.split(' ').next().unwrap();
        assert!(said.contains(&format!("partita {program}")), "{said}");
    }
}

/// As in bash, where the script asks `partita` at each key.
#[test]
fn completions_know_tenants_chains_and_no_internal_command() {
    let world = World::new();
    let _held = world.idle("--name held --sm 10%");
    let script = world.dir().join("script");
    let test = r#"
        source <(partita completions bash)
        for line; do
            COMP_WORDS=($line) COMP_TYPE=9
            [[ $line == *" " ]] && COMP_WORDS+=("")
            COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
            _clap_complete_partita partita "${COMP_WORDS[COMP_CWORD]}" ""
            echo "${COMPREPLY[@]}"
        done"#;
    fs::write(&script, test).unwrap();
    let definition = world.dir().join("cameras.toml");
    fs::write(&definition, world.ok("chain define --example")).unwrap();
    let defined = world.line(&format!("chain define {}", definition.display()));
    assert!(defined.status.success(), "{defined:?}");
    assert!(text(&defined.stdout).contains("component decode: ./decode: no such program"), "{defined:?}");
    let lines = ["partita kill ", "partita set h", "partita chain stop ", "partita chain st", "partita "];
    let mut bash = world.bare("bash".as_ref());
    let programs = common::program().parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    bash.arg(&script).args(lines).env("PATH", format!("{}:{path}", programs.display()));
    let output = bash.output().unwrap();
    let said = text(&output.stdout);
    let answers: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    let [kill, set, chains, verbs, all] = &answers[..] else { panic!("{output:?}") };
    assert!(kill.contains(&"held"), "{kill:?}");
    assert_eq!(set, &["held"]);
    assert!(chains.contains(&"cameras"), "{chains:?}");
    assert_eq!(verbs, &["start", "stop", "steer"]);
    assert!(all.contains(&"run") && !all.iter().any(|word| word.contains("internal")), "{all:?}");
    assert!(!all.contains(&"generate"), "{all:?}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let world = World::new();
    let mut command = world.partita(["completions", "bash"]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn devices_are_listed() {
    let world = World::new();
    let devices: serde_json::Value = serde_json::from_str(&world.ok("devices --json")).unwrap();
    let gpu = &devices[0];
    assert!(gpu["uuid"].as_str().unwrap().starts_with("GPU-"), "{gpu}");
    assert!(gpu["memory_total_bytes"].as_u64().unwrap() > 1 << 30);
    assert!(world.ok("devices").lines().next().unwrap().starts_with("GPU"));
    if needs_simulator("the devices of the catalogue") {
        return;
    }
    for (device, name, capability) in
        [("h200", "H200", "9.0"), ("a100", "A100", "8.0"), ("gtx1060-3gb", "1060", "6.1")]
    {
        let devices: serde_json::Value =
            serde_json::from_str(&world.ok(&format!("devices --gpu sim:{device} --json"))).unwrap();
        assert!(devices[0]["name"].as_str().unwrap().contains(name), "{devices}");
        assert_eq!(devices[0]["compute_capability"], capability);
    }
}

#[test]
fn without_a_gpu_the_simulated_one_is_used_and_said_so() {
    if needs_simulator("this machine has a GPU") {
        return;
    }
    let world = World::new();
    let mut command = world.partita(["run", "--", "true"]);
    let output = command.env_remove("PARTITA_GPU").output().unwrap();
    assert!(output.status.success());
    let said = text(&output.stderr);
    // On a machine with a GPU the command uses that, without a message.
    assert!(
        said.is_empty() || (said.starts_with("partita: no GPU here") && said.contains("sim:h200")),
        "{said}"
    );
}

#[test]
fn the_simulated_environment_works_in_a_shell() {
    if needs_simulator("the simulated environment") {
        return;
    }
    let world = World::new();
    let (program, kernels) = common::gpu_program();
    let script = format!(
        "eval \"$(\"$0\" sim env --gpu sim:h200)\" && exec {} {} census",
        program.display(),
        kernels.display()
    );
    let base = world.partita(["x"]);
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(base.get_program());
    common::with_env_of(&mut command, &base);
    world.as_its_user(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(common::sms(text(&output.stdout).trim_end()).len(), 132);
}

#[test]
fn doctor_finds_this_machine_healthy() {
    let world = World::new();
    let output = world.line("doctor --json");
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let checks = report["checks"].as_array().unwrap();
    for check in checks {
        let name = check["name"].as_str().unwrap();
        let expected = match name {
            "products (mask)" => vec!["ok", "not_checked"],
            // Percentages break products on some devices, and machines are set up in many ways.
            "products (mps)" => vec!["ok", "weak", "not_checked"],
            name if name.starts_with("mps: ") => vec!["ok", "weak"],
            _ => vec!["ok"],
        };
        assert!(expected.contains(&check["state"].as_str().unwrap()), "{check}");
        assert!(!check["detail"].as_str().unwrap().is_empty(), "{check}");
    }
    for name in [
        "mode",
        "launch layout",
        "topology",
        "task slots",
        "masks",
        "quota",
        "mps service",
        "mps concurrency",
        "masks under mps",
        "mps: system",
        "mps: open files",
        "mps: compute mode",
        "products (mps)",
    ] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name} is missing");
    }
    assert_eq!(output.status.code(), Some(0));
    world.assert_clean();
}

#[test]
fn doctor_says_what_is_missing() {
    if needs_simulator("parts are removed") {
        return;
    }
    let world = World::new();
    let dir = world.dir().join("lib");
    fs::create_dir(&dir).unwrap();
    for part in ["libpartita_simcuda.so", "partita-simgpu"] {
        std::os::unix::fs::symlink(partita_testing::build().join(part), dir.join(part)).unwrap();
    }
    fs::write(dir.join("partita-sim-mps-control"), "").unwrap();
    let output = world.partita(["doctor"]).env("PARTITA_LIB_DIR", &dir).output().unwrap();
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let line =
        |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
    assert!(line("hook").contains("FAILED") && line("hook").contains("libpartita.so"), "{table}");
    assert!(line("mps program").contains("FAILED"), "{table}");
    assert!(line("masks").contains("not checked"), "{table}");
}

#[test]
fn doctor_names_exports_that_it_does_not_know() {
    if needs_simulator("the driver is another one") {
        return;
    }
    let world = World::new();
    // What the doctor's child finds with a driver of tomorrow.
    let source = "int cuInit(unsigned flags) { return 0; } int cuOfTomorrow(void) { return 0; }";
    fs::write(world.dir().join("tomorrow.c"), source).unwrap();
    let library = world.dir().join("libcuda.so.1");
    succeed(
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(world.dir().join("tomorrow.c")),
    );
    let mut job = world.partita(["internal-job", "exports", "null"]);
    let output = succeed(job.env("LD_LIBRARY_PATH", world.dir()));
    let answer = text(&output.stdout);
    assert!(answer.contains(r#""count":2,"unknown":["cuOfTomorrow"]"#), "{answer}");
}

#[test]
fn the_demo_shows_what_partitions_do() {
    let world = World::new();
    let svg = world.dir().join("demo.svg");
    let outcome: serde_json::Value =
        serde_json::from_str(&world.ok(&format!("demo --json --svg {}", svg.display()))).unwrap();
    let scenes = outcome["scenes"].as_array().unwrap();
    assert_eq!(scenes.len(), 3);
    for scene in scenes {
        assert!(scene["serve"]["requests"].as_u64().unwrap() > 0, "{scene}");
    }
    let picture = fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for part in ["beside greedy, no partitions", "beside greedy, partitions", "p99"] {
        assert!(picture.contains(part), "{part} is not in the picture");
    }
    // The ground, two names, two panels, and what ran.
    assert!(picture.matches("<rect").count() > 5);
    world.assert_clean();
}

/// The result is there although the picture is not.
#[test]
fn the_demo_says_that_it_cannot_write_its_picture() {
    let world = World::new();
    // A directory of this name cannot be written as a file, not even by root.
    let place = world.make_dir("place");
    world.make_dir("place/partita-demo.svg");
    let run = |arguments: &[&str]| world.partita(arguments).current_dir(&place).output().unwrap();
    let output = run(&["demo"]);
    assert!(output.status.success() && text(&output.stdout).contains("p99"), "{output:?}");
    assert!(text(&output.stderr).contains("partita-demo.svg: "), "{output:?}");
    let output = run(&["demo", "--svg", "partita-demo.svg"]);
    assert!(output.status.code() == Some(125) && text(&output.stdout).contains("p99"), "{output:?}");
}

#[test]
fn sample_programs_use_what_their_tenant_has() {
    let world = World::new();
    let program = common::program().display();
    let json = |line: &str| -> serde_json::Value { serde_json::from_str(&world.ok(line)).unwrap() };
    let census = json(&format!("run --sm 10% --mem 1GiB -- {program} sim census --json"));
    assert_eq!(census["sms"].as_array().unwrap().len(), 12);
    let burnt =
        json(&format!("run --sm 10% --mem 1GiB -- {program} sim burn --seconds 0 --mem 512MiB --json"));
    assert_eq!(burnt["kernels"], 0);
    let burn = format!("run --sm 10% --mem 1GiB -- {program} sim burn --seconds 1 --mem 2GiB");
    assert!(world.refused(&burn).contains("OUT_OF_MEMORY"), "the quota holds");
    assert!(world.refused("sim census").contains("run it in a tenant"));
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    let world = World::new();
    for line in ["--help", "--version", "run --help"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = world.partita(line.split_whitespace()).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{line}");
        assert!(text(&output.stderr).contains("stdout: "), "{line}: {output:?}");
    }
}

#[test]
fn lists_of_gpus_from_the_environment() {
    if needs_simulator("it has two GPUs") {
        return;
    }
    // With a directory of calibrations of its own: other tests measure the same GPUs.
    let world = World::plan()
        .on(|dir| vec![("PARTITA_SIM_GPUS", "2".into()), ("PARTITA_CACHE_DIR", dir.join("cache").into())]);
    let several = |line: &str| {
        let mut command = world.partita(line.split_whitespace());
        command.env("PARTITA_GPU", "sim:h200,sim:h200:1").output().unwrap()
    };
    let count = |listed: &str| listed.lines().filter(|line| line.starts_with("sim:h200")).count();
    assert_eq!(count(&text(&several("devices").stdout)), 2);
    assert!(text(&several("doctor").stderr).contains("PARTITA_GPU=sim:h200,sim:h200:1: this command"));
    let listed = world.ok("devices --gpu sim:h200:all");
    assert!(count(&listed) == 2 && listed.contains("not measured yet"), "{listed}");
    let invalid = world.partita(["run", "--", "true"]).env("PARTITA_SIM_GPUS", "abc").output().unwrap();
    assert!(text(&invalid.stderr).starts_with("partita: PARTITA_SIM_GPUS=abc: "), "{invalid:?}");
}

#[test]
fn the_demo_draws_in_characters() {
    let world = World::new();
    let svg = world.dir().join("demo.svg");
    let picture = world.ok(&format!("demo --svg {}", svg.display()));
    for part in ["█ serve", "░ greedy", "partitions", "p99", "demo.svg"] {
        assert!(picture.contains(part), "{part} is not in {picture}");
    }
    // With partitions no SM has blocks of both. Anything else depends on the machine.
    let (_, parted) = picture.split_once("Beside greedy, partitions").unwrap();
    let rows: Vec<&str> = parted.lines().filter(|line| line.contains("SMs |")).collect();
    assert!(rows.len() >= 2, "{picture}");
    for row in &rows {
        let tenants = ['█', '░', '▒'].into_iter().filter(|tenant| row.contains(*tenant));
        assert!(tenants.count() <= 1 && !row.contains('▒'), "{picture}");
    }
}
