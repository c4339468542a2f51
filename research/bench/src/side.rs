//! Processes that do a part of a benchmark and answer by lines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A process that has said that it is ready, answers each line written to it with one, and ends
/// when its input does.
pub struct Side {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Side {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started or says anything else than `ready`.
    pub fn start(mut command: Command) -> Result<Self> {
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a child")?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("a child without pipes")
        };
        let mut side = Self { process, input, output: BufReader::new(output) };
        match side.line() {
            Ok(line) if line == "ready" => Ok(side),
            Ok(line) => bail!("a child said {line:?} instead of being ready: {command:?}"),
            Err(error) => Err(error.context(format!("before it was ready: {command:?}"))),
        }
    }

    /// Its next line.
    ///
    /// # Errors
    /// Those of the pipe, and if it has ended.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("process {} has ended: it has said why", self.process.id());
        }
        Ok(line.trim().to_owned())
    }

    /// Writes a line.
    ///
    /// # Errors
    /// Those of the pipe.
    pub fn tell(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.input, "{text}")?)
    }

    /// Writes a line and returns the answer.
    ///
    /// # Errors
    /// Those of the pipe.
    pub fn ask(&mut self, text: &str) -> Result<String> {
        self.tell(text)?;
        self.line()
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// The system's.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Ends its input and waits for it.
    ///
    /// # Errors
    /// If it fails.
    pub fn stop(mut self) -> Result<()> {
        drop(self.input);
        if !self.process.wait()?.success() {
            bail!("a child failed");
        }
        Ok(())
    }
}

/// `program` as it is, on a GPU as `partita run` takes it: under the driver that `partita` would
/// run it with.
pub fn bare(partita: &Path, gpu: &str, program: &Path) -> Command {
    let script = if gpu.starts_with("sim:") {
        format!("eval \"$('{}' sim env --gpu {gpu})\" && exec \"$0\" \"$@\"", partita.display())
    } else {
        "exec \"$0\" \"$@\"".to_owned()
    };
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(program);
    command
}
