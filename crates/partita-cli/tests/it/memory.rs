//! Memory that was promised is there when its tenant asks for it, whatever the neighbours take.

use crate::common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Answering, World, compile, text};
use partita_testing::is_long;

/// Out of memory.
const REFUSED: i64 = 2;

/// The program of `hook/hold.c` as a tenant.
struct Holder(Answering);

impl Holder {
    fn start(world: &World, program: &Path, options: &str) -> Self {
        Self::try_start(world, program, options).unwrap()
    }

    /// Why it was refused, if it was.
    fn try_start(world: &World, program: &Path, options: &str) -> Result<Self, String> {
        let mut command = world.partita(["run"].into_iter().chain(options.split_whitespace()));
        let mut started = Answering::start(command.arg("--").arg(program));
        let _ = writeln!(started.input, "drop 0");
        let Some(line) = started.tenant.line() else {
            let mut said = String::new();
            started.tenant.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            return Err(said);
        };
        assert_eq!((line.as_str(), started.tenant.next_line().as_str()), ("0", "done"));
        Ok(Self(started))
    }

    fn tell(&mut self, what: &str) -> i64 {
        self.0.line(what).parse().unwrap()
    }

    fn take(&mut self, mib: u64) -> i64 {
        self.tell(&format!("take {mib}"))
    }

    /// Takes exactly so much, in pieces of random sizes, and returns how much it got.
    fn take_all(&mut self, mib: u64, random: &mut Random) -> u64 {
        let mut had = 0;
        while had < mib {
            let piece = (1 + random.below(8192)).min(mib - had);
            if self.take(piece) != 0 {
                break;
            }
            had += piece;
        }
        had
    }
}

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn world() -> (World, PathBuf) {
    let world = World::new();
    let program = compile(&world, "hold");
    (world, program)
}

const GIB: u64 = 1024;

#[test]
fn a_tenant_without_a_quota_is_held_to_what_is_not_promised() {
    let (world, program) = world();
    let mut promised = Holder::start(&world, &program, "--name promised --sm 30% --mem 100GiB");
    let mut other = Holder::start(&world, &program, "--name other --sm 30%");
    let rest = world.row("other")["memory_rest_bytes"].as_u64().unwrap();
    assert!(rest < 40 << 30 && world.row("other")["memory_quota_bytes"].is_null(), "{rest}");
    let table = world.ok("ps");
    let row = table.lines().find(|line| line.starts_with("other ")).unwrap();
    assert!(row.contains('('), "the rest is shown: {table}");
    assert_eq!((other.take(120 * GIB), other.take(rest >> 20)), (REFUSED, 0));
    assert_eq!(other.take(1), REFUSED);
    assert_eq!((0..10).map(|_| promised.take(10 * GIB)).collect::<Vec<_>>(), [0; 10]);
    // The third program gets a message about its memory: nothing but the driver's own.
    let refused = world.refused("run --name third --sm 10% -- true");
    let words =
        ["`promised` was promised 100GiB", "`other` uses", "end a tenant with `partita kill promised`"];
    assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    drop(promised);
    // Without a promise no tenant is limited. Its holder may have it for some seconds.
    partita_testing::eventually("the promise ends", || world.row("other")["memory_rest_bytes"].is_null());
    assert_eq!(other.take(60 * GIB), 0);
}

