//! A tenant's process can do nothing to the limits.
//!
//! The type shows that the API has no way to write: `LimitsMap` has no method that takes limits.

use crate::common;

use std::fs;

use common::{as_path, dir, owner, sample_limits};
use partita_ledger::{LimitsFile, LimitsMap, UsageMap};

/// The permissions of this process's mappings of a file, such as `r--s`.
fn permissions(path: &std::path::Path) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mine = maps.lines().filter(|line| line.ends_with(path.to_str().unwrap()));
    mine.map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect()
}

/// This process's open descriptors of a file, as the flags of `/proc/self/fdinfo`.
fn open_flags(path: &std::path::Path) -> Vec<i32> {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mine = links.filter(|link| fs::read_link(link.path()).is_ok_and(|target| target == path));
    let info = mine
        .map(|link| fs::read_to_string(format!("/proc/self/fdinfo/{}", link.file_name().display())).unwrap());
    let flags = |info: String| {
        let line = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        i32::from_str_radix(line.trim(), 8).unwrap()
    };
    info.map(flags).collect()
}

#[test]
fn the_tenant_maps_its_limits_read_only() {
    let dir = dir();
    let path = dir.file("limits");
    drop(LimitsFile::create(&path, &sample_limits(), 0o444).unwrap());
    let map = LimitsMap::open_ro(&path).unwrap();
    assert_eq!(permissions(as_path(&path)), ["r--s"]);
    assert!(open_flags(as_path(&path)).is_empty(), "no descriptor that could be used to map it again");
    assert_eq!(map.load().unwrap(), (1, sample_limits()));

    // The mapping cannot be made writable either: it came from a read-only descriptor.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with(path.to_str().unwrap())).unwrap();
    let start = usize::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    // SAFETY: the range is the mapping's; adding a permission invalidates no reference.
    let result = unsafe { libc::mprotect(start as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE) };
    assert_eq!(result, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EACCES));

    drop(map);
    assert!(permissions(as_path(&path)).is_empty());
}

#[test]
fn descriptors_do_not_pass_exec_and_mappings_end() {
    let dir = dir();
    let (limits, usage) = (dir.file("limits"), dir.file("usage"));
    let writer = LimitsFile::create(&limits, &sample_limits(), 0o600).unwrap();
    let slot = UsageMap::create(&usage, 0o600).unwrap().claim(owner()).unwrap();
    for path in [&limits, &usage] {
        assert_eq!(permissions(as_path(path)), ["rw-s"]);
        let flags = open_flags(as_path(path));
        assert!(flags.len() == 1 && flags[0] & libc::O_CLOEXEC != 0, "{flags:?}");
    }
    drop((writer, slot));
    for path in [&limits, &usage] {
        assert!(permissions(as_path(path)).is_empty() && open_flags(as_path(path)).is_empty());
    }
}

/// Blocks exist from the start: no later write can meet a full file system.
#[test]
fn files_are_made_at_their_full_size() {
    use std::os::unix::fs::MetadataExt;
    let dir = dir();
    drop(LimitsFile::create(&dir.file("limits"), &sample_limits(), 0o600).unwrap());
    drop(UsageMap::create(&dir.file("usage"), 0o600).unwrap());
    for name in ["limits", "usage"] {
        let file = fs::metadata(dir.path().join(name)).unwrap();
        assert!(
            file.blocks() * 512 >= file.len(),
            "{name}: {} blocks for {} bytes",
            file.blocks(),
            file.len()
        );
    }
}

/// A program that closes every descriptor it did not open does not lose its slot: the mapping holds
/// the lock. If a file of the program gets the number, it is not closed with the slot.
#[test]
fn a_closed_descriptor_is_not_a_lost_slot() {
    use std::os::fd::AsRawFd;
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let slot = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
    slot.reserve(50, 100).unwrap();
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut mine = links.filter(|link| fs::read_link(link.path()).is_ok_and(|to| to == as_path(&path)));
    let number: i32 = mine.next().unwrap().file_name().to_str().unwrap().parse().unwrap();
    let own = fs::File::open("/proc/self/status").unwrap();
    // SAFETY: the program under test may do that to a descriptor; the number is used here only to
    // close it.
    assert_eq!(unsafe { libc::dup2(own.as_raw_fd(), number) }, number);

    let other = UsageMap::open(&path).unwrap();
    assert_eq!(other.reap().unwrap(), 0, "the owner lives");
    slot.reserve(50, 100).unwrap();
    assert!(slot.reserve(1, 100).is_err());
    drop(slot);
    assert_eq!(other.reap().unwrap(), 100);
    // SAFETY: asks for the flags of a descriptor, open or not; then closes the one made above.
    unsafe {
        assert!(libc::fcntl(number, libc::F_GETFD) >= 0, "the program's own file was closed");
        libc::close(number);
    }
}
