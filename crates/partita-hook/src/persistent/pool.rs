//! Memory in which launches count, and the tenant's set as the GPU sees it.
//!
//! Each context has its own. A launch takes a piece of device memory with a word in host memory:
//! the last block of the launch clears the piece and sets the word, so no event and no stream is
//! needed to know that another launch may have it. A launch that is captured keeps its piece.

use alloc::vec::Vec;
use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use partita_abi::CuResult;
use partita_ledger::mutex::Mutex;
use partita_ptx::persistent::{CONTROL_BYTES, SET_BYTES, set_bytes};

use crate::account::gpu::Gpu;
use crate::account::tenant::Tenant;
use crate::driver::calls::{Kept, calls};
use crate::driver::{capture, quiet};
use crate::sys::fork::in_child;
use crate::sys::{report, watcher};

/// Pieces that are made at once.
const PIECES: usize = 256;
/// Between two looks at the limits, in nanoseconds.
const LOOK_NS: u64 = 5_000_000;
/// `CU_MEMHOSTALLOC_PORTABLE` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const HOST_FLAGS: c_uint = 1 | 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

calls! {
    /// Entry points of the pool.
    struct PoolCalls;
    allocate = cuMemAlloc_v2;
    allocate_host = cuMemHostAlloc;
    device_pointer = cuMemHostGetDevicePointer_v2;
    create_stream = cuStreamCreate;
    copy = cuMemcpyHtoDAsync_v2;
    synchronize = cuStreamSynchronize;
    push = cuCtxPushCurrent_v2;
    pop = cuCtxPopCurrent_v2;
}

fn calls() -> Result<&'static PoolCalls, CuResult> {
    static CALLS: Kept<PoolCalls> = Kept::new();
    CALLS.get(PoolCalls::resolve).ok_or(CuResult::NOT_SUPPORTED)
}

/// What a launch counts in.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its device memory.
    pub control: u64,
    /// The device address of the tenant's set.
    pub set: u64,
    /// The device address of the word that says that it may be used again.
    pub done: u64,
    /// The same word in this process: 1 if it may be used.
    free: *const AtomicU32,
}

impl Piece {
    /// Gives it back: the launch has failed.
    pub fn give_back(self) {
        // SAFETY: host memory of a pool, which is never freed while the process may launch.
        unsafe { &*self.free }.store(1, Ordering::Release);
    }
}

/// The memory of one context.
struct Pool {
    context: usize,
    /// [`Gpu::index`].
    gpu: u8,
    stream: *mut c_void,
    /// The set, on the device and where copies of it begin.
    set: u64,
    staged: *mut u8,
    /// The epoch of the limits that the set on the device has.
    epoch: Option<u64>,
    pieces: Vec<Piece>,
    /// Where the search for a free piece goes on.
    next: usize,
}

// SAFETY: the pointers are to host memory that every thread may use, under the lock or by atomic
// operations.
unsafe impl Send for Pool {}

static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

// The contexts are the parent's, and nothing of them is of use.
in_child! {
    POOLS.reset_after_fork();
    core::mem::forget(core::mem::take(&mut *POOLS.lock()));
}

/// A piece for a launch in the current context, with the set of this moment on the device.
///
/// # Errors
/// Those of the driver.
pub fn take(tenant: &Tenant, gpu: &Gpu) -> Result<Piece, CuResult> {
    let context = tenant.driver().current_context();
    if context == 0 {
        return Err(CuResult::INVALID_CONTEXT);
    }
    let mut pools = POOLS.lock();
    let at = match pools.iter().position(|pool| pool.context == context) {
        Some(at) => at,
        None => {
            watcher::COMMANDS.start(false)?;
            pools.push(capture::relaxed(|| Pool::new(context, gpu))?);
            pools.len() - 1
        }
    };
    let pool = &mut pools[at];
    pool.follow(gpu)?;
    pool.take()
}

/// Forgets a context that has ended, with its memory.
pub fn context_ended(context: usize) {
    POOLS.lock().retain(|pool| pool.context != context);
}

/// The thread's look: brings every set up to date. Returns in how many nanoseconds to look again.
pub fn look(tenant: &Tenant) -> Option<u64> {
    let behind = |pool: &Pool| tenant.gpu(pool.gpu).filter(|gpu| pool.epoch != Some(gpu.limits.epoch()));
    {
        let pools = POOLS.lock();
        if pools.iter().all(|pool| behind(pool).is_none()) {
            return (!pools.is_empty()).then_some(LOOK_NS);
        }
    }
    // A context that ends is not used meanwhile.
    let Some(_putting) = quiet::put() else { return Some(LOOK_NS) };
    let mut pools = POOLS.lock();
    for pool in pools.iter_mut() {
        let Some(gpu) = behind(pool) else { continue };
        let Ok(calls) = calls() else { continue };
        let mut context = core::ptr::null_mut();
        // SAFETY: a context that has not ended, and a valid pointer.
        let result = unsafe {
            match (calls.push)(pool.context as *mut c_void) {
                CuResult::SUCCESS => {
                    let result = pool.follow(gpu);
                    let _ = (calls.pop)(&mut context);
                    result
                }
                code => Err(code),
            }
        };
        if let Err(code) = result {
            report::once!(
                "the set of SMs on the GPU cannot be changed ({code}); kernels that run keep their SMs"
            );
        }
    }
    Some(LOOK_NS)
}

