//! The management library as programs see it: through `nvml-wrapper`, from the built shared object.
//!
//! A thread plays the board, so that each figure is known. Each case runs in a separate process,
//! because the library reads its environment.

use crate::common;

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use common::library;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, ComputeMode, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use partita_simcuda::nvml::{NvmlReturn, absent};
use partita_simcuda::shared::place::{Place, usable_bytes};
use partita_simcuda::shared::protocol::{BoardStatus, MpsIdentity, ProcessStatus, Reply, Request};
use partita_simcuda::shared::socket::{self, Received};
use partita_simcuda::shared::visible::{device_uuid, uuid_text};
use partita_testing::ignored_test;

const MIB: u64 = 1 << 20;

fn nvml() -> Nvml {
    Nvml::builder().lib_path(library().as_os_str()).init().unwrap()
}

/// Runs the ignored test `case` in a separate process that sees `device` in `dir`.
fn run(case: &str, device: &str, dir: &Path) {
    run_on(case, device, "1", dir);
}

/// As [`run`], on a machine with several GPUs.
fn run_on(case: &str, device: &str, gpus: &str, dir: &Path) {
    let output = ignored_test(case)
        .env("PARTITA_SIM_DEVICE", device)
        .env("PARTITA_SIM_GPUS", gpus)
        .env("PARTITA_SIM_DIR", dir)
        .output()
        .unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// A board that answers each observer with `status`, until the process ends.
fn play_board(place: &Place, status: BoardStatus) {
    place.make_dir().unwrap();
    let listener = socket::listen(&place.socket()).unwrap();
    std::thread::spawn(move || {
        loop {
            let Some(connection) = socket::accept(listener.as_fd()).unwrap() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            loop {
                let request = match socket::receive(connection.as_fd()) {
                    Ok(Received::Packet(packet, _)) => postcard::from_bytes(&packet).unwrap(),
                    Ok(Received::Nothing) => {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    _ => break,
                };
                let reply = match request {
                    Request::Hello { .. } => {
                        Reply::Welcome { device: "h200".to_owned(), instance: 1, sms: 132 }
                    }
                    Request::Status => Reply::Status(status.clone()),
                    other => panic!("an observer asks {other:?}"),
                };
                socket::send(connection.as_fd(), &postcard::to_allocvec(&reply).unwrap(), &[]).unwrap();
            }
        }
    });
}

fn process(pid: u32, used_bytes: u64, server: Option<u32>) -> ProcessStatus {
    let mps = server.map(|server| MpsIdentity::unlimited(server, 1));
    ProcessStatus {
        pid,
        command: "tenant".to_owned(),
        contexts: 1,
        used_bytes,
        mps,
        fault: 0,
        sm_percent: pid,
    }
}

#[test]
fn a_device_without_a_board_is_idle_and_stays_without() {
    let dir = tempfile::tempdir().unwrap();
    run("idle", "h200", dir.path());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "looking started something");
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn idle() {
    let nvml = nvml();
    let place = Place::from_env().unwrap();
    assert_eq!(nvml.device_count().unwrap(), 1);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.04");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    assert!(nvml.sys_nvml_version().unwrap().ends_with("580.159.04"));

    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA H200");
    assert_eq!(device.uuid().unwrap(), uuid_text(device_uuid(&place)));
    let capability = device.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (9, 0));
    let memory = device.memory_info().unwrap();
    let usable = usable_bytes(&place.spec);
    assert_eq!((memory.total, memory.used, memory.free), (143_771 * MIB, 0, usable));
    assert_eq!(memory.reserved, 143_771 * MIB - usable);
    assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
    assert_eq!(device.mig_mode().unwrap().current, 0);
    assert!(matches!(device.mig_device_by_index(0), Err(NvmlError::NotSupported)));
    assert!(!device.is_in_persistent_mode().unwrap());
    assert!(device.running_compute_processes().unwrap().is_empty());
    assert!(device.mps_running_compute_processes().unwrap().is_empty());
    assert_eq!(device.utilization_rates().unwrap().gpu, 0);
    assert!(device.temperature(TemperatureSensor::Gpu).unwrap() < 40);
    let limit = device.enforced_power_limit().unwrap();
    assert_eq!(limit, 700_000);
    assert!(device.power_usage().unwrap() < limit / 5);
    assert_eq!(device.max_clock_info(Clock::SM).unwrap(), 1980);
    assert!(device.clock_info(Clock::SM).unwrap() < 500);
    assert_eq!(device.num_cores().unwrap(), 132 * 128);

    let pci = device.pci_info().unwrap();
    assert_eq!(pci.pci_device_id, 0x2335_10de);
    assert_eq!(pci.bus_id, "00000000:1B:00.0");
    let same = [
        nvml.device_by_pci_bus_id(pci.bus_id.as_str()).unwrap(),
        nvml.device_by_uuid(device.uuid().unwrap()).unwrap(),
    ];
    assert!(same.iter().all(|other| other.index().unwrap() == 0));
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-none"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_pci_bus_id("0000:02:00.0"), Err(NvmlError::NotFound)));
}

#[test]
fn every_gpu_of_the_machine_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    run_on("several", "a100", "3", dir.path());
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn several() {
    let nvml = nvml();
    let places = Place::all_from_env().unwrap();
    assert_eq!((nvml.device_count().unwrap(), places.len()), (3, 3));
    for (index, place) in (0..).zip(&places) {
        let device = nvml.device_by_index(index).unwrap();
        let (uuid, bus) = (device.uuid().unwrap(), device.pci_info().unwrap().bus_id);
        assert_eq!(uuid, uuid_text(device_uuid(place)));
        assert_eq!(bus, format!("00000000:{:02X}:00.0", 0x1b + index));
        assert_eq!((device.index().unwrap(), device.minor_number().unwrap()), (index, index));
        for same in [nvml.device_by_uuid(uuid).unwrap(), nvml.device_by_pci_bus_id(bus).unwrap()] {
            assert_eq!(same.index().unwrap(), index);
        }
        let other = nvml.device_by_index((index + 1) % 3).unwrap();
        assert!(!device.is_on_same_board_as(&other).unwrap());
    }
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::InvalidArg)));
    // The state of one board is not that of another.
    let processes = vec![process(std::process::id(), 7 * MIB, None)];
    play_board(
        &places[1],
        BoardStatus { used_bytes: 7 * MIB, busy_percent: 0, memory_percent: 0, corruptions: 0, processes },
    );
    let used = |index| nvml.device_by_index(index).unwrap().memory_info().unwrap().used;
    assert_eq!([0, 1, 2].map(used), [0, 7 * MIB, 0]);
}

