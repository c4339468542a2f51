//! Jumps, ends, and what has nothing to do here.

use super::body::{Body, Done, Lower, operands};
use super::words::Words;
use crate::kernel::Op;
use partita_ptx::Type;
use partita_ptx::module::{Instruction, Operand};

/// `bra`.
pub(super) fn branch(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [to] = operands(of)?;
    let mut words = Words::new(of);
    words.take("uni");
    words.end()?;
    let label = match to {
        Operand::Name(name) => {
            body.label(name).ok_or_else(|| of.refused(format!("there is no label '{name}'")))?
        }
        _ => return Err(of.refused("a label is expected")),
    };
    body.emit(Op::Branch(label));
    Ok(())
}

/// `brx.idx`.
pub(super) fn branch_indexed(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [index, list] = operands(of)?;
    let mut words = Words::new(of);
    words.take("uni");
    if !words.take("idx") {
        return Err(of.refused("only .idx is simulated"));
    }
    words.end()?;
    let index = body.source(of, index, Type::U32)?;
    let names = match list {
        Operand::Name(name) => body.targets(name),
        _ => None,
    };
    let names = names.ok_or_else(|| of.refused("the label of a list of targets is expected"))?;
    let targets = names
        .iter()
        .map(|name| body.label(name).ok_or_else(|| of.refused(format!("there is no label '{name}'"))));
    let targets = targets.collect::<Result<Vec<u32>, _>>()?;
    body.emit(Op::BranchIndexed { targets, index });
    Ok(())
}

/// `ret`, `exit` and `trap`.
pub(super) fn end(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [] = operands(of)?;
    let mut words = Words::new(of);
    words.take("uni");
    words.end()?;
    body.emit(match of.opcode.as_str() {
        "ret" => Op::Return,
        "exit" => Op::Exit,
        _ => Op::Trap,
    });
    Ok(())
}

/// Hints.
pub(super) fn nothing(body: &mut Body<'_, '_>, _: &Instruction) -> Done {
    body.emit(Op::Nothing);
    Ok(())
}

/// `membar` and `fence`: accesses are in program order.
pub(super) fn fence(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    if of.modifiers.iter().any(|word| word.contains("tensormap") || word.contains("mbarrier")) {
        return Err(of.refused("the tensor memory accelerator is not simulated"));
    }
    body.cycles = 32;
    body.emit(Op::Nothing);
    Ok(())
}

/// `nanosleep`.
pub(super) fn sleep(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let [time] = operands(of)?;
    let mut words = Words::new(of);
    let ty = words.ty()?;
    words.end()?;
    let time = body.source(of, time, ty)?;
    body.emit(Op::Sleep(time));
    Ok(())
}
