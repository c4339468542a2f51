//! Each condition alone, and a machine on which all hold.

use super::*;

fn good() -> Machine {
    Machine {
        system: "Linux".to_owned(),
        pointer_bits: 64,
        tegra: false,
        devices: vec![Device {
            index: 0,
            compute_capability: (9, 0),
            compute_mode: Some(ComputeMode::ExclusiveProcess),
            mig: false,
        }],
        user: 1000,
        open_files_max: Some(1 << 20),
        shared_memory_bytes: Some(64 << 30),
        servers: vec![RunningServer { pid: 7, user: 1000, own: true }],
        forced_api_version: None,
        max_connections: None,
        visible_devices: None,
        multi_user: false,
    }
}

#[test]
fn a_good_machine_has_nothing_to_remedy() {
    for condition in judge(&good()) {
        assert_eq!((condition.standing, &condition.remedy), (Standing::Holds, &None), "{condition:?}");
    }
}

fn device(change: impl FnOnce(&mut Device)) -> Machine {
    let mut machine = good();
    change(&mut machine.devices[0]);
    machine
}

#[test]
fn each_condition_is_seen_alone_and_has_a_remedy() {
    let with = |change: &dyn Fn(&mut Machine)| {
        let mut machine = good();
        change(&mut machine);
        machine
    };
    let two = with(&|machine| {
        let old = Device { index: 1, compute_capability: (6, 0), ..machine.devices[0].clone() };
        machine.devices.push(old);
    });
    for (machine, name, standing, word) in [
        (with(&|machine| machine.system = "QNX".to_owned()), "mps: system", Standing::Broken, "64-bit Linux"),
        (with(&|machine| machine.pointer_bits = 32), "mps: system", Standing::Broken, "32"),
        (two, "mps: generation", Standing::Broken, "GPU 1"),
        (
            with(&|machine| machine.shared_memory_bytes = None),
            "mps: /dev/shm",
            Standing::Broken,
            "does not exist",
        ),
        (
            with(&|machine| machine.shared_memory_bytes = Some(64 << 20)),
            "mps: /dev/shm",
            Standing::Weak,
            "64 MiB",
        ),
        (with(&|machine| machine.open_files_max = Some(1024)), "mps: open files", Standing::Weak, "1024"),
        (
            device(|one| one.compute_mode = Some(ComputeMode::Prohibited)),
            "mps: compute mode",
            Standing::Broken,
            "PROHIBITED",
        ),
        (
            device(|one| one.compute_mode = Some(ComputeMode::Default)),
            "mps: compute mode",
            Standing::Weak,
            "DEFAULT",
        ),
        (
            with(&|machine| machine.servers[0].own = false),
            "mps: users",
            Standing::Weak,
            "server 7 of user 1000",
        ),
        (with(&|machine| machine.multi_user = true), "mps: users", Standing::Weak, "all users"),
        (
            with(&|machine| machine.forced_api_version = Some("3020".to_owned())),
            "mps: api version",
            Standing::Weak,
            "CUDA_FORCE_API_VERSION=3020",
        ),
        (
            with(&|machine| machine.max_connections = Some("8".to_owned())),
            "mps: connections",
            Standing::Weak,
            "fewer clients",
        ),
        (
            with(&|machine| machine.visible_devices = Some("0,2".to_owned())),
            "mps: visible gpus",
            Standing::Weak,
            "0,2",
        ),
        (with(&|machine| machine.tegra = true), "mps: tegra", Standing::Weak, "terminate_client"),
    ] {
        let others: Vec<Condition> =
            judge(&machine).into_iter().filter(|one| one.standing != Standing::Holds).collect();
        let found =
            others.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("{name}: {others:?}"));
        assert_eq!(found.standing, standing, "{found:?}");
        assert!(found.detail.contains(word) && found.remedy.is_some(), "{found:?}");
        if name != "mps: generation" {
            assert_eq!(others.len(), 1, "{others:?}");
        }
    }
}

#[test]
fn old_devices_have_what_they_have() {
    let machine = device(|one| one.compute_capability = (6, 1));
    let weak: Vec<&str> =
        judge(&machine).iter().filter(|one| one.standing == Standing::Weak).map(|one| one.name).collect();
    assert_eq!(weak, ["mps: generation", "mps: callbacks"]);
    let machine = device(|one| one.compute_capability = (3, 0));
    assert_eq!(judge(&machine)[1].standing, Standing::Broken);
    let uuid = Machine { visible_devices: Some("GPU-1".to_owned()), ..good() };
    assert!(judge(&uuid).iter().all(|one| one.standing == Standing::Holds));
}
