//! The proof that masks hold: many blocks under many masks, and every block's SM counted.
//!
//! [`prove`] gives launches of every kind random masks and has each block count itself at its SM,
//! in counters that belong to the one launch. Nothing is sampled: if the counts add up to the grid
//! and none lies outside the set, no block of the launch ran elsewhere. Launches of several masks
//! are queued and run at the same time, and the mask is changed while they do.
//!
//! To run in a sacrificial process without MPS, with a board that a calibration has made out: a
//! mask of a wrong board hangs a kernel for ever.

mod chance;
mod check;
mod graph;
mod masks;
mod rig;
mod routes;

use alloc::format;
use alloc::vec::Vec;

use partita_abi::qmd::QmdLayout;
use partita_core::{Topology, TpcSet};

use crate::census::Census;
use crate::error::Error;
use crate::gpu::{Gpu, Grid};
use crate::launch_mask::LaunchMask;
use chance::Chance;
pub use check::Escape;
use check::{Expected, judge};
use masks::Masks;
use rig::Rig;
pub use routes::{Route, Routes};

/// Masks whose launches are in flight together, at most and unless told otherwise.
pub const MASKS_IN_FLIGHT_MAX: u32 = 32;
/// Blocks for one mask at most, so that a batch takes well below its deadline; more blocks are more
/// masks.
const BLOCKS_PER_MASK_MAX: u64 = 1 << 21;
/// How long a batch may take: it takes milliseconds on a GPU and seconds on a simulated one, and
/// waits for its turn on a GPU shared in time.
const DEADLINE_MS: u64 = 120_000;
/// Escapes that are kept one by one; all are counted.
const ESCAPES_KEPT: usize = 64;

/// How much to prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProofRequest {
    /// Blocks to run, at least.
    pub blocks: u64,
    /// Masks to try, at least.
    pub masks: u32,
    /// What makes the masks and the order of launches: the same seed, the same proof.
    pub seed: u64,
    /// The routes to launch by; streams of the default priority if no stream is among them.
    pub routes: Routes,
    /// Masks whose launches are in flight together: 1 waits for each.
    pub masks_in_flight: u32,
    /// To prove the proof: every so many masks the mask that is set enables one TPC more than the
    /// check is told. 0 for never.
    pub fault_every: u32,
}

/// What was run and found so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proof {
    /// Blocks that ran and were counted.
    pub blocks: u64,
    /// Masks that were tried.
    pub masks: u32,
    /// Times that the mask was changed while launches of another mask had not ended.
    pub changes_under_load: u32,
    /// Launches and blocks by route; a route that this GPU does not offer has none.
    pub routes: Vec<Tally>,
    /// The SMs that ran a block at least once.
    pub sms_used: u32,
    /// Blocks that ran outside their set.
    pub escaped_blocks: u64,
    /// Where they ran: the first of them.
    pub escapes: Vec<Escape>,
}

/// What ran by one route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// The route.
    pub route: Route,
    /// Its launches.
    pub launches: u64,
    /// Their blocks.
    pub blocks: u64,
}

/// Runs the proof; `progress` hears after each batch.
///
/// # Errors
/// [`Error::Refused`] where `%smid` or the board are not what a proof needs; [`Error::Disproved`]
/// if a launch's counts do not add up to its grid; [`Error::Hang`], after which the process must
/// end; the driver's. Blocks outside their set are no error: they are counted in the result.
pub fn prove(
    gpu: &Gpu<'_>,
    topology: &Topology,
    gpcs_proved: bool,
    request: &ProofRequest,
    mut progress: impl FnMut(&Proof),
) -> Result<Proof, Error> {
    let facts = gpu.facts();
    if facts.under_mps {
        return Err(Error::Refused(
            "under MPS the SM numbers that blocks see are not the device's, so nothing can be proved there: run it without MPS".into(),
        ));
    }
    if facts.sms != topology.sm_count() {
        return Err(Error::Refused(format!(
            "the driver reports {} SMs and the calibration found {}: calibrate anew with `partita doctor`",
            facts.sms,
            topology.sm_count()
        )));
    }
    let mut mask = LaunchMask::install(gpu.cuda())?;
    let layout = layout(gpu, &mask)?;
    let request = ProofRequest { masks: request.masks.max(1), ..*request };
    let per_mask = request.blocks.div_ceil(u64::from(request.masks)).clamp(1, BLOCKS_PER_MASK_MAX);
    let slots = request.masks_in_flight.clamp(1, MASKS_IN_FLIGHT_MAX) * routes::LAUNCHES_PER_MASK_MAX;
    let mut rig = Rig::new(gpu, topology, gpcs_proved, slots, per_mask, request.routes)?;
    let proof = run(&mut rig, &mut mask, layout, &request, &mut progress);
    mask.clear();
    if matches!(proof, Err(Error::Hang { .. })) {
        // The driver would wait for ever to give back what a kernel still uses.
        core::mem::forget(rig);
    }
    proof
}

