//! The checks, each after those that it needs.

use std::time::Duration;

use partita_core::{ByteSize, Count, TpcSet, task_slots};
use partita_host::calibration::streams::{self, FoundBy, PlaceRequest, StreamPlace, VerifyResult};
use partita_host::calibration::{Cache, Measured};
use partita_host::error::Error;
use partita_host::gpu::{Gpu, INSTANCES_INSTEAD};
use partita_host::install::{self, Install};
use partita_host::mode;
use partita_host::registry::{DEFAULT_ROOT, Registry};
use partita_host::sandbox::Sandbox;
use partita_host::signals;
use partita_mps::{ControlBinary, MpsError};

use super::check::{Check, State, failed_job};
use super::jobs::{self, Beats, BeatsRequest, CensusResult, QuotaResult};
use super::products;

/// The quota of the quota check: larger than any granularity, small compared with any GPU.
const QUOTA: ByteSize = ByteSize(96 << 20);
/// Two independent clients run at the same time for about the product of their shares of the time.
/// Clients that take turns hardly ever do. The measured overlap must be at least this part of the
/// product.
const TOGETHER_MIN: f64 = 0.5;
const JOB_LIMIT: Duration = Duration::from_secs(60);

/// What checks need in addition to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The launch layout, calibrated, of a whole GPU.
    Layout,
    /// Tenants for trials.
    Sandbox,
    /// The MPS control program.
    MpsProgram,
    /// The sandbox's MPS service.
    MpsService,
    /// The place of stream masks.
    StreamPlace,
}

/// The results so far.
struct Findings<'a> {
    install: &'a Install,
    gpu: &'a Gpu,
    measured: Option<Measured>,
    place: Option<StreamPlace>,
    /// Made for the first check that needs it, or the reason why it cannot be made.
    sandbox: Option<Result<Sandbox<'a>, String>>,
    checks: Vec<Check>,
}

impl<'a> Findings<'a> {
    /// Why a need is not met; `None` if it is.
    fn missing(&mut self, need: Need) -> Option<String> {
        let unless = |there: bool, reason: &str| (!there).then(|| reason.to_owned());
        match need {
            Need::Layout => unless(self.measured.is_some(), "the launch layout is not proved")
                .or_else(|| unless(self.gpu.facts.mig_enabled != Some(true), "the GPU is divided by MIG")),
            Need::Sandbox => {
                if let (None, Some(measured)) = (&self.sandbox, &self.measured) {
                    let made = Sandbox::new(self.install, self.gpu, measured);
                    self.sandbox = Some(made.map_err(|error| error.to_string()));
                }
                let refused = self.sandbox.as_ref().and_then(|made| made.as_ref().err().cloned());
                self.missing(Need::Layout).or(refused)
            }
            Need::MpsProgram => unless(self.is_ok("mps program"), "there is no MPS program"),
            Need::MpsService => self
                .missing(Need::Sandbox)
                .or_else(|| self.missing(Need::MpsProgram))
                .or_else(|| unless(self.is_ok("mps service"), "the MPS service does not start")),
            Need::StreamPlace => self
                .missing(Need::Layout)
                .or_else(|| unless(self.place.is_some(), "the place of stream masks is not proved")),
        }
    }

    /// Whether the check of this name ran and succeeded.
    fn is_ok(&self, name: &str) -> bool {
        self.checks.iter().any(|check| check.name == name && check.state == State::Ok)
    }

    fn measured(&self) -> Result<&Measured, Error> {
        self.measured.as_ref().ok_or_else(|| missing("the launch layout"))
    }

    fn sandbox(&mut self) -> Result<&mut Sandbox<'a>, Error> {
        let made = self.sandbox.as_mut().and_then(|made| made.as_mut().ok());
        made.ok_or_else(|| missing("the sandbox"))
    }
}

/// The error of a check that does not declare what it needs: a mistake in the tables below.
fn missing(what: &str) -> Error {
    Error::Child { job: "doctor".to_owned(), reason: format!("{what} is missing") }
}

