//! Which instances stay, which go and where new ones lie.

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::cmp::Reverse;

use super::instance::GpuInstance;
use super::profile::{Profile, Slot};
use super::step::{Layout, Placed, Step, layout_of, towards};

/// The most instances of a GPU that a plan takes. NVML's GPUs have at most seven.
const INSTANCES_MAX: usize = 12;

/// A way to the wanted instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstancePlan {
    /// The instances at the end.
    pub layout: Layout,
    /// The numbers of the GPU instances that stay.
    pub kept: Vec<u32>,
    /// The steps, in order. Empty if everything is in place.
    pub steps: Vec<Step>,
}

/// Why there is no way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// They do not fit on the GPU, even if it is empty.
    NeverFits {
        /// The largest part of them that fits: the numbers of profiles.
        fits: Vec<u32>,
    },
    /// They fit only if instances with clients go.
    InUse {
        /// The numbers of these GPU instances: as few as possible.
        instances: Vec<u32>,
    },
    /// The report on the GPU contradicts itself.
    Inconsistent(String),
}

/// The way to exactly the wanted instances, each with one compute instance of all its slices.
///
/// `wanted` has the number of a profile for each. `in_use` has the numbers of the GPU instances
/// with clients: they stay as they are. Of all ways, the plan destroys the fewest instances; then
/// those with the fewest memory slices; then the fewest compute instances of those that stay; then
/// it leaves the most places for further instances; then it uses the lowest slices.
///
/// # Errors
/// [`Refusal`].
pub fn plan(
    profiles: &[Profile],
    current: &[GpuInstance],
    wanted: &[u32],
    in_use: &[u32],
) -> Result<InstancePlan, Refusal> {
    let board = Board::new(profiles, current)?;
    let mut missing = board.counts(wanted)?;
    if !board.fits_empty(&missing) {
        return Err(Refusal::NeverFits { fits: board.largest_fit(&missing) });
    }
    let all = (1_u32 << current.len()) - 1;
    let mut ways: Vec<(Cost, u32)> = (0..=all)
        .filter(|kept| board.is_wanted(current, *kept, &missing))
        .map(|kept| (Cost::of(profiles, current, kept, in_use), kept))
        .collect();
    ways.sort_unstable();
    let mut best: Option<(&Cost, Choice)> = None;
    for (cost, kept) in &ways {
        if best.as_ref().is_some_and(|(least, _)| *least < cost) {
            break;
        }
        let kept = chosen(current, *kept);
        let taken = kept.iter().fold(0, |bits, instance| bits | bits_of(instance.slot));
        kept.iter().for_each(|instance| board.take(&mut missing, instance.profile));
        let choice = board.place(taken, &missing, &kept);
        kept.iter().for_each(|instance| board.put_back(&mut missing, instance.profile));
        let is_better = |(_, known): &(&Cost, Choice)| choice.as_ref().is_some_and(|new| new < known);
        if best.as_ref().is_none_or(is_better)
            && let Some(choice) = choice
        {
            best = Some((cost, choice));
        }
    }
    let Some((cost, choice)) = best else {
        return Err(Refusal::NeverFits { fits: board.largest_fit(&missing) });
    };
    if !cost.disturbed.is_empty() {
        return Err(Refusal::InUse { instances: cost.disturbed.clone() });
    }
    let layout = choice.layout;
    let stays = |instance: &&GpuInstance| {
        layout.iter().any(|placed| (placed.slot, placed.profile) == (instance.slot, instance.profile))
    };
    let kept = current.iter().filter(stays).map(|instance| instance.id).collect();
    Ok(InstancePlan { steps: towards(current, &layout), kept, layout })
}

/// What it costs to keep some instances only; less is better, in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    disturbed_count: usize,
    destroyed: usize,
    destroyed_slices: u32,
    destroyed_computes: usize,
    /// The instances with clients that would not stay as they are.
    disturbed: Vec<u32>,
}

