//! The driver's private structure of a stream, to which the handle's first word points.
//!
//! It contains the stream's mask at the driver's offset, and the driver's other data. As on an H200
//! a launch reads about three dozen words scattered over it, of which many are zero and could be
//! taken for an inactive mask; the words of the mask itself are read only if the first says that
//! they count. A launch relies on the words that it reads, and all words are checked when the
//! stream is waited for or destroyed: a word that other code changed is a corruption of the
//! driver's state.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partita_abi::stream::StreamMaskLayout;
use partita_sim::DeviceSpec;

use crate::shared::driver::STRUCTURE_BYTES;
use crate::shared::sys::lock;

const WORDS: usize = STRUCTURE_BYTES as usize / 4;
/// Distance between two structures. Not a multiple of a page, so that some cross a page boundary.
const STRIDE_BYTES: usize = STRUCTURE_BYTES as usize + 0x140;
/// Structures mapped at a time.
const CHUNK: usize = 28;

/// Where a launch of an H200's driver 580.159.04 was seen to read, in order, without the mask at
/// 0x51c.
const READ_AT_LAUNCH: [u16; 44] = [
    0x10, 0x58, 0x448, 0x580, 0x57c, 0x5c, 0x5d8, 0x3fc, 0x3e0, 0x3e8, 0xb8, 0x398, 0x80, 0x5f0, 0x620,
    0x638, 0x650, 0x668, 0x680, 0x560, 0x8b0, 0x8d0, 0x8e0, 0x8c0, 0x554, 0x7f4, 0x7fc, 0x6d4, 0x6c4, 0x724,
    0x794, 0x7d4, 0x7e4, 0x7c4, 0x804, 0x814, 0x824, 0x170, 0x14, 0x4f0, 0x2a0, 0x2a4, 0x134, 0x88,
];
/// Of these, where zeros follow, as would those of a mask that is not in force.
const LIKE_NO_MASK: [u16; 11] = [0x58, 0x448, 0x580, 0x620, 0x638, 0x650, 0x668, 0x680, 0x560, 0x8e0, 0x170];
/// Where the structure has its own address.
const SELF_AT: usize = 0x10;
/// Where the driver counts launches, if its mask is not there.
const COUNTER_AT: [usize; 2] = [0x3e0, 0x2a8];

/// A word that is not the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Where in the structure, in bytes.
    pub offset_bytes: usize,
    /// The word there.
    pub word: u32,
}

/// How one driver lays structures out.
#[derive(Debug)]
pub struct Shape {
    mask_at: usize,
    mask: StreamMaskLayout,
    counter_at: usize,
    /// Words that every structure has alike; those of the mask, the counter and the address are
    /// zero.
    fresh: Box<[u32]>,
    /// Word numbers that a launch relies on.
    read: Box<[u16]>,
}

impl Shape {
    /// That of a device's driver.
    pub fn of(spec: &DeviceSpec) -> Self {
        let mask_at = spec.driver.stream_mask.offset_bytes as usize;
        let mask = StreamMaskLayout::of(spec.driver.cuda_version);
        let window = mask_at..mask_at + mask.bytes();
        let apart = |at: usize, bytes: usize| at + bytes <= window.start || window.end <= at;
        let counter_at = if apart(COUNTER_AT[0], 8) { COUNTER_AT[0] } else { COUNTER_AT[1] };
        let special = |at: usize| {
            !apart(at, 4)
                || (counter_at..counter_at + 8).contains(&at)
                || (SELF_AT..SELF_AT + 8).contains(&at)
        };
        let zeros = |at: usize| {
            at + 0x20 > window.start && at < window.end + 0x20
                || LIKE_NO_MASK.iter().any(|like| (0..20).contains(&(at as i32 - i32::from(*like))))
        };
        let word = |at: usize| match at {
            at if special(at) || zeros(at) => 0,
            // Two words in five hold something.
            at => {
                let mixed = (at as u32).wrapping_mul(0x9e37_79b1);
                if mixed >> 16 & 0xff < 102 { mixed >> 11 | 1 } else { 0 }
            }
        };
        let fresh = (0..WORDS).map(|index| word(4 * index)).collect();
        let read = READ_AT_LAUNCH.iter().filter(|at| !special(usize::from(**at))).map(|at| at / 4).collect();
        Self { mask_at, mask, counter_at, fresh, read }
    }

    /// The offset of the mask, in bytes.
    pub fn mask_at(&self) -> usize {
        self.mask_at
    }

    fn is_mask(&self, index: usize) -> bool {
        (self.mask_at..self.mask_at + self.mask.bytes()).contains(&(4 * index))
    }
}

