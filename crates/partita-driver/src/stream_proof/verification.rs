//! Whether launches on a stream stay within a set: by where blocks ran, by how many ran at once,
//! and by the descriptor.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec::Vec;

use partita_core::TpcSet;

use super::watch::Watch;
use super::{Board, TOGETHER_NS, shows};
use crate::census::{BlockRecord, Census};
use crate::error::Error;
use crate::gpu::{Gpu, Grid};
use crate::stream::StreamRef;

/// Spin of a census block, as in the calibration.
const CENSUS_NS: u64 = 20_000;
/// The number of censuses after which a missing SM counts as a contradiction.
const ROUNDS_MAX: u32 = 8;

pub(super) struct Verification<'g, 'a> {
    pub(super) gpu: &'g Gpu<'a>,
    pub(super) board: Board<'g>,
    /// Blocks of the census that one SM holds at once.
    pub(super) per_sm: u32,
}

impl Verification<'_, '_> {
    /// Runs censuses on a stream that must stay within `set`, or is unrestricted. Returns how many
    /// blocks ran.
    pub(super) fn runs_on(&self, stream: StreamRef<'_>, set: Option<&TpcSet>) -> Result<u64, Error> {
        let topology = self.board.topology;
        let wanted = set.copied().unwrap_or(topology.all());
        let expected: BTreeSet<u32> = wanted.iter().flat_map(|tpc| topology.sms_of(tpc)).collect();
        let under_mps = self.gpu.facts().under_mps;
        let mut seen = BTreeSet::new();
        let mut blocks = 0;
        // A census may miss an SM while another process has the GPU.
        for _ in 0..ROUNDS_MAX {
            let (sms, records) = census(self.gpu, stream, if under_mps { TOGETHER_NS } else { CENSUS_NS })?;
            self.descriptor(set)?;
            blocks += records.len() as u64;
            seen.extend(sms);
            let most = expected.len() * self.per_sm as usize;
            if together(&records) > most {
                return Err(Error::Disproved(format!(
                    "with {} SMs enabled, {} blocks ran at once, more than the possible {most}",
                    expected.len(),
                    together(&records)
                )));
            }
            if seen.len() >= expected.len() {
                break;
            }
        }
        // Under MPS the enabled SMs are renumbered from 0.
        let right = if under_mps { seen.len() == expected.len() } else { seen == expected };
        if !right {
            return Err(Error::Disproved(format!(
                "with TPCs {wanted} enabled on a stream, its blocks ran on SMs {seen:?}"
            )));
        }
        Ok(blocks)
    }

    /// Checks that the last launch's descriptor had exactly this set, or no mask.
    fn descriptor(&self, set: Option<&TpcSet>) -> Result<(), Error> {
        match (Watch::last(), set) {
            (None, None) => Ok(()),
            (Some(disable), Some(set)) if shows(self.board.topology, &disable, set) => Ok(()),
            (disable, Some(set)) => Err(Error::Disproved(format!(
                "a stream's mask for TPCs {set} appeared in the launch descriptor as {disable:x?}"
            ))),
            (Some(disable), None) => Err(Error::Disproved(format!(
                "a stream without a mask was launched with {disable:x?}: the masks of two streams are mixed up"
            ))),
        }
    }
}

/// One census on a stream: the SMs and the records.
pub(super) fn census(
    gpu: &Gpu<'_>,
    stream: StreamRef<'_>,
    duration_ns: u64,
) -> Result<(BTreeSet<u32>, Vec<BlockRecord>), Error> {
    let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
    let census = Census::at(gpu, gpu.place(stream), grid, duration_ns)?;
    let sms = census.sms()?;
    Ok((sms, census.records()?))
}

/// The most blocks that ran at the same time.
pub(super) fn together(records: &[BlockRecord]) -> usize {
    let mut edges: Vec<(u64, i32)> =
        records.iter().flat_map(|record| [(record.start_ns, 1), (record.stop_ns, -1)]).collect();
    // At equal times, ends come first.
    edges.sort_unstable();
    let (mut now, mut most) = (0i32, 0);
    for (_, change) in edges {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).unwrap_or(0)
}
