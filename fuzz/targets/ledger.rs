//! The files of a tenant with any bytes in them, at any place: read, mapped, accounted in. Nothing
//! panics, loops or grants more than the quota.
#![no_main]

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use partita_ledger::{Key, Limits, LimitsFile, LimitsMap, Owner, UsageMap, UsageView};

struct Files {
    usage: PathBuf,
    limits: PathBuf,
}

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let dir = PathBuf::from("/dev/shm").join(format!("partita-fuzz.{}", std::process::id()));
    fs::create_dir_all(&dir).expect("shared memory");
    Files { usage: dir.join("usage"), limits: dir.join("limits") }
});

fn c(path: &std::path::Path) -> CString {
    CString::new(path.to_str().expect("ASCII")).expect("no zero byte")
}

/// Pieces of the input, each laid over the file: two bytes of place in words, a byte of length, as
/// many bytes.
fn overlay(path: &std::path::Path, mut input: &[u8], at_least: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("just made");
    while let [low, high, length, rest @ ..] = input {
        let bytes = &rest[..rest.len().min(usize::from(*length) + 1)];
        let place = at_least + u64::from(u16::from_le_bytes([*low, *high])) * 8;
        // Never longer than it was: that is another file, which opening refuses.
        let room = file.metadata().expect("a file").len().saturating_sub(place) as usize;
        file.write_all_at(&bytes[..bytes.len().min(room)], place).expect("room");
        input = &rest[bytes.len()..];
    }
}

fuzz_target!(|input: &[u8]| {
    let Files { usage, limits } = &*FILES;
    let _ = fs::remove_file(usage);
    let _ = fs::remove_file(limits);
    drop(UsageMap::create(&c(usage), 0o600).expect("a new file"));
    let sane = Limits {
        tpc_count: 66,
        sms_per_tpc: 2,
        name: Limits::name_field("fuzz").expect("short"),
        memory_quota_bytes: 1000,
        ..Limits::default()
    };
    drop(LimitsFile::create(&c(limits), &sane, 0o600).expect("a new file"));
    let Some((&first, rest)) = input.split_first() else { return };
    // The header, which has tests of its own, in one input of 16.
    overlay(usage, rest, if first & 15 == 0 { 0 } else { 64 });
    overlay(limits, rest, if first & 15 == 0 { 0 } else { 64 });

    if let Ok(map) = LimitsMap::open_ro(&c(limits)) {
        let _ = (map.load(), map.epoch(), map.memory_bytes(), map.misfit_words());
    }
    if let Ok(view) = UsageView::open(&c(usage)) {
        let _ = view.totals();
        for slot in view.slots().flatten() {
            assert!(!slot.live, "no process holds it");
        }
    }
    let Ok(map) = UsageMap::open(&c(usage)) else { return };
    let _ = map.reap();
    let owner = Owner { pid: std::process::id() as i32, start_ticks: 1 };
    let Ok(slot) = map.claim(owner) else { return };
    for quota in [1000, u64::MAX] {
        if slot.reserve(600, quota).is_ok() {
            assert!(slot.map().used() <= quota);
            if let Ok(Some(share)) = slot.share(Key([1, 2]), 100) {
                slot.leave(share);
            }
            let _ = slot.join_or_reserve(Key([3, 4]), 100, quota).map(|share| share.map(|share| slot.leave(share)));
            let _ = slot.release(500);
        }
    }
    let _ = slot.finish();
});
