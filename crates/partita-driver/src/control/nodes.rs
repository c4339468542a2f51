//! The kernel driver's nodes: the only part of this module that passes raw addresses to the kernel.

use alloc::ffi::CString;
use alloc::format;
use core::ffi::{c_char, c_int, c_ulong, c_void};

use partita_abi::control::{RM_PARAMETER_BYTES_AT, RM_PARAMETERS_AT, request};

use super::wire::put_u32;
use crate::cuda::Cuda;

/// The calls that reach a kernel driver. Errors are the system's numbers.
pub trait KernelDriver {
    /// Opens `/dev/{node}`.
    ///
    /// # Errors
    /// The system's number.
    fn open(&self, node: &str) -> Result<c_int, i32>;

    /// Sends a request whose argument contains no addresses.
    ///
    /// # Errors
    /// The system's number.
    fn send(&self, node: c_int, escape: u8, argument: &mut [u8]) -> Result<(), i32>;

    /// Sends a request whose argument has the address and the size of `parameters` at the offsets
    /// of `RM_ALLOC` and `RM_CONTROL`; this call writes them there.
    ///
    /// # Errors
    /// The system's number.
    fn send_with(
        &self,
        node: c_int,
        escape: u8,
        argument: &mut [u8],
        parameters: &mut [u8],
    ) -> Result<(), i32>;

    /// Closes a node.
    fn close(&self, node: c_int);
}

type SimOpen = unsafe extern "C" fn(*const c_char) -> c_int;
type SimIoctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
type SimClose = unsafe extern "C" fn(c_int);

/// The nodes of this machine's kernel driver, or of the simulated one if the loaded libcuda has it.
#[derive(Debug, Clone, Copy)]
pub struct Nodes {
    simulated: Option<(SimOpen, SimIoctl, SimClose)>,
}

impl Nodes {
    /// The nodes of a libcuda: a simulated one exports `partita_sim_control_open`, `_ioctl` and
    /// `_close`.
    #[must_use]
    pub fn of(cuda: &Cuda) -> Self {
        let open = cuda.symbol(c"partita_sim_control_open");
        let ioctl = cuda.symbol(c"partita_sim_control_ioctl");
        let close = cuda.symbol(c"partita_sim_control_close");
        let simulated = open.zip(ioctl).zip(close).map(|((open, ioctl), close)| {
            // SAFETY: only the simulator exports these names, with these prototypes.
            unsafe {
                (
                    core::mem::transmute::<*mut c_void, SimOpen>(open.as_ptr()),
                    core::mem::transmute::<*mut c_void, SimIoctl>(ioctl.as_ptr()),
                    core::mem::transmute::<*mut c_void, SimClose>(close.as_ptr()),
                )
            }
        });
        Self { simulated }
    }

    /// # Safety
    /// Every address inside `argument` is valid for the size that goes with it.
    unsafe fn ioctl(&self, node: c_int, escape: u8, argument: &mut [u8]) -> Result<(), i32> {
        let request = c_ulong::from(request(escape, argument.len()));
        let address = argument.as_mut_ptr().cast::<c_void>();
        loop {
            let errno = match self.simulated {
                Some((_, ioctl, _)) => {
                    // SAFETY: the argument has the size that the request names; the caller promises
                    // the rest.
                    let answer = unsafe { ioctl(node, request, address) };
                    if answer >= 0 {
                        return Ok(());
                    }
                    -answer
                }
                None => {
                    // SAFETY: as above.
                    let answer = unsafe { libc::ioctl(node, request as _, address) };
                    if answer >= 0 {
                        return Ok(());
                    }
                    errno()
                }
            };
            // A signal interrupted it; nothing was done.
            if errno != libc::EINTR {
                return Err(errno);
            }
        }
    }
}

fn errno() -> i32 {
    // SAFETY: the address of this thread's own number.
    unsafe { *libc::__errno_location() }
}

impl KernelDriver for Nodes {
    fn open(&self, node: &str) -> Result<c_int, i32> {
        let path = CString::new(format!("/dev/{node}")).map_err(|_| libc::EINVAL)?;
        if let Some((open, ..)) = self.simulated {
            // SAFETY: a valid string.
            let token = unsafe { open(path.as_ptr()) };
            return if token >= 0 { Ok(token) } else { Err(-token) };
        }
        // SAFETY: a valid string.
        let descriptor = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if descriptor >= 0 { Ok(descriptor) } else { Err(errno()) }
    }

    fn send(&self, node: c_int, escape: u8, argument: &mut [u8]) -> Result<(), i32> {
        // SAFETY: a flat argument has no addresses inside.
        unsafe { self.ioctl(node, escape, argument) }
    }

    fn send_with(
        &self,
        node: c_int,
        escape: u8,
        argument: &mut [u8],
        parameters: &mut [u8],
    ) -> Result<(), i32> {
        let Some(address) = argument.get_mut(RM_PARAMETERS_AT..RM_PARAMETERS_AT + 8) else {
            return Err(libc::EINVAL);
        };
        address.copy_from_slice(&(parameters.as_mut_ptr().expose_provenance() as u64).to_le_bytes());
        put_u32(argument, RM_PARAMETER_BYTES_AT, parameters.len() as u32);
        // SAFETY: the one address inside is that of `parameters`, with its size, borrowed until the
        // call returns.
        unsafe { self.ioctl(node, escape, argument) }
    }

    fn close(&self, node: c_int) {
        match self.simulated {
            // SAFETY: opened by `open` and closed once.
            Some((.., close)) => unsafe { close(node) },
            None => {
                // SAFETY: as above.
                let _ = unsafe { libc::close(node) };
            }
        }
    }
}
