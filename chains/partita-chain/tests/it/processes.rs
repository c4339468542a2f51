//! Chains of real processes, with each source of frames' memory: the output equals the input, and a
//! killed process loses no frame's memory.

use crate::common;

use std::time::Duration;

use common::{Memory, World};
use partita_chain::{
    Attach, CHAIN_VARIABLE, Error, KEEPER_VARIABLE, KeeperSlabs, OwnSlabs, Policy, Role, Site, Slabs,
};
use partita_driver::{Cuda, Gpu};
use partita_frames::{SlabOwner, SlabPlan};
use partita_memory::client::Connection;
use partita_memory::keeper;
use partita_memory::pool::{LeaseId, Limits};
use partita_memory::wire::HandleKind;
use partita_testing::{eventually, ignored_test, succeed};

/// The keeper of a chain's memory, until the end of the test.
#[test]
#[ignore = "run by the others as a program of its own"]
fn child_keeps() {
    let cuda = Cuda::load(None).unwrap();
    let socket = std::env::var_os(KEEPER_VARIABLE).unwrap();
    let mut options = keeper::Options::new(socket.into());
    options.limits = Limits { window_ms: 20, ..Limits::default() };
    options.handles = match std::env::var("PARTITA_TEST_MEMORY").unwrap().as_str() {
        "Handles" => HandleKind::Ipc,
        "Descriptors" => HandleKind::Descriptor,
        other => panic!("{other}"),
    };
    keeper::run(&cuda, 0, &options).unwrap();
}

