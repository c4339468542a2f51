//! The process that moves TPCs for targets is killed at any moment of its life. Guarantees hold
//! after every kill, no TPC is lost or held twice, the files stay readable, and tenants run on.
//!
//! The programs do next to nothing on the GPU: a thread of the test counts bursts in their usage
//! files, as the hook would.

use crate::common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{World, lives, needs_user_mode};
use partita_core::histogram::bucket_of;
use partita_testing::{eventually, is_long};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::slo::serve;

const TPCS: usize = 66;
/// Tenants that live through all kills, with their guarantees.
const LASTING: [(&str, &str, usize); 4] = [
    ("serve", "--sm 6tpc --slo p99=40ms", 6),
    ("api", "--sm 5tpc --slo p99=40ms", 5),
    ("train", "--sm 7tpc --goal throughput", 7),
    ("share", "--sm 4tpc", 4),
];

/// Counts bursts of 100 ms in the first place of a tenant's usage file: some in each look of the
/// controller, all of them late.
struct Bursts {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bursts {
    fn begin(dir: &Path) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let usage = OpenOptions::new().read(true).write(true).open(dir.join("usage")).unwrap();
        let ending = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) {
                count(&usage, 100_000_000, 8);
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Bursts {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Adds bursts of so many nanoseconds.
fn count(usage: &File, time_ns: u64, bursts: u64) {
    // A place has the sum and the counts of bursts, and then those of steps.
    let place = usage.metadata().unwrap().len() - common::PACES_BYTES as u64;
    let add = |at: u64, number: u64| {
        let mut word = [0; 8];
        usage.read_exact_at(&mut word, at).unwrap();
        usage.write_all_at(&(u64::from_ne_bytes(word) + number).to_ne_bytes(), at).unwrap();
    };
    add(place + 8 * (1 + bucket_of(time_ns) as u64), bursts);
    add(place, time_ns * bursts);
}

/// Random numbers by a seed (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % end.max(1)
    }
}

fn kill(pid: u64) {
    // It may have ended.
    let _ = rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL);
}

