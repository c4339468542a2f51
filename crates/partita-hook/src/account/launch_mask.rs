//! The data for masking launches on one GPU.

use alloc::vec;
use alloc::vec::Vec;

use partita_abi::qmd::{self, QmdError, QmdLayout};
use partita_core::TpcSet;
use partita_ledger::{FLAG_GPCS_UNPROVED, Limits};

use crate::sys::report;

/// The callback's data beside the ledger.
pub struct LaunchMask {
    /// Where this device's descriptors keep their mask.
    pub layout: &'static QmdLayout,
    /// The physical numbers that carry a TPC on this board.
    pub live: [u32; 8],
    /// The disable words when the process attached, for a launch that finds the
    /// limits being rewritten over and over.
    pub at_start: [u32; 8],
    gpcs: Gpcs,
    physical: [u16; 256],
}

/// Which clusters fit a mask.
struct Gpcs {
    /// The physical numbers in each GPC with several TPCs; none if they are not proved.
    members: Vec<[u32; 8]>,
    /// The physical numbers of TPCs that are alone in their GPC.
    single: [u32; 8],
    sms_per_tpc: u32,
}

impl Gpcs {
    fn new(limits: &Limits) -> Self {
        let mut members = vec![[0u32; 8]; 256];
        let tpcs = limits.physical_of_logical.iter().zip(&limits.gpc_of_logical);
        for (&physical, &gpc) in tpcs.take(limits.tpc_count as usize) {
            if let Some(word) = members[usize::from(gpc)].get_mut(usize::from(physical / 32)) {
                *word |= 1 << (physical % 32);
            }
        }
        let tpcs_of = |gpc: &[u32; 8]| gpc.iter().map(|word| word.count_ones()).sum::<u32>();
        let single = members.iter().filter(|gpc| tpcs_of(gpc) == 1);
        let single = single.fold([0; 8], |all, gpc| core::array::from_fn(|word| all[word] | gpc[word]));
        members.retain(|gpc| tpcs_of(gpc) > 1 && limits.flags & FLAG_GPCS_UNPROVED == 0);
        Self { members, single, sms_per_tpc: limits.sms_per_tpc }
    }
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
        Ok(Self {
            layout,
            live,
            at_start: limits.qmd_disable,
            gpcs: Gpcs::new(limits),
            physical: limits.physical_of_logical,
        })
    }

    /// The disable words of a set of TPCs, in logical numbers.
    pub fn disable_words_of(&self, set: TpcSet) -> [u32; 8] {
        let mut words = [!0; 8];
        for tpc in set.iter() {
            let physical = self.physical[usize::from(tpc)];
            if let Some(word) = words.get_mut(usize::from(physical / 32)) {
                *word &= !(1 << (physical % 32));
            }
        }
        words
    }

    /// The tenant's disable words with those of the program's own mask. The program's count only as
    /// far as the launch can run there: a cluster needs its SMs in one GPC, and a cooperative grid
    /// is certain to run if each of its blocks has an SM. A launch that never ends hangs every
    /// client of the MPS service once its process exits.
    #[cold]
    pub fn with_own(&self, image: &[u32], disable: &[u32; 8], own: &[u32; 8]) -> [u32; 8] {
        let both = qmd::union_live(disable, Some(own), &self.live);
        let Ok(shape) = self.layout.shape(image) else { return both };
        let sms_in = |tpcs: &[u32; 8]| {
            let enabled = both.iter().zip(tpcs).map(|(off, tpcs)| (!off & tpcs).count_ones()).sum::<u32>();
            enabled * self.gpcs.sms_per_tpc
        };
        let cluster_blocks = shape.cluster_blocks();
        let cluster_fits =
            cluster_blocks <= 1 || self.gpcs.members.iter().any(|gpc| sms_in(gpc) >= cluster_blocks);
        let grid_fits =
            shape.cooperative != Some(true) || shape.grid_blocks() <= u64::from(sms_in(&self.live));
        if cluster_fits && grid_fits {
            return both;
        }
        // What the driver itself leaves out of launches with clusters stays out.
        let drivers = core::array::from_fn(|word| own[word] & self.gpcs.single[word]);
        let alone = qmd::union_live(disable, Some(&drivers), &self.live);
        if alone != both {
            report::once!(
                "{}: the mask that this program set for its own launches cannot run a cluster of \
                 {cluster_blocks} blocks or a cooperative grid, which would never end; such \
                 launches run in the whole partition",
                report::program()
            );
        }
        alone
    }
}
