//! [`Chart`]: what `partita topology` shows, in the form of its JSON.

use partita_core::TpcSet;
use partita_core::survey::{Cell, Claim, Grouping, Report, SourceState, Unit};
use partita_host::calibration::Measured;
use partita_host::gpu::Gpu;
use serde::Serialize;

use crate::audit::Outsider;

/// The version of the JSON. It changes when a field is removed or changes its meaning, but not when
/// a field is added.
pub const SCHEMA: u32 = 1;

/// Where the units of a GPU are, which tenants hold them, and how this is known.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The GPU's short name.
    pub gpu: String,
    /// The product's name.
    pub name: String,
    /// `GPU-…`.
    pub uuid: String,
    /// The driver's build.
    pub driver_version: String,
    /// Major and minor number.
    pub compute_capability: String,
    /// The version of its launch descriptors.
    pub qmd_version: String,
    /// SMs of the device.
    pub sms: u32,
    /// TPCs of the device.
    pub tpcs: u32,
    /// SMs of a TPC.
    pub sms_per_tpc: u32,
    /// SMs that at least two independent sources locate, without contradiction.
    pub confirmed_sms: u32,
    /// Whether no two sources contradict each other.
    pub agree: bool,
    /// The source that proves the GPCs: `clusters` or `control`; `None` if they are not proved.
    pub gpcs_proved_by: Option<&'static str>,
    /// Places of a whole GPC.
    pub places_per_gpc: u32,
    /// Whether this is known for the chip; otherwise it is the size of the largest GPC.
    pub places_known: bool,
    /// Places without a TPC.
    pub holes: u32,
    /// What each source contributed.
    pub sources: Vec<SourceRow>,
    /// Contradictions between two sources, one line each.
    pub disagreements: Vec<DisagreementRow>,
    /// The tenants that hold TPCs, by name.
    pub tenants: Vec<TenantRow>,
    /// Programs that use the GPU and belong to no tenant: they run on every SM.
    pub outsiders: Vec<Outsider>,
    /// The GPCs of the chip with their places.
    pub gpcs: Vec<GpcRow>,
    /// Every TPC in logical order.
    pub units: Vec<UnitRow>,
    /// Whether the GPU was measured for this chart.
    pub fresh: bool,
    /// How long it took, in seconds.
    pub took_s: f64,
}

/// What a source contributed.
#[derive(Debug, Clone, Serialize)]
pub struct SourceRow {
    /// `control`, `probe`, `clusters` or `nvdebug`.
    pub source: &'static str,
    /// `agrees`, `contradicted` or `silent`.
    pub state: &'static str,
    /// SMs that it locates.
    pub sms: u32,
    /// Why it reports nothing.
    pub reason: Option<String>,
}

/// A contradiction between two sources.
#[derive(Debug, Clone, Serialize)]
pub struct DisagreementRow {
    /// The TPC that it concerns; `None` for the whole device.
    pub tpc: Option<u8>,
    /// Both sources and their reports.
    pub text: String,
}

/// A tenant that holds TPCs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TenantRow {
    /// Its letter in the picture.
    pub letter: char,
    /// Its name.
    pub name: String,
    /// Its TPCs, logical, as ranges.
    pub tpcs: String,
    /// How many SMs they have.
    pub sms: u32,
    /// The same TPCs as a set.
    #[serde(skip)]
    pub set: TpcSet,
}

/// A GPC of the chip.
#[derive(Debug, Clone, Serialize)]
pub struct GpcRow {
    /// Its number in `--sm gpc:N`; `None` if GPCs are not proved.
    pub gpc: Option<u8>,
    /// The driver's number of it among the chip's GPCs.
    pub chip_gpc: Option<u16>,
    /// The half of the chip.
    pub ugpu: Option<u16>,
    /// Its TPCs that are scheduled as separate GPCs.
    pub singletons: Vec<u8>,
    /// Its CPCs.
    pub cpcs: Vec<CpcRow>,
}

/// A CPC of a GPC.
#[derive(Debug, Clone, Serialize)]
pub struct CpcRow {
    /// Its number; `None` if CPCs are unknown.
    pub cpc: Option<u16>,
    /// The TPC in each place, logical; `None` if it is fused off.
    pub places: Vec<Option<u8>>,
}

/// A TPC.
#[derive(Debug, Clone, Serialize)]
pub struct UnitRow {
    /// Its logical number.
    pub tpc: u8,
    /// Its SMs.
    pub sms: Vec<u32>,
    /// Its bit in a launch mask.
    pub bit: u16,
    /// Its GPC's number in `--sm gpc:N`.
    pub gpc: Option<u8>,
    /// The tenant that holds it.
    pub tenant: Option<String>,
    /// Whether at least two sources locate it and none contradicts.
    pub confirmed: bool,
    /// The report of the control interface.
    pub control: Option<ControlRow>,
    /// The number of the group of TPCs that ran a cluster together with it.
    pub clusters: Option<u8>,
    /// The report of nvdebug.
    pub nvdebug: Option<NvdebugRow>,
}

/// A TPC as the control interface reports it.
#[derive(Debug, Clone, Serialize)]
pub struct ControlRow {
    /// `gpcId`.
    pub gpc: u16,
    /// `physicalCpcId`.
    pub cpc: Option<u16>,
    /// `localTpcId`.
    pub tpc_in_gpc: u16,
    /// `globalTpcId`.
    pub global_tpc: u16,
    /// `virtualGpcId`.
    pub virtual_gpc: u16,
    /// `migratableTpcId`.
    pub migratable_tpc: u16,
    /// `virtualTpcId`.
    pub virtual_tpc: Option<u16>,
    /// `ugpuId`.
    pub ugpu: Option<u16>,
    /// The mask bit that follows from these, if a rule is known.
    pub predicted_bit: Option<u16>,
}

