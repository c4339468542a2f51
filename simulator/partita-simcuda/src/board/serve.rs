//! The board's life: listening, sleeping, waking, ending.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::{Board, ClientId};
use crate::shared::place::{Place, context_bytes};
use crate::shared::socket::{self, Received};
use crate::shared::sys::{eventfd_clear, monotonic_ns, sharpen_timers};

/// How long a board without clients waits for another one, in nanoseconds.
const LINGER_NS: u64 = 300_000_000;
/// The same for a board of all users, in nanoseconds: users cannot start it, so it is started
/// before their programs.
const LINGER_FOR_ALL_NS: u64 = 30_000_000_000;
/// How long a new board waits for its first client, in nanoseconds.
const FIRST_CLIENT_NS: u64 = 5_000_000_000;
/// How long the board keeps looking at the rings after something happened, in nanoseconds. Longer
/// than the gap between two launches of a busy program, so that such a program rings the doorbell
/// once and not each time.
const SPIN_NS: u64 = 30_000;
/// The interval of polling memory words for waits, in nanoseconds.
const VALUE_POLL_NS: u64 = 20_000;
/// Passes between polls of the sockets while the rings are never empty.
const PASSES_PER_POLL: u32 = 64;
/// The most time between two polls of sockets, but for one long pass, in nanoseconds.
const POLL_NS: u64 = 1_000_000;

/// Set by the handler of SIGTERM and SIGINT.
static ENDING: AtomicU32 = AtomicU32::new(0);

extern "C" fn end(_signal: libc::c_int) {
    ENDING.store(1, Ordering::Relaxed);
}

/// Runs a board at `place` until its last client is gone. `ready` is called once it listens.
///
/// # Errors
/// The socket cannot be created, or another board already listens.
pub fn run(place: Place, speed: f64, ready: impl FnOnce()) -> io::Result<()> {
    sharpen_timers();
    place.make_dir()?;
    // A process holds the lock when it starts a board, so an existing socket belongs to a board
    // that was killed.
    if place.connect().is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another board listens there already"));
    }
    let _ = std::fs::remove_file(place.socket());
    let listener = socket::listen(&place.socket())?;
    let is_for_all = place.is_for_all_users();
    if is_for_all {
        std::fs::set_permissions(place.socket(), Permissions::from_mode(0o666))?;
    }
    let mut board = Board::new(place, speed)?;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
    }
    // SAFETY: ignoring a signal takes no handler.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    ready();
    board.serve(&listener, if is_for_all { LINGER_FOR_ALL_NS } else { LINGER_NS });
    let _ = std::fs::remove_file(board.place.socket());
    let _ = std::fs::remove_file(board.place.lock());
    // The directory stays if it contains another device's board or other files, or if root created
    // it for all users.
    if !is_for_all {
        let _ = std::fs::remove_dir(&board.place.dir);
    }
    Ok(())
}

impl Board {
    fn serve(&mut self, listener: &OwnedFd, linger_ns: u64) {
        let mut alone_since = monotonic_ns();
        let mut had_clients = false;
        let mut active_at = monotonic_ns();
        let mut polled_at = active_at;
        let mut passes = 0u32;
        loop {
            if self.pass() | self.answer_calls(listener) {
                active_at = monotonic_ns();
            }
            let now = monotonic_ns();
            if !self.clients.is_empty() || self.has_stuck_server() {
                had_clients = true;
                alone_since = now;
            }
            let patience = if had_clients { linger_ns } else { FIRST_CLIENT_NS.max(linger_ns) };
            let ending = ENDING.load(Ordering::Relaxed) != 0;
            if (ending || now - alone_since > patience) && self.may_end(listener, ending) {
                return;
            }
            passes += 1;
            let next_ns = self.next_wake_ns();
            let is_near = next_ns.is_some_and(|ns| ns < SPIN_NS);
            let busy = is_near || now - active_at < SPIN_NS;
            // A pass that runs blocks is long, also if it has run all of them.
            let is_due = passes.is_multiple_of(PASSES_PER_POLL) || now - polled_at >= POLL_NS;
            if busy && self.executions.is_empty() && !is_due {
                if is_near {
                    std::hint::spin_loop();
                } else {
                    // The programs may need the processor for what this waits for.
                    std::thread::yield_now();
                }
                continue;
            }
            let limit = if busy {
                0
            } else {
                next_ns.unwrap_or(u64::MAX).min(self.linger_left(now, alone_since, linger_ns))
            };
            if self.sleep(listener, limit) {
                active_at = monotonic_ns();
            }
            polled_at = monotonic_ns();
        }
    }

    /// Whether a server is stuck and lives: the board keeps that from one client to the next.
    fn has_stuck_server(&mut self) -> bool {
        // SAFETY: the signal 0 only asks whether the process exists.
        self.stuck_servers.retain(|&server| unsafe { libc::kill(server as libc::pid_t, 0) } == 0);
        !self.stuck_servers.is_empty()
    }

    fn linger_left(&self, now: u64, alone_since: u64, linger_ns: u64) -> u64 {
        if self.clients.is_empty() {
            (alone_since + linger_ns).saturating_sub(now).max(1_000_000)
        } else {
            u64::MAX
        }
    }

    /// Real time until the engine's next event or the next poll of memory words, in nanoseconds.
    fn next_wake_ns(&self) -> Option<u64> {
        if let Some(standstill) = &self.standstill {
            return Some(standstill.until_ns.saturating_sub(monotonic_ns()));
        }
        if self.holds_time() {
            return Some(0);
        }
        let event = self.engine.next_event().map(|at| self.page.real_ns_until(at));
        let word = (!self.value_waits.is_empty()).then_some(VALUE_POLL_NS);
        let is_copying = self.clients.values().any(|client| !client.copies.is_empty());
        let copy = is_copying.then_some(POLL_NS);
        event.into_iter().chain(word).chain(copy).chain(self.next_interpretation_ns()).min()
    }

