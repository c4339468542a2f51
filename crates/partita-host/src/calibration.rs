//! The measurements that a GPU needs before a mask can be written.
//!
//! Launch descriptors number TPCs physically, with holes where a part of the chip is switched off,
//! and every board has different holes. So the numbering, the GPC of each TPC and the descriptor's
//! layout are measured in a child process on the bare device, once per driver build, and cached. A
//! cached measurement is never used for another driver, another board or another layout.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_core::survey::{ControlClaims, NvdebugClaims, ProbeClaims, Survey};
use partita_core::{Topology, Tpc, kept};
use partita_driver::{Cuda, LaunchMask};
use serde::{Deserialize, Serialize};

use self::evidence::Evidence;
use crate::cache;
use crate::child::Job;
use crate::error::Error;
use crate::files::{self, Durable};
use crate::gpu::Gpu;
use crate::install::{self, Install};

pub mod counted;
pub mod evidence;
pub mod serve;
pub mod streams;

/// The name of the job that measures.
pub const JOB: &str = "calibrate";

const MAGIC: &str = kept::BOARD.0;
const VERSION: u32 = kept::BOARD.1;
/// Some hundred launches and a context: seconds at most. A probe that hangs is ended.
const LIMIT: Duration = Duration::from_secs(90);

/// The measurements of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Compute capability: major × 10 + minor.
    pub device_class: u32,
    /// The version byte of the launch descriptors that this driver builds for this device.
    pub qmd_version: u8,
    /// SMs per TPC.
    pub sms_per_tpc: u32,
    /// Each TPC in logical order: its GPC and its bit in the descriptor's mask.
    pub tpcs: Vec<(u8, u16)>,
    /// Whether the GPCs are proved: by clusters of blocks or, on devices without clusters, by the
    /// control interface, with which the probe agrees. If not, each TPC counts as a separate GPC.
    pub gpcs_proved: bool,
    /// The reports of other sources than the probe on where units are.
    pub evidence: Evidence,
    /// The device's memory as CUDA counts it, in bytes.
    pub memory_total_bytes: u64,
    /// How many kernels it runs at once; none if that is unknown, or more than were tried.
    pub task_slots: Option<u32>,
}

impl Measured {
    /// All that is known about where the units are.
    #[must_use]
    pub fn survey(&self, nvdebug: Result<NvdebugClaims, String>) -> Survey {
        Survey {
            compute_capability: self.device_class,
            qmd_version: self.qmd_version,
            runs_clusters: self.evidence.runs_clusters,
            probe: ProbeClaims {
                sms_per_tpc: self.sms_per_tpc,
                bits: self.tpcs.iter().map(|&(_, bit)| bit).collect(),
            },
            control: self.evidence.control.as_ref().map(ControlClaims::from).map_err(Clone::clone),
            clusters: self
                .evidence
                .clusters
                .as_ref()
                .map(|()| self.tpcs.iter().map(|&(gpc, _)| gpc).collect())
                .map_err(Clone::clone),
            nvdebug,
        }
    }

    /// The device's topology.
    ///
    /// # Errors
    /// Why there is no such device.
    pub fn topology(&self) -> Result<Topology, String> {
        let tpcs: Vec<Tpc> = self.tpcs.iter().map(|&(gpc, physical)| Tpc { gpc, physical }).collect();
        Topology::new(self.sms_per_tpc, tpcs).map_err(|error| error.to_string())
    }
}

/// A calibration file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    magic: String,
    version: u32,
    driver: String,
    gpu_uuid: String,
    measured: Measured,
}

