//! Checks that a stream's launches stay on their TPCs: each block of a test kernel reports its SM.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_void;

use partita_abi::{CuResult, attribute, kernels};
use partita_core::TpcSet;
use partita_driver::{Cuda, Error, now_ns};

use crate::board::{Device, number};
use crate::fault::Fault;
use crate::report;
use crate::state::State;

/// Bytes that each block of the census writes, and the offsets of its SM and its mark, in 8-byte
/// words.
const RECORD_BYTES: usize = 32;
const SM_AT: usize = 0;
const MARK_AT: usize = 3;
/// Long enough for blocks to cover every enabled SM before the first one ends.
const SPIN_NS: u64 = 20_000;
const THREADS: u32 = 1024;
/// Timeout. The census runs for microseconds, but on a shared GPU it waits for its turn.
const LIMIT_NS: u64 = 10_000_000_000;

/// Runs a kernel on the stream and checks that its blocks ran on TPCs from `low` to `high`,
/// exclusive.
///
/// # Errors
/// `ERANGE` if a block ran elsewhere; `ENOTSUP` under MPS, where no process sees the SMs of its
/// blocks; `ETIMEDOUT`; those of the driver.
///
/// # Safety
/// The handle is that of a live stream of this process's driver.
pub unsafe fn stream(handle: *mut c_void, low: i32, high: i32, echo: bool) -> Result<(), Fault> {
    if low < 0 || high <= low {
        return Err(Fault::new(
            libc::EINVAL,
            format!(
                "TPCs {low} to {high}, exclusive, are an empty \
            range"
            ),
        ));
    }
    let state = State::get()?;
    // SAFETY: the caller guarantees it.
    let (context, device) = unsafe { state.place_of(handle)? };
    let cuda = state.cuda();
    if number(cuda, device.handle, attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).unwrap_or(0) != 0 {
        return Err(Fault::new(
            libc::ENOTSUP,
            "under MPS, blocks do not see the device's SM numbers: check without MPS, or with `partita \
             prove`",
        ));
    }
    // A mask that this thread set for its next launch must not apply to this one.
    let launches = state.masks_launches().then(|| state.launches()).transpose()?;
    let next = launches.map(|launches| launches.set_next(None)).transpose()?.flatten();
    let ran = with_context(cuda, context, || tpcs_of_launch(cuda, device, handle));
    if let (Some(launches), Some(next)) = (launches, next) {
        launches.set_next(Some(&next))?;
    }
    let ran = ran?;
    let allowed = TpcSet::range(low as u16..high.min(TpcSet::CAPACITY as i32) as u16);
    if echo {
        report::write(
            format!("libsmctrl: stream {handle:?}: blocks ran on TPCs {ran}, allowed are {allowed}\n")
                .as_bytes(),
        );
    }
    if ran.is_subset(&allowed) {
        return Ok(());
    }
    Err(Fault::new(
        libc::ERANGE,
        format!("blocks of stream {handle:?} ran on TPCs {}, outside of {allowed}", ran - allowed),
    ))
}

/// Runs `work` with a context current on this thread, and restores the previous one.
fn with_context<T>(
    cuda: &Cuda,
    context: *mut c_void,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut former = core::ptr::null_mut();
    // SAFETY: a valid pointer; a stream's own context, which lives as long as the stream.
    unsafe {
        cuda.ctx_get_current(&mut former)?;
        if former != context {
            cuda.ctx_set_current(context)?;
        }
    }
    let result = work();
    if former != context {
        // SAFETY: the previous context.
        unsafe { cuda.ctx_set_current(former)? };
    }
    result
}

/// A module, and device memory; both are released on drop.
struct Resources<'a> {
    cuda: &'a Cuda,
    module: *mut c_void,
    memory: u64,
}

impl Drop for Resources<'_> {
    fn drop(&mut self) {
        // SAFETY: made below and released once; failure means that the context is gone, and both
        // with it.
        unsafe {
            if self.memory != 0 {
                let _ = self.cuda.mem_free(self.memory);
            }
            let _ = self.cuda.module_unload(self.module);
        }
    }
}

fn tpcs_of_launch(cuda: &Cuda, device: &Device, stream: *mut c_void) -> Result<TpcSet, Fault> {
    let per_tpc = device.sms_per_tpc()?;
    let blocks = device.sms * 4;
    let mut records = vec![0u8; blocks as usize * RECORD_BYTES];
    let mut resources = Resources { cuda, module: core::ptr::null_mut(), memory: 0 };
    let mut function = core::ptr::null_mut();
    // SAFETY: valid pointers and names; the kernel takes the address of a record for each block and
    // a duration; both stay alive until the launch has ended.
    unsafe {
        cuda.module_load_data(&mut resources.module, kernels::PTX_MODULE.as_ptr().cast())?;
        cuda.module_get_function(&mut function, resources.module, kernels::CENSUS.as_ptr())?;
        cuda.mem_alloc(&mut resources.memory, records.len())?;
        cuda.write(resources.memory, &records)?;
        let (mut out, mut duration_ns) = (resources.memory, SPIN_NS);
        let mut parameters = [(&raw mut out).cast::<c_void>(), (&raw mut duration_ns).cast::<c_void>()];
        let none = core::ptr::null_mut();
        cuda.launch_kernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters.as_mut_ptr(), none)?;
    }
    if let Err(fault) = wait(cuda, stream) {
        // The kernel may still run.
        core::mem::forget(resources);
        return Err(fault);
    }
    // SAFETY: both ranges are valid for that many bytes.
    unsafe { cuda.memcpy_to_host(records.as_mut_ptr().cast(), resources.memory, records.len())? };
    let words: Vec<u64> = records
        .chunks_exact(8)
        .map(|bytes| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .collect();
    let mut ran = TpcSet::EMPTY;
    for (block, record) in (1u64..).zip(words.chunks_exact(RECORD_BYTES / 8)) {
        let (Some(&sm), Some(&mark)) = (record.get(SM_AT), record.get(MARK_AT)) else { continue };
        let tpc = u8::try_from(sm / u64::from(per_tpc)).ok().filter(|_| mark == block);
        ran.insert(tpc.ok_or_else(|| {
            Fault::new(
                libc::EIO,
                format!(
                    "block {block} left an invalid \
            record"
                ),
            )
        })?);
    }
    Ok(ran)
}

fn wait(cuda: &Cuda, stream: *mut c_void) -> Result<(), Fault> {
    let until = now_ns() + LIMIT_NS;
    loop {
        // SAFETY: a live stream, as the caller promises.
        match unsafe { cuda.stream_query(stream) } {
            Ok(()) => return Ok(()),
            Err(Error::Call { code, .. }) if code == CuResult::NOT_READY => {}
            Err(error) => return Err(error.into()),
        }
        if now_ns() > until {
            return Err(
                Error::Hang { what: "the check of a stream", deadline_ms: LIMIT_NS / 1_000_000 }.into()
            );
        }
        // SAFETY: no pointers.
        unsafe { libc::usleep(50) };
    }
}
