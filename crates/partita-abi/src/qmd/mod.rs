//! The launch descriptor that a GPU reads for every kernel: Queue Meta Data.
//!
//! The driver fills a QMD for each launch and the GPU's work distributor reads
//! it: grid and block dimensions, resources, the program and, since Kepler, a
//! mask of the TPCs that may not run its blocks. The tables here say where
//! each version keeps these fields.
//!
//! A QMD is handled as a slice of 32-bit words in host byte order, which on
//! every platform that CUDA supports is the GPU's (little-endian).

mod field;
pub mod layouts;
mod shape;
mod version;

pub use field::{QmdField, read_field, write_field};
pub use shape::{
    LaunchShape, QMD_TYPE_GRID_CTA, QMD_TYPE_GRID_GPC_CGA, QMD_TYPE_GRID_GPU_CGA, QMD_TYPE_GRID_GPU_GPC_CGA,
    QmdCga,
};
pub use version::{CLASSES, QmdClass, QmdError, QmdVersion, class_for, layout_for, version_byte};

/// Length of the longest descriptor known here, in 32-bit words.
pub const QMD_WORDS_MAX: usize = 96;

/// `QMD_GROUP_ID` of launches with stream priority 0, −1, … −5, as measured on
/// an H200 with driver 580.159.04.
pub const HOPPER_PRIORITY_GROUPS: [u32; 6] = [63, 37, 11, 10, 9, 8];

/// Where one version of the QMD keeps its fields.
#[derive(Debug, PartialEq, Eq)]
pub struct QmdLayout {
    /// The version that the layout describes.
    pub version: QmdVersion,
    /// Length of a descriptor, in bytes.
    pub bytes: usize,
    /// `QMD_GROUP_ID`: the work distributor's queue, and so the priority. An
    /// H200 with driver 580.159.04 uses [`HOPPER_PRIORITY_GROUPS`], and the
    /// last of them for cooperative launches of any priority.
    pub group_id: QmdField,
    /// Blocks of the grid in x, y and z; clusters, in a launch of clusters.
    /// [`QmdLayout::shape`] tells which.
    pub grid: [QmdField; 3],
    /// Threads of a block in x, y and z.
    pub block: [QmdField; 3],
    /// Shared memory of a block: static, dynamic and what the driver reserves
    /// (1 KiB on Hopper), in bytes; on Hopper a multiple of 128.
    pub shared_memory_bytes: QmdField,
    /// Registers of a thread, as allocated: an H200 with driver 580.159.04
    /// writes 16 for kernels of fewer.
    pub registers_per_thread: QmdField,
    /// Barriers of a block.
    pub barriers: QmdField,
    /// Where the kernel's code is.
    pub program: QmdProgram,
    /// Clusters and cooperation, where the version has fields for them.
    pub cga: Option<QmdCga>,
    /// The TPCs that may not run the kernel.
    pub mask: QmdMask,
}

/// How a version says where the kernel's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QmdProgram {
    /// Before Volta: a byte offset into the program region of the channel.
    Offset(QmdField),
    /// A virtual address.
    Address {
        /// The low 32 bits.
        lower: QmdField,
        /// The bits above.
        upper: QmdField,
    },
}

/// The TPC disable mask of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdMask {
    /// The first word of the mask, counted from the start of the descriptor.
    pub first_word: u16,
    /// Length of the mask in 32-bit words: 2 or 4.
    pub words: u8,
    /// The bit that must be set for the mask to count; `None` where the mask
    /// always counts.
    pub valid: Option<QmdField>,
}

impl QmdMask {
    /// How many TPCs the mask can name; a TPC with a greater physical number
    /// cannot be disabled.
    pub const fn tpcs_max(&self) -> u32 {
        self.words as u32 * 32
    }
}

impl QmdLayout {
    /// Length of a descriptor, in 32-bit words.
    #[inline]
    pub const fn words(&self) -> usize {
        self.bytes / 4
    }

    /// An empty descriptor of this version: the version byte, and zeros. The
    /// first [`QmdLayout::words`] words count.
    pub fn empty_image(&self) -> [u32; QMD_WORDS_MAX] {
        let mut image = [0; QMD_WORDS_MAX];
        image[18] = self.version.byte() as u32;
        image
    }

