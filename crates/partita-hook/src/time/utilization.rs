//! The utilization of a GPU by the tenant, as NVML reports it.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use core::ffi::{c_uint, c_ulonglong};

use crate::driver::management::{self, Device, NvmlReturn};

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sample {
    pid: c_uint,
    time_us: c_ulonglong,
    sm_percent: c_uint,
    memory_percent: c_uint,
    encoder_percent: c_uint,
    decoder_percent: c_uint,
}

type GetSamples = unsafe extern "C" fn(Device, *mut Sample, *mut c_uint, since_us: c_ulonglong) -> NvmlReturn;

/// Room for the samples of so many processes.
const SAMPLES_MAX: usize = 1024;
/// How old a sample may be, in microseconds.
const SINCE_US: u64 = 1_000_000;

/// NVML's samples of one GPU.
pub struct Utilization {
    device: Device,
    get_samples: GetSamples,
}

// SAFETY: the handle is the library's, which any thread may call.
unsafe impl Send for Utilization {}
// SAFETY: as above.
unsafe impl Sync for Utilization {}

impl Utilization {
    /// Finds the GPU in NVML, and asks it once.
    ///
    /// # Errors
    /// Why NVML does not report the utilization of its processes.
    pub fn of(uuid: &[u8; 16]) -> Result<Self, String> {
        let device = management::device_of(uuid)
            .ok_or_else(|| String::from("libnvidia-ml.so.1 is missing, or does not list this GPU"))?;
        let found = management::symbol(c"nvmlDeviceGetProcessUtilization")
            .ok_or_else(|| String::from("libnvidia-ml.so.1 exports no nvmlDeviceGetProcessUtilization"))?;
        // SAFETY: the prototype of that name in nvml.h.
        let get_samples = unsafe { core::mem::transmute::<*mut core::ffi::c_void, GetSamples>(found) };
        let utilization = Self { device, get_samples };
        utilization.percent(|_| false).map(|_| utilization)
    }

    /// The utilization by the processes of the last second that `is_ours` accepts, in percent;
    /// `None` without a sample of any.
    ///
    /// # Errors
    /// Why NVML has no samples.
    pub fn percent(&self, mut is_ours: impl FnMut(u32) -> bool) -> Result<Option<u32>, String> {
        let mut samples = vec![Sample::default(); SAMPLES_MAX];
        let mut count = SAMPLES_MAX as c_uint;
        // SAFETY: room for as many samples as `count` says.
        let answer =
            unsafe { (self.get_samples)(self.device, samples.as_mut_ptr(), &mut count, now_us() - SINCE_US) };
        match answer {
            NvmlReturn::SUCCESS => {
                samples.truncate(count as usize);
                let ours = samples.iter().filter(|sample| is_ours(sample.pid));
                Ok(ours.map(|sample| sample.sm_percent).reduce(|sum, percent| sum.saturating_add(percent)))
            }
            // No process has run anything.
            NvmlReturn::NOT_FOUND => Ok(None),
            refused => Err(format!("nvmlDeviceGetProcessUtilization returns error {}", refused.number())),
        }
    }
}

/// The time since 1970, in microseconds.
fn now_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    (now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000).max(SINCE_US)
}
