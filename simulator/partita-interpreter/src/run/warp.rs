//! A warp: its threads, their registers, and who runs next.
//!
//! Each thread has a counter of its own. Those at the same place run together; among several places
//! the first one runs, so that threads which have taken different ways come together again where
//! the ways meet. Threads elsewhere have a turn after a while, so that one may wait for another.

use super::clock::{cycles_to_ns, ns_to_cycles};
use super::meeting::{Arrival, BARRIERS, Meetings, Member};
use super::{Fault, Launch, Memory, Start};
use crate::kernel::{Barrier, Kernel, Op, Register, Source};
use crate::lanes::{LANES, Lanes, Map};
use crate::math::bits;

/// Steps after which threads at later places have a turn.
const PATIENCE_STEPS: u64 = 2_000;
/// Steps of that turn.
const OTHERS_STEPS: u64 = 200;

/// What a warp uses of its block.
pub(super) struct Context<'a> {
    pub(super) launch: &'a Launch,
    pub(super) start: &'a Start,
    pub(super) shared: &'a mut Vec<u8>,
    pub(super) meetings: &'a mut Meetings,
    pub(super) memory: &'a mut dyn Memory,
    pub(super) issued: &'a mut u64,
}

/// Where a thread continues when its function returns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The step of the call.
    pub(super) call: u32,
    /// The caller's first row of registers.
    pub(super) base: u32,
    /// The caller's first byte of local memory.
    pub(super) local: u32,
    /// The function that was called.
    pub(super) callee: u32,
}

/// A warp.
#[derive(Clone, Debug)]
pub(super) struct Warp {
    pub(super) index: u32,
    /// Threads that have not ended.
    pub(super) alive: u32,
    /// Threads that wait at a barrier.
    pub(super) at_barrier: u32,
    /// Threads that wait for others of the warp.
    pub(super) waiting: u32,
    /// The next step of each thread.
    pub(super) next: [u32; LANES],
    /// The first row of registers of each thread's function.
    pub(super) bases: [u32; LANES],
    /// The first byte of local memory of each thread's function.
    pub(super) locals: [u32; LANES],
    /// Rows of registers: one value of each thread.
    pub(super) registers: Vec<Lanes>,
    pub(super) frames: Vec<Vec<Frame>>,
    /// Local memory of each thread, as far as it was written.
    pub(super) local: Vec<Vec<u8>>,
    pub(super) cycles: u64,
    /// The tick of the timer that was last read.
    pub(super) tick: Option<u64>,
    /// The step that runs, for reports of faults.
    pub(super) step: u32,
    /// Steps since others had a turn.
    hunger: u64,
    /// When each thread last had a turn.
    turns: [u64; LANES],
    turn: u64,
}

/// Threads that run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Together {
    pub(super) step: u32,
    pub(super) base: usize,
    /// All of them.
    pub(super) threads: u32,
    /// Those whose guard holds.
    pub(super) active: u32,
}

/// What follows a step.
pub(super) enum Flow {
    Next,
    To(u32),
    /// The threads' places are stored.
    Apart,
    /// As next, and another warp has its turn.
    Yield,
}

