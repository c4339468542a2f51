//! Memory and events of other processes.

use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::current;
use super::event::Event;
use super::gpus::{runtime, runtime_at, visible, with_access};
use super::object::object;
use super::put;
use super::region::{Kind, Region};
use crate::shared::protocol::{Reply, Request};
use crate::shared::sys::pid;

const MEMORY: u64 = u64::from_le_bytes(*b"simipcm\0");
const EVENT: u64 = u64::from_le_bytes(*b"simipce\0");

/// Eight words in the 64 bytes of a handle.
fn pack(words: [u64; 8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn unpack(bytes: &[u8; 64]) -> [u64; 8] {
    let mut words = [0; 8];
    for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes([from[0], from[1], from[2], from[3], from[4], from[5], from[6], from[7]]);
    }
    words
}

driver_api! {
    /// The handle by which another process opens an allocation.
    fn cuIpcGetMemHandle(handle, address) {
        let runtime = runtime_at(address)?;
        let region = runtime.regions.find(address).ok_or(CuResult::INVALID_VALUE)?;
        if region.kind != Kind::Device || region.imported || region.pool != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let Reply::Ipc { phys, secret, offset, bytes } = runtime.call(&Request::IpcExport { address })? else {
            return Err(CuResult::UNKNOWN);
        };
        let words = [MEMORY, runtime.instance, phys, secret, offset, bytes, u64::from(pid()), 0];
        put(handle, CUipcMemHandle { reserved: pack(words) })
    }

    /// Opens another process's allocation. The GPU with it need not be one that this process sees.
    fn cuIpcOpenMemHandle_v2(address, handle, flags) {
        runtime()?;
        let context = current()?;
        let [kind, instance, phys, secret, offset, bytes, owner, _] = unpack(&handle.reserved);
        if address.is_null() || flags & !CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if kind != MEMORY {
            return Err(CuResult::INVALID_VALUE);
        }
        let runtime = with_access(instance)?;
        if owner == u64::from(pid()) {
            return Err(CuResult::INVALID_CONTEXT);
        }
        let request = Request::IpcOpen { phys, secret, offset, bytes };
        let Reply::Memory { address: at, extents } = runtime.call(&request)? else {
            return Err(CuResult::UNKNOWN);
        };
        let mut region = Region::new(at, bytes, Kind::Device);
        region.extents = extents;
        region.ctx = context.home().id;
        region.imported = true;
        runtime.regions.insert(region);
        put(address, at)
    }

    /// As `cuIpcOpenMemHandle_v2`.
    fn cuIpcOpenMemHandle(address, handle, flags) {
        cuIpcOpenMemHandle_v2(address, handle, flags).ok()
    }

    /// Closes another process's allocation, after all work of the context.
    fn cuIpcCloseMemHandle(address) {
        let runtime = runtime_at(address)?;
        let opened = |region: &Region| region.imported && region.ctx != 0;
        runtime.regions.find(address).filter(opened).ok_or(CuResult::INVALID_VALUE)?;
        current()?.synchronize()?;
        runtime.regions.remove(address, opened).ok_or(CuResult::INVALID_VALUE)?;
        runtime.call(&Request::Free { address }).map(drop)
    }

    /// The handle by which another process opens an event.
    fn cuIpcGetEventHandle(handle, event) {
        runtime()?;
        let event: &'static Event = object(event.0)?;
        let runtime = event.runtime();
        if event.flags.load(Ordering::Relaxed) & CU_EVENT_INTERPROCESS == 0 {
            return Err(CuResult::INVALID_HANDLE);
        }
        let (slot, secret) = (event.slot.load(Ordering::Relaxed), event.secret.load(Ordering::Relaxed));
        let words = [EVENT, runtime.instance, u64::from(slot), secret, event.base(), u64::from(pid()), 0, 0];
        put(handle, CUipcEventHandle { reserved: pack(words) })
    }

    /// Opens another process's event.
    fn cuIpcOpenEventHandle(event, handle) {
        let context = current()?;
        let [kind, instance, slot, secret, base, owner, _, _] = unpack(&handle.reserved);
        let slot = u32::try_from(slot).map_err(|_| CuResult::INVALID_VALUE)?;
        // The board that it belongs to need not be the current context's.
        let runtime = visible().iter().copied().find(|runtime| runtime.instance == instance);
        let runtime = runtime.ok_or(CuResult::INVALID_VALUE)?;
        if event.is_null() || kind != EVENT {
            return Err(CuResult::INVALID_VALUE);
        }
        if owner == u64::from(pid()) {
            return Err(CuResult::INVALID_CONTEXT);
        }
        runtime.call(&Request::EventOpen { event: slot, secret })?;
        let flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
        put(event, Event::adopt(runtime, context, slot, secret, base, flags).handle())
    }
}
