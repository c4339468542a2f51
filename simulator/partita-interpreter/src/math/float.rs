//! Floating-point numbers of 32 and 64 bits.
//!
//! Results that are rounded otherwise than to the nearest are found from the nearest one and the
//! sign of its error.

use core::cmp::Ordering;

use super::Rounding;
use crate::lanes::{Map1, Map2, Map3, Value, maps};
use partita_ptx::Type;

/// A number of 32 or 64 bits.
pub(crate) trait Float: Value + Copy + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn of(value: u64) -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn fma(self, by: Self, plus: Self) -> Self;
    fn sqrt(self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_finite(self) -> bool;
    fn is_infinite(self) -> bool;
    fn is_normal(self) -> bool;
    fn is_subnormal(self) -> bool;
    fn is_negative(self) -> bool;
    fn next_up(self) -> Self;
    fn next_down(self) -> Self;
    /// Computed in 64 bits.
    fn through(self, function: fn(f64) -> f64) -> Self;
    /// How `a + b` lies to `sum`, its nearest number.
    fn sum_error(a: Self, b: Self, sum: Self) -> Option<Ordering>;
    /// How `a * b + c` lies to `result`.
    fn fma_error(a: Self, b: Self, c: Self, result: Self) -> Option<Ordering>;
    /// How `a - q * b` lies to zero.
    fn rest(a: Self, q: Self, b: Self) -> Option<Ordering>;
}

/// The exact sum of two numbers: a number and its error.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

impl Value for f32 {
    fn to(self) -> u64 {
        // Arithmetic has one NaN.
        u64::from(if self.is_nan() { 0x7fff_ffff } else { self.to_bits() })
    }
}

impl Value for f64 {
    fn to(self) -> u64 {
        if self.is_nan() { 0x7ff8_0000_0000_0000 } else { self.to_bits() }
    }
}

macro_rules! common {
    ($float:ident) => {
        const ZERO: Self = 0.0;
        const ONE: Self = 1.0;
        fn add(self, other: Self) -> Self {
            self + other
        }
        fn mul(self, other: Self) -> Self {
            self * other
        }
        fn div(self, other: Self) -> Self {
            self / other
        }
        fn fma(self, by: Self, plus: Self) -> Self {
            self.mul_add(by, plus)
        }
        fn sqrt(self) -> Self {
            self.sqrt()
        }
        fn neg(self) -> Self {
            -self
        }
        fn abs(self) -> Self {
            self.abs()
        }
        fn is_nan(self) -> bool {
            self.is_nan()
        }
        fn is_finite(self) -> bool {
            self.is_finite()
        }
        fn is_infinite(self) -> bool {
            self.is_infinite()
        }
        fn is_normal(self) -> bool {
            self.is_normal()
        }
        fn is_subnormal(self) -> bool {
            self.is_subnormal()
        }
        fn is_negative(self) -> bool {
            self.is_sign_negative()
        }
        fn next_up(self) -> Self {
            self.next_up()
        }
        fn next_down(self) -> Self {
            self.next_down()
        }
    };
}

impl Float for f32 {
    common!(f32);
    fn of(value: u64) -> Self {
        Self::from_bits(value as u32)
    }
    fn through(self, function: fn(f64) -> f64) -> Self {
        function(f64::from(self)) as Self
    }
    fn sum_error(a: Self, b: Self, sum: Self) -> Option<Ordering> {
        let (exact, error) = two_sum(a.into(), b.into());
        (exact - f64::from(sum) + error).partial_cmp(&0.0)
    }
    fn fma_error(a: Self, b: Self, c: Self, result: Self) -> Option<Ordering> {
        // The product of two numbers of 24 bits is exact in 53.
        let (exact, error) = two_sum(f64::from(a) * f64::from(b), c.into());
        (exact - f64::from(result) + error).partial_cmp(&0.0)
    }
    fn rest(a: Self, q: Self, b: Self) -> Option<Ordering> {
        (f64::from(a) - f64::from(q) * f64::from(b)).partial_cmp(&0.0)
    }
}

