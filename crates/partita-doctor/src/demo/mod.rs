//! `partita demo`: two tenants on one GPU, without and with partitions.
//!
//! `serve` answers a request every few milliseconds with one short kernel. `greedy` keeps the GPU
//! full. Both are tenants and clients of one MPS service. Between the scenes only their limits
//! change, as with `partita set`. Every block of both records its SM and its time, and these
//! records make the picture.

mod actor;
mod latency;
mod outcome;
mod picture;
mod svg;
mod text;

use std::time::{Duration, Instant};

use partita_core::{Share, TpcSet};
use partita_host::calibration::Cache;
use partita_host::child::RunningJob;
use partita_host::error::Error;
use partita_host::gpu::Gpu;
use partita_host::install::Install;
use partita_host::sandbox::{Sandbox, SandboxTenant};
use partita_host::signals;

pub(crate) use actor::{ActorRequest, JOB, act};
use actor::{Cue, Performance, READY, Role};
pub use latency::Latency;
pub use outcome::{GREEDY, Outcome, SERVE, Scene};
pub use picture::{Bar, Panel};

/// The length of a scene, in milliseconds.
const SCENE_MS: u64 = 1200;
/// The length of the drawn part, in milliseconds.
const WINDOW_MS: u64 = 12;
/// The time from the request to the start of the scene, by which both actors have it.
const CUE_MS: u64 = 30;
/// Timeout of an actor. A simulated clock can run slower than real time.
const ACTOR_LIMIT: Duration = Duration::from_secs(60);

impl Outcome {
    /// The outcome as text, with a picture of characters.
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// The outcome as an SVG picture.
    pub fn to_svg(&self) -> String {
        svg::render(self)
    }
}

/// Runs the demo on `gpu`.
///
/// # Errors
/// [`Error::Unproved`], [`Error::Mps`], [`Error::Child`], [`Error::Interrupted`].
pub fn play(install: &Install, gpu: &Gpu) -> Result<Outcome, Error> {
    signals::end_in_order().map_err(Error::io("signal handlers"))?;
    let begin = Instant::now();
    let measured = Cache::open().get(install, gpu)?;
    let mut sandbox = Sandbox::new(install, gpu, &measured)?;
    let topology = sandbox.topology().clone();
    let all = topology.all();
    let half = partita_core::plan(&topology, &[], Share::Tpcs(topology.tpc_count().div_ceil(2)))
        .map_err(|error| Error::Plan { reason: error.to_string() })?
        .set;
    let rest = all - half;
    if rest.is_empty() {
        return Err(Error::NotOffered {
            option: gpu.label(),
            reason: "it has a single TPC and cannot be partitioned; choose another --gpu".to_owned(),
        });
    }

    let mut serve = Actor::cast(&mut sandbox, SERVE, Role::Serve, &all, half.len() * topology.sms_per_tpc())?;
    let mut greedy = Actor::cast(&mut sandbox, GREEDY, Role::Greedy, &all, topology.sm_count())?;
    serve.is_ready()?;
    greedy.is_ready()?;

    let mut scenes = Vec::new();
    for (title, sets) in [
        ("alone", None),
        ("beside greedy, no partitions", Some((all, all))),
        ("beside greedy, partitions", Some((half, rest))),
    ] {
        signals::check()?;
        sandbox.set_partition(&serve.tenant, &sets.map_or(half, |(set, _)| set))?;
        sandbox.set_partition(&greedy.tenant, &sets.map_or(rest, |(_, set)| set))?;
        let cue = Cue::in_ms(CUE_MS, SCENE_MS, WINDOW_MS);
        serve.perform(&cue)?;
        if sets.is_some() {
            greedy.perform(&cue)?;
        }
        let served = serve.performance()?;
        let hogged = if sets.is_some() { Some(greedy.performance()?) } else { None };
        let panel = sets.zip(hogged.as_ref()).map(|((serve_set, greedy_set), hogged)| {
            Panel::new(
                &topology,
                &half,
                cue.window_ns(),
                WINDOW_MS * 1_000_000,
                [(&served, &serve_set), (hogged, &greedy_set)],
            )
        });
        scenes.push(Scene {
            title: title.to_owned(),
            serve: Latency::of(&served.latencies_ns)
                .ok_or_else(|| actor_failed(SERVE, "it answered no request"))?,
            greedy_kernels_per_s: hogged.map(|hogged| hogged.kernels as f64 * 1000.0 / SCENE_MS as f64),
            panel,
        });
    }
    serve.leave();
    greedy.leave();
    let sms = |set: &TpcSet| set.len() * topology.sms_per_tpc();
    Ok(Outcome {
        gpu: gpu.label(),
        sms: topology.sm_count(),
        serve_tpcs: half.to_string(),
        serve_sms: sms(&half),
        greedy_tpcs: rest.to_string(),
        greedy_sms: sms(&rest),
        scenes,
        took_s: begin.elapsed().as_secs_f64(),
    })
}

/// One of the two actors, in a separate process.
struct Actor {
    name: &'static str,
    tenant: SandboxTenant,
    job: RunningJob,
}

impl Actor {
    fn cast(
        sandbox: &mut Sandbox<'_>,
        name: &'static str,
        role: Role,
        set: &TpcSet,
        sms: u32,
    ) -> Result<Self, Error> {
        let tenant = sandbox.tenant(name, set, None)?;
        let job = sandbox.job(&tenant, JOB, &ActorRequest { role, sms }, true)?;
        let job = job.with_orders().limit(ACTOR_LIMIT).start()?;
        Ok(Self { name, tenant, job })
    }

    fn is_ready(&mut self) -> Result<(), Error> {
        let name = self.name;
        self.job.wait_for(READY).map(drop).map_err(|error| error.or(|reason| actor_failed(name, &reason)))
    }

    fn perform(&mut self, cue: &Cue) -> Result<(), Error> {
        let name = self.name;
        self.job.order(cue).map_err(|error| error.or(|reason| actor_failed(name, &reason)))
    }

    fn performance(&mut self) -> Result<Performance, Error> {
        let name = self.name;
        let json = self.job.wait_for(actor::PERFORMED);
        let json = json.map_err(|error| error.or(|reason| actor_failed(name, &reason)))?;
        serde_json::from_str(&json).map_err(|error| actor_failed(name, &error.to_string()))
    }

    fn leave(mut self) {
        self.job.no_more_orders();
        let _ = self.job.finish::<()>();
    }
}

fn actor_failed(name: &str, reason: &str) -> Error {
    Error::Child { job: format!("the demo's tenant {name}"), reason: reason.to_owned() }
}