/// Where calibrations are kept.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// In the directory of `PARTITA_CACHE_DIR`, else in `/var/cache/partita` for root, else in
    /// `partita` in the user's cache directory.
    pub fn open() -> Self {
        Self { dir: cache::dir() }
    }

    /// The calibration of `gpu`: the kept one if it is this very GPU's under
    /// this very driver, else a new one, which is kept.
    ///
    /// # Errors
    /// [`Error::Unproved`] if the device could not be measured.
    pub fn get(&self, install: &Install, gpu: &Gpu) -> Result<Measured, Error> {
        let driver = driver_build(install, gpu)?;
        if let Ok(measured) = self.read(&driver, gpu) {
            return Ok(measured);
        }
        // Commands that start together measure once, and not in each other's way.
        let _turn = self.turn(&driver, gpu);
        if let Ok(measured) = self.read(&driver, gpu) {
            return Ok(measured);
        }
        let measured = measure(install, gpu)?;
        // A cache that cannot be written costs the next command a second, and nothing else.
        let _ = self.write(&driver, gpu, &measured);
        Ok(measured)
    }

    /// Measures again, even if there is a cached result, and caches the new one.
    ///
    /// # Errors
    /// [`Error::Unproved`].
    pub fn renew(&self, install: &Install, gpu: &Gpu) -> Result<Measured, Error> {
        let driver = driver_build(install, gpu)?;
        let measured = measure(install, gpu)?;
        let _ = self.write(&driver, gpu, &measured);
        Ok(measured)
    }

    /// The kept calibration of `gpu`, if there is one to be believed.
    pub fn kept(&self, install: &Install, gpu: &Gpu) -> Option<Measured> {
        self.read(&driver_build(install, gpu).ok()?, gpu).ok()
    }

    fn path(&self, driver: &str, gpu: &Gpu) -> PathBuf {
        let stem = kept::file_stem(&gpu.facts.uuid, driver, gpu.facts.compute_capability);
        self.dir.join(format!("{stem}.json"))
    }

    /// Waits until no other command of this user measures `gpu`, and keeps others waiting until
    /// dropped. None where no file can be made: then each measures for itself.
    fn turn(&self, driver: &str, gpu: &Gpu) -> Option<File> {
        cache::make_dir(&self.dir).ok()?;
        let path = self.path(driver, gpu).with_extension("lock");
        // Other users cannot open it, and so cannot block this one.
        let file = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path).ok()?;
        file.lock().ok()?;
        Some(file)
    }

    fn read(&self, driver: &str, gpu: &Gpu) -> Result<Measured, String> {
        if is_cut_up(gpu) {
            return Err("programs see an instance of it".to_owned());
        }
        let path = self.path(driver, gpu);
        let bytes = files::read_trusted(&path, kept::FILE_BYTES_MAX)?;
        let record: Record = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        check(record, driver, gpu)
    }

    fn write(&self, driver: &str, gpu: &Gpu, measured: &Measured) -> io::Result<()> {
        if is_cut_up(gpu) {
            return Ok(());
        }
        let record = Record {
            magic: MAGIC.to_owned(),
            version: VERSION,
            driver: driver.to_owned(),
            gpu_uuid: gpu.facts.uuid.clone(),
            measured: measured.clone(),
        };
        keep(&self.dir, &self.path(driver, gpu), &record)
    }
}

/// Whether a program that uses the GPU gets a MIG instance. What it measures there is not true of
/// the GPU, whose identifier stays the same when MIG is turned off.
fn is_cut_up(gpu: &Gpu) -> bool {
    gpu.facts.mig_enabled == Some(true)
}

/// Writes a record to its place in `dir`, whole or not at all.
fn keep(dir: &Path, path: &Path, record: &impl Serialize) -> io::Result<()> {
    cache::make_dir(dir)?;
    files::replace(path, &serde_json::to_vec_pretty(record)?, 0o644, Durable::Yes)
}

/// Whether a record was made under this driver and for this GPU.
fn check_origin(made_under: &str, made_for: &str, driver: &str, gpu: &Gpu) -> Result<(), String> {
    if made_under == driver && made_for == gpu.facts.uuid {
        Ok(())
    } else {
        Err("another driver or GPU".to_owned())
    }
}

/// Whether a record is this GPU's under this driver, and possible at all.
fn check(record: Record, driver: &str, gpu: &Gpu) -> Result<Measured, String> {
    let (major, minor) = gpu.facts.compute_capability;
    if record.magic != MAGIC || record.version != VERSION {
        return Err("another format".to_owned());
    }
    check_origin(&record.driver, &record.gpu_uuid, driver, gpu)?;
    if record.measured.device_class != major * 10 + minor {
        return Err("another compute capability".to_owned());
    }
    record.measured.topology()?;
    Ok(record.measured)
}

/// The identity of the driver that a calibration is for.
fn driver_build(install: &Install, gpu: &Gpu) -> Result<String, Error> {
    if gpu.sim().is_none() {
        return Ok(gpu.driver_version.clone());
    }
    let path = install.part(install::SIMCUDA)?;
    let meta = path.metadata().map_err(Error::io(path.display().to_string()))?;
    Ok(kept::simulated_build(
        &gpu.driver_version,
        &path.display().to_string(),
        meta.len(),
        (meta.mtime(), meta.mtime_nsec()),
        |variable| std::env::var_os(variable).map(|value| value.display().to_string()),
    ))
}

fn unproved(gpu: &Gpu, reason: String) -> Error {
    Error::Unproved { driver: gpu.driver_version.clone(), gpu: gpu.label(), reason }
}

fn measure(install: &Install, gpu: &Gpu) -> Result<Measured, Error> {
    let refuse = |reason: String| unproved(gpu, reason);
    let job = Job::new(install, JOB, &())?.envs(gpu.variables()).envs(without_mps()).limit(LIMIT);
    let measured: Measured = job.run()?.map_err(|error| error.or(refuse))?;
    measured.topology().map_err(refuse)?;
    Ok(measured)
}

/// The job: measures the first GPU that this process sees.
///
/// # Errors
/// The contradiction, or the driver's message.
pub fn measure_here() -> Result<Measured, String> {
    let cuda = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    let gpu = partita_driver::Gpu::open(&cuda, 0).map_err(|error| error.to_string())?;
    let measured = measure_gpu(&cuda, &gpu);
    // After a launch that hangs nothing of the driver can be waited for.
    std::mem::forget(gpu);
    measured
}

