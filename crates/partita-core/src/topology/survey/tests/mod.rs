mod boards;

use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{Topology, Tpc, TpcSet};

/// The bits that disable the TPCs of that board, in logical order (measured by probing).
const H200_BITS: [u16; 66] = [
    0, 9, 18, 27, 36, 45, 54, 63, 1, 10, 19, 28, 37, 46, 55, 64, 2, 11, 20, 29, 38, 47, 56, 65, 3, 12, 21,
    30, 39, 48, 57, 66, 13, 22, 31, 40, 49, 58, 67, 14, 23, 32, 41, 50, 59, 68, 15, 24, 33, 42, 51, 60, 69,
    16, 25, 34, 43, 52, 61, 70, 62, 71, 75, 78, 81, 83,
];

fn silent<T>() -> Result<T, String> {
    Err("it was not asked".to_string())
}

fn h200() -> Survey {
    let group =
        |bit: u16| if bit < 72 { bit / 9 } else { [75, 78, 81, 83].partition_point(|&b| b < bit) as u16 + 8 };
    Survey {
        compute_capability: 90,
        qmd_version: 0x40,
        runs_clusters: true,
        probe: ProbeClaims { sms_per_tpc: 2, bits: H200_BITS.to_vec() },
        control: Ok(ControlClaims { sms: boards::h200(), tpc_counts: Vec::new() }),
        clusters: Ok(H200_BITS.iter().map(|&bit| group(bit) as u8).collect()),
        nvdebug: silent(),
    }
}

/// A board like an A100.
fn a100() -> Survey {
    Survey {
        compute_capability: 80,
        qmd_version: 0x30,
        runs_clusters: false,
        probe: ProbeClaims { sms_per_tpc: 2, bits: (0..54).collect() },
        control: Ok(ControlClaims { sms: boards::a100(), tpc_counts: Vec::new() }),
        clusters: silent(),
        nvdebug: silent(),
    }
}

/// The registers of that board in nvdebug: the chip has eight GPCs of eight TPCs, the fourth is
/// off.
fn a100_registers() -> NvdebugClaims {
    let survey = a100();
    let sms = survey.control.unwrap().sms;
    NvdebugClaims {
        chip_gpcs: 8,
        chip_tpcs_per_gpc: 8,
        tpc_disable_masks: vec![(0, 0), (1, 0), (2, 0x10), (4, 0), (5, 0), (6, 0), (7, 1)],
        places: sms.iter().step_by(2).map(|sm| (sm.gpc, sm.tpc_in_gpc)).collect(),
    }
}

fn control(survey: &mut Survey) -> &mut ControlClaims {
    survey.control.as_mut().unwrap()
}

fn names(report: &Report) -> Vec<String> {
    report.disagreements.iter().map(ToString::to_string).collect()
}

#[test]
fn all_of_an_h200_is_placed_and_three_ways_agree() {
    let survey = h200();
    let report = survey.report();
    assert_eq!(names(&report), Vec::<String>::new());
    assert_eq!((report.sm_count(), report.confirmed_sms()), (132, 132));
    assert_eq!(report.grouping, Grouping::Clusters);
    for unit in &report.units {
        let sources: Vec<Source> = unit.claims.iter().map(Claim::source).collect();
        assert_eq!(sources, [Source::Control, Source::Probe, Source::Clusters]);
        let Claim::Control { predicted_bit, .. } = unit.claims[0] else { panic!("{unit:?}") };
        assert_eq!(predicted_bit, Some(unit.bit), "TPC {}", unit.tpc);
    }
    // Clusters proved the GPCs that the control interface alone would have reported.
    assert_eq!(survey.control_groups().as_ref(), survey.clusters.as_ref().ok());
    // Eight GPCs of three CPCs of three places each; the board lost six of the 72.
    assert_eq!(report.rows.len(), 8);
    assert_eq!((report.places_per_gpc, report.holes()), ((9, true), 6));
    for row in &report.rows {
        let sizes: Vec<usize> = row.cpcs.iter().map(|(_, cells)| cells.len()).collect();
        assert_eq!(sizes, [3, 3, 3]);
    }
    // The first is the chip's GPC 1, four of whose TPCs are singletons.
    let row = &report.rows[0];
    assert_eq!((row.gpc, row.chip_gpc, row.ugpu), (Some(0), Some(1), Some(0)));
    assert_eq!(row.cpcs[0].1, [Cell::Tpc(0), Cell::Tpc(24), Cell::Tpc(64)]);
    assert_eq!(row.cpcs[2].1, [Cell::Tpc(16), Cell::Tpc(63), Cell::Hole]);
    assert_eq!(row.singletons, [64, 62, 65, 63]);
}

