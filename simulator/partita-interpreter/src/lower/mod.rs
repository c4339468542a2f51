//! From a module to a kernel: names become registers, addresses and steps, and every instruction is
//! checked against what the interpreter knows.

mod arithmetic;
mod body;
mod call;
mod compare;
mod control;
mod convert;
mod memory;
mod scope;
mod table;
mod warp;
mod words;

use std::collections::{BTreeMap, HashMap};

use crate::kernel::{Callable, FUNCTION_BYTES, FUNCTIONS_AT, Kernel, Source, Step};
use crate::lanes::{LANES, Lanes};
use partita_ptx::module::{Function, Module, Space};
use partita_ptx::{Position, PtxError};

use body::Body;

/// The alignment of dynamic shared memory, if its declarations ask for no more.
const DYNAMIC_ALIGN: u64 = 16;
/// Longest frame of a function, in bytes: hardware gives a thread no more local memory.
const FRAME_BYTES_MAX: u64 = 512 << 10;

/// The address of a function of a module, as a program sees it.
#[must_use]
pub fn function_address(module: &Module, name: &str) -> Option<u64> {
    let is_it = |function: &Function| function.name == name;
    // A definition wins over a declaration.
    let defined = module.functions().position(|function| is_it(function) && function.body.is_some());
    let number = defined.or_else(|| module.functions().position(is_it))?;
    Some(FUNCTIONS_AT + number as u64 * FUNCTION_BYTES)
}

impl Kernel {
    /// Makes an entry of a module ready to run. `symbols` has the addresses of the module's
    /// variables in global and constant memory.
    ///
    /// # Errors
    /// The first instruction or declaration that the interpreter does not know, by name: in the
    /// entry, or in a function that it calls.
    pub fn new(module: &Module, name: &str, symbols: &BTreeMap<String, u64>) -> Result<Self, PtxError> {
        let unknown = |reason: &str| PtxError::new(Position::default(), name, reason);
        let entry = module.functions().find(|function| function.is_entry && function.name == name);
        let entry = entry.ok_or_else(|| unknown("the module has no such entry"))?;
        if module.address_size != 64 {
            return Err(unknown("modules with addresses of 32 bits are not simulated"));
        }
        let mut lowering = Lowering::new(module, symbols);
        lowering.whole(entry)?;
        lowering.finish(entry)
    }
}

/// The kernel in the making.
pub(crate) struct Lowering<'m> {
    module: &'m Module,
    symbols: &'m BTreeMap<String, u64>,
    numbers: HashMap<&'m str, usize>,
    steps: Vec<Step>,
    places: Vec<Position>,
    constants: Vec<Lanes>,
    constant_of: HashMap<u64, u32>,
    /// Constants that are offsets from the start of dynamic shared memory.
    dynamic: Vec<u32>,
    dynamic_align: u64,
    shared: HashMap<String, u64>,
    shared_end: u64,
    /// Functions to lower, in the order in which they were named, with their index.
    wanted: Vec<&'m Function>,
    index_of: HashMap<usize, u32>,
    /// Whether a call goes to an address, so that every function may be called.
    calls_addresses: bool,
}

impl<'m> Lowering<'m> {
    fn new(module: &'m Module, symbols: &'m BTreeMap<String, u64>) -> Self {
        // A definition wins over a declaration.
        let mut numbers = HashMap::new();
        for (number, function) in module.functions().enumerate() {
            if function.body.is_some() || !numbers.contains_key(function.name.as_str()) {
                numbers.insert(function.name.as_str(), number);
            }
        }
        Self {
            module,
            symbols,
            numbers,
            steps: Vec::new(),
            places: Vec::new(),
            constants: Vec::new(),
            constant_of: HashMap::new(),
            dynamic: Vec::new(),
            dynamic_align: DYNAMIC_ALIGN,
            shared: HashMap::new(),
            shared_end: 0,
            wanted: Vec::new(),
            index_of: HashMap::new(),
            calls_addresses: false,
        }
    }

    fn function(&self, name: &str) -> Option<(usize, &'m Function)> {
        let number = *self.numbers.get(name)?;
        Some((number, self.module.functions().nth(number)?))
    }

    /// The index of a function in the kernel, which is lowered later.
    fn want(&mut self, number: usize, function: &'m Function) -> u32 {
        let next = self.wanted.len() as u32;
        let index = *self.index_of.entry(number).or_insert(next);
        if index == next {
            self.wanted.push(function);
        }
        index
    }

    fn whole(&mut self, entry: &'m Function) -> Result<(), PtxError> {
        let (number, _) = self.function(&entry.name).unwrap_or((0, entry));
        self.want(number, entry);
        Ok(())
    }

