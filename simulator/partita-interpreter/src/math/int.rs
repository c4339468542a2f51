//! Integers.

use crate::lanes::{Value, maps};

/// An integer of PTX.
pub(crate) trait Int: Value + Copy + Ord {
    const BITS: u32;
    fn of(value: u64) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The upper half of the product.
    fn mul_high(self, other: Self) -> Self;
    /// The product in twice the bits.
    fn mul_wide(self, other: Self) -> u128;
    /// All bits set for a division by zero, as GPUs return.
    fn div(self, other: Self) -> Self;
    /// The dividend for a division by zero.
    fn rem(self, other: Self) -> Self;
    fn abs(self) -> Self;
    fn shr(self, by: u32) -> Self;
    fn saturating_add(self, other: Self) -> Self;
    fn saturating_sub(self, other: Self) -> Self;
    fn abs_diff(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($int:ident $unsigned:ident $wide:ident,)*) => {$(
        impl Value for $int {
            fn to(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }

        impl Int for $int {
            const BITS: u32 = $int::BITS;
            fn of(value: u64) -> Self {
                value as Self
            }
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn mul_high(self, other: Self) -> Self {
                ((self as $wide * other as $wide) >> $int::BITS) as Self
            }
            fn mul_wide(self, other: Self) -> u128 {
                (self as $wide * other as $wide) as u128
            }
            fn div(self, other: Self) -> Self {
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            fn rem(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[allow(unused_comparisons, reason = "the unsigned ones share the code")]
            fn abs(self) -> Self {
                if self < 0 { (0 as Self).wrapping_sub(self) } else { self }
            }
            fn shr(self, by: u32) -> Self {
                // A shift by more than the width leaves the sign.
                (self as $wide >> by.min(Self::BITS)) as Self
            }
            fn saturating_add(self, other: Self) -> Self {
                self.saturating_add(other)
            }
            fn saturating_sub(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
            fn abs_diff(self, other: Self) -> Self {
                self.abs_diff(other) as Self
            }
        }
    )*};
}

integers! {
    u8 u8 u128,
    u16 u16 u128,
    u32 u32 u128,
    u64 u64 u128,
    i8 u8 i128,
    i16 u16 i128,
    i32 u32 i128,
    i64 u64 i128,
}

/// Makes an operation for the integer types.
macro_rules! by_int {
    ($ty:expr, $run:ident) => {
        Some(match $ty {
            partita_ptx::Type::U8 | partita_ptx::Type::B8 => $run::<u8>,
            partita_ptx::Type::U16 | partita_ptx::Type::B16 => $run::<u16>,
            partita_ptx::Type::U32 | partita_ptx::Type::B32 => $run::<u32>,
            partita_ptx::Type::U64 | partita_ptx::Type::B64 => $run::<u64>,
            partita_ptx::Type::S8 => $run::<i8>,
            partita_ptx::Type::S16 => $run::<i16>,
            partita_ptx::Type::S32 => $run::<i32>,
            partita_ptx::Type::S64 => $run::<i64>,
            _ => return None,
        })
    };
}
pub(crate) use by_int;

maps! { Int by_int Map2:
    add(a, b) a.add(b);
    sub(a, b) a.sub(b);
    add_sat(a, b) a.saturating_add(b);
    sub_sat(a, b) a.saturating_sub(b);
    mul_lo(a, b) a.mul(b);
    mul_hi(a, b) a.mul_high(b);
    div(a, b) a.div(b);
    rem(a, b) a.rem(b);
    min(a, b) a.min(b);
    max(a, b) a.max(b);
    eq(a, b) a == b;
    ne(a, b) a != b;
    lt(a, b) a < b;
    le(a, b) a <= b;
    gt(a, b) a > b;
    ge(a, b) a >= b;
    mul_wide(a, b) Wide(a.mul_wide(b), 2 * T::BITS);
    mul24_lo(a, b) Wide(low24(a).mul_wide(low24(b)), 32);
    mul24_hi(a, b) Wide(low24(a).mul_wide(low24(b)) >> 16, 32);
    shr(a, b) a.shr(u32::try_from(b.to()).unwrap_or(u32::MAX));
}

maps! { Int by_int Map3:
    mad_lo(a, b, c) a.mul(b).add(c);
    mad_hi(a, b, c) a.mul_high(b).add(c);
    /// The absolute difference, added to the third operand.
    sad(a, b, c) a.abs_diff(b).add(c);
    /// A sum with carry.
    add_carry(a, b, c) a.add(b).add(c);
    /// Its carry.
    carry_of_add(a, b, c) (u128::from(a.to()) + u128::from(b.to()) + u128::from(c.to())) >> T::BITS != 0;
    /// A difference with borrow.
    sub_borrow(a, b, c) a.sub(b).sub(c);
    /// Its borrow.
    borrow_of_sub(a, b, c) u128::from(a.to()) < u128::from(b.to()) + u128::from(c.to());
}

maps! { Int by_int Map1:
    abs(a) a.abs();
    neg(a) T::of(0).sub(a);
}

/// The low 24 bits of a number, with its sign.
fn low24<T: Int>(value: T) -> T {
    T::of(value.to() << 8).shr(8)
}

/// A result of so many bits.
struct Wide(u128, u32);

impl Value for Wide {
    fn to(self) -> u64 {
        self.0 as u64 & crate::lanes::ones(self.1)
    }
}
