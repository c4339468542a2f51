//! One search for an application in several parts: chains on this machine or on others, each of
//! which has its own manager of compute units.
//!
//! The paper's outlook: an application whose components run on several GPUs of several servers
//! still has one throughput, and its optimizer has a resource manager on each GPU. Here each part
//! is a running chain. The objective is what leaves the last one; how frames get from one part to
//! the next is the application's own matter. Each GPU's TPCs are divided among the components that
//! run on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use partita_host::error::Error;
use partita_host::registry::Registry;
use partita_steering::{
    Actuator, Algorithm, Allocation, Controller, ControllerOptions, Objective, Room, SteadyOptions, Stop,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::daemon::Client;
use super::plant::{FRAMES_MIN, is_over};
use super::{Algorithm as Divider, ChainView, Event, Steering, news, state};

/// How long a part may be out of reach: a daemon that is replaced is back before.
const OUTAGE_MAX: Duration = Duration::from_secs(30);
/// How long a part may take to apply a division.
const APPLY_LIMIT: Duration = Duration::from_secs(10);
/// The time between two looks at a part, which may be a request to another machine.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// A part of the application: a running chain.
#[derive(Debug)]
pub enum Part {
    /// Of this machine and user.
    Here {
        /// The user's registry.
        registry: Registry,
        /// The chain's name.
        name: String,
    },
    /// Of a machine whose daemon it is.
    There {
        /// The daemon.
        daemon: Client,
        /// The chain's name.
        name: String,
        /// The part, as the user wrote it.
        text: String,
    },
}

/// What is known of a part, in the words of the REST interface.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Look {
    supervisor_pid: u64,
    supervised: bool,
    started_unix_s: u64,
    /// `hand` while no algorithm of its own divides it.
    algorithm: String,
    components: Vec<LookedComponent>,
    frames_finished: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct LookedComponent {
    name: String,
    gpu: String,
    tpcs_of_gpu: u32,
    tpcs: Option<u32>,
}

impl Look {
    /// Whether it is another run than that one, or has other TPCs.
    fn differs_from(&self, before: &Self) -> bool {
        let room = |look: &Self| look.components.iter().map(|one| one.tpcs_of_gpu).collect::<Vec<_>>();
        let run = |look: &Self| (look.supervisor_pid, look.started_unix_s);
        run(self) != run(before) || room(self) != room(before)
    }

    /// Whether it is divided like this, as far as its GPUs have so many TPCs.
    fn has(&self, tpcs: &[u32]) -> bool {
        let has = |(one, &tpcs): (&LookedComponent, &u32)| one.tpcs == Some(tpcs.min(one.tpcs_of_gpu));
        self.algorithm == "hand" && self.components.iter().zip(tpcs).all(has)
    }
}

impl From<ChainView> for Look {
    fn from(view: ChainView) -> Self {
        let state = view.state;
        let tpcs_of = |gpu: &str| state.gpus.iter().find(|one| one.gpu == gpu).map(|one| one.tpcs);
        let of_component = |(at, one): (usize, &super::ComponentState)| LookedComponent {
            name: one.name.clone(),
            gpu: one.gpu.clone(),
            tpcs_of_gpu: tpcs_of(&one.gpu).unwrap_or(state.tpcs_of_chain),
            tpcs: state.tpcs.as_ref().and_then(|tpcs| tpcs.get(at)).copied(),
        };
        Self {
            supervisor_pid: state.supervisor.pid.into(),
            supervised: view.supervised,
            started_unix_s: state.started_unix_s,
            algorithm: match &state.steering {
                Steering::Tpcs(_) => "hand".to_owned(),
                Steering::Algorithm(Divider::None) => "none".to_owned(),
                Steering::Algorithm(_) => "search".to_owned(),
            },
            components: state.components.iter().enumerate().map(of_component).collect(),
            frames_finished: view.frames_finished,
        }
    }
}

impl Part {
    /// A part as a user writes it: the name of a chain of this machine, or a URL and a name, such
    /// as `http://127.0.0.1:7879/detect`, whose daemon takes the token.
    ///
    /// # Errors
    /// [`Error::Refused`] for a malformed URL or token; [`Error::Name`] for a malformed name.
    pub fn new(text: &str, registry: &Registry, token: Option<&str>) -> Result<Self, Error> {
        if text.contains('/') {
            let (daemon, name) = Client::of_chain(text, token.unwrap_or_default())?;
            return Ok(Self::There { daemon, name, text: text.to_owned() });
        }
        partita_host::registry::check_name(text)?;
        Ok(Self::Here { registry: registry.clone(), name: text.to_owned() })
    }

    /// The part, as the user wrote it.
    fn text(&self) -> &str {
        match self {
            Self::Here { name, .. } => name,
            Self::There { text, .. } => text,
        }
    }

    fn refuse(&self, reason: impl Into<String>) -> Error {
        Error::Refused { what: format!("chain {}", self.text()), reason: reason.into() }
    }

    fn look(&self) -> Result<Look, Error> {
        let look = match self {
            Self::Here { registry, name } => Look::from(state::view(registry, name)?),
            Self::There { daemon, name, .. } => {
                let chain = daemon.get(&format!("/v1/chains/{name}"))?;
                let running = chain.get("running").filter(|running| !running.is_null());
                let running = running.ok_or_else(|| {
                    self.refuse(format!("it does not run; start it there with `partita chain start {name}`"))
                })?;
                Look::deserialize(running).map_err(|error| {
                    self.refuse(format!(
                        "its daemon answers in another form ({error}); install the same version on \
                         both machines"
                    ))
                })?
            }
        };
        match look.supervised {
            true => Ok(look),
            false => Err(self.refuse("the process that ran it has died; start the chain again there")),
        }
    }

    fn divide(&self, look: &Look, tpcs: &[u32]) -> Result<(), Error> {
        match self {
            Self::Here { registry, name } => state::steer(registry, name, &Steering::Tpcs(tpcs.to_vec())),
            Self::There { daemon, name, .. } => {
                let each = look.components.iter().zip(tpcs);
                let amounts: serde_json::Map<String, Value> =
                    each.map(|(one, tpcs)| (one.name.clone(), json!({ "tpcs": tpcs }))).collect();
                let path = format!("/v1/chains/{name}/sm-configuration");
                daemon.ask("PUT", &path, Some(&Value::Object(amounts))).map(drop)
            }
        }
    }
}

/// The application: its parts, and one throughput.
struct Application<'a> {
    parts: &'a [Part],
    looks: Vec<Look>,
    period: Duration,
    ending: &'a AtomicBool,
    /// Frames that had passed at the end of the last period, and its time.
    counted: Option<(u64, Instant)>,
    applied: Option<Allocation>,
    /// The part that began anew or was resized.
    changed: Option<usize>,
}

