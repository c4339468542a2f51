//! The keeper and its clients on a simulated GPU, or on the machine's own
//! (`PARTITA_TEST_GPU=real`): separate processes, as in use.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use partita_driver::{Cuda, Gpu};
use partita_memory::client::{Client, Connection, Error, Options};
use partita_memory::keeper::{self, HostMemory};
use partita_memory::pool::{Limits, SlabId};
use partita_memory::wire::{Code, HandleKind, Status};
use partita_testing::{Machine, eventually, ignored_test, is_real};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A machine with a keeper.
struct World {
    machine: Machine,
    keeper: Option<Process>,
    kind: &'static str,
}

impl World {
    fn new(name: &str, kind: &'static str) -> Self {
        let mut world = Self { machine: Machine::new(name), keeper: None, kind };
        world.start_keeper();
        world
    }

    fn socket(&self) -> PathBuf {
        self.machine.path("keeper")
    }

    fn start_keeper(&mut self) {
        let mut keeper = self.child("child_keeps");
        assert_eq!(keeper.hears(), "keeps");
        self.keeper = Some(keeper);
    }

    /// An ignored test of this program, on this machine.
    fn child(&self, test: &str) -> Process {
        let mut command = ignored_test(test);
        if !is_real() {
            self.machine.surround(&mut command, "h200");
        }
        command.env("SOCKET", self.socket()).env("KIND", self.kind);
        Process::start(&mut command)
    }

    fn admin(&self) -> Connection {
        Connection::connect(&self.socket(), None, PATIENCE).unwrap()
    }

    fn status(&self) -> Status {
        self.admin().status().unwrap()
    }

    fn is_clean_in_the_end(&self) {
        eventually("all memory has gone back", || {
            let totals = self.status().totals;
            (totals.leases, totals.resting, totals.owners, totals.slab_bytes) == (0, 0, 0, 0)
        });
        let totals = self.status().totals;
        assert_eq!(totals.leased_ever, totals.given_back_ever);
        assert_eq!(totals.slabs_made_ever, totals.slabs_freed_ever);
    }
}

/// A child that prints lines and takes commands; killed when dropped.
struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, lines) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, orders, lines }
    }

    /// Its next line.
    fn hears(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it has ended");
            if let Some((_, said)) = line.split_once("says: ") {
                return said.trim_end().to_owned();
            }
        }
    }

    fn order(&mut self, what: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Lets it end.
    fn ends_well(mut self) {
        self.orders = None;
        let mut rest = String::new();
        while self.lines.read_line(&mut rest).unwrap() > 0 {}
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: impl std::fmt::Display) {
    println!("\nsays: {what}");
}

/// The parent's next command; empty at the end.
fn order() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn socket() -> PathBuf {
    std::env::var_os("SOCKET").unwrap().into()
}

fn connect<'a>(gpu: &'a Gpu<'a>, tenant: &str) -> Client<'a> {
    Client::connect(gpu, &socket(), tenant.parse().unwrap(), &Options::default()).unwrap()
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_keeps() {
    let cuda = Cuda::load(None).unwrap();
    let mut options = keeper::Options::new(socket());
    options.limits = Limits { window_ms: 20, ..Limits::default() };
    options.quota_bytes = 64 * MIB;
    options.handles = match std::env::var("KIND").unwrap().as_str() {
        "ipc" => HandleKind::Ipc,
        _ => HandleKind::Descriptor,
    };
    // Its parent waits for the socket by this line.
    let path = options.socket.clone();
    std::thread::spawn(move || {
        eventually("the keeper serves", || Connection::connect(&path, None, PATIENCE).is_ok());
        say("keeps");
    });
    let end = keeper::run(&cuda, 0, &options).unwrap();
    say(format!("{end:?}"));
}

/// Leases, writes, prints where, and holds it until the end.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_writes() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let client = connect(&gpu, "frames");
    let leases: Vec<_> = (0..3).map(|_| client.lease(300_000).unwrap()).collect();
    for (number, lease) in leases.iter().enumerate() {
        lease.span().unwrap().write(&vec![number as u8 + 1; 300_000]).unwrap();
    }
    let places: Vec<String> =
        leases.iter().map(|lease| format!("{}:{}", lease.lease().slab.0, lease.lease().offset)).collect();
    say(places.join(" "));
    while !order().is_empty() {}
    drop(leases);
}

/// Reads another process's data, and writes back.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_reads() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let client = connect(&gpu, "frames");
    let stranger = connect(&gpu, "stranger");
    for (number, place) in order().split(' ').enumerate() {
        let (slab, offset) = place.split_once(':').unwrap();
        let id = SlabId(slab.parse().unwrap());
        let slab = client.slab(id).unwrap();
        let mut seen = vec![0; 300_000];
        slab.span().part(offset.parse().unwrap(), 300_000).unwrap().read(&mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == number as u8 + 1), "frame {number}");
        // Another tenant sees none of it.
        assert!(matches!(stranger.slab(id), Err(Error::Refused { code: Code::Unknown, .. })));
    }
    say("read");
}

