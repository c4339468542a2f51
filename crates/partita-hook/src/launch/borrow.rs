//! Launches on borrowed TPCs.
//!
//! The law is in [`partita_core::elastic`]. The launches of a stream are divided into units, as for
//! the gate of priorities ([`pace`](crate::gate::pace)). In front of a borrowed unit the stream
//! waits for the gates of all owners of what the unit borrows, and marks the end of the unit
//! before: a word that this process reads. A unit ends early when any process begins to work.
//! Graphs and captured launches have the guarantee alone: their masks stay in them.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::{CU_STREAM_WAIT_VALUE_AND, CUstreamBatchMemOpParams};
use partita_core::TpcSet;
use partita_core::elastic::{Borrower, Law};
use partita_ledger::mutex::Mutex;
use partita_ledger::{ELASTIC_FILE_BYTES, ElasticMap, RECORDS};

use crate::account::gpu::Gpu;
use crate::account::per_gpu::PerGpu;
use crate::account::presence::{Presence, number_of};
use crate::account::tenant::Tenant;
use crate::driver::memory_ops::{self, MemoryOps};
use crate::driver::page::PageCalls;
use crate::driver::stream::key_of;
use crate::gate::pace::Paces;
use crate::launch::noted::{self, Call};
use crate::sys::clock::{now_ns, sleep_ns};
use crate::sys::fork::in_child;
use crate::sys::{pages, report, watcher};

/// Streams that borrow at a time; others have the guarantee alone.
const LANES: usize = 32;
/// Bytes that the GPU maps, with a word for each lane.
const MARKS_BYTES: usize = 4096;
type Marks = [AtomicU32; MARKS_BYTES / 4];
/// How long a launch sleeps between two looks for room, in nanoseconds.
const NAP_NS: u32 = 20_000;

/// The units of one stream.
struct Lane {
    /// The stream's key; 0 for none.
    key: usize,
    /// Borrowed units so far.
    begun: u32,
    /// The last of them has no mark behind it yet.
    is_open: bool,
    /// It had no room: no launch waits again until it has.
    is_full: bool,
    /// The disable words of the present unit; `None` for the guarantee.
    words: Option<[u32; 8]>,
}

/// What the limits say, and what each stream may have work on.
struct State {
    epoch: u64,
    borrower: Borrower,
    masks: [[TpcSet; 2]; LANES],
}

/// This process as a borrower on one GPU.
pub struct Lending {
    page_calls: PageCalls,
    memory: MemoryOps,
    paces: Paces,
    /// Where the GPU has the elastic file and the marks; 0 before they are mapped.
    device: [AtomicU64; 2],
    marks: &'static Marks,
    lanes: [Mutex<Lane>; LANES],
    state: Mutex<State>,
}

static LENDING: PerGpu<Lending> = PerGpu::new();

// Leaves the parent's units to the parent.
in_child! {
    LENDING.take().for_each(drop);
}

/// Has launches on a GPU borrow.
///
/// # Errors
/// Why they cannot.
pub fn install(index: u8) -> Result<(), &'static core::ffi::CStr> {
    // SAFETY: null, or zeros that stay, which are valid words.
    let marks = unsafe { pages::zeroed(MARKS_BYTES).cast::<Marks>().as_ref() }.ok_or(c"mmap")?;
    let lane = || Mutex::new(Lane { key: 0, begun: 0, is_open: false, is_full: false, words: None });
    let none = TpcSet::EMPTY;
    let borrower = Borrower { tenant: 0, owned: none, tpcs_max: 0, lendable: none };
    let lending = Lending {
        page_calls: PageCalls::resolve()?,
        memory: MemoryOps::resolve()?,
        paces: Paces::new()?,
        device: [const { AtomicU64::new(0) }; 2],
        marks,
        lanes: core::array::from_fn(|_| lane()),
        state: Mutex::new(State { epoch: u64::MAX, borrower, masks: [[none; 2]; LANES] }),
    };
    LENDING.set(index, lending);
    Ok(())
}

/// A context has ended, and its streams with it.
pub fn context_ended() {
    for lending in LENDING.all() {
        lending.device.iter().for_each(|device| device.store(0, Ordering::Relaxed));
        lending.paces.context_ended();
        for lane in &lending.lanes {
            lane.lock().key = 0;
        }
    }
}

/// Runs a kernel's launch, on borrowed TPCs if there are some.
#[inline]
pub fn through(tenant: &Tenant, gpu: &Gpu, stream: *mut c_void, launch: impl Fn() -> CuResult) -> CuResult {
    match (LENDING.of(gpu), &gpu.presence) {
        (Some(lending), Some(presence)) if !tenant.is_captured(stream) => {
            lending.launch(tenant, gpu, presence, stream, &launch)
        }
        _ => launch(),
    }
}

impl Lending {
    fn launch(
        &self,
        tenant: &Tenant,
        gpu: &Gpu,
        presence: &Presence,
        stream: *mut c_void,
        launch: &dyn Fn() -> CuResult,
    ) -> CuResult {
        let key = key_of(stream.addr(), || tenant.driver().current_context());
        let Some((at, mut lane)) = self.lane(key) else { return launch() };
        let now = (presence.map.beginnings() as u32).rotate_left(16) ^ presence.rests() | 1;
        if self.paces.begins_unit(key, now, false) {
            match self.begin(gpu, presence, stream, at, &mut lane) {
                Ok(words) => lane.words = words,
                Err(code) => {
                    lane.words = None;
                    report::once!(
                        "launches of this tenant borrow nothing: the driver refused the wait ({code})"
                    );
                }
            }
        }
        self.paces.measured(key, stream, || match &lane.words {
            None => launch(),
            Some(words) => {
                let call = Call { unmasked: false, carried: None, mask: Some(words) };
                noted::within(&call, launch).unwrap_or_else(launch)
            }
        })
    }

