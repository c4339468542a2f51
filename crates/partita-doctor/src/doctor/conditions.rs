//! The conditions of MPS, as checks.

use partita_host::gpu::Gpu;
use partita_host::install::Install;
use partita_host::mps;
use partita_host::process::ProcessId;
use partita_host::registry::Registry;
use partita_mps::conditions::{Condition, Standing, judge};
use partita_mps::{Pid, Service};

use super::check::{Check, State};

/// Every condition of NVIDIA's guide for this GPU's service. If one is broken, tenants take turns.
pub(super) fn checks(install: &Install, gpu: &Gpu) -> Vec<Check> {
    let gpus = std::slice::from_ref(gpu);
    let service = Registry::open().and_then(|registry| mps::service(install, &registry, gpus)).ok();
    let all_users = service.as_ref().is_some_and(Service::is_for_all_users);
    let machine = mps::machine::machine(gpus, all_users, is_ours);
    judge(&machine).into_iter().map(check).collect()
}

fn check(condition: Condition) -> Check {
    let Condition { name, standing, detail, remedy } = condition;
    let state = match standing {
        Standing::Holds => State::Ok,
        Standing::Weak => State::Weak,
        Standing::Broken => State::Failed,
    };
    Check { name, state, detail, remedy }
}

/// Whether a server belongs to a service in a registry's directory: Partita's are called
/// `.mps-USER`.
fn is_ours(server: Pid) -> bool {
    let pipe = ProcessId::living(server).and_then(|process| process.variable("CUDA_MPS_PIPE_DIRECTORY"));
    pipe.is_some_and(|pipe| pipe.to_string_lossy().contains("/.mps-"))
}
