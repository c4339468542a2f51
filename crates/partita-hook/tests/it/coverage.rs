//! `docs/coverage.md`: what the hook does with each export of the driver library, from the tables
//! that the hook is compiled against.
//!
//! `PARTITA_UPDATE_DOCS=1 cargo test -p partita-hook --test it coverage` updates it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use partita_abi::exports::{EXPORTS, LATER, NVML_WRAPPED, Policy};
use partita_abi::versions;

/// The classes, what they mean, and the policies that make them up.
const CLASSES: [(&str, &str, &[Policy]); 8] = [
    (
        "Charged",
        "Obtains device memory, gives it back, or changes who holds it. Reserved in the tenant's account before the driver is \
         asked; over the quota the call fails as on a full device.",
        &[Policy::Charge, Policy::Release],
    ),
    (
        "Launched",
        "Launches work, or makes, changes or ends what is launched: judged by the partition, then masked.",
        &[Policy::Launch, Policy::Graph],
    ),
    (
        "Loaded",
        "Loads code: rewritten for tenants whose kernels are persistent blocks, and untouched for others. Code and global \
         variables are part of what a process costs before it allocates (below).",
        &[Policy::Load],
    ),
    (
        "Waited for",
        "Waits for work on the GPU, or asks whether it is done; copies for which the program waits are among \
         them. Before the driver is asked, the gate between tenants with priorities opens behind what the \
         program has launched. After a synchronisation, memory that pools have given up is credited. Nothing \
         is charged.",
        &[Policy::Wait],
    ),
    (
        "Counted",
        "Copies or fills memory and does not wait for it. The count tells the holder of a dead process \
         whether copies may be in flight.",
        &[Policy::Copy],
    ),
    (
        "Virtualised",
        "Answered with what the tenant has instead of what the device has, or with the hook's own entry points. Contexts are made \
         in a process that is part of its tenant, and in no other. Managed memory is \
         charged in full when it is allocated, wherever it lies; what lies on the host because the quota had no room for it \
         (`--spill host`) cannot be moved, so calls that move managed memory or advise where to have it do nothing to that.",
        &[Policy::Attach, Policy::Resolve, Policy::Context, Policy::Query],
    ),
    (
        "Refused",
        "Where the limit is set that it would escape, and only there: with an error that CUDA documents for the call.",
        &[Policy::Refuse],
    ),
    (
        "Passed",
        "Handed to the driver untouched: obtains no device memory and launches nothing.",
        &[Policy::Pass],
    ),
];

/// Calls that are passed although memory is in their names, and why.
const PASSED_BECAUSE: [(&str, &str); 8] = [
    ("cuMemAddressReserve", "addresses without memory"),
    (
        "cuMemAllocHost, cuMemHostAlloc, cuMemHostRegister",
        "memory of the host, which is not the device's to give",
    ),
    ("cuMemPoolCreate", "a pool has no memory before something is allocated from it"),
    (
        "cuMemPoolImportFromShareableHandle, cuMemPoolImportPointer",
        "memory of another process's pool, charged to that process's tenant",
    ),
    (
        "cuMulticastCreate",
        "the object has no memory of its own; what is bound to it stays charged until it is unbound",
    ),
    (
        "cuExternalMemoryGetMappedBuffer, …MappedMipmappedArray",
        "the whole memory is charged when it is imported",
    ),
    ("cuMipmappedArrayGetLevel, cuArrayGetPlane", "a part of what is charged"),
    (
        "cuGraphics…, cuGL…, cuEGL…, cuVDPAU…",
        "memory that a graphics interface has allocated, outside of CUDA, and keeps",
    ),
];

/// The CUDA version of an export, where it is known.
fn since(name: &str) -> Option<u32> {
    let later = LATER.iter().find(|row| row.export.name == name).map(|row| row.since);
    later.or_else(|| versions::variant(name).map(|variant| variant.since))
}

