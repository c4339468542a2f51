//! A GPU for the tests: memory, and all blocks of a launch at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;

use partita_interpreter::{
    Block, Failure, Kernel, Launch, Memory, Progress, Start, function_address, initial_bytes,
};
use partita_ptx::Module;
use partita_ptx::module::Space;
use partita_ptx::persistent::{self, CONTROL_BYTES, Turn};

/// First address of the memory.
const BASE: u64 = 0x7_0000_0000;
/// Steps of a block before the next one's turn.
const SLICE: u64 = 20_000;
/// Slices of all blocks after which a launch counts as endless.
const SLICES_MAX: u64 = 2_000_000;

pub struct Gpu {
    pub memory: Vec<u8>,
    /// Instructions of all launches.
    pub issued: u64,
    /// How kernels are run as persistent blocks, if they are.
    pub turns: Option<Turns>,
}

impl Default for Gpu {
    fn default() -> Self {
        Self { memory: Vec::new(), issued: 0, turns: crate::turns() }
    }
}

/// How kernels are run as persistent blocks.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Blocks of the device, as they lie on its four SMs.
    pub places: Vec<u32>,
    /// Steps of a block before the next one's turn.
    pub slice: u64,
    /// The set of SMs, and after how many slices the next one is in force.
    pub sets: Vec<(u64, Vec<u32>)>,
}

/// A module with its variables in memory.
pub struct Loaded {
    pub module: Module,
    pub symbols: BTreeMap<String, u64>,
}

/// A launch's grid, block and dynamic shared memory.
#[derive(Clone, Copy)]
pub struct Shape(pub [u32; 3], pub [u32; 3], pub u32);

impl Memory for Gpu {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.range(address, into.len()) else { return false };
        into.copy_from_slice(&self.memory[from]);
        true
    }

    fn write(&mut self, address: u64, from: &[u8]) -> bool {
        let Some(to) = self.range(address, from.len()) else { return false };
        self.memory[to].copy_from_slice(from);
        true
    }
}

