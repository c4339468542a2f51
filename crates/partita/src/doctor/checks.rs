//! The checks, in the order in which each stands on those before it.

use std::time::Duration;

use partita_core::{ByteSize, Count, TpcSet};
use partita_mps::ControlBinary;

use super::check::{Check, State, failed_job};
use super::jobs::{self, Beats, BeatsRequest, CensusResult, QuotaResult};
use super::products;
use crate::calibration::streams::{self, FoundBy, PlaceRequest, StreamPlace, VerifyResult};
use crate::calibration::{Cache, Measured};
use crate::error::Error;
use crate::gpu::{Gpu, INSTANCES_INSTEAD};
use crate::install::{self, Install};
use crate::registry::Registry;
use crate::sandbox::Sandbox;
use crate::signals;

/// The quota of the quota check: larger than any granularity, small beside any GPU.
const QUOTA: ByteSize = ByteSize(96 << 20);
/// Two clients that run as they like run together for as long as chance has
/// them: the product of their shares of the time. Clients that take turns
/// hardly ever do. What is measured must be at least this part of the product.
const TOGETHER_MIN: f64 = 0.5;
const JOB_LIMIT: Duration = Duration::from_secs(60);

pub(super) struct Examination<'a, P> {
    install: &'a Install,
    gpu: &'a Gpu,
    progress: P,
    checks: Vec<Check>,
}

impl<'a, P: FnMut(&str)> Examination<'a, P> {
    pub(super) fn new(install: &'a Install, gpu: &'a Gpu, progress: P) -> Self {
        Self { install, gpu, progress, checks: Vec::new() }
    }

    /// Makes a check and keeps its outcome.
    fn make(
        &mut self,
        name: &'static str,
        check: impl FnOnce() -> Result<Check, Error>,
    ) -> Result<State, Error> {
        signals::check()?;
        (self.progress)(name);
        let check = match check() {
            Err(error @ Error::Interrupted { .. }) => return Err(error),
            Err(error) => Check::failed(name, error.to_string(), "see the reason"),
            Ok(check) => check,
        };
        let state = check.state;
        self.checks.push(check);
        Ok(state)
    }

