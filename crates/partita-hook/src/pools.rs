//! Memory pools: what a program frees into one stays charged while the driver keeps it.
//!
//! Freed stream-ordered memory goes back to its pool, and the pool to the device no earlier than at
//! the next synchronisation, and down to its release threshold only. Until then the device does not
//! have it, so the tenant keeps paying: the bytes become the pool's *idle* bytes. They are the
//! first that the pool's next allocations are paid from. They are credited when the driver says
//! that it has given them up, which it is asked after synchronisations and trims, when the program
//! asks how much is free, and before an allocation is refused: then every pool is trimmed first, as
//! the driver itself does when the device is full. A pool that the program destroys lives on until
//! then ([`destroy`]).
//!
//! Memory of graphs comes from a pool of the driver's own for each device, and is treated alike.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use partita_abi::CuResult;
use partita_abi::types::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUmemLocation,
};

use crate::account::{Account, Charge, Form, Gpu};
use crate::allocations::Kind;
use crate::driver::calls;
use crate::locate;
use crate::spill;
use crate::tenant::{self, Tenant};
use crate::{graph_memory, memory};

calls! {
    /// Entry points that tell of pools, complete from CUDA 11.4 on.
    struct PoolCalls;
    present = c"cuDeviceGetMemPool": fn(*mut *mut c_void, c_int);
    attribute = c"cuMemPoolGetAttribute": fn(*mut c_void, u32, *mut c_void);
    trim = c"cuMemPoolTrimTo": fn(*mut c_void, usize);
    graph_attribute = c"cuDeviceGetGraphMemAttribute": fn(c_int, u32, *mut c_void);
    graph_trim = c"cuDeviceGraphMemTrim": fn(c_int);
    free_async = c"cuMemFreeAsync": fn(u64, *mut c_void);
    default = c"cuDeviceGetDefaultMemPool": fn(*mut *mut c_void, c_int);
    set_present = c"cuDeviceSetMemPool": fn(c_int, *mut c_void);
    set_attribute = c"cuMemPoolSetAttribute": fn(*mut c_void, u32, *mut c_void);
    destroy = c"cuMemPoolDestroy": fn(*mut c_void);
}

/// Where stream-ordered memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A `CUmemoryPool`.
    Pool(u64),
    /// What a device, by ordinal, keeps for graphs.
    Graphs(u8),
}

/// What pools keep though nobody uses it.
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

    /// Notes that `bytes`, which are charged, are not in use any more.
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

    fn put(&mut self, source: Source, gpu: u8, bytes: u64) {
        if bytes > 0 {
            self.idle.get_or_insert_default().entry(source).or_insert((gpu, 0)).1 += bytes;
            ANY.store(true, Ordering::Release);
        }
    }

    /// Takes up to `bytes` of what is idle on that GPU.
    fn take(&mut self, source: Source, gpu: u8, bytes: u64) -> u64 {
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
    fn present(&mut self, gpu: u8) -> Option<u64> {
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
    fn reserved(&mut self, source: Source) -> Option<u64> {
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

    /// What the driver does not keep any more of the idle bytes of the sources that `which` picks,
    /// to be credited.
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
                // SAFETY: the driver still has it, and the program has no use of it any more.
                let _ = unsafe { (calls.destroy)(pool as *mut c_void) };
            }
        }
    }

    /// Does what destroying a pool does at once, and leaves the rest to [`Pools::destroy_empty`].
    /// `None` for what is the driver's to refuse.
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

impl Tenant {
    fn settle(&self, trim: bool, which: impl Fn(Source, u8) -> bool) -> bool {
        if !ANY.load(Ordering::Acquire) {
            return false;
        }
        let freed = self.pools().settle(trim, which);
        let bytes: u64 = freed.iter().map(|charge| charge.bytes).sum();
        freed.into_iter().for_each(|charge| self.credit(charge));
        bytes > 0
    }

    /// Has the process's pools on a GPU give back what they keep unused; whether any bytes were
    /// credited.
    pub fn reclaim(&self, gpu: &Gpu) -> bool {
        self.settle(true, |_, of| of == gpu.index)
    }

    /// Credits what the driver has given up of its own accord.
    pub fn look_after_pools(&self) {
        self.settle(false, |_, _| true);
    }
}

/// Credits what pools have given up at a synchronisation.
fn synchronized(result: CuResult) -> CuResult {
    if ANY.load(Ordering::Acquire)
        && result.is_ok()
        && let Some(tenant) = tenant::current()
    {
        tenant.look_after_pools();
    }
    result
}

