//! [`Silence`]: tenants of low priority wait, so that another one learns its time alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use partita_ledger::{GateMap, OPEN};

use crate::registry::Registry;
use crate::time::now_ns;

/// How often the lane is closed again: those who wait pass one that was closed for 50 ms
/// ([`Hold`](partita_core::time::Hold)).
const AGAIN: Duration = Duration::from_millis(16);
/// What the lane holds: bit 0 is set while it is open.
const CLOSED: u32 = 2;

/// A lane of a GPU's gate that this process keeps closed while this lives. When the process ends,
/// those who wait open it within milliseconds.
#[derive(Debug)]
pub(super) struct Silence {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Silence {
    /// Begins on a GPU; `None` if this user has no gate there, or it has no lane left.
    pub fn begin(registry: &Registry, gpu_key: &str) -> Option<Self> {
        Self::on(registry.gate(gpu_key)?)
    }

    fn on(gate: GateMap) -> Option<Self> {
        let lane = gate.claim().ok()??;
        let ending = Arc::new(AtomicBool::new(false));
        let keep = {
            let ending = Arc::clone(&ending);
            move || {
                while !ending.load(Ordering::Relaxed) {
                    gate.close(lane, CLOSED, now_ns());
                    thread::park_timeout(AGAIN);
                }
                gate.open_lane(lane.index(), CLOSED | OPEN);
            }
        };
        let thread = thread::Builder::new().name("partita-silence".to_owned()).spawn(keep).ok()?;
        Some(Self { ending, thread: Some(thread) })
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    #[test]
    fn the_lane_is_closed_again_and_again_until_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = CString::new(dir.path().join("gate").to_str().unwrap()).unwrap();
        let others = GateMap::create(&path, 0o600).unwrap();
        let silence = Silence::on(GateMap::open(&path).unwrap()).unwrap();
        let is_closed =
            || (0..64).any(|lane| others.claimed() >> lane & 1 == 1 && others.state(lane) & OPEN == 0);
        let until_closed = || {
            while !is_closed() {
                thread::sleep(Duration::from_millis(1));
            }
        };
        until_closed();
        // Work that waits passes for a moment, as it does after 50 ms.
        assert!(others.relent(|_| Some(now_ns() + 1_000_000)));
        assert!(!is_closed());
        until_closed();
        drop(silence);
        assert!(!is_closed());
        assert_eq!(others.open_orphans().unwrap(), 1);
    }
}
