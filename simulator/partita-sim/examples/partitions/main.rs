//! Figures 3, 4, 11 and 12 of the partitioning paper as text: the kernels on each SM over time.
//!
//! `cargo run -p partita-sim --example partitions`

mod scenario;

use scenario::{all, picture, run, span_ms};

fn main() {
    for experiment in all() {
        let blocks = run(&experiment);
        println!("{}", experiment.title);
        for (sm, row) in picture(&blocks).iter().enumerate() {
            println!("  SM {sm} {row}");
        }
        for label in ['1', '2', 'K'] {
            let (start, stop) = span_ms(&blocks, label);
            if stop > 0 {
                println!("  {label}: from {start} to {stop} ms");
            }
        }
        println!();
    }
}
