//! Converts the limits of an environment to those of a ledger.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::NonNull;

use partita_abi::attribute;
use partita_abi::types::CUuuid;
use partita_core::hami::{Asked, choose};
use partita_core::time::Priority;
use partita_core::{ByteSize, Present, Share, TpcSet};
use partita_driver::kept::{self, Measured, Origin};
use partita_ledger::{
    FLAG_GATED, FLAG_GPCS_UNPROVED, FLAG_TIMED, Limits, MECHANISM_MASK, MECHANISM_NONE, NO_QUOTA, Spill,
};

use crate::driver::calls::calls;
use crate::driver::real;

calls! {
    /// Entry points that describe a GPU.
    struct BoardCalls;
    memory = cuDeviceTotalMem_v2;
    attribute = cuDeviceGetAttribute;
}

calls! {
    /// The calls that distinguish MIG instances from GPUs: for an instance, the first version
    /// returns its GPU's UUID, and the second its own.
    struct InstanceCalls;
    of_gpu = cuDeviceGetUuid;
    own = cuDeviceGetUuid_v2;
}

/// Whether a device is a MIG instance. Drivers that cannot report it (before CUDA 11.4) name
/// instances by their GPU's UUID.
fn is_instance(ordinal: c_int) -> bool {
    let Ok(calls) = InstanceCalls::resolve() else { return false };
    let (mut of_gpu, mut own) = (CUuuid { bytes: [0; 16] }, CUuuid { bytes: [0; 16] });
    // SAFETY: valid pointers; the driver checks the ordinal.
    let told =
        unsafe { (calls.of_gpu)(&mut of_gpu, ordinal).is_ok() && (calls.own)(&mut own, ordinal).is_ok() };
    told && of_gpu.bytes != own.bytes
}

/// A GPU, or a MIG instance of one, as the driver reports it.
#[derive(Debug, Clone)]
pub struct Board {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// `GPU-…`, or `MIG-…` for a MIG instance.
    pub name: String,
    /// Compute capability, major × 10 + minor.
    pub compute_capability: u32,
    sms: u32,
    memory_bytes: u64,
}

