//! vGPUs through NVML: the types of a GPU, several sizes together, and the scheduler.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{c_char, c_uint};
use core::ptr::null_mut;

use partita_core::vf::{Averaging, Policy, SchedulerState, VgpuType};

use super::calls::{RawMixed, RawScheduler};
use super::error::{INSUFFICIENT_SIZE, MigError, MigFailure};
use super::gpu::{MigGpu, text};

/// `NVML_DEVICE_NAME_BUFFER_SIZE`.
const NAME_BYTES: usize = 64;
/// More types than any GPU has.
const TYPES_MAX: u32 = 512;
/// `NVML_VGPU_SCHEDULER_ARR_DISABLE` and `NVML_VGPU_SCHEDULER_ARR_ENABLE`.
const ARR: [c_uint; 2] = [1, 2];

/// A GPU with NVIDIA's vGPU driver.
pub struct VgpuHost(MigGpu);

impl VgpuHost {
    /// Loads NVML and finds the GPU with this UUID.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn open(uuid: &str) -> Result<Self, MigError> {
        MigGpu::open(uuid).map(Self)
    }

    /// Every type that the GPU can have, whether there is room for it or not.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn types(&self) -> Result<Vec<VgpuType>, MigError> {
        let (calls, device) = self.0.parts();
        let mut count = 0;
        // SAFETY: a live device; a null array asks for the number.
        match unsafe { calls.supported_vgpus(device, &mut count, null_mut()) } {
            Err(MigError::Call { code: INSUFFICIENT_SIZE, .. }) => {}
            counted => counted?,
        }
        let mut ids = vec![0; count.min(TYPES_MAX) as usize];
        if !ids.is_empty() {
            count = ids.len() as u32;
            // SAFETY: a live device, and the array's length.
            unsafe { calls.supported_vgpus(device, &mut count, ids.as_mut_ptr())? };
        }
        let mut types = Vec::new();
        for id in ids.into_iter().take(count as usize) {
            let (mut name, mut length) = ([0 as c_char; NAME_BYTES], NAME_BYTES as c_uint);
            let mut bytes = 0;
            // SAFETY: the buffer's length, and valid pointers.
            unsafe {
                calls.vgpu_name(id, name.as_mut_ptr(), &mut length)?;
                calls.vgpu_bytes(id, &mut bytes)?;
            }
            let name: String = text(&name)?;
            types.push(VgpuType { id, name, memory_mib: bytes >> 20 });
        }
        Ok(types)
    }

    /// Whether vGPUs of several sizes may be together; `None` if the GPU has no such mode.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn is_mixed(&self) -> Result<Option<bool>, MigError> {
        let (calls, device) = self.0.parts();
        let mut mode = RawMixed::new(false);
        // SAFETY: a live device, and a structure of the version that it names.
        match unsafe { calls.mixed(device, &mut mode) } {
            Err(error) if error.failure() == MigFailure::NotSupported => Ok(None),
            read => read.map(|()| Some(mode.mode != 0)),
        }
    }

    /// Allows several sizes, or not. It takes root, and a GPU without vGPUs.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn set_mixed(&self, is_on: bool) -> Result<(), MigError> {
        let (calls, device) = self.0.parts();
        // SAFETY: a live device, and a structure of the version that it names.
        unsafe { calls.set_mixed(device, &RawMixed::new(is_on)) }
    }

    /// How time is divided; `None` if this GPU's scheduler cannot be set.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn scheduler(&self) -> Result<Option<SchedulerState>, MigError> {
        let (calls, device) = self.0.parts();
        let mut raw = RawScheduler::default();
        // SAFETY: a live device, and a valid pointer.
        match unsafe { calls.scheduler(device, &mut raw) } {
            Err(error) if error.failure() == MigFailure::NotSupported => return Ok(None),
            read => read?,
        }
        let policy = (raw.policy as usize).checked_sub(1).and_then(|at| Policy::ALL.get(at).copied());
        let [first, second] = raw.parameters;
        Ok(policy.map(|policy| match raw.averages == ARR[1] {
            // NVML reports the factor and the slice, not the frequency that was set.
            true => SchedulerState {
                policy,
                slice_ns: second,
                averaging: Some(Averaging { factor: first, frequency_hz: 0 }),
            },
            false => SchedulerState { policy, slice_ns: first, averaging: None },
        }))
    }

    /// Sets how time is divided. It takes root, and no virtual machine that runs.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn set_scheduler(&self, state: &SchedulerState) -> Result<(), MigError> {
        let (calls, device) = self.0.parts();
        let at = Policy::ALL.iter().position(|policy| *policy == state.policy).unwrap_or(0);
        let mut raw = RawScheduler {
            policy: at as c_uint + 1,
            averages: ARR[usize::from(state.averaging.is_some())],
            parameters: match state.averaging {
                Some(averaging) => [averaging.factor, averaging.frequency_hz],
                None => [state.slice_ns, 0],
            },
        };
        // SAFETY: a live device, and a valid pointer.
        unsafe { calls.set_scheduler(device, &mut raw) }
    }
}
