//! Names of a function.

use std::collections::HashMap;

use crate::kernel::{Formal, Register};
use partita_ptx::Type;
use partita_ptx::module::Registers;

/// What a name of a function stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    /// The first of as many registers as its vector has elements.
    Register { first: Register, ty: Type, elements: u32 },
    /// A place in the frame.
    Frame { offset: u32, bytes: u32 },
    /// A place in shared memory.
    Shared { at: u64 },
    /// A place among the parameters of the entry.
    Param { at: u64 },
}

impl Name {
    /// The name of a parameter or result of a function.
    pub(super) fn of(formal: Formal, ty: Type) -> Self {
        match formal {
            Formal::Frame { offset, bytes } => Self::Frame { offset, bytes },
            Formal::Register { register, .. } => Self::Register { first: register, ty, elements: 1 },
        }
    }
}

/// The declarations of one pair of braces.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) names: HashMap<String, Name>,
    /// Declarations like `%r<5>`: the names get registers when they are used.
    ranges: Vec<(String, u32, Type, u32)>,
    pub(super) labels: HashMap<String, u32>,
    /// The lists of `.branchtargets`.
    pub(super) targets: HashMap<String, Vec<String>>,
}

impl Scope {
    /// Adds registers. `next` is the first free register.
    pub(super) fn add(&mut self, registers: &Registers, next: &mut Register) {
        for (name, count) in &registers.names {
            match count {
                Some(count) => {
                    self.ranges.push((name.clone(), *count, registers.ty, registers.vector));
                }
                None => {
                    let name_of =
                        Name::Register { first: *next, ty: registers.ty, elements: registers.vector };
                    self.names.insert(name.clone(), name_of);
                    *next += registers.vector;
                }
            }
        }
    }

    /// What a name stands for here.
    pub(super) fn find(&mut self, name: &str, next: &mut Register) -> Option<Name> {
        if let Some(found) = self.names.get(name) {
            return Some(*found);
        }
        let (_, _, ty, elements) = *self.ranges.iter().find(|(prefix, count, _, _)| {
            name.strip_prefix(prefix.as_str()).is_some_and(|digits| {
                let is_plain = digits == "0" || !digits.starts_with('0');
                is_plain && digits.parse::<u32>().is_ok_and(|number| number < *count)
            })
        })?;
        let found = Name::Register { first: *next, ty, elements };
        *next += elements;
        self.names.insert(name.to_owned(), found);
        Some(found)
    }
}
