//! What a launch of a rewritten kernel reads and writes in memory.

use alloc::vec::Vec;

/// SMs that a set can name.
pub const SMS_MAX: u32 = 512;
/// Bytes of the parameter that a rewritten entry has more than the original, aligned to 8.
pub const TURN_BYTES: usize = 40;
/// The same for an entry whose blocks must have rows of whole warps, so that a launcher that knows
/// nothing but a function's parameters can tell.
pub const WHOLE_ROWS_TURN_BYTES: usize = 48;
/// Bytes of the device memory that one launch counts in. They are zero before the launch, and the
/// launch leaves them zero.
pub const CONTROL_BYTES: usize = 32;
/// Bytes of a set of SMs in device memory: its epoch in four bytes, four bytes of zeroes, and a bit
/// for each SM.
pub const SET_BYTES: usize = 8 + SMS_MAX as usize / 8;

/// The additional parameter of a rewritten entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Address of [`CONTROL_BYTES`] of device memory, aligned to 8, which no other launch uses at
    /// the same time.
    pub control: u64,
    /// Address of the set, [`SET_BYTES`] aligned to 8, which may change at any time.
    pub set: u64,
    /// The grid of the original kernel.
    pub grid: [u32; 3],
    /// Blocks of the launch: as many as the device holds at once.
    pub blocks: u32,
    /// Address of a word that the last block sets to 1 when the control memory may be used again;
    /// 0 for none.
    pub done: u64,
}

impl Turn {
    /// The parameter as it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; TURN_BYTES] {
        let [x, y, z] = self.grid.map(u32::to_le_bytes);
        let mut bytes = [0; TURN_BYTES];
        bytes[..8].copy_from_slice(&self.control.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.set.to_le_bytes());
        bytes[16..20].copy_from_slice(&x);
        bytes[20..24].copy_from_slice(&y);
        bytes[24..28].copy_from_slice(&z);
        bytes[28..32].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[32..].copy_from_slice(&self.done.to_le_bytes());
        bytes
    }
}

/// A set of SMs as it lies in device memory. Each change of the set has another epoch, which is not
/// 0. SMs from [`SMS_MAX`] on are left out.
#[must_use]
pub fn set_bytes(epoch: u32, sms: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut bytes = alloc::vec![0; SET_BYTES];
    bytes[..4].copy_from_slice(&epoch.to_le_bytes());
    for sm in sms.into_iter().filter(|sm| *sm < SMS_MAX) {
        bytes[8 + sm as usize / 8] |= 1 << (sm % 8);
    }
    bytes
}