#[test]
fn a_boards_state_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    run("busy", "h200", dir.path());
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn busy() {
    let processes =
        vec![process(10, 600 * MIB, None), process(11, 20 * MIB, Some(9)), process(12, MIB, Some(9))];
    play_board(
        &Place::from_env().unwrap(),
        BoardStatus {
            used_bytes: 621 * MIB,
            busy_percent: 80,
            memory_percent: 30,
            corruptions: 0,
            processes,
        },
    );
    let nvml = nvml();
    let device = nvml.device_by_index(0).unwrap();
    let memory = device.memory_info().unwrap();
    let usable = usable_bytes(&Place::from_env().unwrap().spec);
    assert_eq!((memory.used, memory.free), (621 * MIB, usable - 621 * MIB));
    let rates = device.utilization_rates().unwrap();
    assert_eq!((rates.gpu, rates.memory), (80, 30));
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 1980);
    assert!(device.power_usage().unwrap() > 350_000);
    let used = |listed: Vec<nvml_wrapper::struct_wrappers::device::ProcessInfo>| -> Vec<(u32, u64)> {
        listed
            .into_iter()
            .map(|process| match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => (process.pid, bytes),
                UsedGpuMemory::Unavailable => panic!("{} uses nothing", process.pid),
            })
            .collect()
    };
    assert_eq!(used(device.running_compute_processes().unwrap()), [(10, 600 * MIB), (9, 21 * MIB)]);
    assert_eq!(used(device.mps_running_compute_processes().unwrap()), [(11, 20 * MIB), (12, MIB)]);
    // These processes are as busy as their number says.
    let samples = device.process_utilization_stats(0).unwrap();
    let busy: Vec<(u32, u32)> = samples.iter().map(|sample| (sample.pid, sample.sm_util)).collect();
    assert_eq!(busy, [(10, 10), (11, 11), (12, 12)]);
    assert!(matches!(device.process_utilization_stats(u64::MAX), Err(NvmlError::NotFound)));
}

