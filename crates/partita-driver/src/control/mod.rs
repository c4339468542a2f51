//! Where the SMs of a GPU lie, as the kernel driver itself tells: no root, no kernel module,
//! nothing changed.
//!
//! The route: the control node lists the cards, with the minor number and the id of each
//! ([`Card`]); the card with the GPU's PCI address is opened and registered; a client, a device and
//! a subdevice are made, and the subdevice is asked for its global SM order and for the number of
//! TPCs of each GPC. Objects and nodes are given back on every way out. On an H200 all of it takes
//! 0.7 ms.
//!
//! Left out, because an H200's driver 580.159.04 answers them with nothing or in another order than
//! the SMs': `GR_GET_GPC_MASK` (0), `GR_GET_TPC_MASK` (the GPCs are not those of the SM order),
//! `GRMGR_GET_GR_FS_INFO` (invalid argument for every query), `GR_GET_SM_TO_GPC_TPC_MAPPINGS` (no
//! entries).
//!
//! A simulated libcuda brings a simulated kernel driver along, under names of its own ([`Nodes`]).

mod error;
mod nodes;
mod session;
#[cfg(test)]
mod tests;
mod wire;

use alloc::vec::Vec;
use core::ffi::c_int;

use partita_abi::attribute;
use partita_core::survey::ControlClaims;

pub use error::ControlError;
pub use nodes::{KernelDriver, Nodes};
pub use wire::{Card, PciAddress, cards, node_minor, sm_order};

use crate::cuda::Cuda;
use crate::error::Error;

/// Asks the kernel driver where the SMs of the GPU at `address` lie.
///
/// `minor` is the number of its node where it is known from elsewhere, as from the driver's `/proc`
/// files; a card list that says otherwise is not believed.
///
/// # Errors
/// Which call failed, or what of the answer cannot be.
pub fn read(
    kernel: &impl KernelDriver,
    address: PciAddress,
    minor: Option<u32>,
) -> Result<ControlClaims, ControlError> {
    session::read(kernel, address, minor)
}

/// The GPUs of this machine in the order of their PCI addresses, whether this process sees them
/// through CUDA or not.
///
/// # Errors
/// Which call failed.
pub fn list(kernel: &impl KernelDriver) -> Result<Vec<Card>, ControlError> {
    session::list(kernel)
}

/// The PCI address of one of the GPUs that CUDA sees in this process.
///
/// # Errors
/// The driver's.
pub fn pci_address(cuda: &Cuda, ordinal: u32) -> Result<PciAddress, Error> {
    let mut device = 0;
    let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: a valid pointer.
    unsafe { cuda.device_get(&mut device, ordinal)? };
    let attribute = |number: u32| -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: a valid pointer, and the device just found.
        unsafe { cuda.device_get_attribute(&mut value, number, device)? };
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(PciAddress {
        domain: attribute(attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        bus: attribute(attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)? as u8,
        slot: attribute(attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)? as u8,
    })
}
