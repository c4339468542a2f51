//! One time-slice group: its kernels, its SMs' state, and its own clock, which stops while others
//! run.

mod dispatch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::bandwidth::Pace;
use crate::contended::Contended;
use crate::lanes::{Demand, Lanes};
use crate::layout::{Layout, SmSet};
use crate::never::NeverRuns;
use crate::pipeline::Pipeline;
use crate::sm::{Footprint, SmFree};
use crate::spec::DeviceSpec;
use crate::{BlockRecord, Stats, Time};

/// A group's view of the engine.
pub(crate) struct Context<'a> {
    pub(crate) spec: &'a DeviceSpec,
    pub(crate) layout: &'a Layout,
    pub(crate) seed: u64,
    /// The engine's time.
    pub(crate) now: Time,
}

/// A group's reports to the engine.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// A kernel's first block was placed.
    Started { work: u64 },
    /// A block of an open kernel was placed.
    Block { work: u64, block: u64, sm: u32, start_ns: Time },
    /// A kernel's last block ended.
    Done { work: u64, records: Option<Vec<BlockRecord>> },
}

/// A kernel at the device.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) work: u64,
    pub(crate) priority: i32,
    pub(crate) footprint: Footprint,
    pub(crate) allowed: SmSet,
    /// Blocks not yet placed.
    pub(crate) remaining: u64,
    /// Blocks on SMs.
    pub(crate) resident: u64,
    pub(crate) grid_blocks: u64,
    pub(crate) cluster_blocks: u32,
    pub(crate) cooperative: bool,
    pub(crate) block_ns: Time,
    pub(crate) jitter_permille: u16,
    /// The demand of one block on its SM, in thousandths; 0 for blocks that do not contend there.
    pub(crate) sm_permille: u64,
    /// Whether its blocks use a memory clock of their GPC.
    pub(crate) touches_memory: bool,
    /// The demand of one block.
    pub(crate) demand: Demand,
    pub(crate) records: Option<Vec<BlockRecord>>,
    /// Blocks of an open kernel without an end: the cohort, and when its first instruction runs,
    /// by the group's clock.
    pub(crate) open: Option<BTreeMap<u64, (u32, Time)>>,
    pub(crate) never: Option<NeverRuns>,
}

impl Task {
    /// Whether each block is tracked separately rather than together with those placed at the same
    /// time.
    pub(crate) fn is_split(&self) -> bool {
        self.records.is_some() || self.jitter_permille > 0 || self.open.is_some()
    }
}

/// Blocks of one kernel that were placed on one SM at one time and end together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cohort {
    pub(crate) task: u64,
    /// Number of the block, if blocks are tracked separately.
    pub(crate) block: u64,
    /// First instruction, engine's time.
    pub(crate) start_ns: Time,
    pub(crate) count: u32,
    /// Position of the SM.
    pub(crate) sm: u16,
    pub(crate) live: bool,
}

type Queue = BinaryHeap<Reverse<(Time, u32)>>;

/// One time-slice group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) pipeline: Pipeline,
    pub(crate) tasks: crate::arena::Arena<Task>,
    pub(crate) sms: Vec<SmFree>,
    /// SMs on which blocks ended since the distributor's last round.
    pub(crate) dirty: SmSet,
    pub(crate) cohorts: Vec<Cohort>,
    pub(crate) cohorts_free: Vec<u32>,
    /// Ends of blocks without contention, by `clock`.
    pub(crate) by_time: Queue,
    /// Blocks that touch memory.
    pub(crate) memory: Lanes,
    /// Blocks that contend for their SM and touch no memory.
    pub(crate) contended: Contended,
    /// Time that the group has run.
    pub(crate) clock: Time,
    /// Blocks on SMs.
    pub(crate) resident: u64,
    /// Resident blocks of kernels that keep records.
    pub(crate) recorded: u64,
    /// Whether a kernel arrived or a block ended since the distributor's last round.
    pub(crate) wants_round: bool,
    /// When the distributor can place the next block, by `clock`.
    pub(crate) distributor_free: Time,
    /// Kernels that have not reached the task management unit yet.
    pub(crate) arriving: u32,
    /// When the group last stopped running, engine's time.
    frozen_at: Option<Time>,
    pub(crate) scratch: dispatch::Scratch,
}

