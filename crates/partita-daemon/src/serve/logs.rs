//! The log on stderr, limited in lines.
//!
//! Clients can cause many lines. So each place in this program that writes lines has a separate
//! budget: a flood of one kind suppresses only lines of that kind, and the log says how many.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{self, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::LogFormat;

/// Lines of one kind in a burst.
const LINES_AT_ONCE: f64 = 200.0;
/// Lines of one kind per second after that.
const LINES_PER_S: f64 = 20.0;
/// The interval of reports of suppressed lines.
const TELL: Duration = Duration::from_secs(5);

/// Suppressed lines that are not reported yet.
#[derive(Debug, Clone, Default)]
pub(super) struct LeftOut(Arc<Mutex<HashMap<Identifier, Budget>>>);

/// Lines that one place in the program may still write.
#[derive(Debug)]
struct Budget {
    lines: f64,
    at: Instant,
    left_out: u64,
    level: Level,
    target: &'static str,
}

impl LeftOut {
    /// Takes a line of this place into account; false if it is to be left out.
    fn admit(&self, place: &Metadata<'static>, now: Instant) -> bool {
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let budget = budgets.entry(place.callsite()).or_insert_with(|| Budget {
            lines: LINES_AT_ONCE,
            at: now,
            left_out: 0,
            level: *place.level(),
            target: place.target(),
        });
        let earned = now.saturating_duration_since(budget.at).as_secs_f64() * LINES_PER_S;
        budget.lines = (budget.lines + earned).min(LINES_AT_ONCE);
        budget.at = now;
        if budget.lines < 1.0 {
            budget.left_out += 1;
            return false;
        }
        budget.lines -= 1.0;
        true
    }

    /// Says how many lines were left out since the last time.
    pub fn tell(&self) {
        let mut told = Vec::new();
        for budget in self.0.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
            if budget.left_out > 0 {
                told.push((std::mem::take(&mut budget.left_out), budget.level, budget.target));
            }
        }
        // Without the lock: each of these is a line as well.
        for (lines, level, target) in told {
            tracing::warn!(lines, %level, of = target, "lines were left out of the log: there were too many");
        }
    }

    /// Says it again and again.
    pub async fn keep_telling(self) {
        let mut ticks = tokio::time::interval(TELL);
        loop {
            ticks.tick().await;
            self.tell();
        }
    }
}

impl<S: Subscriber> Layer<S> for LeftOut {
    fn event_enabled(&self, event: &Event<'_>, _context: layer::Context<'_, S>) -> bool {
        self.admit(event.metadata(), Instant::now())
    }
}

/// Starts the log.
pub(super) fn start(filter: &str, format: LogFormat) -> anyhow::Result<LeftOut> {
    let filter: Targets = filter.parse().map_err(|_| {
        anyhow::anyhow!(
            "--log {filter}: it is not understood; levels are error, warn, info, debug and trace: write \
             info, or info,partita_daemon=debug"
        )
    })?;
    let left_out = LeftOut::default();
    let log = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal());
            log.with(lines).with(left_out.clone()).try_init()
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false);
            log.with(lines).with(left_out.clone()).try_init()
        }
    };
    started.map_err(|error| anyhow::anyhow!("the log: {error}"))?;
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts the lines that pass.
    #[derive(Clone, Default)]
    struct Lines(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Lines {
        fn on_event(&self, _event: &Event<'_>, _context: layer::Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_flood_of_one_kind_is_cut_and_counted_and_other_lines_come_through() {
        let (left_out, lines) = (LeftOut::default(), Lines::default());
        let log = tracing_subscriber::registry().with(lines.clone()).with(left_out.clone());
        let count = || lines.0.load(Ordering::Relaxed);
        tracing::subscriber::with_default(log, || {
            (0..10_000).for_each(|at| tracing::warn!(at, "a flood"));
            // Time passes, however slow the machine is: some more lines are earned.
            assert!((200..5000).contains(&count()), "{}", count());
            let before = count();
            tracing::info!("another kind");
            assert_eq!(count(), before + 1);
            let told: u64 = left_out.0.lock().unwrap().values().map(|budget| budget.left_out).sum();
            assert_eq!(told, 10_000 + 1 - count() as u64);
            left_out.tell();
            left_out.tell();
            assert_eq!(count(), before + 2, "one line says it, once");
        });
    }
}
