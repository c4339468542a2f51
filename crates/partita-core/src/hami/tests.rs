use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::testing::{h200, occupied, round_robin};

fn says(entries: &[&str]) -> Says {
    Says::of(entries.iter().map(|entry| entry.as_bytes()))
}

fn asked(entries: &[&str]) -> Asked {
    match says(entries) {
        Says::Asks(asked) => *asked,
        other => panic!("{entries:?}: {other:?}"),
    }
}

#[test]
fn memory_is_binary_and_a_devices_own_limit_comes_first() {
    let read = |value: &str| asked(&[&std::format!("CUDA_DEVICE_MEMORY_LIMIT={value}")]).memory_bytes(0);
    assert_eq!(read("3g"), Some(3 << 30));
    assert_eq!(read("3000m"), Some(3000 << 20));
    assert_eq!(read("7K"), Some(7 << 10));
    assert_eq!(read("4096"), Some(4096));
    assert_eq!((read("0"), read("0m")), (None, None));
    let both = asked(&[
        "CUDA_DEVICE_MEMORY_LIMIT=2g",
        "CUDA_DEVICE_MEMORY_LIMIT_1=512m",
        "CUDA_DEVICE_MEMORY_LIMIT_2=0",
    ]);
    let devices: Vec<_> = (0..3).map(|device| both.memory_bytes(device)).collect();
    assert_eq!(devices, [Some(2 << 30), Some(512 << 20), Some(2 << 30)]);
    assert!(both.is_numbered());
    assert_eq!(asked(&["CUDA_DEVICE_MEMORY_LIMIT_1=1g"]).memory_bytes(0), None);
}

#[test]
fn cores_are_percent_and_the_whole_is_no_limit() {
    let read = |value: &str| asked(&[&std::format!("CUDA_DEVICE_SM_LIMIT={value}")]).cores_percent(0);
    assert_eq!((read("1"), read("30"), read("99")), (Some(1), Some(30), Some(99)));
    assert_eq!((read("0"), read("100"), read("1000")), (None, None, None));
    let own = asked(&["CUDA_DEVICE_SM_LIMIT=30", "CUDA_DEVICE_SM_LIMIT_3=100"]);
    assert_eq!((own.cores_percent(0), own.cores_percent(3)), (Some(30), None));
    for (policy, limit) in
        [("default", Some(30)), ("force", Some(30)), ("disable", None), ("DISABLE", None), ("x", Some(30))]
    {
        let policy = std::format!("GPU_CORE_UTILIZATION_POLICY={policy}");
        assert_eq!(asked(&["CUDA_DEVICE_SM_LIMIT=30", &policy]).cores_percent(0), limit, "{policy}");
    }
}

#[test]
fn an_environment_without_limits_says_nothing_and_a_switch_turns_all_off() {
    assert_eq!(says(&[]), Says::Nothing);
    assert_eq!(
        says(&["PATH=/bin", "CUDA_VISIBLE_DEVICES=0", "LIBCUDA_LOG_LEVEL=4", "x", "="]),
        Says::Nothing
    );
    assert_eq!(says(&["GPU_CORE_UTILIZATION_POLICY=force", "CUDA_OVERSUBSCRIBE=true"]), Says::Nothing);
    assert_eq!(says(&["CUDA_DEVICE_MEMORY_LIMIT="]), Says::Nothing, "an empty value does not count");
    assert_eq!(says(&["CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DISABLE_CONTROL=true"]), Says::Off);
    assert_eq!(says(&["CUDA_DISABLE_CONTROL=TRUE"]), Says::Off);
    assert_eq!(
        says(&["CUDA_DEVICE_MEMORY_LIMIT=?", "CUDA_TASK_PRIORITY=?", "CUDA_DISABLE_CONTROL=true"]),
        Says::Off
    );
    assert!(matches!(says(&["CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DISABLE_CONTROL=no"]), Says::Asks(_)));
    let named = asked(&["CUDA_DEVICE_MEMORY_SHARED_CACHE=/x/y.cache"]);
    assert_eq!(
        (named.cache(), named.memory_bytes(0), named.cores_percent(0)),
        (b"/x/y.cache".as_slice(), None, None)
    );
    assert_eq!(asked(&["CUDA_DEVICE_SM_LIMIT=10"]).cache(), DEFAULT_CACHE.as_bytes());
}