#[test]
fn another_device_is_another_device() {
    let dir = tempfile::tempdir().unwrap();
    run("pascal", "sim:gtx1060-3gb", dir.path());
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn pascal() {
    let nvml = nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA GeForce GTX 1060 3GB");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 11_040);
    assert!(matches!(device.is_ecc_enabled(), Err(NvmlError::NotSupported)));
}

#[test]
fn an_unknown_device_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    run("unknown", "h900", dir.path());
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn unknown() {
    let error = Nvml::builder().lib_path(library().as_os_str()).init().unwrap_err();
    assert!(matches!(error, NvmlError::Unknown), "{error:?}");
}

#[test]
fn every_function_is_there_and_minds_its_arguments() {
    let dir = tempfile::tempdir().unwrap();
    run("raw", "h200", dir.path());
}

type NoArguments = unsafe extern "C" fn() -> NvmlReturn;
type ErrorString = unsafe extern "C" fn(u32) -> *const c_char;
type OneHandle = unsafe extern "C" fn(*mut c_void, *mut u64) -> NvmlReturn;

/// The address of a function of the built library.
fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: the handle comes from dlopen and the name is a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "{name:?} is not exported");
    address
}

#[test]
#[ignore = "another test runs this in a separate process"]
fn raw() {
    let path = std::ffi::CString::new(library().to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string; the library's constructors have no demands.
    let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!opened.is_null());
    // SAFETY: both functions take no arguments.
    let (start, end) = unsafe {
        let function = |name| std::mem::transmute::<*mut c_void, NoArguments>(symbol(opened, name));
        (function("nvmlInit_v2"), function("nvmlShutdown"))
    };
    // SAFETY: `unsigned long long *` after the device.
    let reasons: OneHandle =
        unsafe { std::mem::transmute(symbol(opened, "nvmlDeviceGetCurrentClocksEventReasons")) };
    let mut value = 0;
    // SAFETY: the pointer is a local's; handles are compared and never followed.
    unsafe {
        assert_eq!(end(), NvmlReturn::UNINITIALIZED);
        assert_eq!(reasons(std::ptr::null_mut(), &mut value), NvmlReturn::UNINITIALIZED);
        assert_eq!(start(), NvmlReturn::SUCCESS);
        assert_eq!(start(), NvmlReturn::SUCCESS);
        assert_eq!(end(), NvmlReturn::SUCCESS);
        assert_eq!(reasons(std::ptr::null_mut(), &mut value), NvmlReturn::INVALID_ARGUMENT);
        assert_eq!(reasons(0x1234 as *mut _, &mut value), NvmlReturn::INVALID_ARGUMENT);
    }
    for name in absent::NAMES {
        // SAFETY: these functions look at none of their arguments.
        let answer = unsafe { std::mem::transmute::<*mut c_void, NoArguments>(symbol(opened, name))() };
        assert_eq!(answer, NvmlReturn::NOT_SUPPORTED, "{name}");
    }
    // SAFETY: takes a number, returns a string that lives as long as the library.
    let texts = unsafe { std::mem::transmute::<*mut c_void, ErrorString>(symbol(opened, "nvmlErrorString")) };
    for code in (0..40).chain([999, u32::MAX]) {
        // SAFETY: as above.
        assert!(!unsafe { CStr::from_ptr(texts(code)) }.is_empty(), "{code}");
    }
    // SAFETY: no arguments.
    assert_eq!(unsafe { end() }, NvmlReturn::SUCCESS);
}
