//! Launches of low priority, which wait until no lane is closed.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::{
    CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_WAIT_VALUE_AND, CUdeviceptr, CUstreamBatchMemOpParams,
};
use partita_ledger::{GATE_LANES, OPEN};

use super::Gate;
use crate::real;
use crate::stream::key_of;
use crate::tenant::Tenant;

/// `cuStreamBatchMemOp_v2`.
pub type Batch = unsafe extern "C" fn(*mut c_void, c_uint, *mut CUstreamBatchMemOpParams, c_uint) -> CuResult;

/// The call that puts several waits into a stream, if the driver has it. They cost the GPU about 1
/// µs each so, and 2 µs one by one.
pub fn batch() -> Option<Batch> {
    let address = real::symbol(c"cuStreamBatchMemOp_v2");
    // SAFETY: the prototype of that name in cuda.h.
    (!address.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Batch>(address) })
}

/// The lanes of a set of bits.
pub fn lanes_of(lanes: u64) -> impl Iterator<Item = usize> {
    (0..GATE_LANES).filter(move |lane| lanes >> lane & 1 != 0)
}

/// The waits for the words of lanes: how many, and as many at the beginning of an array.
pub fn waits(
    lanes: u64,
    word: impl Fn(usize) -> Result<u64, CuResult>,
) -> Result<(usize, [CUstreamBatchMemOpParams; GATE_LANES]), CuResult> {
    let mut waits = [CUstreamBatchMemOpParams::default(); GATE_LANES];
    let mut count = 0;
    for (wait, lane) in waits.iter_mut().zip(lanes_of(lanes)) {
        *wait = CUstreamBatchMemOpParams {
            operation: CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address: word(lane)? as CUdeviceptr,
            value: OPEN.into(),
            flags: CU_STREAM_WAIT_VALUE_AND,
            ..CUstreamBatchMemOpParams::default()
        };
        count += 1;
    }
    Ok((count, waits))
}

impl Gate {
    /// Runs a launch of low priority: behind a wait for every lane, if it begins a unit.
    pub(super) fn launch_low(
        &self,
        tenant: &Tenant,
        stream: *mut c_void,
        is_graph: bool,
        launch: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let key = key_of(stream.addr(), || tenant.driver().current_context());
        let claimed = self.page.claimed();
        if claimed != 0
            && self.paces.begins_unit(key, self.closed(claimed), is_graph)
            && let Err(code) = self.wait_for_others(claimed, stream)
        {
            self.paces.end_unit(key);
            return self.refuse(code);
        }
        // A graph's length says nothing of one launch.
        if is_graph { launch() } else { self.paces.measured(key, stream, launch) }
    }

    /// What tells the lanes of a set that are closed now, each by what it holds, from others and
    /// from the same at another time; 0 if none is.
    fn closed(&self, claimed: u64) -> u32 {
        let states = lanes_of(claimed).map(|lane| (lane as u32, self.page.state(lane)));
        let closed = states.filter(|(_, state)| state & OPEN == 0);
        closed.fold(0, |all, (lane, state)| {
            (all ^ state.rotate_left(lane) ^ lane).wrapping_mul(0x9e37_79b1) | 1
        })
    }

    /// Has the stream wait until none of the lanes is closed.
    fn wait_for_others(&self, lanes: u64, stream: *mut c_void) -> Result<(), CuResult> {
        self.watch()?;
        let (count, mut waits) = waits(lanes, |lane| self.word(lane))?;
        if let Some(batch) = self.batch
            && !self.batch_fails.load(Ordering::Relaxed)
        {
            // SAFETY: the program's stream, as many operations as said, and words that stay mapped.
            if unsafe { batch(stream, count as c_uint, waits.as_mut_ptr(), 0) }.is_ok() {
                return Ok(());
            }
        }
        for wait in &waits[..count] {
            // SAFETY: the program's stream, and a word that stays mapped.
            unsafe { (self.calls.wait)(stream, wait.address, OPEN, CU_STREAM_WAIT_VALUE_AND) }.ok()?;
        }
        // They can be had one by one alone.
        self.batch_fails.store(true, Ordering::Relaxed);
        Ok(())
    }
}
