//! An experiment of one device, scaled to another.

use partita_core::{Share, TpcSet};
use partita_sim::{DeviceSpec, Footprint, KernelWork};

use crate::dialect::{Benchmark, Config, Dims, Plugin, SmMask, Task};

/// The configuration for another device: TPC i of n becomes the i-th of n parts of it, and a grid
/// grows by as much as its SMs hold more of its blocks. One wave stays one wave, and a full device
/// stays full.
pub fn fit(config: &Config, home: &DeviceSpec, device: &DeviceSpec) -> Config {
    let mut fitted = config.clone();
    if home.id == device.id {
        return fitted;
    }
    for one in &mut fitted.benchmarks {
        benchmark(one, home, device);
    }
    fitted
}

fn benchmark(one: &mut Benchmark, home: &DeviceSpec, device: &DeviceSpec) {
    let before = one.sm_mask.map_or(home.topology.all(), |mask| mask.enabled(&home.topology));
    one.partition = one.partition.map(|share| match share {
        Share::Tpcs(tpcs) => Share::Tpcs((tpcs * device.tpc_count() / home.tpc_count()).max(1)),
        Share::Exact(set) => Share::Exact(part(set, home, device)),
        other => other,
    });
    one.sm_mask = one.sm_mask.map(|_| SmMask::enabling(part(before, home, device)));
    let spins = [Plugin::TimerSpin, Plugin::CounterSpin, Plugin::SharedmemTimerSpin];
    if spins.contains(&one.task.plugin()) {
        let blocks = u32::try_from(one.block_count.count()).unwrap_or(u32::MAX);
        let threads = one.thread_count.count() as u32;
        one.block_count = Dims::flat(scaled(blocks, threads, before, home, device));
    }
    if let Task::Multikernel { kernels } = &mut one.task {
        for kernel in kernels {
            let before = kernel.sm_mask.map_or(before, |mask| mask.enabled(&home.topology));
            kernel.block_count = scaled(kernel.block_count, kernel.thread_count, before, home, device);
            kernel.sm_mask = kernel.sm_mask.map(|_| SmMask::enabling(part(before, home, device)));
        }
    }
}

/// The TPCs of `device` that replace TPCs of `home`.
fn part(set: TpcSet, home: &DeviceSpec, device: &DeviceSpec) -> TpcSet {
    let (from, to) = (home.tpc_count(), device.tpc_count());
    let mut found = TpcSet::EMPTY;
    for tpc in set.iter().map(u32::from).filter(|&tpc| tpc < from) {
        let first = tpc * to / from;
        // A smaller device has fewer TPCs than parts.
        let end = ((tpc + 1) * to / from).max(first + 1);
        found |= TpcSet::range(first as u16..end as u16);
    }
    found
}

fn scaled(blocks: u32, threads: u32, set: TpcSet, home: &DeviceSpec, device: &DeviceSpec) -> u32 {
    let before = capacity(threads, set, home);
    let now = capacity(threads, part(set, home, device), device);
    let exact = u64::from(blocks) * now;
    ((exact + before / 2) / before.max(1)).clamp(1, i32::MAX as u64) as u32
}

/// The number of resident blocks of this size on a set.
pub(crate) fn capacity(threads: u32, set: TpcSet, device: &DeviceSpec) -> u64 {
    let work = KernelWork::new(1, threads, 0, set);
    let sms = u64::from((set & device.topology.all()).len()) * u64::from(device.topology.sms_per_tpc());
    sms * u64::from(Footprint::of(&work, &device.sm).blocks_per_sm(&device.sm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_sim::catalogue;

    #[test]
    fn parts_stay_disjoint_and_whole() {
        let home = catalogue::device("gtx1060-3gb").unwrap();
        for name in ["h200", "a100", "p100"] {
            let device = catalogue::device(name).unwrap();
            let sets: Vec<TpcSet> = (0..9).map(|tpc| part(TpcSet::single(tpc), &home, &device)).collect();
            for (index, set) in sets.iter().enumerate() {
                assert!(!set.is_empty());
                assert!(sets[..index].iter().all(|other| other.is_disjoint(set)), "{name}");
            }
            let all = sets.iter().fold(TpcSet::EMPTY, |all, set| all | *set);
            assert_eq!(all, device.topology.all());
        }
    }

    #[test]
    fn what_was_full_is_full() {
        let home = catalogue::device("gtx1060-3gb").unwrap();
        let device = catalogue::device("h200").unwrap();
        let set: TpcSet = "0-4".parse().unwrap();
        let blocks = scaled(10, 1024, set, &home, &device);
        assert_eq!(u64::from(blocks), capacity(1024, part(set, &home, &device), &device));
        assert_eq!(scaled(10, 1024, set, &home, &home), 10);
    }
}