    fn skip(&mut self, names: &[&'static str], because: &str) {
        for name in names {
            self.checks.push(Check::not_checked(name, because, ""));
        }
    }

    pub(super) fn all(mut self) -> Result<Vec<Check>, Error> {
        const ON_LAYOUT: [&str; 9] = [
            "stream masks",
            "masks",
            "quota",
            "products (mask)",
            "mps service",
            "mps concurrency",
            "masks under mps",
            "products (mps)",
            "streams (mps)",
        ];
        let (install, gpu) = (self.install, self.gpu);
        self.make("driver", || Ok(driver(gpu)))?;
        self.make("driver exports", || super::exports::check(install, gpu))?;
        self.make("gpu", || Ok(device(gpu)))?;
        self.make("mechanisms", || Ok(super::mechanisms::check()))?;
        self.make("run directory", run_directory)?;
        self.make("hook", || {
            let hook = install.part(install::HOOK)?;
            Ok(Check::ok("hook", hook.display().to_string()))
        })?;
        let mut measured = None;
        self.make("launch layout", || {
            let found = Cache::open().renew(install, gpu)?;
            let check = layout(&found);
            measured = Some(found);
            Ok(check)
        })?;
        let mps = self.make("mps program", || Ok(mps_program(gpu)))?;
        for check in super::conditions::checks(install, gpu) {
            self.make(check.name, || Ok(check))?;
        }
        let Some(measured) = measured else {
            self.skip(&["topology"], "the launch layout is not proved");
            self.skip(&ON_LAYOUT, "the launch layout is not proved");
            return Ok(self.checks);
        };
        self.make("topology", || Ok(super::topology::check(gpu, &measured)))?;
        let mut place = None;
        self.make("stream masks", || stream_masks(install, gpu, &measured, &mut place))?;
        let mut sandbox = match Sandbox::new(install, gpu, &measured) {
            Ok(sandbox) => sandbox,
            Err(error) => {
                self.skip(&ON_LAYOUT[1..], &error.to_string());
                return Ok(self.checks);
            }
        };
        self.make("masks", || masks("masks", &mut sandbox, false))?;
        self.make("quota", || quota(&mut sandbox))?;
        self.make("products (mask)", || products::under_masks(gpu, &mut sandbox))?;
        if mps != State::Ok {
            self.skip(&ON_LAYOUT[4..], "there is no MPS program");
            return Ok(self.checks);
        }
        let service = self.make("mps service", || {
            let service = sandbox.service()?;
            let percent = service.control().default_active_thread_percentage()?;
            Ok(Check::ok("mps service", format!("starts and answers; clients get {percent} % of the SMs")))
        })?;
        if service != State::Ok {
            self.skip(&ON_LAYOUT[5..], "the MPS service does not start");
            return Ok(self.checks);
        }
        self.make("mps concurrency", || concurrency(&mut sandbox))?;
        self.make("masks under mps", || masks("masks under mps", &mut sandbox, true))?;
        self.make("products (mps)", || products::under_percentages(install, gpu, sandbox.service()?))?;
        match place {
            None => self.skip(&ON_LAYOUT[8..], "their place is not proved"),
            Some(place) => {
                self.make("streams (mps)", || stream_masks_under_mps(&mut sandbox, &measured, &place))?;
            }
        }
        Ok(self.checks)
    }
}

fn driver(gpu: &Gpu) -> Check {
    Check::ok("driver", format!("{}, CUDA {}", gpu.driver_version, gpu.cuda_version_text()))
}

fn device(gpu: &Gpu) -> Check {
    let facts = &gpu.facts;
    let detail = format!(
        "{} ({}), compute capability {}, {}",
        facts.name,
        facts.uuid,
        gpu.compute_capability_text(),
        ByteSize(facts.memory_total_bytes).approximate()
    );
    if facts.mig_enabled == Some(true) {
        let instances: Vec<String> = facts
            .mig_instances
            .iter()
            .map(|instance| format!("{} is {}", instance.uuid, instance.profile()))
            .collect();
        let instances = if instances.is_empty() { "no instances".to_owned() } else { instances.join(", ") };
        let remedy = format!("{INSTANCES_INSTEAD}; `nvidia-smi -i {} -mig 0` turns MIG off", facts.index);
        return Check::failed("gpu", format!("{detail}; cut up by MIG: {instances}"), remedy);
    }
    match facts.compute_mode.as_str() {
        "prohibited" => Check::failed(
            "gpu",
            format!("{detail}; compute mode PROHIBITED"),
            format!("open it with `nvidia-smi -i {} -c DEFAULT`", facts.index),
        ),
        _ => Check::ok("gpu", detail),
    }
}

fn run_directory() -> Result<Check, Error> {
    let registry = Registry::open()?;
    let mut tenants: Vec<String> =
        registry.lock()?.tenants()?.into_iter().map(|tenant| tenant.name).collect();
    tenants.sort();
    tenants.dedup();
    let root = registry.root().display();
    Ok(Check::ok("run directory", format!("{root}, {}", Count(tenants.len(), "tenant"))))
}

fn layout(measured: &Measured) -> Check {
    let gpcs: std::collections::BTreeSet<u8> = measured.tpcs.iter().map(|&(gpc, _)| gpc).collect();
    let gpcs = if measured.gpcs_proved {
        format!("in {} GPCs", gpcs.len())
    } else {
        "GPCs not proved, so clusters of blocks are held to one TPC".to_owned()
    };
    Check::ok(
        "launch layout",
        format!(
            "QMD V{}.{}, {} TPCs of {} SMs {gpcs}; every bit of the mask tried alone",
            measured.qmd_version >> 4,
            measured.qmd_version & 15,
            measured.tpcs.len(),
            measured.sms_per_tpc,
        ),
    )
}

fn mps_program(gpu: &Gpu) -> Check {
    let binary = match gpu.sim() {
        Some(sim) => ControlBinary::at(&sim.mps_control()),
        None => ControlBinary::find(std::env::var_os("PATH").as_deref()),
    };
    let version = binary.and_then(|binary| binary.version().map(|version| (binary, version)));
    match version {
        Ok((binary, version)) => Check::ok("mps program", format!("{}, {version}", binary.path().display())),
        Err(error) => Check::failed(
            "mps program",
            error.to_string(),
            "without it tenants can only take turns: `partita run --isolation own`",
        ),
    }
}

/// Sets that no numbering by GPC, half or parity could satisfy by accident.
fn trial_sets(tpcs: u32) -> Vec<TpcSet> {
    let pick =
        |wanted: &dyn Fn(u8) -> bool| (0..=u8::MAX).take(tpcs as usize).filter(|&tpc| wanted(tpc)).collect();
    let last = u8::try_from(tpcs - 1).unwrap_or(u8::MAX);
    let mut sets: Vec<TpcSet> = vec![
        pick(&|tpc| tpc == 0),
        pick(&|tpc| tpc == last),
        pick(&|tpc| tpc % 3 == 1),
        pick(&|tpc| tpc % 7 < 4),
    ];
    sets.retain(|set| !set.is_empty());
    sets
}

/// Runs a census in a tenant on several sets: the hook must put every block on
/// an SM of the set, and use them all.
fn masks(name: &'static str, sandbox: &mut Sandbox<'_>, shared: bool) -> Result<Check, Error> {
    let topology = sandbox.topology().clone();
    let sets = trial_sets(topology.tpc_count());
    let mut blocks = 0;
    for (number, set) in sets.iter().enumerate() {
        let tenant = sandbox.tenant(&format!("mask{number}"), set, None)?;
        let job = sandbox.job(&tenant, jobs::CENSUS, &8, shared)?.limit(JOB_LIMIT);
        let census: CensusResult = match job.run()? {
            Ok(census) => census,
            Err(error) => return failed_job(name, error, &format!("with TPCs {set}")),
        };
        blocks += census.blocks;
        let expected: Vec<u32> = set.iter().flat_map(|tpc| topology.sms_of(tpc)).collect();
        if shared && census.sms.len() == expected.len() {
            // Under MPS the enabled SMs are numbered anew from 0: how many they are still tells.
            continue;
        }
        let escaped: Vec<&u32> = census.sms.iter().filter(|sm| !expected.contains(sm)).collect();
        if census.sms != expected {
            return Ok(Check::failed(
                name,
                format!(
                    "with TPCs {set}, blocks ran on {} SMs, {} of them others",
                    census.sms.len(),
                    escaped.len()
                ),
                "do not rely on partitions here; report the driver's version",
            ));
        }
    }
    Ok(Check::ok(name, format!("{} sets, {blocks} blocks, none on an SM outside its set", sets.len())))
}

/// Where the driver keeps the masks of streams. Programs that restrict their
/// own streams need it; `partita run` does not.
fn stream_masks(
    install: &Install,
    gpu: &Gpu,
    measured: &Measured,
    place: &mut Option<StreamPlace>,
) -> Result<Check, Error> {
    const NAME: &str = "stream masks";
    let found = match Cache::open().renew_stream_place(install, gpu, measured) {
        Ok(found) => found,
        Err(Error::Unproved { reason, .. }) => {
            let remedy = "programs cannot restrict single streams here; launches and processes they can";
            return Ok(Check::not_checked(NAME, reason, remedy));
        }
        Err(error) => return Err(error),
    };
    *place = Some(found);
    let by = match found.found_by {
        FoundBy::Trace { places } => format!("found by tracing a launch, among {places} places"),
        FoundBy::List => "listed for this driver's version".to_owned(),
    };
    let StreamPlace { offset_bytes, sets, blocks, .. } = found;
    Ok(Check::ok(
        NAME,
        format!(
            "offset {offset_bytes:#x}, {by}; {sets} sets, {blocks} blocks, none on an SM outside its set"
        ),
    ))
}

/// The same place in a client of the MPS service: where SM numbers are not the
/// device's, by how many SMs there are, how many blocks run at once, and the
/// launch descriptors.
fn stream_masks_under_mps(
    sandbox: &mut Sandbox<'_>,
    measured: &Measured,
    place: &StreamPlace,
) -> Result<Check, Error> {
    const NAME: &str = "streams (mps)";
    let request = PlaceRequest { measured: measured.clone(), offset_bytes: place.offset_bytes };
    match sandbox.client_job(streams::VERIFY_JOB, &request)?.limit(JOB_LIMIT).run()? {
        Ok(VerifyResult { sets, blocks }) => Ok(Check::ok(NAME, format!("{sets} sets, {blocks} blocks"))),
        Err(error) => failed_job(NAME, error, ""),
    }
}

fn quota(sandbox: &mut Sandbox<'_>) -> Result<Check, Error> {
    let tenant = sandbox.tenant("quota", &sandbox.topology().all(), Some(QUOTA))?;
    let job = sandbox.job(&tenant, jobs::QUOTA, &QUOTA.0, false)?.limit(JOB_LIMIT);
    let result: QuotaResult = match job.run()? {
        Ok(result) => result,
        Err(error) => return failed_job("quota", error, ""),
    };
    let mut wrong = Vec::new();
    if result.total_bytes != QUOTA.0 {
        wrong.push(format!("CUDA tells a total of {}", ByteSize(result.total_bytes)));
    }
    if !result.whole_fits {
        wrong.push(format!("only less than {QUOTA} could be had"));
    }
    if !result.one_more_refused {
        wrong.push("one byte more was not refused as out of memory".to_owned());
    }
    if !result.comes_back {
        wrong.push("freed memory did not come back".to_owned());
    }
    if wrong.is_empty() {
        return Ok(Check::ok("quota", format!("{QUOTA} held to the byte")));
    }
    Ok(Check::failed("quota", wrong.join("; "), "do not rely on --mem here; report the driver's version"))
}

/// Two clients of the service: do their kernels run at the same time?
fn concurrency(sandbox: &mut Sandbox<'_>) -> Result<Check, Error> {
    const NAME: &str = "mps concurrency";
    let go = sandbox.service()?.dirs().root().join("go");
    let request = BeatsRequest { go: go.clone(), duration_ms: 120 };
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(sandbox.client_job(jobs::BEATS, &request)?.limit(JOB_LIMIT).start()?);
    }
    for client in &mut clients {
        if let Err(error) = client.wait_for(jobs::READY) {
            return failed_job(NAME, error, "");
        }
    }
    std::fs::write(&go, "").map_err(Error::io(go.display().to_string()))?;
    let mut beats: Vec<Beats> = Vec::new();
    for client in clients {
        match client.finish() {
            Ok(found) => beats.push(found),
            Err(error) => return failed_job(NAME, error, ""),
        }
    }
    let shares = shares(&beats[0], &beats[1]);
    let by_chance = shares.one * shares.other;
    let percent = |share: f64| (share * 100.0).round();
    let found = format!(
        "one client ran for {} % of the time, the other for {} %, both together for {} %",
        percent(shares.one),
        percent(shares.other),
        percent(shares.both)
    );
    if by_chance < 0.01 {
        return Ok(Check::not_checked(
            NAME,
            found,
            "too little ran to tell; try again on a less busy machine",
        ));
    }
    if shares.both >= TOGETHER_MIN * by_chance {
        return Ok(Check::ok(NAME, found));
    }
    Ok(Check::failed(
        NAME,
        found,
        "see the service's log; on a GPU before Volta clients take turns and this is expected",
    ))
}

