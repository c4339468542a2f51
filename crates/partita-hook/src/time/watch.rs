//! The work of the hook's thread for a share of time: it polls, reports and opens or closes the
//! gate.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{c_uint, c_void};
use core::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_core::time::{ACCOUNT_WORDS, Law, Pacer, Policy, TimeAccount};
use partita_ledger::mutex::Mutex;
use partita_ledger::{GateMap, Limits, TIME_WORDS};

use crate::account::gpu::Gpu;
use crate::account::tenant::Tenant;
use crate::driver::{capture, quiet, stream};
use crate::sys::clock::now_ns;
use crate::sys::fork::{in_child, renew};
use crate::sys::watcher;
use crate::time::clock::Clock;
use crate::time::meter::{self, Meter, POOLS};
use crate::time::neighbours::Neighbours;
use crate::time::streams::{Present, STREAMS};
use crate::time::units::{ENDED, ENDED_LATE, OPEN as BEGUN, Pool, Unit};

const _: () = assert!(ACCOUNT_WORDS == TIME_WORDS);

/// The longest time between two looks while work is in flight, in nanoseconds. It bounds what a
/// killed process leaves unreported, and how far the account is behind.
const LOOK_NS_MAX: u64 = 5_000_000;
/// The shortest, in nanoseconds.
const LOOK_NS_MIN: u64 = 50_000;
/// How long the thread continues to poll when nothing is in flight any more, in nanoseconds:
/// programs that launch again soon need not wake it.
const LINGER_NS: u64 = 20_000_000;
/// A process that has work in flight and has reported nothing for so long may be dead.
const ORPHAN_NS: u64 = 20_000_000;
/// The charge of a dead process beyond its last report: the time of a look, and the delay of a late
/// one.
const ORPHAN_CHARGE_NS: u64 = 2 * LOOK_NS_MAX;

/// For how long a unit in a stream that cannot be asked is thought of as unfinished, in
/// nanoseconds.
const UNKNOWN_NS_MAX: u64 = 1_000_000_000;

/// For how long a unit of unknown length is charged while the gate is closed and other units wait
/// at it, in nanoseconds.
const BLOCKED_NS_MAX: u64 = 20_000_000;

/// How long a turn lasts beyond the next look, which may be late, and how often others ask for
/// theirs.
const TURN_SLACK_NS: u64 = 1_000_000;

/// The length of units of several launches, in nanoseconds: half of a slice, since work that passes
/// after the gate has closed is a debt.
const UNIT_NS: u64 = 1_000_000;
const PACER: Pacer = Pacer::new(UNIT_NS, 256);

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

/// What the thread knows about units between its looks.
struct Inspection {
    clocks: [Clock; POOLS],
    pacers: Box<[Pacer]>,
    /// Streams with unmeasured units.
    behind: Box<[bool]>,
    /// Units in flight, in the order in which they were begun.
    units: Vec<(u64, usize)>,
    busy: Busy,
    /// Whether the gate was closed at the last look, and units waited at it.
    waited: bool,
    /// The capture mode that this thread was given.
    is_relaxed: bool,
}

/// The result of one look.
struct Busy {
    /// From when to when the GPU was busy.
    times: Vec<(u64, u64)>,
    /// From when to when it was not, although that was reported.
    idle: Vec<(u64, u64)>,
}

impl Inspection {
    fn new() -> Self {
        Self {
            clocks: [Clock::default(); POOLS],
            pacers: alloc::vec![PACER; STREAMS].into(),
            behind: alloc::vec![false; STREAMS].into(),
            units: Vec::new(),
            busy: Busy { times: Vec::new(), idle: Vec::new() },
            waited: false,
            is_relaxed: false,
        }
    }
}

/// The thread's state of one GPU.
struct Watch {
    flew_ns: u64,
    orphans_ns: u64,
    neighbours: Neighbours,
    inspection: Inspection,
}

