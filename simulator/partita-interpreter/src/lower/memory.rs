//! Loads, stores, atomic operations and addresses.

use super::body::{Body, Done, Lower, operands};
use super::words::Words;
use crate::kernel::{
    Access, Change, LOCAL_WINDOW, Op, PARAM_WINDOW, Place, SHARED_WINDOW, Source, WINDOW_BYTES,
};
use crate::math::{bits, int};
use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::{Instruction, Operand, Space};

/// Cycles of an access to a block's shared memory.
const SHARED_CYCLES: u16 = 28;
/// Cycles of an access to device memory, between those of a hit and of a miss of the L2 cache.
const GLOBAL_CYCLES: u16 = 400;

/// Words of ordering and caching: accesses here are in program order, and there are no caches.
fn is_order_or_cache(word: &str) -> bool {
    const WORDS: &[&str] = &[
        "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "cluster", "gpu",
        "sys", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc",
    ];
    WORDS.contains(&word) || ["L1::", "L2::"].iter().any(|level| word.starts_with(level))
}

fn space(word: &str) -> Option<Place> {
    Some(match word {
        "global" | "const" => Place::Global,
        "shared" | "shared::cta" => Place::Shared,
        "local" => Place::Local,
        "param" | "param::entry" | "param::func" => Place::Param,
        _ => return None,
    })
}

fn vector(words: &mut Words<'_>) -> usize {
    words
        .find(|word| {
            [("v2", 2), ("v4", 4), ("v8", 8)].iter().find(|(known, _)| *known == word).map(|(_, n)| *n)
        })
        .unwrap_or(1)
}

impl Body<'_, '_> {
    /// The access that a memory operand names.
    fn access(
        &mut self,
        of: &Instruction,
        operand: &Operand,
        place: Option<Place>,
        bytes: u32,
    ) -> Result<Access, PtxError> {
        let Operand::Memory(parts) = operand else {
            return Err(of.refused("an address in brackets is expected"));
        };
        let [part] = parts.as_slice() else {
            return Err(of.refused("an address of several parts is not simulated"));
        };
        let mut place = place.unwrap_or(Place::Generic);
        let (name, offset) = match part {
            Operand::Name(name) => (name, 0),
            Operand::Offset(name, offset) => (name, *offset),
            Operand::Integer(value) => {
                let address = self.kernel.constant(*value as u64);
                return Ok(Access { place, address, offset: 0, bytes });
            }
            _ => return Err(of.refused("an address is a register, a name or a number")),
        };
        if let Some(register) = self.register(name) {
            // A function's parameters lie in its frame.
            if place == Place::Param && !self.is_entry {
                place = Place::Local;
            }
            self.charge(place);
            return Ok(Access { place, address: Source::Register(register), offset, bytes });
        }
        let (space, address) = self.named(of, name, offset)?;
        let place = match space {
            Some(Space::Shared) => Place::Shared,
            Some(Space::Local) => Place::Local,
            Some(Space::Param) => Place::Param,
            Some(_) => Place::Global,
            None => return Err(of.refused(format!("'{name}' is no variable"))),
        };
        self.charge(place);
        Ok(Access { place, address, offset: 0, bytes })
    }

    fn charge(&mut self, place: Place) {
        let cycles = match place {
            Place::Generic | Place::Global => GLOBAL_CYCLES,
            Place::Shared => SHARED_CYCLES,
            Place::Local | Place::Param => 4,
        };
        self.cycles = self.cycles.max(cycles);
    }
}

/// `ld`.
pub(super) fn load(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, from] = operands(of)?;
    let mut words = Words::new(of);
    words.drop(is_order_or_cache);
    let place = words.find(space);
    let count = vector(&mut words);
    let ty = words.ty()?;
    words.end()?;
    let list = elements(of, to, count, ty)?;
    let mut to = Vec::new();
    let mut bits = 0;
    for element in list {
        let (register, register_type) = body.destination(of, element)?;
        bits = bits.max(register_type.bits().min(64));
        to.push(register);
    }
    let access = body.access(of, from, place, ty.bytes())?;
    let extend = if ty.is_signed() && bits > ty.bits() { bits } else { 0 };
    body.emit(Op::Load { access, extend, to });
    Ok(())
}

