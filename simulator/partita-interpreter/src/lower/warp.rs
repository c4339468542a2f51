//! Operations of warps and blocks: barriers, votes, shuffles.

use super::body::{Body, Done, Lower, operands};
use super::words::Words;
use crate::kernel::{Barrier, Census, Change, Op, Register, Shuffle, Source, Together, Vote};
use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::{Instruction, Operand};

/// Cycles of an operation of the warp.
const WARP_CYCLES: u16 = 24;

impl Body<'_, '_> {
    /// Two destinations, or one.
    fn pair(&mut self, of: &Instruction, to: &Operand) -> Result<(Register, Option<Register>), PtxError> {
        let Operand::Pair(first, second) = to else { return Ok((self.destination(of, to)?.0, None)) };
        Ok((self.destination(of, first)?.0, Some(self.destination(of, second)?.0)))
    }

    fn together(&mut self, members: Option<Source>, what: Together) {
        self.cycles = WARP_CYCLES;
        self.emit(Op::Together { members, what: Box::new(what) });
    }
}

/// `activemask`.
pub(super) fn active_mask(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to] = operands(of)?;
    let (to, _) = body.destination(of, to)?;
    body.emit(Op::ActiveMask(to));
    Ok(())
}

/// `bar` and `barrier`, of blocks and of warps.
pub(super) fn barrier(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    body.cycles = WARP_CYCLES;
    if words.take("warp") {
        words.take("sync");
        words.end()?;
        let [members] = operands(of)?;
        let members = body.source(of, members, Type::B32)?;
        body.together(Some(members), Together::Meet);
        return Ok(());
    }
    if words.take("cluster") {
        return Err(of.refused("clusters are not simulated"));
    }
    words.take("cta");
    words.take("aligned");
    let how =
        words.need("operation", |word| ["sync", "arrive", "red"].into_iter().find(|known| *known == word))?;
    if how != "red" {
        words.end()?;
        let (number, threads) = match of.operands.as_slice() {
            [number] if how == "sync" => (number, None),
            [number, threads] => (number, Some(threads)),
            _ => return Err(of.refused("it has another number of operands than is simulated")),
        };
        let number = body.source(of, number, Type::U32)?;
        let threads = threads.map(|threads| body.source(of, threads, Type::U32)).transpose()?;
        let barrier = Barrier { number, threads, waits: how == "sync", census: None };
        body.emit(Op::Barrier(Box::new(barrier)));
        return Ok(());
    }
    let census = words.need("operation", |word| {
        Some(match word {
            "popc" => Census::Count,
            "and" => Census::And,
            "or" => Census::Or,
            _ => return None,
        })
    })?;
    words.ty()?;
    words.end()?;
    let (to, number, threads, value) = match of.operands.as_slice() {
        [to, number, value] => (to, number, None, value),
        [to, number, threads, value] => (to, number, Some(threads), value),
        _ => return Err(of.refused("it has another number of operands than is simulated")),
    };
    let (to, _) = body.destination(of, to)?;
    let number = body.source(of, number, Type::U32)?;
    let threads = threads.map(|threads| body.source(of, threads, Type::U32)).transpose()?;
    let value = body.source(of, value, Type::Pred)?;
    let barrier = Barrier { number, threads, waits: true, census: Some((census, value, to)) };
    body.emit(Op::Barrier(Box::new(barrier)));
    Ok(())
}

/// `shfl`.
pub(super) fn shuffle(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    let has_members = words.take("sync");
    let how = words.need("mode", |word| {
        Some(match word {
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            "idx" => Shuffle::Index,
            _ => return None,
        })
    })?;
    let ty = words.ty()?;
    words.end()?;
    let (to, value, by, limits, members) = match of.operands.as_slice() {
        [to, value, by, limits] if !has_members => (to, value, by, limits, None),
        [to, value, by, limits, members] if has_members => (to, value, by, limits, Some(members)),
        _ => return Err(of.refused("it has another number of operands than is simulated")),
    };
    let (to, inside) = body.pair(of, to)?;
    let value = body.source(of, value, ty)?;
    let (by, limits) = (body.source(of, by, Type::U32)?, body.source(of, limits, Type::U32)?);
    let members = members.map(|members| body.source(of, members, Type::B32)).transpose()?;
    body.together(members, Together::Shuffle { how, to, inside, value, by, limits });
    Ok(())
}

/// `vote`.
pub(super) fn vote(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    let has_members = words.take("sync");
    let how = words.need("mode", |word| {
        Some(match word {
            "all" => Vote::All,
            "any" => Vote::Any,
            "uni" => Vote::Uniform,
            "ballot" => Vote::Ballot,
            _ => return None,
        })
    })?;
    words.ty()?;
    words.end()?;
    let (to, value, members) = match of.operands.as_slice() {
        [to, value] if !has_members => (to, value, None),
        [to, value, members] if has_members => (to, value, Some(members)),
        _ => return Err(of.refused("it has another number of operands than is simulated")),
    };
    let (to, _) = body.destination(of, to)?;
    let value = body.source(of, value, Type::Pred)?;
    let members = members.map(|members| body.source(of, members, Type::B32)).transpose()?;
    body.together(members, Together::Vote { how, to, value });
    Ok(())
}

/// `match`.
pub(super) fn matching(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, value, members] = operands(of)?;
    let mut words = Words::new(of);
    words.take("sync");
    let any = words.need("mode", |word| match word {
        "any" => Some(true),
        "all" => Some(false),
        _ => None,
    })?;
    let ty = words.ty()?;
    words.end()?;
    let (to, all) = body.pair(of, to)?;
    let value = body.source(of, value, ty)?;
    let members = body.source(of, members, Type::B32)?;
    let what = if any { Together::MatchAny { to, value } } else { Together::MatchAll { to, all, value } };
    body.together(Some(members), what);
    Ok(())
}

/// `redux`.
pub(super) fn reduce(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, value, members] = operands(of)?;
    let mut words = Words::new(of);
    words.take("sync");
    let how = words.need("operation", |word| {
        Some(match word {
            "add" => Change::Add,
            "min" => Change::Min,
            "max" => Change::Max,
            "and" => Change::And,
            "or" => Change::Or,
            "xor" => Change::Xor,
            _ => return None,
        })
    })?;
    let ty = words.ty()?;
    words.end()?;
    if ty.is_float() || ty.bits() != 32 {
        return Err(of.refused(format!("it is not simulated for the type .{ty}")));
    }
    let (to, _) = body.destination(of, to)?;
    let value = body.source(of, value, ty)?;
    let members = body.source(of, members, Type::B32)?;
    body.together(Some(members), Together::Reduce { how, ty, to, value });
    Ok(())
}

/// `elect`.
pub(super) fn elect(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to, members] = operands(of)?;
    let mut words = Words::new(of);
    words.take("sync");
    words.end()?;
    let (leader, Some(chosen)) = body.pair(of, to)? else {
        return Err(of.refused("it needs two destinations"));
    };
    let members = body.source(of, members, Type::B32)?;
    body.together(Some(members), Together::Elect { leader, chosen });
    Ok(())
}