fn json(file: PathBuf) -> Value {
    let bytes = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Checks what must hold at every moment, and returns how many TPCs tenants hold together.
fn check(world: &World) -> usize {
    let rows = world.ps();
    let mut held = vec![None; TPCS];
    for row in &rows {
        assert!(row["problem"].is_null(), "{row}");
        let name = row["name"].as_str().unwrap();
        let tpcs = common::tpcs(row["tpcs"].as_str().unwrap());
        let least = LASTING.iter().find(|(lasting, ..)| *lasting == name).map_or(1, |(_, _, least)| *least);
        assert!(tpcs.len() >= least, "{name} has {} TPCs: {rows:?}", tpcs.len());
        for tpc in tpcs {
            let other = held[tpc as usize].replace(name);
            assert_eq!(other, None, "TPC {tpc} is {name}'s, too: {rows:?}");
        }
    }
    for (name, ..) in LASTING {
        let dir = world.gpu_dir().join(name);
        assert!(rows.iter().any(|row| row["name"] == name), "{name} is gone: {rows:?}");
        let meta = json(dir.join("meta.json"));
        assert!(lives(meta["child"]["pid"].as_u64().unwrap()), "the program of {name} has ended: {meta}");
        if dir.join("slo.json").exists() {
            assert!(json(dir.join("slo.json"))["steps"].is_array());
        }
    }
    held.iter().flatten().count()
}

/// A `partita run` that is alone in being able to control.
fn next(world: &World, name: &str) -> Child {
    let line = format!("run --name {name} --sm 2tpc --goal throughput -- sleep 1000");
    let mut command = world.partita(line.split_whitespace());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn controls(world: &World, run: &Child) -> bool {
    let file = world.gpu_dir().join("serve/slo.json");
    file.exists() && json(file)["controller"] == run.id()
}

#[test]
fn a_controller_that_is_killed_at_any_moment_harms_no_tenant() {
    if needs_user_mode("there `partitad` controls") {
        return;
    }
    let (kills, seed) = if is_long() { (500, 0x5EED_0500) } else { (10, 0x5EED_0010) };
    let world = World::in_memory();
    let mut dice = Dice(seed);
    // Their own `partita run` is killed, so that only the next one can control.
    let lasting = LASTING.map(|(name, options, _)| {
        let kill = |tenant: &mut common::Tenant| {
            kill(tenant.child.id().into());
            tenant.child.wait().unwrap();
        };
        if !options.contains("--slo") {
            let mut tenant = world.idle(&format!("--name {name} {options}"));
            kill(&mut tenant);
            return (tenant, None);
        }
        // Its process has a place for bursts; its own next one comes in an hour.
        let common::Answering { mut tenant, input } = serve(&world, name, options, 1, 3_600_000);
        kill(&mut tenant);
        (tenant, Some(input))
    });
    check(&world);
    let bursts = ["serve", "api"].map(|name| Bursts::begin(&world.gpu_dir().join(name)));
    // How long it takes from its start until it controls, here and now.
    let begun = Instant::now();
    let mut first = next(&world, "first");
    eventually("it controls", || controls(&world, &first));
    let start = begun.elapsed();
    kill(first.id().into());
    first.wait().unwrap();
    let (mut in_control, mut moves) = (0, 0);
    let mut told = [("serve", 0), ("api", 0), ("train", 0)];
    for round in 0..kills {
        let name = format!("round-{round}");
        let mut run = next(&world, &name);
        // From before its tenant is there to some looks after its first one.
        let life = Duration::from_micros(dice.below(2 * start.as_micros() as u64 + 400_000));
        let begun = Instant::now();
        // A guarantee that is set anew takes what a target has got, so that it needs more again.
        for (name, least) in [("serve", 6), ("api", 5)] {
            if dice.below(3) == 0 {
                continue;
            }
            let least = least + dice.below(4);
            let _ = world.line(&format!("set {name} --sm {least}tpc"));
        }
        std::thread::sleep(life.saturating_sub(begun.elapsed()));
        let is_in_control = controls(&world, &run);
        kill(run.id().into());
        run.wait().unwrap();
        check(&world);
        in_control += usize::from(is_in_control);
        // Each step is a move or the end of a trial, and comes once.
        for (name, last_ms) in &mut told {
            let steps = json(world.gpu_dir().join(*name).join("slo.json"))["steps"].clone();
            let times = steps.as_array().unwrap().iter().map(|step| step["at_unix_ms"].as_u64().unwrap());
            moves += times.clone().filter(|time| time > last_ms).count();
            *last_ms = times.max().unwrap_or(*last_ms);
        }
        // A kill before its program had started has ended the tenant with it.
        let _ = world.line(&format!("kill {name}"));
        if round % 10 == 9 {
            // The next one finds every TPC again.
            let mut run = next(&world, "next");
            let begun = Instant::now();
            while check(&world) != TPCS || !controls(&world, &run) {
                let rows = || (world.ps(), world.ok("explain train"), world.ok("explain serve"));
                assert!(begun.elapsed() < 2 * common::PATIENCE, "TPCs are lost: {:?}", rows());
            }
            kill(run.id().into());
            run.wait().unwrap();
            world.ok("kill next");
        }
    }
    eprintln!(
        "{kills} kills, {in_control} of them of the process that controlled ({start:?} after the first start); {moves} \
         decisions between them"
    );
    // A test that kills nobody in control would prove nothing.
    assert!(in_control * 5 >= kills && moves > 0, "{in_control} of {kills}, {moves} decisions");
    drop(bursts);
    let _ = world.line("kill first");
    for (name, ..) in LASTING {
        world.ok(&format!("kill {name}"));
    }
    drop(lasting);
}
