//! Where and when blocks ran, ready to draw.

use std::collections::BTreeMap;

use partita_core::{Topology, TpcSet};

use super::actor::Performance;

/// A time during which blocks of one tenant ran on one SM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    /// The row of the SM.
    pub row: u32,
    /// The tenant: 0 is `serve`, 1 is `greedy`.
    pub tenant: usize,
    /// Nanoseconds from the start of the panel.
    pub start_ns: u64,
    /// As above.
    pub stop_ns: u64,
}

/// One picture: a row for each SM, over time.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The number of rows, one for each SM.
    pub rows: u32,
    /// How many of them, from the top, belong to the first tenant's partition.
    pub rows_of_first: u32,
    /// Whether the tenants had partitions, so that the other rows belong to the second tenant.
    pub parted: bool,
    /// The time shown, in nanoseconds.
    pub span_ns: u64,
    /// By tenant, row and time; those of one tenant and row do not overlap.
    pub bars: Vec<Bar>,
    /// Whether SM numbers were those of MPS, and were mapped to the SMs of the partition.
    pub renumbered: bool,
}

impl Panel {
    /// Maps the blocks of both actors, who had these sets, to rows and to one time axis that begins
    /// at `window_ns` of the monotonic clock. The rows of the set `first` come first; within each
    /// part, SMs of a GPC are adjacent.
    pub(super) fn new(
        topology: &Topology,
        first: &TpcSet,
        window_ns: u64,
        span_ns: u64,
        actors: [(&Performance, &TpcSet); 2],
    ) -> Self {
        let mut order: Vec<u8> = topology.all().iter().collect();
        order.sort_by_key(|&tpc| (!first.contains(tpc), topology.tpcs()[usize::from(tpc)].gpc, tpc));
        let rows: BTreeMap<u32, u32> = order.iter().flat_map(|&tpc| topology.sms_of(tpc)).zip(0..).collect();

        let parted = actors[0].1.is_disjoint(actors[1].1);
        // Both saw the same clock of the GPU; the smaller offset is the more exact one.
        let seen = actors.iter().filter(|(actor, _)| !actor.blocks.is_empty());
        let offset_ns = seen.map(|(actor, _)| actor.clock_offset_ns).min().unwrap_or(0);
        let wanted_ns = window_ns.wrapping_sub(offset_ns.cast_unsigned());
        let blocks = || actors.iter().flat_map(|(actor, _)| &actor.blocks);
        // On a machine so busy that no block ran at that time, the nearest blocks.
        let begin_ns = if blocks().any(|block| block.2 > wanted_ns && block.1 < wanted_ns + span_ns) {
            wanted_ns
        } else {
            blocks()
                .map(|block| block.1)
                .min_by_key(|start_ns| start_ns.abs_diff(wanted_ns))
                .unwrap_or(wanted_ns)
        };
        let mut bars = Vec::new();
        let mut renumbered = false;
        for (tenant, (actor, set)) in actors.into_iter().enumerate() {
            let own: Vec<u32> = set.iter().flat_map(|tpc| topology.sms_of(tpc)).collect();
            // Under MPS the enabled SMs are renumbered from 0.
            let of_mps = actor.under_mps && actor.blocks.iter().all(|block| (block.0 as usize) < own.len());
            renumbered |= of_mps && own.first() != Some(&0);
            let mut times: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
            for &(sm, start_ns, stop_ns) in &actor.blocks {
                let sm = if of_mps { own.get(sm as usize).copied().unwrap_or(sm) } else { sm };
                let (start, stop) =
                    (start_ns.saturating_sub(begin_ns), stop_ns.saturating_sub(begin_ns).min(span_ns));
                if let Some(&row) = rows.get(&sm)
                    && start < stop
                {
                    times.entry(row).or_default().push((start, stop));
                }
            }
            for (row, times) in times {
                bars.extend(union(times).into_iter().map(|(start_ns, stop_ns)| Bar {
                    row,
                    tenant,
                    start_ns,
                    stop_ns,
                }));
            }
        }
        let rows_of_first = first.len() * topology.sms_per_tpc();
        Self { rows: topology.sm_count(), rows_of_first, parted, span_ns, bars, renumbered }
    }