impl Cost {
    fn of(profiles: &[Profile], current: &[GpuInstance], kept: u32, in_use: &[u32]) -> Self {
        let mut cost = Self {
            disturbed_count: 0,
            destroyed: 0,
            destroyed_slices: 0,
            destroyed_computes: 0,
            disturbed: Vec::new(),
        };
        for (at, instance) in current.iter().enumerate() {
            let profile = profiles.iter().find(|profile| profile.id == instance.profile);
            if kept & 1 << at == 0 {
                cost.destroyed += 1;
                cost.destroyed_slices += instance.slot.size;
            } else if profile.is_some_and(|profile| instance.is_whole(profile)) {
                continue;
            } else {
                cost.destroyed_computes += instance.computes.len();
            }
            if in_use.contains(&instance.id) {
                cost.disturbed.push(instance.id);
            }
        }
        cost.disturbed_count = cost.disturbed.len();
        cost
    }
}

/// A complete layout; less is better.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    /// Places that stay free for further instances.
    room: Reverse<usize>,
    layout: Layout,
}

fn chosen(current: &[GpuInstance], kept: u32) -> Vec<&GpuInstance> {
    current.iter().enumerate().filter(|(at, _)| kept & 1 << at != 0).map(|(_, instance)| instance).collect()
}

/// The slices of a slot that [`Board::new`] has checked.
fn bits_of(slot: Slot) -> u64 {
    slot.bits().unwrap_or(u64::MAX)
}

/// The profiles of a GPU whose report was checked.
struct Board<'a> {
    profiles: &'a [Profile],
    /// The indices of the profiles, those of the most memory slices first: they have the fewest
    /// places.
    order: Vec<usize>,
}

impl<'a> Board<'a> {
    fn new(profiles: &'a [Profile], current: &[GpuInstance]) -> Result<Self, Refusal> {
        let refuse = |reason: String| Err(Refusal::Inconsistent(reason));
        for profile in profiles {
            if let Some(slot) = profile.slots.iter().find(|slot| slot.bits().is_none()) {
                return refuse(format!("{} would lie at {slot}", profile.name));
            }
        }
        if current.len() > INSTANCES_MAX {
            return refuse(format!(
                "{} instances; Partita plans with at most {INSTANCES_MAX}",
                current.len()
            ));
        }
        let mut taken = 0;
        for instance in current {
            match instance.slot.bits() {
                Some(bits) if bits & taken == 0 => taken |= bits,
                _ => return refuse(format!("instance {} lies at {}", instance.id, instance.slot)),
            }
        }
        let mut order: Vec<usize> = (0..profiles.len()).collect();
        let size = |at: &usize| profiles[*at].slots.iter().map(|slot| slot.size).max().unwrap_or(0);
        order.sort_by_key(|at| Reverse(size(at)));
        Ok(Self { profiles, order })
    }

    fn at(&self, id: u32) -> Option<usize> {
        self.profiles.iter().position(|profile| profile.id == id)
    }

    /// How many of each profile are wanted.
    fn counts(&self, wanted: &[u32]) -> Result<Vec<u32>, Refusal> {
        let mut counts = vec![0; self.profiles.len()];
        for id in wanted {
            let Some(at) = self.at(*id) else {
                return Err(Refusal::Inconsistent(format!("no profile has the number {id}")));
            };
            counts[at] += 1;
        }
        Ok(counts)
    }

    fn take(&self, counts: &mut [u32], profile: u32) {
        if let Some(at) = self.at(profile) {
            counts[at] -= 1;
        }
    }

    fn put_back(&self, counts: &mut [u32], profile: u32) {
        if let Some(at) = self.at(profile) {
            counts[at] += 1;
        }
    }

    /// Whether no more instances are kept than are wanted of each profile.
    fn is_wanted(&self, current: &[GpuInstance], kept: u32, counts: &[u32]) -> bool {
        let mut left = counts.to_vec();
        chosen(current, kept).into_iter().all(|instance| {
            let Some(at) = self.at(instance.profile) else { return false };
            let is_wanted = left[at] > 0;
            left[at] = left[at].saturating_sub(1);
            is_wanted
        })
    }

    /// Whether so many of each profile fit on the empty GPU.
    fn fits_empty(&self, counts: &[u32]) -> bool {
        let is_allowed = self.profiles.iter().zip(counts).all(|(profile, count)| *count <= profile.count_max);
        is_allowed && self.fits(0, &mut counts.to_vec(), 0, 0)
    }

