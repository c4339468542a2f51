//! Brings copies of the driver's descriptors to the holder.

use alloc::ffi::CString;
use alloc::format;
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use partita_driver::files::Descriptor;
use partita_ledger::mutex::Mutex;
use partita_ledger::{HOLDER_DESCRIPTORS_MAX, HOLDER_MESSAGE_VERSION, HOLDER_SOCKET_NAME};

use crate::account::origin;
use crate::account::tenant::{self, Tenant};
use crate::holder::{descriptors, fences};
use crate::sys::fork::in_child;
use crate::sys::process::this_process;
use crate::sys::{report, unix_socket};

/// Whether the tenant has a holder: 0 before the first look, 1 if not, 2 if it has.
static HOLDER: AtomicU8 = AtomicU8::new(0);
/// The end of a pipe that is closed when this program ends, by death or by exec; -1 for none.
static LIFELINE: AtomicI32 = AtomicI32::new(-1);
/// The pipe's inode: the program may close the descriptor, and open another file by its number.
static PIPE: AtomicU64 = AtomicU64::new(0);
/// Held during a delivery: the descriptors that the holder has.
static DELIVERED: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

// A child has its own life, and delivers its own descriptors.
in_child! {
    if let Some(lifeline) = given_lifeline() {
        libc::close(lifeline);
    }
    LIFELINE.store(-1, Ordering::Relaxed);
    crate::sys::fork::renew(&DELIVERED, Vec::new());
}

/// A call in which the driver may open descriptors.
pub struct Opening {
    before: Option<Vec<c_int>>,
    is_context: bool,
}

impl Opening {
    /// Before a call that makes the driver ready, or with `is_context` one that makes a context.
    #[inline]
    pub fn begin(opens: bool, is_context: bool) -> Self {
        // The call itself may make the process a tenant's.
        let before = (opens && (origin::is_to_be_asked() || is_held())).then(descriptors::sockets);
        Self { before, is_context }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let Some(before) = self.before.as_ref().filter(|_| is_held()) else { return };
        descriptors::take_new(before);
        if self.is_context
            && let Some(tenant) = tenant::current()
        {
            deliver(tenant);
            fences::context_made(tenant);
        }
    }
}

/// Whether the process is a tenant's that has a holder.
fn is_held() -> bool {
    origin::is_tenant() && has_holder()
}

