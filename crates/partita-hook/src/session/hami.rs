//! Tenants without `partita run`: the environment of HAMi-core (or of vgpu-manager) names them and
//! their limits, so that this library can replace theirs (`docs/migrating-from-hami.md`).
//!
//! [`partita_core::hami`] interprets the variables. This module decides whose environment counts,
//! where the tenant is, and which process makes it.

mod directory;
mod limits;
mod meta;
mod tenancy;

use alloc::ffi::CString;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::CStr;

use partita_abi::types::CUuuid;
use partita_core::hami::{Asked, Says, names, ordinals};
use partita_ledger::{LimitsMap, UsageView};

use crate::account::environment;
use crate::driver::management;
use crate::session::claim::{Claim, Part};
use crate::session::hami::limits::Board;
use crate::session::hami::tenancy::Tenancy;
use crate::sys::report;

/// The requested limits.
///
/// # Errors
/// If they are invalid.
fn asked() -> Result<&'static Asked, String> {
    match environment::says() {
        Says::Asks(asked) => Ok(asked),
        Says::Unclear(unreadable) => {
            Err(format!("{unreadable}; without its limits this program does not run"))
        }
        Says::Nothing | Says::Off => Err("no tenant is named".to_string()),
    }
}

/// Adds this process to its tenant, on the GPUs that it sees, and returns their compute capability.
///
/// # Errors
/// Why it cannot be added, and the remedy.
pub fn enter(uuids: &[[u8; 16]]) -> Result<(Vec<Claim>, u32), String> {
    let asked = asked()?;
    tell_of_own(asked);
    let tenancy = Tenancy::of(asked)?;
    let numbers = numbers(asked, uuids)?;
    let (mut claimed, mut classes) = (Vec::new(), Vec::new());
    for (ordinal, (&uuid, number)) in uuids.iter().zip(numbers).enumerate() {
        let board = Board::of(ordinal, uuid)?;
        let index = u8::try_from(ordinal).map_err(|_| "this program sees too many GPUs".to_string())?;
        let claim = tenancy.enter(asked, &board, number, index)?;
        classes.push(board.compute_capability);
        claimed.push(claim);
    }
    let compute_capability = *classes.first().ok_or("this program sees no GPU")?;
    let is_masked = claimed.iter().any(|claim| claim.gpu.mask.is_some());
    if is_masked && classes.iter().any(|&class| class != compute_capability) {
        return Err("the tenant's GPUs are of different kinds, and it has a core limit; give the program one of them \
                    with CUDA_VISIBLE_DEVICES"
            .to_string());
    }
    Ok((claimed, compute_capability))
}

/// Whether the environment names a tenant and no limit: nothing is then lost without the tenant.
pub fn limits_nothing() -> bool {
    asked().is_ok_and(Asked::limits_nothing)
}

/// The tenant's existing ledgers, for reading.
///
/// # Errors
/// If their place is unknown.
pub fn views() -> Result<Vec<(LimitsMap, UsageView)>, String> {
    let tenancy = Tenancy::of(asked()?)?;
    let open = |directory: CString| Part::open(directory).and_then(Part::view).ok();
    Ok(tenancy.directories().iter().filter_map(|directory| open(directory.as_c().into())).collect())
}

/// The quota of a GPU on which the tenant does not exist yet, in bytes; `None` without a valid one.
pub fn quota_bytes(uuid: &[u8; 16]) -> Option<u64> {
    let Ok(asked) = asked() else { return Some(0) };
    match numbers(asked, core::slice::from_ref(uuid)) {
        Ok(numbers) => asked.memory_bytes(*numbers.first()?),
        Err(_) => Some(0),
    }
}

/// The numbers that GPUs have in the container. A process that sees some of them cannot conclude
/// these from their ordinals.
///
/// The source is the container's list of UUIDs; else the management library, which shows the
/// container's GPUs and ignores `CUDA_VISIBLE_DEVICES`; else the ordinals in that.
fn numbers(asked: &Asked, uuids: &[[u8; 16]]) -> Result<Vec<usize>, String> {
    if !asked.is_numbered() {
        return Ok((0..uuids.len()).collect());
    }
    if let Some(listed) = asked.listed() {
        let number = |uuid: &[u8; 16]| {
            listed.iter().position(|entry| names(entry, uuid)).ok_or_else(|| {
                format!(
                    "this program sees GPU-{}, which NVIDIA_VISIBLE_DEVICES does not name, so its \
                     limits are unknown; choose others with CUDA_VISIBLE_DEVICES",
                    CUuuid { bytes: *uuid }
                )
            })
        };
        return uuids.iter().map(number).collect();
    }
    let managed = management::uuids();
    let number = |uuid: &[u8; 16]| managed.iter().position(|managed| managed == uuid);
    if let Some(numbers) = uuids.iter().map(number).collect() {
        return Ok(numbers);
    }
    // SAFETY: a valid name; the value is copied at once.
    let chosen = unsafe { libc::getenv(c"CUDA_VISIBLE_DEVICES".as_ptr()) };
    if chosen.is_null() {
        return Ok((0..uuids.len()).collect());
    }
    // SAFETY: getenv returned a string.
    let chosen = unsafe { CStr::from_ptr(chosen) }.to_str().ok().and_then(ordinals);
    chosen.filter(|chosen| chosen.len() >= uuids.len()).ok_or_else(|| {
        "limits of single devices (_0, _1, …) need a list of UUIDs in NVIDIA_VISIBLE_DEVICES, or the \
         management library (libnvidia-ml.so.1), to identify the devices"
            .to_string()
    })
}

/// Reports once that this process's own environment does not count, if it differs.
fn tell_of_own(asked: &Asked) {
    let differs = environment::own().is_some_and(|own| own != environment::says());
    if differs && asked.log_level >= 1 {
        report::once!(
            "this process was started with other limits than those with which its tenant was, which hold"
        );
    }
}
