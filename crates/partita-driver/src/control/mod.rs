//! Where the SMs of a GPU are, as the kernel driver reports it. This needs no root and no kernel
//! module, and changes nothing.
//!
//! The control node lists the cards, with the minor number and the id of each ([`Card`]). The code
//! opens and registers the card with the GPU's PCI address, creates a client, a device and a
//! subdevice, and queries the subdevice for its global SM order and for the number of TPCs of each
//! GPC. It releases all objects and nodes on every path. On an H200 all of this takes 0.7 ms.
//!
//! Some queries are not used, because an H200's driver 580.159.04 gives no answer or another order
//! than that of the SMs: `GR_GET_GPC_MASK` (0), `GR_GET_TPC_MASK` (the GPCs are not those of the SM
//! order), `GRMGR_GET_GR_FS_INFO` (invalid argument for every query),
//! `GR_GET_SM_TO_GPC_TPC_MAPPINGS` (no entries).
//!
//! A simulated libcuda has a simulated kernel driver, under its own names ([`Nodes`]).

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

/// Queries the kernel driver for the places of the SMs of the GPU at `address`.
///
/// `minor` is the number of its node if another source has it, such as the driver's `/proc` files;
/// a different number in the list of cards is an error.
///
/// # Errors
/// The call that failed, or the contradiction in the answer.
pub fn read(
    kernel: &impl KernelDriver,
    address: PciAddress,
    minor: Option<u32>,
) -> Result<ControlClaims, ControlError> {
    session::read(kernel, address, minor)
}

/// The GPUs of this machine in the order of their PCI addresses, whether or not this process sees
/// them through CUDA.
///
/// # Errors
/// The call that failed.
pub fn list(kernel: &impl KernelDriver) -> Result<Vec<Card>, ControlError> {
    session::list(kernel)
}

/// The PCI address of a GPU that CUDA sees in this process.
///
/// # Errors
/// Those of the driver.
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
