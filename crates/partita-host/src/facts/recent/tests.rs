use std::cell::Cell;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;
use crate::facts::fingerprint::{GpuSeen, Node};
use crate::facts::{GpuFacts, UnreadableGpu};

const NOW: Duration = Duration::from_secs(1000);
const TWO: [&str; 2] = ["GPU-aa11", "GPU-bb22"];

/// The files of a machine with a driver and GPUs, and a directory to keep answers in.
struct Machine {
    temp: tempfile::TempDir,
}

impl Machine {
    fn new(uuids: &[&str]) -> Self {
        let machine = Self { temp: tempfile::tempdir().unwrap() };
        machine.write("proc/sys/kernel/random/boot_id", "9f0c8a7e\n");
        machine.write(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1  Release Build\nGCC version:  gcc 13\n",
        );
        machine.write("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n");
        machine.write("dev/nvidiactl", "");
        machine.write("etc/ld.so.cache", "libraries");
        for (at, uuid) in uuids.iter().enumerate() {
            machine.write(&information(at), &describe(at, uuid, "143", "No"));
            machine.write(&format!("dev/nvidia{at}"), "");
        }
        machine
    }

    fn root(&self) -> PathBuf {
        self.temp.path().join("root")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.root().join(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    fn recent(&self) -> Recent {
        Recent::of(&self.temp.path().join("cache/partita"), &self.root())
    }

    fn fingerprint(&self) -> Fingerprint {
        self.recent().fingerprint().unwrap()
    }

    /// NVML answers so.
    fn answer(&self, inventory: &Inventory) {
        let reading = Reading::Driver(inventory.clone());
        assert_eq!(self.recent().ask(NOW, || Ok(reading.clone())).unwrap(), reading);
    }

    fn kept(&self) -> Vec<PathBuf> {
        let dir = fs::read_dir(&self.recent().dir).into_iter().flatten();
        dir.map(|entry| entry.unwrap().path()).collect()
    }

    fn kept_file(&self) -> PathBuf {
        let kept = self.kept();
        assert_eq!(kept.len(), 1, "{kept:?}");
        kept[0].clone()
    }
}

fn information(at: usize) -> String {
    format!("proc/driver/nvidia/gpus/0000:{at}e:00.0/information")
}

fn describe(at: usize, uuid: &str, interrupt: &str, excluded: &str) -> String {
    format!(
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t {interrupt}\nGPU UUID: \t {uuid}\nBus Location: \t 0000:{at}e:00.0\n\
         Device Minor: \t {at}\nGPU Excluded:\t {excluded}\n"
    )
}

fn inventory(uuids: &[&str]) -> Inventory {
    let gpus = uuids.iter().zip(0..).map(|(uuid, index)| GpuFacts {
        index,
        uuid: (*uuid).to_owned(),
        pci: Some(format!("00000000:{index}E:00.0")),
        memory_used_bytes: 77_777,
        utilization_percent: None,
        memory_utilization_percent: None,
        mig_enabled: Some(false),
        ..GpuFacts::example()
    });
    Inventory {
        driver_version: "580.1".to_owned(),
        cuda_version: 13000,
        gpus: gpus.collect(),
        unreadable: Vec::new(),
    }
}

/// The cached form: without values that change all the time.
fn without_use(mut inventory: Inventory) -> Inventory {
    inventory.gpus.iter_mut().for_each(|gpu| gpu.memory_used_bytes = 0);
    inventory
}

#[test]
fn the_last_answer_serves_while_the_kernel_tells_the_same() {
    let machine = Machine::new(&TWO);
    assert_eq!(machine.recent().inventory(NOW), None, "NVML was not queried yet");
    machine.answer(&inventory(&TWO));
    assert_eq!(machine.recent().inventory(NOW), Some(without_use(inventory(&TWO))));
    let kept = fs::read_to_string(machine.kept_file()).unwrap();
    assert!(!kept.contains("77777"), "memory in use is not kept: {kept}");
    assert_eq!(fs::metadata(machine.kept_file()).unwrap().permissions().mode() & 0o777, 0o600);

    // The kernel takes another interrupt when the GPU's first user comes.
    machine.write(&information(0), &describe(0, TWO[0], "12", "No"));
    assert!(machine.recent().inventory(NOW).is_some());
}

#[test]
fn an_answer_is_for_five_minutes() {
    let machine = Machine::new(&TWO);
    machine.answer(&inventory(&TWO));
    let recent = machine.recent();
    let millisecond = Duration::from_millis(1);
    assert!(recent.inventory(NOW + AGE_MAX).is_some());
    assert_eq!(recent.inventory(NOW + AGE_MAX + millisecond), None, "too old");
    assert_eq!(recent.inventory(NOW - millisecond), None, "from the future");
    assert_eq!(recent.inventory(Duration::ZERO), None);
}

#[test]
fn whatever_the_kernel_tells_otherwise_makes_it_another_machine() {
    type Change = fn(&Machine);
    let changes: &[(&str, Change)] = &[
        ("another start", |machine| machine.write("proc/sys/kernel/random/boot_id", "11111111\n")),
        ("another driver", |machine| {
            machine.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  581.2  Tue\n");
        }),
        ("a build of the driver", |machine| {
            machine.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  580.1  Wed\n");
        }),
        ("no driver", |machine| machine.remove("proc/driver/nvidia")),
        ("one GPU more", |machine| {
            machine.write(&information(2), &describe(2, "GPU-cc33", "7", "No"));
            machine.write("dev/nvidia2", "");
        }),
        ("one GPU less", |machine| machine.remove("proc/driver/nvidia/gpus/0000:1e:00.0")),
        ("another GPU", |machine| machine.write(&information(1), &describe(1, "GPU-cc33", "143", "No"))),
        ("an excluded GPU", |machine| machine.write(&information(1), &describe(1, TWO[1], "143", "Yes"))),
        ("exchanged GPUs", |machine| {
            machine.write(&information(0), &describe(0, TWO[1], "143", "No"));
            machine.write(&information(1), &describe(1, TWO[0], "143", "No"));
        }),
        ("a GPU that says nothing", |machine| machine.write(&information(1), "")),
        ("a MIG instance", |machine| {
            machine.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: 12\n");
        }),
        ("no list of instances", |machine| machine.remove("proc/driver/nvidia/capabilities")),
        ("a GPU that may not be opened", |machine| machine.remove("dev/nvidia1")),
        ("no driver that may be opened", |machine| machine.remove("dev/nvidiactl")),
        ("other libraries", |machine| machine.write("etc/ld.so.cache", "other libraries")),
    ];
    for (what, change) in changes {
        let machine = Machine::new(&TWO);
        machine.answer(&inventory(&TWO));
        assert!(machine.recent().inventory(NOW).is_some(), "{what}");
        change(&machine);
        assert_eq!(machine.recent().inventory(NOW), None, "{what}");
    }

    let machine = Machine::new(&TWO);
    machine.answer(&inventory(&TWO));
    // A library that is found there answers in NVML's place.
    let elsewhere = Recent { loader_path: Some("/sim/lib".into()), ..machine.recent() };
    assert_eq!(elsewhere.inventory(NOW), None);
    // With its own name it would be no other machine's; the name alone is not believed.
    fs::rename(machine.kept_file(), elsewhere.path(&elsewhere.fingerprint().unwrap())).unwrap();
    assert_eq!(elsewhere.inventory(NOW), None);
}

#[test]
fn without_a_driver_nothing_is_kept() {
    // As where GPUs are simulated.
    let machine = Machine::new(&[]);
    machine.remove("proc/driver");
    machine.answer(&inventory(&TWO));
    assert_eq!(machine.recent().inventory(NOW), None);
    assert!(machine.kept().is_empty());
}

#[test]
fn an_answer_that_is_not_of_the_kernels_gpus_is_not_kept() {
    let good = inventory(&TWO);
    let changed = |change: fn(&mut Inventory)| {
        let mut inventory = good.clone();
        change(&mut inventory);
        inventory
    };
    for (what, bad) in [
        ("a simulated one", inventory(&["GPU-51m"])),
        ("one of them strange", inventory(&["GPU-aa11", "GPU-cc33"])),
        ("none", inventory(&[])),
        ("one twice", inventory(&["GPU-aa11", "GPU-aa11"])),
        ("another driver", changed(|inventory| inventory.driver_version = "580.10".to_owned())),
        (
            "one that cannot be read",
            changed(|inventory| {
                let lost = UnreadableGpu { index: 2, uuid: None, reason: "it is lost".to_owned() };
                inventory.unreadable.push(lost);
            }),
        ),
        ("no driver", changed(|inventory| inventory.driver_version.clear())),
        ("counted otherwise", changed(|inventory| inventory.gpus.reverse())),
    ] {
        let machine = Machine::new(&TWO);
        machine.answer(&bad);
        assert!(machine.kept().is_empty(), "{what}");
        machine.answer(&good);
        machine.answer(&bad);
        assert_eq!(
            machine.recent().inventory(NOW),
            None,
            "{what}: the earlier answer is not used \
            either"
        );
    }
    // In a container NVML reports fewer GPUs than the kernel, but never one that may not be opened.
    let machine = Machine::new(&TWO);
    machine.remove("dev/nvidia0");
    machine.answer(&good);
    assert!(machine.kept().is_empty());
    machine.answer(&inventory(&TWO[1..]));
    assert_eq!(machine.recent().inventory(NOW).unwrap().gpus[0].uuid, TWO[1]);
}

#[test]
fn a_driver_that_fails_takes_its_last_answer_along() {
    let failures: [fn() -> Result<Reading, Error>; 2] = [
        || Err(Error::Driver { reason: "the GPU is lost".to_owned() }),
        || Ok(Reading::NoDriver("none".to_owned())),
    ];
    for fails in failures {
        let machine = Machine::new(&TWO);
        machine.answer(&inventory(&TWO));
        assert_eq!(machine.recent().ask(NOW, fails).is_err(), fails().is_err());
        assert!(machine.kept().is_empty());
        assert_eq!(machine.recent().inventory(NOW), None);
    }
}

#[test]
fn what_changes_while_nvml_is_asked_is_asked_again() {
    let machine = Machine::new(&TWO);
    machine.answer(&inventory(&TWO));
    let ask = || {
        machine.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "");
        Ok(Reading::Driver(inventory(&TWO)))
    };
    machine.recent().ask(NOW, ask).unwrap();
    assert!(machine.kept().is_empty());
}

#[test]
fn damaged_and_foreign_files_are_not_believed_and_are_replaced() {
    let machine = Machine::new(&TWO);
    machine.answer(&inventory(&TWO));
    let (recent, path) = (machine.recent(), machine.kept_file());
    let good = fs::read_to_string(&path).unwrap();
    let again = |what: &str| {
        assert_eq!(recent.inventory(NOW), None, "{what}");
        machine.answer(&inventory(&TWO));
        assert!(recent.inventory(NOW).is_some(), "{what}");
        assert_eq!(machine.kept_file(), path, "{what}");
    };
    for (from, to) in [
        ("\"version\":1", "\"version\":2"),
        (MAGIC, "something"),
        ("\"asked_ms\"", "\"more\":1,\"asked_ms\""),
        ("\"asked_ms\":1000000", "\"asked_ms\":-1"),
        ("\"asked_ms\":1000000", "\"asked_ms\":18446744073709551615"),
        ("\"uuid\":\"GPU-aa11\"", "\"uuid\":\"GPU-cc33\""),
        ("\"index\":0", "\"index\":1"),
        ("\"driver_version\":\"580.1\"", "\"driver_version\":\"570.1\""),
        ("9f0c8a7e", "9f0c8a7f"),
        ("{", ""),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        fs::write(&path, bad).unwrap();
        again(&format!("{from} -> {to}"));
    }
    for length in (0..good.len()).step_by(13).chain([good.len() - 1]) {
        fs::write(&path, &good[..length]).unwrap();
        assert_eq!(recent.inventory(NOW), None, "cut to {length} bytes");
    }
    again("cut");
    fs::write(&path, " ".repeat(kept::FILE_BYTES_MAX as usize) + &good).unwrap();
    again("too long");
    fs::write(&path, &good).unwrap();
    for mode in [0o666, 0o620] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        again("others can write it");
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        again("another user's");
    }
    let other = path.with_extension("other");
    fs::rename(&path, &other).unwrap();
    symlink(&other, &path).unwrap();
    assert_eq!(recent.inventory(NOW), None, "a link");
    machine.answer(&inventory(&TWO));
    assert!(recent.inventory(NOW).is_some() && path.symlink_metadata().unwrap().is_file());
}