impl Gpu {
    fn range(&self, address: u64, bytes: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let end = start.checked_add(bytes)?;
        (end <= self.memory.len()).then_some(start..end)
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> u64 {
        self.memory.resize(self.memory.len().next_multiple_of(256), 0);
        let at = BASE + self.memory.len() as u64;
        self.memory.extend_from_slice(bytes);
        at
    }

    pub fn words(&mut self, words: &[u32]) -> u64 {
        self.bytes(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub fn floats(&mut self, floats: &[f32]) -> u64 {
        self.words(&floats.iter().map(|float| float.to_bits()).collect::<Vec<u32>>())
    }

    pub fn get(&self, address: u64, bytes: usize) -> &[u8] {
        &self.memory[self.range(address, bytes).unwrap()]
    }

    pub fn get_words(&self, address: u64, count: usize) -> Vec<u32> {
        self.get(address, count * 4).as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
    }

    pub fn get_floats(&self, address: u64, count: usize) -> Vec<f32> {
        self.get_words(address, count).into_iter().map(f32::from_bits).collect()
    }

    pub fn get_longs(&self, address: u64, count: usize) -> Vec<u64> {
        self.get(address, count * 8).as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight)).collect()
    }

    pub fn load(&mut self, text: &str) -> Loaded {
        let mut module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
        if self.turns.is_some() {
            let rewritten = persistent::rewrite(&module);
            assert_eq!(rewritten.refused, [], "{text}");
            // What is printed is what a driver gets.
            module = Module::parse(&rewritten.module.to_string()).unwrap_or_else(|error| panic!("{error}"));
        }
        let mut symbols = BTreeMap::new();
        let kept: Vec<_> = module
            .variables()
            .filter(|variable| matches!(variable.space, Space::Global | Space::Const))
            .cloned()
            .collect();
        for variable in &kept {
            let at = self.bytes(&vec![0; variable.bytes().unwrap() as usize]);
            symbols.insert(variable.name.clone(), at);
        }
        for variable in &kept {
            let address = |name: &str| symbols.get(name).copied().or_else(|| function_address(&module, name));
            let bytes = initial_bytes(variable, address).unwrap();
            assert!(self.write(symbols[&variable.name], &bytes));
        }
        Loaded { module, symbols }
    }

    /// Runs a kernel whose parameters are given as words of four or eight bytes.
    pub fn launch(
        &mut self,
        loaded: &Loaded,
        name: &str,
        Shape(grid, block, dynamic_shared): Shape,
        params: &[u64],
    ) -> Result<Vec<u64>, Box<Failure>> {
        let kernel =
            Kernel::new(&loaded.module, name, &loaded.symbols).unwrap_or_else(|error| panic!("{error}"));
        let function = loaded.module.functions().find(|function| function.name == name).unwrap();
        let mut bytes = vec![0; kernel.param_bytes() as usize];
        let layout = function.layout().unwrap();
        if let Some((turn, _)) = layout.last().filter(|_| self.turns.is_some()) {
            bytes.truncate(*turn as usize);
        }
        for ((at, length), value) in layout.into_iter().zip(params) {
            let length = length as usize;
            bytes[at as usize..][..length].copy_from_slice(&value.to_le_bytes()[..length]);
        }
        self.launch_with(Launch {
            kernel: Arc::new(kernel),
            params: bytes,
            grid,
            block,
            dynamic_shared,
            number: 1,
            sms: 4,
            clock_khz: 1_000_000,
        })
    }

    /// Runs a launch; returns how long each block took.
    pub fn launch_with(&mut self, launch: Launch) -> Result<Vec<u64>, Box<Failure>> {
        if let Some(turns) = self.turns.clone() {
            return self.launch_in_turns(launch, &turns);
        }
        let count: u64 = launch.grid.iter().map(|size| u64::from(*size)).product();
        let start = |block| Start { block, sm: block as u32 % launch.sms, at_ns: 5_000 };
        let mut blocks: Vec<Block> = (0..count).map(|block| Block::new(&launch, start(block))).collect();
        let mut ended = vec![None; blocks.len()];
        let mut slices = 0;
        while ended.iter().any(Option::is_none) {
            for (block, ended) in blocks.iter_mut().zip(&mut ended).filter(|(_, ended)| ended.is_none()) {
                slices += 1;
                assert!(slices < SLICES_MAX, "the kernel does not end");
                if block.run(&launch, self, SLICE)? == Progress::Done {
                    *ended = Some(block.elapsed_ns(&launch));
                    self.issued += block.issued();
                }
            }
        }
        Ok(ended.into_iter().flatten().collect())
    }

    /// Runs a launch of a rewritten kernel, whose last parameter is still missing.
    fn launch_in_turns(&mut self, mut launch: Launch, turns: &Turns) -> Result<Vec<u64>, Box<Failure>> {
        let control = self.bytes(&[0; CONTROL_BYTES]);
        let set = self.bytes(&persistent::set_bytes(1, turns.sets[0].1.iter().copied()));
        let done = self.words(&[0]);
        let blocks = turns.places.len() as u32;
        let turn = Turn { control, set, grid: launch.grid, blocks, done };
        launch.params.resize(launch.params.len().next_multiple_of(8), 0);
        launch.params.extend(turn.to_bytes());
        launch.params.resize(launch.kernel.param_bytes() as usize, 0);
        launch.grid = [blocks, 1, 1];
        let start = |(block, sm): (usize, &u32)| Start { block: block as u64, sm: *sm, at_ns: 5_000 };
        let mut blocks: Vec<Block> =
            turns.places.iter().enumerate().map(|place| Block::new(&launch, start(place))).collect();
        let mut ended = vec![None; blocks.len()];
        let (mut slices, mut epoch) = (0, 1);
        while ended.iter().any(Option::is_none) {
            for (block, ended) in blocks.iter_mut().zip(&mut ended).filter(|(_, ended)| ended.is_none()) {
                slices += 1;
                assert!(slices < SLICES_MAX, "the kernel does not end");
                if let Some((_, sms)) = turns.sets.get(epoch).filter(|(from, _)| *from <= slices) {
                    epoch += 1;
                    assert!(self.write(set, &persistent::set_bytes(epoch as u32, sms.iter().copied())));
                }
                if block.run(&launch, self, turns.slice)? == Progress::Done {
                    *ended = Some(block.elapsed_ns(&launch));
                    self.issued += block.issued();
                }
            }
        }
        assert_eq!(self.get(control, CONTROL_BYTES), [0; CONTROL_BYTES], "the next launch begins anew");
        assert_eq!(self.get_words(done, 1), [1]);
        Ok(ended.into_iter().flatten().collect())
    }
}
