//! Directories of tenants, made and removed as the registry of the `partita` command does it, so
//! that both can use one.

use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::MaybeUninit;

use partita_driver::files::{Descriptor, errno};
use partita_ledger::{At, Errno};

/// How long a directory's lock is waited for. Holders need milliseconds.
const LOCK_WAIT_MS_MAX: u32 = 15_000;
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;

/// A path, for system calls and for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(CString);

/// The identity of a directory, whatever its path.
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

    /// The path of a name in it.
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

    /// The directory that exists now, if any.
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
    /// If the directory does not exist.
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

    /// Makes a directory in which every user can create entries but not remove those of others, or
    /// checks that it is one. It must belong to root or to this user: another owner could replace
    /// its content.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn make_shared(&self) -> Result<(), String> {
        // SAFETY: a valid path. The mode of mkdir goes through the umask.
        let made = unsafe { libc::mkdir(self.0.as_ptr(), 0o1777) == 0 };
        if !made && errno() != libc::EEXIST {
            return Err(self.error("mkdir"));
        }
        let shown = self.0.to_string_lossy();
        let Some(open) = Open::at(libc::AT_FDCWD, &self.0) else {
            return Err(format!("{shown}: is no directory; remove it"));
        };
        if !open.is_roots && !open.is_own {
            return Err(format!(
                "{shown}: belongs to another user, who could replace its content; remove it, or name a \
                 directory of your own with PARTITA_RUN_DIR"
            ));
        }
        if made && open.is_own {
            return match open.set_mode(0o1777) {
                true => Ok(()),
                false => Err(self.error("fchmod")),
            };
        }
        match open.mode & 0o022 == 0 || open.mode & 0o1000 != 0 {
            true => Ok(()),
            false => Err(format!(
                "{shown}: has mode {:o}; `chmod 1777` it, so that all users can make tenants there and \
                 cannot remove those of others",
                open.mode
            )),
        }
    }

    /// Makes a directory that its owner alone changes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn make(&self) -> Result<(), String> {
        // SAFETY: a valid path.
        if unsafe { libc::mkdir(self.0.as_ptr(), 0o755) } != 0 {
            return Err(self.error("mkdir"));
        }
        match Open::at(libc::AT_FDCWD, &self.0) {
            Some(open) if open.is_own && open.set_mode(0o755) => Ok(()),
            _ => Err(self.error("fchmod")),
        }
    }

    /// Whether it is a directory of root or of this user: those of other users are not trusted.
    pub fn is_trusted(&self) -> bool {
        Open::at(libc::AT_FDCWD, &self.0).is_some_and(|open| open.is_own || open.is_roots)
    }

    /// Opens it to remove its content, if it belongs to root or this user, so that no other user
    /// can replace it.
    pub fn open(&self) -> Option<Open> {
        Open::at(libc::AT_FDCWD, &self.0).filter(|open| open.is_own || open.is_roots)
    }

    /// Makes a file that its owner alone changes, with this content.
    ///
    /// # Errors
    /// Those of the system.
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
    /// Those of the system.
    pub fn rename(&self, to: &Self) -> Result<(), String> {
        // SAFETY: valid paths.
        match unsafe { libc::rename(self.0.as_ptr(), to.0.as_ptr()) } {
            0 => Ok(()),
            _ => Err(self.error("rename")),
        }
    }

    /// The names in a directory; empty if it is unreadable.
    pub fn names(&self) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        // SAFETY: a valid path; the stream is used by this thread alone and closed once; an entry
        // is valid until the next call.
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

    /// Whether it is in memory. A GPU maps no page of another file system, which would write it
    /// back.
    pub fn is_in_memory(&self) -> bool {
        let mut about = MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: a valid path, and room for the answer.
        unsafe {
            libc::statfs(self.0.as_ptr(), about.as_mut_ptr()) == 0 && about.assume_init().f_type == TMPFS
        }
    }
}

/// An open directory. Actions in it use its descriptor, wherever its path leads by then.
pub struct Open {
    file: Descriptor,
    is_own: bool,
    is_roots: bool,
    mode: u32,
}

impl Open {
    /// Opens a directory, but not a link; `None` if it does not exist.
    fn at(directory: libc::c_int, path: &CStr) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a valid path; the descriptor is closed when dropped.
        let file = unsafe { libc::openat(directory, path.as_ptr(), flags) };
        if file < 0 {
            return None;
        }
        let file = Descriptor(file);
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: room for the answer, which is there if the call succeeds.
        let status = unsafe {
            if libc::fstat(file.0, status.as_mut_ptr()) != 0 {
                return None;
            }
            status.assume_init()
        };
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        let (is_own, is_roots) = (status.st_uid == user, status.st_uid == 0);
        Some(Self { file, is_own, is_roots, mode: status.st_mode & 0o7777 })
    }

    fn set_mode(&self, mode: libc::mode_t) -> bool {
        // SAFETY: an open descriptor.
        unsafe { libc::fchmod(self.file.0, mode) == 0 }
    }

    /// A directory in it that is this user's.
    pub fn own(&self, name: &[u8]) -> Option<Self> {
        Self::at(self.file.0, &CString::new(name).ok()?).filter(|open| open.is_own)
    }

    /// A file in it, as the ledger takes it.
    pub fn file<'a>(&self, name: &'a CStr) -> At<'a> {
        At::new(self.file.0, name)
    }

    /// Whether anything in it is called so.
    pub fn has(&self, name: &CStr) -> bool {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a valid name, and room for the answer.
        unsafe {
            libc::fstatat(self.file.0, name.as_ptr(), status.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW) == 0
        }
    }

    /// Gives an entry another name; whether it could be.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> bool {
        let (Ok(from), Ok(to)) = (CString::new(from), CString::new(to)) else { return false };
        // SAFETY: valid names.
        unsafe { libc::renameat(self.file.0, from.as_ptr(), self.file.0, to.as_ptr()) == 0 }
    }

    /// Removes a directory of this user with its files. Files that cannot be removed stay.
    pub fn remove(&self, name: &[u8]) {
        let (Some(directory), Ok(name)) = (self.own(name), CString::new(name)) else { return };
        // A path by which the kernel leads to the open directory and nowhere else.
        let open = Path::new(format!("/proc/self/fd/{}", directory.file.0).as_bytes());
        for entry in open.names() {
            if let Ok(entry) = CString::new(entry) {
                // SAFETY: a valid name.
                unsafe { libc::unlinkat(directory.file.0, entry.as_ptr(), 0) };
            }
        }
        // SAFETY: as above.
        unsafe { libc::unlinkat(self.file.0, name.as_ptr(), libc::AT_REMOVEDIR) };
    }
}

/// The right to make and remove tenants, shared by this library and the command; the kernel
/// releases it if the holder dies.
pub struct Lock(#[expect(dead_code, reason = "holds the lock until it is closed")] Descriptor);

impl Lock {
    /// Waits for the lock of a directory; `None` once the wait has become unnecessary.
    ///
    /// # Errors
    /// If another process holds it for too long, or those of the system.
    pub fn take(root: &Path, is_needless: impl Fn() -> bool) -> Result<Option<Self>, String> {
        let path = root.join(b".lock");
        // Without O_CREAT first: the kernel refuses that on another user's file in a sticky
        // directory.
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
            crate::sys::clock::sleep_ns(1_000_000);
        }
        Err(format!(
            "{}: another process has held this lock for {} s; end that process (/proc/locks lists it)",
            path.0.to_string_lossy(),
            LOCK_WAIT_MS_MAX / 1000
        ))
    }
}
