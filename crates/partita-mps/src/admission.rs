//! Whether a server has room for another client, checked before a program starts.
//!
//! A server allows a fixed number of client contexts for each device; the next `cuCtxCreate` fails
//! (error 808). A program may load for minutes before it fails there, with an unrelated message, so
//! it is better not started.

use crate::error::MpsError;

/// Client contexts that a server takes for each device, from Volta on (MPS guide, section 2.3.5.1).
pub const CONTEXTS_MAX: u32 = 48;
/// The same with control binaries from 13010 on (CUDA 13.1).
pub const CONTEXTS_MAX_SINCE_13010: u32 = 60;
/// The same before Volta.
pub const CONTEXTS_MAX_BEFORE_VOLTA: u32 = 16;
/// Connections of each client by default. With a larger `CUDA_DEVICE_MAX_CONNECTIONS` fewer clients
/// fit: 15 with 8 and 3 with 32 on an H200 (driver 580.159.04, 2026-12-01). No document says how
/// many.
pub const CONNECTIONS_DEFAULT: u32 = 2;

/// The facts that decide how many clients fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The largest number of client contexts of a device.
    pub contexts_max: u32,
}

impl Capacity {
    /// Of a device of this compute capability under a control program of this version, thousands
    /// for the major.
    #[must_use]
    pub fn of(compute_capability: (u32, u32), binary_version: Option<u32>) -> Self {
        let contexts_max = match (compute_capability.0, binary_version) {
            (..7, _) => CONTEXTS_MAX_BEFORE_VOLTA,
            (_, Some(13010..)) => CONTEXTS_MAX_SINCE_13010,
            // The smaller number is right for every version.
            _ => CONTEXTS_MAX,
        };
        Self { contexts_max }
    }

    /// Whether one more client fits beside these processes, each of which has at least one context.
    ///
    /// # Errors
    /// [`MpsError::Full`].
    pub fn admit(self, clients: usize) -> Result<(), MpsError> {
        if clients < self.contexts_max as usize {
            return Ok(());
        }
        Err(MpsError::Full { clients, limit: self.contexts_max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_devices_and_the_binarys() {
        for (capability, version, limit) in [
            ((6, 1), Some(13000), 16),
            ((7, 0), Some(13000), 48),
            ((9, 0), None, 48),
            ((9, 0), Some(13009), 48),
            ((9, 0), Some(13010), 60),
            ((5, 2), Some(13040), 16),
        ] {
            assert_eq!(Capacity::of(capability, version).contexts_max, limit, "{capability:?} {version:?}");
        }
    }

    #[test]
    fn the_last_that_fits_is_admitted_and_the_next_refused() {
        let capacity = Capacity::of((9, 0), Some(13000));
        capacity.admit(0).unwrap();
        capacity.admit(47).unwrap();
        let error = capacity.admit(48).unwrap_err().to_string();
        assert!(error.contains("48") && error.contains("--isolation own"), "{error}");
    }
}
