//! Events' entry points.

use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::current;
use super::context::stream::resolve;
use super::event::{Event, record_context};
use super::gpus::runtime;
use super::object::object;
use super::{capture, put};
use crate::shared::protocol::{Reply, Request};

driver_api! {
    /// Makes an event.
    fn cuEventCreate(event, flags) {
        let runtime = runtime()?;
        let context = current()?;
        let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        let shared_alone =
            flags & CU_EVENT_INTERPROCESS != 0 && flags & CU_EVENT_DISABLE_TIMING == 0;
        if flags & !known != 0 || shared_alone || event.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        context.calls.exclude(runtime)?;
        let Reply::Event { event: slot, secret } = runtime.call(&Request::EventCreate)? else {
            return Err(CuResult::UNKNOWN);
        };
        let base = runtime.page.event(slot).map_or(0, |shared| shared.recorded.load(Ordering::Acquire));
        put(event, Event::adopt(runtime, context, slot, secret, base, flags).handle())
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event) {
        runtime()?;
        let ended: &'static Event = object(event.0)?;
        let runtime = ended.runtime();
        capture::forget_event(ended);
        let slot = ended.slot.load(Ordering::Relaxed);
        if !ended.retire() {
            return Err(CuResult::INVALID_HANDLE);
        }
        runtime.call(&Request::EventDestroy { event: slot }).map(drop)
    }

    /// As `cuEventDestroy_v2`.
    fn cuEventDestroy(event) {
        cuEventDestroy_v2(event).ok()
    }

    /// Records an event in a stream.
    fn cuEventRecord | cuEventRecord_ptsz [per_thread] (event, stream) {
        runtime()?;
        let event: &'static Event = object(event.0)?;
        let stream = resolve(stream, per_thread)?;
        if capture::captures(stream)? {
            return capture::record_event(stream, event, false);
        }
        event.record(stream)
    }

    /// Records an event; with a flag it becomes a node of a captured graph.
    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz [per_thread] (event, stream, flags) {
        if flags & !CU_EVENT_RECORD_EXTERNAL != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        runtime()?;
        let event: &'static Event = object(event.0)?;
        let stream = resolve(stream, per_thread)?;
        if capture::captures(stream)? {
            return capture::record_event(stream, event, flags == CU_EVENT_RECORD_EXTERNAL);
        }
        if flags == CU_EVENT_RECORD_EXTERNAL {
            return Err(CuResult::ILLEGAL_STATE);
        }
        event.record(stream)
    }

    /// Whether an event's last recording is complete.
    fn cuEventQuery(event) {
        runtime()?;
        let event: &'static Event = object(event.0)?;
        let runtime = event.runtime();
        runtime.healthy()?;
        capture::refuse_event(event)?;
        if event.complete()? { Ok(()) } else { Err(CuResult::NOT_READY) }
    }

    /// Waits for an event's last recording.
    fn cuEventSynchronize(event) {
        runtime()?;
        let event: &'static Event = object(event.0)?;
        let runtime = event.runtime();
        runtime.healthy()?;
        capture::refuse_event(event)?;
        let Some(count) = event.recorded()? else { return Ok(()) };
        let shared = event.shared()?;
        runtime.wait(|| shared.completed.load(Ordering::Acquire) >= count)
    }

    /// Simulated milliseconds between two recordings.
    fn cuEventElapsedTime(milliseconds, start, end) {
        runtime()?;
        let start: &'static Event = object(start.0)?;
        let end: &'static Event = object(end.0)?;
        // Clocks of different devices do not agree.
        if !std::ptr::eq(start.runtime(), end.runtime()) {
            return Err(CuResult::INVALID_HANDLE);
        }
        start.runtime().healthy()?;
        let (start, end) = (start.time_ns()?, end.time_ns()?);
        put(milliseconds, (end as f64 - start as f64) as f32 / 1e6)
    }

    /// Records an event after all earlier work of a context's streams.
    fn cuCtxRecordEvent(context, event) {
        runtime()?;
        record_context(object(context.0)?, object(event.0)?)
    }
}
