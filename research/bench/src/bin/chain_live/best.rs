//! The best division by trial.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::Run;
use crate::live::Living;
use crate::report::Row;

/// Levels of a component, as parts of all TPCs, alone and together with others: three fifths, a
/// quarter and a twentieth.
const LEVELS: [f64; 3] = [0.6, 0.25, 0.05];
/// The part of the throughput that a component at a level alone must leave, for that level to be
/// combined with others'.
const LEAVES: f64 = 0.93;
/// Parts of all TPCs for one move of the climb, largest first.
const STEPS: [u32; 4] = [4, 8, 16, 32];
/// How many of the best divisions are measured again.
const AGAIN: usize = 3;

/// A division, and how it was found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Best {
    /// TPCs of each component.
    pub tpcs: Vec<u32>,
    /// Divisions that were tried.
    pub trials: usize,
    /// The number of tried combinations of the levels that single components tolerate.
    pub combined: usize,
    /// The number of such combinations.
    pub combinations: usize,
    /// Whether a climb from the best of them finished in time, so that no single move of the finest
    /// step gains anything.
    pub is_local_optimum: bool,
}

/// The tried divisions.
struct Looks<'l> {
    living: &'l Living<'l>,
    until: Instant,
    seen: BTreeMap<Vec<u32>, f64>,
}

impl Looks<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Frames a second with a division, by its first look.
    fn at(&mut self, tpcs: &[u32]) -> Result<f64> {
        if let Some(seen) = self.seen.get(tpcs) {
            return Ok(*seen);
        }
        let frames_per_s = self.living.look(tpcs)?;
        self.seen.insert(tpcs.to_vec(), frames_per_s);
        Ok(frames_per_s)
    }

    /// The divisions with most frames a second, best first.
    fn highest(&self, count: usize) -> Vec<Vec<u32>> {
        let mut all: Vec<(&Vec<u32>, f64)> = self.seen.iter().map(|(tpcs, seen)| (tpcs, *seen)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.into_iter().take(count).map(|(tpcs, _)| tpcs.clone()).collect()
    }
}

/// Tries within the time: the algorithms' results, the whole GPU for all and equal parts; every
/// component at each level alone; all combinations of the levels that cost little alone, in the
/// order of their parts' results; and a climb from the best, one component at a time. The best ones
/// are measured again, because the highest of many looks is partly chance.
pub fn best(run: &Run<'_>, living: &Living<'_>, row: &Row) -> Result<Best> {
    let all = living.all()?;
    let components = row.components();
    let everything = vec![all; components];
    let until = Instant::now() + Duration::from_secs_f64(run.options.search_s);
    let mut looks = Looks { living, until, seen: BTreeMap::new() };
    for start in row.divisions() {
        looks.at(&start)?;
    }
    looks.at(&vec![(all / components.max(1) as u32).max(1); components])?;
    let base = looks.at(&everything)?;
    let combinations = combinations(&bearable(&mut looks, &everything, base)?, all);
    let mut combined = 0;
    for tpcs in &combinations {
        if looks.is_over() {
            break;
        }
        looks.at(tpcs)?;
        combined += 1;
    }
    let is_local_optimum = climb(&mut looks, &everything)?;
    let mut again = Vec::new();
    for tpcs in looks.highest(AGAIN) {
        again.push((living.hold(&tpcs)?.frames_per_s, tpcs));
    }
    let highest = again.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let tpcs = highest.map_or(everything, |(_, tpcs)| tpcs);
    Ok(Best { tpcs, trials: looks.seen.len(), combined, combinations: combinations.len(), is_local_optimum })
}

/// For each component the levels that it tolerates alone, in TPCs, with the gain of each over the
/// whole GPU for all.
fn bearable(looks: &mut Looks<'_>, everything: &[u32], base: f64) -> Result<Vec<Vec<(u32, f64)>>> {
    let mut bearable = Vec::new();
    for (component, &all) in everything.iter().enumerate() {
        let mut levels = vec![(all, 0.0)];
        for part in LEVELS {
            let tpcs = ((f64::from(all) * part) as u32).max(1);
            let mut held = everything.to_vec();
            held[component] = tpcs;
            if looks.is_over() {
                break;
            }
            let leaves = looks.at(&held)? / base;
            // A component that is slower with this many is not faster with fewer.
            if leaves < LEAVES {
                break;
            }
            levels.push((tpcs, leaves - 1.0));
        }
        bearable.push(levels);
    }
    Ok(bearable)
}

/// All combinations of levels, except those of one component alone; those with the best parts
/// first.
fn combinations(bearable: &[Vec<(u32, f64)>], all: u32) -> Vec<Vec<u32>> {
    let mut partial: Vec<(Vec<u32>, f64)> = vec![(Vec::new(), 0.0)];
    for levels in bearable {
        partial = partial
            .iter()
            .flat_map(|(tpcs, brings)| {
                levels.iter().map(move |(level, more)| {
                    let mut tpcs = tpcs.clone();
                    tpcs.push(*level);
                    (tpcs, brings + more)
                })
            })
            .collect();
    }
    partial.retain(|(tpcs, _)| tpcs.iter().filter(|tpcs| **tpcs < all).count() > 1);
    partial.sort_by(|a, b| b.1.total_cmp(&a.1));
    partial.into_iter().map(|(tpcs, _)| tpcs).collect()
}

/// Whether the climb reached the point where no single move of the finest step gains anything.
fn climb(looks: &mut Looks<'_>, everything: &[u32]) -> Result<bool> {
    let Some(mut here) = looks.highest(1).pop() else { return Ok(false) };
    for part in STEPS {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for (component, &all) in everything.iter().enumerate() {
                let step = (all / part).max(1);
                for grows in [false, true] {
                    if looks.is_over() {
                        return Ok(false);
                    }
                    let mut tpcs = here.clone();
                    let now = tpcs[component];
                    tpcs[component] =
                        if grows { (now + step).min(all) } else { now.saturating_sub(step).max(1) };
                    if looks.at(&tpcs)? > looks.at(&here)? {
                        here = tpcs;
                        goes_on = true;
                    }
                }
            }
        }
    }
    Ok(true)
}