/// Parts of the time in which both clients were at it.
#[derive(Debug, PartialEq)]
struct Shares {
    one: f64,
    other: f64,
    both: f64,
}

fn shares(one: &Beats, other: &Beats) -> Shares {
    let ends = |beats: &Beats| Some((beats.first()?.0, beats.last()?.1));
    let (Some(a), Some(b)) = (ends(one), ends(other)) else {
        return Shares { one: 0.0, other: 0.0, both: 0.0 };
    };
    let window = (a.0.max(b.0), a.1.min(b.1));
    let common = |a: (u64, u64), b: (u64, u64)| a.1.min(b.1).saturating_sub(a.0.max(b.0));
    let busy = |beats: &Beats| beats.iter().map(|&beat| common(beat, window)).sum::<u64>();
    let mut both = 0;
    let (mut i, mut j) = (0, 0);
    while let (Some(&a), Some(&b)) = (one.get(i), other.get(j)) {
        both += common(a, b);
        if a.1 < b.1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    let part = |ns: u64| ns as f64 / window.1.saturating_sub(window.0).max(1) as f64;
    Shares { one: part(busy(one)), other: part(busy(other)), both: part(both) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_together_is_told_from_taking_turns() {
        let beats =
            |offset: u64| (0..10u64).map(|n| (offset + n * 100, offset + n * 100 + 50)).collect::<Beats>();
        let both = |one: &Beats, other: &Beats| (shares(one, other).both * 100.0).round();
        assert_eq!(both(&beats(0), &beats(0)), 53.0);
        assert_eq!(both(&beats(0), &beats(50)), 0.0);
        assert_eq!(shares(&vec![(0, 1000)], &vec![(0, 1000)]), Shares { one: 1.0, other: 1.0, both: 1.0 });
        // Only the time in which both were at it counts.
        let late = shares(&vec![(0, 1000)], &vec![(900, 2000)]);
        assert_eq!(late, Shares { one: 1.0, other: 1.0, both: 1.0 });
        assert_eq!(shares(&Vec::new(), &beats(0)), Shares { one: 0.0, other: 0.0, both: 0.0 });
    }

    #[test]
    fn trial_sets_are_within_the_device() {
        for tpcs in [1, 2, 9, 54, 66, 256] {
            for set in trial_sets(tpcs) {
                assert!(!set.is_empty() && set.iter().all(|tpc| u32::from(tpc) < tpcs), "{tpcs}: {set}");
            }
        }
    }
}
