//! Kernels that were rewritten into persistent blocks compute what they did before.

#[path = "../interpreter/gpu.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod gpu;
mod random;
mod refusals;
/// The sample kernels, all of them rewritten.
#[path = "../interpreter/samples.rs"]
mod samples;

/// Four blocks on each of four SMs, of which two are in the set. Eight blocks of a sample wait for
/// each other.
fn turns() -> Option<gpu::Turns> {
    Some(gpu::Turns {
        places: (0..16).map(|block| block % 4).collect(),
        slice: 300,
        sets: vec![(0, vec![1, 2])],
    })
}