#[test]
fn a_later_promise_lowers_what_is_left_and_is_refused_if_that_is_in_use() {
    let (world, program) = world();
    let mut other = Holder::start(&world, &program, "--name other --sm 30%");
    assert_eq!(other.take(60 * GIB), 0);
    let refused = world.refused("run --name promised --sm 30% --mem 100GiB -- true");
    assert!(refused.contains("tenant `other` uses 60.0GiB without --mem"), "{refused}");
    assert!(world.row("other")["memory_rest_bytes"].is_null(), "a refused promise holds no tenant");
    // What the message says can be had.
    let size = refused.split("ask for --mem ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let mut promised = Holder::start(&world, &program, &format!("--name promised --sm 30% --mem {size}"));
    let rest = world.row("other")["memory_rest_bytes"].as_u64().unwrap();
    assert!(rest.checked_sub(60 << 30).is_some_and(|more| more < 1 << 27), "{rest}");
    assert_eq!(other.take(128), REFUSED);
    let refused = world.refused("set promised --mem 100GiB");
    assert!(refused.contains("`other` uses"), "{refused}");
    let bytes = world.row("promised")["memory_quota_bytes"].as_u64().unwrap();
    assert_eq!(promised.take_all(bytes >> 20, &mut Random(1)), bytes >> 20);
    // What one gives up, the other may have.
    promised.tell("drop 0");
    world.ok("set promised --mem 20GiB");
    assert_eq!(other.take(30 * GIB), 0);
    // A quota of its own makes it a promise.
    world.ok("set other --mem 95GiB");
    assert_eq!(world.row("other")["memory_quota_bytes"], 95u64 << 30);
    assert_eq!((other.take(5 * GIB), other.take(1)), (0, REFUSED));
}

#[test]
fn a_process_that_partita_did_not_start_is_named_by_the_audit() {
    let (world, program) = world();
    let _tenant = Holder::start(&world, &program, "--name tenant --sm 30% --mem 1GiB");
    assert_eq!(text(&world.line("ps --audit").stderr), "");
    let mut outside = Answering::start(&mut world.bare(&program));
    assert_eq!((outside.line("drop 0"), outside.line("take 2048")), ("0".into(), "0".into()));
    let audit = world.line("ps --audit");
    let pid = outside.tenant.child.id();
    let said = text(&audit.stderr);
    assert!(said.contains(&format!("process {pid} of ")) && said.contains("belongs to no tenant"), "{said}");
    assert!(said.contains("hold") && said.contains(&format!("`kill {pid}`")), "{said}");
}

#[test]
fn tenants_without_a_quota_share_the_rest_equally() {
    let (world, program) = world();
    let _promised = Holder::start(&world, &program, "--name promised --sm 30% --mem 60GiB");
    let output = world.line("run --name told --sm 10% -- true");
    assert!(text(&output.stderr).contains("no --mem: told is held to"), "{output:?}");
    let mut one = Holder::start(&world, &program, "--name one --sm 30%");
    assert_eq!(one.take(40 * GIB), 0);
    let _two = Holder::start(&world, &program, "--name two --sm 30%");
    let rest = |name: &str| world.row(name)["memory_rest_bytes"].as_u64().unwrap();
    assert_eq!(rest("one") - (40 << 30), rest("two"));
}

#[test]
fn no_neighbour_without_a_quota_breaks_a_promise() {
    let (world, program) = world();
    let pairs = if is_long() { 1000 } else { 16 };
    let mut random = Random(20_261_123);
    let (mut kept, mut refused, mut broken) = (0u32, 0u32, Vec::new());
    let mut neighbour = Holder::start(&world, &program, "--name neighbour --sm 30%");
    for pair in 0..pairs {
        let ceiling = (4 + random.below(120)) * GIB;
        neighbour.tell(&format!("greedy {ceiling}"));
        std::thread::sleep(Duration::from_millis(random.below(200)));
        let mib = 2 * (1 + random.below(60 * GIB));
        // It is refused where the neighbour uses too much already.
        match Holder::try_start(&world, &program, &format!("--name promised --sm 30% --mem {mib}MiB")) {
            Ok(mut promised) => match promised.take_all(mib, &mut random) {
                had if had == mib => kept += 1,
                had => broken.push((pair, mib, had)),
            },
            Err(why) => {
                assert!(why.contains("`neighbour` uses"), "{why}");
                refused += 1;
            }
        }
        neighbour.tell("stop 0");
    }
    eprintln!("{kept} promises kept, {refused} refused, {} broken", broken.len());
    assert!(broken.is_empty(), "pair, promised and had MiB: {broken:?}");
    assert!(kept > 0 && kept + refused == pairs);
}