impl Float for f64 {
    common!(f64);
    fn of(value: u64) -> Self {
        Self::from_bits(value)
    }
    fn through(self, function: fn(f64) -> f64) -> Self {
        function(self)
    }
    fn sum_error(a: Self, b: Self, _: Self) -> Option<Ordering> {
        two_sum(a, b).1.partial_cmp(&0.0)
    }
    fn fma_error(a: Self, b: Self, c: Self, result: Self) -> Option<Ordering> {
        // Boldo and Muller, «Exact and approximated error of the FMA»: the sign of the error.
        let product = a * b;
        let low = a.mul_add(b, -product);
        let (alpha, alpha_low) = two_sum(c, low);
        let (beta, beta_low) = two_sum(product, alpha);
        let gamma = (beta - result) + beta_low;
        (gamma + alpha_low).partial_cmp(&0.0)
    }
    fn rest(a: Self, q: Self, b: Self) -> Option<Ordering> {
        (-q).mul_add(b, a).partial_cmp(&0.0)
    }
}

/// The neighbour of a nearest result that a rounding asks for. `error` says how the exact result
/// lies to the nearest one.
fn directed<T: Float>(nearest: T, error: Option<Ordering>, rounding: Rounding) -> T {
    let Some(error) = error else { return nearest };
    let down = match rounding {
        Rounding::Nearest => return nearest,
        Rounding::Zero => !nearest.is_negative(),
        Rounding::Down => true,
        Rounding::Up => false,
    };
    match (down, error) {
        (true, Ordering::Less) => nearest.next_down(),
        (false, Ordering::Greater) => nearest.next_up(),
        _ => nearest,
    }
}

/// The error of a result: an infinite one of finite operands is an overflow.
fn error_of<T: Float>(result: T, are_finite: bool, error: impl Fn() -> Option<Ordering>) -> Option<Ordering> {
    match (are_finite, result.is_infinite()) {
        (false, _) => None,
        (true, true) => Some(if result.is_negative() { Ordering::Greater } else { Ordering::Less }),
        (true, false) => error(),
    }
}

fn add_rounded<T: Float>(a: T, b: T, rounding: Rounding) -> T {
    let sum = a.add(b);
    // Equal numbers of opposite signs: only this rounding makes the zero negative.
    if sum == T::ZERO && a.is_negative() != b.is_negative() && rounding == Rounding::Down {
        return T::ZERO.neg();
    }
    directed(sum, error_of(sum, a.is_finite() && b.is_finite(), || T::sum_error(a, b, sum)), rounding)
}

fn mul_rounded<T: Float>(a: T, b: T, rounding: Rounding) -> T {
    let product = a.mul(b);
    let are_finite = a.is_finite() && b.is_finite();
    directed(product, error_of(product, are_finite, || T::fma_error(a, b, T::ZERO, product)), rounding)
}

fn fma_rounded<T: Float>(a: T, b: T, c: T, rounding: Rounding) -> T {
    let result = a.fma(b, c);
    let negative_product = a.is_negative() != b.is_negative();
    if result == T::ZERO && negative_product != c.is_negative() && rounding == Rounding::Down {
        let error = T::fma_error(a, b, c, result);
        if error == Some(Ordering::Equal) {
            return T::ZERO.neg();
        }
    }
    let are_finite = a.is_finite() && b.is_finite() && c.is_finite();
    directed(result, error_of(result, are_finite, || T::fma_error(a, b, c, result)), rounding)
}

fn div_rounded<T: Float>(a: T, b: T, rounding: Rounding) -> T {
    let quotient = a.div(b);
    let are_finite = a.is_finite() && b.is_finite() && b != T::ZERO;
    let error = error_of(quotient, are_finite, || {
        let rest = T::rest(a, quotient, b)?;
        Some(if b.is_negative() { rest.reverse() } else { rest })
    });
    directed(quotient, error, rounding)
}

fn sqrt_rounded<T: Float>(a: T, rounding: Rounding) -> T {
    let root = a.sqrt();
    let error = if root.is_finite() { T::rest(a, root, root) } else { None };
    directed(root, error, rounding)
}

macro_rules! by_float {
    ($ty:expr, $run:ident) => {
        match $ty {
            Type::F32 => Some($run::<f32>),
            Type::F64 => Some($run::<f64>),
            _ => None,
        }
    };
}

