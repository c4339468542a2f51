//! Green contexts: the primary context, restricted to some of the device's SMs.
//!
//! As measured on an H200 (driver 580.159.04): launches on their streams come to the debug callback
//! with a valid mask in the descriptor, the streams' structures show none, a stream's own mask
//! replaces it, and no green context can be created in a process that has subscribed to the
//! callback.

use std::sync::Arc;

use partita_abi::CuResult;
use partita_abi::types::*;
use partita_core::TpcSet;

use super::context::green::Green;
use super::context::stream::{Stream, clamp_priority, resolve};
use super::context::{Context, check_device, context_or_current};
use super::event::{Event, record_context, wait_context};
use super::gpus::runtime;
use super::object::{Registry, object};
use super::resource::{self, SmSet};
use super::runtime::Runtime;
use super::{callback, get, list, primary, put, put_if};

/// The first driver with them.
const CUDA_VERSION_MIN: u32 = 12_040;

static GREENS: Registry<&'static Context> = Registry::new(0x1c00_0000_0000);
static DESCRIPTORS: Registry<Arc<SmSet>> = Registry::new(0x1d00_0000_0000);

/// Refuses calls that an old driver lacks. All GPUs of a machine have one driver.
fn supported() -> Result<(), CuResult> {
    let version = runtime()?.spec.driver.cuda_version;
    if version < CUDA_VERSION_MIN { Err(CuResult::NOT_SUPPORTED) } else { Ok(()) }
}

/// The words of a launch's mask: everything but the set disabled, fused-off numbers included, up to
/// the last word with a live number. On an H200 with numbers up to 83 the fourth word is 0.
fn disable_words(runtime: &Runtime, set: &TpcSet) -> [u32; 8] {
    let topology = &runtime.spec.topology;
    let last = topology.physical_set(&topology.all()).last_tpc().unwrap_or(0);
    let mut words = topology.disable_words(set);
    words[usize::from(last) / 32 + 1..].fill(0);
    words
}

fn whole(runtime: &Runtime) -> SmSet {
    let topology = &runtime.spec.topology;
    SmSet::whole(
        &runtime.spec,
        runtime.ordinal,
        topology.all().lowest(runtime.sms.div_ceil(topology.sms_per_tpc())),
    )
}

fn resource_of(context: &Context) -> CUdevResource {
    let runtime = context.runtime;
    let sms = match context.green() {
        // The SMs of a context can be split again.
        Some(green) => SmSet { split: 0, ..green.sms },
        None => whole(runtime),
    };
    sms.resource(runtime.spec.topology.sms_per_tpc())
}

fn check_type(kind: CUdevResourceType) -> Result<(), CuResult> {
    if kind == CU_DEV_RESOURCE_TYPE_SM { Ok(()) } else { Err(CuResult::INVALID_RESOURCE_TYPE) }
}

fn green(handle: CUgreenCtx) -> Result<&'static Context, CuResult> {
    supported()?;
    let context = GREENS.get(handle.addr()).ok_or(CuResult::INVALID_CONTEXT)?;
    if context.is_alive() { Ok(context) } else { Err(CuResult::CONTEXT_IS_DESTROYED) }
}

/// The handle of the green context that a context is, or null.
pub fn handle_of(context: &Context) -> CUgreenCtx {
    let found = GREENS.all().into_iter().find(|(_, green)| std::ptr::eq(*green, context));
    found.map_or(CUgreenCtx::NULL, |(handle, _)| CUgreenCtx::from_addr(handle))
}

fn create(device: CUdevice, sms: SmSet) -> Result<usize, CuResult> {
    let primary = primary::retain(device)?;
    let green = Green { primary, disable: disable_words(primary.runtime, &sms.set), sms };
    match Context::create_green(green) {
        Ok(context) => Ok(GREENS.insert(context)),
        Err(error) => {
            primary::release(device)?;
            Err(error)
        }
    }
}

