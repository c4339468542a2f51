//! `--gpu any`: the GPUs on which a new tenant fits, the best first.

use std::time::{SystemTime, UNIX_EPOCH};

use partita_core::gpu_choice::{Limited, Neighbour, Offer, Place, Wish, rank};
use partita_core::slo::Goal;

use super::quota::memory_wanted;
use super::select::select;
use crate::calibration::{Cache, Measured};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::offered::Via;
use crate::pace::duty_percent;
use crate::policy::Rules;
use crate::registry::{GpuMeta, Registry, Tenant, acting_user, memory};
use crate::request::RunRequest;
use crate::site;
use crate::slo::Record;
use crate::system;

/// A GPU for a new tenant.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// The GPU; several if they were named.
    pub gpus: Vec<Gpu>,
    /// Why it was chosen; `None` if the user named it.
    pub reason: Option<String>,
}

/// The GPUs to try, the best first: those that were named, or each one of `--gpu any`. A client has
/// `partitad` rank them, which sees the tenants of all users and holds the policy.
///
/// # Errors
/// As [`Registry::lock`]; that of the first GPU if none is proved; [`Error::Daemon`].
pub(super) fn candidates(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    gpus: Vec<Gpu>,
) -> Result<Vec<Candidate>, Error> {
    if !request.chooses_gpu() {
        return Ok(vec![Candidate { gpus, reason: None }]);
    }
    let places = match registry.is_client() {
        true => system::ranked(registry, request)?,
        false => ranked(install, request, registry, &gpus)?,
    };
    let candidate = |(key, reason): (String, String)| {
        let gpu = gpus.iter().find(|gpu| gpu.key() == key)?.clone();
        Some(Candidate { gpus: vec![gpu], reason: Some(reason) })
    };
    Ok(places.into_iter().filter_map(candidate).collect())
}

/// The keys of the GPUs for a request of `--gpu any`, the best first, and why each has its place.
fn ranked(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
    gpus: &[Gpu],
) -> Result<Vec<(String, String)>, Error> {
    let cache = Cache::open();
    let measured = |gpu: &Gpu| match request.limits.via() {
        Via::Persistent => cache.get_without_masks(install, gpu),
        _ => cache.get(install, gpu),
    };
    let mut first_error = None;
    let measured: Vec<(&Gpu, Measured)> = gpus
        .iter()
        .filter_map(|gpu| match measured(gpu) {
            Ok(measured) => Some((gpu, measured)),
            Err(error) => {
                first_error.get_or_insert(error);
                None
            }
        })
        .collect();
    let tenants = registry.lock()?.tenants()?;
    let rules = site::present_rules()?;
    let known = Known::of(&tenants, measured.iter().map(|(gpu, _)| *gpu));
    let offers = measured.iter().map(|(gpu, measured)| offer(gpu, measured, request, &rules, &known));
    let offers: Vec<Offer> = offers.collect::<Result<_, _>>()?;
    let places = rank(&wish(request, &known), &offers);
    if let (true, Some(error)) = (places.is_empty(), first_error) {
        return Err(error);
    }
    let reason =
        |place: &Place| format!("{} of {} GPUs: {}", measured[place.at].0.label(), places.len(), place.why);
    Ok(places.iter().map(|place| (measured[place.at].0.key(), reason(place))).collect())
}

/// The same for a client's request, by this machine's GPUs.
///
/// # Errors
/// As [`candidates`], and those of a selection of GPUs.
pub(crate) fn ranked_for(
    install: &Install,
    request: &RunRequest,
    registry: &Registry,
) -> Result<Vec<(String, String)>, Error> {
    ranked(install, request, registry, &select(install, request, |_| {})?)
}

/// The first answer that is no refusal, from the best GPU on; if all refuse, the refusal of the
/// best GPU, with the reason of each other one.
///
/// # Errors
/// Those of `attempt`.
pub(super) fn first<T>(
    candidates: Vec<Candidate>,
    mut attempt: impl FnMut(&Candidate) -> Result<T, Error>,
) -> Result<(Candidate, T), Error> {
    let number = candidates.len();
    let mut refusals: Vec<Error> = Vec::new();
    for candidate in candidates {
        match attempt(&candidate) {
            Ok(made) => return Ok((candidate, made)),
            Err(error) => {
                let labels = crate::gpus::labels(&candidate.gpus);
                refusals.push(if number == 1 { error } else { error.on_gpu(&labels) });
            }
        }
    }
    // A GPU of another group is no choice of this user's, unless no GPU is.
    if refusals.iter().any(|error| !matches!(error, Error::OtherGroup { .. })) {
        refusals.retain(|error| !matches!(error, Error::OtherGroup { .. }));
    }
    let mut refusals = refusals.into_iter();
    let Some(best) = refusals.next() else {
        return Err(Error::NotOffered {
            option: "--gpu any".to_owned(),
            reason: "this machine has no GPU that could be used; `partita devices` lists them".to_owned(),
        });
    };
    // The holders and the remedy, after the reason, only of the best one: the line stays readable.
    let brief = |error: Error| error.to_string().split("; ").next().map(|reason| format!("; {reason}"));
    Err(best.with_others(&refusals.filter_map(brief).collect::<String>()))
}

/// The line that says which GPU a program gets, and why.
pub(super) fn said(reason: &str) -> String {
    format!("--gpu any: {reason}")
}

