//! Bad input gets one line that names the cause and the remedy, and exit code 125, and has no other
//! effect.

use crate::common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{World, is_real, needs_simulator, refusal, refusal_by, text};
use partita_testing::{eventually, executable, succeed};

/// Asserts that a refusal says all of this.
#[track_caller]
fn says(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
}

#[test]
fn an_invalid_share() {
    let world = World::new();
    for (share, part) in [
        ("lots", "lots"),
        ("", "--sm"),
        ("-5%", "-5%"),
        ("101%", "101%"),
        ("0%", "0%"),
        ("0tpc", "0tpc"),
        ("41sm", "40sm or 42sm"),
        ("gpc:99", "99"),
        ("tpc:4000", "4000"),
        ("9999999999999999999sm", "9999999999999999999sm"),
    ] {
        let line = refusal(&mut world.partita(["run", &format!("--sm={share}"), "--", "true"]));
        says(&line, &[part]);
        world.assert_clean();
    }
}

#[test]
fn a_share_that_does_not_fit() {
    let world = World::new();
    let _held = world.idle("--name holder --sm 60%");
    let line = world.refused("run --name late --sm 50% -- true");
    says(&line, &["50%", "does not fit", "holder", "ask for `--sm 4"]);
    let row = world.row("holder");
    let first = common::tpcs(row["tpcs"].as_str().unwrap())[0];
    says(&world.refused(&format!("run --sm tpc:{first} -- true")), &["holder", "tpc:"]);
    assert_eq!(world.ps().len(), 1);
}

#[test]
fn a_gpu_that_is_not_here() {
    let world = World::new();
    for (gpu, parts) in [
        ("99", &["no GPU 99"][..]),
        ("GPU-deadbeef", &["GPU-deadbeef"]),
        ("sim:rtx9999", &["sim:rtx9999", "sim:h200"]),
        ("h200", &["h200", "sim:h200"]),
        ("-1", &["-1"]),
    ] {
        for verb in ["run", "devices", "doctor", "demo"] {
            let mut command = world.partita([verb, &format!("--gpu={gpu}")]);
            if verb == "run" {
                command.args(["--", "true"]);
            }
            says(&refusal(&mut command), parts);
        }
        world.assert_clean();
    }
}

#[test]
fn a_list_of_libraries_that_is_none() {
    let world = World::new();
    let (binary, dir) = (world.dir().join("binary"), world.dir().to_owned());
    fs::write(&binary, [0xff, 0xfe]).unwrap();
    let mut cases = vec![
        ("status", binary, "it is not UTF-8 text; name the right file with --file"),
        ("status", dir.clone(), "it is not a regular file; name one with --file"),
    ];
    if rustix::process::geteuid().is_root() {
        cases.push(("enable", dir.join("none/file"), "name a file in a directory that is there"));
        cases.push(("disable", dir.join("none/file"), "name a file in a directory that is there"));
    }
    for (verb, file, part) in cases {
        let file = file.to_str().unwrap();
        says(&refusal(&mut world.partita(["preload", verb, "--file", file])), &[file, part]);
    }
}

#[test]
fn a_quota_that_cannot_be() {
    let world = World::new();
    for (quota, parts) in [
        ("100TiB", &["100TiB", "ask for at most"][..]),
        ("0", &["--mem 0"]),
        ("lots", &["lots"]),
        ("-1GiB", &["-1GiB"]),
        ("99999999999999999999GiB", &["99999999999999999999GiB"]),
    ] {
        says(&refusal(&mut world.partita(["run", &format!("--mem={quota}"), "--", "true"])), parts);
        world.assert_clean();
    }
    let total: u64 = {
        let devices: serde_json::Value =
            serde_json::from_str(&text(&world.line("devices --json").stdout)).unwrap();
        let gpus = devices.as_array().unwrap();
        gpus[0]["memory_total_bytes"].as_u64().unwrap()
    };
    let most = format!("{}B", total / 10 * 6);
    let _held = world.idle(&format!("--name big --sm 10% --mem {most}"));
    says(&world.refused(&format!("run --sm 10% --mem {most} -- true")), &["big", "was promised", "or less"]);
}

