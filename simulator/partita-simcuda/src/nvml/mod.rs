//! The management library: the functions of `nvml.h` that monitoring programs call, exported with
//! the C ABI from the same shared object as the driver API.
//!
//! The devices are those that `PARTITA_SIM_DEVICE` and `PARTITA_SIM_GPUS` name, regardless of
//! `CUDA_VISIBLE_DEVICES`. Their properties come from the catalogue; their state comes from the
//! board, which each call queries. A query never starts a board: without one the device is idle,
//! its memory is free and no process runs on it.
//!
//! | module | functions |
//! |---|---|
//! | [`library`] | start and end, errors' names, versions |
//! | [`identity`] | finding the device, and its constant properties |
//! | [`pci`] | its place on the bus |
//! | [`memory`] | memory in use |
//! | [`process`] | its processes |
//! | [`sensor`] | utilization, clocks, power, temperature |
//! | [`mig`] | its MIG instances as devices |
//! | [`mig_instance`] | profiles of instances, and their creation and destruction |
//! | `mig_fault` | failures of these on demand |
//! | [`vgpu`] | the host side of vGPUs |
//! | [`absent`] | everything else, which returns `NVML_ERROR_NOT_SUPPORTED` |

/// Defines entry points. The body is a `Result`; the program gets its error.
macro_rules! nvml_api {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident : $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$meta])*
        ///
        /// Arguments and errors as in `nvml.h`.
        ///
        /// # Safety
        /// As NVML requires: pointers are null or valid for what the function reads or writes.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::nvml::NvmlReturn {
            #[allow(unused_unsafe, clippy::redundant_closure_call)]
            // SAFETY: the body hands the caller's pointers on to functions with the same demands.
            let result: Result<(), $crate::nvml::NvmlReturn> = unsafe { (|| $body)() };
            result.err().unwrap_or($crate::nvml::NvmlReturn::SUCCESS)
        }
    )*};
}

