//! Cached calibrations of Partita's programs. Each is for one board under one driver build, and for
//! nothing else.
//!
//! `partita-host` writes them. This module reads them, for the libraries that run in other
//! programs.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;

use partita_abi::qmd::{self, QmdLayout};
use partita_core::{Topology, Tpc, kept};

use self::json::Value;
use crate::files;

pub mod json;

/// What a calibration is for: a GPU under a driver build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `GPU-…`.
    pub uuid: String,
    /// The build of the driver.
    pub driver: String,
    /// Compute capability, major × 10 + minor.
    pub compute_capability: u32,
    /// The directory of the cache: [`directory`].
    pub directory: String,
}

/// The measurement of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// Its TPCs, their bits and GPCs.
    pub topology: Topology,
    /// Whether the GPCs are proved; if not, all TPCs count as one GPC.
    pub gpcs_proved: bool,
    /// The layout of its launch descriptors.
    pub layout: &'static QmdLayout,
}

impl Origin {
    fn file(&self, ending: &str) -> String {
        let capability = (self.compute_capability / 10, self.compute_capability % 10);
        format!("{}/{}{ending}", self.directory, kept::file_stem(&self.uuid, &self.driver, capability))
    }

    /// The cached calibration of the board.
    ///
    /// # Errors
    /// Why there is no valid one.
    pub fn measured(&self) -> Result<Measured, String> {
        let record = self.record(".json", kept::BOARD)?;
        self.measured_in(record.get("measured").ok_or("it has no measurement")?)
    }

    /// The cached offset of the mask in a stream's structure, in bytes.
    ///
    /// # Errors
    /// Why there is no valid one.
    pub fn stream_offset(&self) -> Result<u32, String> {
        let record = self.record(".stream.json", kept::STREAM_PLACE)?;
        offset_in(record.get("place").ok_or("it has no offset")?)
    }

    /// A file's record, if it is for this board under this driver.
    fn record(&self, ending: &str, (magic, version): (&str, u32)) -> Result<Value, String> {
        let path = self.file(ending);
        let refuse = |reason: String| format!("{path}: {reason}");
        let text = files::read_trusted(&path, kept::FILE_BYTES_MAX).map_err(refuse)?;
        let record = Value::parse(&text).ok_or_else(|| refuse("it is damaged".to_string()))?;
        let says = |key: &str, value: &str| record.get(key).and_then(Value::text) == Some(value);
        if !says("magic", magic) || record.get("version").and_then(Value::number::<u32>) != Some(version) {
            return Err(refuse("it has another format".to_string()));
        }
        if !says("driver", &self.driver) || !says("gpu_uuid", &self.uuid) {
            return Err(refuse("it is for another driver or GPU".to_string()));
        }
        Ok(record)
    }

    /// Reads a measurement from its cached form.
    ///
    /// # Errors
    /// What is invalid.
    pub fn measured_in(&self, value: &Value) -> Result<Measured, String> {
        let number =
            |key: &str| value.get(key).and_then(Value::number::<u32>).ok_or(format!("it has no {key}"));
        if number("device_class")? != self.compute_capability {
            return Err("it is for another compute capability".to_string());
        }
        let version = u8::try_from(number("qmd_version")?).map_err(|error| error.to_string())?;
        let layout = qmd::layout_for(self.compute_capability, version).map_err(|error| error.to_string())?;
        let tpc = |pair: &Value| match pair.list()? {
            [gpc, physical] => Some(Tpc { gpc: gpc.number()?, physical: physical.number()? }),
            _ => None,
        };
        let tpcs: Option<Vec<Tpc>> =
            value.get("tpcs").and_then(Value::list).and_then(|tpcs| tpcs.iter().map(tpc).collect());
        let topology = Topology::new(number("sms_per_tpc")?, tpcs.ok_or("it has no TPCs")?)
            .map_err(|error| error.to_string())?;
        let gpcs_proved = value.get("gpcs_proved") == Some(&Value::Bool(true));
        Ok(Measured { topology, gpcs_proved, layout })
    }
}

/// Reads an offset from its cached form.
///
/// # Errors
/// If the entry has no offset.
pub fn offset_in(place: &Value) -> Result<u32, String> {
    place.get("offset_bytes").and_then(Value::number).ok_or("it has no offset".to_string())
}

/// `PARTITA_CACHE_DIR`, else root's directory, else `partita` in the user's cache directory, as for
/// the command.
#[must_use]
pub fn directory() -> String {
    if let Some(directory) = files::variable(c"PARTITA_CACHE_DIR") {
        return directory;
    }
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        return kept::ROOT_DIRECTORY.to_string();
    }
    let user = files::variable(c"XDG_CACHE_HOME")
        .or_else(|| files::variable(c"HOME").map(|home| format!("{home}/.cache")))
        .or_else(|| files::variable(c"TMPDIR"))
        .unwrap_or_else(|| "/tmp".to_string());
    format!("{user}/partita")
}

