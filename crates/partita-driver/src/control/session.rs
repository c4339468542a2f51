//! A session with the kernel driver. It releases everything that it opens or creates when it is
//! dropped.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::c_int;

use partita_abi::control::{
    CARD_BYTES, CARD_INFO, CARDS_MAX, CLASS_DEVICE, CLASS_DEVICE_BYTES, CLASS_ROOT, CLASS_SUBDEVICE,
    CLASS_SUBDEVICE_BYTES, GPU_GET_ID_INFO_V2, GPU_GET_ID_INFO_V2_BYTES, GR_GET_GLOBAL_SM_ORDER,
    GR_GET_NUM_TPCS_FOR_GPC, GR_GET_NUM_TPCS_FOR_GPC_BYTES, ID_INFO_DEVICE_AT, ID_INFO_SUBDEVICE_AT, NV_OK,
    REGISTER_FD, RM_ALLOC, RM_ALLOC_BYTES, RM_CONTROL, RM_CONTROL_BYTES, RM_FREE, RM_FREE_BYTES,
    RM_OBJECT_AT, RM_STATUS_AT, SmOrderLayout,
};
use partita_core::survey::{ControlClaims, SmPlace};

use super::wire::{cards, put_u32, sm_order, u32_at};
use super::{Card, ControlError, KernelDriver, PciAddress};

const CONTROL_NODE: &str = "nvidiactl";
/// Handles of the two objects below the client; any numbers that are unique within the client.
const DEVICE: u32 = 0x9a01_0001;
const SUBDEVICE: u32 = 0x9a01_0002;

/// An open node.
struct Node<'k, K: KernelDriver> {
    kernel: &'k K,
    descriptor: c_int,
}

impl<'k, K: KernelDriver> Node<'k, K> {
    fn open(kernel: &'k K, name: &str) -> Result<Self, ControlError> {
        let path = || -> String { format!("/dev/{name}") };
        let descriptor = kernel.open(name).map_err(|errno| ControlError::Open { path: path(), errno })?;
        Ok(Self { kernel, descriptor })
    }

    fn send(&self, what: &'static str, escape: u8, argument: &mut [u8]) -> Result<(), ControlError> {
        let sent = self.kernel.send(self.descriptor, escape, argument);
        sent.map_err(|errno| ControlError::Ioctl { what, errno })
    }
}

impl<K: KernelDriver> Drop for Node<'_, K> {
    fn drop(&mut self) {
        self.kernel.close(self.descriptor);
    }
}

/// An object of the driver.
struct Object<'n, 'k, K: KernelDriver> {
    control: &'n Node<'k, K>,
    /// The client that it belongs to; itself for a client.
    client: u32,
    parent: u32,
    handle: u32,
}

impl<'n, 'k, K: KernelDriver> Object<'n, 'k, K> {
    /// Creates an object below `parent`; without one, a client, whose handle the driver chooses.
    fn make(
        control: &'n Node<'k, K>,
        parent: Option<&Self>,
        handle: u32,
        class: u32,
        what: &'static str,
        parameters: &mut [u8],
    ) -> Result<Self, ControlError> {
        let client = parent.map_or(0, |parent| parent.client);
        let parent = parent.map_or(0, |parent| parent.handle);
        let mut argument = [0; RM_ALLOC_BYTES];
        for (at, value) in [(0, client), (4, parent), (RM_OBJECT_AT, handle), (12, class)] {
            put_u32(&mut argument, at, value);
        }
        let kernel = control.kernel;
        let sent = if parameters.is_empty() {
            kernel.send(control.descriptor, RM_ALLOC, &mut argument)
        } else {
            kernel.send_with(control.descriptor, RM_ALLOC, &mut argument, parameters)
        };
        sent.map_err(|errno| ControlError::Ioctl { what, errno })?;
        match u32_at(&argument, RM_STATUS_AT) {
            NV_OK => {}
            status => return Err(ControlError::Status { what, status }),
        }
        let handle = u32_at(&argument, RM_OBJECT_AT);
        Ok(Self { control, client: if client == 0 { handle } else { client }, parent, handle })
    }

    /// Sends a control to the object; fails with the driver's status.
    fn ask(
        &self,
        what: &'static str,
        command: u32,
        parameters: &mut [u8],
    ) -> Result<Result<(), u32>, ControlError> {
        let mut argument = [0; RM_CONTROL_BYTES];
        for (at, value) in [(0, self.client), (4, self.handle), (8, command)] {
            put_u32(&mut argument, at, value);
        }
        self.control
            .kernel
            .send_with(self.control.descriptor, RM_CONTROL, &mut argument, parameters)
            .map_err(|errno| ControlError::Ioctl { what, errno })?;
        Ok(match u32_at(&argument, RM_STATUS_AT) {
            NV_OK => Ok(()),
            status => Err(status),
        })
    }
}