/// Leases memory that another tenant had before.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_sees_nothing() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let client = connect(&gpu, "after");
    for _ in 0..3 {
        let (lease, mut seen) = (client.lease(300_000).unwrap(), vec![1; 300_000]);
        lease.span().unwrap().read(&mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 0), "it was another tenant's");
    }
}

fn passes(kind: &'static str) {
    let world = World::new(&format!("mem-{kind}"), kind);
    let (mut writer, mut reader) = (world.child("child_writes"), world.child("child_reads"));
    let places = writer.hears();
    reader.order(&places);
    assert_eq!(reader.hears(), "read");
    reader.ends_well();
    writer.ends_well();
    world.is_clean_in_the_end();
    world.child("child_sees_nothing").ends_well();
    world.is_clean_in_the_end();
}

#[test]
fn memory_passes_by_handle() {
    passes("ipc");
}

#[test]
fn memory_passes_by_descriptor() {
    passes("descriptor");
}

/// Leases and returns at random, and finds in each lease its own data.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_races() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let client = connect(&gpu, "race");
    let mut random = fastrand::Rng::with_seed(u64::from(std::process::id()));
    let mut held = Vec::new();
    let before = gpu.memory_bytes().unwrap();
    for turn in 0..200u64 {
        if held.len() < 12 && random.bool() {
            let bytes = [4096, 20_000, 500_000][random.usize(0..3)];
            let lease = client.lease(bytes).unwrap();
            let mark = u64::from(std::process::id()) << 32 | turn;
            lease.span().unwrap().write(&mark.to_le_bytes()).unwrap();
            let span = lease.span().unwrap();
            span.part(bytes - 8, 8).unwrap().write(&mark.to_le_bytes()).unwrap();
            held.push((lease, bytes, mark));
        } else if !held.is_empty() {
            let (lease, bytes, mark) = held.swap_remove(random.usize(0..held.len()));
            for at in [0, bytes - 8] {
                let mut seen = [0; 8];
                lease.span().unwrap().part(at, 8).unwrap().read(&mut seen).unwrap();
                assert_eq!(u64::from_le_bytes(seen), mark);
            }
        }
        if turn % 64 == 0 {
            client.beat().unwrap();
        }
    }
    // It allocates nothing itself: its cost on the GPU is the slabs.
    assert!(before.1 == gpu.memory_bytes().unwrap().1);
    say("raced");
    // One of them is killed here, with leases and slabs open.
    while !order().is_empty() {}
}

#[test]
fn racing_processes_find_what_they_wrote_and_a_dead_ones_memory_comes_back() {
    let world = World::new("mem-race", "ipc");
    let mut racers: Vec<Process> = (0..3).map(|_| world.child("child_races")).collect();
    for racer in &mut racers {
        assert_eq!(racer.hears(), "raced");
    }
    let made = world.status().totals.slabs_made_ever;
    assert!((3..=20).contains(&made), "{made} slabs for three sizes");
    let mut killed = racers.pop().unwrap();
    killed.kill();
    racers.into_iter().for_each(Process::ends_well);
    world.is_clean_in_the_end();
}

/// Returns unused leases, closes slabs on request, and loses leases without a sign of life.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_gives_signs_of_life() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let client = connect(&gpu, "beats");
    let mut admin = Connection::connect(&socket(), None, PATIENCE).unwrap();
    let leases: Vec<_> = (0..20).map(|_| client.lease(MIB).unwrap()).collect();
    leases.iter().for_each(|lease| lease.span().unwrap().write(&[1; 16]).unwrap());
    drop(leases);
    assert!(admin.status().unwrap().totals.leases >= 20, "they are kept for the next ones");
    eventually("all is given back and closed, while the client lives", || {
        client.beat().unwrap();
        admin.status().unwrap().totals.slabs == 0
    });
    assert_eq!(client.take_expired(), 0);
    client.lease(MIB).unwrap().span().unwrap().write(&[2]).unwrap();

    let options = Options { ttl: Some(Duration::from_millis(1)), ..Options::default() };
    let silent = Client::connect(&gpu, &socket(), "silent".parse().unwrap(), &options).unwrap();
    let lease = silent.lease(MIB).unwrap();
    eventually("its deadline has passed", || admin.status().unwrap().totals.resting == 1);
    // The memory is still its own.
    lease.span().unwrap().write(&[3]).unwrap();
    silent.beat().unwrap();
    assert_eq!((silent.take_expired(), silent.take_expired()), (1, 0));
    drop(lease);
    // A slab that the keeper wants back is not cached for the next lease.
    assert_eq!(admin.status().unwrap().totals.resting, 0);
    let taken = client.lease(MIB).unwrap();
    admin.take_back(taken.lease().id).unwrap();
    client.beat().unwrap();
    assert_eq!((admin.status().unwrap().totals.resting, client.take_expired()), (1, 1));
    let later = client.lease(MIB).unwrap();
    drop(taken);
    assert_eq!(admin.status().unwrap().totals.resting, 0);
    drop(later);
    assert!(admin.status().unwrap().totals.leases > 0, "it is kept for the next one");
    drop(silent);
    say("beats");
}

