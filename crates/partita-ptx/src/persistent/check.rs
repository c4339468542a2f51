//! What a loop around a body cannot have, instruction by instruction.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::{SHARED_BYTES, code, instructions, names, refused, refused_at};
use crate::error::PtxError;
use crate::module::{Function, Instruction, Module, Operand, Space, Statement, Variable};

/// The first version with `barrier.sync`, at which threads of one warp may meet one by one.
const VERSION_MIN: (u32, u32) = (6, 0);
/// Static shared memory of a block at most, in bytes.
const SHARED_MAX: u64 = 48 << 10;
/// Bytes of parameters at most: before PTX 8.1 or sm_70, and from then on.
const PARAMS_MAX: [u64; 2] = [4_352, 32_764];

/// Opcodes and the reason why they are refused.
const OPCODES: [(&str, &str); 12] = [
    ("alloca", "memory of the stack would be left over from one block to the next"),
    ("stacksave", "the stack would be left over from one block to the next"),
    ("stackrestore", "the stack would be left over from one block to the next"),
    ("mbarrier", "an asynchronous barrier would be left over from one block to the next"),
    ("wgmma", "instructions of whole groups of warps are not rewritten"),
    ("tcgen05", "tensor memory would be left over from one block to the next"),
    ("setmaxnreg", "the number of registers would be left over from one block to the next"),
    ("clusterlaunchcontrol", "the kernel needs clusters"),
    ("mapa", "the kernel needs clusters"),
    ("getctarank", "the kernel needs clusters"),
    ("griddepcontrol", "the kernel is made to overlap with others of its stream"),
    ("brkpt", "the kernel stops for a debugger"),
];

/// Beginnings of the names of special registers, with the reason why they are refused.
const REGISTERS: [(&str, &str); 7] = [
    ("%cluster", "the kernel needs clusters"),
    ("%nclusterid", "the kernel needs clusters"),
    ("%is_explicit_cluster", "the kernel needs clusters"),
    ("%total_smem_size", "the rewritten kernel has 16 bytes more of shared memory"),
    ("%aggr_smem_size", "the rewritten kernel has 16 bytes more of shared memory"),
    ("%envreg", "the driver sets this register for the grid that it launches"),
    ("%reserved_smem", "the rewritten kernel has 16 bytes more of shared memory"),
];

/// Functions of the system that a kernel may call: they know nothing of its grid.
const SYSTEM: [&str; 4] = ["vprintf", "malloc", "free", "__assertfail"];

/// What the rest of the rewriter needs to know of an entry.
pub(super) struct Facts<'a> {
    /// Functions that wait at a barrier, also in those that they call.
    pub(super) waits: BTreeSet<&'a str>,
    /// Whether asynchronous copies may be in flight when a body ends.
    pub(super) copies_asynchronously: bool,
}

/// Checks an entry and all functions that it may call.
pub(super) fn check<'a>(
    module: &'a Module,
    functions: &BTreeMap<&'a str, &'a Function>,
    entry: &'a Function,
) -> Result<Facts<'a>, PtxError> {
    let wrong = |reason: &str| Err(refused_at(entry.at, &entry.name, reason));
    if module.address_size != 64 {
        return wrong("its addresses have 32 bits");
    }
    if module.version < VERSION_MIN {
        return wrong("its PTX is older than version 6.0; compile it with CUDA 9 or later");
    }
    for directive in &entry.directives {
        if ["reqnctapercluster", "maxclusterrank", "explicitcluster", "blocksareclusters"]
            .contains(&directive.name.as_str())
        {
            return Err(PtxError::new(
                directive.at,
                format!(".{}", directive.name),
                "the kernel needs clusters",
            ));
        }
    }
    let params =
        entry.layout().and_then(|layout| layout.last().map_or(Some(0), |(at, bytes)| at.checked_add(*bytes)));
    let long = module.version >= (8, 1) && module.architecture() >= 70;
    let room = params.map(|bytes| bytes.next_multiple_of(8) + super::WHOLE_ROWS_TURN_BYTES as u64);
    if room.is_none_or(|bytes| bytes > PARAMS_MAX[usize::from(long)]) {
        return wrong("its parameters leave no room for another one");
    }
    let mut reached = Reached {
        module,
        functions,
        facts: Facts { waits: BTreeSet::new(), copies_asynchronously: false },
        seen: BTreeSet::new(),
        shared: BTreeMap::new(),
    };
    reached.body(entry)?;
    if reached.shared.values().fold(0, |all: u64, bytes| all.saturating_add(*bytes))
        > SHARED_MAX - u64::from(SHARED_BYTES)
    {
        return wrong("its static shared memory leaves no room for 16 bytes more");
    }
    reached.close();
    Ok(reached.facts)
}

struct Reached<'m, 'a> {
    module: &'a Module,
    functions: &'m BTreeMap<&'a str, &'a Function>,
    facts: Facts<'a>,
    seen: BTreeSet<&'a str>,
    /// Bytes of shared variables, by function and name.
    shared: BTreeMap<(&'a str, &'a str), u64>,
}

