//! Persistent blocks: kernels that read on which SM they run and keep to a set of SMs.
//!
//! [`rewrite`] makes a loop of each entry. A block of the rewritten kernel reads `%smid`. On an SM
//! of the set it takes the next block number of the original grid from a counter, runs the body
//! with that number in the place of `%ctaid`, and takes the next one. On another SM it leaves. So
//! the kernel keeps to the set without any help from the driver, and every end of a block is a
//! place at which the set may change.
//!
//! An entry gets one more parameter, the last one: [`Turn`]. It gets 16 bytes of shared memory, and
//! no other change of its interface.
//!
//! # Who leaves
//!
//! Hardware places blocks anywhere. While a launch has numbers left and no block works on them, a
//! block outside of the set waits instead of leaving, so that the blocks behind it reach the SMs of
//! the set. A launch has as many blocks as the device holds at once, so they cannot all wait
//! outside. If the set changes, a block that is outside from then on leaves after its present
//! number, but only once another one works inside; the last one that works never leaves. A launch
//! thus runs every number, whatever happens to the set.
//!
//! # What stays the same
//!
//! Numbers are taken in order, so that blocks that wait for earlier ones find them taken. All
//! threads of a block meet before the next number, which protects shared memory. Shared memory and
//! registers hold what the last body left there: PTX gives both no initial value.
//!
//! # What is refused
//!
//! [`Refusal`] names the entry, the place and the reason: what needs a whole grid or cluster
//! (clusters, cooperative groups of a grid, dynamic parallelism), what would be left over from one
//! body to the next (arrivals at barriers, asynchronous barriers, `alloca`), functions that read
//! the block number, and threads that may end alone before others meet (`flow.rs`): in a loop they
//! do not end, and the others would wait for them. Meetings of active threads are no such ones
//! (`active.rs`).

mod active;
mod check;
mod code;
mod flow;
mod node;
mod turn;

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::error::{Position, PtxError};
use crate::module::{Function, Instruction, Item, Module, Operand, Statement};

pub use turn::{CONTROL_BYTES, SET_BYTES, SMS_MAX, TURN_BYTES, Turn, WHOLE_ROWS_TURN_BYTES, set_bytes};

/// Static shared memory that a rewritten entry has more than the original, in bytes.
pub const SHARED_BYTES: u32 = 16;

/// Why an entry cannot be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The entry.
    pub entry: String,
    /// The place, the instruction or function there, and the reason.
    pub error: PtxError,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel '{}', {}", self.entry, self.error)
    }
}

impl core::error::Error for Refusal {}

/// A rewritten module.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewritten {
    /// The module without the entries that were refused.
    pub module: Module,
    /// Names of the rewritten entries.
    pub entries: Vec<String>,
    /// Those whose blocks have rows of whole warps: the block is one-dimensional, or its width is a
    /// multiple of 32. The rewriter relied on that, and other launches must be refused.
    pub whole_rows: Vec<String>,
    /// The entries that are not in the module any more.
    pub refused: Vec<Refusal>,
}

/// Rewrites every entry of a module, or says why one cannot be.
#[must_use]
pub fn rewrite(module: &Module) -> Rewritten {
    let functions: BTreeMap<&str, &Function> = module
        .functions()
        .filter(|function| function.body.is_some())
        .map(|function| (function.name.as_str(), function))
        .collect();
    let mut rewritten = Rewritten {
        module: Module { items: Vec::new(), ..module.clone() },
        entries: Vec::new(),
        whole_rows: Vec::new(),
        refused: Vec::new(),
    };
    for item in &module.items {
        let entry = match item {
            Item::Function(entry) if entry.is_entry => entry,
            other => {
                rewritten.module.items.push(other.clone());
                continue;
            }
        };
        match entry_of(module, &functions, entry) {
            Ok((made, has_whole_rows)) => {
                if made.body.is_some() {
                    rewritten.entries.push(made.name.clone());
                }
                if has_whole_rows {
                    rewritten.whole_rows.push(made.name.clone());
                }
                rewritten.module.items.push(Item::Function(made));
            }
            Err(error) => rewritten.refused.push(Refusal { entry: entry.name.clone(), error }),
        }
    }
    // A section of debugging information may name what is not there any more.
    if !rewritten.refused.is_empty() {
        rewritten.module.items.retain(|item| !matches!(item, Item::Section { .. }));
    }
    rewritten
}