/// The tenants, and what the present use of GPUs shows of them.
struct Known<'a> {
    tenants: &'a [Tenant],
    /// What limits the work on a GPU, by its key.
    gpus: Vec<(String, Limited)>,
}

impl<'a> Known<'a> {
    fn of<'g>(tenants: &'a [Tenant], gpus: impl Iterator<Item = &'g Gpu>) -> Self {
        let limited = |gpu: &Gpu| {
            let rates = gpu.facts.utilization_percent.zip(gpu.facts.memory_utilization_percent);
            rates.map_or(Limited::Unknown, |(gpu, memory)| Limited::of_utilization(gpu, memory))
        };
        Self { tenants, gpus: gpus.map(|gpu| (gpu.key(), limited(gpu))).collect() }
    }

    /// What limits a tenant: its own times, else the use of the GPU that it has for itself.
    fn limited(&self, tenant: &Tenant, record: &Record) -> Limited {
        let times: Vec<(u32, u64)> =
            record.levels.iter().map(|level| (level.tpcs, (level.mean_us * 1e3) as u64)).collect();
        let shares = |other: &Tenant| other.counts() && other.gpu_key == tenant.gpu_key;
        let is_alone = tenant.counts() && self.tenants.iter().filter(|other| shares(other)).count() == 1;
        match Limited::of(&times) {
            Limited::Unknown if is_alone => self
                .gpus
                .iter()
                .find(|(key, _)| *key == tenant.gpu_key)
                .map_or(Limited::Unknown, |(_, limited)| *limited),
            shown => shown,
        }
    }
}

/// What is known of the new tenant before it runs: what tenants with the same command line needed.
fn wish(request: &RunRequest, known: &Known<'_>) -> Wish {
    let words: Vec<String> = request.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let is_same = |tenant: &&Tenant| tenant.meta.as_ref().is_ok_and(|meta| meta.command == words);
    let records: Vec<(&Tenant, Record)> =
        known.tenants.iter().filter(is_same).map(|tenant| (tenant, Record::of(tenant))).collect();
    let slo = request.limits.slo.map(|slo| slo.to_string());
    let same_target = records.iter().filter(|(_, record)| slo.is_some() && record.slo == slo);
    let mut limits = records.iter().map(|(tenant, record)| known.limited(tenant, record));
    let limited = limits.find(|limited| *limited != Limited::Unknown);
    Wish {
        enough_tpcs: same_target.filter_map(|(_, record)| record.target.as_ref()?.enough_tpcs).max(),
        shares_rest: request.shares_evenly() || request.limits.goal == Some(Goal::Throughput),
        limited: limited.unwrap_or_default(),
    }
}

fn offer(
    gpu: &Gpu,
    measured: &Measured,
    request: &RunRequest,
    rules: &Rules,
    known: &Known<'_>,
) -> Result<Offer, Error> {
    let tenants = known.tenants;
    let (key, label) = (gpu.key(), gpu.label());
    let unproved =
        |reason| Error::Unproved { driver: gpu.driver_version.clone(), gpu: label.clone(), reason };
    let topology = measured.topology().map_err(unproved)?;
    let total_bytes = measured.memory_total_bytes;
    // A share that this GPU has not got is more than all of it.
    let least = request.limits.share.map_or(Ok(1), |share| share.tpcs_wanted(&topology));
    let here = || tenants.iter().filter(|tenant| tenant.gpu_key == key && tenant.counts());
    let kept = memory::kept(rules, Some(&GpuMeta::of(gpu)), total_bytes, here(), Some(acting_user()));
    let wanted = memory_wanted(request, &key, &label, total_bytes, &kept).ok();
    Ok(Offer {
        tpcs: topology.tpc_count(),
        free_bytes: wanted.as_ref().map_or(0, |wanted| wanted.free_bytes(tenants)),
        least_tpcs: least.unwrap_or(u32::MAX),
        // A quota that this GPU cannot have is more than all of it.
        least_bytes: wanted.map_or(u64::MAX, |wanted| wanted.quota.map_or(0, |quota| quota.0)),
        tenants: here().map(|tenant| neighbour(tenant, known)).collect(),
    })
}

fn neighbour(tenant: &Tenant, known: &Known<'_>) -> Neighbour {
    let record = Record::of(tenant);
    let rests = tenant.rests().is_some();
    let least_tpcs = if rests { 1 } else { tenant.promised_tpcs() };
    let meta = tenant.meta.as_ref().ok();
    let goal = meta.is_some_and(|meta| meta.goal == Goal::Throughput);
    let enough = record.target.as_ref().and_then(|target| target.enough_tpcs);
    Neighbour {
        least_tpcs,
        needs_tpcs: enough.filter(|_| tenant.is_steered()).unwrap_or(0).max(least_tpcs),
        shares_rest: rests || goal,
        duty_permille: meta.and_then(|meta| duty_permille(tenant, meta.started_unix_s)),
        limited: known.limited(tenant, &record),
    }
}

/// The part of the time since its start inside bursts, in thousandths; `None` where its use cannot
/// be read, or no burst has ended.
fn duty_permille(tenant: &Tenant, started_unix_s: u64) -> Option<u32> {
    let bursts = tenant.usage().ok()?.pace().ok()?.bursts;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let duty = duty_percent(&bursts, now_s.saturating_sub(started_unix_s));
    duty.map(|percent| (percent * 10.0) as u32)
}