impl Watch {
    fn new() -> Self {
        Self { flew_ns: 0, orphans_ns: 0, neighbours: Neighbours::new(), inspection: Inspection::new() }
    }
}

/// The thread's state of each GPU.
static WATCHES: Mutex<Vec<Watch>> = Mutex::new(Vec::new());

// A forked child has no such thread.
in_child! {
    renew(&WATCHES, Vec::new());
}

/// Looks at every GPU where the tenant has a share of time, and returns in how many nanoseconds to
/// look again; `None` if there is nothing to do until the program launches.
pub fn look(tenant: &Tenant) -> Option<u64> {
    let mut watches = WATCHES.lock();
    watches.resize_with(tenant.gpus().len(), Watch::new);
    let gpus = tenant.gpus().iter().zip(watches.iter_mut());
    let looks = gpus.filter_map(|(gpu, watch)| {
        let (meter, now_ns) = (meter::of(gpu)?, now_ns());
        let looked = look_at(meter, gpu, watch, now_ns);
        let has_work = meter.in_flight.load(Ordering::SeqCst) > 0;
        Some([looked, meter.bucket.look(&meter.directory, has_work, gpu, now_ns)])
    });
    looks.flatten().flatten().min()
}

/// The state of a unit.
enum Found {
    /// The GPU has not reached it; later units in its stream need not be queried.
    Waiting,
    /// The GPU is running it; later units in its stream need not be queried.
    Behind,
    /// The GPU is done with it.
    Done,
}

/// Looks, and returns in how many nanoseconds to look again; `None` if there is nothing to do until
/// the program launches.
fn look_at(meter: &Meter, gpu: &Gpu, watch: &mut Watch, now_ns: u64) -> Option<u64> {
    let unreported = meter.map.in_flight_since(meter.seat);
    let in_flight = meter.in_flight.load(Ordering::SeqCst) > 0;
    if in_flight {
        watch.flew_ns = now_ns;
    } else if now_ns.saturating_sub(watch.flew_ns) > LINGER_NS {
        return None;
    }
    let Ok((_, limits)) = gpu.limits.load() else { return Some(LOOK_NS_MAX) };
    let law = law_of(&limits);
    if now_ns.saturating_sub(watch.orphans_ns) > ORPHAN_NS {
        watch.orphans_ns = now_ns;
        charge_dead(meter, law, now_ns);
    }
    let others = meter.map.others_in_flight(meter.seat);
    // Lingering, it stays as watchful as if something were in flight.
    let others_want = law.policy != Policy::Soft || watch.neighbours.want(&meter.directory, now_ns);
    let look = |busy: &[(u64, u64)], idle: &[(u64, u64)]| {
        meter.map.update(meter.seat, |words| {
            let mut account = TimeAccount::from_words(law, now_ns, words);
            let decision =
                account.look(now_ns, busy.iter().copied(), idle.iter().copied(), true, others_want);
            (account.to_words(), decision)
        })
    };
    let looked = match quiet::ask() {
        Some(_asking) => {
            inspect(meter, &mut watch.inspection, now_ns);
            look(&watch.inspection.busy.times, &watch.inspection.busy.idle)
        }
        // The program is destroying something that this would query. Work in flight counts as
        // running since it was last reported, if it may run: waiting work must be released in the
        // end, for the program may be waiting for it.
        None if unreported != 0 && in_flight && meter.map.is_open() => look(&[(unreported, now_ns)], &[]),
        None => look(&[], &[]),
    };
    let is_flying = meter.in_flight.load(Ordering::SeqCst) > 0;
    meter.map.want_until(if is_flying || others { now_ns + ORPHAN_NS } else { now_ns });
    // A failure means that another unit was begun after a rest.
    meter.map.note_in_flight(meter.seat, unreported, if is_flying { now_ns } else { 0 });
    let Some((version, decision)) = looked else { return Some(LOOK_NS_MIN) };
    let look_in_ns = decision.look_in_ns.unwrap_or(LOOK_NS_MAX).clamp(LOOK_NS_MIN, LOOK_NS_MAX);
    let (open, look_in_ns) = match &meter.turns {
        Some(turns) => {
            // Work that waits elsewhere than at the gate needs no turn yet.
            let runs = !watch.inspection.busy.times.is_empty();
            let wants = is_flying && (runs || !meter.map.is_open());
            in_turn(meter, turns, decision.open, wants, others, now_ns, look_in_ns)
        }
        None => (decision.open, look_in_ns),
    };
    meter.map.set_gate(version, open);
    Some(look_in_ns)
}

