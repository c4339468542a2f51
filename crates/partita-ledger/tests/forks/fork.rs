//! `fork` and `exec`: a slot belongs to the process that claimed it.

use crate::common;

use std::sync::atomic::Ordering::SeqCst;

use common::process::{End, alone, fork, shared_words, wait_until};
use common::{dir, owner};
use partita_ledger::{AccountError, UsageMap, UsageView};

#[test]
fn a_child_leaves_its_parents_slot_alone() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    UsageMap::create(&path, 0o600).unwrap();
    let mut slot = Some(UsageMap::open(&path).unwrap().claim(owner()).unwrap());
    slot.as_ref().unwrap().reserve(50, 100).unwrap();
    let child = fork(|| {
        let parents = slot.take().unwrap();
        assert_eq!(parents.reserve(1, 100), Err(AccountError::ForkedChild));
        assert_eq!(parents.release(1), Err(AccountError::ForkedChild));
        parents.abandon_in_fork_child();
        let own = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
        assert_ne!(own.index(), 0);
        assert_eq!(own.map().reap().unwrap(), 0, "the parent's lock is held");
        own.reserve(50, 100).unwrap();
        assert!(own.reserve(1, 100).is_err());
        0
    });
    assert_eq!(child.wait(), End::Exit(0));
    let slot = slot.unwrap();
    assert_eq!((slot.bytes(), slot.map().used()), (50, 100));
    // The child ended with its bytes.
    slot.reserve(50, 100).unwrap();
    assert_eq!((slot.bytes(), slot.map().used()), (100, 100));
}

#[test]
fn finishing_or_dropping_in_a_child_changes_nothing() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let slot = UsageMap::create(&path, 0o600).unwrap().claim(owner()).unwrap();
    slot.reserve(50, 100).unwrap();
    let mut slot = Some(slot);
    for finish in [false, true] {
        let child = fork(|| {
            let parents = slot.take().unwrap();
            if finish {
                assert_eq!(parents.finish().unwrap(), 0);
            }
            0
        });
        assert_eq!(child.wait(), End::Exit(0));
    }
    let view = UsageView::open(&path).unwrap();
    let shown = view.slots().next().unwrap().unwrap();
    assert!(shown.live && shown.bytes == 50 && shown.pid == owner().pid, "{shown:?}");
    assert_eq!(UsageMap::open(&path).unwrap().reap().unwrap(), 0);
}

/// A parent dies while its child lives. If the child has abandoned the slot, the parent's death
/// frees it; until then the child keeps it locked.
#[test]
fn a_parent_dies_before_its_child() {
    let _alone = alone();
    for abandons in [true, false] {
        let dir = dir();
        let path = dir.file("usage");
        let map = UsageMap::create(&path, 0o600).unwrap();
        let [ready, stop, grandchild] = shared_words::<3>();
        let parent = fork(|| {
            let mut slot = Some(UsageMap::open(&path).unwrap().claim(owner()).unwrap());
            slot.as_ref().unwrap().reserve(50, 100).unwrap();
            let child = fork(|| {
                if abandons {
                    slot.take().unwrap().abandon_in_fork_child();
                }
                grandchild.store(std::process::id().into(), SeqCst);
                ready.store(1, SeqCst);
                wait_until("the test", || stop.load(SeqCst) != 0);
                0
            });
            child.wait();
            0
        });
        wait_until("the child", || ready.load(SeqCst) != 0);
        assert_eq!(map.reap().unwrap(), 0, "the parent lives");
        parent.kill();
        assert_eq!(parent.wait(), End::Signal(libc::SIGKILL));
        assert_eq!(map.reap().unwrap(), if abandons { 50 } else { 0 });
        stop.store(1, SeqCst);
        let mut reaped = if abandons { 50 } else { 0 };
        wait_until("the child's end", || {
            reaped += map.reap().unwrap();
            reaped == 50
        });
        assert_eq!(map.used(), 0);
    }
}

/// `exec` replaces the program that held the bytes: the slot is dead, though the process number
/// lives.
#[test]
fn exec_ends_a_slot() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let child = fork(|| {
        let slot = UsageMap::open(&path).unwrap().claim(owner()).unwrap();
        slot.reserve(50, 100).unwrap();
        let arguments = [c"sleep".as_ptr(), c"1000".as_ptr(), std::ptr::null()];
        // SAFETY: the arguments are C strings, ended by a null pointer.
        unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
        1
    });
    let mut reaped = 0;
    wait_until("exec", || {
        reaped += map.reap().unwrap();
        reaped == 50
    });
    // SAFETY: signal 0 only checks that the process exists.
    assert_eq!(unsafe { libc::kill(child.0, 0) }, 0);
    child.kill();
    assert_eq!(child.wait(), End::Signal(libc::SIGKILL));
}