#[test]
fn clients_give_back_what_they_do_not_use() {
    let world = World::new("mem-beat", "ipc");
    let mut client = world.child("child_gives_signs_of_life");
    assert_eq!(client.hears(), "beats");
    client.ends_well();
    world.is_clean_in_the_end();
}

/// Leases nearly all of its quota in one size after the other.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_needs_what_it_keeps() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let client = connect(&gpu, "one");
    for (bytes, count) in [(MIB, 40), (60 * MIB, 1), (2 * MIB, 20)] {
        let leases: Vec<_> = (0..count).map(|_| client.lease(bytes).unwrap()).collect();
        leases.iter().for_each(|lease| lease.span().unwrap().write(&[1; 16]).unwrap());
    }
    // A lease in use is not returned for another lease.
    let held = client.lease(40 * MIB).unwrap();
    assert!(matches!(client.lease(40 * MIB), Err(Error::Refused { code: Code::Quota, .. })));
    held.span().unwrap().write(&[2; 16]).unwrap();
}

/// It is not tried, so no client has to give up idle memory first.
#[test]
fn more_than_the_gpu_has_is_refused_as_such() {
    let world = World::new("mem-huge", "ipc");
    let (mut admin, uid) = (world.admin(), rustix::process::geteuid().as_raw());
    admin.set_quota(uid, "huge".parse().unwrap(), u64::MAX).unwrap();
    let mut huge = Connection::connect(&world.socket(), Some("huge".parse().unwrap()), PATIENCE).unwrap();
    for (bytes, count, expected) in [(1 << 50, 1, Code::Bounds), (1 << 36, 100, Code::OutOfMemory)] {
        match huge.lease(None, bytes, count, 0) {
            Err(Error::Refused { code, text, .. }) => {
                assert!(code == expected && !text.contains("cuMemAlloc"), "{text}")
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_a_client_keeps_for_the_next_lease_does_not_stand_in_its_way() {
    let world = World::new("mem-keeps", "ipc");
    world.child("child_needs_what_it_keeps").ends_well();
    world.is_clean_in_the_end();
}

/// Asks again after each command.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_meets_a_dead_keeper() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let client = connect(&gpu, "one");
    let lease = client.lease(MIB).unwrap();
    match client.lease(65 * MIB).err() {
        Some(Error::Refused { code: Code::Quota, text, .. }) => assert!(text.contains("64.0MiB"), "{text}"),
        other => panic!("{:?}", other.map(|error| error.to_string())),
    }
    say("leased");
    order();
    let error = client.beat().unwrap_err();
    assert!(matches!(error, Error::KeeperGone { .. }), "{error}");
    say(&error);
    drop(lease);
    drop(client);
    order();
    // The next keeper has the same socket.
    let client = connect(&gpu, "one");
    client.lease(MIB).unwrap().span().unwrap().write(&[1]).unwrap();
    say("leased again");
}

/// A keeper of another GPU.
#[test]
#[ignore = "the tests run it in child processes"]
fn child_meets_another_gpus_keeper() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    let mut path = socket().into_os_string();
    path.push("-other");
    let options = keeper::Options::new(path.into());
    let socket = options.socket.clone();
    std::thread::spawn(move || keeper::serve(HostMemory::new(MIB), [7; 16], &options, None));
    eventually("it serves", || Connection::connect(&socket, None, PATIENCE).is_ok());
    let error = Client::connect(&gpu, Path::new(&socket), "a".parse().unwrap(), &Options::default()).err();
    let error = error.unwrap().to_string();
    assert!(error.contains("GPU-07070707-0707"), "{error}");
    say("other");
}

#[test]
fn a_dead_keeper_is_a_typed_error_and_another_one_takes_its_place() {
    let mut world = World::new("mem-dead", "ipc");
    let mut client = world.child("child_meets_a_dead_keeper");
    assert_eq!(client.hears(), "leased");
    world.keeper.take().unwrap().kill();
    client.order("ask");
    let said = client.hears();
    assert!(said.contains("is gone") && said.contains("partitad keeper"), "{said}");
    world.start_keeper();
    client.order("ask again");
    assert_eq!(client.hears(), "leased again");
    client.ends_well();
    world.is_clean_in_the_end();
    let mut other = world.child("child_meets_another_gpus_keeper");
    assert_eq!(other.hears(), "other");
    // One that gets a request to end does, and reports the reason.
    world.admin().end_keeper(false).unwrap();
    assert_eq!(world.keeper.take().unwrap().hears(), "Told");
}
