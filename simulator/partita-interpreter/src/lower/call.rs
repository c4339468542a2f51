//! Calls of functions.

use super::body::{Body, Done, Lower};
use super::scope::Name;
use super::words::Words;
use crate::kernel::{Call, Callee, Op, Passed, Source};
use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::{Instruction, Operand};

/// `call`.
pub(super) fn call(body: &mut Body<'_, '_>, of: &Instruction) -> Done {
    let mut words = Words::new(of);
    words.take("uni");
    words.end()?;
    let (results, rest): (&[Operand], _) = match of.operands.split_first() {
        Some((Operand::Group(results), rest)) => (results, rest),
        _ => (&[], of.operands.as_slice()),
    };
    let Some((Operand::Name(callee), rest)) = rest.split_first() else {
        return Err(of.refused("the name of a function is expected"));
    };
    let arguments: &[Operand] = match rest.first() {
        Some(Operand::Group(arguments)) => arguments,
        _ => &[],
    };
    body.cycles = 16;
    if callee == "__assertfail" {
        body.emit(Op::FailAssertion);
        return Ok(());
    }
    let register = body.register(callee);
    let (to, formals) = if let Some(register) = register {
        body.kernel.calls_addresses = true;
        (Callee::Indirect(Source::Register(register)), None)
    } else {
        let found = body.kernel.function(callee);
        let (number, function) = found.ok_or_else(|| of.refused(format!("'{callee}' is not declared")))?;
        if function.body.is_none() {
            return Err(of.refused(format!("'{callee}' is a function of the system, which is not simulated")));
        }
        if (function.params.len(), function.returns.len()) != (arguments.len(), results.len()) {
            return Err(of.refused(format!("'{callee}' has other parameters or results")));
        }
        (Callee::Direct(body.kernel.want(number, function)), Some(function))
    };
    let mut passed = Vec::new();
    for (index, argument) in arguments.iter().enumerate() {
        let ty = formals.map_or(Type::B64, |function| function.params[index].ty);
        passed.push(body.passed(of, argument, ty)?);
    }
    let mut returned = Vec::new();
    for result in results {
        let place = body.passed(of, result, Type::B64)?;
        if matches!(place, Passed::Value(Source::Constant(_), _)) {
            return Err(of.refused("a result needs a register or a variable in .param"));
        }
        returned.push(place);
    }
    body.emit(Op::Call(Box::new(Call { to, arguments: passed, results: returned })));
    Ok(())
}

impl Body<'_, '_> {
    /// What an argument or a result of a call names.
    fn passed(&mut self, of: &Instruction, operand: &Operand, ty: Type) -> Result<Passed, PtxError> {
        if let Operand::Name(name) = operand
            && let Some(Name::Frame { offset, bytes }) = self.find(name)
        {
            return Ok(Passed::Frame { offset, bytes });
        }
        let bytes = match operand {
            Operand::Name(name) => self.typed_register(name).map_or(ty, |(_, ty)| ty).bytes(),
            _ => ty.bytes(),
        };
        Ok(Passed::Value(self.source(of, operand, ty)?, bytes.min(8)))
    }
}
