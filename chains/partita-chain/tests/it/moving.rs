//! Frames continue while compute units move from component to component, with the stream or the
//! host waiting for the GPU.

use crate::common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Process, World};
use partita_chain::{
    AffinityContexts, Attach, COMPONENT_VARIABLE, Component, GreenContexts, Outcome, Policy, Received,
};
use partita_core::TpcSet;
use partita_driver::{Cuda, Gpu, Grid};
use partita_testing::{eventually, ignored_test};

const ROLES: usize = 3;
const FRAME_BYTES: u64 = 64 << 10;
const STEER_VARIABLE: &str = "PARTITA_TEST_STEER";
const ON_HOST_VARIABLE: &str = "PARTITA_TEST_ON_HOST";
/// Long enough to outlast the passing of the frame, in nanoseconds.
const SPIN_NS: u64 = 2_000_000;

fn attach<'g>() -> Attach<'g> {
    let attach = Attach::from_environment().unwrap().on_host(std::env::var_os(ON_HOST_VARIABLE).is_some());
    match std::env::var(STEER_VARIABLE).as_deref() {
        Ok("green") => attach.steer(GreenContexts::new()),
        Ok("mps") => attach.steer(AffinityContexts::new()),
        _ => attach,
    }
}

/// The content of a frame in the part of a role: another byte for each frame.
fn mark(role: usize, sequence: u64) -> u8 {
    (sequence % 80) as u8 * 3 + role as u8 + 1
}

/// Marks its part of each frame, after some work; the last one checks all marks.
#[test]
#[ignore = "run by the others as a program of its own"]
fn component() {
    let role: usize = std::env::var(COMPONENT_VARIABLE).unwrap().parse().unwrap();
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let component = attach().attach(&gpu).unwrap();
    let part = FRAME_BYTES / ROLES as u64;
    loop {
        let frame = match component.receive(None).unwrap() {
            Received::Frame(frame) => frame,
            Received::Late => continue,
            Received::Ended => return,
        };
        assert_eq!(component.refusal(), None);
        let (stream, sequence) = (component.stream(), frame.sequence());
        if sequence % 4 == role as u64 {
            gpu.spin_on(stream, Grid { blocks: 1, threads: 32, cluster_blocks: 1 }, SPIN_NS).unwrap();
        }
        let mine = frame.part(part * role as u64, part).unwrap();
        mine.fill(mark(role, sequence), stream).unwrap();
        if !component.is_last() {
            match component.send(frame).unwrap() {
                Outcome::Sent => continue,
                Outcome::Ended => return,
                other => panic!("{other:?}"),
            }
        }
        let mut data = vec![0; FRAME_BYTES as usize];
        frame.read(0, &mut data).unwrap();
        let of = |at: usize| (at / part as usize).min(ROLES - 1);
        let end = part as usize * ROLES;
        let wrong = (0..end).find(|at| data[*at] != mark(of(*at), sequence));
        assert_eq!(wrong, None, "frame {sequence}");
        assert!(frame.is_whole().unwrap(), "frame {sequence}");
        component.finish(frame).unwrap();
    }
}

fn start(world: &World, role: usize, variables: &[(&str, &str)]) -> Process {
    let mut command = ignored_test("component");
    world.surround(&mut command, role);
    Process::start(command.envs(variables.iter().copied()).stdout(Stdio::null()))
}

/// Passes frames while each component gets new suggestions, again and again.
fn moves(world: &World, how: u64, variables: &[(&str, &str)]) {
    let mut children: Vec<Process> = (0..ROLES).map(|role| start(world, role, variables)).collect();
    let mut chain = world.chain();
    let mut lives = || {
        for (role, child) in children.iter_mut().enumerate() {
            assert_eq!(child.has_ended(), None, "component {role}");
        }
    };
    for round in 0..8u32 {
        let before = chain.frames_finished();
        let mut epochs = Vec::new();
        for role in 0..ROLES as u8 {
            // A few sizes, so that contexts are made, left and used again.
            let tpcs = [8, 40, 66, 16][(round as usize + usize::from(role)) % 4];
            epochs.push(if how == 0 { 0 } else { chain.suggest(role, &TpcSet::first(tpcs)).unwrap() });
        }
        eventually("all have obeyed, and frames go on", || {
            lives();
            let status = chain.status().unwrap();
            let obeyed = |(role, epoch): (usize, &u64)| {
                (status[role].applied_epoch, status[role].applied_how) == (*epoch, how)
            };
            epochs.iter().enumerate().all(obeyed) && chain.frames_finished() >= before + 8
        });
    }
    chain.stop();
    children.into_iter().for_each(|child| child.succeeds("a component"));
    let status = chain.status().unwrap();
    // A component that waited for room at the end has dropped a frame; no other frame is lost.
    assert!(status.iter().all(|role| role.dropped_of_dead == 0 && role.dropped_by_owner <= 1), "{status:#?}");
    assert_eq!(chain.census().lost, 0);
}

fn world(name: &str) -> World {
    World::of_stages(name, FRAME_BYTES, 6, Policy::Wait, &["-"; ROLES])
}

const ON_HOST: (&str, &str) = (ON_HOST_VARIABLE, "1");

#[test]
fn with_green_contexts() {
    moves(&world("moving-green"), 2, &[(STEER_VARIABLE, "green")]);
}

#[test]
fn with_green_contexts_and_the_host_waiting() {
    moves(&world("moving-green-host"), 2, &[(STEER_VARIABLE, "green"), ON_HOST]);
}

