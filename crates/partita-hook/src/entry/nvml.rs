//! The management library: what `nvidia-smi` and similar programs see of the tenant's GPUs.
//!
//! Memory is the quota's, as in the driver's interface, and the processes are the tenant's with
//! their charges in the ledger. A process need not use CUDA for that, nor have an account: the
//! ledger's files are read, and no slot is taken. The library itself answers for other GPUs and for
//! everything else.

use alloc::vec::Vec;
use core::ffi::{CStr, c_uint, c_void};

use partita_ledger::mutex::Mutex;
use partita_ledger::{LimitsMap, NO_QUOTA, UsageView};

use crate::account::origin;
use crate::driver::management::{Device, NvmlReturn, library, uuid_of};
use crate::driver::row::Row;
use crate::session::{attach, hami};
use crate::sys::fork::{in_child, renew};
use crate::sys::next::real_dlsym;

/// `nvmlMemory_t`.
#[repr(C)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessV1 {
    pid: c_uint,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`, also that of the calls' third version.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessV2 {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

impl From<ProcessV1> for ProcessV2 {
    fn from(process: ProcessV1) -> Self {
        /// The number of an instance without MIG.
        const NO_INSTANCE: c_uint = c_uint::MAX;
        let ProcessV1 { pid, used } = process;
        Self { pid, used, gpu_instance: NO_INSTANCE, compute_instance: NO_INSTANCE }
    }
}

macro_rules! hooks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $body:path;)*) => {
        $(
            #[doc = concat!("Wraps `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As the library documents for the function of that name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> NvmlReturn {
                let real = real_of(&rows::$name);
                if real.is_null() {
                    return NvmlReturn::FUNCTION_NOT_FOUND;
                }
                type Real = unsafe extern "C" fn($($type),*) -> NvmlReturn;
                // SAFETY: the address was resolved under this very name, which has this prototype
                // in nvml.h.
                let real = unsafe { core::mem::transmute::<*mut c_void, Real>(real) };
                if !origin::is_tenant() {
                    // SAFETY: the caller keeps the contract.
                    return unsafe { real($($argument),*) };
                }
                // SAFETY: as above.
                unsafe { $body(real, $($argument),*) }
            }
        )*

        mod rows {
            #![allow(non_upper_case_globals)]
            use super::*;
            $(
                pub static $name: Row =
                    Row::new(concat!(stringify!($name), "\0"), super::$name as *mut c_void);
            )*
        }

        static ROWS: &[&Row] = &[$(&rows::$name),*];
        const _: () = {
            let mut named = [$(stringify!($name)),*].len();
            assert!(named == partita_abi::exports::NVML_WRAPPED.len(), "partita_abi::exports lists the \
                wrapped names");
            while named > 0 {
                named -= 1;
                assert!(partita_abi::exports::is_wrapped_nvml([$(stringify!($name)),*][named]));
            }
        };
    };
}

type ProcessesV1 = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessV1) -> NvmlReturn;
type ProcessesV2 = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessV2) -> NvmlReturn;

hooks! {
    fn nvmlDeviceGetMemoryInfo(device: Device, to: *mut Memory) = memory;
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: *mut MemoryV2) = memory_v2;
    fn nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut c_uint, to: *mut ProcessV1) = compute;
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut c_uint, to: *mut ProcessV2) = compute_v2;
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, to: *mut ProcessV2) = compute_v2;
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut c_uint, to: *mut ProcessV1) = others;
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut c_uint, to: *mut ProcessV2) = others_v2;
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut c_uint, to: *mut ProcessV2) = others_v2;
    fn nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut c_uint, to: *mut ProcessV1) = others;
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut c_uint, to: *mut ProcessV2) = others_v2;
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, to: *mut ProcessV2) = others_v2;
}

/// The library's own function, null if it lacks it. Unlike libcuda's, which are resolved at the
/// first of its calls, it is resolved on demand.
fn real_of(row: &Row) -> *mut c_void {
    match row.real() {
        known if !known.is_null() => known,
        _ => found_in(row, library()),
    }
}

fn found_in(row: &Row, handle: *mut c_void) -> *mut c_void {
    if handle.is_null() {
        return handle;
    }
    // SAFETY: a live handle and a constant name.
    let found = unsafe { real_dlsym(handle, row.name) };
    if found.is_null() || found == row.hook {
        return core::ptr::null_mut();
    }
    row.set_real(found);
    found
}

/// The hook for a name passed to `dlsym`; `None` if the C library should answer.
pub fn hook_for(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    let row = ROWS.iter().find(|row| row.name == name).filter(|_| origin::may_be_tenant())?;
    // The hook's export comes first in the global scope anyway; another library's handle gives its
    // own.
    let real = match handle {
        libc::RTLD_DEFAULT => return None,
        libc::RTLD_NEXT => real_of(row),
        handle => found_in(row, handle),
    };
    (!real.is_null()).then_some(row.hook)
}

/// The tenant on one GPU, to look at.
struct Part {
    uuid: [u8; 16],
    limits: LimitsMap,
    usage: UsageView,
}

/// Opened when the library is first asked something; empty where that failed.
static PARTS: Mutex<Option<Vec<Part>>> = Mutex::new(None);

in_child! {
    renew(&PARTS, None);
}

fn open() -> Vec<Part> {
    let views = attach::views().unwrap_or_default();
    let part = |(limits, usage): (LimitsMap, UsageView)| {
        let uuid = limits.load().ok()?.1.gpu_uuid;
        Some(Part { uuid, limits, usage })
    };
    views.into_iter().filter_map(part).collect()
}

/// Looks at the tenant on a device; `None` where the library should answer.
fn on<R>(device: Device, look: impl FnOnce(&Part) -> Option<R>) -> Option<R> {
    look_at(&uuid_of(device)?, look).flatten()
}

