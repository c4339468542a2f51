//! Where this driver keeps the mask of a stream: found and proved in a sacrificial process.
//!
//! The search writes nothing. One launch is traced (`stream_trace.rs`): a place where the driver
//! read a word, where the words are those of no mask and were not written, may be it. Each such
//! place is then answered, for one launch, with the mask of a random set; the one that is the mask
//! comes out in that launch's descriptor, translated to the board's physical numbers, bit by bit.
//! On an H200 (driver 580.159.04) 29 places look like a mask, 12 of them pass the filter, and one
//! answers.
//!
//! Only a place so shown is ever written to, and only to be verified: sets of every kind, by the
//! SMs that blocks ran on (by their number and how many run at once under MPS, where SM numbers are
//! not the device's), by the descriptor, and by a neighbour stream that must not change. On
//! machines where nothing can be traced the listed offset of the driver's version is verified
//! alone.

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

/// Under MPS blocks are counted while they run together, so they run for longer.
const TOGETHER_NS: u64 = 200_000;

/// What is known of a board before its streams are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Board<'t> {
    /// Its TPCs, with their bits in launch descriptors.
    pub topology: &'t Topology,
    /// The layout of its launch descriptors.
    pub layout: &'static QmdLayout,
}

/// What the search has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The mask lies there: shown in copies of this process.
    Shown {
        /// From the stream's structure, in bytes.
        offset_bytes: u32,
        /// How many places were asked.
        candidates: u32,
    },
    /// It lies at one of these places, the likeliest first. Each is to be asked by [`answers`] in a
    /// process of its own, which a wrong one may crash: copies of this process do not get as far as
    /// a descriptor.
    Candidates(Vec<u32>),
    /// Nothing can be traced on this kind of machine. The listed place holds what a stream without
    /// a mask would.
    Listed(u32),
}

/// A place that was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamProof {
    /// Where the mask lies.
    pub field: StreamField,
    /// How many sets were tried.
    pub sets: u32,
    /// How many blocks ran, none outside its set.
    pub blocks: u64,
}

/// Looks for the mask without writing to a stream.
///
/// # Errors
/// [`Error::Refused`] where there is nothing to find: one TPC, no place that could be it, or none
/// that answers; the driver's.
pub fn search(gpu: &Gpu<'_>, board: Board<'_>) -> Result<Found, Error> {
    let search = Search::new(gpu, board)?;
    if !stream_trace::IS_POSSIBLE {
        return search.listed().map(Found::Listed);
    }
    let candidates = search.candidates()?;
    if candidates.is_empty() {
        return Err(Error::Refused(
            "no launch read a word of the stream's structure that could be a mask: this driver has no stream masks, or keeps them elsewhere"
                .into(),
        ));
    }
    // A copy in which nothing is answered: if its descriptor is this process's own, what the others
    // say counts.
    let control = Answer::InCopy { offset_bytes: candidates[0] as usize, words: None };
    if search.trace(Some(control))?.report.is_none_or(|report| report[0] != 0) {
        return Ok(Found::Candidates(candidates));
    }
    let count = candidates.len() as u32;
    for offset_bytes in candidates {
        let shown = search.asked(offset_bytes, |offset_bytes, words| {
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
        "none of the {count} places that a launch read as a mask's would be is one: this driver keeps stream masks in another form"
    )))
}

/// Answers one place in this process, which may not survive it. Says whether it is the mask.
///
/// # Errors
/// The driver's.
pub fn answers(gpu: &Gpu<'_>, board: Board<'_>, offset_bytes: u32) -> Result<bool, Error> {
    let search = Search::new(gpu, board)?;
    search.asked(offset_bytes, |offset_bytes, words| {
        search.trace(Some(Answer::InPlace { offset_bytes, words }))?;
        gpu.wait_on(search.stream.as_ref(), "a launch with an answered mask", KERNEL_DEADLINE_MS)?;
        Ok(Watch::last())
    })
}

/// Verifies a place by writing to it: one that was [`Found::Shown`], that [`answers`], or that is
/// [`Found::Listed`].
///
/// # Errors
/// [`Error::Disproved`] if anything is not as a mask there demands; [`Error::Hang`]; the driver's.
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
        // Each is set over the one before: retargeting is what is relied on.
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
    if !stream_mask::is_sound(gpu.cuda(), subject) {
        return Err(Error::Disproved("the stream does not work any more".into()));
    }
    Ok(StreamProof { field, sets: sets.len() as u32, blocks })
}

