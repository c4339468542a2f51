//! Finds and proves, in a sacrificial process, where this driver stores the mask of a stream.
//!
//! The search writes nothing. It traces one launch (`stream_trace.rs`): a place that the driver
//! read but did not write, and whose words are those of no mask, is a candidate. For one launch
//! each, the search then replaces the words that the driver reads at a candidate by the mask of a
//! random set. At the right place, the mask appears in that launch's descriptor, translated to the
//! board's physical numbers, bit by bit. On an H200 (driver 580.159.04) 29 places look like a mask,
//! 12 of them pass the filter, and one is right.
//!
//! Writes go only to a place that was found in this way, and at first only to verify it: with sets
//! of every kind, by the SMs that blocks ran on (under MPS, where SM numbers are not the device's,
//! by how many SMs there are and how many blocks run at once), by the descriptor, and by a second
//! stream that must not change. On machines that cannot trace launches, only the listed offset of
//! the driver's version is verified.

mod verification;
mod watch;

use alloc::format;
use alloc::vec::Vec;

use partita_abi::kernels;
use partita_abi::qmd::QmdLayout;
use partita_abi::stream::{STREAM_HINTS, StreamMaskLayout, StreamPlatform};
use partita_core::{Topology, TpcSet};

use crate::error::Error;
use crate::gpu::{Gpu, Grid, KERNEL_DEADLINE_MS, Launch};
use crate::stream::Stream;
use crate::stream_mask::{self, STRUCTURE_BYTES, StreamField, StreamMasks};
use crate::stream_trace::{self, Answer, Trace};
use crate::time::now_ns;
use verification::{Verification, census, together};
use watch::Watch;

/// Under MPS, concurrent blocks are counted, so they run longer.
const TOGETHER_NS: u64 = 200_000;

/// What is known about a board before its streams are examined.
#[derive(Debug, Clone, Copy)]
pub struct Board<'t> {
    /// Its TPCs, with their bits in launch descriptors.
    pub topology: &'t Topology,
    /// The layout of its launch descriptors.
    pub layout: &'static QmdLayout,
}

/// The result of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The mask is there, as copies of this process showed.
    Shown {
        /// From the stream's structure, in bytes.
        offset_bytes: u32,
        /// How many candidates were tried.
        candidates: u32,
    },
    /// The mask is at one of these places, the likeliest first. Copies of this process do not get
    /// as far as a descriptor, so [`answers`] must try each in a separate process, which a wrong
    /// place may crash.
    Candidates(Vec<u32>),
    /// Launches cannot be traced on this kind of machine. The listed place has the words of a
    /// stream without a mask.
    Listed(u32),
}

/// A verified place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamProof {
    /// The place of the mask.
    pub field: StreamField,
    /// How many sets were tried.
    pub sets: u32,
    /// How many blocks ran, none outside its set.
    pub blocks: u64,
}

/// Searches for the mask without writing to a stream.
///
/// # Errors
/// [`Error::Refused`] if there is nothing to find: the device has one TPC, or no candidate exists
/// or is right; those of the driver.
pub fn search(gpu: &Gpu<'_>, board: Board<'_>) -> Result<Found, Error> {
    let search = Search::new(gpu, board)?;
    if !stream_trace::IS_POSSIBLE {
        return search.listed().map(Found::Listed);
    }
    let candidates = search.candidates()?;
    if candidates.is_empty() {
        return Err(Error::Refused(
            "no launch read a word of the stream's structure that could be a mask: this driver has no \
             stream masks, or stores them elsewhere"
                .into(),
        ));
    }
    // A control: a copy in which nothing is replaced. If its descriptor is the same as this
    // process's, the other copies are valid.
    let control = Answer::InCopy { offset_bytes: candidates[0] as usize, words: None };
    if search.trace(Some(control))?.report.is_none_or(|report| report[0] != 0) {
        return Ok(Found::Candidates(candidates));
    }
    let count = candidates.len() as u32;
    for offset_bytes in candidates {
        let shown = search.is_mask(offset_bytes, |offset_bytes, words| {
            let trace = search.trace(Some(Answer::InCopy { offset_bytes, words: Some(words) }))?;
            Ok(trace
                .report
                .and_then(|report| (report[0] != 0).then(|| core::array::from_fn(|word| report[1 + word]))))
        })?;
        if shown {
            return Ok(Found::Shown { offset_bytes, candidates: count });
        }
    }
    Err(Error::Refused(format!(
        "none of the {count} candidate places of the mask is right: this driver stores stream masks in \
         another form"
    )))
}