/// An operation in each rounding.
macro_rules! rounded {
    ($($name:ident $map:ident($($operand:ident),+) |$rounding:ident| $nearest:expr, $other:expr;)*) => {$(
        pub(crate) fn $name(ty: Type, rounding: Rounding) -> Option<$map> {
            mod modes {
                use super::*;
                maps! { Float by_float $map:
                    nearest($($operand),+) $nearest;
                    zero($($operand),+) { let $rounding = Rounding::Zero; $other };
                    down($($operand),+) { let $rounding = Rounding::Down; $other };
                    up($($operand),+) { let $rounding = Rounding::Up; $other };
                }
            }
            match rounding {
                Rounding::Nearest => modes::nearest(ty),
                Rounding::Zero => modes::zero(ty),
                Rounding::Down => modes::down(ty),
                Rounding::Up => modes::up(ty),
            }
        }
    )*};
}

rounded! {
    add Map2(a, b) |r| a.add(b), add_rounded(a, b, r);
    sub Map2(a, b) |r| a.add(b.neg()), add_rounded(a, b.neg(), r);
    mul Map2(a, b) |r| a.mul(b), mul_rounded(a, b, r);
    div Map2(a, b) |r| a.div(b), div_rounded(a, b, r);
    fma Map3(a, b, c) |r| a.fma(b, c), fma_rounded(a, b, c, r);
    sqrt Map1(a) |r| a.sqrt(), sqrt_rounded(a, r);
    rcp Map1(a) |r| T::ONE.div(a), div_rounded(T::ONE, a, r);
}

maps! { Float by_float Map1:
    rsqrt(a) T::ONE.div(a.sqrt());
    sin(a) a.through(f64::sin);
    cos(a) a.through(f64::cos);
    lg2(a) a.through(f64::log2);
    ex2(a) a.through(f64::exp2);
    tanh(a) a.through(f64::tanh);
    neg(a) a.neg();
    abs(a) a.abs();
    /// Within 0 and 1; 0 for a NaN.
    saturate(a) if a > T::ONE { T::ONE } else if a > T::ZERO { a } else { T::ZERO };
    /// Without subnormal numbers.
    flush(a) if a.is_subnormal() { if a.is_negative() { T::ZERO.neg() } else { T::ZERO } } else { a };
    is_finite(a) a.is_finite();
    is_infinite(a) a.is_infinite();
    is_number(a) !a.is_nan();
    is_not_number(a) a.is_nan();
    is_normal(a) a.is_normal();
    is_subnormal(a) a.is_subnormal();
}

maps! { Float by_float Map2:
    min(a, b) least(a, b);
    max(a, b) least(a.neg(), b.neg()).neg();
    min_nan(a, b) if a.is_nan() { a } else if b.is_nan() { b } else { least(a, b) };
    max_nan(a, b) if a.is_nan() { a } else if b.is_nan() { b } else { least(a.neg(), b.neg()).neg() };
    /// The second operand with the sign of the first.
    copysign(a, b) if a.is_negative() { b.abs().neg() } else { b.abs() };
    eq(a, b) a == b;
    ne(a, b) a != b && !a.is_nan() && !b.is_nan();
    lt(a, b) a < b;
    le(a, b) a <= b;
    gt(a, b) a > b;
    ge(a, b) a >= b;
    equ(a, b) a == b || a.is_nan() || b.is_nan();
    neu(a, b) a != b;
    ltu(a, b) a < b || a.is_nan() || b.is_nan();
    leu(a, b) a <= b || a.is_nan() || b.is_nan();
    gtu(a, b) a > b || a.is_nan() || b.is_nan();
    geu(a, b) a >= b || a.is_nan() || b.is_nan();
    num(a, b) !a.is_nan() && !b.is_nan();
    nan(a, b) a.is_nan() || b.is_nan();
}

/// The smaller number; the other one if one is a NaN. Negative zero is smaller.
fn least<T: Float>(a: T, b: T) -> T {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || (a == b && a.is_negative()) {
        a
    } else {
        b
    }
}
