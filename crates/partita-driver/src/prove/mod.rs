//! The proof that masks hold: many blocks under many masks, with every block's SM counted.
//!
//! [`prove`] gives random masks to launches of every kind, and each block counts itself at its SM,
//! in counters of that one launch. This is not a sample: if the counts add up to the grid and none
//! is outside the set, no block of the launch ran elsewhere. Launches of several masks are queued
//! and run at the same time, and the mask changes while they do.
//!
//! Run it in a sacrificial process without MPS, on a calibrated board: the mask of another board
//! hangs a kernel forever.

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

/// Masks whose launches are in flight together, at most and by default.
pub const MASKS_IN_FLIGHT_MAX: u32 = 32;
/// Blocks for one mask at most, so that a batch ends well before its deadline; more blocks need
/// more masks.
const BLOCKS_PER_MASK_MAX: u64 = 1 << 21;
/// The deadline of a batch: it takes milliseconds on a GPU and seconds on a simulated one, and
/// waits for its turn on a shared GPU.
const DEADLINE_MS: u64 = 120_000;
/// Escapes that are recorded one by one; all are counted.
const ESCAPES_KEPT: usize = 64;

/// The extent of a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProofRequest {
    /// Blocks to run, at least.
    pub blocks: u64,
    /// Masks to try, at least.
    pub masks: u32,
    /// The seed of the masks and of the order of launches: the same seed gives the same proof.
    pub seed: u64,
    /// The routes to launch by; without a route for streams, streams of the default priority are
    /// used.
    pub routes: Routes,
    /// Masks whose launches are in flight together: 1 waits for each.
    pub masks_in_flight: u32,
    /// A test of the proof itself: for every so many masks, the mask enables one TPC more than the
    /// check expects. 0 for never.
    pub fault_every: u32,
}

/// The counts of a proof so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proof {
    /// Blocks that ran and were counted.
    pub blocks: u64,
    /// Masks that were tried.
    pub masks: u32,
    /// Times that the mask changed while launches of another mask were in flight.
    pub changes_under_load: u32,
    /// Launches and blocks by route; a route that this GPU does not offer has none.
    pub routes: Vec<Tally>,
    /// The SMs that ran a block at least once.
    pub sms_used: u32,
    /// Blocks that ran outside their set.
    pub escaped_blocks: u64,
    /// The first of them, with their SMs.
    pub escapes: Vec<Escape>,
}

/// The launches by one route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// The route.
    pub route: Route,
    /// Its launches.
    pub launches: u64,
    /// Their blocks.
    pub blocks: u64,
}

/// Runs the proof; calls `progress` after each batch.
///
/// # Errors
/// [`Error::Refused`] if `%smid` or the board do not meet the needs of a proof;
/// [`Error::Disproved`] if a launch's counts do not add up to its grid; [`Error::Hang`], after
/// which the process must end; those of the driver. Blocks outside their set are not an error: the
/// result counts them.
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
            "under MPS the SM numbers that blocks see are not the device's, so nothing can be proved: \
             run it without MPS"
                .into(),
        ));
    }
    if facts.sms != topology.sm_count() {
        return Err(Error::Refused(format!(
            "the driver reports {} SMs and the calibration found {}: calibrate again with `partita \
             doctor`",
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
        // The driver would wait forever before it released what a kernel still uses.
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

/// The layout of this driver's descriptors, found by one launch.
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
