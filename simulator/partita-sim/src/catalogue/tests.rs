use super::*;

#[test]
fn every_name_leads_to_its_device() {
    for (name, spec) in NAMES.iter().zip(all()) {
        assert_eq!(device(name).unwrap().id, *name);
        assert_eq!(device(&format!("sim:{name}")).unwrap().id, *name);
        assert_eq!(spec.id, *name);
        assert!(spec.scheduler.task_slots > 0 && spec.scheduler.queues_max >= spec.scheduler.queues_default);
        // Compute capability 3.0 has no stream priorities.
        let has_priorities = spec.compute_capability > crate::ComputeCapability::new(3, 0);
        assert_eq!(spec.scheduler.priority_greatest < spec.scheduler.priority_least, has_priorities);
    }
    assert_eq!(device("sim").unwrap().id, DEFAULT);
    assert_eq!(device("sim:GTX1060_3GB").unwrap().id, "gtx1060-3gb");
}

#[test]
fn an_unknown_name_is_refused_with_the_known_ones() {
    let error = device("sim:h900").unwrap_err().to_string();
    assert_eq!(
        error,
        "no simulated device is called 'sim:h900'; known are sim:h200, sim:a100, sim:gtx1060-3gb, sim:gtx-680, \
         sim:tesla-k40, sim:gtx970, sim:p100, sim:titan-v, sim:xavier, sim:rtx2060, sim:rtx3070, sim:rtx6000-ada, \
         sim:l40s, sim:h100, sim:h100-v3, sim:b200, sim:gb10, and the path of a device file, as sim:/path/to/device.toml"
    );
}

#[test]
fn the_h200_agrees_with_what_was_measured() {
    let spec = device("h200").unwrap();
    let t = &spec.topology;
    assert_eq!((t.tpc_count(), t.sm_count()), (66, 132));
    let bits: Vec<u16> = t.tpcs().iter().map(|tpc| tpc.physical).collect();
    // A 64-bit mask cannot reach 12 of the TPCs.
    let mut high: Vec<u16> = bits.iter().copied().filter(|&b| b >= 64).collect();
    high.sort_unstable();
    assert_eq!(high, [64, 65, 66, 67, 68, 69, 70, 71, 75, 78, 81, 83]);
    // The first eight logical TPCs lie in eight GPCs: one TPC's two SMs are the largest cluster
    // there.
    assert_eq!(t.max_cluster_sms(&partita_core::TpcSet::first(8)), 2);
    // A cluster of 16 does not fit into logical 0 to 32, but does into the whole device.
    assert!(t.max_cluster_sms(&partita_core::TpcSet::first(33)) < 16);
    assert!(t.max_cluster_sms(&t.all()) >= 16);
    // GPC-major with stride 9 inside the eight regular GPCs.
    for tpc in t.tpcs().iter().filter(|tpc| tpc.physical < 72) {
        assert_eq!(u16::from(tpc.gpc), tpc.physical / 9);
    }
    assert_eq!(spec.memory.capacity_bytes, 143_771 * 1024 * 1024);
}

/// TPCs, SMs, GPCs, and the greatest bit of a mask.
#[test]
fn the_other_devices_have_their_published_sizes() {
    let sizes = [
        ("gtx-680", (8, 8, 4, 7)),
        ("tesla-k40", (15, 15, 5, 14)),
        ("gtx970", (13, 13, 4, 12)),
        ("gtx1060-3gb", (9, 9, 2, 8)),
        ("p100", (28, 56, 6, 27)),
        ("titan-v", (40, 80, 6, 39)),
        ("xavier", (4, 8, 1, 3)),
        ("rtx2060", (15, 30, 3, 14)),
        ("a100", (54, 108, 7, 53)),
        ("rtx3070", (23, 46, 6, 22)),
        ("rtx6000-ada", (71, 142, 12, 70)),
        ("l40s", (71, 142, 12, 70)),
        ("h100", (66, 132, 8, 71)),
        ("h100-v3", (57, 114, 7, 56)),
        ("gb10", (24, 48, 6, 23)),
        ("b200", (74, 148, 8, 128 + 38)),
    ];
    for (name, expected) in sizes {
        let spec = device(name).unwrap();
        let t = &spec.topology;
        let last = t.tpcs().iter().map(|tpc| tpc.physical).max().unwrap();
        assert_eq!((t.tpc_count(), t.sm_count(), t.gpcs().len(), last), expected, "{name}");
    }
    assert_eq!(sizes.len() + 1, NAMES.len());
}

#[test]
fn gb10_numbers_as_was_reported() {
    let t = device("gb10").unwrap().topology;
    let enabled: Vec<u32> = (0..24_u8)
        .filter(|&tpc| t.tpcs()[usize::from(tpc)].physical < 4)
        .flat_map(|tpc| t.sms_of(tpc))
        .collect();
    assert_eq!(enabled, [0, 1, 8, 9, 16, 17, 24, 25]);
}