/// A stream to look at, and what is needed to look.
struct Search<'g, 'a> {
    gpu: &'g Gpu<'a>,
    topology: &'g Topology,
    layout: StreamMaskLayout,
    stream: Stream<'a>,
}

impl<'g, 'a> Search<'g, 'a> {
    fn new(gpu: &'g Gpu<'a>, board: Board<'g>) -> Result<Self, Error> {
        if board.topology.tpc_count() < 2 {
            return Err(Error::Refused("with one TPC there is nothing that a mask could leave out".into()));
        }
        Watch::install(gpu, board.layout)?;
        let layout = StreamMaskLayout::of(gpu.facts().cuda_version);
        let search = Self { gpu, topology: board.topology, layout, stream: Stream::new(gpu.cuda())? };
        // The first launch on a stream may set up what later ones only read.
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

    /// The places that a launch reads as it would read a mask that is not in force, the likeliest
    /// first.
    fn candidates(&self) -> Result<Vec<u32>, Error> {
        let trace = self.trace(None)?;
        let mut bytes = alloc::vec![0u8; STRUCTURE_BYTES];
        let readable = stream_mask::read_memory(stream_mask::structure(self.stream.as_ref())?, &mut bytes);
        bytes.truncate(readable);
        Ok(rank(&places(&trace, &bytes, self.layout), &self.hints()))
    }

    /// Whether the driver takes words at a place for a mask: each random set must come out in the
    /// descriptor. One would do for 64 TPCs.
    fn asked(
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

    /// Offsets that are known of this driver's version, or of its neighbours.
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
                "nothing can be traced on this kind of machine, and no offset is known for CUDA {}.{} on it: use launch masks",
                version / 1000,
                version % 1000 / 10
            ))
        })?;
        match StreamField::new(offset_bytes, self.layout).read(self.stream.as_ref())? {
            [0, 0, 0, 0, 0] => Ok(offset_bytes),
            words => Err(Error::Refused(format!(
                "the offset known for this CUDA version, {offset_bytes:#x}, holds {words:x?} here and no empty mask: use launch masks"
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

    /// Blocks of the census that one SM holds at once, which the whole device shows.
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

/// The places at which a mask that is not in force could lie: its first word was read, all its
/// words are zero and none was written. Those of which the rest was not read come first, because a
/// driver has no use for the words of a mask that is not in force.
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

/// The places in the order in which to ask: the nearest to what is known of the nearest versions.
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
    // The boards on which aarch64 offsets were seen, by their GPUs.
    match compute_capability {
        62 | 72 | 87 => Some(StreamPlatform::Jetson),
        101 | 110 => Some(StreamPlatform::Thor),
        121 => Some(StreamPlatform::Spark),
        _ => None,
    }
}

/// Numbers that nobody expects (xorshift64*).
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
        // What stands at the numbers of TPCs that are not there does not matter.
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
    fn likely_places_are_asked_first() {
        assert_eq!(rank(&[0x10, 0x500, 0x51c, 0x5fc], &[0x51c, 0x4fc]), vec![0x51c, 0x500, 0x5fc, 0x10]);
        assert_eq!(rank(&[0x10, 0x500], &[]), vec![0x10, 0x500]);
    }

    #[test]
    fn only_what_was_read_and_holds_no_mask_can_be_one() {
        let mut bytes = vec![0u8; 0x200];
        bytes[0x84] = 1;
        let mut trace = Trace::empty();
        for read in [0x40, 0x80, 0x100, 0x104, 0x180, 0x1fc] {
            trace.note(read, false);
        }
        trace.note(0x190, true);
        // 0x80 has something behind it, 0x180 is written to, 0x1fc has not enough room; of 0x100
        // more was read than a flag.
        assert_eq!(places(&trace, &bytes, StreamMaskLayout::EnabledWords), vec![0x40, 0x104, 0x100]);
        assert_eq!(places(&trace, &bytes, StreamMaskLayout::UpperLower), vec![0x40, 0x100, 0x104, 0x180]);
    }
}
