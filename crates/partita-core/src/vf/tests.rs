//! Plans and steps on a model of the driver's rules.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

fn types() -> Vec<VgpuType> {
    let names = ["NVIDIA A40-48Q", "NVIDIA A40-24Q", "NVIDIA A40-12Q", "NVIDIA A40-8Q", "NVIDIA A40-1Q"];
    names.into_iter().zip(100..).map(|(name, id)| VgpuType::named(id, name)).collect()
}

fn board(types: &[VgpuType], can_mix: bool) -> Board<'_> {
    Board { form: Form::Functions, types, can_mix }
}

/// Does a step as the kernel and the driver do, or says which rule it breaks.
fn carry_out(layout: &mut Layout, step: &Step) -> Result<(), String> {
    let rule = |holds: bool, rule: &str| if holds { Ok(()) } else { Err(rule.to_string()) };
    match step {
        Step::Remove(vgpu) => {
            let at = layout.vgpus.iter().position(|one| one == vgpu).ok_or("no such vGPU")?;
            layout.vgpus.remove(at);
        }
        Step::Release { function } => {
            rule(layout.bindings.remove(function).is_some(), "not bound")?;
        }
        Step::Functions(count) => {
            rule(*count == 0 || layout.functions == 0, "EBUSY: functions are enabled")?;
            rule(layout.vgpus.is_empty() && layout.bindings.is_empty(), "functions are in use")?;
            layout.functions = *count;
            layout.is_mixed = layout.is_mixed.map(|_| false);
            layout.scheduler = None;
        }
        Step::Mixed(is_on) => {
            rule(layout.vgpus.is_empty(), "in use by another client")?;
            layout.is_mixed = Some(*is_on);
        }
        Step::Schedule(state) => layout.scheduler = Some(*state),
        Step::Create(vgpu) => {
            rule(layout.vgpus.iter().all(|one| one.place != vgpu.place), "the function has a vGPU")?;
            rule(matches!(vgpu.place, Place::Function(at) if at < layout.functions), "no such function")?;
            layout.vgpus.push(vgpu.clone());
            layout.vgpus.sort();
        }
        Step::Bind { function, binding } => {
            rule(*function < layout.functions, "no such function")?;
            rule(layout.bindings.insert(*function, binding.clone()).is_none(), "bound already")?;
        }
    }
    Ok(())
}

fn layouts() -> impl Strategy<Value = Layout> {
    let binding = (prop_oneof!["vfio-pci", "stub"], any::<bool>());
    let parts = (
        0..6_u16,
        proptest::collection::btree_map(0..6_u16, binding, 0..4),
        proptest::collection::btree_map(0..6_u16, 100..105_u32, 0..6),
        any::<bool>(),
        proptest::option::of((0..3_usize, 0..3_u32)),
    );
    parts.prop_map(|(functions, bindings, vgpus, is_mixed, scheduler)| {
        let bindings: BTreeMap<u16, Binding> = bindings
            .into_iter()
            .filter(|(at, _)| *at < functions)
            .map(|(at, (driver, is_bound))| (at, Binding { driver, is_bound }))
            .collect();
        let vgpu = |(at, kind)| Vgpu { place: Place::Function(at), kind, uuid: String::new() };
        let vgpus = vgpus.into_iter().filter(|(at, _)| *at < functions).map(vgpu).collect();
        let scheduler = scheduler.map(|(policy, slice_ns)| SchedulerState {
            policy: Policy::ALL[policy],
            slice_ns,
            averaging: None,
        });
        Layout { functions, bindings, vgpus, is_mixed: Some(is_mixed && functions > 0), scheduler }
    })
}

