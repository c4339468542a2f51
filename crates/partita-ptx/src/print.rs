//! PTX text of a module. What it prints parses to the same module, up to places in the text.

use core::fmt::{self, Display, Formatter};

use crate::module::{
    Directive, Function, Init, Instruction, Item, Linkage, Module, Operand, Registers, Space, Statement,
    Variable,
};

fn word<T: PartialEq + Copy>(of: T, all: &[(T, &'static str)]) -> &'static str {
    all.iter().find(|(known, _)| *known == of).map_or("", |(_, word)| word)
}

/// Items with commas between them.
fn list<T: Display>(f: &mut Formatter<'_>, items: &[T]) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

fn linkage(f: &mut Formatter<'_>, of: Option<Linkage>) -> fmt::Result {
    of.map_or(Ok(()), |of| write!(f, ".{} ", word(of, &Linkage::ALL)))
}

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, ".version {}.{}", self.version.0, self.version.1)?;
        writeln!(f, ".target {}", self.target.join(", "))?;
        writeln!(f, ".address_size {}", self.address_size)?;
        for item in &self.items {
            match item {
                Item::Variable(variable) => writeln!(f, "{variable};")?,
                Item::Function(function) => write!(f, "{function}")?,
                Item::Directive(directive) => writeln!(f, "{directive}")?,
                Item::Section { name, text } => writeln!(f, ".section {name}\n{{{text}}}")?,
            }
        }
        Ok(())
    }
}

impl Display for Variable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        linkage(f, self.linkage)?;
        write!(f, ".{}", word(self.space, &Space::ALL))?;
        for attribute in &self.attributes {
            write!(f, " {attribute}")?;
        }
        if let Some(align) = self.align {
            write!(f, " .align {align}")?;
        }
        if self.vector > 1 {
            write!(f, " .v{}", self.vector)?;
        }
        write!(f, " .{}", self.ty)?;
        for word in &self.pointer {
            write!(f, " {word}")?;
        }
        write!(f, " {}", self.name)?;
        for dim in &self.dims {
            match dim {
                Some(dim) => write!(f, "[{dim}]")?,
                None => f.write_str("[]")?,
            }
        }
        self.init.as_ref().map_or(Ok(()), |init| write!(f, " = {init}"))
    }
}

impl Display for Init {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Address { name, offset, generic } => {
                if *generic {
                    write!(f, "generic({name})")?;
                } else {
                    f.write_str(name)?;
                }
                if *offset == 0 { Ok(()) } else { write!(f, "+{offset}") }
            }
            Self::List(items) => {
                f.write_str("{")?;
                list(f, items)?;
                f.write_str("}")
            }
        }
    }
}

impl Display for Registers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(".reg ")?;
        if self.vector > 1 {
            write!(f, ".v{} ", self.vector)?;
        }
        write!(f, ".{} ", self.ty)?;
        for (index, (name, count)) in self.names.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            f.write_str(name)?;
            if let Some(count) = count {
                write!(f, "<{count}>")?;
            }
        }
        f.write_str(";")
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        linkage(f, self.linkage)?;
        f.write_str(if self.is_entry { ".entry " } else { ".func " })?;
        if !self.returns.is_empty() {
            f.write_str("(")?;
            list(f, &self.returns)?;
            f.write_str(") ")?;
        }
        write!(f, "{}(", self.name)?;
        list(f, &self.params)?;
        f.write_str(")\n")?;
        for directive in &self.directives {
            writeln!(f, "{directive}")?;
        }
        match &self.body {
            None => f.write_str(";\n"),
            Some(body) => block(f, body),
        }
    }
}

fn block(f: &mut Formatter<'_>, statements: &[Statement]) -> fmt::Result {
    f.write_str("{\n")?;
    for statement in statements {
        statement.fmt(f)?;
    }
    f.write_str("}\n")
}

impl Display for Directive {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, ".{}", self.name)?;
        for word in &self.words {
            write!(f, " {word}")?;
        }
        f.write_str(if self.has_end { ";" } else { "" })
    }
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(name) => writeln!(f, "{name}:"),
            Self::Block(statements) => block(f, statements),
            Self::Registers(registers) => writeln!(f, "{registers}"),
            Self::Variable(variable) => writeln!(f, "{variable};"),
            Self::Targets { label, kind, names } => {
                write!(f, "{label}: .{kind} ")?;
                list(f, names)?;
                f.write_str(";\n")
            }
            Self::Prototype { label, returns, params, notes } => {
                write!(f, "{label}: .callprototype (")?;
                list(f, returns)?;
                f.write_str(") _ (")?;
                list(f, params)?;
                f.write_str(")")?;
                for note in notes {
                    write!(f, " {note}")?;
                }
                f.write_str(";\n")
            }
            Self::Directive(directive) => writeln!(f, "{directive}"),
            Self::Instruction(instruction) => writeln!(f, "{instruction}"),
        }
    }
}

impl Display for Instruction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some((name, when)) = &self.guard {
            write!(f, "@{}{name} ", if *when { "" } else { "!" })?;
        }
        f.write_str(&self.name())?;
        if !self.operands.is_empty() {
            f.write_str(" ")?;
            list(f, &self.operands)?;
        }
        f.write_str(";")
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let enclosed = |f: &mut Formatter<'_>, open: &str, parts: &[Self], close: &str| {
            f.write_str(open)?;
            list(f, parts)?;
            f.write_str(close)
        };
        match self {
            Self::Name(name) => f.write_str(name),
            // The assembler reads `+-8` and not `-8`.
            Self::Offset(name, offset) => write!(f, "{name}+{offset}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Single(bits) => write!(f, "0f{bits:08X}"),
            Self::Double(bits) => write!(f, "0d{bits:016X}"),
            Self::Not(name) => write!(f, "!{name}"),
            Self::Memory(parts) => enclosed(f, "[", parts, "]"),
            Self::Pair(first, second) => write!(f, "{first}|{second}"),
            Self::Vector(parts) => enclosed(f, "{", parts, "}"),
            Self::Group(parts) => enclosed(f, "(", parts, ")"),
        }
    }
}
