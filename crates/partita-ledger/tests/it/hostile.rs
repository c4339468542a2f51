//! Foreign and damaged files: each is an error that names the file, the reason and the remedy, and
//! content that passes the checks does no harm.

use crate::common;

use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

use common::{as_path, dir, owner, sample_limits};
use partita_ledger::{
    LAYOUT_VERSION, LIMITS_FILE_BYTES, LedgerError, Limits, LimitsFault, LimitsFile, LimitsMap, Problem,
    SLOTS, USAGE_FILE_BYTES, UsageMap, UsageView,
};
use proptest::prelude::*;

type Opener = (&'static str, fn(&CStr) -> Result<(), LedgerError>);

const LIMITS_OPENERS: [Opener; 3] = [
    ("LimitsMap::open_ro", |path| LimitsMap::open_ro(path).map(drop)),
    ("LimitsFile::open_rw", |path| LimitsFile::open_rw(path).map(drop)),
    ("Limits::read", |path| Limits::read(path).map(drop)),
];
const USAGE_OPENERS: [Opener; 2] = [
    ("UsageMap::open", |path| UsageMap::open(path).map(drop)),
    ("UsageView::open", |path| UsageView::open(path).map(drop)),
];

/// Both kinds of file: their true content, and all ways to open them.
fn kinds() -> [(Vec<u8>, Vec<Opener>); 2] {
    let dir = dir();
    let (limits, usage) = (dir.file("limits"), dir.file("usage"));
    LimitsFile::create(&limits, &sample_limits(), 0o600).unwrap();
    let slot = UsageMap::create(&usage, 0o600).unwrap().claim(owner()).unwrap();
    slot.reserve(77, 100).unwrap();
    [
        (fs::read(as_path(&limits)).unwrap(), LIMITS_OPENERS.to_vec()),
        (fs::read(as_path(&usage)).unwrap(), USAGE_OPENERS.to_vec()),
    ]
}

/// Every way to open `content` fails with `problem`, in a message that names the file and has
/// `words`.
fn refused(content: &[u8], openers: &[Opener], problem: &Problem, words: &str) {
    let dir = dir();
    let path = dir.file("ledger");
    fs::write(as_path(&path), content).unwrap();
    for (name, open) in openers {
        let error = open(&path).expect_err(name);
        assert_eq!(error.problem(), problem, "{name}");
        assert_eq!(error.path(), path.as_c_str());
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()) && text.contains(words), "{name}: {text}");
        assert!(!text.contains('\n'), "one line: {text}");
    }
}

#[test]
fn truncated_at_every_kind_of_place() {
    for (content, openers) in kinds() {
        let whole = content.len();
        let lengths =
            [0, 1, 7, 8, 15, 16, 17, 63, 64, 100, 1100, 2111, 4095, 4096, 4097, whole / 2, whole - 1];
        for length in lengths.into_iter().filter(|&length| length < whole) {
            let problem = Problem::Size { found: length as u64, expected: whole as u64 };
            refused(&content[..length], &openers, &problem, "truncated or foreign; remove it");
        }
        let mut longer = content.clone();
        longer.push(0);
        let problem = Problem::Size { found: whole as u64 + 1, expected: whole as u64 };
        refused(&longer, &openers, &problem, "instead of");
    }
}

#[test]
fn wrong_headers() {
    let kinds = kinds();
    for (content, openers) in &kinds {
        let expected: [u8; 8] = content[..8].try_into().unwrap();
        let with = |at: usize, bytes: &[u8]| {
            let mut content = content.clone();
            content[at..at + bytes.len()].copy_from_slice(bytes);
            content
        };
        let foreign = |found: &[u8; 8]| Problem::Foreign { found: *found, expected };
        refused(&with(0, b"\x7fELF\x02\x01\x01\0"), openers, &foreign(b"\x7fELF\x02\x01\x01\0"), "\\x7fELF");
        refused(&with(0, b"PARTITAX"), openers, &foreign(b"PARTITAX"), "is not a ledger file");
        refused(&vec![0; content.len()], openers, &foreign(&[0; 8]), "is incomplete");
        let (found, expected) = (LAYOUT_VERSION - 1, LAYOUT_VERSION);
        refused(
            &with(8, &found.to_ne_bytes()),
            openers,
            &Problem::Version { found, expected },
            "one release",
        );
        let size = Problem::HeaderSize { found: 12, expected: content.len() as u32 };
        refused(&with(12, &12u32.to_ne_bytes()), openers, &size, "damaged");
    }
    // One kind of file is not accepted as the other.
    let [(limits, limits_openers), (usage, usage_openers)] = &kinds;
    let foreign =
        |found: &[u8; 8], expected: &[u8; 8]| Problem::Foreign { found: *found, expected: *expected };
    refused(limits, usage_openers, &foreign(b"PARTITAL", b"PARTITAU"), "is not a ledger file");
    refused(usage, limits_openers, &foreign(b"PARTITAU", b"PARTITAL"), "is not a ledger file");
}

