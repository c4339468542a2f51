//! A keeper with the host's memory, in a thread of the test.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use partita_memory::client::Connection;
use partita_memory::keeper::{self, End, HostMemory, Options};
use partita_memory::pool::Limits;
use partita_memory::wire::{HandleKind, Status};

pub const MIB: u64 = 1 << 20;
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Keeper {
    pub socket: PathBuf,
    thread: Option<JoinHandle<End>>,
    _temp: tempfile::TempDir,
}

impl Keeper {
    pub fn new(change: impl FnOnce(&mut Options)) -> Self {
        let temp = tempfile::Builder::new().prefix("pt-mem-").tempdir_in("/tmp").unwrap();
        let socket = temp.path().join("keeper");
        let mut options = Options::new(socket.clone());
        options.handles = HandleKind::Descriptor;
        options.quota_bytes = 256 * MIB;
        options.limits = Limits { window_ms: 20, ..Limits::default() };
        change(&mut options);
        let thread = std::thread::spawn(move || {
            keeper::serve(HostMemory::new(1 << 34), [7; 16], &options, None).unwrap()
        });
        partita_testing::eventually("the keeper serves", || socket.exists());
        Self { socket, thread: Some(thread), _temp: temp }
    }

    /// A client of a tenant.
    pub fn client(&self, tenant: &str) -> Connection {
        connect(&self.socket, tenant)
    }

    /// A client that queries and administers.
    pub fn admin(&self) -> Connection {
        Connection::connect(&self.socket, None, PATIENCE).unwrap()
    }

    pub fn status(&self) -> Status {
        self.admin().status().unwrap()
    }

    /// Waits until there are no leases, and checks that no memory was lost.
    pub fn is_clean_in_the_end(&self) {
        let mut admin = self.admin();
        let mut last = Status::default();
        partita_testing::eventually("all memory is free", || {
            last = admin.status().unwrap();
            let totals = last.totals;
            (totals.leases, totals.resting, totals.used_bytes, totals.owners, last.dying) == (0, 0, 0, 0, 0)
        });
        assert_eq!(last.totals.leased_ever, last.totals.given_back_ever);
        partita_testing::eventually("idle slabs have gone back", || {
            last = admin.status().unwrap();
            (last.totals.slabs, last.totals.slab_bytes, last.totals.tenants) == (0, 0, 0)
        });
        assert_eq!(last.totals.slabs_made_ever, last.totals.slabs_freed_ever);
    }

    /// Ends it, and returns the reason of its end.
    pub fn end(mut self) -> End {
        self.admin().end_keeper(true).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits for it to end by itself.
    pub fn wait(mut self) -> End {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.thread.take().is_some_and(|thread| !thread.is_finished()) && !std::thread::panicking() {
            let _ = self.admin().end_keeper(true);
        }
    }
}

pub fn connect(socket: &Path, tenant: &str) -> Connection {
    Connection::connect(socket, Some(tenant.parse().unwrap()), PATIENCE).unwrap()
}
