//! After a job: undoes exactly what its prolog did.

use std::collections::BTreeSet;
use std::time::Duration;

use partita_host::install::{self, Install};
use partita_host::limits::LimitSet;
use partita_host::process::ProcessId;
use partita_host::registry::Registry;

use super::account::Account;
use super::as_user::{Action, Order, ask};
use super::deadline::Deadline;
use super::job::{Job, JobId};
use super::leftovers;
use super::now::{boot, now_unix_s};
use super::options::Options;
use super::plan::{Fate, Group, Stage, fate};
use super::record::{Phase, Record, Store, StoreError, VERSION};
use super::report::{Report, Step};
use super::request::Request;
use super::trouble::Trouble;

/// The timeout for ending a job's work through MPS, beside its tenant's grace: a service that does
/// not answer must not keep the job's processes alive.
const LEAVE_LIMIT: Duration = Duration::from_secs(15);

/// Undoes what the prolog did for the job. A second call, or one without a prolog, is not an error.
pub fn epilog(install: &Install, options: &Options, job: &Job) -> Report {
    Report::of(Stage::Epilog, options, job, |deadline, report| {
        try_epilog(install, options, job, deadline, report)
    })
}

fn try_epilog(
    install: &Install,
    options: &Options,
    job: &Job,
    deadline: Deadline,
    report: &mut Report,
) -> Result<(), Trouble> {
    let store = Store::named(&options.dir);
    if !store.exists() {
        report.step(Step::NothingToUndo { reason: "no prolog has ever run here".to_owned() });
        return Ok(());
    }
    let boot = boot()?;
    if options.dry_run {
        return dry_run(&store, job, &boot, report);
    }
    let store = Store::create(&options.dir)?;
    let _job = store.lock_job(&job.id, deadline)?;
    let record = match store.record(&job.id) {
        Ok(None) => {
            store.remove(&job.id)?;
            report.step(Step::NothingToUndo { reason: "its prolog did nothing".to_owned() });
            return Ok(());
        }
        Ok(Some(record)) => record,
        Err(StoreError::Damaged { path, reason }) => {
            let aside = store.set_aside(&job.id)?;
            report.notice(format!(
                "the job record {}: {reason}; it is {} now, and the job is cleaned up as the batch \
                 system describes it",
                path.display(),
                aside.display()
            ));
            described(job, &boot)?
        }
        Err(error) => return Err(error.into()),
    };
    if record.boot != boot {
        store.remove(&job.id)?;
        report.step(Step::NothingToUndo { reason: "the node has restarted since its prolog".to_owned() });
        return Ok(());
    }
    report.request = Some(record.request.to_string());
    let account = Account::of_record(&record)?;
    let _group = store.lock_group(&record.group, deadline)?;
    if clean(install, options, &store, &account, &record, deadline, report) {
        store.remove(&job.id)?;
    }
    Ok(())
}

/// A record as the prolog would have begun it, from the batch system's current description.
fn described(job: &Job, boot: &str) -> Result<Record, Trouble> {
    let account = Account::of(&job.owner)?;
    let registry = Registry::open().map_err(Trouble::node)?;
    Ok(Record {
        version: VERSION,
        job: job.id.clone(),
        group: Group::new(account.user, &job.gpus),
        user_group: account.group,
        request: job.request.clone().ok().flatten().unwrap_or(Request::tenant(LimitSet::default())),
        run_dir: Some(registry.root().to_owned()),
        is_system: registry.is_system(),
        boot: boot.to_owned(),
        phase: Phase::Starting,
        written_unix_s: now_unix_s(),
    })
}

/// The readable records except one job's, and the number of unreadable ones.
pub(super) fn others(store: &Store, without: Option<&JobId>) -> Result<(Vec<Record>, usize), StoreError> {
    let (records, damaged): (Vec<_>, Vec<_>) = store.records()?.into_iter().partition(Result::is_ok);
    let records = records.into_iter().flatten().filter(|record| Some(&record.job) != without).collect();
    Ok((records, damaged.len()))
}

/// Undoes what a record describes, as far as it exists. Returns whether nothing is left; the report
/// lists the rest as the node's trouble. The caller holds the locks of the job and of its group.
pub(super) fn clean(
    install: &Install,
    options: &Options,
    store: &Store,
    account: &Account,
    record: &Record,
    deadline: Deadline,
    report: &mut Report,
) -> bool {
    let before = report.problems.len();
    let fate = match others(store, Some(&record.job)) {
        Ok((records, damaged)) => fate(record, &records, &record.boot, damaged),
        Err(error) => {
            report.trouble(error.into());
            return false;
        }
    };
    if matches!(record.phase, Phase::Refused { .. }) {
        report.step(Step::NothingToUndo { reason: "the job was refused".to_owned() });
        return true;
    }
    let registry = match record.registry() {
        Ok(registry) => registry,
        Err(error) => {
            report.trouble(Trouble::node(error));
            return false;
        }
    };
    let cleaning = Cleaning { install, options, registry, account, record, deadline };
    let alone = fate == Fate::Stop;
    let tenant_left = cleaning.end_processes(alone, report);
    match fate {
        Fate::None => {}
        Fate::Machine => report.step(Step::ServiceOfMachine),
        Fate::Keep { jobs } => report.step(Step::ServiceKept { jobs }),
        Fate::Stop => cleaning.stop_service(report),
    }
    if let Err(trouble) = tenant_left {
        cleaning.retry_tenant(trouble, alone, report);
    }
    report.problems[before..].iter().all(|problem| problem.blame.is_none())
}