    fn finish(mut self, entry: &'m Function) -> Result<Kernel, PtxError> {
        let mut functions = Vec::new();
        let mut at = 0;
        while at < self.wanted.len() {
            let function = self.wanted[at];
            functions.push(Body::lower(&mut self, function, table::lower)?);
            at += 1;
            if at == self.wanted.len() && std::mem::take(&mut self.calls_addresses) {
                functions.resize(at, Callable::default());
                self.lower_rest(&mut functions);
                at = self.wanted.len();
            }
        }
        let start = self.shared_end.next_multiple_of(self.dynamic_align);
        let is_dynamic = !self.dynamic.is_empty();
        for constant in &self.dynamic {
            for lane in &mut self.constants[*constant as usize] {
                *lane = lane.wrapping_add(start);
            }
        }
        let mut by_number = vec![None; self.numbers.len().max(self.module.functions().count())];
        for (number, index) in &self.index_of {
            by_number[*number] = Some(*index);
        }
        let layout = entry.layout().unwrap_or_default();
        let param_bytes = layout.iter().map(|(at, bytes)| at + bytes).max().unwrap_or(0);
        Ok(Kernel {
            name: entry.name.clone(),
            steps: self.steps,
            places: self.places,
            constants: self.constants,
            functions,
            by_number,
            shared_bytes: (if is_dynamic { start } else { self.shared_end }) as u32,
            param_bytes: param_bytes as u32,
        })
    }

    /// Lowers every other function of the module, for calls by address. One with an unknown
    /// instruction is left out: calling it is a fault.
    fn lower_rest(&mut self, functions: &mut Vec<Callable>) {
        for (number, function) in self.module.functions().enumerate() {
            if function.is_entry || function.body.is_none() || self.index_of.contains_key(&number) {
                continue;
            }
            let (steps, wanted) = (self.steps.len(), self.wanted.len());
            self.want(number, function);
            let mut lowered = Vec::new();
            let mut failed = false;
            while wanted + lowered.len() < self.wanted.len() {
                let next = self.wanted[wanted + lowered.len()];
                match Body::lower(self, next, table::lower) {
                    Ok(made) => lowered.push(made),
                    Err(_) => {
                        failed = true;
                        break;
                    }
                }
            }
            if failed {
                self.steps.truncate(steps);
                self.places.truncate(steps);
                self.wanted.truncate(wanted);
                self.index_of.retain(|_, index| (*index as usize) < wanted);
            } else {
                functions.extend(lowered);
            }
        }
        self.calls_addresses = false;
    }

    /// A constant.
    fn constant(&mut self, value: u64) -> Source {
        let constants = &mut self.constants;
        let index = *self.constant_of.entry(value).or_insert_with(|| {
            constants.push([value; LANES]);
            constants.len() as u32 - 1
        });
        Source::Constant(index)
    }

    /// The address of a variable outside functions, with its space.
    fn variable(&mut self, name: &str, offset: i64) -> Option<Result<(Space, Source), String>> {
        let variable = self.module.variables().find(|variable| variable.name == name)?;
        Some(match variable.space {
            Space::Shared => {
                // Open arrays are the dynamic memory, wherever they are declared.
                if variable.bytes() == Some(0) {
                    self.constants.push([offset as u64; LANES]);
                    let constant = self.constants.len() as u32 - 1;
                    self.dynamic.push(constant);
                    self.dynamic_align = self.dynamic_align.max(variable.alignment().into());
                    return Some(Ok((Space::Shared, Source::Constant(constant))));
                }
                let known = self.shared.get(name).copied();
                let at = known.map_or_else(
                    || {
                        let at = self.shared_room(variable.bytes(), variable.alignment())?;
                        self.shared.insert(name.to_owned(), at);
                        Ok(at)
                    },
                    Ok,
                );
                at.map(|at| (Space::Shared, self.constant(at.wrapping_add_signed(offset))))
            }
            space @ (Space::Global | Space::Const) => match self.symbols.get(name) {
                Some(at) => Ok((space, self.constant(at.wrapping_add_signed(offset)))),
                None => Err("the variable has no address: another module defines it".to_owned()),
            },
            _ => Err("a variable outside functions is in .global, .const or .shared".to_owned()),
        })
    }

    /// Room in a block's shared memory.
    fn shared_room(&mut self, bytes: Option<u64>, align: u32) -> Result<u64, String> {
        let at = self.shared_end.next_multiple_of(u64::from(align));
        let end = bytes.and_then(|bytes| at.checked_add(bytes)).filter(|end| *end <= u64::from(u32::MAX));
        self.shared_end = end.ok_or("the variables in shared memory have more than 4 GiB")?;
        Ok(at)
    }
}
