//! Before a job: records and then starts its service or its tenant.

use partita_host::install::Install;
use partita_host::registry::Registry;

use super::account::Account;
use super::as_user::{Action, Order, Outcome, ask};
use super::deadline::Deadline;
use super::environment::JobEnvironment;
use super::epilog;
use super::job::Job;
use super::now::{boot, now_unix_s};
use super::options::Options;
use super::plan::{Blame, Fate, Group, Stage, fate};
use super::record::{Phase, Record, Store, StoreError, VERSION};
use super::report::{Report, Step};
use super::request::Request;
use super::trouble::Trouble;

/// The part of the timeout that is reserved for undoing a failed prolog.
const UNDO_PART: u32 = 3;

/// Does what the job requests. A second call for the same job has no further effect.
pub fn prolog(install: &Install, options: &Options, job: &Job) -> Report {
    Report::of(Stage::Prolog, options, job, |deadline, report| {
        try_prolog(install, options, job, deadline, report)
    })
}

fn try_prolog(
    install: &Install,
    options: &Options,
    job: &Job,
    deadline: Deadline,
    report: &mut Report,
) -> Result<(), Trouble> {
    let asked = match &job.request {
        Ok(None) if job.gpus.is_empty() => Ok(Request::Off),
        Ok(asked) => Ok(asked.unwrap_or(options.default)),
        Err(error) => Err(error.to_string()),
    };
    let (request, refusal) = match asked {
        Ok(Request::Off) => {
            report.step(Step::NothingAsked);
            return Ok(());
        }
        Ok(request) if job.gpus.is_empty() => (
            request,
            Some(format!(
                "the job asks for partita:{request} and has no GPU on this node; ask for one as well \
                 (Slurm: --gres=gpu:1 or --gres=mps:50; PBS: -l nodes=1:gpus=1), or let the \
                 node's script name it by --gpu"
            )),
        ),
        Ok(request) => (request, None),
        Err(reason) => (Request::Service, Some(reason)),
    };
    report.request = refusal.is_none().then(|| request.to_string());
    let account = Account::of(&job.owner)?;
    if options.dry_run {
        return dry_run(install, &account, job, &request, refusal, deadline, report);
    }
    let store = Store::create(&options.dir)?;
    let _job = store.lock_job(&job.id, deadline)?;
    // The jobs' users share a run directory of root: if the first user made it, others could not
    // use it.
    let registry = Registry::open().map_err(Trouble::node)?;
    let record = Record {
        version: VERSION,
        job: job.id.clone(),
        group: Group::new(account.user, &job.gpus),
        user_group: account.group,
        request,
        run_dir: Some(registry.root().to_owned()),
        is_system: registry.is_system(),
        boot: boot()?,
        phase: Phase::Starting,
        written_unix_s: now_unix_s(),
    };
    let was_ready = make_way(install, options, &store, &record, deadline, report)?;
    if let Some(reason) = refusal {
        return refuse(&store, record, Trouble::job(reason), report);
    }
    let group = store.lock_group(&record.group, deadline)?;
    if !was_ready {
        store.write(&record)?;
    }
    let outcome = start(install, &store, &account, &record, job, deadline).and_then(|outcome| {
        store.write_environment(&job.id, &outcome.environment)?;
        store.write(&Record { phase: Phase::Ready, ..record.clone() })?;
        Ok(outcome)
    });
    let outcome = match outcome {
        Ok(outcome) => outcome,
        // The job runs: its epilog will undo this.
        Err(trouble) if was_ready => return Err(trouble),
        Err(trouble) => {
            // As if the job had ended at once; the epilog has the record and undoes the rest.
            let undone = epilog::clean(install, options, &store, &account, &record, deadline, report);
            drop(group);
            if trouble.blame == Blame::Job && undone {
                return refuse(&store, record, trouble, report);
            }
            if undone {
                store.remove(&job.id)?;
            }
            return Err(trouble);
        }
    };
    for notice in &outcome.notices {
        report.notice(notice);
    }
    if request.needs_service() {
        report.step(Step::ServiceUp { daemon: outcome.daemon, started: outcome.started });
    }
    if let Request::Tenant(_) = request {
        report.step(Step::TenantUp { tenant: job.id.tenant_name() });
    }
    Ok(())
}

