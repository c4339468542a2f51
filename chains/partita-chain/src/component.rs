//! One role of a chain, for its process.

mod frame;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use partita_core::TpcSet;
use partita_driver::ipc::SharedEvent;
use partita_driver::{Gpu, KERNEL_DEADLINE_MS, Stream, StreamRef};
use partita_frames::{ChainPlan, ChainSeat, Got, Lease, Reach, Sent, monotonic_ns};
use partita_memory::client;

use crate::carry::{Arrived, Carry};
use crate::chain::REST;
use crate::cross::Cross;
use crate::error::Error;
use crate::memory::{Memory, Opened, Slabs};
use crate::order::{Order, Readiness, Waits};
use crate::steer::Steer;

pub use self::frame::Frame;

/// The result of waiting for a frame.
#[derive(Debug)]
pub enum Received<'c, 'g> {
    Frame(Frame<'c, 'g>),
    /// No frame in time.
    Late,
    /// The chain ends, and no work is left here.
    Ended,
}

/// The result of passing on a frame.
#[derive(Debug)]
pub enum Outcome<'c, 'g> {
    /// It was sent.
    Sent,
    /// It was sent, and this many older ones were dropped for it.
    DroppedOlder(u32),
    /// It was dropped: there was no room.
    Dropped,
    /// There was no room in time.
    Late(Frame<'c, 'g>),
    /// There is no room, the chain ends, and the next component has ended; the frame went back to
    /// the pool.
    Ended,
}

/// One role of a chain. It belongs to the thread that attached, in which the GPU's primary context
/// is current.
pub struct Component<'g> {
    gpu: &'g Gpu<'g>,
    seat: ChainSeat,
    opened: Opened<'g>,
    order: Order<'g>,
    carry: Carry,
    cross: Cross,
    steer: RefCell<Box<dyn Steer<'g> + 'g>>,
    /// The last suggestion that was read, applied or not.
    epoch: Cell<u64>,
    own_stream: &'g Stream<'g>,
    /// The stream for work, if green contexts have changed it.
    handover: RefCell<Option<SharedEvent<'g>>>,
    spin_ns: u64,
    on_host: bool,
    refused: RefCell<Option<String>>,
}

impl<'g> Component<'g> {
    pub(crate) fn new(
        gpu: &'g Gpu<'g>,
        seat: ChainSeat,
        slabs: Box<dyn Slabs<'g> + 'g>,
        steer: Box<dyn Steer<'g> + 'g>,
        (carry, cross): (Carry, Cross),
        spin: Duration,
        on_host: bool,
    ) -> Result<Self, Error> {
        let opened = Opened::new(slabs);
        if seat.is_first() {
            opened.provide(gpu, &seat)?;
        }
        let own_stream = Stream::new(gpu.cuda()).map_err(Error::driver("a component's stream"))?;
        // A component is a process, whose stream is in use to its end.
        let own_stream: &'g _ = Box::leak(Box::new(own_stream));
        Ok(Self {
            gpu,
            seat,
            opened,
            order: Order::default(),
            carry,
            cross,
            steer: RefCell::new(steer),
            epoch: Cell::new(0),
            own_stream,
            handover: RefCell::new(None),
            spin_ns: spin.as_nanos() as u64,
            on_host,
            refused: RefCell::new(None),
        })
    }

    /// Its number in the chain, from 0.
    pub fn role(&self) -> u8 {
        self.seat.role()
    }

    pub fn plan(&self) -> &ChainPlan {
        self.seat.plan()
    }

    /// Whether frames start here.
    pub fn is_first(&self) -> bool {
        self.seat.is_first()
    }

    /// Whether frames end here.
    pub fn is_last(&self) -> bool {
        self.seat.is_last()
    }

    pub fn gpu(&self) -> &'g Gpu<'g> {
        self.gpu
    }