#[test]
fn not_even_files() {
    let dir = dir();
    let all: Vec<Opener> = LIMITS_OPENERS.into_iter().chain(USAGE_OPENERS).collect();
    let check = |name: &str, problem: &Problem, words: &str| {
        for (opener, open) in &all {
            let error = open(&dir.file(name)).expect_err(opener);
            assert_eq!(error.problem(), problem, "{opener} {name}");
            assert!(error.to_string().contains(words), "{error}");
        }
    };
    check("missing", &Problem::System { call: "open", errno: libc::ENOENT }, "partita run");
    let pipe = dir.file("pipe");
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    check("pipe", &Problem::NotAFile, "remove it");
    fs::create_dir(dir.path().join("directory")).unwrap();
    check("directory", &Problem::NotAFile, "remove it");
    symlink(dir.path().join("missing"), dir.path().join("link")).unwrap();
    check("link", &Problem::NotAFile, "remove it");
}

#[test]
fn impossible_limits_in_a_file() {
    let dir = dir();
    let path = dir.file("limits");
    LimitsFile::create(&path, &sample_limits(), 0o600).unwrap();
    let map = LimitsMap::open_ro(&path).unwrap();
    let file = OpenOptions::new().write(true).open(as_path(&path)).unwrap();
    // Epoch 1 counts; all its words are ones: the first fault is the number of TPCs.
    file.write_all_at(&[0xff; 1024], 128 + 1024).unwrap();
    let fault = Problem::Limits(LimitsFault::TpcCount(u32::MAX));
    assert_eq!(map.load().unwrap_err().problem(), &fault);
    assert_eq!(Limits::read(&path).unwrap_err().problem(), &fault);
    assert_eq!(map.disable_words().unwrap().1, [!0; 8]);
    let text = map.load().unwrap_err().to_string();
    assert!(text.contains("4294967295 TPCs") && text.contains("partita set"), "{text}");
    // The owner can correct it.
    assert_eq!(LimitsFile::open_rw(&path).unwrap().store(&sample_limits()).unwrap(), 2);
    assert_eq!(map.load().unwrap().1, sample_limits());
}

/// The options of an owner whose file was truncated or exchanged while it was open.
#[test]
fn changed_under_an_open_writer() {
    let dir = dir();
    let path = dir.file("limits");
    let mut writer = LimitsFile::create(&path, &sample_limits(), 0o600).unwrap();
    let size = |found| Problem::Size { found, expected: LIMITS_FILE_BYTES as u64 };
    let file = OpenOptions::new().write(true).open(as_path(&path)).unwrap();
    file.set_len(100).unwrap();
    assert_eq!(writer.store(&sample_limits()).unwrap_err().problem(), &size(100));
    fs::remove_file(as_path(&path)).unwrap();
    let missing = Problem::System { call: "open", errno: libc::ENOENT };
    assert_eq!(writer.store(&sample_limits()).unwrap_err().problem(), &missing);
    LimitsFile::create(&path, &sample_limits(), 0o600).unwrap();
    assert_eq!(writer.store(&sample_limits()).unwrap_err().problem(), &Problem::Replaced);
}

