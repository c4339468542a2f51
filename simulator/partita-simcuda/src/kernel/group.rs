//! Channel groups: the units of a process that take turns on a GPU, and the length of a turn.
//!
//! libcuda creates them through the device nodes and sets their slices by an `ioctl` that other
//! code can intercept. So does the simulated one: it really calls `ioctl`, on a descriptor that
//! stands for the node, and answers by itself what no other code has answered.

use core::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use partita_abi::CuResult;
use partita_abi::control::{
    NV_OK, RM_CONTROL, RM_CONTROL_BYTES, RM_CONTROL_COMMAND_AT, RM_CONTROL_OBJECT_AT, RM_FREE, RM_FREE_BYTES,
    RM_OBJECT_AT, RM_PARAMETER_BYTES_AT, RM_PARAMETERS_AT, RM_STATUS_AT, SET_TIMESLICE, TIMESLICE_BYTES,
    request,
};

use super::object::{Object, status};
use super::{Errno, Kernel, lock, partita_sim_control_ioctl, put, put_u32, u32_at, with_kernel};

/// Sends a slice, in microseconds, for this process's work to the board of the GPU on a bus. `None`
/// if the process does not use that GPU.
pub type SendSlice = fn(bus: u32, slice_us: u64) -> Option<Result<(), CuResult>>;

/// The descriptor for `/dev/nvidiactl`, for the life of the process.
static NODE: OnceLock<Option<File>> = OnceLock::new();

/// Beyond the tokens of [`super::partita_sim_control_open`], which are the least that are free.
const NODE_MIN: i32 = 256;

pub(super) fn node() -> Option<i32> {
    let open = || {
        let null = File::open("/dev/null").ok()?;
        // SAFETY: a live descriptor; this call owns the copy.
        let high = unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, NODE_MIN) };
        // SAFETY: as above.
        (high >= 0).then(|| File::from(unsafe { OwnedFd::from_raw_fd(high) }))
    };
    NODE.get_or_init(open).as_ref().map(AsRawFd::as_raw_fd)
}

/// An object of libcuda's own: a group, or memory. Freed on drop.
#[derive(Debug)]
pub struct Taken {
    pub(super) node: i32,
    pub(super) client: u32,
    pub(super) object: u32,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut argument = [0; RM_FREE_BYTES];
        put_u32(&mut argument, 0, self.client);
        put_u32(&mut argument, RM_OBJECT_AT, self.object);
        // SAFETY: it points to nothing.
        unsafe { ask(self.node, RM_FREE, &mut argument) };
    }
}

impl Kernel {
    /// A group of this process on a GPU, by client and name.
    fn make_group(&mut self, node: i32, gpu: usize) -> Result<(u32, u32), u32> {
        let (client, device) = self.own_device(node, gpu)?;
        let group = Object::ChannelGroup { gpu, slice_us: 0 };
        Ok((client, self.clients.make_object(node, client, device, 0, group)?))
    }

    /// Sends a slice for this process's work to a GPU's board.
    pub(super) fn set_slice(&self, gpu: usize, slice_us: u64) -> Result<(), u32> {
        if slice_us == 0 {
            return Err(status::INVALID_ARGUMENT);
        }
        let told = self.send_slice.and_then(|tell| tell(self.gpus[gpu].bus, slice_us));
        told.ok_or(status::OBJECT_NOT_FOUND)?.map_err(|_| status::NOT_SUPPORTED)
    }
}

/// A request at an odd address: the kernel accepts that, and so must what stands before it.
#[repr(C, align(8))]
struct Unaligned {
    _odd: u8,
    argument: [u8; RM_CONTROL_BYTES],
}

/// Gives a new context's GPU time to this process by turns, with the slice that the driver chooses.
/// `tell` sends this and every later slice to the GPU's board. The group ends when what is returned
/// is dropped.
///
/// # Errors
/// `OUT_OF_MEMORY` without a descriptor for the node; `UNKNOWN` for a slice that is refused.
pub fn begin(bus: u32, slice_us: u64, tell: SendSlice) -> Result<Taken, CuResult> {
    let node = node().ok_or(CuResult::OUT_OF_MEMORY)?;
    let made = with_kernel(|kernel| {
        kernel.send_slice = Some(tell);
        let gpu = kernel.gpus.iter().position(|gpu| gpu.bus == bus).ok_or(libc::ENODEV)?;
        kernel.make_group(node, gpu).map_err(|_| libc::EIO)
    });
    let (client, object) = made.map_err(|_: Errno| CuResult::UNKNOWN)?;
    let group = Taken { node, client, object };
    let mut request = Unaligned { _odd: 0, argument: [0; RM_CONTROL_BYTES] };
    let argument = &mut request.argument;
    put_u32(argument, 0, client);
    put_u32(argument, RM_CONTROL_OBJECT_AT, object);
    put_u32(argument, RM_CONTROL_COMMAND_AT, SET_TIMESLICE);
    put(argument, RM_PARAMETERS_AT, &(&raw const slice_us).expose_provenance().to_le_bytes());
    put_u32(argument, RM_PARAMETER_BYTES_AT, TIMESLICE_BYTES as u32);
    // SAFETY: its parameters live as long.
    let is_answered = unsafe { ask(node, RM_CONTROL, argument) };
    if is_answered && u32_at(argument, RM_STATUS_AT) == NV_OK { Ok(group) } else { Err(CuResult::UNKNOWN) }
}

/// Sends a request as libcuda does, so that other code can intercept it; answers by itself if no
/// other code has. Returns whether there is an answer.
///
/// # Safety
/// Everything that the argument points to is alive.
pub(super) unsafe fn ask(node: i32, escape: u8, argument: &mut [u8]) -> bool {
    let wanted = request(escape, argument.len()).into();
    let address: *mut c_void = argument.as_mut_ptr().cast();
    // SAFETY: the argument has the size that the request says; the rest is the caller's.
    unsafe {
        libc::ioctl(node, wanted, address) == 0 || partita_sim_control_ioctl(node, wanted, address) == 0
    }
}

/// The slice of this process's youngest channel group, in microseconds; 0 without one. For tests.
#[unsafe(no_mangle)]
pub extern "C" fn partita_sim_slice_us() -> u64 {
    lock(&super::KERNEL).as_ref().and_then(|kernel| kernel.clients.youngest_slice_us()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_and_the_youngest_that_is_left_counts() {
        fn tell(_: u32, _: u64) -> Option<Result<(), CuResult>> {
            Some(Ok(()))
        }
        let bus = with_kernel(|kernel| Ok(kernel.gpus[0].bus)).unwrap();
        let groups = [7, 8, 9].map(|slice_us| begin(bus, slice_us, tell).unwrap());
        assert_eq!(partita_sim_slice_us(), 9);
        let [first, second, third] = groups;
        drop(first);
        // The name of the first is not used again: the new one is the youngest.
        let fourth = begin(bus, 10, tell).unwrap();
        assert_eq!(partita_sim_slice_us(), 10);
        drop(fourth);
        assert_eq!(partita_sim_slice_us(), 9);
        drop((second, third));
        assert_eq!(partita_sim_slice_us(), 0);
    }
}
