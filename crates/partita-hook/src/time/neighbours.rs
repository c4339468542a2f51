//! Whether any other tenant of the GPU wants it.

use alloc::ffi::CString;
use core::ffi::CStr;

use partita_ledger::{
    LIMITS_FILE_NAME, Limits, MECHANISM_NONE, TIME_FILE_NAME, TimeView, USAGE_FILE_NAME, UsageView,
};

use crate::time::beside;

/// How long an answer is valid, in nanoseconds: a fraction of the period within which borrowed time
/// is returned.
const ANSWER_NS: u64 = 10_000_000;

/// The other tenants, as far as a soft share of time looks at them.
pub struct Neighbours {
    looked_ns: u64,
    want: bool,
    /// Launches of those that have no share of time, by then.
    launches: u64,
}

impl Neighbours {
    pub const fn new() -> Self {
        Self { looked_ns: 0, want: true, launches: 0 }
    }

    /// Whether any tenant beside the one in `directory` wants the GPU: one with a share of time has
    /// work in flight, one without has launched recently. True if the files are unreadable.
    pub fn want(&mut self, directory: &CStr, now_ns: u64) -> bool {
        if self.looked_ns != 0 && now_ns.saturating_sub(self.looked_ns) < ANSWER_NS {
            return self.want;
        }
        self.looked_ns = now_ns;
        let mut launches = 0u64;
        let mut want = false;
        let known = beside::for_each(directory, |other| match one(other, now_ns) {
            Use::Wants(wants) => want |= wants,
            Use::Launches(count) => launches = launches.wrapping_add(count),
            Use::Unknown => want = true,
        });
        self.want = want || known.is_none() || launches != self.launches;
        self.launches = launches;
        self.want
    }
}

enum Use {
    /// It has a share of time.
    Wants(bool),
    /// It has no share; its launches so far.
    Launches(u64),
    Unknown,
}

fn one(directory: &CStr, now_ns: u64) -> Use {
    let file = |name: &CStr| CString::new([directory.to_bytes(), b"/", name.to_bytes()].concat());
    let (Ok(time), Ok(usage)) = (file(TIME_FILE_NAME), file(USAGE_FILE_NAME)) else { return Use::Unknown };
    if let Ok(view) = TimeView::open(&time) {
        return view.wants(now_ns).map_or(Use::Unknown, Use::Wants);
    }
    // Without a partition its launches are not counted: while it is alive, it may want the GPU.
    if let Ok(limits) = file(LIMITS_FILE_NAME)
        && Limits::read(&limits).is_ok_and(|(_, limits)| limits.mechanism == MECHANISM_NONE)
    {
        return UsageView::open(&usage).map_or(Use::Unknown, |view| Use::Wants(beside::processes(&view) > 0));
    }
    match UsageView::open(&usage).and_then(|view| view.launches()) {
        Ok(launches) => Use::Launches(launches),
        // It has just ended.
        Err(error) if error.is_missing() => Use::Wants(false),
        Err(_) => Use::Unknown,
    }
}
