//! Memory pools: memory that a program frees into one stays charged while the driver caches it.
//!
//! Freed stream-ordered memory returns to its pool, and from the pool to the device no earlier than
//! at the next synchronisation, and only down to its release threshold. Until then the device does
//! not have it, so the tenant is still charged: the bytes become the pool's *idle* bytes. The
//! pool's next allocations use them first. They are credited when the driver reports that it has
//! released them. The hook queries that after synchronisations and trims, when the program queries
//! free memory, and before an allocation is refused: then every pool is trimmed first, as the
//! driver itself does when the device is full. A pool that the program destroys lives until then
//! ([`destroy`]).
//!
//! Memory of graphs comes from a driver pool for each device, and is treated alike.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUmemLocation,
};
use partita_ledger::mutex::{Guard, Mutex};

use crate::account::gpu::{Charge, Gpu};
use crate::account::tenant::{self, Tenant};
use crate::driver::calls::calls;
use crate::sys::fork::{in_child, renew};

calls! {
    /// Entry points for pools, complete from CUDA 11.4 on.
    struct PoolCalls;
    present = cuDeviceGetMemPool;
    attribute = cuMemPoolGetAttribute;
    trim = cuMemPoolTrimTo;
    graph_attribute = cuDeviceGetGraphMemAttribute;
    graph_trim = cuDeviceGraphMemTrim;
    free_async = cuMemFreeAsync;
    default = cuDeviceGetDefaultMemPool;
    set_present = cuDeviceSetMemPool;
    set_attribute = cuMemPoolSetAttribute;
    destroy = cuMemPoolDestroy;
}

/// Where stream-ordered memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A `CUmemoryPool`.
    Pool(u64),
    /// A device's pool for graphs, by ordinal.
    Graphs(u8),
}

/// Unused memory in pools.
pub struct Pools {
    /// GPU and bytes; no entries of no bytes.
    idle: Option<HashMap<Source, (u8, u64)>>,
    /// Bytes in use.
    held: Option<HashMap<Source, u64>>,
    /// The pool that each device allocates from, once it was asked for.
    present: Option<HashMap<u8, u64>>,
    /// Pools that the program has destroyed while the device lacked some of their memory.
    ending: alloc::vec::Vec<u64>,
    calls: Option<PoolCalls>,
}

/// Whether there are idle bytes: synchronisations have nothing to look for otherwise.
static ANY: AtomicBool = AtomicBool::new(false);

static POOLS: Mutex<Pools> = Mutex::new(Pools::new());

// Forgets the parent's.
in_child! {
    renew(&POOLS, Pools::new());
}

/// The process's pools, locked.
pub fn lock() -> Guard<'static, Pools> {
    POOLS.lock()
}

impl Pools {
    /// None.
    pub const fn new() -> Self {
        Self { idle: None, held: None, present: None, ending: alloc::vec::Vec::new(), calls: None }
    }

    fn calls(&mut self) -> Option<&PoolCalls> {
        if self.calls.is_none() {
            self.calls = PoolCalls::resolve().ok();
        }
        self.calls.as_ref()
    }

    /// Notes that `bytes`, which are charged, are in use.
    pub fn hold(&mut self, source: Source, bytes: u64) {
        let held = self.held.get_or_insert_default().entry(source).or_default();
        *held = held.saturating_add(bytes);
    }

