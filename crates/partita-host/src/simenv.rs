//! The environment that puts an ordinary program on a simulated GPU.
//!
//! A private directory holds the names that a CUDA program and Partita look
//! for: `libcuda.so.1`, `libnvidia-ml.so.1`, and the two programs of MPS,
//! each a link to Partita's own. A program that finds these first is on the
//! simulated GPU and knows nothing of it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use partita_core::kept::fnv1a;

use crate::error::Error;
use crate::install::{self, Install};

/// How many GPUs the simulated machine has.
const GPUS_VARIABLE: &str = "PARTITA_SIM_GPUS";
/// The most that it can have.
const GPUS_MAX: u32 = 32;

/// The simulated devices, as `--gpu sim:NAME` takes them: those of the simulator's catalogue, which
/// this crate is not built with. A test compares the two.
pub const DEVICES: [&str; 17] = [
    "h200",
    "a100",
    "gtx1060-3gb",
    "gtx-680",
    "tesla-k40",
    "gtx970",
    "p100",
    "titan-v",
    "xavier",
    "rtx2060",
    "rtx3070",
    "rtx6000-ada",
    "l40s",
    "h100",
    "h100-v3",
    "b200",
    "gb10",
];

/// The device that is simulated where no GPU is found.
pub const DEFAULT_DEVICE: &str = "h200";

/// How many GPUs the machine has and how MIG divides them, without which a container finds neither
/// the second GPU nor an instance; the failures of its MPS service, and that one's version.
const MACHINE_VARIABLES: [&str; 4] =
    [GPUS_VARIABLE, "PARTITA_SIM_MIG", "PARTITA_SIM_MPS_SCRIPT", "PARTITA_SIM_MPS_VERSION"];

/// A simulated GPU that programs can be put on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimEnvironment {
    device: String,
    /// Where the simulated board keeps its socket and its memory.
    dir: PathBuf,
    /// Where the links are.
    links: PathBuf,
    board: PathBuf,
}

impl SimEnvironment {
    /// Makes the environment of the device `device` for the current user.
    ///
    /// # Errors
    /// [`Error::GpuSelector`] for an unknown device, [`Error::PartMissing`], and
    /// [`Error::Io`] or [`Error::RunDirectory`] if the directory cannot be made.
    pub fn create(install: &Install, device: &str) -> Result<Self, Error> {
        if !DEVICES.contains(&device) {
            return Err(Error::GpuSelector { text: format!("sim:{device}"), known: known() });
        }
        check_gpu_count(std::env::var_os(GPUS_VARIABLE).as_deref())?;
        let library = install.part(install::SIMCUDA)?;
        let mps = install.part(install::SIM_MPS_CONTROL)?;
        let board = install.part(install::SIMGPU)?;
        let dir = directory()?;
        // The board removes its own directory with its last file, so the links are beside it;
        // another installation has other links.
        let mut links = links_beside(&dir).into_os_string();
        links.push(format!(".env-{:08x}", fnv1a(library.as_os_str().as_encoded_bytes()) as u32));
        let environment = Self { device: device.to_owned(), dir, links: links.into(), board };
        for path in [&environment.links, &environment.lib(), &environment.bin()] {
            private_dir(path)?;
        }
        for (place, target) in [
            (environment.lib().join("libcuda.so.1"), &library),
            (environment.lib().join("libnvidia-ml.so.1"), &library),
            (environment.bin().join(partita_mps::binary::NAME), &mps),
            (environment.bin().join(partita_mps::binary::SERVER_NAME), &mps),
        ] {
            link(&place, target)?;
        }
        Ok(environment)
    }

    /// The same environment with another directory of boards: another user's.
    pub fn with_boards_in(mut self, dir: &Path) -> Self {
        self.dir = dir.to_owned();
        self
    }

    /// Starts the board of one of its GPUs for all users, if it does not run: their programs cannot
    /// start root's.
    ///
    /// # Errors
    /// [`Error::Io`] if it does not come up.
    pub(crate) fn start_board(&self, index: u32) -> Result<(), Error> {
        let failed = || Error::io(format!("the simulated GPU {}", self.board.display()));
        // All users can enter it, so they can use the board.
        match DirBuilder::new().mode(0o755).create(&self.dir) {
            Ok(()) => fs::set_permissions(&self.dir, fs::Permissions::from_mode(0o755)).map_err(failed())?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed()(error)),
        }
        let mut command = std::process::Command::new(&self.board);
        command.args(["--ensure", "--device", &self.device, "--index", &index.to_string(), "--dir"]);
        command.arg(&self.dir).envs(self.variables());
        let output = command.output().map_err(failed())?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(failed()(io::Error::other(said.trim().to_owned())))
    }

    /// The device's name in the catalogue.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Where the simulated board keeps its socket and its memory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn lib(&self) -> PathBuf {
        self.links.join("lib")
    }

    fn bin(&self) -> PathBuf {
        self.links.join("bin")
    }

    /// The control program of the simulated MPS service.
    pub fn mps_control(&self) -> PathBuf {
        self.bin().join(partita_mps::binary::NAME)
    }

    /// The variables that put a program on the simulated GPU. Search paths are
    /// those of the current process with the links in front.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![
            ("LD_LIBRARY_PATH", in_front(&self.lib(), env::var_os("LD_LIBRARY_PATH").as_deref())),
            ("PATH", in_front(&self.bin(), env::var_os("PATH").as_deref())),
            ("PARTITA_SIM_DEVICE", self.device.clone().into()),
            ("PARTITA_SIM_DIR", self.dir.clone().into()),
            ("PARTITA_SIMGPU", self.board.clone().into()),
        ];
        variables.extend(MACHINE_VARIABLES.iter().filter_map(|&name| Some((name, env::var_os(name)?))));
        variables
    }
}

