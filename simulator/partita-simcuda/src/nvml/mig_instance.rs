//! The profiles of MIG instances, and their creation and destruction.
//!
//! The conflicts are those of hardware: instances share no memory slice, a profile has a most
//! number of instances, a compute instance with processes cannot be destroyed, nor a GPU instance
//! with compute instances, and only the administrator may change anything. That is root, or the
//! owner of the directory of boards. A GPU instance has one compute instance, of all its slices;
//! smaller ones are not simulated.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use partita_core::mig::{Profile, Slot};

use super::mig_fault::change;
use super::{Device, HANDLES_MAX, HANDLES_OF_GPU, Handle, NvmlReturn, device, devices, get, handle_of, put};
use crate::shared::mig::{Conflict, Division, Instance};

/// `nvmlGpuInstance_t`: opaque to programs.
pub type GpuInstance = *mut c_void;
/// `nvmlComputeInstance_t`: opaque to programs.
pub type ComputeInstance = *mut c_void;

/// The targets of valid handles. Never read: the addresses are the handles.
static GPU_INSTANCES: [u8; HANDLES_MAX] = [0; HANDLES_MAX];
/// The same for compute instances.
static COMPUTE_INSTANCES: [u8; HANDLES_MAX] = [0; HANDLES_MAX];

/// The number of an instance's only compute instance.
const COMPUTE_NUMBER: u32 = 0;
/// `NVML_COMPUTE_INSTANCE_PROFILE_*` of all slices, by their number; the profile's id is the same.
const COMPUTE_PROFILES: [(u32, u32); 7] = [(1, 0), (2, 1), (3, 2), (4, 3), (7, 4), (8, 5), (6, 6)];

/// `nvmlGpuInstancePlacement_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The first memory slice.
    pub start: c_uint,
    /// How many.
    pub size: c_uint,
}

/// `nvmlGpuInstanceProfileInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProfileInfo {
    id: c_uint,
    is_p2p_supported: c_uint,
    slice_count: c_uint,
    instance_count: c_uint,
    multiprocessor_count: c_uint,
    copy_engine_count: c_uint,
    decoder_count: c_uint,
    encoder_count: c_uint,
    jpeg_count: c_uint,
    ofa_count: c_uint,
    memory_mib: c_ulonglong,
}

/// `nvmlGpuInstanceProfileInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProfileInfoV2 {
    version: c_uint,
    id: c_uint,
    is_p2p_supported: c_uint,
    slice_count: c_uint,
    instance_count: c_uint,
    multiprocessor_count: c_uint,
    copy_engine_count: c_uint,
    decoder_count: c_uint,
    encoder_count: c_uint,
    jpeg_count: c_uint,
    ofa_count: c_uint,
    memory_mib: c_ulonglong,
    name: [c_char; 96],
}

/// `nvmlGpuInstanceInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InstanceInfo {
    device: Handle,
    id: c_uint,
    profile_id: c_uint,
    placement: Placement,
}

/// `nvmlComputeInstanceProfileInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ComputeProfileInfo {
    id: c_uint,
    slice_count: c_uint,
    instance_count: c_uint,
    multiprocessor_count: c_uint,
    shared_engine_counts: [c_uint; 5],
}

/// `nvmlComputeInstanceInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ComputeInfo {
    device: Handle,
    gpu_instance: GpuInstance,
    id: c_uint,
    profile_id: c_uint,
    placement: Placement,
}

const PROFILE_INFO_V2: u32 = size_of::<ProfileInfoV2>() as u32 | 2 << 24;
const _: () = assert!(size_of::<ProfileInfo>() == 48 && size_of::<ProfileInfoV2>() == 152);
const _: () = assert!(size_of::<InstanceInfo>() == 24 && size_of::<ComputeInfo>() == 32);

impl ProfileInfo {
    fn of(profile: &Profile) -> Self {
        Self {
            id: profile.id,
            is_p2p_supported: 0,
            slice_count: profile.slices,
            instance_count: profile.count_max,
            multiprocessor_count: profile.sms,
            // Engines are not simulated.
            copy_engine_count: 0,
            decoder_count: 0,
            encoder_count: 0,
            jpeg_count: 0,
            ofa_count: 0,
            memory_mib: profile.memory_mib,
        }
    }
}

/// The profile of a GPU by `NVML_GPU_INSTANCE_PROFILE_*`.
fn by_index(gpu: &Device, index: u32) -> Result<&Profile, NvmlReturn> {
    let found = gpu.place.profiles().iter().find(|spec| spec.index == index);
    found.map(|spec| &spec.profile).ok_or(NvmlReturn::NOT_SUPPORTED)
}