/// Tries one place in this process, which may not survive it. Returns whether it is the mask.
///
/// # Errors
/// Those of the driver.
pub fn answers(gpu: &Gpu<'_>, board: Board<'_>, offset_bytes: u32) -> Result<bool, Error> {
    let search = Search::new(gpu, board)?;
    search.is_mask(offset_bytes, |offset_bytes, words| {
        search.trace(Some(Answer::InPlace { offset_bytes, words }))?;
        gpu.wait_on(search.stream.as_ref(), "a launch with a replaced mask", KERNEL_DEADLINE_MS)?;
        Ok(Watch::last())
    })
}

/// Verifies a place by writing to it: a place of [`Found::Shown`], of [`answers`], or of
/// [`Found::Listed`].
///
/// # Errors
/// [`Error::Disproved`] if anything differs from what a mask must do; [`Error::Hang`]; those of the
/// driver.
pub fn verify(gpu: &Gpu<'_>, board: Board<'_>, offset_bytes: u32) -> Result<StreamProof, Error> {
    let search = Search::new(gpu, board)?;
    let field = StreamField::new(offset_bytes, search.layout);
    let masks = StreamMasks::new(gpu.cuda(), field, board.topology.tpc_count());
    let (subject, neighbour) = (search.stream.as_ref(), Stream::new(gpu.cuda())?);
    for stream in [subject, neighbour.as_ref()] {
        if masks.get(stream)?.is_some() {
            return Err(Error::Disproved(format!("a new stream has a mask at offset {offset_bytes:#x}")));
        }
    }
    let verify = Verification { gpu, board, per_sm: search.blocks_per_sm()? };
    let sets = search.trial_sets();
    let mut blocks = 0;
    for set in &sets {
        // Each replaces the previous one, since retargeting is what callers rely on.
        masks.set(subject, set)?;
        blocks += verify.runs_on(subject, Some(set))?;
        if masks.get(subject)? != Some(*set) {
            return Err(Error::Disproved(format!("a stream's mask for TPCs {set} did not stay as written")));
        }
        blocks += verify.runs_on(neighbour.as_ref(), None)?;
    }
    masks.clear(subject)?;
    blocks += verify.runs_on(subject, None)?;
    drop(neighbour);
    if !stream_mask::works(gpu.cuda(), subject) {
        return Err(Error::Disproved("the stream does not work any more".into()));
    }
    Ok(StreamProof { field, sets: sets.len() as u32, blocks })
}

/// A stream to examine, and the tools for it.
struct Search<'g, 'a> {
    gpu: &'g Gpu<'a>,
    topology: &'g Topology,
    layout: StreamMaskLayout,
    stream: Stream<'a>,
}

impl<'g, 'a> Search<'g, 'a> {
    fn new(gpu: &'g Gpu<'a>, board: Board<'g>) -> Result<Self, Error> {
        if board.topology.tpc_count() < 2 {
            return Err(Error::Refused("with one TPC, a mask has nothing to leave out".into()));
        }
        Watch::install(gpu, board.layout)?;
        let layout = StreamMaskLayout::of(gpu.facts().cuda_version);
        let search = Self { gpu, topology: board.topology, layout, stream: Stream::new(gpu.cuda())? };
        // The first launch on a stream can initialise data that later ones only read.
        for _ in 0..2 {
            search.launch()?.launch()?;
            gpu.wait_on(search.stream.as_ref(), "an empty kernel", KERNEL_DEADLINE_MS)?;
        }
        if Watch::seen() == 0 {
            return Err(Error::Disproved("a kernel ran without the launch callback being called".into()));
        }
        Ok(search)
    }

