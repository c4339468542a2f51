//! The host side of NVIDIA's vGPU driver: types, several sizes together, and the scheduler.
//!
//! `PARTITA_SIM_VGPU` turns it on: types with commas between them, `ID:NAME:GiB`. The state is in a
//! file beside the board's socket, one line of numbers: mixed, policy, averaging, two parameters.
//! `PARTITA_SIM_VGPU_FAULT=N` has the Nth change of a process fail as one in use.

use std::ffi::{c_char, c_uint, c_ulonglong};
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Device, Handle, NvmlReturn, device, first_device, get, put};

const ENV_TYPES: &str = "PARTITA_SIM_VGPU";
const ENV_FAULT: &str = "PARTITA_SIM_VGPU_FAULT";

/// How often this process has changed something.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// `nvmlVgpuHeterogeneousMode_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mixed {
    version: c_uint,
    mode: c_uint,
}

/// `nvmlVgpuSchedulerGetState_t` and `nvmlVgpuSchedulerSetState_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scheduler {
    policy: c_uint,
    averages: c_uint,
    parameters: [c_uint; 2],
}

const MIXED_V1: u32 = size_of::<Mixed>() as u32 | 1 << 24;

/// The types: number, name and GiB.
fn types() -> Result<Vec<(u32, String, u64)>, NvmlReturn> {
    let list = std::env::var(ENV_TYPES).map_err(|_| NvmlReturn::NOT_SUPPORTED)?;
    let one = |text: &str| {
        let mut parts = text.split(':');
        Some((parts.next()?.parse().ok()?, parts.next()?.to_owned(), parts.next()?.parse().ok()?))
    };
    list.split(',').map(one).collect::<Option<_>>().ok_or(NvmlReturn::UNKNOWN)
}

fn of_id(id: u32) -> Result<(u32, String, u64), NvmlReturn> {
    let _ = first_device()?;
    types()?.into_iter().find(|(other, ..)| *other == id).ok_or(NvmlReturn::INVALID_ARGUMENT)
}

/// The state at first is the driver's default: one size, best effort.
fn state(gpu: &Device) -> Result<[u32; 5], NvmlReturn> {
    types()?;
    let text = fs::read_to_string(gpu.place.vgpu_file()).unwrap_or_else(|_| "0 1 1 0 0".to_owned());
    let numbers: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().map_err(|_| NvmlReturn::UNKNOWN)
}

fn store(gpu: &Device, state: [u32; 5]) -> Result<(), NvmlReturn> {
    let number = 1 + CHANGES.fetch_add(1, Ordering::Relaxed);
    if std::env::var(ENV_FAULT).is_ok_and(|wanted| wanted.parse() == Ok(number)) {
        return Err(NvmlReturn::IN_USE);
    }
    gpu.place.make_dir().map_err(super::report)?;
    let text = state.map(|number| number.to_string()).join(" ");
    fs::write(gpu.place.vgpu_file(), text).map_err(super::report)
}

nvml_api! {
    /// The types that the GPU can have.
    fn nvmlDeviceGetSupportedVgpus(handle: Handle, count: *mut c_uint, to: *mut c_uint) {
        let _ = device(handle)?;
        let types = types()?;
        let room = get(count)? as usize;
        put(count, types.len() as u32)?;
        if room < types.len() {
            return Err(NvmlReturn::INSUFFICIENT_SIZE);
        }
        for (at, (id, ..)) in types.iter().enumerate() {
            put(to.add(at), *id)?;
        }
        Ok(())
    }
    /// The name of a type.
    fn nvmlVgpuTypeGetName(kind: c_uint, to: *mut c_char, length: *mut c_uint) {
        let (_, name, _) = of_id(kind)?;
        if (get(length)? as usize) < name.len() + 1 {
            return Err(NvmlReturn::INSUFFICIENT_SIZE);
        }
        for (at, byte) in name.bytes().chain([0]).enumerate() {
            put(to.add(at), byte as c_char)?;
        }
        put(length, name.len() as u32 + 1)
    }
    /// The memory of a type in bytes.
    fn nvmlVgpuTypeGetFramebufferSize(kind: c_uint, bytes: *mut c_ulonglong) {
        let (.., gib) = of_id(kind)?;
        put(bytes, gib << 30)
    }
    /// Whether several sizes may be together.
    fn nvmlDeviceGetVgpuHeterogeneousMode(handle: Handle, mode: *mut Mixed) {
        let [mixed, ..] = state(&*device(handle)?)?;
        let version = get(mode)?.version;
        if version != MIXED_V1 {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        put(mode, Mixed { version, mode: mixed })
    }
    /// Allows several sizes together, or not.
    fn nvmlDeviceSetVgpuHeterogeneousMode(handle: Handle, mode: *const Mixed) {
        let gpu = device(handle)?;
        let [_, rest @ ..] = state(&gpu)?;
        let wanted = get(mode.cast_mut())?;
        if wanted.version != MIXED_V1 {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        store(&gpu, [wanted.mode, rest[0], rest[1], rest[2], rest[3]])
    }
    /// How time is divided.
    fn nvmlDeviceGetVgpuSchedulerState(handle: Handle, to: *mut Scheduler) {
        let [_, policy, averages, first, second] = state(&*device(handle)?)?;
        put(to, Scheduler { policy, averages, parameters: [first, second] })
    }
    /// Sets how time is divided.
    fn nvmlDeviceSetVgpuSchedulerState(handle: Handle, from: *mut Scheduler) {
        let gpu = device(handle)?;
        let [mixed, ..] = state(&gpu)?;
        let Scheduler { policy, averages, parameters: [first, second] } = get(from)?;
        if !(1..=3).contains(&policy) || averages > 2 {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        store(&gpu, [mixed, policy, averages, first, second])
    }
}