/// `st`.
pub(super) fn store(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, from] = operands(of)?;
    let mut words = Words::new(of);
    words.drop(is_order_or_cache);
    let place = words.find(space);
    let count = vector(&mut words);
    let ty = words.ty()?;
    words.end()?;
    let list = elements(of, from, count, ty)?;
    let values: Result<Vec<Source>, _> = list.iter().map(|element| body.source(of, element, ty)).collect();
    let access = body.access(of, to, place, ty.bytes())?;
    body.emit(Op::Store { access, of: values? });
    // A warp does not wait for its stores.
    body.cycles = body.cycles.min(SHARED_CYCLES);
    Ok(())
}

/// The elements of a vector operand, or the operand.
fn elements<'o>(
    of: &Instruction,
    operand: &'o Operand,
    count: usize,
    ty: Type,
) -> Result<&'o [Operand], PtxError> {
    if ty.bits() > 64 || ty == Type::Pred {
        return Err(of.refused(format!("it is not simulated for the type .{ty}")));
    }
    match operand {
        Operand::Vector(parts) if parts.len() == count => Ok(parts),
        Operand::Vector(parts) => {
            Err(of.refused(format!("it names {} registers for {count} elements", parts.len())))
        }
        single if count == 1 => Ok(std::slice::from_ref(single)),
        _ => Err(of.refused(format!("it names one register for {count} elements"))),
    }
}

/// `atom` and `red`.
pub(super) fn atomic(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let returns = of.opcode == "atom";
    let mut words = Words::new(of);
    words.drop(is_order_or_cache);
    let place = words.find(space);
    let change = words.need("operation", |word| {
        Some(match word {
            "add" => Change::Add,
            "min" => Change::Min,
            "max" => Change::Max,
            "and" => Change::And,
            "or" => Change::Or,
            "xor" => Change::Xor,
            "inc" => Change::Increment,
            "dec" => Change::Decrement,
            "exch" if returns => Change::Exchange,
            "cas" if returns => Change::CompareAndSwap,
            _ => return None,
        })
    })?;
    let ty = words.ty()?;
    words.end()?;
    let is_float = ty.is_float();
    let takes = match change {
        Change::Add => matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::S64 | Type::F32 | Type::F64),
        Change::Min | Change::Max => !is_float && ty.bits() >= 32,
        Change::Increment | Change::Decrement => ty == Type::U32,
        Change::CompareAndSwap => !is_float,
        _ => !is_float && ty.bits() >= 32,
    };
    if !takes || !(16..=64).contains(&ty.bits()) || matches!(ty, Type::F16x2 | Type::BF16x2) {
        return Err(of.refused(format!("it is not simulated for the type .{ty}")));
    }
    let (to, rest) = match of.operands.split_first() {
        Some((to, rest)) if returns => (Some(to), rest),
        _ => (None, of.operands.as_slice()),
    };
    let swaps = change == Change::CompareAndSwap;
    let (at, by, with) = match rest {
        [at, by] if !swaps => (at, by, by),
        [at, by, with] if swaps => (at, by, with),
        _ => return Err(of.refused("it has another number of operands than is simulated")),
    };
    let to = match to {
        Some(to) => Some(body.destination(of, to)?.0),
        None => None,
    };
    let (by, with) = (body.source(of, by, ty)?, body.source(of, with, ty)?);
    let access = body.access(of, at, place, ty.bytes())?;
    if matches!(access.place, Place::Local | Place::Param) {
        return Err(of.refused("atomic operations are in global and shared memory"));
    }
    body.emit(Op::Atomic { access, change, ty, to, by, with });
    Ok(())
}

