//! Decisions for targets in a loop: what the controllers write down is stored as events, and
//! logged.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Shared;
use crate::problem::{Problem, one_line};
use crate::store::events;
use crate::targets::{Whose, news};

/// How often it looks: a controller keeps the last 64 decisions on a tenant, and makes ten in a
/// second at most.
const LOOK: Duration = Duration::from_secs(2);

/// Stores decisions until the daemon ends. In user mode each `partita run` decides, in system mode
/// this daemon itself; both write the same file.
pub async fn decisions(app: Shared) {
    let mut ended = app.ended();
    let mut told: Option<BTreeMap<Whose, i64>> = None;
    loop {
        if let Err(problem) = once(&app, &mut told).await {
            tracing::warn!(
                detail = problem.detail,
                "decisions for targets were not stored; it is tried again"
            );
        }
        tokio::select! {
            _ = ended.wait_for(|&ended| ended) => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

async fn once(app: &Shared, told: &mut Option<BTreeMap<Whose, i64>>) -> Result<(), Problem> {
    let told = match told {
        Some(told) => told,
        // What an earlier daemon has stored.
        None => told.insert(app.store().read(events::decided).await?),
    };
    let all = app.blocking(|app| Ok(partita::slo::decided(app.registry())?)).await?;
    // A later tenant of the same name has a record of its own.
    told.retain(|whose, _| all.iter().any(|decided| Whose::of(decided) == *whose));
    let last = |decided| told.get(&Whose::of(decided)).copied();
    let new: Vec<_> = all.iter().flat_map(|decided| news(decided, last(decided))).collect();
    if new.is_empty() {
        return Ok(());
    }
    let decisions = new.clone();
    let stored = app.store().write(move |connection| events::decide(connection, &decisions)).await?;
    for (event, decision) in stored.iter().zip(new) {
        app.metrics.event(event);
        let detail = one_line(&decision.detail);
        // The level of a line is known when the program is compiled.
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    event = event.id,
                    kind = "target",
                    tenant = event.tenant,
                    gpu = event.gpu,
                    "{detail}"
                )
            };
        }
        if decision.is_bad {
            log!(warn);
        } else {
            log!(info);
        }
        told.insert(decision.whose, decision.at_unix_ms);
    }
    Ok(())
}