#[test]
fn before_hopper_the_control_interface_proves_gpcs_that_the_probe_confirms() {
    let report = a100().report();
    assert_eq!(names(&report), Vec::<String>::new());
    assert_eq!((report.grouping, report.confirmed_sms()), (Grouping::Control, 108));
    let sizes: Vec<usize> =
        (0..7).map(|gpc| report.units.iter().filter(|unit| unit.gpc == Some(gpc)).count()).collect();
    assert_eq!(sizes, [8, 8, 8, 8, 8, 7, 7]);
    // How many places a GPC has is not known; two have one less than the largest.
    assert_eq!((report.places_per_gpc, report.holes()), ((8, false), 2));
    assert_eq!(report.rows[0].cpcs[0].0, None);

    let mut silent_control = a100();
    silent_control.control = Err("/dev/nvidiactl: Permission denied".to_string());
    let report = silent_control.report();
    assert_eq!((report.grouping, report.confirmed_sms()), (Grouping::Unproved, 0));
    assert!(report.units.iter().all(|unit| unit.gpc.is_none() && unit.place.is_none()));
    assert_eq!((report.rows.len(), report.holes()), (1, 0), "nothing is known of GPCs");
    let (_, state) = &report.sources[0];
    assert_eq!(state, &SourceState::Silent("/dev/nvidiactl: Permission denied".to_string()));

    // Where clusters exist, only clusters prove that they run.
    let mut blackwell = a100();
    (blackwell.compute_capability, blackwell.qmd_version, blackwell.runs_clusters) = (120, 0x50, true);
    assert_eq!(blackwell.gpcs().1, Grouping::Unproved);
    assert_eq!(blackwell.control_groups(), Some(a100().gpcs().0), "what clusters have to prove");
    // Hopper with a driver that knows no clusters numbers bits as before.
    let mut hopper = a100();
    hopper.compute_capability = 90;
    assert_eq!(hopper.gpcs(), (a100().gpcs().0, Grouping::Control));
}

#[test]
fn registers_are_compared_too() {
    let mut survey = a100();
    survey.nvdebug = Ok(a100_registers());
    let report = survey.report();
    assert_eq!(names(&report), Vec::<String>::new());
    assert_eq!((report.places_per_gpc, report.holes()), ((8, true), 2));
    assert_eq!(report.units[53].claims.last(), Some(&Claim::Nvdebug { gpc: 4, tpc_in_gpc: 7 }));

    let nvdebug = survey.nvdebug.as_mut().unwrap();
    nvdebug.places.swap(0, 1);
    nvdebug.tpc_disable_masks.pop();
    let report = survey.report();
    let said = names(&report);
    assert!(said[0].starts_with("one-bit probing counts 54 TPCs, nvdebug counts 47"), "{said:?}");
    assert!(
        said.iter().any(|text| text.starts_with("TPC 0: the driver's control interface has the TPCs 0,7,14"))
    );
    assert!(said.iter().any(|text| text == "the driver's control interface counts 7 GPCs, nvdebug counts 6"));
    assert!(report.units[0].disputed && !report.units[2].disputed);
    assert_eq!(report.grouping, Grouping::Unproved, "who is right is not known");
}

