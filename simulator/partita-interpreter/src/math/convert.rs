//! Conversions between types.

use super::Rounding;
use super::half::{BF16, F16, narrow, wide};
use crate::lanes::{Value, extended, ones};
use partita_ptx::Type;

/// A conversion of `cvt` that is more than an extension or a cut of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) to: Type,
    pub(crate) from: Type,
    pub(crate) rounding: Rounding,
    /// Whether a floating-point result is a whole number.
    pub(crate) to_whole: bool,
    pub(crate) saturates: bool,
    pub(crate) relu: bool,
    pub(crate) flushes: bool,
}

/// The range of an integer type.
fn range(ty: Type) -> (i128, i128) {
    let bits = ty.bits();
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn rounded_to_whole(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// A number of 32 bits from one of 64.
pub(crate) fn single(value: f64, rounding: Rounding) -> f32 {
    let nearest = value as f32;
    let exact = f64::from(nearest);
    match rounding {
        Rounding::Down | Rounding::Zero if exact > value && (rounding == Rounding::Down || value > 0.0) => {
            nearest.next_down()
        }
        Rounding::Up | Rounding::Zero if exact < value && (rounding == Rounding::Up || value < 0.0) => {
            nearest.next_up()
        }
        _ => nearest,
    }
}

/// A whole number as a floating-point number of 64 bits.
fn double(value: i128, rounding: Rounding) -> f64 {
    let nearest = value as f64;
    let exact = nearest as i128;
    match rounding {
        Rounding::Down | Rounding::Zero if exact > value && (rounding == Rounding::Down || value > 0) => {
            nearest.next_down()
        }
        Rounding::Up | Rounding::Zero if exact < value && (rounding == Rounding::Up || value < 0) => {
            nearest.next_up()
        }
        _ => nearest,
    }
}

impl Conversion {
    /// The converted value, in as many bits as its type has; signed ones have their sign above.
    pub(crate) fn apply(self, value: u64) -> u64 {
        if self.from.is_float() {
            let number = self.read(value);
            return if self.to.is_float() { self.to_float(number) } else { self.to_int(number) };
        }
        let number = if self.from.is_signed() {
            i128::from(extended(value, self.from.bits()) as i64)
        } else {
            i128::from(value & ones(self.from.bits()))
        };
        if self.to.is_float() {
            return self.float_of(number);
        }
        let (low, high) = range(self.to);
        let number = if self.saturates { number.clamp(low, high) } else { number };
        extended_as(number as u64, self.to)
    }

    fn read(self, value: u64) -> f64 {
        match self.from {
            Type::F16 => wide::<F16>(value),
            Type::BF16 => wide::<BF16>(value),
            Type::F32 => {
                let number = f32::from_bits(value as u32);
                let flushed = self.flushes && number.is_subnormal();
                if flushed { 0f64.copysign(number.into()) } else { number.into() }
            }
            _ => f64::from_bits(value),
        }
    }

    fn to_int(self, number: f64) -> u64 {
        let (low, high) = range(self.to);
        let whole = rounded_to_whole(number, self.rounding);
        // Out of range is the nearest number in it. A NaN is zero, except in 64 bits and from them:
        // there hardware returns the lowest number.
        let is_wide = self.to.bits() == 64 || self.from == Type::F64;
        let number = if !whole.is_nan() {
            (whole as i128).clamp(low, high)
        } else if is_wide {
            1 << (self.to.bits() - 1)
        } else {
            0
        };
        extended_as(number as u64, self.to)
    }

    fn float_of(self, number: i128) -> u64 {
        let result = match self.to {
            Type::F64 => return Value::to(double(number, self.rounding)),
            Type::F32 => {
                let near = number as f32;
                let exact = near as i128;
                let down = exact > number;
                let away = exact != number;
                let result = match self.rounding {
                    Rounding::Down if away && down => near.next_down(),
                    Rounding::Up if away && !down => near.next_up(),
                    Rounding::Zero if away && number > 0 && down => near.next_down(),
                    Rounding::Zero if away && number < 0 && !down => near.next_up(),
                    _ => near,
                };
                return Value::to(result);
            }
            // Whole numbers beyond 53 bits are beyond the range of f16 and keep their order.
            _ => double(number, Rounding::Zero),
        };
        self.half(result)
    }

    fn half(self, number: f64) -> u64 {
        match self.to {
            Type::F16 => narrow::<F16>(number, self.rounding),
            _ => narrow::<BF16>(number, self.rounding),
        }
    }

    fn to_float(self, number: f64) -> u64 {
        let mut number = if self.to_whole { rounded_to_whole(number, self.rounding) } else { number };
        if self.saturates {
            number = if number > 0.0 { number.min(1.0) } else { 0.0 };
        }
        if self.relu && number < 0.0 {
            number = 0.0;
        }
        match self.to {
            Type::F64 => Value::to(number),
            Type::F32 => {
                let result = if self.to_whole { number as f32 } else { single(number, self.rounding) };
                let flushed = self.flushes && result.is_subnormal();
                Value::to(if flushed { 0f32.copysign(result) } else { result })
            }
            _ => self.half(number),
        }
    }
}

/// A value of an integer type with its sign above.
fn extended_as(value: u64, ty: Type) -> u64 {
    if ty.is_signed() { extended(value, ty.bits()) } else { value & ones(ty.bits()) }
}
