//! Changes of devices on the kernel's rules, with every write failing and every write the last.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use partita_core::vf::SchedulerState;
use partita_testing::sysfs::{Answer, EBUSY, EINVAL, ENOSPC, Fault, Kernel, Kind};

use super::nvml::{Host, Known};
use super::sysfs::{Sysfs, link_in, list_in, read_in};
use super::work::{Here, apply};
use super::{VfChange, VfTarget, VfTime, journal};

const ADDRESS: &str = "0000:1b:00.0";

/// A machine with one device.
struct World {
    dir: tempfile::TempDir,
    kernel: RefCell<Kernel>,
}

impl World {
    fn new(kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut kernel = Kernel::new(dir.path());
        kernel.add(ADDRESS, kind, 6);
        Self { dir, kernel: RefCell::new(kernel) }
    }

    fn fault(&self, faults: &[(u32, Fault)]) {
        let mut kernel = self.kernel.borrow_mut();
        kernel.writes = 0;
        kernel.faults = faults.iter().copied().collect();
    }

    fn apply(&self, target: &VfTarget) -> Result<VfChange, String> {
        apply(self, self, &journal::of(self.dir.path(), ADDRESS), ADDRESS, target, VfTime::default())
    }

    /// Whether the process was killed.
    fn dies(&self, target: &VfTarget) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.apply(target))).is_err()
    }

    fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        self.kernel.borrow().snapshot()
    }

    fn is_interrupted(&self) -> bool {
        journal::of(self.dir.path(), ADDRESS).before().unwrap().is_some()
    }

    fn types(&self) -> Vec<(String, String)> {
        let report = Here::read(self, self, ADDRESS).unwrap().report(false);
        report.vgpus.into_iter().map(|row| (row.on, row.kind.to_string())).collect()
    }
}

impl Sysfs for World {
    fn read(&self, path: &str) -> io::Result<String> {
        read_in(self.dir.path(), path)
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let answer = self.kernel.borrow_mut().write(path, value);
        match answer {
            Answer::Done => Ok(()),
            Answer::Failed(code) => Err(io::Error::from_raw_os_error(code)),
            // Nothing of the process runs any more.
            Answer::Killed => std::panic::resume_unwind(Box::new("killed")),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        list_in(self.dir.path(), path)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        link_in(self.dir.path(), path)
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }
}

/// No NVML.
impl Host for World {
    fn known(&self) -> Result<Known, String> {
        Ok(Known::default())
    }

    fn set_mixed(&self, _: bool) -> Result<(), String> {
        unreachable!("there is no such mode here")
    }

