//! The kernel driver's device nodes, as far as they report where SMs are and how long time slices
//! are: `/dev/nvidiactl` and `/dev/nvidiaN`.
//!
//! A process cannot get device nodes without root, so the simulated libcuda has three functions
//! that stand for `open`, `ioctl` and `close`. Requests and structures are those of the published
//! kernel modules (`partita_abi::control`), and the answers, refusals included, are those of an
//! H200's driver 580.159.04. As with the real nodes nothing depends on `cuInit` or on
//! `CUDA_VISIBLE_DEVICES`.

mod answer;
pub mod group;
mod memory;
mod object;
pub mod vidmem;

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::collections::BTreeMap;
use std::sync::Mutex;

use partita_abi::control::{
    CARD_BUS_AT, CARD_BYTES, CARD_DOMAIN_AT, CARD_GPU_ID_AT, CARD_INFO, CARD_MINOR_AT, CARD_SLOT_AT,
    CARD_VALID_AT, CLASS_DEVICE, CLASS_DEVICE_BYTES, CLASS_DEVICE_MEMORY, CLASS_ROOT, CLASS_SUBDEVICE,
    CLASS_SUBDEVICE_BYTES, DEVICE_MEMORY_BYTES, DEVICE_MEMORY_SIZE_AT, GET_TIMESLICE, IOCTL_TYPE, NV_OK,
    REGISTER_FD, RM_ALLOC, RM_ALLOC_BYTES, RM_ALLOC_LONG_BYTES, RM_ALLOC_LONG_PARAMETER_BYTES_AT,
    RM_ALLOC_LONG_STATUS_AT, RM_CONTROL, RM_CONTROL_BYTES, RM_CONTROL_OBJECT_AT, RM_FREE, RM_FREE_BYTES,
    RM_FREE_STATUS_AT, RM_OBJECT_AT, RM_PARAMETER_BYTES_AT, RM_PARAMETERS_AT, RM_STATUS_AT,
};
use partita_sim::DeviceSpec;

use crate::shared::place::Place;
use crate::shared::sys::lock;
use object::{Clients, Object, status};

/// An error number of the system.
type Errno = c_int;

/// `NV01_ROOT_CLIENT`: a client, too.
const CLASS_ROOT_CLIENT: u32 = 0x41;
/// Vendor and device id inside a card's entry.
const CARD_VENDOR_AT: usize = 12;

/// A GPU of this machine, as the kernel driver knows it.
#[derive(Debug)]
struct Gpu {
    spec: DeviceSpec,
    bus: u32,
}

impl Gpu {
    /// Domain, bus and slot in one number.
    fn id(&self) -> u32 {
        self.bus << 8
    }
}

/// An open node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Control,
    Gpu { index: usize, registered: bool },
}

/// The kernel's state of this process.
#[derive(Debug)]
struct Kernel {
    gpus: Vec<Gpu>,
    nodes: BTreeMap<c_int, Node>,
    clients: Clients,
    /// By GPU.
    own_devices: BTreeMap<usize, (u32, u32)>,
    /// How slices reach a board; `None` before this process has a channel group.
    send_slice: Option<group::SendSlice>,
}

static KERNEL: Mutex<Option<Kernel>> = Mutex::new(None);

fn with_kernel<R>(action: impl FnOnce(&mut Kernel) -> Result<R, Errno>) -> Result<R, Errno> {
    let mut kernel = lock(&KERNEL);
    if kernel.is_none() {
        let places = Place::all_from_env().map_err(|_| libc::ENODEV)?;
        let gpus = places.into_iter().map(|place| Gpu { bus: place.pci_bus(), spec: place.spec }).collect();
        *kernel = Some(Kernel {
            gpus,
            nodes: BTreeMap::new(),
            clients: Clients::default(),
            own_devices: BTreeMap::new(),
            send_slice: None,
        });
    }
    kernel.as_mut().map_or(Err(libc::ENODEV), action)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_le_bytes());
}

impl Kernel {
    fn open(&mut self, path: &str) -> Result<c_int, Errno> {
        let node = match path.strip_prefix("/dev/nvidia") {
            Some("ctl") => Node::Control,
            Some(minor) => {
                let index = minor.parse().map_err(|_| libc::ENOENT)?;
                self.gpus.get(index).ok_or(libc::ENOENT)?;
                Node::Gpu { index, registered: false }
            }
            None => return Err(libc::ENOENT),
        };
        let token = (0..).find(|token| !self.nodes.contains_key(token)).ok_or(libc::EMFILE)?;
        self.nodes.insert(token, node);
        Ok(token)
    }

    fn close(&mut self, token: c_int) -> Result<(), Errno> {
        self.nodes.remove(&token).ok_or(libc::EBADF)?;
        self.clients.close(token);
        Ok(())
    }

