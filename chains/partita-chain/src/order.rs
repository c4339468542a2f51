//! Order on the GPU: whoever gets a frame has its stream wait for whoever had it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use partita_driver::ipc::{EventHandle, SharedEvent};
use partita_driver::{Gpu, StreamRef};
use partita_frames::{ChainSeat, Lease, Recorder, monotonic_ns};

use crate::error::Error;

/// How often a wait on the host looks whether the GPU is done, and whether the process that it
/// works for lives.
const LOOK: Duration = Duration::from_micros(20);
const ALIVE: Duration = Duration::from_millis(5);

/// Components from which on a chain's streams had better not wait for each other if the host sees
/// the GPU done soon. Measured on an H200 (driver 580.159.04, clients of one MPS service): with
/// waits on the GPU alone, chains of two and three components passed on 48 and 42 thousand frames a
/// second, where ones that held back on the host passed on 39 and 39; but chains of five and eight
/// 30 and 23 thousand, where those passed on 39 and 35. Each stream that waits takes turns with the
/// others.
const LONG_CHAIN: u8 = 4;
/// How long the host looks before it leaves the wait to the GPU, in nanoseconds: a short kernel,
/// and what it takes to launch one.
const POLL_NS: u64 = 30_000;
/// So many looks in vain, one after the other, say that kernels are long here; then so many waits
/// are left to the GPU before the host looks again.
const IN_VAIN_MAX: u32 = 8;
const LEFT_TO_GPU: u32 = 256;

/// After so many frames with which the GPU was not done when they were passed on, one in so many is
/// asked about.
const BUSY_MAX: u32 = 8;
const ASKED_OF: u32 = 32;

/// This process's events, and those of others that it has open.
#[derive(Default)]
pub(crate) struct Order<'g> {
    /// By lease.
    own: RefCell<HashMap<usize, SharedEvent<'g>>>,
    /// By lease and role, with the incarnation that made it.
    others: RefCell<HashMap<(usize, u8), (u64, SharedEvent<'g>)>>,
    /// Looks in vain since the last one that was not; beyond [`IN_VAIN_MAX`], waits that were left
    /// to the GPU since.
    in_vain: Cell<u32>,
    /// Frames since the GPU was last done with one when it was passed on.
    busy: Cell<u32>,
    waits: Cell<Waits>,
}

/// How a component came to the order of the frames that it was given, since it attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Frames that the GPU was done with when they came.
    pub ready: u64,
    /// Those with which it was done while the host looked.
    pub polled: u64,
    /// Those for which the stream was told to wait.
    pub held: u64,
}

/// Whether a frame can be worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The stream waits for what has to be waited for.
    Ordered,
    /// Whoever had it has died, and nobody knows how far the GPU got.
    Unknown,
}

impl<'g> Order<'g> {
    /// Has `stream` wait for whoever had the lease last; or waits here, if `on_host`, for as long
    /// as that one lives. Where the host `may_poll`, it has cores to look for a short while
    /// instead.
    pub(crate) fn follow(
        &self,
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        lease: &Lease,
        stream: StreamRef<'_>,
        on_host: bool,
        may_poll: bool,
    ) -> Result<Readiness, Error> {
        let Some(recorder) = seat.recorder(lease) else { return Ok(Readiness::Ordered) };
        let (own, number) = (seat.recorder_of_own(), lease.ticket.lease());
        if recorder == own {
            // Its own stream is in order, and so are those that follow each other.
            return Ok(Readiness::Ordered);
        }
        let mut others = self.others.borrow_mut();
        let known = others.get(&(number, recorder.role)).map(|(incarnation, _)| *incarnation);
        if known != Some(recorder.incarnation) {
            let Some(event) = Self::open(gpu, seat, lease, recorder) else {
                return Ok(Self::without_event(seat, lease));
            };
            others.insert((number, recorder.role), (recorder.incarnation, event));
        } else if seat.incarnation(recorder.role) != recorder.incarnation {
            return Ok(Self::without_event(seat, lease));
        }
        let Some((_, event)) = others.get(&(number, recorder.role)) else { return Ok(Readiness::Unknown) };
        // What is done needs no wait, and one that died since cannot be waited for. To ask costs
        // the hand-over nothing that was measurable on an H200 (4.5 to 5.4 µs with or without), and
        // streams that wait for each other slow long chains down.
        let mut waits = self.waits.get();
        if event.is_done().unwrap_or(false) {
            waits.ready += 1;
        } else if on_host {
            if !(may_poll && self.is_done_soon(event)) {
                return Self::wait(seat, event, lease, recorder);
            }
            waits.polled += 1;
        } else if may_poll && seat.roles() >= LONG_CHAIN && self.is_done_soon(event) {
            waits.polled += 1;
        } else {
            event.hold(stream).map_err(Error::driver("the order of a frame"))?;
            waits.held += 1;
        }
        self.waits.set(waits);
        Ok(Readiness::Ordered)
    }

