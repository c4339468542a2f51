//! Statements of functions.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::vec::Vec;

use super::Parser;
use crate::error::PtxError;
use crate::module::{Instruction, Space, Statement};
use crate::token::Kind;

impl Parser<'_> {
    pub(super) fn statement(&mut self, statements: &mut Vec<Statement>) -> Result<(), PtxError> {
        match self.kind() {
            Kind::Mark('{') => {
                self.step();
                statements.push(Statement::Block(self.statements()?));
            }
            // An empty statement.
            Kind::Mark(';') => self.step(),
            Kind::Dot(word) if word == "reg" => statements.push(Statement::Registers(self.registers()?)),
            Kind::Dot(word) if matches!(word.as_str(), "loc" | "pragma" | "file") => {
                statements.push(Statement::Directive(self.directive()?));
            }
            Kind::Dot(word) if Space::ALL.iter().any(|(_, space)| space == word) => {
                let variables = self.variables(None)?;
                statements.extend(variables.into_iter().map(Statement::Variable));
            }
            Kind::Dot(_) => return self.error("this directive has no meaning in a function"),
            Kind::Name(_) if *self.kind_after(1) == Kind::Mark(':') => statements.push(self.label()?),
            Kind::Name(_) | Kind::Mark('@') => {
                statements.push(Statement::Instruction(self.instruction()?));
            }
            _ => return self.error("a statement is expected here"),
        }
        Ok(())
    }

    fn label(&mut self) -> Result<Statement, PtxError> {
        let label = self.name()?;
        self.expect_mark(':')?;
        if let Some(kind) = self.dot().filter(|word| matches!(*word, "branchtargets" | "calltargets")) {
            let kind = kind.to_owned();
            self.step();
            let names = self.items(';', Self::name)?;
            return Ok(Statement::Targets { label, kind, names });
        }
        if self.take_dot("callprototype") {
            let returns = if self.is_mark('(') { self.parameters()? } else { Vec::new() };
            self.name()?;
            let params = if self.is_mark('(') { self.parameters()? } else { Vec::new() };
            let mut notes = Vec::new();
            while !self.take_mark(';') {
                let Some(note) = self.dot() else { return self.error("';' is expected here") };
                notes.push(format!(".{note}"));
                self.step();
            }
            return Ok(Statement::Prototype { label, returns, params, notes });
        }
        Ok(Statement::Label(label))
    }

    fn instruction(&mut self) -> Result<Instruction, PtxError> {
        let at = self.place();
        let guard = if self.take_mark('@') {
            let when = !self.take_mark('!');
            Some((self.name()?, when))
        } else {
            None
        };
        let opcode = self.name()?;
        let mut modifiers = Vec::new();
        while let Some(modifier) = self.dot() {
            modifiers.push(modifier.to_owned());
            self.step();
        }
        let mut operands = Vec::new();
        if !self.take_mark(';') {
            operands = self.items(';', Self::operand)?;
        }
        Ok(Instruction { at, guard, opcode, modifiers, operands })
    }
}
