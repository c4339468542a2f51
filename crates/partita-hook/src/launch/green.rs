//! The program's own green contexts, made of the tenant's TPCs.
//!
//! The program queries SMs, splits them and creates contexts of the parts. These calls are answered
//! here from the tenant's set ([`resource`]); the driver creates contexts of the device's TPCs, and
//! the callback restricts the launches of each to the program's set ([`sets`]), inside the tenant's
//! current set. If the two are disjoint, only the tenant's set applies, as for every mask of the
//! program.

mod resource;
pub mod sets;

use alloc::vec::Vec;
use core::ffi::{c_int, c_uint, c_void};
use core::slice;

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM, CUdevResource};
use partita_core::{Topology, TpcSet};
use partita_ledger::Limits;
use partita_ledger::mutex::Mutex;
use resource::Sms;
use sets::{Asked, NotMade};

use crate::account::gpu::Gpu;
use crate::account::tenant::{self, Tenant};
use crate::launch::caller;
use crate::sys::fork::{in_child, renew};
use crate::sys::report;

/// The first compute capability with clusters (Hopper).
const CLUSTERS_SINCE: u32 = 90;
/// The last of the handles of default streams.
const DEFAULT_STREAM_MAX: usize = 2;

/// The distance between the handles of descriptors.
const DESCRIPTOR_STEP: usize = 16;

/// The program's descriptors, in the order of their creation.
static DESCRIPTORS: Mutex<Vec<Sms>> = Mutex::new(Vec::new());

// Leaves the parent's contexts to the parent.
in_child! {
    renew(&DESCRIPTORS, Vec::new());
}

/// The tenant, where its launches are masked and the process sees one GPU. Elsewhere the driver
/// answers.
fn masked() -> Option<&'static Tenant> {
    tenant::current().filter(|tenant| tenant.is_masked() && tenant.places().is_none())
}

/// The limits of the tenant's one GPU, and the device that they describe.
fn limits(tenant: &Tenant) -> Result<(Limits, Topology), CuResult> {
    let limits = tenant.first().limits_now().ok_or(CuResult::UNKNOWN)?;
    let topology = limits.topology().map_err(|_| CuResult::UNKNOWN)?;
    Ok((limits, topology))
}

/// The set of a green context inside the tenant's set.
fn inside(limits: &Limits, asked: TpcSet) -> TpcSet {
    let tenant = TpcSet::from_words(limits.set);
    let both = asked & tenant;
    if both.is_empty() { tenant } else { both }
}

/// The set of the green context that a stream is of.
fn of_stream(tenant: &Tenant, stream: *mut c_void) -> Option<&'static Asked> {
    match stream.addr() {
        _ if sets::asked().is_empty() => None,
        ..=DEFAULT_STREAM_MAX => sets::of_context(tenant.driver().current_context()),
        _ => sets::of_stream(stream),
    }
}

/// The limits by which a launch in a stream is judged, where that is a green context's.
pub fn limits_in(tenant: &Tenant, gpu: &Gpu, stream: *mut c_void) -> Option<Limits> {
    let asked = of_stream(tenant, stream)?;
    Some(narrowed(gpu.limits_now()?, asked.set()))
}

/// The limits in each set that a green context of the process has had: a kernel of a graph may have
/// been captured in any.
pub fn limits_in_each(limits: &Limits) -> impl Iterator<Item = Limits> {
    sets::asked().iter().map(|asked| narrowed(limits.clone(), asked.set()))
}

fn narrowed(mut limits: Limits, asked: TpcSet) -> Limits {
    if let Ok(topology) = limits.topology() {
        let set = inside(&limits, asked);
        limits.set_partition(&topology, &set);
    }
    limits
}

/// Replaces the driver's answer about SMs: by those of a green context, or by the tenant's.
/// NVIDIA's libraries, which compute wrong with another number than the device's, keep the driver's
/// answer outside of green contexts.
///
/// # Safety
/// The driver has just written the resource.
unsafe fn tell(tenant: &Tenant, asked: Option<&Asked>, resource: *mut CUdevResource) -> CuResult {
    // SAFETY: as the caller says.
    let resource = unsafe { &mut *resource };
    if resource.kind != CU_DEV_RESOURCE_TYPE_SM || (asked.is_none() && !caller::is_program()) {
        return CuResult::SUCCESS;
    }
    let (limits, topology) = match limits(tenant) {
        Ok(found) => found,
        Err(code) => return code,
    };
    let sms = Sms {
        device: 0,
        set: asked.map_or(TpcSet::from_words(limits.set), |asked| inside(&limits, asked.set())),
        split: 0,
        least_sms: resource.sm.min_sm_partition_size,
        together_sms: resource.sm.sm_coscheduled_alignment,
    };
    *resource = sms.resource(&topology);
    CuResult::SUCCESS
}