/// Wraps the calls that synchronise with something named by one handle.
pub unsafe fn synchronize(
    real: unsafe extern "C" fn(*mut c_void) -> CuResult,
    what: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    synchronized(unsafe { real(what) })
}

/// Wraps `cuCtxSynchronize`.
pub unsafe fn synchronize_current(real: unsafe extern "C" fn() -> CuResult) -> CuResult {
    // SAFETY: nothing is passed.
    synchronized(unsafe { real() })
}

/// Wraps `cuMemPoolTrimTo`.
pub unsafe fn trim(
    real: unsafe extern "C" fn(*mut c_void, usize) -> CuResult,
    pool: *mut c_void,
    keep: usize,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    synchronized(unsafe { real(pool, keep) })
}

/// Wraps `cuDeviceGraphMemTrim`.
pub unsafe fn trim_graphs(real: unsafe extern "C" fn(c_int) -> CuResult, device: c_int) -> CuResult {
    // SAFETY: the caller's device, passed on.
    synchronized(unsafe { real(device) })
}

/// Wraps `cuMemPoolDestroy`. The driver returns at once and gives the memory back to the device
/// later: when the last allocation is freed and the frees have come in their streams. Nothing tells
/// of a pool that is gone. So a pool that has memory is kept, and destroyed when the driver says
/// that the memory is back.
pub unsafe fn destroy(real: unsafe extern "C" fn(*mut c_void) -> CuResult, pool: *mut c_void) -> CuResult {
    // SAFETY: the caller's handle, passed on.
    let destroy = || unsafe { real(pool) };
    let Some(tenant) = tenant::current() else { return destroy() };
    let mut pools = tenant.pools();
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
    freed.into_iter().for_each(|charge| tenant.credit(charge));
    result
}

fn present_changed(result: CuResult) -> CuResult {
    if result.is_ok()
        && let Some(tenant) = tenant::current()
    {
        tenant.pools().present = None;
    }
    result
}

/// Wraps `cuDeviceSetMemPool`.
pub unsafe fn set_present(
    real: unsafe extern "C" fn(c_int, *mut c_void) -> CuResult,
    device: c_int,
    pool: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    present_changed(unsafe { real(device, pool) })
}

/// Wraps `cuMemSetMemPool`.
pub unsafe fn set_present_of(
    real: unsafe extern "C" fn(*const CUmemLocation, u32, *mut c_void) -> CuResult,
    location: *const CUmemLocation,
    kind: u32,
    pool: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    present_changed(unsafe { real(location, kind, pool) })
}

/// An allocation from a pool.
struct Wanted<A, G, T> {
    /// The pool; the device's present one where the call names none.
    pool: Option<u64>,
    bytes: u64,
    stream: *mut c_void,
    allocate: A,
    given: G,
    /// Gives the program an address.
    give: T,
}

impl<A: Fn() -> CuResult, G: Fn() -> u64, T: Fn(u64)> Wanted<A, G, T> {
    fn charged(self) -> CuResult {
        let Some(tenant) = tenant::current() else {
            return if tenant::is_refused() { CuResult::NOT_INITIALIZED } else { (self.allocate)() };
        };
        let gpu = match locate::gpu_of_stream(tenant, self.stream) {
            Ok(gpu) => gpu,
            Err(code) => return code,
        };
        if tenant.driver().is_capturing(self.stream) {
            return graph_memory::captured(tenant, gpu, self.bytes, self.stream, self.allocate, self.given);
        }
        let result = match self.attempt(tenant, gpu) {
            CuResult::OUT_OF_MEMORY if tenant.reclaim(gpu) => self.attempt(tenant, gpu),
            result => result,
        };
        match result {
            CuResult::OUT_OF_MEMORY => {
                spill::allocate(tenant, gpu, self.bytes, Form::Device).map_or(result, |given| {
                    (self.give)(given);
                    CuResult::SUCCESS
                })
            }
            _ => result,
        }
    }

