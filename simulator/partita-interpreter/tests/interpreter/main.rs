//! The interpreter, on single instructions, on kernels that show a behaviour, and on samples.

mod behaviour;
mod gpu;
mod instructions;
mod samples;
