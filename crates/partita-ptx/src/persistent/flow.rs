//! Threads that may end alone before others meet.
//!
//! A thread that has ended is not waited for. In the loop it does not end: it goes to the loop's
//! tail, where it waits for the whole block. So a thread must not go there while others are about
//! to meet without it: at a barrier, in a shuffle or in a vote.
//!
//! Whether threads part is a question of values. A value is the same in the whole block, the same
//! in each warp, or each thread's own ([`Spread`]); what is stored where threads have parted is as
//! spread as the condition. A branch is refused if its condition is spread, others meet before its
//! ways join, and one of the ways leads to the end without a meeting. A load from an address that
//! all threads share gives all of them the same value: if it did not, the original kernel would not
//! agree on its way to the barrier either.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::active::Active;
use super::check::Facts;
use super::node::{Meeting, Node, has_result};
use super::{names, refused};
use crate::error::PtxError;
use crate::module::{Function, Instruction, Operand, Statement};

/// Among which threads a value may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spread {
    /// The same in all threads of the block.
    Block,
    /// The same in all threads of a warp.
    Warp,
    /// Each thread's own.
    Thread,
}

/// Special registers that are the same in all threads of a block.
const OF_BLOCK: [&str; 6] = ["%ctaid", "%nctaid", "%ntid", "%gridid", "%nsmid", "%nwarpid"];
/// Special registers that each thread has for itself.
const OF_THREAD: [&str; 8] =
    ["%tid", "%laneid", "%lanemask", "%clock", "%globaltimer", "%smid", "%warpid", "%pm"];
/// Operations of a warp. Their threads wait for each other.
const OF_WARP: [&str; 11] =
    ["shfl", "vote", "match", "redux", "elect", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix", "bar"];

/// Checks the body of an entry. Returns whether the check relied on blocks whose rows are whole
/// warps.
pub(super) fn check(entry: &Function, body: &[Statement], facts: &Facts<'_>) -> Result<bool, PtxError> {
    let nodes = nodes(body, facts)?;
    let has = |meeting| nodes.iter().any(|node| node.meeting == Some(meeting));
    if !has(Meeting::Block) && !has(Meeting::Warp) {
        return Ok(false);
    }
    let mut values = Values::new(entry, &nodes);
    let active = Active::new(&nodes);
    let early = |values: &Values<'_>| {
        early_end(&nodes, values, &active, Meeting::Block)
            .or_else(|| early_end(&nodes, values, &active, Meeting::Warp))
    };
    values.settle(&nodes, false);
    if early(&values).is_none() {
        return Ok(false);
    }
    values.settle(&nodes, true);
    match early(&values) {
        None => Ok(values.relied),
        Some(branch) => Err(refused(
            branch,
            "some threads may end here alone (a divergent exit) before others meet at a barrier, a \
             shuffle or a vote",
        )),
    }
}

/// A branch at which threads may part: a meeting lies before its ways join, and one of them leads
/// to the end without a meeting. A meeting does not count if only threads that are active behind
/// the branch take part.
fn early_end<'a>(
    nodes: &[Node<'a>],
    values: &Values<'_>,
    active: &Active<'a>,
    kind: Meeting,
) -> Option<&'a Instruction> {
    let least = if kind == Meeting::Block { Spread::Warp } else { Spread::Thread };
    let all: BTreeSet<usize> = (0..nodes.len()).filter(|at| nodes[*at].meeting == Some(kind)).collect();
    let all_ends = ends_without(nodes, &all);
    nodes.iter().enumerate().find_map(|(at, node)| {
        let branch = *node.instructions.last()?;
        if node.next.len() < 2 || values.of_branch(branch) < least {
            return None;
        }
        let is_early = |meetings: &BTreeSet<usize>, ends: &[bool]| {
            node.next.iter().any(|next| ends[*next])
                && values.between(nodes, at).any(|node| meetings.contains(&node))
        };
        if kind == Meeting::Block || active.is_empty() {
            return is_early(&all, &all_ends).then_some(branch);
        }
        let waiting = all.iter().copied().filter(|meeting| !active.meet(nodes, at, *meeting)).collect();
        is_early(&waiting, &ends_without(nodes, &waiting)).then_some(branch)
    })
}

