//! `partita-stage`: the components of two example chains, each a separate process.
//!
//! ```text
//! partita-stage matrix L[:ROUNDS] [--frames N] [--check S,L:2,…]
//! partita-stage decode|enhance|detect WIDTHxHEIGHT [--frames N] [--check]
//! ```
//!
//! `PARTITA_CHAIN` and `PARTITA_COMPONENT`, which `partita chain` sets, name the chain and the
//! place in it. `--frames` ends the first component after that many. With `--check` the last one
//! compares each result with the host's own, and exits with 1 at the first difference.

mod image;
mod matrix;

use std::process::ExitCode;

use partita_chain::{Attach, Component, Error, Frame, Outcome, Received};
use partita_driver::{Cuda, Gpu, Stages};

const USAGE: &str = "usage: partita-stage matrix SIZE[:ROUNDS] | decode WxH | enhance WxH | detect WxH  [--frames N] [--check [STAGES]]";

/// A component's work on a frame.
trait Stage {
    /// Fills a new frame, as the first component.
    fn begin(&mut self, component: &Component<'_>, frame: &mut Frame<'_, '_>) -> Result<(), Error>;

    /// Launches its work on a frame.
    fn work(
        &mut self,
        component: &Component<'_>,
        stages: &Stages<'_>,
        frame: &mut Frame<'_, '_>,
    ) -> Result<(), Error>;

    /// Checks a result, as the last component; returns a difference, if any.
    fn end(&mut self, frame: &Frame<'_, '_>) -> Result<Option<String>, Error>;
}

/// The command line.
struct Arguments {
    kind: String,
    size: String,
    frames: Option<u64>,
    check: Option<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (Some(kind), Some(size)) = (words.next(), words.next()) else { return Err(USAGE.to_owned()) };
    let mut arguments = Arguments { kind, size, frames: None, check: None };
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--frames" => {
                let count = words.next().and_then(|count| count.parse().ok());
                arguments.frames = Some(count.ok_or("--frames needs a number")?);
            }
            "--check" => {
                arguments.check = Some(words.next_if(|next| !next.starts_with("--")).unwrap_or_default());
            }
            other => return Err(format!("unknown argument {other}; {USAGE}")),
        }
    }
    Ok(arguments)
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let cuda = Cuda::load(None).map_err(|error| text(&error))?;
    let gpu = Gpu::open(&cuda, 0).map_err(|error| text(&error))?;
    let component =
        Attach::from_environment().and_then(|attach| attach.attach(&gpu)).map_err(|error| text(&error))?;
    let stages = Stages::load(&gpu).map_err(|error| text(&error))?;
    let mut stage: Box<dyn Stage> = match arguments.kind.as_str() {
        "matrix" => {
            Box::new(matrix::Matrix::new(&gpu, &component, &arguments.size, arguments.check.as_deref())?)
        }
        kind => Box::new(image::Image::new(kind, &component, &arguments.size, arguments.check.is_some())?),
    };
    attend(&component, &stages, &mut *stage, arguments.frames).map_err(|error| text(&error))?
}

/// Works until the chain ends, or the first component has started its number of frames.
fn attend(
    component: &Component<'_>,
    stages: &Stages<'_>,
    stage: &mut dyn Stage,
    frames: Option<u64>,
) -> Result<Result<(), String>, Error> {
    let mut begun = 0;
    loop {
        if component.is_first() && frames.is_some_and(|frames| begun >= frames) {
            return Ok(Ok(()));
        }
        let mut frame = match component.receive(None)? {
            Received::Frame(frame) => frame,
            Received::Late => continue,
            Received::Ended => return Ok(Ok(())),
        };
        if component.is_first() {
            stage.begin(component, &mut frame)?;
            begun += 1;
        }
        stage.work(component, stages, &mut frame)?;
        if !component.is_last() {
            match component.send(frame)? {
                Outcome::Ended => return Ok(Ok(())),
                _ => continue,
            }
        }
        // A frame whose component was killed meanwhile is dropped here, and counted.
        if !frame.is_whole()? {
            continue;
        }
        let wrong = stage.end(&frame)?;
        if let Some(wrong) = wrong {
            return Ok(Err(format!("frame {}: {wrong}", frame.sequence())));
        }
        component.finish(frame)?;
    }
}

fn main() -> ExitCode {
    let outcome = parse(std::env::args().skip(1)).and_then(|arguments| run(&arguments));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("partita-stage: {error}");
            ExitCode::FAILURE
        }
    }
}