    /// For each tenant, the part of a rectangle of rows and time that its bars cover, from 0 to 1.
    pub fn coverage(&self, rows: std::ops::Range<u32>, time_ns: std::ops::Range<u64>) -> [f64; 2] {
        let area = u64::from(rows.end - rows.start) * (time_ns.end - time_ns.start);
        let mut covered = [0; 2];
        for bar in self.bars.iter().filter(|bar| rows.contains(&bar.row)) {
            covered[bar.tenant] +=
                bar.stop_ns.min(time_ns.end).saturating_sub(bar.start_ns.max(time_ns.start));
        }
        covered.map(|covered| if area == 0 { 0.0 } else { covered as f64 / area as f64 })
    }
}

/// Joins times that touch.
fn union(mut times: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    times.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, stop) in times {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(stop),
            _ => merged.push((start, stop)),
        }
    }
    merged
}

#[cfg(test)]
pub(super) mod tests {
    use partita_core::Tpc;

    use super::*;

    /// Four TPCs of two SMs, alternately in GPC 0 and 1.
    fn topology() -> Topology {
        let tpcs: Vec<Tpc> = (0..4).map(|i| Tpc { gpc: i % 2, physical: i.into() }).collect();
        Topology::new(2, tpcs).unwrap()
    }

    fn performance(under_mps: bool, blocks: &[(u32, u64, u64)]) -> Performance {
        // The GPU's clock is 500 ns behind.
        Performance { blocks: blocks.to_vec(), under_mps, clock_offset_ns: 500, ..Performance::default() }
    }

    /// `serve` runs on SMs 0 and 1, then on all; `greedy` on 2 to 7 throughout.
    pub fn panel() -> Panel {
        let serve = performance(false, &[(0, 1_000_000, 1_500_000), (1, 1_000_000, 1_500_000)]);
        let greedy: Vec<_> = (2..8).map(|sm| (sm, 1_000_000, 9_000_000)).collect();
        let first: TpcSet = "0".parse().unwrap();
        let rest: TpcSet = "1-3".parse().unwrap();
        Panel::new(
            &topology(),
            &first,
            1_000_500,
            1_000_000,
            [(&serve, &first), (&performance(false, &greedy), &rest)],
        )
    }

    #[test]
    fn blocks_become_bars_on_one_axis() {
        let panel = panel();
        assert_eq!((panel.rows, panel.rows_of_first, panel.span_ns), (8, 2, 1_000_000));
        assert_eq!(panel.bars[0], Bar { row: 0, tenant: 0, start_ns: 0, stop_ns: 500_000 });
        // Cut at the panel's end.
        assert!(panel.bars.iter().all(|bar| bar.stop_ns <= 1_000_000));
        assert_eq!(panel.coverage(0..2, 0..1_000_000), [0.5, 0.0]);
        assert_eq!(panel.coverage(2..8, 0..1_000_000), [0.0, 1.0]);
        assert_eq!(panel.coverage(0..8, 0..500_000), [0.25, 0.75]);
    }

    #[test]
    fn numbers_of_mps_are_mapped_to_the_partitions_sms() {
        let set: TpcSet = "2-3".parse().unwrap();
        let blocks: Vec<_> = (0..4).map(|sm| (sm, 1_000_000, 1_000_100)).collect();
        let none = performance(true, &[]);
        let own = performance(true, &blocks);
        let first: TpcSet = "0-1".parse().unwrap();
        let panel = Panel::new(&topology(), &first, 1_000_500, 1_000_000, [(&none, &first), (&own, &set)]);
        assert!(panel.renumbered);
        assert_eq!(panel.bars.iter().map(|bar| bar.row).collect::<Vec<_>>(), [4, 5, 6, 7]);
        // The device's own numbers stay unchanged.
        let blocks: Vec<_> = (4..8).map(|sm| (sm, 1_000_000, 1_000_100)).collect();
        let panel = Panel::new(
            &topology(),
            &first,
            1_000_500,
            1_000_000,
            [(&none, &first), (&performance(true, &blocks), &set)],
        );
        assert!(!panel.renumbered);
        assert_eq!(panel.bars.len(), 4);
    }

    #[test]
    fn touching_times_are_one() {
        assert_eq!(union(vec![(5, 7), (0, 2), (2, 3), (6, 9)]), [(0, 3), (5, 9)]);
        assert_eq!(union(Vec::new()), []);
    }
}
