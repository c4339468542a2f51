//! Processes on the device.
//!
//! As the real library does, the list of compute processes names an MPS server in place of its
//! clients, with all that they use; the clients themselves are in the list of MPS compute
//! processes.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Handle, NvmlReturn, device, get, put};
use crate::shared::protocol::ProcessStatus;

/// The number of an instance where MIG is off.
const NO_INSTANCE: u32 = u32::MAX;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessV1 {
    /// Process id.
    pub pid: u32,
    /// Device memory that it uses, in bytes.
    pub used_bytes: u64,
}

/// `nvmlProcessInfo_v2_t`, also the form of the functions' third version.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessV2 {
    /// Process id.
    pub pid: u32,
    /// Device memory that it uses, in bytes.
    pub used_bytes: u64,
    /// Its GPU instance.
    pub gpu_instance: u32,
    /// Its compute instance.
    pub compute_instance: u32,
}

const _: () = assert!(size_of::<ProcessV1>() == 16 && size_of::<ProcessV2>() == 24);

impl From<ProcessV1> for ProcessV2 {
    fn from(process: ProcessV1) -> Self {
        let ProcessV1 { pid, used_bytes } = process;
        Self { pid, used_bytes, gpu_instance: NO_INSTANCE, compute_instance: NO_INSTANCE }
    }
}

/// Processes with their own contexts, and MPS servers for their clients.
fn compute(processes: &[ProcessStatus]) -> Vec<ProcessV1> {
    let mut listed: Vec<ProcessV1> = Vec::new();
    for process in processes.iter().filter(|process| process.contexts > 0) {
        let pid = process.mps.map_or(process.pid, |mps| mps.server);
        match listed.iter_mut().find(|listed| listed.pid == pid) {
            Some(listed) => listed.used_bytes += process.used_bytes,
            None => listed.push(ProcessV1 { pid, used_bytes: process.used_bytes }),
        }
    }
    listed
}

/// Clients of MPS servers.
fn mps(processes: &[ProcessStatus]) -> Vec<ProcessV1> {
    processes
        .iter()
        .filter(|process| process.contexts > 0 && process.mps.is_some())
        .map(|process| ProcessV1 { pid: process.pid, used_bytes: process.used_bytes })
        .collect()
}

/// Graphics processes: always an empty list.
fn graphics(_processes: &[ProcessStatus]) -> Vec<ProcessV1> {
    Vec::new()
}

type Choice = fn(&[ProcessStatus]) -> Vec<ProcessV1>;

/// Fills a program's array, or returns the required length.
///
/// # Safety
/// `count` is null or valid for reading and writing; `to` is null or valid for writing as many
/// elements as it says.
unsafe fn fill<T: From<ProcessV1>>(
    handle: Handle,
    count: *mut u32,
    to: *mut T,
    choose: Choice,
) -> Result<(), NvmlReturn> {
    let device = device(handle)?;
    // SAFETY: the caller's own demand.
    let room = unsafe { get(count) }?;
    let listed = choose(&device.status().processes);
    // SAFETY: the caller's own demand.
    unsafe { put(count, listed.len() as u32) }?;
    if listed.len() > room as usize {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    if listed.is_empty() {
        return Ok(());
    }
    if to.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    for (index, process) in listed.into_iter().enumerate() {
        // SAFETY: below `room`, which the array is long by the caller's word.
        unsafe { to.add(index).write_unaligned(process.into()) };
    }
    Ok(())
}

macro_rules! process_lists {
    ($($(#[$meta:meta])* $choose:ident => $v1:ident, $v2:ident, $v3:ident;)*) => {$(
        nvml_api! {
            $(#[$meta])*
            fn $v1(handle: Handle, count: *mut u32, to: *mut ProcessV1) { fill(handle, count, to, $choose) }
            $(#[$meta])*
            fn $v2(handle: Handle, count: *mut u32, to: *mut ProcessV2) { fill(handle, count, to, $choose) }
            $(#[$meta])*
            fn $v3(handle: Handle, count: *mut u32, to: *mut ProcessV2) { fill(handle, count, to, $choose) }
        }
    )*};
}

process_lists! {
    /// Processes with compute contexts, and MPS servers in place of their clients.
    compute => nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetComputeRunningProcesses_v2,
        nvmlDeviceGetComputeRunningProcesses_v3;
    /// Clients of MPS servers.
    mps => nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses_v2,
        nvmlDeviceGetMPSComputeRunningProcesses_v3;
    /// Graphics processes: none.
    graphics => nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses_v2,
        nvmlDeviceGetGraphicsRunningProcesses_v3;
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilizationSample {
    /// Process id.
    pub pid: u32,
    /// When the sample was taken, in microseconds since 1970.
    pub time_us: u64,
    /// Share of the period in which one of its kernels ran, in percent.
    pub sm_percent: u32,
    /// Of its accesses to memory. Not modelled: 0.
    pub memory_percent: u32,
    /// Of the encoder: 0.
    pub encoder_percent: u32,
    /// Of the decoder: 0.
    pub decoder_percent: u32,
}

const _: () = assert!(size_of::<UtilizationSample>() == 32);

/// One sample of each process that ran kernels in the last period.
fn samples(processes: &[ProcessStatus], time_us: u64) -> Vec<UtilizationSample> {
    let sample = |process: &ProcessStatus| UtilizationSample {
        pid: process.pid,
        time_us,
        sm_percent: process.sm_percent,
        memory_percent: 0,
        encoder_percent: 0,
        decoder_percent: 0,
    };
    processes.iter().filter(|process| process.sm_percent > 0).map(sample).collect()
}

nvml_api! {
    /// Utilisation by process, in the last period. A client of an MPS server has a sample of its
    /// own; what the real library says of one was not measured.
    fn nvmlDeviceGetProcessUtilization(handle: Handle, to: *mut UtilizationSample, count: *mut u32, since_us: u64) {
        let device = device(handle)?;
        let room = get(count)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let listed = samples(&device.status().processes, time_us);
        if listed.is_empty() || since_us > time_us {
            return Err(NvmlReturn::NOT_FOUND);
        }
        put(count, listed.len() as u32)?;
        if to.is_null() || listed.len() > room as usize {
            return Err(NvmlReturn::INSUFFICIENT_SIZE);
        }
        for (index, sample) in listed.into_iter().enumerate() {
            // The array is that long by the caller's word.
            to.add(index).write_unaligned(sample);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::protocol::MpsIdentity;

    fn process(pid: u32, contexts: u32, used_bytes: u64, server: Option<u32>) -> ProcessStatus {
        let mps = server.map(|server| MpsIdentity::unlimited(server, 1));
        ProcessStatus {
            pid,
            command: "tenant".to_owned(),
            contexts,
            used_bytes,
            mps,
            fault: 0,
            sm_percent: 0,
        }
    }

    #[test]
    fn a_server_stands_for_its_clients() {
        let processes = [
            process(10, 1, 100, None),
            process(11, 1, 20, Some(90)),
            process(12, 0, 0, None),
            process(13, 2, 3, Some(90)),
            process(14, 0, 0, Some(90)),
        ];
        let pairs = |listed: Vec<ProcessV1>| -> Vec<(u32, u64)> {
            listed.into_iter().map(|process| (process.pid, process.used_bytes)).collect()
        };
        assert_eq!(pairs(compute(&processes)), [(10, 100), (90, 23)]);
        assert_eq!(pairs(mps(&processes)), [(11, 20), (13, 3)]);
    }
}
