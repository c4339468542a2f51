//! Which processes are ended now by the policy of the site, and how.
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
    pub fn signals<'a>(
        &mut self,
        look: &'a Look,
        suspected: &[Finding],
        now: Instant,
    ) -> Vec<(&'a Finding, ProcessId, Signal)> {
        let ends = |finding: &'a Finding| {
            let process = finding.process().filter(|process| !look.gone.contains(process))?;
            let is_seen_twice = suspected.iter().all(|other| other.key() != finding.key());
            (finding.ends_by().is_some() && is_seen_twice).then_some((process, finding))
        };
        // One that uses several GPUs has a finding for each.
        let present: BTreeMap<ProcessId, &Finding> = look.findings.iter().filter_map(ends).collect();
        self.0.retain(|process, _| present.contains_key(process));
        let mut signals = Vec::new();
        for (process, finding) in present {
            let asked = *self.0.entry(process).or_insert_with(|| {
                signals.push((finding, process, Signal::TERM));
                now
            });
            if now.saturating_duration_since(asked) >= GRACE {
                signals.push((finding, process, Signal::KILL));
            }
        }
        signals
    }
}

#[cfg(test)]
mod tests {
    use partita::audit::Escape;
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

    fn escaped(pid: u32, is_ended: bool) -> Finding {
        let Finding::Outsider { gpu, process, user, .. } = outsider(pid, is_ended) else { panic!() };
        let escape = Escape { tenant: "serve".to_owned(), gpu, process };
        Finding::Escape { escape, user, driver_bytes: None, is_ended }
    }

    fn signals(asked: &mut Asked, look: &Look, suspected: &[Finding], now: Instant) -> Vec<(u32, Signal)> {
        let signals = asked.signals(look, suspected, now);
        signals.into_iter().map(|(_, process, signal)| (process.pid, signal)).collect()
    }

    fn look(findings: &[Finding]) -> Look {
        Look { findings: findings.to_vec(), ..Look::default() }
    }

    #[test]
    fn a_process_is_asked_once_and_killed_after_the_grace() {
        for of in [outsider, escaped] {
            let (mut asked, begin) = (Asked::default(), Instant::now());
            let seen = look(&[of(1, true), of(2, false)]);
            assert_eq!(signals(&mut asked, &seen, &[of(1, true)], begin), [], "a first sighting");
            assert_eq!(signals(&mut asked, &seen, &[], begin), [(1, Signal::TERM)]);
            let soon = begin + GRACE - Duration::from_millis(1);
            assert_eq!(signals(&mut asked, &seen, &[], soon), []);
            assert_eq!(signals(&mut asked, &seen, &[], begin + GRACE), [(1, Signal::KILL)]);
        }
    }

    #[test]
    fn one_that_leaves_or_is_exempt_later_is_forgotten() {
        let (mut asked, begin) = (Asked::default(), Instant::now());
        signals(&mut asked, &look(&[outsider(1, true)]), &[], begin);
        assert_eq!(signals(&mut asked, &look(&[outsider(1, false)]), &[], begin + GRACE), []);
        let later = begin + 2 * GRACE;
        assert_eq!(signals(&mut asked, &look(&[outsider(1, true)]), &[], later), [(1, Signal::TERM)]);
        let mut gone = look(&[outsider(1, true)]);
        gone.gone.insert(ProcessId { pid: 1, start_ticks: 7 });
        assert_eq!(signals(&mut asked, &gone, &[], later + GRACE), []);
    }
}