#[test]
fn an_invalid_name_or_one_in_use() {
    let world = World::new();
    for name in ["", ".hidden", "..", "a/b", "a b", "-x", "ü", &"x".repeat(64)] {
        says(&refusal(&mut world.partita(["run", &format!("--name={name}"), "--", "true"])), &["63", "A-Z"]);
    }
    world.assert_clean();
    let _held = world.idle("--name taken --sm 10%");
    says(&world.refused("run --name taken --sm 10% -- true"), &["taken", "in use", "partita kill taken"]);
    for line in ["set nobody --sm 10%", "kill nobody"] {
        says(&world.refused(line), &["no tenant nobody", "taken"]);
    }
}

#[test]
fn a_program_that_cannot_be_run_or_held() {
    let world = World::new();
    let plain = world.dir().join("plain");
    fs::write(&plain, "x").unwrap();
    let fixed = world.dir().join("fixed");
    let source = world.dir().join("fixed.c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let compiled = Command::new("cc").arg("-static").arg("-o").arg(&fixed).arg(&source).status().unwrap();
    assert!(compiled.success());
    let secret = world.dir().join("secret");
    executable(&secret, &fs::read("/bin/true").unwrap());
    for (code, program, parts) in [
        (127, PathBuf::from("no-such-program-here"), &["no-such-program-here", "PATH"][..]),
        (127, PathBuf::from("/no/such/program"), &["/no/such/program", "check the path"]),
        (126, world.dir().to_owned(), &["is a directory"]),
        (126, plain, &["not executable", "chmod +x"]),
        (125, fixed, &["statically linked", "dynamically linked build"]),
    ] {
        says(&refusal_by(code, world.partita(["run", "--"]).arg(program)), parts);
        world.assert_clean();
    }
    // Set-user-id to another user than the one who runs it: needs root.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&secret, Some(65534), Some(65534)).unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o4755)).unwrap();
        says(&refusal(world.partita(["run", "--"]).arg(&secret)), &["set-user-id", "run a copy"]);
    }
    says(&world.refused("run --sm 10%"), &["CMD", "partita run --help"]);
}

#[test]
fn nvidias_debugger_needs_a_tenant_that_takes_turns() {
    let world = World::new();
    let debugger = world.dir().join("cuda-gdb");
    symlink("/bin/true", &debugger).unwrap();
    let run = |options: &str| {
        let mut command = world.partita(format!("run {options} --").split_whitespace());
        command.arg(&debugger);
        command
    };
    says(&refusal(&mut run("--sm 10%")), &["cuda-gdb", "no other client", "--isolation own"]);
    world.assert_clean();
    succeed(&mut run("--sm 10% --isolation own"));

    let _tenant = world.idle("--sm 10% --name beside");
    let mut exec = world.partita(["exec", "beside", "--"]);
    says(&refusal(exec.arg(&debugger)), &["cuda-gdb", "--isolation own"]);
}

#[test]
fn what_this_build_does_not_enforce() {
    let world = World::new();
    for (options, part) in [
        ("--via green", "auto, mask, time"),
        ("--via mps", "auto, mask, time"),
        ("--via time", "--via time is refused"),
        ("--via time --sm 30% --time 30%", "--via time with --sm is refused"),
        ("--time 30", "use a percentage"),
    ] {
        says(&world.refused(&format!("run {options} -- true")), &[part]);
    }
    says(&world.refused("set x"), &["nothing to change"]);
    world.assert_clean();
}

/// A world in whose installation `replace` made one part different.
fn altered(name: &str, replace: impl FnOnce(&Path)) -> World {
    World::plan().on(|dir| {
        let dir = dir.join("lib");
        fs::create_dir(&dir).unwrap();
        for part in ["libpartita.so", "libpartita_simcuda.so", "partita-simgpu", "partita-sim-mps-control"] {
            if part != name {
                symlink(partita_testing::build().join(part), dir.join(part)).unwrap();
            }
        }
        replace(&dir.join(name));
        vec![("PARTITA_LIB_DIR", dir.into())]
    })
}