impl Application<'_> {
    /// Looks at a part. A daemon that is out of reach for a moment is asked again.
    fn look(&self, at: usize) -> Result<Look, Stop> {
        let begin = Instant::now();
        loop {
            if self.ending.load(Ordering::Relaxed) {
                return Err(Stop::Asked);
            }
            match self.parts[at].look() {
                Ok(look) => return Ok(look),
                Err(error) if begin.elapsed() > OUTAGE_MAX => return Err(failed(&error)),
                Err(_) => std::thread::sleep(LOOK_PERIOD * 4),
            }
        }
    }

    /// Looks at a part, and stops if it is another run, has other TPCs, or another division.
    fn check(&mut self, at: usize) -> Result<Look, Stop> {
        let look = self.look(at)?;
        if look.differs_from(&self.looks[at]) {
            self.changed = Some(at);
            return Err(Stop::Asked);
        }
        let tpcs = self.applied.as_ref().map(|applied| self.tpcs_of(at, applied));
        if tpcs.is_some_and(|tpcs| !look.has(&tpcs)) {
            let reason = "somebody else divided its compute units; end that, and begin again";
            return Err(failed(&self.parts[at].refuse(reason)));
        }
        Ok(look)
    }

    /// Looks at all parts anew, after one of them has changed.
    fn look_again(&mut self) -> Result<(), Stop> {
        (self.applied, self.counted) = (None, None);
        self.looks = (0..self.parts.len()).map(|at| self.look(at)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn room(&self) -> Room {
        let (mut gpus, mut names, mut of) = (Vec::new(), Vec::new(), Vec::new());
        for (part, look) in self.looks.iter().enumerate() {
            for one in &look.components {
                // Two parts never share a GPU's TPCs, not even on one machine: each is a tenant.
                let name = (part, one.gpu.as_str());
                let gpu = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    names.push(name);
                    gpus.push(one.tpcs_of_gpu);
                    gpus.len() - 1
                });
                of.push(gpu);
            }
        }
        let components = of.len();
        Room::new(gpus, of).unwrap_or_else(|| Room::one(components, 1))
    }

    /// The numbers of one part in an allocation of all.
    fn tpcs_of(&self, at: usize, allocation: &Allocation) -> Vec<u32> {
        let before: usize = self.looks[..at].iter().map(|look| look.components.len()).sum();
        let count = self.looks[at].components.len();
        allocation.tpcs().iter().skip(before).take(count).copied().collect()
    }
}

