//! The tenant's mask, written into every launch's descriptor.
//!
//! Runs on the launching thread between the program's call and the upload, for
//! streams, graphs and libraries alike. No allocation, lock or system call.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use partita_abi::qmd;
use partita_driver::callback;
use partita_ledger::HookState;

use crate::account::gpu::Gpu;
use crate::account::launch_mask::LaunchMask;
use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::launch::counter;
use crate::launch::green::sets;
use crate::launch::noted::{self, Call};
use crate::sys::fork::in_child;

/// The GPU of a process that sees one; null for another process.
static ONE: AtomicPtr<Gpu> = AtomicPtr::new(core::ptr::null_mut());
/// The tenant of a process that sees several.
static SEVERAL: AtomicPtr<Tenant> = AtomicPtr::new(core::ptr::null_mut());

/// Makes [`on_launch`] mask launches for the tenant from now on. It continues if the tenant is
/// refused later: launches in flight then keep their mask.
pub fn begin(tenant: &'static Tenant) {
    match tenant.places() {
        None => ONE.store(core::ptr::from_ref(tenant.first()).cast_mut(), Ordering::Release),
        Some(_) => SEVERAL.store(core::ptr::from_ref(tenant).cast_mut(), Ordering::Release),
    }
}

// Forgets the parent's tenant.
in_child! {
    ONE.store(core::ptr::null_mut(), Ordering::Release);
    SEVERAL.store(core::ptr::null_mut(), Ordering::Release);
}

/// Masks a launch: `parameters` are those of the launch callback.
///
/// # Safety
/// The driver calls back for a launch, with these parameters.
#[inline]
pub unsafe fn on_launch(parameters: *const c_void) {
    // SAFETY: begin() stored a GPU of a leaked tenant.
    match unsafe { ONE.load(Ordering::Acquire).as_ref() } {
        // SAFETY: the caller guarantees it.
        Some(gpu) => unsafe { on_launch_of(gpu, parameters) },
        // SAFETY: as above.
        None => unsafe { on_launch_of_several(parameters) },
    }
}

/// Masks a launch of a process that sees several GPUs.
///
/// # Safety
/// As for [`on_launch`].
#[inline(never)]
unsafe fn on_launch_of_several(parameters: *const c_void) {
    // SAFETY: begin() stored a leaked tenant.
    let Some(tenant) = (unsafe { SEVERAL.load(Ordering::Acquire).as_ref() }) else {
        // A tool has subscribed before the process attached, or without a mask.
        return;
    };
    // SAFETY: attach() has prepared the notes.
    let noted = unsafe { locate::noted() };
    let gpu = match noted {
        Some(gpu) => gpu,
        // The driver launches a kernel itself, for example to fill memory.
        None => match locate::gpu_now(tenant) {
            Ok(gpu) if ends_on_all(tenant, gpu) => gpu,
            // SAFETY: the driver's own arguments.
            Ok(gpu) => return unsafe { mask_for_any(tenant, gpu, parameters) },
            Err(_) => return tenant.gpus().iter().for_each(cannot_mask),
        },
    };
    // SAFETY: the caller guarantees it.
    unsafe { on_launch_of(gpu, parameters) };
}

/// Whether no launch with a GPU's mask would wait for ever on another of the tenant's GPUs.
#[cold]
fn ends_on_all(tenant: &Tenant, gpu: &Gpu) -> bool {
    let words = disable_now(gpu);
    let ends_on = |mask: &LaunchMask| mask.live.iter().zip(words).any(|(live, off)| live & !off != 0);
    tenant.gpus().iter().filter_map(|other| other.mask.as_ref()).all(ends_on)
}

/// Masks a launch that may be for any of the tenant's GPUs: each keeps its set.
///
/// # Safety
/// As for [`on_launch`].
#[cold]
unsafe fn mask_for_any(tenant: &Tenant, gpu: &Gpu, parameters: *const c_void) {
    let Some(LaunchMask { layout, live, .. }) = &gpu.mask else { return };
    // SAFETY: the driver's parameters, during the call.
    let Some(image) = (unsafe { callback::descriptor_of(parameters, layout) }) else {
        return cannot_mask(gpu);
    };
    gpu.slot.count_launch_in(counter::of_this_thread());
    let sets = tenant.gpus().iter().map(disable_now);
    let all = sets.fold([!0; 8], |all, set| core::array::from_fn(|word| all[word] & set[word]));
    let own = qmd::read_disable_mask(image, layout);
    let disable = qmd::union_live(&all, own.as_ref(), live);
    if qmd::write_disable_mask(image, layout, &disable).is_err() {
        cannot_mask(gpu);
    }
}

