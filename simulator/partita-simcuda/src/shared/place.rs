//! The place of a board: its device, its directory, and how to reach or start its process.
//!
//! A board of device `h200` in directory `D` listens at `D/h200.sock`. A process that starts or
//! ends it holds `D/h200.lock` (flock), so that there is never more than one board and never a
//! client between two. Further GPUs of a machine have their own boards there: `D/h200-1.sock` and
//! so on.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use partita_sim::{DeviceSpec, MigSpec, catalogue};

use super::mig::{self, Division};
use super::protocol::PAGE_BYTES;
use super::{driver, socket};

/// Which device is simulated: a catalogue name, with or without `sim:`. Default `h200`.
pub const ENV_DEVICE: &str = "PARTITA_SIM_DEVICE";
/// The board's directory. Default: one per user in the temporary directory.
pub const ENV_DIR: &str = "PARTITA_SIM_DIR";
/// How many GPUs of that kind the machine has. Default 1. Each has its own board.
pub const ENV_GPUS: &str = "PARTITA_SIM_GPUS";
/// 1 if a process can open memory of one of these GPUs by its handle in a context of another one,
/// and copy. Kernels reach their own GPU's memory alone. Default 0.
pub const ENV_PEERS: &str = "PARTITA_SIM_PEERS";
/// MIG instances that every GPU of the machine has at first: profiles with commas between them, as
/// `3g.71gb,1g.18gb`. Each has its own board, with a part of the GPU's TPCs and its own memory.
/// Empty for no instances; not set without MIG.
pub const ENV_MIG: &str = "PARTITA_SIM_MIG";
/// The board's program. Default: `partita-simgpu` beside this library.
pub const ENV_PROGRAM: &str = "PARTITA_SIMGPU";

/// The driver's reserve of device memory. An H200 of 143771 MiB shows programs 150109880320 bytes;
/// smaller boards are assumed to have the same reserve, but at most a sixty-fourth of their memory.
const DRIVER_BYTES: u64 = (143_771 << 20) - 150_109_880_320;

/// Bytes of device memory that programs see in all.
pub fn usable_bytes(spec: &DeviceSpec) -> u64 {
    spec.memory.capacity_bytes - DRIVER_BYTES.min(spec.memory.capacity_bytes / 64)
}

/// Bytes that a context itself uses, of so many that programs see: code, stacks and queues. An H200
/// shows about 500 MiB per context; small boards much less, so it is a two-hundredth there and 528
/// MiB at most.
pub fn context_bytes(usable_bytes: u64) -> u64 {
    (usable_bytes / 200).min(528 << 20).next_multiple_of(PAGE_BYTES)
}

/// The most GPUs of a machine: as many as a kernel driver numbers.
pub const GPUS_MAX: u32 = 32;
/// The bus on which the first board sits; the others follow.
const PCI_BUS: u32 = 0x1b;

/// The longest serial number that is read, in bytes.
const SERIAL_BYTES_MAX: u64 = 64;

/// A GPU of the simulated machine and a directory.
#[derive(Clone, Debug)]
pub struct Place {
    /// The device.
    pub spec: DeviceSpec,
    /// Its name for [`catalogue::device`].
    name: String,
    /// Which of the machine's GPUs it is.
    pub index: u32,
    /// The directory of its board's files.
    pub dir: PathBuf,
    /// Which of the GPU's MIG instances it is; `None` for the GPU.
    instance: Option<InstanceOf>,
}

/// The most MIG instances of a GPU.
pub const INSTANCES_MAX: usize = 7;

/// A MIG instance: its number, and the place of its GPU.
#[derive(Clone, Debug)]
struct InstanceOf {
    number: u32,
    gpu: Box<Place>,
}

impl Place {
    /// The place that the environment names.
    ///
    /// # Errors
    /// An unknown device.
    pub fn from_env() -> io::Result<Self> {
        let name = std::env::var(ENV_DEVICE).ok().filter(|name| !name.is_empty());
        Self::new(name.as_deref().unwrap_or(catalogue::DEFAULT), 0, std::env::var_os(ENV_DIR))
    }

    /// The places of all GPUs of the machine that the environment names.
    ///
    /// # Errors
    /// An unknown device; an invalid number of GPUs, or more than [`GPUS_MAX`].
    pub fn all_from_env() -> io::Result<Vec<Self>> {
        let first = Self::from_env()?;
        let count = match std::env::var(ENV_GPUS).ok().filter(|count| !count.is_empty()) {
            None => 1,
            Some(text) => {
                let count = text.parse().ok().filter(|count| (1..=GPUS_MAX).contains(count));
                count.ok_or_else(|| {
                    let text = format!("{ENV_GPUS} is '{text}'; it takes a number from 1 to {GPUS_MAX}");
                    io::Error::new(io::ErrorKind::InvalidInput, text)
                })?
            }
        };
        Ok((0..count).map(|index| Self { index, ..first.clone() }).collect())
    }

