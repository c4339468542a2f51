//! Kernels of programs: the interpreter runs their blocks when and where the model places them.
//!
//! A block runs as soon as it is placed, and the model lets it last as long as its instructions
//! take. While blocks run, the model's clock stands still, so that the time of the interpreter
//! does not count. A launch whose blocks do not end soon may wait for something outside of it;
//! then the clock goes on, and the blocks run in slices until they end.

use std::collections::VecDeque;

use partita_abi::CuResult;
use partita_interpreter::{Block, Failure, Fault, Launch, Memory, Progress, Start};
use partita_sim::{Engine, WorkId};

use super::client::Client;
use super::effects::Reach;
use super::phys::PhysMemory;
use super::{Board, ClientId};
use crate::shared::sys::monotonic_ns;

/// Steps of a block before it counts as slow, if no other does.
const FIRST_STEPS: u64 = 200_000;
/// Steps of a slow block before the next one's turn.
const SLICE_STEPS: u64 = 20_000;
/// Steps of a launch's slow blocks until the model's clock goes on.
const HOLD_STEPS: u64 = 4_000_000;
/// Steps of all blocks before clients have their turn.
const PASS_STEPS: u64 = 400_000;
/// Steps of a launch for which the clock does not wait, before it pauses for as long as they took.
const LATE_STEPS: u64 = 100_000;

/// A launch of a program's kernel.
#[derive(Debug)]
pub struct Execution {
    /// Whose it is.
    pub client: ClientId,
    /// What is run.
    pub launch: Launch,
    /// How long each block lasts, if the environment says so.
    pub declared_ns: Option<u64>,
    /// Blocks that were placed and have not run.
    placed: VecDeque<Start>,
    /// Blocks that have not ended.
    slow: VecDeque<Block>,
    /// Steps of those.
    slow_steps: u64,
    /// When a late one may run again, on the monotonic clock in nanoseconds.
    rests_until_ns: u64,
}

impl Execution {
    /// A launch without blocks on SMs.
    pub fn new(client: ClientId, launch: Launch, declared_ns: Option<u64>) -> Self {
        Self {
            client,
            launch,
            declared_ns,
            placed: VecDeque::new(),
            slow: VecDeque::new(),
            slow_steps: 0,
            rests_until_ns: 0,
        }
    }

    /// A block was placed.
    pub fn place(&mut self, start: Start) {
        self.placed.push_back(start);
    }

    /// Whether the model's clock no longer waits for it.
    pub fn is_late(&self) -> bool {
        self.slow_steps >= HOLD_STEPS && !self.slow.is_empty()
    }

    /// Whether the model's clock waits for it.
    fn holds_time(&self) -> bool {
        !self.placed.is_empty() || (!self.slow.is_empty() && !self.is_late())
    }

    /// Runs blocks for about so many steps.
    fn run(
        &mut self,
        engine: &mut Engine,
        work: WorkId,
        memory: &mut dyn Memory,
        steps: u64,
    ) -> Result<(), Box<Failure>> {
        let mut left = steps;
        while left > 0 {
            let (mut block, most) = if let Some(start) = self.placed.pop_front() {
                // Blocks that wait for each other must all have run before any can end.
                let most = if self.slow.is_empty() { FIRST_STEPS } else { SLICE_STEPS };
                (Block::new(&self.launch, start), most)
            } else if let Some(mut block) = self.slow.pop_front() {
                block.catch_up(&self.launch, engine.now());
                self.slow_steps += SLICE_STEPS;
                (block, SLICE_STEPS)
            } else {
                break;
            };
            let before = block.issued();
            match block.run(&self.launch, memory, most)? {
                Progress::Running => self.slow.push_back(block),
                Progress::Done => {
                    let length = self.declared_ns.unwrap_or_else(|| block.elapsed_ns(&self.launch));
                    left = left.saturating_sub((block.issued() - before).max(100));
                    // The work may have been killed meanwhile.
                    let _ = engine.end_block(work, block.start().block, length);
                    continue;
                }
            }
            left = left.saturating_sub(most);
        }
        Ok(())
    }
}

