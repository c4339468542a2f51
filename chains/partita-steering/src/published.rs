//! The paper's algorithm: J. Luo and X. Wei, «Dynamic GPU Resource Management in Component-Based
//! Applications», 2023, sections 3.1.1 and 3.1.2, algorithm 1.
//!
//! Bottlenecks get all TPCs. The others get R_C = 100 % / N_C each, and each of them in turn a
//! binary search over its predefined portions. The code follows the listing where the listing can
//! be run. It leaves eight points open, or contradicts the text on them; this is how each is read,
//! and why. Points 2, 3 and 6 change what is printed:
//!
//! 1. **C_min, C_max, C_RC, C_A** are portions of the component at hand: the smallest listed, the
//!    largest listed, that with the value of R_C, and the one that it is given. R_C need not be a
//!    portion (N_C = 3 makes 33.3 %): the nearest is taken, the smaller of two, because the text
//!    says «the portion with the number of SMs of R_C» and the list is all that can be assigned.
//! 2. **The loop of line 19** is printed inside the `else`. The text lets both branches search
//!    («looks in the range between C_RC and C_max»), so it stands behind both.
//! 3. **Removal.** Lines 22 and 25 remove portions below and above *C_RC*. C_RC never changes, so a
//!    second pass would remove nothing, the list would never be empty and the loop never end. The
//!    text has the range shrink to either side of the portion just tried. So the portion that lines
//!    14 and 17 compare with is C_RC, and the one that lines 22 and 25 compare with is C_A. A
//!    portion that was measured leaves the list as well (C_RC was: `performance` is its), or the
//!    list would not become empty either.
//! 4. **mid(a, b)** is the middle portion of those still listed, which after every removal are the
//!    ones between a and b; of two in the middle the smaller, so that the halves shrink and the
//!    search ends after ⌊log₂ N_SM⌋ + 1 rounds, the paper's O(N_C log N_SM).
//! 5. **`performance`** is an input, «the current performance», and the listing never assigns it.
//!    Within a component it stays what it was with C_RC, as printed. For the next component it is
//!    that of what has been assigned, or improvements of the first would count for all that follow.
//! 6. **What is returned.** When the list is empty, C_A is a portion that is no longer there. The
//!    text: «until all portions are removed and a suitable portion is set». Of the portions
//!    measured the one with the highest throughput is suitable; of equals the smallest, as the
//!    section restricts non-bottlenecks as far as it can. (Taken literally, a lower throughput in
//!    lines 24 to 26 is «not better by D_thr» and leads further down, so the last C_A would be the
//!    smallest portion however much it costs. This is the reading that is kindest to the
//!    algorithm.)
//! 7. **D_thr** is a part of `performance`: throughputs differ by orders of magnitude between
//!    chains, and no number is given.
//! 8. **No non-bottleneck** (N_C = 0): nothing to tune, everybody has all TPCs.
//!
//! Nothing of it is repeated or compared again: every decision stands on one period. What it ends
//! with may be worse than what it began with.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use super::trial::{Found, Purpose, Trials};
use super::{Allocation, BottleneckOptions, Bottlenecks, Plant, Stop, bottleneck, ladder};

/// What the algorithm has to be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedOptions {
    /// How bottlenecks are found.
    pub bottleneck: BottleneckOptions,
    /// D_thr: by which part of the throughput another portion must be better, in thousandths.
    pub better_permille: u32,
    /// Periods that pass unmeasured after a change, for frames on their way.
    pub settle_periods: u32,
}

impl Default for PublishedOptions {
    /// 2 % for D_thr (the paper names no number), one period to settle.
    fn default() -> Self {
        Self { bottleneck: BottleneckOptions::default(), better_permille: 20, settle_periods: 1 }
    }
}

/// Runs the algorithm on a chain on which `in_force` is in force, over so many TPCs. What it finds
/// is in force afterwards.
///
/// # Errors
/// Why it was stopped; then `in_force` is in force again, if it can be applied.
pub fn published<P: Plant + ?Sized>(
    plant: &mut P,
    in_force: &Allocation,
    tpcs: u32,
    options: &PublishedOptions,
) -> Result<(Found, Bottlenecks), Stop> {
    let mut trials = Trials::new(plant, in_force, options.settle_periods);
    match search(&mut trials, in_force.components(), tpcs, options) {
        Ok((frames_per_s, bottlenecks)) => Ok((trials.finish(frames_per_s), bottlenecks)),
        Err(stop) => {
            // Why it was stopped is the better answer.
            let _: Result<(), Stop> = trials.apply(in_force);
            Err(stop)
        }
    }
}

fn search<P: Plant + ?Sized>(
    trials: &mut Trials<'_, P>,
    components: usize,
    tpcs: u32,
    options: &PublishedOptions,
) -> Result<(f64, Bottlenecks), Stop> {
    let bottlenecks = bottleneck::search(trials, components, tpcs, &options.bottleneck)?;
    let portions = ladder(tpcs);
    let others: Vec<usize> = (0..components).filter(|i| !bottlenecks.components.contains(i)).collect();
    // Equation 3, in the portions that there are.
    let equal = f64::from(tpcs) / others.len().max(1) as f64;
    let away = |portion: &u32| (f64::from(*portion) - equal).abs();
    let nearest = portions.iter().copied().min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or(1);
    let mut allocation = Allocation::uniform(components, tpcs);
    for &component in &others {
        allocation = allocation.with(component, nearest);
    }
    let mut performance = trials.measure(&allocation, Purpose::Candidate)?;
    for &component in &others {
        (allocation, performance) =
            algorithm_1(trials, &allocation, performance, component, &portions, options)?;
        trials.apply(&allocation)?;
    }
    Ok((performance, bottlenecks))
}

/// Lines 8 to 26 for one component; numbers in comments are those lines.
fn algorithm_1<P: Plant + ?Sized>(
    trials: &mut Trials<'_, P>,
    allocation: &Allocation,
    performance: f64,
    component: usize,
    portions: &[u32],
    options: &PublishedOptions,
) -> Result<(Allocation, f64), Stop> {
    let threshold = performance * f64::from(options.better_permille) / 1_000.0;
    let c_rc = allocation.tpcs()[component];
    let mut suitable = (c_rc, performance);
    // 12 and 13, 20 and 21.
    let mut is_better = |portion: u32| {
        let new = trials.measure(&allocation.with(component, portion), Purpose::Candidate)?;
        if new > suitable.1 || (new == suitable.1 && portion < suitable.0) {
            suitable = (portion, new);
        }
        Ok(new - performance > threshold)
    };
    // L_SM[i], the portions that are left.
    let mut list: Vec<u32> = portions.iter().copied().filter(|&portion| portion != c_rc).collect();
    // 11 to 18. Where C_RC is the largest itself, line 12 would measure what `performance` says,
    // and 18 goes on.
    if let Some(c_max) = list.pop_if(|largest| *largest > c_rc) {
        let goes_up = is_better(c_max)?;
        list.retain(|&left| if goes_up { left > c_rc } else { left < c_rc });
    }
    // 19 to 26.
    while let Some(c_a) = middle(&list) {
        let goes_up = is_better(c_a)?;
        list.retain(|&left| if goes_up { left > c_a } else { left < c_a });
    }
    Ok((allocation.with(component, suitable.0), suitable.1))
}

/// The middle portion, of two the smaller.
fn middle(list: &[u32]) -> Option<u32> {
    list.get(list.len().saturating_sub(1) / 2).copied()
}
