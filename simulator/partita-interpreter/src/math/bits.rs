//! Bits and bytes.

use super::int::{Int, by_int};
use crate::lanes::{LANES, Lanes, Map1, Map2, Map3, Value, extended, maps, ones};
use partita_ptx::Type;

maps! { Int by_int Map1:
    not(a) Low(!a.to(), T::BITS);
    /// Whether the value is zero, as a value of its type.
    cnot(a) Low(u64::from(a.to() == 0), T::BITS);
    popc(a) a.to().count_ones();
    clz(a) a.to().leading_zeros() - (64 - T::BITS);
    brev(a) Low(a.to().reverse_bits() >> (64 - T::BITS), T::BITS);
    /// The place of the highest bit that differs from the sign; all bits set for none.
    bfind(a) find(a, false);
    /// The same as a distance from the top.
    bfind_shift(a) find(a, true);
}

maps! { Int by_int Map2:
    and(a, b) a.to() & b.to();
    or(a, b) a.to() | b.to();
    xor(a, b) a.to() ^ b.to();
    shl(a, b) Low(a.to().checked_shl(u32::try_from(b.to()).unwrap_or(64)).unwrap_or(0), T::BITS);
}

maps! { Int by_int Map3:
    /// A field from bit `b` on, of length `c`.
    bfe(a, b, c) Low(field(a, b.to() as u32 & 255, c.to() as u32 & 255), T::BITS);
    /// `a` put into `b`; `c` holds the place and, eight bits above, the length.
    bfi(a, b, c) Low(inserted::<T>(a.to(), b.to(), c.to() as u32), T::BITS);
    shf_l_clamp(a, b, c) ((b.to() << 32 | a.to()) << c.to().min(32)) >> 32;
    shf_l_wrap(a, b, c) ((b.to() << 32 | a.to()) << (c.to() & 31)) >> 32;
    shf_r_clamp(a, b, c) (b.to() << 32 | a.to()) >> c.to().min(32) & 0xffff_ffff;
    shf_r_wrap(a, b, c) (b.to() << 32 | a.to()) >> (c.to() & 31) & 0xffff_ffff;
    prmt(a, b, c) permuted(a.to(), b.to(), c.to());
    /// `a` if `c` is true, else `b`.
    select(a, b, c) if c.to() & 1 != 0 { a.to() } else { b.to() };
    /// `a` if `c` is not negative, else `b`.
    select_sign(a, b, c) if (c.to() as i32) >= 0 { a.to() } else { b.to() };
    prmt_f4e(a, b, c) gathered(a.to(), b.to(), |i| c.to() as u32 % 4 + i);
    prmt_b4e(a, b, c) gathered(a.to(), b.to(), |i| (c.to() as u32 % 4 + 8 - i) % 8);
    prmt_rc8(a, b, c) gathered(a.to(), b.to(), |_| c.to() as u32 % 4);
    prmt_ecl(a, b, c) gathered(a.to(), b.to(), |i| i.max(c.to() as u32 % 4));
    prmt_ecr(a, b, c) gathered(a.to(), b.to(), |i| i.min(c.to() as u32 % 4));
    prmt_rc16(a, b, c) gathered(a.to(), b.to(), |i| c.to() as u32 % 2 * 2 + i % 2);
}

/// The low bits of a number.
struct Low(u64, u32);

impl Value for Low {
    fn to(self) -> u64 {
        self.0 & ones(self.1)
    }
}

fn find<T: Int>(value: T, shift: bool) -> u32 {
    let bits = value.to();
    let is_negative = value < T::of(0);
    let bits = if is_negative { !bits & ones(T::BITS) } else { bits };
    match bits.checked_ilog2() {
        None => u32::MAX,
        Some(place) if shift => T::BITS - 1 - place,
        Some(place) => place,
    }
}

fn field<T: Int>(value: T, from: u32, length: u32) -> u64 {
    let is_signed = T::of(ones(T::BITS)) < T::of(0);
    let wide = if is_signed { extended(value.to(), T::BITS) } else { value.to() };
    if length == 0 {
        return 0;
    }
    // Beyond the top there are copies of the sign.
    let shifted =
        if is_signed { (wide as i64 >> from.min(63)) as u64 } else { wide.checked_shr(from).unwrap_or(0) };
    let cut = shifted & ones(length);
    if !is_signed {
        return cut;
    }
    // The field ends at the top of the value at the latest.
    let sign = value.to() >> (from + length - 1).min(T::BITS - 1) & 1;
    if sign == 1 { cut | !ones(length) } else { cut }
}

fn inserted<T: Int>(what: u64, into: u64, place_and_length: u32) -> u64 {
    let (from, length) = (place_and_length & 255, place_and_length >> 8 & 255);
    if from >= T::BITS {
        return into;
    }
    let mask = ones(length).checked_shl(from).unwrap_or(0);
    into & !mask | what << from & mask
}