impl<K: KernelDriver> Drop for Object<'_, '_, K> {
    fn drop(&mut self) {
        let mut argument = [0; RM_FREE_BYTES];
        for (at, value) in [(0, self.client), (4, self.parent), (RM_OBJECT_AT, self.handle)] {
            put_u32(&mut argument, at, value);
        }
        // If this fails, closing the node releases the object.
        let _ = self.control.kernel.send(self.control.descriptor, RM_FREE, &mut argument);
    }
}

/// See [`super::read`].
pub(super) fn read<K: KernelDriver>(
    kernel: &K,
    address: PciAddress,
    minor: Option<u32>,
) -> Result<ControlClaims, ControlError> {
    let control = Node::open(kernel, CONTROL_NODE)?;
    let card = find_card(&control, address)?;
    if let Some(proc) = minor
        && proc != card.minor
    {
        return Err(ControlError::Minor { address, card: card.minor, proc });
    }
    // An open node keeps the GPU initialised; controls go through the control node.
    let node = Node::open(kernel, &format!("nvidia{}", card.minor))?;
    let mut registration = control.descriptor.to_le_bytes();
    node.send("registering the GPU's node", REGISTER_FD, &mut registration)?;

    let client = Object::make(&control, None, 0, CLASS_ROOT, "making a client", &mut [])?;
    let mut info = [0; GPU_GET_ID_INFO_V2_BYTES];
    put_u32(&mut info, 0, card.gpu_id);
    let what = "the GPU's instance numbers";
    client
        .ask(what, GPU_GET_ID_INFO_V2, &mut info)?
        .map_err(|status| ControlError::Status { what, status })?;
    let mut parameters = [0; CLASS_DEVICE_BYTES];
    put_u32(&mut parameters, 0, u32_at(&info, ID_INFO_DEVICE_AT));
    let device =
        Object::make(&control, Some(&client), DEVICE, CLASS_DEVICE, "making a device", &mut parameters)?;
    let mut parameters = [0; CLASS_SUBDEVICE_BYTES];
    put_u32(&mut parameters, 0, u32_at(&info, ID_INFO_SUBDEVICE_AT));
    let what = "making a subdevice";
    let subdevice = Object::make(&control, Some(&device), SUBDEVICE, CLASS_SUBDEVICE, what, &mut parameters)?;

    let sms = read_order(&subdevice)?;
    let tpc_counts = read_counts(&subdevice, &sms)?;
    Ok(ControlClaims { sms, tpc_counts })
}

/// See [`super::list`].
pub(super) fn list<K: KernelDriver>(kernel: &K) -> Result<Vec<Card>, ControlError> {
    let mut cards = list_by(&Node::open(kernel, CONTROL_NODE)?)?;
    cards.sort_unstable_by_key(|card| (card.address.domain, card.address.bus, card.address.slot));
    Ok(cards)
}

fn list_by<K: KernelDriver>(control: &Node<'_, K>) -> Result<Vec<Card>, ControlError> {
    let mut answer = vec![0; CARDS_MAX * CARD_BYTES];
    control.send("the list of cards", CARD_INFO, &mut answer)?;
    Ok(cards(&answer))
}

fn find_card<K: KernelDriver>(control: &Node<'_, K>, address: PciAddress) -> Result<Card, ControlError> {
    let cards = list_by(control)?;
    let card = cards.iter().find(|card| card.address == address).copied();
    card.ok_or_else(|| ControlError::NoCard {
        address,
        listed: cards.iter().map(|card| card.address).collect(),
    })
}

/// Tries the layouts, newest first, and returns the first that the driver accepts with a consistent
/// answer.
fn read_order<K: KernelDriver>(subdevice: &Object<'_, '_, K>) -> Result<Vec<SmPlace>, ControlError> {
    let mut tried = Vec::new();
    for layout in SmOrderLayout::ALL {
        let mut answer = vec![0; layout.bytes()];
        match subdevice.ask("the global SM order", GR_GET_GLOBAL_SM_ORDER, &mut answer)? {
            Err(status) => tried.push((layout.bytes(), Err(status))),
            Ok(()) => match sm_order(&answer, layout) {
                Ok(places) => return Ok(places),
                Err(fault) => tried.push((layout.bytes(), Ok(fault))),
            },
        }
    }
    Err(ControlError::SmOrder(tried))
}

/// How many TPCs each GPC of the order has; `None` if the driver does not report it.
fn read_counts<K: KernelDriver>(
    subdevice: &Object<'_, '_, K>,
    sms: &[SmPlace],
) -> Result<Vec<(u16, u32)>, ControlError> {
    let mut gpcs: Vec<u16> = sms.iter().map(|sm| sm.gpc).collect();
    gpcs.sort_unstable();
    gpcs.dedup();
    let mut counts = Vec::new();
    for gpc in gpcs {
        let mut parameters = [0; GR_GET_NUM_TPCS_FOR_GPC_BYTES];
        put_u32(&mut parameters, 0, gpc.into());
        if subdevice.ask("the TPCs of a GPC", GR_GET_NUM_TPCS_FOR_GPC, &mut parameters)?.is_err() {
            return Ok(Vec::new());
        }
        counts.push((gpc, u32_at(&parameters, 4)));
    }
    Ok(counts)
}
