//! The token bucket of this process on a GPU (`--time-policy tokens`): launches pay for their
//! blocks and sleep below zero, and the hook's thread refills the bucket
//! ([`partita_core::time::tokens`]).
//!
//! As in HAMi-core, each process has a bucket, and the utilization is that of all processes of the
//! tenant. Unlike there, each GPU has one, and a GPU whose utilization NVML does not report is
//! refused instead of left without a limit.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_uint};
use core::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use partita_abi::CuResult;
use partita_core::time::Policy;
use partita_core::time::tokens::{REFILL_NS, Refill, SLEEP_NS, is_limit, spend};
use partita_ledger::mutex::Mutex;
use partita_ledger::{Limits, USAGE_FILE_NAME, UsageView};

use crate::account::gpu::Gpu;
use crate::driver::calls::calls;
use crate::sys::clock::sleep_ns;
use crate::sys::{report, watcher};
use crate::time::utilization::Utilization;

/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const THREADS_PER_SM: c_uint = 39;
/// Refills without a sample, although work is in flight, until a line says so: six seconds.
const UNKNOWN_MAX: u32 = 50;

calls! {
    /// Entry points for the size of the bucket.
    struct TokenCalls;
    device = cuDeviceGet;
    attribute = cuDeviceGetAttribute;
}

/// The token bucket of this process on a GPU.
pub struct Bucket {
    balance: AtomicI64,
    /// Null before a tenant of this law uses it.
    utilization: AtomicPtr<Utilization>,
    watcher: Mutex<Watcher>,
}

/// The watcher's part.
struct Watcher {
    refill: Option<Refill>,
    refilled_ns: u64,
    unknown: u32,
}

impl Bucket {
    /// An empty bucket: the first launch passes and overdraws.
    pub fn new() -> Self {
        Self {
            balance: AtomicI64::new(0),
            utilization: AtomicPtr::new(core::ptr::null_mut()),
            watcher: Mutex::new(Watcher { refill: None, refilled_ns: 0, unknown: 0 }),
        }
    }

    fn utilization(&self) -> Option<&'static Utilization> {
        // SAFETY: null, or leaked by prepare().
        unsafe { self.utilization.load(Ordering::Acquire).as_ref() }
    }

    /// Sees to it that the bucket can be refilled on this GPU, the process's with this index.
    ///
    /// # Errors
    /// Why it cannot, with the remedy.
    pub fn prepare(&self, index: u8, limits: &Limits) -> Result<(), String> {
        if self.utilization().is_some() {
            return Ok(());
        }
        let refused = |reason: String| format!("--time-policy tokens: {reason}; use --time-policy hard");
        let threads = threads_per_sm(index).map_err(refused)?;
        let utilization = Utilization::of(&limits.gpu_uuid).map_err(refused)?;
        let mut watcher = self.watcher.lock();
        if watcher.refill.is_none() {
            watcher.refill = Some(Refill::new(limits.tpc_count.saturating_mul(limits.sms_per_tpc), threads));
            self.utilization.store(Box::leak(Box::new(utilization)), Ordering::Release);
        }
        Ok(())
    }

    /// Pays for a launch of so many blocks, once the bucket has tokens. `applies`: whether the law
    /// still does.
    ///
    /// # Errors
    /// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` if the bucket cannot be refilled here.
    #[cold]
    pub fn pay(&self, gpu: &Gpu, blocks: u64, applies: impl Fn() -> bool) -> Result<(), CuResult> {
        if self.utilization().is_none() {
            let limits = gpu.limits_now().ok_or(CuResult::LAUNCH_OUT_OF_RESOURCES)?;
            self.prepare(gpu.index, &limits).map_err(|reason| {
                report::once!("{reason}; until then its launches are refused");
                CuResult::LAUNCH_OUT_OF_RESOURCES
            })?;
        }
        // The thread refills the bucket from the first launch on.
        watcher::RELEASES.start(false)?;
        while applies() {
            let before = self.balance.load(Ordering::Relaxed);
            match spend(before, blocks) {
                None => sleep_ns(SLEEP_NS),
                Some(after) => {
                    let paid =
                        self.balance.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
                    if paid.is_ok() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The watcher's look: refills the bucket when it is time, and returns in how many nanoseconds
    /// to look again; `None` under another law. `directory` is the tenant's, and `has_work` whether
    /// this process has work in flight.
    pub fn look(&self, directory: &CStr, has_work: bool, gpu: &Gpu, now_ns: u64) -> Option<u64> {
        let limits = gpu.limits_now()?;
        let utilization = self.utilization()?;
        let percent = limits.time_permille / 10;
        if limits.time_policy() != Policy::Tokens || !is_limit(percent) {
            return None;
        }
        let mut watcher = self.watcher.lock();
        let passed_ns = now_ns.saturating_sub(watcher.refilled_ns);
        if passed_ns < REFILL_NS {
            return Some(REFILL_NS - passed_ns);
        }
        watcher.refilled_ns = now_ns;
        let mut processes = None;
        let sampled = utilization.percent(|pid| {
            pid == this_process() || processes.get_or_insert_with(|| living(directory)).contains(&pid)
        });
        let used = match sampled {
            Ok(Some(used)) => used,
            // It runs nothing.
            Ok(None) if !has_work => 0,
            // NVML has no sample yet, or cannot see this process. More tokens would be no limit.
            Ok(None) | Err(_) => {
                watcher.unknown = watcher.unknown.saturating_add(1);
                if watcher.unknown > UNKNOWN_MAX {
                    report::once!(
                        "NVML reports no utilization of this process, so that its token bucket is not refilled; \
                         use --time-policy hard, or a PID namespace that NVML sees"
                    );
                }
                return Some(REFILL_NS);
            }
        };
        watcher.unknown = 0;
        if let Some(refill) = &mut watcher.refill
            && refill.adapt(percent, used, self.balance.load(Ordering::Relaxed))
        {
            let refill = *refill;
            let _ = self
                .balance
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |balance| Some(refill.refilled(balance)));
        }
        Some(REFILL_NS)
    }
}

fn this_process() -> u32 {
    // SAFETY: a plain system call.
    unsafe { libc::getpid() }.cast_unsigned()
}

/// The living processes of the tenant in this directory.
fn living(directory: &CStr) -> Vec<u32> {
    let file = CString::new([directory.to_bytes(), b"/", USAGE_FILE_NAME.to_bytes()].concat()).ok();
    let Some(view) = file.and_then(|file| UsageView::open(&file).ok()) else { return Vec::new() };
    let living = view.slots().filter_map(Result::ok).filter(|slot| slot.live);
    living.map(|slot| slot.pid.cast_unsigned()).collect()
}

fn threads_per_sm(index: u8) -> Result<u32, String> {
    let calls =
        TokenCalls::resolve().map_err(|name| format!("libcuda exports no {}", name.to_string_lossy()))?;
    let (mut device, mut threads) = (0, 0);
    // SAFETY: valid pointers; the driver checks the ordinal.
    let answer = unsafe {
        match (calls.device)(&mut device, index.into()) {
            CuResult::SUCCESS => (calls.attribute)(&mut threads, THREADS_PER_SM, device),
            refused => refused,
        }
    };
    match (answer.ok(), u32::try_from(threads)) {
        (Ok(()), Ok(threads @ 1..)) => Ok(threads),
        _ => Err(format!("the driver does not report the threads of an SM ({answer})")),
    }
}
