//! The lanes of a GPU's gate: this process's part in them.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use partita_abi::CuResult;
use partita_core::time::{Hold, Priority};
use partita_ledger::mutex::Mutex;
use partita_ledger::{GATE_FILE_BYTES, GATE_LANES, GateMap, Lane, OPEN};

use crate::account::gpu::Gpu;
use crate::account::per_gpu::PerGpu;
use crate::account::tenant::{self, Tenant};
use crate::driver::capture;
use crate::driver::memory_ops::MemoryOps;
use crate::driver::page::PageCalls;
use crate::driver::stream::LEGACY;
use crate::gate::pace::Paces;
use crate::sys::clock::now_ns;
use crate::sys::fork::in_child;
use crate::sys::{report, watcher};

/// How often the watcher looks, in nanoseconds: what the death of a process of high priority costs
/// others.
const WATCH_NS: u64 = 5_000_000;
/// The same while no process of high priority exists: the cost of one that starts and dies between
/// two looks.
const IDLE_WATCH_NS: u64 = 25_000_000;
/// How often it looks whether another process has low priority, in nanoseconds.
const CROWD_NS: u64 = 100_000_000;

/// The gates of the tenant's GPUs, where it has a priority.
static GATES: PerGpu<Gate> = PerGpu::new();
/// Whether any stream of this process has closed a lane, so that calls that wait have something to
/// do.
static HOLDS: AtomicBool = AtomicBool::new(false);
/// Whether the program has asked for an event since its last launch in a lane.
static ASKED: AtomicBool = AtomicBool::new(false);

// Leaves the gates to the parent.
in_child! {
    HOLDS.store(false, Ordering::Relaxed);
    for gate in GATES.take() {
        // The copy is the only use from here on: no lookup finds the gate again.
        core::ptr::read(&gate.page).abandon_in_fork_child();
    }
}

/// Has launches on the GPU with this index pass a gate.
pub fn install(gpu: u8, gate: Gate) {
    GATES.set(gpu, gate);
}

/// The gate of a GPU, if the tenant has a priority there.
#[inline]
pub fn of(gpu: &Gpu) -> Option<&'static Gate> {
    GATES.of(gpu)
}

/// Whether any stream of this process may have closed a lane.
#[inline]
pub fn holds() -> bool {
    HOLDS.load(Ordering::Relaxed)
}

/// Notes that the program asks for an event; whether it has asked since its last launch in a lane.
pub fn asked_before() -> bool {
    ASKED.swap(true, Ordering::Relaxed)
}

/// Has the GPU open the lanes of this process's streams behind what is in them: of those whose
/// number, one more than the handle, is picked.
#[cold]
pub fn open_each(which: impl Fn(usize) -> bool) {
    let Some(tenant) = tenant::current() else { return };
    for gate in GATES.all() {
        for holder in gate.holders.iter().filter(|holder| which(holder.stream.load(Ordering::Relaxed))) {
            gate.open_behind(tenant, holder);
        }
    }
}

