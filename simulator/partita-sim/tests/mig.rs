//! The planner for MIG against brute force over every layout of four boards.
//!
//! The brute force knows nothing of the planner's search: it lists every legal set of instances of
//! a board, and takes the cheapest of those with the wanted profiles. With `PARTITA_TEST_LONG=1` it
//! compares every present layout with every wanted set of profiles: without clients, with clients
//! in each instance alone, and in all. Otherwise it takes a random sample.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use partita_core::mig::{
    ComputeInstance, GpuInstance, InstancePlan, Placed, Profile, Refusal, Slot, Step, layout_of, plan,
};
use partita_sim::catalogue;

const BOARDS: [&str; 4] = ["a100", "h100", "h200", "b200"];
/// Random cases of each board.
const SAMPLE: usize = 4_000;

/// How many instances of each profile.
type Counts = Vec<usize>;
/// The profile's place in the table, and where the instance lies.
type Spot = (usize, Slot);

struct Board {
    profiles: Vec<Profile>,
    /// Every legal set of instances.
    layouts: Vec<Vec<Spot>>,
    /// Those of each count of profiles.
    by_counts: BTreeMap<Counts, Vec<usize>>,
    /// What can be wanted: every count that fits, and every one with one instance more.
    wanted: Vec<Counts>,
}

fn slices(slot: Slot) -> BTreeSet<u32> {
    (slot.start..slot.start + slot.size).collect()
}

fn may_join(profiles: &[Profile], layout: &[Spot], (profile, slot): Spot) -> bool {
    let count = layout.iter().filter(|(other, _)| *other == profile).count();
    count < profiles[profile].count_max as usize
        && layout.iter().all(|(_, other)| slices(*other).is_disjoint(&slices(slot)))
}

impl Board {
    fn new(name: &str) -> Self {
        let spec = catalogue::device(name).unwrap();
        let profiles: Vec<Profile> = spec.mig.unwrap().into_iter().map(|mig| mig.profile).collect();
        let spots: Vec<Spot> = profiles
            .iter()
            .enumerate()
            .flat_map(|(at, profile)| profile.slots.iter().map(move |slot| (at, *slot)))
            .collect();
        let mut layouts: Vec<Vec<Spot>> = vec![Vec::new()];
        for spot in spots {
            let longer: Vec<Vec<Spot>> = layouts
                .iter()
                .filter(|layout| may_join(&profiles, layout, spot))
                .map(|layout| layout.iter().copied().chain([spot]).collect())
                .collect();
            layouts.extend(longer);
        }
        let mut by_counts: BTreeMap<Counts, Vec<usize>> = BTreeMap::new();
        for (at, layout) in layouts.iter().enumerate() {
            by_counts.entry(counts(profiles.len(), layout)).or_default().push(at);
        }
        let mut wanted: BTreeSet<Counts> = by_counts.keys().cloned().collect();
        for fitting in by_counts.keys() {
            for at in 0..profiles.len() {
                let mut more = fitting.clone();
                more[at] += 1;
                wanted.insert(more);
            }
        }
        Self { profiles, layouts, by_counts, wanted: wanted.into_iter().collect() }
    }

    fn ids(&self, counts: &Counts) -> Vec<u32> {
        let of = |(profile, count): (&Profile, &usize)| vec![profile.id; *count];
        self.profiles.iter().zip(counts).flat_map(of).collect()
    }

    /// Places where one more instance of any profile could lie.
    fn room(&self, layout: &[Spot]) -> usize {
        let joins = |at: usize, slot: &&Slot| may_join(&self.profiles, layout, (at, **slot));
        let places =
            |(at, profile): (usize, &Profile)| profile.slots.iter().filter(|slot| joins(at, slot)).count();
        self.profiles.iter().enumerate().map(places).sum()
    }

    fn placed(&self, layout: &[Spot]) -> Vec<Placed> {
        let of = |&(at, slot): &Spot| Placed {
            slot,
            profile: self.profiles[at].id,
            computes: vec![self.profiles[at].slices],
        };
        let mut placed: Vec<Placed> = layout.iter().map(of).collect();
        placed.sort_unstable();
        placed
    }