struct Cleaning<'a> {
    install: &'a Install,
    options: &'a Options,
    registry: Registry,
    account: &'a Account,
    record: &'a Record,
    deadline: Deadline,
}

impl Cleaning<'_> {
    fn ask(&self, action: Action, deadline: Deadline) -> Result<super::as_user::Outcome, Trouble> {
        let order = Order::new(self.record.group.gpus.clone(), action);
        ask(self.install, &self.registry, self.account, &self.record.job, order, deadline)
    }

    /// Ends the job's work on the GPUs, its tenant, and its processes. The report lists processes
    /// that remain.
    ///
    /// # Errors
    /// Why the tenant may still exist.
    fn end_processes(&self, alone: bool, report: &mut Report) -> Result<(), Trouble> {
        let job = &self.record.job;
        let board = self.install.part(install::SIMGPU).ok();
        let find = || leftovers::find(job, self.account.user, board.as_deref());
        let first = find();
        let tenant = self.tenant();
        let has_tenant = tenant.is_some();
        let tenant_left = match self.leave(tenant, &first, alone, true, report) {
            // Signals will end what MPS could not.
            Err(trouble) if !has_tenant => {
                report.notice(trouble.reason);
                Ok(())
            }
            left => left,
        };
        let mut late = Vec::new();
        let ended = leftovers::end(
            find,
            |new| {
                let fresh: BTreeSet<ProcessId> = new.difference(&first).copied().collect();
                if !fresh.is_empty()
                    && let Err(trouble) = self.leave(None, &fresh, false, false, report)
                {
                    late.push(trouble.reason);
                }
            },
            self.options.grace,
            self.deadline,
        );
        late.into_iter().for_each(|reason| report.notice(reason));
        if ended.processes > 0 {
            report.step(Step::ProcessesEnded { processes: ended.processes });
        }
        if let Some(process) = ended.left.first() {
            report.trouble(Trouble::node(format!(
                "{} processes of job {job} do not die, the first is {}: it waits in the kernel, see \
                 `cat /proc/{}/stack`; the GPU is free only when it ends or the node restarts",
                ended.left.len(),
                process.pid,
                process.pid
            )));
        }
        tenant_left
    }

    fn tenant(&self) -> Option<String> {
        matches!(self.record.request, Request::Tenant(_)).then(|| self.record.job.tenant_name())
    }

    /// Tries again to end the tenant, which may be easier without a service that does not answer.
    fn retry_tenant(&self, trouble: Trouble, alone: bool, report: &mut Report) {
        report.notice(trouble.reason);
        if let Err(trouble) = self.leave(self.tenant(), &BTreeSet::new(), alone, true, report) {
            report.trouble(Trouble::node(trouble.reason));
        }
    }

    fn leave(
        &self,
        tenant: Option<String>,
        processes: &BTreeSet<ProcessId>,
        alone: bool,
        over: bool,
        report: &mut Report,
    ) -> Result<(), Trouble> {
        let service = self.record.request.needs_service();
        if tenant.is_none() && !service {
            return Ok(());
        }
        let action = Action::Leave {
            tenant: tenant.clone(),
            service,
            pids: processes.iter().map(|process| process.pid).collect(),
            alone,
            over,
            grace_ms: self.options.grace.as_millis() as u64,
        };
        // Half of the remaining time is for signals and for stopping the service.
        let deadline =
            self.deadline.at_most((LEAVE_LIMIT + self.options.grace).min(self.deadline.left() / 2));
        let outcome = self.ask(action, deadline)?;
        if !outcome.terminated.is_empty() {
            report.step(Step::ClientsTerminated { pids: outcome.terminated, zombies: outcome.zombies });
        }
        if let (Some(tenant), Some(processes)) = (tenant, outcome.tenant_processes) {
            report.step(Step::TenantEnded { tenant, processes });
        }
        outcome.notices.into_iter().for_each(|notice| report.notice(notice));
        Ok(())
    }

    fn stop_service(&self, report: &mut Report) {
        match self.ask(Action::Stop, self.deadline) {
            Ok(outcome) => report.step(Step::ServiceStopped { ran: outcome.ran }),
            Err(trouble) => report.trouble(Trouble::node(trouble.reason)),
        }
    }
}

fn dry_run(store: &Store, job: &Job, boot: &str, report: &mut Report) -> Result<(), Trouble> {
    let Some(record) = store.record(&job.id)?.filter(|record| record.boot == boot) else {
        report.step(Step::NothingToUndo { reason: "its prolog did nothing in this boot".to_owned() });
        return Ok(());
    };
    report.request = Some(record.request.to_string());
    let (records, damaged) = others(store, Some(&job.id))?;
    if matches!(record.phase, Phase::Refused { .. }) {
        report.step(Step::NothingToUndo { reason: "the job was refused".to_owned() });
        return Ok(());
    }
    if let Request::Tenant(_) = record.request {
        report.step(Step::TenantEnded { tenant: job.id.tenant_name(), processes: 0 });
    }
    match fate(&record, &records, boot, damaged) {
        Fate::None => {}
        Fate::Machine => report.step(Step::ServiceOfMachine),
        Fate::Keep { jobs } => report.step(Step::ServiceKept { jobs }),
        Fate::Stop => report.step(Step::ServiceStopped { ran: true }),
    }
    Ok(())
}