#[test]
fn with_contexts_of_mps() {
    if !partita_testing::needs_simulator("a separate Multi-Process Service") {
        moves(&world("moving-mps").with_mps(), 3, &[(STEER_VARIABLE, "mps")]);
    }
}

#[test]
fn with_contexts_of_mps_and_the_host_waiting() {
    if !partita_testing::needs_simulator("a separate Multi-Process Service") {
        moves(&world("moving-mps-host").with_mps(), 3, &[(STEER_VARIABLE, "mps"), ON_HOST]);
    }
}

#[test]
fn with_the_host_waiting_alone() {
    moves(&world("moving-host"), 0, &[ON_HOST]);
}

fn a_frame<'c, 'g>(component: &'c Component<'g>, limit: Duration) -> Option<partita_chain::Frame<'c, 'g>> {
    match component.receive(Some(limit)).unwrap() {
        Received::Frame(frame) => Some(frame),
        Received::Late => None,
        Received::Ended => panic!("the chain was not ended"),
    }
}

/// Passes a frame on behind work that takes a second, and stays until it is killed.
#[test]
#[ignore = "run by another one as a program of its own"]
fn child_is_slow() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let component = attach().attach(&gpu).unwrap();
    let frame = a_frame(&component, Duration::from_secs(60)).unwrap();
    let stream = component.stream();
    gpu.spin_on(stream, Grid { blocks: 1, threads: 32, cluster_blocks: 1 }, 1_000_000_000).unwrap();
    frame.span().unwrap().fill(7, stream).unwrap();
    component.send(frame).unwrap();
    loop {
        std::thread::park();
    }
}

/// Waits on the host for two senders: one whose work ends, and one that is killed before.
#[test]
#[ignore = "run by another one as a program of its own"]
fn child_waits_on_the_host() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let component = attach().on_host(true).attach(&gpu).unwrap();
    let began = Instant::now();
    let frame = a_frame(&component, Duration::from_secs(60)).unwrap();
    // No wait between: the sender's work is done. Another stream that reads the frame sees it.
    let mut data = vec![0; FRAME_BYTES as usize];
    frame.span().unwrap().read(&mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == 7), "after {:?}", began.elapsed());
    println!("\nsays: one");
    component.finish(frame).unwrap();
    // The next sender dies while its work is on the GPU. No frame with unfinished work is given
    // out, and no wait lasts for ever.
    assert!(a_frame(&component, Duration::from_secs(3)).is_none(), "its content is unknown");
    println!("\nsays: none");
    let frame = a_frame(&component, Duration::from_secs(60)).unwrap();
    frame.span().unwrap().read(&mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == 7));
    component.finish(frame).unwrap();
}

/// Begins when the sender of the first frame has died.
#[test]
#[ignore = "run by another one as a program of its own"]
fn child_comes_too_late() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let component = attach().attach(&gpu).unwrap();
    assert!(a_frame(&component, Duration::from_secs(1)).is_none(), "its memory is gone");
    println!("\nsays: none");
    component.finish(a_frame(&component, Duration::from_secs(60)).unwrap()).unwrap();
}

/// One of these programs, as the process of a role.
fn child(world: &World, test: &str, role: usize) -> Process {
    let mut command = ignored_test(test);
    world.surround(&mut command, role);
    Process::start(command.stdout(Stdio::piped()))
}

#[test]
fn a_frame_whose_memory_has_gone_with_its_sender_is_dropped() {
    let world = World::of_stages("too-late", FRAME_BYTES, 3, Policy::Wait, &["-"; 2]);
    let child = |test, role| child(&world, test, role);
    let mut sender = child("child_is_slow", 0);
    let chain = world.chain();
    eventually("the frame is on its way", || chain.status().unwrap()[0].frames_out == 1);
    sender.kill();
    let mut receiver = child("child_comes_too_late", 1);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(receiver.stdout()));
    assert!(lines.any(|line| line.unwrap() == "says: none"));
    let dropped = chain.status().unwrap().iter().map(|role| role.dropped_of_dead).sum::<u64>();
    assert_eq!(dropped, 1, "{:#?}", chain.status());
    let mut sender = child("child_is_slow", 0);
    receiver.succeeds("the receiver");
    sender.kill();
    assert_eq!((chain.frames_finished(), chain.census().lost), (1, 0));
}

#[test]
fn the_host_waits_for_the_gpu_and_for_no_dead_process() {
    let world = World::of_stages("on-host", FRAME_BYTES, 3, Policy::Wait, &["-"; 2]);
    let child = |test, role| child(&world, test, role);
    let mut sender = child("child_is_slow", 0);
    let mut receiver = child("child_waits_on_the_host", 1);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(receiver.stdout()));
    let mut hears = |what: &str| {
        assert!(lines.any(|line| line.unwrap() == format!("says: {what}")), "not: {what}");
    };
    hears("one");
    sender.kill();
    let chain = world.chain();
    // The next one is killed as soon as its frame is on the way, while its second of work has
    // hardly started.
    let mut sender = child("child_is_slow", 0);
    eventually("the second frame is on its way", || chain.status().unwrap()[0].frames_out == 2);
    sender.kill();
    hears("none");
    let dropped = chain.status().unwrap().iter().map(|role| role.dropped_of_dead).sum::<u64>();
    assert_eq!(dropped, 1, "{:#?}", chain.status());
    let mut sender = child("child_is_slow", 0);
    receiver.succeeds("the receiver");
    sender.kill();
    assert_eq!((chain.frames_finished(), chain.census().lost), (2, 0));
}