#[test]
fn every_product_has_many_boards() {
    for name in NAMES {
        let usual = device(name).unwrap();
        for seed in 1..4 {
            let other = board(name, seed).unwrap();
            // The id leads to the same board again.
            assert_eq!(other.id, format!("{name}?seed={seed}"));
            assert_eq!(device(other.id).unwrap().topology, other.topology);
            assert_eq!((other.sm_count(), other.tpc_count()), (usual.sm_count(), usual.tpc_count()));
            assert_eq!(other.control.places.len() as u32, usual.tpc_count());
            assert_eq!(other.memory, usual.memory);
            // Singletons, which only the measured H200 has, are separate GPCs.
            let gpcs = usual.topology.gpcs().iter().filter(|gpc| gpc.tpcs.len() > 1).count();
            assert_eq!(other.topology.gpcs().len(), gpcs.max(1), "{name}");
        }
    }
    let boards = |name| (1..9).map(|seed| board(name, seed).unwrap().topology).collect::<Vec<_>>();
    assert!(boards("h200").windows(2).any(|pair| pair[0] != pair[1]));
    assert!(boards("rtx6000-ada").windows(2).any(|pair| pair[0] != pair[1]));
}

#[test]
fn a_seed_is_a_number() {
    assert_eq!(device("sim:A100?seed=7").unwrap().topology, board("a100", 7).unwrap().topology);
    assert_eq!(device("a100?seed=0").unwrap().id, "a100");
    for name in ["a100?seed=", "a100?seed=x", "sim:a100?seed=-1"] {
        let error = device(name).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "'{name}' names no board: behind ?seed= a number from 0 to 18446744073709551615 is accepted"
            )
        );
    }
    assert!(matches!(device("a900?seed=1"), Err(DeviceError::Unknown(_))));
    assert!(matches!(device("a100?sed=1"), Err(DeviceError::Unknown(_))));
}

/// Keys of a section that are figures, and those of its sources.
fn keys(section: &toml::Table) -> (Vec<&String>, Vec<&String>) {
    let figures = section.iter().filter(|(key, _)| *key != "source").map(|(key, _)| key).collect();
    let sources = section.get("source").and_then(toml::Value::as_table);
    (figures, sources.map(|sources| sources.keys().collect()).unwrap_or_default())
}

#[test]
fn every_figure_of_the_catalogue_has_a_source() {
    let sms = include_str!("../../devices/sm.toml");
    for (name, text) in DEVICES.into_iter().chain([("sm", sms)]) {
        let file: toml::Table = toml::from_str(text).unwrap();
        let sections = file.iter().filter_map(|(key, value)| Some((key, value.as_table()?)));
        for (section, table) in sections {
            let (figures, sources) = keys(table);
            assert_eq!(figures, sources, "{name}.toml [{section}]");
            let mut texts = table["source"].as_table().unwrap().values();
            assert!(texts.all(|text| text.as_str().is_some_and(|text| text.len() > 3)), "{name} {section}");
        }
    }
}

#[test]
fn where_the_papers_table_counts_otherwise_the_file_says_so() {
    for (name, tpcs, gpcs) in [
        ("gtx970", 13, 4),
        ("gtx1060-3gb", 9, 2),
        ("p100", 56, 6),
        ("titan-v", 80, 6),
        ("xavier", 8, 1),
        ("rtx2060", 30, 3),
        ("rtx3070", 46, 6),
        ("a100", 68, 8),
    ] {
        let spec = device(name).unwrap();
        let (_, text) = DEVICES.iter().find(|(known, _)| *known == name).unwrap();
        let file: toml::Table = toml::from_str(text).unwrap();
        let notes: Vec<&str> =
            file["note"].as_array().unwrap().iter().filter_map(|note| note.as_str()).collect();
        let agrees = (spec.tpc_count(), spec.topology.gpcs().len()) == (tpcs, gpcs);
        let notes = notes.join(" ");
        assert!(notes.contains(&format!("{tpcs} TPCs")), "{name}: {notes}");
        assert_eq!(notes.contains("agrees"), agrees, "{name}: {notes}");
        assert_eq!(notes.contains("NVIDIA:"), !agrees, "{name}: {notes}");
    }
}

fn own(text: &str, seed: u64) -> Result<DeviceSpec, String> {
    file::parse("own.toml", text, seed).map_err(|error| error.to_string())
}

const A100: &str = include_str!("../../devices/a100.toml");

