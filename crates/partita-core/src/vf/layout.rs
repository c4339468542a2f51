//! What a device has.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::scheduler::SchedulerState;

/// Where a vGPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// On the device itself: mediated devices of GPUs before Ampere.
    Device,
    /// On the virtual function of this number, from 0 on.
    Function(u16),
}

/// A vGPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vgpu {
    /// Where it is.
    pub place: Place,
    /// The number of its type.
    pub kind: u32,
    /// The UUID of a mediated device. Empty where the driver has no such devices.
    pub uuid: String,
}

/// The only driver that may take a function (`driver_override`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The driver.
    pub driver: String,
    /// Whether it has the function.
    pub is_bound: bool,
}

/// What a device has at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// How many virtual functions are enabled. SR-IOV enables and disables them all together.
    pub functions: u16,
    /// The only drivers that may take functions, by their numbers.
    pub bindings: BTreeMap<u16, Binding>,
    /// The vGPUs, in ascending order.
    pub vgpus: Vec<Vgpu>,
    /// Whether vGPUs of several sizes may be on the device together; `None` if that is unknown or
    /// there is no such mode.
    pub is_mixed: Option<bool>,
    /// How the device divides time between vGPUs; `None` if that is unknown, or is to stay.
    pub scheduler: Option<SchedulerState>,
}
