//! The registry's life, without a GPU.

use std::fs;
use std::fs::Permissions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;

use partita_ledger::{Limits, UsageMap};

use super::dir::{Dir, own_user};
use super::layout::{META, OWNER};
use super::*;
use crate::error::Error;
use crate::process::ProcessId;

const GPU: &str = "GPU-1";
const LIMITS: &str = "limits";
const USAGE: &str = "usage";

fn registry() -> (tempfile::TempDir, Registry) {
    let temp = tempfile::tempdir().unwrap();
    let registry = Registry::at(&temp.path().join("run")).unwrap();
    (temp, registry)
}

fn gpu_meta(key: &str, index: u32) -> GpuMeta {
    GpuMeta {
        key: key.to_owned(),
        uuid: key.to_owned(),
        index: Some(index),
        label: format!("GPU {index}"),
        sim: None,
    }
}

fn meta(name: &str) -> Meta {
    Meta {
        version: META_VERSION,
        name: name.to_owned(),
        gpu: gpu_meta(GPU, 0),
        gpus: Vec::new(),
        run: ProcessId::own().unwrap(),
        child: None,
        command: vec!["program".to_owned(), "x".repeat(100)],
        started_unix_s: 1,
        share: None,
        place: Default::default(),
        isolation: Isolation::Shared,
        task_slots: None,
        mps_partition: None,
        slo: None,
        goal: Default::default(),
        placed: None,
        is_put_in_turns: false,
        has_ceiling: false,
        prepared_boot: None,
        prepared_limits: None,
        origin: Origin::Request,
    }
}

fn limits(name: &str, tpc: u64) -> Limits {
    Limits {
        tpc_count: 4,
        sms_per_tpc: 2,
        set: [1 << tpc, 0, 0, 0],
        name: Limits::name_field(name).unwrap(),
        ..Limits::default()
    }
}

/// The names in a directory, in order.
fn entries(dir: &Path) -> Vec<String> {
    Dir::open(dir).unwrap().texts().unwrap()
}

fn create(registry: &Registry, name: &str, tpc: u64) -> Result<OwnedTenant, Error> {
    let part = NewPart { gpu_key: GPU.to_owned(), meta: meta(name), limits: limits(name, tpc) };
    registry.lock_to_make()?.create(vec![part])
}

#[test]
fn a_tenant_lives_as_long_as_its_lock_is_held() {
    let (_temp, registry) = registry();
    let owned = create(&registry, "a", 1).unwrap();
    let tenants = registry.lock().unwrap().tenants().unwrap();
    assert_eq!(tenants.len(), 1);
    assert_eq!(tenants[0].set().unwrap().to_string(), "1");
    assert_eq!(tenants[0].meta().unwrap().name, "a");

    // A process that inherits the open file keeps the tenant alive, as a child process does.
    let inherited = owned.owner_files().next().unwrap().try_clone().unwrap();
    drop(owned);
    assert_eq!(registry.lock().unwrap().tenants().unwrap().len(), 1);
    drop(inherited);
    assert!(registry.lock().unwrap().tenants().unwrap().is_empty());
    assert!(!registry.gpu_dir(GPU).exists(), "the last tenant takes its GPU's directory along");
}

#[test]
fn a_live_slot_keeps_a_tenant_alive_too() {
    let (_temp, registry) = registry();
    let owned = create(&registry, "a", 1).unwrap();
    let path = c_path(&owned.dir().join(USAGE)).unwrap();
    let slot =
        UsageMap::open(&path).unwrap().claim(partita_ledger::Owner { pid: 1, start_ticks: 1 }).unwrap();
    drop(owned);
    assert_eq!(registry.lock().unwrap().tenants().unwrap().len(), 1);
    drop(slot);
    assert!(registry.lock().unwrap().tenants().unwrap().is_empty());
}

