//! The best division that a climb finds.

use std::time::{Duration, Instant};

use anyhow::Result;
use partita::chain::Algorithm;

use crate::Options;
use crate::live::{Chain, last_division};
use crate::report::Row;

/// TPCs that one move gives or takes, largest first.
const STEPS: [u32; 4] = [16, 8, 4, 2];

/// A division, and what comes out of it.
#[derive(Debug, Clone)]
pub struct Best {
    /// TPCs of each component.
    pub tpcs: Vec<u32>,
    /// Frames a second.
    pub frames_per_s: f64,
    /// Divisions that were tried.
    pub trials: usize,
}

/// Climbs from the best division that the algorithms have left and from equal parts: one component at a time gets or gives TPCs, of all that there are, whether
/// others have them too or not.
pub fn best(options: &Options, chain: &Chain<'_>, row: &Row) -> Result<Best> {
    let living = chain.start(Algorithm::None)?;
    let until = Instant::now() + Duration::from_secs_f64(options.search_s);
    let whole = last_division(&living.periods()?);
    let all = whole.iter().copied().max().unwrap_or(1);
    let equal = vec![(all / whole.len().max(1) as u32).max(1); whole.len()];
    let mut found = Best { tpcs: whole.clone(), frames_per_s: 0.0, trials: 0 };
    let mut starts: Vec<Vec<u32>> = row.divisions();
    starts.extend([whole, equal]);
    starts.dedup();
    let judge = |tpcs: &[u32], found: &mut Best| -> Result<bool> {
        let frames_per_s = living.try_division(tpcs)?;
        found.trials += 1;
        let is_better = frames_per_s > found.frames_per_s;
        if is_better {
            (found.tpcs, found.frames_per_s) = (tpcs.to_vec(), frames_per_s);
        }
        Ok(is_better)
    };
    for start in &starts {
        judge(start, &mut found)?;
    }
    'steps: for step in STEPS {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for component in 0..found.tpcs.len() {
                for grows in [true, false] {
                    if Instant::now() >= until {
                        break 'steps;
                    }
                    let mut tpcs = found.tpcs.clone();
                    let now = tpcs[component];
                    tpcs[component] =
                        if grows { (now + step).min(all) } else { now.saturating_sub(step).max(1) };
                    if tpcs[component] != now {
                        goes_on |= judge(&tpcs, &mut found)?;
                    }
                }
            }
        }
    }
    living.stop()?;
    Ok(found)
}
