//! The interpreter, on single instructions, on kernels that show a behaviour, and on samples.

mod behaviour;
mod gpu;
mod instructions;
mod samples;

/// Kernels run as they are.
fn turns() -> Option<gpu::Turns> {
    None
}