#[test]
fn a_name_is_one_tenants_on_all_gpus() {
    let (_temp, registry) = registry();
    let _one = create(&registry, "a", 1).unwrap();
    let part = NewPart { gpu_key: "GPU-2".to_owned(), meta: meta("a"), limits: limits("a", 1) };
    let other_gpu = registry.lock_to_make().unwrap().create(vec![part]).unwrap_err().to_string();
    assert!(
        other_gpu.contains("in use") && other_gpu.contains("program xxx") && other_gpu.contains('…'),
        "{other_gpu}"
    );
    assert!(!registry.gpu_dir("GPU-2").exists());
    assert!(matches!(create(&registry, "../a", 1), Err(Error::Name { .. })));
}

/// The parts of a tenant on two GPUs.
fn parts(name: &str) -> Vec<NewPart> {
    let keys = ["GPU-2", "GPU-1"];
    let gpus = || keys.iter().zip(0..).map(|(key, index)| gpu_meta(key, index));
    let part = |gpu: GpuMeta| NewPart {
        gpu_key: gpu.key.clone(),
        meta: Meta { gpu, gpus: gpus().collect(), ..meta(name) },
        limits: limits(name, 1),
    };
    gpus().map(part).collect()
}

#[test]
fn a_tenant_on_several_gpus_is_one_tenant() {
    let (_temp, registry) = registry();
    let owned = registry.lock_to_make().unwrap().create(parts("a")).unwrap();
    assert_eq!(owned.dir(), registry.gpu_dir("GPU-2").join("a"), "the first asked for");
    assert_eq!(owned.dir().join("gpu-1").canonicalize().unwrap(), registry.gpu_dir("GPU-1").join("a"));
    let keys = |tenants: &[Tenant]| tenants.iter().map(|part| part.gpu_key.clone()).collect::<Vec<_>>();
    let lock = registry.lock_to_make().unwrap();
    assert_eq!(keys(&lock.tenants().unwrap()), ["GPU-1", "GPU-2"]);
    assert_eq!(keys(&lock.tenant("a").unwrap()), ["GPU-2", "GPU-1"], "as its programs see them");
    assert_eq!(keys(&lock.tenant_of(std::process::id()).unwrap()), ["GPU-2", "GPU-1"]);
    assert!(matches!(lock.create(parts("a")), Err(Error::NameInUse { .. })));
    drop(lock);

    // A process that uses one of the GPUs keeps the whole alive.
    let path = c_path(&registry.gpu_dir("GPU-1").join("a").join(USAGE)).unwrap();
    let slot =
        UsageMap::open(&path).unwrap().claim(partita_ledger::Owner { pid: 1, start_ticks: 1 }).unwrap();
    drop(owned);
    assert_eq!(registry.lock().unwrap().tenants().unwrap().len(), 2);
    drop(slot);
    assert!(registry.lock().unwrap().tenants().unwrap().is_empty());
    assert_eq!(entries(registry.root()), [".lock"]);
}

#[test]
fn a_tenant_that_cannot_be_made_on_one_gpu_is_made_on_none() {
    let (_temp, registry) = registry();
    for bad in [0, 1] {
        let mut parts = parts("a");
        parts[bad].limits = Limits::default();
        let error = registry.lock_to_make().unwrap().create(parts).unwrap_err();
        assert!(error.to_string().contains("TPC"), "{error}");
        assert_eq!(entries(registry.root()), [".lock"]);
    }
    registry.lock_to_make().unwrap().create(parts("a")).unwrap();
}

#[test]
fn limits_that_cannot_be_leave_nothing() {
    let (_temp, registry) = registry();
    let part = NewPart { gpu_key: GPU.to_owned(), meta: meta("a"), limits: Limits::default() };
    let error = registry.lock_to_make().unwrap().create(vec![part]).unwrap_err();
    assert!(error.to_string().contains("TPC"), "{error}");
    assert!(!registry.gpu_dir(GPU).exists());
}

