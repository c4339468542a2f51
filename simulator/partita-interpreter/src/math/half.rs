//! Numbers of 16 bits: `f16` and `bf16`, alone and in pairs.

use super::Rounding;
use crate::lanes::{LANES, Lanes, Map1, Map2, Map3};
use partita_ptx::Type;

/// A format: bits of the fraction and of the exponent.
pub(crate) trait Half {
    const FRACTION: u32;
    const EXPONENT: u32;
}

pub(crate) struct F16;
pub(crate) struct BF16;

impl Half for F16 {
    const FRACTION: u32 = 10;
    const EXPONENT: u32 = 5;
}

impl Half for BF16 {
    const FRACTION: u32 = 7;
    const EXPONENT: u32 = 8;
}

/// The value of a number.
pub(crate) fn wide<H: Half>(bits: u64) -> f64 {
    let fraction = bits & ((1 << H::FRACTION) - 1);
    let exponent = bits >> H::FRACTION & ((1 << H::EXPONENT) - 1);
    let bias = (1 << (H::EXPONENT - 1)) - 1;
    let unit = (fraction as f64) / f64::from(1u32 << H::FRACTION);
    let size = match exponent {
        0 => unit * 2f64.powi(1 - bias),
        e if e == (1 << H::EXPONENT) - 1 => {
            if fraction == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        e => (1.0 + unit) * 2f64.powi(e as i32 - bias),
    };
    if bits >> 15 & 1 == 1 { -size } else { size }
}

/// The number that a value rounds to.
pub(crate) fn narrow<H: Half>(value: f64, rounding: Rounding) -> u64 {
    let sign = u64::from(value.is_sign_negative()) << 15;
    let infinity = ((1u64 << H::EXPONENT) - 1) << H::FRACTION;
    if value.is_nan() {
        return 0x7fff;
    }
    let size = value.abs();
    if size == f64::INFINITY {
        return sign | infinity;
    }
    let bias = (1 << (H::EXPONENT - 1)) - 1;
    // The unit of the last place: that of the value's power of two, or of subnormal numbers.
    let power = ((size.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    let scaled = size * 2f64.powi(H::FRACTION as i32 - power);
    let whole = scaled.floor();
    let rest = scaled - whole;
    let whole = whole as u64;
    let up = match rounding {
        Rounding::Nearest => rest > 0.5 || (rest == 0.5 && whole & 1 == 1),
        Rounding::Zero => false,
        Rounding::Down => rest > 0.0 && sign != 0,
        Rounding::Up => rest > 0.0 && sign == 0,
    };
    let whole = whole + u64::from(up);
    // The leading one of a normal number adds one to the exponent.
    let bits = (((power - 1 + bias) as u64) << H::FRACTION) + whole;
    if bits >= infinity {
        let is_kept = match rounding {
            Rounding::Nearest => false,
            Rounding::Zero => true,
            Rounding::Down => sign == 0,
            Rounding::Up => sign != 0,
        };
        return sign | if is_kept { infinity - 1 } else { infinity };
    }
    sign | bits
}

/// A sum whose last bit is set if it is not exact, so that rounding it once more is right.
fn odd_sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    let error = (a - (sum - part)) + (b - part);
    if error == 0.0 || !error.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // The neighbour of an even number towards the error is odd.
    if error > 0.0 { sum.next_up() } else { sum.next_down() }
}

/// Applies a function to each half of a register.
fn each<H: Half, const PAIR: bool, const N: usize>(
    operands: [&Lanes; N],
    out: &mut Lanes,
    function: impl Fn([f64; N]) -> f64,
) {
    for lane in 0..LANES {
        let half = |shift: u32| {
            narrow::<H>(function(operands.map(|values| wide::<H>(values[lane] >> shift))), Rounding::Nearest)
        };
        out[lane] = if PAIR { half(0) | half(16) << 16 } else { half(0) };
    }
}

macro_rules! halves {
    ($($name:ident $map:ident $($operand:ident)+ => $body:expr;)*) => {$(
        pub(crate) fn $name(ty: Type) -> Option<$map> {
            fn run<H: Half, const PAIR: bool>($($operand: &Lanes,)+ out: &mut Lanes) {
                each::<H, PAIR, _>([$($operand),+], out, |[$($operand),+]| $body);
            }
            Some(match ty {
                Type::F16 => run::<F16, false>,
                Type::F16x2 => run::<F16, true>,
                Type::BF16 => run::<BF16, false>,
                Type::BF16x2 => run::<BF16, true>,
                _ => return None,
            })
        }
    )*};
}

halves! {
    add Map2 a b => odd_sum(a, b);
    sub Map2 a b => odd_sum(a, -b);
    mul Map2 a b => a * b;
    fma Map3 a b c => odd_sum(a * b, c);
    min Map2 a b => a.min(b);
    max Map2 a b => a.max(b);
    neg Map1 a => -a;
    abs Map1 a => a.abs();
}
