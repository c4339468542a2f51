//! From new limits to the first launch that obeys them, in nanoseconds.
//!
//! In a tenant, one thread launches bursts of kernels of one block while another stores limits: one
//! half of the tenant's TPCs, the other, and so on, once in each burst, at a random time. Each
//! kernel records the SM that it ran on, and so which limits it obeyed. The result is the time from
//! the return of the store to the return of the first launch on the new half; and the part of it
//! outside that launch and the launch that ran when the limits were stored. A launch that starts
//! after a store and does not obey it counts in full, and as a fault.
//!
//! ```text
//! cargo build --profile dist && target/dist/set-latency            # sim:h200
//! target/dist/set-latency --gpu 0                             # the first GPU of this machine
//! ```

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use partita_core::{Samples, TpcSet};
use partita_driver::{Census, Cuda, Gpu, Grid};
use partita_ledger::{Limits, LimitsFile};

/// Measures how soon launches obey new limits.
#[derive(Parser)]
struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// Changes of the limits during a burst of launches.
    #[arg(long, default_value_t = 20_000)]
    changes: usize,
    /// Launches of one burst; it fits the driver's queue.
    #[arg(long, default_value_t = 200)]
    burst: usize,
    /// The latest change of the limits after a burst's start, in microseconds.
    #[arg(long, default_value_t = 20)]
    delay_us: u64,
    /// The `partita` executable [default: beside this one].
    #[arg(long)]
    partita: Option<PathBuf>,
    /// Run as the tenant.
    #[arg(long, hide = true)]
    child: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if options.child {
        return measure(&options);
    }
    let own = std::env::current_exe()?;
    let partita = options.partita.unwrap_or_else(|| own.with_file_name("partita"));
    let status = Command::new(partita)
        .args(["run", "--gpu", &options.gpu, "--name", "set-latency", "--isolation", "own", "--"])
        .arg(&own)
        .args(["--child", "--gpu", &options.gpu])
        .args(["--changes", &options.changes.to_string(), "--burst", &options.burst.to_string()])
        .args(["--delay-us", &options.delay_us.to_string()])
        .status()
        .context("partita cannot be started")?;
    ensure!(status.success(), "the tenant failed: {status}");
    Ok(())
}

/// One change: start and end of the call, and the tenant's half since then.
struct Store {
    begun_ns: u64,
    returned_ns: u64,
    half: usize,
}

/// One launch: start and end of the call, and the half on which its block ran.
struct Launch {
    begun_ns: u64,
    returned_ns: u64,
    half: usize,
}