fn measure_gpu(cuda: &Cuda, gpu: &partita_driver::Gpu<'_>) -> Result<Measured, String> {
    let describe = |error: partita_driver::Error| error.to_string();
    let mut mask = LaunchMask::install(cuda).map_err(describe)?;
    let mut probe = partita_driver::probe_with(gpu, &mut mask).map_err(describe)?;
    let (gpcs, gpcs_proved, evidence) = evidence::gather(cuda, gpu, &mut mask, &mut probe)?;
    // A mask would count only what some TPCs hold.
    mask.clear();
    let task_slots = partita_driver::task_slots(gpu).map_err(describe)?;
    Ok(Measured {
        device_class: probe.facts.compute_capability,
        qmd_version: probe.qmd_version,
        sms_per_tpc: probe.sms_per_tpc,
        tpcs: gpcs.into_iter().zip(&probe.tpcs).map(|(gpc, tpc)| (gpc, tpc.physical)).collect(),
        gpcs_proved,
        evidence,
        memory_total_bytes: probe.facts.memory_bytes,
        task_slots,
    })
}

/// The variables that keep a job out of any MPS service: a pipe directory where no daemon can be.
#[must_use]
pub fn without_mps() -> [(&'static str, &'static str); 1] {
    [("CUDA_MPS_PIPE_DIRECTORY", "/dev/null/no-mps")]
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::facts::GpuFacts;

    fn gpu() -> Gpu {
        Gpu::of(GpuFacts::example(), "580.1", 13000)
    }

    fn measured() -> Measured {
        Measured {
            device_class: 90,
            qmd_version: 0x40,
            sms_per_tpc: 2,
            tpcs: vec![(0, 0), (1, 9), (0, 2)],
            gpcs_proved: true,
            evidence: Evidence::default(),
            memory_total_bytes: 1 << 37,
            task_slots: Some(128),
        }
    }

    #[test]
    fn what_is_kept_comes_back_for_this_driver_and_gpu_only() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache { dir: temp.path().join("cache") };
        assert!(cache.read("580.1", &gpu()).is_err());
        cache.write("580.1", &gpu(), &measured()).unwrap();
        assert_eq!(cache.read("580.1", &gpu()).unwrap(), measured());
        assert!(cache.read("580.2", &gpu()).is_err());

        // What was measured in an instance is not kept as the GPU's, nor the other way round.
        let mut cut_up = gpu();
        cut_up.facts.mig_enabled = Some(true);
        assert!(cache.read("580.1", &cut_up).is_err());
        cache.write("580.1", &cut_up, &Measured { sms_per_tpc: 1, ..measured() }).unwrap();
        assert_eq!(cache.read("580.1", &gpu()).unwrap(), measured());

        // A file that was renamed, or copied from another machine, is another one's.
        let path = cache.path("580.1", &gpu());
        fs::copy(&path, cache.path("580.2", &gpu())).unwrap();
        assert_eq!(cache.read("580.2", &gpu()).unwrap_err(), "another driver or GPU");
        let mut other = gpu();
        other.facts.uuid = "GPU-13".to_owned();
        fs::copy(&path, cache.path("580.1", &other)).unwrap();
        assert_eq!(cache.read("580.1", &other).unwrap_err(), "another driver or GPU");
    }

    #[test]
    fn one_command_at_a_time_measures_a_gpu() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache { dir: temp.path().join("cache") };
        let turn = cache.turn("580.1", &gpu()).unwrap();
        let other = File::open(cache.path("580.1", &gpu()).with_extension("lock")).unwrap();
        assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
        assert_eq!(turn.metadata().unwrap().mode() & 0o777, 0o600);
        drop(turn);
        other.try_lock().unwrap();
        // A GPU under another driver has another lock; in a directory that is not writable there is
        // no wait.
        assert!(cache.turn("580.2", &gpu()).is_some());
        assert!(Cache { dir: "/dev/null/cache".into() }.turn("580.1", &gpu()).is_none());
    }

    #[test]
    fn damaged_and_foreign_files_are_not_believed() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache { dir: temp.path().to_owned() };
        cache.write("580.1", &gpu(), &measured()).unwrap();
        let path = cache.path("580.1", &gpu());
        let good = fs::read_to_string(&path).unwrap();
        for (from, to) in [
            (format!("\"version\": {VERSION}").as_str(), "\"version\": 999"),
            (MAGIC, "something"),
            ("\"device_class\": 90", "\"device_class\": 80"),
            ("\"sms_per_tpc\": 2", "\"sms_per_tpc\": 0"),
            ("\"sms_per_tpc\": 2", "\"sms_per_tpc\": 2, \"more\": 1"),
            ("9\n", "0\n"),
            ("{", ""),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            fs::write(&path, bad).unwrap();
            assert!(cache.read("580.1", &gpu()).is_err(), "{from} -> {to}");
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert!(cache.read("580.1", &gpu()).is_err(), "cut to {length} bytes");
        }
        fs::write(&path, &good).unwrap();
        cache.read("580.1", &gpu()).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(cache.read("580.1", &gpu()).unwrap_err(), "others could have written it");
    }
}
