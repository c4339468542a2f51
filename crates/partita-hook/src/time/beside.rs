//! The other tenants of a GPU, by their directories beside this one's.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use partita_ledger::UsageView;

/// Living processes of a tenant.
pub fn processes(usage: &UsageView) -> usize {
    usage.slots().flatten().filter(|slot| slot.live && slot.pid > 0).count()
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
