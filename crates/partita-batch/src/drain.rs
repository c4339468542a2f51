//! Draining the node by a command of the batch system.
//!
//! Slurm drains a node whose Prolog or Epilog fails, and its documentation asks scripts not to call
//! its commands; the exit code suffices there. A PBS epilogue has no such exit code.

use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::deadline::Deadline;

/// How a node is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// By the script's exit code alone.
    Exit,
    /// By `scontrol update`.
    Scontrol,
    /// By `pbsnodes -o`.
    Pbsnodes,
}

/// The longest reason that is passed on, in characters, because tables show it.
const REASON_CHARS_MAX: usize = 200;
const POLL: Duration = Duration::from_millis(5);

impl Drain {
    /// The command and its arguments for this node; `None` if there is nothing to run.
    pub fn command(self, node: &str, reason: &str) -> Option<Vec<String>> {
        let reason: String = reason
            .chars()
            .map(|c| if c.is_control() || c == '"' { ' ' } else { c })
            .take(REASON_CHARS_MAX)
            .collect();
        let words = match self {
            Self::Exit => return None,
            Self::Scontrol => vec![
                "scontrol".to_owned(),
                "update".to_owned(),
                format!("nodename={node}"),
                "state=drain".to_owned(),
                format!("reason={reason}"),
            ],
            Self::Pbsnodes => {
                vec!["pbsnodes".to_owned(), "-o".to_owned(), "-N".to_owned(), reason, node.to_owned()]
            }
        };
        Some(words)
    }
}

/// Runs the command.
///
/// # Errors
/// Why it did not work, for the log.
pub fn run(words: &[String], deadline: Deadline) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let told = |reason: String| format!("{program} did not drain the node: {reason}; drain it by hand");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| told(missing(program, &error)))?;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(told(format!("it exited with {status}"))),
            Ok(None) if deadline.is_over() => {
                let _ = child.kill();
                return Err(told("it did not finish in time".to_owned()));
            }
            Ok(None) => thread::sleep(POLL),
            Err(error) => return Err(told(error.to_string())),
        }
    }
}

fn missing(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no {program} in PATH, which batch systems leave unset"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_short_line() {
        let words = Drain::Scontrol.command("node3", &format!("a\n\"b\" {}", "x".repeat(500))).unwrap();
        assert_eq!(words[2], "nodename=node3");
        assert!(words[4].starts_with("reason=a  b  x") && words[4].chars().count() == 207, "{words:?}");
        assert_eq!(Drain::Pbsnodes.command("n", "r").unwrap(), ["pbsnodes", "-o", "-N", "r", "n"]);
        assert_eq!(Drain::Exit.command("n", "r"), None);
    }

    #[test]
    fn a_command_that_fails_or_hangs_is_reported() {
        let run = |line: &str, limit| {
            let words: Vec<String> = line.split('|').map(str::to_owned).collect();
            run(&words, Deadline::after(Duration::from_millis(limit)))
        };
        assert_eq!(run("true", 60_000), Ok(()));
        assert!(run("false", 60_000).unwrap_err().contains("by hand"));
        assert!(run("sleep|1000", 20).unwrap_err().contains("in time"));
        assert!(run("no-such-program-here", 20).unwrap_err().contains("in PATH"));
    }
}
