//! Memory and events of one process in another one: by handle, and by descriptor.
//!
//! An owner, a child of the test, starts the process that opens: both are processes of one
//! simulated machine.

use crate::common;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use common::Sim;
use partita_driver::ipc::{
    EventHandle, HANDLE_BYTES, MappedMemory, MemoryHandle, OpenedMemory, Physical, SharedEvent,
};
use partita_driver::{Cuda, Error, Gpu, Stream};
use partita_testing::{ignored_test, succeed};

const BYTES: u64 = 4 << 20;

fn hex(bytes: [u8; HANDLE_BYTES]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn handle(variable: &str) -> [u8; HANDLE_BYTES] {
    let text = std::env::var(variable).unwrap();
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..][..2], 16).unwrap())
}

/// Whether the driver failed with this name.
fn says<T>(result: Result<T, Error>, name: &str) -> bool {
    match result {
        Err(Error::Call { code, .. }) => code.to_string().contains(name),
        _ => false,
    }
}

/// Runs the other process, on the same machine.
fn other(test: &str) -> Command {
    ignored_test(test)
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_owns_memory_and_event() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let stream = Stream::new(&cuda).unwrap();
    let buffer = gpu.alloc(BYTES as usize).unwrap();
    let event = SharedEvent::create(&cuda).unwrap();
    assert!(event.is_done().unwrap(), "nothing was recorded");

    let memory = MemoryHandle::of(&gpu, &buffer).unwrap();
    let own = OpenedMemory::open(&gpu, &memory, BYTES);
    assert!(says(own, "INVALID_CONTEXT"), "it belongs to this process");
    // The other process must wait for this on the GPU.
    buffer.fill(1).unwrap();
    gpu.spin(1, 32, 30_000_000).unwrap();
    event.record(gpu.stream()).unwrap();
    let mut command = other("child_opens_memory_and_event");
    command.env("MEMORY", hex(memory.to_bytes())).env("EVENT", hex(event.export().unwrap().to_bytes()));
    print!("{}", String::from_utf8_lossy(&succeed(&mut command).stdout));
    // The other process has written, and recorded the event after it.
    event.hold(stream.as_ref()).unwrap();
    stream.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    assert_eq!(buffer.read().unwrap()[..4], [1, 2, 2, 1]);
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_opens_memory_and_event() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let stream = Stream::new(&cuda).unwrap();
    let event = SharedEvent::open(&cuda, &EventHandle::from_bytes(handle("EVENT"))).unwrap();
    event.hold(stream.as_ref()).unwrap();
    stream.synchronize().unwrap();
    assert!(event.is_done().unwrap());

    let memory = MemoryHandle::from_bytes(handle("MEMORY"));
    let opened = OpenedMemory::open(&gpu, &memory, BYTES).unwrap();
    let span = opened.span();
    assert_eq!(span.bytes(), BYTES);
    let mut bytes = [0; 4];
    span.read(&mut bytes).unwrap();
    assert_eq!(bytes, [1; 4]);
    span.part(1, 2).unwrap().fill(2, stream.as_ref()).unwrap();
    event.record(stream.as_ref()).unwrap();
    event.synchronize().unwrap();
    assert!(span.part(BYTES - 1, 2).unwrap_err().to_string().contains("beyond"));
    assert!(span.part(u64::MAX, 2).is_err());
    assert!(span.part(BYTES - 1, 1).unwrap().write(&[1, 2]).is_err());

    let again = OpenedMemory::open(&gpu, &memory, BYTES).unwrap();
    drop(opened);
    again.span().write(&[1]).unwrap();
    drop(again);
    let mut wrong = memory.to_bytes();
    wrong[20] ^= 1;
    assert!(OpenedMemory::open(&gpu, &MemoryHandle::from_bytes(wrong), BYTES).is_err());
    assert!(OpenedMemory::open(&gpu, &MemoryHandle::from_bytes([0; HANDLE_BYTES]), BYTES).is_err());
    assert!(SharedEvent::open(&cuda, &EventHandle::from_bytes([0; HANDLE_BYTES])).is_err());
    common::say("opened");
}

