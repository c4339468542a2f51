//! The mask of a stream, in the driver's own structure.
//!
//! Its offset differs from driver to driver and is undocumented, so a [`StreamField`] comes only
//! from a proof ([`crate::stream_proof`]) or from a cached one. Every access first reads through a
//! system call, which reports an unreadable address instead of faulting, and nothing is written
//! unless the words found are those of a mask.

use alloc::format;
use alloc::string::String;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use partita_abi::CuResult;
use partita_abi::stream::StreamMaskLayout;
use partita_core::TpcSet;

use crate::cuda::Cuda;
use crate::error::Error;
use crate::stream::{Stream, StreamRef};

/// The range of the search in a stream's structure, in bytes. The farthest known offset is 0x5fc.
pub const STRUCTURE_BYTES: usize = 4096;
const PAGE_BYTES: usize = 4096;

/// Where this driver stores the mask of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamField {
    offset_bytes: u32,
    layout: StreamMaskLayout,
}

impl StreamField {
    /// An unproved offset.
    pub(crate) fn new(offset_bytes: u32, layout: StreamMaskLayout) -> Self {
        Self { offset_bytes, layout }
    }

    /// An offset that was proved before, under this exact driver build and on this device:
    /// [`StreamField::offset_bytes`] of a [`crate::stream_proof::StreamProof`]. The owner of the
    /// cache guarantees that; this call only checks that a new stream of the current context has no
    /// mask there.
    ///
    /// # Errors
    /// [`Error::Refused`] if a new stream's words there are not those of a stream without a mask;
    /// those of the driver.
    pub fn from_cache(cuda: &Cuda, offset_bytes: u32) -> Result<Self, Error> {
        let mut version = 0;
        // SAFETY: a valid pointer.
        unsafe { cuda.driver_get_version(&mut version)? };
        let field = Self::new(offset_bytes, StreamMaskLayout::of(u32::try_from(version).unwrap_or(0)));
        let stream = Stream::new(cuda)?;
        match field.read(stream.as_ref())? {
            words if words == [0; 5] => Ok(field),
            words => Err(Error::Refused(format!(
                "offset {offset_bytes:#x} of a new stream holds {words:x?} and not an empty mask: \
                 calibrate again with `partita doctor`"
            ))),
        }
    }

    /// The offset of the mask from the stream's structure, in bytes.
    pub fn offset_bytes(&self) -> u32 {
        self.offset_bytes
    }

    /// The layout of its words.
    pub fn layout(&self) -> StreamMaskLayout {
        self.layout
    }

    /// The words in the structure; those beyond the layout are zero.
    pub(crate) fn read(&self, stream: StreamRef<'_>) -> Result<[u32; 5], Error> {
        self.read_at(self.address(stream)?, stream)
    }

    fn read_at(&self, at: usize, stream: StreamRef<'_>) -> Result<[u32; 5], Error> {
        let mut bytes = [0u8; 20];
        let wanted = &mut bytes[..self.layout.bytes()];
        if read_memory(at, wanted) < wanted.len() {
            return Err(unreadable(stream));
        }
        Ok(words_of(&bytes))
    }

    /// The words, if they are those of a mask or of a stream without one.
    fn checked(&self, words: [u32; 5]) -> Result<[u32; 5], Error> {
        let plausible = match self.layout {
            StreamMaskLayout::EnabledWords => words[0] <= 1,
            StreamMaskLayout::UpperLower => true,
        };
        if plausible { Ok(words) } else { Err(not_a_mask(&words)) }
    }

    /// The address of the words in a stream's structure.
    pub(crate) fn address(&self, stream: StreamRef<'_>) -> Result<usize, Error> {
        Ok(structure(stream)? + self.offset_bytes as usize)
    }
}

/// Sets and clears masks of streams of one GPU.
#[derive(Clone, Copy)]
pub struct StreamMasks<'a> {
    cuda: &'a Cuda,
    field: StreamField,
    tpc_count: u32,
}

/// The previous mask of a stream; [`StreamMasks::restore`] restores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormerMask([u32; 5]);

impl<'a> StreamMasks<'a> {
    /// For a GPU with so many TPCs.
    pub fn new(cuda: &'a Cuda, field: StreamField, tpc_count: u32) -> Self {
        Self { cuda, field, tpc_count }
    }

    /// The offset and layout of the masks.
    pub fn field(&self) -> StreamField {
        self.field
    }