    /// Checks that an image holds a whole descriptor.
    fn whole<'a>(&self, image: &'a [u32]) -> Result<&'a [u32], QmdError> {
        image.get(..self.words()).ok_or(QmdError::ImageTooShort { version: self.version, words: image.len() })
    }

    /// The address of the kernel's code, or its offset before Volta.
    ///
    /// # Errors
    /// [`QmdError::ImageTooShort`].
    pub fn program(&self, image: &[u32]) -> Result<u64, QmdError> {
        let image = self.whole(image)?;
        Ok(match self.program {
            QmdProgram::Offset(offset) => u64::from(offset.get(image[offset.word()])),
            QmdProgram::Address { lower, upper } => {
                u64::from(lower.get(image[lower.word()])) | u64::from(upper.get(image[upper.word()])) << 32
            }
        })
    }
}

/// Writes a disable mask into a descriptor: every word that the version has,
/// and the bit that makes the mask count. No other bit changes.
///
/// A set bit disables the TPC with that *physical* number; words that the
/// version does not have are ignored. Whether the mask leaves a TPC that
/// exists is the caller's to know: a launch whose mask does not never ends.
///
/// This runs once for every kernel launch of a tenant, so it is a length
/// check, one predictable branch and five stores.
///
/// # Errors
/// [`QmdError::ImageTooShort`]; nothing is then written.
#[inline]
pub fn write_disable_mask(image: &mut [u32], layout: &QmdLayout, disable: &[u32; 8]) -> Result<(), QmdError> {
    let words = image.len();
    let Some(image) = image.get_mut(..layout.words()) else {
        return Err(QmdError::ImageTooShort { version: layout.version, words });
    };
    let first = layout.mask.first_word as usize;
    // Fixed lengths, so that no call to memcpy is made for 8 or 16 bytes.
    if layout.mask.words == 4 {
        image[first..first + 4].copy_from_slice(&disable[..4]);
    } else {
        image[first..first + 2].copy_from_slice(&disable[..2]);
    }
    if let Some(valid) = layout.mask.valid {
        image[valid.word()] |= valid.mask();
    }
    Ok(())
}

/// Writes a disable mask into a descriptor as [`write_disable_mask`] does, and
/// keeps disabled what the descriptor's own mask disables already.
///
/// A mask that is there before has a reason. Measured on an H200 with driver
/// 580.159.04: a stream's own mask arrives here, and without one every launch
/// of clusters of more than two blocks comes with TPCs 72 to 127 disabled, the
/// numbers of TPCs that belong to no whole GPC. (With a stream's mask the
/// driver leaves that out, and the clusters run all the same.)
///
/// The union can disable every TPC that exists where neither mask does, and
/// such a launch never ends: the caller checks.
///
/// # Errors
/// [`QmdError::ImageTooShort`]; nothing is then written.
#[inline]
pub fn merge_disable_mask(image: &mut [u32], layout: &QmdLayout, disable: &[u32; 8]) -> Result<(), QmdError> {
    let words = image.len();
    let Some(image) = image.get_mut(..layout.words()) else {
        return Err(QmdError::ImageTooShort { version: layout.version, words });
    };
    // Words without the valid bit are leftovers and not a mask. Where there is
    // no such bit, no mask is words of zero, and keeping those changes nothing.
    let keep = match layout.mask.valid {
        Some(valid) if image[valid.word()] & valid.mask() == 0 => 0,
        _ => u32::MAX,
    };
    let first = layout.mask.first_word as usize;
    let merge = |own: &mut [u32]| {
        for (own, disable) in own.iter_mut().zip(disable) {
            *own = (*own & keep) | disable;
        }
    };
    if layout.mask.words == 4 {
        merge(&mut image[first..first + 4]);
    } else {
        merge(&mut image[first..first + 2]);
    }
    if let Some(valid) = layout.mask.valid {
        image[valid.word()] |= valid.mask();
    }
    Ok(())
}

/// Reads the disable mask of a descriptor.
///
/// `None` when the descriptor has no mask: its valid bit is clear or, on
/// versions without one, every word is zero; an image too short for its
/// version has none either. Words that the version does not have read as
/// zero, because TPCs beyond the mask cannot be disabled.
#[inline]
pub fn read_disable_mask(image: &[u32], layout: &QmdLayout) -> Option<[u32; 8]> {
    let image = image.get(..layout.words())?;
    let first = layout.mask.first_word as usize;
    let count = layout.mask.words as usize;
    let mut disable = [0; 8];
    disable[..count].copy_from_slice(&image[first..first + count]);
    let counts = match layout.mask.valid {
        Some(valid) => valid.get(image[valid.word()]) != 0,
        None => disable != [0; 8],
    };
    counts.then_some(disable)
}

#[cfg(test)]
mod tests;
