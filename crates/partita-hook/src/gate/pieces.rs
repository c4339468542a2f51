//! Copies between host and GPU in pieces, so that a neighbour's copies need not wait for them.
//!
//! A copy engine serves one client as long as that has copies ready, for up to 1 ms; then the next
//! one has its turn. So each small copy of a neighbour takes 1 ms longer beside a client that
//! copies all the time. The engine changes at once where a stream does something else between two
//! copies. So after each [`PIECE`] the stream fills a byte of this module's own, which takes the
//! GPU some 3 µs. If several streams of the program copy at the same time, the engine has another
//! one's copy ready, and nothing is won. To have them wait for each other would have a copy wait
//! for whatever is before another one.
//!
//! Copies of pageable memory pass through the driver's own buffers, and copies within the GPU use
//! other engines: neither keeps neighbours waiting. Captured copies stay as they are.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::{CUdeviceptr, CUpointer_attribute};

use crate::account::tenant;
use crate::driver::calls::{Kept, calls};
use crate::driver::capture;
use crate::driver::page::PageCalls;
use crate::gate::waits;
use crate::holder::fences;
use crate::sys::pages;

/// The most that is copied at once, in bytes: 0.15 ms at 55 GB/s.
const PIECE: usize = 8 << 20;
/// A copy that is over before the program can make the next one leaves the engine idle anyway.
const SMALL: usize = 64 << 10;
/// Bytes that the GPU maps; the first one is filled.
const PAGE_BYTES: usize = 4096;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: CUpointer_attribute = 2;
/// `CU_MEMORYTYPE_HOST`: pinned memory.
const HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;

calls! {
    /// Entry points that copy, and that stand between copies.
    struct CopyCalls;
    to_device = cuMemcpyHtoDAsync_v2;
    to_host = cuMemcpyDtoHAsync_v2;
    fill = cuMemsetD8Async;
    pointer_attribute = cuPointerGetAttribute;
}

struct PieceCalls {
    copies: CopyCalls,
    page: PageCalls,
}

fn calls() -> Option<&'static PieceCalls> {
    static CALLS: Kept<PieceCalls> = Kept::new();
    CALLS.get(|| Ok(PieceCalls { copies: CopyCalls::resolve()?, page: PageCalls::resolve()? }))
}

/// Null until it is needed, then never freed.
static PAGE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
/// The context in which the page was mapped last.
static MAPPED_IN: AtomicUsize = AtomicUsize::new(0);
/// Bytes that smaller copies have copied since the last fill.
static COPIED: AtomicUsize = AtomicUsize::new(0);

/// What is copied.
#[derive(Clone, Copy)]
struct Copy {
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: *mut c_void,
}

impl Copy {
    /// Whether it is between pinned memory and the GPU's, at both ends: what the driver refuses, it
    /// refuses as a whole.
    fn crosses(&self, calls: &PieceCalls) -> bool {
        let kind = |address: CUdeviceptr| {
            let mut kind: c_uint = 0;
            // SAFETY: room for the attribute, an unsigned int.
            let result =
                unsafe { (calls.copies.pointer_attribute)((&raw mut kind).cast(), MEMORY_TYPE, address) };
            if result.is_ok() { kind } else { 0 }
        };
        let kinds = |at: CUdeviceptr| (kind(self.to.wrapping_add(at)), kind(self.from.wrapping_add(at)));
        let first = kinds(0);
        matches!(first, (HOST, DEVICE) | (DEVICE, HOST)) && kinds(self.bytes as CUdeviceptr - 1) == first
    }
}

/// Whether copies of this process may keep a neighbour's waiting.
fn has_neighbours() -> bool {
    let is_beside = |tenant: &tenant::Tenant| {
        tenant.gpus().iter().any(|gpu| gpu.limits.has_neighbours().unwrap_or(false))
    };
    tenant::current().is_some_and(is_beside) && !capture::is_any()
}

/// The engine may change to another client behind what is in the stream.
fn let_others(calls: &PieceCalls, stream: *mut c_void) {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        // Of two threads one leaves its page behind.
        page = pages::zeroed(PAGE_BYTES);
        if page.is_null() {
            return;
        }
        PAGE.store(page, Ordering::Release);
    }
    // A tool in the program reports calls that fail, so no page is mapped a second time. Another
    // context may have been given the address of one that has ended.
    let context = tenant::current().map_or(0, |tenant| tenant.driver().current_context());
    let known = (MAPPED_IN.swap(context, Ordering::Relaxed) == context)
        .then(|| calls.page.find(page.expose_provenance()));
    let device =
        known.and_then(Result::ok).map_or_else(|| calls.page.map(page.expose_provenance(), PAGE_BYTES), Ok);
    if let Ok(device) = device {
        fences::count_copy(stream);
        // SAFETY: a byte of the page, which stays; the program's stream. If this fails, the engine
        // changes later.
        let _ = unsafe { (calls.copies.fill)(device, 0, 1, stream) };
    }
}

