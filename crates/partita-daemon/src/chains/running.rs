//! A chain that runs, in the form of the API.

use partita_chain_host::{ChainView, Phase, Steering};
use serde::Serialize;
use utoipa::ToSchema;

/// A chain that runs.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// The short names of its GPUs, with commas between them.
    pub gpu: String,
    /// The process that runs it.
    pub supervisor_pid: u32,
    /// Whether that process lives. Otherwise its report is old, and components that fail are not
    /// restarted; a start of the chain ends the remaining components first.
    pub supervised: bool,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// What comes out of its last component, in frames per second, over the last period.
    pub throughput_fps: Option<f64>,
    /// Who divides its TPCs: `steady`, `published`, `none`, or `hand`.
    #[schema(example = "steady")]
    pub algorithm: String,
    /// What the optimizer does now: `waiting`, `searching`, `settled` or `off`.
    #[schema(example = "settled")]
    pub optimizer_state: String,
    /// Periods that were measured.
    pub periods: u64,
    /// TPCs that the chain has in all, on all of its GPUs together.
    pub tpcs: u32,
    /// Its components, in their order.
    pub components: Vec<RunningComponent>,
    /// Frames that have passed through it.
    pub frames_finished: u64,
    /// Frames that are nowhere: 0, but for a damaged file.
    pub frames_lost: u32,
    /// What happened to it of late.
    #[serde(skip)]
    pub steps: Vec<Step>,
}

/// A component of a chain that runs. Counts are since the chain began.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RunningComponent {
    /// Its name.
    pub name: String,
    /// The short name of its GPU.
    pub gpu: String,
    /// TPCs that the chain has there: the most that it can use.
    pub tpcs_of_gpu: u32,
    /// How frames come from the component before, if that is on another GPU: `peer` from that GPU's
    /// memory, `host` through host memory; none on the same GPU, and before the first frame.
    #[schema(example = "peer")]
    pub frames_by: Option<String>,
    /// Whether a living process has its place.
    pub live: bool,
    /// Its process; none while it does not run.
    pub pid: Option<u32>,
    /// How often a process took its place.
    pub incarnation: u64,
    /// Frames that it received.
    pub frames_in: u64,
    /// Frames that it passed on.
    pub frames_out: u64,
    /// Frames that were dropped at it: for want of room, by itself, and with a process that died.
    pub frames_dropped: u64,
    /// Frames that wait for it.
    pub frames_queued: u32,
    /// Frames that it holds.
    pub frames_held: u32,
    /// How long it worked, in microseconds.
    pub busy_us: u64,
    /// How long it waited for frames and for room, in microseconds.
    pub wait_us: u64,
    /// How many TPCs it is to use.
    pub tpcs: Option<u32>,
    /// Which, logical, as ranges.
    pub tpc_set: Option<String>,
    /// Whether it does already.
    pub obeys: bool,
    /// Whether it cannot. Its standard error has the reason.
    pub refuses: bool,
}

/// Something that happened to a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// When, in seconds since the chain began.
    pub at_s: f64,
    /// What.
    pub what: String,
    /// Frames per second of the last period then.
    pub throughput_fps: Option<f64>,
    /// TPCs of each component since then; none if they did not change.
    pub tpcs: Option<Vec<u32>>,
}

impl From<ChainView> for Running {
    fn from(view: ChainView) -> Self {
        let ChainView { name, gpu, supervised, state, roles, frames_finished, frames_lost } = view;
        let of_gpu = |label: &str| state.gpus.iter().find(|gpu| gpu.gpu == label).map(|gpu| gpu.tpcs);
        let components = roles.into_iter().enumerate().map(|(at, role)| RunningComponent {
            pid: state.components.get(at).and_then(|one| one.process).map(|process| process.pid),
            gpu: state.components.get(at).map_or_else(|| gpu.clone(), |one| one.gpu.clone()),
            tpcs_of_gpu: (state.components.get(at).and_then(|one| of_gpu(&one.gpu)))
                .unwrap_or(state.tpcs_of_chain),
            frames_by: role.frames_by.map(str::to_owned),
            live: role.live,
            incarnation: role.incarnation,
            frames_in: role.frames_in,
            frames_out: role.frames_out,
            frames_dropped: role.dropped_full + role.dropped_by_owner + role.dropped_of_dead,
            frames_queued: role.queued,
            frames_held: role.held,
            busy_us: role.busy_ns / 1000,
            wait_us: (role.wait_in_ns + role.wait_out_ns) / 1000,
            tpcs: state.tpcs.as_ref().and_then(|tpcs| tpcs.get(at).copied()),
            tpc_set: role.tpcs,
            obeys: role.obeys,
            refuses: role.refuses,
            name: role.name,
        });
        let components = components.collect();
        Self {
            components,
            name,
            gpu,
            supervisor_pid: state.supervisor.pid,
            supervised,
            started_unix_s: state.started_unix_s,
            throughput_fps: state.throughput_fps,
            algorithm: match &state.steering {
                Steering::Algorithm(algorithm) => word(algorithm),
                Steering::Tpcs(_) => "hand".to_owned(),
            },
            optimizer_state: match state.phase {
                Phase::Waiting => "waiting",
                Phase::Searching => "searching",
                Phase::Settled => "settled",
                Phase::Off => "off",
            }
            .to_owned(),
            periods: state.periods,
            tpcs: state.tpcs_of_chain,
            frames_finished,
            frames_lost,
            steps: state
                .events
                .into_iter()
                .map(|event| Step {
                    at_s: event.at_s,
                    what: event.what,
                    throughput_fps: event.throughput_fps,
                    tpcs: event.tpcs,
                })
                .collect(),
        }
    }
}

/// A word of the facade's as JSON has it.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
