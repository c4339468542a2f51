//! [`Report`]: every unit placed, with each source's evidence.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::compare::{disagreements, scheduled_gpcs};
use super::{Claim, Disagreement, Row, Source, Survey, Unit, rows};
use crate::{Topology, TpcSet};

/// The contribution of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// It places this many SMs, without contradiction.
    Agrees {
        /// How many.
        sms: u32,
    },
    /// It places this many SMs, and another source contradicts some of it.
    Contradicted {
        /// How many.
        sms: u32,
    },
    /// It is silent, for this reason.
    Silent(String),
}

/// The evidence for the GPCs of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Clusters ran in every GPC of more than one TPC.
    Clusters,
    /// The control interface, whose TPCs and mask bits agree with probing.
    Control,
    /// None: GPCs are not reliable.
    Unproved,
}

/// The place of every unit of a device, and the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// SMs of a TPC.
    pub sms_per_tpc: u32,
    /// Every TPC in logical order.
    pub units: Vec<Unit>,
    /// The contribution of each source, in the order of [`Source::ALL`].
    pub sources: Vec<(Source, SourceState)>,
    /// The differences between two sources; empty if all agree.
    pub disagreements: Vec<Disagreement>,
    /// The evidence for the GPCs.
    pub grouping: Grouping,
    /// The device, GPC by GPC.
    pub rows: Vec<Row>,
    /// TPCs of a whole GPC, and whether that number is known; otherwise it is the size of the
    /// largest.
    pub places_per_gpc: (u32, bool),
}

impl Report {
    /// How many SMs the device has.
    #[must_use]
    pub fn sm_count(&self) -> u32 {
        self.units.len() as u32 * self.sms_per_tpc
    }

    /// How many of them at least two independent sources place, without contradiction.
    #[must_use]
    pub fn confirmed_sms(&self) -> u32 {
        self.units.iter().filter(|unit| unit.is_confirmed()).count() as u32 * self.sms_per_tpc
    }

    /// How many places of the device's GPCs are empty: units that are fused off.
    #[must_use]
    pub fn holes(&self) -> u32 {
        self.rows.iter().map(Row::holes).sum()
    }
}

impl Survey {
    /// The GPC of each TPC for plans, and its evidence. All are 0 if nothing is proved.
    ///
    /// Clusters prove GPCs by themselves: blocks ran. Without them, the control interface is
    /// trusted if everything that probing can check of it is right. On devices that run clusters,
    /// only clusters prove GPCs, because a cluster that cannot be placed never ends.
    #[must_use]
    pub fn gpcs(&self) -> (Vec<u8>, Grouping) {
        let unproved = || (alloc::vec![0; self.probe.bits.len()], Grouping::Unproved);
        if let Ok(groups) = &self.clusters {
            return if groups.len() == self.probe.bits.len() {
                (groups.clone(), Grouping::Clusters)
            } else {
                unproved()
            };
        }
        match self.control_groups() {
            Some(groups) if !self.runs_clusters => (groups, Grouping::Control),
            _ => unproved(),
        }
    }

    /// The GPC of each TPC by the control interface, if probing contradicts nothing of it: the
    /// groups that clusters should then prove.
    ///
    /// GPCs are numbered from 0 in the order of their first occurrence; the control interface's own
    /// numbers are kept if they are such.
    #[must_use]
    pub fn control_groups(&self) -> Option<Vec<u8>> {
        if disagreements(self).iter().any(|disagreement| disagreement.concerns(Source::Control)) {
            return None;
        }
        let sets = scheduled_gpcs(self)?;
        let key = |tpc: usize| self.place_of(tpc).map(|place| self.scheduled_gpc(place));
        let mut numbers: Vec<u16> = (0..sets.len()).map(key).collect::<Option<_>>()?;
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.len() > Topology::GPC_COUNT_MAX {
            return None;
        }
        let number = |tpc: usize| numbers.binary_search(&key(tpc)?).ok().map(|index| index as u8);
        (0..sets.len()).map(number).collect()
    }

    /// The evidence of one source for one TPC.
    fn claims(&self, tpc: usize) -> Vec<Claim> {
        let mut claims = Vec::new();
        let place = self.place_of(tpc).copied();
        if let Some(place) = place {
            claims.push(Claim::Control { place, predicted_bit: self.predicted_bit(&place) });
        }
        if let Some(&bit) = self.probe.bits.get(tpc) {
            claims.push(Claim::Probe { bit });
        }
        if let Some(&group) = self.clusters.as_ref().ok().and_then(|groups| groups.get(tpc)) {
            claims.push(Claim::Clusters { group });
        }
        // Its registers count the TPCs of the device; the control interface says that this is the
        // logical order.
        let global = place.map_or(tpc, |place| usize::from(place.tpc));
        if let Some(&(gpc, tpc_in_gpc)) = self.nvdebug.as_ref().ok().and_then(|n| n.places.get(global)) {
            claims.push(Claim::Nvdebug { gpc, tpc_in_gpc });
        }
        claims
    }

    fn silence(&self, source: Source) -> Option<&String> {
        match source {
            Source::Control => self.control.as_ref().err(),
            Source::Probe => None,
            Source::Clusters => self.clusters.as_ref().err(),
            Source::Nvdebug => self.nvdebug.as_ref().err(),
        }
    }
}

pub(super) fn report(survey: &Survey) -> Report {
    let sms_per_tpc = survey.probe.sms_per_tpc;
    let disagreements = disagreements(survey);
    let (gpcs, grouping) = survey.gpcs();
    let disputed: TpcSet = disagreements.iter().filter_map(Disagreement::tpc).collect();
    let units: Vec<Unit> = (0u8..=u8::MAX)
        .zip(&survey.probe.bits)
        .map(|(tpc, &bit)| {
            let first = u32::from(tpc) * sms_per_tpc;
            let gpc = gpcs.get(usize::from(tpc)).copied();
            Unit {
                tpc,
                sms: first..first + sms_per_tpc,
                bit,
                gpc: gpc.filter(|_| grouping != Grouping::Unproved),
                place: survey.place_of(tpc.into()).copied(),
                claims: survey.claims(tpc.into()),
                disputed: disputed.contains(tpc),
            }
        })
        .collect();
    let placed = units.iter().flat_map(|unit| &unit.claims).fold(BTreeMap::new(), |mut placed, claim| {
        *placed.entry(claim.source()).or_insert(0) += sms_per_tpc;
        placed
    });
    let sources = Source::ALL.map(|source| {
        let sms = placed.get(&source).copied().unwrap_or(0);
        let contradicted = disagreements.iter().any(|disagreement| disagreement.concerns(source));
        let state = match survey.silence(source) {
            Some(reason) => SourceState::Silent(reason.clone()),
            None if contradicted => SourceState::Contradicted { sms },
            None => SourceState::Agrees { sms },
        };
        (source, state)
    });
    let (rows, places_per_gpc) = rows::rows(survey, &units);
    Report { sms_per_tpc, units, sources: sources.into(), disagreements, grouping, rows, places_per_gpc }
}