    /// Whether a GPU is attached: a node of it is open.
    fn is_attached(&self, gpu: usize) -> bool {
        self.nodes.values().any(|node| matches!(node, Node::Gpu { index, .. } if *index == gpu))
    }

    /// Handles one request; `argument` has the size that it says.
    fn ioctl(&mut self, token: c_int, escape: u8, argument: &mut [u8]) -> Result<(), Errno> {
        let node = *self.nodes.get(&token).ok_or(libc::EBADF)?;
        match (escape, node, argument.len()) {
            (CARD_INFO, _, bytes) => {
                if bytes / CARD_BYTES < self.gpus.len() {
                    return Err(libc::EINVAL);
                }
                argument.fill(0);
                for (minor, (card, gpu)) in argument.chunks_exact_mut(CARD_BYTES).zip(&self.gpus).enumerate()
                {
                    card[CARD_VALID_AT] = 1;
                    put_u32(card, CARD_DOMAIN_AT, 0);
                    card[CARD_BUS_AT] = gpu.bus as u8;
                    card[CARD_SLOT_AT] = 0;
                    put_u32(card, CARD_VENDOR_AT, u32::from(gpu.spec.board.pci_device_id) << 16 | 0x10de);
                    put_u32(card, CARD_GPU_ID_AT, gpu.id());
                    put_u32(card, CARD_MINOR_AT, minor as u32);
                }
                Ok(())
            }
            (REGISTER_FD, Node::Gpu { index, registered: false }, 4) => {
                match self.nodes.get(&(u32_at(argument, 0) as c_int)) {
                    Some(Node::Control) => {}
                    _ => return Err(libc::EINVAL),
                }
                self.nodes.insert(token, Node::Gpu { index, registered: true });
                Ok(())
            }
            (RM_ALLOC, Node::Control, RM_ALLOC_BYTES | RM_ALLOC_LONG_BYTES) => {
                self.alloc(token, argument);
                Ok(())
            }
            (RM_FREE, Node::Control, RM_FREE_BYTES) => {
                let freed = self.clients.free(token, u32_at(argument, 0), u32_at(argument, RM_OBJECT_AT));
                put_u32(argument, RM_FREE_STATUS_AT, freed.err().unwrap_or(NV_OK));
                Ok(())
            }
            (RM_CONTROL, Node::Control, RM_CONTROL_BYTES) => {
                let answered = self.control(token, argument);
                put_u32(argument, RM_STATUS_AT, answered.err().unwrap_or(NV_OK));
                Ok(())
            }
            _ => Err(libc::EINVAL),
        }
    }

    fn alloc(&mut self, token: c_int, argument: &mut [u8]) {
        let long = argument.len() == RM_ALLOC_LONG_BYTES;
        let bytes_at = if long { RM_ALLOC_LONG_PARAMETER_BYTES_AT } else { RM_PARAMETER_BYTES_AT };
        let status_at = if long { RM_ALLOC_LONG_STATUS_AT } else { RM_STATUS_AT };
        let made = self.make(token, argument, u32_at(argument, bytes_at) as usize);
        if let Ok(handle) = made {
            put_u32(argument, RM_OBJECT_AT, handle);
        }
        put_u32(argument, status_at, made.err().unwrap_or(NV_OK));
    }

    fn make(&mut self, token: c_int, argument: &[u8], parameter_bytes: usize) -> Result<u32, u32> {
        let [root, parent, handle, class] = [0, 4, RM_OBJECT_AT, 12].map(|at| u32_at(argument, at));
        let address = u64_at(argument, RM_PARAMETERS_AT);
        let instance = |bytes: usize| {
            if parameter_bytes != bytes {
                return Err(status::INVALID_ARGUMENT);
            }
            let parameters = memory::read(address, bytes).map_err(|_| status::INVALID_ADDRESS)?;
            Ok(u32_at(&parameters, 0))
        };
        match class {
            CLASS_ROOT | CLASS_ROOT_CLIENT => self.clients.make_client(token, handle),
            CLASS_DEVICE => {
                let gpu = instance(CLASS_DEVICE_BYTES)? as usize;
                if self.gpus.get(gpu).is_none() || !self.is_attached(gpu) {
                    return Err(status::INVALID_ARGUMENT);
                }
                self.clients.make_object(token, root, parent, handle, Object::Device { gpu })
            }
            CLASS_SUBDEVICE => {
                if instance(CLASS_SUBDEVICE_BYTES)? != 0 {
                    return Err(status::INVALID_ARGUMENT);
                }
                let Object::Device { gpu } = self.clients.object(token, root, parent)? else {
                    return Err(status::INVALID_OBJECT_PARENT);
                };
                self.clients.make_object(token, root, parent, handle, Object::Subdevice { gpu })
            }
            CLASS_DEVICE_MEMORY => {
                let Object::Device { gpu } = self.clients.object(token, root, parent)? else {
                    return Err(status::INVALID_OBJECT_PARENT);
                };
                let parameters =
                    memory::read(address, DEVICE_MEMORY_BYTES).map_err(|_| status::INVALID_ADDRESS)?;
                let bytes = u64_at(&parameters, DEVICE_MEMORY_SIZE_AT);
                self.clients.make_object(token, root, parent, handle, Object::DeviceMemory { gpu, bytes })
            }
            _ => Err(status::INVALID_CLASS),
        }
    }

