//! A directory that acts as the kernel's `/sys` does for devices with virtual functions.
//!
//! A test makes devices in it and sends each write to [`Kernel::write`], which changes the tree or
//! returns the error number that Linux returns (`drivers/pci/iov.c`, `drivers/pci/pci-driver.c`,
//! `drivers/vfio/mdev`, and NVIDIA's guide to vGPUs).

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

const DEVICES: &str = "sys/bus/pci/devices";
const MDEVS: &str = "sys/bus/mdev/devices";

/// `errno.h`.
pub const ENOENT: i32 = 2;
/// `errno.h`.
pub const EBUSY: i32 = 16;
/// `errno.h`.
pub const ENODEV: i32 = 19;
/// `errno.h`.
pub const EINVAL: i32 = 22;
/// `errno.h`.
pub const ENOSPC: i32 = 28;
/// `errno.h`.
pub const ERANGE: i32 = 34;

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SR-IOV alone.
    Plain,
    /// NVIDIA, with types written to functions.
    Functions,
    /// NVIDIA, with mediated devices on functions.
    MediatedFunctions,
    /// NVIDIA, with mediated devices on the GPU.
    MediatedDevice,
}

/// The types of vGPUs of all NVIDIA devices here: number, name and GiB.
pub const TYPES: [(u32, &str, u32); 4] = [
    (101, "NVIDIA A40-48Q", 48),
    (102, "NVIDIA A40-24Q", 24),
    (103, "NVIDIA A40-12Q", 12),
    (104, "NVIDIA A40-8Q", 8),
];

/// What happens to a write instead of its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The error of this number, and nothing changes.
    Error(i32),
    /// The writer dies before the effect.
    KillBefore,
    /// The writer dies after the effect.
    KillAfter,
}

/// The answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// It failed with this number.
    Failed(i32),
    /// The writer dies now.
    Killed,
}

/// The kernel of a directory.
#[derive(Debug)]
pub struct Kernel {
    root: PathBuf,
    kinds: BTreeMap<String, Kind>,
    /// The faults of coming writes, by their numbers, from 1 on.
    pub faults: BTreeMap<u32, Fault>,
    /// How many writes there were.
    pub writes: u32,
    /// The simulated NVML's file, which begins with 1 while several sizes may be together.
    pub nvml: Option<PathBuf>,
}

