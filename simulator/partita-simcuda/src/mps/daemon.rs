//! The control daemon: connections, commands, and the server's life.
//!
//! It has one thread, which sleeps in `poll` and waits for signals, new connections, messages, the
//! server's link, and the deaths of clients. A client is gone when its connection closes or its
//! process ends, whichever comes first: a child that it forked may hold the connection open.

mod contain;
mod contexts;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use partita_abi::CuResult;

use super::dirs::PipeFiles;
use super::limits::Limits;
use super::log::Logs;
use super::partitions::Partitions;
use super::peer::{Peer, PeerId, Phase, Role, Server};
use super::script::{Failure, Script};
use super::server::{ServerMessage, ServerProcess};
use super::wait::{poll, signals};
use super::wire::{self, Answer, Message};
use crate::shared::ask::observe;
use crate::shared::protocol::Request;
use crate::shared::socket;
use contain::{Fault, FaultWatches};

pub(super) use contain::{board, has_fault, number_of};
pub(super) use contexts::client_name;

/// The daemon.
#[derive(Debug)]
pub struct Daemon {
    files: PipeFiles,
    signals: OwnedFd,
    pub(super) log: Logs,
    /// The limits of the next server.
    pub(super) limits: Limits,
    pub(super) visible: Option<String>,
    /// Whether one server takes every user's programs.
    pub(super) for_all: bool,
    /// The static partitions, where clients need one.
    pub(super) partitions: Option<Partitions>,
    pub(super) server: Option<Server>,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    pub(super) waiting: VecDeque<PeerId>,
    /// The scripted failures.
    pub(super) script: Script,
    /// Boards that will report a fault.
    pub(super) watches: FaultWatches,
    /// The fault that blocks the server.
    pub(super) fault: Option<Fault>,
    next_peer: PeerId,
    /// A server that will not be ready.
    ignores_server: Option<u32>,
    /// Set when the daemon shall end: at this time, if there is one.
    pub(super) ending: Option<Option<Instant>>,
}

/// The source of an event.
enum Source {
    Signal,
    Control,
    Privileged,
    Server,
    Peer(PeerId),
    ClientExit(PeerId),
    Board(PathBuf),
}

