//! Cycles of an SM's clock, and nanoseconds.

/// Nanoseconds of so many cycles.
pub(super) fn cycles_to_ns(cycles: u64, khz: u32) -> u64 {
    u64::try_from(u128::from(cycles) * 1_000_000 / u128::from(khz.max(1))).unwrap_or(u64::MAX)
}

/// Cycles of so many nanoseconds.
pub(super) fn ns_to_cycles(ns: u64, khz: u32) -> u64 {
    u64::try_from((u128::from(ns) * u128::from(khz)).div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
