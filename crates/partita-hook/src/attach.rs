//! `cuInit`: where a process becomes part of its tenant.
//!
//! Enforced or refused: if any limit cannot be enforced in this process, the
//! call fails, one line on standard error says why, and the wrapped calls of
//! this process fail from then on.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use core::ffi::{CStr, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use partita_abi::CuResult;
use partita_driver::callback;
use partita_ledger::{HookState, LIMITS_FILE_NAME, LimitsMap, Owner, USAGE_FILE_NAME, UsageMap};

use crate::driver::{DriverCalls, export_table};
use crate::lock::Mutex;
use crate::mask::{LaunchMask, on_launch};
use crate::tenant::{self, Tenant};
use crate::{LEDGER_VARIABLE, counter, graph_nodes, is_tenant, real, report};

static ATTACHING: Mutex<()> = Mutex::new(());
static FORK_HANDLER: AtomicBool = AtomicBool::new(false);

/// Wraps `cuInit`.
pub unsafe fn init(real: unsafe extern "C" fn(c_uint) -> CuResult, flags: c_uint) -> CuResult {
    // SAFETY: the caller's flags, passed on.
    let result = unsafe { real(flags) };
    if result.is_err() || !is_tenant() || tenant::current().is_some() {
        return result;
    }
    let _attaching = ATTACHING.lock();
    if tenant::current().is_some() {
        return result;
    }
    if tenant::is_refused() {
        return CuResult::INVALID_DEVICE;
    }
    match attach() {
        Ok(tenant) => {
            tenant::publish(tenant);
            result
        }
        Err(reason) => {
            tenant::refuse();
            report::line(format_args!("{reason}"));
            // One of the codes that cuInit documents.
            CuResult::INVALID_DEVICE
        }
    }
}

fn attach() -> Result<&'static Tenant, String> {
    let directory = ledger_directory()?;
    let file = |name: &CStr| -> Result<CString, String> {
        CString::new([directory.to_bytes(), b"/", name.to_bytes()].concat())
            .map_err(|_| String::from("the tenant's directory has a zero byte in its name"))
    };
    let limits_map = LimitsMap::open_ro(&file(LIMITS_FILE_NAME)?).map_err(|error| format!("{error}"))?;
    let usage = UsageMap::open(&file(USAGE_FILE_NAME)?).map_err(|error| format!("{error}"))?;
    let (_, limits) = limits_map.load().map_err(|error| format!("{error}"))?;

    let mask =
        LaunchMask::new(&limits).map_err(|error| format!("this GPU's launches cannot be masked: {error}"))?;

    let driver = DriverCalls::resolve()
        .map_err(|name| format!("libcuda exports no {}: the driver is too old", name.to_string_lossy()))?;
    let get_export_table = export_table()
        .ok_or_else(|| String::from("libcuda exports no cuGetExportTable: masks cannot be set"))?;

    let slot = usage.claim(this_process()).map_err(|error| format!("{error}"))?;
    follow_forks()?;
    counter::prepare();
    // Kept for ever: launches on any thread read it.
    let tenant: &'static Tenant =
        Box::leak(Box::new(Tenant::new(limits_map, slot, mask, limits.device_class, driver)));
    // SAFETY: the driver's function; the tenant lives as long as the process,
    // and on_launch only reads it.
    let subscribed = unsafe {
        callback::subscribe(
            get_export_table,
            on_launch,
            core::ptr::from_ref(tenant).cast_mut().cast::<c_void>(),
        )
    };
    if let Err(error) = subscribed {
        tenant.report(HookState::REFUSED);
        return Err(format!("{error}; without it this program would use the whole GPU"));
    }
    tenant.report(HookState::ATTACHED | HookState::MASK_VERIFIED);
    Ok(tenant)
}

fn ledger_directory() -> Result<CString, String> {
    // SAFETY: a valid name; the value is copied at once.
    let value = unsafe { libc::getenv(LEDGER_VARIABLE.as_ptr()) };
    if value.is_null() {
        return Err(String::from(
            "PARTITA_LEDGER was removed from the environment: start the program again with `partita run`",
        ));
    }
    // SAFETY: getenv returned a string.
    Ok(CString::from(unsafe { CStr::from_ptr(value) }))
}

fn this_process() -> Owner {
    // SAFETY: plain system calls; the buffer is written up to `read` bytes.
    unsafe {
        let pid = libc::getpid();
        let mut text = [0u8; 1024];
        let file = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return Owner { pid, start_ticks: 0 };
        }
        let read = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        let text = text.get(..usize::try_from(read).unwrap_or(0)).unwrap_or(&[]);
        Owner { pid, start_ticks: start_ticks(text).unwrap_or(0) }
    }
}

/// Field 22 of `/proc/PID/stat`. The second field, a command's name in
/// brackets, may hold blanks and brackets itself, so fields count from its end.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 2;
    let field = stat.get(after_name..)?.split(|&byte| byte == b' ').nth(19)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

/// Has a forked child leave its parent's slot to the parent.
fn follow_forks() -> Result<(), String> {
    if FORK_HANDLER.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: the handler only stores to atomics and closes a descriptor.
    match unsafe { libc::pthread_atfork(None, None, Some(in_fork_child)) } {
        0 => Ok(()),
        code => Err(format!("pthread_atfork failed (error {code}): out of memory?")),
    }
}

unsafe extern "C" fn in_fork_child() {
    // SAFETY: the handler runs in the child's only thread.
    unsafe {
        ATTACHING.reset_after_fork();
        real::reset_after_fork();
        graph_nodes::reset_after_fork();
        counter::reset_after_fork();
        tenant::forget_after_fork();
    }
}
