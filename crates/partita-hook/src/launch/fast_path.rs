//! The fast path of a launch: what most launches of most programs do in this library.
//!
//! 1. The exported function ([`table`](crate::entry::table)) asks [`is_plain`]: three loads and
//!    three comparisons.
//! 2. It jumps to the driver's function. The arguments stay where they are.
//! 3. The driver calls back before it uploads the descriptor of the launch, and
//!    [`on_launch`](crate::launch::mask::on_launch) writes the tenant's mask there.
//!
//! Where streams are counted ([`slots`](crate::slots)), [`is_plain_in`] takes the place of the
//! first step. Every other launch takes the slow path, [`launch::calls`](crate::launch::calls). So
//! do the first launch of each function, the first in each stream after a rest ([`in_use`]) and
//! every launch of a process where [`SLOW_PATH`] holds.
//!
//! What is known of a function is one word in a table: its address in the upper 48 bits, and below
//! them what it brings to its launches. A collision only costs asking the driver again.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::account::tenant::{self, Tenant};
use crate::driver::stream::per_thread;
use crate::gate::pass;
use crate::slots::{in_use, seen};

/// The largest cluster that a word can hold, in blocks. Larger ones are stored as this one; devices
/// run 16.
pub const CLUSTER_BLOCKS_MAX: u32 = 0x1fff;
/// Launches are looked at for their streams, which are counted.
const COUNTED: u32 = 0x2000;
/// The function may launch kernels.
const LAUNCHES: u32 = 0x4000;
/// No launch of this process takes the fast path: it sees several GPUs, so that each launch is to
/// be placed, or launches pass a gate or are measured.
const SLOW_PATH: u32 = 0x8000;
/// The function has no cluster, launches nothing, and its launches take the fast path.
const PLAIN: u32 = 1;

static KNOWN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// What a function brings to each of its launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Blocks of the cluster that it was compiled for, 1 for none.
    pub cluster_blocks: u32,
    /// Whether its module holds the device runtime, by which kernels launch kernels (dynamic
    /// parallelism).
    pub launches: bool,
}

#[inline(always)]
fn entry_of(function: *mut c_void) -> &'static AtomicU64 {
    &KNOWN[(function as usize >> 4) % KNOWN.len()]
}

/// Whether a launch of the function in this stream is the driver's alone, but for its mask.
#[inline(always)]
pub fn is_plain(function: *mut c_void, stream: *mut c_void) -> bool {
    let known = entry_of(function).load(Ordering::Relaxed);
    known == (function as u64) << 16 | u64::from(PLAIN)
        && tenant::current().is_some()
        && in_use::is_noted(stream)
}

/// The same for a call to which a null stream is the thread's own.
#[inline(always)]
pub fn is_plain_per_thread(function: *mut c_void, stream: *mut c_void) -> bool {
    is_plain(function, per_thread(stream))
}

/// Whether a launch of the function in this stream is the driver's alone, where streams are
/// counted.
#[inline]
pub fn is_plain_in(function: *mut c_void, stream: *mut c_void) -> bool {
    let known = entry_of(function).load(Ordering::Relaxed);
    known == (function as u64) << 16 | u64::from(PLAIN | COUNTED)
        && tenant::current().is_some_and(|tenant| seen::is_free(tenant.first(), stream.addr()))
        && in_use::is_noted(stream)
}

/// Has streams counted from now on.
#[cold]
pub fn count_streams() {
    if seen::count() {
        // note() either sees that streams are counted, or its word is forgotten here.
        fence(Ordering::SeqCst);
        // Functions that are noted from here on are noted together with that.
        forget();
    }
}

/// What is known of a function.
pub fn known(function: *mut c_void) -> Option<Traits> {
    let known = entry_of(function).load(Ordering::Relaxed);
    (known >> 16 == function as u64 & 0xffff_ffff_ffff && known != 0).then_some(Traits {
        cluster_blocks: known as u32 & CLUSTER_BLOCKS_MAX,
        launches: known as u32 & LAUNCHES != 0,
    })
}

/// Notes what the driver has told of a function.
pub fn note(tenant: &Tenant, function: *mut c_void, traits: Traits) {
    let slow = if tenant.places().is_some() || pass::is_any() { SLOW_PATH } else { 0 };
    let counted = if seen::counts() { COUNTED } else { 0 };
    let launches = if traits.launches { LAUNCHES } else { 0 };
    let word = (function as u64) << 16 | u64::from(traits.cluster_blocks | launches | slow | counted);
    entry_of(function).store(word, Ordering::Relaxed);
    if counted == 0 {
        fence(Ordering::SeqCst);
        if seen::counts() {
            // Another thread has begun to count, and may have been here before.
            entry_of(function).store(0, Ordering::Relaxed);
        }
    }
}

/// Forgets all functions: what is loaded next may give another function the same address.
pub fn forget() {
    KNOWN.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
}
