//! The TPC disable mask of a launch descriptor: reading, writing, uniting.

use super::{QMD_WORDS_MAX, QmdError, QmdField, QmdLayout};

/// Where a version has its TPC disable mask.
///
/// The mask is one number space, 0 to [`QmdMask::tpcs_max`], in up to two places: words from the
/// first on, and what a version added beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdMask {
    /// The first word of the mask, counted from the start of the descriptor.
    pub first_word: u16,
    /// Words from there on, each of 32 TPCs: 2, 4 or 8.
    pub words: u8,
    /// Where the TPCs beyond those words are.
    pub beyond: QmdMaskBeyond,
    /// The bit that must be set for the mask to count; `None` where the mask always counts.
    pub valid: Option<QmdField>,
}

/// Where the TPCs beyond a mask's first words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QmdMaskBeyond {
    /// There is no such place.
    Nothing,
    /// In two fields of one word, the lower numbers first. The bits between and around them are
    /// other fields.
    Fields {
        /// The next TPCs.
        lower: QmdField,
        /// Those after them.
        upper: QmdField,
    },
    /// In four words.
    Words4 {
        /// The first of them, counted from the start of the descriptor.
        first_word: u16,
    },
}

impl QmdMask {
    /// How many TPCs the mask can name; a TPC with a greater physical number cannot be disabled.
    pub const fn tpcs_max(&self) -> u32 {
        let beyond = match self.beyond {
            QmdMaskBeyond::Nothing => 0,
            QmdMaskBeyond::Fields { lower, upper } => lower.bits() + upper.bits(),
            QmdMaskBeyond::Words4 { .. } => 128,
        };
        self.words as u32 * 32 + beyond
    }

    /// The bits of a descriptor that hold the mask, without the valid bit.
    pub fn bits(&self) -> [u32; QMD_WORDS_MAX] {
        let mut bits = [0; QMD_WORDS_MAX];
        self.put(&mut bits, &[u32::MAX; 8]);
        bits
    }

    /// The image must hold a whole descriptor.
    #[inline]
    fn put(&self, image: &mut [u32], disable: &[u32; 8]) {
        let first = self.first_word as usize;
        // Fixed lengths, so that no call to memcpy is made for a few words.
        match self.words {
            2 => image[first..first + 2].copy_from_slice(&disable[..2]),
            4 => image[first..first + 4].copy_from_slice(&disable[..4]),
            _ => image[first..first + 8].copy_from_slice(disable),
        }
        match self.beyond {
            QmdMaskBeyond::Nothing => {}
            QmdMaskBeyond::Fields { lower, upper } => {
                let more = disable[self.words as usize];
                image[lower.word()] = lower.put(image[lower.word()], more);
                image[upper.word()] = upper.put(image[upper.word()], more >> lower.bits());
            }
            QmdMaskBeyond::Words4 { first_word } => {
                let beyond = first_word as usize;
                image[beyond..beyond + 4].copy_from_slice(&disable[4..]);
            }
        }
    }

    /// Whether a descriptor has a mask. The image must hold a whole one.
    #[inline]
    fn counts(&self, image: &[u32]) -> bool {
        if let Some(valid) = self.valid {
            // Words without the valid bit are leftovers and not a mask.
            return image[valid.word()] & valid.mask() != 0;
        }
        let first = self.first_word as usize;
        let some = image[first..first + self.words as usize].iter().any(|word| *word != 0);
        some || match self.beyond {
            QmdMaskBeyond::Nothing => false,
            QmdMaskBeyond::Fields { lower, upper } => {
                image[lower.word()] & lower.mask() != 0 || image[upper.word()] & upper.mask() != 0
            }
            QmdMaskBeyond::Words4 { first_word } => {
                let beyond = first_word as usize;
                image[beyond..beyond + 4].iter().any(|word| *word != 0)
            }
        }
    }

    /// The image must hold a whole descriptor.
    #[inline]
    fn get(&self, image: &[u32]) -> [u32; 8] {
        let first = self.first_word as usize;
        let mut disable = [0; 8];
        match self.words {
            2 => disable[..2].copy_from_slice(&image[first..first + 2]),
            4 => disable[..4].copy_from_slice(&image[first..first + 4]),
            _ => disable.copy_from_slice(&image[first..first + 8]),
        }
        match self.beyond {
            QmdMaskBeyond::Nothing => {}
            QmdMaskBeyond::Fields { lower, upper } => {
                disable[self.words as usize] =
                    lower.get(image[lower.word()]) | upper.get(image[upper.word()]) << lower.bits();
            }
            QmdMaskBeyond::Words4 { first_word } => {
                let beyond = first_word as usize;
                disable[4..].copy_from_slice(&image[beyond..beyond + 4]);
            }
        }
        disable
    }
}

impl QmdLayout {
    /// Cuts an image to the descriptor, or says that it is too short.
    #[inline]
    fn whole_mut<'a>(&self, image: &'a mut [u32]) -> Result<&'a mut [u32], QmdError> {
        let words = image.len();
        image.get_mut(..self.words()).ok_or(QmdError::ImageTooShort { version: self.version, words })
    }
}