/// `cp.async`, which has copied when it returns.
pub(super) fn copy(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    if !of.has("async") || of.has("bulk") || of.has("mbarrier") {
        return Err(of.refused("the tensor memory accelerator is not simulated"));
    }
    if ["commit_group", "wait_group", "wait_all"].iter().any(|word| of.has(word)) {
        return Ok(());
    }
    let mut words = Words::new(of);
    words.take("async");
    words.drop(is_order_or_cache);
    let places = [words.find(space), words.find(space)];
    words.end()?;
    let ([to, from, rest @ ..], [Some(Place::Shared), Some(Place::Global)]) =
        (of.operands.as_slice(), places)
    else {
        return Err(of.refused("only copies from global to shared memory are simulated"));
    };
    let (bytes, given) = match rest {
        [bytes] => (bytes, None),
        [bytes, given] => (bytes, Some(given)),
        _ => return Err(of.refused("it has another number of operands than is simulated")),
    };
    let bytes = match bytes {
        Operand::Integer(bytes @ (4 | 8 | 16)) => *bytes as u32,
        _ => return Err(of.refused("it copies 4, 8 or 16 bytes")),
    };
    let given = match given {
        None => None,
        Some(Operand::Name(name)) if body.register(name).is_some_and(|_| body.is_predicate(name)) => {
            return Err(of.refused("a predicate for its source is not simulated"));
        }
        Some(given) => Some(body.source(of, given, Type::U32)?),
    };
    let to = body.access(of, to, Some(Place::Shared), bytes)?;
    let from = body.access(of, from, Some(Place::Global), bytes)?;
    body.emit(Op::Copy { to, from, given });
    Ok(())
}

impl Body<'_, '_> {
    fn is_predicate(&mut self, name: &str) -> bool {
        self.typed_register(name).is_some_and(|(_, ty)| ty == Type::Pred)
    }
}

/// The window of a space in generic addresses.
fn window(place: Place) -> u64 {
    match place {
        Place::Shared => SHARED_WINDOW,
        Place::Local => LOCAL_WINDOW,
        Place::Param => PARAM_WINDOW,
        Place::Generic | Place::Global => 0,
    }
}

/// `cvta`.
pub(super) fn generic(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, from] = operands(of)?;
    let mut words = Words::new(of);
    let to_space = words.take("to");
    let place = words.need("state space", space)?;
    let ty = words.ty()?;
    words.end()?;
    if ty.bits() != 64 {
        return Err(of.refused("addresses of 32 bits are not simulated"));
    }
    let (to, _) = body.destination(of, to)?;
    let from = body.source(of, from, ty)?;
    let window = window(place);
    if window == 0 {
        body.map1(bits::copy, to, from);
        return Ok(());
    }
    let window = body.kernel.constant(window);
    let map = if to_space { int::sub(Type::U64) } else { int::add(Type::U64) };
    body.map2(map.ok_or_else(|| of.refused("no sum"))?, to, from, window);
    Ok(())
}

/// `isspacep`.
pub(super) fn is_space(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, from] = operands(of)?;
    let mut words = Words::new(of);
    let is_const = words.take("const");
    let place = if is_const { Place::Global } else { words.need("state space", space)? };
    words.end()?;
    let (to, _) = body.destination(of, to)?;
    let from = body.source(of, from, Type::U64)?;
    if is_const {
        // Constants lie in device memory here, and a program may write them.
        let no = body.kernel.constant(0);
        body.map1(bits::copy, to, no);
        return Ok(());
    }
    let start = body.kernel.constant(window(place));
    let bytes = body.kernel.constant(WINDOW_BYTES);
    let from_start = body.temporary();
    let maps = int::sub(Type::U64).zip(int::lt(Type::U64));
    let (sub, lt) = maps.ok_or_else(|| of.refused("no comparison"))?;
    body.map2(sub, from_start, from, start);
    body.map2(lt, to, Source::Register(from_start), bytes);
    Ok(())
}
