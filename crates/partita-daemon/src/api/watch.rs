//! Polls the running chains, stores their events, and sends them to watchers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use crate::chains::Running;
use crate::store::history;

/// The interval of polling chains.
const LOOK: Duration = Duration::from_millis(500);

/// Follows the chains until the daemon ends. Those that began before the daemon are followed from
/// where their history ends.
pub async fn follow(app: Shared) {
    let mut ended = app.ended();
    let mut newest: HashMap<String, (u64, f64)> = HashMap::new();
    loop {
        tokio::select! {
            _ = ended.wait_for(|&ended| ended) => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let looked = tokio::select! {
            // A process that holds the registry's lock must not delay the end.
            _ = ended.wait_for(|&ended| ended) => return,
            looked = app.blocking(|app| app.chains().running()) => looked,
        };
        let running = match looked {
            Ok(running) => running,
            Err(problem) => {
                tracing::warn!(detail = problem.detail, "the running chains cannot be read");
                continue;
            }
        };
        newest.retain(|name, _| running.iter().any(|chain| chain.name == *name));
        for chain in running {
            let Some(step) = chain.steps.last() else { continue };
            let mark = (chain.started_unix_s, step.at_s);
            // Most polls find nothing new, and do not write to the disk.
            if newest.get(&chain.name) != Some(&mark) {
                let name = chain.name.clone();
                if keep(&app, chain).await {
                    newest.insert(name, mark);
                }
            }
        }
    }
}

async fn keep(app: &Shared, chain: Running) -> bool {
    match app.store().write(move |connection| history::record(connection, &chain)).await {
        Ok(entries) => {
            for entry in entries {
                // There may be no subscriber.
                let _ = app.events.send(Arc::new(entry));
            }
            true
        }
        Err(problem) => {
            tracing::warn!(detail = problem.detail, "history was not stored; it is tried again");
            false
        }
    }
}
