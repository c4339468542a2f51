//! Looking for processes that no limit holds, again and again: what begins and ends is kept as an
//! event, and logged.

use std::time::Duration;

use tokio::sync::watch;

use super::Shared;
use crate::audit::Finding;
use crate::audit::change::{Outcome, changes};
use crate::audit::look::look;
use crate::problem::{Problem, one_line};
use crate::store::events::{self, Event};
use crate::store::now_unix_ms;

/// How long after a look that suspects somebody the next one is, at most: a process that becomes
/// another program has given back by then what it had on the GPU.
const AGAIN: Duration = Duration::from_secs(2);

/// Looks until the daemon ends; not at all if it was told so. The first look is at once: it finds
/// what ended while there was no daemon.
pub async fn audit(app: Shared) {
    let Some(every) = app.audit_every() else { return };
    let mut ended = app.ended();
    let mut suspected = Vec::new();
    loop {
        match once(&app, &mut ended, &suspected).await {
            Ok(Some(now)) => suspected = now,
            Ok(None) => return,
            Err(problem) => {
                tracing::warn!(
                    detail = problem.detail,
                    "what an audit found was not kept; it is tried again"
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

/// Looks once, and returns what is suspected after it; none if the daemon ends meanwhile.
async fn once(
    app: &Shared,
    ended: &mut watch::Receiver<bool>,
    suspected: &[Finding],
) -> Result<Option<Vec<Finding>>, Problem> {
    let open = app.store().read(events::open).await?;
    let known: Vec<Finding> = open.iter().map(|open| &open.finding).chain(suspected).cloned().collect();
    let seen = tokio::select! {
        // A driver that hangs must not hold the end up: nobody waits for its answer then.
        _ = ended.wait_for(|&ended| ended) => return Ok(None),
        seen = app.blocking(move |app| Ok(look(app.install(), app.registry(), &known))) => seen?,
    };
    let is_whole = !seen.findings.iter().any(|finding| matches!(finding, Finding::Blind { .. }));
    app.metrics.audit(is_whole);
    let Outcome { changes, suspected } = changes(&open, suspected, &seen, now_unix_ms());
    // Nothing is new for most looks, and the disk is left alone.
    if !changes.is_empty() {
        for event in app.store().write(move |connection| events::record(connection, &changes)).await? {
            app.metrics.event(&event);
            log(&event);
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
        // One line of the log, whatever a tenant says that its GPU is called.
        one_line(&event.detail)
    );
}