    /// The best answer by brute force.
    fn best(&self, case: &Case) -> Answer {
        let Some(layouts) = self.by_counts.get(&case.wanted) else {
            let fits =
                self.by_counts.keys().filter(|counts| counts.iter().zip(&case.wanted).all(|(a, b)| a <= b));
            let size = |counts: &Counts| {
                let slices = |(profile, count): (&Profile, &usize)| profile.slots[0].size as usize * count;
                (counts.iter().sum::<usize>(), self.profiles.iter().zip(counts).map(slices).sum::<usize>())
            };
            return Answer::NeverFits(fits.map(size).max().unwrap());
        };
        let cost = |layout: &Vec<Spot>| {
            let (mut disturbed, mut destroyed, mut destroyed_slices, mut computes) = (Vec::new(), 0, 0, 0);
            for (spot, instance) in case.current.iter().zip(&case.instances) {
                let is_whole = instance.computes.len() == 1
                    && instance.computes[0].slices == self.profiles[spot.0].slices;
                if !layout.contains(spot) {
                    destroyed += 1;
                    destroyed_slices += spot.1.size;
                } else if is_whole {
                    continue;
                } else {
                    computes += instance.computes.len();
                }
                if case.in_use.contains(&instance.id) {
                    disturbed.push(instance.id);
                }
            }
            let room = Reverse(self.room(layout));
            let count = disturbed.len();
            (count, destroyed, destroyed_slices, computes, disturbed, room, self.placed(layout))
        };
        let best = layouts.iter().map(|at| cost(&self.layouts[*at])).min().unwrap();
        if best.0 > 0 { Answer::InUse(best.4) } else { Answer::Plan(best.6) }
    }
}

/// The profiles without what no plan depends on.
fn places(profiles: &[Profile]) -> Vec<Profile> {
    let bare = |profile: &Profile| Profile { name: String::new(), sms: 0, memory_mib: 0, ..profile.clone() };
    profiles.iter().map(bare).collect()
}

fn counts(profiles: usize, layout: &[Spot]) -> Counts {
    (0..profiles).map(|at| layout.iter().filter(|(profile, _)| *profile == at).count()).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Plan(Vec<Placed>),
    /// Which instances would have to be free.
    InUse(Vec<u32>),
    /// How many instances, of how many memory slices, would fit.
    NeverFits((usize, usize)),
}

#[derive(Debug)]
struct Case {
    current: Vec<Spot>,
    instances: Vec<GpuInstance>,
    wanted: Counts,
    in_use: Vec<u32>,
}

impl Case {
    /// `odd`: the instances whose compute instance is missing or that have several.
    fn new(board: &Board, current: &[Spot], wanted: &Counts, in_use: usize, odd: usize) -> Self {
        let instance = |(number, &(at, slot)): (usize, &Spot)| {
            let whole = board.profiles[at].slices;
            let slices = match (odd >> number & 1, whole) {
                (0, _) => vec![whole],
                (_, 1) => vec![],
                _ => vec![1, 1],
            };
            let computes = slices.into_iter().zip(0..).map(|(slices, id)| ComputeInstance { id, slices });
            // The numbers that a driver gives are in no order.
            GpuInstance {
                id: (number as u32 * 5 + 3) % 8 + 1,
                profile: board.profiles[at].id,
                slot,
                computes: computes.collect(),
            }
        };
        let instances: Vec<GpuInstance> = current.iter().enumerate().map(instance).collect();
        let with_clients =
            |number: &usize| in_use >> number & 1 == 1 && !instances[*number].computes.is_empty();
        let in_use = (0..instances.len()).filter(with_clients).map(|number| instances[number].id).collect();
        Self { current: current.to_vec(), instances, wanted: wanted.clone(), in_use }
    }

    fn check(&self, board: &Board) {
        let wanted = board.ids(&self.wanted);
        let result = plan(&board.profiles, &self.instances, &wanted, &self.in_use);
        let answer = match &result {
            Ok(plan) => Answer::Plan(plan.layout.clone()),
            Err(Refusal::InUse { instances }) => Answer::InUse(instances.clone()),
            Err(Refusal::NeverFits { fits }) => {
                let size =
                    |id: &u32| board.profiles.iter().find(|profile| profile.id == *id).unwrap().slots[0].size;
                Answer::NeverFits((fits.len(), fits.iter().map(size).sum::<u32>() as usize))
            }
            Err(refusal) => panic!("{self:?}: {refusal:?}"),
        };
        assert_eq!(answer, board.best(self), "{self:?}");
        match result {
            Ok(plan) => self.carry_out(board, &plan),
            Err(Refusal::NeverFits { fits }) => {
                let fitting = plan(&board.profiles, &[], &fits, &[]);
                assert!(fitting.is_ok(), "{self:?}: {fits:?}");
            }
            Err(_) => {}
        }
    }

