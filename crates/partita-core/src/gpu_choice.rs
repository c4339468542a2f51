//! On which GPU a new tenant fits best: values in, an order of the GPUs out.
//!
//! # The order
//! 1. A GPU that can hold the tenant comes before one that cannot.
//! 2. Then one where the targets of its tenants still find the TPCs that they need.
//! 3. Then one without busy tenants that something else than compute units limits, such as memory
//!    bandwidth, if that limits the new tenant, too.
//! 4. Then the one that leaves the tenant most TPCs beyond what others need; then the one whose
//!    tenants are busy for the least time; then the one with the most free memory; then the one
//!    with the fewest tenants; then the first.

use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};
use core::fmt;

use crate::size::ByteSize;

/// What limits the speed of a tenant, as far as times on several numbers of TPCs show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limited {
    /// Not known.
    #[default]
    Unknown,
    /// Compute units: more of them make it faster.
    ByCompute,
    /// Something else, such as memory bandwidth: more compute units change little.
    ByOther,
}

/// The speed-up, as a part of the growth of TPCs, from which on compute units are the limit, and up
/// to which something else is, in thousandths.
const COMPUTE_PERMILLE: u64 = 700;
const OTHER_PERMILLE: u64 = 200;

/// The utilization of a GPU from which on it shows what limits its one tenant, in percent.
const BUSY_PERCENT: u32 = 10;

impl Limited {
    /// From NVML's utilization of a GPU and of its memory, in percent, while the tenant is alone
    /// there. Memory that is in use for two thirds of the time of kernels limits them: on an H200
    /// copying showed 72 % at 64 % of the GPU, and a product of matrices 11 % at 37 %
    /// (driver 580.159.04, 2026-11-30). Less than that shows nothing.
    ///
    /// ```
    /// use partita_core::gpu_choice::Limited;
    ///
    /// assert_eq!(Limited::of_utilization(64, 72), Limited::ByOther);
    /// assert_eq!(Limited::of_utilization(37, 11), Limited::Unknown);
    /// assert_eq!(Limited::of_utilization(5, 5), Limited::Unknown);
    /// ```
    #[must_use]
    pub fn of_utilization(gpu_percent: u32, memory_percent: u32) -> Self {
        let shows = gpu_percent >= BUSY_PERCENT;
        let is_memory = u64::from(memory_percent) * 3 >= u64::from(gpu_percent) * 2;
        if shows && is_memory { Self::ByOther } else { Self::Unknown }
    }

    /// From pairs of TPCs and a mean time. The fewest and the most TPCs count, if the most are half
    /// as many again.
    ///
    /// ```
    /// use partita_core::gpu_choice::Limited;
    ///
    /// assert_eq!(Limited::of(&[(8, 4_000), (16, 2_050)]), Limited::ByCompute);
    /// assert_eq!(Limited::of(&[(8, 4_000), (16, 3_900)]), Limited::ByOther);
    /// assert_eq!(Limited::of(&[(8, 4_000), (9, 2_000)]), Limited::Unknown);
    /// ```
    #[must_use]
    pub fn of(times: &[(u32, u64)]) -> Self {
        let known = || times.iter().filter(|(tpcs, ns)| *tpcs > 0 && *ns > 0);
        let fewest = known().min_by_key(|(tpcs, _)| *tpcs);
        let (Some(fewest), Some(most)) = (fewest, known().max_by_key(|(tpcs, _)| *tpcs)) else {
            return Self::Unknown;
        };
        if u64::from(most.0) * 2 < u64::from(fewest.0) * 3 {
            return Self::Unknown;
        }
        // How much faster and how many more beyond the same, in thousandths.
        let beyond = |more: u64, less: u64| {
            u64::try_from(u128::from(more) * 1000 / u128::from(less)).unwrap_or(u64::MAX).saturating_sub(1000)
        };
        let (faster, more) = (beyond(fewest.1, most.1), beyond(most.0.into(), fewest.0.into()));
        match faster.saturating_mul(1000) / more.max(1) {
            COMPUTE_PERMILLE.. => Self::ByCompute,
            0..=OTHER_PERMILLE => Self::ByOther,
            _ => Self::Unknown,
        }
    }
}

/// A tenant of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The TPCs that it was promised.
    pub least_tpcs: u32,
    /// The TPCs that it needs: those on which its target holds, if that is known.
    pub needs_tpcs: u32,
    /// Whether it takes a part of what others leave.
    pub shares_rest: bool,
    /// The part of the time inside bursts, in thousandths; `None` if that is not known.
    pub duty_permille: Option<u32>,
    /// What limits it.
    pub limited: Limited,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Its TPCs.
    pub tpcs: u32,
    /// Its memory that is not promised.
    pub free_bytes: u64,
    /// The TPCs that the new tenant needs at least here.
    pub least_tpcs: u32,
    /// The memory that it is to be promised here.
    pub least_bytes: u64,
    /// Its tenants.
    pub tenants: Vec<Neighbour>,
}

/// The new tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// The TPCs on which its target holds, if a program of the same command line has shown it.
    pub enough_tpcs: Option<u32>,
    /// Whether it takes a part of what others leave.
    pub shares_rest: bool,
    /// What limits it.
    pub limited: Limited,
}

/// What counts of a GPU, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worth {
    fits: bool,
    targets_hold: bool,
    alike_permille: u64,
    room_tpcs: u32,
    duty_permille: u64,
    free_bytes: u64,
    tenants: usize,
}

