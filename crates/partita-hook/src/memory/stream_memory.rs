//! Stream-ordered memory: allocated from pools, and charged to their idle bytes first.

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::prototypes;

use crate::account::gpu::{Account, Charge, Form, Gpu};
use crate::account::locate;
use crate::account::tenant::{self, Tenant};
use crate::memory::allocations::{self, Kind};
use crate::memory::pools::{self, Pools, Source};
use crate::memory::{device, graph_memory, holdings, spill};

/// An allocation from a pool.
struct Wanted<A, G, T> {
    /// The pool; the device's present one if the call names none.
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
            CuResult::OUT_OF_MEMORY if pools::reclaim(tenant, gpu) => self.attempt(tenant, gpu),
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

    /// Reserves what the idle bytes do not cover, allocates, and charges what the driver allocated
    /// although bytes were idle. One thread at a time, so that the driver's allocation belongs to
    /// this call.
    fn attempt(&self, tenant: &Tenant, gpu: &Gpu) -> CuResult {
        let mut pools = pools::lock();
        let Some(pool) = self.pool.or_else(|| pools.present(gpu.index)) else {
            drop(pools);
            return device::charged(Kind::Pointer, self.bytes, &self.allocate, &self.given);
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
            // As long as that does not exceed the reservation, the driver reused the idle bytes.
            let unused = grown.saturating_sub(fresh).min(idle);
            let paid = gpu.reserve(unused);
            pools.put(source, gpu.index, if paid { unused } else { idle });
            if !paid {
                gpu.credit(fresh);
                pools.undo((self.given)(), self.stream);
                return CuResult::OUT_OF_MEMORY;
            }
        }
        self.hold(tenant, gpu, pool, &mut pools)
    }

    /// Records an allocation. The first bytes show the pool's GPU: if it is not the stream's, the
    /// charge moves, and the call is undone if that GPU's quota has no room for it.
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
        let stale = allocations::lock().insert(Kind::Pointer, given, charge, 0, bytes);
        if let Some(Charge { account: Account::Pool(former), bytes, .. }) = stale {
            pools.let_go(Source::Pool(former), bytes);
        }
        // The pools are locked, and the stale record came from one that no longer has it.
        stale
            .into_iter()
            .for_each(|stale| holdings::credit(tenant, Charge { account: Account::Own, ..stale }));
        CuResult::SUCCESS
    }
}

/// Wraps `cuMemAllocAsync`.
pub unsafe fn alloc_async(
    real: prototypes::cuMemAllocAsync,
    pointer: *mut u64,
    bytes: usize,
    stream: *mut c_void,
) -> CuResult {
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
    real: prototypes::cuMemAllocFromPoolAsync,
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

/// Wraps `cuMemFreeAsync`. A captured free frees nothing yet.
pub unsafe fn free_async(real: prototypes::cuMemFreeAsync, pointer: u64, stream: *mut c_void) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let free = || unsafe { real(pointer, stream) };
    let Some(tenant) = tenant::current() else { return free() };
    if tenant.driver().is_capturing(stream) {
        return free();
    }
    spill::settle(pointer, stream);
    device::released(Kind::Pointer, pointer, free)
}