impl Board {
    /// The GPU with this ordinal.
    ///
    /// # Errors
    /// What the driver does not report.
    pub fn of(ordinal: usize, uuid: [u8; 16]) -> Result<Self, String> {
        let no_call = |name: &CStr| format!("libcuda exports no {}", name.to_string_lossy());
        let calls = BoardCalls::resolve().map_err(no_call)?;
        let ordinal = c_int::try_from(ordinal).map_err(|error| error.to_string())?;
        let refused = |code| format!("the driver does not describe GPU {ordinal} ({code})");
        let number = |attribute: u32| {
            let mut value = 0;
            // SAFETY: a valid pointer; the driver checks the rest.
            unsafe { (calls.attribute)(&mut value, attribute, ordinal) }.ok().map_err(refused)?;
            u32::try_from(value).map_err(|error| error.to_string())
        };
        let mut memory_bytes = 0;
        // SAFETY: as above.
        unsafe { (calls.memory)(&mut memory_bytes, ordinal) }.ok().map_err(refused)?;
        Ok(Self {
            uuid,
            name: format!("{}-{}", if is_instance(ordinal) { "MIG" } else { "GPU" }, CUuuid { bytes: uuid }),
            compute_capability: 10 * number(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
                + number(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            sms: number(attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory_bytes: memory_bytes as u64,
        })
    }

    /// Its cached calibration, if there is one.
    fn measured(&self, asked: &Asked) -> Result<Measured, String> {
        let origin = Origin {
            uuid: self.name.clone(),
            driver: kept::driver_build(&find)?,
            compute_capability: self.compute_capability,
            directory: match &asked.calibrations {
                Some(directory) => String::from_utf8_lossy(directory).into_owned(),
                None => kept::directory(),
            },
        };
        origin.measured()
    }
}

/// The driver's own symbol, not the hook's.
fn find(name: &CStr) -> Option<NonNull<c_void>> {
    NonNull::new(real::symbol(name))
}

/// The requested limits of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    quota_bytes: u64,
    /// Percent of its cores; `None` without a limit.
    pub percent: Option<u32>,
    spills: bool,
    priority: Priority,
}

impl Wanted {
    /// The limits in `asked` of the device with this number.
    pub fn of(asked: &Asked, number: usize, board: &Board) -> Self {
        Self {
            // A scheduler can oversell a device; the device still has no more memory.
            quota_bytes: asked.memory_bytes(number).map_or(NO_QUOTA, |bytes| bytes.min(board.memory_bytes)),
            percent: asked.cores_percent(number),
            spills: asked.spills(number),
            priority: asked.priority.unwrap_or_default(),
        }
    }

    /// Whether limits are the requested ones, as far as possible.
    pub fn is_in(&self, limits: &Limits) -> bool {
        let tpcs: u32 = limits.set.iter().map(|word| word.count_ones()).sum();
        let cores = match (self.percent, limits.mechanism) {
            (None, MECHANISM_NONE) => limits.flags & FLAG_TIMED == 0,
            (Some(percent), MECHANISM_NONE) => {
                limits.flags & FLAG_TIMED != 0 && limits.time_permille == percent * 10
            }
            (Some(percent), MECHANISM_MASK) => limits
                .topology()
                .is_ok_and(|topology| Share::Percent(percent * 1000).tpcs_wanted(&topology) == Ok(tpcs)),
            _ => false,
        };
        let gated = limits.flags & FLAG_GATED != 0;
        let priority = if gated { Priority::from_number(limits.priority) } else { Priority::Normal };
        cores
            && limits.memory_quota_bytes == self.quota_bytes
            && (Spill::of(limits) == Spill::Host) == self.spills
            // High is given up where it cannot be had.
            && (priority == self.priority || (self.priority == Priority::High && !gated))
    }

    /// The limits of a new tenant beside the existing ones, and the deviations from the request.
    /// `hash` identifies the tenant; `in_memory` is whether its directory is in memory.
    ///
    /// # Errors
    /// Why a limit cannot be enforced, and the remedy.
    pub fn limits(
        &self,
        asked: &Asked,
        board: &Board,
        name: &str,
        present: &[Present],
        hash: u64,
        in_memory: bool,
    ) -> Result<Made, String> {
        let limits = self.without_partition(board, name)?;
        let mut made = Made { limits, notes: Vec::new(), overlaps: false, in_memory };
        if let Some(percent) = self.percent {
            self.put_partition(&mut made, percent, asked, board, present, hash)?;
        }
        if self.priority != Priority::Normal {
            match check_memory(in_memory) {
                Ok(()) => {
                    made.limits.flags |= FLAG_GATED;
                    made.limits.priority = self.priority as u32;
                }
                Err(reason) if self.priority == Priority::High => {
                    made.notes.push(format!("CUDA_TASK_PRIORITY=0 gives this tenant nothing: {reason}"))
                }
                Err(reason) => return Err(format!("CUDA_TASK_PRIORITY=1 cannot be enforced: {reason}")),
            }
        }
        made.notes.extend(asked.notes().map(ToString::to_string));
        Ok(made)
    }

    /// The limits as text, for diagnostics.
    pub fn shown(&self, limits: &Limits) -> String {
        let mut text = match self.quota_bytes {
            NO_QUOTA => "no memory limit".to_string(),
            bytes => format!("memory limit {}", ByteSize(bytes)),
        };
        match self.percent {
            None => text += ", no core limit",
            Some(percent) if limits.flags & FLAG_TIMED != 0 => {
                text += &format!(", core limit {percent}% by time");
            }
            Some(percent) => {
                text += &format!(", core limit {percent}% by mask: TPCs {}", TpcSet::from_words(limits.set));
            }
        }
        if limits.flags & FLAG_GATED != 0 {
            text += &format!(", {} priority", Priority::from_number(limits.priority).name());
        }
        text
    }

    fn without_partition(&self, board: &Board, name: &str) -> Result<Limits, String> {
        let mut limits = Limits {
            gpu_uuid: board.uuid,
            device_class: board.compute_capability,
            // Which SMs share a TPC is not known, and nothing asks: each counts as one.
            sms_per_tpc: 1,
            tpc_count: board.sms.clamp(1, 256),
            memory_quota_bytes: self.quota_bytes,
            memory_total_bytes: board.memory_bytes,
            mechanism: MECHANISM_NONE,
            flags: FLAG_GPCS_UNPROVED,
            name: Limits::name_field(name).map_err(|fault| fault.to_string())?,
            ..Limits::default()
        };
        if self.spills {
            Spill::Host.put(&mut limits);
        }
        limits.physical_of_logical.iter_mut().zip(0..).for_each(|(physical, number)| *physical = number);
        Ok(limits)
    }

    fn put_partition(
        &self,
        made: &mut Made,
        percent: u32,
        asked: &Asked,
        board: &Board,
        present: &[Present],
        hash: u64,
    ) -> Result<(), String> {
        let measured = match board.measured(asked) {
            Ok(measured) => measured,
            Err(reason) => {
                let no_way = |no_time: String| {
                    format!(
                        "a core limit of {percent}% needs a calibration of the GPU and its driver, \
                         which `partita doctor` proves and caches: run it once on this machine, \
                         and let the program read its directory ({reason}); a share of time \
                         would need no proof, but {no_time}; GPU_CORE_UTILIZATION_POLICY=disable \
                         runs without the core limit"
                    )
                };
                check_memory(made.in_memory).map_err(no_way)?;
                made.limits.flags |= FLAG_TIMED;
                made.limits.time_permille = percent * 10;
                return Ok(());
            }
        };
        let topology = &measured.topology;
        let fits = |percent: &u32| Share::Percent(percent * 1000).tpcs_wanted(topology).is_ok();
        if !fits(&percent) {
            let least = (percent..100).find(fits).unwrap_or(100);
            let tpcs = topology.tpc_count();
            return Err(format!(
                "a core limit of {percent}% cannot be enforced: it is less than one of the {tpcs} TPCs of \
                 this GPU; ask for {least}% or more"
            ));
        }
        let chosen = choose(topology, present, percent, hash)
            .map_err(|error| format!("a core limit of {percent}% cannot be enforced: {error}"))?;
        let limits = &mut made.limits;
        if measured.gpcs_proved {
            limits.flags &= !FLAG_GPCS_UNPROVED;
        }
        limits.mechanism = MECHANISM_MASK;
        limits.qmd_version = measured.layout.version.byte();
        limits.set_topology(topology);
        limits.set_partition(topology, &chosen.set);
        made.overlaps = chosen.overlaps;
        Ok(())
    }
}

/// Limits that can be enforced here.
pub struct Made {
    /// They.
    pub limits: Limits,
    /// Harmless deviations from the request.
    pub notes: Vec<String>,
    /// Whether some of the TPCs are other tenants' too.
    pub overlaps: bool,
    in_memory: bool,
}

/// Refuses limits that a GPU must map if it cannot map them.
fn check_memory(in_memory: bool) -> Result<(), String> {
    if !in_memory {
        return Err(
            "a GPU maps no page of a file system that is not in memory; put the file that CUDA_DEVICE_MEMORY_SHARED_CACHE names on a \
             tmpfs, or name a directory there with PARTITA_RUN_DIR"
                .to_string(),
        );
    }
    Ok(())
}
