//! Files, paths and the environment, through the C library.

use alloc::ffi::CString;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_void};

/// A variable of the environment; `None` if it is empty, or if the program runs with more rights
/// than its user.
pub fn variable(name: &CStr) -> Option<String> {
    unsafe extern "C" {
        fn secure_getenv(name: *const c_char) -> *mut c_char;
    }
    // SAFETY: a valid name; the value is copied immediately.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment holds strings.
    let value = unsafe { CStr::from_ptr(value) }.to_str().ok()?;
    (!value.is_empty()).then(|| value.to_string())
}

/// The error number of the last call.
pub fn errno() -> c_int {
    // SAFETY: the address of this thread's own number.
    unsafe { *libc::__errno_location() }
}

/// A descriptor, closed when dropped.
#[derive(Debug)]
pub struct Descriptor(pub c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: opened by us and closed once.
        unsafe { libc::close(self.0) };
    }
}

fn open(path: &str, flags: c_int) -> Result<Descriptor, c_int> {
    let path = CString::new(path).map_err(|_| libc::EINVAL)?;
    // SAFETY: a valid string.
    let descriptor = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | flags) };
    if descriptor < 0 { Err(errno()) } else { Ok(Descriptor(descriptor)) }
}

fn read_up_to(file: &Descriptor, most: u64) -> Result<Vec<u8>, c_int> {
    let mut bytes = Vec::new();
    let mut part = [0u8; 4096];
    while (bytes.len() as u64) < most {
        // SAFETY: the buffer is valid for its length.
        let read = unsafe { libc::read(file.0, part.as_mut_ptr().cast::<c_void>(), part.len()) };
        match usize::try_from(read) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(part.get(..read).unwrap_or(&[])),
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(errno()),
        }
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> Result<String, c_int> {
    String::from_utf8(bytes).map_err(|_| libc::EINVAL)
}

/// A file's text, up to about so many bytes.
///
/// # Errors
/// The error number; `EINVAL` if it is not UTF-8.
pub fn read(path: &str, bytes_max: u64) -> Result<String, c_int> {
    text(read_bytes(path, bytes_max)?)
}

/// A file's bytes, up to about so many.
///
/// # Errors
/// The error number.
pub fn read_bytes(path: &str, bytes_max: u64) -> Result<Vec<u8>, c_int> {
    read_up_to(&open(path, 0)?, bytes_max)
}

/// Reads a file that only the current user or root could have written.
///
/// # Errors
/// Why it is not read.
pub fn read_trusted(path: &str, bytes_max: u64) -> Result<String, String> {
    let file =
        open(path, libc::O_NOFOLLOW | libc::O_NONBLOCK).map_err(|errno| format!("system error {errno}"))?;
    // SAFETY: plain memory, written by the call.
    let mut meta: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: an open descriptor and a valid pointer; geteuid has no arguments.
    let (failed, user) = unsafe { (libc::fstat(file.0, &mut meta), libc::geteuid()) };
    let is_file = meta.st_mode & libc::S_IFMT == libc::S_IFREG;
    if failed != 0 || !is_file || (meta.st_uid != user && meta.st_uid != 0) || meta.st_mode & 0o022 != 0 {
        return Err("other users could have written it".to_string());
    }
    if u64::try_from(meta.st_size).unwrap_or(u64::MAX) > bytes_max {
        return Err("it is too long".to_string());
    }
    read_up_to(&file, bytes_max).and_then(text).map_err(|errno| format!("system error {errno}"))
}

/// A path without links; `None` if there is no such file.
pub fn canonical(path: &CStr) -> Option<String> {
    // SAFETY: a valid string; the result is freed below.
    let real = unsafe { libc::realpath(path.as_ptr(), core::ptr::null_mut()) };
    if real.is_null() {
        return None;
    }
    // SAFETY: realpath returned a string that it allocated.
    unsafe {
        let text = CStr::from_ptr(real).to_str().ok().map(ToString::to_string);
        libc::free(real.cast());
        text
    }
}

/// A file's length in bytes, and its time of modification in seconds and nanoseconds.
pub fn length_and_change(path: &str) -> Option<(u64, (i64, i64))> {
    let path = CString::new(path).ok()?;
    // SAFETY: plain memory, written by the call.
    let mut meta: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a valid string and pointer.
    let failed = unsafe { libc::stat(path.as_ptr(), &mut meta) };
    (failed == 0).then(|| (meta.st_size.unsigned_abs(), (meta.st_mtime, meta.st_mtime_nsec)))
}

/// Whether a file is executable.
pub fn is_program(path: &str) -> bool {
    let Ok(path) = CString::new(path) else { return false };
    // SAFETY: a valid string.
    unsafe { libc::access(path.as_ptr(), libc::X_OK) == 0 }
}

/// The file of the object that contains an address, without links.
pub fn object_of(address: usize) -> Option<String> {
    // SAFETY: plain memory, written by the call.
    let mut about: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: dladdr takes any address.
    if unsafe { libc::dladdr(core::ptr::without_provenance(address), &mut about) } == 0
        || about.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: the linker's name of the object.
    canonical(unsafe { CStr::from_ptr(about.dli_fname) })
}

/// The directory of a path.
pub fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(directory, _)| directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn open_descriptors() -> usize {
        fs::read_dir("/proc/self/fd").unwrap().count()
    }

    #[test]
    fn untrusted_files_links_and_long_ones_are_refused_and_nothing_stays_open() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let name = path.to_str().unwrap();
        fs::write(&path, "text").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        // Other tests of this process open files too, so the least of several counts is compared.
        let before = (0..50).map(|_| open_descriptors()).min();
        assert_eq!(read_trusted(name, 4).unwrap(), "text");
        assert_eq!(read_trusted(name, 3).unwrap_err(), "it is too long");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(read_trusted(name, 4).unwrap_err(), "other users could have written it");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        symlink(&path, temp.path().join("link")).unwrap();
        assert!(read_trusted(temp.path().join("link").to_str().unwrap(), 4).is_err());
        assert!(read_trusted(temp.path().to_str().unwrap(), 4).is_err());
        assert_eq!(read(temp.path().join("none").to_str().unwrap(), 4), Err(libc::ENOENT));
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read(name, 4), Err(libc::EINVAL));
        assert!((0..50).map(|_| open_descriptors()).min() <= before);
    }

    #[test]
    fn objects_have_paths() {
        let own = object_of(errno as *const () as usize).unwrap();
        assert_eq!(own, std::env::current_exe().unwrap().canonicalize().unwrap().to_str().unwrap());
        assert_eq!(directory("/a/b"), "/a");
        assert!(is_program(&own) && !is_program("/dev/null/x"));
    }
}
