//! The costs of the experiments' kernels on a device: the model's only input that depends on code.
//!
//! Every device's model uses the costs beside the kernels in `partita_abi::workloads`. With a GPU
//! they are measured there instead, once, each by a kernel alone on the idle GPU:
//! `research/bench/experiments/costs.json`. None of these kernels is compared in an experiment.

use partita_abi::workloads::{
    CACHED_READ_NS, COUNTER_CYCLES, COUNTER_INSTRUCTIONS, DRAM_READ_NS, MANDELBROT_OPERATIONS,
    MATMUL_PEAK_PERMILLE,
};
use serde::{Deserialize, Serialize};

/// The kernels' costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Clock cycles of one round of the counter, for a single warp.
    pub counter_cycles: f64,
    /// Issue slots of a warp for that round.
    pub counter_instructions: f64,
    /// Part of the FP32 peak that the matrix product reaches, in thousandths.
    pub matmul_peak_permille: f64,
    /// FP32 operations of one round of a pixel.
    pub mandelbrot_operations: f64,
    /// A dependent read from DRAM, in nanoseconds.
    pub dram_read_ns: f64,
    /// One that finds its line in a cache, in nanoseconds.
    pub cached_read_ns: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            counter_cycles: COUNTER_CYCLES as f64,
            counter_instructions: COUNTER_INSTRUCTIONS as f64,
            matmul_peak_permille: MATMUL_PEAK_PERMILLE as f64,
            mandelbrot_operations: MANDELBROT_OPERATIONS as f64,
            dram_read_ns: DRAM_READ_NS as f64,
            cached_read_ns: CACHED_READ_NS as f64,
        }
    }
}
