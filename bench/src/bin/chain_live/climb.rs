//! The best division that a climb finds.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::Run;
use crate::live::Living;
use crate::report::Row;

/// Parts of all TPCs that one move gives or takes, largest first.
const STEPS: [u32; 4] = [4, 8, 16, 32];

/// A division, and how it was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Best {
    /// TPCs of each component.
    pub tpcs: Vec<u32>,
    /// Divisions that were tried.
    pub trials: usize,
    /// Whether the climb came to its end, where no single move of the finest step brings anything, in the time that it had.
    pub is_local_optimum: bool,
}

/// Climbs from the best of: the divisions that the algorithms have left, everything for everybody, and equal parts. One component at a time gets or gives TPCs, of all
/// that there are, whether others have them too or not.
pub fn best(run: &Run<'_>, living: &Living<'_>, row: &Row) -> Result<Best> {
    let until = Instant::now() + Duration::from_secs_f64(run.options.search_s);
    let all = living.all()?;
    let components = row.components();
    let mut starts = row.divisions();
    starts.push(vec![all; components]);
    starts.push(vec![(all / components.max(1) as u32).max(1); components]);
    starts.sort();
    starts.dedup();
    let mut found = Best { tpcs: vec![all; components], trials: 0, is_local_optimum: false };
    let mut highest = 0.0;
    let mut tried = std::collections::BTreeSet::new();
    let mut judge = |tpcs: &[u32], found: &mut Best| -> Result<bool> {
        if !tried.insert(tpcs.to_vec()) {
            return Ok(false);
        }
        let frames_per_s = living.look(tpcs)?;
        found.trials += 1;
        let is_better = frames_per_s > highest;
        if is_better {
            found.tpcs = tpcs.to_vec();
            highest = frames_per_s;
        }
        Ok(is_better)
    };
    for start in &starts {
        judge(start, &mut found)?;
    }
    for part in STEPS {
        let step = (all / part).max(1);
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for component in 0..components {
                for grows in [false, true] {
                    if Instant::now() >= until {
                        return Ok(found);
                    }
                    let mut tpcs = found.tpcs.clone();
                    let now = tpcs[component];
                    tpcs[component] =
                        if grows { (now + step).min(all) } else { now.saturating_sub(step).max(1) };
                    goes_on |= tpcs[component] != now && judge(&tpcs, &mut found)?;
                }
            }
        }
    }
    found.is_local_optimum = true;
    Ok(found)
}
