//! Directories that are open, and what is done in them.
//!
//! Users share the run directory, so a path in it may lead somewhere else a moment after it was
//! looked at. A directory is opened once, the kernel says whose the open one is, and everything
//! else is done from its descriptor, with one name at a time.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use partita_ledger::At;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    /// The path under which it was opened, for messages.
    path: PathBuf,
    /// Whose it is.
    pub user: u32,
    /// Its mode, without its type.
    pub mode: u32,
    device: u64,
}

/// The user that this process acts as.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Dir {
    /// Opens a directory by its path. The last component is no link.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(rustix::fs::open(path, DIRECTORY, Mode::empty())?, path.to_owned())
    }

    fn of(fd: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Self { fd, path, user: stat.st_uid, mode: stat.st_mode & 0o7777, device: stat.st_dev })
    }

    /// The path under which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is this process's user's.
    pub fn is_own(&self) -> bool {
        self.user == own_user()
    }

    /// Opens the entry of this name: not a link, and nothing on another file system, whose server
    /// may never answer.
    fn enter(&self, name: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
        if name.as_bytes().contains(&b'/') || name == ".." {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        loop {
            match rustix::fs::openat2(&self.fd, name, flags, Mode::empty(), resolve) {
                // Not EAGAIN, which a single name gives for one reason only: the file's owner holds
                // a lease on it, and may renew it forever.
                Err(Errno::INTR) => {}
                // Linux before 5.6, or a filter of system calls that does not know it.
                Err(Errno::NOSYS | Errno::PERM) => break,
                opened => return Ok(opened?),
            }
        }
        // A single name is never resolved further than to itself.
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        if rustix::fs::fstat(&fd)?.st_dev == self.device { Ok(fd) } else { Err(Errno::XDEV.into()) }
    }

    /// Opens a directory in it.
    pub fn sub(&self, name: &str) -> io::Result<Self> {
        Self::of(self.enter(name.as_ref(), DIRECTORY)?, self.path.join(name))
    }

    /// Opens a directory in it, if it has the same owner: then no other user creates or replaces
    /// entries there.
    pub fn sub_of_owner(&self, name: &str) -> io::Result<Self> {
        let dir = self.sub(name)?;
        if dir.user == self.user { Ok(dir) } else { Err(Errno::PERM.into()) }
    }

    /// Makes a directory in it that all users can list, or opens the existing one of any owner.
    pub fn make(&self, name: &str) -> io::Result<Self> {
        let made = match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let dir = self.sub(name)?;
        if made && dir.is_own() {
            // The mode of mkdir went through the umask.
            dir.set_mode(0o755)?;
        }
        Ok(dir)
    }

    /// Makes a new directory in it, for its owner alone.
    pub fn make_new(&self, name: &str) -> io::Result<Self> {
        rustix::fs::mkdirat(&self.fd, name, Mode::RWXU)?;
        self.sub_of_owner(name)
    }

    /// Lets exactly one other user enter it and list it.
    pub fn open_to(&self, user: u32) -> io::Result<()> {
        // An entry of `struct posix_acl_xattr_entry`, linux/posix_acl_xattr.h: tag, permissions,
        // user.
        const VERSION: u32 = 2;
        const NOBODY: u32 = u32::MAX;
        const OWNER: u16 = 0x01;
        const USER: u16 = 0x02;
        const GROUP: u16 = 0x04;
        const MASK: u16 = 0x10;
        const OTHERS: u16 = 0x20;
        let entries = [
            (OWNER, 7u16, NOBODY),
            (USER, 5, user),
            (GROUP, 0, NOBODY),
            (MASK, 5, NOBODY),
            (OTHERS, 0, NOBODY),
        ];
        let mut acl = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            acl.extend(tag.to_le_bytes());
            acl.extend(permissions.to_le_bytes());
            acl.extend(id.to_le_bytes());
        }
        let name = "system.posix_acl_access";
        rustix::fs::fsetxattr(&self.fd, name, &acl, rustix::fs::XattrFlags::empty()).map_err(|error| {
            match error {
                Errno::OPNOTSUPP => {
                    io::Error::other("its file system has no access control lists; put it on a tmpfs")
                }
                error => error.into(),
            }
        })
    }

    /// Gives a file in it to another user.
    pub fn give(&self, name: &str, user: u32) -> io::Result<()> {
        let user = rustix::fs::Uid::from_raw(user);
        Ok(rustix::fs::chownat(&self.fd, name, Some(user), None, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets its mode, whatever the umask.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(mode))?)
    }

    /// Sets the mode of a file in it.
    pub fn set_file_mode(&self, name: &str, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(self.file_to_lock(name)?, Mode::from_raw_mode(mode))?)
    }

    /// The names in it, in order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort();
        Ok(names)
    }

    /// The names in it that are text; empty if its owner does not allow listing.
    pub fn texts(&self) -> io::Result<Vec<String>> {
        match self.names() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Vec::new()),
            names => Ok(names?.into_iter().filter_map(|name| name.into_string().ok()).collect()),
        }
    }

    /// Opens a regular file in it to read: a pipe would keep us waiting for ever.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let file = File::from(self.enter(name.as_ref(), OFlags::RDONLY | OFlags::NONBLOCK)?);
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
    }

    /// Opens a regular file in it to lock it.
    pub fn file_to_lock(&self, name: &str) -> io::Result<File> {
        Ok(File::from(self.enter(name.as_ref(), OFlags::RDWR | OFlags::NONBLOCK)?))
    }

    /// Makes a new file in it, with this mode.
    pub fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?);
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file)
    }

    /// Writes a file so that a reader sees either the old or the new content.
    pub fn replace(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let fresh = format!("{name}.new-{}", std::process::id());
        // A file of a killed process with the same number.
        let _ = self.unlink(fresh.as_ref());
        let written = self.create(&fresh, mode).and_then(|mut file| file.write_all(bytes));
        let replaced = written.and_then(|()| self.rename(&fresh, name));
        replaced.inspect_err(|_| {
            let _ = self.unlink(fresh.as_ref());
        })
    }

    /// Reads a regular file of so many bytes at most.
    pub fn bytes(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        // A file that is too long is not read.
        let mut is_longer = file.metadata()?.len() > bytes_max;
        let mut bytes = Vec::new();
        if !is_longer {
            file.take(bytes_max + 1).read_to_end(&mut bytes)?;
            is_longer = bytes.len() as u64 > bytes_max;
        }
        if is_longer {
            let reason = format!("it is longer than {bytes_max} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(bytes)
    }

    /// Gives an entry another name, which nothing but an empty directory or a file may have.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Makes a link in it.
    pub fn link(&self, target: &Path, name: &str) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.fd, name)?)
    }

    /// Removes an entry that is no directory.
    pub fn unlink(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Removes an empty directory in it.
    pub fn remove_empty(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes an entry with its content. Directories of other users stay, and so do their parents.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        match self.unlink(name) {
            Err(error) if error.raw_os_error() == Some(Errno::ISDIR.raw_os_error()) => {}
            removed => return removed,
        }
        let dir = Self::of(self.enter(name, DIRECTORY)?, self.path.join(name))?;
        if !dir.is_own() {
            return Err(Errno::PERM.into());
        }
        dir.names()?.iter().try_for_each(|entry| dir.remove(entry))?;
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Whether it is on a file system of this kind.
    pub fn is_on(&self, kind: rustix::fs::FsWord) -> io::Result<bool> {
        Ok(rustix::fs::fstatfs(&self.fd)?.f_type == kind)
    }

    /// Locks the directory itself, without waiting; the lock lasts as long as the returned
    /// descriptor.
    pub fn try_lock(&self) -> io::Result<Option<OwnedFd>> {
        // A new open file description: locks exclude descriptions from each other.
        let fd = self.enter(".".as_ref(), DIRECTORY)?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(fd)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, waiting up to `limit`.
    pub fn lock_within(&self, limit: Duration) -> io::Result<Option<OwnedFd>> {
        let deadline = Instant::now() + limit;
        loop {
            match self.try_lock() {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
                locked => return locked,
            }
        }
    }

    /// A file in it, as the ledger takes it.
    pub fn at<'a>(&self, name: &'a CStr) -> At<'a> {
        At::new(self.fd.as_fd().as_raw_fd(), name)
    }
}

/// The pause before a lock is tried again.
const POLL: Duration = Duration::from_millis(1);
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
