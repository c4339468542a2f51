//! `partita-stage`: the components of two example chains, each a separate process.
//!
//! ```text
//! partita-stage matrix L[:ROUNDS] [--frames N] [--check S,L:2,…] [--from|--to HOST:PORT]
//! partita-stage decode|enhance|detect WIDTHxHEIGHT [--frames N] [--check] [--from|--to HOST:PORT]
//! ```
//!
//! `PARTITA_CHAIN` and `PARTITA_COMPONENT`, which `partita chain` sets, name the chain and the
//! place in it. `--frames` ends the first component after that many. With `--check` the last one
//! compares each result with the host's own, and exits with 1 at the first difference.
//!
//! Two chains, perhaps on two machines, are one application if the last component of one has `--to`
//! and the first of the other `--from`: frames pass between them over TCP.

mod image;
mod link;
mod matrix;

use std::process::ExitCode;

use partita_chain::{Attach, Component, Error, Frame, Outcome, Received};
use partita_driver::{Cuda, Gpu, Stages};

use self::link::{Receiver, Sender};

const USAGE: &str = "usage: partita-stage matrix SIZE[:ROUNDS] | decode WxH | enhance WxH | detect WxH  \
    [--frames N] [--check [STAGES]] [--from HOST:PORT] [--to HOST:PORT]";

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
    from: Option<String>,
    to: Option<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let (Some(kind), Some(size)) = (words.next(), words.next()) else { return Err(USAGE.to_owned()) };
    let mut arguments = Arguments { kind, size, frames: None, check: None, from: None, to: None };
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
            "--from" => arguments.from = Some(words.next().ok_or("--from needs HOST:PORT")?),
            "--to" => arguments.to = Some(words.next().ok_or("--to needs HOST:PORT")?),
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
    if arguments.from.is_some() && !component.is_first() || arguments.to.is_some() && !component.is_last() {
        return Err("--from is for the first component of a chain, --to for the last one".to_owned());
    }
    let links = Links {
        from: arguments.from.as_deref().map(Receiver::listen).transpose()?,
        to: arguments.to.as_deref().map(Sender::connect).transpose()?,
    };
    attend(&component, &stages, &mut *stage, links, arguments.frames).map_err(|error| text(&error))?
}

/// The network to the chains before and behind.
struct Links {
    from: Option<Receiver>,
    to: Option<Sender>,
}

/// Works until the chain ends, or the first component has started its number of frames.
fn attend(
    component: &Component<'_>,
    stages: &Stages<'_>,
    stage: &mut dyn Stage,
    mut links: Links,
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
        if let Some(from) = &mut links.from {
            match from.receive(&mut frame)? {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(())),
                Err(error) => return Ok(Err(format!("the chain before: {error}"))),
            }
        } else if component.is_first() {
            stage.begin(component, &mut frame)?;
        }
        begun += u64::from(component.is_first());
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
        if let Some(Err(error)) = links.to.as_mut().map(|to| to.send(&frame)).transpose()? {
            return Ok(Err(format!("the chain behind: {error}")));
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