/// Writes a disable mask into a descriptor: every bit that the version has for it, and the bit that
/// makes the mask count. No other bit changes.
///
/// A set bit disables the TPC with that *physical* number; numbers that the version has no bit for
/// are ignored. Whether the mask leaves a TPC that exists is the caller's to know: a launch whose
/// mask does not never ends.
///
/// This runs once for every kernel launch of a tenant, so it is a length check, predictable
/// branches and a few stores.
///
/// # Errors
/// [`QmdError::ImageTooShort`]; nothing is then written.
#[inline]
pub fn write_disable_mask(image: &mut [u32], layout: &QmdLayout, disable: &[u32; 8]) -> Result<(), QmdError> {
    let image = layout.whole_mut(image)?;
    layout.mask.put(image, disable);
    if let Some(valid) = layout.mask.valid {
        image[valid.word()] |= valid.mask();
    }
    Ok(())
}

/// Takes a descriptor's mask away: its bits and the bit that makes it count become zero, and no
/// other bit changes.
///
/// # Errors
/// [`QmdError::ImageTooShort`]; nothing is then written.
pub fn clear_disable_mask(image: &mut [u32], layout: &QmdLayout) -> Result<(), QmdError> {
    let image = layout.whole_mut(image)?;
    layout.mask.put(image, &[0; 8]);
    if let Some(valid) = layout.mask.valid {
        image[valid.word()] &= !valid.mask();
    }
    Ok(())
}

/// Writes a disable mask into a descriptor as [`write_disable_mask`] does, and keeps everything
/// disabled that the descriptor's own mask disables.
///
/// The driver writes a mask for a reason. Measured on an H200 with driver 580.159.04: a stream's
/// own mask arrives here, and without one every launch of clusters of more than two blocks has TPCs
/// 72 to 127 disabled, the numbers of TPCs that belong to no whole GPC. (With a stream's mask the
/// driver leaves that out, and the clusters run all the same.)
///
/// The union can disable every existing TPC where neither mask does, and such a launch never ends:
/// the caller must check, or use [`merge_live`].
///
/// # Errors
/// [`QmdError::ImageTooShort`]; nothing is then written.
#[inline]
pub fn merge_disable_mask(image: &mut [u32], layout: &QmdLayout, disable: &[u32; 8]) -> Result<(), QmdError> {
    if !has_disable_mask(image, layout) {
        return write_disable_mask(image, layout, disable);
    }
    write_disable_mask(image, layout, &union(disable, &layout.mask.get(image)))
}

/// As [`merge_disable_mask`], for a launch that must end: if both masks together leave none of
/// `live` enabled, `disable` alone is written, and the descriptor's own mask is dropped.
///
/// `live` has a set bit for each physical number that has a TPC on this board; `disable` leaves one
/// of them enabled.
///
/// Returns whether the descriptor's own mask still holds: `false` if it was dropped.
///
/// # Errors
/// [`QmdError::ImageTooShort`]; nothing is then written.
#[inline]
pub fn merge_live(
    image: &mut [u32],
    layout: &QmdLayout,
    disable: &[u32; 8],
    live: &[u32; 8],
) -> Result<bool, QmdError> {
    if !has_disable_mask(image, layout) {
        return write_disable_mask(image, layout, disable).map(|()| true);
    }
    let both = union(disable, &layout.mask.get(image));
    let left = both.iter().zip(live).any(|(off, live)| !off & live != 0);
    write_disable_mask(image, layout, if left { &both } else { disable })?;
    Ok(left)
}

/// `disable` united with a descriptor's own mask, or alone if together they leave none of `live`
/// enabled.
#[inline]
pub fn union_live(disable: &[u32; 8], own: Option<&[u32; 8]>, live: &[u32; 8]) -> [u32; 8] {
    let both = own.map_or(*disable, |own| union(disable, own));
    let left = both.iter().zip(live).any(|(off, live)| !off & live != 0);
    if left { both } else { *disable }
}

fn union(a: &[u32; 8], b: &[u32; 8]) -> [u32; 8] {
    core::array::from_fn(|word| a[word] | b[word])
}

/// Whether a descriptor has a disable mask: its valid bit is set or, on versions without one, a bit
/// of its mask is. An image that is too short for its version has no mask.
#[inline]
pub fn has_disable_mask(image: &[u32], layout: &QmdLayout) -> bool {
    image.get(..layout.words()).is_some_and(|image| layout.mask.counts(image))
}

/// Reads the disable mask of a descriptor, `None` when it has none ([`has_disable_mask`]).
///
/// Numbers that the version has no bit for read as enabled, because those TPCs cannot be disabled.
#[inline]
pub fn read_disable_mask(image: &[u32], layout: &QmdLayout) -> Option<[u32; 8]> {
    has_disable_mask(image, layout).then(|| layout.mask.get(image))
}
