//! Arithmetic and logic.

use super::body::{Body, Done, Lower, operands};
use super::words::Words;
use crate::kernel::{Op, Register, Source};
use crate::lanes::{By, Map1, Map2, Map3};
use crate::math::{Rounding, bits, float, half, int};
use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::{Instruction, Operand};

/// Operations of one operand on integers.
const INT1: &[(&str, By<Map1>)] = &[
    ("abs", int::abs),
    ("neg", int::neg),
    ("not", bits::not),
    ("cnot", bits::cnot),
    ("popc", bits::popc),
    ("clz", bits::clz),
    ("brev", bits::brev),
    ("bfind", bits::bfind),
];

/// Operations of two operands on integers.
const INT2: &[(&str, By<Map2>)] = &[
    ("add", int::add),
    ("sub", int::sub),
    ("div", int::div),
    ("rem", int::rem),
    ("min", int::min),
    ("max", int::max),
    ("and", bits::and),
    ("or", bits::or),
    ("xor", bits::xor),
    ("shl", bits::shl),
    ("shr", int::shr),
];

/// Operations of one operand on numbers of 32 and 64 bits, without those that take a rounding.
const FLOAT1: &[(&str, By<Map1>)] = &[
    ("abs", float::abs),
    ("neg", float::neg),
    ("rsqrt", float::rsqrt),
    ("sin", float::sin),
    ("cos", float::cos),
    ("lg2", float::lg2),
    ("ex2", float::ex2),
    ("tanh", float::tanh),
];

/// The properties of `testp`.
const TESTS: &[(&str, By<Map1>)] = &[
    ("finite", float::is_finite),
    ("infinite", float::is_infinite),
    ("number", float::is_number),
    ("notanumber", float::is_not_number),
    ("normal", float::is_normal),
    ("subnormal", float::is_subnormal),
];

/// Operations on numbers of 16 bits.
const HALF1: &[(&str, By<Map1>)] = &[("abs", half::abs), ("neg", half::neg)];
const HALF2: &[(&str, By<Map2>)] =
    &[("add", half::add), ("sub", half::sub), ("mul", half::mul), ("min", half::min), ("max", half::max)];

/// The modes of `prmt`.
const PERMUTATIONS: &[(&str, By<Map3>)] = &[
    ("f4e", bits::prmt_f4e),
    ("b4e", bits::prmt_b4e),
    ("rc8", bits::prmt_rc8),
    ("ecl", bits::prmt_ecl),
    ("ecr", bits::prmt_ecr),
    ("rc16", bits::prmt_rc16),
];

/// Cycles of a division, a root or a remainder.
const LONG_CYCLES: u16 = 32;
/// Cycles of the special function unit.
const SPECIAL_CYCLES: u16 = 16;

fn in_table<T: Copy>(table: &[(&str, By<T>)], opcode: &str, ty: Type) -> Option<T> {
    table.iter().find(|(known, _)| *known == opcode).and_then(|(_, by)| by(ty))
}

fn is_half(ty: Type) -> bool {
    matches!(ty, Type::F16 | Type::F16x2 | Type::BF16 | Type::BF16x2)
}

fn no_such(of: &Instruction, ty: Type) -> PtxError {
    of.refused(format!("it is not simulated for the type .{ty}"))
}

/// What is done with operands and results of floating-point operations.
#[derive(Clone, Copy, Default)]
struct Around {
    flushes: bool,
    saturates: bool,
}

impl Around {
    fn of(words: &mut Words<'_>) -> Self {
        Self { flushes: words.take("ftz"), saturates: words.take("sat") }
    }

    fn is_none(self) -> bool {
        !self.flushes && !self.saturates
    }
}

impl Body<'_, '_> {
    /// An operand without subnormal numbers.
    fn flushed(&mut self, ty: Type, value: Source, around: Around) -> Source {
        match float::flush(ty) {
            Some(map) if around.flushes => {
                let to = self.temporary();
                self.map1(map, to, value);
                Source::Register(to)
            }
            _ => value,
        }
    }

    /// A result with what is done to it.
    fn finished(&mut self, ty: Type, value: Register, to: Register, around: Around) {
        let flush = float::flush(ty).filter(|_| around.flushes);
        let saturate = float::saturate(ty).filter(|_| around.saturates);
        match (flush, saturate) {
            (Some(flush), Some(saturate)) => {
                self.map1(flush, value, Source::Register(value));
                self.map1(saturate, to, Source::Register(value));
            }
            (Some(map), None) | (None, Some(map)) => self.map1(map, to, Source::Register(value)),
            (None, None) => self.map1(bits::copy, to, Source::Register(value)),
        }
    }
}

