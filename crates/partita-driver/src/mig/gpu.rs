//! One GPU that can be divided by MIG.

use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::ffi::{CStr, c_char};
use core::ptr::null_mut;

use partita_core::mig::{ComputeInstance, GpuInstance, Profile, Slot, Step};

use super::calls::RawCompute;
use super::calls::{Calls, Handle, RawComputeProfile, RawInstance, RawPlacement, RawProcess, RawProfile};
use super::error::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, MigError, MigFailure, NOT_FOUND, NOT_SUPPORTED};

/// `NVML_GPU_INSTANCE_PROFILE_*` and `NVML_COMPUTE_INSTANCE_PROFILE_*` are below this, with room
/// for later ones.
const PROFILES_MAX: u32 = 32;
/// More instances of a profile than any GPU has.
const INSTANCES_MAX: usize = 64;
/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`.
const ENGINES_SHARED: u32 = 0;
/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const UUID_BYTES: usize = 96;

/// Whether MIG is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigMode {
    /// At this time.
    pub is_on: bool,
    /// After the next reset of the GPU.
    pub will_be_on: bool,
}

/// A compute instance as programs see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigDevice {
    /// `MIG-…`.
    pub uuid: String,
    /// The number of its GPU instance.
    pub gpu_instance: u32,
    /// Its number in that.
    pub compute_instance: u32,
    /// The processes with contexts on it.
    pub processes: Vec<u32>,
}

/// A GPU of NVML.
pub struct MigGpu {
    calls: Calls,
    device: Handle,
}

impl MigGpu {
    /// Loads NVML and finds the GPU with this UUID.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn open(uuid: &str) -> Result<Self, MigError> {
        let calls = Calls::load()?;
        let name = CString::new(uuid).map_err(|_| MigError::Answer(format!("{uuid:?} is no UUID")))?;
        let mut device = null_mut();
        // SAFETY: takes no arguments.
        unsafe { calls.init()? };
        // SAFETY: a valid string, and a valid pointer.
        unsafe { calls.device_by_uuid(name.as_ptr(), &mut device)? };
        Ok(Self { calls, device })
    }

    /// The calls and the device, for what this module does not do itself.
    pub(super) fn parts(&self) -> (&Calls, Handle) {
        (&self.calls, self.device)
    }

    /// Whether MIG is on; `None` if the GPU has no MIG.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn mode(&self) -> Result<Option<MigMode>, MigError> {
        let (mut current, mut pending) = (0, 0);
        // SAFETY: a live device, and valid pointers.
        match unsafe { self.calls.mode(self.device, &mut current, &mut pending) } {
            Ok(()) => Ok(Some(MigMode { is_on: current != 0, will_be_on: pending != 0 })),
            Err(MigError::Call { code: NOT_SUPPORTED, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The profiles that the GPU offers, and where their instances can lie. Drivers may tell only
    /// root where; others get no places.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn profiles(&self) -> Result<Vec<Profile>, MigError> {
        let mut profiles: Vec<Profile> = Vec::new();
        for index in 0..PROFILES_MAX {
            let mut info = RawProfile::new();
            // SAFETY: a live device, and a structure of the version that it names.
            match unsafe { self.calls.profile(self.device, index, &mut info) } {
                Err(MigError::Call { code: NOT_SUPPORTED | INVALID_ARGUMENT, .. }) => continue,
                described => described?,
            }
            if profiles.iter().any(|profile| profile.id == info.id) {
                continue;
            }
            let name = text(&info.name)?;
            profiles.push(Profile {
                id: info.id,
                name: name.strip_prefix("MIG ").map_or(name.clone(), ToString::to_string),
                slices: info.slice_count,
                sms: info.multiprocessor_count,
                memory_mib: info.memory_mib,
                count_max: info.instance_count,
                slots: self.slots(info.id)?,
            });
        }
        Ok(profiles)
    }

    fn slots(&self, profile: u32) -> Result<Vec<Slot>, MigError> {
        let mut count = 0;
        // SAFETY: a live device; a null array asks for the number.
        match unsafe { self.calls.placements(self.device, profile, null_mut(), &mut count) } {
            Err(error) if error.failure() == MigFailure::NoPermission => return Ok(Vec::new()),
            counted => counted?,
        }
        let mut placements = vec![RawPlacement::default(); count as usize];
        // SAFETY: the array has as many elements as it says.
        unsafe { self.calls.placements(self.device, profile, placements.as_mut_ptr(), &mut count)? };
        placements.truncate(count as usize);
        let mut slots: Vec<Slot> = placements.iter().map(slot).collect();
        slots.sort_unstable();
        Ok(slots)
    }

    /// The GPU instances, by number. It takes root.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn instances(&self, profiles: &[Profile]) -> Result<Vec<GpuInstance>, MigError> {
        let mut found = Vec::new();
        for profile in profiles {
            let mut handles: Vec<Handle> = vec![null_mut(); INSTANCES_MAX];
            let mut count = 0;
            // SAFETY: a live device, and an array that is long enough for every profile.
            unsafe { self.calls.instances(self.device, profile.id, handles.as_mut_ptr(), &mut count)? };
            for handle in handles.into_iter().take(count as usize) {
                found.push(self.instance(handle)?);
            }
        }
        found.sort_by_key(|instance: &GpuInstance| instance.id);
        Ok(found)
    }

    fn instance(&self, handle: Handle) -> Result<GpuInstance, MigError> {
        let placement = RawPlacement::default();
        let mut info = RawInstance { device: null_mut(), id: 0, profile: 0, placement };
        // SAFETY: a handle that NVML just gave, and a valid pointer.
        unsafe { self.calls.instance_info(handle, &mut info)? };
        let mut computes = Vec::new();
        for profile in self.compute_profiles(handle)? {
            let mut handles: Vec<Handle> = vec![null_mut(); INSTANCES_MAX];
            let mut count = 0;
            // SAFETY: as above, and an array that is long enough for every profile.
            unsafe { self.calls.computes(handle, profile.id, handles.as_mut_ptr(), &mut count)? };
            for compute in handles.into_iter().take(count as usize) {
                let mut info =
                    RawCompute { device: null_mut(), gpu_instance: null_mut(), id: 0, profile: 0, placement };
                // SAFETY: a handle that NVML just gave, and a valid pointer.
                unsafe { self.calls.compute_info(compute, &mut info)? };
                computes.push(ComputeInstance { id: info.id, slices: profile.slice_count });
            }
        }
        computes.sort_unstable();
        // Several profiles can have the same slices, and NVML may list an instance with each.
        computes.dedup();
        Ok(GpuInstance { id: info.id, profile: info.profile, slot: slot(&info.placement), computes })
    }

    /// The profiles of compute instances in a GPU instance.
    fn compute_profiles(&self, instance: Handle) -> Result<Vec<RawComputeProfile>, MigError> {
        let mut profiles = Vec::new();
        for index in 0..PROFILES_MAX {
            let mut info = RawComputeProfile::default();
            // SAFETY: a live instance, and a valid pointer.
            match unsafe { self.calls.compute_profile(instance, index, ENGINES_SHARED, &mut info) } {
                Err(MigError::Call { code: NOT_SUPPORTED | INVALID_ARGUMENT, .. }) => {}
                described => {
                    described?;
                    profiles.push(info);
                }
            }
        }
        Ok(profiles)
    }

    /// The compute instances as devices, with their processes.
    ///
    /// # Errors
    /// Those of NVML.
    pub fn devices(&self) -> Result<Vec<MigDevice>, MigError> {
        let mut count = 0;
        // SAFETY: a live device, and a valid pointer.
        unsafe { self.calls.device_count(self.device, &mut count)? };
        let mut devices = Vec::new();
        for index in 0..count {
            let mut handle = null_mut();
            // SAFETY: as above.
            match unsafe { self.calls.device_by_index(self.device, index, &mut handle) } {
                // The numbers have gaps.
                Err(MigError::Call { code: NOT_FOUND | INVALID_ARGUMENT, .. }) => continue,
                found => found?,
            }
            let (mut gpu_instance, mut compute_instance) = (0, 0);
            let mut uuid: [c_char; UUID_BYTES] = [0; UUID_BYTES];
            // SAFETY: a device that NVML just gave, valid pointers, and the buffer's length.
            unsafe {
                self.calls.gpu_instance_id(handle, &mut gpu_instance)?;
                self.calls.compute_instance_id(handle, &mut compute_instance)?;
                self.calls.uuid(handle, uuid.as_mut_ptr(), UUID_BYTES as u32)?;
            }
            let processes = self.processes(handle)?;
            devices.push(MigDevice { uuid: text(&uuid)?, gpu_instance, compute_instance, processes });
        }
        Ok(devices)
    }

    fn processes(&self, device: Handle) -> Result<Vec<u32>, MigError> {
        let mut room = 64;
        loop {
            let mut processes = vec![RawProcess::default(); room];
            let mut count = room as u32;
            // SAFETY: a live device, and the array's length.
            match unsafe { self.calls.processes(device, &mut count, processes.as_mut_ptr()) } {
                // More may start in between.
                Err(MigError::Call { code: INSUFFICIENT_SIZE, .. }) if room < 1 << 16 => room *= 4,
                listed => {
                    listed?;
                    let mut pids: Vec<u32> =
                        processes.iter().take(count as usize).map(|process| process.pid).collect();
                    pids.sort_unstable();
                    return Ok(pids);
                }
            }
        }
    }

    /// Does one step. It takes root.
    ///
    /// # Errors
    /// Those of NVML; then nothing has changed.
    pub fn carry_out(&self, profiles: &[Profile], step: &Step) -> Result<(), MigError> {
        let mut made = null_mut();
        match *step {
            Step::DestroyCompute { gpu_instance, compute_instance } => {
                let parent = self.by_id(gpu_instance)?;
                let mut compute = null_mut();
                // SAFETY: a live instance, and a valid pointer.
                unsafe { self.calls.compute_by_id(parent, compute_instance, &mut compute)? };
                // SAFETY: a compute instance that NVML just gave.
                unsafe { self.calls.destroy_compute(compute) }
            }
            Step::DestroyGpu { gpu_instance } => {
                let instance = self.by_id(gpu_instance)?;
                // SAFETY: an instance that NVML just gave.
                unsafe { self.calls.destroy_instance(instance) }
            }
            Step::CreateGpu { profile, slot } => {
                let placement = RawPlacement { start: slot.start, size: slot.size };
                // SAFETY: a live device, and valid pointers.
                unsafe { self.calls.create_instance(self.device, profile, &placement, &mut made) }
            }
            Step::CreateCompute { slot, slices } => {
                let instances = self.instances(profiles)?;
                let missing = || MigError::Answer(format!("no GPU instance lies at {slot}"));
                let parent = instances.iter().find(|one| one.slot == slot).ok_or_else(missing)?;
                let parent = self.by_id(parent.id)?;
                let missing = || MigError::Answer(format!("no compute instance has {slices} slices"));
                let profiles = self.compute_profiles(parent)?;
                let profile = profiles.iter().find(|one| one.slice_count == slices).ok_or_else(missing)?;
                // SAFETY: a live instance, and a valid pointer.
                unsafe { self.calls.create_compute(parent, profile.id, &mut made) }
            }
        }
    }

    fn by_id(&self, id: u32) -> Result<Handle, MigError> {
        let mut handle = null_mut();
        // SAFETY: a live device, and a valid pointer.
        unsafe { self.calls.instance_by_id(self.device, id, &mut handle)? };
        Ok(handle)
    }
}

fn slot(placement: &RawPlacement) -> Slot {
    Slot { start: placement.start, size: placement.size }
}

/// The text in a buffer of NVML.
pub(super) fn text(buffer: &[c_char]) -> Result<String, MigError> {
    let bytes: Vec<u8> = buffer.iter().map(|byte| *byte as u8).collect();
    let refuse = || MigError::Answer("a name is no text".to_string());
    let text = CStr::from_bytes_until_nul(&bytes).map_err(|_| refuse())?;
    text.to_str().map(ToString::to_string).map_err(|_| refuse())
}