    /// The device under which libcuda creates its own objects: client and name.
    fn own_device(&mut self, node: c_int, gpu: usize) -> Result<(u32, u32), u32> {
        if let Some(known) = self.own_devices.get(&gpu) {
            return Ok(*known);
        }
        self.nodes.insert(node, Node::Control);
        let client = self.clients.make_client(node, 0)?;
        let device = self.clients.make_object(node, client, client, 0, Object::Device { gpu })?;
        self.own_devices.insert(gpu, (client, device));
        Ok((client, device))
    }

    fn control(&mut self, token: c_int, argument: &[u8]) -> Result<(), u32> {
        let [client, object, command] = [0, 4, 8].map(|at| u32_at(argument, at));
        let object = self.clients.object(token, client, object)?;
        let bytes = answer::parameter_bytes(command, object, &self.gpus).ok_or(status::NOT_SUPPORTED)?;
        if u32_at(argument, RM_PARAMETER_BYTES_AT) as usize != bytes {
            return Err(status::INVALID_ARGUMENT);
        }
        let address = u64_at(argument, RM_PARAMETERS_AT);
        let mut parameters = memory::read(address, bytes).map_err(|_| status::INVALID_ADDRESS)?;
        match object {
            Object::Client => {
                let attached = (0..self.gpus.len()).filter(|gpu| self.is_attached(*gpu)).collect::<Vec<_>>();
                answer::of_client(command, &self.gpus, &attached, &mut parameters)?;
            }
            Object::Device { .. } | Object::DeviceMemory { .. } => return Err(status::NOT_SUPPORTED),
            Object::ChannelGroup { gpu, slice_us } => {
                if command == GET_TIMESLICE {
                    put(&mut parameters, 0, &slice_us.to_le_bytes());
                } else {
                    let slice_us = u64_at(&parameters, 0);
                    self.set_slice(gpu, slice_us)?;
                    let name = u32_at(argument, RM_CONTROL_OBJECT_AT);
                    self.clients.change(client, name, Object::ChannelGroup { gpu, slice_us });
                }
            }
            Object::Subdevice { gpu } => answer::of_subdevice(command, &self.gpus[gpu], &mut parameters)?,
        }
        memory::write(address, &parameters).map_err(|_| status::INVALID_ADDRESS)
    }
}

/// Stands for `open` of `/dev/nvidiactl` or `/dev/nvidiaN`: a token of 0 or more, or the negative
/// number of an error.
///
/// # Safety
/// The path is null or a string that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn partita_sim_control_open(path: *const c_char) -> c_int {
    if path.is_null() {
        return -libc::EFAULT;
    }
    // SAFETY: not null, so a string by the caller's word.
    let Ok(path) = unsafe { CStr::from_ptr(path) }.to_str() else { return -libc::ENOENT };
    with_kernel(|kernel| kernel.open(path)).unwrap_or_else(|errno| -errno)
}

/// Stands for `ioctl` on such a node: 0, or the negative number of an error. As with the real call,
/// the argument's address and the addresses in it are checked.
#[unsafe(no_mangle)]
pub extern "C" fn partita_sim_control_ioctl(token: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    const READ_WRITE: c_ulong = 3;
    let (escape, letter, bytes) = (request as u8, (request >> 8) as u8, (request >> 16 & 0x3fff) as usize);
    let address = argument.expose_provenance() as u64;
    let answered = with_kernel(|kernel| {
        if letter != IOCTL_TYPE || request >> 30 != READ_WRITE {
            return Err(libc::EINVAL);
        }
        let mut argument = memory::read(address, bytes)?;
        kernel.ioctl(token, escape, &mut argument)?;
        memory::write(address, &argument)
    });
    answered.err().map_or(0, |errno| -errno)
}

/// Stands for `close` of such a node: 0, or the negative number of an error. Its clients' objects
/// are freed.
#[unsafe(no_mangle)]
pub extern "C" fn partita_sim_control_close(token: c_int) -> c_int {
    with_kernel(|kernel| kernel.close(token)).err().map_or(0, |errno| -errno)
}