/// Forgets a stream that the program ends: its lane goes to another one.
pub fn forget_stream(stream: *mut c_void) {
    let key = stream.addr() + 1;
    for gate in GATES.all() {
        if holds() {
            for holder in &gate.holders {
                let _ = holder.stream.compare_exchange(key, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        gate.paces.forget(stream.addr());
    }
}

/// The program is about to end a context: its streams leave no lane closed.
pub fn context_ends() {
    if holds() {
        open_each(|_| true);
    }
}

/// A context has ended: with its streams, and with what was mapped in it.
pub fn context_ended() {
    GATES.all().for_each(Gate::context_ended);
}

/// Opens lanes that no other process will open, and returns in how many nanoseconds to look again;
/// `None` if no stream of this process waits.
pub fn look() -> Option<u64> {
    GATES.all().filter_map(|gate| gate.look(now_ns())).min()
}

/// Whether this process is to have short slices on its GPUs.
pub fn gives_way(tenant: &Tenant) -> bool {
    tenant.gpus().iter().any(|gpu| of(gpu).is_some_and(|gate| gate.gives_way(gpu, now_ns())))
}

/// A stream of this process and its lane.
pub(super) struct Holder {
    /// One more than the stream's handle; 0 for none.
    stream: AtomicUsize,
    /// One more than the lane's number; 0 before there is one. Stays when the stream goes.
    lane: AtomicU32,
    /// Whether the lane is closed and nothing in the stream opens it yet.
    closed: AtomicBool,
    /// What the last write in the stream leaves in the lane, an odd number; 0 before there was one.
    opening: AtomicU32,
}

/// This process's part in the gate of one GPU.
pub struct Gate {
    pub(super) page: GateMap,
    /// Whether this process counts among those of low priority.
    is_counted: AtomicBool,
    /// When it was looked whether another one does, and whether one did.
    crowd_looked_ns: AtomicU64,
    is_crowded: AtomicBool,
    page_calls: PageCalls,
    pub(super) memory: MemoryOps,
    /// Where the GPU has the page; 0 before it is mapped.
    device: AtomicU64,
    /// The limits' epoch above two bits of the priority in them.
    priority: AtomicU64,
    holders: [Holder; GATE_LANES],
    making: Mutex<()>,
    watched: AtomicBool,
    pub(super) paces: Paces,
}

impl Gate {
    /// The gate in this file.
    ///
    /// # Errors
    /// The first call that this driver does not have.
    pub fn new(page: GateMap) -> Result<Self, &'static CStr> {
        Ok(Self {
            page,
            is_counted: AtomicBool::new(false),
            crowd_looked_ns: AtomicU64::new(0),
            is_crowded: AtomicBool::new(false),
            page_calls: PageCalls::resolve()?,
            memory: MemoryOps::resolve()?,
            device: AtomicU64::new(0),
            priority: AtomicU64::new(u64::MAX),
            holders: [const {
                Holder {
                    stream: AtomicUsize::new(0),
                    lane: AtomicU32::new(0),
                    closed: AtomicBool::new(false),
                    opening: AtomicU32::new(0),
                }
            }; GATE_LANES],
            making: Mutex::new(()),
            watched: AtomicBool::new(false),
            paces: Paces::new()?,
        })
    }

    /// The GPU forgets the page with the context in which it was mapped. Streams of other contexts
    /// lose their lanes until their next launch, but for closed ones, which are to be opened.
    fn context_ended(&self) {
        self.device.store(0, Ordering::Relaxed);
        for holder in self.holders.iter().filter(|holder| !holder.closed.load(Ordering::Relaxed)) {
            holder.stream.store(0, Ordering::Relaxed);
        }
        self.paces.context_ended();
    }

    pub(super) fn priority(&self, gpu: &Gpu) -> Priority {
        let (known, epoch) = (self.priority.load(Ordering::Relaxed), gpu.limits.epoch());
        if known != u64::MAX && known >> 2 == epoch {
            return Priority::from_number((known & 3) as u32);
        }
        match gpu.limits.load() {
            Ok((epoch, limits)) => {
                let now = Priority::from_number(limits.priority);
                self.priority.store(epoch << 2 | u64::from(now as u32), Ordering::Relaxed);
                now
            }
            // They are being written over and over: as before.
            Err(_) => Priority::from_number((known & 3) as u32),
        }
    }

    /// The word of a lane, as the GPU reaches it.
    pub(super) fn word(&self, lane: usize) -> Result<u64, CuResult> {
        let offset = GateMap::offset_of(lane) as u64;
        match self.device.load(Ordering::Acquire) {
            0 => self.map().map(|base| base + offset),
            base => Ok(base + offset),
        }
    }

    #[cold]
    fn map(&self) -> Result<u64, CuResult> {
        let _making = self.making.lock();
        let base = self.page_calls.map(self.page.address(), GATE_FILE_BYTES)?;
        self.device.store(base, Ordering::Release);
        Ok(base)
    }

    /// The holder of a stream and its lane; none where all lanes of the GPU are taken.
    pub(super) fn holder(&self, stream: *mut c_void) -> Option<(&Holder, usize)> {
        let key = stream.addr() + 1;
        let holder = match self.holders.iter().find(|holder| holder.stream.load(Ordering::Acquire) == key) {
            Some(holder) => holder,
            None => self.make_holder(key)?,
        };
        let lane = holder.lane.load(Ordering::Acquire).checked_sub(1)?;
        Some((holder, lane as usize))
    }

    #[cold]
    fn make_holder(&self, key: usize) -> Option<&Holder> {
        let _making = self.making.lock();
        let holder = self.holders.iter().find(|holder| holder.stream.load(Ordering::Relaxed) == 0)?;
        if holder.lane.load(Ordering::Relaxed) == 0 {
            let lane: Option<Lane> = self.page.claim().ok().flatten();
            if lane.is_none() {
                report::once!(
                    "more than {GATE_LANES} streams of high priority use this GPU: tenants of low priority do not wait for the others"
                );
            }
            holder.lane.store(lane.map_or(0, |lane| lane.index() as u32 + 1), Ordering::Release);
        }
        // After its lane.
        holder.stream.store(key, Ordering::Release);
        Some(holder)
    }

    /// Closes the stream's lane before a launch in it.
    pub(super) fn hold_others(&self, stream: *mut c_void) -> Result<(), CuResult> {
        let Some((holder, lane)) = self.holder(stream) else { return Ok(()) };
        // Most launches find it so, and write nothing that others read.
        if ASKED.load(Ordering::Relaxed) {
            ASKED.store(false, Ordering::Relaxed);
        }
        let (state, opening) = (self.page.state(lane), holder.opening.load(Ordering::Relaxed));
        let closed = closed_after(opening);
        let was_closed = holder.closed.swap(true, Ordering::Relaxed);
        if was_closed && state & OPEN == 0 {
            return Ok(());
        }
        HOLDS.store(true, Ordering::Relaxed);
        self.page.close_lane(lane, closed, now_ns());
        // What opened it for the work before may still be on its way, and would open it for this as
        // well: the stream closes it again right behind.
        if !was_closed && opening != 0 && state != opening {
            let word = self.word(lane)?;
            // SAFETY: the program's stream, and a word that stays mapped.
            unsafe { self.memory.write(stream, word, closed) }?;
        }
        Ok(())
    }

    /// Has the GPU open a stream's lane behind what is in the stream.
    pub(super) fn open_behind(&self, tenant: &Tenant, holder: &Holder) {
        let Some(key) = holder.stream.load(Ordering::Relaxed).checked_sub(1) else { return };
        let stream = core::ptr::with_exposed_provenance_mut::<c_void>(key);
        let Some(lane) = holder.lane.load(Ordering::Relaxed).checked_sub(1) else { return };
        if !holder.closed.load(Ordering::Relaxed) || tenant.is_captured(stream) {
            return;
        }
        // A write into the legacy stream would spoil the captures of blocking streams. The lane
        // stays closed until a later call, or until those who wait for it relent.
        if key <= LEGACY && capture::is_any() {
            return;
        }
        if !holder.closed.swap(false, Ordering::Relaxed) {
            return;
        }
        let open = closed_after(holder.opening.load(Ordering::Relaxed)) | OPEN;
        holder.opening.store(open, Ordering::Relaxed);
        // SAFETY: as in hold_others().
        let written =
            self.word(lane as usize).and_then(|word| unsafe { self.memory.write(stream, word, open) });
        if written.is_err() {
            // Nothing of the stream will open it: a failed context runs nothing either.
            self.page.open_lane(lane as usize, open);
        }
    }

    /// The result of a launch that cannot pass, told once.
    #[cold]
    pub(super) fn refuse(&self, code: CuResult) -> CuResult {
        let stage = match self.device.load(Ordering::Relaxed) {
            0 => "the driver did not map its page; leave PARTITA_RUN_DIR unset or put it below /dev/shm",
            _ => "the driver refused the wait or the write in the stream",
        };
        report::once!("a launch could not pass the gate of tenants with priorities ({code}): {stage}");
        code
    }

    /// Starts the thread that opens lanes that no other process will open. Without it no stream may
    /// wait.
    pub(super) fn watch(&self) -> Result<(), CuResult> {
        if self.watched.load(Ordering::Relaxed) {
            return Ok(());
        }
        let first = !self.watched.swap(true, Ordering::Relaxed);
        watcher::RELEASES.start(first).inspect_err(|_| self.watched.store(false, Ordering::Relaxed))
    }

    /// Whether this process has low priority now, one of high priority is about, and no other one
    /// has low priority: between two of them short slices would be spent on switches.
    fn gives_way(&self, gpu: &Gpu, now_ns: u64) -> bool {
        let is_low = self.watched.load(Ordering::Relaxed) && self.priority(gpu) == Priority::Low;
        if self.is_counted.swap(is_low, Ordering::Relaxed) != is_low {
            // Uncounted, it costs others time: they have short slices beside it.
            let _ = self.page.count_low(is_low);
        }
        let may = is_low && self.page.claimed() != 0;
        if may && now_ns.saturating_sub(self.crowd_looked_ns.load(Ordering::Relaxed)) > CROWD_NS {
            self.crowd_looked_ns.store(now_ns, Ordering::Relaxed);
            self.is_crowded.store(self.page.are_others_low().unwrap_or(true), Ordering::Relaxed);
        }
        may && !self.is_crowded.load(Ordering::Relaxed)
    }

    /// Opens lanes that no other process will open, and returns in how many nanoseconds to look
    /// again; `None` if no stream of this process waits.
    fn look(&self, now_ns: u64) -> Option<u64> {
        if !self.watched.load(Ordering::Relaxed) {
            return None;
        }
        let hold = Hold::default();
        // What fails now is tried again; the limit below needs no file.
        let _ = self.page.open_orphans();
        self.page.relent(|closed_ns| hold.passes_until(closed_ns, now_ns));
        Some(if self.page.claimed() == 0 { IDLE_WATCH_NS } else { WATCH_NS })
    }
}

/// What a lane holds while it is closed after that was written to open it: even, and another each
/// time.
fn closed_after(opening: u32) -> u32 {
    opening.wrapping_add(1) & !OPEN
}