fn byte(a: u64, b: u64, index: u32) -> u64 {
    (b << 32 | a) >> (index % 8 * 8) & 255
}

fn permuted(a: u64, b: u64, how: u64) -> u64 {
    (0..4).fold(0, |all, place| {
        let control = how >> (place * 4) & 15;
        let byte = byte(a, b, control as u32 & 7);
        let byte = if control & 8 != 0 { (byte >> 7) * 255 } else { byte };
        all | byte << (place * 8)
    })
}

fn gathered(a: u64, b: u64, which: impl Fn(u32) -> u32) -> u64 {
    (0..4).fold(0, |all, place| all | byte(a, b, which(place)) << (place * 8))
}

/// Any function of three bits, applied to all bits of 32-bit values.
pub(crate) fn lop3(table: u8, a: u64, b: u64, c: u64) -> u64 {
    (0..8).filter(|row| table >> row & 1 == 1).fold(0, |all, row| {
        let pick = |value: u64, bit: u8| if row >> bit & 1 == 1 { value } else { !value };
        all | pick(a, 2) & pick(b, 1) & pick(c, 0)
    }) & 0xffff_ffff
}

/// Packs place and length of [`bfi`].
pub(crate) fn pack_field(place: &Lanes, length: &Lanes, out: &mut Lanes) {
    for lane in 0..LANES {
        out[lane] = place[lane] & 255 | (length[lane] & 255) << 8;
    }
}

/// Four products of bytes, added to the third operand. The types are those of the bytes.
pub(crate) fn dp4a(a: Type, b: Type) -> Map3 {
    fn run<const A: bool, const B: bool>(a: &Lanes, b: &Lanes, c: &Lanes, out: &mut Lanes) {
        for lane in 0..LANES {
            let part = |value: u64, at: u32, signed: bool| {
                let byte = value >> (at * 8) & 255;
                if signed { i64::from(byte as i8) } else { byte as i64 }
            };
            let sum: i64 = (0..4).map(|at| part(a[lane], at, A) * part(b[lane], at, B)).sum();
            out[lane] = (c[lane] as i64).wrapping_add(sum) as u64 & 0xffff_ffff;
        }
    }
    match (a == Type::S32, b == Type::S32) {
        (false, false) => run::<false, false>,
        (false, true) => run::<false, true>,
        (true, false) => run::<true, false>,
        (true, true) => run::<true, true>,
    }
}

/// The operand itself.
pub(crate) fn copy(a: &Lanes, out: &mut Lanes) {
    *out = *a;
}

/// The low bits alone.
pub(crate) fn low(bits: u32) -> Map1 {
    fn run<const BITS: u32>(a: &Lanes, out: &mut Lanes) {
        for lane in 0..LANES {
            out[lane] = a[lane] & ones(BITS);
        }
    }
    match bits {
        1 => run::<1>,
        8 => run::<8>,
        16 => run::<16>,
        32 => run::<32>,
        _ => run::<64>,
    }
}

/// A signed number of so many bits in 64 bits.
pub(crate) fn extend(bits: u32) -> Map1 {
    fn run<const BITS: u32>(a: &Lanes, out: &mut Lanes) {
        for lane in 0..LANES {
            out[lane] = extended(a[lane], BITS);
        }
    }
    match bits {
        8 => run::<8>,
        16 => run::<16>,
        32 => run::<32>,
        _ => run::<64>,
    }
}

/// A part of a value: shifted right by so many bits, and cut.
pub(crate) fn part(shift: u32, bits: u32) -> Option<Map1> {
    fn run<const SHIFT: u32, const BITS: u32>(a: &Lanes, out: &mut Lanes) {
        for lane in 0..LANES {
            out[lane] = a[lane] >> SHIFT & ones(BITS);
        }
    }
    Some(match (shift, bits) {
        (0, bits) => low(bits),
        (8, 8) => run::<8, 8>,
        (16, 8) => run::<16, 8>,
        (24, 8) => run::<24, 8>,
        (16, 16) => run::<16, 16>,
        (32, 16) => run::<32, 16>,
        (48, 16) => run::<48, 16>,
        (32, 32) => run::<32, 32>,
        _ => return None,
    })
}

/// The first operand with the second one so many bits above it.
pub(crate) fn joined(shift: u32) -> Option<Map2> {
    fn run<const SHIFT: u32>(a: &Lanes, b: &Lanes, out: &mut Lanes) {
        for lane in 0..LANES {
            out[lane] = a[lane] | b[lane] << SHIFT;
        }
    }
    Some(match shift {
        8 => run::<8>,
        16 => run::<16>,
        24 => run::<24>,
        32 => run::<32>,
        48 => run::<48>,
        _ => return None,
    })
}
