//! [`Row`]: the device as drawn, GPC by GPC with its empty places.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::{HOPPER_PLACES_PER_GPC, Survey, Unit};

/// One place of a GPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// The TPC with this logical number.
    Tpc(u8),
    /// No TPC: it is fused off.
    Hole,
}

/// One GPC of the chip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The GPC's number in plans (`gpc:N`); `None` if GPCs are not proved, and for rows of
    /// singletons only.
    pub gpc: Option<u8>,
    /// The GPC's number in the control interface.
    pub chip_gpc: Option<u16>,
    /// The half of the chip.
    pub ugpu: Option<u16>,
    /// Its CPCs, each with its number and places; a single one without a number if CPCs are not
    /// known.
    pub cpcs: Vec<(Option<u16>, Vec<Cell>)>,
    /// Its TPCs that are scheduled as GPCs.
    pub singletons: Vec<u8>,
}

impl Row {
    /// Its places in order.
    pub fn cells(&self) -> impl Iterator<Item = Cell> {
        self.cpcs.iter().flat_map(|(_, cells)| cells.iter().copied())
    }

    /// Its empty places.
    #[must_use]
    pub fn holes(&self) -> u32 {
        self.cells().filter(|cell| *cell == Cell::Hole).count() as u32
    }
}

/// The rows, and the places of a whole GPC with whether that number is known or only the size of
/// the largest.
pub(super) fn rows(survey: &Survey, units: &[Unit]) -> (Vec<Row>, (u32, bool)) {
    // By place on the chip if that is known, else by the GPC of plans, else all in one.
    let mut gpcs: BTreeMap<(Option<u16>, Option<u8>), Vec<&Unit>> = BTreeMap::new();
    for unit in units {
        let key = match unit.place {
            Some(place) => (Some(place.gpc), None),
            None => (None, unit.gpc),
        };
        gpcs.entry(key).or_default().push(unit);
    }
    let largest = gpcs.values().map(Vec::len).max().unwrap_or(0) as u32;
    let known = match (&survey.nvdebug, survey.compute_capability) {
        (Ok(nvdebug), _) => Some(nvdebug.chip_tpcs_per_gpc),
        (_, 90) => Some(HOPPER_PLACES_PER_GPC.into()),
        _ => None,
    };
    let known = known.filter(|&places| places >= largest && places <= u64::BITS);
    let places = known.unwrap_or(largest);
    let numbers: BTreeSet<Option<u16>> = units.iter().map(cpc).collect();
    let mut rows: Vec<Row> = gpcs
        .into_iter()
        .map(|((chip_gpc, _), mut units)| {
            units.sort_by_key(|unit| (unit.place.map(|place| (place.cpc, place.tpc_in_gpc)), unit.tpc));
            let first = units.first().and_then(|unit| unit.place);
            // Without the chip's numbers it is unknown which TPCs a GPC lost and which it lent.
            let places = if chip_gpc.is_some() { places as usize } else { units.len() };
            let whole = units.iter().filter(|unit| !is_singleton(survey, unit));
            Row {
                gpc: whole.clone().find_map(|unit| unit.gpc),
                chip_gpc,
                ugpu: first.and_then(|place| place.ugpu),
                cpcs: cpcs(&units, &numbers, places),
                singletons: units
                    .iter()
                    .filter(|unit| is_singleton(survey, unit))
                    .map(|unit| unit.tpc)
                    .collect(),
            }
        })
        .collect();
    rows.sort_by_key(|row| (row.gpc.is_none(), row.gpc, row.chip_gpc));
    (rows, (places, known.is_some()))
}

fn is_singleton(survey: &Survey, unit: &Unit) -> bool {
    unit.place.is_some_and(|place| survey.is_singleton(&place))
}

/// Divides the TPCs of a GPC by CPC, and adds holes up to `places` in all. `numbers` are the CPCs
/// of this chip's GPCs.
fn cpcs(units: &[&Unit], numbers: &BTreeSet<Option<u16>>, places: usize) -> Vec<(Option<u16>, Vec<Cell>)> {
    let mut parted: BTreeMap<Option<u16>, Vec<Cell>> =
        numbers.iter().map(|&number| (number, Vec::new())).collect();
    for unit in units {
        parted.entry(cpc(unit)).or_default().push(Cell::Tpc(unit.tpc));
    }
    for _ in units.len()..places {
        // CPCs are alike: the smallest has lost the most.
        if let Some(smallest) = parted.values_mut().min_by_key(|cells| cells.len()) {
            smallest.push(Cell::Hole);
        }
    }
    parted.into_iter().collect()
}

fn cpc(unit: &Unit) -> Option<u16> {
    unit.place.and_then(|place| place.cpc)
}