    /// The lane of a stream, unless another thread launches there just now.
    fn lane(&self, key: usize) -> Option<(usize, partita_ledger::mutex::Guard<'_, Lane>)> {
        for wanted in [key, 0] {
            for (at, lane) in self.lanes.iter().enumerate() {
                let Some(mut lane) = lane.try_lock() else { continue };
                if lane.key == wanted {
                    if wanted == 0 {
                        self.marks[at].store(lane.begun, Ordering::Relaxed);
                        (lane.key, lane.is_open, lane.is_full, lane.words) = (key, false, false, None);
                    }
                    return Some((at, lane));
                }
            }
        }
        None
    }

    /// Begins a unit: the disable words of what it borrows, or none.
    fn begin(
        &self,
        gpu: &Gpu,
        presence: &Presence,
        stream: *mut c_void,
        at: usize,
        lane: &mut Lane,
    ) -> Result<Option<[u32; 8]>, CuResult> {
        let (law, map) = (Law::default(), &presence.map);
        if self.wanted(gpu, presence, &law).is_empty() {
            return self.mark(stream, at, lane).map(|()| None);
        }
        // The mark of the unit before goes in first: room is seen by it.
        self.mark(stream, at, lane)?;
        if !self.has_room(&law, at, lane) {
            return Ok(None);
        }
        let wanted = self.wanted(gpu, presence, &law);
        let mut state = self.state.lock();
        let ended = self.marks[at].load(Ordering::Acquire);
        if lane.begun == ended {
            state.masks[at] = [TpcSet::EMPTY; 2];
        }
        let in_flight = state.masks.iter().flatten().fold(TpcSet::EMPTY, |all, mask| all | *mask);
        map.give_back(presence.record, in_flight);
        let borrowed = map.take(presence.record, wanted) & wanted;
        if borrowed.is_empty() {
            return Ok(None);
        }
        state.masks[at] = [state.masks[at][1], borrowed];
        let used = state.borrower.owned | borrowed;
        drop(state);
        let base = self.device(0, map.address(), ELASTIC_FILE_BYTES)?;
        let mut waits = [CUstreamBatchMemOpParams::default(); RECORDS];
        let mut count = 0;
        for record in map.claimed().filter(|record| *record != presence.record) {
            if !map.seen(record).owned.is_disjoint(&borrowed) {
                let gate = base + ElasticMap::gate_offset(record) as u64;
                waits[count] = memory_ops::wait(gate, 1, CU_STREAM_WAIT_VALUE_AND);
                count += 1;
            }
        }
        if watcher::RELEASES.start(false).is_err() {
            return Ok(None);
        }
        if count > 0 {
            // SAFETY: words that stay mapped.
            unsafe { self.memory.put(stream, &mut waits[..count]) }?;
        }
        lane.begun = lane.begun.wrapping_add(1);
        lane.is_open = true;
        Ok(gpu.mask.as_ref().map(|mask| mask.disable_words_of(used)))
    }

    /// What the unit may borrow, as far as can be seen.
    fn wanted(&self, gpu: &Gpu, presence: &Presence, law: &Law) -> TpcSet {
        let map = &presence.map;
        let mut state = self.state.lock();
        if state.epoch != gpu.limits.epoch() {
            let Ok((epoch, limits)) = gpu.limits.load() else { return TpcSet::EMPTY };
            state.epoch = epoch;
            let not_lent = TpcSet::from_words(limits.not_lent);
            state.borrower = Borrower {
                tenant: number_of(&limits),
                owned: TpcSet::from_words(limits.set),
                tpcs_max: limits.borrow_tpcs_max as u32,
                lendable: TpcSet::first(limits.tpc_count) - not_lent,
            };
        }
        let borrower = Borrower { lendable: state.borrower.lendable - map.shut(), ..state.borrower };
        law.may_borrow(&borrower, map.claimed().map(|record| map.seen(record)), now_ns())
    }

    /// Marks the end of the stream's last borrowed unit, if that has no mark.
    fn mark(&self, stream: *mut c_void, at: usize, lane: &mut Lane) -> Result<(), CuResult> {
        if !lane.is_open {
            return Ok(());
        }
        let base = self.device(1, core::ptr::from_ref(self.marks).addr(), MARKS_BYTES)?;
        // SAFETY: a word that stays mapped.
        unsafe { self.memory.write(stream, base + 4 * at as u64, lane.begun) }?;
        lane.is_open = false;
        Ok(())
    }

    /// Whether the stream has room for another borrowed unit, after a wait that is bounded.
    fn has_room(&self, law: &Law, at: usize, lane: &mut Lane) -> bool {
        let has = || law.may_begin(lane.begun, self.marks[at].load(Ordering::Acquire));
        let mut room = has();
        if !room && !lane.is_full {
            let until_ns = now_ns().saturating_add(law.patience_ns(self.paces.lengths().mean_ns()));
            while !room && now_ns() < until_ns {
                sleep_ns(NAP_NS);
                room = has();
            }
        }
        lane.is_full = !room;
        room
    }

    fn device(&self, which: usize, address: usize, bytes: usize) -> Result<u64, CuResult> {
        match self.device[which].load(Ordering::Acquire) {
            0 => {
                let base = self.page_calls.map(address, bytes)?;
                self.device[which].store(base, Ordering::Release);
                Ok(base)
            }
            base => Ok(base),
        }
    }
}
