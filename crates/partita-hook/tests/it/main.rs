//! The tests of the hook, as one program: it links once, and its tests run beside each other. Those
//! that measure delays (`waiting`), and those that GPUs elsewhere run (`sequences`), have programs
//! of their own.

#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod exports;
mod floors;
mod graphs;
mod harmless;
mod launch_path;
mod mechanism;
mod names;
mod several;
mod torn;