    /// Records that `bytes`, which are charged, are not in use any more.
    pub fn let_go(&mut self, source: Source, bytes: u64) {
        let held = self.held.get_or_insert_default();
        if let Some(left) = held.get_mut(&source) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                held.remove(&source);
            }
        }
    }

    /// Notes that `bytes`, which were in use and are charged, went back.
    pub fn give_back(&mut self, source: Source, gpu: u8, bytes: u64) {
        self.let_go(source, bytes);
        self.put(source, gpu, bytes);
    }

    /// Notes that `bytes`, which are charged, are idle.
    pub fn put(&mut self, source: Source, gpu: u8, bytes: u64) {
        if bytes > 0 {
            self.idle.get_or_insert_default().entry(source).or_insert((gpu, 0)).1 += bytes;
            ANY.store(true, Ordering::Release);
        }
    }

    /// Takes up to `bytes` of the idle bytes on that GPU.
    pub fn take(&mut self, source: Source, gpu: u8, bytes: u64) -> u64 {
        let idle = self.idle.get_or_insert_default();
        let Some((of, kept)) = idle.get_mut(&source) else { return 0 };
        if *of != gpu {
            return 0;
        }
        let taken = bytes.min(*kept);
        *kept -= taken;
        if *kept == 0 {
            idle.remove(&source);
        }
        taken
    }

    /// The pool that a device allocates from.
    pub fn present(&mut self, gpu: u8) -> Option<u64> {
        if let Some(&pool) = self.present.get_or_insert_default().get(&gpu) {
            return Some(pool);
        }
        let mut pool = core::ptr::null_mut();
        let calls = self.calls()?;
        // SAFETY: a valid pointer.
        unsafe { (calls.present)(&mut pool, c_int::from(gpu)) }.ok().ok()?;
        self.present.get_or_insert_default().insert(gpu, pool as u64);
        Some(pool as u64)
    }

    /// Bytes that the driver keeps for a source, in use or not.
    pub fn reserved(&mut self, source: Source) -> Option<u64> {
        let calls = self.calls()?;
        let mut value = 0u64;
        let to = (&raw mut value).cast::<c_void>();
        // SAFETY: room for the attributes, 64 bits wide; the driver checks the handles.
        unsafe {
            match source {
                Source::Pool(pool) => {
                    (calls.attribute)(pool as *mut c_void, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, to)
                }
                Source::Graphs(device) => {
                    (calls.graph_attribute)(device.into(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, to)
                }
            }
        }
        .ok()
        .ok()?;
        Some(value)
    }

    /// Frees what the driver has just allocated, in stream order.
    pub fn undo(&mut self, given: u64, stream: *mut c_void) {
        if let Some(calls) = self.calls() {
            // SAFETY: the driver's latest allocation, on its own stream.
            let _ = unsafe { (calls.free_async)(given, stream) };
        }
    }

    fn trim(&mut self, source: Source) {
        if let Some(calls) = self.calls() {
            // SAFETY: the driver checks the handles.
            let _ = unsafe {
                match source {
                    Source::Pool(pool) => (calls.trim)(pool as *mut c_void, 0),
                    Source::Graphs(device) => (calls.graph_trim)(device.into()),
                }
            };
        }
    }

    /// The idle bytes of the sources chosen by `which` that the driver has released, to be
    /// credited.
    fn settle(&mut self, trim: bool, which: impl Fn(Source, u8) -> bool) -> alloc::vec::Vec<Charge> {
        let chosen: alloc::vec::Vec<(Source, u8, u64)> = self
            .idle
            .get_or_insert_default()
            .iter()
            .map(|(&source, &(gpu, bytes))| (source, gpu, bytes))
            .filter(|&(source, gpu, _)| which(source, gpu))
            .collect();
        let mut freed = alloc::vec::Vec::new();
        for (source, gpu, bytes) in chosen {
            if trim {
                self.trim(source);
            }
            let held = self.held.get_or_insert_default().get(&source).copied().unwrap_or(0);
            // Where the driver does not say, the pool is gone.
            let kept = self.reserved(source).unwrap_or(0).saturating_sub(held).min(bytes);
            self.take(source, gpu, bytes - kept);
            freed.push(Charge::own(gpu, bytes - kept));
        }
        ANY.store(self.idle.as_ref().is_some_and(|idle| !idle.is_empty()), Ordering::Release);
        self.destroy_empty();
        freed
    }

    /// Whether bytes of a source are charged.
    fn is_charged(&self, source: Source) -> bool {
        self.idle.as_ref().is_some_and(|idle| idle.contains_key(&source))
            || self.held.as_ref().is_some_and(|held| held.contains_key(&source))
    }

    /// Destroys the pools that the program has destroyed, where all memory is back.
    fn destroy_empty(&mut self) {
        let ending = core::mem::take(&mut self.ending);
        let (full, empty): (alloc::vec::Vec<u64>, alloc::vec::Vec<u64>) =
            ending.into_iter().partition(|&pool| self.is_charged(Source::Pool(pool)));
        self.ending = full;
        if let Some(calls) = self.calls() {
            for pool in empty {
                // SAFETY: the driver still has it, and the program does not use it any more.
                let _ = unsafe { (calls.destroy)(pool as *mut c_void) };
            }
        }
    }

    /// Applies the immediate effects of destroying a pool, and leaves the rest to
    /// [`Pools::destroy_empty`]. `None` for a call that the driver must refuse.
    fn destroy_later(&mut self, pool: *mut c_void, devices: c_int) -> Option<()> {
        let calls = self.calls()?;
        for device in 0..devices {
            let (mut default, mut present) = (core::ptr::null_mut(), core::ptr::null_mut());
            // SAFETY: valid pointers, and pools that the driver has just named.
            unsafe {
                (calls.default)(&mut default, device).ok().ok()?;
                (calls.present)(&mut present, device).ok().ok()?;
                if pool == default {
                    return None;
                }
                if pool == present {
                    (calls.set_present)(device, default).ok().ok()?;
                }
            }
        }
        let mut nothing = 0u64;
        // SAFETY: a pool that the program has allocated from, and a number of 64 bits. Where it
        // fails, the pool keeps what is freed, and stays charged for it.
        let _ = unsafe {
            (calls.set_attribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut nothing).cast())
        };
        self.ending.push(pool as u64);
        Some(())
    }
}

