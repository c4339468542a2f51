//! Directories of tenants, made and removed as the registry of the `partita` command does it, so that both can use one.

use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::MaybeUninit;

use partita_driver::files::{Descriptor, errno};
use partita_ledger::Errno;

/// How long a directory's lock is waited for. Holders need milliseconds.
const LOCK_WAIT_MS_MAX: u32 = 15_000;
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;

/// A path, for system calls and for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(CString);

/// What makes a directory the same one, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The file system's number.
    pub device: u64,
    /// The directory's number there.
    pub inode: u64,
}

impl Path {
    /// The path of these bytes, which come from strings.
    pub fn new(bytes: &[u8]) -> Self {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Self(CString::new(&bytes[..end]).unwrap_or_default())
    }

    /// What is called so in it.
    pub fn join(&self, name: &[u8]) -> Self {
        Self::new(&[self.0.to_bytes(), b"/", name].concat())
    }

    /// For system calls.
    pub fn as_c(&self) -> &CStr {
        &self.0
    }

    /// An error with the path in front.
    pub fn error(&self, call: &str) -> String {
        format!("{}: {call} failed: {}", self.0.to_string_lossy(), Errno(errno()))
    }

    fn status(&self) -> Option<libc::stat> {
        let mut status = MaybeUninit::uninit();
        // SAFETY: a valid path, and room for the answer, which is there if the call succeeds.
        unsafe { (libc::lstat(self.0.as_ptr(), status.as_mut_ptr()) == 0).then(|| status.assume_init()) }
    }

    /// The directory that is there now; none if there is none.
    pub fn identity(&self) -> Option<Identity> {
        self.status()
            .filter(|status| status.st_mode & libc::S_IFMT == libc::S_IFDIR)
            .map(|status| Identity { device: status.st_dev, inode: status.st_ino })
    }

    /// Whether anything is called so.
    pub fn exists(&self) -> bool {
        self.status().is_some()
    }