#[test]
fn an_unreadable_limit_is_not_an_absent_one() {
    for entry in [
        "CUDA_DEVICE_MEMORY_LIMIT=lots",
        "CUDA_DEVICE_MEMORY_LIMIT=-1",
        "CUDA_DEVICE_MEMORY_LIMIT=1.5g",
        "CUDA_DEVICE_MEMORY_LIMIT=3GiB",
        "CUDA_DEVICE_MEMORY_LIMIT=g",
        "CUDA_DEVICE_MEMORY_LIMIT= 3g",
        "CUDA_DEVICE_MEMORY_LIMIT=99999999999g",
        "CUDA_DEVICE_MEMORY_LIMIT=99999999999999999999",
        "CUDA_DEVICE_MEMORY_LIMIT_x=1g",
        "CUDA_DEVICE_MEMORY_LIMIT_=1g",
        "CUDA_DEVICE_MEMORY_LIMIT_32=1g",
        "CUDA_DEVICE_SM_LIMIT=half",
        "CUDA_DEVICE_SM_LIMIT=30%",
        "CUDA_DEVICE_SM_LIMIT_0=-5",
        "CUDA_TASK_PRIORITY=high",
        "CUDA_MEM_LIMIT=?",
        "CUDA_CORE_LIMIT_1=all",
    ] {
        let Says::Unclear(unreadable) = says(&[entry]) else { panic!("{entry}") };
        let text = unreadable.to_string();
        assert!(text.starts_with(entry.split_once('=').unwrap().0) && text.contains("must be"), "{text}");
    }
    let Says::Unclear(long) = Says::of([b"CUDA_DEVICE_SM_LIMIT=\xff\xfe".repeat(1000).as_slice()]) else {
        panic!()
    };
    assert!(long.to_string().len() < 600, "messages have an end");
}

#[test]
fn the_rest_is_read_as_documented() {
    let priority = |value: &str| asked(&[&std::format!("CUDA_TASK_PRIORITY={value}")]).priority;
    assert_eq!(
        (priority("0"), priority("1"), priority("2")),
        (Some(Priority::High), Some(Priority::Low), Some(Priority::Low))
    );
    let all = asked(&[
        "CUDA_DEVICE_MEMORY_LIMIT=1g",
        "CUDA_DEVICE_MEMORY_LIMIT=2g",
        "CUDA_OVERSUBSCRIBE=true",
        "ACTIVE_OOM_KILLER=1",
        "LIBCUDA_LOG_LEVEL=9",
        "NVIDIA_VISIBLE_DEVICES=GPU-aa, GPU-bb",
        "PARTITA_RUN_DIR=/run/x",
    ]);
    assert_eq!(all.memory_bytes(5), Some(1 << 30), "the first of two counts");
    assert!(all.spills(0) && all.log_level == 4 && !all.is_numbered());
    assert_eq!(all.listed().unwrap(), ["GPU-aa", "GPU-bb"]);
    assert_eq!(ordinals("2, 0,-1,1").unwrap(), [2, 0]);
    assert_eq!((ordinals(""), ordinals("GPU-a,1"), ordinals("-1")), (None, None, None));
    assert_eq!(all.run_dir.as_deref(), Some(b"/run/x".as_slice()));
    assert_eq!(all.notes().count(), 1);
    for list in ["all", "none", "0,1", "GPU-aa,1", "MIG-GPU-aa/1/0", "GPU-", ""] {
        let asked = asked(&["CUDA_DEVICE_SM_LIMIT=5", &std::format!("NVIDIA_VISIBLE_DEVICES={list}")]);
        assert_eq!(asked.listed(), None, "{list}");
    }
    let uuid = [0xab, 0xcd, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6];
    for entry in ["GPU-abcd1234-5678-9abc-def0-010203040506", "GPU-AB", "MIG-abcd12345", "GPU-a"] {
        assert!(names(entry, &uuid), "{entry}");
    }
    for entry in ["GPU-abcd1234-5678-9abc-def0-010203040507", "GPU-b", "abcd", "GPU-", "", "GPU-xy"] {
        assert!(!names(entry, &uuid), "{entry}");
    }
}

#[test]
fn vgpu_managers_names_are_read_and_come_second() {
    let read = asked(&[
        "CUDA_MEM_LIMIT_0=1024m",
        "CUDA_CORE_LIMIT=40",
        "CUDA_CORE_SOFT_LIMIT_0=60",
        "CUDA_MEM_OVERSOLD_1=true",
    ]);
    assert_eq!(
        (read.memory_bytes(0), read.memory_bytes(1), read.cores_percent(0)),
        (Some(1 << 30), None, Some(40))
    );
    assert!(!read.spills(0) && read.spills(1));
    assert_eq!(read.notes().count(), 1);
    let both = asked(&[
        "CUDA_DEVICE_MEMORY_LIMIT=2g",
        "CUDA_MEM_LIMIT=1g",
        "CUDA_CORE_LIMIT=40",
        "CUDA_DEVICE_SM_LIMIT=30",
    ]);
    assert_eq!((both.memory_bytes(0), both.cores_percent(0)), (Some(2 << 30), Some(30)));
    assert_eq!(says(&["CUDA_CORE_SOFT_LIMIT=60"]), Says::Nothing);
    assert_eq!(says(&["CUDA_MEM_LIMIT=1g", "DISABLE_VGPU_CONTROL=true"]), Says::Off);
}

