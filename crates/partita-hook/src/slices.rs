//! Time slices: for how long the GPU runs this process before one that waits has its turn.
//!
//! Processes that take turns (without MPS) are preempted in the middle of their kernels, once their slice is over and another one waits.
//! libcuda sets the slice of each of its channel groups by a command to the kernel driver that needs no privilege, to 2048 µs on an H200
//! (`docs/hardware.md`). The hook stands in the way of that command, an `ioctl`, and notes the group. While a tenant of high priority is
//! about, groups of low priority get [`SHORT_US`]: a request of high priority then waits for that and a switch instead of for the end of a
//! kernel. Without one they have libcuda's, and so have several processes of low priority, since a switch costs 0.28 ms (two trainings in turns of 200 µs do 46 %
//! of what they do in turns of 2048).
//!
//! Short slices for those who are to give way are GPreempt's idea (USENIX ATC 2025); it needs a kernel module of its own, this does not.
//!
//! Where libcuda does not come by here, or the driver refuses, the gate holds at the ends of kernels as before, and a line says so.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use partita_abi::control::{
    NV_OK, RM_CONTROL, RM_CONTROL_BYTES, RM_FREE, RM_FREE_BYTES, SET_TIMESLICE, TIMESLICE_BYTES, request,
};

use crate::linker::real_dlsym;
use crate::lock::Mutex;
use crate::{real, report};

/// The slice of those who give way, in microseconds. On an H200 ResNet-50 beside training has a p99 of 1.09 × alone with 20 µs, 1.10 × with
/// 50 and 1.15 × with 100 and 200 (`bench/results/hardware/slices.txt`).
const SHORT_US: u64 = 50;

const CONTROL: u32 = request(RM_CONTROL, RM_CONTROL_BYTES);
const FREE: u32 = request(RM_FREE, RM_FREE_BYTES);

/// `NVOS54_PARAMETERS`.
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

/// `NVOS00_PARAMETERS`.
#[repr(C)]
struct Free {
    client: u32,
    parent: u32,
    object: u32,
    status: u32,
}

const _: () = assert!(size_of::<Control>() == RM_CONTROL_BYTES && size_of::<Free>() == RM_FREE_BYTES);

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

static GROUPS: Mutex<Groups> = Mutex::new(Groups { all: Vec::new(), short: false });

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// The next `ioctl` behind this library's; null before it is known.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Finds what `ioctl` passes on to. At load: later a forked child may be the first to ask, without the linker's lock.
pub fn find_next() {
    // SAFETY: a constant name.
    NEXT.store(unsafe { real_dlsym(libc::RTLD_NEXT, c"ioctl") }, Ordering::Release);
}

/// Interposed ioctl(2). The third argument is passed in the same register whether a function is variadic or not.
///
/// # Safety
/// As for ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    // Anything else, which is what other programs ask, goes on after two comparisons.
    match u32::try_from(wanted) {
        Ok(CONTROL) if !argument.is_null() && crate::is_tenant() => {
            // SAFETY: passed on to the caller; the request says what the argument is.
            unsafe { on_control(node, wanted, argument.cast()) }
        }
        Ok(FREE) if !argument.is_null() && crate::is_tenant() => {
            // SAFETY: as above.
            unsafe { on_free(node, wanted, argument.cast()) }
        }
        // SAFETY: passed on to the caller.
        _ => unsafe { next(node, wanted, argument) },
    }
}

/// # Safety
/// As for ioctl(2).
unsafe fn next(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    let next = NEXT.load(Ordering::Acquire);
    if next.is_null() {
        // Before this library was initialised, or without a C library that has it.
        // SAFETY: passed on to the caller.
        return unsafe { libc::syscall(libc::SYS_ioctl, node, wanted, argument) as c_int };
    }
    // SAFETY: the address is that of an ioctl, which is called like this on x86-64.
    let next: Ioctl = unsafe { core::mem::transmute(next) };
    // SAFETY: passed on to the caller.
    unsafe { next(node, wanted, argument) }
}

/// The command by its way to the kernel: a simulated libcuda brings its kernel along, as everywhere (`partita-driver`, `control::nodes`).
///
/// # Safety
/// As for ioctl(2), with a `Control` or a `Free` as the argument.
unsafe fn ask(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    const SIMULATED: &CStr = c"partita_sim_control_ioctl";
    let simulated = real::symbol_if_loaded(SIMULATED);
    if simulated.is_null() {
        // SAFETY: passed on to the caller.
        return unsafe { next(node, wanted, argument) };
    }
    // SAFETY: the simulated libcuda's function has this type.
    let simulated: Ioctl = unsafe { core::mem::transmute(simulated) };
    // SAFETY: passed on to the caller.
    unsafe { simulated(node, wanted, argument) }
}

/// # Safety
/// As for ioctl(2), with a `Control` as the argument.
unsafe fn on_control(node: c_int, wanted: c_ulong, argument: *mut Control) -> c_int {
    // SAFETY: the caller's.
    let control = unsafe { &mut *argument };
    if control.command != SET_TIMESLICE || control.parameter_bytes as usize != TIMESLICE_BYTES {
        // SAFETY: passed on to the caller.
        return unsafe { next(node, wanted, argument.cast()) };
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
        control.status = NV_OK;
        return 0;
    }
    // SAFETY: passed on to the caller.
    unsafe { ask(node, wanted, argument.cast()) }
}

/// # Safety
/// As for ioctl(2), with a `Free` as the argument.
unsafe fn on_free(node: c_int, wanted: c_ulong, argument: *mut Free) -> c_int {
    // SAFETY: the caller's.
    let (client, object) = unsafe { ((*argument).client, (*argument).object) };
    // Before the call: afterwards the name may be another group's.
    GROUPS.lock().all.retain(|group| group.client != client || group.object != object && client != object);
    // SAFETY: passed on to the caller.
    unsafe { next(node, wanted, argument.cast()) }
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
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Ordering::Relaxed) {
            report::line(format_args!(
                "the driver refused a time slice of {slice_us} us (status {:#x}): tenants of high priority wait for the ends of this \
                 program's kernels",
                control.status
            ));
        }
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

/// Whether `partita run` keeps this process out of MPS: clients of a service have no turns of their own.
fn takes_turns() -> bool {
    // SAFETY: a valid name; the answer is looked at at once.
    let directory = unsafe { libc::getenv(c"CUDA_MPS_PIPE_DIRECTORY".as_ptr()) };
    // SAFETY: getenv returned a string.
    !directory.is_null() && unsafe { CStr::from_ptr(directory) }.to_bytes().starts_with(b"/dev/null/")
}

/// A forked child has no channel group: CUDA cannot be used in it.
///
/// # Safety
/// Called in the only thread of a forked child.
pub unsafe fn reset_after_fork() {
    // SAFETY: passed on to the caller.
    unsafe { GROUPS.reset_after_fork() };
    let mut groups = GROUPS.lock();
    // Not dropped: the allocator may be as another thread left it.
    core::mem::forget(core::mem::take(&mut groups.all));
    groups.short = false;
}