    /// The directory that it leads to, by links too.
    ///
    /// # Errors
    /// That there is none.
    pub fn directory(&self) -> Result<Identity, String> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: as in status().
        let status = unsafe {
            if libc::stat(self.0.as_ptr(), status.as_mut_ptr()) != 0 {
                return Err(self.error("stat"));
            }
            status.assume_init()
        };
        if status.st_mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(format!("{}: is no directory", self.0.to_string_lossy()));
        }
        Ok(Identity { device: status.st_dev, inode: status.st_ino })
    }

    /// Makes a directory in which everybody may make entries and nobody may remove those of others, or checks that it is one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn make_shared(&self) -> Result<(), String> {
        // SAFETY: a valid path. The mode of mkdir goes through the umask.
        unsafe {
            if libc::mkdir(self.0.as_ptr(), 0o1777) == 0 {
                return match libc::chmod(self.0.as_ptr(), 0o1777) {
                    0 => Ok(()),
                    _ => Err(self.error("chmod")),
                };
            }
        }
        if errno() != libc::EEXIST {
            return Err(self.error("mkdir"));
        }
        let is_directory = |status: libc::stat| status.st_mode & libc::S_IFMT == libc::S_IFDIR;
        match self.status() {
            Some(status) if is_directory(status) => {
                let (is_open, is_sticky) = (status.st_mode & 0o022 != 0, status.st_mode & 0o1000 != 0);
                // SAFETY: no arguments.
                let user = unsafe { libc::geteuid() };
                let is_own = status.st_uid == user || user == 0;
                if if is_open { is_sticky } else { is_own } {
                    return Ok(());
                }
                Err(format!(
                    "{}: has mode {:o} and belongs to user {}; `chmod 1777` it, so that everybody can make tenants there and nobody \
                     can remove those of others",
                    self.0.to_string_lossy(),
                    status.st_mode & 0o7777,
                    status.st_uid
                ))
            }
            _ => Err(format!("{}: is no directory; remove it", self.0.to_string_lossy())),
        }
    }

    /// Makes a directory that its owner alone changes.
    ///
    /// # Errors
    /// The system's.
    pub fn make(&self) -> Result<(), String> {
        // SAFETY: a valid path.
        match unsafe { libc::mkdir(self.0.as_ptr(), 0o755) == 0 && libc::chmod(self.0.as_ptr(), 0o755) == 0 }
        {
            true => Ok(()),
            false => Err(self.error("mkdir")),
        }
    }

    /// Makes a file that its owner alone changes, with this content.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, content: &[u8]) -> Result<(), String> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: a valid path; the descriptor is closed when dropped.
        let file = unsafe { libc::open(self.0.as_ptr(), flags, 0o644) };
        if file < 0 {
            return Err(self.error("open"));
        }
        let file = Descriptor(file);
        let mut rest = content;
        while !rest.is_empty() {
            // SAFETY: readable for its length.
            let written = unsafe { libc::write(file.0, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) => rest = rest.get(written..).unwrap_or(&[]),
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Err(self.error("write")),
            }
        }
        Ok(())
    }

    /// Gives the directory another name, which nothing but an empty one may have.
    ///
    /// # Errors
    /// The system's.
    pub fn rename(&self, to: &Self) -> Result<(), String> {
        // SAFETY: valid paths.
        match unsafe { libc::rename(self.0.as_ptr(), to.0.as_ptr()) } {
            0 => Ok(()),
            _ => Err(self.error("rename")),
        }
    }

    /// The names in a directory; none of one that cannot be read.
    pub fn names(&self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        // SAFETY: a valid path; the stream is used by this thread alone and closed once; an entry is valid until the next call.
        unsafe {
            let stream = libc::opendir(self.0.as_ptr());
            if stream.is_null() {
                return found;
            }
            while let Some(entry) = libc::readdir(stream).as_ref() {
                let name = CStr::from_ptr(entry.d_name.as_ptr()).to_bytes();
                if name != b"." && name != b".." {
                    found.push(name.to_vec());
                }
            }
            libc::closedir(stream);
        }
        found
    }

    /// Removes a directory with the files in it. What cannot be removed stays.
    pub fn remove(&self) {
        for name in self.names() {
            // SAFETY: a valid path.
            unsafe { libc::unlink(self.join(&name).0.as_ptr()) };
        }
        // SAFETY: as above.
        unsafe { libc::rmdir(self.0.as_ptr()) };
    }

    /// Whether it is in memory. A GPU maps no page of another file system, which would write it back.
    pub fn is_in_memory(&self) -> bool {
        let mut about = MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: a valid path, and room for the answer.
        unsafe {
            libc::statfs(self.0.as_ptr(), about.as_mut_ptr()) == 0 && about.assume_init().f_type == TMPFS
        }
    }
}

/// The right to make and remove tenants, of this library and of the command alike; the kernel takes it from whoever dies.
pub struct Lock(#[expect(dead_code, reason = "holds the lock until it is closed")] Descriptor);

impl Lock {
    /// Waits for the lock of a directory; none once the wait has become needless.
    ///
    /// # Errors
    /// That somebody holds it for longer than anything takes, or the system's.
    pub fn take(root: &Path, is_needless: impl Fn() -> bool) -> Result<Option<Self>, String> {
        let path = root.join(b".lock");
        // Without O_CREAT first: the kernel refuses that on another user's file in a sticky directory.
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let open = |flags: i32| {
            // SAFETY: a valid path.
            unsafe { libc::open(path.0.as_ptr(), flags, 0o644) }
        };
        let mut file = open(flags);
        if file < 0 && errno() == libc::ENOENT {
            file = open(flags | libc::O_CREAT | libc::O_EXCL);
        }
        if file < 0 && errno() == libc::EEXIST {
            file = open(flags);
        }
        if file < 0 {
            return Err(path.error("open"));
        }
        let file = Descriptor(file);
        for _ in 0..LOCK_WAIT_MS_MAX {
            // SAFETY: an open descriptor.
            if unsafe { libc::flock(file.0, libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok((!is_needless()).then_some(Self(file)));
            }
            if !matches!(errno(), libc::EWOULDBLOCK | libc::EINTR) {
                return Err(path.error("flock"));
            }
            if is_needless() {
                return Ok(None);
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            // SAFETY: a valid pointer.
            unsafe { libc::nanosleep(&pause, core::ptr::null_mut()) };
        }
        Err(format!(
            "{}: another process has held this lock for {} s; end that process (/proc/locks lists it)",
            path.0.to_string_lossy(),
            LOCK_WAIT_MS_MAX / 1000
        ))
    }
}