/// The known devices as text for messages.
pub(crate) fn known() -> String {
    DEVICES.map(|device| format!("sim:{device}")).join(", ")
}

/// Refuses a number of GPUs that the simulated driver does not take, for it reports only that it
/// does not work.
fn check_gpu_count(value: Option<&OsStr>) -> Result<(), Error> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(()) };
    let count = value.to_str().and_then(|text| text.parse::<u32>().ok());
    if count.is_some_and(|count| (1..=GPUS_MAX).contains(&count)) {
        return Ok(());
    }
    Err(Error::Refused {
        what: format!("{GPUS_VARIABLE}={}", value.to_string_lossy()),
        reason: format!("a simulated machine has 1 to {GPUS_MAX} GPUs; write a number, or unset it"),
    })
}

/// The directory of the boards: `PARTITA_SIM_DIR`, or one per user under the temporary directory,
/// as in the simulated driver.
fn directory() -> Result<PathBuf, Error> {
    let dir = match env::var_os("PARTITA_SIM_DIR").filter(|value| !value.is_empty()) {
        Some(dir) => std::path::absolute(&dir).map_err(Error::io("PARTITA_SIM_DIR"))?,
        None => env::temp_dir().join(format!("partita-sim-{}", rustix::process::geteuid().as_raw())),
    };
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(Error::io(parent.display().to_string()))?;
    }
    Ok(dir)
}

/// The directory of this user's boards, if one may run: boards remove it at their end.
pub fn running_boards() -> Option<PathBuf> {
    directory().ok().filter(|dir| dir.is_dir())
}

/// The path beside which this user's links are: if the directory of boards is another user's, a
/// private one.
fn links_beside(boards: &Path) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let is_own = match (boards.symlink_metadata(), boards.parent()) {
        (Ok(meta), _) => meta.uid() == user,
        (Err(_), Some(parent)) => rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok(),
        (Err(_), None) => true,
    };
    if is_own { boards.to_owned() } else { env::temp_dir().join(format!("partita-sim-{user}")) }
}

/// Makes a directory for this user alone, or checks that it is one.
fn private_dir(path: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::io(path.display().to_string())(error)),
    }
    let meta = path.symlink_metadata().map_err(Error::io(path.display().to_string()))?;
    let user = rustix::process::geteuid().as_raw();
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o022 != 0 {
        return Err(Error::RunDirectory {
            path: path.to_owned(),
            reason: format!(
                "it must be a directory that only user {user} can write; remove it, or set PARTITA_SIM_DIR"
            ),
        });
    }
    Ok(())
}

/// Points `place` to `target`, also while others use it.
fn link(place: &Path, target: &Path) -> Result<(), Error> {
    if fs::read_link(place).is_ok_and(|current| current == target) {
        return Ok(());
    }
    let mut fresh = place.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    symlink(target, &fresh)
        .and_then(|()| fs::rename(&fresh, place))
        .map_err(Error::io(format!("the link {}", place.display())))
}

/// `directory` in front of a search path, unless it is there already.
fn in_front(directory: &Path, search_path: Option<&OsStr>) -> OsString {
    let mut value = directory.as_os_str().to_owned();
    for entry in search_path.iter().flat_map(|path| env::split_paths(path)) {
        if entry != directory && !entry.as_os_str().is_empty() {
            value.push(":");
            value.push(entry);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_are_those_of_the_simulator() {
        assert_eq!(DEVICES, partita_sim::catalogue::NAMES);
        assert_eq!(DEFAULT_DEVICE, partita_sim::catalogue::DEFAULT);
    }

    #[test]
    fn search_paths_hold_the_links_once_and_first() {
        let dir = Path::new("/sim/lib");
        assert_eq!(in_front(dir, None), "/sim/lib");
        assert_eq!(in_front(dir, Some(OsStr::new("/a:/b"))), "/sim/lib:/a:/b");
        assert_eq!(in_front(dir, Some(OsStr::new("/a:/sim/lib::/b"))), "/sim/lib:/a:/b");
    }

    #[test]
    fn links_are_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let place = temp.path().join("name");
        link(&place, Path::new("/one")).unwrap();
        link(&place, Path::new("/two")).unwrap();
        assert_eq!(fs::read_link(&place).unwrap(), Path::new("/two"));
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "no stray links");
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let open = temp.path().join("open");
        private_dir(&open).unwrap();
        private_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(private_dir(&open).unwrap_err().to_string().contains("only user"));
    }
}
