//! What is suggested to a component holds from its next frame on.

mod common;

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
    let world = World::of_stages("steer", 4096, 2, Policy::Wait, &["-"]);
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
        // As the sizes come: what lies inside, or else what lies around.
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
    // Masks, on a board that nobody has calibrated.
    let component = attach().attach(&gpu).unwrap();
    a_frame(&component);
    let refusal = component.refusal().unwrap();
    assert!(refusal.contains("partita"), "{refusal}");
    assert_eq!(runs_on(&component).len(), 66);
}

#[test]
fn what_cannot_be_obeyed_is_said_and_the_component_goes_on() {
    child("child_without_mps");
}
