//! How many block events per second the model handles on one core: a block placed and a block ended are one each.
//!
//! `cargo run --release -p partita-sim --example throughput`

use std::time::Instant;

use partita_core::TpcSet;
use partita_sim::{Engine, GroupKind, KernelWork, catalogue};

/// Runs one case and prints its rate.
fn measure(name: &str, groups: usize, kernels: &[KernelWork], launches: usize) {
    let spec = catalogue::device("h200").expect("a catalogued device");
    let mut gpu = Engine::new(&spec, 1);
    for _ in 0..groups {
        let group = gpu.add_group(GroupKind::Mps);
        for kernel in kernels {
            let stream = gpu.add_stream(group, 0).expect("the group was just added");
            for _ in 0..launches {
                gpu.submit(stream, kernel.clone()).expect("a well-formed launch");
            }
        }
    }
    let begin = Instant::now();
    let mut events = Vec::new();
    while let Some(next) = gpu.next_event() {
        gpu.advance_into(next + 1_000_000, &mut events);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let stats = gpu.stats();
    let block_events = stats.blocks_started + stats.blocks_done;
    println!(
        "{name:<44} {block_events:>11} block events {:>8} rounds {seconds:>7.3} s {:>8.1} M events/s",
        stats.rounds,
        block_events as f64 / seconds / 1e6
    );
}

fn main() {
    let all = TpcSet::first(66);
    let plain = KernelWork::new(1_000_000, 256, 20_000, all);
    let jitter = KernelWork { jitter_permille: 100, ..plain.clone() };
    let recorded = KernelWork { record_blocks: true, ..plain.clone() };
    let memory = KernelWork { bytes_per_block: 400_000, jitter_permille: 100, ..plain.clone() };
    let small = KernelWork::new(132, 1024, 5_000, all);
    let halves = [
        KernelWork { enabled: TpcSet::range(0..33), ..jitter.clone() },
        KernelWork { enabled: TpcSet::range(33..66), ..jitter.clone() },
    ];
    let cluster = KernelWork { cluster_blocks: 4, jitter_permille: 100, ..plain.clone() };

    println!("h200, one core");
    measure("equal blocks", 1, std::slice::from_ref(&plain), 20);
    measure("blocks of differing length", 1, std::slice::from_ref(&jitter), 5);
    measure("every block recorded", 1, std::slice::from_ref(&recorded), 5);
    measure("differing length, memory-bound", 1, std::slice::from_ref(&memory), 5);
    measure("two tenants on disjoint halves", 1, &halves, 3);
    measure("two groups taking turns", 2, std::slice::from_ref(&jitter), 3);
    measure("clusters of four", 1, std::slice::from_ref(&cluster), 3);
    measure("small kernels back to back", 1, std::slice::from_ref(&small), 100_000);
}
