//! Which bit of a launch descriptor's mask stands for which TPC of a GPU.
//!
//! There are three sources, in order of trust: a cached calibration; a calibration that Partita's
//! program makes now; and the kernel driver's control interface, from whose numbers the bits follow
//! on generations where this was measured. If all three fail, nothing is masked.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::c_int;

use partita_abi::attribute;
use partita_abi::qmd::{self, QmdLayout};
use partita_abi::types::CUuuid;
use partita_core::survey::{ControlClaims, ProbeClaims, Survey};
use partita_core::{Topology, Tpc};
use partita_driver::control::{self, Nodes};
use partita_driver::kept::json::Value;
use partita_driver::kept::{self, Measured, Origin};
use partita_driver::{Cuda, Error, ProcessMasks};

use crate::fault::Fault;
use crate::prover;

/// A GPU as CUDA reports it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its number in CUDA.
    pub ordinal: u32,
    /// The driver's handle.
    pub handle: c_int,
    /// `GPU-…`.
    pub uuid: String,
    /// Compute capability, major × 10 + minor.
    pub compute_capability: u32,
    /// How many SMs it has.
    pub sms: u32,
}

impl Device {
    /// The GPUs that this process sees. Initialises the driver.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn all(cuda: &Cuda) -> Result<Vec<Self>, Error> {
        let mut count = 0;
        // SAFETY: a valid pointer.
        unsafe {
            cuda.init(0)?;
            cuda.device_get_count(&mut count)?;
        }
        (0..count).map(|ordinal| Self::of(cuda, ordinal)).collect()
    }

    fn of(cuda: &Cuda, ordinal: c_int) -> Result<Self, Error> {
        let (mut handle, mut uuid) = (0, CUuuid { bytes: [0; 16] });
        // SAFETY: valid pointers, and a device below the count.
        unsafe {
            cuda.device_get(&mut handle, ordinal)?;
            cuda.device_get_uuid(&mut uuid, handle)?;
        }
        Ok(Self {
            ordinal: ordinal.unsigned_abs(),
            handle,
            uuid: format!("GPU-{uuid}"),
            compute_capability: 10
                * number(cuda, handle, attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
                + number(cuda, handle, attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            sms: number(cuda, handle, attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        })
    }

    fn origin(&self, cuda: &Cuda) -> Result<Origin, String> {
        Ok(Origin {
            uuid: self.uuid.clone(),
            driver: kept::driver_build(&|name| cuda.symbol(name))?,
            compute_capability: self.compute_capability,
            directory: kept::directory(),
        })
    }

    /// The name for the prover: the GPU's UUID, or `None` for a simulated GPU.
    fn name_for_prover(&self, cuda: &Cuda) -> Option<&str> {
        (!kept::is_simulated(&|name| cuda.symbol(name))).then_some(self.uuid.as_str())
    }

    /// SMs of a TPC: two on a P100 and from Volta on, one on older GPUs.
    ///
    /// # Errors
    /// `ENOTSUP` below 3.5, where launches have no masks.
    pub fn sms_per_tpc(&self) -> Result<u32, Fault> {
        match self.compute_capability {
            0..35 => Err(Fault::new(
                libc::ENOTSUP,
                format!(
                    "GPU {} has compute capability {}.{}; masks need 3.5 or newer",
                    self.ordinal,
                    self.compute_capability / 10,
                    self.compute_capability % 10
                ),
            )),
            60 | 70.. => Ok(2),
            _ => Ok(1),
        }
    }
}

/// An attribute of a device.
pub(crate) fn number(cuda: &Cuda, device: c_int, attribute: u32) -> Result<u32, Error> {
    let mut value = 0;
    // SAFETY: a valid pointer, and a device that the driver gave.
    unsafe { cuda.device_get_attribute(&mut value, attribute, device)? };
    Ok(u32::try_from(value).unwrap_or(0))
}

/// A GPU's TPCs and the bits of its launch masks.
#[derive(Debug, Clone)]
pub enum Board {
    /// Proved on this board under this driver.
    Proved(Measured),
    /// As the control interface reports it.
    Named {
        /// Its TPCs, their bits and GPCs.
        topology: Topology,
        /// Compute capability, major × 10 + minor.
        compute_capability: u32,
        /// The only version of launch descriptors for which the bits are known; `None` if all
        /// versions of the class have the same.
        layout: Option<&'static QmdLayout>,
    },
}

/// The version of launch descriptors for which the bits are known on Hopper. Hopper has another
/// version, for which nothing was measured.
const HOPPER_VERSION: u8 = 0x40;
/// The newest version whose bits are the TPCs' own numbers.
const PLAIN_VERSION: u8 = 0x30;

impl Board {
    /// Finds out about a GPU. The first time on a driver build, this can take seconds.
    ///
    /// # Errors
    /// `ENODATA` if all sources fail, with the reason of each.
    pub fn find(cuda: &Cuda, device: &Device) -> Result<Self, Fault> {
        let origin = device.origin(cuda);
        let kept = match &origin {
            Ok(origin) => origin.measured(),
            Err(reason) => Err(reason.clone()),
        };
        let kept = match kept {
            Ok(measured) => return Ok(Self::Proved(measured)),
            Err(reason) => reason,
        };
        let proved = prover::prove(device.name_for_prover(cuda), false).and_then(|result| {
            let origin = origin.unwrap_or_else(|_| Origin {
                uuid: device.uuid.clone(),
                driver: String::new(),
                compute_capability: device.compute_capability,
                directory: kept::directory(),
            });
            measured_of(&origin, &result)
        });
        let proof = match proved {
            Ok(measured) => return Ok(Self::Proved(measured)),
            Err(reason) => reason,
        };
        match Self::named(cuda, device) {
            Ok(board) => Ok(board),
            Err(named) => Err(Fault::new(
                libc::ENODATA,
                format!(
                    "the mapping of mask bits to the TPCs of GPU {} is unknown: run `partita doctor` \
                     once under this driver (cached calibration: {kept}; a new one: {proof}; the \
                     control interface: {named})",
                    device.ordinal
                ),
            )),
        }
    }

    fn named(cuda: &Cuda, device: &Device) -> Result<Self, String> {
        let address = control::pci_address(cuda, device.ordinal).map_err(|error| error.to_string())?;
        let claims = control::read(&Nodes::of(cuda), address, None).map_err(|error| error.to_string())?;
        named_board(claims, device.compute_capability)
    }

    /// Its TPCs.
    pub fn topology(&self) -> &Topology {
        match self {
            Self::Proved(measured) => &measured.topology,
            Self::Named { topology, .. } => topology,
        }
    }

    /// Whether its GPCs are known well enough to report.
    pub fn has_gpcs(&self) -> bool {
        match self {
            Self::Proved(measured) => measured.gpcs_proved,
            Self::Named { .. } => true,
        }
    }

    /// Installs the launch callback that masks this process's launches.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn install(&self, cuda: &Cuda) -> Result<ProcessMasks, Error> {
        match self {
            Self::Proved(measured) => ProcessMasks::install(cuda, &measured.topology, measured.layout),
            Self::Named { topology, layout: Some(layout), .. } => {
                ProcessMasks::install(cuda, topology, layout)
            }
            Self::Named { topology, compute_capability, .. } => {
                ProcessMasks::install_by_class(cuda, topology, *compute_capability)
            }
        }
    }
}

/// Reads a board from the prover's result, if the result is for this GPU.
fn measured_of(origin: &Origin, result: &Value) -> Result<Measured, String> {
    check_gpu(origin, result)?;
    origin.measured_in(result.get("measured").ok_or("the proof has no measurement")?)
}

fn check_gpu(origin: &Origin, result: &Value) -> Result<(), String> {
    match result.get("gpu_uuid").and_then(Value::text) {
        Some(uuid) if uuid.eq_ignore_ascii_case(&origin.uuid) => Ok(()),
        other => Err(format!("the proof is for GPU {}, not for {}", other.unwrap_or("?"), origin.uuid)),
    }
}

/// The offset of a stream's mask in the driver's structure, in bytes: cached, or proved now.
///
/// # Errors
/// `ENODATA` if no offset is proved: nothing is written at an unproved place.
pub fn stream_offset(cuda: &Cuda, device: &Device) -> Result<u32, Fault> {
    let unproved = |kept: &str, proof: &str| {
        Fault::new(
            libc::ENODATA,
            format!(
                "the place of stream masks in this driver is not proved: run `partita doctor` once \
                 under this driver (cached: {kept}; a new proof: {proof})"
            ),
        )
    };
    let origin =
        device.origin(cuda).map_err(|reason| unproved(&reason, "no calibration can be matched to it"))?;
    let kept = match origin.stream_offset() {
        Ok(offset) => return Ok(offset),
        Err(reason) => reason,
    };
    prover::prove(device.name_for_prover(cuda), true)
        .and_then(|result| {
            check_gpu(&origin, &result)?;
            kept::offset_in(result.get("place").ok_or("the proof has no offset")?)
        })
        .map_err(|reason| unproved(&kept, &reason))
}

/// Makes a board from the control interface alone.
fn named_board(claims: ControlClaims, compute_capability: u32) -> Result<Board, String> {
    let layout = match compute_capability {
        90 => Some(qmd::layout_for(90, HOPPER_VERSION).map_err(|error| error.to_string())?),
        _ => None,
    };
    let version = match compute_capability {
        0..90 => PLAIN_VERSION,
        90 => HOPPER_VERSION,
        // The rule for the other generations is unknown.
        _ => 0xff,
    };
    let topology = named_topology(claims, compute_capability, version)?;
    Ok(Board::Named { topology, compute_capability, layout })
}

fn named_topology(
    claims: ControlClaims,
    compute_capability: u32,
    qmd_version: u8,
) -> Result<Topology, String> {
    let sms = claims.sms.len();
    let sms_per_tpc = claims.sms.iter().filter(|sm| sm.tpc == claims.sms[0].tpc).count();
    let mut survey = Survey {
        compute_capability,
        qmd_version,
        runs_clusters: compute_capability >= 90,
        probe: ProbeClaims { sms_per_tpc: sms_per_tpc as u32, bits: Vec::new() },
        control: Ok(claims),
        clusters: Err("not tried".to_string()),
        nvdebug: Err("not asked".to_string()),
    };
    let Ok(claims) = &survey.control else { return Err("it says nothing".to_string()) };
    let bits: Option<Vec<u16>> =
        claims.sms.iter().step_by(sms_per_tpc.max(1)).map(|place| survey.predicted_bit(place)).collect();
    survey.probe.bits = bits.ok_or_else(|| {
        format!(
            "its numbers do not determine the bits of a mask on compute capability {}.{}",
            compute_capability / 10,
            compute_capability % 10
        )
    })?;
    if survey.probe.bits.len() * sms_per_tpc != sms {
        return Err("its TPCs differ in size".to_string());
    }
    let groups = survey.control_groups().ok_or("its numbers contradict each other")?;
    let tpcs: Vec<Tpc> =
        groups.into_iter().zip(&survey.probe.bits).map(|(gpc, &physical)| Tpc { gpc, physical }).collect();
    Topology::new(sms_per_tpc as u32, tpcs).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_core::survey::SmPlace;

    fn claims(tpcs: u16, gpcs: u16) -> ControlClaims {
        let place = |sm: u16| {
            let tpc = sm / 2;
            SmPlace {
                gpc: tpc % gpcs,
                tpc_in_gpc: tpc / gpcs,
                sm_in_tpc: sm % 2,
                tpc,
                virtual_gpc: tpc % gpcs,
                migratable_tpc: tpc / gpcs,
                ugpu: None,
                cpc: None,
                virtual_tpc: None,
            }
        };
        ControlClaims { sms: (0..2 * tpcs).map(place).collect(), tpc_counts: Vec::new() }
    }

    #[test]
    fn bits_follow_from_the_control_interface_where_a_rule_is_known() {
        let ampere = named_board(claims(54, 7), 80).unwrap();
        let tpc = |tpc: u16| Tpc { gpc: (tpc % 7) as u8, physical: tpc };
        assert_eq!(ampere.topology().tpcs(), (0..54).map(tpc).collect::<Vec<_>>());
        assert!(matches!(ampere, Board::Named { layout: None, .. }));
        let hopper = named_board(claims(66, 8), 90).unwrap();
        assert_eq!(hopper.topology().tpcs()[65], Tpc { gpc: 1, physical: 9 + 8 });
        assert!(matches!(hopper, Board::Named { layout: Some(layout), .. } if layout.version.byte() == 0x40));
        assert!(named_board(claims(74, 8), 100).unwrap_err().contains("10.0"));
    }

    #[test]
    fn generations_have_one_or_two_sms_a_tpc() {
        let of = |compute_capability| Device {
            ordinal: 0,
            handle: 0,
            uuid: String::new(),
            compute_capability,
            sms: 1,
        };
        for (capability, sms) in [(35, 1), (52, 1), (60, 2), (61, 1), (62, 1), (70, 2), (90, 2), (120, 2)] {
            assert_eq!(of(capability).sms_per_tpc().unwrap(), sms, "{capability}");
        }
        assert_eq!(of(30).sms_per_tpc().unwrap_err().code, libc::ENOTSUP);
    }
}