proptest! {
    #[test]
    fn steps_keep_the_rules_and_end_where_they_should_from_any_layout(
        first in layouts(), second in layouts(), cut in 0..20_usize
    ) {
        let mut at = first.clone();
        let all = steps(&first, &second);
        for step in all.iter().take(cut) {
            carry_out(&mut at, step).map_err(TestCaseError::fail)?;
        }
        // Interrupted there, it goes on, and it goes back.
        for end in [&second, &first] {
            let mut here = at.clone();
            for step in steps(&at, end) {
                carry_out(&mut here, &step).map_err(TestCaseError::fail)?;
            }
            let is_scheduled = end.scheduler.is_none() || end.functions == 0 || here.scheduler == end.scheduler;
            prop_assert!(is_scheduled, "{here:?} {end:?}");
            prop_assert_eq!(&Layout { scheduler: end.scheduler, ..here }, end);
        }
    }

    #[test]
    fn a_plan_has_what_is_wanted_within_the_board_and_moves_nothing_in_use(
        wanted in proptest::collection::vec(100..105_u32, 0..7),
        present in layouts(),
        uses in any::<u8>(),
        can_mix in any::<bool>(),
    ) {
        let types = types();
        let now = Layout { functions: 16, bindings: BTreeMap::new(), ..present };
        let in_use: Vec<Vgpu> =
            now.vgpus.iter().enumerate().filter(|(at, _)| uses >> at & 1 == 1).map(|(_, one)| one.clone()).collect();
        let memory = |id: u32| types.iter().find(|one| one.id == id).unwrap().memory_mib;
        let sum: u64 = wanted.iter().map(|id| memory(*id)).sum();
        let is_one_size = wanted.iter().all(|id| memory(*id) == memory(wanted[0]));
        match plan(&board(&types, can_mix), &now, &wanted, &in_use) {
            Ok(layout) => {
                prop_assert!(sum <= 48 << 10 && (is_one_size || can_mix));
                let mut kinds: Vec<u32> = layout.vgpus.iter().map(|one| one.kind).collect();
                let mut expected = wanted.clone();
                kinds.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(kinds, expected);
                let removed = steps(&now, &layout);
                prop_assert!(in_use.iter().all(|one| !removed.contains(&Step::Remove(one.clone()))));
                let mut at = now.clone();
                for step in &removed {
                    carry_out(&mut at, step).map_err(TestCaseError::fail)?;
                }
                prop_assert_eq!(at, layout);
            }
            Err(Refusal::Memory { fits, .. }) => {
                prop_assert!(sum > 48 << 10);
                let upto = |count: usize| wanted[..count].iter().map(|id| memory(*id)).sum::<u64>();
                prop_assert!(upto(fits) <= 48 << 10 && upto(fits + 1) > 48 << 10);
            }
            Err(Refusal::Sizes) => prop_assert!(!is_one_size && !can_mix),
            Err(Refusal::InUse(busy)) => prop_assert!(!busy.is_empty() && busy.iter().all(|one| in_use.contains(one))),
            Err(Refusal::TooMany) => prop_assert!(false, "there are sixteen functions"),
        }
    }
}

#[test]
fn ratios_are_types() {
    let types = types();
    assert_eq!(of_ratio(&types, &[2, 1, 1]), Some([101, 102, 102].to_vec()));
    assert_eq!(of_ratio(&types, &[1]), Some([100].to_vec()));
    assert_eq!(of_ratio(&types, &[1, 1]), Some([101, 101].to_vec()));
    assert_eq!(of_ratio(&types, &[3, 1]), Some([101, 103].to_vec()));
    for none in [&[5, 3][..], &[], &[1, 0], &[0], &[u64::MAX, 1]] {
        assert_eq!(of_ratio(&types, none), None, "{none:?}");
    }
}

#[test]
fn too_few_functions_are_said() {
    let types = types();
    let now = Layout { functions: 1, is_mixed: Some(false), ..Layout::default() };
    assert_eq!(plan(&board(&types, true), &now, &[104, 104], &[]), Err(Refusal::TooMany));
    let on_the_device = Board { form: Form::MediatedDevice, ..board(&types, false) };
    let layout = plan(&on_the_device, &Layout::default(), &[104, 104], &[]).unwrap();
    assert!(layout.vgpus.iter().all(|one| one.place == Place::Device) && layout.vgpus.len() == 2);
}
