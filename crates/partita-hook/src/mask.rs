//! The tenant's mask, written into every launch's descriptor.
//!
//! Runs on the launching thread between the program's call and the upload, for
//! streams, graphs and libraries alike. No allocation, lock or system call.

use core::ffi::{c_int, c_void};

use partita_abi::qmd::{self, QmdLayout};
use partita_driver::callback;
use partita_ledger::HookState;

use crate::tenant::{self, Tenant};

/// What the callback needs beside the ledger.
pub struct LaunchMask {
    /// Where this device's descriptors keep their mask.
    pub layout: &'static QmdLayout,
    /// The physical numbers that carry a TPC on this board.
    pub live: [u32; 8],
    /// Compute capability, major × 10 + minor.
    pub compute_capability: u32,
    /// The disable words when the process attached, for a launch that finds the
    /// limits being rewritten over and over.
    pub at_start: [u32; 8],
}

/// The subscriber: `argument` is the `Tenant`.
pub unsafe extern "C" fn on_launch(
    argument: *mut c_void,
    _domain: c_int,
    _id: c_int,
    parameters: *const c_void,
) {
    // SAFETY: attach() passed a leaked Tenant.
    let tenant = unsafe { &*argument.cast::<Tenant>() };
    let layout = tenant.mask.layout;
    // SAFETY: the driver's parameters, during the call.
    let descriptor = unsafe { callback::launch_descriptor(parameters) };
    if descriptor.is_null() {
        return cannot_mask(tenant);
    }
    // SAFETY: a descriptor of this device has the layout's size, and the driver
    // lets its subscriber write it. The version is checked before any write.
    let image = unsafe { core::slice::from_raw_parts_mut(descriptor, layout.words()) };
    if qmd::version_byte(image) != Some(layout.version.byte()) {
        return cannot_mask(tenant);
    }
    tenant.slot.count_launch();
    let own = tenant.limits.disable_words().map_or(tenant.mask.at_start, |(_, words)| words);
    let disable = match qmd::read_disable_mask(image, layout) {
        // A narrower mask of the program's own, or the driver's for a cluster.
        Some(asked) => intersect(&own, &asked, &tenant.mask.live),
        None => own,
    };
    if qmd::write_disable_mask(image, layout, &disable).is_err() {
        cannot_mask(tenant);
    }
}

/// The driver makes other descriptors than it did when the board was
/// calibrated. This launch is past refusing; it is the last that goes through.
#[cold]
fn cannot_mask(tenant: &Tenant) {
    tenant.report(HookState::UNMASKED | HookState::REFUSED);
    tenant::refuse();
}

/// What both masks leave enabled; the tenant's alone where that is nothing,
/// because a launch with no TPC never ends.
fn intersect(own: &[u32; 8], asked: &[u32; 8], live: &[u32; 8]) -> [u32; 8] {
    let mut both = *own;
    let mut enabled = 0;
    for word in 0..8 {
        both[word] |= asked[word];
        enabled |= !both[word] & live[word];
    }
    if enabled == 0 { *own } else { both }
}
