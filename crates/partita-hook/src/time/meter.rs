//! This process's part in its tenant's share of a GPU's time.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::string::String;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::CU_STREAM_WAIT_VALUE_AND;
use partita_core::time::Policy;
use partita_ledger::mutex::Mutex;
use partita_ledger::{GateMap, LedgerError, Limits, OPEN, Seat, TIME_PAGE_BYTES, TimeMap};

use crate::account::gpu::Gpu;
use crate::account::per_gpu::PerGpu;
use crate::account::tenant::{self, Tenant};
use crate::driver::page::PageCalls;
use crate::driver::{capture, quiet, stream};
use crate::sys::clock::now_ns;
use crate::sys::fork::in_child;
use crate::sys::{report, watcher};
use crate::time::calls::TimeCalls;
use crate::time::streams::{Part, Present, Stream, Streams};
use crate::time::tokens::Bucket;
use crate::time::units::{ENDED, ENDED_LATE, OPEN as BEGUN, Pool};

/// Contexts of a GPU in a process at a time.
pub(super) const POOLS: usize = 8;
/// A share of all the time, in thousandths.
const WHOLE_PERMILLE: u32 = 1000;
/// In [`Meter::terms`]: the bucket enforces the share.
const TOKENS: u64 = 1 << 10;

/// The meters of the tenant's GPUs, where it has a share of time.
static METERS: PerGpu<Meter> = PerGpu::new();
/// Whether launches of this process are measured, so that calls that wait mark their ends.
static MEASURES: AtomicBool = AtomicBool::new(false);

// Leaves the time files to the parent.
in_child! {
    MEASURES.store(false, Ordering::Relaxed);
    for meter in METERS.take() {
        // The copies are the only use from here on, because the meter cannot be found any more.
        core::ptr::read(&meter.map).abandon_in_fork_child();
        core::ptr::read(&meter.turns).into_iter().for_each(GateMap::abandon_in_fork_child);
    }
}

/// Has launches on the GPU with this index measured.
pub fn install(gpu: u8, meter: Meter) {
    METERS.set(gpu, meter);
    MEASURES.store(true, Ordering::Relaxed);
}

/// The meter of a GPU, if the tenant has a share of its time.
#[inline]
pub fn of(gpu: &Gpu) -> Option<&'static Meter> {
    METERS.of(gpu)
}

/// Whether launches of this process are measured.
#[inline]
pub fn measures() -> bool {
    MEASURES.load(Ordering::Relaxed)
}

/// Whether no work waits for the tenant's share of time.
pub fn is_gate_open() -> bool {
    METERS.all().all(|meter| meter.map.is_open())
}

/// Marks the ends of the work that the program is about to wait for: of a stream, or of all.
#[cold]
pub fn mark_each_end(stream: Option<*mut c_void>) {
    let Some(tenant) = tenant::current() else { return };
    METERS.all().for_each(|meter| meter.mark_ends(tenant, stream));
}

/// Marks the ends of units in which nothing was launched for a while. May wait for room in a
/// channel.
pub fn mark_paused(tenant: &Tenant) {
    METERS.all().for_each(|meter| meter.mark_paused(tenant));
}

/// The program exits or ends a context: its work is reported while the driver can still be asked
/// whether it has ended.
pub fn report_last() {
    let has_work = |meter: &Meter| meter.in_flight.load(Ordering::SeqCst) > 0;
    // The look under way may have passed work that has ended since.
    for _ in 0..2 {
        if METERS.all().any(has_work) {
            watcher::RELEASES.await_look();
        }
    }
}

/// Forgets a stream that the program ends.
pub fn end_stream(stream: *mut c_void) {
    let Some(tenant) = tenant::current() else { return };
    METERS.all().for_each(|meter| meter.end_stream(tenant, stream));
}

/// Removes the data of a context that has ended. The caller holds [`quiet`].
pub fn context_ended(context: usize) {
    METERS.all().for_each(|meter| meter.context_ended(context));
}

