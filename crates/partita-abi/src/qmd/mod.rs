//! The launch descriptor that a GPU reads for every kernel: Queue Meta Data.
//!
//! The driver fills a QMD for each launch and the GPU's work distributor reads it: grid and block
//! dimensions, resources, the program and, since Kepler, a mask of the TPCs that may not run its
//! blocks. The tables here list the offsets of these fields in each version.
//!
//! A QMD is handled as a slice of 32-bit words in host byte order, which on every platform that
//! CUDA supports is the GPU's (little-endian).

mod class;
mod classes;
mod error;
mod field;
mod launch;
pub mod layouts;
mod mask;
mod program;
mod shape;
mod version;

pub use class::QmdClass;
pub use classes::{CLASSES, QMD_HEAD_WORDS, class_for, layout_for, layout_of};
pub use error::QmdError;
pub use field::{QmdField, read_field, write_field};
pub use launch::LaunchShape;
pub use mask::{
    QmdMask, QmdMaskBeyond, clear_disable_mask, has_disable_mask, merge_disable_mask, merge_live,
    read_disable_mask, union_live, write_disable_mask,
};
pub use program::{QmdProgram, QmdSize};
pub use shape::{
    QMD_TYPE_GRID_CTA, QMD_TYPE_GRID_GPC_CGA, QMD_TYPE_GRID_GPU_CGA, QMD_TYPE_GRID_GPU_GPC_CGA, QmdCga,
};
pub use version::QmdVersion;

/// Length of the longest descriptor known here, in 32-bit words.
pub const QMD_WORDS_MAX: usize = 96;

/// `QMD_GROUP_ID` of launches with stream priority 0, −1, … −5, as measured on
/// an H200 with driver 580.159.04.
pub const HOPPER_PRIORITY_GROUPS: [u32; 6] = [63, 37, 11, 10, 9, 8];

/// Where one version of the QMD has its fields.
#[derive(Debug, PartialEq, Eq)]
pub struct QmdLayout {
    /// The version that the layout describes.
    pub version: QmdVersion,
    /// The offset of the version byte, in bytes from the start of the descriptor
    /// ([`QmdVersion::offset_bytes`]).
    pub version_offset_bytes: u16,
    /// Length of a descriptor, in bytes.
    pub bytes: usize,
    /// `QMD_GROUP_ID`: the work distributor's queue, and so the priority. An
    /// H200 with driver 580.159.04 uses [`HOPPER_PRIORITY_GROUPS`], and the
    /// last of them for cooperative launches of any priority.
    pub group_id: QmdField,
    /// Blocks of the grid in x, y and z; clusters, in a launch of clusters. See
    /// [`QmdLayout::shape`].
    pub grid: [QmdField; 3],
    /// Threads of a block in x, y and z.
    pub block: [QmdField; 3],
    /// Shared memory of a block: static, dynamic and the driver's reserve (1 KiB on Hopper); on
    /// Hopper a multiple of 128 bytes.
    pub shared_memory: QmdSize,
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
        let (word, shift) = self.version.place();
        image[word] = u32::from(self.version.byte()) << shift;
        image
    }

    /// Whether a descriptor says, at this version's place, that it is of this version. The GPU's
    /// class must be the layout's.
    #[inline]
    pub fn is_version_of(&self, image: &[u32]) -> bool {
        self.version.stands_in(image)
    }

    /// Checks that an image holds a whole descriptor.
    fn whole<'a>(&self, image: &'a [u32]) -> Result<&'a [u32], QmdError> {
        image.get(..self.words()).ok_or(QmdError::ImageTooShort { version: self.version, words: image.len() })
    }
}

#[cfg(test)]
mod tests;