/// One operand.
pub(super) fn one(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a] = operands(of)?;
    let mut words = Words::new(of);
    let opcode = of.opcode.as_str();
    let shifts = opcode == "bfind" && words.take("shiftamt");
    let test = if opcode == "testp" {
        Some(
            words
                .need("property", |word| TESTS.iter().find(|(known, _)| *known == word).map(|(_, by)| *by))?,
        )
    } else {
        None
    };
    let around = Around::of(&mut words);
    let is_approximate = words.take("approx");
    let rounding = words.rounding();
    let ty = words.ty()?;
    words.end()?;
    if !matches!(opcode, "abs" | "neg" | "not" | "cnot" | "popc" | "clz" | "brev" | "bfind" | "testp") {
        body.cycles = if is_approximate { SPECIAL_CYCLES } else { LONG_CYCLES };
    }
    let map = if let Some(test) = test {
        test(ty)
    } else if opcode == "sqrt" || opcode == "rcp" {
        let by = if opcode == "sqrt" { float::sqrt } else { float::rcp };
        by(ty, rounding.unwrap_or(Rounding::Nearest))
    } else if rounding.is_some() {
        None
    } else if ty == Type::Pred && opcode == "not" {
        bits::cnot(Type::U8)
    } else if shifts {
        bits::bfind_shift(ty)
    } else if is_half(ty) {
        in_table(HALF1, opcode, ty)
    } else if matches!(ty, Type::F32 | Type::F64) {
        in_table(FLOAT1, opcode, ty)
    } else {
        in_table(INT1, opcode, ty)
    };
    let map = map.ok_or_else(|| no_such(of, ty))?;
    let (to, _) = body.destination(of, to)?;
    let a = body.source(of, a, ty)?;
    if around.is_none() || is_half(ty) {
        body.map1(map, to, a);
        return Ok(());
    }
    let a = body.flushed(ty, a, around);
    let result = body.temporary();
    body.map1(map, result, a);
    body.finished(ty, result, to, around);
    Ok(())
}

/// Two operands.
pub(super) fn two(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    if words.take("cc") {
        return carried(body, of);
    }
    let [to, a, b] = operands(of)?;
    let opcode = of.opcode.as_str();
    let around = Around::of(&mut words);
    let rounding = words.rounding();
    let keeps_nan = words.take("NaN");
    let part = words.find(|word| ["lo", "hi", "wide"].into_iter().find(|part| *part == word));
    let is_approximate = opcode == "div" && (words.take("approx") | words.take("full"));
    let ty = words.ty()?;
    words.end()?;
    let nearest = rounding.unwrap_or(Rounding::Nearest);
    let is_float = matches!(ty, Type::F32 | Type::F64);
    if matches!(opcode, "div" | "rem") {
        body.cycles = if is_approximate { SPECIAL_CYCLES } else { LONG_CYCLES };
    }
    let map = match (opcode, part) {
        ("mul24", Some("lo")) => int::mul24_lo(ty),
        ("mul24", Some("hi")) => int::mul24_hi(ty),
        ("mul", Some("lo")) => int::mul_lo(ty),
        ("mul", Some("hi")) => int::mul_hi(ty),
        ("mul", Some("wide")) if ty.bits() < 64 => int::mul_wide(ty),
        (_, Some(_)) => None,
        ("add", None) if is_float => float::add(ty, nearest),
        ("sub", None) if is_float => float::sub(ty, nearest),
        ("mul", None) if is_float => float::mul(ty, nearest),
        ("div", None) if is_float => float::div(ty, nearest),
        ("min", None) if is_float => {
            if keeps_nan {
                float::min_nan(ty)
            } else {
                float::min(ty)
            }
        }
        ("max", None) if is_float => {
            if keeps_nan {
                float::max_nan(ty)
            } else {
                float::max(ty)
            }
        }
        ("copysign", None) => float::copysign(ty),
        _ if is_half(ty) && nearest == Rounding::Nearest && !keeps_nan && !around.saturates => {
            in_table(HALF2, opcode, ty)
        }
        ("add", None) if around.saturates => int::add_sat(ty),
        ("sub", None) if around.saturates => int::sub_sat(ty),
        ("and" | "or" | "xor", None) if ty == Type::Pred => in_table(INT2, opcode, Type::U8),
        _ if rounding.is_none() && !keeps_nan => in_table(INT2, opcode, ty),
        _ => None,
    };
    let map = map.ok_or_else(|| no_such(of, ty))?;
    let (to, _) = body.destination(of, to)?;
    let a = body.source(of, a, ty)?;
    let by_type = if matches!(opcode, "shl" | "shr") { Type::U32 } else { ty };
    let b = body.source(of, b, by_type)?;
    let b = if by_type == ty { b } else { body.shift(ty, b)? };
    if around.is_none() || !is_float {
        body.map2(map, to, a, b);
        return Ok(());
    }
    let (a, b) = (body.flushed(ty, a, around), body.flushed(ty, b, around));
    let result = body.temporary();
    body.map2(map, result, a, b);
    body.finished(ty, result, to, around);
    Ok(())
}

