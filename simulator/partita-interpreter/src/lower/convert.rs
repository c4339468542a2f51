//! Copies and conversions.

use super::body::{Body, Done, Lower, operands};
use super::words::Words;
use crate::kernel::{Op, Source};
use crate::math::convert::Conversion;
use crate::math::{Rounding, bits};
use partita_ptx::Type;
use partita_ptx::module::{Instruction, Operand};

/// `mov`, also from and to the parts of a value.
pub(super) fn copy(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, from] = operands(of)?;
    let mut words = Words::new(of);
    let ty = words.ty()?;
    words.end()?;
    if ty.bits() > 64 {
        return Err(of.refused("values of 128 bits are not simulated"));
    }
    match (to, from) {
        (Operand::Vector(parts), Operand::Vector(others)) if parts.len() == others.len() => {
            Err(of.refused("copies of vectors are not simulated"))
        }
        (Operand::Vector(parts), from) => {
            let bits_each = ty.bits() / parts.len().max(1) as u32;
            let from = body.source(of, from, ty)?;
            for (index, part) in parts.iter().enumerate() {
                let map = bits::part(index as u32 * bits_each, bits_each);
                let map = map.ok_or_else(|| of.refused("the value has no such parts"))?;
                let (to, _) = body.destination(of, part)?;
                body.map1(map, to, from);
            }
            Ok(())
        }
        (to, Operand::Vector(parts)) => {
            let bits_each = ty.bits() / parts.len().max(1) as u32;
            let part_type = match bits_each {
                8 => Type::B8,
                16 => Type::B16,
                32 => Type::B32,
                _ => return Err(of.refused("the value has no such parts")),
            };
            let (to, _) = body.destination(of, to)?;
            let whole = body.temporary();
            for (index, part) in parts.iter().enumerate() {
                let part = body.source(of, part, part_type)?;
                let cut = body.temporary();
                body.map1(bits::low(bits_each), cut, part);
                let Some(join) = bits::joined(index as u32 * bits_each) else {
                    body.map1(bits::copy, whole, Source::Register(cut));
                    continue;
                };
                body.map2(join, whole, Source::Register(whole), Source::Register(cut));
            }
            body.map1(bits::copy, to, Source::Register(whole));
            Ok(())
        }
        (to, from) => {
            let (to, _) = body.destination(of, to)?;
            let from = body.source(of, from, ty)?;
            body.map1(bits::low(ty.bits()), to, from);
            Ok(())
        }
    }
}

/// `cvt`.
pub(super) fn convert(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    let to_whole = ["rni", "rzi", "rmi", "rpi"].iter().any(|word| of.has(word));
    let rounding = words.rounding();
    let flushes = words.take("ftz");
    let saturates = words.take("sat");
    let relu = words.take("relu");
    let (to_type, from_type) = (words.ty()?, words.ty()?);
    words.end()?;
    let how = Conversion {
        to: to_type,
        from: from_type,
        rounding: rounding.unwrap_or(Rounding::Nearest),
        to_whole,
        saturates,
        relu,
        flushes,
    };
    let pair = match to_type {
        Type::F16x2 => Some(Type::F16),
        Type::BF16x2 => Some(Type::BF16),
        _ => None,
    };
    if let Some(half) = pair {
        let [to, high, low] = operands(of)?;
        let (to, _) = body.destination(of, to)?;
        let (high, low) = (body.source(of, high, from_type)?, body.source(of, low, from_type)?);
        let halves = [high, low].map(|value| {
            let to = body.temporary();
            body.emit(Op::Convert { how: Conversion { to: half, ..how }, bits: 16, to, of: value });
            Source::Register(to)
        });
        let join = bits::joined(16).filter(|_| from_type == Type::F32);
        let join =
            join.ok_or_else(|| of.refused(format!("it is not simulated from the type .{from_type}")))?;
        body.map2(join, to, halves[1], halves[0]);
        return Ok(());
    }
    let [to, from] = operands(of)?;
    let known = |ty: Type| {
        ty.is_float() || (ty.bits() <= 64 && !matches!(ty, Type::Pred | Type::F16x2 | Type::BF16x2))
    };
    if !known(to_type) || !known(from_type) {
        return Err(of.refused("it is not simulated for these types"));
    }
    let (to, register_type) = body.destination(of, to)?;
    let from = body.source(of, from, from_type)?;
    let bits = register_type.bits().min(64);
    let is_plain = !to_type.is_float() && !from_type.is_float() && !saturates;
    if is_plain && !from_type.is_signed() && (to_type.bits() > from_type.bits() || !to_type.is_signed()) {
        body.map1(bits::low(to_type.bits().min(from_type.bits())), to, from);
    } else if is_plain && to_type.bits() == bits && to_type.bits() <= from_type.bits() {
        body.map1(bits::low(bits), to, from);
    } else if is_plain && from_type.is_signed() && to_type.bits() > from_type.bits() {
        let wide = body.temporary();
        body.map1(bits::extend(from_type.bits()), wide, from);
        body.map1(
            bits::low(if to_type.is_signed() { bits } else { to_type.bits() }),
            to,
            Source::Register(wide),
        );
    } else {
        body.emit(Op::Convert { how, bits, to, of: from });
    }
    Ok(())
}