/// Finds a symbol of libcuda by its name.
pub type Find<'f> = &'f dyn Fn(&CStr) -> Option<NonNull<c_void>>;

/// Whether libcuda is the simulator's.
pub fn is_simulated(find: Find<'_>) -> bool {
    find(c"partita_sim_control_open").is_some()
}

/// The build of the driver that this process runs on.
///
/// # Errors
/// Why it is unknown.
pub fn driver_build(find: Find<'_>) -> Result<String, String> {
    if is_simulated(find) {
        return simulated_build(find);
    }
    if let Ok(text) = files::read("/sys/module/nvidia/version", 256) {
        return Ok(text.trim().to_string());
    }
    let path = "/proc/driver/nvidia/version";
    let text = files::read(path, 4096).map_err(|errno| format!("{path}: system error {errno}"))?;
    version_in(&text).map(ToString::to_string).ok_or_else(|| format!("{path} names no version"))
}

/// The first word that is a version, such as `580.159.04`.
fn version_in(text: &str) -> Option<&str> {
    text.split_ascii_whitespace().find(|word| {
        let mut parts = word.split('.');
        parts.clone().count() >= 2
            && parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// The version of a simulated driver is that of its management library, which is in the same file.
fn simulated_build(find: Find<'_>) -> Result<String, String> {
    let find = |name| find(name).ok_or("the simulated driver has no management library");
    let (init, version, stop) =
        (find(c"nvmlInit_v2")?, find(c"nvmlSystemGetDriverVersion")?, find(c"nvmlShutdown")?);
    type Plain = unsafe extern "C" fn() -> c_int;
    type Version = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
    let mut text = [0u8; 96];
    // SAFETY: the prototypes of these names in nvml.h, and the length that goes with the buffer.
    let code = unsafe {
        let start = core::mem::transmute::<*mut c_void, Plain>(init.as_ptr());
        let version = core::mem::transmute::<*mut c_void, Version>(version.as_ptr());
        let stop = core::mem::transmute::<*mut c_void, Plain>(stop.as_ptr());
        if start() != 0 {
            return Err("the simulated management library does not start".to_string());
        }
        let code = version(text.as_mut_ptr().cast(), text.len() as c_uint - 1);
        stop();
        code
    };
    let version = CStr::from_bytes_until_nul(&text).ok().and_then(|text| text.to_str().ok());
    let (0, Some(version)) = (code, version) else {
        return Err("the simulated driver does not report its version".to_string());
    };
    let path = files::object_of(init.as_ptr().addr()).ok_or("the simulated driver's file was not found")?;
    let (bytes, changed) = files::length_and_change(&path).ok_or("the simulated driver's file is gone")?;
    let variable = |name: &str| {
        let name = alloc::ffi::CString::new(name).ok()?;
        files::variable(&name)
    };
    Ok(kept::simulated_build(version, &path, bytes, changed, variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin {
            uuid: "GPU-1".into(),
            driver: "580.1".into(),
            compute_capability: 90,
            directory: String::new(),
        }
    }

    const MEASURED: &str = r#"{"device_class": 90, "qmd_version": 64, "sms_per_tpc": 2,
        "tpcs": [[0, 0], [1, 9], [0, 2]], "gpcs_proved": true, "evidence": {"control": {"Err": "x"}}}"#;

    #[test]
    fn measurements_are_read_and_invalid_ones_are_refused() {
        let read = |text: &str| origin().measured_in(&Value::parse(text).unwrap());
        let measured = read(MEASURED).unwrap();
        assert_eq!(measured.topology.tpcs()[1], Tpc { gpc: 1, physical: 9 });
        assert!(measured.gpcs_proved && measured.layout.version.byte() == 0x40);
        for (from, to) in [
            (": 90", ": 80"),
            (": 64", ": 80"),
            (": 64", ": 300"),
            ("\"sms_per_tpc\": 2", "\"sms_per_tpc\": 0"),
            ("[1, 9]", "[1, 0]"),
            ("[1, 9]", "[1]"),
            ("tpcs", "spct"),
        ] {
            let other = MEASURED.replacen(from, to, 1);
            assert_ne!(other, MEASURED);
            assert!(read(&other).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn versions_are_found() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (a@b)  1\nGCC version:  13.2.0";
        assert_eq!(version_in(open), Some("580.159.04"));
        assert_eq!(version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57  Tue"), Some("470.57"));
        assert_eq!(version_in("none . 1. .2"), None);
    }
}
