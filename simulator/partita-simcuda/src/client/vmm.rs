//! Virtual memory management: physical memory, addresses and maps as separate things.

use core::ffi::{c_int, c_void};
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::check_device;
use super::gpus::{runtime, runtime_at, visible};
use super::region::{Kind, Region};
use super::runtime::Runtime;
use super::{get, list, put};
use crate::shared::protocol::{PAGE_BYTES, Reply, Request};

fn check_properties(properties: &CUmemAllocationProp) -> Result<&'static Runtime, CuResult> {
    let known = CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if properties.kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(CuResult::INVALID_VALUE);
    }
    if properties.location.kind != CU_MEM_LOCATION_TYPE_DEVICE
        || properties.requested_handle_types & !known != 0
    {
        return Err(CuResult::NOT_SUPPORTED);
    }
    check_device(properties.location.id)
}

/// Where a handle has the ordinal of its device; below it is the board's number.
const ORDINAL_SHIFT: u32 = 48;

/// A handle of a device's physical memory.
fn handle_of(runtime: &Runtime, phys: u64) -> CUmemGenericAllocationHandle {
    (runtime.ordinal as u64) << ORDINAL_SHIFT | phys
}

/// The device of a handle, and the board's number.
fn phys_of_handle(handle: CUmemGenericAllocationHandle) -> Result<(&'static Runtime, u64), CuResult> {
    runtime()?;
    let runtime = visible().get((handle >> ORDINAL_SHIFT) as usize).ok_or(CuResult::INVALID_VALUE)?;
    Ok((runtime, handle & ((1 << ORDINAL_SHIFT) - 1)))
}

/// The properties of a device's memory.
fn properties(runtime: &Runtime) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: runtime.ordinal },
        win32_handle_meta_data: std::ptr::null_mut(),
        alloc_flags: CUmemAllocationPropFlags::default(),
    }
}

fn phys_of(reply: Reply) -> Result<u64, CuResult> {
    match reply {
        Reply::Phys { phys, .. } => Ok(phys),
        _ => Err(CuResult::UNKNOWN),
    }
}

/// Waits for all work of the process, which may use addresses that are about to be unmapped.
fn settle() -> Result<(), CuResult> {
    match super::context::current() {
        Ok(context) => context.synchronize(),
        // These calls need no context, and without one there is no work.
        Err(_) => Ok(()),
    }
}