/// A user who may read the limits may lock them, without delaying others. A process does not wait
/// for ever for a writer that keeps the writers' lock.
#[test]
fn a_lock_that_is_not_given_back() {
    use std::os::fd::AsRawFd;
    let dir = dir();
    let path = dir.file("limits");
    let mut writer = LimitsFile::create(&path, &sample_limits(), 0o644).unwrap();
    let reader = fs::File::open(as_path(&path)).unwrap();
    // SAFETY: numbers only.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    // SAFETY: the argument is what the command reads.
    assert_eq!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
    assert_eq!(writer.store(&sample_limits()).unwrap(), 2);

    let locks = dir.path().join("limits.lock");
    assert_eq!(fs::metadata(&locks).unwrap().permissions().mode() & 0o777, 0o600);
    let other = OpenOptions::new().write(true).open(&locks).unwrap();
    assert_eq!(partita_ledger::lock_alone(other.as_raw_fd()), Ok(true));
    let error = writer.store(&sample_limits()).unwrap_err();
    assert!(matches!(error.problem(), Problem::Locked { waited_ms: 100.. }), "{error:?}");
    assert!(
        error.to_string().contains("limits.lock") && error.to_string().contains("/proc/locks"),
        "{error}"
    );
    drop(other);
    assert_eq!(writer.store(&sample_limits()).unwrap(), 3);
}

/// Only the owner's lock keeps a tenant alive: a reader's lock does not count.
#[test]
fn a_readers_lock_is_not_taken_for_a_writers() {
    use std::os::fd::AsRawFd;
    let dir = dir();
    let path = as_path(&dir.file("owner")).to_owned();
    let owner = fs::File::create(&path).unwrap();
    let seen = || partita_ledger::is_locked_alone(fs::File::open(&path).unwrap().as_raw_fd()).unwrap();
    assert!(!seen());
    assert_eq!(partita_ledger::lock_alone(owner.as_raw_fd()), Ok(true));
    assert!(seen());
    // A child of the owner shares the description.
    let inherited = owner.try_clone().unwrap();
    drop(owner);
    assert!(seen());
    drop(inherited);
    let reader = fs::File::open(&path).unwrap();
    assert_eq!(partita_ledger::lock_alone(reader.as_raw_fd()), Err(partita_ledger::Errno(libc::EBADF)));
    // SAFETY: numbers only.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    // SAFETY: the argument is what the command reads.
    assert_eq!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
    assert!(!seen());
}

/// An open directory names a file, wherever the directory's path leads by then.
#[test]
fn a_file_is_found_in_the_directory_that_is_open() {
    use std::os::fd::AsRawFd;
    let dir = dir();
    let (own, foreign) = (dir.path().join("own"), dir.path().join("foreign"));
    fs::create_dir(&own).unwrap();
    fs::create_dir(&foreign).unwrap();
    let open = fs::File::open(&own).unwrap();
    let at = partita_ledger::At::new(open.as_raw_fd(), c"limits");
    fs::rename(&own, dir.path().join("elsewhere")).unwrap();
    symlink(&foreign, &own).unwrap();
    let mut file = LimitsFile::create(at, &sample_limits(), 0o600).unwrap();
    assert_eq!(file.store(&sample_limits()).unwrap(), 2);
    assert_eq!(Limits::read(at).unwrap().0, 2);
    assert_eq!(LimitsFile::open_rw(at).unwrap().store(&sample_limits()).unwrap(), 3);
    drop(UsageMap::create(partita_ledger::At::new(open.as_raw_fd(), c"usage"), 0o600).unwrap());
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 0);
    assert_eq!(fs::read_dir(dir.path().join("elsewhere")).unwrap().count(), 3);
}

/// A tenant truncates its usage file while it is observed: no SIGBUS, an error.
#[test]
fn shortened_under_an_observer() {
    let dir = dir();
    let path = dir.file("usage");
    drop(UsageMap::create(&path, 0o600).unwrap());
    let view = UsageView::open(&path).unwrap();
    assert_eq!(view.slots().count(), 0);
    let file = OpenOptions::new().write(true).open(as_path(&path)).unwrap();
    file.set_len(5000).unwrap();
    let size = Problem::Size { found: 5000, expected: USAGE_FILE_BYTES as u64 };
    assert_eq!(
        view.slots().next().unwrap(),
        Err(LedgerError::clone(&view.slots().nth(3).unwrap().unwrap_err()))
    );
    assert_eq!(view.slots().next().unwrap().unwrap_err().problem(), &size);
    file.set_len(0).unwrap();
    assert!(view.totals().is_err());
}