impl Pool {
    fn new(context: usize, gpu: &Gpu) -> Result<Self, CuResult> {
        let calls = calls()?;
        let mut stream = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        unsafe { (calls.create_stream)(&mut stream, NON_BLOCKING) }.ok()?;
        let set = device_memory(calls, SET_BYTES)?;
        let (staged, _) = host_memory(calls, SET_BYTES)?;
        Ok(Self { context, gpu: gpu.index, stream, set, staged, epoch: None, pieces: Vec::new(), next: 0 })
    }

    /// Copies bytes to the device, and waits for that.
    fn copy(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), CuResult> {
        let calls = calls()?;
        capture::relaxed(|| {
            // SAFETY: memory of the pool, as long as said.
            unsafe {
                (calls.copy)(to, from.cast(), bytes, self.stream).ok()?;
                (calls.synchronize)(self.stream).ok()
            }
        })
    }

    /// Brings the set up to date.
    fn follow(&mut self, gpu: &Gpu) -> Result<(), CuResult> {
        if self.epoch == Some(gpu.limits.epoch()) {
            return Ok(());
        }
        let (epoch, limits) = gpu.limits.load().map_err(|_| CuResult::LAUNCH_OUT_OF_RESOURCES)?;
        let is_in = |tpc: &u32| limits.set[*tpc as usize / 64] >> (tpc % 64) & 1 == 1;
        let sms = (0..limits.tpc_count.min(256))
            .filter(is_in)
            .flat_map(|tpc| tpc * limits.sms_per_tpc..(tpc + 1) * limits.sms_per_tpc);
        // Kernels only compare epochs; 0 is that of no set.
        let bytes = set_bytes((epoch as u32).wrapping_add(1).max(1), sms);
        // SAFETY: the pool's own memory of this length, which no copy reads: each is waited for.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.staged, SET_BYTES) };
        self.copy(self.set, self.staged, SET_BYTES)?;
        self.epoch = Some(epoch);
        Ok(())
    }

    fn take(&mut self) -> Result<Piece, CuResult> {
        let count = self.pieces.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            // SAFETY: host memory of the pool.
            let word = unsafe { &*self.pieces[at].free };
            if word.load(Ordering::Acquire) == 1 {
                word.store(0, Ordering::Relaxed);
                self.next = at + 1;
                return Ok(self.pieces[at]);
            }
        }
        self.next = count;
        capture::relaxed(|| self.grow())?;
        self.take()
    }

    fn grow(&mut self) -> Result<(), CuResult> {
        let calls = calls()?;
        let control = device_memory(calls, PIECES * CONTROL_BYTES)?;
        let (words, words_there) = host_memory(calls, PIECES * CONTROL_BYTES)?;
        // The words' memory is zero until it has been copied.
        // SAFETY: memory of this length.
        unsafe { words.write_bytes(0, PIECES * CONTROL_BYTES) };
        self.copy(control, words, PIECES * CONTROL_BYTES)?;
        for index in 0..PIECES {
            let free = words.wrapping_add(index * 4).cast::<AtomicU32>();
            let piece = Piece {
                control: control + (index * CONTROL_BYTES) as u64,
                set: self.set,
                done: words_there + index as u64 * 4,
                free,
            };
            piece.give_back();
            self.pieces.push(piece);
        }
        Ok(())
    }
}

fn device_memory(calls: &PoolCalls, bytes: usize) -> Result<u64, CuResult> {
    let mut address = 0;
    // SAFETY: a valid pointer.
    unsafe { (calls.allocate)(&mut address, bytes) }.ok()?;
    Ok(address)
}

/// Memory of the host that the GPU reaches: its addresses in this process and there.
fn host_memory(calls: &PoolCalls, bytes: usize) -> Result<(*mut u8, u64), CuResult> {
    let (mut host, mut device) = (core::ptr::null_mut(), 0);
    // SAFETY: valid pointers.
    unsafe {
        (calls.allocate_host)(&mut host, bytes, HOST_FLAGS).ok()?;
        (calls.device_pointer)(&mut device, host, 0).ok()?;
    }
    Ok((host.cast(), device))
}
