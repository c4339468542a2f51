//! What a GPU has: its TPCs, and which of them share a GPC. It needs no kernel module.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use partita_core::TpcSet;
use partita_core::survey::{ControlClaims, HOPPER_SINGLETONS, NvdebugClaims, VIRTUAL_GPC_DISABLED};
use partita_driver::control::{self, Card, Nodes};
use partita_driver::files;

use crate::board::Device;
use crate::contain;
use crate::fault::Fault;
use crate::state::State;

/// The TPCs of each GPC of a GPU, in the order of GPCs. `device` counts all GPUs of the machine by
/// PCI address, whether or not CUDA sees them.
///
/// # Errors
/// `ENODEV` for a GPU that does not exist; the system's number if the driver's nodes cannot be
/// opened; `EIO` for contradictory answers.
pub fn gpcs(device: i32) -> Result<Vec<TpcSet>, Fault> {
    let state = State::get()?;
    contain::run(move || {
        if let Some(ordinal) = cuda_device(state, device)
            && let Ok(board) = state.board_contained(ordinal)
            && board.has_gpcs()
        {
            return Ok(board.topology().gpcs().iter().map(|gpc| gpc.tpcs).collect());
        }
        match claims(state, device) {
            Ok(claims) => grouped(&claims),
            Err(fault) => by_nvdebug(device).map_err(|reason| also(fault, &reason)),
        }
    })
}

/// How many TPCs a GPU has; counted as for [`gpcs`].
///
/// # Errors
/// As [`gpcs`].
pub fn tpc_count(device: i32) -> Result<u32, Fault> {
    let state = State::get()?;
    contain::run(move || match claims(state, device) {
        Ok(claims) => Ok(tpcs_of(&claims)),
        Err(fault) => match nvdebug(device) {
            Ok(claims) => Ok(tpcs_on(&claims)),
            Err(reason) => Err(also(fault, &reason)),
        },
    })
}

/// How many TPCs a GPU has according to CUDA; `ordinal` is CUDA's number.
///
/// # Errors
/// `ENODEV`; `ENOTSUP` below compute capability 3.5.
pub fn tpc_count_by_cuda(ordinal: i32) -> Result<u32, Fault> {
    let device: &Device = State::get()?.device(ordinal)?;
    Ok(device.sms / device.sms_per_tpc()?)
}

fn also(fault: Fault, reason: &str) -> Fault {
    Fault::new(fault.code, format!("{}; nvdebug: {reason}", fault.text))
}

fn card(state: &State, device: i32) -> Result<Card, Fault> {
    let cards = control::list(&Nodes::of(state.cuda()))?;
    let card = usize::try_from(device).ok().and_then(|device| cards.get(device)).copied();
    card.ok_or_else(|| {
        Fault::new(libc::ENODEV, format!("there is no GPU {device}: the driver lists {}", cards.len()))
    })
}

fn claims(state: &State, device: i32) -> Result<ControlClaims, Fault> {
    let card = card(state, device)?;
    Ok(control::read(&Nodes::of(state.cuda()), card.address, None)?)
}

/// CUDA's number of a GPU, if this process sees it.
fn cuda_device(state: &State, device: i32) -> Option<u32> {
    let card = card(state, device).ok()?;
    let is_it = |ordinal: &u32| {
        control::pci_address(state.cuda(), *ordinal).is_ok_and(|address| address == card.address)
    };
    state.devices().map(|device| device.ordinal).find(is_it)
}

fn tpcs_of(claims: &ControlClaims) -> u32 {
    claims.sms.iter().map(|sm| u32::from(sm.tpc) + 1).max().unwrap_or(0)
}

/// The TPCs of each GPC as the hardware schedules work onto it: the driver's virtual GPCs if there
/// are singletons, else the chip's GPCs.
fn grouped(claims: &ControlClaims) -> Result<Vec<TpcSet>, Fault> {
    let tpcs = tpcs_of(claims) as usize;
    let per_tpc = claims.sms.len().checked_div(tpcs).unwrap_or(0).max(1);
    let by_virtual = claims
        .sms
        .iter()
        .any(|sm| sm.virtual_gpc >= HOPPER_SINGLETONS && sm.virtual_gpc != VIRTUAL_GPC_DISABLED);
    let mut gpcs: BTreeMap<u16, TpcSet> = BTreeMap::new();
    for (index, sm) in claims.sms.iter().enumerate() {
        let tpc = u8::try_from(index / per_tpc)
            .map_err(|_| Fault::new(libc::EIO, "the GPU has more TPCs than masks can name"))?;
        let gpc = if by_virtual { sm.virtual_gpc } else { sm.gpc };
        gpcs.entry(gpc).or_default().insert(tpc);
    }
    Ok(gpcs.into_values().collect())
}