impl Group {
    /// An idle group, not running.
    pub(crate) fn new(spec: &DeviceSpec, layout: &Layout) -> Self {
        Self {
            pipeline: Pipeline::new(spec.scheduler.task_slots),
            tasks: crate::arena::Arena::default(),
            sms: vec![SmFree::new(&spec.sm); layout.sm_count()],
            dirty: SmSet::default(),
            cohorts: Vec::new(),
            cohorts_free: Vec::new(),
            by_time: Queue::new(),
            memory: Lanes::new(spec, layout),
            contended: Contended::new(layout.sm_count()),
            clock: 0,
            resident: 0,
            recorded: 0,
            wants_round: false,
            distributor_free: 0,
            arriving: 0,
            frozen_at: None,
            scratch: dispatch::Scratch::default(),
        }
    }

    /// Whether the compute engine has anything to run, even a stuck launch.
    pub(crate) fn is_runnable(&self) -> bool {
        self.resident > 0 || self.pipeline.has_undispatched()
    }

    /// Whether the group would progress if it ran: not if it has only launches that can never be
    /// dispatched.
    pub(crate) fn can_progress(&self) -> bool {
        self.resident > 0 || self.wants_round
    }

    /// A kernel reaches the task management unit.
    pub(crate) fn arrive(&mut self, task: Task) -> u64 {
        let priority = task.priority;
        let handle = self.tasks.insert(task);
        self.pipeline.arrive(handle, priority);
        self.wants_round = true;
        handle
    }

    /// How long the group must run until its next event.
    #[inline]
    pub(crate) fn until_next(&self, pace: Pace) -> Option<Time> {
        let mut next = Time::MAX;
        if let Some(&Reverse((due, _))) = self.by_time.peek() {
            next = due.saturating_sub(self.clock);
        }
        next = next.min(self.contended.next_due().saturating_sub(self.clock));
        next = next.min(self.memory.until_next(pace));
        if self.wants_round {
            next = next.min(self.distributor_free.saturating_sub(self.clock));
        }
        (next < Time::MAX).then_some(next)
    }

    /// Lets the group run for `dt`; no event may lie inside.
    #[inline]
    pub(crate) fn run(&mut self, dt: Time, pace: Pace) {
        self.clock += dt;
        self.memory.run(dt, pace);
    }

    /// Makes all due changes: blocks end, the distributor places others.
    pub(crate) fn settle(&mut self, context: &Context<'_>, notices: &mut Vec<Notice>, stats: &mut Stats) {
        self.end_due(context, notices, stats);
        if self.wants_round && self.distributor_free <= self.clock {
            self.round(context, notices, stats);
        }
    }

    /// Ends the blocks that are due.
    pub(crate) fn end_due(&mut self, context: &Context<'_>, notices: &mut Vec<Notice>, stats: &mut Stats) {
        while let Some(&Reverse((due, cohort))) = self.by_time.peek() {
            if due > self.clock {
                break;
            }
            self.by_time.pop();
            self.end(cohort, context, notices, stats);
        }
        while let Some(cohort) = self.contended.pop_due(self.clock) {
            self.end(cohort, context, notices, stats);
        }
        while let Some(cohort) = self.memory.pop_due() {
            self.end(cohort, context, notices, stats);
        }
    }