/// Wraps `cuDeviceGetDevResource`.
pub unsafe fn device_resource(
    real: prototypes::cuDeviceGetDevResource,
    device: c_int,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(device, resource, kind) };
    match masked().filter(|_| result.is_ok()) {
        // SAFETY: the driver has just written the resource.
        Some(tenant) => unsafe { tell(tenant, None, resource) },
        None => result,
    }
}

/// Wraps `cuCtxGetDevResource`.
pub unsafe fn context_resource(
    real: prototypes::cuCtxGetDevResource,
    context: *mut c_void,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(context, resource, kind) };
    let Some(tenant) = masked().filter(|_| result.is_ok()) else { return result };
    let context = if context.is_null() { tenant.driver().current_context() } else { context.addr() };
    // SAFETY: the driver has just written the resource.
    unsafe { tell(tenant, sets::of_context(context), resource) }
}

/// Wraps `cuGreenCtxGetDevResource`.
pub unsafe fn green_resource(
    real: prototypes::cuGreenCtxGetDevResource,
    green: *mut c_void,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(green, resource, kind) };
    match masked().filter(|_| result.is_ok()) {
        // SAFETY: the driver has just written the resource.
        Some(tenant) => unsafe { tell(tenant, sets::of_handle(green), resource) },
        None => result,
    }
}

/// Wraps `cuStreamGetDevResource`.
pub unsafe fn stream_resource(
    real: prototypes::cuStreamGetDevResource,
    stream: *mut c_void,
    resource: *mut CUdevResource,
    kind: c_uint,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(stream, resource, kind) };
    match masked().filter(|_| result.is_ok()) {
        // SAFETY: the driver has just written the resource.
        Some(tenant) => unsafe { tell(tenant, of_stream(tenant, stream), resource) },
        None => result,
    }
}

/// Wraps `cuDevSmResourceSplitByCount`. The driver splits resources that this library has not
/// filled.
pub unsafe fn split_by_count(
    real: prototypes::cuDevSmResourceSplitByCount,
    groups: *mut CUdevResource,
    count: *mut c_uint,
    input: *const CUdevResource,
    rest: *mut CUdevResource,
    flags: c_uint,
    wanted_sms: c_uint,
) -> CuResult {
    // SAFETY: null or valid, by the program's word.
    let sms = unsafe { input.as_ref() }.and_then(|input| Sms::of(input).ok());
    let (Some(tenant), Some(input)) = (masked(), sms) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(groups, count, input, rest, flags, wanted_sms) };
    };
    let split = || {
        // SAFETY: null or valid, by the program's word.
        let count = unsafe { count.as_mut() }.ok_or(CuResult::INVALID_VALUE)?;
        let room = if groups.is_null() { None } else { Some(*count) };
        if room == Some(0) {
            return Err(CuResult::INVALID_VALUE);
        }
        let (_, topology) = limits(tenant)?;
        let has_clusters = tenant.compute_capability >= CLUSTERS_SINCE;
        let (parts, left) = resource::split(&topology, has_clusters, &input, wanted_sms, flags, room)?;
        *count = parts.len() as c_uint;
        if !groups.is_null() {
            for (index, part) in parts.iter().enumerate() {
                // SAFETY: the program has said that there is room for as many, and split() has kept
                // to it.
                unsafe { groups.add(index).write(part.resource(&topology)) };
            }
        }
        if !rest.is_null() {
            // SAFETY: the program's to have written.
            unsafe { rest.write(left.resource(&topology)) };
        }
        Ok(())
    };
    split().err().unwrap_or(CuResult::SUCCESS)
}

/// Wraps `cuDevSmResourceSplit`: its groups of several sizes are not answered from a tenant's SMs.
pub unsafe fn split(
    real: prototypes::cuDevSmResourceSplit,
    groups: *mut CUdevResource,
    count: c_uint,
    input: *const CUdevResource,
    rest: *mut CUdevResource,
    flags: c_uint,
    wanted: *mut c_void,
) -> CuResult {
    // SAFETY: null or valid, by the program's word.
    let sms = unsafe { input.as_ref() }.and_then(|input| Sms::of(input).ok());
    if masked().is_some() && sms.is_some() {
        report::once!(
            "{}: cuDevSmResourceSplit was refused: a partition's SMs are split into groups of one size; use cuDevSmResourceSplitByCount",
            report::program()
        );
        return CuResult::NOT_SUPPORTED;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(groups, count, input, rest, flags, wanted) }
}