/// A check, and what it needs.
struct Step {
    name: &'static str,
    needs: &'static [Need],
    make: fn(&mut Findings<'_>) -> Result<Check, Error>,
}

/// The checks before the conditions of MPS, whose number depends on NVIDIA's guide.
const FIRST: [Step; 9] = [
    Step { name: "driver", needs: &[], make: |findings| Ok(driver(findings.gpu)) },
    Step {
        name: "driver exports",
        needs: &[],
        make: |findings| super::exports::check(findings.install, findings.gpu),
    },
    Step { name: "gpu", needs: &[], make: |findings| Ok(device(findings.gpu)) },
    Step { name: "mechanisms", needs: &[], make: |findings| Ok(super::mechanisms::check(findings.gpu)) },
    Step { name: "run directory", needs: &[], make: |_| run_directory() },
    Step { name: "mode", needs: &[], make: |_| mode() },
    Step {
        name: "hook",
        needs: &[],
        make: |findings| Ok(Check::ok("hook", findings.install.part(install::HOOK)?.display().to_string())),
    },
    Step {
        name: "launch layout",
        needs: &[],
        make: |findings| {
            let measured = Cache::open().renew(findings.install, findings.gpu)?;
            let check = layout(&measured);
            findings.measured = Some(measured);
            Ok(check)
        },
    },
    Step { name: "mps program", needs: &[], make: |findings| Ok(mps_program(findings.gpu)) },
];

/// The checks after them. Each comes after those that produce what it needs.
const THEN: [Step; 11] = [
    Step {
        name: "topology",
        needs: &[Need::Layout],
        make: |findings| Ok(super::topology::check(findings.gpu, findings.measured()?)),
    },
    Step {
        name: "task slots",
        needs: &[Need::Layout],
        make: |findings| Ok(task_slots(findings.measured()?)),
    },
    Step { name: "stream masks", needs: &[Need::Layout], make: stream_masks },
    Step {
        name: "masks",
        needs: &[Need::Sandbox],
        make: |findings| masks("masks", findings.sandbox()?, false),
    },
    Step { name: "quota", needs: &[Need::Sandbox], make: |findings| quota(findings.sandbox()?) },
    Step {
        name: "products (mask)",
        needs: &[Need::Sandbox],
        make: |findings| products::under_masks(findings.gpu, findings.sandbox()?),
    },
    Step {
        name: "mps service",
        needs: &[Need::Sandbox, Need::MpsProgram],
        make: |findings| mps_service(findings.sandbox()?),
    },
    Step {
        name: "mps concurrency",
        needs: &[Need::MpsService],
        make: |findings| concurrency(findings.sandbox()?),
    },
    Step {
        name: "masks under mps",
        needs: &[Need::MpsService],
        make: |findings| masks("masks under mps", findings.sandbox()?, true),
    },
    Step {
        name: "products (mps)",
        needs: &[Need::MpsService],
        make: |findings| {
            products::under_percentages(findings.install, findings.gpu, findings.sandbox()?.service()?)
        },
    },
    Step {
        name: "streams (mps)",
        needs: &[Need::MpsService, Need::StreamPlace],
        make: stream_masks_under_mps,
    },
];

pub(super) struct Examination<'a, P> {
    findings: Findings<'a>,
    progress: P,
}

impl<'a, P: FnMut(&str)> Examination<'a, P> {
    pub(super) fn new(install: &'a Install, gpu: &'a Gpu, progress: P) -> Self {
        let findings =
            Findings { install, gpu, measured: None, place: None, sandbox: None, checks: Vec::new() };
        Self { findings, progress }
    }