/// The rewritten entry, and whether its blocks must have rows of whole warps.
fn entry_of(
    module: &Module,
    functions: &BTreeMap<&str, &Function>,
    entry: &Function,
) -> Result<(Function, bool), PtxError> {
    let facts = check::check(module, functions, entry)?;
    let mut made = entry.clone();
    let whole_rows = flow::check(entry, entry.body.as_deref().unwrap_or_default(), &facts)?;
    made.params.push(code::parameter(whole_rows));
    let Some(body) = &entry.body else { return Ok((made, whole_rows)) };
    let mut statements = code::before(module, facts.copies_asynchronously)?;
    statements.push(Statement::Block(body.iter().map(looped).collect()));
    statements.extend(code::after()?);
    made.body = Some(statements);
    Ok((made, whole_rows))
}

/// A statement of an entry inside the loop.
fn looped(statement: &Statement) -> Statement {
    match statement {
        Statement::Block(statements) => Statement::Block(statements.iter().map(looped).collect()),
        Statement::Instruction(instruction) => {
            if matches!(instruction.opcode.as_str(), "ret" | "exit") {
                return Statement::Instruction(Instruction {
                    opcode: "bra".to_owned(),
                    modifiers: instruction.modifiers.iter().filter(|word| *word == "uni").cloned().collect(),
                    operands: [Operand::Name(code::TAIL.to_owned())].into(),
                    ..instruction.clone()
                });
            }
            let mut instruction = instruction.clone();
            instruction.operands.iter_mut().for_each(renumbered);
            Statement::Instruction(instruction)
        }
        other => other.clone(),
    }
}

/// Replaces special registers of the grid by registers of the loop.
fn renumbered(operand: &mut Operand) {
    match operand {
        Operand::Name(name) => {
            if let Some((_, register)) = code::VIRTUAL.iter().find(|(special, _)| special == name) {
                (*register).clone_into(name);
            }
        }
        Operand::Memory(parts) | Operand::Vector(parts) | Operand::Group(parts) => {
            parts.iter_mut().for_each(renumbered);
        }
        Operand::Pair(first, second) => {
            renumbered(first);
            renumbered(second);
        }
        _ => {}
    }
}

/// All instructions of a body, also those in inner blocks.
fn instructions(body: &[Statement]) -> Vec<&Instruction> {
    let mut found = Vec::new();
    let mut open: Vec<&Statement> = body.iter().rev().collect();
    while let Some(statement) = open.pop() {
        match statement {
            Statement::Instruction(instruction) => found.push(instruction),
            Statement::Block(inner) => open.extend(inner.iter().rev()),
            _ => {}
        }
    }
    found
}

/// The names in an operand.
fn names<'a>(operand: &'a Operand, found: &mut Vec<&'a str>) {
    match operand {
        Operand::Name(name) | Operand::Offset(name, _) | Operand::Not(name) => found.push(name),
        Operand::Memory(parts) | Operand::Vector(parts) | Operand::Group(parts) => {
            parts.iter().for_each(|part| names(part, found));
        }
        Operand::Pair(first, second) => {
            names(first, found);
            names(second, found);
        }
        _ => {}
    }
}

/// An error about an instruction.
fn refused(instruction: &Instruction, reason: impl Into<String>) -> PtxError {
    PtxError::new(instruction.at, instruction.name(), reason)
}

/// An error about an entry as a whole.
fn refused_at(at: Position, subject: &str, reason: impl Into<String>) -> PtxError {
    PtxError::new(at, subject, reason)
}