/// From which nodes a way without any of these meetings leads to the end.
fn ends_without(nodes: &[Node<'_>], meetings: &BTreeSet<usize>) -> Vec<bool> {
    let mut ends = vec![false; nodes.len() + 1];
    ends[nodes.len()] = true;
    let mut changed = true;
    while changed {
        changed = false;
        for (at, node) in nodes.iter().enumerate().rev() {
            let may_end = !meetings.contains(&at) && node.next.iter().any(|next| ends[*next]);
            changed |= may_end != ends[at];
            ends[at] = may_end;
        }
    }
    ends
}

/// Basic blocks in the order of the text. The number behind the last one is the end.
fn nodes<'a>(body: &'a [Statement], facts: &Facts<'_>) -> Result<Vec<Node<'a>>, PtxError> {
    let mut flat = Flat::default();
    flat.add(body, 0);
    // The first entry of each basic block.
    let mut starts = BTreeSet::from([0, flat.lines.len()]);
    for (at, line) in flat.lines.iter().enumerate() {
        match line {
            Line::Label => drop(starts.insert(at)),
            Line::Instruction(_, of) => {
                if meeting(of, facts).is_some() {
                    starts.insert(at);
                    starts.insert(at + 1);
                } else if matches!(of.opcode.as_str(), "bra" | "brx" | "ret" | "exit" | "trap") {
                    starts.insert(at + 1);
                }
            }
        }
    }
    let starts: Vec<usize> = starts.into_iter().collect();
    let end = starts.len() - 1;
    let node_at = |line: usize| starts.partition_point(|start| *start <= line).saturating_sub(1);
    let mut nodes = Vec::new();
    for (number, ends) in starts.windows(2).enumerate() {
        let mut node = Node::default();
        let mut last = None;
        for line in &flat.lines[ends[0]..ends[1]] {
            if let Line::Instruction(scope, of) = line {
                node.instructions.push(of);
                last = Some((*scope, *of));
            }
        }
        let goes_on = |node: &mut Node<'a>| node.next.push(number + 1);
        match last {
            Some((scope, of)) if matches!(of.opcode.as_str(), "bra" | "brx") => {
                for target in flat.targets(scope, of)? {
                    node.next.push(node_at(target));
                }
                if of.guard.is_some() {
                    goes_on(&mut node);
                }
            }
            Some((_, of)) if matches!(of.opcode.as_str(), "ret" | "exit") => {
                node.next.push(end);
                if of.guard.is_some() {
                    goes_on(&mut node);
                }
            }
            Some((_, of)) if of.opcode == "trap" && of.guard.is_none() => {}
            Some((_, of)) => {
                node.meeting = meeting(of, facts);
                goes_on(&mut node);
            }
            None => goes_on(&mut node),
        }
        node.next.sort_unstable();
        node.next.dedup();
        nodes.push(node);
    }
    Ok(nodes)
}

/// Whether threads meet in an instruction.
fn meeting(of: &Instruction, facts: &Facts<'_>) -> Option<Meeting> {
    match of.opcode.as_str() {
        "bar" | "barrier" if of.has("warp") => Some(Meeting::Warp),
        "bar" | "barrier" => Some(Meeting::Block),
        "call" if facts.may_wait(of) => Some(Meeting::Block),
        // Before PTX 6.0 there was no member mask, and no waiting.
        opcode if OF_WARP.contains(&opcode) && of.has("sync") => Some(Meeting::Warp),
        _ => None,
    }
}

enum Line<'a> {
    Label,
    /// With the number of its scope.
    Instruction(usize, &'a Instruction),
}

/// A body without its inner blocks.
#[derive(Default)]
struct Flat<'a> {
    lines: Vec<Line<'a>>,
    /// The outer scope of each scope; the first one's is itself.
    outer: Vec<usize>,
    labels: BTreeMap<(usize, &'a str), usize>,
    lists: BTreeMap<(usize, &'a str), &'a [alloc::string::String]>,
}

impl<'a> Flat<'a> {
    fn add(&mut self, body: &'a [Statement], outer: usize) {
        let scope = self.outer.len();
        self.outer.push(outer);
        for statement in body {
            match statement {
                Statement::Block(inner) => self.add(inner, scope),
                Statement::Label(name) => {
                    self.labels.insert((scope, name), self.lines.len());
                    self.lines.push(Line::Label);
                }
                Statement::Targets { label, names, .. } => {
                    self.lists.insert((scope, label), names);
                }
                Statement::Instruction(of) => self.lines.push(Line::Instruction(scope, of)),
                _ => {}
            }
        }
    }

    /// Looks a name up from a scope outwards.
    fn find<T: Copy>(&self, table: &BTreeMap<(usize, &'a str), T>, scope: usize, name: &'a str) -> Option<T> {
        let mut scope = scope;
        loop {
            if let Some(found) = table.get(&(scope, name)) {
                return Some(*found);
            }
            if scope == 0 {
                return None;
            }
            scope = self.outer[scope];
        }
    }

    /// The lines that a branch may go to.
    fn targets(&self, scope: usize, of: &'a Instruction) -> Result<Vec<usize>, PtxError> {
        let unknown = || refused(of, "its target is unknown");
        let Some(Operand::Name(name)) = of.operands.last() else { return Err(unknown()) };
        let label = |name: &'a str| self.find(&self.labels, scope, name).ok_or_else(unknown);
        match of.opcode.as_str() {
            "brx" => {
                let list = self.find(&self.lists, scope, name).ok_or_else(unknown)?;
                list.iter().map(|name| label(name)).collect()
            }
            _ => Ok(vec![label(name)?]),
        }
    }
}

/// How far the values of registers are spread.
struct Values<'a> {
    params: BTreeSet<&'a str>,
    /// Only those that are not the same in the whole block.
    registers: BTreeMap<&'a str, Spread>,
    /// The nodes behind the end of each block's ways: what follows whatever way threads take.
    after: Vec<Vec<u64>>,
    /// Whether comparisons with the number of a thread may rely on whole rows.
    whole_rows: bool,
    /// Whether one did.
    relied: bool,
    /// Registers that are a thread's number in its row, or a part of it, and nothing else.
    rows: BTreeSet<&'a str>,
}

impl<'a> Values<'a> {
    fn new(entry: &'a Function, nodes: &[Node<'a>]) -> Self {
        Self {
            params: entry.params.iter().map(|param| param.name.as_str()).collect(),
            registers: BTreeMap::new(),
            after: after(nodes),
            whole_rows: false,
            relied: false,
            rows: rows(nodes),
        }
    }

    /// Follows values until nothing changes.
    fn settle(&mut self, nodes: &[Node<'a>], whole_rows: bool) {
        self.registers.clear();
        (self.whole_rows, self.relied) = (whole_rows, false);
        let mut parted = vec![Spread::Block; nodes.len()];
        loop {
            let mut changed = false;
            for (at, node) in nodes.iter().enumerate() {
                for of in &node.instructions {
                    let Some(to) = of.operands.first().filter(|_| has_result(of)) else { continue };
                    let spread =
                        self.of_result(of).max(if is_voted(of) { Spread::Block } else { parted[at] });
                    let mut found = Vec::new();
                    names(to, &mut found);
                    for name in found {
                        let known = self.registers.get(name).copied().unwrap_or(Spread::Block);
                        if spread > known {
                            self.registers.insert(name, spread);
                            changed = true;
                        }
                    }
                }
            }
            for (at, node) in nodes.iter().enumerate() {
                let Some(branch) = node.instructions.last().filter(|_| node.next.len() > 1) else { continue };
                let spread = self.of_branch(branch);
                if spread > Spread::Block {
                    changed |= self.part(nodes, at, spread, &mut parted);
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// The nodes between a branch and the place where all its ways have joined.
    fn between(&self, nodes: &[Node<'_>], at: usize) -> impl Iterator<Item = usize> {
        let is_after = |node: usize| node != at && self.after[at][node / 64] >> (node % 64) & 1 == 1;
        let (mut open, mut seen) = (nodes[at].next.clone(), BTreeSet::new());
        while let Some(node) = open.pop() {
            if node < nodes.len() && !is_after(node) && seen.insert(node) {
                open.extend(&nodes[node].next);
            }
        }
        seen.into_iter()
    }

    /// Marks what runs between a branch and the place where all its ways have joined.
    fn part(&self, nodes: &[Node<'a>], at: usize, spread: Spread, parted: &mut [Spread]) -> bool {
        let mut changed = false;
        for node in self.between(nodes, at) {
            changed |= parted[node] < spread;
            parted[node] = parted[node].max(spread);
        }
        changed
    }

    fn of_name(&self, name: &str) -> Spread {
        if let Some(spread) = self.registers.get(name) {
            return *spread;
        }
        let begins = |list: &[&str]| {
            list.iter().any(|one| {
                name.strip_prefix(one).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
            })
        };
        if begins(&OF_THREAD) && !begins(&OF_BLOCK) { Spread::Thread } else { Spread::Block }
    }

    fn of_operands<'o>(&self, operands: impl IntoIterator<Item = &'o Operand>) -> Spread {
        let mut found = Vec::new();
        operands.into_iter().for_each(|operand| names(operand, &mut found));
        found.into_iter().map(|name| self.of_name(name)).max().unwrap_or(Spread::Block)
    }

    /// The condition of a branch.
    fn of_branch(&self, of: &Instruction) -> Spread {
        let guard = of.guard.as_ref().map_or(Spread::Block, |(name, _)| self.of_name(name));
        let index = if of.opcode == "brx" { self.of_operands(of.operands.first()) } else { Spread::Block };
        guard.max(index)
    }

    /// The result of an instruction.
    fn of_result(&mut self, of: &Instruction) -> Spread {
        let guard = of.guard.as_ref().map_or(Spread::Block, |(name, _)| self.of_name(name));
        let sources = self.of_operands(of.operands.iter().skip(1));
        let value = match of.opcode.as_str() {
            "atom" | "call" | "shfl" | "activemask" | "elect" => Spread::Thread,
            "match" if of.has("any") => Spread::Thread,
            "mma" | "wmma" | "ldmatrix" | "movmatrix" => Spread::Thread,
            // All threads of the block get one result.
            "bar" | "barrier" => Spread::Block,
            // All threads of a warp do.
            "vote" if of.has("sync") && !of.has("ballot") => sources.min(Spread::Warp),
            "vote" | "redux" | "match" if of.has("sync") => Spread::Warp,
            "vote" => Spread::Thread,
            // Another thread may store between two loads.
            "ld" if ["volatile", "relaxed", "acquire", "mmio"].iter().any(|word| of.has(word)) => {
                Spread::Thread
            }
            "ld" | "ldu" if of.has("local") => Spread::Thread,
            "ld" if of.has("param") => match of.operands.get(1) {
                Some(Operand::Memory(parts)) => match parts.as_slice() {
                    [Operand::Name(name) | Operand::Offset(name, _)]
                        if self.params.contains(name.as_str()) =>
                    {
                        Spread::Block
                    }
                    _ => Spread::Thread,
                },
                _ => Spread::Thread,
            },
            // The address of a thread's own memory.
            "cvta" if of.has("local") => Spread::Thread,
            "setp" | "shr" if sources == Spread::Thread && self.is_of_warps(of) => Spread::Warp,
            _ => sources,
        };
        value.max(guard)
    }

    /// Whether all threads of a warp compute the same from their numbers in a row: a comparison
    /// with a multiple of 32, or a division by one.
    fn is_of_warps(&mut self, of: &Instruction) -> bool {
        let [_, Operand::Name(row), Operand::Integer(number)] = of.operands.as_slice() else { return false };
        if !self.whole_rows || !self.rows.contains(row.as_str()) {
            return false;
        }
        let compares = |word: &str| of.has(word);
        let fits = match of.opcode.as_str() {
            "setp" if compares("lt") || compares("ge") || compares("lo") || compares("hs") => {
                number % 32 == 0
            }
            "setp" if compares("gt") || compares("le") || compares("hi") || compares("ls") => {
                number % 32 == 31
            }
            "shr" => *number >= 5,
            _ => false,
        };
        let fits = fits && *number >= 0 && of.modifiers.len() <= 2;
        self.relied |= fits;
        fits
    }
}

/// Whether a result is the same wherever it is computed.
fn is_voted(of: &Instruction) -> bool {
    matches!(of.opcode.as_str(), "bar" | "barrier")
}

/// Registers with one definition, which is `mov` from `%tid.x`.
fn rows<'a>(nodes: &[Node<'a>]) -> BTreeSet<&'a str> {
    let mut definitions: BTreeMap<&str, (u32, bool)> = BTreeMap::new();
    for of in nodes.iter().flat_map(|node| &node.instructions).filter(|of| has_result(of)) {
        let is_row = of.opcode == "mov"
            && of.guard.is_none()
            && matches!(of.operands.get(1), Some(Operand::Name(name)) if name == "%tid.x");
        let mut found = Vec::new();
        of.operands.first().into_iter().for_each(|to| names(to, &mut found));
        for name in found {
            let known = definitions.entry(name).or_insert((0, is_row));
            known.0 += 1;
            known.1 &= is_row;
        }
    }
    definitions
        .into_iter()
        .filter(|(_, (count, is_row))| *count == 1 && *is_row)
        .map(|(name, _)| name)
        .collect()
}

/// For each node, a bit for every node that all ways from it to the end pass.
fn after(nodes: &[Node<'_>]) -> Vec<Vec<u64>> {
    let words = (nodes.len() + 1).div_ceil(64);
    let mut after = vec![vec![!0u64; words]; nodes.len() + 1];
    let end = nodes.len();
    after[end] = vec![0; words];
    after[end][end / 64] = 1 << (end % 64);
    let mut changed = true;
    while changed {
        changed = false;
        for (at, node) in nodes.iter().enumerate().rev() {
            let mut both = vec![!0u64; words];
            for next in &node.next {
                both.iter_mut().zip(&after[*next]).for_each(|(both, next)| *both &= next);
            }
            if node.next.is_empty() {
                // It ends in a trap, after which nothing runs.
                continue;
            }
            both[at / 64] |= 1 << (at % 64);
            if both != after[at] {
                after[at] = both;
                changed = true;
            }
        }
    }
    after
}