/// The batches.
fn run(
    rig: &mut Rig<'_, '_>,
    mask: &mut LaunchMask,
    layout: &'static QmdLayout,
    request: &ProofRequest,
    progress: &mut impl FnMut(&Proof),
) -> Result<Proof, Error> {
    let topology = rig.topology();
    let (mut masks, mut chance) = (Masks::new(topology), Chance::new(request.seed));
    let mut proof = Proof {
        routes: Route::ALL.into_iter().map(|route| Tally { route, launches: 0, blocks: 0 }).collect(),
        ..Proof::default()
    };
    let mut used = TpcSet::EMPTY;
    while proof.masks < request.masks || proof.blocks < request.blocks {
        let mut expected: Vec<(u32, Expected)> = Vec::new();
        rig.clear()?;
        let in_flight = request.masks_in_flight.clamp(1, MASKS_IN_FLIGHT_MAX);
        for _ in 0..in_flight.min(request.masks.saturating_sub(proof.masks).max(1)) {
            let set = masks.next(&mut chance);
            proof.masks += 1;
            if !expected.is_empty() && rig.is_busy()? {
                proof.changes_under_load += 1;
            }
            let faulty = request.fault_every > 0 && proof.masks.is_multiple_of(request.fault_every);
            mask.set(layout, &topology.disable_words(&if faulty { one_more(topology, set) } else { set }));
            rig.launch(proof.masks, set, &mut chance, &mut expected)?;
        }
        rig.wait(DEADLINE_MS)?;
        let counts = rig.counts()?;
        for (slot, expected) in &expected {
            let (sms, slot) = (topology.sm_count() as usize + 1, *slot as usize);
            let found = judge(topology, expected, &counts[slot * sms..(slot + 1) * sms])?;
            used |= found.used;
            proof.take(expected, found.escapes);
        }
        proof.sms_used = used.len() * topology.sms_per_tpc();
        progress(&proof);
    }
    Ok(proof)
}

impl Proof {
    /// Adds one launch.
    fn take(&mut self, launch: &Expected, escapes: Vec<Escape>) {
        let blocks = u64::from(launch.grid);
        self.blocks += blocks;
        self.escaped_blocks += escapes.iter().map(|escape| u64::from(escape.blocks)).sum::<u64>();
        let room = ESCAPES_KEPT.saturating_sub(self.escapes.len());
        self.escapes.extend(escapes.into_iter().take(room));
        if let Some(tally) = self.routes.iter_mut().find(|tally| tally.route == launch.route) {
            tally.launches += 1;
            tally.blocks += blocks;
        }
    }

    /// The upper bound, with 95 % confidence, of the probability that an event happens that did not
    /// happen in `trials` independent trials: the rule of three (Hanley, Lippman-Hand, «If nothing
    /// goes wrong, is everything all right?», JAMA 1983).
    pub fn rule_of_three(trials: u64) -> f64 {
        if trials == 0 { 1.0 } else { (3.0 / trials as f64).min(1.0) }
    }
}

/// The layout of this driver's descriptors, told by one launch.
fn layout(gpu: &Gpu<'_>, mask: &LaunchMask) -> Result<&'static QmdLayout, Error> {
    let grid = Grid { blocks: 1, threads: 32, cluster_blocks: 1 };
    Census::new(gpu, grid, 0)?.sms()?;
    let layout = mask
        .layout(gpu.facts().compute_capability)
        .ok_or_else(|| Error::Disproved("a kernel ran without the launch callback being called".into()))??;
    Ok(layout)
}

/// The set with one TPC more, if there is one.
fn one_more(topology: &Topology, set: TpcSet) -> TpcSet {
    set | (topology.all() - set).lowest(1)
}
