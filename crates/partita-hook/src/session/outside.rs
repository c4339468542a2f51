//! Programs that were started without Partita, where the policy of the site limits them: such a
//! program becomes a tenant when it first uses the GPU (`docs/design/outside.md`).
//!
//! `partitad` decides and plans. This module asks it once, and puts what it answers into the
//! environment before the driver reads that. It talks to the kernel directly, because programs come
//! with libraries that replace the C library's functions for sockets.

use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;

use partita_driver::files::{Descriptor, errno};
use partita_ledger::GPUS_MAX;
use partita_ledger::mutex::Mutex;

use crate::account::{environment, origin};
use crate::sys::fork::{in_child, renew};
use crate::sys::{clock, report, unix_socket};

/// The most that a program waits for the answer. The first program on a GPU waits for its service
/// and for the proof of its masks.
const WAIT_S_MAX: u64 = 30;
/// How long a socket whose queue is full is left alone.
const FULL_WAIT_NS: u32 = 5_000_000;
/// The most that is read of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Files that keep the tenant alive until this process has its slots there.
static HELD: Mutex<Vec<Descriptor>> = Mutex::new(Vec::new());

// The parent's.
in_child! {
    renew(&HELD, Vec::new());
}

/// Asks `partitad` whether the site limits this program, and stores the answer
/// ([`origin::settle`]). Without an answer the program runs as without Partita.
///
/// # Errors
/// Why this program is refused, and the remedy.
pub fn ask() -> Result<(), String> {
    let answered = talk().and_then(|(bytes, held)| match Answer::parse(&bytes) {
        Some(answer) => Ok((answer, held)),
        None if bytes.is_empty() => Err(Trouble::Closed),
        None => Err(Trouble::Version),
    });
    match answered {
        Ok((Answer::Free, _)) => origin::settle(None),
        Ok((Answer::Refused(reason), _)) => {
            origin::settle(Some(b""));
            return Err(String::from_utf8_lossy(&reason).into_owned());
        }
        Ok((Answer::Tenant { directory, notice, variables }, held)) => {
            let old = environment::names(b"CUDA_MPS_");
            // SAFETY: valid strings. Programs that change their environment while other threads
            // read it do the same; a program without a tenant never comes here.
            unsafe {
                // Limits of MPS's own would come on top of the tenant's.
                for name in old {
                    libc::unsetenv(name.as_ptr());
                }
                for (name, value) in variables {
                    libc::setenv(name.as_ptr(), value.as_ptr(), 1);
                }
            }
            if !notice.is_empty() {
                report::line(format_args!("{}", String::from_utf8_lossy(&notice)));
            }
            *HELD.lock() = held;
            origin::settle(Some(&directory));
        }
        Err(trouble) => {
            if let Some(reason) = trouble.reason() {
                report::line(format_args!(
                    "{}: {reason}, so this program runs without limits; `systemctl status partitad` says \
                     more",
                    origin::system_socket().to_string_lossy()
                ));
            }
            origin::settle(None);
        }
    }
    Ok(())
}

/// Lets go of what keeps the tenant alive.
pub fn let_go() {
    HELD.lock().clear();
}

/// What `partitad` answers: words, each of which a zero ends.
enum Answer {
    Free,
    Refused(Vec<u8>),
    Tenant { directory: Vec<u8>, notice: Vec<u8>, variables: Vec<(CString, CString)> },
}

impl Answer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.strip_suffix(b"\0")?.split(|&byte| byte == 0);
        Some(match words.next()? {
            b"free" => Self::Free,
            b"refused" => Self::Refused(words.next()?.into()),
            b"tenant" => Self::Tenant {
                directory: words.next()?.into(),
                notice: words.next()?.into(),
                variables: words.map(assignment).collect::<Option<_>>()?,
            },
            _ => return None,
        })
    }
}

fn assignment(word: &[u8]) -> Option<(CString, CString)> {
    let at = word.iter().position(|&byte| byte == b'=')?;
    let (name, value) = word.split_at(at);
    Some((CString::new(name).ok()?, CString::new(value.get(1..)?).ok()?))
}

/// Why there is no answer.
enum Trouble {
    /// The machine is no longer in system mode.
    Gone,
    System(&'static str, c_int),
    Late,
    Closed,
    Stranger,
    Version,
}

impl Trouble {
    /// For the user; `None` if there is nothing to say.
    fn reason(&self) -> Option<String> {
        Some(match self {
            Self::Gone => return None,
            Self::System(call, code) => format!("{call} failed: {}", partita_ledger::Errno(*code)),
            Self::Late => format!("partitad did not answer within {WAIT_S_MAX} s"),
            Self::Closed => String::from("partitad closed the connection without an answer"),
            Self::Stranger => String::from("another user than root listens there"),
            Self::Version => String::from("partitad is of another version than the library"),
        })
    }
}

/// Sends the request and returns the answer, and the descriptors with it.
fn talk() -> Result<(Vec<u8>, Vec<Descriptor>), Trouble> {
    let end_ns = clock::now_ns().saturating_add(WAIT_S_MAX * 1_000_000_000);
    let socket = connect(&origin::system_socket(), end_ns)?;
    let mut request = request().into_bytes();
    while !request.is_empty() {
        wait_for(&socket, libc::POLLOUT, end_ns)?;
        // SAFETY: readable for its length; no address follows.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                socket.0,
                request.as_ptr(),
                request.len(),
                libc::MSG_NOSIGNAL,
                core::ptr::null::<c_void>(),
                0,
            )
        };
        match usize::try_from(sent) {
            Ok(sent) => drop(request.drain(..sent.min(request.len()))),
            Err(_) if matches!(errno(), libc::EAGAIN | libc::EINTR) => {}
            Err(_) => return Err(Trouble::System("send", errno())),
        }
    }
    // SAFETY: an open descriptor.
    unsafe { libc::syscall(libc::SYS_shutdown, socket.0, libc::SHUT_WR) };
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    loop {
        wait_for(&socket, libc::POLLIN, end_ns)?;
        match receive(&socket, &mut bytes, &mut held) {
            Ok(0) => return Ok((bytes, held)),
            Ok(_) if bytes.len() <= ANSWER_BYTES_MAX => {}
            Ok(_) => return Err(Trouble::Version),
            Err(libc::EAGAIN | libc::EINTR) => {}
            Err(code) => return Err(Trouble::System("recvmsg", code)),
        }
    }
}