impl Daemon {
    /// A daemon that has its directory. `visible` is its `CUDA_VISIBLE_DEVICES`; `for_all` accepts
    /// every user's programs; with `is_static` clients need a static partition.
    ///
    /// # Errors
    /// Those of `signalfd`.
    pub fn new(
        files: PipeFiles,
        log: Logs,
        limits: Limits,
        visible: Option<String>,
        for_all: bool,
        is_static: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            files,
            signals: signals()?,
            log,
            limits,
            visible,
            for_all,
            partitions: is_static.then(Partitions::of_machine),
            server: None,
            peers: BTreeMap::new(),
            waiting: VecDeque::new(),
            script: Script::from_env(),
            watches: FaultWatches::default(),
            fault: None,
            ignores_server: None,
            next_peer: 1,
            ending: None,
        })
    }

    /// Serves until it is asked to end.
    ///
    /// # Errors
    /// Those of `poll`.
    pub fn serve(mut self) -> io::Result<()> {
        while !self.may_end() {
            let mut sources = self.sleep()?;
            // A fault is handled before clients can leave because of it.
            sources.sort_by_key(|source| !matches!(source, Source::Board(_)));
            for source in sources {
                match source {
                    Source::Signal => self.quit(Some(Duration::ZERO)),
                    Source::Control => self.welcome(false),
                    Source::Privileged => self.welcome(true),
                    Source::Server => self.hear_server(),
                    Source::Peer(id) => self.hear(id),
                    Source::ClientExit(id) => self.leave(id),
                    Source::Board(dir) => self.on_board_message(&dir),
                }
            }
        }
        self.log.control("Exit");
        Ok(())
    }

    fn sleep(&self) -> io::Result<Vec<Source>> {
        let mut sources = vec![
            (Source::Signal, self.signals.as_fd()),
            (Source::Control, self.files.control.as_fd()),
            (Source::Privileged, self.files.privileged.as_fd()),
        ];
        sources.extend(
            self.server.as_ref().and_then(|server| server.process.link()).map(|fd| (Source::Server, fd)),
        );
        for (id, peer) in &self.peers {
            sources.push((Source::Peer(*id), peer.socket.as_fd()));
            if let Role::Client(member) = &peer.role {
                sources.extend(member.exit.iter().map(|exit| (Source::ClientExit(*id), exit.as_fd())));
            }
        }
        sources
            .extend(self.watches.sources().map(|(dir, socket)| (Source::Board(dir.clone()), socket.as_fd())));
        let limit = match self.ending {
            Some(Some(deadline)) => Some(deadline.saturating_duration_since(Instant::now())),
            _ => None,
        };
        let ready = poll(sources.iter().map(|(_, fd)| *fd), limit)?;
        Ok(sources
            .into_iter()
            .zip(ready)
            .filter(|(_, ready)| *ready)
            .map(|((source, _), _)| source)
            .collect())
    }

    fn welcome(&mut self, privileged: bool) {
        let listener = if privileged { &self.files.privileged } else { &self.files.control };
        while let Ok(Some(socket)) = socket::accept(listener.as_fd()) {
            self.log.control("Accepting connection...");
            let Ok((pid, uid)) = socket::peer(socket.as_fd()) else { continue };
            self.peers.insert(self.next_peer, Peer { socket, pid, uid, role: Role::Unknown });
            self.next_peer += 1;
        }
    }

    fn hear(&mut self, id: PeerId) {
        // A peer may have left because of an earlier event in the same round.
        let Some(peer) = self.peers.get(&id) else { return };
        match wire::receive(peer.socket.as_fd()) {
            Ok(None) => {}
            Ok(Some(Message::Command(line))) => self.command(id, &line),
            Ok(Some(Message::Attach(attach))) if matches!(peer.role, Role::Unknown) => {
                self.attach(id, attach)
            }
            Ok(Some(Message::Context { context, alive })) => self.context(id, context, alive),
            Ok(Some(Message::Attach(_))) | Err(_) => self.leave(id),
        }
    }

    pub(super) fn answer(&mut self, id: PeerId, answer: &Answer) -> bool {
        self.peers.get(&id).is_some_and(|peer| wire::send(peer.socket.as_fd(), answer).is_ok())
    }

    pub(super) fn refuse(&mut self, id: PeerId, code: CuResult) {
        self.answer(id, &Answer::Refused(code.0));
        self.peers.remove(&id);
    }

    // ---- commands ----

    fn command(&mut self, id: PeerId, line: &str) {
        if let Some(peer) = self.peers.get_mut(&id)
            && matches!(peer.role, Role::Unknown)
        {
            peer.role = Role::Ui;
            self.log.control("NEW UI");
        }
        self.log.control(format_args!("Cmd:{line}"));
        let Some(uid) = self.peers.get(&id).map(|peer| peer.uid) else { return };
        let failure = self.script.failure(line.split_whitespace().next().unwrap_or_default());
        let reply = match failure {
            Some(Failure::Silence) => return,
            Some(Failure::Death) => std::process::abort(),
            Some(Failure::Say(text)) => text,
            Some(Failure::Half) => {
                let reply = self.execute(uid, line);
                let half = (0..=reply.len() / 2).rev().find(|at| reply.is_char_boundary(*at)).unwrap_or(0);
                self.answer(id, &Answer::Half(reply[..half].to_owned()));
                self.leave(id);
                return;
            }
            None if self.waits_for_a_stopped_client(line) => return,
            _ => self.execute(uid, line),
        };
        for line in reply.lines() {
            self.log.control(line);
        }
        self.answer(id, &Answer::Text(reply));
    }

    // ---- the server ----

    /// Starts a server for a user.
    pub(super) fn start_server(&mut self, uid: u32) -> io::Result<()> {
        let process = match ServerProcess::start(uid) {
            Ok(process) => process,
            Err(error) => {
                self.log.control(format_args!("Failed to start a server for user {uid}: {error}"));
                return Err(error);
            }
        };
        self.log.control(format_args!("Starting new server {} for user {uid}", process.pid()));
        let limits = self.limits.clone();
        let pid = process.pid();
        self.server = Some(Server { process, uid, phase: Phase::Starting, limits, clients_so_far: 0 });
        self.fault = None;
        match self.script.failure("server") {
            // Its messages are ignored.
            Some(Failure::Silence) => self.ignores_server = Some(pid),
            Some(Failure::Death) => {
                // It may have reported that it is ready before the signal came.
                self.ignores_server = Some(pid);
                // SAFETY: takes numbers; the process is this daemon's child and has not been waited
                // for.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
            _ => {}
        }
        Ok(())
    }

    fn hear_server(&mut self) {
        let Some(server) = &mut self.server else { return };
        match server.process.hear() {
            ServerMessage::Nothing => {}
            ServerMessage::Ready => {
                let pid = server.pid();
                if self.ignores_server == Some(pid) {
                    return;
                }
                if server.phase == Phase::Starting {
                    server.phase = Phase::Ready;
                }
                self.log.control(format_args!("NEW SERVER {pid}: Ready"));
                self.log.server(pid, "Start");
                self.log.server(
                    pid,
                    format_args!("Active Threads Percentage set to {:.1}", server.limits.percentage),
                );
                self.end_unused_server();
                self.admit();
            }
            ServerMessage::Gone => {
                self.drop_clients();
                self.end_server();
                self.admit();
            }
        }
    }

    /// Ends a server that is to end, if it has no clients.
    pub(super) fn end_unused_server(&mut self) {
        let ending = self.server.as_ref().is_some_and(|server| server.phase == Phase::Ending);
        if ending && self.members().next().is_none() {
            self.end_server();
        }
    }

    /// Takes the GPU away from all clients, because their server is gone.
    pub(super) fn drop_clients(&mut self) {
        let Some(server) = self.server.as_ref().map(Server::pid) else { return };
        let members: Vec<PeerId> = self.members().map(|(id, _, _)| id).collect();
        for id in members {
            if let Some(Peer { role: Role::Client(member), .. }) = self.peers.remove(&id) {
                // Without a board there is nothing to take away.
                let _ = observe(&member.place, &Request::ServerGone { server });
            }
        }
    }

    /// Ends the server and logs it.
    pub(super) fn end_server(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let pid = server.pid();
        let status = server.process.end();
        let status = status.map_or_else(|error| error.to_string(), exit_number);
        self.log.control(format_args!("Server {pid} exited with status {status}"));
    }

    // ---- the end ----

    /// Ends the daemon as soon as there are no clients, or after `patience`.
    pub(super) fn quit(&mut self, patience: Option<Duration>) {
        self.ending = Some(patience.and_then(|patience| Instant::now().checked_add(patience)));
        if let Some(server) = &mut self.server {
            server.phase = Phase::Ending;
        }
        self.end_unused_server();
        self.admit();
    }

    fn may_end(&mut self) -> bool {
        let Some(deadline) = self.ending else { return false };
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.drop_clients();
        }
        self.end_unused_server();
        self.server.is_none()
    }
}

fn exit_number(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    number.unwrap_or(-1).to_string()
}
