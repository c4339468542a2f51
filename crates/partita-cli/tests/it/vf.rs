//! Virtual functions and vGPUs, on a directory that acts as the kernel's files.

use crate::common;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use common::{World, needs_simulator, needs_user_mode, refusal, text};
use partita_testing::succeed;
use partita_testing::sysfs::{EBUSY, EINVAL, ENOSPC, Fault, Kernel, Kind, Served, TYPES};
use serde_json::Value;

const MLU: &str = "0000:1b:00.0";
const GPU: &str = "0000:2b:00.0";

/// A machine with these devices.
fn machine(devices: &[(&str, Kind)]) -> (World, Served) {
    let world = World::plan().own().start();
    let root = world.make_dir("root");
    let mut kernel = Kernel::new(&root);
    for (address, kind) in devices {
        kernel.add(address, *kind, 8);
    }
    (world, Served::new(kernel))
}

fn partita(world: &World, served: &Served, line: &str) -> Command {
    let mut command = world.partita(line.split_whitespace());
    served.surround(&mut command);
    command
}

fn list(world: &World, served: &Served) -> Value {
    let output = succeed(&mut partita(world, served, "vf list --json"));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn functions_are_planned_created_once_assigned_and_destroyed() {
    if needs_user_mode("only root changes functions") {
        return;
    }
    let (world, served) = machine(&[(MLU, Kind::Plain)]);
    let start = served.snapshot();
    for line in ["vf plan --count 4", "vf create --count 4 --dry-run"] {
        let plan = text(&succeed(&mut partita(&world, &served, line)).stdout);
        assert!(plan.contains(&format!("write \"4\" to /sys/bus/pci/devices/{MLU}/sriov_numvfs")), "{plan}");
        assert!(plan.ends_with("nothing was changed: this is a plan\n"), "{plan}");
    }
    assert_eq!((served.snapshot(), served.writes()), (start.clone(), 0));
    succeed(&mut partita(&world, &served, "vf create --count 4"));
    let again = text(&succeed(&mut partita(&world, &served, "vf create --count 4")).stdout);
    assert!(again.ends_with("nothing to change\n"), "{again}");
    assert_eq!(served.writes(), 1);
    assert_eq!(list(&world, &served)[0]["functions"].as_array().unwrap().len(), 4);
    // Another number: the kernel wants none in between.
    succeed(&mut partita(&world, &served, "vf create --count 2"));
    let assigned = text(&succeed(&mut partita(&world, &served, "vf assign 0000:1b:01.1")).stdout);
    assert!(assigned.contains("<hostdev mode='subsystem' type='pci'"), "{assigned}");
    assert!(assigned.contains("-device vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:1b:01.1"), "{assigned}");
    let functions = list(&world, &served)[0]["functions"].clone();
    assert_eq!((&functions[0]["driver"], &functions[1]["driver"]), (&"own".into(), &"vfio-pci".into()));
    let table = text(&succeed(&mut partita(&world, &served, "vf list")).stdout);
    assert!(table.contains("SR-IOV, driver own, 2 of 8 functions enabled"), "{table}");
    succeed(&mut partita(&world, &served, "vf assign 0000:1b:01.1 --release"));
    assert_eq!(list(&world, &served)[0]["functions"][1]["driver"], "own");
    succeed(&mut partita(&world, &served, "vf destroy --all"));
    assert_eq!(served.snapshot(), start);
}

#[test]
fn vgpus_of_both_forms_are_created_and_destroyed_beside_each_other() {
    if needs_user_mode("only root changes vGPUs") {
        return;
    }
    let (world, served) = machine(&[(MLU, Kind::Functions), (GPU, Kind::MediatedDevice)]);
    let start = served.snapshot();
    let said = refusal(&mut partita(&world, &served, "vf create --want 12Q"));
    assert!(said.contains(&format!("name one of {MLU}, {GPU} with --device")), "{said}");
    for (device, parts) in [(MLU, "12Q,12Q"), (GPU, "8Q,8Q,8Q")] {
        let line = format!("vf create --device {device} --want {parts}");
        let made = text(&succeed(&mut partita(&world, &served, &line)).stdout);
        assert_eq!(made.matches("-device vfio-pci").count(), parts.split(',').count(), "{made}");
    }
    let rows = list(&world, &served);
    let names = |row: &Value| -> Vec<String> {
        let vgpus = row["vgpus"].as_array().unwrap();
        vgpus.iter().map(|vgpu| vgpu["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&rows[0]), ["0000:1b:01.0", "0000:1b:01.1"]);
    assert_eq!(names(&rows[1]).len(), 3);
    succeed(&mut partita(&world, &served, &format!("vf destroy {}", names(&rows[1])[1])));
    succeed(&mut partita(&world, &served, "vf destroy 0000:1b:01.0"));
    let rows = list(&world, &served);
    assert_eq!((names(&rows[0]).len(), names(&rows[1]).len()), (1, 2));
    for device in [MLU, GPU] {
        succeed(&mut partita(&world, &served, &format!("vf destroy --all --device {device}")));
    }
    assert_eq!(served.snapshot(), start);
}

#[test]
fn killed_at_every_write_create_goes_on_or_goes_back() {
    if needs_user_mode("only root changes vGPUs") {
        return;
    }
    for (kind, before, line, count) in [
        (Kind::Plain, "vf create --count 3", "vf create --count 5", 2),
        (Kind::MediatedFunctions, "vf create --want 24Q,24Q", "vf create --want 8Q,8Q", 4),
    ] {
        let (world, served) = machine(&[(MLU, kind)]);
        succeed(&mut partita(&world, &served, before));
        for at in 1..=count {
            for fault in [Fault::KillBefore, Fault::KillAfter] {
                for end in [line, "vf create --restore"] {
                    let start = served.snapshot();
                    served.fault(&[(at, fault)]);
                    let output = partita(&world, &served, line).output().unwrap();
                    assert_eq!(output.status.signal(), Some(9), "{line} {fault:?} at {at}: {output:?}");
                    served.fault(&[]);
                    assert_eq!(list(&world, &served)[0]["is_interrupted"], true);
                    let ended = text(&succeed(&mut partita(&world, &served, end)).stdout);
                    assert!(
                        ended.contains("interrupted") || ended.ends_with("nothing to change\n"),
                        "{ended}"
                    );
                    assert_eq!(list(&world, &served)[0]["is_interrupted"], false);
                    if end == line {
                        let again = text(&succeed(&mut partita(&world, &served, line)).stdout);
                        assert!(again.ends_with("nothing to change\n"), "{again}");
                        // Types that are used up have their numbers alone, so from none.
                        succeed(&mut partita(&world, &served, "vf destroy --all"));
                        succeed(&mut partita(&world, &served, before));
                    } else {
                        assert_eq!(served.snapshot(), start, "{line} {fault:?} at {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_write_that_the_kernel_refuses_is_named_and_nothing_stays() {
    if needs_user_mode("only root changes functions") {
        return;
    }
    let (world, served) = machine(&[(MLU, Kind::Plain)]);
    succeed(&mut partita(&world, &served, "vf create --count 3"));
    let start = served.snapshot();
    for at in [1, 2] {
        for (code, words) in [
            (EBUSY, "functions are in use"),
            (ENOSPC, "enable SR-IOV and large BARs"),
            (EINVAL, "ask for another number"),
        ] {
            served.fault(&[(at, Fault::Error(code))]);
            let said = refusal(&mut partita(&world, &served, "vf create --count 5"));
            assert!(said.contains(words) && said.contains("/sriov_numvfs"), "{said}");
            assert!(said.trim_end().ends_with("what was before is in place again"), "{said}");
            assert_eq!(served.snapshot(), start);
        }
    }
    served.fault(&[]);
    for (line, part) in [
        ("vf create --count 9", "ask for at most 8"),
        ("vf create --want 8Q", "--count"),
        ("vf create", "--help"),
        ("vf create --count 70000", "70000"),
        ("vf create --restore", "nothing to restore"),
        ("vf destroy 0000:1b:01.0", "only all together"),
        ("vf assign 0000:99:01.0", "no function or vGPU 0000:99:01.0"),
        ("vf plan --device 0000:99:00.0 --count 1", "there are 0000:1b:00.0"),
    ] {
        let said = refusal(&mut partita(&world, &served, line));
        assert!(said.contains(part), "{line}: {said}");
    }
    assert_eq!(served.snapshot(), start);
}

#[test]
fn all_ways_are_compared_and_those_of_this_machine_are_found() {
    if needs_user_mode("only root changes functions") {
        return;
    }
    let rows = |world: &World, served: &Served| -> Vec<(String, bool)> {
        let output = succeed(&mut partita(world, served, "compare --gpu sim:h200 --json"));
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = rows.as_array().unwrap().clone();
        rows.iter()
            .map(|row| (row["name"].as_str().unwrap().to_owned(), row["is_available"] == true))
            .collect()
    };
    let (world, served) = machine(&[]);
    let none = rows(&world, &served);
    assert_eq!(none.len(), 10, "{none:?}");
    assert!(none.contains(&("vf (SR-IOV)".to_owned(), false)) && none.contains(&("vgpu".to_owned(), false)));
    assert!(none.contains(&("time: budget".to_owned(), true)) && none.contains(&("mig".to_owned(), false)));
    let (world, served) = machine(&[(MLU, Kind::Plain), (GPU, Kind::MediatedDevice)]);
    let both = rows(&world, &served);
    assert!(both.contains(&("vf (SR-IOV)".to_owned(), true)) && both.contains(&("vgpu".to_owned(), true)));
    let table = text(&succeed(&mut partita(&world, &served, "compare --gpu sim:h200")).stdout);
    assert!(table.contains("0000:1b:00.0: 0 of 8 functions") && table.contains("not measured"), "{table}");
}

/// A GPU whose vGPU driver NVML shows, and the driver's file.
fn with_nvml() -> (World, Served, std::path::PathBuf) {
    let world = World::plan().own().on(|_| {
        let one = |(id, name, gib): &(u32, &str, u32)| format!("{id}:{name}:{gib}");
        let types: Vec<String> = TYPES.iter().map(one).collect();
        vec![("PARTITA_SIM_VGPU", types.join(",").into()), ("PARTITA_GPU", "sim:h200".into())]
    });
    let root = world.make_dir("root");
    let mut kernel = Kernel::new(&root);
    kernel.add(MLU, Kind::Functions, 8);
    let file = world.dir().join("sim/h200.vgpu");
    kernel.nvml = Some(file.clone());
    (world, Served::new(kernel), file)
}

fn kinds(world: &World, served: &Served) -> Vec<u64> {
    let rows = list(world, served);
    rows[0]["vgpus"].as_array().unwrap().iter().map(|vgpu| vgpu["kind"].as_u64().unwrap()).collect()
}

#[test]
fn several_sizes_and_the_scheduler_go_through_nvml_and_come_back() {
    if needs_simulator("it has NVIDIA's vGPU driver") || needs_user_mode("only root changes vGPUs") {
        return;
    }
    let (world, served, file) = with_nvml();
    let start = served.snapshot();
    let plan =
        text(&succeed(&mut partita(&world, &served, "vf plan --ratio 2:1:1 --scheduler equal")).stdout);
    let steps = ["several sizes", "set the scheduler: equal", "create vGPU A40-24Q", "create vGPU A40-12Q"];
    let places: Vec<usize> = steps.iter().map(|step| plan.find(step).expect(step)).collect();
    assert!(places.is_sorted(), "{plan}");
    let create = "vf create --ratio 2:1:1 --scheduler equal --time-slice 2000";
    succeed(&mut partita(&world, &served, create));
    assert_eq!(kinds(&world, &served), [102, 103, 103]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "1 2 1 2000000 0");
    let again = text(&succeed(&mut partita(&world, &served, create)).stdout);
    assert!(again.ends_with("nothing to change\n"), "{again}");
    // Types that are used up keep their names, and one size needs no mode.
    succeed(&mut partita(&world, &served, "vf create --want 24Q,24Q --scheduler best-effort"));
    assert_eq!(kinds(&world, &served), [102, 102]);
    let told = std::fs::read_to_string(&file).unwrap();
    let kept = served.snapshot();
    // NVML fails, and so does the way back, which asks it for the same; then each write fails.
    let line = "vf create --want 24Q,12Q,8Q --scheduler equal";
    let said = refusal(partita(&world, &served, line).env("PARTITA_SIM_VGPU_FAULT", "1"));
    assert!(said.contains("in use by another client"), "{said}");
    if list(&world, &served)[0]["is_interrupted"] == true {
        succeed(&mut partita(&world, &served, "vf create --restore"));
    }
    assert_eq!((std::fs::read_to_string(&file).unwrap(), served.snapshot()), (told.clone(), kept.clone()));
    for at in 1..=3 {
        served.fault(&[(at, Fault::Error(EINVAL))]);
        let said = refusal(&mut partita(&world, &served, line));
        assert!(said.contains("what was before is in place again"), "{said}");
        assert_eq!(
            (std::fs::read_to_string(&file).unwrap(), served.snapshot()),
            (told.clone(), kept.clone())
        );
    }
    served.fault(&[]);
    for (line, part) in [
        ("vf plan --want 8Q --scheduler fair", "use one of best-effort, equal, fixed"),
        (
            "vf plan --ratio 2:1:1 --scheduler fixed",
            "no fixed share while vGPUs of several sizes are allowed",
        ),
        ("vf plan --ratio 5:3", "no types of vGPUs stand in this ratio"),
        ("vf plan --ratio 1:0", "numbers from 1 on"),
        ("vf plan --want 48Q,8Q", "need 56 GiB, and the GPU has 48 GiB for vGPUs; 48Q would fit"),
        ("vf plan --want 8Q --time-slice 0", "--help"),
    ] {
        let said = refusal(&mut partita(&world, &served, line));
        assert!(said.contains(part), "{line}: {said}");
    }
    succeed(&mut partita(&world, &served, "vf destroy --all"));
    assert_eq!(served.snapshot(), start);
}