#[test]
fn every_disagreement_is_named_and_takes_away_the_proof() {
    type Damage = fn(&mut Survey);
    let damage: [(&str, Damage); 7] = [
        ("one-bit probing counts 108 SMs, the driver's control interface counts 106", |survey| {
            control(survey).sms.truncate(106);
        }),
        (
            "TPC 3: its bit is 3 by the numbers of the driver's control interface, and 60 by one-bit probing",
            |survey| {
                survey.probe.bits[3] = 60;
            },
        ),
        (
            "TPC 3: one-bit probing finds the SMs 6-7 in one TPC, the driver's control interface does not",
            |survey| {
                control(survey).sms.swap(7, 20);
            },
        ),
        ("TPC 9: the driver's control interface lists it as switched off, but blocks ran there", |survey| {
            for sm in &mut control(survey).sms[18..20] {
                sm.virtual_gpc = VIRTUAL_GPC_DISABLED;
            }
        }),
        ("the driver's control interface lists 8 TPCs in the chip's GPC 2, and counts 7", |survey| {
            control(survey).tpc_counts = vec![(0, 8), (2, 7)];
        }),
        ("one-bit probing counts 54 TPCs, the driver's control interface counts 53", |survey| {
            for sm in &mut control(survey).sms[104..] {
                sm.tpc = 52;
            }
        }),
        ("TPC 53: its bit is 52", |survey| {
            for sm in &mut control(survey).sms[106..] {
                sm.tpc = 52;
            }
        }),
    ];
    for (text, damage) in damage {
        let mut survey = a100();
        damage(&mut survey);
        let report = survey.report();
        assert!(names(&report).iter().any(|name| name.starts_with(text)), "{text}: {:?}", names(&report));
        assert_eq!(report.grouping, Grouping::Unproved, "{text}");
        assert_eq!(survey.control_groups(), None, "{text}");
        let (source, state) = &report.sources[0];
        assert!(matches!(state, SourceState::Contradicted { .. }), "{source}: {state:?}");
    }
}

#[test]
fn clusters_outweigh_a_list() {
    // The list moves a TPC to another GPC; clusters ran where they ran.
    let mut survey = h200();
    for sm in &mut control(&mut survey).sms[16..18] {
        (sm.gpc, sm.virtual_gpc) = (2, 1);
    }
    let report = survey.report();
    let said = names(&report);
    assert!(
        said.iter().any(|text| text.starts_with("TPC 8: a cluster ran on the TPCs 0,8,16,24, but")),
        "{said:?}"
    );
    assert!(said.iter().any(|text| text.starts_with("TPC 8: its bit is 10 by")), "{said:?}");
    assert_eq!(report.grouping, Grouping::Clusters);
    assert_eq!(report.units[8].gpc, Some(0));
    // Names only the TPC in the wrong set, not those of the set that it left.
    assert!(report.units[8].disputed);
    assert_eq!(report.confirmed_sms(), 130);
}

/// A survey of a device whose sources all say the truth.
fn truthful(topology: &Topology) -> Survey {
    let index_in_gpc = |tpc: usize| {
        topology.tpcs()[..tpc].iter().filter(|other| other.gpc == topology.tpcs()[tpc].gpc).count() as u16
    };
    let order = topology.tpcs().iter().enumerate().flat_map(|(number, tpc)| {
        (0..topology.sms_per_tpc() as u16).map(move |sm_in_tpc| SmPlace {
            gpc: tpc.gpc.into(),
            tpc_in_gpc: index_in_gpc(number),
            sm_in_tpc,
            tpc: number as u16,
            virtual_gpc: tpc.gpc.into(),
            migratable_tpc: index_in_gpc(number),
            ugpu: None,
            cpc: None,
            virtual_tpc: None,
        })
    });
    Survey {
        compute_capability: 86,
        qmd_version: 0x24,
        runs_clusters: false,
        probe: ProbeClaims {
            sms_per_tpc: topology.sms_per_tpc(),
            bits: (0..topology.tpc_count() as u16).collect(),
        },
        control: Ok(ControlClaims { sms: order.collect(), tpc_counts: Vec::new() }),
        clusters: silent(),
        nvdebug: silent(),
    }
}

fn place() -> impl Strategy<Value = SmPlace> {
    let small = || prop_oneof![0..12u16, any::<u16>()];
    let ids = (small(), small(), small(), small(), small(), small());
    (ids, any::<[Option<u16>; 3]>()).prop_map(|(ids, [ugpu, cpc, virtual_tpc])| SmPlace {
        gpc: ids.0,
        tpc_in_gpc: ids.1,
        sm_in_tpc: ids.2,
        tpc: ids.3,
        virtual_gpc: ids.4,
        migratable_tpc: ids.5,
        ugpu,
        cpc: cpc.map(|cpc| cpc % 5),
        virtual_tpc,
    })
}