fn measure(options: &Options) -> Result<()> {
    let ledger = std::env::var_os("PARTITA_LEDGER").context("this is no tenant")?;
    let path = CString::new([ledger.as_bytes(), b"/limits"].concat())?;
    let mut file = LimitsFile::open_rw(&path)?;
    let (_, whole) = file.load()?;
    let halves = halves(&whole)?;
    file.store(&halves[0])?;

    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    let censuses = (0..options.burst)
        .map(|_| Census::new(&gpu, Grid { blocks: 1, threads: 32, cluster_blocks: 1 }, 0))
        .collect::<Result<Vec<_>, _>>()?;
    let half_of = |sm: u32| -> Result<usize> {
        let tpc = u8::try_from(sm / whole.sms_per_tpc)?;
        let place = halves.iter().position(|half| TpcSet::from_words(half.set).contains(tpc));
        place.with_context(|| format!("SM {sm} is not the tenant's"))
    };

    let origin = Instant::now();
    let now_ns = || origin.elapsed().as_nanos() as u64;
    let (bursts, awake, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let mut tally = Tally::default();
    std::thread::scope(|scope| -> Result<()> {
        let (sender, stores) = std::sync::mpsc::channel();
        let (bursts, awake, stop) = (&bursts, &awake, &stop);
        let (halves, delay_us) = (&halves, options.delay_us);
        let storing = scope.spawn(move || -> Result<()> {
            let mut random = 0x9e37_79b9_7f4a_7c15u64;
            let mut seen = 0;
            for half in (0..2).cycle().skip(1) {
                while bursts.load(Ordering::Relaxed) == seen && !stop.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                seen = bursts.load(Ordering::Relaxed);
                awake.store(seen, Ordering::Relaxed);
                // xorshift64: times that do not correlate with the launches.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let delay = Duration::from_nanos(random % (delay_us * 1000 + 1));
                let from = Instant::now();
                while from.elapsed() < delay {
                    std::hint::spin_loop();
                }
                let begun_ns = now_ns();
                file.store(&halves[half])?;
                sender.send(Store { begun_ns, returned_ns: now_ns(), half })?;
            }
            Ok(())
        });
        let result = (|| {
            while tally.latency_ns.len() < options.changes {
                let mut launches = Vec::with_capacity(options.burst);
                let before = switches()?;
                let burst = bursts.fetch_add(1, Ordering::Relaxed) + 1;
                // Both threads run when it starts, otherwise the store would come after it.
                while awake.load(Ordering::Relaxed) != burst && !storing.is_finished() {
                    std::hint::spin_loop();
                }
                for census in &censuses {
                    let begun_ns = now_ns();
                    census.launch()?;
                    launches.push(Launch { begun_ns, returned_ns: now_ns(), half: 0 });
                }
                let kept_its_core = switches()? == before;
                gpu.synchronize()?;
                for (launch, census) in launches.iter_mut().zip(&censuses) {
                    launch.half = half_of(census.records()?[0].sm)?;
                }
                tally.add(&stores.recv().context("the storing thread has ended")?, &launches, kept_its_core);
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        // The storing thread ends by itself, or its error is the one to report.
        storing.join().map_err(|_| anyhow::anyhow!("the storing thread panicked"))??;
        result
    })?;
    tally.print(options, &gpu.facts().name)
}

/// How often the calling thread has left its core.
fn switches() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let counts = status.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
    counts.map(|(_, count)| Ok(count.trim().parse::<u64>()?)).sum()
}

/// The tenant's limits with one half of its TPCs, and with the other.
fn halves(whole: &Limits) -> Result<[Limits; 2]> {
    let topology = whole.topology()?;
    let tpcs: Vec<u8> = TpcSet::from_words(whole.set).iter().collect();
    if tpcs.len() < 2 {
        bail!("a tenant of one TPC has no halves");
    }
    let half = |tpcs: &[u8]| {
        let mut half = whole.clone();
        half.set_partition(&topology, &tpcs.iter().copied().collect());
        half
    };
    let (first, second) = tpcs.split_at(tpcs.len() / 2);
    Ok([half(first), half(second)])
}

/// The observations, in nanoseconds.
#[derive(Default)]
struct Tally {
    launch_ns: Vec<f64>,
    latency_ns: Vec<f64>,
    added_ns: Vec<f64>,
    /// Launches that did not overlap a store.
    checked: u64,
    /// Those of them that ran on the wrong half.
    wrong: u64,
    /// Bursts without a timing.
    interrupted: u64,
}

impl Tally {
    /// Adds a burst and its store. One that did not fall between launches is not timed. One in
    /// which the scheduler took the launching thread's core away is checked, and not timed.
    fn add(&mut self, store: &Store, launches: &[Launch], kept_its_core: bool) {
        for launch in launches {
            let must_be = match launch {
                launch if launch.begun_ns >= store.returned_ns => store.half,
                launch if launch.returned_ns <= store.begun_ns => 1 - store.half,
                _ => continue,
            };
            self.checked += 1;
            self.wrong += u64::from(launch.half != must_be);
        }
        let (Some(first), Some(last)) = (launches.first(), launches.last()) else { return };
        if store.returned_ns < first.begun_ns || store.returned_ns > last.begun_ns {
            return;
        }
        if !kept_its_core {
            self.interrupted += 1;
            return;
        }
        self.launch_ns.extend(launches.iter().map(|launch| (launch.returned_ns - launch.begun_ns) as f64));
        let under_way = launches.partition_point(|launch| launch.returned_ns < store.returned_ns);
        let (mut added_ns, mut idle_since_ns) = (0, store.returned_ns);
        for launch in &launches[under_way..] {
            added_ns += launch.begun_ns.saturating_sub(idle_since_ns);
            idle_since_ns = launch.returned_ns;
            if launch.half == store.half {
                self.latency_ns.push((launch.returned_ns - store.returned_ns) as f64);
                self.added_ns.push(added_ns as f64);
                return;
            }
            if launch.begun_ns >= store.returned_ns {
                added_ns += launch.returned_ns - launch.begun_ns;
            }
        }
    }

    fn print(self, options: &Options, device: &str) -> Result<()> {
        println!(
            "{} ({device}): {} launches before or after a change, {} of them on the wrong TPCs; {} changes not timed, because the \
             launching thread had lost its core\n",
            options.gpu, self.checked, self.wrong, self.interrupted
        );
        println!("| ns | median | p99 | p99.9 | count |\n|---|---|---|---|---|");
        for (name, values) in [
            ("a launch", self.launch_ns),
            ("from the store to the return of the first launch that obeys", self.latency_ns),
            ("of that, outside of launches", self.added_ns),
        ] {
            let samples = Samples::new(values)?;
            println!(
                "| {name} | {:.0} | {:.0} | {:.0} | {} |",
                samples.p50(),
                samples.p99(),
                samples.quantile(999),
                samples.count()
            );
        }
        ensure!(self.wrong == 0, "{} launches ran on TPCs that were not the tenant's", self.wrong);
        Ok(())
    }
}