#[test]
fn handles_carry_memory_and_order_between_processes() {
    assert_eq!(Sim::new("ipc", "h200").child_says("child_owns_memory_and_event", &[]), ["opened"]);
}

fn mapped<'a>(physical: &Physical<'a>) -> MappedMemory<'a> {
    physical.map().unwrap()
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_owns_a_descriptor() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let granularity = Physical::granularity_bytes(&gpu).unwrap();
    let odd = Physical::create(&gpu, granularity + 1).err().unwrap().to_string();
    assert!(odd.contains("multiples"), "{odd}");
    let bytes = granularity * 2;
    let free_bytes = gpu.memory_bytes().unwrap().0;

    let physical = Physical::create(&gpu, bytes).unwrap();
    // Only a placeholder is ever replaced.
    let file = File::open("/proc/self/stat").unwrap();
    assert!(physical.export_over(file.as_raw_fd()).unwrap_err().to_string().contains("/dev/null"));
    assert!(physical.export_over(-1).is_err());
    let descriptor = null();
    physical.export_over(descriptor.as_raw_fd()).unwrap();
    let here = mapped(&physical);
    here.span().write(&[7; 8]).unwrap();
    // Here, and at a second address at the same time.
    let twin = mapped(&Physical::import(&gpu, descriptor.as_raw_fd(), bytes).unwrap());
    assert_ne!(here.span().address(), twin.span().address());
    drop(twin);

    // The other process's standard input is the descriptor.
    let mut command = other("child_maps_a_descriptor");
    command.env("BYTES", bytes.to_string()).stdin(Stdio::from(descriptor));
    print!("{}", String::from_utf8_lossy(&succeed(&mut command).stdout));
    let mut seen = [0; 8];
    here.span().read(&mut seen).unwrap();
    assert_eq!(seen, [9, 9, 9, 9, 7, 7, 7, 7]);
    drop((here, physical));
    // The command holds the last descriptor.
    drop(command);
    partita_testing::eventually("the memory is free again", || gpu.memory_bytes().unwrap().0 == free_bytes);
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_maps_a_descriptor() {
    let cuda = common::cuda();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let bytes = std::env::var("BYTES").unwrap().parse().unwrap();
    let physical = Physical::import(&gpu, std::io::stdin().as_raw_fd(), bytes).unwrap();
    assert_eq!(physical.bytes(), bytes);
    let here = mapped(&physical);
    drop(physical);
    let mut seen = [0; 4];
    here.span().read(&mut seen).unwrap();
    assert_eq!(seen, [7; 4]);
    here.span().write(&[9; 4]).unwrap();
    let nothing = null();
    assert!(Physical::import(&gpu, nothing.as_raw_fd(), bytes).is_err());
    assert!(Physical::import(&gpu, -1, bytes).is_err());
    common::say("mapped");
}

#[test]
fn descriptors_carry_memory_between_processes() {
    let sim = Sim::new("ipcfd", "h200");
    let told = sim.child_says("child_owns_a_descriptor", &[]);
    assert_eq!(told, ["mapped"]);
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_lacks_symbols() {
    let cuda = Cuda::load(Some(c"libc.so.6")).unwrap();
    let refused = SharedEvent::open(&cuda, &EventHandle::from_bytes([0; HANDLE_BYTES])).err().unwrap();
    assert!(matches!(refused, Error::MissingSymbol("cuIpcOpenEventHandle")), "{refused}");
    common::say("refused");
}

#[test]
fn a_driver_without_a_call_lacks_that_call_alone() {
    assert_eq!(Sim::new("ipcless", "h200").child_says("child_lacks_symbols", &[]), ["refused"]);
}