#[test]
fn machines_share_a_directory_and_old_files_go() {
    let (one, other) = (Machine::new(&TWO), Machine::new(&TWO[..1]));
    let there = Recent::of(&one.recent().dir, &other.root());
    one.answer(&inventory(&TWO));
    there.ask(NOW, || Ok(Reading::Driver(inventory(&TWO[..1])))).unwrap();
    assert_eq!(one.recent().inventory(NOW).unwrap().gpus.len(), 2);
    assert_eq!(there.inventory(NOW).unwrap().gpus.len(), 1);

    let of_others = one.recent().dir.join("GPU-aa11-580.1-sm90.json");
    fs::write(&of_others, "a calibration").unwrap();
    let written = one.recent().path(&one.fingerprint()).metadata().unwrap().modified().unwrap();
    let long_ago = written - REMAINS_MAX - Duration::from_secs(60);
    for path in [&there.path(&other.fingerprint()), &of_others] {
        fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    one.answer(&inventory(&TWO));
    assert_eq!(there.inventory(NOW), None, "it is not used any more");
    assert!(one.recent().inventory(NOW).is_some() && of_others.exists());
}

#[test]
fn where_nothing_can_be_written_nvml_is_asked() {
    let machine = Machine::new(&TWO);
    let recent = Recent { dir: "/dev/null/cache".into(), ..machine.recent() };
    let asked = Cell::new(0);
    let ask = || {
        asked.set(asked.get() + 1);
        Ok(Reading::Driver(inventory(&TWO)))
    };
    for times in 1..3 {
        recent.ask(NOW, ask).unwrap();
        assert_eq!((recent.inventory(NOW), asked.get()), (None, times));
    }
}

fn fingerprints() -> impl Strategy<Value = Fingerprint> {
    let word = || prop::sample::select(vec!["a", "b"]).prop_map(str::to_owned);
    let node = || {
        prop::option::of((0..2u64, any::<bool>()).prop_map(|(device, may_open)| Node { device, may_open }))
    };
    let information = prop::sample::select(TWO.to_vec()).prop_map(|uuid| format!("GPU UUID: {uuid}\n"));
    let gpu = (information, node()).prop_map(|(information, node)| GpuSeen { information, node });
    let gpus = prop::collection::btree_map(word(), gpu, 1..3);
    let capabilities = prop::collection::btree_set(word(), 0..2);
    (word(), word(), gpus, capabilities, node(), prop::option::of(word())).prop_map(
        |(boot, driver, gpus, capabilities, control, library_path)| Fingerprint {
            boot,
            driver: format!("NVRM version: {driver} 580.1"),
            gpus,
            capabilities,
            control,
            libraries: None,
            library_path,
        },
    )
}

proptest! {
    #[test]
    fn an_answer_holds_for_its_own_machine_and_time_alone(
        made_for in fingerprints(),
        asked_for in fingerprints(),
        uuid in prop::sample::select(TWO.to_vec()),
        asked_ms in 0..1_000_000u64,
        now_ms in 0..1_000_000u64,
    ) {
        let may_open = made_for.gpus.values().any(|gpu| {
            gpu.information.contains(uuid) && gpu.node.is_some_and(|node| node.may_open)
        });
        let (asked, now) = (Duration::from_millis(asked_ms), Duration::from_millis(now_ms));
        let record = Record::of(made_for.clone(), asked, &inventory(&[uuid]));
        prop_assert_eq!(record.is_some(), may_open);
        if let Some(record) = record {
            let in_time = asked <= now && now <= asked + AGE_MAX;
            prop_assert_eq!(record.holds(&made_for, now), in_time);
            prop_assert_eq!(record.holds(&asked_for, now), in_time && made_for == asked_for);
            // The stored form is complete.
            let kept = serde_json::to_vec(&record).unwrap();
            let kept: Record = serde_json::from_slice(&kept).unwrap();
            prop_assert_eq!(kept.holds(&made_for, now), in_time);
            prop_assert_eq!(&kept.inventory, &without_use(inventory(&[uuid])));
        }
    }
}

#[test]
fn no_bytes_name_a_gpu_that_the_kernel_does_not() {
    let machine = Machine::new(&TWO);
    machine.answer(&inventory(&TWO));
    let (recent, path) = (machine.recent(), machine.kept_file());
    let good = fs::read(&path).unwrap();
    let anywhere = (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..16), any::<bool>());
    proptest!(ProptestConfig::with_cases(64), |((at, bytes, whole) in anywhere)| {
        let mut file = if whole { Vec::new() } else { good.clone() };
        let at = if whole { 0 } else { at.index(file.len()) };
        let end = (at + bytes.len()).min(file.len());
        file.splice(at..end, bytes);
        fs::write(&path, file).unwrap();
        if let Some(inventory) = recent.inventory(NOW) {
            let is_ours = |gpu: &GpuFacts| TWO.iter().any(|ours| ours.eq_ignore_ascii_case(&gpu.uuid));
            prop_assert!(!inventory.gpus.is_empty() && inventory.gpus.iter().all(is_ours));
            prop_assert_eq!(inventory.driver_version, "580.1");
        }
    });
}
