//! Errors between Partita and the kernel driver.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use partita_abi::control::status_name;

use super::PciAddress;

/// Why the control interface does not report where the SMs are. Nothing else depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// A node cannot be opened.
    Open {
        /// Its path.
        path: String,
        /// The system's error number.
        errno: i32,
    },
    /// The kernel refused a request.
    Ioctl {
        /// The request.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
    /// The driver refused a request.
    Status {
        /// The request.
        what: &'static str,
        /// Its answer.
        status: u32,
    },
    /// The driver's list has no card with the GPU's address.
    NoCard {
        /// The address.
        address: PciAddress,
        /// The addresses that the list has.
        listed: Vec<PciAddress>,
    },
    /// Two ways to find a GPU's node lead to different nodes.
    Minor {
        /// The GPU's address.
        address: PciAddress,
        /// By the driver's list of cards.
        card: u32,
        /// By its `/proc` files.
        proc: u32,
    },
    /// The SM order matches no known form: for each size in bytes, the driver's status, or the
    /// contradiction in the answer.
    SmOrder(Vec<(usize, Result<&'static str, u32>)>),
}

struct Errno(i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            libc::ENOENT => f.write_str("it does not exist"),
            libc::EACCES | libc::EPERM => f.write_str("permission denied"),
            libc::ENODEV | libc::ENXIO => f.write_str("there is no device behind it"),
            errno => write!(f, "system error {errno}"),
        }
    }
}

struct Status(u32);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match status_name(self.0) {
            Some(name) => write!(f, "NV_ERR_{name}"),
            None => write!(f, "status {:#x}", self.0),
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, errno } => write!(f, "{path}: {}", Errno(*errno)),
            Self::Ioctl { what, errno } => write!(f, "{what}: {}", Errno(*errno)),
            Self::Status { what, status } => write!(f, "{what}: {}", Status(*status)),
            Self::NoCard { address, listed } => {
                write!(f, "the driver lists no card at {address}")?;
                for (index, other) in listed.iter().enumerate() {
                    write!(f, "{} {other}", if index == 0 { "; it lists" } else { "," })?;
                }
                Ok(())
            }
            Self::Minor { address, card, proc } => write!(
                f,
                "the GPU at {address} is /dev/nvidia{card} in the driver's list and /dev/nvidia{proc} \
                 in its /proc files"
            ),
            Self::SmOrder(tried) => {
                f.write_str("the global SM order has no known form:")?;
                for (index, (bytes, answer)) in tried.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    match answer {
                        Ok(fault) => write!(f, "{comma} {bytes} bytes: {fault}")?,
                        Err(status) => write!(f, "{comma} {bytes} bytes: {}", Status(*status))?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for ControlError {}