proptest! {
    #[test]
    fn what_is_true_is_confirmed_and_its_gpcs_are_the_device_s(
        topology in crate::testing::topologies(12, 12)
    ) {
        let survey = truthful(&topology);
        let report = survey.report();
        prop_assert_eq!(names(&report), Vec::<String>::new());
        prop_assert_eq!(report.confirmed_sms(), topology.sm_count());
        prop_assert_eq!(report.grouping, Grouping::Control);
        let placed: Vec<Tpc> = report
            .units
            .iter()
            .map(|unit| Tpc { gpc: unit.gpc.unwrap(), physical: unit.bit })
            .collect();
        let again = Topology::new(topology.sms_per_tpc(), placed).unwrap();
        let sets = |topology: &Topology| topology.gpcs().iter().map(|gpc| gpc.tpcs).collect::<Vec<TpcSet>>();
        prop_assert_eq!(sets(&again), sets(&topology));
        // Every TPC is drawn once, and rows are alike.
        let mut drawn: Vec<u8> = report.rows.iter().flat_map(Row::cells).filter_map(|cell| match cell {
            Cell::Tpc(tpc) => Some(tpc),
            Cell::Hole => None,
        }).collect();
        drawn.sort_unstable();
        prop_assert_eq!(drawn, topology.all().iter().collect::<Vec<u8>>());
        let widths: Vec<usize> = report.rows.iter().map(|row| row.cells().count()).collect();
        prop_assert!(widths.iter().all(|&width| width == widths[0]), "{:?}", widths);
    }

    #[test]
    fn a_single_wrong_place_never_goes_unnoticed(
        topology in crate::testing::topologies(8, 8), sm in any::<prop::sample::Index>(), wrong in place()
    ) {
        let mut survey = truthful(&topology);
        let sms = &mut control(&mut survey).sms;
        let index = sm.index(sms.len());
        // Only clusters could see a wrong GPC of a whole TPC; probing sees everything else.
        prop_assume!(wrong.tpc != sms[index].tpc || topology.sms_per_tpc() > 1 && wrong.gpc != sms[index].gpc);
        sms[index] = wrong;
        prop_assert!(!survey.report().disagreements.is_empty());
        prop_assert_eq!(survey.gpcs().1, Grouping::Unproved);
    }

    #[test]
    fn nonsense_is_reported_and_breaks_nothing(
        sms in prop::collection::vec(place(), 0..300),
        bits in prop::collection::vec(any::<u16>(), 1..256),
        (sms_per_tpc, capability) in (1..4u32, prop_oneof![Just(61u32), Just(80), Just(90), Just(120)]),
        qmd_version in prop_oneof![Just(0x21u8), Just(0x30), Just(0x40), Just(0x50)],
        clusters in prop::option::of(prop::collection::vec(any::<u8>(), 0..256)),
        nvdebug in prop::option::of((any::<u32>(), prop::collection::vec((any::<u16>(), any::<u64>()), 0..16))),
    ) {
        let survey = Survey {
            compute_capability: capability,
            qmd_version,
            runs_clusters: capability >= 90,
            probe: ProbeClaims { sms_per_tpc, bits },
            control: Ok(ControlClaims { sms, tpc_counts: vec![(3, 7)] }),
            clusters: clusters.ok_or_else(String::new),
            nvdebug: nvdebug.map(|(chip_tpcs_per_gpc, tpc_disable_masks)| NvdebugClaims {
                chip_gpcs: 8, chip_tpcs_per_gpc, tpc_disable_masks, places: vec![(0, 0), (15, 15)],
            }).ok_or_else(String::new),
        };
        let report = survey.report();
        prop_assert_eq!(report.units.len(), survey.probe.bits.len());
        let drawn = report.rows.iter().flat_map(Row::cells).filter(|cell| *cell != Cell::Hole).count();
        prop_assert_eq!(drawn, report.units.len());
        prop_assert!(report.confirmed_sms() <= report.sm_count());
        prop_assert!(report.disagreements.iter().all(|disagreement| !disagreement.to_string().is_empty()));
    }
}
