//! `partita set`.

use std::process::ExitCode;

use partita::offered::{self, Priority, Via};
use partita::registry::Registry;
use partita::set::{self, SetRequest, Whose};

use crate::args::Set;
use crate::commands::{bytes, memory, on_misfit, priority, share, time};
use crate::fail::{Failure, tell};
use crate::output::print;

/// Changes a tenant's limits and says what they are now.
pub fn set(arguments: &Set) -> Result<ExitCode, Failure> {
    offered::check(
        Via::Auto,
        arguments.priority.map_or(Priority::default(), priority),
        time(arguments.time.as_deref())?,
    )?;
    // One of both is there: clap sees to that.
    let whose = match (&arguments.name, arguments.pid) {
        (Some(name), _) => Whose::Name(name.clone()),
        (None, pid) => Whose::Pid(pid.unwrap_or(0)),
    };
    let request = SetRequest {
        share: share(arguments.sm.as_deref())?,
        memory: memory(arguments.mem.as_deref())?,
        on_misfit: arguments.on_misfit.map(on_misfit),
        whose,
    };
    if request.share.is_none() && request.memory.is_none() && request.on_misfit.is_none() {
        let whose = match &request.whose {
            Whose::Name(name) => name.clone(),
            Whose::Pid(pid) => format!("--pid {pid}"),
        };
        return Err(Failure::Told(format!(
            "set {whose}: nothing to change; give --sm, --mem or --on-misfit, see `partita set --help`"
        )));
    }
    let now = set::set(&Registry::open()?, &request)?;
    let quota = now
        .memory_quota_bytes
        .map_or("no memory quota".to_owned(), |quota| format!("{} of memory", bytes(quota)));
    if let Some(quota) = now.memory_quota_bytes
        && now.memory_used_bytes > quota
    {
        tell(&format!(
            "{} holds {} now, more than its quota: it keeps that and gets no more until it has freed the difference",
            now.name,
            bytes(now.memory_used_bytes)
        ));
    }
    print(&format!("{}: {} SMs (tpc:{}), {quota}\n", now.name, now.sms, now.tpcs))?;
    Ok(ExitCode::SUCCESS)
}
