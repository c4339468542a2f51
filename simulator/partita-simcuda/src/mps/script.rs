//! Failures on demand: the errors that a test wants from the service.
//!
//! `PARTITA_SIM_MPS_SCRIPT` names a file with a rule a line, `[N*]WHAT ACTION [TEXT]`. WHAT is a
//! command's name, `attach` (a program that requests to be a client), `server` (a server that
//! starts) or `start` (the daemon itself). With `N*` the rule applies to the first N times,
//! otherwise always. The daemon reads the file again each time, so that a test can change it.
//!
//! | action | of a command | of `attach` | of `server` | of `start` |
//! |---|---|---|---|---|
//! | `silence` | no answer | no answer | it never becomes ready | never returns |
//! | `half` | the first half of the answer, then the connection ends | | | |
//! | `death` | the daemon is gone, its files stay | the same | it ends at once | the same |
//! | `say TEXT` | answers this, in which `\n` is a new line | | | fails with this text |
//! | `refuse CODE` | | refuses with this `CUresult` | | |
//! | `exhausted` | | there are no more file descriptors | | |

use std::collections::HashMap;
use std::path::PathBuf;

const ENV_SCRIPT: &str = "PARTITA_SIM_MPS_SCRIPT";

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no answer.
    Silence,
    /// Half of the answer is sent.
    Half,
    /// The process dies.
    Death,
    /// This is the answer instead.
    Say(String),
    /// It is refused with this `CUresult`.
    Refuse(i32),
    /// There are no more file descriptors.
    Exhausted,
}

/// The rules, and how often each has counted.
#[derive(Debug, Default)]
pub struct Script {
    file: Option<PathBuf>,
    counted: HashMap<String, u32>,
}

impl Script {
    /// The script of this process's environment.
    #[must_use]
    pub fn from_env() -> Self {
        let file = std::env::var_os(ENV_SCRIPT).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self { file, counted: HashMap::new() }
    }

    /// The failure for this time, if any.
    pub fn failure(&mut self, what: &str) -> Option<Failure> {
        let text = std::fs::read_to_string(self.file.as_ref()?).ok()?;
        self.find(&text, what)
    }

    fn find(&mut self, text: &str, what: &str) -> Option<Failure> {
        text.lines().map(str::trim).find_map(|line| {
            let (limit, rule) = match line.split_once('*') {
                Some((number, rule)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                    (number.parse().ok()?, rule)
                }
                _ => (u32::MAX, line),
            };
            let failure = parse(rule.strip_prefix(what)?.strip_prefix(' ')?)?;
            let counted = self.counted.entry(line.to_owned()).or_default();
            *counted += 1;
            (*counted <= limit).then_some(failure)
        })
    }
}

fn parse(action: &str) -> Option<Failure> {
    let (name, text) = action.trim().split_once(' ').unwrap_or((action.trim(), ""));
    match name {
        "silence" => Some(Failure::Silence),
        "half" => Some(Failure::Half),
        "death" => Some(Failure::Death),
        "say" => Some(Failure::Say(text.replace("\\n", "\n"))),
        "refuse" => text.trim().parse().ok().map(Failure::Refuse),
        "exhausted" => Some(Failure::Exhausted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_count_as_often_as_they_say() {
        let text =
            "2*attach refuse 807\nattach refuse 808\nps say PID\\nx\nget_server_list silence\nquit dance";
        let mut script = Script::default();
        let attach: Vec<_> = (0..4).map(|_| script.find(text, "attach").unwrap()).collect();
        assert_eq!(attach, [807, 807, 808, 808].map(Failure::Refuse));
        assert_eq!(script.find(text, "ps"), Some(Failure::Say("PID\nx".to_owned())));
        assert_eq!(script.find(text, "get_server_list"), Some(Failure::Silence));
        for nothing in ["get_server", "quit", "start"] {
            assert_eq!(script.find(text, nothing), None, "{nothing}");
        }
    }
}
