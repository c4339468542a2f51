//! One component of a measured chain.
//!
//! It prints `ready`, makes its transport after the first line, and runs after the second, `go
//! MILLISECONDS`. The first component ends after that time; another one when a line says that the
//! one before has ended, and no frame is on its way. Then it answers with the number of frames that
//! it has passed on and their time (nanoseconds from the first to the last), and with the times of
//! its hand-overs.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use partita_chain::transport::{Carrier, Handles, Item, Place, RingTransport, Transport, UdpCopy};
use partita_chain::{Attach, Error, Role};
use partita_driver::{Buffer, Cuda, Gpu, Grid, HostBuffer, Stages};

use crate::{Kind, Options, SMALL_BYTES, Work};

/// Blocks of a matrix of class S, and their threads.
const GRID: Grid = Grid { blocks: 16, threads: 1024, cluster_blocks: 1 };
const SPIN_NS: u64 = 10_000;
/// Frames that go through a chain at least, however long that takes.
const FRAMES_MIN: u32 = 4;
/// How long a component waits for a frame of one that has ended.
const QUIET: Duration = Duration::from_millis(150);

fn line() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

fn say(text: &str) -> Result<()> {
    println!("{text}");
    Ok(std::io::stdout().flush()?)
}

/// A component's resources.
struct Rig<'g> {
    gpu: &'g Gpu<'g>,
    stages: Stages<'g>,
    factor: Buffer<'g>,
    input: HostBuffer<'g>,
    output: HostBuffer<'g>,
}

impl Rig<'_> {
    /// The input goes in at the first component, and the result comes out at the last, as in the
    /// paper; on the frame's stream, so that no host waits for it here.
    fn work(&mut self, item: &Item<'_>, work: Work, is_first: bool, is_last: bool) -> Result<(), Error> {
        let failed = |source| Error::Driver { what: "work on a frame", source: Box::new(source) };
        if work == Work::None {
            return Ok(());
        }
        if is_first {
            item.span
                .part(0, self.input.bytes() as u64)
                .and_then(|part| part.copy_from(&self.input, item.stream))
                .map_err(failed)?;
        }
        match work {
            Work::Matrix => {
                let halves = [0, 1].map(|half| item.span.part(half * SMALL_BYTES, SMALL_BYTES));
                let [Ok(from), Ok(to)] = halves else {
                    return Err(Error::Damaged { offset: SMALL_BYTES, bytes: item.span.bytes() });
                };
                self.stages.matrix(item.stream, &to, &from, &self.factor.span(), 120, 1).map_err(failed)?;
            }
            _ => {
                self.gpu.spin_on(item.stream, GRID, SPIN_NS).map_err(failed)?;
            }
        }
        if is_last {
            item.span
                .part(0, self.output.bytes() as u64)
                .and_then(|part| part.copy_to(&self.output, item.stream))
                .map_err(failed)?;
        }
        Ok(())
    }
}

pub fn run(options: &Options, component: &[String]) -> Result<()> {
    let [kind, role, roles, frames, bytes] = component else { bail!("five words describe a component") };
    let kind = Kind::from_word(kind).context("an unknown kind")?;
    let (role, roles): (u8, u8) = (role.parse()?, roles.parse()?);
    let (frames, frame_bytes): (u32, u64) = (frames.parse()?, bytes.parse()?);
    let directory = options.child.as_deref().context("no directory")?;
    say("ready")?;
    let cuda = Cuda::load(None)?;
    let gpu = Gpu::open(&cuda, 0)?;
    line()?;
    let mut transport = transport(&gpu, kind, directory, role, roles, frames, frame_bytes)?;
    let small = usize::try_from(SMALL_BYTES.min(frame_bytes))?;
    let mut rig = Rig {
        gpu: &gpu,
        stages: Stages::load(&gpu)?,
        factor: gpu.alloc(SMALL_BYTES as usize)?,
        input: HostBuffer::new(&gpu, small)?,
        output: HostBuffer::new(&gpu, small)?,
    };
    rig.factor.fill(0)?;
    say("met")?;
    let go = line()?;
    let time_ms = go.strip_prefix("go ").and_then(|time| time.parse().ok()).context("no time to run")?;
    let (is_first, is_last) = (role == 0, role + 1 == roles);
    let work = options.work;
    let ends = Instant::now() + Duration::from_millis(time_ms);
    // The lines after the second: that the component before has ended, and that all have.
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok(text) = line()
            && tell.send(text).is_ok()
        {}
    });
    let (mut former_ended, mut begun) = (false, 0);
    let (mut count, mut span): (u64, Option<(Instant, Instant)>) = (0, None);
    let mut hand_overs = Vec::new();
    loop {
        let over = Instant::now() >= ends;
        if over && is_first && begun >= FRAMES_MIN {
            break;
        }
        begun += 1;
        let stepped = transport.step(QUIET, &mut |item| rig.work(&item, work, is_first, is_last))?;
        let Some(passed) = stepped else {
            // Not before: a large frame is copied to the host for longer than it is waited for.
            if former_ended {
                break;
            }
            former_ended = lines.try_recv().is_ok();
            continue;
        };
        let now = Instant::now();
        // Until the first frame is through, memory is opened and pages are touched: not counted.
        if passed.sequence > 0 {
            hand_overs.extend(passed.hand_over_ns);
        }
        if passed.sequence > 0 && !over {
            count += u64::from(span.is_some());
            span = Some((span.map_or(now, |(first, _)| first), now));
        }
    }
    let span_ns = span.map_or(0, |(first, last)| last.duration_since(first).as_nanos());
    hand_overs.sort_unstable();
    let hand_overs: Vec<String> = hand_overs.iter().map(u64::to_string).collect();
    let waits =
        transport.waits().map(|waits| format!(" waits {}/{}/{}", waits.ready, waits.polled, waits.held));
    say(&format!("{count} {span_ns} {}{}", hand_overs.join(","), waits.unwrap_or_default()))?;
    // Its memory stays until all others are done.
    let _ = lines.recv();
    Ok(())
}

fn transport<'g>(
    gpu: &'g Gpu<'g>,
    kind: Kind,
    directory: &Path,
    role: u8,
    roles: u8,
    frames: u32,
    frame_bytes: u64,
) -> Result<Box<dyn Transport + 'g>> {
    let place = || Place::new(directory, role, roles);
    let handles = |carrier, keep| Handles::new(gpu, place(), carrier, keep, frames, frame_bytes);
    Ok(match kind {
        Kind::UdpCopy => Box::new(UdpCopy::new(gpu, place(), frame_bytes)?),
        Kind::UdpHandle => Box::new(handles(Carrier::Udp, false)?),
        Kind::UnixHandle => Box::new(handles(Carrier::Unix, true)?),
        Kind::Ring | Kind::RingOnHost => {
            let attach = Attach::new(directory.join("chain"), Role::Number(role));
            let attach = attach.on_host(kind == Kind::RingOnHost);
            Box::new(RingTransport::new(attach.attach(gpu)?))
        }
    })
}
