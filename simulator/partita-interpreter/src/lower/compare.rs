//! Comparisons and selections.

use super::body::{Body, Done, Lower, operands};
use super::words::Words;
use crate::kernel::{Register, Source};
use crate::lanes::{By, Map2};
use crate::math::{bits, float, int};
use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::{Instruction, Operand};

/// Comparisons of integers.
const INTS: &[(&str, By<Map2>)] = &[
    ("eq", int::eq),
    ("ne", int::ne),
    ("lt", int::lt),
    ("le", int::le),
    ("gt", int::gt),
    ("ge", int::ge),
    ("lo", int::lt),
    ("ls", int::le),
    ("hi", int::gt),
    ("hs", int::ge),
];

/// Comparisons of floating-point numbers.
const FLOATS: &[(&str, By<Map2>)] = &[
    ("eq", float::eq),
    ("ne", float::ne),
    ("lt", float::lt),
    ("le", float::le),
    ("gt", float::gt),
    ("ge", float::ge),
    ("equ", float::equ),
    ("neu", float::neu),
    ("ltu", float::ltu),
    ("leu", float::leu),
    ("gtu", float::gtu),
    ("geu", float::geu),
    ("num", float::num),
    ("nan", float::nan),
];

/// How the result is combined with another predicate.
fn combination(word: &str) -> Option<By<Map2>> {
    Some(match word {
        "and" => bits::and,
        "or" => bits::or,
        "xor" => bits::xor,
        _ => return None,
    })
}

/// The comparison of two operands and its combination with a third one.
struct Comparison {
    result: Register,
    third: Option<(By<Map2>, Source)>,
}

impl Comparison {
    fn lower(
        body: &mut Body<'_, '_>,
        of: &Instruction,
        words: &mut Words<'_>,
        rest: &[Operand],
        ty: Type,
    ) -> Result<Self, PtxError> {
        let is_known = |word: &str| INTS.iter().chain(FLOATS).any(|(known, _)| *known == word);
        let how = words.need("comparison", |word| is_known(word).then(|| word.to_owned()))?;
        let combination = words.find(combination);
        let flushes = words.take("ftz");
        let table = if ty.is_float() { FLOATS } else { INTS };
        let by = table.iter().find(|(known, _)| *known == how).map(|(_, by)| *by);
        let map = by.and_then(|by| by(ty));
        let map = map.ok_or_else(|| of.refused(format!("it is not simulated for the type .{ty}")))?;
        let (Some(a), Some(b), third) = (rest.first(), rest.get(1), rest.get(2)) else {
            return Err(of.refused("it compares two operands"));
        };
        let (mut a, mut b) = (body.source(of, a, ty)?, body.source(of, b, ty)?);
        if let Some(flush) = float::flush(ty).filter(|_| flushes) {
            for value in [&mut a, &mut b] {
                let to = body.temporary();
                body.map1(flush, to, *value);
                *value = Source::Register(to);
            }
        }
        let result = body.temporary();
        body.map2(map, result, a, b);
        let third = match (combination, third) {
            (Some(how), Some(third)) => Some((how, body.source(of, third, Type::Pred)?)),
            (None, None) => None,
            _ => return Err(of.refused("a combination takes a third operand, and no other comparison does")),
        };
        Ok(Self { result, third })
    }

    /// Stores the combined result.
    fn store(&self, body: &mut Body<'_, '_>, result: Register, to: Register) {
        match self.third.and_then(|(by, third)| Some((by(Type::U8)?, third))) {
            Some((map, third)) => body.map2(map, to, Source::Register(result), third),
            None => body.map1(bits::copy, to, Source::Register(result)),
        }
    }
}

/// `setp`.
pub(super) fn set_predicate(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    let ty = words.ty()?;
    let Some((to, rest)) = of.operands.split_first() else {
        return Err(of.refused("it has no destination"));
    };
    let comparison = Comparison::lower(body, of, &mut words, rest, ty)?;
    words.end()?;
    let Operand::Pair(to, inverse) = to else {
        let (to, _) = body.destination(of, to)?;
        comparison.store(body, comparison.result, to);
        return Ok(());
    };
    let (to, _) = body.destination(of, to)?;
    let (inverse, _) = body.destination(of, inverse)?;
    // The third operand may be one of the destinations.
    let (first, second, negated) = (body.temporary(), body.temporary(), body.temporary());
    comparison.store(body, comparison.result, first);
    if let Some(map) = bits::cnot(Type::U8) {
        body.map1(map, negated, Source::Register(comparison.result));
    }
    comparison.store(body, negated, second);
    body.map1(bits::copy, to, Source::Register(first));
    body.map1(bits::copy, inverse, Source::Register(second));
    Ok(())
}

/// `set`: all bits or 1.0 for true.
pub(super) fn set(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    let (result, ty) = (words.ty()?, words.ty()?);
    let Some((to, rest)) = of.operands.split_first() else {
        return Err(of.refused("it has no destination"));
    };
    let comparison = Comparison::lower(body, of, &mut words, rest, ty)?;
    words.end()?;
    let yes = match result {
        Type::U32 | Type::S32 => u64::from(u32::MAX),
        Type::F32 => u64::from(1f32.to_bits()),
        _ => return Err(of.refused(format!("it is not simulated for the type .{result}"))),
    };
    let (to, _) = body.destination(of, to)?;
    let truth = body.temporary();
    comparison.store(body, comparison.result, truth);
    let (yes, no) = (body.kernel.constant(yes), body.kernel.constant(0));
    if let Some(map) = bits::select(Type::B64) {
        body.map3(map, to, [yes, no, Source::Register(truth)]);
    }
    Ok(())
}

/// `selp`.
pub(super) fn select(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, when] = operands(of)?;
    let mut words = Words::new(of);
    let ty = words.ty()?;
    words.end()?;
    let (to, _) = body.destination(of, to)?;
    let sources = [body.source(of, a, ty)?, body.source(of, b, ty)?, body.source(of, when, Type::Pred)?];
    let map = bits::select(Type::B64).ok_or_else(|| of.refused("no selection"))?;
    body.map3(map, to, sources);
    Ok(())
}

/// `slct`.
pub(super) fn select_by_sign(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, a, b, by] = operands(of)?;
    let mut words = Words::new(of);
    let flushes = words.take("ftz");
    let (ty, by_type) = (words.ty()?, words.ty()?);
    words.end()?;
    let (to, _) = body.destination(of, to)?;
    let (a, b) = (body.source(of, a, ty)?, body.source(of, b, ty)?);
    let by = body.source(of, by, by_type)?;
    match by_type {
        Type::S32 => {
            let map = bits::select_sign(Type::B64).ok_or_else(|| of.refused("no selection"))?;
            body.map3(map, to, [a, b, by]);
        }
        Type::F32 => {
            // A NaN selects the second operand; negative zero counts as zero.
            let zero = body.kernel.constant(0);
            let (flushed, truth) = (body.temporary(), body.temporary());
            let maps = float::flush(by_type).zip(float::ge(by_type)).zip(bits::select(Type::B64));
            let ((flush, ge), select) = maps.ok_or_else(|| of.refused("no selection"))?;
            let by = if flushes {
                body.map1(flush, flushed, by);
                Source::Register(flushed)
            } else {
                by
            };
            body.map2(ge, truth, by, zero);
            body.map3(select, to, [a, b, Source::Register(truth)]);
        }
        _ => return Err(of.refused(format!("it is not simulated for the type .{by_type}"))),
    }
    Ok(())
}