/// One stream's structure. Never unmapped.
#[derive(Clone, Copy, Debug)]
pub struct Structure(&'static [AtomicU32; WORDS]);

impl Structure {
    /// A new one, in pages without other data: code that protects them for a moment to trace reads
    /// does not affect the program's data.
    pub fn new() -> Option<Self> {
        static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        let mut free = lock(&FREE);
        if free.is_empty() {
            let bytes = CHUNK * STRIDE_BYTES;
            // SAFETY: new pages at an address of the system's choice.
            let pages = unsafe {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0)
            };
            if pages == libc::MAP_FAILED {
                return None;
            }
            let pages = pages.expose_provenance();
            free.extend((0..CHUNK).rev().map(|index| pages + index * STRIDE_BYTES));
        }
        // SAFETY: inside pages that are zeroed, aligned and never unmapped, and allocated once;
        // plain atomics may hold anything.
        free.pop().map(|address| Self(unsafe { &*std::ptr::with_exposed_provenance(address) }))
    }

    /// The structure at an address of [`Self::address`].
    ///
    /// # Safety
    /// The address is that of a structure.
    pub unsafe fn at(address: *const u8) -> Self {
        // SAFETY: by the caller's word; structures are never unmapped.
        Self(unsafe { &*address.cast() })
    }

    /// Its address.
    pub fn address(self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn word(self, at: usize) -> &'static AtomicU32 {
        &self.0[at / 4]
    }

    fn pair(self, at: usize) -> &'static AtomicU64 {
        // SAFETY: both offsets of pairs are multiples of 8 inside the structure, whose address is
        // one, too; their halves are not accessed otherwise.
        unsafe { &*self.0.as_ptr().cast::<u8>().add(at).cast() }
    }

    /// Initialises it for a new stream without launches. As on an H200 (driver 580.159.04), the
    /// mask of a former stream here stays: the new stream has it from the start.
    pub fn arm(self, shape: &Shape) {
        for (index, (word, fresh)) in self.0.iter().zip(&shape.fresh).enumerate() {
            if !shape.is_mask(index) {
                word.store(*fresh, Ordering::Relaxed);
            }
        }
        self.pair(SELF_AT).store(self.address().expose_provenance() as u64, Ordering::Relaxed);
    }

    fn check_self(self) -> Result<(), Foreign> {
        let own = self.address().addr() as u64;
        match self.pair(SELF_AT).load(Ordering::Relaxed) {
            found if found == own => Ok(()),
            found => Err(Foreign { offset_bytes: SELF_AT, word: found as u32 }),
        }
    }

    /// The accesses of a launch: checks the driver's own words, counts, and returns the stream's
    /// mask if it is active.
    ///
    /// # Errors
    /// The first word found that is not the driver's.
    #[inline]
    pub fn launch(self, shape: &Shape) -> Result<Option<[u32; 4]>, Foreign> {
        self.check_self()?;
        let (before, after) = shape.read.split_at(shape.read.len().min(6));
        self.rely_on(shape, before)?;
        let mask = self.mask(shape);
        self.rely_on(shape, after)?;
        self.pair(shape.counter_at).fetch_add(1, Ordering::Relaxed);
        Ok(mask)
    }

    #[inline]
    fn rely_on(self, shape: &Shape, words: &[u16]) -> Result<(), Foreign> {
        for index in words {
            let index = usize::from(*index);
            let word = self.0[index].load(Ordering::Relaxed);
            if word != shape.fresh[index] {
                return Err(Foreign { offset_bytes: 4 * index, word });
            }
        }
        Ok(())
    }

    /// The mask that other code wrote, if it is active.
    #[inline]
    fn mask(self, shape: &Shape) -> Option<[u32; 4]> {
        let first = self.word(shape.mask_at).load(Ordering::Acquire);
        let mut words = [first, 0, 0, 0, 0];
        if shape.mask == StreamMaskLayout::EnabledWords && shape.mask.decode(&words).is_none() {
            return None;
        }
        for (index, word) in words.iter_mut().enumerate().take(shape.mask.words()).skip(1) {
            *word = self.word(shape.mask_at + 4 * index).load(Ordering::Relaxed);
        }
        shape.mask.decode(&words)
    }

    /// Checks every word but the mask's and the counter's, which a launch may be changing.
    ///
    /// # Errors
    /// The first word found that is not the driver's.
    pub fn inspect(self, shape: &Shape) -> Result<(), Foreign> {
        self.check_self()?;
        let counter = shape.counter_at / 4..shape.counter_at / 4 + 2;
        let own = SELF_AT / 4..SELF_AT / 4 + 2;
        for (index, (word, fresh)) in self.0.iter().zip(&shape.fresh).enumerate() {
            let word = word.load(Ordering::Relaxed);
            if word != *fresh && !counter.contains(&index) && !own.contains(&index) && !shape.is_mask(index) {
                return Err(Foreign { offset_bytes: 4 * index, word });
            }
        }
        Ok(())
    }

    /// Checks every word, and the count of the launches. No launch may run meanwhile.
    ///
    /// # Errors
    /// As [`Self::inspect`].
    pub fn inspect_all(self, shape: &Shape, launches: u64) -> Result<(), Foreign> {
        self.inspect(shape)?;
        match self.pair(shape.counter_at).load(Ordering::Relaxed) {
            count if count == launches => Ok(()),
            count => Err(Foreign { offset_bytes: shape.counter_at, word: count as u32 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::driver::{set_stream_offset, set_version};
    use partita_sim::catalogue;

    fn shape(version: &str, offset: Option<&str>) -> Shape {
        let mut spec = catalogue::device("h200").unwrap();
        set_version(&mut spec, version).unwrap();
        offset.map_or(Ok(()), |offset| set_stream_offset(&mut spec, offset)).unwrap();
        Shape::of(&spec)
    }

    fn armed(shape: &Shape) -> Structure {
        let structure = Structure::new().unwrap();
        structure.arm(shape);
        structure
    }

    #[test]
    fn masks_are_taken_from_wherever_a_driver_has_them() {
        for (version, offset) in [
            ("11.8", None),
            ("12.9", None),
            ("13.0", None),
            ("13.0", Some("0x40")),
            ("13.0", Some("0x3dc")),
            ("11.8", Some("0x2a8")),
            ("13.2", Some("0x8ec")),
        ] {
            let shape = shape(version, offset);
            let structure = armed(&shape);
            assert_eq!(structure.launch(&shape), Ok(None), "{version} {offset:?}");
            let disable = [!3, 5, 0, 0];
            for (index, word) in shape.mask.encode(&disable).iter().enumerate().take(shape.mask.words()) {
                assert_eq!(structure.word(shape.mask_at + 4 * index).swap(*word, Ordering::Relaxed), 0);
            }
            assert_eq!(structure.launch(&shape), Ok(Some(disable)), "{version} {offset:?}");
            assert_eq!(structure.inspect_all(&shape, 2), Ok(()));
            assert!(structure.inspect_all(&shape, 3).is_err());
        }
    }

    #[test]
    fn a_mask_outlives_its_stream() {
        let shape = shape("13.0", None);
        let structure = armed(&shape);
        let disable = [!1, 7, 0, 0];
        for (index, word) in shape.mask.encode(&disable).iter().enumerate() {
            structure.word(shape.mask_at + 4 * index).store(*word, Ordering::Relaxed);
        }
        structure.arm(&shape);
        assert_eq!(structure.launch(&shape), Ok(Some(disable)));
    }

    #[test]
    fn any_other_word_is_the_drivers() {
        let shape = shape("13.0", None);
        let structure = armed(&shape);
        let mut relied_on = 0;
        for index in (0..WORDS).filter(|index| !shape.is_mask(*index)) {
            let word = structure.0[index].fetch_xor(0x8000_0001, Ordering::Relaxed) ^ 0x8000_0001;
            relied_on += usize::from(structure.launch(&shape).is_err());
            structure.pair(shape.counter_at).fetch_sub(1, Ordering::Relaxed);
            let found = structure.inspect_all(&shape, 0);
            assert!(found.is_err(), "{:#x}", 4 * index);
            if index != SELF_AT / 4 + 1 && index != shape.counter_at / 4 + 1 {
                assert_eq!(found.map_err(|foreign| foreign.word), Err(word), "{:#x}", 4 * index);
            }
            structure.arm(&shape);
        }
        assert!((30..60).contains(&relied_on), "{relied_on}");
    }

    #[test]
    fn some_words_look_like_a_mask_but_are_not() {
        let shape = shape("13.0", None);
        let zeros = |index: usize| shape.fresh[index..].iter().take(5).all(|word| *word == 0);
        let alike = shape.read.iter().filter(|index| zeros(usize::from(**index))).count();
        assert!((8..25).contains(&alike), "{alike}");
        assert!(shape.fresh.iter().filter(|word| **word != 0).count() > WORDS / 4);
        assert!(zeros(shape.mask_at / 4));
    }
}