/// Whether the gate opens, and when to look again: of the tenants that have the whole GPU, one at a
/// time. A wait for a turn is not a use of time, and concurrent work of two would be charged to
/// both. `others`: other processes of the tenant may need its turn.
fn in_turn(
    meter: &Meter,
    turns: &GateMap,
    open: bool,
    wants: bool,
    others: bool,
    now_ns: u64,
    look_in_ns: u64,
) -> (bool, u64) {
    if !open || !wants {
        if !open || !others {
            turns.end_turn(meter.map.who());
        }
        return (open, look_in_ns);
    }
    match turns.take_turn(meter.map.who(), now_ns, now_ns + look_in_ns + TURN_SLACK_NS) {
        Ok(()) => (true, look_in_ns),
        Err(until_ns) => {
            let wait_ns = until_ns.saturating_sub(now_ns).clamp(LOOK_NS_MIN, TURN_SLACK_NS);
            (false, look_in_ns.min(wait_ns))
        }
    }
}

/// Charges the work that dead processes had in flight.
fn charge_dead(meter: &Meter, law: Law, now_ns: u64) {
    // Failures are tried again.
    let _ = meter.map.charge_orphans(now_ns.saturating_sub(ORPHAN_NS), |since_ns| {
        charge_left(meter, law, since_ns, now_ns)
    });
}

/// Charges the work that a dead process has had in flight since then.
fn charge_left(meter: &Meter, law: Law, since_ns: u64, now_ns: u64) {
    let until_ns = now_ns.min(since_ns.saturating_add(ORPHAN_CHARGE_NS));
    meter.map.update(meter.seat, |words| {
        let mut account = TimeAccount::from_words(law, now_ns, words);
        account.look(now_ns, [(since_ns, until_ns)], None, true, true);
        (account.to_words(), ())
    });
}

/// Charges what the previous process in this one's seat has left.
pub fn settle_seat(meter: &Meter, limits: &Limits, now_ns: u64) {
    let since_ns = meter.map.in_flight_since(meter.seat);
    if since_ns != 0 {
        charge_left(meter, law_of(limits), since_ns, now_ns);
        meter.map.note_in_flight(meter.seat, since_ns, 0);
    }
}