/// Makes a copy by `piece`, which copies so many bytes at an offset, and the rest by `last`.
#[inline]
fn make(
    copy: Copy,
    piece: impl Fn(&PieceCalls, usize, usize) -> CuResult,
    last: impl FnOnce(usize, usize) -> CuResult,
) -> CuResult {
    let shares = copy.bytes >= SMALL && has_neighbours();
    let Some(calls) = shares.then(calls).flatten() else { return last(0, copy.bytes) };
    let is_large = copy.bytes > PIECE;
    if is_large && !copy.crosses(calls) {
        return last(0, copy.bytes);
    }
    let mut at = 0;
    while copy.bytes - at > PIECE {
        // One by one: a fence for the holder may come between two of them.
        fences::count_copy(copy.stream);
        let result = piece(calls, at, PIECE);
        if result.is_err() {
            return result;
        }
        let_others(calls, copy.stream);
        at += PIECE;
    }
    if is_large {
        fences::count_copy(copy.stream);
    }
    let result = last(at, copy.bytes - at);
    if is_large || is_due(copy.bytes) && copy.crosses(calls) {
        let_others(calls, copy.stream);
    }
    result
}

/// Whether smaller copies, with this one, make a piece.
fn is_due(bytes: usize) -> bool {
    let is_due = COPIED.fetch_add(bytes, Ordering::Relaxed) + bytes >= PIECE;
    if is_due {
        COPIED.store(0, Ordering::Relaxed);
    }
    is_due
}

/// Wraps `cuMemcpyHtoDAsync_v2`.
pub unsafe fn to_device(
    real: prototypes::cuMemcpyHtoDAsync_v2,
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, or parts of what it copies.
    let copy = |at: usize, bytes: usize| unsafe {
        real(to.wrapping_add(at as CUdeviceptr), from.wrapping_byte_add(at), bytes, stream)
    };
    make(Copy { to, from: from.addr() as CUdeviceptr, bytes, stream }, |_, at, bytes| copy(at, bytes), copy)
}

/// Wraps `cuMemcpyDtoHAsync_v2`.
pub unsafe fn to_host(
    real: prototypes::cuMemcpyDtoHAsync_v2,
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, or parts of what it copies.
    let copy = |at: usize, bytes: usize| unsafe {
        real(to.wrapping_byte_add(at), from.wrapping_add(at as CUdeviceptr), bytes, stream)
    };
    make(Copy { to: to.addr() as CUdeviceptr, from, bytes, stream }, |_, at, bytes| copy(at, bytes), copy)
}

/// Wraps `cuMemcpyAsync`.
pub unsafe fn either_way(
    real: prototypes::cuMemcpyAsync,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, or parts of what it copies.
    let copy = |at: usize, bytes: usize| unsafe {
        real(to.wrapping_add(at as CUdeviceptr), from.wrapping_add(at as CUdeviceptr), bytes, stream)
    };
    make(Copy { to, from, bytes, stream }, |_, at, bytes| copy(at, bytes), copy)
}

/// Wraps `cuMemcpyHtoD_v2`, in the default `STREAM` of the context or the thread. All pieces but
/// the last are put into the stream, and the last one waits for them.
pub unsafe fn to_device_now<const STREAM: usize>(
    real: prototypes::cuMemcpyHtoD_v2,
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
) -> CuResult {
    let stream = core::ptr::without_provenance_mut(STREAM);
    make(
        Copy { to, from: from.addr() as CUdeviceptr, bytes, stream },
        // SAFETY: parts of what the caller copies.
        |calls, at, bytes| unsafe {
            let to = to.wrapping_add(at as CUdeviceptr);
            (calls.copies.to_device)(to, from.wrapping_byte_add(at), bytes, stream)
        },
        // SAFETY: the caller's arguments, or a part of what it copies.
        |at, bytes| unsafe {
            waits::copy(real, to.wrapping_add(at as CUdeviceptr), from.wrapping_byte_add(at), bytes)
        },
    )
}

/// Wraps `cuMemcpyDtoH_v2`, as [`to_device_now`].
pub unsafe fn to_host_now<const STREAM: usize>(
    real: prototypes::cuMemcpyDtoH_v2,
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
) -> CuResult {
    let stream = core::ptr::without_provenance_mut(STREAM);
    make(
        Copy { to: to.addr() as CUdeviceptr, from, bytes, stream },
        // SAFETY: parts of what the caller copies.
        |calls, at, bytes| unsafe {
            let from = from.wrapping_add(at as CUdeviceptr);
            (calls.copies.to_host)(to.wrapping_byte_add(at), from, bytes, stream)
        },
        // SAFETY: the caller's arguments, or a part of what it copies.
        |at, bytes| unsafe {
            waits::copy_to_host(real, to.wrapping_byte_add(at), from.wrapping_add(at as CUdeviceptr), bytes)
        },
    )
}
