//! A terminal on which a test types.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::pty::OpenptFlags;

use super::{PATIENCE, World, with_env_of};

pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";

/// A shell, or another program, in a new session with a terminal on which the test types.
pub struct Typist {
    pub keys: File,
    /// Output that has not been checked yet.
    screen: String,
    pub child: Child,
}

impl Typist {
    pub fn new(world: &World, program: &[&str]) -> Self {
        let keys =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        rustix::pty::grantpt(&keys).unwrap();
        rustix::pty::unlockpt(&keys).unwrap();
        let name = rustix::pty::ptsname(&keys, Vec::new()).unwrap();
        let screen = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(program);
        with_env_of(&mut command, &world.partita([""; 0]));
        world.as_its_user(&mut command);
        // No echo: only programs' output is shown.
        let mut modes = rustix::termios::tcgetattr(&keys).unwrap();
        modes.local_modes -= rustix::termios::LocalModes::ECHO;
        // A key that is a signal, which the kernel may handle late, discards no input.
        modes.local_modes |= rustix::termios::LocalModes::NOFLSH;
        rustix::termios::tcsetattr(&keys, rustix::termios::OptionalActions::Now, &modes).unwrap();
        let child = command.stdin(screen()).stdout(screen()).stderr(screen()).spawn().unwrap();
        drop(command);
        let keys = File::from(keys);
        Self { keys, screen: String::new(), child }
    }

    /// A shell with job control that runs this. `$partita` is the program; the shell continues
    /// after Ctrl-C.
    pub fn shell(world: &World, script: &str) -> Self {
        let partita = super::program().display();
        Self::new(world, &["sh", "-c", &format!("set -m; trap : INT; partita={partita}; {script}")])
    }

    pub fn type_in(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until this is shown, and forgets the earlier output; returns the text between.
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.screen.find(text) {
                let before = self.screen[..at].to_owned();
                self.screen.drain(..at + text.len());
                return before;
            }
            assert!(Instant::now() < deadline, "{text:?} is never shown: {:?}", self.screen);
            let mut ready = [PollFd::new(&self.keys, PollFlags::IN)];
            let tick = Duration::from_millis(100).try_into().unwrap();
            if rustix::event::poll(&mut ready, Some(&tick)).unwrap() > 0 {
                let mut bytes = [0; 4096];
                let count = self.keys.read(&mut bytes).unwrap_or_else(|error| {
                    panic!("everybody has left and {text:?} was not shown ({error}): {:?}", self.screen)
                });
                self.screen.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        }
    }

    /// How the program in the terminal ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end: {:?}", self.screen);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
