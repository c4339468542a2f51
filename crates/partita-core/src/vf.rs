//! Plans for virtual functions: SR-IOV, and the vGPUs that NVIDIA's driver makes on them.
//!
//! A [`Layout`] is what a device has: so many functions, a driver for some, vGPUs of some types.
//! [`plan`] returns the layout with the wanted vGPUs, or a [`Refusal`]. [`steps`] returns the
//! writes from one layout to another, with which a failed change is rolled back, too.

mod layout;
mod plan;
mod scheduler;
mod step;
#[cfg(test)]
mod tests;
mod types;

pub use layout::{Binding, Layout, Place, Vgpu};
pub use plan::{Board, Form, Refusal, of_ratio, plan};
pub use scheduler::{Averaging, Policy, SchedulerState};
pub use step::{Step, steps};
pub use types::{UnknownType, VgpuType, resolve};