fn start(
    install: &Install,
    store: &Store,
    account: &Account,
    record: &Record,
    job: &Job,
    deadline: Deadline,
) -> Result<Outcome, Trouble> {
    let (records, damaged) = epilog::others(store, None)?;
    let alone = !matches!(fate(record, &records, &record.boot, damaged), Fate::Keep { .. });
    let mut gpus = job.gpus.clone();
    let mut seen = Vec::new();
    gpus.retain(|gpu| {
        !seen.contains(gpu) && {
            seen.push(gpu.clone());
            true
        }
    });
    let left = deadline.left();
    let deadline = deadline.at_most(left - left / UNDO_PART);
    let registry = record.registry().map_err(Trouble::node)?;
    let tenant = record.job.tenant_name();
    let ask =
        |action| ask(install, &registry, account, &record.job, Order::new(gpus.clone(), action), deadline);
    let is_started = match record.request {
        Request::Service if record.is_system => ask(Action::Serve)?.started,
        _ => false,
    };
    let request = record.request;
    match (ask(Action::Start { tenant: tenant.clone(), request, alone }), request) {
        // The user sees a part of the machine, and cannot tell why there is no room.
        (Err(trouble), Request::Tenant(wanted)) if record.is_system => {
            let found = ask(Action::Check { tenant, wanted: Some(wanted) }).err();
            Err(found.filter(|found| found.blame == Blame::Job).unwrap_or(trouble))
        }
        (outcome, _) => outcome.map(|outcome| Outcome { started: outcome.started || is_started, ..outcome }),
    }
}

/// Handles an existing record of this job: of an earlier boot, of an earlier run of a job that was
/// queued again (whose epilog never came), or of this very run. Returns whether this very run is
/// ready, because its prolog was called before.
///
/// # Errors
/// Why the record cannot be removed.
fn make_way(
    install: &Install,
    options: &Options,
    store: &Store,
    record: &Record,
    deadline: Deadline,
    report: &mut Report,
) -> Result<bool, Trouble> {
    let old = match store.record(&record.job) {
        Ok(None) => return Ok(false),
        Ok(Some(old)) => old,
        Err(StoreError::Damaged { path, reason }) => {
            let aside = store.set_aside(&record.job)?;
            report.notice(format!(
                "the job record {}: {reason}; it is {} now",
                path.display(),
                aside.display()
            ));
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    };
    let described = |record: &Record| (record.group.clone(), record.request, record.run_dir.clone());
    let same = described(&old) == described(record);
    if old.boot == record.boot && !same && !matches!(old.phase, Phase::Refused { .. }) {
        let _group = store.lock_group(&old.group, deadline)?;
        let account = Account::of_record(&old)?;
        if !epilog::clean(
            install,
            options,
            store,
            &account,
            &old,
            deadline.at_most(deadline.left() / 2),
            report,
        ) {
            return Err(Trouble::node(format!(
                "what an earlier run of job {} left cannot be undone; see above",
                old.job
            )));
        }
    }
    if old.boot != record.boot || !same {
        store.remove(&old.job)?;
        return Ok(false);
    }
    Ok(old.phase == Phase::Ready)
}

/// The job cannot get what it requests; its owner will see the reason.
fn refuse(store: &Store, mut record: Record, trouble: Trouble, report: &mut Report) -> Result<(), Trouble> {
    let environment = JobEnvironment { refused: Some(trouble.reason.clone()), ..JobEnvironment::default() };
    record.phase = Phase::Refused { reason: trouble.reason.clone() };
    store.write(&record)?;
    store.write_environment(&record.job, &environment)?;
    report.step(Step::JobRefused);
    Err(trouble)
}

fn dry_run(
    install: &Install,
    account: &Account,
    job: &Job,
    request: &Request,
    refusal: Option<String>,
    deadline: Deadline,
    report: &mut Report,
) -> Result<(), Trouble> {
    let wanted = match request {
        Request::Tenant(wanted) => Some(*wanted),
        Request::Service | Request::Off => None,
    };
    let would = match refusal {
        Some(reason) => Err(Trouble::job(reason)),
        None => {
            let registry = Registry::open().map_err(Trouble::node)?;
            let check = Action::Check { tenant: job.id.tenant_name(), wanted };
            let gpus = Group::new(account.user, &job.gpus).gpus;
            ask(install, &registry, account, &job.id, Order::new(gpus, check), deadline)
        }
    };
    if let Err(trouble) = would {
        if trouble.blame == Blame::Job {
            report.step(Step::JobRefused);
        }
        return Err(trouble);
    }
    if request.needs_service() {
        report.step(Step::ServiceUp { daemon: None, started: false });
    }
    if let Request::Tenant(_) = request {
        report.step(Step::TenantUp { tenant: job.id.tenant_name() });
    }
    Ok(())
}
