//! The paper's algorithm: J. Luo and X. Wei, «Dynamic GPU Resource Management in Component-Based
//! Applications», 2023, sections 3.1.1 and 3.1.2, algorithm 1.
//!
//! Bottlenecks get all TPCs. The others get R_C = 100 % / N_C each, and each of them in turn a
//! binary search over its predefined portions. The code follows the listing where that can be
//! executed. The listing leaves eight points open, or contradicts the text on them; this is the
//! interpretation of each, with the reason. Points 2, 3 and 6 change the printed algorithm:
//!
//! 1. **C_min, C_max, C_RC, C_A** are portions of the present component: the smallest listed, the
//!    largest listed, the one with the value of R_C, and the assigned one. R_C need not be a
//!    portion (N_C = 3 makes 33.3 %): the nearest is used, the smaller of two, because the text
//!    says «the portion with the number of SMs of R_C» and only listed portions can be assigned.
//! 2. **The loop of line 19** is printed inside the `else`. In the text both branches search
//!    («looks in the range between C_RC and C_max»), so it follows both.
//! 3. **Removal.** Lines 22 and 25 remove portions below and above *C_RC*. C_RC never changes, so a
//!    second pass would remove nothing, the list would never be empty and the loop never end. In
//!    the text the range shrinks to either side of the portion just tried. So the portion that
//!    lines 14 and 17 compare with is C_RC, and the one that lines 22 and 25 compare with is C_A. A
//!    measured portion leaves the list as well (C_RC was measured: `performance` is its value), or
//!    the list would not become empty either.
//! 4. **mid(a, b)** is the middle portion of those still listed, which after every removal are the
//!    ones between a and b; of two in the middle the smaller, so that the halves shrink and the
//!    search ends after ⌊log₂ N_SM⌋ + 1 rounds, the paper's O(N_C log N_SM).
//! 5. **`performance`** is an input, «the current performance», and the listing never assigns it.
//!    Within a component it keeps its value with C_RC, as printed. For the next component it is
//!    that of the assigned allocation; otherwise improvements of the first would count for all
//!    later ones.
//! 6. **The result.** When the list is empty, C_A is a portion that is no longer there. The text:
//!    «until all portions are removed and a suitable portion is set». Of the measured portions the
//!    one with the highest throughput is suitable; of equals the smallest, as the section restricts
//!    non-bottlenecks as far as it can. (Taken literally, a lower throughput in lines 24 to 26 is
//!    «not better by D_thr» and leads further down, so the last C_A would be the smallest portion
//!    however much it costs. This interpretation is the most favourable to the algorithm.)
//! 7. **D_thr** is a part of `performance`: throughputs differ by orders of magnitude between
//!    chains, and the paper gives no number.
//! 8. **No non-bottleneck** (N_C = 0): nothing to tune, every component has all TPCs.
//!
//! The paper's chains are on one GPU. On several, R_SM, R_C and the portions are those of the
//! component's GPU, and N and N_C count the components there.
//!
//! The algorithm repeats no measurement: every decision depends on one period. Its result may be
//! worse than the start.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use super::trial::{Found, Purpose, Trials};
use super::{Allocation, BottleneckOptions, Bottlenecks, Plant, Room, Stop, bottleneck, ladder};

/// The parameters of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedOptions {
    /// The criteria for bottlenecks.
    pub bottleneck: BottleneckOptions,
    /// D_thr: by which part of the throughput another portion must be better, in thousandths.
    pub better_permille: u32,
    /// Periods without a measurement after a change, for frames on their way.
    pub settle_periods: u32,
}

impl Default for PublishedOptions {
    /// 2 % for D_thr (the paper gives no number), one period to settle.
    fn default() -> Self {
        Self { bottleneck: BottleneckOptions::default(), better_permille: 20, settle_periods: 1 }
    }
}

/// Runs the algorithm on a chain with the allocation `in_force`, in this room. Its result is in
/// force afterwards.
///
/// # Errors
/// Why it was stopped; then `in_force` is in force again, if it can be applied.
pub fn published<P: Plant + ?Sized>(
    plant: &mut P,
    in_force: &Allocation,
    room: &Room,
    options: &PublishedOptions,
) -> Result<(Found, Bottlenecks), Stop> {
    let mut trials = Trials::new(plant, in_force, options.settle_periods);
    match search(&mut trials, room, options) {
        Ok((frames_per_s, bottlenecks)) => Ok((trials.finish(frames_per_s), bottlenecks)),
        Err(stop) => {
            // The reason for the stop is the better error.
            let _: Result<(), Stop> = trials.apply(in_force);
            Err(stop)
        }
    }
}

fn search<P: Plant + ?Sized>(
    trials: &mut Trials<'_, P>,
    room: &Room,
    options: &PublishedOptions,
) -> Result<(f64, Bottlenecks), Stop> {
    let bottlenecks = bottleneck::search(trials, room, &options.bottleneck)?;
    let is_other = |component: &usize| !bottlenecks.components.contains(component);
    let mut allocation = room.whole();
    for group in room.groups() {
        let others: Vec<usize> = group.into_iter().filter(is_other).collect();
        for &component in &others {
            // Equation 3, in the available portions.
            let tpcs = room.tpcs(component);
            let equal = f64::from(tpcs) / others.len() as f64;
            let away = |portion: &u32| (f64::from(*portion) - equal).abs();
            let nearest = ladder(tpcs).into_iter().min_by(|a, b| away(a).total_cmp(&away(b)));
            allocation = allocation.with(component, nearest.unwrap_or(1));
        }
    }
    let mut performance = trials.measure(&allocation, Purpose::Candidate)?;
    for component in (0..room.components()).filter(is_other) {
        let portions = ladder(room.tpcs(component));
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
    // L_SM[i], the remaining portions.
    let mut list: Vec<u32> = portions.iter().copied().filter(|&portion| portion != c_rc).collect();
    // 11 to 18. If C_RC is the largest itself, line 12 would repeat the measurement in
    // `performance`, and 18 continues.
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