/// Defines entry points that store one value of one device.
macro_rules! nvml_getters {
    ($(
        $(#[$meta:meta])*
        fn $name:ident -> $type:ty = |$device:ident| $value:expr;
    )*) => {$(
        nvml_api! {
            $(#[$meta])*
            fn $name(device: $crate::nvml::Handle, to: *mut $type) {
                let $device = $crate::nvml::device(device)?;
                $crate::nvml::put(to, $value)
            }
        }
    )*};
}

pub mod absent;
pub mod identity;
pub mod library;
pub mod memory;
pub mod mig;
mod mig_fault;
pub mod mig_instance;
pub mod pci;
pub mod process;
pub mod sensor;
pub mod vgpu;

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::shared::ask::observe;
use crate::shared::place::{GPUS_MAX, INSTANCES_MAX, Place};
use crate::shared::protocol::{BoardStatus, Reply, Request};
use crate::shared::visible::name_of;

/// `nvmlReturn_t`. The numbers are those of `nvml.h`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the result says whether the call did anything"]
pub struct NvmlReturn(pub u32);

impl NvmlReturn {
    /// Done.
    pub const SUCCESS: Self = Self(0);
    /// `nvmlInit` has not been called.
    pub const UNINITIALIZED: Self = Self(1);
    /// A null pointer, a foreign handle, a number out of range.
    pub const INVALID_ARGUMENT: Self = Self(2);
    /// Not on this device.
    pub const NOT_SUPPORTED: Self = Self(3);
    /// The caller may not do this.
    pub const NO_PERMISSION: Self = Self(4);
    /// There is no such thing.
    pub const NOT_FOUND: Self = Self(6);
    /// The program's buffer is too small.
    pub const INSUFFICIENT_SIZE: Self = Self(7);
    /// Another process uses it.
    pub const IN_USE: Self = Self(19);
    /// There is no room for it.
    pub const INSUFFICIENT_RESOURCES: Self = Self(23);
    /// A structure's version is not known.
    pub const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    /// Anything else.
    pub const UNKNOWN: Self = Self(999);
}

/// `nvmlDevice_t`: opaque to programs.
pub type Handle = *mut c_void;

/// A device, as found when the library was started.
#[derive(Debug)]
pub(crate) struct Device {
    /// Which device and where its board is.
    pub place: Place,
    /// `GPU-…`, the same text that the driver API's identifier has; of a MIG instance `MIG-…`.
    pub uuid: String,
}

impl Device {
    fn of(place: Place) -> Arc<Self> {
        Arc::new(Self { uuid: name_of(&place), place })
    }

    fn all() -> Result<Vec<Arc<Self>>, NvmlReturn> {
        let gpus = Place::all_from_env().map_err(report)?;
        // A machine whose instances cannot be has no working driver.
        gpus.iter().try_for_each(|gpu| gpu.instances().map(drop)).map_err(report)?;
        Ok(gpus.into_iter().map(Self::of).collect())
    }

    /// Its MIG instances at this time; `None` without MIG, and for an instance.
    pub fn instances(&self) -> Result<Option<Vec<Arc<Self>>>, NvmlReturn> {
        if self.place.gpu_instance().is_some() {
            return Ok(None);
        }
        let instances = self.place.instances().map_err(report)?;
        Ok(instances.map(|all| all.into_iter().map(Self::of).collect()))
    }

    /// The board's state; that of an idle device when no board runs.
    pub fn status(&self) -> BoardStatus {
        match observe(&self.place, &Request::Status) {
            Some(Reply::Status(status)) => status,
            _ => BoardStatus {
                used_bytes: 0,
                busy_percent: 0,
                memory_percent: 0,
                corruptions: 0,
                processes: Vec::new(),
            },
        }
    }
}

fn report(error: std::io::Error) -> NvmlReturn {
    eprintln!("partita-sim: {error}");
    NvmlReturn::UNKNOWN
}

/// How often the library was started and not yet ended, and the devices meanwhile.
#[derive(Debug)]
struct Library {
    starts: u32,
    devices: Vec<Arc<Device>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { starts: 0, devices: Vec::new() });

/// The targets of valid handles. Never read: the addresses are the handles.
static HANDLES: [u8; HANDLES_MAX] = [0; HANDLES_MAX];
/// Handles of a GPU: its own, and those of its instances.
const HANDLES_OF_GPU: usize = 1 + INSTANCES_MAX;
const HANDLES_MAX: usize = GPUS_MAX as usize * HANDLES_OF_GPU;

fn start() -> Result<(), NvmlReturn> {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    if library.starts == 0 {
        library.devices = Device::all()?;
    }
    library.starts += 1;
    Ok(())
}

fn end() -> Result<(), NvmlReturn> {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    library.starts = library.starts.checked_sub(1).ok_or(NvmlReturn::UNINITIALIZED)?;
    if library.starts == 0 {
        library.devices.clear();
    }
    Ok(())
}

/// All devices. There is at least one.
fn devices() -> Result<Vec<Arc<Device>>, NvmlReturn> {
    let library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    if library.starts == 0 { Err(NvmlReturn::UNINITIALIZED) } else { Ok(library.devices.clone()) }
}

/// The first device, for common properties.
fn first_device() -> Result<Arc<Device>, NvmlReturn> {
    devices()?.into_iter().next().ok_or(NvmlReturn::UNKNOWN)
}

/// The device of a handle.
fn device(handle: Handle) -> Result<Arc<Device>, NvmlReturn> {
    let index = handle.addr().wrapping_sub((&raw const HANDLES).addr());
    let devices = devices()?;
    let gpu = devices.get(index / HANDLES_OF_GPU).ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    match index % HANDLES_OF_GPU {
        0 => Ok(Arc::clone(gpu)),
        number => {
            let is_meant = |one: &Arc<Device>| one.place.gpu_instance() == Some(number as u32);
            let instances = gpu.instances()?.unwrap_or_default();
            instances.into_iter().find(is_meant).ok_or(NvmlReturn::INVALID_ARGUMENT)
        }
    }
}

/// The handle of a device.
fn handle_of(device: &Device) -> Handle {
    let of_instance = device.place.gpu_instance().map_or(0, |number| number as usize);
    (&raw const HANDLES[device.place.index as usize * HANDLES_OF_GPU + of_instance]).cast_mut().cast()
}

/// Stores a result where the program wants it.
///
/// # Safety
/// The pointer is null or valid for writing a `T`.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), NvmlReturn> {
    if to.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid by the caller's word; C programs may misalign their structures.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads what a program points to.
///
/// # Safety
/// The pointer is null or valid for reading a `T`.
unsafe fn get<T: Copy>(from: *const T) -> Result<T, NvmlReturn> {
    if from.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid by the caller's word.
    Ok(unsafe { from.read_unaligned() })
}

/// Copies text and a zero byte into a program's buffer, or fails if it does not fit.
///
/// # Safety
/// The pointer is null or valid for writing `length` bytes.
unsafe fn put_text(to: *mut c_char, length: u32, text: &str) -> Result<(), NvmlReturn> {
    if to.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(NvmlReturn::INSUFFICIENT_SIZE);
    }
    // SAFETY: text and zero byte fit into `length` bytes, which are valid by the caller's word.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// A string that a program points to.
///
/// # Safety
/// The pointer is null or points to a string that ends with a zero byte.
unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, NvmlReturn> {
    if from.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so a C string by the caller's word.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| NvmlReturn::INVALID_ARGUMENT)
}
