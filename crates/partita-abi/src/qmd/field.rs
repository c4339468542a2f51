//! Bit fields of a launch descriptor.

/// A field of a QMD, as NVIDIA's headers write it: `MW(hi:lo)`, bit numbers
/// counted from the start of the descriptor, both ends included.
///
/// Bit `n` is bit `n % 32` of 32-bit word `n / 32`, and words are
/// little-endian. Every field used here lies inside one word; longer values,
/// such as addresses, are two fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QmdField {
    word: u16,
    shift: u8,
    bits: u8,
}

impl QmdField {
    /// The field `MW(hi:lo)`.
    ///
    /// # Panics
    /// When `hi < lo` or the field crosses a word; in a constant this is a
    /// compile error.
    pub const fn mw(hi: u16, lo: u16) -> QmdField {
        assert!(hi >= lo, "MW(hi:lo) with hi below lo");
        assert!(hi / 32 == lo / 32, "a QMD field must lie inside one word");
        QmdField { word: lo / 32, shift: (lo % 32) as u8, bits: (hi - lo + 1) as u8 }
    }

    /// The 32-bit word of the descriptor that holds the field.
    #[inline]
    pub const fn word(self) -> usize {
        self.word as usize
    }

    /// The lowest bit of the field, counted from the start of the descriptor.
    pub const fn lo(self) -> usize {
        self.word as usize * 32 + self.shift as usize
    }

    /// The highest bit of the field, counted from the start of the descriptor.
    pub const fn hi(self) -> usize {
        self.lo() + self.bits as usize - 1
    }

    /// How many bits the field has: 1 to 32.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.bits as u32
    }

    /// The greatest value that the field can hold.
    #[inline]
    pub const fn max(self) -> u32 {
        u32::MAX >> (32 - self.bits as u32)
    }

    /// The field's bits inside its word.
    #[inline]
    pub const fn mask(self) -> u32 {
        self.max() << self.shift
    }

    /// The value of the field in its word.
    #[inline]
    pub const fn get(self, word: u32) -> u32 {
        (word >> self.shift) & self.max()
    }

    /// The word with the field replaced by the low bits of `value`.
    #[inline]
    pub const fn put(self, word: u32, value: u32) -> u32 {
        (word & !self.mask()) | ((value << self.shift) & self.mask())
    }
}

/// Reads a field of a descriptor; `None` when the image ends before it.
#[inline]
pub fn read_field(image: &[u32], field: QmdField) -> Option<u32> {
    image.get(field.word()).map(|word| field.get(*word))
}

/// Writes a field of a descriptor and leaves every other bit as it was.
///
/// Returns whether it was written: a value too great for the field, or an
/// image that ends before it, changes nothing.
#[inline]
#[must_use = "a value that does not fit is not written"]
pub fn write_field(image: &mut [u32], field: QmdField, value: u32) -> bool {
    match image.get_mut(field.word()) {
        Some(word) if value <= field.max() => {
            *word = field.put(*word, value);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn positions_follow_the_header_notation() {
        let field = QmdField::mw(1208, 1200);
        assert_eq!((field.word(), field.lo(), field.hi()), (37, 1200, 1208));
        assert_eq!(field.max(), 0x1ff);
        assert_eq!(field.mask(), 0x01ff_0000);
        let word = QmdField::mw(415, 384);
        assert_eq!(word.max(), u32::MAX);
        assert_eq!(word.mask(), u32::MAX);
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let mut image = [0xffff_ffff_u32; 2];
        assert!(!write_field(&mut image, QmdField::mw(35, 32), 16));
        assert!(!write_field(&mut image, QmdField::mw(64, 64), 1));
        assert_eq!(image, [0xffff_ffff; 2]);
        assert_eq!(read_field(&image, QmdField::mw(64, 64)), None);
    }

    proptest! {
        #[test]
        fn writing_changes_the_field_and_no_other_bit(
            before in proptest::array::uniform4(any::<u32>()),
            word in 0_u16..4,
            a in 0_u16..32,
            b in 0_u16..32,
            value in any::<u32>(),
        ) {
            let field = QmdField::mw(word * 32 + a.max(b), word * 32 + a.min(b));
            let value = value & field.max();
            let mut image = before;
            prop_assert!(write_field(&mut image, field, value));
            prop_assert_eq!(read_field(&image, field), Some(value));
            for (index, (new, old)) in image.iter().zip(before).enumerate() {
                let touched = if index == field.word() { field.mask() } else { 0 };
                prop_assert_eq!(new & !touched, old & !touched);
            }
        }
    }
}
