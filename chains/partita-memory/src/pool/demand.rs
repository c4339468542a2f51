//! How many blocks of a size a tenant needs.

/// The number of windows for which the highest use is remembered.
pub const WINDOWS: usize = 50;

/// The highest simultaneous use in blocks, window by window.
#[derive(Debug)]
pub(crate) struct Demand {
    window_ms: u64,
    /// The number of the current window, from the clock's zero.
    window: u64,
    /// The last recorded use.
    used: u32,
    /// At `window % WINDOWS`, the current one's.
    peaks: [u32; WINDOWS],
}

impl Demand {
    pub(crate) fn new(window_ms: u64, now_ms: u64) -> Self {
        let window_ms = window_ms.max(1);
        Self { window_ms, window: now_ms / window_ms, used: 0, peaks: [0; WINDOWS] }
    }

    /// Records how many blocks are used from now on. A clock that goes back counts as standing
    /// still.
    pub(crate) fn note(&mut self, used: u64, now_ms: u64) {
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        let window = (now_ms / self.window_ms).max(self.window);
        if let Some(next) = self.window.checked_add(1) {
            // Windows beyond the remembered ones are all alike.
            let first = next.max(window.saturating_sub(WINDOWS as u64 - 1));
            for passed in first..=window {
                self.peaks[passed as usize % WINDOWS] = self.used;
            }
        }
        self.window = window;
        self.used = used;
        let current = &mut self.peaks[window as usize % WINDOWS];
        *current = (*current).max(used);
    }

    fn back(&self, windows: u64) -> u32 {
        self.window.checked_sub(windows).map_or(0, |window| self.peaks[window as usize % WINDOWS])
    }

    /// The growth of the use from window to window, in each of the last two complete steps: the
    /// expected growth in the next window. A single jump is not growth.
    pub(crate) fn growth(&self) -> u64 {
        let last = self.back(0).saturating_sub(self.back(1));
        let before = self.back(1).saturating_sub(self.back(2));
        u64::from(last.min(before))
    }

    /// The intended number of blocks.
    pub(crate) fn target(&self) -> u64 {
        u64::from(self.peaks.iter().copied().max().unwrap_or(0)) + self.growth()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_remembered_for_as_long_as_there_are_windows() {
        let mut demand = Demand::new(100, 1000);
        demand.note(0, 1000);
        demand.note(40, 1010);
        demand.note(3, 1020);
        assert_eq!((demand.target(), demand.growth()), (40, 0));
        demand.note(3, 1000 + 100 * (WINDOWS as u64 - 1));
        assert_eq!(demand.target(), 40);
        demand.note(3, 1000 + 100 * WINDOWS as u64);
        assert_eq!(demand.target(), 3);
        // At any later time.
        demand.note(2, u64::MAX);
        assert_eq!(demand.target(), 3, "what was used all the while");
    }

    #[test]
    fn what_grows_is_met_before_it_asks() {
        let mut demand = Demand::new(100, 0);
        for (window, used) in [0, 10, 25, 45].into_iter().enumerate() {
            demand.note(used, window as u64 * 100);
        }
        assert_eq!((demand.growth(), demand.target()), (15, 60));
        demand.note(45, 400);
        assert_eq!((demand.growth(), demand.target()), (0, 45));
    }

    #[test]
    fn a_clock_that_goes_back_stands_still() {
        let mut demand = Demand::new(100, 5000);
        demand.note(7, 5000);
        demand.note(9, 10);
        assert_eq!(demand.target(), 9);
    }

    #[test]
    fn the_last_window_is_one_like_others() {
        let mut demand = Demand::new(1, u64::MAX - 1);
        for (used, now_ms) in [(7, u64::MAX - 1), (7, u64::MAX), (3, u64::MAX)] {
            demand.note(used, now_ms);
        }
        assert_eq!(demand.target(), 7);
    }
}