    /// Whether no client is coming: while this holds the lock no new board can start, and a client
    /// that connected without the lock is in the listener's queue.
    fn may_end(&mut self, listener: &OwnedFd, at_once: bool) -> bool {
        if at_once {
            return true;
        }
        let lock = match self.place.try_lock() {
            Ok(lock) => Some(lock),
            // The directory was removed. No client finds the board any more, and it does not create
            // the directory again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => return false,
        };
        if self.accept(listener) || !self.clients.is_empty() {
            return false;
        }
        let _ = std::fs::remove_file(self.place.socket());
        // The lock file is removed by `run`; until then its lock is held, and is released by
        // exiting.
        std::mem::forget(lock);
        true
    }

    /// Sleeps for at most `limit_ns` and handles what woke it. Returns whether anything did.
    fn sleep(&mut self, listener: &OwnedFd, limit_ns: u64) -> bool {
        let mut polled = vec![entry(listener.as_raw_fd()), entry(self.doorbell.as_raw_fd())];
        let ids: Vec<ClientId> = self.clients.keys().chain(self.observers.keys()).copied().collect();
        let sockets = self.clients.values().map(|client| &client.socket).chain(self.observers.values());
        polled.extend(sockets.map(|socket| entry(socket.as_raw_fd())));
        let exports = polled.len();
        polled.extend(self.exports.iter().map(|export| entry(export.read_end.as_raw_fd())));

        self.page.head().asleep.0.store(u32::from(limit_ns > 0), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let stands_still = self.standstill.is_some();
        let waiting = self.clients.values().any(|client| {
            client.channel.is_called() || !stands_still && !client.consumer.is_empty(&client.channel)
        });
        let limit_ns = if waiting { 0 } else { limit_ns };
        if limit_ns > 0 {
            self.report_stuck();
        }
        let limit = libc::timespec {
            tv_sec: (limit_ns / 1_000_000_000).min(3600) as libc::time_t,
            tv_nsec: (limit_ns % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: the array has the given length, the timespec is a local, and no signal mask is
        // given.
        let ready = unsafe {
            libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &limit, std::ptr::null())
        };
        self.page.head().asleep.0.store(0, Ordering::SeqCst);
        if ready <= 0 {
            return waiting;
        }
        if polled[1].revents != 0 {
            eventfd_clear(self.doorbell.as_fd());
        }
        for (id, poll) in ids.iter().zip(&polled[2..exports]) {
            if poll.revents != 0 {
                self.hear(*id);
            }
        }
        let gone: Vec<RawFd> =
            polled[exports..].iter().filter(|poll| poll.revents != 0).map(|poll| poll.fd).collect();
        if !gone.is_empty() {
            self.drop_exports(&gone);
        }
        if polled[0].revents != 0 {
            self.accept(listener);
        }
        true
    }

    /// Answers the requests in the clients' shared memory. Returns whether there were any.
    ///
    /// What happened before them comes first: a descriptor that is closed, a process that is gone.
    fn answer_calls(&mut self, listener: &OwnedFd) -> bool {
        let called: Vec<ClientId> =
            self.clients.iter().filter(|(_, client)| client.channel.is_called()).map(|(id, _)| *id).collect();
        if called.is_empty() {
            return false;
        }
        self.sleep(listener, 0);
        for id in called {
            let request = self.clients.get(&id).and_then(|client| client.channel.take_request());
            match request.map(|bytes| postcard::from_bytes(&bytes)) {
                Some(Ok(request)) => self.answer(id, request, Vec::new()),
                Some(Err(_)) => self.disconnect(id),
                None => {}
            }
        }
        true
    }

    /// Tells each client whether one of its launches hangs, so that a watchdog can distinguish a
    /// hang from a queue.
    fn report_stuck(&mut self) {
        let mut stuck = std::collections::HashSet::new();
        if !self.works.is_empty() {
            let hanging = self.engine.stuck();
            stuck.extend(hanging.iter().filter_map(|hang| self.works.get(&hang.work)).map(|job| job.client));
        }
        for (id, client) in &self.clients {
            client.channel.head().stuck.0.store(u32::from(stuck.contains(id)), Ordering::Relaxed);
        }
    }

    fn drop_exports(&mut self, gone: &[RawFd]) {
        let memory = &mut self.memory;
        self.exports.retain(|export| {
            let gone = gone.contains(&export.read_end.as_raw_fd());
            if gone {
                memory.release(export.phys);
            }
            !gone
        });
    }

    /// Accepts all waiting connections. They are observers until they send a hello.
    fn accept(&mut self, listener: &OwnedFd) -> bool {
        let mut any = false;
        while let Ok(Some(connection)) = socket::accept(listener.as_fd()) {
            self.observers.insert(self.next_id, connection);
            self.next_id += 1;
            any = true;
        }
        any
    }

    /// Handles one message of a connection.
    fn hear(&mut self, id: ClientId) {
        let Some(connection) =
            self.clients.get(&id).map(|client| &client.socket).or_else(|| self.observers.get(&id))
        else {
            return;
        };
        match socket::receive(connection.as_fd()) {
            Ok(Received::Packet(packet, descriptors)) => match postcard::from_bytes(&packet) {
                Ok(request) => self.answer(id, request, descriptors),
                Err(_) => self.disconnect(id),
            },
            Ok(Received::Nothing) => {}
            Ok(Received::Closed) | Err(_) => self.disconnect(id),
        }
    }

    /// Bytes that a context itself uses.
    pub(super) fn ctx_overhead_bytes(&self) -> u64 {
        context_bytes(self.memory.total())
    }
}

fn entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
