//! The meeting of a process's threads: before the first iteration, and before each if they should
//! start it together.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::wire::{AT_BARRIER, READY};

#[derive(Debug, Default)]
struct State {
    /// Threads that have not ended.
    present: usize,
    /// Threads that wait.
    waiting: usize,
    /// Barriers that all have passed.
    rounds: u64,
    begin_ns: Option<u64>,
    /// Threads that have not launched yet, and for which others wait.
    to_launch: usize,
    stopped: bool,
}

#[derive(Debug)]
pub(super) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
    /// Barriers are met through the parent.
    is_one_of_several: bool,
}

impl Meeting {
    /// Of this many threads. With `launch_first`, no thread passes [`Self::launched`] before all
    /// have arrived.
    pub(super) fn new(threads: usize, is_one_of_several: bool, launch_first: bool) -> Self {
        let to_launch = if launch_first { threads } else { 0 };
        let state = Mutex::new(State { present: threads, to_launch, ..State::default() });
        Self { state, changed: Condvar::new(), is_one_of_several }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panics ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'g>(&self, state: MutexGuard<'g, State>) -> MutexGuard<'g, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread is ready; returns when all should start.
    pub(super) fn ready(&self) -> u64 {
        let mut state = self.lock();
        state.waiting += 1;
        if state.waiting == state.present {
            state.waiting = 0;
            say(READY);
        }
        loop {
            match state.begin_ns {
                Some(begin_ns) => return begin_ns,
                None => state = self.wait(state),
            }
        }
    }

    /// Sets the start time.
    pub(super) fn begin(&self, begin_ns: u64) {
        self.lock().begin_ns = Some(begin_ns);
        self.changed.notify_all();
    }

    /// A thread has launched its first kernel, or never will.
    pub(super) fn has_launched(&self) {
        let mut state = self.lock();
        state.to_launch = state.to_launch.saturating_sub(1);
        if state.to_launch == 0 {
            self.changed.notify_all();
        }
    }

    /// The same, and it waits until all have.
    pub(super) fn launched(&self) {
        self.has_launched();
        let mut state = self.lock();
        while state.to_launch > 0 && !state.stopped {
            state = self.wait(state);
        }
    }

    /// Waits until all running threads have arrived, or all should stop.
    pub(super) fn barrier(&self) {
        let mut state = self.lock();
        let round = state.rounds;
        state.waiting += 1;
        self.arrived(&mut state);
        while state.rounds == round && !state.stopped {
            state = self.wait(state);
        }
    }

    fn arrived(&self, state: &mut State) {
        if state.waiting < state.present || state.present == 0 {
            return;
        }
        if self.is_one_of_several {
            say(AT_BARRIER);
        } else {
            pass(state);
            self.changed.notify_all();
        }
    }

    /// All are at the barrier, in other processes too.
    pub(super) fn go(&self) {
        pass(&mut self.lock());
        self.changed.notify_all();
    }

    /// A thread has ended.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.present -= 1;
        if state.waiting > 0 {
            self.arrived(&mut state);
        }
    }

    /// All end after their iteration.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Whether they should end.
    pub(super) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }
}

fn pass(state: &mut State) {
    state.waiting = 0;
    state.rounds += 1;
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    // Without a parent the run is useless, and the system ends this process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn those_that_are_left_meet() {
        let meeting = Arc::new(Meeting::new(3, false, false));
        let turns = |count: u32| {
            let meeting = Arc::clone(&meeting);
            thread::spawn(move || {
                for _ in 0..count {
                    meeting.barrier();
                }
                meeting.leave();
                count
            })
        };
        let threads = [turns(1), turns(5), turns(9)];
        assert_eq!(threads.map(|thread| thread.join().unwrap()), [1, 5, 9]);
    }

    #[test]
    fn no_thread_continues_before_all_have_launched() {
        let meeting = Arc::new(Meeting::new(3, false, true));
        let waiting = {
            let meeting = Arc::clone(&meeting);
            thread::spawn(move || {
                meeting.launched();
                meeting.lock().to_launch
            })
        };
        meeting.has_launched();
        meeting.launched();
        assert_eq!(waiting.join().unwrap(), 0);
        // If no other thread has to launch first, one alone continues.
        Meeting::new(3, false, false).launched();
    }

    #[test]
    fn no_thread_waits_after_a_stop() {
        let meeting = Meeting::new(2, false, false);
        assert!(!meeting.is_stopped());
        meeting.stop();
        meeting.barrier();
        assert!(meeting.is_stopped());
    }
}
