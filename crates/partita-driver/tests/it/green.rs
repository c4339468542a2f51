//! Green contexts: the sizes that a driver offers, contexts of composed groups, and switching
//! between prepared ones.

use crate::common;

use std::collections::BTreeSet;

use common::Sim;
use partita_core::{Topology, TpcSet};
use partita_driver::green::{Coscheduling, Green, GreenPool};
use partita_driver::mechanism::{GreenMechanism, Lane, Mechanism, Retarget};
use partita_driver::{Census, Error, Gpu, Grid, ProcessMasks};

/// The TPCs that launches on a lane run on.
fn seen(gpu: &Gpu<'_>, topology: &Topology, lane: &Lane<'_>) -> TpcSet {
    let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
    let sms: BTreeSet<u32> =
        lane.within(|place| Census::at(gpu, place, grid, 20_000).unwrap().sms().unwrap()).unwrap();
    topology.logical_from_smids(sms).unwrap()
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_makes_green_contexts() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    // There is no probe, because the driver creates no green contexts after a launch callback. An
    // H200 has 66 TPCs in logical order.
    let tpcs = (0..66).map(|tpc| partita_core::Tpc { gpc: 0, physical: tpc }).collect::<Vec<_>>();
    let topology = Topology::new(2, tpcs).unwrap();
    let green = Green::survey(&gpu, 2).unwrap();
    let kept = green.sizes(Coscheduling::Kept).unwrap();
    let ignored = green.sizes(Coscheduling::Ignored).unwrap();
    common::say(format!("kept {}+{} SMs", kept.least_sms(), kept.step_sms()));
    common::say(format!("ignored {}+{} SMs", ignored.least_sms(), ignored.step_sms()));
    let together = green.groups(Coscheduling::Kept)[0];
    common::say(format!("groups {}", green.groups(Coscheduling::Ignored).len()));

    let mechanism = GreenMechanism::new(&gpu, GreenPool::new(green), &topology);
    assert_eq!(mechanism.retarget(), Retarget::Switch);
    let sets = [TpcSet::first(33), TpcSet::single(65), "1,4,7,20-30".parse().unwrap(), together];
    mechanism.prepare(&sets).unwrap();
    assert_eq!(mechanism.pool().created(), 4);
    let mut lane = mechanism.lane(&sets[0]).unwrap();
    for set in sets.iter().chain(sets.iter().rev()) {
        lane.retarget(set).unwrap();
        assert_eq!((lane.set(), seen(&gpu, &topology, &lane)), (*set, *set));
    }
    drop(lane);
    assert_eq!(mechanism.pool().created(), 4, "switching makes none");
    // An unprepared set is refused, and the lane stays unchanged.
    let mut lane = mechanism.lane(&sets[0]).unwrap();
    assert!(matches!(lane.retarget(&TpcSet::first(5)), Err(Error::Refused(_))));
    assert_eq!(seen(&gpu, &topology, &lane), sets[0]);
    // After a launch callback, only existing contexts can be used.
    ProcessMasks::install(&cuda, &topology, partita_abi::qmd::layout_for(90, 0x40).unwrap()).unwrap();
    assert_eq!(seen(&gpu, &topology, &lane), sets[0]);
    let refused = mechanism.lane(&TpcSet::first(5)).err().unwrap().to_string();
    assert!(refused.contains("launch callback"), "{refused}");
    common::say("switched");
}

#[test]
fn sizes_are_queried_and_switching_creates_no_context() {
    let sim = Sim::new("green", "h200");
    let said = sim.child_says("child_makes_green_contexts", &[]);
    // As measured on an H200.
    assert_eq!(said, ["kept 8+8 SMs", "ignored 2+2 SMs", "groups 66", "switched"]);
}