fn failed(error: &Error) -> Stop {
    Stop::Failed { reason: error.to_string() }
}

impl Objective for Application<'_> {
    fn throughput(&mut self) -> Result<f64, Stop> {
        let last = self.looks.len() - 1;
        let (frames_before, begun) = match self.counted.take() {
            Some(counted) => counted,
            None => (self.check(last)?.frames_finished, Instant::now()),
        };
        loop {
            std::thread::sleep(LOOK_PERIOD.min(self.period));
            let look = self.check(last)?;
            let (now, passed) = (Instant::now(), begun.elapsed());
            let frames = look.frames_finished.saturating_sub(frames_before);
            if is_over(self.period, passed, frames, FRAMES_MIN) {
                (0..last).try_for_each(|at| self.check(at).map(drop))?;
                self.counted = Some((look.frames_finished, now));
                return Ok(frames as f64 / passed.as_secs_f64().max(1e-9));
            }
        }
    }
}

impl Actuator for Application<'_> {
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Stop> {
        let allocation = self.room().within(allocation);
        self.counted = None;
        self.applied = None;
        for at in 0..self.parts.len() {
            let (look, tpcs) = (self.check(at)?, self.tpcs_of(at, &allocation));
            if look.has(&tpcs) {
                continue;
            }
            self.parts[at].divide(&look, &tpcs).map_err(|error| failed(&error))?;
            let begin = Instant::now();
            while !self.check(at)?.has(&tpcs) {
                if begin.elapsed() > APPLY_LIMIT {
                    let reason = format!("it has not applied a division for {} s", APPLY_LIMIT.as_secs());
                    return Err(failed(&self.parts[at].refuse(reason)));
                }
                std::thread::sleep(LOOK_PERIOD);
            }
        }
        self.applied = Some(allocation);
        Ok(())
    }
}

/// Searches for the division with the highest throughput of the last part, watches it, and searches
/// again after a lasting change, a restart or a resize of a part. Returns when `ending` is set, or,
/// with `once`, after the first search. The last division stays.
///
/// # Errors
/// [`Error::Refused`] without two parts, or with one named twice; why a part cannot be watched or
/// steered any more. A daemon may be out of reach for 30 s.
pub fn tune(
    parts: &[Part],
    period: Duration,
    once: bool,
    ending: &AtomicBool,
    mut event: impl FnMut(&Event),
) -> Result<(), Error> {
    let texts: Vec<&str> = parts.iter().map(Part::text).collect();
    if let Some(twice) = texts.iter().enumerate().find(|(at, text)| texts[..*at].contains(text)) {
        return Err(parts[twice.0].refuse("it is named twice"));
    }
    let looks = parts.iter().map(Part::look).collect::<Result<Vec<_>, _>>()?;
    if looks.is_empty() {
        return Err(Error::Refused { what: "tune".to_owned(), reason: "name the chains".to_owned() });
    }
    let begin = Instant::now();
    let mut start = None;
    let mut application =
        Application { parts, looks, period, ending, counted: None, applied: None, changed: None };
    loop {
        let room = application.room();
        let first = start.as_ref().map_or_else(|| room.whole(), |applied| room.within(applied));
        let options = ControllerOptions {
            algorithm: Algorithm::Steady(SteadyOptions::default()),
            ..Default::default()
        };
        let mut controller = Controller::new(first.clone(), room, options);
        let mut told = 0;
        let mut stop = application.apply(&first).err();
        while stop.is_none() {
            let step = controller.step(&mut application);
            for record in controller.records().filter(|record| record.period > told) {
                let (what, tpcs) = news::of(&record.what);
                let throughput_fps = step.as_ref().ok().copied();
                event(&Event { at_s: begin.elapsed().as_secs_f64(), what, throughput_fps, tpcs });
            }
            told = controller.periods();
            let has_searched = || controller.records().any(|record| record.what.name() == "search");
            if once && has_searched() {
                return Ok(());
            }
            stop = step.err();
        }
        start = Some(controller.in_force().clone());
        let changed = application.changed.take();
        let stop = match (stop, changed) {
            (Some(Stop::Asked), Some(at)) => {
                let what = format!("{} began again or was resized: a new search", parts[at].text());
                event(&Event { at_s: begin.elapsed().as_secs_f64(), what, throughput_fps: None, tpcs: None });
                application.look_again().err()
            }
            (stop, _) => stop.or(Some(Stop::Asked)),
        };
        match stop {
            None => {}
            Some(Stop::Failed { reason }) => {
                return Err(Error::Refused { what: "the search".to_owned(), reason });
            }
            Some(_) => return Ok(()),
        }
    }
}