/// Masks a launch on `gpu`. Inlined into the callback, which keeps its registers once and not
/// twice.
///
/// # Safety
/// As for [`on_launch`].
#[inline(always)]
unsafe fn on_launch_of(gpu: &Gpu, parameters: *const c_void) {
    // Without a mask here, the tenant has a partition only on another of its GPUs.
    let Some(mask) = &gpu.mask else { return };
    let layout = mask.layout;
    // SAFETY: the driver's parameters, during the call.
    let descriptor = unsafe { callback::launch_descriptor(parameters) };
    if descriptor.is_null() {
        return cannot_mask(gpu);
    }
    // SAFETY: every version of the descriptor is longer than this byte's offset.
    // The version is checked before anything else is touched.
    let version = unsafe { *descriptor.cast::<u8>().add(usize::from(layout.version_offset_bytes)) };
    if version != layout.version.byte() {
        return cannot_mask(gpu);
    }
    // SAFETY: a descriptor of this version has the layout's size, and the driver
    // lets its subscriber write it.
    let image = unsafe { core::slice::from_raw_parts_mut(descriptor, layout.words()) };
    gpu.slot.count_launch_in(counter::of_this_thread());
    if let Some(presence) = &gpu.presence {
        presence.before_launch(&gpu.limits);
    }
    if noted::is_any() {
        return looked_at(gpu, mask, image);
    }
    let disable = disable_now(gpu);
    // A mask may be there already: a narrower one of the program's own, or the
    // driver's for a large cluster.
    let written = match qmd::has_disable_mask(image, layout) {
        false => qmd::write_disable_mask(image, layout, &disable),
        true => write_with_own(mask, image, &disable),
    };
    if written.is_err() {
        cannot_mask(gpu);
    }
}

/// A launch on other TPCs than the tenant's own, with the program's mask if there is one.
fn write_with_own_of(mask: &LaunchMask, image: &mut [u32], disable: &[u32; 8]) -> Result<(), qmd::QmdError> {
    let own = qmd::read_disable_mask(image, mask.layout).map(|own| sets::asked_for(own, &mask.live));
    let both = own.map_or(*disable, |own| mask.with_own(image, disable, &own));
    qmd::write_disable_mask(image, mask.layout, &both)
}

#[cold]
fn write_with_own(mask: &LaunchMask, image: &mut [u32], disable: &[u32; 8]) -> Result<(), qmd::QmdError> {
    let own = qmd::read_disable_mask(image, mask.layout);
    let both = own.map_or(*disable, |own| mask.with_own(image, disable, &own));
    qmd::write_disable_mask(image, mask.layout, &both)
}

/// The tenant's disable words of this moment.
#[inline]
fn disable_now(gpu: &Gpu) -> [u32; 8] {
    match (gpu.limits.disable_words(), &gpu.mask) {
        (Ok((_, words)), _) => words,
        (Err(_), Some(mask)) => mask.at_start,
        // No partition: nothing is disabled.
        (Err(_), None) => [0; 8],
    }
}

/// A launch while some calls are noted, or after the program has made a green context.
#[cold]
fn looked_at(gpu: &Gpu, mask: &LaunchMask, image: &mut [u32]) {
    // SAFETY: used in this callback only.
    if let Some(call) = unsafe { noted::noted() } {
        return in_noted_call(gpu, mask, call, image);
    }
    let own = qmd::read_disable_mask(image, mask.layout).map(|own| sets::asked_for(own, &mask.live));
    let tenants = disable_now(gpu);
    let disable = own.map_or(tenants, |own| mask.with_own(image, &tenants, &own));
    if qmd::write_disable_mask(image, mask.layout, &disable).is_err() {
        cannot_mask(gpu);
    }
}

/// A launch that may leave the partition, or the upload of a graph.
#[cold]
fn in_noted_call(gpu: &Gpu, mask: &LaunchMask, call: &Call<'_>, image: &mut [u32]) {
    let layout = mask.layout;
    if let Some(disable) = call.mask {
        if write_with_own_of(mask, image, disable).is_err() {
            cannot_mask(gpu);
        }
        return;
    }
    // A launch that may leave the partition keeps the descriptor that the driver made.
    let Some(carried) = call.carried else { return };
    let descriptor = image.as_ptr() as usize;
    let own = carried.own(descriptor, qmd::read_disable_mask(image, layout));
    let wanted = match call.unmasked {
        true => own,
        false => {
            let asked = own.map(|own| sets::asked_for(own, &mask.live));
            let tenants = disable_now(gpu);
            Some(asked.map_or(tenants, |asked| mask.with_own(image, &tenants, &asked)))
        }
    };
    let written = match wanted {
        Some(disable) => qmd::write_disable_mask(image, layout, &disable),
        None => qmd::clear_disable_mask(image, layout),
    };
    carried.note(descriptor, qmd::read_disable_mask(image, layout), own);
    if written.is_err() {
        cannot_mask(gpu);
    }
}

/// The driver makes other descriptors than it did when the board was
/// calibrated. This launch is past refusing; it is the last that goes through.
#[cold]
fn cannot_mask(gpu: &Gpu) {
    gpu.report(HookState::UNMASKED | HookState::REFUSED);
    tenant::refuse();
}
