//! The descriptors that the driver opens: nodes of the kernel driver, and connections to the MPS
//! service.
//!
//! The nodes are known by their names. A connection has no name. It counts as the driver's if it
//! was made during a call in which the driver connects. A connection that another thread makes at
//! that moment counts, too: its other end then sees the end of the process when the holder releases
//! it.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;

use partita_ledger::mutex::Mutex;

use crate::sys::fork::{in_child, renew};

const OWN_DESCRIPTORS: &CStr = c"/proc/self/fd";
const NODES: &[u8] = b"/dev/nvidia";

/// A descriptor, and the file behind it when it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    number: c_int,
    file: (u64, u64),
}

/// The driver's connections.
static CONNECTIONS: Mutex<Vec<Found>> = Mutex::new(Vec::new());

// A child has none: the driver does not survive a fork.
in_child! {
    renew(&CONNECTIONS, Vec::new());
}

/// The sockets that are open now.
pub fn sockets() -> Vec<c_int> {
    all().into_iter().filter(|&number| file_of(number, libc::S_IFSOCK).is_some()).collect()
}

/// Takes the sockets for the driver's that were not open `before`.
pub fn take_new(before: &[c_int]) {
    let fresh = sockets().into_iter().filter(|number| !before.contains(number));
    let found: Vec<Found> = fresh
        .filter(|&number| is_local(number))
        .filter_map(|number| Some(Found { number, file: file_of(number, libc::S_IFSOCK)? }))
        .collect();
    let mut known = CONNECTIONS.lock();
    known.retain(|old| !found.iter().any(|new| new.number == old.number));
    known.extend(found);
}

/// Every descriptor of the driver that is open now, in ascending order.
pub fn of_driver() -> Vec<c_int> {
    let known = CONNECTIONS.lock();
    let is_connection = |number: c_int| {
        let known = known.iter().find(|found| found.number == number);
        known.is_some_and(|found| file_of(number, libc::S_IFSOCK) == Some(found.file))
    };
    let mut found = all();
    found.retain(|&number| is_connection(number) || is_node(number));
    found
}

/// Every open descriptor, in ascending order.
fn all() -> Vec<c_int> {
    let mut numbers = Vec::new();
    // SAFETY: a constant path; the directory is closed below, and an entry is used before the next
    // one is read.
    unsafe {
        let directory = libc::opendir(OWN_DESCRIPTORS.as_ptr());
        if directory.is_null() {
            return numbers;
        }
        loop {
            let entry = libc::readdir(directory);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if let Some(number) = name.to_str().ok().and_then(|name| name.parse().ok()) {
                numbers.push(number);
            }
        }
        libc::closedir(directory);
    }
    // The directory's own is closed by now.
    numbers.sort_unstable();
    numbers
}

/// The file behind a descriptor, if it is of this type.
pub(super) fn file_of(number: c_int, kind: libc::mode_t) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the answer, which is there if the call succeeds.
    let stat = unsafe {
        if libc::fstat(number, stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    (stat.st_mode & libc::S_IFMT == kind).then_some((stat.st_dev, stat.st_ino))
}

/// Whether it is a socket between processes of this machine.
fn is_local(number: c_int) -> bool {
    let mut domain: c_int = 0;
    let mut bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: room for the answer and its length.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            number,
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            &raw mut domain,
            &raw mut bytes,
        )
    };
    asked == 0 && domain == libc::AF_UNIX
}

fn is_node(number: c_int) -> bool {
    if file_of(number, libc::S_IFCHR).is_none() {
        return false;
    }
    let path = alloc::format!("/proc/self/fd/{number}\0");
    let mut target = [0u8; 64];
    // SAFETY: a path that ends with a zero, and room for as many bytes as said.
    let read = unsafe { libc::readlink(path.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    target.get(..usize::try_from(read).unwrap_or(0)).is_some_and(|target| target.starts_with(NODES))
}
