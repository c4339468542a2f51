//! Operands of instructions.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use super::Parser;
use crate::error::PtxError;
use crate::module::Operand;
use crate::token::Kind;

impl Parser<'_> {
    /// An operand, or two with a bar between them.
    pub(super) fn operand(&mut self) -> Result<Operand, PtxError> {
        let first = self.single_operand()?;
        if !self.take_mark('|') {
            return Ok(first);
        }
        let second = self.single_operand()?;
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    fn single_operand(&mut self) -> Result<Operand, PtxError> {
        let (close, enclosed) = match self.kind() {
            Kind::Mark('[') => (']', Operand::Memory as fn(_) -> _),
            Kind::Mark('{') => ('}', Operand::Vector as fn(_) -> _),
            Kind::Mark('(') => (')', Operand::Group as fn(_) -> _),
            Kind::Mark('!') => {
                self.step();
                return self.dotted_name().map(Operand::Not);
            }
            _ => return self.simple(),
        };
        self.step();
        self.deeper(|parser| parser.items(close, Self::operand)).map(enclosed)
    }

    /// A number, or a name with or without an offset.
    pub(super) fn simple(&mut self) -> Result<Operand, PtxError> {
        let negative = self.take_mark('-');
        let number = match *self.kind() {
            Kind::Integer(value) if negative => Operand::Integer(-i128::from(value)),
            Kind::Integer(value) => Operand::Integer(i128::from(value)),
            Kind::Single(bits) => Operand::Single(bits ^ u32::from(negative) << 31),
            Kind::Double(bits) => Operand::Double(bits ^ u64::from(negative) << 63),
            Kind::Name(_) if !negative => {
                let name = self.dotted_name()?;
                let offset = self.offset()?;
                return Ok(if offset == 0 { Operand::Name(name) } else { Operand::Offset(name, offset) });
            }
            _ => return self.error("an operand is expected here"),
        };
        self.step();
        Ok(number)
    }

    /// A name, with the component of a vector: `%tid.x`.
    fn dotted_name(&mut self) -> Result<String, PtxError> {
        let mut end = self.token().end;
        let mut name = self.name()?;
        while let Kind::Dot(component) = self.kind()
            && self.token().start == end
        {
            name = format!("{name}.{component}");
            end = self.token().end;
            self.step();
        }
        Ok(name)
    }

    /// `+4`, `-4` or `+-4`; 0 if none follows.
    pub(super) fn offset(&mut self) -> Result<i64, PtxError> {
        let plus = self.take_mark('+');
        let minus = self.take_mark('-');
        if !plus && !minus {
            return Ok(0);
        }
        let before = self.at;
        let value = self.integer()?;
        let value = if minus { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() };
        value.map_or_else(
            || {
                self.at = before;
                self.error("the offset is out of range")
            },
            Ok,
        )
    }
}
