//! Plans for MIG: which instances of a GPU to destroy and to create, to get those that are wanted.
//!
//! NVML reports the profiles of a GPU, and the memory slices on which an instance of each can lie
//! ([`Profile`]). [`plan`] takes them with the present instances and returns the steps, or a
//! [`Refusal`]. [`towards`] returns the steps to an exact [`Layout`], with which a failed change is
//! rolled back.

mod instance;
mod name;
mod plan;
mod profile;
mod step;

pub use instance::{ComputeInstance, GpuInstance};
pub use name::{UnknownProfile, resolve};
pub use plan::{InstancePlan, Refusal, plan};
pub use profile::{Profile, Slot};
pub use step::{Layout, Placed, Step, layout_of, towards};