/// Each test, with each memory.
macro_rules! with_each_memory {
    ($($name:ident;)*) => {
        mod of_the_first_component { $(#[test] fn $name() { super::$name(super::Memory::Own); })* }
        mod of_a_keeper_by_handles { $(#[test] fn $name() { super::$name(super::Memory::Handles); })* }
        mod of_a_keeper_by_descriptors { $(#[test] fn $name() { super::$name(super::Memory::Descriptors); })* }
    };
}

with_each_memory! {
    the_product_of_a_chain_of_matrices_is_the_hosts;
    bright_spots_are_found_where_the_host_finds_them;
    killed_at_any_time_the_chain_goes_on_and_no_memory_is_lost;
}

/// Everything is back in the pool, or has no owner.
fn no_leak(world: &World, frames: u32) {
    let chain = world.chain();
    for role in 0..chain.plan().roles.len() as u8 {
        chain.recover(role).unwrap();
    }
    let census = chain.census();
    assert_eq!((census.lost, census.held.iter().sum::<u32>()), (0, 0), "{census:?}");
    assert_eq!(census.total() - census.unbacked, frames, "{census:?}");
}

fn the_product_of_a_chain_of_matrices_is_the_hosts(memory: Memory) {
    let stages =
        ["matrix S --frames 12", "matrix 48:3", "matrix S", "matrix 64", "matrix S --check S,48:3,S,64,S"];
    let world = World::of_stages(&format!("matrix-{memory:?}"), 2 * 120 * 120 * 4, 8, Policy::Wait, &stages)
        .with(memory);
    let mut processes = world.start_all();
    world.finishes(12, &mut processes);
    world.chain().stop();
    processes
        .into_iter()
        .enumerate()
        .for_each(|(role, process)| process.succeeds(&format!("component {role}")));
    let status = world.chain().status().unwrap();
    assert!(status.iter().all(|role| (role.frames_in, role.frames_out) == (12, 12)), "{status:#?}");
    assert!(status.iter().all(|role| role.dropped_of_dead + role.dropped_by_owner == 0), "{status:#?}");
    no_leak(&world, 8);
    world.keeper_is_clean_in_the_end();
}

fn bright_spots_are_found_where_the_host_finds_them(memory: Memory) {
    let stages = ["decode 96x64 --frames 20", "enhance 96x64", "detect 96x64 --check"];
    let world = World::of_stages(&format!("image-{memory:?}"), 2 * 96 * 64 + 16, 5, Policy::Wait, &stages)
        .with(memory);
    let mut processes = world.start_all();
    world.finishes(20, &mut processes);
    world.chain().stop();
    processes
        .into_iter()
        .enumerate()
        .for_each(|(role, process)| process.succeeds(&format!("component {role}")));
    no_leak(&world, 5);
    world.keeper_is_clean_in_the_end();
}

fn killed_at_any_time_the_chain_goes_on_and_no_memory_is_lost(memory: Memory) {
    let stages = ["matrix 32", "matrix 24", "matrix 32", "matrix 32 --check 32,24,32,32"];
    let world = World::of_stages(&format!("kills-{memory:?}"), 2 * 32 * 32 * 4, 8, Policy::Wait, &stages)
        .with(memory);
    let mut processes = world.start_all();
    let mut finished = 3;
    world.finishes(finished, &mut processes);
    let mut random = fastrand::Rng::with_seed(7);
    for kill in 0..24 {
        std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        let role = kill % stages.len();
        processes[role].kill();
        processes[role] = world.start(role);
        finished = world.chain().frames_finished() + 3;
        world.finishes(finished, &mut processes);
    }
    world.chain().stop();
    processes
        .into_iter()
        .enumerate()
        .for_each(|(role, process)| process.succeeds(&format!("component {role}")));
    no_leak(&world, 8);
    world.keeper_is_clean_in_the_end();
}

/// The entry in the chain's file for granted memory.
fn plan_of(granted: &partita_chain::Granted<'_>) -> SlabPlan {
    SlabPlan {
        handle: granted.handle,
        begins_at: granted.begins_at,
        bytes: granted.bytes,
        owner: SlabOwner::Keeper(granted.keeper.unwrap()),
        tag: granted.tag,
        elsewhere: None,
    }
}

/// Opens a chain's memory without a place in it, like a component that lost its place, and reports
/// it through a file.
#[test]
#[ignore = "run by another one as a program of its own"]
fn child_opens_and_stays() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let [file, socket] = [CHAIN_VARIABLE, KEEPER_VARIABLE].map(|name| std::env::var_os(name).unwrap());
    let slabs = || KeeperSlabs::new(&socket, &file, "stays".parse().unwrap());
    let component = Attach::new(&file, Role::Number(0)).attach(&gpu).unwrap();
    let site = Site { number: 0, uuid: gpu.facts().uuid };
    let (mut first, mut second) = (slabs(), slabs());
    let granted = plan_of(&first.grant(&gpu, &site, 4096).unwrap());
    // The next look returns one that the chain never knew, and keeps those that it knows.
    let stray = plan_of(&first.grant(&gpu, &site, 4096).unwrap());
    let kept = |slabs: &mut KeeperSlabs, known: &[&SlabPlan]| {
        slabs.still_there(&gpu, &site, &known.iter().map(|plan| (*plan).clone()).collect::<Vec<_>>()).unwrap()
    };
    assert_eq!(kept(&mut second, &[&granted]), [true]);
    assert_eq!(kept(&mut second, &[&granted, &stray]), [true, false]);
    assert!(second.open(&gpu, &site, &stray).unwrap().is_none(), "it may be another owner's");
    let others = SlabPlan { owner: SlabOwner::Keeper(1), ..granted.clone() };
    assert!(second.open(&gpu, &site, &others).unwrap().is_none(), "it was another keeper's");
    let error = OwnSlabs.open(&gpu, &site, &granted).err().unwrap();
    assert!(matches!(&error, Error::Environment { variable: KEEPER_VARIABLE, .. }), "{error}");

    // One that the keeper wants back is not kept; a component that finds a frame in it still opens
    // it, and it is not reused while the chain lives.
    let keeper = || Connection::connect(socket.as_ref(), None, Duration::from_secs(60)).unwrap();
    keeper().take_back(LeaseId(granted.tag[1])).unwrap();
    assert_eq!(kept(&mut first, &[&granted]), [false]);
    let memory = second.open(&gpu, &site, &granted).unwrap().unwrap();
    memory.span().part(granted.begins_at, 4).unwrap().write(b"here").unwrap();
    drop((first, component));
    let status = || keeper().status().unwrap();
    eventually("the chain has ended", || status().chains == 0);
    // It is not reused while it is open here.
    let mut seen = [0; 4];
    memory.span().part(granted.begins_at, 4).unwrap().read(&mut seen).unwrap();
    assert_eq!((&seen, status().totals.leases, status().totals.resting), (b"here", 0, 1));
    drop(memory);
    second.closed();
    eventually("it is free", || status().totals.resting == 0);
}

/// A chain's memory rests until every process that opened it has closed it.
fn rests_while_it_is_open(memory: Memory) {
    let world = World::of_stages(&format!("stays-{memory:?}"), 4096, 1, Policy::Wait, &["-"]).with(memory);
    let mut command = ignored_test("child_opens_and_stays");
    world.surround(&mut command, 0);
    let out = succeed(&mut command).stdout;
    assert!(String::from_utf8_lossy(&out).contains("1 passed"), "it ran");
    world.keeper_is_clean_in_the_end();
}

#[test]
fn memory_by_handles_rests_while_it_is_open() {
    rests_while_it_is_open(Memory::Handles);
}

#[test]
fn memory_by_descriptors_rests_while_it_is_open() {
    rests_while_it_is_open(Memory::Descriptors);
}