/// A TPC as nvdebug reports it.
#[derive(Debug, Clone, Serialize)]
pub struct NvdebugRow {
    /// The GPC.
    pub gpc: u16,
    /// The number of the TPC within the GPC.
    pub tpc_in_gpc: u16,
}

impl Chart {
    /// The chart of a report, with the tenants that hold TPCs.
    pub(super) fn new(
        gpu: &Gpu,
        measured: &Measured,
        report: &Report,
        tenants: Vec<(String, TpcSet)>,
    ) -> Self {
        let all = TpcSet::first(report.units.len() as u32);
        let tenants: Vec<TenantRow> = tenants
            .into_iter()
            .map(|(name, set)| (name, set & all))
            .filter(|(_, set)| !set.is_empty())
            .zip(letters())
            .map(|((name, set), letter)| TenantRow {
                letter,
                name,
                tpcs: set.to_string(),
                sms: set.len() * report.sms_per_tpc,
                set,
            })
            .collect();
        let facts = &gpu.facts;
        Self {
            schema: SCHEMA,
            gpu: gpu.label(),
            name: facts.name.clone(),
            uuid: facts.uuid.clone(),
            driver_version: gpu.driver_version.clone(),
            compute_capability: format!("{}.{}", facts.compute_capability.0, facts.compute_capability.1),
            qmd_version: format!("{}.{}", measured.qmd_version >> 4, measured.qmd_version & 15),
            sms: report.sm_count(),
            tpcs: report.units.len() as u32,
            sms_per_tpc: report.sms_per_tpc,
            confirmed_sms: report.confirmed_sms(),
            agree: report.disagreements.is_empty(),
            gpcs_proved_by: match report.grouping {
                Grouping::Clusters => Some("clusters"),
                Grouping::Control => Some("control"),
                Grouping::Unproved => None,
            },
            places_per_gpc: report.places_per_gpc.0,
            places_known: report.places_per_gpc.1,
            holes: report.holes(),
            sources: report
                .sources
                .iter()
                .map(|(source, state)| {
                    let (state, sms, reason) = match state {
                        SourceState::Agrees { sms } => ("agrees", *sms, None),
                        SourceState::Contradicted { sms } => ("contradicted", *sms, None),
                        SourceState::Silent(reason) => ("silent", 0, Some(reason.clone())),
                    };
                    SourceRow { source: source.key(), state, sms, reason }
                })
                .collect(),
            disagreements: report
                .disagreements
                .iter()
                .map(|disagreement| DisagreementRow {
                    tpc: disagreement.tpc(),
                    text: disagreement.to_string(),
                })
                .collect(),
            outsiders: Vec::new(),
            gpcs: report
                .rows
                .iter()
                .map(|row| GpcRow {
                    gpc: row.gpc,
                    chip_gpc: row.chip_gpc,
                    ugpu: row.ugpu,
                    singletons: row.singletons.clone(),
                    cpcs: row.cpcs.iter().map(|(cpc, cells)| cpc_row(*cpc, cells)).collect(),
                })
                .collect(),
            units: report.units.iter().map(|unit| unit_row(unit, &tenants)).collect(),
            tenants,
            fresh: false,
            took_s: 0.0,
        }
    }

    /// The index in [`Chart::tenants`] of the tenant that holds a TPC.
    pub(super) fn holder(&self, tpc: u8) -> Option<usize> {
        self.tenants.iter().position(|tenant| tenant.set.contains(tpc))
    }

    /// The number of free TPCs.
    pub(super) fn free_tpcs(&self) -> u32 {
        self.units.iter().filter(|unit| unit.tenant.is_none()).count() as u32
    }
}

/// A to Z, then a to z, then one letter for all others.
fn letters() -> impl Iterator<Item = char> {
    ('A'..='Z').chain('a'..='z').chain(std::iter::repeat('+'))
}

fn cpc_row(cpc: Option<u16>, cells: &[Cell]) -> CpcRow {
    let place = |cell: &Cell| match cell {
        Cell::Tpc(tpc) => Some(*tpc),
        Cell::Hole => None,
    };
    CpcRow { cpc, places: cells.iter().map(place).collect() }
}

fn unit_row(unit: &Unit, tenants: &[TenantRow]) -> UnitRow {
    let holder = tenants.iter().find(|tenant| tenant.set.contains(unit.tpc));
    let mut row = UnitRow {
        tpc: unit.tpc,
        sms: unit.sms.clone().collect(),
        bit: unit.bit,
        gpc: unit.gpc,
        tenant: holder.map(|tenant| tenant.name.clone()),
        confirmed: unit.is_confirmed(),
        control: None,
        clusters: None,
        nvdebug: None,
    };
    for claim in &unit.claims {
        match *claim {
            Claim::Control { place, predicted_bit } => {
                row.control = Some(ControlRow {
                    gpc: place.gpc,
                    cpc: place.cpc,
                    tpc_in_gpc: place.tpc_in_gpc,
                    global_tpc: place.tpc,
                    virtual_gpc: place.virtual_gpc,
                    migratable_tpc: place.migratable_tpc,
                    virtual_tpc: place.virtual_tpc,
                    ugpu: place.ugpu,
                    predicted_bit,
                });
            }
            // The claim is the bit itself.
            Claim::Probe { .. } => {}
            Claim::Clusters { group } => row.clusters = Some(group),
            Claim::Nvdebug { gpc, tpc_in_gpc } => row.nvdebug = Some(NvdebugRow { gpc, tpc_in_gpc }),
        }
    }
    row
}