    #[inline]
    fn end(&mut self, index: u32, context: &Context<'_>, notices: &mut Vec<Notice>, stats: &mut Stats) {
        let cohort = self.cohorts[index as usize];
        let task = self.tasks.get_mut(cohort.task).expect("a resident block's kernel is known");
        let count = u64::from(cohort.count);
        task.resident -= count;
        if let Some(records) = &mut task.records {
            records.push(BlockRecord {
                block: cohort.block,
                sm: context.layout.smid(usize::from(cohort.sm)),
                start_ns: cohort.start_ns,
                stop_ns: context.now,
            });
        }
        let ended = task.resident == 0 && task.remaining == 0;
        self.vacate(index, context.layout);
        stats.blocks_done += count;
        self.wants_round |= self.pipeline.has_undispatched();
        if ended {
            self.pipeline.release_slot();
            let task = self.tasks.remove(cohort.task).expect("looked at just now");
            let records = task.records.map(|mut records| {
                records.sort_unstable_by_key(|record| record.block);
                records
            });
            notices.push(Notice::Done { work: task.work, records });
        }
    }

    /// Frees a cohort's resources on its SM.
    fn vacate(&mut self, index: u32, layout: &Layout) {
        let cohort = &mut self.cohorts[index as usize];
        cohort.live = false;
        self.cohorts_free.push(index);
        let task = self.tasks.get(cohort.task).expect("a resident block's kernel is known");
        let count = u64::from(cohort.count);
        self.sms[usize::from(cohort.sm)].give(&task.footprint, cohort.count);
        self.dirty.insert(usize::from(cohort.sm));
        if task.touches_memory {
            let gpc = layout.gpc_of(usize::from(cohort.sm));
            self.memory.ask(gpc, Demand::default(), task.demand.times(count));
        }
        if task.sm_permille > 0 {
            self.contended.ask(usize::from(cohort.sm), 0, task.sm_permille * count, self.clock);
        }
        self.resident -= count;
        if task.records.is_some() {
            self.recorded -= count;
        }
    }

    /// Sets the end of a block of an open kernel; returns whether it had none.
    pub(crate) fn end_open(&mut self, handle: u64, block: u64, length: Time) -> bool {
        let open = self.tasks.get_mut(handle).and_then(|task| task.open.as_mut());
        let Some((cohort, start)) = open.and_then(|open| open.remove(&block)) else { return false };
        let due = start.saturating_add(length).max(self.clock);
        self.by_time.push(Reverse((due, cohort)));
        true
    }

    /// Discards a kernel with its running blocks.
    pub(crate) fn kill(&mut self, handle: u64, layout: &Layout) {
        let Some(task) = self.tasks.get(handle) else { return };
        let (priority, allowed, placed_all) = (task.priority, task.allowed, task.remaining == 0);
        let (touches_memory, contends) = (task.touches_memory, task.sm_permille > 0);
        let mine: Vec<u32> = (0..self.cohorts.len() as u32)
            .filter(|&index| self.cohorts[index as usize].live && self.cohorts[index as usize].task == handle)
            .collect();
        for &index in &mine {
            self.vacate(index, layout);
        }
        let keep = |index: u32| mine.binary_search(&index).is_err();
        if touches_memory {
            self.memory.retain(keep);
        } else if contends {
            self.contended.retain(keep);
        } else {
            self.by_time.retain(|&Reverse((_, index))| keep(index));
        }
        if placed_all {
            self.pipeline.release_slot();
        } else {
            self.pipeline.remove(handle, priority);
        }
        // Others may now use the SMs that this kernel reserved.
        self.dirty.add(&allowed);
        self.tasks.remove(handle);
        self.wants_round |= self.pipeline.has_undispatched();
    }

    /// The group stops.
    pub(crate) fn freeze(&mut self, now: Time) {
        self.frozen_at = Some(now);
    }

    /// The group continues. Placed blocks that had not started start later by the time that passed.
    pub(crate) fn thaw(&mut self, now: Time) {
        let Some(frozen_at) = self.frozen_at.take() else { return };
        if self.recorded == 0 {
            return;
        }
        for cohort in self.cohorts.iter_mut().filter(|cohort| cohort.live && cohort.start_ns > frozen_at) {
            cohort.start_ns += now - frozen_at;
        }
    }

    /// Launches that can never be dispatched, with their works.
    pub(crate) fn stuck(&self) -> impl Iterator<Item = (u64, NeverRuns)> {
        self.tasks.iter().filter_map(|(_, task)| Some((task.work, task.never?)))
    }
}