fn nvdebug(device: i32) -> Result<NvdebugClaims, String> {
    NvdebugClaims::read(|name| {
        let path = format!("/proc/gpu{device}/{name}");
        match files::read(&path, NvdebugClaims::FILE_BYTES_MAX) {
            Ok(text) => Ok(Some(text)),
            Err(libc::ENOENT) => Ok(None),
            Err(errno) => Err(format!("{path}: system error {errno}")),
        }
    })
}

fn tpcs_on(claims: &NvdebugClaims) -> u32 {
    let whole = claims.chip_tpcs_per_gpc;
    claims.tpc_disable_masks.iter().map(|(_, mask)| whole.saturating_sub(mask.count_ones())).sum()
}

fn by_nvdebug(device: i32) -> Result<Vec<TpcSet>, String> {
    gpcs_by_registers(&nvdebug(device)?)
}

fn gpcs_by_registers(claims: &NvdebugClaims) -> Result<Vec<TpcSet>, String> {
    if claims.places.is_empty() {
        return Err("this chip has no register that identifies its TPCs".to_string());
    }
    let mut gpcs: BTreeMap<u16, TpcSet> = BTreeMap::new();
    for (tpc, (gpc, _)) in (0u8..).zip(&claims.places) {
        gpcs.entry(*gpc).or_default().insert(tpc);
    }
    Ok(gpcs.into_values().collect())
}

/// The GPCs as masks of 64 bits; a set bit is a TPC of the GPC.
///
/// # Errors
/// `ERANGE` if a GPC has a TPC beyond them.
pub fn as_64(gpcs: &[TpcSet]) -> Result<Vec<u64>, Fault> {
    let narrow = |set: &TpcSet| match set.to_words() {
        [low, 0, 0, 0] => Ok(low),
        _ => Err(beyond(64, "use libsmctrl_get_gpc_info_ext")),
    };
    gpcs.iter().map(narrow).collect()
}

/// As [`as_64`].
///
/// # Errors
/// As [`as_64`].
pub fn as_128(gpcs: &[TpcSet]) -> Result<Vec<u128>, Fault> {
    let narrow = |set: &TpcSet| match set.to_words() {
        [low, high, 0, 0] => Ok(u128::from(low) | u128::from(high) << 64),
        _ => Err(beyond(128, "see `partita topology`")),
    };
    gpcs.iter().map(narrow).collect()
}

fn beyond(bits: u32, remedy: &str) -> Fault {
    Fault::new(libc::ERANGE, format!("this GPU has TPCs that {bits} bits cannot name: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_core::survey::SmPlace;

    fn sm(gpc: u16, virtual_gpc: u16, tpc: u16) -> SmPlace {
        SmPlace {
            gpc,
            tpc_in_gpc: 0,
            sm_in_tpc: 0,
            tpc,
            virtual_gpc,
            migratable_tpc: 0,
            ugpu: None,
            cpc: None,
            virtual_tpc: None,
        }
    }

    #[test]
    fn gpcs_are_those_onto_which_work_is_scheduled() {
        let plain =
            ControlClaims { sms: vec![sm(0, 1, 0), sm(1, 0, 1), sm(0, 1, 2)], tpc_counts: Vec::new() };
        let set = |text: &str| text.parse::<TpcSet>().unwrap();
        assert_eq!(grouped(&plain).unwrap(), [set("0,2"), set("1")]);
        assert_eq!(tpcs_of(&plain), 3);
        let hopper =
            ControlClaims { sms: vec![sm(0, 0, 0), sm(1, 8, 1), sm(0, 0, 2)], tpc_counts: Vec::new() };
        assert_eq!(grouped(&hopper).unwrap(), [set("0,2"), set("1")]);
    }

    #[test]
    fn registers_tell_gpcs_too_and_a_gpc_of_any_number_fits() {
        let claims = NvdebugClaims {
            chip_gpcs: 16,
            chip_tpcs_per_gpc: 2,
            tpc_disable_masks: vec![(0, 0), (15, 1)],
            places: vec![(0, 0), (15, 1), (0, 1)],
        };
        let gpcs = gpcs_by_registers(&claims).unwrap();
        assert_eq!(gpcs, ["0,2".parse().unwrap(), "1".parse::<TpcSet>().unwrap()]);
        assert_eq!(tpcs_on(&claims), 3);
        assert!(gpcs_by_registers(&NvdebugClaims { places: Vec::new(), ..claims }).is_err());
    }

    #[test]
    fn masks_report_the_tpcs_that_they_cannot_name() {
        let sets = [TpcSet::first(64), TpcSet::single(64)];
        assert_eq!(as_64(&sets[..1]).unwrap(), [u64::MAX]);
        assert_eq!(as_64(&sets).unwrap_err().code, libc::ERANGE);
        assert_eq!(as_128(&sets).unwrap(), [u128::from(u64::MAX), 1 << 64]);
        assert_eq!(as_128(&[TpcSet::single(128)]).unwrap_err().code, libc::ERANGE);
    }
}
