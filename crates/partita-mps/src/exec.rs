//! Run a short program with a time limit and a limit on its output.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How much of each output stream is kept, in bytes. A control program prints a few lines.
const OUTPUT_BYTES_MAX: u64 = 256 * 1024;

/// The result of a program.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It exited.
    Done {
        /// Its exit status.
        status: ExitStatus,
        /// Its output: stdout, then stderr.
        output: String,
    },
    /// The time limit ended it.
    TimedOut,
}

/// Runs `command` to its end, with `input` on its stdin.
///
/// # Errors
/// When the program cannot be started or waited for.
pub(crate) fn run(command: &mut Command, input: &str, limit: Duration) -> io::Result<Outcome> {
    let deadline = Instant::now() + limit;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that reads no input closes the pipe: that is not an error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let (sender, outputs) = mpsc::channel();
    if let Some(stream) = child.stdout.take() {
        collect(stream, 0, sender.clone());
    }
    if let Some(stream) = child.stderr.take() {
        collect(stream, 1, sender.clone());
    }
    drop(sender);

    let mut parts = [String::new(), String::new()];
    loop {
        match outputs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((index, text)) => parts[index] = text,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => return end(child),
        }
    }
    // Both streams are closed; now wait for the exit.
    loop {
        if let Some(status) = child.try_wait()? {
            let output = parts.concat();
            return Ok(Outcome::Done { status, output });
        }
        if Instant::now() >= deadline {
            return end(child);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn end(mut child: Child) -> io::Result<Outcome> {
    child.kill()?;
    child.wait()?;
    Ok(Outcome::TimedOut)
}

fn collect(stream: impl Read + Send + 'static, index: usize, sender: mpsc::Sender<(usize, String)>) {
    // The thread ends with the stream. If a stray descendant keeps the stream open, the receiver
    // gave up long ago and the thread only waits.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        let _ = sender.send((index, String::from_utf8_lossy(&bytes).into_owned()));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_input_pass() {
        let mut command = Command::new("sh");
        command.args(["-c", "cat; echo err >&2; exit 3"]);
        match run(&mut command, "in\n", Duration::from_secs(10)).unwrap() {
            Outcome::Done { status, output } => {
                assert_eq!(status.code(), Some(3));
                assert_eq!(output, "in\nerr\n");
            }
            Outcome::TimedOut => panic!("timed out"),
        }
    }

    #[test]
    fn a_hanging_program_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let started = Instant::now();
        assert!(matches!(run(&mut command, "", Duration::from_millis(30)).unwrap(), Outcome::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(500));
    }

    #[test]
    fn a_flood_is_bounded() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 1000000 /dev/zero"]);
        match run(&mut command, "", Duration::from_secs(10)).unwrap() {
            Outcome::Done { output, .. } => assert_eq!(output.len() as u64, OUTPUT_BYTES_MAX),
            Outcome::TimedOut => panic!("timed out"),
        }
    }
}
