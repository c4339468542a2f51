//! The thread of each GPU that does a process's host work in stream order: host functions, stream
//! callbacks and copies that touch pinned host memory. The first such work starts it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

use partita_abi::CuResult;
use partita_abi::types::{CUhostFn, CUstream, CUstreamCallback};

use super::moves::{Move, perform};
use super::runtime::Runtime;
use crate::shared::channel::pop_host_work;
use crate::shared::page::EventSlot;
use crate::shared::sys::{futex_wait, lock};

/// Something that the worker does when its stream reaches it.
#[derive(Clone, Debug)]
pub enum HostWork {
    /// Move bytes.
    Copy(Arc<[Move]>),
    /// Call a host function.
    Function(CUhostFn, usize),
    /// Call a stream callback.
    Callback(CUstreamCallback, usize, usize),
    /// Wait for a recording of an event of another GPU.
    Elsewhere(&'static Runtime, u32, u64),
}

#[derive(Debug)]
struct Entry {
    work: HostWork,
    /// A graph's node comes again with each launch.
    lasting: bool,
}

/// The host work of one GPU's streams.
#[derive(Debug, Default)]
struct HostWorks {
    /// Set when the thread that does it was started.
    worker: OnceLock<()>,
    /// By token.
    entries: Mutex<HashMap<u64, Entry>>,
}

/// By the GPU's ordinal.
static WORKS: Mutex<BTreeMap<i32, &'static HostWorks>> = Mutex::new(BTreeMap::new());

fn works(runtime: &Runtime) -> &'static HostWorks {
    lock(&WORKS).entry(runtime.ordinal).or_insert_with(|| Box::leak(Box::default()))
}

/// Names a piece of host work, so that a command can refer to it, once or, if it is `lasting`, for
/// ever.
pub fn prepare(runtime: &'static Runtime, work: HostWork, lasting: bool) -> u64 {
    works(runtime).worker.get_or_init(|| {
        // A process that cannot make a thread cannot run a real driver either.
        let _ = std::thread::Builder::new().name("cuda-sim-host".to_owned()).spawn(move || serve(runtime));
    });
    let token = runtime.token();
    lock(&works(runtime).entries).insert(token, Entry { work, lasting });
    token
}

/// Forgets lasting host work.
pub fn forget(runtime: &Runtime, token: u64) {
    lock(&works(runtime).entries).remove(&token);
}

fn serve(runtime: &'static Runtime) {
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
            Some(token) if run(runtime, token) => runtime.host_done(token),
            Some(_) => {}
            None => futex_wait(bell, seen, None),
        }
    }
}

/// Runs a piece of work. `false` if another thread will report its completion.
fn run(runtime: &'static Runtime, token: u64) -> bool {
    let work = {
        let mut entries = lock(&works(runtime).entries);
        match entries.get(&token) {
            Some(entry) if entry.lasting => Some(entry.work.clone()),
            _ => entries.remove(&token).map(|entry| entry.work),
        }
    };
    match work {
        None => {}
        Some(HostWork::Copy(moves)) => perform(&moves),
        Some(HostWork::Function(Some(function), data)) => {
            // SAFETY: the program gave this function to be called with this argument.
            unsafe { function(data as *mut c_void) };
        }
        Some(HostWork::Callback(Some(callback), stream, data)) => {
            let stream = CUstream::from_addr(stream);
            // SAFETY: the program gave this callback to be called with these arguments.
            unsafe { callback(stream, CuResult::SUCCESS, data as *mut c_void) };
        }
        // Entry points refuse null functions.
        Some(HostWork::Function(None, _) | HostWork::Callback(None, ..)) => {}
        Some(HostWork::Elsewhere(other, event, count)) => {
            // The event may itself wait for this worker, so another thread waits for it.
            let waited = std::thread::Builder::new().name("cuda-sim-event".to_owned()).spawn(move || {
                let completed = |slot: &EventSlot| slot.completed.load(Ordering::Acquire) >= count;
                // After an error there is nothing to wait for.
                let _ = other.wait(|| other.page.event(event).is_none_or(completed));
                runtime.host_done(token);
            });
            return waited.is_err();
        }
    }
    true
}
