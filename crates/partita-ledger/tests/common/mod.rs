//! Helpers of several test files.
#![allow(dead_code)]

pub mod process;
pub mod steps;

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use partita_ledger::{Limits, Owner};

/// A directory that is removed with its contents.
pub struct Dir(tempfile::TempDir);

/// A new directory, in shared memory if there is any: the place of tenants' directories.
pub fn dir() -> Dir {
    let base = Path::new("/dev/shm");
    Dir(if base.is_dir() { tempfile::tempdir_in(base) } else { tempfile::tempdir() }.unwrap())
}

impl Dir {
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> CString {
        CString::new(self.0.path().join(name).as_os_str().as_bytes()).unwrap()
    }
}

/// A C path as the standard library wants it.
pub fn as_path(path: &CStr) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()))
}

pub fn owner() -> Owner {
    Owner { pid: std::process::id() as i32, start_ticks: 12345 }
}

/// Limits with a value in every field that files are checked for, on a device of 66 TPCs.
#[allow(clippy::needless_update, reason = "a limit that nothing here is about changes nothing here")]
pub fn sample_limits() -> Limits {
    Limits {
        gpu_uuid: std::array::from_fn(|i| i as u8 + 1),
        device_class: 90,
        qmd_version: 30,
        sms_per_tpc: 2,
        tpc_count: 66,
        set: [0x0123_4567_89ab_cdef, 3, 0, 0],
        qmd_disable: std::array::from_fn(|i| 0xdead_0000 + i as u32),
        max_cluster_sms: 16,
        memory_quota_bytes: 40 << 30,
        memory_total_bytes: 141 << 30,
        driver_allowance_bytes: 3 << 30,
        time_permille: 500,
        priority: 2,
        flags: 0x8000_0001,
        mechanism: 3,
        name: Limits::name_field("serve").unwrap(),
        physical_of_logical: std::array::from_fn(|i| 255 - i as u16),
        gpc_of_logical: std::array::from_fn(|i| (i / 9) as u8),
        ..Limits::default()
    }
}

/// Raises the number of files that this process may have open to at least `files`.
pub fn raise_open_files(files: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is what the calls read and write.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        if limit.rlim_cur < files {
            assert!(limit.rlim_max >= files, "this test needs {files} open files: ulimit -n");
            limit.rlim_cur = files;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        }
    }
}