/// The simulated driver with another name for its table of private calls: no launch descriptor can
/// be proved.
pub fn unproved() -> World {
    altered("libpartita_simcuda.so", |path| {
        let name = [0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e];
        let mut driver = fs::read(partita_testing::build().join("libpartita_simcuda.so")).unwrap();
        let places: Vec<usize> = driver
            .windows(name.len())
            .enumerate()
            .filter(|(_, bytes)| *bytes == name)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "the driver knows the table's name");
        for at in places {
            driver[at] ^= 0xff;
        }
        fs::write(path, driver).unwrap();
    })
}

#[test]
fn a_driver_that_cannot_be_proved() {
    if needs_simulator("the driver is altered") {
        return;
    }
    let world = unproved();
    let line = world.refused("run -- true");
    says(&line, &["could not be proved", "--via persistent", "partita doctor"]);
    world.assert_clean();
}

#[test]
fn a_driver_that_hangs_or_is_missing() {
    if needs_simulator("the driver is altered") {
        return;
    }
    let world = altered("libpartita_simcuda.so", |path| fs::write(path, "no library").unwrap());
    let line = world.refused("run -- true");
    says(&line, &["libnvidia-ml.so.1"]);
    world.assert_clean();
}

#[test]
fn missing_parts_of_the_installation() {
    let world = World::new();
    let empty = world.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let line = refusal(world.partita(["run", "--", "true"]).env("PARTITA_LIB_DIR", &empty));
    says(&line, &["libpartita.so", "PARTITA_LIB_DIR"]);
    world.assert_clean();
}

#[test]
fn no_mps_program() {
    let world = match is_real() {
        true => World::new(),
        false => altered("partita-sim-mps-control", |path| fs::write(path, "").unwrap()),
    };
    let mut command = world.partita(["run", "--", "/bin/true"]);
    if is_real() {
        command.env("PATH", world.dir());
    }
    says(&refusal(&mut command), &["programs of MPS were not found", "--isolation own"]);
    world.assert_clean();
}

#[test]
fn an_mps_service_that_does_not_start() {
    if needs_simulator("the MPS program is altered") {
        return;
    }
    let world = altered("partita-sim-mps-control", |path| {
        executable(path, b"#!/bin/sh\necho 'Failed to bind' >&2\nexit 1\n");
    });
    let line = world.refused("run -- true");
    says(&line, &["did not start", "Failed to bind"]);
    eventually("no process is left", || world.processes().is_empty());
    assert!(world.ps().is_empty());
}

#[test]
fn no_permission() {
    let world = World::new();
    let file = world.dir().join("file");
    fs::write(&file, "").unwrap();
    for bad in [file.join("below"), PathBuf::from("/proc/partita"), file] {
        let line = refusal(world.partita(["run", "--", "true"]).env("PARTITA_RUN_DIR", &bad));
        says(&line, &[bad.to_str().unwrap(), "PARTITA_RUN_DIR"]);
    }
    let open = world.dir().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    says(&refusal(world.partita(["ps"]).env("PARTITA_RUN_DIR", &open)), &["mode 777", "chmod 1777"]);
    let long = world.dir().join("x".repeat(100));
    let line = refusal(world.partita(["run", "--", "true"]).env("PARTITA_RUN_DIR", &long));
    says(&line, &["bytes long", "PARTITA_RUN_DIR"]);
    assert!(fs::read_dir(&long).unwrap().all(|entry| entry.unwrap().file_name() == ".lock"));
}

