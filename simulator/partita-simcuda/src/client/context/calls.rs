//! The driver's lock of a context: which calls wait while another one waits for room in a channel.
//!
//! As on an H200 (driver 580.159.04): a call that waits for room shares the lock. Calls that
//! allocate memory, make an event, or put a memory operation into the legacy stream need it alone.
//! While one of those waits, so do calls that put something into any stream of the context. Queries
//! of events take no lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use partita_abi::CuResult;

use crate::client::runtime::Runtime;

/// How often a call that waits looks again.
const AGAIN: Duration = Duration::from_micros(50);

/// The lock. Calls that find room hold it for no time, so only waiting ones count.
#[derive(Debug)]
pub struct CallLock {
    sharing: AtomicU32,
    excluding: AtomicU32,
}

impl CallLock {
    pub(super) const fn new() -> Self {
        Self { sharing: AtomicU32::new(0), excluding: AtomicU32::new(0) }
    }

    /// Waits behind the calls that need the lock alone.
    ///
    /// # Errors
    /// The sticky error.
    #[inline]
    pub fn share(&self, runtime: &Runtime) -> Result<(), CuResult> {
        await_none(&self.excluding, runtime)
    }

    /// Runs what waits for room.
    pub fn sharing<R>(&self, run: impl FnOnce() -> R) -> R {
        self.sharing.fetch_add(1, Ordering::SeqCst);
        let result = run();
        self.sharing.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Waits for the lock alone.
    ///
    /// # Errors
    /// The sticky error.
    pub fn exclude(&self, runtime: &Runtime) -> Result<(), CuResult> {
        if self.sharing.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        self.excluding.fetch_add(1, Ordering::SeqCst);
        let waited = await_none(&self.sharing, runtime);
        self.excluding.fetch_sub(1, Ordering::SeqCst);
        waited
    }
}

#[inline]
fn await_none(calls: &AtomicU32, runtime: &Runtime) -> Result<(), CuResult> {
    while calls.load(Ordering::Relaxed) != 0 {
        runtime.healthy()?;
        std::thread::sleep(AGAIN);
    }
    Ok(())
}
