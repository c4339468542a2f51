//! MIG through NVML: what a GPU offers and has, and the calls that create and destroy instances.
//!
//! [`VgpuHost`] is the same for vGPUs.
//!
//! [`MigGpu`] belongs into a process of its own: NVML is never shut down, and a call can hang. It
//! never changes MIG mode.

mod calls;
mod error;
mod gpu;
mod vgpu;

pub use error::{MigError, MigFailure};
pub use gpu::{MigDevice, MigGpu, MigMode};
pub use vgpu::VgpuHost;