impl Body<'_, '_> {
    /// A shift's length as an operand of the shifted type: one beyond its range is as long as the
    /// range.
    fn shift(&mut self, ty: Type, by: Source) -> Result<Source, PtxError> {
        if ty.bits() >= 32 {
            return Ok(by);
        }
        let to = self.temporary();
        let most = self.kernel.constant(u64::from(ty.bits()));
        if let Some(map) = int::min(Type::U32) {
            self.map2(map, to, by, most);
        }
        Ok(Source::Register(to))
    }
}

/// Three operands.
pub(super) fn three(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    if words.take("cc") {
        return carried_product(body, of);
    }
    let [to, a, b, c] = operands(of)?;
    let around = Around::of(&mut words);
    let rounding = words.rounding();
    let part = words.find(|word| ["lo", "hi", "wide"].into_iter().find(|part| *part == word));
    let ty = words.ty()?;
    words.end()?;
    let opcode = of.opcode.as_str();
    let is_float = matches!(ty, Type::F32 | Type::F64);
    let (to, _) = body.destination(of, to)?;
    let a = body.source(of, a, ty)?;
    let b_type = if opcode == "bfe" { Type::U32 } else { ty };
    let b = body.source(of, b, b_type)?;
    let wide = match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        Type::S32 => Type::S64,
        _ => ty,
    };
    let is_wide = part == Some("wide");
    let c_type = match opcode {
        "bfe" => Type::U32,
        _ if is_wide => wide,
        _ => ty,
    };
    let c = body.source(of, c, c_type)?;
    let product: Option<Map2> = match (opcode, part) {
        ("mad24", Some("lo")) => int::mul24_lo(ty),
        ("mad24", Some("hi")) => int::mul24_hi(ty),
        ("mad", Some("wide")) if ty.bits() < 64 => int::mul_wide(ty),
        _ => None,
    };
    if let Some(product_map) = product.filter(|_| around.is_none()) {
        let product = body.temporary();
        body.map2(product_map, product, a, b);
        let add = int::add(if is_wide { wide } else { ty }).ok_or_else(|| no_such(of, ty))?;
        body.map2(add, to, Source::Register(product), c);
        return Ok(());
    }
    let nearest = rounding.unwrap_or(Rounding::Nearest);
    let map: Option<Map3> = match (opcode, part) {
        ("fma" | "mad", None) if is_float => float::fma(ty, nearest),
        ("fma", None) if is_half(ty) && nearest == Rounding::Nearest && !around.saturates => half::fma(ty),
        _ if rounding.is_some() || (around.saturates && !is_float) => None,
        ("mad", Some("lo")) => int::mad_lo(ty),
        ("mad", Some("hi")) => int::mad_hi(ty),
        ("sad", None) => int::sad(ty),
        ("bfe", None) => bits::bfe(ty),
        _ => None,
    };
    let map = map.ok_or_else(|| no_such(of, ty))?;
    if around.is_none() || !is_float {
        body.map3(map, to, [a, b, c]);
        return Ok(());
    }
    let of = [a, b, c].map(|value| body.flushed(ty, value, around));
    let result = body.temporary();
    body.map3(map, result, of);
    body.finished(ty, result, to, around);
    Ok(())
}

/// `add.cc`, `addc` and the like.
pub(super) fn carried(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b] = operands(of)?;
    let mut words = Words::new(of);
    let sets = words.take("cc");
    let ty = words.ty()?;
    words.end()?;
    let (to, _) = body.destination(of, to)?;
    let (a, b) = (body.source(of, a, ty)?, body.source(of, b, ty)?);
    body.sum_with_carry(of, ty, to, [a, b], of.opcode.starts_with("sub"), of.opcode.ends_with('c'), sets)
}

/// `mad.cc` and `madc`.
pub(super) fn carried_product(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, c] = operands(of)?;
    let mut words = Words::new(of);
    let sets = words.take("cc");
    let is_high = words.need("half of the product", |word| match word {
        "hi" => Some(true),
        "lo" => Some(false),
        _ => None,
    })?;
    let ty = words.ty()?;
    words.end()?;
    let (to, _) = body.destination(of, to)?;
    let (a, b, c) = (body.source(of, a, ty)?, body.source(of, b, ty)?, body.source(of, c, ty)?);
    let map = if is_high { int::mul_hi(ty) } else { int::mul_lo(ty) };
    let product = body.temporary();
    body.map2(map.ok_or_else(|| no_such(of, ty))?, product, a, b);
    body.sum_with_carry(of, ty, to, [Source::Register(product), c], false, of.opcode == "madc", sets)
}

