//! A PTX module as written: what the parser returns, and what a rewriter changes and prints.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crate::error::Position;
use crate::types::Type;

/// A module.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Version of the language: major and minor.
    pub version: (u32, u32),
    /// The target and its options: `sm_90`, `debug`.
    pub target: Vec<String>,
    /// Bits of an address: 32 or 64.
    pub address_size: u32,
    /// Everything else, in order.
    pub items: Vec<Item>,
}

impl Module {
    /// The number of the target: 90 for `sm_90a`; 0 if there is none.
    #[must_use]
    pub fn architecture(&self) -> u32 {
        let number = self.target.iter().find_map(|word| word.strip_prefix("sm_"));
        let digits = number.map(|rest| rest.trim_end_matches(|c: char| !c.is_ascii_digit()));
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    /// Adds the parts of another module: what one declares as external, the other may define.
    pub fn join(&mut self, other: Self) {
        self.version = self.version.max(other.version);
        if other.architecture() > self.architecture() {
            self.target = other.target;
        }
        self.items.extend(other.items);
        let defined: Vec<String> = self
            .variables()
            .filter(|variable| variable.linkage != Some(Linkage::Extern))
            .map(|variable| variable.name.clone())
            .collect();
        self.items.retain(|item| match item {
            Item::Variable(variable) => {
                variable.linkage != Some(Linkage::Extern) || !defined.contains(&variable.name)
            }
            _ => true,
        });
    }

    /// Functions and entries.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }

    /// Variables outside functions.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.items.iter().filter_map(|item| match item {
            Item::Variable(variable) => Some(variable),
            _ => None,
        })
    }
}

/// A part of a module.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A variable.
    Variable(Variable),
    /// A function or an entry.
    Function(Function),
    /// A directive: `.file`, `.pragma`, `.alias`.
    Directive(Directive),
    /// A section of debugging information.
    Section {
        /// Its name, with the dot.
        name: String,
        /// The text between its braces.
        text: String,
    },
}

/// Who sees a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// Another module has it.
    Extern,
    /// Others may use it.
    Visible,
    /// Others may use it or have their own.
    Weak,
    /// As weak, without an initial value.
    Common,
}

impl Linkage {
    /// All, with their words.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Extern, "extern"),
        (Self::Visible, "visible"),
        (Self::Weak, "weak"),
        (Self::Common, "common"),
    ];
}

/// A state space of variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Constants.
    Const,
    /// Parameters.
    Param,
    /// Registers: of the parameters of functions.
    Reg,
}

impl Space {
    /// All, with their words.
    pub const ALL: [(Self, &str); 6] = [
        (Self::Global, "global"),
        (Self::Shared, "shared"),
        (Self::Local, "local"),
        (Self::Const, "const"),
        (Self::Param, "param"),
        (Self::Reg, "reg"),
    ];
}

/// A variable or a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Place of its name.
    pub at: Position,
    /// Who sees it.
    pub linkage: Option<Linkage>,
    /// Where it is.
    pub space: Space,
    /// Its attributes as written: `.attribute(.managed)`.
    pub attributes: Vec<String>,
    /// What its value points to, as written: `.ptr .global .align 16`.
    pub pointer: Vec<String>,
    /// Alignment in bytes, if declared.
    pub align: Option<u32>,
    /// Elements of its vector type: 1, 2, 4 or 8.
    pub vector: u32,
    /// Type of an element.
    pub ty: Type,
    /// Its name.
    pub name: String,
    /// Its array dimensions; `None` for an open one.
    pub dims: Vec<Option<u64>>,
    /// Its initial value.
    pub init: Option<Init>,
}

impl Variable {
    /// Length in bytes: 0 for an open array, `None` if that is no number of 64 bits.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let open = self.dims.iter().any(Option::is_none);
        let written = self.init.as_ref().filter(|_| open).map(|init| init.len());
        let element = u64::from(self.ty.bytes()) * u64::from(self.vector);
        self.dims.iter().try_fold(element, |bytes, dim| {
            bytes.checked_mul(dim.unwrap_or_else(|| written.unwrap_or(0) as u64))
        })
    }

    /// Alignment in bytes: as declared, or that of its type.
    #[must_use]
    pub fn alignment(&self) -> u32 {
        self.align.unwrap_or(self.ty.bytes() * self.vector).max(1)
    }
}

/// An initial value.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// A number: an integer, or the bits of a floating-point number.
    Value(Operand),
    /// The address of a symbol and an offset; in generic form for `generic(symbol)`.
    Address {
        /// The symbol.
        name: String,
        /// Added bytes.
        offset: i64,
        /// Whether it was written as `generic(symbol)`.
        generic: bool,
    },
    /// Values in braces.
    List(Vec<Init>),
}

