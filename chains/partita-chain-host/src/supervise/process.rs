//! A process of a chain: a component, or the keeper of its memory.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use partita_host::child;
use partita_host::error::Error;
use partita_host::mps::end_work::end_work_before;
use partita_host::process::ProcessId;
use partita_host::program;
use partita_mps::Service;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::ComponentState;

/// The variable with the GPUs that a process sees.
pub(super) const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// The first and the longest pause before a restart. The pause doubles each time.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// After so much time a component counts as started, and its earlier failures count no more.
const WELL: Duration = Duration::from_secs(10);

/// A process of a chain.
#[derive(Debug)]
pub(super) struct Process {
    /// Its name in messages.
    pub title: String,
    pub restarts: u32,
    /// For a component: how many processes had taken its place before this one started.
    pub incarnation_before: u64,
    program: OsString,
    command: Command,
    /// The directory of the chain's tenant.
    tenant: PathBuf,
    child: Option<(Child, Option<OwnedFd>, Instant)>,
    /// When it is to start; `None` if it runs or shall not run.
    due: Option<Instant>,
    pause: Duration,
    ended: Option<ExitStatus>,
    /// It must end and restart through no fault of its program.
    is_replaced: bool,
}

impl Process {
    /// A process that is due at once.
    pub(super) fn new(title: String, command: Command, tenant: &Path) -> Self {
        Self {
            title,
            restarts: 0,
            incarnation_before: 0,
            program: command.get_program().to_owned(),
            command,
            tenant: tenant.to_owned(),
            child: None,
            due: Some(Instant::now()),
            pause: PAUSE,
            ended: None,
            is_replaced: false,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    pub(super) fn spawn(&mut self) -> Result<(), Error> {
        let refuse = |reason: String| Error::Refused { what: self.title.clone(), reason };
        // As for every tenant, a program that the limits cannot reach is not started.
        program::find(&self.program).map_err(|error| refuse(error.to_string()))?;
        let child = self.command.spawn().map_err(|error| {
            refuse(format!(
                "{} cannot be started: {error}; check its path and permissions",
                self.program.to_string_lossy()
            ))
        })?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        self.child = Some((child, handle, Instant::now()));
        self.due = None;
        Ok(())
    }

    /// How it ended, if it has since the last call.
    pub(super) fn poll(&mut self) -> Result<Option<ExitStatus>, Error> {
        let Some((child, _, started)) = &mut self.child else { return Ok(None) };
        let status = child.try_wait().map_err(Error::io(format!("waiting for {}", self.title)))?;
        if status.is_some() {
            if started.elapsed() > WELL {
                (self.pause, self.restarts) = (PAUSE, 0);
            }
            self.child = None;
            self.ended = status;
        }
        Ok(status)
    }

    /// Ends it, to restart without counting a failure.
    pub(super) fn replace(&mut self, service: Option<&Service>) {
        self.is_replaced = self.lives();
        self.signal(Signal::KILL, service);
    }

    /// Whether it was ended to be replaced, and has ended.
    pub(super) fn take_replaced(&mut self) -> bool {
        let is_replaced = std::mem::take(&mut self.is_replaced);
        if is_replaced {
            self.due = Some(Instant::now());
        }
        is_replaced
    }

    /// Schedules a restart after a pause, and returns the pause.
    pub(super) fn schedule_restart(&mut self) -> Duration {
        let pause = self.pause;
        self.due = Some(Instant::now() + pause);
        self.pause = (pause * 2).min(PAUSE_MAX);
        self.restarts += 1;
        pause
    }

    pub(super) fn has_ended_well(&self) -> bool {
        self.child.is_none() && self.due.is_none() && self.ended.is_some_and(|status| status.success())
    }

    pub(super) fn lives(&self) -> bool {
        self.child.is_some()
    }

    /// A handle that is readable once it has ended.
    pub(super) fn handle(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.child.as_ref()?.1.as_ref().map(AsFd::as_fd)
    }

    /// Sends a signal. If the process is a client of MPS, its GPU work is ended first.
    pub(super) fn signal(&self, signal: Signal, service: Option<&Service>) {
        // Its number is not reused before this process waits for it.
        if let Some((child, ..)) = &self.child
            && let Some(process) = ProcessId::living(child.id())
        {
            if let Some(service) = service {
                end_work_before(service, signal, process, &self.tenant);
            }
            let _ = process.signal(signal);
        }
    }

    /// Its process; `None` while it does not run.
    pub(super) fn id(&self) -> Option<ProcessId> {
        self.child.as_ref().and_then(|(child, ..)| ProcessId::living(child.id()))
    }

    pub(super) fn state(&self, name: &str, gpu: &str) -> ComponentState {
        ComponentState {
            name: name.to_owned(),
            process: self.id(),
            restarts: self.restarts,
            ended: self.ended.map(child::describe),
            gpu: gpu.to_owned(),
        }
    }
}