/// Asks the driver how far the units in flight are.
fn inspect(meter: &Meter, inspection: &mut Inspection, now_ns: u64) {
    let Inspection { clocks, pacers, behind, units, busy, waited, is_relaxed } = inspection;
    let is_closed = !meter.map.is_open();
    // A unit that has started may follow one that waits at the gate, through an event or the
    // legacy stream. Charged for all that time, it would keep the gate closed for ever.
    let may_be_blocked = is_closed && *waited;
    *waited = false;
    busy.times.clear();
    busy.idle.clear();
    behind.fill(false);
    if !*is_relaxed {
        // Else a capture of another thread could forbid this one's questions, and be spoiled by
        // them. SAFETY: a valid pointer.
        *is_relaxed = unsafe { (meter.calls.exchange_mode)(&mut { RELAXED }) }.is_ok();
    }
    let mut done = 0;
    for ((_, pool), clock) in meter.open_pools().zip(clocks) {
        units.clear();
        let in_flight = pool.in_flight();
        units.extend(in_flight.map(|(number, unit)| (unit.order.load(Ordering::Relaxed), number)));
        if units.is_empty() {
            continue;
        }
        units.sort_unstable();
        let context = pool.context.load(Ordering::Acquire);
        // SAFETY: a context that lives while the inspection is held.
        let set = unsafe { (meter.calls.set_context)(core::ptr::with_exposed_provenance_mut(context)) };
        if set.is_err() || !clock.keep(&meter.calls, pool, context) {
            continue;
        }
        for &(_, number) in units.iter() {
            let Some(unit) = pool.get(number) else { continue };
            let stream = (unit.stream.load(Ordering::Relaxed) as usize).checked_sub(1);
            if stream.is_some_and(|stream| behind.get(stream).is_some_and(|behind| *behind)) {
                continue;
            }
            let pacer = stream.and_then(|stream| pacers.get_mut(stream));
            match inspect_unit(meter, pool, number, unit, clock, pacer, busy, may_be_blocked, now_ns) {
                Found::Done => {
                    if unit.state.load(Ordering::Acquire) != BEGUN {
                        clock.renew(&meter.calls, pool, unit, now_ns);
                    }
                    pool.give_back(number);
                    done += 1;
                }
                found => {
                    *waited |= is_closed && matches!(found, Found::Waiting);
                    if let Some(behind) = stream.and_then(|stream| behind.get_mut(stream)) {
                        *behind = true;
                    }
                }
            }
        }
    }
    if done > 0 {
        meter.leave(done);
    }
}

#[expect(clippy::too_many_arguments, reason = "parts of one inspection")]
fn inspect_unit(
    meter: &Meter,
    pool: &Pool,
    number: usize,
    unit: &Unit,
    clock: &mut Clock,
    pacer: Option<&mut Pacer>,
    busy: &mut Busy,
    may_be_blocked: bool,
    now_ns: u64,
) -> Found {
    // SAFETY: an event of a context that lives while it is inspected.
    let is_past = |event: *mut c_void| unsafe { (meter.calls.query_event)(event) } == CuResult::SUCCESS;
    let mut started_ns = unit.started_ns.load(Ordering::Relaxed);
    if started_ns == 0 {
        if !is_past(unit.start()) {
            return Found::Waiting;
        }
        let begun_ns = unit.begun_ns.load(Ordering::Relaxed);
        started_ns = clock.time_of(&meter.calls, pool, unit.start(), begun_ns, now_ns);
        unit.started_ns.store(started_ns, Ordering::Relaxed);
        unit.reported_ns.store(started_ns, Ordering::Relaxed);
    }
    let was_blocked = unit.was_blocked.load(Ordering::Relaxed);
    let mut report = |until_ns: u64| {
        let from_ns = unit.reported_ns.load(Ordering::Relaxed);
        match until_ns.checked_sub(from_ns) {
            Some(_) => busy.times.push((from_ns, until_ns)),
            // That time was not charged.
            None if was_blocked => return,
            // It was taken to run up to the look before, and had ended.
            None => busy.idle.push((until_ns, from_ns)),
        }
        unit.reported_ns.store(until_ns, Ordering::Relaxed);
    };
    let launches = unit.launches.load(Ordering::Relaxed).max(1);
    let mean_ns = pacer.as_ref().and_then(|pacer| pacer.mean_ns());
    let expected = |launches: u32| {
        started_ns.saturating_add(mean_ns.unwrap_or(u64::MAX).saturating_mul(launches.into()))
    };
    let mut report_running = || {
        // A unit is as long as is aimed at, or is one launch. Beyond that it waits more likely
        // than it runs.
        let length_ns = mean_ns.map_or(BLOCKED_NS_MAX, |mean_ns| mean_ns.max(UNIT_NS));
        let likely_ns = started_ns.saturating_add(length_ns);
        if !may_be_blocked || now_ns <= likely_ns {
            return report(now_ns);
        }
        report(likely_ns.max(unit.reported_ns.load(Ordering::Relaxed)));
        unit.reported_ns.store(now_ns, Ordering::Relaxed);
        unit.was_blocked.store(true, Ordering::Relaxed);
    };
    match unit.state.load(Ordering::Acquire) {
        BEGUN => match is_over(meter, unit, number, now_ns) {
            Some(Tail::Over(launches)) => {
                report(expected(launches).max(unit.reported_ns.load(Ordering::Relaxed)).min(now_ns));
                Found::Done
            }
            Some(Tail::Unknown(launches)) => {
                report(expected(launches).min(now_ns));
                Found::Behind
            }
            None => {
                report_running();
                Found::Behind
            }
        },
        ended @ (ENDED | ENDED_LATE) => {
            if !is_past(unit.end()) {
                report_running();
                return Found::Behind;
            }
            let end_ns = clock.time_of(&meter.calls, pool, unit.end(), started_ns, now_ns);
            if ended == ENDED_LATE {
                // It was seen to run when it was last reported.
                report(end_ns.min(expected(launches).max(unit.reported_ns.load(Ordering::Relaxed))));
            } else {
                report(end_ns);
                if let Some(pacer) = pacer.filter(|_| !was_blocked) {
                    pacer.observe((end_ns - started_ns) / u64::from(launches));
                    set_target(meter, unit, pacer.launches());
                }
            }
            Found::Done
        }
        _ => Found::Behind,
    }
}