/// Wraps `cuDevResourceGenerateDesc`.
pub unsafe fn describe(
    real: prototypes::cuDevResourceGenerateDesc,
    descriptor: *mut *mut c_void,
    resources: *mut CUdevResource,
    count: c_uint,
) -> CuResult {
    let is_answered = masked().is_some() && !descriptor.is_null() && !resources.is_null() && count != 0;
    let given: &[CUdevResource] = match is_answered {
        // SAFETY: as many as the program says.
        true => unsafe { slice::from_raw_parts(resources.cast_const(), count as usize) },
        false => &[],
    };
    let parts: Vec<Sms> = given.iter().filter_map(|resource| Sms::of(resource).ok()).collect();
    if parts.is_empty() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(descriptor, resources, count) };
    }
    if parts.len() != given.len() {
        report::once!(
            "{}: a descriptor of resources was refused: in a partition a green context is made of SMs that cuDevSmResourceSplitByCount \
             gave, and of nothing else",
            report::program()
        );
        return CuResult::NOT_SUPPORTED;
    }
    match resource::unite(&parts) {
        Ok(sms) => {
            let sms = Sms { split: 0, ..sms };
            let mut kept = DESCRIPTORS.lock();
            // There is no call that gives a descriptor back. Its number is no address that the
            // driver could have given.
            let known = kept.iter().position(|known| *known == sms).unwrap_or_else(|| {
                kept.push(sms);
                kept.len() - 1
            });
            let handle = core::ptr::without_provenance_mut(DESCRIPTOR_STEP * (known + 1));
            // SAFETY: not null, and the program's to have written.
            unsafe { descriptor.write(handle) };
            CuResult::SUCCESS
        }
        Err(code) => code,
    }
}

/// The SMs of a descriptor of [`describe`].
fn described(descriptor: *mut c_void) -> Option<Sms> {
    let after_first = descriptor.addr().checked_sub(DESCRIPTOR_STEP)?;
    if after_first % DESCRIPTOR_STEP != 0 {
        return None;
    }
    DESCRIPTORS.lock().get(after_first / DESCRIPTOR_STEP).copied()
}

/// Wraps `cuGreenCtxCreate`.
pub unsafe fn create(
    real: prototypes::cuGreenCtxCreate,
    green: *mut *mut c_void,
    descriptor: *mut c_void,
    device: c_int,
    flags: c_uint,
) -> CuResult {
    let Some(tenant) = tenant::current().filter(|tenant| tenant.is_masked()) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { real(green, descriptor, device, flags) };
    };
    if tenant.places().is_some() {
        report::once!(
            "{}: a green context was refused: in a partition it needs a process that sees one GPU; set CUDA_VISIBLE_DEVICES to one",
            report::program()
        );
        return CuResult::NOT_SUPPORTED;
    }
    if green.is_null() || descriptor.is_null() || flags != CU_GREEN_CTX_DEFAULT_STREAM {
        return CuResult::INVALID_VALUE;
    }
    let Some(sms) = described(descriptor) else {
        report::once!(
            "{}: a green context was refused: its SMs are the whole device's, as NVIDIA's libraries see \
             them, and not the partition's; run the program with the whole GPU (--via time --time SHARE)",
            report::program()
        );
        return CuResult::NOT_SUPPORTED;
    };
    if sms.device != device {
        return CuResult::INVALID_DEVICE;
    }
    let topology = match limits(tenant) {
        Ok((_, topology)) => topology,
        Err(code) => return code,
    };
    match sets::make(tenant.first(), &sms.set, &topology.disable_words(&sms.set)) {
        Ok(handle) => {
            // SAFETY: not null, and the program's to have written.
            unsafe { green.write(handle) };
            CuResult::SUCCESS
        }
        Err(NotMade::Driver(code)) => code,
        Err(NotMade::Full) => {
            report::once!(
                "{}: a green context was refused: in a partition a process makes them of at most {} different groups of SMs, destroyed ones \
                 included; use groups again",
                report::program(),
                sets::asked().len()
            );
            CuResult::NOT_SUPPORTED
        }
        Err(NotMade::Alike) => {
            report::once!(
                "{}: a green context was refused: this driver does not show which green context a launch belongs to, so it cannot be held \
                 to a part of the partition; run the program with the whole GPU (--via time --time SHARE)",
                report::program()
            );
            CuResult::NOT_SUPPORTED
        }
    }
}

/// Wraps `cuGreenCtxDestroy`.
pub unsafe fn destroy(real: prototypes::cuGreenCtxDestroy, green: *mut c_void) -> CuResult {
    // Forgotten first: once the driver has freed it, another thread may be given its address.
    let forgotten = sets::forget(green);
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { real(green) };
    if let Some(context) = forgotten.filter(|_| result.is_err()) {
        sets::remember(context);
    }
    result
}
