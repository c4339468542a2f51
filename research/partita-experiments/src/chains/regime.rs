//! The conditions of the sets, and the limits of a chain's throughput in them.

use std::fmt;

use partita_sim::catalogue::{self, DeviceError};
use partita_sim::{DeviceSpec, KernelWork, Time};

use super::run::ChainOptions;
use super::sets::{ChainSet, Grids, Workload};

/// Conditions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regime {
    /// Their name on the command line.
    pub name: &'static str,
    /// A description, for a heading.
    pub about: &'static str,
    /// The device, by its name in the catalogue.
    pub device: &'static str,
    /// The launches.
    pub workload: Workload,
    /// As [`ChainOptions::hand_over_ns`].
    pub hand_over_ns: Time,
    /// As [`ChainOptions::period_ns`].
    pub period_ns: Time,
}

/// The complexity at which the largest component of every set uses the GPU for more than nine
/// tenths of its time.
const RAISED: u32 = 16;
/// Blocks of a kernel differ in length: ± 2 %.
const VARIED: u16 = 20;

/// All conditions, the first those of the picture.
pub const REGIMES: [Regime; 6] = {
    const fn regime(
        name: &'static str,
        about: &'static str,
        device: &'static str,
        (grids, complexity, jitter_permille): (Grids, u32, u16),
        (hand_over_us, period_ms): (Time, Time),
    ) -> Regime {
        let workload = Workload { grids, complexity, jitter_permille };
        let (hand_over_ns, period_ns) = (hand_over_us * 1_000, period_ms * 1_000_000);
        Regime { name, about, device, workload, hand_over_ns, period_ns }
    }
    [
        regime(
            "raised",
            "H200, grids scaled to 132 SMs, complexity × 16, blocks of a kernel differ by ± 2 %",
            "h200",
            (Grids::Scaled, RAISED, VARIED),
            (5, 100),
        ),
        regime(
            "lock-step",
            "H200, grids scaled to 132 SMs, complexity × 16, blocks of a kernel exactly equal",
            "h200",
            (Grids::Scaled, RAISED, 0),
            (5, 100),
        ),
        regime(
            "scaled",
            "H200, grids scaled to 132 SMs, complexity as printed",
            "h200",
            (Grids::Scaled, 1, VARIED),
            (5, 20),
        ),
        regime(
            "printed",
            "H200, grids and complexity as printed",
            "h200",
            (Grids::Printed, 1, VARIED),
            (5, 20),
        ),
        regime(
            "paper",
            "A100, grids and complexity as printed, hand-over in 50 µs (the paper's GPU and its UDP; the 50 µs are assumed)",
            "a100",
            (Grids::Printed, 1, VARIED),
            (50, 20),
        ),
        regime(
            "paper-raised",
            "A100, grids as printed, complexity × 16",
            "a100",
            (Grids::Printed, RAISED, VARIED),
            (5, 100),
        ),
    ]
};

impl Regime {
    /// The device.
    ///
    /// # Errors
    /// As [`catalogue::device`].
    pub fn spec(&self) -> Result<DeviceSpec, DeviceError> {
        catalogue::device(self.device)
    }

    /// The kernels of a set on the whole device.
    pub fn kernels(&self, spec: &DeviceSpec, set: &ChainSet) -> Vec<KernelWork> {
        set.components.iter().map(|kind| self.workload.kernel(spec, *kind, spec.topology.all())).collect()
    }

    /// The options of a chain with this many components.
    pub fn options(&self, components: usize) -> ChainOptions {
        ChainOptions {
            hand_over_ns: self.hand_over_ns,
            period_ns: self.period_ns,
            ..ChainOptions::new(components)
        }
    }
}

/// The limit of a chain's throughput while all its components see the whole GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The SMs are busy for nine tenths of the time: moving work from one to another helps little.
    Gpu,
    /// A component has a kernel at the GPU for nine tenths of the time.
    Component,
    /// None of these: processes and their hand-over are the limit.
    HandOver,
}

impl Bound {
    /// By the mean part of the time for which the SMs are busy, and the largest part for which a
    /// component has a kernel on the GPU.
    pub fn of(sms_busy: f64, component_busy: f64) -> Self {
        if sms_busy >= 0.9 {
            Self::Gpu
        } else if component_busy >= 0.9 {
            Self::Component
        } else {
            Self::HandOver
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gpu => "GPU",
            Self::Component => "component",
            Self::HandOver => "hand-over",
        })
    }
}
