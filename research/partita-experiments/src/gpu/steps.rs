//! The steps of a benchmark with their resources: memory, code, masks.

use partita_core::{Topology, TpcSet};
use partita_driver::{
    BlockRecord, Copies, Gpu, PreparedWork, ProcessMasks, StreamRef, WorkShape, Workload, Workloads, now_ns,
};

use super::describe;
use crate::dialect::{Benchmark, CopyRoute, Spin};
use crate::log::{BlockSpan, KernelRecord};
use crate::place;
use crate::program::{Code, KernelStep, Program, Step};

/// A step.
pub(super) enum Ready<'g, 'a> {
    Sleep(u64),
    Kernel(Box<Kernel<'g, 'a>>),
    Copy { route: CopyRoute, bytes: u64 },
    Fill { bytes: u64 },
    CpuWalk(CpuWalk),
    Synchronize,
}

pub(super) struct Kernel<'g, 'a> {
    work: PreparedWork<'g, 'a>,
    /// The set for this launch only.
    next: Option<TpcSet>,
    /// The constant fields of its record.
    record: KernelRecord,
}

impl Kernel<'_, '_> {
    pub(super) fn launch(
        &mut self,
        stream: StreamRef<'_>,
        masks: Option<ProcessMasks>,
    ) -> Result<KernelRecord, String> {
        let mut record = self.record.clone();
        if let (Some(set), Some(masks)) = (&self.next, masks) {
            masks.set_next(Some(set)).map_err(describe)?;
        }
        record.launch_ns[0] = now_ns();
        self.work.launch(stream).map_err(describe)?;
        record.launch_ns[1] = now_ns();
        Ok(record)
    }

    /// The record of its blocks, which have all ended.
    pub(super) fn read(&self, record: &mut KernelRecord) -> Result<(), String> {
        let blocks = self.work.records().map_err(describe)?;
        let start = blocks.iter().map(|block| block.start_ns).min().unwrap_or(0);
        let stop = blocks.iter().map(|block| block.stop_ns).max().unwrap_or(0);
        record.span_ns = [start, stop];
        let span = |block: &BlockRecord| BlockSpan {
            sm: block.sm,
            start_ns: block.start_ns,
            stop_ns: block.stop_ns,
        };
        record.blocks = blocks.iter().map(span).collect();
        Ok(())
    }
}

/// The host's own walk through its memory.
pub(super) struct CpuWalk {
    chain: Vec<u32>,
    accesses: u64,
}

impl CpuWalk {
    fn new(is_random: bool, accesses: u64, bytes: u64) -> Self {
        let words = (bytes / 4).clamp(1, u64::from(u32::MAX));
        // A long odd step never reads a line twice in a row.
        let step = if is_random { 2_654_435_761 % words } else { 1 };
        let chain = (0..words).map(|word| ((word + step) % words) as u32).collect();
        Self { chain, accesses }
    }

    /// Walks.
    pub(super) fn walk(&self) {
        let mut at = 0;
        for _ in 0..self.accesses {
            at = std::hint::black_box(self.chain[at as usize]);
        }
    }
}

/// The resources for making steps.
pub(super) struct Maker<'m, 'g, 'a> {
    pub gpu: &'g Gpu<'a>,
    pub workloads: &'m Workloads<'g, 'a>,
    pub topology: &'m Topology,
    pub one: &'m Benchmark,
}

/// The three parts of an iteration, and the memory of their copies.
pub(super) type Parts<'g, 'a> = ([Vec<Ready<'g, 'a>>; 3], Option<Copies<'a>>);

impl<'g, 'a> Maker<'_, 'g, 'a> {
    /// Prepares a program.
    pub(super) fn program(&self, program: Program) -> Result<Parts<'g, 'a>, String> {
        let parts = [program.copy_in, program.execute, program.copy_out];
        let bytes = parts.iter().flatten().filter_map(|step| match step {
            Step::Copy { bytes, .. } | Step::Fill { bytes } => Some(*bytes),
            _ => None,
        });
        let bytes = bytes.max().map(usize::try_from).transpose().map_err(describe)?;
        let copies = bytes.map(|bytes| Copies::new(self.gpu, bytes)).transpose().map_err(describe)?;
        let mut ready = [Vec::new(), Vec::new(), Vec::new()];
        for (ready, steps) in ready.iter_mut().zip(parts) {
            for step in steps {
                ready.push(self.step(step)?);
            }
        }
        Ok((ready, copies))
    }

    fn step(&self, step: Step) -> Result<Ready<'g, 'a>, String> {
        Ok(match step {
            Step::Sleep(ns) => Ready::Sleep(ns),
            Step::Kernel(step) => Ready::Kernel(Box::new(self.kernel(&step)?)),
            Step::Copy { route, bytes } => Ready::Copy { route, bytes },
            Step::Fill { bytes } => Ready::Fill { bytes },
            Step::CpuWalk { is_random, accesses, bytes } => {
                Ready::CpuWalk(CpuWalk::new(is_random, accesses, bytes))
            }
            Step::Synchronize => Ready::Synchronize,
        })
    }

    fn kernel(&self, step: &KernelStep) -> Result<Kernel<'g, 'a>, String> {
        let ([x, y, _], [bx, by, _]) = (step.grid.0, step.block.0);
        let shape = WorkShape { grid: [x, y], block: [bx, by], shared_bytes: step.shared_bytes };
        let work = match step.code {
            Code::Spin(Spin::Timer { ns }) => Workload::Timer { ns },
            Code::Spin(Spin::Counter { loops }) => Workload::Counter { loops },
            Code::Mandelbrot { pixels, rounds_max } => Workload::Mandelbrot { pixels, rounds_max },
            Code::MatrixMultiply { width } => Workload::Matmul { width },
            Code::Walk { is_random, accesses, bytes } => Workload::Walk { is_random, accesses, bytes },
        };
        let next = step.sm_mask.map(|mask| place::enabled(self.one, mask, self.topology)).transpose();
        Ok(Kernel {
            work: self.workloads.prepare(work, shape).map_err(describe)?,
            next: next.map_err(describe)?,
            record: KernelRecord {
                name: step.name.clone(),
                block_count: step.grid.count(),
                thread_count: step.block.count() as u32,
                shared_bytes: step.shared_bytes,
                ..KernelRecord::default()
            },
        })
    }
}
