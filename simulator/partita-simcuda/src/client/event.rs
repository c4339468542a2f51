//! Events.

use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::Context;
use super::context::stream::Stream;
use super::object::{Mark, Object, Used};
use super::runtime::Runtime;
use super::worker::{self, HostWork};
use crate::shared::command::Command;
use crate::shared::page::EventSlot;

/// An event: a slot in the board's table.
#[derive(Debug)]
pub struct Event {
    mark: Mark,
    runtime: AtomicPtr<Runtime>,
    context: AtomicPtr<Context>,
    /// Its slot.
    pub slot: AtomicU32,
    /// The secret with which another process opens it.
    pub secret: AtomicU64,
    /// The slot's count when this event was made: no recording of this event is that low.
    base: AtomicU64,
    /// Creation flags.
    pub flags: AtomicU32,
    /// Whether its last recording was captured and not executed.
    pub captured: AtomicBool,
}

impl Object for Event {
    const KIND: u64 = u64::from_le_bytes(*b"simevent");
    const BAD: CuResult = CuResult::INVALID_HANDLE;
    fn mark(&self) -> &Mark {
        &self.mark
    }
}

static USED: Used<Event> = Used::new();

impl Event {
    /// Makes the object of a slot, in a context.
    pub fn adopt(
        runtime: &'static Runtime,
        context: &'static Context,
        slot: u32,
        secret: u64,
        base: u64,
        flags: u32,
    ) -> &'static Self {
        let event = USED.take().unwrap_or_else(|| {
            Box::leak(Box::new(Self {
                mark: Mark::live(0),
                runtime: AtomicPtr::new(std::ptr::null_mut()),
                context: AtomicPtr::new(std::ptr::null_mut()),
                slot: AtomicU32::new(0),
                secret: AtomicU64::new(0),
                base: AtomicU64::new(0),
                flags: AtomicU32::new(0),
                captured: AtomicBool::new(false),
            }))
        });
        event.runtime.store(std::ptr::from_ref(runtime).cast_mut(), Ordering::Relaxed);
        event.context.store(std::ptr::from_ref(context.home()).cast_mut(), Ordering::Relaxed);
        event.slot.store(slot, Ordering::Relaxed);
        event.secret.store(secret, Ordering::Relaxed);
        event.base.store(base, Ordering::Relaxed);
        event.flags.store(flags, Ordering::Relaxed);
        event.captured.store(false, Ordering::Relaxed);
        event.mark.revive(Self::KIND);
        event
    }

    /// Its GPU.
    pub fn runtime(&self) -> &'static Runtime {
        // SAFETY: set when the event is made, to a runtime that is never unmapped.
        unsafe { &*self.runtime.load(Ordering::Relaxed) }
    }

    /// Its slot in the board's table.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn shared(&self) -> Result<&'static EventSlot, CuResult> {
        self.runtime().page.event(self.slot.load(Ordering::Relaxed)).ok_or(CuResult::INVALID_HANDLE)
    }

    /// The last requested recording; `None` if it was never recorded.
    pub fn recorded(&self) -> Result<Option<u64>, CuResult> {
        let count = self.shared()?.recorded.load(Ordering::Acquire);
        Ok((count > self.base.load(Ordering::Relaxed)).then_some(count))
    }

    /// The command of a new recording.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn next_recording(&self) -> Result<Command, CuResult> {
        let count = self.shared()?.recorded.fetch_add(1, Ordering::AcqRel) + 1;
        self.captured.store(false, Ordering::Relaxed);
        Ok(Command::Record { event: self.slot.load(Ordering::Relaxed), count })
    }

    /// The command of a wait for the last recording; `None` if it was never recorded.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn last_recording(&self) -> Result<Option<Command>, CuResult> {
        let event = self.slot.load(Ordering::Relaxed);
        Ok(self.recorded()?.map(|count| Command::Wait { event, count }))
    }

    /// Records it after the stream's earlier work.
    ///
    /// # Errors
    /// Those of publishing.
    pub fn record(&self, stream: &Stream) -> Result<(), CuResult> {
        let runtime = stream.runtime();
        // An event can be waited for everywhere, and recorded in its own context (the reference of
        // cuEventRecord).
        let context = std::ptr::from_ref(stream.context().home());
        if !std::ptr::eq(runtime, self.runtime())
            || !std::ptr::eq(context, self.context.load(Ordering::Relaxed))
        {
            return Err(CuResult::INVALID_HANDLE);
        }
        runtime.healthy()?;
        let command = self.next_recording()?;
        runtime.command(stream, &command).map(drop)
    }

    /// Holds a stream, of whatever device, until the last recording is complete.
    ///
    /// # Errors
    /// Those of publishing.
    pub fn hold(&self, stream: &Stream) -> Result<(), CuResult> {
        let Some(count) = self.recorded()? else { return Ok(()) };
        let (here, there) = (stream.runtime(), self.runtime());
        let event = self.slot.load(Ordering::Relaxed);
        let command = if std::ptr::eq(here, there) {
            Command::Wait { event, count }
        } else {
            Command::Host { token: worker::prepare(here, HostWork::Elsewhere(there, event, count), false) }
        };
        here.command(stream, &command).map(drop)
    }

    /// Whether its last recording is complete; one that never happened is.
    pub fn complete(&self) -> Result<bool, CuResult> {
        let Some(count) = self.recorded()? else { return Ok(true) };
        Ok(self.shared()?.completed.load(Ordering::Acquire) >= count)
    }

    /// When its last recording completed, in virtual nanoseconds.
    pub fn time_ns(&self) -> Result<u64, CuResult> {
        if self.flags.load(Ordering::Relaxed) & CU_EVENT_DISABLE_TIMING != 0 || self.recorded()?.is_none() {
            return Err(CuResult::INVALID_HANDLE);
        }
        if !self.complete()? {
            return Err(CuResult::NOT_READY);
        }
        Ok(self.shared()?.time_ns.load(Ordering::Acquire))
    }

    /// Destroys the object. `false` after an earlier call.
    pub fn retire(&'static self) -> bool {
        let ended = self.mark.kill(Self::KIND);
        if ended {
            USED.put(self);
        }
        ended
    }

    /// The slot's count when it was made.
    pub fn base(&self) -> u64 {
        self.base.load(Ordering::Relaxed)
    }

    /// Its handle.
    pub fn handle(&self) -> CUevent {
        CUevent(std::ptr::from_ref(self).cast_mut().cast::<c_void>())
    }
}

/// Records an event after all earlier work of a context's streams.
///
/// # Errors
/// Those of recording.
pub fn record_context(context: &'static Context, event: &'static Event) -> Result<(), CuResult> {
    // The legacy stream waits for the blocking ones by itself; the others are joined by events.
    for stream in context.all_streams() {
        if stream.flags.load(Ordering::Relaxed) & CU_STREAM_NON_BLOCKING != 0 {
            event.record(stream)?;
            event.hold(context.legacy)?;
        }
    }
    event.record(context.legacy)
}

/// Holds all streams of a context until an event's last recording is complete.
///
/// # Errors
/// Those of waiting for an event.
pub fn wait_context(context: &'static Context, event: &'static Event) -> Result<(), CuResult> {
    context.all_streams().into_iter().try_for_each(|stream| event.hold(stream))
}