driver_api! {
    /// Makes physical memory.
    fn cuMemCreate(handle, bytes, wanted, flags) {
        runtime()?;
        let wanted = get(wanted)?;
        if flags != 0 || bytes == 0 || !(bytes as u64).is_multiple_of(PAGE_BYTES) || handle.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        let runtime = check_properties(&wanted)?;
        let phys = phys_of(runtime.call(&Request::PhysCreate { bytes: bytes as u64 })?)?;
        put(handle, handle_of(runtime, phys))
    }

    /// Drops a reference to physical memory.
    fn cuMemRelease(handle) {
        let (runtime, phys) = phys_of_handle(handle)?;
        runtime.call(&Request::PhysRelease { phys }).map(drop)
    }

    /// Adds a reference to the physical memory behind an address.
    fn cuMemRetainAllocationHandle(handle, address) {
        let runtime = runtime_at(address as u64)?;
        let region = runtime.regions.find(address as u64).ok_or(CuResult::INVALID_VALUE)?;
        if !region.imported || region.ctx != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let phys = phys_of(runtime.call(&Request::PhysRetain { address: address as u64 })?)?;
        put(handle, handle_of(runtime, phys))
    }

    /// Reserves addresses.
    fn cuMemAddressReserve(address, bytes, align, hint, flags) {
        let runtime = runtime()?;
        if flags != 0 || address.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        let request = Request::Reserve { bytes: bytes as u64, align: align as u64, hint };
        let Reply::Memory { address: at, .. } = runtime.call(&request)? else { return Err(CuResult::UNKNOWN) };
        put(address, at)
    }

    /// Returns reserved addresses.
    fn cuMemAddressFree(address, bytes) {
        runtime_at(address)?.call(&Request::Unreserve { address, bytes: bytes as u64 }).map(drop)
    }

    /// Maps physical memory at reserved addresses.
    fn cuMemMap(address, bytes, offset, handle, flags) {
        let runtime = runtime_at(address)?;
        let (owner, phys) = phys_of_handle(handle)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // Each GPU has its own range of addresses here.
        if !std::ptr::eq(owner, runtime) {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let (bytes, offset) = (bytes as u64, offset as u64);
        let request = Request::Map { address, bytes, offset, phys };
        let Reply::Memory { extents, .. } = runtime.call(&request)? else { return Err(CuResult::UNKNOWN) };
        let mut region = Region::new(address, bytes, Kind::Device);
        region.extents = extents;
        // Not an allocation: `cuMemFree` must refuse it.
        region.imported = true;
        runtime.regions.insert(region);
        Ok(())
    }

    /// Undoes whole maps, after all work of the context.
    fn cuMemUnmap(address, bytes) {
        let runtime = runtime_at(address)?;
        settle()?;
        let bytes = bytes as u64;
        runtime.call(&Request::Unmap { address, bytes })?;
        let end = address + bytes;
        runtime.regions.remove_where(|region| region.start >= address && region.start < end);
        Ok(())
    }

    /// Sets the access to mapped memory.
    fn cuMemSetAccess(address, bytes, access, count) {
        let runtime = runtime_at(address)?;
        for wanted in list(access, count)? {
            if wanted.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
                return Err(CuResult::NOT_SUPPORTED);
            }
            if !std::ptr::eq(check_device(wanted.location.id)?, runtime) {
                return Err(CuResult::NOT_SUPPORTED);
            }
            let access = match wanted.flags {
                CU_MEM_ACCESS_FLAGS_PROT_NONE => 0,
                CU_MEM_ACCESS_FLAGS_PROT_READ => 1,
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE => 3,
                _ => return Err(CuResult::INVALID_VALUE),
            };
            runtime.call(&Request::SetAccess { address, bytes: bytes as u64, access })?;
            let end = address + bytes as u64;
            runtime.regions.update_where(
                |region| region.start >= address && region.start < end,
                |region| region.flags = u32::from(access),
            );
        }
        Ok(())
    }

    /// The unit of physical memory.
    fn cuMemGetAllocationGranularity(granularity, wanted, option) {
        check_properties(&get(wanted)?)?;
        if option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(CuResult::INVALID_VALUE);
        }
        put(granularity, PAGE_BYTES as usize)
    }

    /// The properties of physical memory.
    fn cuMemGetAllocationPropertiesFromHandle(found, handle) {
        put(found, properties(phys_of_handle(handle)?.0))
    }

    /// Makes a descriptor that another process can open physical memory by.
    fn cuMemExportToShareableHandle(shared, handle, kind, flags) {
        let (runtime, phys) = phys_of_handle(handle)?;
        if flags != 0 || shared.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let (_, descriptors) = runtime.call_with(&Request::PhysExport { phys }, &[])?;
        let descriptor = descriptors.into_iter().next().ok_or(CuResult::UNKNOWN)?;
        put(shared.cast::<c_int>(), descriptor.into_raw_fd())
    }

    /// Opens physical memory by a descriptor, which stays the caller's.
    fn cuMemImportFromShareableHandle(handle, shared, kind) {
        runtime()?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CuResult::NOT_SUPPORTED);
        }
        // The number itself is passed in place of a pointer.
        let number = c_int::try_from(shared.addr()).map_err(|_| CuResult::INVALID_VALUE)?;
        let copy = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0);
        if copy < 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // A copy of the program's descriptor, which only this call owns.
        let copy = OwnedFd::from_raw_fd(copy);
        // The descriptor does not name its board, so all boards are tried.
        let mut last = Err(CuResult::INVALID_VALUE);
        for runtime in visible() {
            match runtime.call_with(&Request::PhysImport, &[copy.as_fd()]) {
                Ok((reply, _)) => return put(handle, handle_of(runtime, phys_of(reply)?)),
                Err(error) => last = Err(error),
            }
        }
        last
    }
}
