//! Device memory: charged when a program allocates it, credited when it is released.

pub mod allocations;
pub mod device;
pub mod driver_memory;
pub mod graph_memory;
pub mod holdings;
pub mod imports;
pub mod managed;
pub mod multicast;
pub mod pools;
pub mod shares;
pub mod spill;
pub mod spilled;
pub mod stream_memory;
pub mod vmm;