/// The view of the tenant on a device; the outer option is `None` if it has no ledger there.
fn look_at<R>(uuid: &[u8; 16], look: impl FnOnce(&Part) -> R) -> Option<R> {
    let mut parts = PARTS.lock();
    let known = parts.get_or_insert_with(open);
    if !known.iter().any(|part| part.uuid == *uuid) {
        // Without `partita run`, the ledger is made when a process first uses the GPU.
        *known = open();
    }
    known.iter().find(|part| part.uuid == *uuid).map(look)
}

/// Total, free and used bytes of a tenant with a quota, where the device has `free` left of
/// `total`.
fn within_quota(device: Device, total: u64, free: u64) -> Option<(u64, u64, u64)> {
    let uuid = uuid_of(device)?;
    let seen = look_at(&uuid, |part| {
        let quota = part.limits.memory_bytes().map_or(0, |(quota, _)| quota);
        (quota, part.usage.totals().map_or(quota, |totals| totals.used))
    });
    let (quota, used) = match seen {
        Some((NO_QUOTA, _)) => return None,
        Some(seen) => seen,
        // The future value.
        None if origin::origin() == origin::Origin::Environment => (hami::quota_bytes(&uuid)?, 0),
        None => return None,
    };
    Some((total.min(quota), free.min(quota.saturating_sub(used)), used))
}

unsafe fn memory(
    real: unsafe extern "C" fn(Device, *mut Memory) -> NvmlReturn,
    device: Device,
    to: *mut Memory,
) -> NvmlReturn {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(device, to) };
    // SAFETY: on success the library has written there.
    if let Some(to) = unsafe { to.as_mut() }.filter(|_| result == NvmlReturn::SUCCESS)
        && let Some((total, free, _)) = within_quota(device, to.total, to.free)
    {
        // As in the library: unavailable memory counts as used.
        *to = Memory { total, free, used: total.saturating_sub(free) };
    }
    result
}

unsafe fn memory_v2(
    real: unsafe extern "C" fn(Device, *mut MemoryV2) -> NvmlReturn,
    device: Device,
    to: *mut MemoryV2,
) -> NvmlReturn {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(device, to) };
    // SAFETY: on success the library has written there.
    if let Some(to) = unsafe { to.as_mut() }.filter(|_| result == NvmlReturn::SUCCESS)
        && let Some((total, free, used)) = within_quota(device, to.total, to.free)
    {
        let used = used.min(total);
        let reserved = total.saturating_sub(used).saturating_sub(free);
        *to = MemoryV2 { version: to.version, total, reserved, free, used };
    }
    result
}

/// The tenant's living processes on a device.
fn processes(device: Device) -> Option<Vec<ProcessV1>> {
    on(device, |part| {
        let living = part.usage.slots().filter_map(Result::ok).filter(|slot| slot.live && !slot.shared);
        let process =
            |slot: partita_ledger::SlotInfo| ProcessV1 { pid: slot.pid as c_uint, used: slot.bytes };
        Some(living.filter(|slot| slot.pid > 0).map(process).collect())
    })
}

/// Answers with `listed`, as the library does.
///
/// # Safety
/// The pointers are null or valid, `to` for as many elements as `count` says.
unsafe fn fill<T: From<ProcessV1>>(listed: &[ProcessV1], count: *mut c_uint, to: *mut T) -> NvmlReturn {
    // SAFETY: the caller guarantees it.
    let Some(count) = (unsafe { count.as_mut() }) else { return NvmlReturn::INVALID_ARGUMENT };
    let room = *count as usize;
    *count = listed.len() as c_uint;
    if listed.len() > room {
        return NvmlReturn::INSUFFICIENT_SIZE;
    }
    if to.is_null() && !listed.is_empty() {
        return NvmlReturn::INVALID_ARGUMENT;
    }
    for (index, &process) in listed.iter().enumerate() {
        // SAFETY: below `room`, which the array is long by the caller's word.
        unsafe { to.add(index).write_unaligned(process.into()) };
    }
    NvmlReturn::SUCCESS
}

unsafe fn compute(real: ProcessesV1, device: Device, count: *mut c_uint, to: *mut ProcessV1) -> NvmlReturn {
    match processes(device) {
        // SAFETY: the caller's own arguments.
        Some(listed) => unsafe { fill(&listed, count, to) },
        // SAFETY: as above.
        None => unsafe { real(device, count, to) },
    }
}

unsafe fn compute_v2(
    real: ProcessesV2,
    device: Device,
    count: *mut c_uint,
    to: *mut ProcessV2,
) -> NvmlReturn {
    match processes(device) {
        // SAFETY: the caller's own arguments.
        Some(listed) => unsafe { fill(&listed, count, to) },
        // SAFETY: as above.
        None => unsafe { real(device, count, to) },
    }
}

/// Processes of other kinds: a tenant's are all listed as such that compute.
unsafe fn others(real: ProcessesV1, device: Device, count: *mut c_uint, to: *mut ProcessV1) -> NvmlReturn {
    match on(device, |_| Some(())) {
        // SAFETY: the caller's own arguments.
        Some(()) => unsafe { fill(&[], count, to) },
        // SAFETY: as above.
        None => unsafe { real(device, count, to) },
    }
}

unsafe fn others_v2(real: ProcessesV2, device: Device, count: *mut c_uint, to: *mut ProcessV2) -> NvmlReturn {
    match on(device, |_| Some(())) {
        // SAFETY: the caller's own arguments.
        Some(()) => unsafe { fill(&[], count, to) },
        // SAFETY: as above.
        None => unsafe { real(device, count, to) },
    }
}
