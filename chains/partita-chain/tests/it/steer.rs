//! A suggestion to a component applies from its next frame on.

use crate::common;

use std::collections::BTreeSet;

use common::World;
use partita_chain::{
    AffinityContexts, Attach, CHAIN_VARIABLE, Chain, Component, GreenContexts, Policy, Received,
};
use partita_core::TpcSet;
use partita_driver::{Census, Cuda, Gpu, Grid};
use partita_testing::{ignored_test, succeed};

/// Runs an ignored test as the one component of a chain.
fn child(name: &str) {
    child_of(&World::of_stages("steer", 4096, 2, Policy::Wait, &["-"]), name);
}

/// The same under MPS.
fn child_of_mps(name: &str) {
    if partita_testing::needs_simulator("a separate Multi-Process Service") {
        return;
    }
    child_of(&World::of_stages("steer-mps", 4096, 2, Policy::Wait, &["-"]).with_mps(), name);
}

fn child_of(world: &World, name: &str) {
    let mut command = ignored_test(name);
    world.surround(&mut command, 0);
    let out = succeed(&mut command).stdout;
    assert!(String::from_utf8_lossy(&out).contains("1 passed"), "it ran");
}

fn chain() -> Chain {
    Chain::open(std::env::var(CHAIN_VARIABLE).unwrap().as_ref()).unwrap()
}

/// The TPCs that a launch of the component runs on, two SMs each.
fn runs_on(component: &Component<'_>) -> TpcSet {
    let gpu = component.gpu();
    let grid = Grid { blocks: gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
    let sms: BTreeSet<u32> =
        Census::at(gpu, gpu.place(component.stream()), grid, 20_000).unwrap().sms().unwrap();
    sms.into_iter().map(|sm| (sm / 2) as u8).collect()
}

fn a_frame(component: &Component<'_>) {
    match component.receive(None).unwrap() {
        Received::Frame(frame) => component.finish(frame).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "run by another one as a program of its own"]
fn child_of_green_contexts() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let component = Attach::from_environment().unwrap().steer(GreenContexts::new()).attach(&gpu).unwrap();
    let mut chain = chain();
    a_frame(&component);
    let all = runs_on(&component);
    assert_eq!((all.len(), chain.status().unwrap()[0].applied_epoch), (66, 0));
    let mut streams = BTreeSet::new();
    for (tpcs, epoch) in [(8, 1), (40, 2), (8, 3)] {
        let wanted = all.lowest(tpcs);
        assert_eq!(chain.suggest(0, &wanted).unwrap(), epoch);
        assert_ne!(chain.status().unwrap()[0].applied_epoch, epoch, "not before the next frame");
        a_frame(&component);
        assert_eq!(component.refusal(), None);
        let status = &chain.status().unwrap()[0];
        assert_eq!((status.applied_epoch, status.applied_how), (epoch, 2));
        let now = runs_on(&component);
        // By the available sizes: the largest inside, or else the smallest around.
        assert!(now == wanted & now || wanted == wanted & now, "{wanted} became {now}");
        assert!(!now.is_empty() && now != all, "{wanted} became {now}");
        streams.insert(component.stream().handle().addr());
    }
    assert_eq!(streams.len(), 2, "a size that was there is there");
}

#[test]
fn green_contexts_are_made_once_for_each_size() {
    child("child_of_green_contexts");
}

#[test]
#[ignore = "run by another one as a program of its own"]
fn child_without_mps() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let attach = || Attach::from_environment().unwrap();
    let component = attach().steer(AffinityContexts::new()).attach(&gpu).unwrap();
    let mut chain = chain();
    let stream = component.stream();
    chain.suggest(0, &TpcSet::first(10)).unwrap();
    a_frame(&component);
    let refusal = component.refusal().unwrap();
    assert!(refusal.contains("UNSUPPORTED_EXEC_AFFINITY"), "{refusal}");
    assert_eq!(
        (component.stream(), chain.status().unwrap()[0].applied_epoch),
        (stream, 0),
        "all goes on as before"
    );
    drop(component);
    // Masks, on a board without a calibration.
    let component = attach().attach(&gpu).unwrap();
    a_frame(&component);
    let refusal = component.refusal().unwrap();
    assert!(refusal.contains("partita"), "{refusal}");
    let status = &chain.status().unwrap()[0];
    assert_eq!((status.applied_epoch, status.refused_epoch), (0, status.suggested.unwrap().0));
    assert_eq!(runs_on(&component).len(), 66);
}

#[test]
fn what_cannot_be_obeyed_is_said_and_the_component_goes_on() {
    child("child_without_mps");
}

/// Suggests, and returns the result: the refusal, the number of the suggestion in force, and its
/// method.
fn suggest(chain: &mut Chain, component: &Component<'_>, set: &TpcSet) -> (Option<String>, u64, u64) {
    chain.suggest(0, set).unwrap();
    a_frame(component);
    let status = &chain.status().unwrap()[0];
    (component.refusal(), status.applied_epoch, status.applied_how)
}

