//! Numbers that a descriptor has in parts or in units.

use super::{QmdError, QmdField, QmdLayout, read_field, write_field};

/// How a version says where the kernel's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QmdProgram {
    /// Before Volta: a byte offset into the program region of the channel.
    Offset(QmdField),
    /// A virtual address, without its low `shifted` bits, which are zero.
    Address {
        /// The low 32 bits of the value.
        lower: QmdField,
        /// The bits above.
        upper: QmdField,
        /// How many low bits are left out.
        shifted: u8,
    },
}

/// A size in units of 2ⁿ bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdSize {
    /// Where it is.
    pub field: QmdField,
    /// How many low bits are left out: sizes are multiples of `1 << shifted` bytes.
    pub shifted: u8,
}

impl QmdSize {
    /// Reads the size, in bytes; `None` when the image ends before it.
    #[inline]
    pub fn read_bytes(&self, image: &[u32]) -> Option<u32> {
        read_field(image, self.field).map(|units| units << self.shifted)
    }

    /// Writes a size, in bytes. Returns whether it was written: one that is no whole number of
    /// units or too great for the field changes nothing.
    #[inline]
    #[must_use = "a value that does not fit is not written"]
    pub fn write_bytes(&self, image: &mut [u32], bytes: u32) -> bool {
        bytes.is_multiple_of(1 << self.shifted) && write_field(image, self.field, bytes >> self.shifted)
    }
}

impl QmdLayout {
    /// The address of the kernel's code, or its offset before Volta.
    ///
    /// # Errors
    /// [`QmdError::ImageTooShort`].
    pub fn program(&self, image: &[u32]) -> Result<u64, QmdError> {
        let image = self.whole(image)?;
        Ok(match self.program {
            QmdProgram::Offset(offset) => u64::from(offset.get(image[offset.word()])),
            QmdProgram::Address { lower, upper, shifted } => {
                let kept = u64::from(lower.get(image[lower.word()]))
                    | u64::from(upper.get(image[upper.word()])) << 32;
                kept << shifted
            }
        })
    }

    /// Writes the address of the kernel's code, or its offset before Volta.
    ///
    /// # Errors
    /// [`QmdError::ImageTooShort`], and [`QmdError::ProgramDoesNotFit`] for an address that the
    /// version cannot hold. Nothing is then written.
    pub fn write_program(&self, image: &mut [u32], address: u64) -> Result<(), QmdError> {
        self.whole(image)?;
        let refused = Err(QmdError::ProgramDoesNotFit { version: self.version, address });
        match self.program {
            QmdProgram::Offset(offset) => {
                let Ok(low) = u32::try_from(address) else { return refused };
                if !write_field(image, offset, low) {
                    return refused;
                }
            }
            QmdProgram::Address { lower, upper, shifted } => {
                let kept = address >> shifted;
                if kept << shifted != address || kept >> 32 > u64::from(upper.max()) {
                    return refused;
                }
                image[lower.word()] = lower.put(image[lower.word()], kept as u32);
                image[upper.word()] = upper.put(image[upper.word()], (kept >> 32) as u32);
            }
        }
        Ok(())
    }
}