    /// Reserves what idle bytes do not pay, allocates, and pays for what the driver obtained though
    /// bytes were idle. One thread at a time, so that what the driver obtained is this call's.
    fn attempt(&self, tenant: &Tenant, gpu: &Gpu) -> CuResult {
        let mut pools = tenant.pools();
        let Some(pool) = self.pool.or_else(|| pools.present(gpu.index)) else {
            drop(pools);
            return memory::charged(Kind::Pointer, self.bytes, &self.allocate, &self.given);
        };
        let source = Source::Pool(pool);
        let idle = pools.take(source, gpu.index, self.bytes);
        let before = if idle > 0 { pools.reserved(source) } else { None };
        let fresh = self.bytes - idle;
        if !gpu.reserve(fresh) {
            pools.put(source, gpu.index, idle);
            return CuResult::OUT_OF_MEMORY;
        }
        let result = (self.allocate)();
        if result.is_err() {
            pools.put(source, gpu.index, idle);
            gpu.credit(fresh);
            return result;
        }
        if idle > 0 {
            let after = pools.reserved(source);
            let grown = before.zip(after).map_or(0, |(before, after)| after.saturating_sub(before));
            // As long as that is not more than was reserved, the idle bytes are what it reused.
            let unused = grown.saturating_sub(fresh).min(idle);
            let paid = gpu.reserve(unused);
            pools.put(source, gpu.index, if paid { unused } else { idle });
            if !paid {
                gpu.credit(fresh);
                if let Some(calls) = pools.calls() {
                    // SAFETY: what the driver has just given, on the stream that was given.
                    let _ = unsafe { (calls.free_async)((self.given)(), self.stream) };
                }
                return CuResult::OUT_OF_MEMORY;
            }
        }
        self.hold(tenant, gpu, pool, &mut pools)
    }

    /// Notes what was given. Where a pool lies, its first bytes tell: if that is not the stream's
    /// GPU, the charge moves, and the call is undone if that GPU's quota has no room for it.
    fn hold(&self, tenant: &Tenant, gpu: &Gpu, pool: u64, pools: &mut Pools) -> CuResult {
        let given = (self.given)();
        let there = match tenant.places() {
            Some(_) => locate::gpu_of_pointer(tenant, given).unwrap_or(gpu),
            None => gpu,
        };
        if there.index != gpu.index {
            gpu.credit(self.bytes);
            if !there.reserve(self.bytes) {
                tenant.driver().free(given);
                return CuResult::OUT_OF_MEMORY;
            }
        }
        let charge = Charge { gpu: there.index, bytes: self.bytes, account: Account::Pool(pool) };
        pools.hold(Source::Pool(pool), self.bytes);
        let bytes = || tenant.driver().range_of(given).map(|(_, bytes)| bytes);
        // A pool's memory ends with no context.
        let stale = tenant.allocations().insert(Kind::Pointer, given, charge, 0, bytes);
        if let Some(Charge { account: Account::Pool(former), bytes, .. }) = stale {
            pools.let_go(Source::Pool(former), bytes);
        }
        // The pools are locked, and what is stale came from one that has it no more.
        stale.into_iter().for_each(|stale| tenant.credit(Charge { account: Account::Own, ..stale }));
        CuResult::SUCCESS
    }
}

type Alloc = unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> CuResult;
type AllocFromPool = unsafe extern "C" fn(*mut u64, usize, *mut c_void, *mut c_void) -> CuResult;
type Free = unsafe extern "C" fn(u64, *mut c_void) -> CuResult;

/// Wraps `cuMemAllocAsync`.
pub unsafe fn alloc_async(real: Alloc, pointer: *mut u64, bytes: usize, stream: *mut c_void) -> CuResult {
    // SAFETY: the caller's arguments.
    let allocate = || unsafe { real(pointer, bytes, stream) };
    // SAFETY: on success the driver has written the pointer.
    let given = || unsafe { *pointer };
    // SAFETY: the caller's word that it can be written to.
    let give = |address| unsafe { *pointer = address };
    Wanted { pool: None, bytes: bytes as u64, stream, allocate, given, give }.charged()
}

/// Wraps `cuMemAllocFromPoolAsync`.
pub unsafe fn alloc_from_pool(
    real: AllocFromPool,
    pointer: *mut u64,
    bytes: usize,
    pool: *mut c_void,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments.
    let allocate = || unsafe { real(pointer, bytes, pool, stream) };
    // SAFETY: on success the driver has written the pointer.
    let given = || unsafe { *pointer };
    // SAFETY: the caller's word that it can be written to.
    let give = |address| unsafe { *pointer = address };
    Wanted { pool: Some(pool as u64), bytes: bytes as u64, stream, allocate, given, give }.charged()
}

/// Wraps `cuMemFreeAsync`. What a capture records frees nothing yet.
pub unsafe fn free_async(real: Free, pointer: u64, stream: *mut c_void) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let free = || unsafe { real(pointer, stream) };
    let Some(tenant) = tenant::current() else { return free() };
    if tenant.driver().is_capturing(stream) {
        return free();
    }
    spill::settle(tenant, pointer, stream);
    memory::released(Kind::Pointer, pointer, free)
}