impl<'a> Reached<'_, 'a> {
    fn body(&mut self, function: &'a Function) -> Result<(), PtxError> {
        if !self.seen.insert(&function.name) {
            return Ok(());
        }
        let body = function.body.as_deref().unwrap_or_default();
        self.declared(&function.name, body)?;
        for instruction in instructions(body) {
            self.instruction(function, instruction)?;
        }
        Ok(())
    }

    /// Adds up shared variables, and refuses names of the loop's own.
    fn declared(&mut self, function: &'a str, body: &'a [Statement]) -> Result<(), PtxError> {
        for statement in body {
            match statement {
                Statement::Block(inner) => self.declared(function, inner)?,
                Statement::Variable(variable) if variable.space == Space::Shared => {
                    self.shared.insert((function, &variable.name), variable.bytes().unwrap_or(u64::MAX));
                }
                Statement::Label(name) if name.starts_with(code::PREFIX) => {
                    return Err(PtxError::default_at(name, "the module is rewritten already"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn instruction(&mut self, function: &'a Function, of: &'a Instruction) -> Result<(), PtxError> {
        if let Some((_, reason)) = OPCODES.iter().find(|(opcode, _)| *opcode == of.opcode) {
            return Err(refused(of, *reason));
        }
        if of.modifiers.iter().any(|word| word.contains("cluster")) {
            return Err(refused(of, "the kernel needs clusters"));
        }
        match of.opcode.as_str() {
            "cp" if of.has("bulk") || of.has("mbarrier") => {
                return Err(refused(of, "a copy may still run when the next block begins"));
            }
            "cp" => self.facts.copies_asynchronously = true,
            "red" | "st" if of.has("async") => return Err(refused(of, "the kernel needs clusters")),
            "bar" | "barrier" if of.has("arrive") => {
                return Err(refused(of, "an arrival would be left over from one block to the next"));
            }
            "bar" | "barrier" if !of.has("warp") => {
                self.facts.waits.insert(&function.name);
            }
            "exit" if !function.is_entry => {
                return Err(refused(
                    of,
                    format!("function '{}' ends the thread, and no loop can go on", function.name),
                ));
            }
            "call" => self.call(of)?,
            _ => {}
        }
        let mut found = vec![];
        of.operands.iter().for_each(|operand| names(operand, &mut found));
        for name in found {
            self.name(function, of, name)?;
        }
        Ok(())
    }

    fn name(&mut self, function: &'a Function, of: &'a Instruction, name: &'a str) -> Result<(), PtxError> {
        if let Some((_, reason)) = REGISTERS.iter().find(|(begin, _)| name.starts_with(begin)) {
            return Err(refused(of, format!("{name}: {reason}")));
        }
        if code::VIRTUAL.iter().any(|(special, _)| *special == name) {
            if !function.is_entry {
                let reason = format!(
                    "function '{}' reads {name}, which the kernel's loop does not change",
                    function.name
                );
                return Err(refused(of, reason));
            }
            if of.modifiers.iter().any(|word| matches!(word.as_str(), "u16" | "s16" | "b16")) {
                return Err(refused(of, format!("it reads {name} as a number of 16 bits")));
            }
        }
        if matches!(name, "%ctaid" | "%nctaid") {
            return Err(refused(of, format!("it reads {name} as a vector")));
        }
        // The address of a function: it may be called.
        if let Some(named) = self.functions.get(name).copied() {
            if named.is_entry {
                return Err(refused(of, format!("it takes the address of kernel '{name}'")));
            }
            self.body(named)?;
        }
        if let Some(variable) = self.variable(name) {
            self.variable_of(variable)?;
        }
        Ok(())
    }

    fn variable(&self, name: &str) -> Option<&'a Variable> {
        self.module.variables().find(|variable| variable.name == name)
    }

    fn variable_of(&mut self, variable: &'a Variable) -> Result<(), PtxError> {
        if variable.space == Space::Shared {
            self.shared.insert(("", &variable.name), variable.bytes().unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn call(&mut self, of: &'a Instruction) -> Result<(), PtxError> {
        let callee = of.operands.iter().find_map(|operand| match operand {
            Operand::Name(name) => Some(name.as_str()),
            _ => None,
        });
        let Some(name) = callee else { return Err(refused(of, "it names no function")) };
        if self.functions.contains_key(name) || SYSTEM.contains(&name) {
            return Ok(());
        }
        let is_declared = self.module.functions().any(|function| function.name == name);
        if !is_declared {
            // By address: of any function of the module.
            let all: vec::Vec<&'a Function> = self.functions.values().copied().collect();
            return all
                .into_iter()
                .filter(|function| !function.is_entry)
                .try_for_each(|function| self.body(function));
        }
        Err(refused(
            of,
            match name.starts_with("cuda") {
                true => format!("'{name}': the kernel launches kernels (dynamic parallelism)"),
                false => format!("'{name}' is a function of another module"),
            },
        ))
    }

    /// Adds the functions that call one that waits.
    fn close(&mut self) {
        loop {
            let before = self.facts.waits.len();
            for name in &self.seen {
                let Some(function) = self.functions.get(name) else { continue };
                let body = function.body.as_deref().unwrap_or_default();
                let is_waiting =
                    instructions(body).iter().any(|of| of.opcode == "call" && self.facts.may_wait(of));
                if is_waiting {
                    self.facts.waits.insert(name);
                }
            }
            if self.facts.waits.len() == before {
                return;
            }
        }
    }
}

impl Facts<'_> {
    /// Whether a call may wait at a barrier: of a function that does, or of an unknown one.
    pub(super) fn may_wait(&self, call: &Instruction) -> bool {
        let callee = call.operands.iter().find_map(|operand| match operand {
            Operand::Name(name) => Some(name.as_str()),
            _ => None,
        });
        // A register: any function.
        callee
            .is_none_or(|name| self.waits.contains(name) || (name.starts_with('%') && !self.waits.is_empty()))
    }
}

impl PtxError {
    fn default_at(name: &str, reason: &str) -> Self {
        Self::new(crate::Position::default(), String::from(name), reason)
    }
}
