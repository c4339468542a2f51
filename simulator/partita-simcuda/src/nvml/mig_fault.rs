//! Failures on demand of the calls that create and destroy MIG instances.
//!
//! `PARTITA_SIM_MIG_FAULT` has rules with commas between them, `N=ACTION`. N counts a process's
//! calls that change instances, from 1 on.
//!
//! | action | the call |
//! |---|---|
//! | `kill-before` | the process dies by SIGKILL before anything changes |
//! | `kill-after` | it dies after the change, without an answer |
//! | `stop` | the process stops by SIGSTOP before anything changes |
//! | `fail` | `NVML_ERROR_INSUFFICIENT_RESOURCES`, and nothing changes |
//! | `busy` | `NVML_ERROR_IN_USE`, and nothing changes |

use std::sync::atomic::{AtomicU32, Ordering};

use super::NvmlReturn;

const ENV_FAULT: &str = "PARTITA_SIM_MIG_FAULT";

/// How often this process has called.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// Makes a change, unless a rule has it fail.
pub(super) fn change(make: impl FnOnce() -> Result<(), NvmlReturn>) -> Result<(), NvmlReturn> {
    let number = 1 + CALLS.fetch_add(1, Ordering::Relaxed);
    let rules = std::env::var(ENV_FAULT).unwrap_or_default();
    let rule = rules.split(',').filter_map(|rule| rule.split_once('='));
    let action = rule.filter(|(call, _)| call.parse() == Ok(number)).map(|(_, action)| action).next();
    match action {
        None => make(),
        Some("kill-before") => die(),
        Some("stop") => {
            // SAFETY: takes no pointers.
            unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
            make()
        }
        Some("kill-after") => {
            make()?;
            die()
        }
        Some("fail") => Err(NvmlReturn::INSUFFICIENT_RESOURCES),
        Some("busy") => Err(NvmlReturn::IN_USE),
        Some(other) => {
            eprintln!("partita-sim: {ENV_FAULT} does not know '{other}'");
            Err(NvmlReturn::UNKNOWN)
        }
    }
}

fn die() -> ! {
    // SAFETY: takes no pointers; the process ends before the call returns.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    std::process::abort()
}