/// This process's part in its tenant's share of a GPU's time.
pub struct Meter {
    pub(super) map: TimeMap,
    pub(super) seat: Seat,
    /// The gate for turns on the whole GPU, if the tenant takes turns.
    pub(super) turns: Option<GateMap>,
    /// The tenant's directory.
    pub(super) directory: CString,
    page_calls: PageCalls,
    pub(super) calls: TimeCalls,
    /// The limits' epoch above 11 bits: the share, and whether it is enforced by the bucket.
    terms: AtomicU64,
    pub(super) bucket: Bucket,
    pub(super) streams: Streams,
    pools: [AtomicPtr<Pool>; POOLS],
    /// Units in flight.
    pub(super) in_flight: AtomicU32,
    order: AtomicU64,
    making: Mutex<()>,
}

/// Why there is no meter.
pub enum NoMeter {
    /// The driver does not have this call.
    Call(&'static CStr),
    /// The time file.
    File(LedgerError),
}

impl Meter {
    /// The meter of the tenant in `directory`, with this time file; `turns` if it takes turns on
    /// the whole GPU.
    ///
    /// # Errors
    /// The first call that this driver lacks, or the defect of the file.
    pub fn new(map: TimeMap, turns: Option<GateMap>, directory: CString) -> Result<Self, NoMeter> {
        let page_calls = PageCalls::resolve().map_err(NoMeter::Call)?;
        let calls = TimeCalls::resolve().map_err(NoMeter::Call)?;
        let seat = map.take_seat().map_err(NoMeter::File)?;
        Ok(Self {
            map,
            seat,
            turns,
            directory,
            page_calls,
            calls,
            terms: AtomicU64::new(u64::MAX),
            bucket: Bucket::new(),
            streams: Streams::new(),
            pools: [const { AtomicPtr::new(core::ptr::null_mut()) }; POOLS],
            in_flight: AtomicU32::new(0),
            order: AtomicU64::new(0),
            making: Mutex::new(()),
        })
    }

    /// The share in thousandths, and whether the token bucket enforces it.
    fn terms(&self, gpu: &Gpu) -> (u32, bool) {
        let terms = |bits: u64| ((bits & 0x3ff) as u32, bits & TOKENS != 0);
        let (known, epoch) = (self.terms.load(Ordering::Relaxed), gpu.limits.epoch());
        if known != u64::MAX && known >> 11 == epoch {
            return terms(known);
        }
        match gpu.limits.load() {
            Ok((epoch, limits)) => {
                let tokens = if limits.time_policy() == Policy::Tokens { TOKENS } else { 0 };
                let now = u64::from(limits.time_permille.min(WHOLE_PERMILLE)) | tokens;
                self.terms.store(epoch << 11 | now, Ordering::Relaxed);
                terms(now)
            }
            // They are being written over and over: as before.
            Err(_) => terms(known),
        }
    }

    /// Sees to it that the tenant's law can be carried out on this GPU.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn prepare(&self, index: u8, limits: &Limits) -> Result<(), String> {
        match limits.time_policy() {
            Policy::Tokens => self.bucket.prepare(index, limits),
            Policy::Hard | Policy::Soft => Ok(()),
        }
    }

