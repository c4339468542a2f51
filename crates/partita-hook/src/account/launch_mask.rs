//! The data for masking launches on one GPU.

use partita_abi::qmd::{self, QmdError, QmdLayout};
use partita_ledger::Limits;

/// The callback's data beside the ledger.
pub struct LaunchMask {
    /// Where this device's descriptors keep their mask.
    pub layout: &'static QmdLayout,
    /// The physical numbers that carry a TPC on this board.
    pub live: [u32; 8],
    /// The disable words when the process attached, for a launch that finds the
    /// limits being rewritten over and over.
    pub at_start: [u32; 8],
}

impl LaunchMask {
    /// Prepares the mask of a tenant with these limits.
    ///
    /// # Errors
    /// If descriptors of this device and version cannot be masked.
    pub fn new(limits: &Limits) -> Result<Self, QmdError> {
        let layout = qmd::layout_for(limits.device_class, limits.qmd_version)?;
        let mut live = [0; 8];
        for &physical in limits.physical_of_logical.iter().take(limits.tpc_count as usize) {
            if let Some(word) = live.get_mut(usize::from(physical / 32)) {
                *word |= 1 << (physical % 32);
            }
        }
        Ok(Self { layout, live, at_start: limits.qmd_disable })
    }
}