#[test]
#[ignore = "run by another one as a program of its own"]
fn child_of_contexts_of_mps() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    assert!(gpu.facts().under_mps);
    let component = Attach::from_environment().unwrap().steer(AffinityContexts::new()).attach(&gpu).unwrap();
    let mut chain = chain();
    a_frame(&component);
    assert_eq!(runs_on(&component).len(), 66, "everything, until something is suggested");
    let own = component.stream();
    let mut streams = BTreeSet::new();
    // Only the size of a suggestion counts; MPS gives at least 8 SMs.
    for (epoch, (tpcs, got)) in [(10, 10), (33, 33), (1, 4), (10, 10), (66, 66)].into_iter().enumerate() {
        let done = suggest(&mut chain, &component, &TpcSet::first(tpcs));
        assert_eq!(done, (None, epoch as u64 + 1, 3));
        assert_eq!(runs_on(&component).len(), got, "{tpcs} TPCs");
        assert_ne!(component.stream(), own);
        streams.insert(component.stream().handle().addr());
    }
    assert_eq!(streams.len(), 4, "a size that was there is there");
    // An empty set is not a size: the former units stay in force.
    let stream = component.stream();
    let (refusal, obeyed, _) = suggest(&mut chain, &component, &TpcSet::EMPTY);
    assert!(refusal.unwrap().contains("suggest at least one TPC"));
    assert_eq!((obeyed, component.stream()), (5, stream));
    // Contexts are few; existing ones stay in use.
    let refused = (2..60).find(|tpcs| suggest(&mut chain, &component, &TpcSet::first(*tpcs)).0.is_some());
    let refusal = component.refusal().unwrap();
    assert!(refused.is_some() && refusal.contains("all 32 contexts"), "{refused:?}: {refusal}");
    assert_eq!(suggest(&mut chain, &component, &TpcSet::first(10)).0, None);
    assert_eq!(runs_on(&component).len(), 10);
}

#[test]
#[ignore = "run by another one as a program of its own"]
fn child_of_prepared_contexts() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let attach = Attach::from_environment().unwrap();
    let component = attach.steer(AffinityContexts::prepared()).attach(&gpu).unwrap();
    let mut chain = chain();
    a_frame(&component);
    let left = gpu.memory_bytes().unwrap();
    let mut streams = BTreeSet::new();
    // Eight sizes, each at most what is suggested.
    for (tpcs, got) in [(66, 66), (65, 58), (58, 58), (40, 33), (33, 33), (20, 17), (9, 9), (3, 9), (1, 9)] {
        assert_eq!(suggest(&mut chain, &component, &TpcSet::first(tpcs)).0, None);
        assert_eq!(runs_on(&component).len(), got, "{tpcs} TPCs");
        streams.insert(component.stream().handle().addr());
    }
    assert_eq!(streams.len(), 5);
    assert_eq!(gpu.memory_bytes().unwrap(), left, "a division makes no context");
    let (refusal, ..) = suggest(&mut chain, &component, &TpcSet::EMPTY);
    assert!(refusal.unwrap().contains("suggest at least one TPC"));
}

#[test]
fn a_prepared_pool_makes_no_context_for_a_division() {
    child_of_mps("child_of_prepared_contexts");
}

#[test]
fn contexts_of_mps_are_made_once_for_each_size() {
    child_of_mps("child_of_contexts_of_mps");
}

#[test]
#[ignore = "run by another one as a program of its own"]
fn child_of_green_contexts_under_mps() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let component = Attach::from_environment().unwrap().steer(GreenContexts::new()).attach(&gpu).unwrap();
    let (mut chain, stream) = (chain(), component.stream());
    let (refusal, obeyed, _) = suggest(&mut chain, &component, &TpcSet::first(8));
    assert!(refusal.unwrap().contains("not available under MPS"));
    assert_eq!((obeyed, component.stream(), runs_on(&component).len()), (0, stream, 66));
}

#[test]
fn green_contexts_are_refused_under_mps_and_the_component_goes_on() {
    child_of_mps("child_of_green_contexts_under_mps");
}

#[test]
#[ignore = "run by another one as a program of its own"]
fn child_of_many_green_contexts() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let component = Attach::from_environment().unwrap().steer(GreenContexts::new()).attach(&gpu).unwrap();
    let mut chain = chain();
    // Single TPCs are sizes that the driver has, without clusters.
    let one = |tpc: u8| [tpc].into_iter().collect::<TpcSet>();
    for tpc in 0..64 {
        let (refusal, obeyed, how) = suggest(&mut chain, &component, &one(tpc));
        assert_eq!((refusal, obeyed, how), (None, u64::from(tpc) + 1, 2), "TPC {tpc}");
    }
    assert_eq!(runs_on(&component), one(63));
    let stream = component.stream();
    let (refusal, obeyed, _) = suggest(&mut chain, &component, &one(64));
    assert!(refusal.unwrap().contains("all 64 green contexts"));
    assert_eq!((obeyed, component.stream()), (64, stream));
    assert_eq!(suggest(&mut chain, &component, &one(7)).0, None);
    assert_eq!(runs_on(&component), one(7));
    let (refusal, ..) = suggest(&mut chain, &component, &TpcSet::EMPTY);
    assert!(refusal.is_some(), "nothing is no size");
    assert_eq!(runs_on(&component), one(7));
}

#[test]
fn green_contexts_are_so_many_and_no_more() {
    if !partita_testing::needs_simulator("a GPU with single TPCs as sizes") {
        child("child_of_many_green_contexts");
    }
}
