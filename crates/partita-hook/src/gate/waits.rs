//! Calls by which the program waits, asks whether something is done, or ends a stream: the GPU
//! opens the lanes of this process behind what is in its streams, and what is measured gets its
//! end.

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::prototypes;

use crate::account::{locate, tenant};
use crate::gate::lanes;
use crate::holder::fences;
use crate::memory::pools;
use crate::slots::finished::{self, Covers};
use crate::slots::{hold, rest, seen};
use crate::time::meter;

/// The program is about to wait, for a stream or for anything: has the GPU open every lane of this
/// process behind what is in its streams, and mark the end of what is measured.
#[inline]
fn before_waiting(stream: Option<*mut c_void>) {
    if lanes::holds() {
        lanes::open_each(|_| true);
    }
    if meter::measures() {
        meter::mark_each_end(stream);
    }
}

/// Wraps the calls that synchronise with an event.
pub unsafe fn synchronize(real: prototypes::cuEventSynchronize, what: *mut c_void) -> CuResult {
    before_waiting(None);
    // SAFETY: the caller's handle, passed on.
    finished::reported(Covers::Part, || unsafe { pools::synchronize(real, what) })
}

/// Wraps `cuCtxSynchronize_v2`.
pub unsafe fn synchronize_context(real: prototypes::cuCtxSynchronize_v2, context: *mut c_void) -> CuResult {
    before_waiting(None);
    // SAFETY: the caller's handle, passed on.
    finished::reported(Covers::Context, || unsafe { pools::synchronize(real, context) })
}

/// Wraps `cuStreamSynchronize`.
pub unsafe fn synchronize_stream(real: prototypes::cuStreamSynchronize, stream: *mut c_void) -> CuResult {
    before_waiting(Some(stream));
    // SAFETY: the caller's handle, passed on.
    finished::reported(Covers::Stream(Some(stream.addr())), || unsafe { pools::synchronize(real, stream) })
}

/// Wraps `cuCtxSynchronize`.
pub unsafe fn synchronize_current(real: prototypes::cuCtxSynchronize) -> CuResult {
    before_waiting(None);
    // SAFETY: nothing is passed.
    let result = finished::reported(Covers::Context, || unsafe { pools::synchronize_current(real) });
    if result.is_ok()
        && seen::counts()
        && let Some(tenant) = tenant::current()
    {
        hold::synchronized(tenant.driver().current_context());
    }
    result
}

/// Wraps `cuStreamQuery`: a program that polls a stream waits for it, too.
pub unsafe fn query_stream(real: prototypes::cuStreamQuery, stream: *mut c_void) -> CuResult {
    before_asking(stream);
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { real(stream) };
    if result.is_ok() {
        finished::answered(Some(stream.addr()));
    }
    result
}

/// Wraps `cuEventQuery`. A program waits if it queries again without a launch in between, or if the
/// event has completed. A program that queries once and then launches does not wait.
pub unsafe fn query_event(real: prototypes::cuEventQuery, event: *mut c_void) -> CuResult {
    let holds = lanes::holds();
    let waits = holds && lanes::asked_before();
    if waits {
        lanes::open_each(|_| true);
    }
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { real(event) };
    if result.is_ok() {
        if holds && !waits {
            lanes::open_each(|_| true);
        }
        finished::answered(None);
    }
    result
}

macro_rules! copies {
    ($($covers:expr, $name:ident($($argument:ident: $type:ident),*);)*) => {
        $(
            /// Wraps copies that the program waits for.
            pub unsafe fn $name<$($type),*>(
                real: unsafe extern "C" fn($($type),*) -> CuResult,
                $($argument: $type),*
            ) -> CuResult {
                before_waiting(None);
                // The process may die in the call, and a copy within the device goes on after it.
                fences::count_copy(core::ptr::null_mut());
                // SAFETY: the caller's arguments, passed on.
                finished::reported($covers, || unsafe { real($($argument),*) })
            }
        )*
    };
}

copies! {
    // A copy to the host waits for its stream; copies within the device do not.
    Covers::Stream(None), copy_to_host(to: A, from: B, bytes: C);
    Covers::Part, copy(to: A, from: B, bytes: C);
    Covers::Part, copy_array(to: A, from: B, offset: C, bytes: D);
    Covers::Part, copy_peer(to: A, of: B, from: C, other: D, bytes: E);
    Covers::Part, copy_as_told(what: A);
}

/// Of the stream alone that is asked about, and so is not being captured: other threads may begin a
/// capture in others.
fn before_asking(stream: *mut c_void) {
    if lanes::holds() {
        lanes::open_each(|held| held == stream.addr() + 1);
    }
    if meter::measures() {
        meter::mark_each_end(Some(stream));
    }
}

/// Wraps `cuStreamDestroy`: its lane goes to another stream.
pub unsafe fn destroy_stream(real: prototypes::cuStreamDestroy, stream: *mut c_void) -> CuResult {
    if lanes::holds() {
        let key = stream.addr() + 1;
        lanes::open_each(|held| held == key);
    }
    lanes::forget_stream(stream);
    if meter::measures() {
        meter::end_stream(stream);
    }
    hold::end_stream(stream);
    fences::stream_ends(stream);
    rest::stream_ends(stream);
    // SAFETY: the caller's handle, passed on.
    let result = unsafe { locate::destroy_stream(real, stream) };
    if result.is_ok() {
        seen::ended();
    }
    result
}