/// The GPUs that the program is to see go with it: it may have chosen them since its start.
fn request() -> String {
    format!(
        "{{\"do\":\"enter\",\"visible\":{},\"order\":{}}}",
        quoted(c"CUDA_VISIBLE_DEVICES"),
        quoted(c"CUDA_DEVICE_ORDER")
    )
}

/// A variable's value in JSON. An empty list of GPUs is one.
fn quoted(name: &CStr) -> String {
    // SAFETY: a valid name; the value is copied at once.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return String::from("null");
    }
    // SAFETY: getenv returned a string.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    // What JSON would have to escape makes an entry invalid, and so does this mark.
    let plain = |&byte: &u8| match byte {
        b' '..=b'~' if byte != b'"' && byte != b'\\' => char::from(byte),
        _ => '?',
    };
    format!("\"{}\"", value.iter().map(plain).collect::<String>())
}

fn connect(path: &CStr, end_ns: u64) -> Result<Descriptor, Trouble> {
    let socket = unix_socket::new(libc::SOCK_STREAM | libc::SOCK_NONBLOCK)
        .map_err(|code| Trouble::System("socket", code))?;
    loop {
        match unix_socket::connect(&socket, path) {
            Ok(()) => break,
            Err(libc::EAGAIN | libc::EINTR) if clock::now_ns() < end_ns => clock::sleep_ns(FULL_WAIT_NS),
            Err(libc::EAGAIN | libc::EINTR) => return Err(Trouble::Late),
            Err(libc::ENOENT) => return Err(Trouble::Gone),
            Err(code) => return Err(Trouble::System("connect", code)),
        }
    }
    let mut peer = MaybeUninit::<libc::ucred>::uninit();
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for the answer, which is there if the call succeeds.
    let user = unsafe {
        let told = libc::syscall(
            libc::SYS_getsockopt,
            socket.0,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            peer.as_mut_ptr(),
            &raw mut bytes,
        );
        (told == 0).then(|| peer.assume_init().uid)
    };
    if user == Some(0) { Ok(socket) } else { Err(Trouble::Stranger) }
}

/// Waits until something can be done with the socket.
fn wait_for(socket: &Descriptor, what: libc::c_short, end_ns: u64) -> Result<(), Trouble> {
    loop {
        let left_ns = end_ns.saturating_sub(clock::now_ns());
        let mut left = libc::timespec {
            tv_sec: (left_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (left_ns % 1_000_000_000) as libc::c_long,
        };
        let mut wanted = libc::pollfd { fd: socket.0, events: what, revents: 0 };
        let no_mask: *const libc::sigset_t = core::ptr::null();
        // SAFETY: one valid structure of each kind; without a mask its size is of no use.
        match unsafe { libc::syscall(libc::SYS_ppoll, &raw mut wanted, 1, &raw mut left, no_mask, 0) } {
            0 => return Err(Trouble::Late),
            ready if ready > 0 => return Ok(()),
            _ if errno() == libc::EINTR => {}
            _ => return Err(Trouble::System("ppoll", errno())),
        }
    }
}

/// Reads a part of the answer, and takes the descriptors that come with it. Returns how many bytes
/// there were.
fn receive(socket: &Descriptor, bytes: &mut Vec<u8>, held: &mut Vec<Descriptor>) -> Result<usize, c_int> {
    let mut part = [0u8; 4096];
    // Words keep it aligned.
    let mut control = [0u64; 4 + GPUS_MAX];
    let mut vector = libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
    // SAFETY: the message's parts are of this frame and outlive the call; control messages are read
    // as the kernel has written them, and each descriptor in them is this process's from now on.
    let read = unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let read = libc::syscall(libc::SYS_recvmsg, socket.0, &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let mut at = if read < 0 { core::ptr::null_mut() } else { libc::CMSG_FIRSTHDR(&message) };
        while let Some(header) = at.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data = libc::CMSG_DATA(at).cast::<c_int>();
                let count = (header.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                held.extend((0..count).map(|index| Descriptor(data.add(index).read_unaligned())));
            }
            at = libc::CMSG_NXTHDR(&message, at);
        }
        read
    };
    let read = usize::try_from(read).map_err(|_| errno())?;
    bytes.extend_from_slice(part.get(..read).unwrap_or(&[]));
    Ok(read)
}