    /// Where there is no event any more: who has ended in good order has noted before that nobody
    /// need wait for it.
    fn without_event(seat: &ChainSeat, lease: &Lease) -> Readiness {
        if seat.recorder(lease).is_none() { Readiness::Ordered } else { Readiness::Unknown }
    }

    /// Looks for a while whether an event is done, unless that was in vain of late.
    fn is_done_soon(&self, event: &SharedEvent<'g>) -> bool {
        let in_vain = self.in_vain.get();
        if (IN_VAIN_MAX..IN_VAIN_MAX + LEFT_TO_GPU).contains(&in_vain) {
            self.in_vain.set(in_vain + 1);
            return false;
        }
        let until_ns = monotonic_ns().saturating_add(POLL_NS);
        while monotonic_ns() < until_ns {
            if event.is_done().unwrap_or(false) {
                self.in_vain.set(0);
                return true;
            }
            std::hint::spin_loop();
        }
        // After a pause one look in vain is enough for the next.
        self.in_vain.set(in_vain.min(IN_VAIN_MAX - 1) + 1);
        false
    }

    /// How the frames so far came to be in order.
    pub(crate) fn waits(&self) -> Waits {
        self.waits.get()
    }

    fn wait(
        seat: &ChainSeat,
        event: &SharedEvent<'g>,
        lease: &Lease,
        recorder: Recorder,
    ) -> Result<Readiness, Error> {
        let mut looked = Instant::now();
        loop {
            if event.is_done().map_err(Error::driver("the order of a frame"))? {
                return Ok(Readiness::Ordered);
            }
            std::thread::sleep(LOOK);
            if looked.elapsed() > ALIVE {
                looked = Instant::now();
                if seat.incarnation(recorder.role) != recorder.incarnation || !seat.is_held(recorder.role)? {
                    return Ok(Self::without_event(seat, lease));
                }
            }
        }
    }

    /// Opens an event; none if it is gone.
    fn open(
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        lease: &Lease,
        recorder: Recorder,
    ) -> Option<SharedEvent<'g>> {
        let handle = EventHandle::from_bytes(seat.event_handle(lease, recorder)?);
        SharedEvent::open(gpu.cuda(), &handle).ok()
    }

    /// Whether the GPU has done all that `stream` was given: then nobody has to wait for it. Where
    /// that was in vain of late it is asked now and then only.
    pub(crate) fn is_done_now(&self, gpu: &Gpu<'_>, stream: StreamRef<'_>) -> bool {
        let busy = self.busy.get();
        let is_done =
            (busy < BUSY_MAX || busy.is_multiple_of(ASKED_OF)) && gpu.is_idle(stream).unwrap_or(false);
        self.busy.set(if is_done { 0 } else { busy.saturating_add(1) });
        is_done
    }

    /// Notes that the lease is done with when `stream` has got as far as it has been given.
    pub(crate) fn record(
        &self,
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        lease: &Lease,
        stream: StreamRef<'_>,
    ) -> Result<(), Error> {
        let mut own = self.own.borrow_mut();
        let number = lease.ticket.lease();
        let event = match own.entry(number) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(unknown) => {
                let failed = || Error::driver("an event between processes");
                let event = SharedEvent::create(gpu.cuda()).map_err(failed())?;
                let handle = event.export().map_err(failed())?;
                seat.leave_event(lease, &handle.to_bytes())?;
                unknown.insert(event)
            }
        };
        event.record(stream).map_err(Error::driver("recording the order of a frame"))?;
        seat.note_recorded(lease, true)?;
        Ok(())
    }
}
