//! What a controller found or did, in words.

use partita_core::Count;
use partita_steering::Happening;

/// The line for it, and the new division, if it has one.
pub(super) fn of(what: &Happening) -> (String, Option<Vec<u32>>) {
    match what {
        Happening::Deviation { level_frames_per_s, frames_per_s, periods } => (
            format!(
                "{frames_per_s:.1} frames/s for {} instead of {level_frames_per_s:.1}",
                Count(*periods, "period")
            ),
            None,
        ),
        Happening::Shift { level_frames_per_s, frames_per_s } => (
            format!(
                "from {level_frames_per_s:.1} to {frames_per_s:.1} frames/s for several periods: a \
                new search"
            ),
            None,
        ),
        Happening::Search { before, after, before_frames_per_s, after_frames_per_s, trials, periods } => (
            format!(
                "searched for {}, {}: from {before} with {before_frames_per_s:.1} frames/s to {after} with \
                 {after_frames_per_s:.1}",
                Count(*periods, "period"),
                Count(trials.len(), "measurement")
            ),
            Some(after.tpcs().to_vec()),
        ),
        Happening::Rollback { from, to, frames_per_s, before_frames_per_s } => (
            format!(
                "{from} reverted to {to}: {frames_per_s:.1} frames/s instead of \
                 {before_frames_per_s:.1}"
            ),
            Some(to.tpcs().to_vec()),
        ),
        other => (other.name().to_owned(), None),
    }
}