#[cold]
fn has_holder() -> bool {
    match HOLDER.load(Ordering::Relaxed) {
        0 => {
            let socket = open_directory().map(|directory| {
                // SAFETY: plain calls on a descriptor that is closed here.
                unsafe {
                    let socket =
                        libc::openat(directory, HOLDER_SOCKET_NAME.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
                    libc::close(directory);
                    if socket >= 0 {
                        libc::close(socket);
                    }
                    socket
                }
            });
            let is_there = socket.is_some_and(|socket| socket >= 0);
            HOLDER.store(if is_there { 2 } else { 1 }, Ordering::Relaxed);
            is_there
        }
        known => known == 2,
    }
}

fn open_directory() -> Option<c_int> {
    let directory = origin::ledger_directory()?;
    // SAFETY: a valid path.
    let opened =
        unsafe { libc::open(directory.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    (opened >= 0).then_some(opened)
}

/// Delivers again what a holder had that has ended: another one may have taken its place. To be
/// called now and then.
pub fn keep(tenant: &'static Tenant) {
    let Some(lifeline) = given_lifeline() else { return };
    let mut end = libc::pollfd { fd: lifeline, events: 0, revents: 0 };
    let mut no_wait = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let no_mask: *const c_void = core::ptr::null();
    // SAFETY: one valid structure of each kind; without a mask its size is of no use.
    let found = unsafe { libc::syscall(libc::SYS_ppoll, &raw mut end, 1, &raw mut no_wait, no_mask, 0) };
    if found > 0 && end.revents & libc::POLLERR != 0 {
        DELIVERED.lock().clear();
        deliver(tenant);
    }
}

/// This program's end of the pipe whose other end the holder has.
fn given_lifeline() -> Option<c_int> {
    let lifeline = LIFELINE.load(Ordering::Relaxed);
    let (_, inode) = descriptors::file_of(lifeline, libc::S_IFIFO)?;
    (inode == PIPE.load(Ordering::Relaxed)).then_some(lifeline)
}

/// Delivers what the driver has open, unless the holder has it.
#[cold]
fn deliver(tenant: &'static Tenant) {
    let mut delivered = DELIVERED.lock();
    let driver = descriptors::of_driver();
    if driver.is_empty() || *delivered == driver {
        return;
    }
    match send(tenant, &driver) {
        Some(()) => *delivered = driver,
        None => report::once!(
            "this tenant's holder does not answer: if this program dies during its work on the GPU, its \
             neighbours may lose theirs; start the tenant again"
        ),
    }
}

fn send(tenant: &'static Tenant, driver: &[c_int]) -> Option<()> {
    let page = fences::page(tenant)?;
    let (lifeline, given) = lifeline()?;
    let slots = tenant.gpus().iter().map(|gpu| gpu.slot.descriptor());
    // The holder closes them in this order.
    let all: Vec<c_int> = [page, given].into_iter().chain(driver.iter().copied()).chain(slots).collect();
    let owner = this_process();
    let head = [
        u64::from(HOLDER_MESSAGE_VERSION),
        u64::from(owner.pid.unsigned_abs()),
        owner.start_ticks,
        tenant.gpus().len() as u64,
    ];
    let sent = if all.len() <= HOLDER_DESCRIPTORS_MAX { packet(&head, &all) } else { None };
    // SAFETY: this end of the pipe is the holder's now, and this function's no more.
    unsafe { libc::close(given) };
    match sent {
        Some(()) => {
            if let Some(old) = given_lifeline() {
                // SAFETY: the holder has a newer one.
                unsafe { libc::close(old) };
            }
            let (_, inode) = descriptors::file_of(lifeline, libc::S_IFIFO).unwrap_or_default();
            PIPE.store(inode, Ordering::Relaxed);
            LIFELINE.store(lifeline, Ordering::Relaxed);
        }
        // SAFETY: no other code has it.
        None => drop(unsafe { libc::close(lifeline) }),
    }
    sent
}

/// A new pipe: this program's end, and the holder's.
fn lifeline() -> Option<(c_int, c_int)> {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
    (made == 0).then_some((ends[1], ends[0]))
}

/// Sends one packet with descriptors. The kernel keeps them until the holder takes them, also if
/// this process dies before.
fn packet(head: &[u64; 4], descriptors: &[c_int]) -> Option<()> {
    let directory = Descriptor(open_directory()?);
    let name = HOLDER_SOCKET_NAME.to_str().unwrap_or_default();
    // Short, whatever the length of the directory's path.
    let path = CString::new(format!("/proc/self/fd/{}/{name}", directory.0)).ok()?;
    let socket = unix_socket::new(libc::SOCK_SEQPACKET).ok()?;
    unix_socket::connect(&socket, &path).ok()?;
    let payload = size_of_val(descriptors);
    let mut control = [0u64; HOLDER_DESCRIPTORS_MAX.div_ceil(2) + 2];
    let first = control.as_mut_ptr().cast::<libc::cmsghdr>();
    let mut part = libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: size_of_val(head) };
    // SAFETY: zeros are a valid message; values of this frame. The control message has room for
    // what is copied into it, and words keep it aligned.
    let sent = unsafe {
        (*first).cmsg_len = size_of::<libc::cmsghdr>() + payload;
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        core::ptr::copy_nonoverlapping(descriptors.as_ptr().cast::<u8>(), first.add(1).cast::<u8>(), payload);
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = (size_of::<libc::cmsghdr>() + payload).next_multiple_of(8);
        libc::syscall(libc::SYS_sendmsg, socket.0, &raw const message, libc::MSG_NOSIGNAL)
    };
    (sent > 0).then_some(())
}
