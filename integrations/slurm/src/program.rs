//! Runs `partita batch task-prolog` with the environment of a task.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

/// The word of `plugstack.conf` that names the program.
const PROGRAM: &str = "partita=";
/// The word that names the directory of the job records.
const STATE: &str = "state-dir=";
/// Where packages install it.
const PROGRAM_DEFAULT: &str = "/usr/bin/partita";

/// The output of `partita batch task-prolog` for a task with this environment.
///
/// # Errors
/// Why the job's request is not fulfilled, in the program's words.
pub fn task_prolog(words: &[String], job: &[CString]) -> Result<String, String> {
    let word = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let program = word(PROGRAM).unwrap_or(PROGRAM_DEFAULT);
    let mut command = Command::new(program);
    command.args(["batch", "task-prolog"]).env_clear().stdin(Stdio::null());
    if let Some(directory) = word(STATE) {
        command.args(["--state-dir", directory]);
    }
    for entry in job {
        let bytes = entry.as_bytes();
        if let Some(at) = bytes.iter().position(|byte| *byte == b'=') {
            // A library that the job preloads is for its programs.
            let (name, value) = (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..]));
            if name != "LD_PRELOAD" {
                command.env(name, value);
            }
        }
    }
    let output = command.output().map_err(|error| {
        format!(
            "{program} cannot be run: {error}; name it in plugstack.conf, as partita=/usr/local/bin/partita"
        )
    })?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if !output.status.success() {
        let (out, err) = (said(&output.stdout), said(&output.stderr));
        let reason = if err.is_empty() { out } else { err };
        return Err(format!("{program} batch task-prolog: {reason} ({})", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{program} batch task-prolog did not print UTF-8"))
}
