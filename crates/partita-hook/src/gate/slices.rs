//! Time slices: how long the GPU runs this process before a waiting one has its turn.
//!
//! Processes that take turns (without MPS) are preempted in the middle of their kernels, once their
//! slice is over and another one waits. libcuda sets the slice of each of its channel groups by an
//! unprivileged command to the kernel driver, to 2048 µs on an H200 (`docs/hardware.md`). The hook
//! intercepts that command, an `ioctl` ([`ioctl`](crate::entry::ioctl)), and records the group.
//! While a tenant of high priority exists, groups of low priority get [`SHORT_US`]: a request of
//! high priority then waits for that and a switch instead of for the end of a kernel. Otherwise
//! they have libcuda's slice, and so have several processes of low priority, since a switch costs
//! 0.28 ms (two trainings in turns of 200 µs reach 46 % of their throughput in turns of 2048).
//!
//! Short slices for low-priority work are GPreempt's idea (USENIX ATC 2025); GPreempt needs a
//! kernel module, this does not.
//!
//! If libcuda does not use this path, or the driver refuses, the gate still works at the ends of
//! kernels, and the hook prints a line.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_ulong, c_void};

use partita_abi::control::{NV_OK, RM_CONTROL, RM_CONTROL_BYTES, SET_TIMESLICE, TIMESLICE_BYTES, request};
use partita_ledger::mutex::Mutex;

use crate::driver::real::ask;
use crate::sys::fork::{in_child, renew};
use crate::sys::next::next_ioctl;
use crate::sys::report;

/// The request of a command.
pub const CONTROL: u32 = request(RM_CONTROL, RM_CONTROL_BYTES);

/// The slice of low-priority processes, in microseconds. On an H200 ResNet-50 beside training has a
/// p99 of 1.09 × alone with 20 µs, 1.10 × with 50 and 1.15 × with 100 and 200
/// (`research/bench/results/hardware/slices.txt`).
const SHORT_US: u64 = 50;

/// `NVOS54_PARAMETERS`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: u64,
    parameter_bytes: u32,
    status: u32,
}

const _: () = assert!(size_of::<Control>() == RM_CONTROL_BYTES);

/// A channel group of libcuda's in this process.
struct Group {
    /// The node through which it was made.
    node: c_int,
    client: u32,
    object: u32,
    /// The slice that libcuda gave it.
    given_us: u64,
}

struct Groups {
    all: Vec<Group>,
    short: bool,
}

impl Groups {
    const NONE: Self = Self { all: Vec::new(), short: false };
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups::NONE);

/// # Safety
/// As for ioctl(2), with a `Control` as the argument. It may have any alignment.
pub unsafe fn on_control(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    let argument: *mut Control = argument.cast();
    // SAFETY: the caller's.
    let control = unsafe { argument.read_unaligned() };
    if control.command != SET_TIMESLICE || control.parameter_bytes as usize != TIMESLICE_BYTES {
        // SAFETY: the caller guarantees it.
        return unsafe { next_ioctl(node, wanted, argument.cast()) };
    }
    let mut groups = GROUPS.lock();
    // SAFETY: the command's parameters are a number of microseconds.
    let given_us =
        unsafe { core::ptr::with_exposed_provenance::<u64>(control.parameters as usize).read_unaligned() };
    let group = Group { node, client: control.client, object: control.object, given_us };
    groups.all.retain(|known| (known.client, known.object) != (group.client, group.object));
    let is_short = groups.short && given_us > SHORT_US && group.set(SHORT_US);
    groups.all.push(group);
    if is_short {
        // SAFETY: the caller's argument.
        unsafe { (&raw mut (*argument).status).write_unaligned(NV_OK) };
        return 0;
    }
    // SAFETY: the caller guarantees it.
    unsafe { ask(node, wanted, argument.cast()) }
}

/// A client or an object of one is about to be freed. Before that: afterwards the name may be
/// another group's.
pub fn on_free(client: u32, object: u32) {
    GROUPS.lock().all.retain(|group| group.client != client || group.object != object && client != object);
}

impl Group {
    /// Whether the driver took the slice.
    fn set(&self, mut slice_us: u64) -> bool {
        let mut control = Control {
            client: self.client,
            object: self.object,
            command: SET_TIMESLICE,
            flags: 0,
            parameters: (&raw mut slice_us).expose_provenance() as u64,
            parameter_bytes: TIMESLICE_BYTES as u32,
            status: NV_OK,
        };
        // SAFETY: a live command with live parameters.
        let asked = unsafe { ask(self.node, CONTROL.into(), (&raw mut control).cast()) };
        if asked == 0 && control.status == NV_OK {
            return true;
        }
        report::once!(
            "the driver refused a time slice of {slice_us} us (status {:#x}): tenants of high priority wait for the ends of this \
             program's kernels",
            control.status
        );
        false
    }
}

/// Gives this process's groups short slices, or libcuda's own again.
pub fn shorten(short: bool) {
    let mut groups = GROUPS.lock();
    if groups.short == short {
        return;
    }
    groups.short = short;
    if short && groups.all.is_empty() && takes_turns() {
        report::line(format_args!(
            "this program's libcuda sets no time slice that could be seen: tenants of high priority wait for the ends of its kernels"
        ));
    }
    for group in &groups.all {
        group.set(if short { group.given_us.min(SHORT_US) } else { group.given_us });
    }
}

/// Whether `partita run` keeps this process out of MPS: clients of a service have no turns of their
/// own.
fn takes_turns() -> bool {
    // SAFETY: a valid name; the answer is looked at at once.
    let directory = unsafe { libc::getenv(c"CUDA_MPS_PIPE_DIRECTORY".as_ptr()) };
    // SAFETY: getenv returned a string.
    !directory.is_null() && unsafe { CStr::from_ptr(directory) }.to_bytes().starts_with(b"/dev/null/")
}

// A forked child has no channel group: CUDA cannot be used in it.
in_child! {
    renew(&GROUPS, Groups::NONE);
}