    /// Whether the missing instances fit beside the taken slices. Of the profile `order[next]`,
    /// only slots from `from` on are tried: its instances are interchangeable.
    fn fits(&self, taken: u64, missing: &mut [u32], next: usize, from: usize) -> bool {
        let Some(&at) = self.order.get(next) else { return true };
        if missing[at] == 0 {
            return self.fits(taken, missing, next + 1, 0);
        }
        let slots = self.profiles[at].slots.iter().enumerate().skip(from);
        for (index, slot) in slots {
            let bits = bits_of(*slot);
            if bits & taken != 0 {
                continue;
            }
            missing[at] -= 1;
            let fits = self.fits(taken | bits, missing, next, index + 1);
            missing[at] += 1;
            if fits {
                return true;
            }
        }
        false
    }

    /// The largest part of the wanted instances that fits on the empty GPU: of the most instances,
    /// then of the most memory slices.
    fn largest_fit(&self, counts: &[u32]) -> Vec<u32> {
        let mut best: (usize, u32, Vec<u32>) = (0, 0, Vec::new());
        let mut part = vec![0; counts.len()];
        loop {
            let ids: Vec<u32> = self
                .profiles
                .iter()
                .zip(&part)
                .flat_map(|(profile, count)| (0..*count).map(|_| profile.id))
                .collect();
            let size = |(profile, count): (&Profile, &u32)| {
                count * profile.slots.first().map_or(0, |slot| slot.size)
            };
            let slices = self.profiles.iter().zip(&part).map(size).sum();
            if (ids.len(), slices) > (best.0, best.1) && self.fits_empty(&part) {
                best = (ids.len(), slices, ids);
            }
            // The next part, as an odometer counts.
            let most = |at: usize| counts[at].min(self.profiles[at].count_max);
            let Some(at) = (0..part.len()).find(|&at| part[at] < most(at)) else { return best.2 };
            part[at] += 1;
            part[..at].fill(0);
        }
    }

    /// The best way to place the missing instances beside those that stay.
    fn place(&self, taken: u64, missing: &[u32], kept: &[&GpuInstance]) -> Option<Choice> {
        let mut found = None;
        let kept = kept.iter().copied().cloned().collect::<Vec<_>>();
        let mut layout = layout_of(&kept);
        for placed in &mut layout {
            let slices = self.at(placed.profile).map(|at| self.profiles[at].slices);
            placed.computes = slices.into_iter().collect();
        }
        self.search(taken, &mut missing.to_vec(), (0, 0), &mut layout, &mut found);
        found
    }

    fn search(
        &self,
        taken: u64,
        missing: &mut [u32],
        (next, from): (usize, usize),
        layout: &mut Layout,
        found: &mut Option<Choice>,
    ) {
        let Some(&at) = self.order.get(next) else {
            let mut layout = layout.clone();
            layout.sort_unstable();
            let choice = Choice { room: Reverse(self.room(taken, &layout)), layout };
            if found.as_ref().is_none_or(|best| choice < *best) {
                *found = Some(choice);
            }
            return;
        };
        let profile = &self.profiles[at];
        if missing[at] == 0 {
            return self.search(taken, missing, (next + 1, 0), layout, found);
        }
        for (index, &slot) in profile.slots.iter().enumerate().skip(from) {
            let bits = bits_of(slot);
            if bits & taken != 0 {
                continue;
            }
            missing[at] -= 1;
            layout.push(Placed { slot, profile: profile.id, computes: vec![profile.slices] });
            self.search(taken | bits, missing, (next, index + 1), layout, found);
            layout.pop();
            missing[at] += 1;
        }
    }

    /// The places where one more instance of any profile could lie.
    fn room(&self, taken: u64, layout: &Layout) -> usize {
        let places = |profile: &Profile| {
            let count = layout.iter().filter(|placed| placed.profile == profile.id).count();
            if count >= profile.count_max as usize {
                return 0;
            }
            profile.slots.iter().filter(|slot| bits_of(**slot) & taken == 0).count()
        };
        self.profiles.iter().map(places).sum()
    }
}
