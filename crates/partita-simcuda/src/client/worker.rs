//! The one thread that does a process's host work in stream order: host functions, stream callbacks and
//! copies that touch pinned host memory. It is started when the first of these is asked for.

use std::ffi::c_void;
use std::sync::Once;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::types::{CUhostFn, CUstream, CUstreamCallback};

use super::memcpy::move_rect;
use super::runtime::{Runtime, lock, runtime};
use crate::shared::channel::pop_host_work;
use crate::shared::command::Rect;
use crate::shared::sys::futex_wait;

/// Something that the worker does when its stream reaches it.
#[derive(Clone, Copy, Debug)]
pub enum HostWork {
    /// Move bytes.
    Copy(Rect),
    /// Call a host function.
    Function(CUhostFn, usize),
    /// Call a stream callback.
    Callback(CUstreamCallback, usize, usize),
    /// As [`HostWork::Function`] and [`HostWork::Copy`], each time a graph's node is reached.
    GraphFunction(CUhostFn, usize),
    /// Move bytes each time a graph's node is reached.
    GraphCopy(Rect),
}

static STARTED: Once = Once::new();

/// Names a piece of host work, so that a command can refer to it.
pub fn prepare(runtime: &'static Runtime, work: HostWork) -> u64 {
    STARTED.call_once(|| {
        // A process that cannot make a thread cannot run a real driver either.
        let _ = std::thread::Builder::new().name("cuda-sim-host".to_owned()).spawn(serve);
    });
    let token = runtime.token();
    lock(&runtime.host_work).insert(token, work);
    token
}

fn serve() {
    let Ok(runtime) = runtime() else { return };
    // Signals are the program's own threads' business.
    // SAFETY: sigfillset and pthread_sigmask work on a local set.
    unsafe {
        let mut all = std::mem::MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
    let bell = &runtime.channel.head().host_tail.0;
    loop {
        let seen = bell.load(Ordering::SeqCst);
        match pop_host_work(&runtime.channel) {
            Some(token) => {
                run(runtime, token);
                runtime.host_done(token);
            }
            None => futex_wait(bell, seen, None),
        }
    }
}

fn run(runtime: &'static Runtime, token: u64) {
    let work = {
        let mut works = lock(&runtime.host_work);
        match works.get(&token) {
            Some(HostWork::GraphFunction(..) | HostWork::GraphCopy(_)) => works.get(&token).copied(),
            _ => works.remove(&token),
        }
    };
    match work {
        None => {}
        Some(HostWork::Copy(rect) | HostWork::GraphCopy(rect)) => {
            if move_rect(runtime, &rect).is_err() {
                let fault = &runtime.channel.head().fault.0;
                fault.store(CuResult::ILLEGAL_ADDRESS.0, Ordering::SeqCst);
            }
        }
        Some(HostWork::Function(function, data) | HostWork::GraphFunction(function, data)) => {
            if let Some(function) = function {
                // SAFETY: the program gave this function to be called with this argument.
                unsafe { function(data as *mut c_void) };
            }
        }
        Some(HostWork::Callback(callback, stream, data)) => {
            if let Some(callback) = callback {
                let stream = CUstream::from_addr(stream);
                // SAFETY: the program gave this callback to be called with these arguments.
                unsafe { callback(stream, CuResult::SUCCESS, data as *mut c_void) };
            }
        }
    }
}
