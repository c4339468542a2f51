//! Whether other work runs on this process's SMs.
//!
//! A block that asks for all shared memory of an SM starts only where no other block is: also a
//! block that uses none has some of it reserved. So if a grid of one such block for each SM is
//! resident at one moment, each of these SMs was empty but for it.

use alloc::collections::BTreeSet;
use alloc::string::ToString;

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

/// Looks whether the SMs that this process may use are free of other work.
pub struct Alone<'g, 'a> {
    gpu: &'g Gpu<'a>,
    records: Buffer<'a>,
    sms: u32,
    shared_bytes: u32,
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
        Ok(Self { gpu, records: gpu.alloc(sms as usize * RECORD_BYTES)?, sms, shared_bytes })
    }

    /// Whether all of the SMs are free at one moment. A launch that never starts keeps this waiting
    /// up to the deadline, and stays in flight.
    ///
    /// # Errors
    /// [`Error::Hang`] at the deadline; those of the driver.
    pub fn look(&self, deadline_ms: u64) -> Result<bool, Error> {
        self.records.fill(0)?;
        let grid = Grid { blocks: self.sms, threads: 32, cluster_blocks: 1 };
        // SAFETY: the kernel takes the address of a record for each block and a duration; the
        // buffer lives as long as `self`.
        let launch = unsafe { self.gpu.prepare(kernels::CENSUS, grid, &[self.records.address(), STAY_NS])? };
        launch.with_shared(self.shared_bytes)?.launch()?;
        self.gpu.wait("a look for other work", deadline_ms)?;
        Ok(were_together(&read_records(&self.records)?))
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