impl Body<'_, '_> {
    #[allow(clippy::too_many_arguments, reason = "each is a property of one instruction")]
    fn sum_with_carry(
        &mut self,
        of: &Instruction,
        ty: Type,
        to: Register,
        [a, b]: [Source; 2],
        is_difference: bool,
        reads: bool,
        sets: bool,
    ) -> Done {
        let carry = self.carry();
        let carry_in = if reads { Source::Register(carry) } else { self.kernel.constant(0) };
        let (sum, out) = if is_difference {
            (int::sub_borrow(ty), int::borrow_of_sub(ty))
        } else {
            (int::add_carry(ty), int::carry_of_add(ty))
        };
        let (sum, out) = sum.zip(out).ok_or_else(|| no_such(of, ty))?;
        let next = self.temporary();
        self.map3(out, next, [a, b, carry_in]);
        self.map3(sum, to, [a, b, carry_in]);
        if sets {
            self.map1(bits::copy, carry, Source::Register(next));
        }
        Ok(())
    }
}

/// `bfi`.
pub(super) fn insert(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, place, length] = operands(of)?;
    let mut words = Words::new(of);
    let ty = words.ty()?;
    words.end()?;
    let (to, _) = body.destination(of, to)?;
    let (a, b) = (body.source(of, a, ty)?, body.source(of, b, ty)?);
    let (place, length) = (body.source(of, place, Type::U32)?, body.source(of, length, Type::U32)?);
    let packed = body.temporary();
    body.map2(bits::pack_field, packed, place, length);
    body.map3(bits::bfi(ty).ok_or_else(|| no_such(of, ty))?, to, [a, b, Source::Register(packed)]);
    Ok(())
}

/// `lop3`.
pub(super) fn logic(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, c, table] = operands(of)?;
    let mut words = Words::new(of);
    let ty = words.ty()?;
    words.end()?;
    let Operand::Integer(table) = table else { return Err(of.refused("its table is a constant")) };
    let table = u8::try_from(*table).map_err(|_| of.refused("its table has eight bits"))?;
    let (to, _) = body.destination(of, to)?;
    let of = [body.source(of, a, ty)?, body.source(of, b, ty)?, body.source(of, c, ty)?];
    body.emit(Op::Lop3 { table, to, of });
    Ok(())
}

/// `prmt`.
pub(super) fn permute(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, c] = operands(of)?;
    let mut words = Words::new(of);
    let mode = words.find(|word| PERMUTATIONS.iter().find(|(known, _)| *known == word).map(|(_, by)| *by));
    let ty = words.ty()?;
    words.end()?;
    let by: By<Map3> = mode.unwrap_or(bits::prmt);
    let map = by(ty).ok_or_else(|| no_such(of, ty))?;
    let (to, _) = body.destination(of, to)?;
    let of = [body.source(of, a, ty)?, body.source(of, b, ty)?, body.source(of, c, ty)?];
    body.map3(map, to, of);
    Ok(())
}

/// `shf`.
pub(super) fn funnel(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, c] = operands(of)?;
    let mut words = Words::new(of);
    let is_left = words.need("direction", |word| match word {
        "l" => Some(true),
        "r" => Some(false),
        _ => None,
    })?;
    let wraps = words.need("mode", |word| match word {
        "wrap" => Some(true),
        "clamp" => Some(false),
        _ => None,
    })?;
    let ty = words.ty()?;
    words.end()?;
    let by: By<Map3> = match (is_left, wraps) {
        (true, true) => bits::shf_l_wrap,
        (true, false) => bits::shf_l_clamp,
        (false, true) => bits::shf_r_wrap,
        (false, false) => bits::shf_r_clamp,
    };
    let map = by(ty).filter(|_| ty == Type::B32).ok_or_else(|| no_such(of, ty))?;
    let (to, _) = body.destination(of, to)?;
    let of = [body.source(of, a, ty)?, body.source(of, b, ty)?, body.source(of, c, Type::U32)?];
    body.map3(map, to, of);
    Ok(())
}

/// `dp4a`.
pub(super) fn dot(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, c] = operands(of)?;
    let mut words = Words::new(of);
    let (left, right) = (words.ty()?, words.ty()?);
    words.end()?;
    if ![left, right].iter().all(|ty| matches!(ty, Type::U32 | Type::S32)) {
        return Err(no_such(of, left));
    }
    let (to, _) = body.destination(of, to)?;
    let of = [body.source(of, a, left)?, body.source(of, b, right)?, body.source(of, c, Type::B32)?];
    body.map3(bits::dp4a(left, right), to, of);
    Ok(())
}
