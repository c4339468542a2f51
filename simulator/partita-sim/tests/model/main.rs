//! The model, seen from outside.

mod figures;
mod hangs;
mod host;
mod pipeline;
mod properties;
mod sharing;

use partita_core::TpcSet;
use partita_sim::{
    BlockRecord, DeviceSpec, Engine, Event, EventKind, KernelWork, SchedulerSpec, StreamId, Time, WorkId,
    catalogue,
};

/// A catalogued device without any delays, so that expected times are sums of what a test gives.
fn bare(name: &str) -> DeviceSpec {
    let mut spec = catalogue::device(name).expect("a catalogued device");
    spec.scheduler = SchedulerSpec {
        launch_ns: 0,
        kernel_gap_ns: 0,
        block_start_ns: 0,
        block_interval_ps: 0,
        switch_ns: 0,
        preempt_ns: 0,
        ..spec.scheduler
    };
    spec.copy.latency_ns = 0;
    spec
}

/// A kernel whose blocks take an SM each: 1024 threads of 64 registers are its whole register file.
fn whole_sm(blocks: u64, ns: Time, enabled: TpcSet) -> KernelWork {
    KernelWork { regs_per_thread: 64, record_blocks: true, ..KernelWork::new(blocks, 1024, ns, enabled) }
}

fn submit(gpu: &mut Engine, stream: StreamId, kernel: KernelWork) -> WorkId {
    gpu.submit(stream, kernel).expect("a well-formed launch")
}

/// When a work was reported done.
fn done(events: &[Event], work: WorkId) -> Option<Time> {
    events.iter().find(|event| event.kind == EventKind::WorkDone { work }).map(|event| event.time)
}

/// When a work was reported started.
fn started(events: &[Event], work: WorkId) -> Option<Time> {
    events.iter().find(|event| event.kind == EventKind::WorkStarted { work }).map(|event| event.time)
}

/// SMs that these blocks ran on, in ascending order.
fn sms(blocks: &[BlockRecord]) -> Vec<u32> {
    let mut sms: Vec<u32> = blocks.iter().map(|block| block.sm).collect();
    sms.sort_unstable();
    sms.dedup();
    sms
}