    fn launch(&self) -> Result<Launch<'_>, Error> {
        let place = self.gpu.place(self.stream.as_ref());
        // SAFETY: the kernel takes a duration.
        unsafe {
            self.gpu.prepare_at(
                place,
                kernels::SPIN,
                Grid { blocks: 1, threads: 32, cluster_blocks: 1 },
                &[0],
            )
        }
    }

    fn trace(&self, answer: Option<Answer>) -> Result<Trace, Error> {
        let structure = stream_mask::structure(self.stream.as_ref())?;
        let mut launch = self.launch()?;
        let trace = stream_trace::trace(structure, answer, || launch.launch())?;
        self.gpu.wait_on(self.stream.as_ref(), "a traced kernel", KERNEL_DEADLINE_MS)?;
        Ok(trace)
    }

    /// The places that a launch reads as it would read an inactive mask, the likeliest first.
    fn candidates(&self) -> Result<Vec<u32>, Error> {
        let trace = self.trace(None)?;
        let mut bytes = alloc::vec![0u8; STRUCTURE_BYTES];
        let readable = stream_mask::read_memory(stream_mask::structure(self.stream.as_ref())?, &mut bytes);
        bytes.truncate(readable);
        Ok(rank(&places(&trace, &bytes, self.layout), &self.hints()))
    }

    /// Whether the driver uses the words at a place as a mask: each random set must appear in the
    /// descriptor. For 64 TPCs one set would suffice.
    fn is_mask(
        &self,
        offset_bytes: u32,
        mut ask: impl FnMut(usize, ([u32; 5], usize)) -> Result<Option<[u32; 8]>, Error>,
    ) -> Result<bool, Error> {
        let masks =
            StreamMasks::new(self.gpu.cuda(), StreamField::new(0, self.layout), self.topology.tpc_count());
        let mut random = Random::new();
        for _ in 0..1 + 64 / self.topology.tpc_count() {
            let set = self.random_set(&mut random);
            let words = masks.words(&set).map_err(Error::Refused)?;
            match ask(offset_bytes as usize, (words, self.layout.words()))? {
                Some(disable) if shows(self.topology, &disable, &set) => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Known offsets of this driver's version, or of the nearest versions.
    fn hints(&self) -> Vec<u32> {
        let platform = platform(self.gpu.facts().compute_capability);
        let version = self.gpu.facts().cuda_version;
        let mut known: Vec<_> = STREAM_HINTS.iter().filter(|hint| Some(hint.platform) == platform).collect();
        known.sort_by_key(|hint| hint.cuda_version.abs_diff(version));
        known.iter().map(|hint| hint.offset_bytes).collect()
    }

    fn listed(&self) -> Result<u32, Error> {
        let version = self.gpu.facts().cuda_version;
        let platform = platform(self.gpu.facts().compute_capability);
        let listed = platform.and_then(|platform| partita_abi::stream::stream_hint(platform, version));
        let offset_bytes = listed.ok_or_else(|| {
            Error::Refused(format!(
                "launches cannot be traced on this kind of machine, and no offset is known for CUDA \
                 {}.{} on it: use launch masks",
                version / 1000,
                version % 1000 / 10
            ))
        })?;
        match StreamField::new(offset_bytes, self.layout).read(self.stream.as_ref())? {
            [0, 0, 0, 0, 0] => Ok(offset_bytes),
            words => Err(Error::Refused(format!(
                "the known offset for this CUDA version, {offset_bytes:#x}, holds {words:x?} here and \
                 not an empty mask: use launch masks"
            ))),
        }
    }

    fn random_set(&self, random: &mut Random) -> TpcSet {
        let all = self.topology.all();
        let nameable = all & TpcSet::first(self.layout.tpcs_max());
        loop {
            let set =
                (TpcSet::from_words(core::array::from_fn(|_| random.next())) & nameable) | (all - nameable);
            if !set.is_empty() && set != all {
                return set;
            }
        }
    }

    /// Single TPCs, every third one, halves, all but one, and random sets.
    fn trial_sets(&self) -> Vec<TpcSet> {
        let all = self.topology.all();
        let unnameable = all - TpcSet::first(self.layout.tpcs_max());
        let tpcs = self.topology.tpc_count().min(self.layout.tpcs_max());
        let last = (tpcs - 1) as u8;
        let mut random = Random::new();
        let mut sets = alloc::vec![
            TpcSet::single(0),
            TpcSet::single(last),
            all.iter().filter(|tpc| tpc % 3 == 1).collect(),
            TpcSet::first(tpcs / 2),
            all - TpcSet::first(tpcs / 2),
            all - TpcSet::single(last),
        ];
        sets.extend((0..4).map(|_| self.random_set(&mut random)));
        for set in &mut sets {
            *set |= unnameable;
        }
        sets.retain(|set| !set.is_empty());
        sets.dedup();
        sets
    }

    /// Blocks of the census that one SM holds at once, measured on the whole device.
    fn blocks_per_sm(&self) -> Result<u32, Error> {
        let records = census(self.gpu, self.stream.as_ref(), TOGETHER_NS)?.1;
        Ok((together(&records) as u32).div_ceil(self.topology.sm_count()).max(1))
    }
}

/// Whether a descriptor's mask leaves exactly `set` of the board's TPCs enabled.
fn shows(topology: &Topology, disable: &[u32; 8], set: &TpcSet) -> bool {
    (0..).zip(topology.tpcs()).all(|(tpc, place)| {
        let disabled = disable
            .get(usize::from(place.physical / 32))
            .is_some_and(|word| word >> (place.physical % 32) & 1 == 1);
        disabled != set.contains(tpc)
    })
}

/// Candidates for an inactive mask: the first word was read, all words are zero and none was
/// written. Those whose other words were not read come first, because a driver does not need the
/// words of an inactive mask.
fn places(trace: &Trace, bytes: &[u8], layout: StreamMaskLayout) -> Vec<u32> {
    let width = layout.bytes();
    let possible = |at: &usize| {
        trace.was_read(*at)
            && bytes.get(*at..at + width).is_some_and(|words| words.iter().all(|&byte| byte == 0))
            && (*at..at + width).all(|byte| !trace.was_written(byte))
    };
    let rest_unread = |at: &usize| (at + 1..at + width).all(|byte| !trace.was_read(byte));
    let all = || (0..bytes.len()).step_by(4).filter(possible);
    let number = |at: usize| at as u32;
    match layout {
        StreamMaskLayout::EnabledWords if all().any(|at| rest_unread(&at)) => {
            all().filter(rest_unread).chain(all().filter(|at| !rest_unread(at))).map(number).collect()
        }
        _ => all().map(number).collect(),
    }
}

/// The candidates in the order of trial: nearest first to what is known for the nearest versions.
fn rank(places: &[u32], hints: &[u32]) -> Vec<u32> {
    let mut ranked = places.to_vec();
    let near = |place: &u32| {
        // The version itself, if it is listed, and its two neighbours.
        hints.iter().take(3).map(|hint| hint.abs_diff(*place)).min().unwrap_or(0)
    };
    ranked.sort_by_key(|place| (hints.first() != Some(place), near(place)));
    ranked
}

fn platform(compute_capability: u32) -> Option<StreamPlatform> {
    if cfg!(target_arch = "x86_64") {
        return Some(StreamPlatform::X86_64);
    }
    // The boards on which aarch64 offsets were measured, by their GPUs.
    match compute_capability {
        62 | 72 | 87 => Some(StreamPlatform::Jetson),
        101 | 110 => Some(StreamPlatform::Thor),
        121 => Some(StreamPlatform::Spark),
        _ => None,
    }
}

/// Pseudorandom numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(now_ns() | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::census::BlockRecord;
    use alloc::vec;
    use partita_core::Tpc;

    fn topology() -> Topology {
        // Two GPCs, numbered in turns, with holes.
        let tpcs: Vec<Tpc> =
            (0..6).map(|tpc| Tpc { gpc: tpc % 2, physical: u16::from(tpc % 2 * 40 + tpc / 2 * 2) }).collect();
        Topology::new(2, tpcs).unwrap()
    }

    #[test]
    fn a_set_shows_in_the_bits_of_its_board_only() {
        let topology = topology();
        let set: TpcSet = "1,4".parse().unwrap();
        let exact = topology.disable_words(&set);
        assert!(shows(&topology, &exact, &set));
        // Bits of TPCs that do not exist have no effect.
        let mut holes_clear = exact;
        holes_clear[0] &= !0b10;
        assert!(shows(&topology, &holes_clear, &set));
        let mut one_more = exact;
        one_more[0] &= !1;
        assert!(!shows(&topology, &one_more, &set));
        assert!(!shows(&topology, &exact, &"1".parse().unwrap()));
    }

    #[test]
    fn blocks_that_run_together_are_counted() {
        let block = |start_ns, stop_ns| BlockRecord { block: 0, sm: 0, start_ns, stop_ns };
        assert_eq!(together(&[]), 0);
        assert_eq!(together(&[block(0, 10), block(10, 20)]), 1, "one after the other");
        assert_eq!(together(&[block(0, 10), block(5, 20), block(9, 11), block(30, 40)]), 3);
    }

    #[test]
    fn likely_places_are_tried_first() {
        assert_eq!(rank(&[0x10, 0x500, 0x51c, 0x5fc], &[0x51c, 0x4fc]), vec![0x51c, 0x500, 0x5fc, 0x10]);
        assert_eq!(rank(&[0x10, 0x500], &[]), vec![0x10, 0x500]);
    }

    #[test]
    fn only_places_that_were_read_and_hold_no_mask_are_candidates() {
        let mut bytes = vec![0u8; 0x200];
        bytes[0x84] = 1;
        let mut trace = Trace::empty();
        for read in [0x40, 0x80, 0x100, 0x104, 0x180, 0x1fc] {
            trace.note(read, false);
        }
        trace.note(0x190, true);
        // At 0x80 there is data behind it, 0x180 is written to, 0x1fc has not enough room; at 0x100
        // more than a flag was read.
        assert_eq!(places(&trace, &bytes, StreamMaskLayout::EnabledWords), vec![0x40, 0x104, 0x100]);
        assert_eq!(places(&trace, &bytes, StreamMaskLayout::UpperLower), vec![0x40, 0x100, 0x104, 0x180]);
    }
}