/// Calls of some policies: base names, each with its exports.
fn calls(policies: &[Policy]) -> BTreeMap<String, Vec<&'static str>> {
    let mut calls: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    let all = EXPORTS.iter().copied().chain(LATER.iter().map(|row| row.export));
    for export in all.filter(|export| policies.contains(&export.policy)) {
        let plain = export.name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let base = match plain.rsplit_once("_v") {
            Some((base, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => base,
            _ => plain,
        };
        calls.entry(base.to_owned()).or_default().push(export.name);
    }
    calls.values_mut().for_each(|names| names.sort_unstable());
    calls
}

fn document() -> String {
    let mut text = String::from(
        "# What the hook does with each export of libcuda\n\n\
         Written by `crates/partita-hook/tests/it/coverage.rs` from the tables that the hook is compiled \
         against (`partita_abi::exports`); do not edit.\n\n\
         The exports are those of the library of driver 580.159.04 (CUDA 13.0), which has every one since CUDA 2.0 that x86-64 Linux ever had, and what \
         `cuda.h` declares beyond them up to CUDA 13.5, which no driver has shown yet. A version behind a name is the CUDA \
         version that brought it. A driver's export that is in neither list is passed, and `partita doctor` names it \
         (`driver exports`).\n\n",
    );
    text.push_str("| class | exports |\n|---|---|\n");
    let count = |policies: &[Policy]| calls(policies).values().map(Vec::len).sum::<usize>();
    for (class, _, policies) in CLASSES {
        writeln!(text, "| {} | {} |", class.to_lowercase(), count(policies)).unwrap();
    }
    for (class, meaning, policies) in CLASSES {
        writeln!(text, "\n## {class}\n\n{meaning}\n").unwrap();
        if class == "Passed" {
            text.push_str("| call | why |\n|---|---|\n");
            for (call, why) in PASSED_BECAUSE {
                writeln!(text, "| {call} | {why} |").unwrap();
            }
            text.push('\n');
        }
        for (base, names) in calls(policies) {
            let variants: Vec<String> = names
                .iter()
                .map(|name| {
                    let suffix = name.strip_prefix(base.as_str()).unwrap_or(name);
                    let suffix = if suffix.is_empty() { String::new() } else { format!("`{suffix}` ") };
                    match since(name) {
                        Some(version) => format!("{suffix}{}.{}", version / 1000, version % 1000 / 10),
                        None => suffix.trim_end().to_owned(),
                    }
                })
                .filter(|variant| !variant.is_empty())
                .collect();
            let variants = variants.join(", ");
            writeln!(
                text,
                "* `{base}`{}",
                if variants.is_empty() { variants } else { format!(" {variants}") }
            )
            .unwrap();
        }
    }
    text.push_str("\n## libnvidia-ml\n\nWrapped, so that `nvidia-smi` and its like show the quota and the tenant's processes; all others pass.\n\n");
    for name in NVML_WRAPPED {
        writeln!(text, "* `{name}`").unwrap();
    }
    text.push_str(
        "\n## Not charged\n\n\
         * What the driver takes for itself, up to the allowance of `--mem-driver`: contexts (some 500 MiB \
         on an H200 without MPS), code, stacks and queues. Beyond the allowance it is charged.\n\
         * 5.6 MiB of each context that the kernel driver keeps by itself.\n\
         * What programs obtain by talking to the kernel driver themselves, past libcuda.\n",
    );
    text
}

#[test]
fn the_coverage_table_is_what_the_hook_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/coverage.md");
    let document = document();
    if std::env::var_os("PARTITA_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &document).expect("docs can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("docs/coverage.md is there");
    let stale = committed.lines().zip(document.lines()).find(|(committed, now)| committed != now);
    assert!(
        committed == document,
        "docs/coverage.md is not what the tables say: {stale:?}; update it with PARTITA_UPDATE_DOCS=1"
    );
}

#[test]
fn every_export_is_in_one_class() {
    let of_classes: usize =
        CLASSES.iter().map(|(_, _, policies)| calls(policies).values().map(Vec::len).sum::<usize>()).sum();
    assert_eq!(of_classes, EXPORTS.len() + LATER.len());
    for (calls_named, _) in PASSED_BECAUSE {
        let first = calls_named.split([',', '…']).next().unwrap();
        let passed = calls(&[Policy::Pass]);
        assert!(passed.keys().any(|base| base.starts_with(first)), "{first} is not passed");
    }
}
