//! Which processes outside of tenants are ended now, and how.
//!
//! Pure: the caller passes the time and sends the signals.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use partita::process::ProcessId;
use rustix::process::Signal;

use super::{Finding, Look};

/// How long a process may take to end by itself.
pub const GRACE: Duration = Duration::from_secs(10);

/// The processes that were asked to end, and when.
#[derive(Debug, Default)]
pub struct Asked(BTreeMap<ProcessId, Instant>);

impl Asked {
    /// The signals for what an audit has seen: SIGTERM first, and SIGKILL after [`GRACE`]. A first
    /// sighting, which is `suspected`, is left alone: it may be an exec.
    pub fn signals(&mut self, look: &Look, suspected: &[Finding], now: Instant) -> Vec<(ProcessId, Signal)> {
        let ends = |finding: &&Finding| match finding {
            Finding::Outsider { is_ended: true, process, .. } => {
                !look.gone.contains(process) && suspected.iter().all(|other| other.key() != finding.key())
            }
            _ => false,
        };
        let present: Vec<ProcessId> =
            look.findings.iter().filter(ends).filter_map(Finding::process).collect();
        self.0.retain(|process, _| present.contains(process));
        let mut signals = Vec::new();
        for process in present {
            let asked = *self.0.entry(process).or_insert_with(|| {
                signals.push((process, Signal::TERM));
                now
            });
            if now.saturating_duration_since(asked) >= GRACE {
                signals.push((process, Signal::KILL));
            }
        }
        signals
    }
}

#[cfg(test)]
mod tests {
    use partita::registry::GpuMeta;

    use super::*;

    fn outsider(pid: u32, is_ended: bool) -> Finding {
        let gpu = GpuMeta {
            key: "GPU-0".to_owned(),
            uuid: "GPU-0".to_owned(),
            index: Some(0),
            label: "GPU 0".to_owned(),
            sim: None,
        };
        let process = ProcessId { pid, start_ticks: 7 };
        Finding::Outsider { gpu, process, user: "bob".to_owned(), driver_bytes: None, is_ended }
    }

    fn look(findings: &[Finding]) -> Look {
        Look { findings: findings.to_vec(), ..Look::default() }
    }

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_ticks: 7 }
    }

    #[test]
    fn a_process_is_asked_once_and_killed_after_the_grace() {
        let (mut asked, begin) = (Asked::default(), Instant::now());
        let seen = look(&[outsider(1, true), outsider(2, false)]);
        assert_eq!(asked.signals(&seen, &[outsider(1, true)], begin), [], "a first sighting");
        assert_eq!(asked.signals(&seen, &[], begin), [(id(1), Signal::TERM)]);
        let soon = begin + GRACE - Duration::from_millis(1);
        assert_eq!(asked.signals(&seen, &[], soon), []);
        assert_eq!(asked.signals(&seen, &[], begin + GRACE), [(id(1), Signal::KILL)]);
    }

    #[test]
    fn one_that_leaves_or_is_exempt_later_is_forgotten() {
        let (mut asked, begin) = (Asked::default(), Instant::now());
        asked.signals(&look(&[outsider(1, true)]), &[], begin);
        assert_eq!(asked.signals(&look(&[outsider(1, false)]), &[], begin + GRACE), []);
        let later = begin + 2 * GRACE;
        assert_eq!(asked.signals(&look(&[outsider(1, true)]), &[], later), [(id(1), Signal::TERM)]);
        let mut gone = look(&[outsider(1, true)]);
        gone.gone.insert(id(1));
        assert_eq!(asked.signals(&gone, &[], later + GRACE), []);
    }
}