    /// The stream on which frames are in order. With green contexts it changes with each
    /// suggestion: ask again for each frame.
    pub fn stream(&self) -> StreamRef<'g> {
        self.steer.borrow().stream().unwrap_or_else(|| self.own_stream.as_ref())
    }

    /// A stream of the primary context, ordered after all work given to [`Component::stream`].
    pub(crate) fn joined(&self) -> Result<StreamRef<'g>, Error> {
        let own = self.own_stream.as_ref();
        let is_elsewhere = self.steer.borrow().join(own)?;
        Ok(if is_elsewhere { own } else { self.stream() })
    }

    /// How the frames so far were ordered after their former holders' work.
    pub fn waits(&self) -> Waits {
        self.order.waits()
    }

    /// Why the last suggestion was not applied; then the component continues as before.
    pub fn refusal(&self) -> Option<String> {
        self.refused.borrow().clone()
    }

    /// Waits for the next frame, for `limit` at most, or without limit: from the component before,
    /// or as the first one, memory for a new one. Applies a new suggestion.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Driver`], [`Error::Damaged`].
    pub fn receive(&self, limit: Option<Duration>) -> Result<Received<'_, 'g>, Error> {
        let deadline_ns = limit.map_or(u64::MAX, |limit| {
            monotonic_ns().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
        });
        loop {
            let lease = match self.seat.take_until(self.spin_ns, deadline_ns)? {
                Got::Frame(lease) => lease,
                Got::Late => return Ok(Received::Late),
                Got::Stopping => return Ok(Received::Ended),
            };
            self.obey();
            if let Some(frame) = self.ready(lease)? {
                return Ok(Received::Frame(frame));
            }
        }
    }

    /// As [`Component::receive`], by name, for the first component.
    ///
    /// # Errors
    /// [`Error::Misplaced`] for another one; as [`Component::receive`].
    pub fn acquire(&self, limit: Option<Duration>) -> Result<Received<'_, 'g>, Error> {
        if !self.is_first() {
            return Err(self.misplaced("begin frames"));
        }
        self.receive(limit)
    }

    fn misplaced(&self, what: &'static str) -> Error {
        Error::Misplaced { what, role: self.role(), roles: self.seat.roles() }
    }

    /// The frame of a lease that was taken, in order on the GPU; `None` if its content is unknown.
    fn ready(&self, lease: Lease) -> Result<Option<Frame<'_, 'g>>, Error> {
        let note = self.seat.note(&lease);
        let arrived = match self.is_first() {
            true => Ok(Arrived::Shared),
            false => self.carry.receive(self.gpu, &self.seat, note.sequence),
        };
        let arrived = arrived.inspect_err(|_| _ = self.give_up(&lease))?;
        let has_content = matches!(arrived, Arrived::Content);
        let memory = match arrived {
            Arrived::Lost => Ok(None),
            Arrived::Memory(memory) => Ok(Some((Rc::new(memory), lease.offset))),
            Arrived::Shared | Arrived::Content => self.memory_of(&lease, self.cross.own()),
        };
        let Some((memory, offset)) = memory.inspect_err(|_| _ = self.give_up(&lease))? else {
            self.give_up(&lease)?;
            return Ok(None);
        };
        let bytes = memory.span().bytes();
        if offset.checked_add(self.plan().stride_bytes()).is_none_or(|end| end > bytes) {
            self.give_up(&lease)?;
            return Err(Error::Damaged { offset, bytes });
        }
        let may_poll = self.spin_ns > 0;
        let recorder = self.seat.recorder(&lease);
        let ready = match recorder.is_some_and(|recorder| self.cross.is_elsewhere(recorder.role)) {
            // It left the other GPU by a death: a frame in good order leaves it without an event.
            true => Ok(Order::without_event(&self.seat, &lease)),
            false => {
                let (stream, on_host) = (self.stream(), self.on_host);
                self.order.follow(self.gpu, &self.seat, &lease, stream, on_host, may_poll)
            }
        };
        if ready.inspect_err(|_| _ = self.give_up(&lease))? == Readiness::Unknown {
            self.give_up(&lease)?;
            return Ok(None);
        }
        let received_ns = monotonic_ns();
        let mut frame = Frame { component: self, lease, offset, note, memory, received_ns, passed: false };
        if has_content {
            self.carry.fill(frame.span()?)?;
        }
        if !self.fetch(&frame)? {
            frame.passed = true;
            self.give_up(&frame.lease)?;
            return Ok(None);
        }
        Ok(Some(frame))
    }

    /// A lease's memory on a GPU of the chain, and where the frame begins in it; `None` if the
    /// chain no longer has it.
    fn memory_of(&self, lease: &Lease, gpu: u8) -> Result<Option<(Rc<Memory<'g>>, u64)>, Error> {
        let damaged = || Error::Damaged { offset: lease.offset, bytes: 0 };
        let home = self.seat.slab(lease.slab).ok_or_else(damaged)?;
        let Some((slab, moved)) = self.seat.slab_on(gpu, &home) else { return Ok(None) };
        let offset = lease.offset.checked_add_signed(moved).ok_or_else(damaged)?;
        let memory = self.opened.of(self.gpu, &self.seat, &slab)?;
        Ok(memory.map(|memory| (memory, offset)))
    }

    /// Copies a frame that comes from another GPU; returns whether its content was there.
    fn fetch(&self, frame: &Frame<'_, 'g>) -> Result<bool, Error> {
        let Some(before) = self.cross.before() else { return Ok(true) };
        if self.seat.reach(self.role()) != Reach::Host {
            match self.memory_of(&frame.lease, before) {
                Ok(None) => return Ok(false),
                Ok(Some((memory, offset))) => {
                    let failed = || Error::driver("a copy from another GPU");
                    let stream = self.joined()?;
                    let copies = [
                        (frame.content()?, offset),
                        (frame.stamps()?, offset.saturating_add(self.plan().stamps_offset_bytes())),
                    ];
                    for (to, at) in copies {
                        let from = memory.span().part(at, to.bytes()).map_err(failed())?;
                        to.copy_of(&from, stream).map_err(failed())?;
                    }
                    self.seat.note_reach(Reach::Peer);
                    return Ok(true);
                }
                // The driver gives no access to the other GPU.
                Err(Error::Memory(client::Error::Driver(_))) => self.seat.note_reach(Reach::Host),
                Err(error) => return Err(error),
            }
        }
        self.cross.take(&frame.lease, frame.sequence(), frame.content()?, frame.stamps()?)
    }

    fn give_up(&self, lease: &Lease) -> Result<(), Error> {
        let rests_until_ns = monotonic_ns().saturating_add(REST.as_nanos() as u64);
        Ok(self.seat.discard_of_dead(lease, rests_until_ns)?)
    }

    /// Applies the last suggestion. A failure is recorded and printed, and the former units stay in
    /// force.
    fn obey(&self) {
        if self.seat.suggestion_epoch() == self.epoch.get() {
            return;
        }
        let Some((epoch, words)) = self.seat.suggestion(self.role()) else { return };
        self.epoch.set(epoch);
        let obeyed = self.follow(&TpcSet::from_words(words));
        let refused = obeyed.err().map(|error| error.to_string());
        match &refused {
            None => self.seat.note_applied(epoch, self.steer.borrow().code()),
            Some(reason) => {
                self.seat.note_refused(epoch);
                if self.refused.borrow().as_ref() != Some(reason) {
                    let name =
                        self.seat.plan().roles.get(usize::from(self.role())).map_or("?", String::as_str);
                    eprintln!("partita-chain: component {name} keeps its compute units: {reason}");
                }
            }
        }
        *self.refused.borrow_mut() = refused;
    }

    fn follow(&self, set: &TpcSet) -> Result<(), Error> {
        let (before, joined) = (self.stream(), self.joined()?);
        self.steer.borrow_mut().apply(self.gpu, set)?;
        let after = self.stream();
        if before != after {
            // The component's own buffers are in order on the new stream as well.
            let failed = || Error::driver("the order of a component's streams");
            let mut handover = self.handover.borrow_mut();
            let event = match handover.take() {
                Some(event) => event,
                None => SharedEvent::of_this_process(self.gpu.cuda()).map_err(failed())?,
            };
            event.record(joined).map_err(failed())?;
            event.hold(after).map_err(failed())?;
            *handover = Some(event);
        }
        Ok(())
    }

    /// Passes a frame on, and waits for room without limit if the chain's policy says so.
    ///
    /// # Errors
    /// As [`Component::send_within`].
    pub fn send<'c>(&'c self, frame: Frame<'c, 'g>) -> Result<Outcome<'c, 'g>, Error> {
        self.send_until(frame, u64::MAX)
    }

    /// As [`Component::send`], and waits for `limit` at most.
    ///
    /// # Errors
    /// [`Error::Misplaced`] for the last component; [`Error::File`]; [`Error::Driver`]. The frame
    /// goes back to the pool.
    pub fn send_within<'c>(
        &'c self,
        frame: Frame<'c, 'g>,
        limit: Duration,
    ) -> Result<Outcome<'c, 'g>, Error> {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.send_until(frame, monotonic_ns().saturating_add(limit_ns))
    }

    fn send_until<'c>(
        &'c self,
        mut frame: Frame<'c, 'g>,
        deadline_ns: u64,
    ) -> Result<Outcome<'c, 'g>, Error> {
        if self.is_last() {
            return Err(self.misplaced("send: it is the last, and finishes frames"));
        }
        let (lease, sequence) = (&frame.lease, frame.sequence());
        self.carry.before(self.gpu, &self.seat, self.joined()?, lease, sequence, frame.span()?)?;
        self.let_go(&mut frame)?;
        self.seat.note_busy(monotonic_ns().saturating_sub(frame.received_ns));
        let sent = self.seat.send_until(&frame.lease, self.spin_ns, deadline_ns)?;
        let outcome = match sent {
            Sent::Queued => Outcome::Sent,
            Sent::DroppedOldest(n) => Outcome::DroppedOlder(n),
            Sent::DroppedNewest => Outcome::Dropped,
            Sent::Late => return Ok(Outcome::Late(frame)),
            // Dropped here, and counted.
            Sent::Stopping => return Ok(Outcome::Ended),
        };
        frame.passed = true;
        if !matches!(outcome, Outcome::Dropped) {
            self.carry.after(&self.seat, sequence)?;
        }
        Ok(outcome)
    }

    /// Orders the next user of the frame after this component's work on it, and records for that
    /// user that the work is done.
    fn let_go(&self, frame: &mut Frame<'_, 'g>) -> Result<(), Error> {
        let is_done = match self.cross.waits_to_send() {
            true => self.wait_for_gpu().map(|()| true)?,
            false => self.order.is_done_now(self.gpu, self.stream()),
        };
        // It may have been released before, and come back.
        frame.note.done_roles &= !(1 << self.role());
        frame.note.done_roles |= u64::from(is_done) << self.role();
        self.seat.describe(&frame.lease, &frame.note)?;
        if is_done {
            if self.cross.leaves() && self.seat.reach(self.role() + 1) != Reach::Peer {
                self.cross.put(&frame.lease, frame.sequence(), frame.content()?, frame.stamps()?)?;
            }
            // If the host sees it done, it needs no event, no stamp, and no wait.
            return Ok(self.seat.note_recorded(&frame.lease, false)?);
        }
        let behind = self.joined()?;
        frame.put_stamp(behind)?;
        self.order.record(self.gpu, &self.seat, &frame.lease, behind)
    }

    /// Returns a frame, as the last component: it has passed through the whole chain.
    ///
    /// # Errors
    /// [`Error::Misplaced`] for another component; [`Error::File`]; [`Error::Driver`].
    pub fn finish<'c>(&'c self, mut frame: Frame<'c, 'g>) -> Result<(), Error> {
        if !self.is_last() {
            return Err(self.misplaced("finish frames: it is not the last"));
        }
        self.let_go_to_pool(&frame.lease)?;
        self.seat.note_busy(monotonic_ns().saturating_sub(frame.received_ns));
        self.seat.finish(&frame.lease)?;
        frame.passed = true;
        Ok(())
    }

    /// Orders the first component's next use of a frame's memory after this component's work.
    fn let_go_to_pool(&self, lease: &Lease) -> Result<(), Error> {
        if self.cross.waits_to_return() {
            self.wait_for_gpu()?;
            return Ok(self.seat.note_recorded(lease, false)?);
        }
        if self.order.is_done_now(self.gpu, self.stream()) {
            return Ok(self.seat.note_recorded(lease, false)?);
        }
        self.order.record(self.gpu, &self.seat, lease, self.joined()?)
    }

    /// Waits on the host for all work of this component.
    fn wait_for_gpu(&self) -> Result<(), Error> {
        let done = self.gpu.wait_on(self.joined()?, "work on a frame", KERNEL_DEADLINE_MS);
        done.map_err(Error::driver("work on a frame"))
    }

    pub(crate) fn discard(&self, frame: &Frame<'_, 'g>) -> Result<(), Error> {
        self.let_go_to_pool(&frame.lease)?;
        Ok(self.seat.discard(&frame.lease)?)
    }

    /// Whether the chain ends.
    pub fn is_ending(&self) -> bool {
        self.seat.is_stopping()
    }
}

impl Drop for Component<'_> {
    fn drop(&mut self) {
        // Queued work may still use memory that goes with this.
        let behind = self.joined().unwrap_or_else(|_| self.stream());
        if self.gpu.wait_on(behind, "a component's last work", KERNEL_DEADLINE_MS).is_ok() {
            // Its events go with it, and frames that it has passed on may not have been received.
            self.seat.note_all_done();
            self.opened.close();
        }
    }
}
