//! The victim's latency beside a neighbour under each way of sharing, on the model and as measured
//! on an H200.
//!
//! Not all of it is prediction: the slice and the cost of a turn in the catalogue, and the length
//! of the neighbour's kernels here, come from the same table. The model predicts the shape: which
//! waits occur, and that disjoint masks under one MPS server protect.
//!
//! `cargo run --release -p partita-sim --example sharing`

mod scenario;

use scenario::{Setting, percentile, run};

fn main() {
    println!("victim: 4 kernels of 190 µs every 2 ms; h200, model against measured");
    println!(
        "{:<42} {:>10} {:>10} {:>12} {:>12}",
        "setting", "p50 µs", "p99 µs", "measured p50", "measured p99"
    );
    for setting in Setting::ALL {
        let latencies = run(setting, 500);
        let (p50, p99) = setting.measured_us();
        println!(
            "{:<42} {:>10} {:>10} {p50:>12} {p99:>12}",
            setting.name(),
            percentile(&latencies, 50) / 1_000,
            percentile(&latencies, 99) / 1_000,
        );
    }
}