impl Board {
    /// Lets blocks of programs' kernels run. Returns whether any did.
    pub(super) fn interpret(&mut self) -> bool {
        if self.executions.is_empty() || self.standstill.is_some() {
            return false;
        }
        let works: Vec<WorkId> = self.executions.keys().copied().collect();
        let share = (PASS_STEPS / works.len() as u64).max(SLICE_STEPS);
        let mut any = false;
        for work in works {
            let Self { engine, clients, memory, executions, .. } = self;
            let Some(execution) = executions.get_mut(&work) else { continue };
            let Some(client) = clients.get(&execution.client) else { continue };
            // The blocks of a group that has no turn are frozen.
            if !engine.is_running(client.group) {
                continue;
            }
            let began = monotonic_ns();
            let is_late = execution.is_late() && execution.placed.is_empty();
            if execution.slow.is_empty() && execution.placed.is_empty()
                || is_late && began < execution.rests_until_ns
            {
                continue;
            }
            any = true;
            let mut reached = Reached::new(client, memory);
            let outcome = execution.run(engine, work, &mut reached, if is_late { LATE_STEPS } else { share });
            if is_late {
                let now = monotonic_ns();
                execution.rests_until_ns = now + (now - began);
            }
            if let Err(failure) = outcome {
                let id = execution.client;
                eprintln!("partita-simgpu: process {}: {failure}", client.pid);
                executions.remove(&work);
                self.fault(id, code_of(&failure.fault));
            }
        }
        any
    }

    /// Whether the model's clock waits for blocks.
    pub(super) fn holds_time(&self) -> bool {
        self.executions.values().any(|execution| {
            let client = self.clients.get(&execution.client);
            execution.holds_time() && client.is_some_and(|client| self.engine.is_running(client.group))
        })
    }

    /// Real time until blocks run for which the clock does not wait, in nanoseconds.
    pub(super) fn next_interpretation_ns(&self) -> Option<u64> {
        let now = monotonic_ns();
        let late = self.executions.values().filter(|execution| execution.is_late());
        late.map(|execution| execution.rests_until_ns.saturating_sub(now).max(1_000_000)).min()
    }
}

/// The error that a program gets for a fault.
fn code_of(fault: &Fault) -> CuResult {
    match fault {
        Fault::IllegalAddress(_) => CuResult::ILLEGAL_ADDRESS,
        Fault::Misaligned(_) => CuResult::MISALIGNED_ADDRESS,
        Fault::Trap | Fault::Deadlock { .. } => CuResult::LAUNCH_FAILED,
        Fault::Assertion => CuResult::ASSERT,
        Fault::BadCall(_) => CuResult::INVALID_PC,
        Fault::BadBarrier(_) => CuResult::ILLEGAL_INSTRUCTION,
        Fault::StackOverflow => CuResult::HARDWARE_STACK_ERROR,
    }
}

/// Ranges of memory that are remembered: a kernel uses a few arrays in turn.
const RANGES: usize = 4;

/// A range of mapped memory.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    bytes: u64,
    at: *mut u8,
    is_writable: bool,
}

/// The memory of a client, with the ranges that were used last. Mappings do not change while blocks
/// run: the board has one thread.
struct Reached<'a> {
    reach: Reach<'a>,
    ranges: [Option<Range>; RANGES],
    next: usize,
}

impl<'a> Reached<'a> {
    fn new(client: &'a Client, memory: &'a PhysMemory) -> Self {
        let reach = Reach { space: &client.space, memory, owner: client.owner };
        Self { reach, ranges: [None; RANGES], next: 0 }
    }

    /// The place of some bytes in this process, if they are in one piece here.
    fn find(&mut self, address: u64, bytes: u64, write: bool) -> Option<*mut u8> {
        let holds = |range: &&Range| {
            let offset = address.wrapping_sub(range.start);
            offset < range.bytes && bytes <= range.bytes - offset && (range.is_writable || !write)
        };
        if let Some(range) = self.ranges.iter().flatten().find(holds) {
            return Some(range.at.wrapping_add((address - range.start) as usize));
        }
        let (start, bytes_there, at, is_writable) = self.reach.space.range_at(self.reach.memory, address)?;
        let range = Range { start, bytes: bytes_there, at, is_writable };
        self.ranges[self.next % RANGES] = Some(range);
        self.next += 1;
        Some(&range).filter(holds).map(|range| range.at.wrapping_add((address - start) as usize))
    }
}

impl Memory for Reached<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        match self.find(address, into.len() as u64, false) {
            Some(from) => {
                // SAFETY: the bytes lie in a live mapping; the client may write there meanwhile,
                // and a torn value is what hardware would read as well.
                unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
                true
            }
            None => self.reach.read(address, into).is_ok(),
        }
    }

    fn write(&mut self, address: u64, from: &[u8]) -> bool {
        match self.find(address, from.len() as u64, true) {
            Some(to) => {
                // SAFETY: as in `read`.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
                true
            }
            None => self.reach.write(address, from).is_ok(),
        }
    }
}