/// The threads of a mask.
pub(super) fn threads(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

impl Member for Warp {
    fn alive(&self) -> u32 {
        self.alive
    }

    fn cycles(&self) -> u64 {
        self.cycles
    }

    fn go_on(&mut self, of: u32, cycles: u64) {
        self.at_barrier &= !of;
        self.cycles = self.cycles.max(cycles);
    }

    fn set_row(&mut self, row: usize, of: u32, value: u64) {
        for lane in threads(of) {
            self.registers[row][lane] = value;
        }
    }
}

impl Warp {
    /// The warp of this index, of which `threads` threads are left.
    pub(super) fn new(kernel: &Kernel, index: u32, threads: u32) -> Self {
        let alive = if threads >= LANES as u32 { u32::MAX } else { (1 << threads) - 1 };
        let entry = &kernel.functions[0];
        Self {
            index,
            alive,
            at_barrier: 0,
            waiting: 0,
            next: [entry.entry; LANES],
            bases: [0; LANES],
            locals: [0; LANES],
            registers: vec![[0; LANES]; entry.registers as usize],
            frames: vec![Vec::new(); LANES],
            local: vec![Vec::new(); LANES],
            cycles: 0,
            tick: None,
            step: entry.entry,
            hunger: 0,
            turns: [0; LANES],
            turn: 0,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.alive == 0
    }

    fn ready(&self) -> u32 {
        self.alive & !self.at_barrier & !self.waiting
    }

    pub(super) fn can_run(&self) -> bool {
        self.ready() != 0
    }

    /// The thread whose group runs next, and whether it is the first one of the program.
    fn choose(&mut self, ready: u32) -> (usize, bool) {
        let is_others = self.hunger >= PATIENCE_STEPS;
        let key = |lane: usize| {
            if is_others { (self.turns[lane], 0) } else { (u64::from(self.next[lane]), self.turns[lane]) }
        };
        let lane = threads(ready).min_by_key(|lane| key(*lane)).unwrap_or(0);
        if is_others {
            self.hunger = 0;
        }
        (lane, !is_others)
    }

    /// Runs so many steps at most; returns how many there were.
    pub(super) fn run(&mut self, context: &mut Context<'_>, most: u64) -> (u64, Result<(), Fault>) {
        let kernel = &*context.launch.kernel;
        let mut spent = 0;
        while spent < most {
            let ready = self.ready();
            if ready == 0 {
                break;
            }
            let (lane, is_first) = self.choose(ready);
            let (mut at, base) = (self.next[lane], self.bases[lane]);
            let (mut together, mut other) = (0, u32::MAX);
            for lane in threads(ready) {
                if self.next[lane] == at && self.bases[lane] == base {
                    together |= 1 << lane;
                } else {
                    other = other.min(self.next[lane]);
                }
            }
            self.turn += 1;
            for lane in threads(together) {
                self.turns[lane] = self.turn;
            }
            let is_alone = together == ready;
            let limit = if is_first { most } else { most.min(spent + OTHERS_STEPS) };
            let before = spent;
            let mut is_apart = false;
            while spent < limit {
                let step = &kernel.steps[at as usize];
                spent += 1;
                self.step = at;
                if step.cycles > 0 {
                    self.cycles = self.cycles.saturating_add(step.cycles.into());
                    *context.issued += 1;
                }
                let mut active = together;
                if let Some((register, when)) = step.guard {
                    let row = &self.registers[base as usize + register as usize];
                    let truth = threads(together).fold(0, |mask, lane| mask | (row[lane] as u32 & 1) << lane);
                    active = if when { truth } else { together & !truth };
                    if active == 0 {
                        at += 1;
                        if is_first && !is_alone && at >= other {
                            break;
                        }
                        continue;
                    }
                }
                let group = Together { step: at, base: base as usize, threads: together, active };
                match self.step(context, kernel, &step.op, group) {
                    Err(fault) => return (spent, Err(fault)),
                    Ok(Flow::Next) => at += 1,
                    Ok(Flow::To(target)) => at = target,
                    Ok(Flow::Apart) => {
                        is_apart = true;
                        break;
                    }
                    Ok(Flow::Yield) => {
                        at += 1;
                        spent = spent.max(most);
                    }
                }
                if !is_alone {
                    let is_hungry = is_first && self.hunger + (spent - before) >= PATIENCE_STEPS;
                    if is_hungry || (is_first && at >= other) {
                        break;
                    }
                }
            }
            if !is_apart {
                for lane in threads(together) {
                    self.next[lane] = at;
                }
            }
            if !is_alone && is_first {
                self.hunger += spent - before;
            }
        }
        (spent, Ok(()))
    }

    /// Threads continue at different places: the active ones at `target`, the others behind.
    pub(super) fn part(&mut self, group: Together, target: u32) -> Flow {
        if group.active == group.threads {
            return Flow::To(target);
        }
        for lane in threads(group.threads) {
            let goes = group.active >> lane & 1 == 1;
            self.next[lane] = if goes { target } else { group.step + 1 };
        }
        Flow::Apart
    }

    #[inline]
    fn step(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        op: &Op,
        group: Together,
    ) -> Result<Flow, Fault> {
        match op {
            Op::Map { map, to, of } => {
                let mut out = [0; LANES];
                let [a, b, c] = of.map(|source| self.values(kernel, group.base, source));
                match map {
                    Map::One(map) => map(a, &mut out),
                    Map::Two(map) => map(a, b, &mut out),
                    Map::Three(map) => map(a, b, c, &mut out),
                }
                self.set(group, *to, &out);
            }
            Op::Lop3 { table, to, of } => {
                let [a, b, c] = of.map(|source| self.values(kernel, group.base, source));
                let out = std::array::from_fn(|lane| bits::lop3(*table, a[lane], b[lane], c[lane]));
                self.set(group, *to, &out);
            }
            Op::Convert { how, bits, to, of } => {
                let from = self.values(kernel, group.base, *of);
                let kept = crate::lanes::ones(*bits);
                let mut out = [0; LANES];
                for lane in threads(group.active) {
                    out[lane] = how.apply(from[lane]) & kept;
                }
                self.set(group, *to, &out);
            }
            Op::Special { what, to } => {
                let out = self.special(context, *what);
                self.set(group, *to, &out);
            }
            Op::Frame { to, offset } => {
                let out = std::array::from_fn(|lane| u64::from(self.locals[lane].wrapping_add(*offset)));
                self.set(group, *to, &out);
            }
            Op::Load { access, extend, to } => self.load(context, kernel, group, access, *extend, to)?,
            Op::Store { access, of } => self.store(context, kernel, group, access, of)?,
            Op::Atomic { access, change, ty, to, by, with } => {
                let by = *self.values(kernel, group.base, *by);
                let with = *self.values(kernel, group.base, *with);
                let old = self.atomic(context, kernel, group, access, (*change, *ty), &by, &with)?;
                if let Some(to) = to {
                    self.set(group, *to, &old);
                }
            }
            Op::Copy { to, from, given } => self.copy(context, kernel, group, to, from, *given)?,
            Op::Branch(target) => return Ok(self.part(group, *target)),
            Op::BranchIndexed { targets, index } => {
                let index = *self.values(kernel, group.base, *index);
                for lane in threads(group.threads) {
                    // An index without a target: what hardware does there is not defined.
                    let target = targets.get(index[lane] as usize).filter(|_| group.active >> lane & 1 == 1);
                    self.next[lane] = target.copied().unwrap_or(group.step + 1);
                }
                return Ok(Flow::Apart);
            }
            Op::Call(call) => return self.call(context, kernel, group, call),
            Op::Return => return self.leave(context, kernel, group),
            Op::Exit => return Ok(self.exit(context, group)),
            Op::Trap => return Err(Fault::Trap),
            Op::FailAssertion => return Err(Fault::Assertion),
            Op::Barrier(barrier) => return self.arrive(context, kernel, group, barrier),
            Op::Together { members, what } => {
                return Ok(self.together(kernel, group, *members, what));
            }
            Op::ActiveMask(to) => self.set(group, *to, &[u64::from(group.active); LANES]),
            Op::Sleep(time) => {
                let time = self.values(kernel, group.base, *time);
                let longest = threads(group.active).map(|lane| time[lane]).max().unwrap_or(0);
                let cycles = ns_to_cycles(longest, context.launch.clock_khz);
                self.cycles = self.cycles.saturating_add(cycles);
                return Ok(Flow::Yield);
            }
            Op::Nothing => {}
        }
        Ok(Flow::Next)
    }

    /// Threads end. Those that wait for them look again.
    pub(super) fn exit(&mut self, context: &mut Context<'_>, group: Together) -> Flow {
        self.alive &= !group.active;
        self.waiting = 0;
        context.meetings.look_again();
        for lane in threads(group.threads & !group.active) {
            self.next[lane] = group.step + 1;
        }
        Flow::Apart
    }

    fn arrive(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
        barrier: &Barrier,
    ) -> Result<Flow, Fault> {
        let lane = group.active.trailing_zeros() as usize;
        let number = self.values(kernel, group.base, barrier.number)[lane];
        if number >= BARRIERS {
            return Err(Fault::BadBarrier(number));
        }
        let needed = barrier.threads.map(|threads| self.values(kernel, group.base, threads)[lane] as u32);
        let census = barrier.census.map(|(census, value, to)| {
            let values = self.values(kernel, group.base, value);
            let yes = threads(group.active).fold(0, |mask, lane| mask | (values[lane] as u32 & 1) << lane);
            (census, yes, group.base + to as usize)
        });
        if barrier.waits {
            self.at_barrier |= group.active;
        }
        let arrival = Arrival {
            number: number as usize,
            warp: self.index as usize,
            threads: group.active,
            needed,
            waits: barrier.waits,
            census,
        };
        context.meetings.arrive(&arrival);
        if !barrier.waits {
            return Ok(Flow::Next);
        }
        for lane in threads(group.threads) {
            self.next[lane] = group.step + 1;
        }
        Ok(Flow::Apart)
    }

    // ---- registers ----

    /// The values of an operand.
    #[inline]
    pub(super) fn values<'a>(&'a self, kernel: &'a Kernel, base: usize, of: Source) -> &'a Lanes {
        match of {
            Source::Register(register) => &self.registers[base + register as usize],
            Source::Constant(constant) => &kernel.constants[constant as usize],
        }
    }

    /// Stores results of the active threads.
    #[inline]
    pub(super) fn set(&mut self, group: Together, to: Register, values: &Lanes) {
        let row = &mut self.registers[group.base + to as usize];
        if group.active == u32::MAX {
            *row = *values;
            return;
        }
        for lane in 0..LANES {
            if group.active >> lane & 1 == 1 {
                row[lane] = values[lane];
            }
        }
    }

    /// The time, in nanoseconds.
    pub(super) fn now_ns(&self, context: &Context<'_>) -> u64 {
        context.start.at_ns.saturating_add(cycles_to_ns(self.cycles, context.launch.clock_khz))
    }
}
