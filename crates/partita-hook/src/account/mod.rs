//! The tenant that this process belongs to, and its account and limits on each GPU.

pub mod environment;
pub mod gpu;
pub mod graph_gpus;
pub mod launch_mask;
pub mod locate;
pub mod origin;
pub mod per_gpu;
pub mod presence;
pub mod tenant;
