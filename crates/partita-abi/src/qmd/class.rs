//! [`QmdClass`]: the descriptors of a generation of GPUs.

use super::{QmdLayout, QmdVersion};

/// A generation's compute class and the versions that its header defines.
///
/// From the class headers in `NVIDIA/open-gpu-doc`, `classes/compute`; the compute capabilities are
/// those of the GPUs that expose the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdClass {
    /// The class's name, such as `HOPPER_COMPUTE_A`.
    pub name: &'static str,
    /// Compute capabilities (major × 10 + minor) of the class.
    pub capabilities: &'static [u32],
    /// The versions that the class's QMD header defines.
    pub versions: &'static [QmdVersion],
    /// Those that have a TPC mask.
    pub masked: &'static [QmdVersion],
    /// The layouts of those, in the same order.
    pub(super) layouts: &'static [&'static QmdLayout],
}
