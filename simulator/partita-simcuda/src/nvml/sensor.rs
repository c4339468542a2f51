//! Utilization, clocks, power and temperature.
//!
//! The engine has no model of power: from the board's utilization a linear one is made, between the
//! idle figures below and the limits of the catalogue. Good enough to draw a line that moves; no
//! measurement.

use super::{BoardStatus, Device, Handle, NvmlReturn, device, put};

/// Power of an idle board, in percent of its limit: about 75 W of 700 W on data centre boards.
const POWER_IDLE_PERCENT: u32 = 11;
/// Lowest power limit that can be set, in percent of the default.
const POWER_LIMIT_LOWEST_PERCENT: u32 = 30;
/// Temperature of an idle and of a busy board, in degrees Celsius.
const TEMPERATURE_IDLE_C: u32 = 32;
const TEMPERATURE_BUSY_C: u32 = 68;
/// SM clock of an idle board, in MHz.
const SM_IDLE_MHZ: u32 = 345;
/// `NVML_TEMPERATURE_GPU`.
const TEMPERATURE_GPU: u32 = 0;
/// `nvmlClocksEventReasonGpuIdle`.
const CLOCKS_IDLE: u64 = 1;

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Utilization {
    /// Share of the last period in which a kernel ran, in percent.
    pub gpu: u32,
    /// Share of the last period in which memory was read or written, in percent.
    pub memory: u32,
}

impl Utilization {
    fn of(status: &BoardStatus) -> Self {
        Self { gpu: status.busy_percent, memory: status.memory_percent }
    }
}

/// Between an idle and a busy figure.
fn between(idle: u32, busy: u32, percent: u32) -> u32 {
    idle + (busy - idle) * percent.min(100) / 100
}

fn is_idle(device: &Device) -> bool {
    device.status().processes.is_empty()
}

fn power_mw(device: &Device) -> u32 {
    let limit = device.place.spec.board.power_limit_mw;
    between(limit / 100 * POWER_IDLE_PERCENT, limit, device.status().busy_percent)
}

fn power_lowest_mw(device: &Device) -> u32 {
    device.place.spec.board.power_limit_mw / 100 * POWER_LIMIT_LOWEST_PERCENT
}

/// The highest clock of a kind, in MHz.
fn clock_max_mhz(device: &Device, kind: u32) -> Result<u32, NvmlReturn> {
    let clocks = device.place.spec.clocks;
    match kind {
        // Graphics, SM.
        0 | 1 => Ok(clocks.sm_khz / 1000),
        2 => Ok(clocks.memory_khz / 1000),
        // Video.
        3 => Err(NvmlReturn::NOT_SUPPORTED),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

/// The present clock of a kind, in MHz: the highest as soon as any process has the device open.
fn clock_mhz(device: &Device, kind: u32) -> Result<u32, NvmlReturn> {
    let highest = clock_max_mhz(device, kind)?;
    Ok(if kind < 2 && is_idle(device) { SM_IDLE_MHZ.min(highest) } else { highest })
}

nvml_getters! {
    /// Utilization.
    fn nvmlDeviceGetUtilizationRates -> Utilization = |device| Utilization::of(&device.status());
    /// Power drawn, in milliwatts.
    fn nvmlDeviceGetPowerUsage -> u32 = |device| power_mw(&device);
    /// Power limit, in milliwatts.
    fn nvmlDeviceGetPowerManagementLimit -> u32 = |device| device.place.spec.board.power_limit_mw;
    /// Default power limit, in milliwatts.
    fn nvmlDeviceGetPowerManagementDefaultLimit -> u32 = |device| device.place.spec.board.power_limit_mw;
    /// The lowest of all power limits, in milliwatts.
    fn nvmlDeviceGetEnforcedPowerLimit -> u32 = |device| device.place.spec.board.power_limit_mw;
    /// Whether power is limited.
    fn nvmlDeviceGetPowerManagementMode -> u32 = |_device| 1;
    /// Performance state: 0 in use, 8 idle.
    fn nvmlDeviceGetPerformanceState -> u32 = |device| if is_idle(&device) { 8 } else { 0 };
    /// Performance state; the older name.
    fn nvmlDeviceGetPowerState -> u32 = |device| if is_idle(&device) { 8 } else { 0 };
    /// Why clocks are not at their highest.
    fn nvmlDeviceGetCurrentClocksEventReasons -> u64 = |device| if is_idle(&device) { CLOCKS_IDLE } else { 0 };
    /// Why clocks are not at their highest; the older name.
    fn nvmlDeviceGetCurrentClocksThrottleReasons -> u64 = |device| if is_idle(&device) { CLOCKS_IDLE } else { 0 };
}

nvml_api! {
    /// Temperature of the chip, in degrees Celsius.
    fn nvmlDeviceGetTemperature(handle: Handle, sensor: u32, to: *mut u32) {
        let device = device(handle)?;
        if sensor != TEMPERATURE_GPU {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        put(to, between(TEMPERATURE_IDLE_C, TEMPERATURE_BUSY_C, device.status().busy_percent))
    }
    /// Present clock, in MHz.
    fn nvmlDeviceGetClockInfo(handle: Handle, kind: u32, to: *mut u32) {
        put(to, clock_mhz(&*device(handle)?, kind)?)
    }
    /// Highest clock, in MHz.
    fn nvmlDeviceGetMaxClockInfo(handle: Handle, kind: u32, to: *mut u32) {
        put(to, clock_max_mhz(&*device(handle)?, kind)?)
    }
    /// A clock, in MHz: the present one, or the highest there is.
    fn nvmlDeviceGetClock(handle: Handle, kind: u32, which: u32, to: *mut u32) {
        let device = device(handle)?;
        match which {
            0 => put(to, clock_mhz(&device, kind)?),
            3 => put(to, clock_max_mhz(&device, kind)?),
            // Application clocks cannot be set.
            1 | 2 => Err(NvmlReturn::NOT_SUPPORTED),
            _ => Err(NvmlReturn::INVALID_ARGUMENT),
        }
    }
    /// Lowest and highest power limit that could be set, in milliwatts.
    fn nvmlDeviceGetPowerManagementLimitConstraints(handle: Handle, lowest: *mut u32, highest: *mut u32) {
        let device = device(handle)?;
        put(lowest, power_lowest_mw(&device))?;
        put(highest, device.place.spec.board.power_limit_mw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_move_between_idle_and_busy() {
        assert_eq!(between(32, 68, 0), 32);
        assert_eq!(between(32, 68, 50), 50);
        assert_eq!(between(32, 68, 100), 68);
        assert_eq!(between(32, 68, 900), 68);
        assert_eq!(between(77_000, 700_000, 100), 700_000);
    }
}
