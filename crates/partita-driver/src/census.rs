//! Which SMs a launch's blocks ran on, as the blocks report it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use partita_abi::kernels;

use crate::error::Error;
use crate::gpu::{Buffer, Gpu, Grid, KERNEL_DEADLINE_MS, Place};

/// The record of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRecord {
    /// The block's linear number.
    pub block: u32,
    /// `%smid`: the SM, in logical numbering; renumbered from 0 under MPS.
    pub sm: u32,
    /// `%globaltimer` at its start, nanoseconds.
    pub start_ns: u64,
    /// `%globaltimer` at its end, nanoseconds.
    pub stop_ns: u64,
}

/// Bytes that one block of `partita_census` writes.
pub(crate) const RECORD_BYTES: usize = 32;

/// A census that can run many times without allocating.
pub struct Census<'g, 'a> {
    gpu: &'g Gpu<'a>,
    records: Buffer<'a>,
    grid: Grid,
    duration_ns: u64,
    place: Place<'g>,
}

impl<'g, 'a> Census<'g, 'a> {
    /// Prepares a census of `grid`, whose blocks each spin for `duration_ns`, so that all start
    /// before the first one ends.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(gpu: &'g Gpu<'a>, grid: Grid, duration_ns: u64) -> Result<Self, Error> {
        Self::at(gpu, gpu.place(gpu.stream()), grid, duration_ns)
    }

    /// As [`Census::new`], at a place.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn at(gpu: &'g Gpu<'a>, place: Place<'g>, grid: Grid, duration_ns: u64) -> Result<Self, Error> {
        let records = gpu.alloc(grid.blocks as usize * RECORD_BYTES)?;
        Ok(Self { gpu, records, grid, duration_ns, place })
    }

    /// Launches it without waiting.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn launch(&self) -> Result<(), Error> {
        // SAFETY: the kernel takes the address of a record for each block and a duration; the
        // buffer lives as long as `self`.
        let mut launch = unsafe {
            let arguments = [self.records.address(), self.duration_ns];
            self.gpu.prepare_at(self.place, kernels::CENSUS, self.grid, &arguments)?
        };
        launch.launch()
    }

    /// The records of the last launch, in the order of blocks.
    ///
    /// # Errors
    /// Those of the driver; [`Error::Disproved`] if a block left no record.
    pub fn records(&self) -> Result<Vec<BlockRecord>, Error> {
        read_records(&self.records)
    }

    /// Runs it and returns the SMs that blocks ran on.
    ///
    /// # Errors
    /// Those of the driver; [`Error::Hang`]; [`Error::Disproved`] if a block left no record.
    pub fn sms(&self) -> Result<BTreeSet<u32>, Error> {
        self.records.fill(0)?;
        self.launch()?;
        self.gpu.wait_on(self.place.stream, "a census", KERNEL_DEADLINE_MS)?;
        Ok(self.records()?.into_iter().map(|record| record.sm).collect())
    }
}

/// The records that blocks wrote into a buffer.
///
/// # Errors
/// Those of the driver; [`Error::Disproved`] if a block left no record.
pub(crate) fn read_records(buffer: &Buffer<'_>) -> Result<Vec<BlockRecord>, Error> {
    let bytes = buffer.read()?;
    let records = bytes.chunks_exact(RECORD_BYTES).enumerate();
    records.map(|(index, record)| read_record(index, record)).collect()
}

/// What the block of this number wrote.
///
/// # Errors
/// [`Error::Disproved`] if it left no record.
pub(crate) fn read_record(index: usize, record: &[u8]) -> Result<BlockRecord, Error> {
    let word = |at: usize| {
        let mut value = [0; 8];
        value.copy_from_slice(&record[8 * at..8 * at + 8]);
        u64::from_le_bytes(value)
    };
    if word(3) != index as u64 + 1 {
        return Err(Error::Disproved(alloc::format!("block {index} of a census left no record")));
    }
    Ok(BlockRecord { block: index as u32, sm: word(0) as u32, start_ns: word(1), stop_ns: word(2) })
}