/// Why a GPU comes before the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// There is no other.
    Only,
    /// The next one cannot hold it.
    Fits,
    /// On the next one a target would lack TPCs.
    Targets,
    /// The next one has busy tenants with the same limit beside compute units.
    Alike,
    /// It has more TPCs beyond what others need: so many, and the next one.
    Room(u32, u32),
    /// Its tenants are busy for less of the time, in thousandths: so many, and the next one.
    Quiet(u64, u64),
    /// It has more free memory, in bytes: so much, and the next one.
    Memory(u64, u64),
    /// It has fewer tenants: so many, and the next one.
    Fewer(usize, usize),
    /// It is the first of equals.
    First,
}

/// A GPU in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which of the offers.
    pub at: usize,
    /// Whether it can hold the tenant.
    pub fits: bool,
    /// Why it comes before the next one.
    pub why: Why,
}

impl Worth {
    fn of(wish: &Wish, offer: &Offer) -> Self {
        let sum = |of: fn(&Neighbour) -> u32| {
            offer.tenants.iter().fold(0u32, |all, tenant| all.saturating_add(of(tenant)))
        };
        let least = sum(|tenant| tenant.least_tpcs);
        let needs = sum(|tenant| tenant.needs_tpcs.max(tenant.least_tpcs));
        let wanted = offer.least_tpcs.max(wish.enough_tpcs.unwrap_or(0));
        let duty = |tenant: &Neighbour| u64::from(tenant.duty_permille.unwrap_or(1000));
        let is_alike =
            |tenant: &&Neighbour| (wish.limited, tenant.limited) == (Limited::ByOther, Limited::ByOther);
        let sharing = offer.tenants.iter().filter(|tenant| tenant.shares_rest).count() as u32;
        let room = offer.tpcs.saturating_sub(needs);
        Self {
            fits: least.saturating_add(offer.least_tpcs) <= offer.tpcs
                && offer.least_bytes <= offer.free_bytes,
            targets_hold: needs.saturating_add(wanted) <= offer.tpcs,
            alike_permille: offer.tenants.iter().filter(is_alike).map(duty).sum(),
            room_tpcs: if wish.shares_rest { room / (sharing + 1) } else { room },
            duty_permille: offer.tenants.iter().map(duty).sum(),
            free_bytes: offer.free_bytes,
            tenants: offer.tenants.len(),
        }
    }

    fn key(&self) -> impl Ord + use<> {
        let Self { fits, targets_hold, alike_permille, room_tpcs, duty_permille, free_bytes, tenants } =
            *self;
        let (fits, holds) = (Reverse(fits), Reverse(targets_hold));
        (fits, holds, alike_permille, Reverse(room_tpcs), duty_permille, Reverse(free_bytes), tenants)
    }

    /// Why it comes before the next one.
    fn before(&self, next: &Self) -> Why {
        match (self, next) {
            _ if self.fits != next.fits => Why::Fits,
            _ if self.targets_hold != next.targets_hold => Why::Targets,
            _ if self.alike_permille != next.alike_permille => Why::Alike,
            _ if self.room_tpcs != next.room_tpcs => Why::Room(self.room_tpcs, next.room_tpcs),
            _ if self.duty_permille != next.duty_permille => {
                Why::Quiet(self.duty_permille, next.duty_permille)
            }
            _ if self.free_bytes != next.free_bytes => Why::Memory(self.free_bytes, next.free_bytes),
            _ if self.tenants != next.tenants => Why::Fewer(self.tenants, next.tenants),
            _ => Why::First,
        }
    }
}

/// The GPUs for a new tenant, the best first.
#[must_use]
pub fn rank(wish: &Wish, offers: &[Offer]) -> Vec<Place> {
    let mut worths: Vec<(usize, Worth)> =
        offers.iter().map(|offer| Worth::of(wish, offer)).enumerate().collect();
    // Stable: equals stay in their order.
    worths.sort_by(|(_, one), (_, other)| -> Ordering { one.key().cmp(&other.key()) });
    let next = |place: usize| worths.get(place + 1).map(|(_, worth)| worth);
    let place = |(place, (at, worth)): (usize, &(usize, Worth))| Place {
        at: *at,
        fits: worth.fits,
        why: match next(place) {
            Some(next) => worth.before(next),
            None if offers.len() == 1 => Why::Only,
            None => Why::First,
        },
    };
    worths.iter().enumerate().map(place).collect()
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("it is the only GPU"),
            Self::Fits => f.write_str("the next one cannot hold it"),
            Self::Targets => f.write_str("on the next one a target would lack TPCs"),
            Self::Alike => f.write_str(
                "the next one has busy tenants that, like this one, something else than compute units limits",
            ),
            Self::Room(tpcs, next) => {
                write!(f, "it would have up to {tpcs} TPCs there, and {next} on the next one")
            }
            Self::Quiet(permille, next) => write!(
                f,
                "its tenants are busy for {} % of the time, and those of the next one for {} %",
                permille / 10,
                next / 10
            ),
            Self::Memory(bytes, next) => write!(
                f,
                "it has {} of free memory, and the next one {}",
                ByteSize(*bytes).approximate(),
                ByteSize(*next).approximate()
            ),
            Self::Fewer(tenants, next) => write!(f, "it has {tenants} tenants, and the next one {next}"),
            Self::First => f.write_str("it is the first of those that are alike"),
        }
    }
}

#[cfg(test)]
mod tests;
