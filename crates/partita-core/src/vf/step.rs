//! The writes from one layout to another.

use alloc::vec::Vec;

use super::layout::{Binding, Layout, Vgpu};
use super::scheduler::SchedulerState;

/// One change of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Remove a vGPU.
    Remove(Vgpu),
    /// Give a function back to the driver that the kernel finds for it.
    Release {
        /// The function's number.
        function: u16,
    },
    /// Enable so many functions, of none; or disable all, with 0.
    Functions(u16),
    /// Allow vGPUs of several sizes together, or not.
    Mixed(bool),
    /// Set the scheduler.
    Schedule(SchedulerState),
    /// Create a vGPU.
    Create(Vgpu),
    /// Bind a function to a driver.
    Bind {
        /// The function's number.
        function: u16,
        /// The driver, and whether it is to have the function at once.
        binding: Binding,
    },
}

/// The steps from `now` to `wanted`, in order.
///
/// Functions are enabled of none, because the kernel refuses another number while some are
/// enabled. That takes all vGPUs and bindings with it, and resets what the driver was told. The
/// mode for several sizes is changed while there is no vGPU, as the driver demands.
#[must_use]
pub fn steps(now: &Layout, wanted: &Layout) -> Vec<Step> {
    let mut steps = Vec::new();
    let is_renewed = now.functions != wanted.functions;
    let mode = wanted.is_mixed.unwrap_or(false);
    let changes_mode = wanted.is_mixed.is_some()
        && match is_renewed {
            true => mode,
            false => now.is_mixed != wanted.is_mixed,
        };
    let all_go = is_renewed || changes_mode;

    let stays = |vgpu: &Vgpu| !all_go && wanted.vgpus.contains(vgpu);
    steps.extend(now.vgpus.iter().filter(|vgpu| !stays(vgpu)).cloned().map(Step::Remove));
    let is_kept = |from: &Layout, function: &u16, binding: &Binding| {
        !is_renewed && from.bindings.get(function) == Some(binding)
    };
    let released = now.bindings.iter().filter(|(at, binding)| !is_kept(wanted, at, binding));
    steps.extend(released.map(|(function, _)| Step::Release { function: *function }));
    if is_renewed {
        if now.functions != 0 {
            steps.push(Step::Functions(0));
        }
        if wanted.functions != 0 {
            steps.push(Step::Functions(wanted.functions));
        }
    }
    if changes_mode {
        steps.push(Step::Mixed(mode));
    }
    if let Some(scheduler) = wanted.scheduler
        && (now.scheduler != wanted.scheduler || is_renewed)
        && (!is_renewed || wanted.functions != 0)
    {
        steps.push(Step::Schedule(scheduler));
    }
    let is_there = |vgpu: &Vgpu| !all_go && now.vgpus.contains(vgpu);
    steps.extend(wanted.vgpus.iter().filter(|vgpu| !is_there(vgpu)).cloned().map(Step::Create));
    let bound = wanted.bindings.iter().filter(|(at, binding)| !is_kept(now, at, binding));
    steps.extend(
        bound.map(|(function, binding)| Step::Bind { function: *function, binding: binding.clone() }),
    );
    steps
}