#[test]
fn tenants_that_know_of_each_other_are_disjoint_while_there_is_room() {
    let topology = h200();
    let mut present: Vec<Present> = Vec::new();
    for (at, percent) in [30u32, 25, 20, 25].into_iter().enumerate() {
        let chosen = choose(&topology, &present, percent, 0x1234_5678_9abc * at as u64).unwrap();
        assert!(!chosen.overlaps, "{percent}");
        present.push(Present { name: at.to_string(), set: chosen.set });
    }
    assert!(choose(&topology, &present, 10, 77).unwrap().overlaps, "a limit, not a promise");
    let least = choose(&topology, &[], 1, 0).unwrap_err();
    assert!(matches!(least, ShareError::BelowOneTpc { .. }), "{least}");
}

#[test]
fn tenants_that_do_not_know_of_each_other_share_all_or_nothing_with_their_like() {
    let topology = round_robin(&[4, 4, 4, 4], 4);
    let sets: Vec<TpcSet> = (0..64).map(|hash| choose(&topology, &[], 25, hash).unwrap().set).collect();
    for (one, other) in sets.iter().zip(&sets[1..]) {
        assert!(one == other || (*one & *other).is_empty());
        assert!(topology.gpcs().iter().any(|gpc| gpc.tpcs == *one), "a quarter is a GPC");
    }
    assert_ne!(sets[0], sets[1]);
}

fn environment() -> impl Strategy<Value = Vec<std::string::String>> {
    let name = prop::sample::select(std::vec![
        "CUDA_DEVICE_MEMORY_LIMIT",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_MEM_LIMIT",
        "CUDA_CORE_LIMIT",
        "CUDA_TASK_PRIORITY",
        "GPU_CORE_UTILIZATION_POLICY",
        "CUDA_OVERSUBSCRIBE",
        "CUDA_DISABLE_CONTROL",
        "LIBCUDA_LOG_LEVEL",
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "PATH",
    ]);
    let entry = (name, "(_[0-9]{0,3})?", "=?[0-9gmkGPU\\-,.a ]{0,12}")
        .prop_map(|(name, number, value)| std::format!("{name}{number}{value}"));
    prop::collection::vec(entry, 0..8)
}

proptest! {
    #[test]
    fn no_environment_breaks_it_and_none_that_limits_is_without_limits(entries in environment()) {
        let read = Says::of(entries.iter().map(|entry| entry.as_bytes()));
        let first = |name: &str| entries.iter().find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
        let limit = first("CUDA_DEVICE_MEMORY_LIMIT").and_then(|value| value.strip_suffix('g')?.parse::<u64>().ok());
        match read {
            Says::Asks(asked) => {
                let wanted = limit.filter(|&gib| gib > 0).map(|gib| gib << 30);
                if wanted.is_some() {
                    prop_assert_eq!(asked.memory_bytes(31).is_some(), true);
                    if first("CUDA_DEVICE_MEMORY_LIMIT_31").is_none() {
                        prop_assert_eq!(asked.memory_bytes(31), wanted);
                    }
                }
                prop_assert!((0..40).all(|device| asked.cores_percent(device).is_none_or(|percent| (1..100).contains(&percent))));
                let _ = (asked.listed(), asked.notes().count());
            }
            Says::Nothing => prop_assert!(limit.is_none(), "{:?}", entries),
            Says::Off => prop_assert!(first("CUDA_DISABLE_CONTROL").is_some()),
            Says::Unclear(unreadable) => prop_assert!(!unreadable.to_string().is_empty()),
        }
    }

    #[test]
    fn bytes_are_what_they_say(count in 0u64..1 << 33, unit in 0usize..4) {
        let text = std::format!("{count}{}", ["", "k", "m", "g"][unit]);
        prop_assert_eq!(value::bytes(text.as_bytes()), count.checked_shl(10 * unit as u32).filter(|&bytes| bytes >> (10 * unit) == count));
    }

    #[test]
    fn a_choice_has_the_size_asked_and_overlaps_only_where_it_must((topology, present) in occupied(6, 12), percent in 1u32..100, hash: u64) {
        let Ok(chosen) = choose(&topology, &present, percent, hash) else {
            prop_assert!(Share::Percent(percent * 1000).tpcs_wanted(&topology).is_err());
            return Ok(());
        };
        let wanted = Share::Percent(percent * 1000).tpcs_wanted(&topology).unwrap();
        prop_assert_eq!(chosen.set.len(), wanted);
        prop_assert!((chosen.set - topology.all()).is_empty());
        let taken = present.iter().fold(TpcSet::EMPTY, |all, tenant| all | tenant.set);
        prop_assert_eq!(chosen.overlaps, !(chosen.set & taken).is_empty());
        prop_assert_eq!(chosen.overlaps, wanted > topology.tpc_count() - taken.len());
        prop_assert_eq!(choose(&topology, &present, percent, hash), Ok(chosen));
    }
}