    /// Runs a check and stores its result.
    fn make(
        &mut self,
        name: &'static str,
        check: impl FnOnce(&mut Findings<'a>) -> Result<Check, Error>,
    ) -> Result<(), Error> {
        signals::check()?;
        (self.progress)(name);
        let check = match check(&mut self.findings) {
            Err(error @ Error::Interrupted { .. }) => return Err(error),
            Err(error) => Check::failed(name, error.to_string(), "see the reason"),
            Ok(check) => check,
        };
        self.findings.checks.push(check);
        Ok(())
    }

    /// Runs a check, unless something that it needs is missing.
    fn take(&mut self, step: &Step) -> Result<(), Error> {
        match step.needs.iter().find_map(|&need| self.findings.missing(need)) {
            Some(reason) => self.findings.checks.push(Check::not_checked(step.name, reason, "")),
            None => self.make(step.name, step.make)?,
        }
        Ok(())
    }

    pub(super) fn all(mut self) -> Result<Vec<Check>, Error> {
        FIRST.iter().try_for_each(|step| self.take(step))?;
        for check in super::conditions::checks(self.findings.install, self.findings.gpu) {
            self.make(check.name, |_| Ok(check))?;
        }
        THEN.iter().try_for_each(|step| self.take(step))?;
        Ok(self.findings.checks)
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
        return Check::failed("gpu", format!("{detail}; divided by MIG: {instances}"), remedy);
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

/// How many kernels the GPU runs at once, and what tenants get of that.
fn task_slots(measured: &Measured) -> Check {
    const NAME: &str = "task slots";
    match measured.task_slots {
        Some(slots) => Check::ok(
            NAME,
            format!(
                "{slots} kernels at once; tenants beside each other share {} of them",
                slots.saturating_sub(task_slots::RESERVE)
            ),
        ),
        None => Check::weak(
            NAME,
            "more kernels at once than were tried, so tenants have no shares of them",
            "nothing, unless a neighbour's many kernels delay a tenant's: then report the GPU",
        ),
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

/// Which mode holds, and who therefore runs beside whom.
fn mode() -> Result<Check, Error> {
    const NAME: &str = "mode";
    let registry = Registry::open()?;
    let line = mode::line(&registry);
    if !registry.is_system() {
        return Ok(Check {
            remedy: Some(
                "for users who run at the same time: install a package, or run `partitad --system` as root"
                    .to_owned(),
            ),
            ..Check::ok(NAME, line)
        });
    }
    if !mode::is_served(&registry) {
        return Ok(Check::failed(
            NAME,
            format!("{line}; but partitad does not answer, so no new tenant starts"),
            "start it with `systemctl restart partitad`, or `partitad --system` as root",
        ));
    }
    Ok(match mode::left_in_user_mode(&registry)? {
        0 => Check::ok(NAME, line),
        left => Check::weak(
            NAME,
            format!("{line}; {} of user mode runs on, which its plans do not count", Count(left, "tenant")),
            format!("end it: `PARTITA_RUN_DIR={DEFAULT_ROOT} partita ps` lists it"),
        ),
    })
}

fn layout(measured: &Measured) -> Check {
    let gpcs: std::collections::BTreeSet<u8> = measured.tpcs.iter().map(|&(gpc, _)| gpc).collect();
    let gpcs = if measured.gpcs_proved {
        format!("in {} GPCs", gpcs.len())
    } else {
        "GPCs are not proved, so kernels with clusters of blocks are limited to one TPC".to_owned()
    };
    Check::ok(
        "launch layout",
        format!(
            "QMD V{}.{}, {} TPCs of {} SMs {gpcs}; every bit of the mask tested alone",
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
    const NAME: &str = "mps program";
    const WITHOUT: &str = "without MPS, tenants can only take turns: `partita run --isolation own`";
    let binary = match binary {
        Ok(binary) => binary,
        Err(error) => return Check::failed(NAME, error.to_string(), WITHOUT),
    };
    let path = binary.path().display();
    match (binary.version(), binary.server_version()) {
        (Err(error), _) | (Ok(_), Err(error @ MpsError::BinaryNotFound { .. })) => {
            Check::failed(NAME, error.to_string(), WITHOUT)
        }
        (Ok(control), Ok(server)) if control != server => Check::failed(
            NAME,
            format!("{path} is of version {control} and its server of {server}"),
            "install both from the same driver package",
        ),
        (Ok(control), Ok(_)) => Check::ok(NAME, format!("{path} and its server, {control}")),
        // Partita depends on the control program's answer alone.
        (Ok(control), Err(error)) => {
            Check::ok(NAME, format!("{path}, {control}; its server does not give a version ({error})"))
        }
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

/// Runs a census in a tenant on several sets: the hook must place every block on an SM of the set,
/// and use all of them.
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
            // Under MPS the enabled SMs are renumbered from 0; their number still shows whether the
            // mask holds.
            continue;
        }
        let escaped: Vec<&u32> = census.sms.iter().filter(|sm| !expected.contains(sm)).collect();
        if census.sms != expected {
            return Ok(Check::failed(
                name,
                format!(
                    "with TPCs {set}, blocks ran on {} SMs, {} of them outside the set",
                    census.sms.len(),
                    escaped.len()
                ),
                "do not rely on partitions here; report the driver's version",
            ));
        }
    }
    Ok(Check::ok(name, format!("{} sets, {blocks} blocks, none on an SM outside its set", sets.len())))
}

/// Where the driver stores the masks of streams. Programs that restrict their own streams need it;
/// `partita run` does not.
fn stream_masks(findings: &mut Findings<'_>) -> Result<Check, Error> {
    const NAME: &str = "stream masks";
    let place = match Cache::open().renew_stream_place(findings.install, findings.gpu, findings.measured()?) {
        Ok(place) => place,
        Err(Error::Unproved { reason, .. }) => {
            let remedy = "programs cannot restrict single streams here, only launches and processes";
            return Ok(Check::not_checked(NAME, reason, remedy));
        }
        Err(error) => return Err(error),
    };
    findings.place = Some(place);
    let by = match place.found_by {
        FoundBy::Trace { places } => format!("found by tracing a launch, among {places} candidates"),
        FoundBy::List => "listed for this driver's version".to_owned(),
    };
    let StreamPlace { offset_bytes, sets, blocks, .. } = place;
    Ok(Check::ok(
        NAME,
        format!(
            "offset {offset_bytes:#x}, {by}; {sets} sets, {blocks} blocks, none on an SM outside its set"
        ),
    ))
}

/// The same offset in a client of the MPS service. SM numbers there are not the device's, so this
/// check counts SMs and concurrent blocks, and reads the launch descriptors.
fn stream_masks_under_mps(findings: &mut Findings<'_>) -> Result<Check, Error> {
    const NAME: &str = "streams (mps)";
    let place = findings.place.ok_or_else(|| missing("the place of stream masks"))?;
    let request = PlaceRequest { measured: findings.measured()?.clone(), offset_bytes: place.offset_bytes };
    match findings.sandbox()?.client_job(streams::VERIFY_JOB, &request)?.limit(JOB_LIMIT).run()? {
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
        wrong.push(format!("less than {QUOTA} could be allocated"));
    }
    if !result.one_more_refused {
        wrong.push("an allocation of one byte more did not fail as out of memory".to_owned());
    }
    if !result.comes_back {
        wrong.push("freed memory could not be allocated again".to_owned());
    }
    if wrong.is_empty() {
        return Ok(Check::ok("quota", format!("{QUOTA} enforced to the byte")));
    }
    Ok(Check::failed("quota", wrong.join("; "), "do not rely on --mem here; report the driver's version"))
}

fn mps_service(sandbox: &mut Sandbox<'_>) -> Result<Check, Error> {
    let percent = sandbox.service()?.control().default_active_thread_percentage()?;
    Ok(Check::ok("mps service", format!("starts and answers; clients get {percent} % of the SMs")))
}

/// Checks that kernels of two clients of the service run at the same time.
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
            Ok(findings) => beats.push(findings),
            Err(error) => return failed_job(NAME, error, ""),
        }
    }
    let shares = shares(&beats[0], &beats[1]);
    let by_chance = shares.one * shares.other;
    let percent = |share: f64| (share * 100.0).round();
    let findings = format!(
        "one client ran for {} % of the time, the other for {} %, both together for {} %",
        percent(shares.one),
        percent(shares.other),
        percent(shares.both)
    );
    if by_chance < 0.01 {
        return Ok(Check::not_checked(
            NAME,
            findings,
            "too few kernels ran for a result; try again on a less busy machine",
        ));
    }
    if shares.both >= TOGETHER_MIN * by_chance {
        return Ok(Check::ok(NAME, findings));
    }
    Ok(Check::failed(
        NAME,
        findings,
        "see the service's log; on a GPU before Volta clients take turns and this is expected",
    ))
}

/// Parts of the time in which both clients were active.
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
    use partita_host::facts::GpuFacts;

    use super::*;

    fn gpu() -> Gpu {
        let facts = GpuFacts::example();
        Gpu::of(facts, "580.1", 13000)
    }

    #[test]
    fn a_check_is_skipped_for_the_first_thing_that_is_missing() {
        let (install, gpu) = (Install::of("/nowhere/partita".into(), None), gpu());
        let mut findings = Examination::new(&install, &gpu, |_: &str| {}).findings;
        let reasons = |findings: &mut Findings<'_>| -> Vec<(&str, String)> {
            let mut reason = |step: &Step| step.needs.iter().find_map(|&need| findings.missing(need));
            THEN.iter().map(|step| (step.name, reason(step).unwrap_or_default())).collect()
        };
        let layout = "the launch layout is not proved";
        assert!(reasons(&mut findings).iter().all(|(_, reason)| reason == layout));
        findings.measured = Some(Measured {
            device_class: 90,
            qmd_version: 0x40,
            sms_per_tpc: 2,
            tpcs: vec![(0, 0)],
            gpcs_proved: true,
            evidence: Default::default(),
            memory_total_bytes: 1 << 37,
            task_slots: Some(128),
        });
        findings.sandbox = Some(Err("the disk is full".to_owned()));
        findings.checks = vec![Check::ok("mps program", "")];
        let (free, held): (Vec<_>, Vec<_>) =
            reasons(&mut findings).into_iter().partition(|(_, why)| why.is_empty());
        assert_eq!(
            free.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            ["topology", "task slots", "stream masks"]
        );
        assert!(held.len() == 8 && held.iter().all(|(_, reason)| reason == "the disk is full"), "{held:?}");
        assert_eq!(findings.missing(Need::MpsProgram), None);
        assert_eq!(
            findings.missing(Need::StreamPlace).as_deref(),
            Some("the place of stream masks is not proved")
        );
    }

    #[test]
    fn running_together_is_distinguished_from_taking_turns() {
        let beats =
            |offset: u64| (0..10u64).map(|n| (offset + n * 100, offset + n * 100 + 50)).collect::<Beats>();
        let both = |one: &Beats, other: &Beats| (shares(one, other).both * 100.0).round();
        assert_eq!(both(&beats(0), &beats(0)), 53.0);
        assert_eq!(both(&beats(0), &beats(50)), 0.0);
        assert_eq!(shares(&vec![(0, 1000)], &vec![(0, 1000)]), Shares { one: 1.0, other: 1.0, both: 1.0 });
        // Only the time in which both were active counts.
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
