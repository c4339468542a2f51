//! Host memory that the device can reach: allocated here, or the program's own and registered.

use core::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::capture;
use super::context::current;
use super::gpus::{runtime, visible};
use super::put;
use super::region::{Kind, Region};
use super::runtime::Runtime;
use crate::shared::protocol::Request;
use crate::shared::sys::memfd;

const PAGE: usize = 4096;

/// Allocates host memory that the board maps as well.
fn allocate(bytes: usize, flags: u32) -> Result<*mut c_void, CuResult> {
    let context = current()?;
    context.runtime.healthy()?;
    capture::refuse_unsafe()?;
    let length = bytes.checked_next_multiple_of(PAGE).filter(|length| *length > 0);
    let length = length.ok_or(CuResult::INVALID_VALUE)?;
    let file = memfd(c"partita-sim-host", length as u64).map_err(|_| CuResult::OUT_OF_MEMORY)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    // SAFETY: the range was just mapped. A child must not write into memory that the parent's
    // device uses.
    unsafe { libc::madvise(base, length, libc::MADV_DONTFORK) };
    let address = base as u64;
    let mut region = Region::new(address, bytes as u64, Kind::HostOwned);
    region.flags = flags;
    region.ctx = context.home().id;
    if let Err(error) = announce(&region, length as u64, &[file.as_fd()]) {
        // SAFETY: mapped above and not passed on.
        unsafe { libc::munmap(base, length) };
        return Err(error);
    }
    Ok(base)
}

/// Announces host memory to the boards. Under unified addressing every GPU of the process can reach
/// it.
fn announce(region: &Region, length: u64, descriptors: &[BorrowedFd<'_>]) -> Result<(), CuResult> {
    let request = Request::HostMap { address: region.start, bytes: length };
    for (told, runtime) in visible().iter().enumerate() {
        if let Err(error) = runtime.call_with(&request, descriptors) {
            for runtime in &visible()[..told] {
                withdraw(runtime, region.start)?;
            }
            return Err(error);
        }
        runtime.regions.insert(region.clone());
    }
    Ok(())
}

fn withdraw(runtime: &Runtime, address: u64) -> Result<(), CuResult> {
    runtime.regions.remove(address, Region::is_host);
    forget(runtime, address)
}

/// Forgets host memory that starts at an address, on all GPUs.
///
/// # Errors
/// Those of the boards.
pub fn withdraw_everywhere(address: u64) -> Result<(), CuResult> {
    visible().iter().try_for_each(|runtime| withdraw(runtime, address))
}

/// Forgets host memory that starts at an address.
fn forget(runtime: &Runtime, address: u64) -> Result<(), CuResult> {
    match runtime.call(&Request::HostUnmap { address }) {
        Err(_) if runtime.healthy().is_err() => Ok(()),
        result => result.map(drop),
    }
}

/// The file of a shared mapping that begins at `address` with the file's first byte, if this
/// process can open it.
///
/// Hardware pins registered pages, and writes them also after the process has died. The board does
/// so with pages that it maps itself; all others end with the process.
fn shared_file(address: usize, bytes: usize) -> Option<OwnedFd> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (end, inode, path) = maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        let is_shared = words.next()?.ends_with('s');
        let is_first = words.next()?.bytes().all(|digit| digit == b'0');
        let inode: u64 = words.nth(1)?.parse().ok()?;
        let path = words.next()?;
        (start == address && is_shared && is_first).then_some((end, inode, path))
    })?;
    if address.checked_add(bytes)? > end {
        return None;
    }
    let open = std::fs::read_dir("/proc/self/fd").ok()?.flatten().map(|entry| entry.path());
    // An anonymous file has no path.
    [PathBuf::from(path)].into_iter().chain(open).find_map(|path| {
        let is_it = std::fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.ino() == inode);
        is_it.then(|| File::options().read(true).write(true).open(path).ok().map(OwnedFd::from))?
    })
}

/// Lets the board read and write this process's memory, if the kernel requires permission.
fn permit_board(runtime: &Runtime) {
    if let Some(board) = runtime.board_pid() {
        // SAFETY: takes no pointers. It fails where there is nothing to permit.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(board), 0usize, 0usize, 0usize) };
    }
}

fn host_region(address: *mut c_void) -> Result<Region, CuResult> {
    let region = runtime()?.regions.find(address as u64).ok_or(CuResult::INVALID_VALUE)?;
    if region.is_host() { Ok(region) } else { Err(CuResult::INVALID_VALUE) }
}

driver_api! {
    /// Allocates host memory.
    fn cuMemAllocHost_v2(address, bytes) {
        current()?;
        if address.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        put(address, allocate(bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)?)
    }

    /// Allocates host memory, with flags.
    fn cuMemHostAlloc(address, bytes, flags) {
        current()?;
        let known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if address.is_null() || flags & !known != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        put(address, allocate(bytes, flags)?)
    }

    /// Frees host memory, after all work of the context.
    fn cuMemFreeHost(address) {
        let runtime = runtime()?;
        if address.is_null() {
            return Ok(());
        }
        let found = runtime.regions.find(address as u64);
        found.filter(|r| r.start == address as u64 && r.kind == Kind::HostOwned).ok_or(CuResult::INVALID_VALUE)?;
        capture::refuse_unsafe()?;
        current()?.finish()?;
        let region = runtime.regions.find(address as u64).ok_or(CuResult::INVALID_VALUE)?;
        withdraw_everywhere(region.start)?;
        let length = (region.bytes as usize).next_multiple_of(PAGE);
        // SAFETY: mapped by `allocate` with this length, and no longer in the table of regions.
        unsafe { libc::munmap(address, length) };
        Ok(())
    }

    /// Where the device finds host memory: at the same address.
    fn cuMemHostGetDevicePointer_v2(device, host, flags) {
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        host_region(host)?;
        put(device, host as u64)
    }

    /// Makes a program's own memory reachable for the device.
    fn cuMemHostRegister_v2(address, bytes, flags) {
        let context = current()?;
        let known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
        if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        if address.is_null() || bytes == 0 || flags & !known != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let file = shared_file(address as usize, bytes);
        if file.is_none() {
            permit_board(context.runtime);
        }
        let mut region = Region::new(address as u64, bytes as u64, Kind::Registered);
        region.flags = flags;
        region.ctx = context.home().id;
        match file {
            Some(file) => announce(&region, bytes as u64, &[file.as_fd()]),
            None => announce(&region, bytes as u64, &[]),
        }
    }

    /// Undoes `cuMemHostRegister_v2`, after all work of the context.
    fn cuMemHostUnregister(address) {
        let runtime = runtime()?;
        if address.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        let found = runtime.regions.find(address as u64);
        found
            .filter(|region| region.start == address as u64 && region.kind == Kind::Registered)
            .ok_or(CuResult::HOST_MEMORY_NOT_REGISTERED)?;
        capture::refuse_unsafe()?;
        current()?.finish()?;
        withdraw_everywhere(address as u64)
    }
}
