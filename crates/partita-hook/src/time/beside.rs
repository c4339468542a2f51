//! The other tenants of a GPU, by their directories beside this one's.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use partita_core::time::Priority;
use partita_ledger::{FLAG_GATED, LIMITS_FILE_NAME, Limits, USAGE_FILE_NAME, UsageView};

/// Living processes of a tenant.
pub fn processes(usage: &UsageView) -> usize {
    usage.slots().flatten().filter(|slot| slot.live && slot.pid > 0).count()
}

/// Whether more than one process on the GPU of the tenant in `directory` has low priority, this one
/// included. True if the files are unreadable.
pub fn are_several_low(directory: &CStr) -> bool {
    let Some(mut low) = low_processes(directory) else { return true };
    let known = for_each(directory, |other| low += low_processes(other).unwrap_or(1));
    known.is_none() || low > 1
}

/// Living processes of low priority; `None` if it is unknown.
fn low_processes(directory: &CStr) -> Option<usize> {
    let file = |name: &CStr| CString::new([directory.to_bytes(), b"/", name.to_bytes()].concat()).ok();
    let limits = match Limits::read(&file(LIMITS_FILE_NAME)?) {
        Ok((_, limits)) => limits,
        // It has just ended.
        Err(error) if error.is_missing() => return Some(0),
        Err(_) => return None,
    };
    let is_low = limits.flags & FLAG_GATED != 0 && Priority::from_number(limits.priority) == Priority::Low;
    if !is_low {
        return Some(0);
    }
    match UsageView::open(&file(USAGE_FILE_NAME)?) {
        Ok(usage) => Some(processes(&usage)),
        Err(error) if error.is_missing() => Some(0),
        Err(_) => None,
    }
}

/// Calls `see` with the directory of each tenant beside this one; `None` if they cannot be listed.
pub fn for_each(directory: &CStr, mut see: impl FnMut(&CStr)) -> Option<()> {
    // By its number: that of a tenant's second GPU goes by a link's name here.
    let own = inode(directory)?;
    let parent = [directory.to_bytes(), b"/.."].concat();
    let listed = CString::new(parent.as_slice()).ok()?;
    // SAFETY: a valid path; the stream is closed below.
    let entries = unsafe { libc::opendir(listed.as_ptr()) };
    if entries.is_null() {
        return None;
    }
    loop {
        // SAFETY: an open stream that this thread alone reads.
        let entry = unsafe { libc::readdir(entries) };
        if entry.is_null() {
            break;
        }
        // SAFETY: the result of readdir, until its next call; the name ends with a zero.
        let (found, name) = unsafe { ((*entry).d_ino, CStr::from_ptr((*entry).d_name.as_ptr())) };
        if name.to_bytes().starts_with(b".") || found == own {
            continue;
        }
        let path: Vec<u8> = [parent.as_slice(), b"/", name.to_bytes()].concat();
        if let Ok(path) = CString::new(path) {
            see(&path);
        }
    }
    // SAFETY: opened above, and not used any more.
    unsafe { libc::closedir(entries) };
    Some(())
}

fn inode(path: &CStr) -> Option<u64> {
    let mut found = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a valid path, and room for the answer.
    let status = unsafe { libc::stat(path.as_ptr(), found.as_mut_ptr()) };
    // SAFETY: the call has filled it.
    (status == 0).then(|| unsafe { found.assume_init() }.st_ino)
}
