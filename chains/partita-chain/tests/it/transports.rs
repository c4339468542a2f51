//! Every way to hand frames over: three processes, and the last one finds the content that the
//! others wrote.

use crate::common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::World;
use partita_chain::transport::{Carrier, Handles, Item, Place, RingTransport, Transport, UdpCopy};
use partita_chain::{Attach, CHAIN_VARIABLE, COMPONENT_VARIABLE, Policy};
use partita_driver::{Cuda, Gpu, KERNEL_DEADLINE_MS};
use partita_testing::ignored_test;

const ROLES: u8 = 3;
const FRAMES: u64 = 12;
/// More than one message, and not a whole number of them.
const FRAME_BYTES: u64 = 150_000;
const KIND_VARIABLE: &str = "PARTITA_TEST_TRANSPORT";

/// A component on the transport that the environment names.
#[test]
#[ignore = "run by the others as a program of its own"]
fn component() {
    let role: u8 = std::env::var(COMPONENT_VARIABLE).unwrap().parse().unwrap();
    let file = std::env::var(CHAIN_VARIABLE).unwrap();
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let place = || Place::new(Path::new(&file).parent().unwrap(), role, ROLES);
    let handles = |carrier, keep| Handles::new(&gpu, place(), carrier, keep, 4, FRAME_BYTES).unwrap();
    let mut transport: Box<dyn Transport> = match std::env::var(KIND_VARIABLE).unwrap().as_str() {
        "ring" => Box::new(RingTransport::new(Attach::from_environment().unwrap().attach(&gpu).unwrap())),
        "udp-copy" => Box::new(UdpCopy::new(&gpu, place(), FRAME_BYTES).unwrap()),
        "udp-handle" => Box::new(handles(Carrier::Udp, false)),
        _ => Box::new(handles(Carrier::Unix, true)),
    };
    let mut seen = 0;
    let mut work = |item: Item<'_>| {
        if role == 0 {
            // When the memory comes back, it is in order.
            gpu.wait_on(item.stream, "the last use", KERNEL_DEADLINE_MS).unwrap();
            item.span.write(&vec![item.sequence as u8 + 100; FRAME_BYTES as usize]).unwrap();
        }
        item.span.part(1000 * u64::from(role), 10).unwrap().fill(role + 1, item.stream).unwrap();
        if role + 1 == ROLES {
            gpu.wait_on(item.stream, "the whole chain", KERNEL_DEADLINE_MS).unwrap();
            let mut data = vec![0; FRAME_BYTES as usize];
            item.span.read(&mut data).unwrap();
            let expected = |at: usize| match (at / 1000, at % 1000) {
                (part, 0..10) if part < usize::from(ROLES) => part as u8 + 1,
                _ => item.sequence as u8 + 100,
            };
            let wrong = (0..data.len()).find(|at| data[*at] != expected(*at));
            assert_eq!(wrong, None, "frame {}", item.sequence);
            assert_eq!(item.sequence, seen);
        }
        seen += 1;
        Ok(())
    };
    let mut passed = 0;
    while passed < FRAMES {
        if let Some(frame) = transport.step(Duration::from_secs(10), &mut work).unwrap() {
            assert_eq!((frame.sequence, frame.hand_over_ns.is_some()), (passed, role > 0));
            passed += 1;
        }
    }
    if role == 0 {
        // Its memory stays until the others are done.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    }
}

fn carries(kind: &str) {
    let stages = ["-"; ROLES as usize];
    let world = World::of_stages(kind, FRAME_BYTES, 4, Policy::Wait, &stages);
    let mut children: Vec<_> = (0..usize::from(ROLES))
        .map(|role| {
            let mut command: Command = ignored_test("component");
            world.surround(&mut command, role);
            command
                .env(KIND_VARIABLE, kind)
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    let first = children.remove(0);
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "{kind}");
    }
    assert!(first.wait_with_output().unwrap().status.success(), "{kind}: the first");
}

#[test]
fn by_the_ring() {
    carries("ring");
}

#[test]
fn by_copies_over_udp() {
    carries("udp-copy");
}

#[test]
fn by_handles_over_udp() {
    carries("udp-handle");
}

#[test]
fn by_handles_over_unix_sockets() {
    carries("unix-handle");
}