#[test]
fn half_made_and_half_removed_tenants_go() {
    let (_temp, registry) = registry();
    let _living = create(&registry, "living", 1).unwrap();
    let gpu_dir = registry.gpu_dir(GPU);
    for remains in [".new-a-1", ".dead-b-2"] {
        fs::create_dir(gpu_dir.join(remains)).unwrap();
        fs::write(gpu_dir.join(remains).join(OWNER), "").unwrap();
    }
    // One that is being made right now.
    fs::create_dir(gpu_dir.join(".new-c-3")).unwrap();
    let busy = fs::File::create(gpu_dir.join(".new-c-3").join(OWNER)).unwrap();
    assert_eq!(partita_ledger::lock_alone(busy.as_raw_fd()), Ok(true));
    // An entry that is not ours.
    fs::create_dir(gpu_dir.join(".mps-0")).unwrap();
    fs::create_dir(gpu_dir.join("no name")).unwrap();
    assert_eq!(registry.lock().unwrap().tenants().unwrap().len(), 1);
    assert_eq!(entries(&gpu_dir), [".mps-0", ".new-c-3", "living", "no name"]);
}

#[test]
fn others_read_what_they_plan_by_and_open_nothing_that_is_locked_or_mapped() {
    let (_temp, registry) = registry();
    let owned = create(&registry, "a", 1).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    let root = if own_user() == 0 { 0o1777 } else { 0o700 };
    assert_eq!(mode(registry.root()), root);
    assert_eq!(mode(&registry.root().join(".lock")), 0o600);
    assert_eq!(mode(&registry.gpu_dir(GPU)), 0o755);
    assert_eq!(mode(owned.dir()), 0o755);
    for (file, wanted) in [(LIMITS, 0o644), (META, 0o644), (OWNER, 0o644), (USAGE, 0o600)] {
        assert_eq!(mode(&owned.dir().join(file)), wanted, "{file}");
    }
}

/// An open directory stays the same, and no name leads out of it.
#[test]
fn an_open_directory_is_acted_in_whatever_takes_its_name() {
    let temp = tempfile::tempdir().unwrap();
    let (own, precious) = (temp.path().join("own"), temp.path().join("precious"));
    fs::create_dir(&own).unwrap();
    fs::create_dir_all(precious.join("tenant")).unwrap();
    fs::write(precious.join("tenant/file"), "kept").unwrap();
    let dir = Dir::open(&own).unwrap();
    let tenant = dir.make_new("tenant").unwrap();
    tenant.replace("file", b"own", 0o600).unwrap();
    tenant.link(&precious, "link").unwrap();
    fs::rename(&own, temp.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(&precious, &own).unwrap();
    assert_eq!(tenant.texts().unwrap(), ["file", "link"]);
    assert!(Dir::open(&own).is_err() && tenant.sub("link").is_err() && tenant.file("link").is_err());
    for name in ["..", "../..", "a/b", "/"] {
        assert!(dir.sub(name).is_err(), "{name}");
    }
    dir.remove("tenant".as_ref()).unwrap();
    assert_eq!(dir.texts().unwrap(), [""; 0]);
    assert_eq!(fs::read_to_string(precious.join("tenant/file")).unwrap(), "kept");
}

#[test]
fn directories_that_others_could_take_over_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("run");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
    assert!(Registry::at(&root).unwrap_err().to_string().contains("mode 777"));
    fs::remove_dir(&root).unwrap();
    std::os::unix::fs::symlink("/tmp", &root).unwrap();
    assert!(Registry::at(&root).unwrap_err().to_string().contains("no directory"));
}

/// The maker of the run directory decides who may have tenants.
#[test]
fn a_run_directory_may_be_a_groups() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("run");
    fs::create_dir(&root).unwrap();
    for mode in [0o1770, 0o3770] {
        fs::set_permissions(&root, Permissions::from_mode(mode)).unwrap();
        let registry = Registry::at(&root).unwrap();
        drop(create(&registry, "a", 1).unwrap());
        assert_eq!(root.metadata().unwrap().mode() & 0o7777, mode);
    }
    fs::set_permissions(&root, Permissions::from_mode(0o770)).unwrap();
    assert!(Registry::at(&root).unwrap_err().to_string().contains("mode 770"));
}

#[test]
fn of_racing_makers_of_one_name_one_wins() {
    let (_temp, registry) = registry();
    let made: Vec<_> = thread::scope(|scope| {
        let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| create(&registry, "a", 1))).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1);
    assert!(made.iter().all(|made| matches!(made, Ok(_) | Err(Error::NameInUse { .. }))));
}