/// The name of an operation in a file: version, entry, slot.
fn name(version: u64, entry: u64, slot: u64) -> u64 {
    version << 11 | entry << 10 | slot
}

#[test]
fn odd_words_in_a_usage_file() {
    let odd = [
        name((1 << 53) - 1, 1, 1023),
        name((1 << 53) - 1, 0, 0),
        name(7, 1, 512),
        name(0, 1, 1023),
        u64::MAX,
        1 << 63,
    ];
    for last in odd {
        for fill in [0u8, 0x7f, 0xff] {
            let dir = dir();
            let path = dir.file("usage");
            drop(UsageMap::create(&path, 0o600).unwrap());
            let file = OpenOptions::new().write(true).open(as_path(&path)).unwrap();
            file.write_all_at(&vec![fill; USAGE_FILE_BYTES - 4096], 4096).unwrap();
            file.write_all_at(&last.to_ne_bytes(), 64).unwrap();

            let view = UsageView::open(&path).unwrap();
            view.totals().unwrap();
            let shown = view.slots().inspect(|slot| assert!(slot.is_ok())).count();
            assert_eq!(shown, if fill == 0 { 0 } else { SLOTS });
            let map = UsageMap::open(&path).unwrap();
            map.totals();
            let _ = map.reap();
            if let Ok(slot) = map.claim(owner()) {
                let _ = slot.reserve(1000, 2000);
                assert!(slot.release(u64::MAX).is_err() || fill != 0);
                slot.count_launch();
                let _ = slot.finish();
            }
            view.slots().for_each(|slot| assert!(slot.is_ok()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random bytes after a good header, and a random header before good bytes.
    #[test]
    fn random_bytes(
        seed in proptest::collection::vec(any::<u8>(), 4096),
        header in any::<[u8; 16]>(),
        keep in any::<bool>(),
    ) {
        let dir = dir();
        for (mut content, openers) in kinds() {
            let path = dir.file("random");
            let body = if keep { 16 } else { 0 };
            for (byte, noise) in content[body..].iter_mut().zip(seed.iter().cycle()) {
                *byte = *noise;
            }
            if !keep {
                content[..16].copy_from_slice(&header);
            }
            fs::write(as_path(&path), &content).unwrap();
            for (_, open) in openers {
                match open(&path) {
                    Ok(()) => prop_assert!(keep),
                    Err(error) if keep => prop_assert!(matches!(error.problem(), Problem::Limits(_)), "{}", error),
                    Err(_) => {}
                }
            }
            if let Ok(map) = LimitsMap::open_ro(&path) {
                let _ = map.load();
                let _ = map.disable_words();
            }
            if let Ok(view) = UsageView::open(&path) {
                let _ = view.totals();
                view.slots().for_each(|slot| assert!(slot.is_ok()));
                let map = UsageMap::open(&path).unwrap();
                let _ = map.reap();
                if let Ok(slot) = map.claim(owner()) {
                    let _ = slot.reserve(1, u64::MAX);
                    let _ = slot.release(1);
                }
            }
        }
    }
}

#[test]
fn no_lock_lands_on_a_file_that_got_the_number_of_a_closed_descriptor() {
    use std::os::fd::AsRawFd;
    let dir = dir();
    let (path, other) = (dir.file("usage"), dir.file("other"));
    let map = UsageMap::create(&path, 0o600).unwrap();
    let of_path = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to == as_path(&path));
    let found = fs::read_dir("/proc/self/fd").unwrap().flatten().find(of_path).unwrap();
    let number = found.file_name().to_str().unwrap().parse().unwrap();
    let file = fs::File::create(as_path(&other)).unwrap();
    // SAFETY: the map's descriptor is closed, as by a program that closes all it does not know, and
    // the number is the other file's.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);

    let error = map.claim(owner()).unwrap_err();
    assert_eq!(error.problem(), &Problem::Closed, "{error}");
    assert!(error.to_string().contains("closed a descriptor"), "{error}");
    let second = fs::File::open(as_path(&other)).unwrap();
    assert!(!partita_ledger::is_locked_elsewhere(second.as_raw_fd()).unwrap());
}
