//! The statements of one function.

use super::scope::{Name, Scope};
use super::{FRAME_BYTES_MAX, Lowering};
use crate::kernel::{Callable, Formal, Op, Register, Source, Special, Step};
use crate::lanes::{Map, ones};
use crate::math::bits;
use partita_ptx::PtxError;
use partita_ptx::Type;
use partita_ptx::module::{Function, Instruction, Operand, Space, Statement, Variable};

/// Errors about an instruction.
pub(super) trait Lower {
    /// An error with the instruction's place and name.
    fn refused(&self, reason: impl Into<String>) -> PtxError;
}

impl Lower for Instruction {
    fn refused(&self, reason: impl Into<String>) -> PtxError {
        PtxError::new(self.at, self.name(), reason)
    }
}

pub(super) type Done = Result<(), PtxError>;

/// Lowers an instruction.
pub(super) type Lowered = for<'l, 'm> fn(&mut Body<'l, 'm>, &Instruction) -> Done;

/// A function in the making.
pub(super) struct Body<'l, 'm> {
    pub(super) kernel: &'l mut Lowering<'m>,
    pub(super) is_entry: bool,
    lower: Lowered,
    scopes: Vec<Scope>,
    /// The step of each label.
    labels: Vec<Option<u32>>,
    registers: Register,
    frame: u64,
    /// Holds the carry of `add.cc` and the like.
    carry: Option<Register>,
    /// Cycles of the present instruction.
    pub(super) cycles: u16,
}

impl<'l, 'm> Body<'l, 'm> {
    /// Lowers a function, each instruction by `lower`.
    pub(super) fn lower(
        kernel: &'l mut Lowering<'m>,
        function: &'m Function,
        lower: Lowered,
    ) -> Result<Callable, PtxError> {
        let entry = kernel.steps.len();
        let wrong = |reason: &str| PtxError::new(function.at, function.name.clone(), reason);
        let Some(statements) = &function.body else {
            return Err(wrong("the function has no body: another module defines it"));
        };
        let mut body = Body {
            kernel,
            is_entry: function.is_entry,
            lower,
            scopes: vec![Scope::default()],
            labels: Vec::new(),
            registers: 0,
            frame: 0,
            carry: None,
            cycles: 0,
        };
        let (mut params, mut returns) = (Vec::new(), Vec::new());
        if function.is_entry {
            let layout = function.layout().filter(|layout| {
                layout.last().is_none_or(|(at, bytes)| at.saturating_add(*bytes) <= 32 << 10)
            });
            let layout = layout.ok_or_else(|| wrong("its parameters have more than 32 KiB"))?;
            for (param, (at, _)) in function.params.iter().zip(layout) {
                body.scopes[0].names.insert(param.name.clone(), Name::Param { at });
            }
        } else {
            for (list, formals) in [(&function.params, &mut params), (&function.returns, &mut returns)] {
                for variable in list {
                    let formal = body.formal(variable)?;
                    body.scopes[0].names.insert(variable.name.clone(), Name::of(formal, variable.ty));
                    formals.push(formal);
                }
            }
        }
        body.block(statements)?;
        body.emit(Op::Return);
        let last = function.at;
        body.kernel.places.resize(body.kernel.steps.len(), last);
        body.place_labels(entry)?;
        Ok(Callable {
            entry: entry as u32,
            registers: body.registers,
            frame_bytes: body.frame.next_multiple_of(16) as u32,
            params,
            returns,
        })
    }

    fn formal(&mut self, variable: &Variable) -> Result<Formal, PtxError> {
        let bytes = variable.bytes().unwrap_or(u64::MAX);
        if variable.space == Space::Reg {
            return Ok(Formal::Register { register: self.temporary(), bytes: bytes.min(8) as u32 });
        }
        let offset = self.frame_room(variable)?;
        Ok(Formal::Frame { offset, bytes: bytes as u32 })
    }

    /// Room for a variable in the frame.
    fn frame_room(&mut self, variable: &Variable) -> Result<u32, PtxError> {
        let at = self.frame.next_multiple_of(u64::from(variable.alignment()));
        let end = variable.bytes().and_then(|bytes| at.checked_add(bytes));
        let end = end.filter(|end| *end <= FRAME_BYTES_MAX);
        self.frame = end.ok_or_else(|| {
            PtxError::new(
                variable.at,
                variable.name.clone(),
                "the function's variables have more than 512 KiB",
            )
        })?;
        Ok(at as u32)
    }

