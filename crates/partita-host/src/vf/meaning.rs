//! What an error of a write means.

use std::io;

use super::vendor::Write;

/// The kernel's reason and the remedy.
pub(super) fn meaning(write: &Write, error: &io::Error) -> String {
    let is_count = write.path.ends_with("sriov_numvfs");
    let code = error.raw_os_error().unwrap_or(0);
    let remedy = match code {
        // The numbers of Linux on x86-64: EPERM, EACCES.
        1 | 13 => "run the command as root",
        // EBUSY.
        16 if is_count => "functions are in use; end what uses them",
        16 => "it is in use; end the virtual machine or the program that has it",
        // ENOENT.
        2 if is_count => "the device's driver cannot enable functions; load the vendor's host driver",
        // ENOSPC, ENOMEM.
        28 | 12 if is_count => "the firmware gave no room for functions; enable SR-IOV and large BARs there",
        28 | 12 => "there is no room for one more; ask for smaller types, or remove some",
        // ERANGE.
        34 => "these are too many; ask for fewer",
        // EINVAL.
        22 if is_count => "the driver does not have so many; ask for another number",
        22 => "the driver does not allow this type there now; `partita vf list` shows those that it does",
        // ENODEV.
        19 => "no such driver has it; load the driver and try again",
        _ => "see the kernel's log (`dmesg`)",
    };
    format!("{error}; {remedy}")
}