    /// Does the steps on instances that refuse what a driver refuses.
    fn carry_out(&self, board: &Board, plan: &InstancePlan) {
        let mut present = self.instances.clone();
        for step in &plan.steps {
            let failed = || panic!("{self:?}: {step:?} of {:?} on {present:?}", plan.steps);
            match *step {
                Step::DestroyCompute { gpu_instance, compute_instance } => {
                    assert!(!self.in_use.contains(&gpu_instance), "{self:?}: {step:?}");
                    let parent = present.iter().position(|one| one.id == gpu_instance).unwrap_or_else(failed);
                    let before = present[parent].computes.len();
                    present[parent].computes.retain(|compute| compute.id != compute_instance);
                    assert_eq!(present[parent].computes.len() + 1, before, "{self:?}: {step:?}");
                }
                Step::DestroyGpu { gpu_instance } => {
                    let at = present.iter().position(|one| one.id == gpu_instance).unwrap_or_else(failed);
                    assert!(present[at].computes.is_empty(), "{self:?}: {step:?}");
                    present.remove(at);
                }
                Step::CreateGpu { profile, slot } => {
                    let at = board.profiles.iter().position(|one| one.id == profile).unwrap_or_else(failed);
                    let taken: Vec<Spot> = present
                        .iter()
                        .map(|one| {
                            (board.profiles.iter().position(|p| p.id == one.profile).unwrap(), one.slot)
                        })
                        .collect();
                    assert!(board.profiles[at].slots.contains(&slot), "{self:?}: {step:?}");
                    assert!(may_join(&board.profiles, &taken, (at, slot)), "{self:?}: {step:?}");
                    let id = (100..).find(|id| present.iter().all(|one| one.id != *id)).unwrap();
                    present.push(GpuInstance { id, profile, slot, computes: vec![] });
                }
                Step::CreateCompute { slot, slices } => {
                    let parent = present.iter().position(|one| one.slot == slot).unwrap_or_else(failed);
                    let whole =
                        board.profiles.iter().find(|one| one.id == present[parent].profile).unwrap().slices;
                    let used: u32 = present[parent].computes.iter().map(|compute| compute.slices).sum();
                    assert!(used + slices <= whole, "{self:?}: {step:?}");
                    present[parent].computes.push(ComputeInstance { id: 9, slices });
                }
            }
        }
        assert_eq!(layout_of(&present), plan.layout, "{self:?}");
        for id in &self.in_use {
            let as_before = |all: &[GpuInstance]| all.iter().find(|one| one.id == *id).cloned();
            assert_eq!(as_before(&present), as_before(&self.instances), "{self:?}");
        }
        let kept: Vec<u32> = self
            .instances
            .iter()
            .map(|one| one.id)
            .filter(|id| present.iter().any(|one| one.id == *id))
            .collect();
        assert_eq!(kept, plan.kept, "{self:?}");
        // Done twice, it does nothing.
        let again =
            partita_core::mig::plan(&board.profiles, &present, &board.ids(&self.wanted), &self.in_use);
        assert_eq!(again.unwrap().steps, [], "{self:?}");
    }
}

/// A generator of numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

#[test]
fn plans_are_those_of_brute_force() {
    let is_long = std::env::var_os("PARTITA_TEST_LONG").is_some_and(|value| value == "1");
    let mut compared: Vec<Vec<Profile>> = Vec::new();
    for name in BOARDS {
        let board = Board::new(name);
        let mut cases = 0_u64;
        // Boards whose instances lie at the same places have the same plans.
        let is_new = !compared.contains(&places(&board.profiles));
        if is_long && is_new {
            for current in &board.layouts {
                let alone = (0..current.len()).map(|number| 1 << number);
                let in_use: BTreeSet<usize> =
                    [0, (1 << current.len()) - 1].into_iter().chain(alone).collect();
                for (wanted, in_use) in
                    board.wanted.iter().flat_map(|wanted| in_use.iter().map(move |set| (wanted, set)))
                {
                    Case::new(&board, current, wanted, *in_use, 0).check(&board);
                    cases += 1;
                }
            }
        }
        compared.push(places(&board.profiles));
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..SAMPLE {
            let current = &board.layouts[random.below(board.layouts.len())];
            let wanted = &board.wanted[random.below(board.wanted.len())];
            let (in_use, odd) = (random.below(128), random.below(128) & random.below(128));
            Case::new(&board, current, wanted, in_use, odd).check(&board);
            cases += 1;
        }
        println!(
            "{name}: {} layouts, {} wanted sets, {cases} cases, 0 different",
            board.layouts.len(),
            board.wanted.len()
        );
    }
}

/// The sets that NVIDIA's guide shows for the A100, the H100 and their successors.
#[test]
fn the_tables_allow_what_the_guide_shows() {
    for name in BOARDS {
        let board = Board::new(name);
        let fits = |wanted: &[usize]| board.by_counts.contains_key(wanted);
        // 1g, 1g+me, 1g of double memory, 2g, 3g, 4g, 7g.
        assert!(fits(&[7, 0, 0, 0, 0, 0, 0]) && fits(&[6, 1, 0, 0, 0, 0, 0]));
        assert!(fits(&[3, 0, 0, 2, 0, 0, 0]) && fits(&[1, 0, 0, 1, 0, 1, 0]) && fits(&[0, 0, 0, 0, 1, 1, 0]));
        assert!(fits(&[0, 0, 4, 0, 0, 0, 0]) && fits(&[0, 0, 0, 0, 2, 0, 0]) && fits(&[0, 0, 0, 0, 0, 0, 1]));
        // Two of 3g take every memory slice, although one compute slice is left.
        for wanted in
            [[1, 0, 0, 0, 2, 0, 0], [0, 2, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 2, 0], [1, 0, 0, 0, 0, 0, 1]]
        {
            assert!(!fits(&wanted), "{name}: {wanted:?}");
        }
    }
}