#[test]
fn a_damaged_ledger() {
    let world = World::new();
    let damages: [fn(&Path); 6] = [
        |path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap(),
        |path| fs::write(path, vec![0; 4096]).unwrap(),
        |path| fs::write(path, vec![0xff; 4096]).unwrap(),
        |path| fs::remove_file(path).unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            symlink("/etc/passwd", path).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let name = format!("victim{number}");
        let mut tenant = world.idle(&format!("--name {name} --sm 10%"));
        damage(&world.gpu_dir().join(&name).join("limits"));
        // Its limits are unknown, so no other tenant can get anything of the GPU.
        for line in [format!("set {name} --sm 5%"), "run --sm 5% -- true".to_owned()] {
            says(&world.refused(&line), &[&name, "limits", &format!("partita kill {name}")]);
        }
        let row = world.row(&name);
        says(row["problem"].as_str().unwrap(), &["limits"]);
        world.ok(&format!("kill {name}"));
        assert_eq!(tenant.exit_code(), 128 + 15);
        assert!(world.ps().is_empty());
    }
}

#[test]
fn a_hostile_ledger() {
    let world = World::new();
    // A meta file that names processes of others: they must survive.
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut tenant = world.idle("--name liar --sm 10%");
    let meta = world.gpu_dir().join("liar/meta.json");
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&meta).unwrap()).unwrap();
    json["child"] = serde_json::json!({ "pid": bystander.id(), "start_ticks": 1 });
    fs::write(&meta, json.to_string()).unwrap();
    world.ok("kill liar");
    assert_eq!(tenant.exit_code(), 128 + 15);
    assert!(bystander.try_wait().unwrap().is_none(), "a bystander was ended");
    bystander.kill().unwrap();
    bystander.wait().unwrap();

    for bad in ["", "{", "[]", "{\"version\": 1}", &"[".repeat(100_000)] {
        let mut tenant = world.idle("--name babbler --sm 10%");
        fs::write(world.gpu_dir().join("babbler/meta.json"), bad).unwrap();
        says(world.row("babbler")["problem"].as_str().unwrap(), &["meta.json"]);
        world.ok("kill babbler");
        tenant.exit_code();
    }

    // Pipes instead of files: no command waits for a writer.
    for file in ["owner", "meta.json", "limits", "usage"] {
        let mut tenant = world.idle("--name piper --sm 10%");
        let dir = world.gpu_dir().join("piper");
        let pipe = dir.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // Replaced in one call: a tenant without its owner file counts as dead and is removed.
        fs::rename(&pipe, dir.join(file)).unwrap();
        world.ps();
        let _ = world.line("kill piper");
        tenant.signal(rustix::process::Signal::TERM);
        tenant.exit_code();
        assert!(world.ps().is_empty(), "{file}");
    }

    // Foreign entries.
    let mut tenant = world.idle("--name honest --sm 10%");
    let dir = world.gpu_dir();
    fs::write(dir.join("file"), "x").unwrap();
    symlink("/", dir.join("link")).unwrap();
    fs::create_dir(dir.join("not a name")).unwrap();
    assert_eq!(world.ps().len(), 1);
    fs::remove_file(dir.join("file")).unwrap();
    fs::remove_file(dir.join("link")).unwrap();
    fs::remove_dir(dir.join("not a name")).unwrap();
    world.ok("kill honest");
    tenant.exit_code();
}

#[test]
fn a_tenant_inside_a_tenant() {
    let world = World::new();
    let mut command = world.partita(["run", "--name", "outer", "--sm", "10%", "--"]);
    command.arg(common::program()).args(["run", "--sm", "10%", "--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    says(&text(&output.stderr), &["runs in tenant outer already"]);
}

#[test]
fn invalid_arguments() {
    let world = World::new();
    for (line, parts) in [
        ("frobnicate", &["frobnicate", "partita --help"][..]),
        ("psx", &["psx", "did you mean ps"]),
        ("run --smm 5% -- true", &["--smm", "--sm", "partita run --help"]),
        ("run --via magic -- true", &["magic", "auto, mask", "partita run --help"]),
        ("kill", &["NAMES", "partita kill --help"]),
        ("kill x --grace soon", &["soon", "partita kill --help"]),
        ("mps dance", &["dance", "partita mps --help"]),
    ] {
        says(&world.refused(line), parts);
    }
    world.assert_clean();
}