    /// The stream's set of enabled TPCs; `None` without a mask.
    ///
    /// # Errors
    /// [`Error::Refused`] if the stream's structure cannot be read.
    pub fn get(&self, stream: StreamRef<'_>) -> Result<Option<TpcSet>, Error> {
        let words = self.field.read(stream)?;
        Ok(self.field.layout.decode(&words).map(|disable| {
            let [a, b, c, d] = disable;
            // TPCs beyond the mask cannot be disabled.
            TpcSet::first(self.tpc_count) - TpcSet::from_words32([a, b, c, d, 0, 0, 0, 0])
        }))
    }

    /// Restricts later launches of the stream to `set`; queued work keeps the mask of its launch.
    ///
    /// This can be called while the stream has work, and while other threads launch on it. A launch
    /// at that very moment can see words of both masks: it stays within the union of the two sets,
    /// and always has a TPC. If two masks have no word with TPCs of both, the change goes through
    /// their union, with a driver call in between that waits for a launch that has begun to read.
    ///
    /// # Errors
    /// [`Error::Refused`] for a set that is empty, has TPCs that the device lacks, or leaves out
    /// TPCs that this driver's masks cannot name; and if the words found are not those of a mask.
    pub fn set(&self, stream: StreamRef<'_>, set: &TpcSet) -> Result<FormerMask, Error> {
        self.set_at(self.find(stream)?, stream, set)
    }

    /// As [`StreamMasks::set`], for a live stream whose mask was found before: a few loads and
    /// stores.
    pub(crate) fn set_at(
        &self,
        at: MaskPlace,
        stream: StreamRef<'_>,
        set: &TpcSet,
    ) -> Result<FormerMask, Error> {
        let words = self.words(set).map_err(Error::Refused)?;
        let former = self.field.checked(at.words(self.field.layout))?;
        let change = Change { layout: self.field.layout, former, words, tpc_count: self.tpc_count };
        if !change.make(at.0, || works(self.cuda, stream)) {
            return Err(unreadable(stream));
        }
        Ok(FormerMask(former))
    }

    /// Removes the stream's mask.
    ///
    /// # Errors
    /// As [`StreamMasks::set`].
    pub fn clear(&self, stream: StreamRef<'_>) -> Result<FormerMask, Error> {
        let at = self.find(stream)?;
        let former = at.words(self.field.layout);
        store(at.0, 0, &[0; 5][..self.field.layout.words()]);
        Ok(FormerMask(former))
    }

    /// Restores the stream's previous mask.
    ///
    /// # Errors
    /// As [`StreamMasks::set`].
    pub fn restore(&self, stream: StreamRef<'_>, former: FormerMask) -> Result<(), Error> {
        match self.field.layout.decode(&former.0) {
            None => self.clear(stream)?,
            Some([a, b, c, d]) => {
                let set = TpcSet::first(self.tpc_count) - TpcSet::from_words32([a, b, c, d, 0, 0, 0, 0]);
                self.set(stream, &set)?
            }
        };
        Ok(())
    }

    /// The words that restrict launches to `set`.
    pub(crate) fn words(&self, set: &TpcSet) -> Result<[u32; 5], String> {
        let all = TpcSet::first(self.tpc_count);
        if set.is_empty() {
            return Err("an empty set: a launch with no TPC would never end; name at least one".into());
        }
        if !set.is_subset(&all) {
            return Err(format!("the device does not have TPCs {}: it has TPCs {all}", *set - all));
        }
        let nameable = TpcSet::first(self.field.layout.tpcs_max());
        let left_out = all - *set;
        if !left_out.is_subset(&nameable) {
            return Err(format!(
                "TPCs {} cannot be left out: a stream's mask of this driver covers only {} TPCs",
                left_out - nameable,
                self.field.layout.tpcs_max()
            ));
        }
        let disable = (!*set).to_words32();
        Ok(self.field.layout.encode(&[disable[0], disable[1], disable[2], disable[3]]))
    }

    /// Finds a stream's mask, through the kernel, and checks that it is one.
    pub(crate) fn find(&self, stream: StreamRef<'_>) -> Result<MaskPlace, Error> {
        let at = self.field.address(stream)?;
        self.field.checked(self.field.read_at(at, stream)?)?;
        Ok(MaskPlace(at))
    }
}

/// The address of a stream's mask, which was readable and valid when it was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaskPlace(usize);

impl MaskPlace {
    /// The current words.
    fn words(self, layout: StreamMaskLayout) -> [u32; 5] {
        core::array::from_fn(|number| {
            if number >= layout.words() {
                return 0;
            }
            let place: *mut u32 = core::ptr::with_exposed_provenance_mut(self.0 + 4 * number);
            // SAFETY: a live stream's words, found by find(), 4-byte aligned.
            unsafe { AtomicU32::from_ptr(place) }.load(Ordering::Acquire)
        })
    }
}

