//! Audits in a loop: beginnings and ends are stored as events, and logged.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Shared;
use crate::audit::Finding;
use crate::audit::change::{Outcome, changes};
use crate::audit::ending::Asked;
use crate::audit::look::look;
use crate::problem::{Problem, one_line};
use crate::site::SitePolicy;
use crate::store::events::{self, Event};
use crate::store::now_unix_ms;

/// The longest time to the next audit after one with a suspect: by then, a process that was running
/// `execve` has released its GPU resources.
const AGAIN: Duration = Duration::from_secs(2);

/// Audits until the daemon ends; not at all if it is off. The first audit is at once: it finds what
/// ended while there was no daemon.
pub async fn audit(app: Shared) {
    let Some(every) = app.audit_every() else { return };
    let mut ended = app.ended();
    let (mut suspected, mut asked) = (Vec::new(), Asked::default());
    loop {
        match once(&app, &mut ended, &suspected, &mut asked).await {
            Ok(Some(now)) => suspected = now,
            Ok(None) => return,
            Err(problem) => {
                tracing::warn!(
                    detail = problem.detail,
                    "the result of an audit was not stored; it is tried again"
                );
            }
        }
        let pause = if suspected.is_empty() { every } else { every.min(AGAIN) };
        tokio::select! {
            _ = ended.wait_for(|&ended| ended) => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Audits once, and returns the suspects after it; `None` if the daemon ends meanwhile.
async fn once(
    app: &Shared,
    ended: &mut watch::Receiver<bool>,
    suspected: &[Finding],
    asked: &mut Asked,
) -> Result<Option<Vec<Finding>>, Problem> {
    let open = app.store().read(events::open).await?;
    let known: Vec<Finding> = open.iter().map(|open| &open.finding).chain(suspected).cloned().collect();
    let seen = tokio::select! {
        // A driver that hangs must not delay the end of the daemon.
        _ = ended.wait_for(|&ended| ended) => return Ok(None),
        seen = app.blocking(move |app| {
            let site = app.site().map(SitePolicy::now);
            Ok(look(app.install(), app.registry(), &known, site.as_ref()))
        }) => seen?,
    };
    let is_whole = !seen.findings.iter().any(|finding| matches!(finding, Finding::Blind { .. }));
    app.metrics.audit(is_whole);
    let Outcome { changes, suspected } = changes(&open, suspected, &seen, now_unix_ms());
    // Most audits find nothing new, and do not write to the disk.
    if !changes.is_empty() {
        for event in app.store().write(move |connection| events::record(connection, &changes)).await? {
            app.metrics.event(&event);
            log(&event);
        }
    }
    for (finding, process, signal) in asked.signals(&seen, &suspected, Instant::now()) {
        let (pid, tenant, rule) = (process.pid, finding.tenant(), finding.ends_by());
        let program = one_line(&process.program());
        match process.signal(signal) {
            Ok(()) => {
                tracing::warn!(pid, program, tenant, rule, ?signal, "ended by the policy of the site");
            }
            Err(error) => tracing::warn!(pid, program, tenant, rule, %error, "cannot be ended"),
        }
    }
    Ok(Some(suspected))
}

fn log(event: &Event) {
    tracing::warn!(
        event = event.id,
        kind = event.kind.word(),
        change = event.change.word(),
        tenant = event.tenant,
        gpu = event.gpu,
        pid = event.pid,
        user = event.user,
        "{}",
        // One line of the log, even if a tenant's GPU name contains line breaks.
        one_line(&event.detail)
    );
}
