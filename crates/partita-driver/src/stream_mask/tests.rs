extern crate std;

use super::*;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;

/// A fake stream: a pointer to a structure.
struct Fake {
    handle: Box<*mut u32>,
    words: Vec<u32>,
}

impl Fake {
    fn new(fill: u32) -> Self {
        let mut words = vec![fill; 64];
        words[10..15].fill(0);
        let mut handle = Box::new(words.as_mut_ptr());
        handle.expose();
        Self { handle, words }
    }
    fn stream(&self) -> StreamRef<'_> {
        // SAFETY: it is never given to a driver.
        unsafe { StreamRef::from_raw(core::ptr::from_ref::<*mut u32>(&self.handle).cast_mut().cast()) }
            .unwrap()
    }
}

trait Expose {
    fn expose(&mut self);
}
impl Expose for Box<*mut u32> {
    fn expose(&mut self) {
        let _ = (**self).expose_provenance();
    }
}

fn masks(layout: StreamMaskLayout, tpc_count: u32) -> StreamMasks<'static> {
    // A library that has none of the driver's calls.
    let cuda = Box::leak(Box::new(Cuda::load(Some(c"libc.so.6")).unwrap()));
    StreamMasks::new(cuda, StreamField::new(40, layout), tpc_count)
}

fn set(text: &str) -> TpcSet {
    text.parse().unwrap()
}

#[test]
fn masks_are_set_retargeted_and_restored_and_nothing_else_changes() {
    for layout in [StreamMaskLayout::EnabledWords, StreamMaskLayout::UpperLower] {
        let fake = Fake::new(0x5eed);
        // The old layout covers 64 TPCs.
        let masks = masks(layout, layout.tpcs_max().min(66));
        assert_eq!(masks.get(fake.stream()).unwrap(), None);
        let none = masks.set(fake.stream(), &set("0-9,40")).unwrap();
        assert_eq!(masks.get(fake.stream()).unwrap(), Some(set("0-9,40")));
        let first = masks.set(fake.stream(), &set("63")).unwrap();
        assert_eq!(masks.get(fake.stream()).unwrap(), Some(set("63")));
        masks.restore(fake.stream(), first).unwrap();
        assert_eq!(masks.get(fake.stream()).unwrap(), Some(set("0-9,40")));
        masks.restore(fake.stream(), none).unwrap();
        assert_eq!(masks.get(fake.stream()).unwrap(), None);
        let beside = fake.words.iter().enumerate().filter(|(at, _)| !(10..10 + layout.words()).contains(at));
        assert!(
            beside.into_iter().all(|(at, &word)| word == if (10..15).contains(&at) { 0 } else { 0x5eed })
        );
    }
}

#[test]
fn impossible_sets_are_refused() {
    let fake = Fake::new(0);
    let masks = masks(StreamMaskLayout::EnabledWords, 66);
    let refused = |set: &str| masks.set(fake.stream(), &set.parse().unwrap()).unwrap_err().to_string();
    assert!(masks.set(fake.stream(), &TpcSet::EMPTY).unwrap_err().to_string().contains("empty set"));
    assert!(refused("60-70").contains("66-70"), "{}", refused("60-70"));
    let old = self::masks(StreamMaskLayout::UpperLower, 66);
    let error = old.set(fake.stream(), &set("0-9")).unwrap_err().to_string();
    assert!(error.contains("64-65 cannot be left out"), "{error}");
    assert_eq!(masks.get(fake.stream()).unwrap(), None, "nothing was written");
}

#[test]
fn default_streams_and_dead_handles_are_refused() {
    for handle in 0..3 {
        // SAFETY: it is refused.
        let refused = unsafe { StreamRef::from_raw(core::ptr::without_provenance_mut(handle)) };
        assert!(matches!(refused, Err(Error::DefaultStream(which)) if which == handle));
    }
    let masks = masks(StreamMaskLayout::EnabledWords, 66);
    // SAFETY: it is never given to a driver.
    let wild = unsafe { StreamRef::from_raw(core::ptr::without_provenance_mut(0x10_0000_1000)) }.unwrap();
    assert!(matches!(masks.set(wild, &set("0")), Err(Error::Refused(_))));
    let mut other = Fake::new(7);
    other.words[10] = 7;
    assert!(matches!(masks.set(other.stream(), &set("0")), Err(Error::Refused(_))), "no mask is there");
    assert_eq!(other.words[10], 7);
}

#[test]
fn a_reader_never_sees_an_empty_mask_or_a_foreign_tpc() {
    use std::sync::Mutex;
    let fake = Fake::new(0);
    let masks = masks(StreamMaskLayout::EnabledWords, 66);
    // The two share no word, so words of both could be an empty mask.
    let (one, other) = (set("0-31"), set("32-63"));
    masks.set(fake.stream(), &one).unwrap();
    let (to_one, to_other) = (masks.words(&one).unwrap(), masks.words(&other).unwrap());
    let reading = Mutex::new(());
    let at = masks.field.address(fake.stream()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let mut seen = [u32::MAX; 8];
                let launch = reading.lock().unwrap();
                for (word, value) in seen.iter_mut().enumerate().take(4) {
                    let place = core::ptr::with_exposed_provenance_mut::<u32>(at + 4 + 4 * word);
                    // SAFETY: inside the fake structure, which outlives the scope.
                    *value = !unsafe { AtomicU32::from_ptr(place) }.load(Ordering::Acquire);
                }
                drop(launch);
                seen[4..].fill(0);
                let seen = TpcSet::from_words32(seen) & TpcSet::first(66);
                assert!(!seen.is_empty() && seen.is_subset(&(one | other)), "{seen}");
            }
        });
        for turn in 0..2_000 {
            let (former, words) = if turn % 2 == 0 { (to_one, to_other) } else { (to_other, to_one) };
            let change = Change { layout: StreamMaskLayout::EnabledWords, former, words, tpc_count: 66 };
            // As with the driver's lock: once it is free, earlier readers are done.
            assert!(change.make(at, || reading.lock().is_ok()));
        }
        done.store(true, Ordering::Release);
    });
}

#[test]
fn memory_is_read_to_the_end_of_the_mapping() {
    // SAFETY: two pages of our own, the second of which is given back.
    let pages = unsafe {
        let pages = libc::mmap(
            core::ptr::null_mut(),
            2 * PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        libc::munmap(pages.byte_add(PAGE_BYTES), PAGE_BYTES);
        pages
    };
    let mut bytes = [1u8; 300];
    assert_eq!(read_memory(pages.addr() + PAGE_BYTES - 100, &mut bytes), 100);
    assert_eq!(bytes[99..101], [0, 1]);
    assert_eq!(read_memory(pages.addr() + PAGE_BYTES, &mut bytes), 0);
    // SAFETY: the page that is left.
    unsafe { libc::munmap(pages, PAGE_BYTES) };
}
