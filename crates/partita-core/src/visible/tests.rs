extern crate std;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

fn text(uuid: &[u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn whole(uuid: [u8; 16]) -> Gpu {
    Gpu { uuid, instances: None }
}

fn instance(uuid: [u8; 16], gpu_instance: u32) -> Instance {
    Instance { uuid, gpu_instance, compute_instance: 0 }
}

fn gpu(gpu: usize) -> Shown {
    Shown { gpu, instance: None }
}

fn part(gpu: usize, instance: usize) -> Shown {
    Shown { gpu, instance: Some(instance) }
}

const A: [u8; 16] = *b"\x12\x34\x56\x78\x9a\xbc\x4d\xef\x80\x12\x34\x56\x78\x9a\xbc\xde";
const B: [u8; 16] = *b"\x12\x99\x56\x78\x9a\xbc\x4d\xef\x80\x12\x34\x56\x78\x9a\xbc\xde";

#[test]
fn entries_are_read() {
    for (entry, meant) in [
        ("0", Entry::Number(0)),
        (" 17 ", Entry::Number(17)),
        ("GPU-1", Entry::Gpu("1")),
        ("gpu-12345678-9aBC", Entry::Gpu("12345678-9aBC")),
        ("MIG-12345678-", Entry::Instance("12345678-")),
        (
            "MIG-GPU-12345678-9abc-4def-8012-3456789abcde/7/0",
            Entry::InstanceOf {
                gpu: "12345678-9abc-4def-8012-3456789abcde",
                gpu_instance: 7,
                compute_instance: 0,
            },
        ),
    ] {
        assert_eq!(Entry::parse(entry), Some(meant), "{entry:?}");
    }
    for entry in [
        "",
        " ",
        "-1",
        "+1",
        "99999999999",
        "0x1",
        "none",
        "all",
        "NoDevFiles",
        "GPU-",
        "GPU-g",
        "GPU--1",
        "GPU-123456789",
        "GPU-12345678-9abc-4def-8012-3456789abcde0",
        "MIG-",
        "MIG-GPU-",
        "MIG-GPU-1/1/0",
        "MIG-GPU-12345678-9abc-4def-8012-3456789abcde",
        "MIG-GPU-12345678-9abc-4def-8012-3456789abcde/1",
        "MIG-GPU-12345678-9abc-4def-8012-3456789abcde/1/",
        "MIG-GPU-12345678-9abc-4def-8012-3456789abcde/1/+0",
        "MIG-GPU-12345678-9abc-4def-8012-3456789abcde/1/0/0",
        "äöü-€",
    ] {
        assert_eq!(Entry::parse(entry), None, "{entry:?}");
    }
}

#[test]
fn whole_gpus_are_shown_up_to_what_names_nothing() {
    let gpus = [whole(A), whole(B)];
    let shown = |list| shown(Some(list), &gpus);
    assert_eq!(super::shown(None, &gpus), [gpu(0), gpu(1)]);
    assert_eq!(shown("1,0"), [gpu(1), gpu(0)]);
    assert_eq!(shown("GPU-1299, GPU-1234"), [gpu(1), gpu(0)]);
    assert_eq!(shown("0,GPU-1234"), [gpu(0)], "a second time");
    assert_eq!(shown("GPU-12"), [], "both begin so");
    assert_eq!(shown("1,2,0"), [gpu(1)]);
    assert_eq!(shown("0,MIG-1234,1"), [gpu(0)], "none is cut up");
    for list in ["", "-1", "none", "2,0"] {
        assert_eq!(shown(list), [], "{list:?}");
    }
}

#[test]
fn of_gpus_that_are_cut_up_one_instance_is_shown() {
    let (first, second, other) = ([1; 16], [2; 16], [0x21; 16]);
    let cut = Gpu { uuid: A, instances: Some(vec![instance(first, 1), instance(second, 7)]) };
    let gpus = [cut.clone(), whole(B), Gpu { uuid: [9; 16], instances: Some(vec![instance(other, 1)]) }];
    let old = |gpu, instance| format!("MIG-GPU-{}/{instance}/0", text(gpu));
    for (list, expected) in [
        (format!("MIG-{}", text(&second)), vec![part(0, 1)]),
        ("MIG-0202".into(), vec![part(0, 1)]),
        ("mig-21".into(), vec![part(2, 0)]),
        ("MIG-0".into(), vec![]),
        (old(&A, 7), vec![part(0, 1)]),
        (old(&A, 2), vec![]),
        (old(&B, 1), vec![]),
        // The GPU itself means its first.
        ("0".into(), vec![part(0, 0)]),
        (format!("GPU-{}", text(&A)), vec![part(0, 0)]),
        // Nothing beside an instance.
        ("MIG-01,MIG-02".into(), vec![part(0, 0)]),
        ("MIG-01,1".into(), vec![part(0, 0)]),
        ("1,MIG-01".into(), vec![gpu(1)]),
    ] {
        assert_eq!(shown(Some(&list), &gpus), expected, "{list}");
    }
    assert_eq!(shown(None, &gpus), [gpu(1)]);
    assert_eq!(shown(None, &gpus[..1]), [part(0, 0)]);
    let empty = Gpu { uuid: A, instances: Some(vec![]) };
    assert_eq!(shown(None, core::slice::from_ref(&empty)), []);
    assert_eq!(shown(Some("0"), &[empty]), []);
}

fn machines() -> impl Strategy<Value = Vec<Gpu>> {
    let instances = prop::collection::vec((any::<[u8; 16]>(), 0u32..14, 0u32..8), 0..4).prop_map(|all| {
        let one = |(uuid, gpu_instance, compute_instance)| Instance { uuid, gpu_instance, compute_instance };
        all.into_iter().map(one).collect()
    });
    let gpu = (any::<[u8; 16]>(), prop::option::of(instances));
    prop::collection::vec(gpu.prop_map(|(uuid, instances)| Gpu { uuid, instances }), 0..5)
}

proptest! {
    /// Whatever the list is: no device twice, no missing device, and an instance alone.
    #[test]
    fn any_list_shows_devices_that_are_there(
        list in "([0-9]{1,2}|GPU-[0-9a-f]{0,9}|MIG-[0-9a-f]{0,3}|MIG-GPU-[0-9a-f/-]{0,40}|.{0,4}|,){0,6}",
        gpus in machines(),
    ) {
        for list in [Some(list.as_str()), None] {
            let seen = shown(list, &gpus);
            for (at, device) in seen.iter().enumerate() {
                prop_assert!(!seen[..at].contains(device));
                let instances = gpus[device.gpu].instances.as_ref();
                match device.instance {
                    None => prop_assert!(instances.is_none()),
                    Some(instance) => {
                        prop_assert!(instances.is_some_and(|all| instance < all.len()));
                        prop_assert_eq!(seen.len(), 1);
                    }
                }
            }
        }
    }

    /// A device's own name shows it alone, and so does every prefix that no other has.
    #[test]
    fn a_uuid_and_its_beginnings_show_what_they_name(gpus in machines(), chars in 1usize..=36) {
        for (at, gpu) in gpus.iter().enumerate() {
            let own = text(&gpu.uuid);
            let Some(instances) = &gpu.instances else {
                let beginning = &own[..chars];
                let alike = gpus.iter().filter(|other| text(&other.uuid).starts_with(beginning));
                // A GPU in MIG mode without an instance is not a device.
                let devices = alike.filter(|other| other.instances.as_ref().is_none_or(|all| !all.is_empty())).count();
                let seen = shown(Some(&format!("GPU-{beginning}")), &gpus);
                prop_assert_eq!(seen == [Shown { gpu: at, instance: None }], devices == 1);
                continue;
            };
            for (number, one) in instances.iter().enumerate() {
                let beginning = &text(&one.uuid)[..chars];
                let alike = gpus.iter().flat_map(|gpu| gpu.instances.iter().flatten());
                let count = alike.filter(|other| text(&other.uuid).starts_with(beginning)).count();
                let seen = shown(Some(&format!("MIG-{beginning}")), &gpus);
                prop_assert_eq!(seen == [part(at, number)], count == 1);
                let same = |other: &&Instance| {
                    (other.gpu_instance, other.compute_instance) == (one.gpu_instance, one.compute_instance)
                };
                let named = format!("MIG-GPU-{own}/{}/{}", one.gpu_instance, one.compute_instance);
                let gpus_alike = gpus.iter().filter(|other| other.uuid == gpu.uuid).count();
                if gpus_alike == 1 {
                    let seen = shown(Some(&named), &gpus);
                    prop_assert_eq!(seen == [part(at, number)], instances.iter().filter(same).count() == 1);
                }
            }
        }
    }

    /// Reading an entry never panics, and the result is a part of it.
    #[test]
    fn any_entry_is_read_or_refused(entry in "\\PC{0,60}") {
        match Entry::parse(&entry) {
            Some(Entry::Gpu(part) | Entry::Instance(part) | Entry::InstanceOf { gpu: part, .. }) => {
                prop_assert!(entry.contains(part));
            }
            Some(Entry::Number(number)) => {
                let digits = entry.trim().trim_start_matches('0');
                prop_assert_eq!(digits.parse().unwrap_or(0), number);
            }
            None => {}
        }
    }
}
