//! Order on the GPU: a receiver's stream waits for the sender's.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use partita_driver::ipc::{EventHandle, SharedEvent};
use partita_driver::{Gpu, StreamRef};
use partita_frames::{ChainSeat, Lease, Recorder, monotonic_ns};

use crate::error::Error;

/// How often a wait on the host checks whether the GPU is done, and whether the process that it
/// works for lives.
const LOOK: Duration = Duration::from_micros(20);
const ALIVE: Duration = Duration::from_millis(5);

/// From this number of components on, a chain's streams should not wait for each other if the host
/// sees the GPU done soon. Measured on an H200 (driver 580.159.04, clients of one MPS service), in
/// thousands of frames a second. With waits on the GPU alone: 48 and 42 for chains of two and three
/// components, 30 and 23 for five and eight. With waits on the host: 39 and 39 for two and three,
/// 39 and 35 for five and eight. Each waiting stream takes turns with the others.
const LONG_CHAIN: u8 = 4;
/// How long the host polls before it leaves the wait to the GPU, in nanoseconds: a short kernel and
/// its launch.
const POLL_NS: u64 = 30_000;
/// This many failed polls in a row mean that kernels are long here; then this many waits are left
/// to the GPU before the host polls again.
const IN_VAIN_MAX: u32 = 8;
const LEFT_TO_GPU: u32 = 256;

/// After this many frames that the GPU had not finished when they were passed on, only one in this
/// many is queried.
const BUSY_MAX: u32 = 8;
const ASKED_OF: u32 = 32;

/// This process's events, and those of others that it has open.
#[derive(Default)]
pub(crate) struct Order<'g> {
    /// By lease.
    own: RefCell<HashMap<usize, SharedEvent<'g>>>,
    /// By lease and role, with the incarnation that made it.
    others: RefCell<HashMap<(usize, u8), (u64, SharedEvent<'g>)>>,
    /// Failed polls since the last successful one; beyond [`IN_VAIN_MAX`], waits left to the GPU
    /// since.
    in_vain: Cell<u32>,
    /// Frames since the GPU last had finished one when it was passed on.
    busy: Cell<u32>,
    waits: Cell<Waits>,
}

/// How a component ordered its frames, since it attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Frames that the GPU had finished when they arrived.
    pub ready: u64,
    /// Those that it finished while the host polled.
    pub polled: u64,
    /// Those for which the stream waits.
    pub held: u64,
}

/// Whether a frame can be worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The stream waits for everything necessary.
    Ordered,
    /// Its former holder died, and the GPU's progress is unknown.
    Unknown,
}

impl<'g> Order<'g> {
    /// Makes `stream` wait for the last holder of the lease; or waits here, if `on_host`, while
    /// that process lives. If the host `may_poll`, it has cores to poll for a short while instead.
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
            // Its own stream is in order, and so are streams that follow each other.
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
        // Finished work needs no wait, and a process that died since cannot be waited for. The
        // query costs the hand-over nothing measurable on an H200 (4.5 to 5.4 µs with or without),
        // and streams that wait for each other slow long chains down.
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

    /// No event any more: a process that exits cleanly has recorded that no process needs to wait
    /// for it.
    pub(crate) fn without_event(seat: &ChainSeat, lease: &Lease) -> Readiness {
        if seat.recorder(lease).is_none() { Readiness::Ordered } else { Readiness::Unknown }
    }

    /// Polls an event for a while, unless that failed recently.
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
        // After a pause one failed poll suffices for the next.
        self.in_vain.set(in_vain.min(IN_VAIN_MAX - 1) + 1);
        false
    }

    /// How the frames so far were ordered.
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

    /// Opens an event; `None` if it is gone.
    fn open(
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        lease: &Lease,
        recorder: Recorder,
    ) -> Option<SharedEvent<'g>> {
        let handle = EventHandle::from_bytes(seat.event_handle(lease, recorder)?);
        SharedEvent::open(gpu.cuda(), &handle).ok()
    }

    /// Whether the GPU has done all work of `stream`: then no process has to wait for it. After
    /// recent failures it is queried only now and then.
    pub(crate) fn is_done_now(&self, gpu: &Gpu<'_>, stream: StreamRef<'_>) -> bool {
        let busy = self.busy.get();
        let is_done =
            (busy < BUSY_MAX || busy.is_multiple_of(ASKED_OF)) && gpu.is_idle(stream).unwrap_or(false);
        self.busy.set(if is_done { 0 } else { busy.saturating_add(1) });
        is_done
    }

    /// Records the end of the lease's use after the present work of `stream`.
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
