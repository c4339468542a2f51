//! Device memory: allocation, release and queries.

use core::ffi::c_void;

use partita_abi::CuResult;

use super::context::Context;
use super::region::{Kind, Region};
use super::runtime::Runtime;
use crate::shared::protocol::{AllocKind, Extent, Reply, Request};

/// Rows of pitched memory start at multiples of this, in bytes.
pub const PITCH_BYTES: usize = 512;

/// Allocates and records the board's allocation; [`super::memory_api::allocate`] first checks that
/// it is allowed.
///
/// # Errors
/// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
pub fn allocate(context: &'static Context, bytes: u64, kind: AllocKind) -> Result<u64, CuResult> {
    let context = context.home();
    let runtime = context.runtime;
    let reply = runtime.call(&Request::Alloc { ctx: context.number, bytes, kind })?;
    let Reply::Memory { address, extents } = reply else { return Err(CuResult::UNKNOWN) };
    let host = kind == AllocKind::Managed;
    let mut region = Region::new(address, bytes, if host { Kind::Managed } else { Kind::Device });
    region.ctx = context.id;
    region.extents = extents;
    if host && let Err(error) = open_view(runtime, &region) {
        runtime.call(&Request::Free { address })?;
        return Err(error);
    }
    runtime.regions.insert(region);
    Ok(address)
}

/// Makes device memory addressable for the host, at its own address.
fn open_view(runtime: &Runtime, region: &Region) -> Result<(), CuResult> {
    let mut at = region.start;
    for Extent { offset, bytes } in &region.extents {
        // SAFETY: the range is in the window that this library reserved, in pages that only this
        // allocation has, so the mapping replaces only the reservation.
        let mapped = unsafe {
            libc::mmap(
                at as *mut c_void,
                *bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
                std::os::fd::AsRawFd::as_raw_fd(&runtime.memory_fd),
                *offset as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            close_view(region);
            return Err(CuResult::OUT_OF_MEMORY);
        }
        at += bytes;
    }
    Ok(())
}

/// Makes a managed region's addresses unusable for the host again, if it is one.
pub fn close_view(region: &Region) {
    if region.kind != Kind::Managed {
        return;
    }
    let bytes: u64 = region.extents.iter().map(|extent| extent.bytes).sum();
    // SAFETY: as in `open_view`; the reservation comes back.
    unsafe {
        libc::mmap(
            region.start as *mut c_void,
            bytes as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        );
    }
}

/// Frees an allocation by its first address.
///
/// # Errors
/// `INVALID_VALUE` when it is not one.
pub fn free(runtime: &Runtime, address: u64) -> Result<(), CuResult> {
    let owned = |region: &Region| matches!(region.kind, Kind::Device | Kind::Managed) && !region.imported;
    let region = runtime.regions.remove(address, owned).ok_or(CuResult::INVALID_VALUE)?;
    close_view(&region);
    match runtime.call(&Request::Free { address }) {
        Err(_) if runtime.healthy().is_err() => Ok(()),
        result => result.map(drop),
    }
}
