//! The waiting side of `--wait`: a start that is tried until it is its turn and it fits.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::process::ProcessId;
use crate::registry::{self, Registry};
use crate::signals;
use crate::system;

/// The time between two looks at the queue.
const LOOK: Duration = Duration::from_millis(100);
/// The time between two requests of the first in the queue in system mode, where each is a process
/// of root's.
const REQUEST: Duration = Duration::from_millis(500);

/// Calls `attempt` until it is not told to wait, `limit` has passed or a signal ends this process.
/// `say` gets why the program waits, and that it has waited.
///
/// # Errors
/// Those of `attempt`; [`Error::WaitedInVain`]; [`Error::Interrupted`].
pub(super) fn for_room<T>(
    registry: &Registry,
    gpu_keys: &[String],
    limit: Option<Duration>,
    mut attempt: impl FnMut(&mut dyn FnMut(&str)) -> Result<T, Error>,
    say: &mut dyn FnMut(&str),
) -> Result<T, Error> {
    let begin = Instant::now();
    let run = ProcessId::own().map_err(Error::io("/proc/self"))?;
    let mut place = Place { registry, run, is_held: false };
    let mut reason = String::new();
    loop {
        match attempt(say) {
            Err(Error::Waits { reason: now }) => {
                if !std::mem::replace(&mut place.is_held, true) {
                    say(&format!("waits for room: {now}"));
                }
                reason = now;
            }
            // The queue outlives a `partitad` that is restarted.
            Err(Error::Daemon { .. }) if place.is_held => {}
            Ok(started) => {
                if place.is_held {
                    say(&format!("there is room, after {} s", begin.elapsed().as_secs()));
                }
                // The planner has removed it with the start.
                place.is_held = false;
                return Ok(started);
            }
            Err(error) => return Err(error),
        }
        let mut next = if registry.is_client() { REQUEST } else { LOOK };
        loop {
            signals::check()?;
            let limit = limit.unwrap_or_default();
            if begin.elapsed() >= limit {
                return Err(Error::WaitedInVain { limit, reason });
            }
            thread::sleep(LOOK.min(limit.saturating_sub(begin.elapsed())));
            next = next.saturating_sub(LOOK);
            if next.is_zero() && is_first(registry, run, gpu_keys) {
                break;
            }
        }
    }
}

/// Whether no earlier program waits for these GPUs; also if the queue cannot be read or has no
/// place of this process: then the planner answers.
fn is_first(registry: &Registry, run: ProcessId, gpu_keys: &[String]) -> bool {
    let Ok(queue) = registry.queue() else { return true };
    let own = queue.iter().find(|waiter| waiter.run == run);
    own.is_none_or(|own| registry::ahead(&queue, Some(own.number), gpu_keys).is_empty())
}

/// This process's place in the queue, which goes with this.
struct Place<'r> {
    registry: &'r Registry,
    run: ProcessId,
    is_held: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_held {
            return;
        }
        // Whatever goes wrong here, the place ends with this process.
        if self.registry.is_client() {
            let _ = system::clean(self.registry);
            return;
        }
        let Ok(lock) = self.registry.lock_to_plan() else { return };
        let Ok(queue) = lock.queue() else { return };
        for own in queue.iter().filter(|waiter| waiter.run == self.run) {
            let _ = lock.dequeue(own.number);
        }
    }
}
