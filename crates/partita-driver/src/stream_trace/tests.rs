extern crate std;

use super::*;
use std::sync::Mutex;

/// A process can run one trace at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Two private pages, so that no other code touches them.
fn pages() -> *mut u32 {
    // SAFETY: new pages, never given back.
    unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            2 * PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    }
    .cast()
}

/// Acts as a driver: reads some words, and four more if one of them is set.
unsafe fn driver(structure: *mut u32, mask: usize) -> [u32; 4] {
    // SAFETY: the caller's pages.
    unsafe {
        let at = |index: usize| structure.add(index);
        at(3).write_volatile(at(2).read_volatile() + 1);
        // Otherwise an optimised build adds in memory: one instruction, whose fault is a write.
        let count = core::hint::black_box(at(100).read_volatile());
        at(100).write_volatile(count + 1);
        if at(mask).read_volatile() == 1 {
            core::array::from_fn(|index| at(mask + 1 + index).read_volatile())
        } else {
            [0; 4]
        }
    }
}

#[test]
fn accesses_are_noted_and_nothing_is_changed() {
    let _one = ONE.lock().unwrap();
    let structure = pages();
    let trace = trace(structure.expose_provenance(), None, || {
        // SAFETY: our pages.
        unsafe { driver(structure, 327) };
        Ok(())
    })
    .unwrap();
    assert!(trace.was_read(8) && trace.was_read(400) && trace.was_read(4 * 327));
    assert!(trace.was_written(12) && trace.was_written(400) && !trace.was_written(4 * 327));
    assert!(!trace.was_read(4 * 328), "only if the first word is set");
    assert_eq!((0..STRUCTURE_BYTES).filter(|&at| trace.was_read(at)).count(), 3);
    // SAFETY: our pages, which are open again.
    assert_eq!(unsafe { (structure.add(3).read(), structure.add(100).read()) }, (1, 1));
}

#[test]
fn a_read_is_answered_in_place_for_one_instruction() {
    let _one = ONE.lock().unwrap();
    let structure = pages();
    let mut seen = [0; 4];
    let answer = Answer::InPlace { offset_bytes: 4 * 327, words: ([1, 0xa5a5, 0x5a5a, 7, 9], 5) };
    trace(structure.expose_provenance(), Some(answer), || {
        // SAFETY: our pages.
        seen = unsafe { driver(structure, 327) };
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [0xa5a5, 0x5a5a, 7, 9]);
    // SAFETY: our pages.
    assert!((327..332).all(|index| unsafe { structure.add(index).read() } == 0), "put back");
}

#[test]
fn a_read_is_answered_in_a_copy_that_reports_and_ends() {
    let _one = ONE.lock().unwrap();
    let structure = pages();
    for (words, expected) in [(Some(([1, 11, 22, 33, 44], 5)), [1, 11, 22, 33, 44]), (None, [1, 0, 0, 0, 0])]
    {
        let mut seen = [9; 4];
        let answer = Answer::InCopy { offset_bytes: 4 * 327, words };
        let trace = trace(structure.expose_provenance(), Some(answer), || {
            // SAFETY: our pages.
            seen = unsafe { driver(structure, 327) };
            report_if_copy(Some([seen[0], seen[1], seen[2], seen[3], 0, 0, 0, 0]));
            Ok(())
        })
        .unwrap();
        assert_eq!(trace.report.map(|report| report[..5].to_vec()), Some(expected.to_vec()));
        assert_eq!(seen, [0; 4], "nothing was replaced here");
    }
}

#[test]
fn a_copy_goes_no_further_than_the_launch() {
    let _one = ONE.lock().unwrap();
    let structure = pages();
    let answer = Answer::InCopy { offset_bytes: 4 * 327, words: Some(([1; 5], 5)) };
    let original = std::process::id();
    let trace = trace(structure.expose_provenance(), Some(answer), || {
        // SAFETY: our pages.
        match unsafe { driver(structure, 327) } {
            [0, 0, 0, 0] => Ok(()),
            _ => Err(Error::Refused("the driver fails".into())),
        }
    });
    assert_eq!(std::process::id(), original);
    assert_eq!(trace.unwrap().report, None);
}

#[test]
fn a_copy_that_dies_reports_nothing() {
    let _one = ONE.lock().unwrap();
    let structure = pages();
    let answer = Answer::InCopy { offset_bytes: 4 * 327, words: Some(([1; 5], 5)) };
    let trace = trace(structure.expose_provenance(), Some(answer), || {
        // SAFETY: our pages; the second address is unmapped and read in the copy only.
        unsafe {
            if driver(structure, 327) != [0; 4] {
                core::ptr::without_provenance::<u32>(64).read_volatile();
            }
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(trace.report, None);
}
