//! The conditions of MPS, as checks.

use partita_host::gpu::Gpu;
use partita_host::install::Install;
use partita_host::mps;
use partita_host::mps::canary::{self, Found, LAUNCH_LIMIT};
use partita_host::process::ProcessId;
use partita_host::registry::Registry;
use partita_mps::conditions::{Condition, Standing, judge};
use partita_mps::{Pid, Service, State};

use super::check::{self, Check};

/// Every condition of NVIDIA's guide for this GPU's service. If one is broken, tenants take turns.
pub(super) fn checks(install: &Install, gpu: &Gpu) -> Vec<Check> {
    let gpus = std::slice::from_ref(gpu);
    let service = Registry::open().and_then(|registry| mps::service(install, &registry, gpus)).ok();
    let all_users = service.as_ref().is_some_and(Service::is_for_all_users);
    // Root's servers do not show their variables to users.
    let running = service.as_ref().filter(|service| matches!(service.state(), Ok(State::Running { .. })));
    let own = running.and_then(|service| service.control().server_list().ok()).unwrap_or_default();
    let machine = mps::machine::machine(gpus, all_users, |server| own.contains(&server) || is_ours(server));
    let server =
        service.as_ref().zip(own.first()).and_then(|(service, pid)| server(install, gpu, service, *pid));
    judge(&machine).into_iter().map(of_condition).chain(server).collect()
}

/// Whether a server of the service runs kernels.
fn server(install: &Install, gpu: &Gpu, service: &Service, server: Pid) -> Option<Check> {
    const NAME: &str = "mps server";
    Some(match canary::send(install, gpu, service, LAUNCH_LIMIT).ok()? {
        Found::Works { took, .. } => {
            Check::ok(NAME, format!("server {server} ran a test kernel within {} ms", took.as_millis()))
        }
        Found::Stuck(_) => Check {
            name: NAME,
            state: check::State::Failed,
            detail: format!("server {server} is stuck: it did not run a test kernel of a new client"),
            remedy: Some(
                "`partita mps recover` restarts it, which ends the work of all its clients".to_owned(),
            ),
        },
        Found::Unknown { reason } => Check::not_checked(NAME, reason, ""),
    })
}

fn of_condition(condition: Condition) -> Check {
    let Condition { name, standing, detail, remedy } = condition;
    let state = match standing {
        Standing::Holds => check::State::Ok,
        Standing::Weak => check::State::Weak,
        Standing::Broken => check::State::Failed,
    };
    Check { name, state, detail, remedy }
}

/// Whether a server belongs to a service in a registry's directory: Partita's are called
/// `.mps-USER`.
fn is_ours(server: Pid) -> bool {
    let pipe = ProcessId::living(server).and_then(|process| process.variable("CUDA_MPS_PIPE_DIRECTORY"));
    pipe.is_some_and(|pipe| pipe.to_string_lossy().contains("/.mps-"))
}
