//! Basic blocks: what runs as a whole, and where threads meet.

use alloc::vec::Vec;

use crate::module::Instruction;

/// Opcodes without a destination.
const WITHOUT_RESULT: [&str; 14] = [
    "st",
    "red",
    "bra",
    "brx",
    "ret",
    "exit",
    "trap",
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "nanosleep",
    "cp",
    "discard",
];
/// What a basic block ends in, if threads meet there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    /// Threads of the block, at a barrier.
    Block,
    /// Threads of a warp.
    Warp,
}

/// A basic block: instructions that run one after the other.
#[derive(Debug, Default)]
pub(super) struct Node<'a> {
    pub(super) instructions: Vec<&'a Instruction>,
    pub(super) next: Vec<usize>,
    /// If threads meet in it, it has one instruction.
    pub(super) meeting: Option<Meeting>,
}

/// Whether an instruction gives its first operand a value.
pub(super) fn has_result(of: &Instruction) -> bool {
    match of.opcode.as_str() {
        "bar" | "barrier" => of.has("red"),
        opcode => !WITHOUT_RESULT.contains(&opcode),
    }
}