/// The state of a unit without an end mark: unknown if it may still grow, or runs.
fn is_over(meter: &Meter, unit: &Unit, number: usize, now_ns: u64) -> Option<Tail> {
    let at = (unit.stream.load(Ordering::Relaxed) as usize).checked_sub(1)?;
    let stream = meter.streams.get(at).filter(|stream| stream.is_paused(now_ns))?;
    if stream.has_left(number) {
        // The stream has ended, and nothing will mark the unit's end; unless that was done just
        // now.
        let is_begun = unit.state.load(Ordering::Acquire) == BEGUN;
        return is_begun.then(|| Tail::Over(unit.launches.load(Ordering::Relaxed)));
    }
    if stream::handle_of(stream.key()).is_some() && !capture::is_any() {
        // Another thread marks its end: here the driver might wait.
        let _ = watcher::COMMANDS.start(true);
        return None;
    }
    let (present, held) = stream.hold(Some(number))?;
    let launches = unit.launches.load(Ordering::Relaxed).saturating_sub(present.left());
    // The default stream of a thread that has ended would never be heard of again.
    if now_ns.saturating_sub(unit.begun_ns.load(Ordering::Relaxed)) > UNKNOWN_NS_MAX {
        held.let_go(Present::NONE);
        return Some(Tail::Over(launches));
    }
    held.let_go(present);
    Some(Tail::Unknown(launches))
}

/// Has the stream's units take so many launches from now on; twice as many as before at most,
/// for a burst may be over sooner.
fn set_target(meter: &Meter, unit: &Unit, launches: u32) {
    let at = (unit.stream.load(Ordering::Relaxed) as usize).checked_sub(1);
    if let Some(stream) = at.and_then(|at| meter.streams.get(at)) {
        let before = stream.target.load(Ordering::Relaxed);
        stream.target.store(launches.min(before.saturating_mul(2)).max(1), Ordering::Relaxed);
    }
}
/// The state of a unit without an end mark, with its launches.
enum Tail {
    /// The GPU has finished it, at an unknown time.
    Over(u32),
    /// Its stream cannot be asked.
    Unknown(u32),
}

fn law_of(limits: &Limits) -> Law {
    let policy = match limits.time_policy() {
        // They may need the time that it would borrow.
        Policy::Soft if limits.has_strangers() => Policy::Hard,
        policy => policy,
    };
    Law::new(limits.time_permille, policy)
}