#[cold]
fn not_a_mask(words: &[u32; 5]) -> Error {
    Error::Refused(format!(
        "the words of a stream's mask in this driver are {words:x?}, which is not a mask: is the \
         stream still alive?"
    ))
}

#[cold]
fn unreadable(stream: StreamRef<'_>) -> Error {
    Error::Refused(format!(
        "the driver's structure of stream {:?} is unreadable: is the stream still alive?",
        stream.handle()
    ))
}

/// A change from the words of one mask, or of no mask, to those of another.
struct Change {
    layout: StreamMaskLayout,
    former: [u32; 5],
    words: [u32; 5],
    tpc_count: u32,
}

impl Change {
    /// Writes the words. `wait` returns once no launch that began before it is still reading, and
    /// reports whether the stream works.
    fn make(&self, at: usize, wait: impl FnOnce() -> bool) -> bool {
        let Self { layout, former, words, .. } = self;
        let width = layout.words();
        let mask = usize::from(*layout == StreamMaskLayout::EnabledWords);
        if layout.decode(former).is_none() {
            // The words first, then the words that activate them. If the layout has none, zero
            // words enable everything, so that a reader in between enables more and not less.
            store(at, mask, &words[..width]);
            store(at, 0, &words[..mask]);
            return true;
        }
        let enables = |words: &[u32; 5], word: usize| !words[word] & self.live(word) != 0;
        // A word that enables TPCs in both masks does so whichever of the two a reader sees.
        if !(mask..width).any(|word| enables(former, word) && enables(words, word)) {
            let both: [u32; 5] = core::array::from_fn(|word| former[word] & words[word]);
            store(at, mask, &both[..width]);
            if !wait() {
                return false;
            }
        }
        store(at, mask, &words[..width]);
        true
    }

    /// The bits of a word that stand for TPCs of the device.
    fn live(&self, word: usize) -> u32 {
        let all = TpcSet::first(self.tpc_count).to_words32();
        match self.layout {
            StreamMaskLayout::EnabledWords => all[word - 1],
            StreamMaskLayout::UpperLower => all[1 - word],
        }
    }
}

/// Writes words from number `from` on.
fn store(at: usize, from: usize, words: &[u32]) {
    for (number, word) in words.iter().enumerate().skip(from) {
        let place: *mut u32 = core::ptr::with_exposed_provenance_mut(at + 4 * number);
        // SAFETY: the words were just read through the kernel as the mask of a live stream at a
        // proved place, which is 4-byte aligned. The driver reads them concurrently, hence an
        // atomic.
        unsafe { AtomicU32::from_ptr(place) }.store(*word, Ordering::Release);
    }
}

/// The address of the driver's structure behind a stream.
pub(crate) fn structure(stream: StreamRef<'_>) -> Result<usize, Error> {
    let mut bytes = [0u8; size_of::<usize>()];
    if read_memory(stream.handle().addr(), &mut bytes) < bytes.len() {
        return Err(unreadable(stream));
    }
    match usize::from_ne_bytes(bytes) {
        address if address >= PAGE_BYTES && address % 4 == 0 => Ok(address),
        _ => Err(unreadable(stream)),
    }
}

/// Reads this process's memory at an untrusted address. Returns how many bytes could be read.
pub(crate) fn read_memory(address: usize, to: &mut [u8]) -> usize {
    let mut done = 0;
    while done < to.len() {
        // A transfer is complete or not made at all, so each stays inside one page.
        let from = address.wrapping_add(done);
        let bytes = (PAGE_BYTES - from % PAGE_BYTES).min(to.len() - done);
        let local = libc::iovec { iov_base: to[done..].as_mut_ptr().cast::<c_void>(), iov_len: bytes };
        let remote = libc::iovec { iov_base: core::ptr::without_provenance_mut(from), iov_len: bytes };
        // SAFETY: the local range is that of `to`; the kernel checks the remote one.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        if read != bytes as isize {
            break;
        }
        done += bytes;
    }
    done
}

pub(crate) fn words_of(bytes: &[u8; 20]) -> [u32; 5] {
    core::array::from_fn(|i| {
        u32::from_ne_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
    })
}

/// Whether a stream still works; checked before and after its structure is touched.
pub(crate) fn works(cuda: &Cuda, stream: StreamRef<'_>) -> bool {
    // SAFETY: a live stream.
    match unsafe { cuda.stream_query(stream.handle()) } {
        Ok(()) => true,
        Err(Error::Call { code, .. }) => code == CuResult::NOT_READY,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests;