    fn place_labels(&mut self, entry: usize) -> Done {
        let labels = &self.labels;
        for step in &mut self.kernel.steps[entry..] {
            match &mut step.op {
                Op::Branch(label) => *label = labels[*label as usize].unwrap_or_default(),
                Op::BranchIndexed { targets, .. } => {
                    for target in targets {
                        *target = labels[*target as usize].unwrap_or_default();
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn block(&mut self, statements: &'m [Statement]) -> Done {
        let mut scope = Scope::default();
        for statement in statements {
            match statement {
                Statement::Label(name) => {
                    scope.labels.insert(name.clone(), self.labels.len() as u32);
                    self.labels.push(None);
                }
                Statement::Targets { label, names, .. } => {
                    scope.targets.insert(label.clone(), names.clone());
                }
                _ => {}
            }
        }
        self.scopes.push(scope);
        for statement in statements {
            self.statement(statement)?;
        }
        self.scopes.pop();
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    fn statement(&mut self, statement: &'m Statement) -> Done {
        match statement {
            Statement::Label(name) => {
                if let Some(label) = self.scope().labels.get(name).copied() {
                    self.labels[label as usize] = Some(self.kernel.steps.len() as u32);
                }
            }
            Statement::Block(statements) => self.block(statements)?,
            Statement::Registers(registers) => {
                let mut next = self.registers;
                self.scope().add(registers, &mut next);
                self.registers = next;
            }
            Statement::Variable(variable) => self.variable(variable)?,
            Statement::Instruction(instruction) => self.instruction(instruction)?,
            Statement::Targets { .. } | Statement::Prototype { .. } | Statement::Directive(_) => {}
        }
        Ok(())
    }

    fn variable(&mut self, variable: &Variable) -> Done {
        let wrong = |reason: String| PtxError::new(variable.at, variable.name.clone(), reason);
        let name = match variable.space {
            Space::Local | Space::Param => {
                let offset = self.frame_room(variable)?;
                Name::Frame { offset, bytes: variable.bytes().unwrap_or(0) as u32 }
            }
            Space::Shared => {
                let room = self.kernel.shared_room(variable.bytes(), variable.alignment());
                Name::Shared { at: room.map_err(wrong)? }
            }
            _ => return Err(wrong("a variable of a function is in .local, .shared or .param".to_owned())),
        };
        self.scope().names.insert(variable.name.clone(), name);
        Ok(())
    }

    fn instruction(&mut self, instruction: &'m Instruction) -> Done {
        let start = self.kernel.steps.len();
        let guard = match &instruction.guard {
            None => None,
            Some((name, when)) => {
                let register = self.register(name).ok_or_else(|| {
                    PtxError::new(instruction.at, name.clone(), "the guard is no declared register")
                })?;
                Some((register, *when))
            }
        };
        self.cycles = 4;
        // Several steps have a copy of the guard, which one of them may change.
        let copy = guard.map(|(register, _)| {
            let copy = self.temporary();
            self.map1(bits::copy, copy, Source::Register(register));
            copy
        });
        (self.lower)(self, instruction)?;
        if let (Some((register, when)), Some(copy)) = (guard, copy) {
            if self.kernel.steps.len() == start + 2 {
                self.kernel.steps.remove(start);
                self.kernel.steps[start].guard = Some((register, when));
            } else {
                for step in &mut self.kernel.steps[start + 1..] {
                    step.guard = Some((copy, when));
                }
            }
        }
        if let Some(step) = self.kernel.steps.get_mut(start) {
            step.cycles = self.cycles;
        }
        let end = self.kernel.steps.len();
        self.kernel.places.resize(start, instruction.at);
        self.kernel.places.resize(end, instruction.at);
        Ok(())
    }

    // ---- steps ----

    pub(super) fn emit(&mut self, op: Op) {
        self.kernel.steps.push(Step { guard: None, cycles: 0, op });
    }

    pub(super) fn temporary(&mut self) -> Register {
        self.registers += 1;
        self.registers - 1
    }

    /// The register of the carry.
    pub(super) fn carry(&mut self) -> Register {
        if let Some(carry) = self.carry {
            return carry;
        }
        let carry = self.temporary();
        self.carry = Some(carry);
        carry
    }

    pub(super) fn map1(&mut self, map: crate::lanes::Map1, to: Register, a: Source) {
        self.emit(Op::Map { map: Map::One(map), to, of: [a; 3] });
    }

    pub(super) fn map2(&mut self, map: crate::lanes::Map2, to: Register, a: Source, b: Source) {
        self.emit(Op::Map { map: Map::Two(map), to, of: [a, b, b] });
    }

    pub(super) fn map3(&mut self, map: crate::lanes::Map3, to: Register, of: [Source; 3]) {
        self.emit(Op::Map { map: Map::Three(map), to, of });
    }

    // ---- names ----

    pub(super) fn find(&mut self, name: &str) -> Option<Name> {
        let mut next = self.registers;
        let found = self.scopes.iter_mut().rev().find_map(|scope| scope.find(name, &mut next));
        self.registers = next;
        found
    }

    /// The register of a name or of a vector's component.
    pub(super) fn register(&mut self, name: &str) -> Option<Register> {
        self.typed_register(name).map(|(register, _)| register)
    }

    pub(super) fn typed_register(&mut self, name: &str) -> Option<(Register, Type)> {
        if let Some(Name::Register { first, ty, elements: 1 }) = self.find(name) {
            return Some((first, ty));
        }
        let (vector, component) = name.split_once('.')?;
        let component = "xyzw".find(component).or_else(|| "rgba".find(component))?;
        match self.find(vector)? {
            Name::Register { first, ty, elements } if (component as u32) < elements => {
                Some((first + component as u32, ty))
            }
            _ => None,
        }
    }

    /// The label that a name stands for.
    pub(super) fn label(&self, name: &str) -> Option<u32> {
        self.scopes.iter().rev().find_map(|scope| scope.labels.get(name).copied())
    }

    /// The list of targets of a label.
    pub(super) fn targets(&self, name: &str) -> Option<Vec<String>> {
        self.scopes.iter().rev().find_map(|scope| scope.targets.get(name).cloned())
    }

    // ---- operands ----

    /// The value of an operand for a type.
    pub(super) fn source(
        &mut self,
        of: &Instruction,
        operand: &Operand,
        ty: Type,
    ) -> Result<Source, PtxError> {
        let bits = ones(ty.bits());
        let is_float = ty.is_float();
        Ok(match operand {
            Operand::Integer(_) if is_float => {
                return Err(of.refused("an integer stands where a floating-point number is expected"));
            }
            Operand::Integer(value) => self.kernel.constant(*value as u64 & bits),
            Operand::Single(value) if ty == Type::F64 => {
                self.kernel.constant(f64::from(f32::from_bits(*value)).to_bits())
            }
            Operand::Single(value) => self.kernel.constant(u64::from(*value) & bits),
            Operand::Double(value) if ty == Type::F32 => {
                self.kernel.constant(u64::from((f64::from_bits(*value) as f32).to_bits()))
            }
            Operand::Double(value) => self.kernel.constant(*value & bits),
            Operand::Name(name) => match self.register(name) {
                Some(register) => Source::Register(register),
                None => self.named(of, name, 0)?.1,
            },
            Operand::Offset(name, offset) => self.named(of, name, *offset)?.1,
            Operand::Not(name) => {
                let register = self.register(name);
                let register = register.ok_or_else(|| of.refused(format!("'{name}' is not declared")))?;
                let negated = self.temporary();
                let map = bits::cnot(Type::U8).ok_or_else(|| of.refused("no negation"))?;
                self.map1(map, negated, Source::Register(register));
                Source::Register(negated)
            }
            _ => return Err(of.refused("this operand is not a value")),
        })
    }

    /// The address or value of a name that is no register, and the space of the address.
    pub(super) fn named(
        &mut self,
        of: &Instruction,
        name: &str,
        offset: i64,
    ) -> Result<(Option<Space>, Source), PtxError> {
        if let Some((_, what, _)) = Special::ALL.iter().find(|(known, _, _)| *known == name) {
            let to = self.temporary();
            self.emit(Op::Special { what: *what, to });
            return Ok((None, Source::Register(to)));
        }
        if name == "WARP_SZ" {
            return Ok((None, self.kernel.constant(32)));
        }
        match self.find(name) {
            Some(Name::Frame { offset: at, .. }) => {
                let to = self.temporary();
                self.emit(Op::Frame { to, offset: at.wrapping_add(offset as u32) });
                return Ok((Some(Space::Local), Source::Register(to)));
            }
            Some(Name::Shared { at }) => {
                let at = self.kernel.constant(at.wrapping_add_signed(offset));
                return Ok((Some(Space::Shared), at));
            }
            Some(Name::Param { at }) => {
                let at = self.kernel.constant(at.wrapping_add_signed(offset));
                return Ok((Some(Space::Param), at));
            }
            Some(Name::Register { .. }) => {
                return Err(of.refused(format!("'{name}' is a vector, and one value is expected")));
            }
            None => {}
        }
        if let Some(found) = self.kernel.variable(name, offset) {
            return found.map(|(space, at)| (Some(space), at)).map_err(|reason| of.refused(reason));
        }
        if let Some(address) = super::function_address(self.kernel.module, name) {
            return Ok((None, self.kernel.constant(address)));
        }
        Err(of.refused(format!("'{name}' is not declared")))
    }

    /// The register that an operand names as a destination, with its type; `_` is one that nobody
    /// reads.
    pub(super) fn destination(
        &mut self,
        of: &Instruction,
        operand: &Operand,
    ) -> Result<(Register, Type), PtxError> {
        let Operand::Name(name) = operand else {
            return Err(of.refused("a register is expected as its destination"));
        };
        if name == "_" {
            return Ok((self.temporary(), Type::B64));
        }
        self.typed_register(name).ok_or_else(|| of.refused(format!("'{name}' is no declared register")))
    }
}

/// The operands of an instruction, which must be so many.
pub(super) fn operands<const N: usize>(of: &Instruction) -> Result<&[Operand; N], PtxError> {
    let found = of.operands.len();
    of.operands
        .as_slice()
        .try_into()
        .map_err(|_| of.refused(format!("it has {found} operands, and {N} are simulated")))
}