    fn schedule(&self, _: &SchedulerState) -> Result<(), String> {
        unreachable!("there is no scheduler here")
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Each kind of device with a change before, and the change that is tried.
fn cases() -> Vec<(Kind, Vec<VfTarget>, VfTarget)> {
    let vgpus = |list: &str| VfTarget::Vgpus(names(list));
    let function = || vec!["0000:1b:01.0".to_owned(), "0000:1b:01.2".to_owned()];
    let mut cases = vec![
        (Kind::Plain, vec![], VfTarget::Functions(4)),
        (Kind::Plain, vec![VfTarget::Functions(4)], VfTarget::Functions(5)),
        (Kind::Plain, vec![VfTarget::Functions(4)], VfTarget::Bound(function())),
        (
            Kind::Plain,
            vec![VfTarget::Functions(4), VfTarget::Bound(function())],
            VfTarget::Released(function()),
        ),
        (Kind::Plain, vec![VfTarget::Functions(4), VfTarget::Bound(function())], VfTarget::Functions(2)),
        (Kind::Plain, vec![VfTarget::Functions(4), VfTarget::Bound(function())], VfTarget::Empty),
    ];
    for kind in [Kind::Functions, Kind::MediatedFunctions, Kind::MediatedDevice] {
        cases.push((kind, vec![], vgpus("12Q,12Q,12Q")));
        cases.push((kind, vec![vgpus("12Q,12Q,12Q,12Q")], VfTarget::Empty));
        cases.push((kind, vec![vgpus("24Q")], vgpus("102,102")));
    }
    for kind in [Kind::MediatedFunctions, Kind::MediatedDevice] {
        cases.push((kind, vec![vgpus("24Q,24Q")], vgpus("8Q,8Q,8Q")));
    }
    cases
}

/// A world before the tried change.
fn prepared(kind: Kind, before: &[VfTarget]) -> World {
    let world = World::new(kind);
    for target in before {
        world.apply(target).unwrap();
    }
    world.fault(&[]);
    world
}

#[test]
fn killed_at_any_write_a_change_goes_on_or_goes_back() {
    for (kind, before, target) in cases() {
        let world = prepared(kind, &before);
        world.apply(&target).unwrap();
        let (count, done) = (world.kernel.borrow().writes, world.types());
        let functions = world.snapshot().len();
        assert!(count > 0 && !world.is_interrupted());
        for at in 1..=count {
            for fault in [Fault::KillBefore, Fault::KillAfter] {
                for goes_on in [true, false] {
                    let told = format!("{kind:?} {target:?} {fault:?} at {at}, on: {goes_on}");
                    let world = prepared(kind, &before);
                    let start = world.snapshot();
                    world.fault(&[(at, fault)]);
                    assert!(world.dies(&target) && world.is_interrupted(), "{told}");
                    world.fault(&[]);
                    if goes_on {
                        let change = world.apply(&target).unwrap_or_else(|error| panic!("{told}: {error}"));
                        assert!(change.is_applied && change.is_continued, "{told}");
                        assert_eq!(
                            (world.types(), world.snapshot().len()),
                            (done.clone(), functions),
                            "{told}"
                        );
                    } else {
                        world.apply(&VfTarget::Before).unwrap_or_else(|error| panic!("{told}: {error}"));
                        assert_eq!(world.snapshot(), start, "{told}");
                    }
                    assert!(!world.is_interrupted(), "{told}");
                    let again =
                        world.apply(&if goes_on { target.clone() } else { VfTarget::Without(vec![]) });
                    assert_eq!(again.unwrap().steps, [], "{told}");
                }
            }
        }
    }
}

#[test]
fn any_write_that_fails_leaves_what_was_before_and_says_why() {
    for (kind, before, target) in cases() {
        let world = prepared(kind, &before);
        world.apply(&target).unwrap();
        let count = world.kernel.borrow().writes;
        for at in 1..=count {
            for (code, words) in [(EBUSY, "busy"), (ENOSPC, "No space left"), (EINVAL, "Invalid argument")] {
                let world = prepared(kind, &before);
                let start = world.snapshot();
                world.fault(&[(at, Fault::Error(code))]);
                let error = world.apply(&target).unwrap_err();
                let told = format!("{kind:?} {target:?} {code} at {at}: {error}");
                assert!(error.contains(words) && error.contains("/sys/bus/"), "{told}");
                assert!(error.ends_with("what was before is in place again"), "{told}");
                assert!(!error.contains('\n') && !world.is_interrupted(), "{told}");
                assert_eq!(world.snapshot(), start, "{told}");
            }
        }
    }
}

#[test]
fn a_way_back_that_fails_is_said_and_can_be_tried_again() {
    let world = prepared(Kind::MediatedFunctions, &[VfTarget::Vgpus(names("24Q,24Q"))]);
    let start = world.snapshot();
    // The third creation fails, and then the first write of the way back.
    world.fault(&[(4, Fault::Error(EBUSY)), (5, Fault::Error(EBUSY))]);
    let error = world.apply(&VfTarget::Vgpus(names("8Q,8Q"))).unwrap_err();
    assert!(error.contains("the way back failed too") && error.contains("--restore"), "{error}");
    assert!(world.is_interrupted());
    world.apply(&VfTarget::Before).unwrap();
    assert_eq!(world.snapshot(), start);
}

#[test]
fn what_cannot_be_is_refused_before_any_write() {
    let vgpus = |list: &str| VfTarget::Vgpus(names(list));
    for (kind, target, part) in [
        (Kind::Plain, VfTarget::Functions(7), "ask for at most 6"),
        (Kind::Plain, vgpus("8Q"), "--count"),
        (Kind::Plain, VfTarget::Without(vec!["0000:1b:01.0".to_owned()]), "there is no vGPU"),
        (Kind::Functions, VfTarget::Functions(2), "sriov-manage -e 0000:1b:00.0"),
        (Kind::Functions, vgpus("9Q"), "no vGPU type \"9Q\" here; there are A40-48Q"),
        (
            Kind::Functions,
            vgpus("24Q,24Q,24Q"),
            "need 72 GiB, and the GPU has 48 GiB for vGPUs; 24Q,24Q would fit",
        ),
        (Kind::Functions, VfTarget::Bound(vec!["0000:1b:01.0".to_owned()]), "has no vGPU"),
        (Kind::MediatedDevice, VfTarget::Functions(2), "no functions"),
        (Kind::MediatedDevice, VfTarget::Before, "nothing to restore"),
    ] {
        let world = prepared(kind, &[]);
        let error = world.apply(&target).unwrap_err();
        assert!(error.contains(part), "{target:?}: {error}");
        assert_eq!(world.kernel.borrow().writes, 0);
    }
    let world = prepared(Kind::Plain, &[VfTarget::Functions(2)]);
    let error = world.apply(&VfTarget::Without(vec!["0000:1b:01.1".to_owned()])).unwrap_err();
    assert!(error.contains("only all together"), "{error}");
}

#[test]
fn what_a_machine_holds_stays() {
    let vgpus = |list: &str| VfTarget::Vgpus(names(list));
    for (kind, before, target) in [
        (Kind::Plain, VfTarget::Functions(4), VfTarget::Functions(2)),
        (Kind::Plain, VfTarget::Functions(4), VfTarget::Bound(vec!["0000:1b:01.0".to_owned()])),
        (Kind::Functions, vgpus("24Q,24Q"), VfTarget::Empty),
    ] {
        let world = prepared(kind, &[before]);
        let held = std::fs::File::create(world.dir.path().join("dev/vfio/70")).unwrap();
        let error = world.apply(&target).unwrap_err();
        assert!(error.contains("virtual machines hold") && error.contains("0000:1b:01.0"), "{error}");
        assert_eq!(world.kernel.borrow().writes, 0);
        drop(held);
        world.apply(&target).unwrap();
    }
    // Of two of a type, the one that is held stays.
    let world = prepared(Kind::Functions, &[vgpus("24Q,24Q")]);
    let _held = std::fs::File::create(world.dir.path().join("dev/vfio/71")).unwrap();
    world.apply(&vgpus("102")).unwrap();
    assert_eq!(world.types(), [("0000:1b:01.1".to_owned(), "102".to_owned())]);
}

#[test]
fn machines_get_lines_for_each_kind() {
    let world = prepared(Kind::Functions, &[]);
    let change = world.apply(&VfTarget::Vgpus(names("12Q"))).unwrap();
    assert!(change.hostdevs[0].libvirt.contains("bus='0x1b' slot='0x01' function='0x0'"), "{change:?}");
    let world = prepared(Kind::MediatedDevice, &[]);
    let change = world.apply(&VfTarget::Vgpus(names("12Q,12Q"))).unwrap();
    let uuid = &change.hostdevs[1].name;
    assert_eq!(uuid.len(), 36);
    assert!(change.hostdevs[1].libvirt.contains("type='mdev' model='vfio-pci' managed='no'"));
    assert!(change.hostdevs[1].qemu.ends_with(&format!("/sys/bus/mdev/devices/{uuid}")));
    let world = prepared(Kind::Plain, &[VfTarget::Functions(2)]);
    let change = world.apply(&VfTarget::Bound(vec!["0000:1b:01.1".to_owned()])).unwrap();
    assert_eq!(change.hostdevs.len(), 1);
    assert_eq!(change.hostdevs[0].qemu, "-device vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:1b:01.1");
}