impl Init {
    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            _ => 1,
        }
    }
}

/// Registers of one declaration.
#[derive(Clone, Debug, PartialEq)]
pub struct Registers {
    /// Elements of a vector type: 1, 2 or 4.
    pub vector: u32,
    /// Their type.
    pub ty: Type,
    /// Names, with a count for `%r<5>`, which stands for `%r0` to `%r4`.
    pub names: Vec<(String, Option<u32>)>,
}

/// A function or an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Place of its name.
    pub at: Position,
    /// Who sees it.
    pub linkage: Option<Linkage>,
    /// Whether it is an entry: a kernel.
    pub is_entry: bool,
    /// Its name.
    pub name: String,
    /// Returned values.
    pub returns: Vec<Variable>,
    /// Parameters.
    pub params: Vec<Variable>,
    /// `.maxntid` and the like.
    pub directives: Vec<Directive>,
    /// The statements; `None` for a declaration.
    pub body: Option<Vec<Statement>>,
}

impl Function {
    /// The numbers of a directive: those of `.maxntid 128, 2, 1`.
    #[must_use]
    pub fn numbers(&self, directive: &str) -> Option<Vec<u64>> {
        let found = self.directives.iter().find(|found| found.name == directive)?;
        Some(found.words.iter().filter_map(|word| word.parse().ok()).collect())
    }

    /// Offset and length of each parameter, in bytes, as a kernel's parameters lie in memory.
    #[must_use]
    pub fn layout(&self) -> Option<Vec<(u64, u64)>> {
        let mut end = 0u64;
        self.params
            .iter()
            .map(|param| {
                let (align, bytes) = (u64::from(param.alignment()), param.bytes()?);
                let start = end.checked_next_multiple_of(align)?;
                end = start.checked_add(bytes)?;
                Some((start, bytes))
            })
            .collect()
    }
}

/// A directive with its words as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Directive {
    /// Place of its name.
    pub at: Position,
    /// Its name, without the dot.
    pub name: String,
    /// What follows.
    pub words: Vec<String>,
    /// Whether a semicolon ends it.
    pub has_end: bool,
}

/// A statement of a function.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// A label.
    Label(String),
    /// Statements in braces, with their own declarations.
    Block(Vec<Statement>),
    /// Registers.
    Registers(Registers),
    /// A variable.
    Variable(Variable),
    /// `LABEL: .branchtargets A, B;` and `.calltargets`.
    Targets {
        /// The label.
        label: String,
        /// `branchtargets` or `calltargets`.
        kind: String,
        /// The targets.
        names: Vec<String>,
    },
    /// `LABEL: .callprototype (returns) _ (parameters);`
    Prototype {
        /// The label.
        label: String,
        /// Returned values.
        returns: Vec<Variable>,
        /// Parameters.
        params: Vec<Variable>,
        /// What follows, as `.noreturn`.
        notes: Vec<String>,
    },
    /// `.loc`, `.pragma` and the like.
    Directive(Directive),
    /// An instruction.
    Instruction(Instruction),
}

/// An instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Place of its first word.
    pub at: Position,
    /// The register that guards it, and whether it runs if that is true.
    pub guard: Option<(String, bool)>,
    /// Its first word.
    pub opcode: String,
    /// Its modifiers, without dots.
    pub modifiers: Vec<String>,
    /// Its operands.
    pub operands: Vec<Operand>,
}

impl Instruction {
    /// Opcode and modifiers, as in the text.
    #[must_use]
    pub fn name(&self) -> String {
        let mut name = self.opcode.clone();
        for modifier in &self.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        name
    }

    /// Whether it has a modifier.
    #[must_use]
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|found| found == modifier)
    }
}

/// An operand of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, variable, label, function or special register: `%r1`, `%tid.x`, `_`.
    Name(String),
    /// A variable and an offset: `table+4`.
    Offset(String, i64),
    /// An integer.
    Integer(i128),
    /// The bits of a single-precision number.
    Single(u32),
    /// The bits of a double-precision number.
    Double(u64),
    /// A negated predicate: `!%p1`.
    Not(String),
    /// Memory: `[%rd1+8]`. A texture's has several parts.
    Memory(Vec<Operand>),
    /// Two destinations: `%p1|%p2`.
    Pair(Box<Operand>, Box<Operand>),
    /// A vector: `{%f1, %f2}`.
    Vector(Vec<Operand>),
    /// Arguments or results of a call: `(a, b)`.
    Group(Vec<Operand>),
}
