//! One audit of the GPUs' processes and of the gates.

use partita::audit::{self, AuditRow, Escape, Unseen};
use partita::install::Install;
use partita::policy::{self, Policy, User};
use partita::process::ProcessId;
use partita::registry::Registry;

use super::{Finding, Look, user_of};

/// Audits everything, and searches for what is `known` already. Blocks for as long as the driver
/// takes to answer; what cannot be checked is a finding too. `site` is the policy that holds, with
/// the mistake of its file.
pub fn look(
    install: &Install,
    registry: &Registry,
    known: &[Finding],
    site: Option<&(Policy, Option<String>)>,
) -> Look {
    let mut look = Look::default();
    if let Some((_, Some(mistake))) = site {
        look.findings.push(Finding::Policy { reason: mistake.clone() });
    }
    let escaped: Vec<Escape> = known
        .iter()
        .filter_map(|finding| match finding {
            Finding::Escape { escape, .. } => Some(escape.clone()),
            _ => None,
        })
        .collect();
    let nothing = |error: partita::Error| Finding::Blind { gpu: None, reason: error.to_string() };
    match audit::run(install, registry, &escaped) {
        Err(error) => look.findings.push(nothing(error)),
        // Other users' tenants are not checked.
        Ok(audit::Audit { rows, unseen, outsiders, .. }) => {
            let user = |process: ProcessId| process.user().map(policy::user_of);
            let is_ended = |process, ends: fn(&Policy, &User) -> bool| {
                site.is_some_and(|(policy, _)| user(process).is_some_and(|user| ends(policy, &user)))
            };
            for row in rows {
                let is_ended = row.escaped && is_ended(row.process, |policy, user| policy.escaped.ends(user));
                look.add(row, is_ended);
            }
            look.findings.extend(outsiders.into_iter().map(|outsider| {
                let audit::Outsider { device, process, user, memory_bytes, .. } = outsider;
                let is_ended = is_ended(process, |policy, user| policy.outside.ends(user));
                Finding::Outsider { gpu: device, process, user, driver_bytes: memory_bytes, is_ended }
            }));
            for Unseen { gpus, error } in unseen {
                let reason = error.to_string();
                let blind = |gpu| Finding::Blind { gpu: Some(gpu), reason: reason.clone() };
                look.findings.extend(gpus.into_iter().map(blind));
            }
            match audit::strangers(registry) {
                Err(error) => look.findings.push(nothing(error)),
                Ok(strangers) => look.findings.extend(strangers.into_iter().map(|stranger| {
                    let audit::Stranger { gate, gpu, user, process, .. } = stranger;
                    Finding::Stranger { gate: gate.display().to_string(), gpu, process, user }
                })),
            }
        }
    }
    // Last, because a found process may have ended meanwhile.
    let processes = known.iter().chain(&look.findings).filter_map(Finding::process);
    look.gone = processes.filter(|process| process.is_ending()).collect();
    look
}

impl Look {
    fn add(&mut self, row: AuditRow, is_ended: bool) {
        let AuditRow { tenant, driver_bytes, escaped, process, device, .. } = row;
        if escaped {
            let escape = Escape { tenant, gpu: device, process };
            let user = user_of(process);
            self.findings.push(Finding::Escape { escape, user, driver_bytes, is_ended });
        } else {
            self.held.insert((device.key, process));
        }
    }
}