driver_api! {
    /// A device's SMs, to be split.
    fn cuDeviceGetDevResource(device, resource, kind) {
        let runtime = check_device(device)?;
        supported()?;
        check_type(kind)?;
        put(resource, whole(runtime).resource(runtime.spec.topology.sms_per_tpc()))
    }

    /// The SMs of a context.
    fn cuCtxGetDevResource(context, resource, kind) {
        supported()?;
        let context = context_or_current(context)?;
        check_type(kind)?;
        put(resource, resource_of(context))
    }

    /// The SMs of a green context.
    fn cuGreenCtxGetDevResource(handle, resource, kind) {
        let context = green(handle)?;
        check_type(kind)?;
        put(resource, resource_of(context))
    }

    /// Splits SMs into groups of one size.
    fn cuDevSmResourceSplitByCount(groups, count, input, rest, flags, wanted_sms) {
        supported()?;
        let (wanted, input) = (get(count.cast_const())?, SmSet::of(&get(input)?)?);
        let spec = &check_device(input.device)?.spec;
        let room = if groups.is_null() { None } else { Some(wanted) };
        if room == Some(0) {
            return Err(CuResult::INVALID_VALUE);
        }
        let split = resource::split(spec, &input, wanted_sms, flags, room)?;
        let sms_per_tpc = spec.topology.sms_per_tpc();
        put(count, split.groups.len() as u32)?;
        if !groups.is_null() {
            for (index, group) in split.groups.iter().enumerate() {
                put(groups.add(index), group.resource(sms_per_tpc))?;
            }
        }
        put_if(rest, split.rest.resource(sms_per_tpc));
        Ok(())
    }

    /// Makes a descriptor for a green context from resources.
    fn cuDevResourceGenerateDesc(descriptor, resources, count) {
        supported()?;
        let parts: Result<Vec<SmSet>, CuResult> =
            list(resources.cast_const(), count as usize)?.iter().map(SmSet::of).collect();
        let made = DESCRIPTORS.insert(Arc::new(resource::unite(&parts?)?));
        put(descriptor, CUdevResourceDesc::from_addr(made))
    }

    /// Makes a green context.
    fn cuGreenCtxCreate(handle, descriptor, device, flags) {
        supported()?;
        check_device(device)?;
        if handle.is_null() || flags != CU_GREEN_CTX_DEFAULT_STREAM {
            return Err(CuResult::INVALID_VALUE);
        }
        let sms = DESCRIPTORS.get(descriptor.addr()).ok_or(CuResult::INVALID_VALUE)?;
        if sms.device != device {
            return Err(CuResult::INVALID_DEVICE);
        }
        if !callback::allows_green_contexts() {
            return Err(CuResult::NOT_SUPPORTED);
        }
        put(handle, CUgreenCtx::from_addr(create(device, *sms)?))
    }

    /// Destroys a green context. Its streams remain, but are unusable.
    fn cuGreenCtxDestroy(handle) {
        let context = green(handle)?;
        context.destroy()?;
        primary::release(context.runtime.ordinal)
    }

    /// The context as which a green one is made current.
    fn cuCtxFromGreenCtx(context, handle) {
        put(context, green(handle)?.handle())
    }

    /// Creates a stream whose launches stay on the green context's SMs.
    fn cuGreenCtxStreamCreate(stream, handle, flags, priority) {
        let context = green(handle)?;
        if flags != CU_STREAM_NON_BLOCKING || stream.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        let made = Stream::create(context, flags, clamp_priority(context.runtime, priority))?;
        context.add_stream(made);
        put(stream, made.handle())
    }

    /// Records an event after all earlier work of a green context's streams.
    fn cuGreenCtxRecordEvent(handle, event) {
        let event: &'static Event = object(event.0)?;
        record_context(green(handle)?, event)
    }

    /// Holds all streams of a green context until an event's last recording is complete.
    fn cuGreenCtxWaitEvent(handle, event) {
        let event: &'static Event = object(event.0)?;
        wait_context(green(handle)?, event)
    }

    /// The green context of a stream, or null.
    fn cuStreamGetGreenCtx(stream, handle) {
        supported()?;
        put(handle, handle_of(resolve(stream, false)?.context()))
    }

    /// A number that no other context of the process has.
    fn cuGreenCtxGetId(handle, id) {
        put(id, green(handle)?.id)
    }
}