/// The profile of a GPU by its own number.
fn by_id(gpu: &Device, id: u32) -> Result<&Profile, NvmlReturn> {
    if gpu.place.profiles().is_empty() {
        return Err(NvmlReturn::NOT_SUPPORTED);
    }
    let mut profiles = gpu.place.profiles().iter().map(|spec| &spec.profile);
    profiles.find(|profile| profile.id == id).ok_or(NvmlReturn::INVALID_ARGUMENT)
}

/// The instances of a GPU with MIG turned on.
fn division(gpu: &Device) -> Result<Division, NvmlReturn> {
    gpu.place.division().map_err(super::report)?.ok_or(NvmlReturn::NOT_SUPPORTED)
}

/// Whether this process may see and change GPU instances.
fn check_administrator(gpu: &Device) -> Result<(), NvmlReturn> {
    // SAFETY: takes no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    match fs::metadata(&gpu.place.dir) {
        Ok(dir) if user != 0 && dir.uid() != user => Err(NvmlReturn::NO_PERMISSION),
        _ => Ok(()),
    }
}

/// Changes the instances of a GPU: reads them, lets `make` change them and writes them, alone.
fn with_division(
    gpu: &Device,
    make: impl FnOnce(&mut Division) -> Result<(), NvmlReturn>,
) -> Result<(), NvmlReturn> {
    check_administrator(gpu)?;
    let store = gpu.place.division_store().ok_or(NvmlReturn::NOT_SUPPORTED)?;
    change(|| {
        gpu.place.make_dir().map_err(super::report)?;
        let _lock = store.lock().map_err(super::report)?;
        let mut division = division(gpu)?;
        make(&mut division)?;
        store.write(&division).map_err(super::report)
    })
}

fn handle_in(table: &'static [u8; HANDLES_MAX], gpu: &Device, number: u32) -> *mut c_void {
    let at = gpu.place.index as usize * HANDLES_OF_GPU + number as usize;
    (&raw const table[at]).cast_mut().cast()
}

/// The GPU and the number of the instance of a handle.
fn of_handle(
    table: &'static [u8; HANDLES_MAX],
    handle: *mut c_void,
) -> Result<(Arc<Device>, u32), NvmlReturn> {
    let index = handle.addr().wrapping_sub(table.as_ptr().addr());
    let gpu = devices()?.into_iter().nth(index / HANDLES_OF_GPU).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    Ok((gpu, (index % HANDLES_OF_GPU) as u32))
}

/// The instance of a handle that still exists.
fn instance(
    table: &'static [u8; HANDLES_MAX],
    handle: *mut c_void,
) -> Result<(Arc<Device>, Instance), NvmlReturn> {
    let (gpu, number) = of_handle(table, handle)?;
    check_administrator(&gpu)?;
    let instance = *division(&gpu)?.of(number).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    Ok((gpu, instance))
}

/// The instance of a compute instance's handle.
fn compute(handle: ComputeInstance) -> Result<(Arc<Device>, Instance), NvmlReturn> {
    let (gpu, instance) = instance(&COMPUTE_INSTANCES, handle)?;
    if instance.has_compute { Ok((gpu, instance)) } else { Err(NvmlReturn::INVALID_ARGUMENT) }
}

/// The profile of the compute instance that has all slices.
fn compute_profile(gpu: &Device, instance: &Instance) -> Result<u32, NvmlReturn> {
    let slices = by_id(gpu, instance.profile)?.slices;
    let found = COMPUTE_PROFILES.iter().find(|(count, _)| *count == slices);
    found.map(|(_, profile)| *profile).ok_or(NvmlReturn::NOT_SUPPORTED)
}

/// Fills a program's array, which the interface demands to be long enough.
///
/// # Safety
/// `to` is null or valid for writing all values; `count` is null or valid for writing.
unsafe fn put_all<T>(to: *mut T, count: *mut c_uint, values: Vec<T>) -> Result<(), NvmlReturn> {
    // SAFETY: the caller's own demand.
    unsafe { put(count, values.len() as c_uint) }?;
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: the caller's own demand.
        unsafe { put(to.add(at), value) }?;
    }
    Ok(())
}

/// Creates an instance at the first of these places that is free.
fn create(gpu: &Device, profile: &Profile, slots: &[Slot], number: &mut u32) -> Result<(), NvmlReturn> {
    with_division(gpu, |division| {
        let free = slots.iter().find(|slot| division.is_free(profile, **slot));
        let slot = free.or(slots.first()).ok_or(NvmlReturn::INSUFFICIENT_RESOURCES)?;
        *number = division.create(profile, *slot).map_err(|conflict| match conflict {
            Conflict::Impossible => NvmlReturn::INVALID_ARGUMENT,
            Conflict::Taken => NvmlReturn::INSUFFICIENT_RESOURCES,
        })?;
        Ok(())
    })
}