impl Kernel {
    /// A kernel without devices. The directory must exist.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        for dir in
            [DEVICES, MDEVS, "sys/bus/pci/drivers/vfio-pci", "sys/bus/pci/drivers/own", "dev/vfio/devices"]
        {
            fs::create_dir_all(root.join(dir)).expect("a new directory");
        }
        for name in ["vfio-pci", "own"] {
            put(&root.join(format!("sys/bus/pci/drivers/{name}/unbind")), "");
        }
        put(&root.join("sys/bus/pci/drivers_probe"), "");
        Self { root: root.to_owned(), kinds: BTreeMap::new(), faults: BTreeMap::new(), writes: 0, nvml: None }
    }

    /// Adds a device with so many functions at most, on a bus of its own (`0000:1b:00.0`).
    pub fn add(&mut self, address: &str, kind: Kind, functions_max: u16) {
        let dir = self.device(address);
        fs::create_dir_all(&dir).expect("a new directory");
        let vendor = if kind == Kind::Plain { "0xcabc" } else { "0x10de" };
        for (name, text) in
            [("vendor", vendor), ("device", "0x0270"), ("class", "0x120000"), ("driver_override", "(null)")]
        {
            put(&dir.join(name), text);
        }
        symlink("../../../bus/pci/drivers/own", dir.join("driver")).expect("a new link");
        if kind != Kind::MediatedDevice {
            put(&dir.join("sriov_totalvfs"), &functions_max.to_string());
            put(&dir.join("sriov_numvfs"), "0");
            put(&dir.join("sriov_drivers_autoprobe"), "1");
        }
        self.kinds.insert(address.to_owned(), kind);
        match kind {
            Kind::MediatedDevice => self.add_types(address),
            // As NVIDIA's own program has enabled them.
            Kind::Functions | Kind::MediatedFunctions => self.enable(address, functions_max),
            Kind::Plain => {}
        }
        self.refresh();
    }

    /// Does a write, or what the faults say.
    pub fn write(&mut self, path: &str, value: &str) -> Answer {
        self.writes += 1;
        match self.faults.get(&self.writes).copied() {
            Some(Fault::Error(code)) => Answer::Failed(code),
            Some(Fault::KillBefore) => Answer::Killed,
            fault => match (self.effect(path, value.trim()), fault) {
                (_, Some(_)) => Answer::Killed,
                (Ok(()), None) => Answer::Done,
                (Err(code), None) => Answer::Failed(code),
            },
        }
    }

    /// Every file and link of devices with what it holds: what must be as before.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        for dir in [DEVICES, MDEVS] {
            collect(&self.root.join(dir), &mut found);
        }
        found
    }

    fn device(&self, address: &str) -> PathBuf {
        self.root.join(DEVICES).join(address)
    }

    fn effect(&mut self, path: &str, value: &str) -> Result<(), i32> {
        // NVML may have changed what can be created.
        self.refresh();
        // A program may name a function by its device.
        let full = self.root.join(path);
        let parent = full.parent().ok_or(ENOENT)?.canonicalize().map_err(|_| ENOENT)?;
        let path = parent.join(full.file_name().ok_or(ENOENT)?);
        let root = self.root.canonicalize().map_err(|_| ENOENT)?;
        let path = path.strip_prefix(root).map_err(|_| ENOENT)?.to_string_lossy().into_owned();
        let parts: Vec<&str> = path.split('/').collect();
        match parts[..] {
            ["sys", "bus", "pci", "devices", address, "sriov_numvfs"] => self.set_functions(address, value),
            ["sys", "bus", "pci", "devices", address, "driver_override"] => {
                put(
                    &self.device(address).join("driver_override"),
                    if value.is_empty() { "(null)" } else { value },
                );
                Ok(())
            }
            ["sys", "bus", "pci", "drivers_probe"] => self.probe(value),
            ["sys", "bus", "pci", "drivers", driver, "unbind"] => {
                let link = self.device(value).join("driver");
                let has = fs::read_link(&link).ok().filter(|target| target.ends_with(driver));
                has.ok_or(ENODEV)?;
                fs::remove_file(link).map_err(|_| ENODEV)
            }
            ["sys", "bus", "pci", "devices", address, "nvidia", "current_vgpu_type"] => {
                self.set_type(address, value.parse().map_err(|_| EINVAL)?)
            }
            ["sys", "bus", "pci", "devices", parent, "mdev_supported_types", kind, "create"] => {
                self.create(parent, kind, value)
            }
            ["sys", "bus", "mdev", "devices", uuid, "remove"] => self.remove(uuid, value),
            // Through the link to the device's directory.
            ["sys", "bus", "pci", "devices", _, uuid, "remove"] => self.remove(uuid, value),
            _ => Err(ENOENT),
        }?;
        self.refresh();
        Ok(())
    }

    fn set_functions(&self, address: &str, value: &str) -> Result<(), i32> {
        let dir = self.device(address);
        let number = |name: &str| read(&dir.join(name)).parse::<u16>().unwrap_or(0);
        let count: u16 = value.parse().map_err(|_| EINVAL)?;
        let now = number("sriov_numvfs");
        if count > number("sriov_totalvfs") {
            return Err(ERANGE);
        }
        if count == now {
            return Ok(());
        }
        if fs::read_link(dir.join("driver")).is_err() {
            return Err(ENOENT);
        }
        if count != 0 && now != 0 {
            return Err(EBUSY);
        }
        for at in 0..now {
            let link = dir.join(format!("virtfn{at}"));
            let target = link.canonicalize().expect("an enabled function");
            fs::remove_dir_all(target).expect("a function's directory");
            fs::remove_file(link).expect("a function's link");
        }
        self.enable(address, count);
        Ok(())
    }

    fn enable(&self, address: &str, count: u16) {
        let dir = self.device(address);
        put(&dir.join("sriov_numvfs"), &count.to_string());
        let bus = address.rsplit_once(':').map_or(address, |(bus, _)| bus);
        for at in 0..count {
            // The first function follows the device.
            let function = format!("{bus}:{:02x}.{}", (at + 8) / 8, (at + 8) % 8);
            let own = self.device(&function);
            fs::create_dir(&own).expect("a new directory");
            for (name, text) in [
                ("vendor", read(&dir.join("vendor"))),
                ("device", "0x0271".into()),
                ("class", read(&dir.join("class"))),
                ("driver_override", "(null)".into()),
            ] {
                put(&own.join(name), &text);
            }
            symlink(format!("../{address}"), own.join("physfn")).expect("a new link");
            symlink(format!("../{function}"), dir.join(format!("virtfn{at}"))).expect("a new link");
            symlink(format!("../../../kernel/iommu_groups/{}", 70 + at), own.join("iommu_group"))
                .expect("a new link");
            symlink("../../../bus/pci/drivers/own", own.join("driver")).expect("a new link");
            match self.kinds.get(address) {
                Some(Kind::Functions) => {
                    fs::create_dir(own.join("nvidia")).expect("a new directory");
                    put(&own.join("nvidia/current_vgpu_type"), "0");
                }
                Some(Kind::MediatedFunctions) => self.add_types(&function),
                _ => {}
            }
        }
    }

    fn add_types(&self, parent: &str) {
        for (id, name, _) in TYPES {
            let dir = self.device(parent).join(format!("mdev_supported_types/nvidia-{id}"));
            fs::create_dir_all(dir.join("devices")).expect("a new directory");
            put(&dir.join("name"), name);
            put(&dir.join("create"), "");
        }
    }

    fn probe(&self, address: &str) -> Result<(), i32> {
        let dir = self.device(address);
        if !dir.exists() {
            return Err(ENODEV);
        }
        if fs::read_link(dir.join("driver")).is_ok() {
            return Ok(());
        }
        let forced = read(&dir.join("driver_override"));
        let driver = if forced == "(null)" { "own" } else { forced.as_str() };
        if self.root.join("sys/bus/pci/drivers").join(driver).exists() {
            symlink(format!("../../../bus/pci/drivers/{driver}"), dir.join("driver")).expect("a new link");
        }
        Ok(())
    }

    fn set_type(&self, function: &str, kind: u32) -> Result<(), i32> {
        let dir = self.device(function).join("nvidia");
        let now = read(&dir.join("current_vgpu_type"));
        if kind != 0 {
            if now != "0" {
                return Err(EBUSY);
            }
            let creatable = read(&dir.join("creatable_vgpu_types"));
            let id = kind.to_string();
            if !creatable.lines().any(|line| line.split(" :").next() == Some(id.as_str())) {
                return Err(EINVAL);
            }
        }
        put(&dir.join("current_vgpu_type"), &kind.to_string());
        Ok(())
    }

    fn create(&self, parent: &str, kind: &str, uuid: &str) -> Result<(), i32> {
        let dir = self.device(parent).join("mdev_supported_types").join(kind);
        if uuid.len() != 36 {
            return Err(EINVAL);
        }
        if self.root.join(MDEVS).join(uuid).exists() {
            return Err(17);
        }
        if read(&dir.join("available_instances")) == "0" {
            return Err(ENOSPC);
        }
        let own = self.device(parent).join(uuid);
        fs::create_dir(&own).expect("a new directory");
        put(&own.join("remove"), "");
        symlink(format!("../mdev_supported_types/{kind}"), own.join("mdev_type")).expect("a new link");
        symlink(format!("../../{uuid}"), dir.join("devices").join(uuid)).expect("a new link");
        symlink(format!("../../pci/devices/{parent}/{uuid}"), self.root.join(MDEVS).join(uuid))
            .expect("a new link");
        Ok(())
    }

    fn remove(&self, uuid: &str, value: &str) -> Result<(), i32> {
        if value != "1" {
            return Err(EINVAL);
        }
        let link = self.root.join(MDEVS).join(uuid);
        let own = link.canonicalize().map_err(|_| ENODEV)?;
        let kind = own.join("mdev_type").canonicalize().map_err(|_| ENODEV)?;
        fs::remove_file(kind.join("devices").join(uuid)).expect("a type's link");
        fs::remove_dir_all(own).expect("its directory");
        fs::remove_file(link).expect("its link");
        Ok(())
    }

    /// What can be created follows from what is there.
    fn refresh(&self) {
        let is_mixed = self.nvml.as_ref().is_some_and(|file| read(file).starts_with('1'));
        for (address, kind) in &self.kinds {
            let dir = self.device(address);
            let count: u16 = read(&dir.join("sriov_numvfs")).parse().unwrap_or(0);
            let parents: Vec<PathBuf> = match kind {
                Kind::MediatedDevice => vec![dir],
                _ => (0..count).map(|at| dir.join(format!("virtfn{at}"))).collect(),
            };
            let here: Vec<u32> = parents.iter().flat_map(|parent| present(parent)).collect();
            let size = |id: u32| TYPES.iter().find(|(other, ..)| *other == id).map_or(0, |(.., gib)| *gib);
            let used: u32 = here.iter().map(|id| size(*id)).sum();
            for parent in &parents {
                // One size at a time, within the memory, and one vGPU on a function.
                let is_taken = *kind != Kind::MediatedDevice && !present(parent).is_empty();
                let room = |id: u32| {
                    let is_other = !is_mixed && here.iter().any(|other| size(*other) != size(id));
                    if is_taken || is_other { 0 } else { (48 - used) / size(id) }
                };
                for (id, ..) in TYPES {
                    let file = parent.join(format!("mdev_supported_types/nvidia-{id}/available_instances"));
                    if matches!(kind, Kind::MediatedDevice | Kind::MediatedFunctions) {
                        put(&file, &room(id).to_string());
                    }
                }
                if *kind == Kind::Functions {
                    let lines = TYPES.iter().filter(|(id, ..)| room(*id) > 0);
                    let lines: Vec<String> = lines.map(|(id, name, _)| format!("{id} : {name}")).collect();
                    put(&parent.join("nvidia/creatable_vgpu_types"), &lines.join("\n"));
                }
            }
        }
    }
}

