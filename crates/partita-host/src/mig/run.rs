//! A program in a free MIG instance.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;

use partita_core::mig::{Profile, resolve};
use rustix::io::FdFlags;

use super::ask::ask;
use super::work::Request;
use crate::calibration::without_mps;
use crate::error::Error;
use crate::facts::InstanceFacts;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::program;
use crate::registry::Registry;

/// Becomes the program, in a free instance of the profile `wanted` on this GPU. The instance is
/// taken until the last process ends that the program has started and that keeps its descriptors.
///
/// # Errors
/// [`Error::Refused`] if no instance is free, with who has those that there are;
/// [`Error::NoProgram`] or [`Error::Program`] if the program cannot be started.
pub fn run_in_instance(
    install: &Install,
    registry: &Registry,
    gpu: &Gpu,
    wanted: &str,
    command: &[OsString],
) -> Result<Infallible, Error> {
    let refuse =
        |reason: String| Error::Refused { what: format!("--mig {wanted} on {}", gpu.label()), reason };
    let (program, arguments) = command.split_first().ok_or_else(|| Error::NoProgram {
        program: "partita run".to_owned(),
        reason: "no program named; give one after `--`".to_owned(),
    })?;
    let path = program::locate(program)?;
    if gpu.facts.mig_enabled != Some(true) {
        let reason = "MIG is not on; `partita mig show` says what to do";
        return Err(refuse(reason.to_owned()));
    }
    let (lock, instance) = take(install, registry, gpu, wanted)?.map_err(refuse)?;
    let mut become_it = Command::new(path);
    become_it.arg0(program).args(arguments).env_remove("PARTITA_GPU").envs(without_mps());
    become_it.envs(gpu.variables()).env("CUDA_VISIBLE_DEVICES", &instance.uuid);
    // The program inherits the lock.
    rustix::io::fcntl_setfd(&lock, FdFlags::empty())
        .map_err(|error| Error::io("the instance's lock")(error.into()))?;
    let error = become_it.exec();
    Err(Error::Program { program: program.to_string_lossy().into_owned(), reason: error.to_string() })
}

/// Takes the first free instance of the profile, or says why there is none.
fn take<'a>(
    install: &Install,
    registry: &Registry,
    gpu: &'a Gpu,
    wanted: &str,
) -> Result<Result<(File, &'a InstanceFacts), String>, Error> {
    let instances = &gpu.facts.mig_instances;
    let create = format!(
        "`partita mig apply --want …` creates instances, and `partita mig plan --want {wanted}` \
         says what that would change"
    );
    let Some(profile) = profile_of(instances, wanted) else {
        let present: Vec<&str> = instances.iter().map(InstanceFacts::profile).collect();
        let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
        return Ok(Err(format!("there is no such instance; there are {present}; {create}")));
    };
    let mut taken = Vec::new();
    for instance in instances.iter().filter(|instance| instance.profile() == profile) {
        let uuid = &instance.uuid;
        let Some(lock) = registry.try_lock_mig(uuid)? else {
            taken.push(format!("{uuid} is taken by another `partita run --mig`"));
            continue;
        };
        // Under the lock, because `partita mig` may have destroyed it a moment ago.
        let devices: Vec<(String, Vec<u32>)> = ask(install, gpu, &Request::devices(registry, gpu))?;
        match devices.into_iter().find(|(other, _)| other == uuid) {
            None => taken.push(format!("{uuid} was destroyed")),
            Some((_, pids)) if !pids.is_empty() => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                taken.push(format!("{uuid} has processes {}", pids.join(", ")));
            }
            Some(_) => return Ok(Ok((lock, instance))),
        }
    }
    Ok(Err(format!("no {profile} is free: {}; wait for one of them to end; {create}", taken.join(", "))))
}

/// The full name of the profile that `wanted` means among those of instances.
fn profile_of(instances: &[InstanceFacts], wanted: &str) -> Option<String> {
    let profile = |instance: &InstanceFacts| {
        let name = instance.profile().to_owned();
        let slices = name.split('g').next()?.parse().ok()?;
        let memory_mib = instance.memory_total_bytes >> 20;
        Some(Profile { id: 0, name, slices, sms: 0, memory_mib, count_max: 0, slots: Vec::new() })
    };
    let profiles: Vec<Profile> = instances.iter().filter_map(profile).collect();
    resolve(&profiles, wanted).ok().map(|profile| profile.name.clone())
}
