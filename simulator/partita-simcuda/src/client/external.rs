//! Memory of other programming interfaces. The simulator has none of them; a descriptor of
//! physical memory that another process has exported replaces such an interface.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::gpus::runtime;
use super::object::Registry;
use super::region::{Kind, Region};
use super::runtime::Runtime;
use super::{get, put};
use crate::shared::protocol::{PAGE_BYTES, Reply, Request};
use crate::shared::sys::lock;

/// Imported memory.
#[derive(Clone, Copy, Debug)]
struct External {
    runtime: &'static Runtime,
    phys: u64,
    bytes: u64,
}

static MEMORY: Registry<External> = Registry::new(0x1c00_0000_0000);
/// Where it is mapped: the handle, and the address.
static BUFFERS: Mutex<Vec<(usize, u64, u64)>> = Mutex::new(Vec::new());

driver_api! {
    /// Imports memory of another interface; the driver takes over the descriptor.
    fn cuImportExternalMemory(memory, wanted) {
        let runtime = runtime()?;
        let wanted = get(wanted)?;
        if memory.is_null() || wanted.size == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if wanted.kind != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let number = wanted.handle[0] as i32;
        let copy = libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0);
        if copy < 0 {
            return Err(CuResult::INVALID_HANDLE);
        }
        let copy = OwnedFd::from_raw_fd(copy);
        let (reply, _) = runtime.call_with(&Request::PhysImport, &[copy.as_fd()])?;
        let Reply::Phys { phys, .. } = reply else { return Err(CuResult::UNKNOWN) };
        libc::close(number);
        let bytes = wanted.size.next_multiple_of(PAGE_BYTES);
        put(memory, CUexternalMemory::from_addr(MEMORY.insert(External { runtime, phys, bytes })))
    }

    /// Maps a part of such memory.
    fn cuExternalMemoryGetMappedBuffer(address, memory, wanted) {
        let External { runtime, phys, bytes } = MEMORY.get(memory.addr()).ok_or(CuResult::INVALID_HANDLE)?;
        let wanted = get(wanted)?;
        let inside = wanted.offset.checked_add(wanted.size).is_some_and(|end| end <= bytes);
        if address.is_null() || wanted.size == 0 || !inside {
            return Err(CuResult::INVALID_VALUE);
        }
        let reserve = Request::Reserve { bytes, align: PAGE_BYTES, hint: 0 };
        let Reply::Memory { address: at, .. } = runtime.call(&reserve)? else { return Err(CuResult::UNKNOWN) };
        let map = Request::Map { address: at, bytes, offset: 0, phys };
        let Reply::Memory { extents, .. } = runtime.call(&map)? else { return Err(CuResult::UNKNOWN) };
        runtime.call(&Request::SetAccess { address: at, bytes, access: 3 })?;
        let mut region = Region::new(at, bytes, Kind::Device);
        region.extents = extents;
        region.imported = true;
        runtime.regions.insert(region);
        lock(&BUFFERS).push((memory.addr(), at, bytes));
        put(address, at + wanted.offset)
    }

    /// Destroys the import with all its mappings.
    fn cuDestroyExternalMemory(memory) {
        let External { runtime, phys, .. } = MEMORY.remove(memory.addr()).ok_or(CuResult::INVALID_HANDLE)?;
        let mut buffers = lock(&BUFFERS);
        for (_, at, bytes) in buffers.extract_if(.., |(of, _, _)| *of == memory.addr()) {
            runtime.call(&Request::Unmap { address: at, bytes })?;
            runtime.regions.remove(at, |_| true);
            runtime.call(&Request::Unreserve { address: at, bytes })?;
        }
        runtime.call(&Request::PhysRelease { phys }).map(drop)
    }
}
