//! Launches of low priority, which wait until no lane is closed.

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::types::{CU_STREAM_WAIT_VALUE_AND, CUstreamBatchMemOpParams};
use partita_ledger::{GATE_LANES, OPEN};

use crate::account::tenant::Tenant;
use crate::driver::memory_ops;
use crate::driver::stream::key_of;
use crate::gate::lanes::Gate;

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
        *wait = memory_ops::wait(word(lane)?, OPEN, CU_STREAM_WAIT_VALUE_AND);
        count += 1;
    }
    Ok((count, waits))
}

/// Runs a launch of low priority: behind a wait for every lane, if it begins a unit.
pub fn launch(
    gate: &Gate,
    tenant: &Tenant,
    stream: *mut c_void,
    is_graph: bool,
    launch: impl FnOnce() -> CuResult,
) -> CuResult {
    let key = key_of(stream.addr(), || tenant.driver().current_context());
    let claimed = gate.page.claimed();
    if claimed != 0
        && gate.paces.begins_unit(key, closed(gate, claimed), is_graph)
        && let Err(code) = wait_for_others(gate, claimed, stream)
    {
        gate.paces.end_unit(key);
        return gate.refuse(code);
    }
    // A graph's length says nothing of one launch.
    if is_graph { launch() } else { gate.paces.measured(key, stream, launch) }
}

/// What tells the lanes of a set that are closed now, each by what it holds, from others and
/// from the same at another time; 0 if none is.
fn closed(gate: &Gate, claimed: u64) -> u32 {
    let states = lanes_of(claimed).map(|lane| (lane as u32, gate.page.state(lane)));
    let closed = states.filter(|(_, state)| state & OPEN == 0);
    closed.fold(0, |all, (lane, state)| (all ^ state.rotate_left(lane) ^ lane).wrapping_mul(0x9e37_79b1) | 1)
}

/// Has the stream wait until none of the lanes is closed.
fn wait_for_others(gate: &Gate, lanes: u64, stream: *mut c_void) -> Result<(), CuResult> {
    gate.watch()?;
    let (count, mut waits) = waits(lanes, |lane| gate.word(lane))?;
    // SAFETY: words that stay mapped.
    unsafe { gate.memory.put(stream, &mut waits[..count]) }
}