fn settle(tenant: &Tenant, trim: bool, which: impl Fn(Source, u8) -> bool) -> bool {
    if !ANY.load(Ordering::Acquire) {
        return false;
    }
    let freed = lock().settle(trim, which);
    credit(tenant, &freed);
    freed.iter().any(|charge| charge.bytes > 0)
}

/// Credits released pool memory, which is charged to this process alone.
fn credit(tenant: &Tenant, freed: &[Charge]) {
    for charge in freed {
        tenant.gpu(charge.gpu).into_iter().for_each(|gpu| gpu.credit(charge.bytes));
    }
}

/// Makes the process's pools on a GPU release unused memory; returns whether any bytes were
/// credited.
pub fn reclaim(tenant: &Tenant, gpu: &Gpu) -> bool {
    settle(tenant, true, |_, of| of == gpu.index)
}

/// Credits memory that the driver has released without a call of the program.
pub fn look_after(tenant: &Tenant) {
    settle(tenant, false, |_, _| true);
}

/// Credits memory that pools have released at a synchronisation.
fn synchronized(result: CuResult) -> CuResult {
    if ANY.load(Ordering::Acquire)
        && result.is_ok()
        && let Some(tenant) = tenant::current()
    {
        look_after(tenant);
    }
    result
}

/// Wraps the calls that synchronise with something named by one handle.
pub unsafe fn synchronize(real: prototypes::cuCtxSynchronize_v2, what: *mut c_void) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    synchronized(unsafe { real(what) })
}

/// Wraps `cuCtxSynchronize`.
pub unsafe fn synchronize_current(real: prototypes::cuCtxSynchronize) -> CuResult {
    // SAFETY: nothing is passed.
    synchronized(unsafe { real() })
}

/// Wraps `cuMemPoolTrimTo`.
pub unsafe fn trim(real: prototypes::cuMemPoolTrimTo, pool: *mut c_void, keep: usize) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    synchronized(unsafe { real(pool, keep) })
}

/// Wraps `cuDeviceGraphMemTrim`.
pub unsafe fn trim_graphs(real: prototypes::cuDeviceGraphMemTrim, device: c_int) -> CuResult {
    // SAFETY: the caller's device, passed on.
    synchronized(unsafe { real(device) })
}

/// Wraps `cuMemPoolDestroy`. The driver returns at once and releases the memory to the device
/// later: when the last allocation is freed and the frees have come in their streams. A destroyed
/// pool cannot be queried. So a pool that has memory is kept, and destroyed when the driver reports
/// that the memory is released.
pub unsafe fn destroy(real: prototypes::cuMemPoolDestroy, pool: *mut c_void) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    let destroy = || unsafe { real(pool) };
    let Some(tenant) = tenant::current() else { return destroy() };
    let mut pools = lock();
    if pools.ending.contains(&(pool as u64)) {
        return CuResult::INVALID_VALUE;
    }
    let source = Source::Pool(pool as u64);
    let freed = pools.settle(true, |of, _| of == source);
    let devices = tenant.gpus().len() as c_int;
    let is_kept = pools.is_charged(source) && pools.destroy_later(pool, devices).is_some();
    let result = if is_kept { CuResult::SUCCESS } else { destroy() };
    if result.is_ok() {
        pools.present = None;
    }
    drop(pools);
    credit(tenant, &freed);
    result
}

fn present_changed(result: CuResult) -> CuResult {
    if result.is_ok() && tenant::current().is_some() {
        lock().present = None;
    }
    result
}

/// Wraps `cuDeviceSetMemPool`.
pub unsafe fn set_present(
    real: prototypes::cuDeviceSetMemPool,
    device: c_int,
    pool: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    present_changed(unsafe { real(device, pool) })
}

/// Wraps `cuMemSetMemPool`.
pub unsafe fn set_present_of(
    real: prototypes::cuMemSetMemPool,
    location: *const CUmemLocation,
    kind: u32,
    pool: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    present_changed(unsafe { real(location, kind, pool) })
}