    /// The place of a GPU of a named kind in `dir`, or in the default directory. Its driver is the
    /// one that the environment names.
    ///
    /// # Errors
    /// An unknown device, a driver that cannot be.
    pub fn new(device: &str, index: u32, dir: Option<OsString>) -> io::Result<Self> {
        let mut spec =
            catalogue::device(device).map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
        driver::from_env(&mut spec)?;
        let dir = match dir {
            Some(dir) if !dir.is_empty() => PathBuf::from(dir),
            // SAFETY: takes no arguments and cannot fail.
            _ => std::env::temp_dir().join(format!("partita-sim-{}", unsafe { libc::geteuid() })),
        };
        Ok(Self { spec, name: device.to_owned(), index, dir, instance: None })
    }

    /// The profiles of the GPU's MIG instances; empty if it cannot be divided, and for an instance.
    pub fn profiles(&self) -> &[MigSpec] {
        self.spec.mig.as_deref().unwrap_or_default()
    }

    /// What the directory's file `serial` says: machines with the same one have GPUs of the same
    /// identifiers, so that what is known of one holds for all.
    pub fn serial(&self) -> Option<Vec<u8>> {
        let file = File::open(self.dir.join("serial")).ok()?;
        let mut serial = Vec::new();
        file.take(SERIAL_BYTES_MAX).read_to_end(&mut serial).ok()?;
        Some(serial)
    }

    /// The file with its MIG instances; `None` while MIG is off.
    pub fn division_store(&self) -> Option<mig::Store> {
        let list = std::env::var(ENV_MIG).ok().filter(|_| self.spec.mig.is_some())?;
        Some(mig::Store::new(self.file(".mig"), list))
    }

    /// The file with the state of the vGPU driver.
    pub fn vgpu_file(&self) -> PathBuf {
        self.file(".vgpu")
    }