#[test]
fn a_file_of_ones_own_is_a_device() {
    let dir = std::env::temp_dir().join(format!("partita-catalogue-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("twice.toml");
    // An A100 with twice the task slots and larger SMs, and a section of sources less.
    let text = A100
        .replace("task_slots = 128", "task_slots = 256")
        .replace("[memory]", "[sm]\nregisters = 131072\n\n[memory]");
    std::fs::write(&path, &text[..text.find("[board.source]").unwrap()]).unwrap();
    let name = format!("sim:{}", path.display());
    let spec = device(&name).unwrap();
    let usual = device("a100").unwrap();
    assert_eq!((spec.scheduler.task_slots, spec.sm.registers), (256, 131_072));
    assert_eq!((spec.topology.clone(), spec.sm.threads_max), (usual.topology, usual.sm.threads_max));
    // Not to be taken for the catalogue's.
    assert!(spec.id.starts_with("a100-") && spec.id.len() == 21, "{}", spec.id);
    let other = device(&format!("{name}?seed=7")).unwrap();
    assert_eq!(other.topology, board("a100", 7).unwrap().topology);
    assert_ne!(other.id, spec.id);
    std::fs::remove_dir_all(&dir).unwrap();
    let error = device(&name).unwrap_err().to_string();
    assert!(error.contains("twice.toml: it cannot be read: "), "{error}");
}

#[test]
fn what_is_wrong_with_a_file_is_named_with_what_is_accepted() {
    for (from, to, expected) in [
        ("tpcs = 54", "tpcs = 57", "own.toml: chip.tpcs is 57; accepted is 7 to 56"),
        (
            "tpcs = 54",
            "tpc = 54",
            "unknown field `tpc`, expected one of `sms_per_tpc`, `gpcs`, `tpcs_per_gpc`, `tpcs`,",
        ),
        ("tpcs = 54", "tpcs = \"54\"", "invalid type: string \"54\", expected u16"),
        ("order = \"round-robin\"", "order = \"random\"", "expected `round-robin` or `gpc-by-gpc`"),
        ("numbering = \"logical\"", "numbering = \"gpc-major\"", "chip.stride is missing"),
        ("numbering = \"logical\"", "numbering = \"two-dies\"", "chip.dies is 1; accepted is 2"),
        ("numbering = \"logical\"", "numbering = \"gpc-major\"\nstride = 99", "physical bit 297"),
        ("capability = \"8.0\"", "capability = \"8\"", "compute_capability is '8'; accepted is two numbers"),
        (
            "capability = \"8.0\"",
            "capability = \"8.1\"",
            "limits are known for compute capability 10.0, 12.1, 3.0,",
        ),
        ("task_slots = 128", "task_slots = 0", "scheduler.task_slots is 0; accepted is 1 to 65536"),
        ("pcie_generation = 4", "pcie_generation = 2", "copy.pcie_generation is 2; accepted is 3 to 8"),
        (
            "qmd_version = \"3.0\"",
            "qmd_version = \"16.0\"",
            "driver.qmd_version is 16.0; accepted is 0.0 to 15.15",
        ),
        ("l2_persisting_kib = 30720", "l2_persisting_kib = 50000", "accepted is 0 to 40960"),
        ("id = \"a100\"", "id = \"../a100\"", "id is '../a100'; accepted is 1 to 40 of a-z, 0-9 and -"),
        (
            "[clocks.source]",
            "[clocks.source]\nspeed = \"guess\"",
            "clocks.source.speed names no figure of [clocks]",
        ),
        (
            "[memory]",
            "[sm]\nregister = 1\n\n[memory]",
            "sm: unknown field `register`, expected one of `threads_max`,",
        ),
        ("[memory]", "[sm]\nwarp_threads = 0\n\n[memory]", "sm.warp_threads is 0; accepted is 1 to"),
        ("bus_bits = 5120\n", "", "missing field `bus_bits`"),
    ] {
        assert!(A100.contains(from), "{from}");
        let error = own(&A100.replacen(from, to, 1), 0).unwrap_err();
        assert!(error.starts_with("own.toml: ") && error.contains(expected), "{to}: {error}");
    }
    // The error names the line in the text.
    let error = own(&A100.replacen("tpcs = 54", "tpc = 54", 1), 0).unwrap_err();
    let line = 1 + A100.lines().position(|line| line == "tpcs = 54").unwrap();
    assert!(error.contains(&format!("at line {line}, column 1")), "{error}");
    assert!(own(A100, 3).is_ok());
}

#[test]
fn a_measured_board_is_complete() {
    let h200 = include_str!("../../devices/h200.toml");
    let error = own(&h200.replacen("[0, 0], ", "", 1), 0).unwrap_err();
    assert!(
        error.contains("measured.tpcs has 65 entries; accepted is one for each of chip.tpcs, 66"),
        "{error}"
    );
    // Boards with a seed do not need it.
    assert!(own(&h200[..h200.find("# The board that was measured").unwrap()], 0).is_ok());
}
