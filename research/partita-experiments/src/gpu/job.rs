//! A scenario's child process: a thread for each of its benchmarks.

use std::sync::{Arc, mpsc};

use partita_driver::Cuda;
use partita_sim::connections;

use super::describe;
use super::meeting::Meeting;
use super::thread::{self, Done, Scene};
use super::wire::{Order, Told, Word};
use crate::dialect::Config;
use crate::place;

/// The name of the job.
pub const JOB: &str = "bench";

/// The job, and the line to print as its result: runs the requested benchmarks on the first visible
/// GPU of this process.
///
/// # Errors
/// An invalid request.
pub fn work(request: &str) -> Result<String, String> {
    partita::jobs::job(request, |()| run())
}

fn run() -> Result<Told, String> {
    let line = next_line().ok_or("nothing was ordered")?;
    let order: Order = serde_json::from_str(&line).map_err(|error| error.to_string())?;
    let config = Config::parse(&order.config.to_string()).map_err(|error| error.to_string())?;
    let topology = order.measured.topology()?;
    let sets = place::sets(&config, &topology).map_err(|error| error.to_string())?;
    let cuda = Cuda::load(None).map_err(|error| format!("libcuda.so.1: {error}"))?;
    // Spinning threads give the best timing, but they use the cores of those that have not launched
    // yet.
    let waits_awake = order.members.len() <= cores();
    if !waits_awake {
        cuda.sleep_in_waits(0).map_err(describe)?;
    }
    let layout = partita_abi::qmd::layout_for(order.measured.device_class, order.measured.qmd_version);
    let layout = layout.map_err(|error| error.to_string())?;
    let scene = Arc::new(Scene {
        // A wait puts a marker into its stream's hardware queue, which delays later launches of
        // other streams until the kernel ahead has ended; a launch delays nothing. On an H200 128
        // threads that launched and waited had 32 kernels running at once, one to a queue.
        meeting: Meeting::new(order.members.len(), order.is_one_of_several, order.members.len() > queues()),
        config,
        topology,
        sets,
        layout,
        cuda,
        keeps_clock: order.members.first().copied(),
        waits_awake,
    });
    let (done, all_done) = mpsc::channel();
    for &index in &order.members {
        let (scene, done) = (Arc::clone(&scene), done.clone());
        std::thread::spawn(move || {
            let result = thread::run(&scene, index);
            // There is no receiver any more if another one has failed.
            let _ = done.send((index, result));
        });
    }
    drop(done);
    let listener = Arc::clone(&scene);
    std::thread::spawn(move || {
        while let Some(line) = next_line() {
            match serde_json::from_str(&line) {
                Ok(Word::Begin { begin_ns }) => listener.meeting.begin(begin_ns),
                Ok(Word::Go) => listener.meeting.go(),
                Err(_) => break,
            }
        }
        listener.meeting.stop();
    });
    // Threads are not joined: in a hanging driver they never end, but the process does.
    let mut told = Told { hosts: Vec::new(), clock_offset_ns: i64::MAX };
    for (index, result) in all_done.iter().take(order.members.len()) {
        let Done { host, clock_offset_ns } =
            result.map_err(|reason| format!("{}: {reason}", scene.config.benchmarks[index].title()))?;
        told.hosts.push((index, host));
        told.clock_offset_ns = told.clock_offset_ns.min(clock_offset_ns.unwrap_or(i64::MAX));
    }
    Ok(told)
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Hardware queues of this process's streams: CUDA's setting, or the two of a client of MPS, which
/// gets none.
fn queues() -> usize {
    std::env::var(connections::VARIABLE).ok().and_then(|value| value.parse().ok()).unwrap_or(2)
}

/// The parent's next line, if there is one.
fn next_line() -> Option<String> {
    let mut line = String::new();
    matches!(std::io::stdin().read_line(&mut line), Ok(1..)).then_some(line)
}
