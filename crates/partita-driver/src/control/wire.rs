//! Parses answers of a driver. Every value is checked before use, and every failure is an error.

use alloc::vec::Vec;
use core::fmt;

use partita_abi::control::{
    CARD_BUS_AT, CARD_BYTES, CARD_DOMAIN_AT, CARD_GPU_ID_AT, CARD_MINOR_AT, CARD_SLOT_AT, CARD_VALID_AT,
    SM_ORDER_ENTRIES, SmOrderLayout,
};
use partita_core::Topology;
use partita_core::survey::SmPlace;

/// The PCI address of a card. Its function is always 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// The domain.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The slot, which CUDA and NVML call the device.
    pub slot: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.slot)
    }
}

/// One GPU of the machine, as the kernel driver lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Card {
    /// Its address.
    pub address: PciAddress,
    /// The id that controls use for it.
    pub gpu_id: u32,
    /// The N of its `/dev/nvidiaN`.
    pub minor: u32,
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| <[u8; 4]>::try_from(word).ok());
    word.map_or(0, u32::from_le_bytes)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let word = bytes.get(at..at + 2).and_then(|word| <[u8; 2]>::try_from(word).ok());
    word.map_or(0, u16::from_le_bytes)
}

pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(word) = bytes.get_mut(at..at + 4) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The valid entries of an answer to `NV_ESC_CARD_INFO`.
#[must_use]
pub fn cards(answer: &[u8]) -> Vec<Card> {
    let valid = answer.chunks_exact(CARD_BYTES).filter(|entry| entry[CARD_VALID_AT] != 0);
    let card = |entry: &[u8]| Card {
        address: PciAddress {
            domain: u32_at(entry, CARD_DOMAIN_AT),
            bus: entry[CARD_BUS_AT],
            slot: entry[CARD_SLOT_AT],
        },
        gpu_id: u32_at(entry, CARD_GPU_ID_AT),
        minor: u32_at(entry, CARD_MINOR_AT),
    };
    valid.map(card).collect()
}

/// The `Device Minor` of a `/proc/driver/nvidia/gpus/<address>/information`, if the file is that of
/// the GPU with this UUID.
#[must_use]
pub fn node_minor(information: &str, uuid: &str) -> Option<u32> {
    let field = |name: &str| {
        let mut lines = information.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let theirs = field("GPU UUID").is_some_and(|own| own.eq_ignore_ascii_case(uuid));
    field("Device Minor").filter(|_| theirs)?.parse().ok()
}

/// The SMs of an answer to `GR_GET_GLOBAL_SM_ORDER`, in the order of `%smid`.
///
/// An answer that is read in the wrong layout contradicts itself: ids of a device are dense, every
/// TPC is in one place, and every place has one TPC.
///
/// # Errors
/// The contradiction.
pub fn sm_order(answer: &[u8], layout: SmOrderLayout) -> Result<Vec<SmPlace>, &'static str> {
    if answer.len() != layout.bytes() {
        return Err("the answer has an unknown length");
    }
    let sms = usize::from(u16_at(answer, layout.counts_at()));
    let tpcs = usize::from(u16_at(answer, layout.counts_at() + 2));
    if sms == 0 || sms > SM_ORDER_ENTRIES {
        return Err("the number of SMs is out of range");
    }
    if tpcs == 0 || tpcs > sms || sms > tpcs * Topology::SMS_PER_TPC_MAX as usize {
        return Err("the number of TPCs is out of range");
    }
    let places: Vec<SmPlace> =
        answer.chunks_exact(layout.entry_bytes()).take(sms).map(|entry| place(entry, layout)).collect();
    check(&places, tpcs)?;
    Ok(places)
}

fn place(entry: &[u8], layout: SmOrderLayout) -> SmPlace {
    let field = |index: usize| u16_at(entry, 2 * index);
    let newer = |index: usize| (index < layout.fields).then(|| field(index));
    SmPlace {
        gpc: field(0),
        tpc_in_gpc: field(1),
        sm_in_tpc: field(2),
        tpc: field(3),
        virtual_gpc: field(4),
        migratable_tpc: field(5),
        ugpu: newer(6),
        cpc: newer(7),
        virtual_tpc: newer(8),
    }
}

fn check(places: &[SmPlace], tpcs: usize) -> Result<(), &'static str> {
    // The place of each TPC, and its SMs as bits.
    let mut seen: Vec<Option<(&SmPlace, u32)>> = alloc::vec![None; tpcs];
    for place in places {
        if usize::from(place.gpc) >= Topology::GPC_COUNT_MAX {
            return Err("a GPC number is out of range");
        }
        let bit = 1u32.checked_shl(place.sm_in_tpc.into()).unwrap_or(0);
        if u32::from(place.sm_in_tpc) >= Topology::SMS_PER_TPC_MAX {
            return Err("an SM number within a TPC is out of range");
        }
        match seen.get_mut(usize::from(place.tpc)) {
            None => return Err("a TPC number is out of range"),
            Some(slot @ None) => *slot = Some((place, bit)),
            Some(Some((first, bits))) => {
                if (first.gpc, first.tpc_in_gpc) != (place.gpc, place.tpc_in_gpc) {
                    return Err("a TPC is in two places");
                }
                if *bits & bit != 0 {
                    return Err("one SM is listed twice");
                }
                *bits |= bit;
            }
        }
    }
    let mut spots: Vec<(u16, u16)> =
        seen.iter().flatten().map(|(place, _)| (place.gpc, place.tpc_in_gpc)).collect();
    if spots.len() != tpcs {
        return Err("a TPC has no SM");
    }
    spots.sort_unstable();
    if spots.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("two TPCs are in one place");
    }
    Ok(())
}