nvml_api! {
    /// A profile's figures.
    fn nvmlDeviceGetGpuInstanceProfileInfo(handle: Handle, index: c_uint, to: *mut ProfileInfo) {
        let gpu = device(handle)?;
        put(to, ProfileInfo::of(by_index(&gpu, index)?))
    }
    /// A profile's figures and its name.
    fn nvmlDeviceGetGpuInstanceProfileInfoV(handle: Handle, index: c_uint, to: *mut ProfileInfoV2) {
        let gpu = device(handle)?;
        if get(to.cast::<c_uint>())? != PROFILE_INFO_V2 {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        let profile = by_index(&gpu, index)?;
        let ProfileInfo { id, memory_mib, .. } = ProfileInfo::of(profile);
        let mut name = [0; 96];
        let text = format!("MIG {}", profile.name);
        for (to, from) in name.iter_mut().zip(text.bytes()) {
            *to = from as c_char;
        }
        put(to, ProfileInfoV2 {
            version: PROFILE_INFO_V2,
            id,
            is_p2p_supported: 0,
            slice_count: profile.slices,
            instance_count: profile.count_max,
            multiprocessor_count: profile.sms,
            copy_engine_count: 0,
            decoder_count: 0,
            encoder_count: 0,
            jpeg_count: 0,
            ofa_count: 0,
            memory_mib,
            name,
        })
    }
    /// Where instances of a profile can lie, with or without MIG. The array may be null, to learn
    /// the number.
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        handle: Handle,
        profile: c_uint,
        to: *mut Placement,
        count: *mut c_uint,
    ) {
        let gpu = device(handle)?;
        check_administrator(&gpu)?;
        let slots = &by_id(&gpu, profile)?.slots;
        if to.is_null() {
            return put(count, slots.len() as c_uint);
        }
        let placement = |slot: &Slot| Placement { start: slot.start, size: slot.size };
        put_all(to, count, slots.iter().map(placement).collect())
    }
    /// As the second version.
    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        handle: Handle,
        profile: c_uint,
        to: *mut Placement,
        count: *mut c_uint,
    ) {
        match nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, profile, to, count) {
            NvmlReturn::SUCCESS => Ok(()),
            failed => Err(failed),
        }
    }
    /// How many more instances of a profile can be created.
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(handle: Handle, profile: c_uint, to: *mut c_uint) {
        let gpu = device(handle)?;
        let profile = by_id(&gpu, profile)?;
        let mut division = division(&gpu)?;
        let mut count = 0;
        while let Some(slot) = profile.slots.iter().rev().find(|slot| division.is_free(profile, **slot)) {
            division.create(profile, *slot).map_err(|_| NvmlReturn::UNKNOWN)?;
            count += 1;
        }
        put(to, count)
    }
    /// Creates an instance anywhere.
    fn nvmlDeviceCreateGpuInstance(handle: Handle, profile: c_uint, to: *mut GpuInstance) {
        let gpu = device(handle)?;
        let profile = by_id(&gpu, profile)?;
        let mut number = 0;
        create(&gpu, profile, &profile.slots, &mut number)?;
        put(to, handle_in(&GPU_INSTANCES, &gpu, number))
    }
    /// Creates an instance at a place.
    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        handle: Handle,
        profile: c_uint,
        placement: *const Placement,
        to: *mut GpuInstance,
    ) {
        let gpu = device(handle)?;
        let profile = by_id(&gpu, profile)?;
        let Placement { start, size } = get(placement)?;
        let mut number = 0;
        create(&gpu, profile, &[Slot { start, size }], &mut number)?;
        put(to, handle_in(&GPU_INSTANCES, &gpu, number))
    }
    /// The instances of a profile.
    fn nvmlDeviceGetGpuInstances(
        handle: Handle,
        profile: c_uint,
        to: *mut GpuInstance,
        count: *mut c_uint,
    ) {
        let gpu = device(handle)?;
        let profile = by_id(&gpu, profile)?.id;
        check_administrator(&gpu)?;
        let instances = division(&gpu)?.instances;
        let of_profile = instances.iter().filter(|instance| instance.profile == profile);
        put_all(to, count, of_profile.map(|one| handle_in(&GPU_INSTANCES, &gpu, one.number)).collect())
    }
    /// The instance of a number.
    fn nvmlDeviceGetGpuInstanceById(handle: Handle, number: c_uint, to: *mut GpuInstance) {
        let gpu = device(handle)?;
        check_administrator(&gpu)?;
        division(&gpu)?.of(number).ok_or(NvmlReturn::NOT_FOUND)?;
        put(to, handle_in(&GPU_INSTANCES, &gpu, number))
    }
    /// The number, the profile and the place of an instance.
    fn nvmlGpuInstanceGetInfo(handle: GpuInstance, to: *mut InstanceInfo) {
        let (gpu, instance) = instance(&GPU_INSTANCES, handle)?;
        let Slot { start, size } = instance.slot;
        put(to, InstanceInfo {
            device: handle_of(&gpu),
            id: instance.number,
            profile_id: instance.profile,
            placement: Placement { start, size },
        })
    }
    /// Destroys an instance without compute instances.
    fn nvmlGpuInstanceDestroy(handle: GpuInstance) {
        let (gpu, Instance { number, .. }) = instance(&GPU_INSTANCES, handle)?;
        with_division(&gpu, |division| {
            if division.of(number).ok_or(NvmlReturn::INVALID_ARGUMENT)?.has_compute {
                return Err(NvmlReturn::IN_USE);
            }
            division.instances.retain(|instance| instance.number != number);
            Ok(())
        })
    }
    /// The figures of the profile of a compute instance. Only that with all slices exists.
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        handle: GpuInstance,
        index: c_uint,
        engines: c_uint,
        to: *mut ComputeProfileInfo,
    ) {
        let (gpu, instance) = instance(&GPU_INSTANCES, handle)?;
        if engines != 0 || index != compute_profile(&gpu, &instance)? {
            return Err(NvmlReturn::NOT_SUPPORTED);
        }
        let profile = by_id(&gpu, instance.profile)?;
        put(to, ComputeProfileInfo {
            id: index,
            slice_count: profile.slices,
            instance_count: 1,
            multiprocessor_count: profile.sms,
            shared_engine_counts: [0; 5],
        })
    }
    /// Creates the compute instance with all slices.
    fn nvmlGpuInstanceCreateComputeInstance(
        handle: GpuInstance,
        profile: c_uint,
        to: *mut ComputeInstance,
    ) {
        let (gpu, instance) = instance(&GPU_INSTANCES, handle)?;
        if profile != compute_profile(&gpu, &instance)? {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        let number = instance.number;
        with_division(&gpu, |division| {
            let instance = division.of(number).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
            if instance.has_compute {
                return Err(NvmlReturn::INSUFFICIENT_RESOURCES);
            }
            instance.has_compute = true;
            Ok(())
        })?;
        put(to, handle_in(&COMPUTE_INSTANCES, &gpu, number))
    }
    /// The compute instances of a profile.
    fn nvmlGpuInstanceGetComputeInstances(
        handle: GpuInstance,
        profile: c_uint,
        to: *mut ComputeInstance,
        count: *mut c_uint,
    ) {
        let (gpu, instance) = instance(&GPU_INSTANCES, handle)?;
        let is_there = instance.has_compute && profile == compute_profile(&gpu, &instance)?;
        let found = is_there.then(|| handle_in(&COMPUTE_INSTANCES, &gpu, instance.number));
        put_all(to, count, found.into_iter().collect())
    }
    /// The compute instance of a number.
    fn nvmlGpuInstanceGetComputeInstanceById(
        handle: GpuInstance,
        number: c_uint,
        to: *mut ComputeInstance,
    ) {
        let (gpu, instance) = instance(&GPU_INSTANCES, handle)?;
        if number != COMPUTE_NUMBER || !instance.has_compute {
            return Err(NvmlReturn::NOT_FOUND);
        }
        put(to, handle_in(&COMPUTE_INSTANCES, &gpu, instance.number))
    }
    /// The number, the profile and the place of a compute instance.
    fn nvmlComputeInstanceGetInfo_v2(handle: ComputeInstance, to: *mut ComputeInfo) {
        let (gpu, instance) = compute(handle)?;
        put(to, ComputeInfo {
            device: handle_of(&gpu),
            gpu_instance: handle_in(&GPU_INSTANCES, &gpu, instance.number),
            id: COMPUTE_NUMBER,
            profile_id: compute_profile(&gpu, &instance)?,
            placement: Placement { start: 0, size: by_id(&gpu, instance.profile)?.slices },
        })
    }
    /// Destroys a compute instance without processes.
    fn nvmlComputeInstanceDestroy(handle: ComputeInstance) {
        let (gpu, Instance { number, .. }) = compute(handle)?;
        with_division(&gpu, |division| {
            let instances = gpu.instances()?.unwrap_or_default();
            let device = instances.iter().find(|device| device.place.gpu_instance() == Some(number));
            if device.is_some_and(|device| !device.status().processes.is_empty()) {
                return Err(NvmlReturn::IN_USE);
            }
            division.of(number).ok_or(NvmlReturn::INVALID_ARGUMENT)?.has_compute = false;
            Ok(())
        })
    }
}