/// The types of the vGPUs on a function or device.
fn present(parent: &Path) -> Vec<u32> {
    let written = read(&parent.join("nvidia/current_vgpu_type")).parse().ok().filter(|id| *id != 0);
    let mediated = TYPES.iter().flat_map(|(id, ..)| {
        let devices = fs::read_dir(parent.join(format!("mdev_supported_types/nvidia-{id}/devices")));
        devices.into_iter().flatten().map(|_| *id)
    });
    written.into_iter().chain(mediated).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn put(path: &Path, text: &str) {
    fs::write(path, format!("{text}\n")).expect("a file of the tree");
}

fn collect(dir: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match fs::read_link(&path) {
            Ok(target) => drop(found.insert(path, target.display().to_string())),
            Err(_) if path.is_dir() => collect(&path, found),
            Err(_) => drop(found.insert(path.clone(), read(&path))),
        }
    }
}

/// A kernel that answers the writes of programs with a preloaded library (`sysfs.c`).
#[derive(Debug)]
pub struct Served {
    /// The kernel.
    pub kernel: Arc<Mutex<Kernel>>,
    root: PathBuf,
    library: PathBuf,
}

impl Served {
    /// Serves a kernel from a socket in its directory, until the test's process ends.
    ///
    /// # Panics
    /// If there is no C compiler.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        let root = kernel.root.clone();
        let library = root.join("kernel.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sysfs.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        assert!(cc.status().expect("a C compiler").success());
        let listener = UnixListener::bind(root.join("kernel")).expect("a new socket");
        let kernel = Arc::new(Mutex::new(kernel));
        let shared = Arc::clone(&kernel);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut bytes = Vec::new();
                if stream.read_to_end(&mut bytes).is_err() {
                    continue;
                }
                let text = String::from_utf8_lossy(&bytes);
                let Some((path, value)) = text.split_once('\0') else { continue };
                let mut kernel = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let answer = match kernel.write(path, value) {
                    Answer::Done => 0,
                    Answer::Failed(code) => code,
                    Answer::Killed => -1,
                };
                let _ = stream.write_all(&answer.to_ne_bytes());
            }
        });
        Self { kernel, root, library }
    }

    /// Gives a program this kernel.
    pub fn surround(&self, command: &mut Command) {
        command.env("PARTITA_SYSFS", &self.root).env("LD_PRELOAD", &self.library);
    }

    /// Lets the coming writes, from 1 on, have these faults.
    pub fn fault(&self, faults: &[(u32, Fault)]) {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        kernel.writes = 0;
        kernel.faults = faults.iter().copied().collect();
    }

    /// How many writes there were since then.
    #[must_use]
    pub fn writes(&self) -> u32 {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).writes
    }

    /// As [`Kernel::snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner).snapshot()
    }
}