    fn pool(&self, at: usize) -> Option<&'static Pool> {
        let pool = self.pools.get(at)?.load(Ordering::Acquire);
        // SAFETY: null, or leaked by pool_of().
        unsafe { pool.as_ref() }
    }

    /// Every context's units.
    pub(super) fn open_pools(&self) -> impl Iterator<Item = (usize, &'static Pool)> {
        let pools = (0..POOLS).filter_map(|at| Some((at, self.pool(at)?)));
        pools.filter(|(_, pool)| pool.context.load(Ordering::Acquire) != 0)
    }

    /// The units of the context of a stream.
    fn pool_of(&self, tenant: &Tenant, stream: *mut c_void) -> Result<(usize, &'static Pool), CuResult> {
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer, and the stream in which the program launches next.
        let asked = unsafe { (self.calls.stream_context)(stream, &mut context) };
        let context = match context.addr() {
            context if asked.is_ok() && context != 0 => context,
            _ => tenant.driver().current_context(),
        };
        let found = |(_, pool): &(usize, &Pool)| pool.context.load(Ordering::Acquire) == context;
        if let Some(known) = self.open_pools().find(found) {
            return Ok(known);
        }
        let _making = self.making.lock();
        if let Some(known) = self.open_pools().find(found) {
            return Ok(known);
        }
        let is_unused =
            |at: &usize| self.pool(*at).is_none_or(|pool| pool.context.load(Ordering::Acquire) == 0);
        let at = (0..POOLS).find(is_unused).ok_or_else(|| {
            report::line(format_args!(
                "more than {POOLS} contexts on a GPU at a time cannot be held to a share of its time: \
                 launches in others are refused"
            ));
            CuResult::LAUNCH_OUT_OF_RESOURCES
        })?;
        let pool = match self.pool(at) {
            Some(pool) => pool,
            None => {
                let pool: &'static Pool = Box::leak(Box::new(Pool::new()));
                self.pools[at].store(core::ptr::from_ref(pool).cast_mut(), Ordering::Release);
                pool
            }
        };
        capture::relaxed(|| self.within(context, || pool.open(&self.calls, context, self.map_gate()?)))??;
        Ok((at, pool))
    }

    fn within<R>(&self, context: usize, run: impl FnOnce() -> R) -> Result<R, CuResult> {
        // SAFETY: a context that the driver named.
        unsafe { (self.calls.push_context)(core::ptr::with_exposed_provenance_mut(context)) }.ok()?;
        let result = run();
        // SAFETY: a valid pointer; what was pushed is on top.
        let _ = unsafe { (self.calls.pop_context)(&mut core::ptr::null_mut()) };
        Ok(result)
    }

    /// Where the GPU of the current context has the gate.
    fn map_gate(&self) -> Result<u64, CuResult> {
        let mapped = self.page_calls.map(self.map.address(), TIME_PAGE_BYTES).inspect_err(|code| {
            report::line(format_args!(
                "the driver did not map the page of this tenant's share of time ({code}); leave \
                 PARTITA_RUN_DIR unset or put it below /dev/shm"
            ));
        });
        Ok(mapped? + TimeMap::GATE_OFFSET as u64)
    }

    /// Runs a launch of so many blocks in `stream`. `alone`: it is as long as a unit, or longer.
    #[inline]
    pub fn run(
        &'static self,
        tenant: &Tenant,
        gpu: &Gpu,
        stream: *mut c_void,
        alone: bool,
        blocks: u64,
        launch: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let (share, by_tokens) = self.terms(gpu);
        if share >= WHOLE_PERMILLE {
            return launch();
        }
        // A capture launches nothing yet.
        if by_tokens && !is_captured(tenant, stream) {
            let applies = || matches!(self.terms(gpu), (..WHOLE_PERMILLE, true));
            if let Err(code) = self.bucket.pay(gpu, blocks, applies) {
                return code;
            }
        }
        let key = stream::key_of(stream.addr(), || tenant.driver().current_context());
        let known = self.streams.find(key).and_then(|at| self.streams.get(at));
        let Some(known) = known else { return self.run_in_new(tenant, stream, key, alone, launch) };
        match known.part(now_ns(), alone, self.map.is_open()) {
            Part::Inside => launch(),
            part => self.run_at_edge(tenant, stream, known, part, alone, launch),
        }
    }

    /// A launch in a stream that is not known.
    #[cold]
    fn run_in_new(
        &'static self,
        tenant: &Tenant,
        stream: *mut c_void,
        key: usize,
        alone: bool,
        launch: impl FnOnce() -> CuResult,
    ) -> CuResult {
        if is_captured(tenant, stream) {
            return launch();
        }
        let (at, pool) = match self.pool_of(tenant, stream) {
            Ok(found) => found,
            Err(code) => return code,
        };
        if let Some(known) = self.streams.find_or_add(key).and_then(|at| self.streams.get(at)) {
            known.pool.store(at as u32 + 1, Ordering::Release);
            let part = known.part(now_ns(), alone, self.map.is_open());
            return self.run_at_edge(tenant, stream, known, part, alone, launch);
        }
        match self.begin(pool, stream, 0, 1) {
            Ok(unit) => {
                let result = launch();
                self.end(pool, unit, stream, ENDED);
                result
            }
            Err(code) => code,
        }
    }

    /// A launch that begins or ends a unit.
    fn run_at_edge(
        &'static self,
        tenant: &Tenant,
        stream: *mut c_void,
        known: &Stream,
        part: Part<'_>,
        alone: bool,
        launch: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let pool = (known.pool.load(Ordering::Acquire) as usize).checked_sub(1).and_then(|at| self.pool(at));
        let (pool, before, paused, held) = match (part, pool) {
            (Part::Inside, _) => return launch(),
            (Part::Last(_, held) | Part::First { held, .. }, None) => {
                held.let_go(Present::NONE);
                return launch();
            }
            (Part::Last(unit, held), Some(_)) if capture::is_any() && is_captured(tenant, stream) => {
                // The unit's end would be captured too, and never come.
                held.let_go(Present::new(unit, 1, false));
                return launch();
            }
            (Part::Last(unit, held), Some(pool)) => {
                let result = launch();
                self.end(pool, unit, stream, ENDED);
                held.let_go(Present::NONE);
                return result;
            }
            (Part::First { before, paused, held }, Some(pool)) => (pool, before, paused, held),
        };
        if is_captured(tenant, stream) {
            held.let_go(before);
            return launch();
        }
        self.end_before(pool, known, before, stream, paused);
        let launches = if alone { 1 } else { known.target.load(Ordering::Relaxed).max(1) };
        let waits = !self.map.is_open();
        let unit = match self.begin(pool, stream, self.streams.number_of(known), launches) {
            Ok(unit) => unit,
            Err(code) => {
                held.let_go(Present::NONE);
                return code;
            }
        };
        if launches > 1 {
            held.let_go(Present::new(unit, launches - 1, waits));
            return launch();
        }
        let result = launch();
        self.end(pool, unit, stream, ENDED);
        held.let_go(Present::NONE);
        result
    }

    /// Marks the end of a unit that got fewer launches than it was to have, in a stream that is
    /// held.
    fn end_before(&self, pool: &Pool, known: &Stream, before: Present, stream: *mut c_void, paused: bool) {
        let Some(number) = before.unit() else { return };
        if let Some(unit) = pool.get(number) {
            unit.launches.fetch_sub(before.left(), Ordering::Relaxed);
            if paused {
                // Bursts of as many launches are ended in time from now on.
                known.target.fetch_min(unit.launches.load(Ordering::Relaxed).max(1), Ordering::Relaxed);
            }
        }
        let is_busy = || {
            // SAFETY: the stream in which the program launches, or for which it waits, next.
            capture::relaxed(|| unsafe { (self.calls.query_stream)(stream) }) == CuResult::NOT_READY
        };
        let busy = !paused || is_busy();
        self.end(pool, number, stream, if busy { ENDED } else { ENDED_LATE });
    }

    /// Begins a unit: later work in the stream waits for the gate and is measured.
    fn begin(
        &'static self,
        pool: &Pool,
        stream: *mut c_void,
        number: u32,
        launches: u32,
    ) -> Result<usize, CuResult> {
        self.enter();
        let begun = watcher::RELEASES
            .start(!self.map.is_open())
            .and_then(|()| capture::relaxed(|| pool.take(&self.calls)))
            .inspect_err(|_| self.leave(1))?;
        let Some(unit) = pool.get(begun) else { return Err(CuResult::LAUNCH_OUT_OF_RESOURCES) };
        unit.stream.store(number, Ordering::Relaxed);
        unit.launches.store(launches, Ordering::Relaxed);
        unit.order.store(self.order.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        unit.begun_ns.store(now_ns(), Ordering::Relaxed);
        unit.started_ns.store(0, Ordering::Relaxed);
        unit.reported_ns.store(0, Ordering::Relaxed);
        unit.was_blocked.store(false, Ordering::Relaxed);
        let gate = pool.gate.load(Ordering::Relaxed);
        // SAFETY: the program's stream, a word that stays mapped, and an event of the stream's
        // context.
        let begins = unsafe {
            match (self.calls.wait)(stream, gate, OPEN, CU_STREAM_WAIT_VALUE_AND) {
                CuResult::SUCCESS => (self.calls.record)(unit.start(), stream),
                refused => refused,
            }
        };
        if let Err(code) = begins.ok() {
            pool.give_back(begun);
            self.leave(1);
            // The launch itself would be refused so: the legacy stream waits for one that captures.
            if code != CuResult::STREAM_CAPTURE_IMPLICIT {
                report::once!(
                    "a launch could not be measured for its tenant's share of time ({code}), and is refused"
                );
            }
            return Err(code);
        }
        unit.state.store(BEGUN, Ordering::Release);
        Ok(begun)
    }

    /// Marks the end of a unit behind the stream's work.
    fn end(&self, pool: &Pool, number: usize, stream: *mut c_void, how: u32) {
        let Some(unit) = pool.get(number) else { return };
        // SAFETY: the program's stream, and an event of its context. If it fails, the context runs
        // nothing any more.
        let _ = unsafe { (self.calls.record)(unit.end(), stream) };
        unit.state.store(how, Ordering::Release);
    }

    /// One more unit is in flight.
    fn enter(&self) {
        if self.in_flight.fetch_add(1, Ordering::SeqCst) == 0 {
            let before = self.map.in_flight_since(self.seat);
            self.map.note_in_flight(self.seat, before, now_ns());
        }
    }

    /// So many units are finished.
    pub(super) fn leave(&self, units: u32) {
        self.in_flight.fetch_sub(units, Ordering::SeqCst);
    }

    /// Marks the ends of the work that the program is about to wait for: of a stream, or of all.
    fn mark_ends(&self, tenant: &Tenant, stream: Option<*mut c_void>) {
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            return;
        }
        let context = || tenant.driver().current_context();
        let of_current = stream::key_of(0, context);
        match stream.map(|stream| stream::key_of(stream.addr(), context)) {
            Some(key) => {
                let known = self.streams.find(key).and_then(|at| self.streams.get(at));
                known.into_iter().for_each(|known| self.mark_end(tenant, known, of_current));
            }
            None => self.streams.known().for_each(|(_, known)| self.mark_end(tenant, known, of_current)),
        }
    }

    fn mark_paused(&self, tenant: &Tenant) {
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            return;
        }
        // The program ends a stream just now.
        let Some(_putting) = quiet::put() else { return };
        for (at, pool) in self.open_pools() {
            let context = pool.context.load(Ordering::Acquire);
            let of_pool = |known: &Stream| {
                known.pool.load(Ordering::Acquire) == at as u32 + 1 && known.is_paused(now_ns())
            };
            let mut paused =
                self.streams.known().map(|(_, known)| known).filter(|known| of_pool(known)).peekable();
            if paused.peek().is_some() {
                // A context that has ended takes its streams with it.
                let _ = self.within(context, || {
                    paused.for_each(|known| self.mark_end(tenant, known, stream::key_of(0, || context)));
                });
            }
        }
    }

    fn mark_end(&self, tenant: &Tenant, known: &Stream, of_current: usize) {
        let key = known.key();
        // The default stream of another context or thread is out of reach, and captures are not
        // touched.
        let Some(handle) = stream::handle_of(key) else { return };
        if stream::is_legacy(key) && (key != of_current || capture::is_any()) {
            return;
        }
        let stream = core::ptr::with_exposed_provenance_mut(handle);
        let pool = (known.pool.load(Ordering::Acquire) as usize).checked_sub(1).and_then(|at| self.pool(at));
        if let Some(pool) = pool
            && let Some((present, held)) = known.hold(None)
        {
            if is_captured(tenant, stream) {
                return held.let_go(present);
            }
            self.end_before(pool, known, present, stream, known.is_paused(now_ns()));
            held.let_go(Present::NONE);
        }
    }

    /// Forgets a stream that the program ends.
    fn end_stream(&self, tenant: &Tenant, stream: *mut c_void) {
        let Some(at) = self.streams.find(stream.addr()) else { return };
        self.mark_ends(tenant, Some(stream));
        let _quiet = quiet::keep();
        self.streams.forget(at);
    }

    /// Removes the data of a context that has ended; the caller holds [`quiet`].
    fn context_ended(&self, context: usize) {
        for (at, pool) in
            self.open_pools().filter(|(_, pool)| pool.context.load(Ordering::Acquire) == context)
        {
            let streams = self.streams.known();
            for (stream, _) in
                streams.filter(|(_, known)| known.pool.load(Ordering::Acquire) == at as u32 + 1)
            {
                self.streams.forget(stream);
            }
            self.leave(pool.close());
        }
    }
}

/// Whether a launch in the stream is captured rather than run.
fn is_captured(tenant: &Tenant, stream: *mut c_void) -> bool {
    tenant.driver().is_capturing(stream)
}
