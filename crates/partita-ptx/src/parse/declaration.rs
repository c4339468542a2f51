//! Declarations of variables, parameters and registers.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::Parser;
use crate::error::PtxError;
use crate::module::{Init, Linkage, Operand, Registers, Space, Variable};
use crate::token::Kind;
use crate::types::Type;

impl Parser<'_> {
    /// Parameters in parentheses.
    pub(super) fn parameters(&mut self) -> Result<Vec<Variable>, PtxError> {
        self.expect_mark('(')?;
        self.items(')', |parser| {
            let mut variable = parser.declaration(None)?;
            if !matches!(variable.space, Space::Param | Space::Reg) {
                return parser.error("a parameter is in .param or .reg");
            }
            variable.dims = parser.dims()?;
            Ok(variable)
        })
    }

    /// One or more variables and the semicolon.
    pub(super) fn variables(&mut self, linkage: Option<Linkage>) -> Result<Vec<Variable>, PtxError> {
        let mut variable = self.declaration(linkage)?;
        let mut variables = Vec::new();
        loop {
            variable.dims = self.dims()?;
            if self.take_mark('=') {
                variable.init = Some(self.init()?);
            }
            let bare = Variable { dims: Vec::new(), init: None, ..variable.clone() };
            variables.push(variable);
            if !self.take_mark(',') {
                self.expect_mark(';')?;
                return Ok(variables);
            }
            variable = Variable { at: self.place(), name: self.name()?, ..bare };
        }
    }

    fn dims(&mut self) -> Result<Vec<Option<u64>>, PtxError> {
        let mut dims = Vec::new();
        while self.take_mark('[') {
            let open = self.is_mark(']');
            dims.push(if open { None } else { Some(self.integer()?) });
            self.expect_mark(']')?;
        }
        Ok(dims)
    }

    /// Space, alignment, type and name.
    fn declaration(&mut self, linkage: Option<Linkage>) -> Result<Variable, PtxError> {
        let found = Space::ALL.iter().find(|(_, word)| self.dot() == Some(word));
        let Some((space, _)) = found.copied() else {
            return self.error("a state space like .global is expected here");
        };
        self.step();
        let (mut align, mut vector, mut ty) = (None, 1, None);
        let (mut attributes, mut pointer) = (Vec::new(), Vec::new());
        while let Some(word) = self.dot().map(str::to_owned) {
            if word == "attribute" {
                attributes.push(self.attribute()?);
                continue;
            }
            if word == "ptr" || !pointer.is_empty() {
                pointer.push(format!(".{word}"));
                self.step();
                if word == "align" {
                    pointer.push(self.integer()?.to_string());
                }
                continue;
            }
            match word.as_str() {
                "align" => {
                    self.step();
                    let number = self.small()?;
                    if !number.is_power_of_two() || number > 1 << 16 {
                        self.at -= 1;
                        return self.error("an alignment is a power of two up to 65536");
                    }
                    align = Some(number);
                    continue;
                }
                "v2" => vector = 2,
                "v4" => vector = 4,
                "v8" => vector = 8,
                word if ty.is_none() && Type::of(word).is_some() => ty = Type::of(word),
                _ => return self.error("this word has no meaning in a declaration"),
            }
            self.step();
        }
        let Some(ty) = ty else { return self.error("a type is expected here") };
        let at = self.place();
        let name = self.name()?;
        Ok(Variable {
            at,
            linkage,
            space,
            attributes,
            pointer,
            align,
            vector,
            ty,
            name,
            dims: Vec::new(),
            init: None,
        })
    }

    /// `.attribute(.managed)`, as written.
    fn attribute(&mut self) -> Result<String, PtxError> {
        self.step();
        self.expect_mark('(')?;
        let mut words = Vec::new();
        while !self.take_mark(')') {
            if matches!(self.kind(), Kind::End | Kind::Mark(';')) {
                return self.error("the attribute has no end");
            }
            words.push(self.source(self.token()));
            self.step();
        }
        Ok(format!(".attribute({})", words.join(" ")))
    }

    fn init(&mut self) -> Result<Init, PtxError> {
        if self.take_mark('{') {
            return self.deeper(|parser| parser.items('}', Self::init)).map(Init::List);
        }
        let generic =
            *self.kind() == Kind::Name("generic".to_owned()) && *self.kind_after(1) == Kind::Mark('(');
        if generic {
            self.step();
            self.step();
            let name = self.name()?;
            self.expect_mark(')')?;
            let offset = self.offset()?;
            return Ok(Init::Address { name, offset, generic });
        }
        match self.simple()? {
            Operand::Name(name) => Ok(Init::Address { name, offset: 0, generic: false }),
            Operand::Offset(name, offset) => Ok(Init::Address { name, offset, generic: false }),
            value @ (Operand::Integer(_) | Operand::Single(_) | Operand::Double(_)) => Ok(Init::Value(value)),
            _ => self.error("the initial value before this place is neither a number nor an address"),
        }
    }

    /// Registers after `.reg`.
    pub(super) fn registers(&mut self) -> Result<Registers, PtxError> {
        self.step();
        let (mut vector, mut ty) = (1, None);
        while let Some(word) = self.dot() {
            match word {
                "v2" => vector = 2,
                "v4" => vector = 4,
                word if ty.is_none() && Type::of(word).is_some() => ty = Type::of(word),
                _ => return self.error("this word has no meaning in a declaration of registers"),
            }
            self.step();
        }
        let Some(ty) = ty else { return self.error("a type is expected here") };
        let mut names = Vec::new();
        loop {
            let name = self.name()?;
            let count = if self.take_mark('<') {
                let count = self.small()?;
                self.expect_mark('>')?;
                Some(count)
            } else {
                None
            };
            names.push((name, count));
            if !self.take_mark(',') {
                self.expect_mark(';')?;
                return Ok(Registers { vector, ty, names });
            }
        }
    }
}