    /// Its GPU instances; `None` while MIG is off.
    ///
    /// # Errors
    /// Unknown profiles in the variable, or profiles that do not fit the GPU together; those of the
    /// system.
    pub fn division(&self) -> io::Result<Option<Division>> {
        let Ok(list) = std::env::var(ENV_MIG) else { return Ok(None) };
        let refuse = |reason: String| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{ENV_MIG} is '{list}': {reason}"))
        };
        match self.division_store() {
            None if list.is_empty() => Ok(None),
            None => Err(refuse(format!("a {} has no MIG instances", self.spec.name))),
            Some(store) => match store.read()? {
                Some(division) => Ok(Some(division)),
                None => Division::first(self.profiles(), &list).map(Some).map_err(refuse),
            },
        }
    }

    /// The places of the GPU's MIG instances that programs can run on; `None` without MIG.
    ///
    /// # Errors
    /// As [`Self::division`].
    pub fn instances(&self) -> io::Result<Option<Vec<Self>>> {
        let Some(division) = self.division()? else { return Ok(None) };
        let devices = division.instances.iter().filter(|instance| instance.has_compute);
        devices.map(|instance| self.part(instance)).collect::<io::Result<_>>().map(Some)
    }

    fn part(&self, instance: &mig::Instance) -> io::Result<Self> {
        let refuse = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let profile = self
            .profiles()
            .iter()
            .map(|spec| &spec.profile)
            .find(|profile| profile.id == instance.profile)
            .ok_or_else(|| refuse(format!("no MIG profile {}", instance.profile)))?;
        let mut spec = self.spec.part(profile).map_err(|error| refuse(error.to_string()))?;
        // Leaked: a process has only a handful of names.
        spec.name = String::leak(format!("{} MIG {}", self.spec.name, profile.name));
        let instance = InstanceOf { number: instance.number, gpu: Box::new(self.clone()) };
        Ok(Self { spec, instance: Some(instance), ..self.clone() })
    }

    /// The GPU's place: its own unless it is that of a MIG instance.
    pub fn gpu(&self) -> Self {
        self.instance.as_ref().map_or_else(|| self.clone(), |instance| (*instance.gpu).clone())
    }

    /// The number of its GPU instance, from 1; `None` for the GPU.
    pub fn gpu_instance(&self) -> Option<u32> {
        self.instance.as_ref().map(|instance| instance.number)
    }

    /// The bus that the GPU sits on; domain, slot and function are 0.
    pub fn pci_bus(&self) -> u32 {
        PCI_BUS + self.index
    }

    fn file(&self, suffix: &str) -> PathBuf {
        let id = self.spec.id;
        let which = if self.index == 0 { String::new() } else { format!("-{}", self.index) };
        let part = self.gpu_instance().map_or_else(String::new, |number| format!("-mig{number}"));
        self.dir.join(format!("{id}{which}{part}{suffix}"))
    }

    /// Path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.file(".sock")
    }

    /// Path of the lock.
    pub fn lock(&self) -> PathBuf {
        self.file(".lock")
    }

    /// Makes the directory, for this user alone.
    ///
    /// # Errors
    /// Those of `mkdir`; as `Place::check_dir`.
    pub fn make_dir(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        self.check_dir()
    }

    /// Whether the directory belongs to this user, or to root. A board in another directory is
    /// under its user's control, so even root does not trust it.
    ///
    /// # Errors
    /// `PermissionDenied` when it belongs to another user; `NotFound`.
    fn check_dir(&self) -> io::Result<()> {
        let owner = fs::symlink_metadata(&self.dir)?;
        // SAFETY: takes no arguments and cannot fail.
        let user = unsafe { libc::geteuid() };
        if owner.is_dir() && [0, user].contains(&owner.uid()) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} belongs to user {}, not to user {user}; set {ENV_DIR} to a directory of your own",
                self.dir.display(),
                owner.uid()
            ),
        ))
    }

    /// Whether programs of every user are on this board: its directory is root's, and others can
    /// enter it.
    pub fn is_for_all_users(&self) -> bool {
        fs::symlink_metadata(&self.dir).is_ok_and(|dir| dir.uid() == 0 && dir.mode() & 0o001 != 0)
    }

    /// Waits for the lock and takes it; creates the directory if it is missing.
    ///
    /// # Errors
    /// Those of `mkdir`, `open` and `flock`.
    pub fn take_lock(&self) -> io::Result<File> {
        loop {
            self.make_dir()?;
            match self.lock_with(libc::LOCK_EX) {
                // The directory was removed between the two calls, because a board just ended.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                taken => return taken,
            }
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// Those of `open` and `flock`: `WouldBlock` when it is held, `NotFound` when the directory is
    /// missing.
    pub fn try_lock(&self) -> io::Result<File> {
        self.lock_with(libc::LOCK_EX | libc::LOCK_NB)
    }

    fn lock_with(&self, how: i32) -> io::Result<File> {
        loop {
            let file =
                OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(self.lock())?;
            if self.is_for_all_users() {
                // Only its creator can and must change its mode.
                let _ = file.set_permissions(Permissions::from_mode(0o666));
            }
            // SAFETY: takes no pointers.
            if unsafe { libc::flock(file.as_raw_fd(), how) } != 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            // The previous holder may have removed the file: then this lock guards nothing.
            let here = file.metadata()?;
            match fs::metadata(self.lock()) {
                Ok(there) if there.ino() == here.ino() && there.dev() == here.dev() => return Ok(file),
                _ => {}
            }
        }
    }

    /// Connects to the board, if one runs.
    ///
    /// # Errors
    /// Those of `connect`; `NotFound` or `ConnectionRefused` when none runs; as `Place::check_dir`.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        self.check_dir()?;
        socket::connect(&self.socket())
    }

    /// Connects to the board and starts it first when none runs.
    ///
    /// # Errors
    /// The program cannot be found or started, or the board did not start to listen.
    pub fn connect_or_start(&self, beside: Option<&Path>) -> io::Result<OwnedFd> {
        if let Ok(socket) = self.connect() {
            return Ok(socket);
        }
        let _lock = self.take_lock()?;
        if let Ok(socket) = self.connect() {
            return Ok(socket);
        }
        self.start(beside)?;
        self.connect()
    }

    fn start(&self, beside: Option<&Path>) -> io::Result<()> {
        let program = match std::env::var_os(ENV_PROGRAM) {
            Some(program) => PathBuf::from(program),
            None => beside.map(|file| file.with_file_name("partita-simgpu")).unwrap_or_default(),
        };
        let mut command = Command::new(&program);
        command.arg("--device").arg(&self.name).arg("--dir").arg(&self.dir);
        command.arg("--index").arg(self.index.to_string());
        if let Some(number) = self.gpu_instance() {
            command.arg("--instance").arg(number.to_string());
        }
        // The board outlives its first client: it gets only those of the client's variables that
        // configure the simulation, and those with paths.
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| {
            let name = name.to_string_lossy();
            name.starts_with("PARTITA_SIM") || ["PATH", "HOME", "TMPDIR", "RUST_BACKTRACE"].contains(&&*name)
        }));
        command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir("/");
        let explain = |error: io::Error| {
            let program = program.display();
            io::Error::new(
                error.kind(),
                format!(
                    "cannot start the simulated GPU '{program}': {error}; set {ENV_PROGRAM} to the program"
                ),
            )
        };
        // The program detaches itself, and its first process exits when the board listens.
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            // A program that ignores SIGCHLD has no children to wait for; whether the board runs
            // shows.
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(()),
            Ok(status) => Err(explain(io::Error::other(status.to_string()))),
            Err(error) => Err(explain(error)),
        }
    }
}
