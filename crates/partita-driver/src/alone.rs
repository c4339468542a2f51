//! Whether other work runs on this process's SMs.
//!
//! A block that asks for all shared memory of an SM starts only where no other block is: also a
//! block that uses none has some of it reserved. So if a grid of one such block for each SM is
//! resident at one moment, each of these SMs was empty but for it.
//!
//! Such a grid also gets in between two kernels of a queue, because it is older than the later
//! ones. But then it has waited for the kernels that ran, as the times of events around it show.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use core::ffi::c_void;

use partita_abi::attribute::{
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
};
use partita_abi::kernels;

use crate::census::{BlockRecord, RECORD_BYTES, read_records};
use crate::error::Error;
use crate::gpu::{Buffer, Gpu, Grid};

/// How long each block stays, so that all of them meet.
const STAY_NS: u64 = 500_000;
/// How much longer than that a grid may take that waits for nothing, in nanoseconds.
const START_NS_MAX: u64 = 300_000;

/// Looks whether the SMs that this process may use are free of other work.
pub struct Alone<'g, 'a> {
    gpu: &'g Gpu<'a>,
    records: Buffer<'a>,
    sms: u32,
    shared_bytes: u32,
    around: [*mut c_void; 2],
}

impl<'g, 'a> Alone<'g, 'a> {
    /// For a process whose launches reach `sms` SMs.
    ///
    /// # Errors
    /// [`Error::Refused`] where a block with all shared memory leaves room for another one, as on
    /// GPUs before Ampere; those of the driver.
    pub fn new(gpu: &'g Gpu<'a>, sms: u32) -> Result<Self, Error> {
        let of_device = |number| {
            let mut value = 0;
            // SAFETY: a valid pointer and device.
            unsafe { gpu.cuda().device_get_attribute(&mut value, number, gpu.device())? };
            Ok::<_, Error>(u32::try_from(value).unwrap_or(0))
        };
        let shared_bytes = of_device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let reserved = of_device(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?;
        let whole = of_device(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        if reserved == 0 || shared_bytes + 2 * reserved <= whole {
            return Err(Error::Refused("on this GPU no block keeps others from its SM".to_string()));
        }
        let mut around = [core::ptr::null_mut(); 2];
        for event in &mut around {
            // SAFETY: a valid pointer; 0 is an event that takes times.
            unsafe { gpu.cuda().event_create(event, 0)? };
        }
        let records = gpu.alloc(sms as usize * RECORD_BYTES)?;
        Ok(Self { gpu, records, sms, shared_bytes, around })
    }

    /// Whether all of the SMs are free now. A launch that never starts keeps this waiting up to the
    /// deadline, and stays in flight.
    ///
    /// # Errors
    /// [`Error::Hang`] at the deadline; those of the driver.
    pub fn look(&self, deadline_ms: u64) -> Result<bool, Error> {
        self.records.fill(0)?;
        let grid = Grid { blocks: self.sms, threads: 32, cluster_blocks: 1 };
        let arguments = [self.records.address(), STAY_NS];
        // SAFETY: the kernel takes the address of a record for each block and a duration; the
        // buffer lives as long as `self`.
        let launch = unsafe { self.gpu.prepare(kernels::CENSUS, grid, &arguments)? };
        let mut launch = launch.with_shared(self.shared_bytes)?;
        let [begin, end] = self.around;
        self.record(begin)?;
        launch.launch()?;
        self.record(end)?;
        self.gpu.wait("a look for other work", deadline_ms)?;
        let mut took_ms = 0.0;
        // SAFETY: a valid pointer, and events that were recorded.
        unsafe { self.gpu.cuda().event_elapsed_time(&mut took_ms, begin, end)? };
        let has_waited = f64::from(took_ms) * 1e6 > (STAY_NS + START_NS_MAX) as f64;
        Ok(!has_waited && were_together(&read_records(&self.records)?))
    }

    fn record(&self, event: *mut c_void) -> Result<(), Error> {
        // SAFETY: a live event and stream.
        unsafe { self.gpu.cuda().event_record(event, self.gpu.stream().handle()) }
    }
}

/// Whether all blocks were resident at one moment, each on an SM of its own.
fn were_together(records: &[BlockRecord]) -> bool {
    let sms: BTreeSet<u32> = records.iter().map(|record| record.sm).collect();
    let last_start = records.iter().map(|record| record.start_ns).max();
    let first_stop = records.iter().map(|record| record.stop_ns).min();
    sms.len() == records.len() && last_start < first_stop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_together_if_they_share_a_moment_and_no_sm() {
        let record = |sm, start_ns, stop_ns| BlockRecord { block: sm, sm, start_ns, stop_ns };
        assert!(were_together(&[record(0, 10, 20), record(1, 15, 25)]));
        assert!(!were_together(&[record(0, 10, 20), record(1, 20, 30)]), "one after the other");
        assert!(!were_together(&[record(0, 10, 20), record(0, 15, 25)]), "on one SM");
        assert!(!were_together(&[]));
    }
}
