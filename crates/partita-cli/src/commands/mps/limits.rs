//! `partita mps limits`.

use partita::calibration::Cache;
use partita::error::Error;
use partita::gpu::Gpu;
use partita::mps::check_may_change;
use partita::mps::provisioned::{self, PERCENTAGE_VARIABLE, Products};
use partita::mps::status;
use partita_core::{ByteSize, ParseByteSizeError};
use partita_mps::provision::{Allotment, Policy, Sms};
use partita_mps::{ClientPriority, DeviceName, MemoryLimit};
use serde::Serialize;

use super::Of;
use partita_console::{Failure, print, print_json};

use crate::args::{ClientPriorityArg, MpsLimits, PolicyArg};
use crate::commands::bytes;

/// What was set, or would be set.
#[derive(Serialize)]
struct Outcome {
    dry_run: bool,
    /// Each client's part under the policy; one for all if the policy does not distinguish.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allotments: Vec<Allotment>,
    /// The setting of the service: a client can only lower it.
    thread_percentage: Option<f64>,
    memory_bytes: Option<u64>,
    priority: Option<ClientPriority>,
    /// The results of the proofs for percentages below 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    products: Vec<Proved>,
}

/// Whether the vendor's products are right on a GPU with an accepted percentage.
#[derive(Serialize)]
struct Proved {
    gpu: String,
    percent: f64,
    #[serde(flatten)]
    products: Products,
}

pub fn limits(arguments: &MpsLimits) -> Result<(), Failure> {
    let of = Of::find(&arguments.gpu)?;
    of.must_run()?;
    let wrong = |error: &dyn std::fmt::Display| Failure::Told(format!("--mem: {error}"));
    let most = of.gpus.iter().map(|gpu| gpu.facts.memory_total_bytes).max().unwrap_or_default();
    let most = ByteSize(most.next_multiple_of(1 << 20));
    let memory = match arguments.mem.as_deref() {
        None => None,
        // MPS cannot remove a limit. One of all the memory that the largest GPU has limits nothing.
        Some("none") => Some(most),
        Some(text) => {
            let size: ByteSize = text.parse().map_err(|error: ParseByteSizeError| wrong(&error))?;
            if size.0 > most.0 {
                let has = most.approximate();
                return Err(wrong(&format!(
                    "{size} is more than {has}, the memory of a GPU; `none` sets no limit"
                )));
            }
            Some(size)
        }
    };
    let memory =
        memory.map(|size| MemoryLimit::from_bytes(size.0)).transpose().map_err(|error| wrong(&error))?;
    let priority = arguments.priority.map(|priority| match priority {
        ClientPriorityArg::Normal => ClientPriority::Normal,
        ClientPriorityArg::Below => ClientPriority::BelowNormal,
    });
    let allotments = allotments(&of, arguments)?;
    if allotments.is_empty() && memory.is_none() && priority.is_none() {
        return show(&of, arguments.json);
    }
    if !arguments.dry_run {
        check_may_change(&of.registry)?;
    }
    let percent = allotments.iter().map(|one| one.percent).reduce(f64::max);
    let products = prove(&of, &allotments, arguments.unproved)?;
    if !arguments.dry_run {
        set(&of, percent, memory, priority)?;
    }
    let outcome = Outcome {
        dry_run: arguments.dry_run,
        allotments,
        thread_percentage: percent,
        memory_bytes: memory.map(MemoryLimit::bytes),
        priority,
        products,
    };
    if arguments.json { print_json(&outcome) } else { print(&text(&of.label, &outcome)) }
}

fn show(of: &Of, json: bool) -> Result<(), Failure> {
    let status = status::status(&of.service, &of.gpus)?;
    if json {
        return print_json(&status.limits);
    }
    let Some(limits) = status.limits else { return Ok(()) };
    let mut text =
        format!("MPS of {}: the next server gives {} % of the SMs", of.label, limits.thread_percentage);
    match limits.priority {
        Some(ClientPriority::BelowNormal) => text.push_str(", priority below normal"),
        Some(ClientPriority::Normal) | None => {}
    }
    for (uuid, limit) in &limits.memory_bytes {
        text.push_str(&format!(", {} on {uuid} to each client", bytes(*limit)));
    }
    text.push('\n');
    for server in &status.servers {
        if let Some(percent) = server.thread_percentage {
            text.push_str(&format!("  server {} gives {percent} % to its next clients\n", server.pid));
        }
    }
    print(&text)
}

/// The requested percentages, on the first GPU, whose SMs they divide. MPS has one percentage for
/// all its GPUs.
fn allotments(of: &Of, arguments: &MpsLimits) -> Result<Vec<Allotment>, Failure> {
    let refuse = |words: &str| Err(Failure::Told(words.to_owned()));
    let Some(gpu) = of.gpus.first() else { return Ok(Vec::new()) };
    let policy = match (arguments.policy, arguments.percent) {
        (None, None) => return Ok(Vec::new()),
        (None, Some(percent)) if percent > 0.0 && percent <= 100.0 => {
            let sms = sms(of, gpu)?.of_percentage(percent);
            return Ok(vec![Allotment { percent, sms }]);
        }
        (None, Some(percent)) => {
            return Err(Failure::Told(format!(
                "--percent {percent}: a percentage is above 0 and at most 100"
            )));
        }
        (Some(PolicyArg::Uniform | PolicyArg::Half), _) if arguments.clients.is_none() => {
            return refuse("this policy divides among clients: say how many with --clients");
        }
        (Some(PolicyArg::Uniform), _) => Policy::Uniform { clients: arguments.clients.unwrap_or(0) },
        (Some(PolicyArg::Half), _) => Policy::Half { clients: arguments.clients.unwrap_or(0) },
        (Some(PolicyArg::Weighted), _) if arguments.loads.is_empty() => {
            return refuse("--policy weighted divides by load: give each client's with --loads 30,70");
        }
        (Some(PolicyArg::Weighted), _) => Policy::Weighted { loads: arguments.loads.clone() },
        (Some(PolicyArg::Exact), _) if arguments.sms.is_empty() => {
            return refuse("--policy exact gives SMs: say how many to each client with --sms 24,60");
        }
        (Some(PolicyArg::Exact), _) => Policy::Exact { sms: arguments.sms.clone() },
    };
    Ok(provisioned::plan(gpu, sms(of, gpu)?, &policy)?)
}

fn sms(of: &Of, gpu: &Gpu) -> Result<Sms, Failure> {
    let measured = Cache::open().get(&of.install, gpu)?;
    let per_tpc = measured.sms_per_tpc;
    Ok(Sms { count: measured.tpcs.len() as u32 * per_tpc, per_tpc })
}

/// Proves every percentage on every GPU before setting any.
fn prove(of: &Of, allotments: &[Allotment], trusted: bool) -> Result<Vec<Proved>, Failure> {
    let mut proved: Vec<Proved> = Vec::new();
    for percent in allotments.iter().map(|one| one.percent).filter(|&percent| percent < 100.0) {
        if proved.iter().any(|one| one.percent == percent) {
            continue;
        }
        for gpu in &of.gpus {
            let products = match trusted {
                true => Products::Unknown { reason: "not tested, by --unproved".to_owned() },
                false => provisioned::products(&of.install, gpu, &of.service, percent)?,
            };
            provisioned::check(gpu, percent, &products, trusted)?;
            proved.push(Proved { gpu: gpu.label(), percent, products });
        }
    }
    Ok(proved)
}

/// For running servers and for those that start later.
fn set(
    of: &Of,
    percent: Option<f64>,
    memory: Option<MemoryLimit>,
    priority: Option<ClientPriority>,
) -> Result<(), Failure> {
    let control = of.service.control();
    let servers = control.server_list().map_err(Error::from)?;
    let apply = || {
        if let Some(percent) = percent {
            control.set_default_active_thread_percentage(percent)?;
            servers.iter().try_for_each(|&server| control.set_active_thread_percentage(server, percent))?;
        }
        if let Some(limit) = memory {
            for gpu in &of.gpus {
                let device = DeviceName::Uuid(gpu.facts.uuid.clone());
                control.set_default_device_memory_limit(&device, limit)?;
                servers
                    .iter()
                    .try_for_each(|&server| control.set_device_memory_limit(server, &device, limit))?;
            }
        }
        priority.map_or(Ok(()), |priority| control.set_default_client_priority(priority))
    };
    apply().map_err(|error| Error::from(error).into())
}

fn text(label: &str, outcome: &Outcome) -> String {
    let mut text = format!("MPS of {label}: ");
    text.push_str(if outcome.dry_run { "would give" } else { "gives" });
    text.push_str(" to clients that connect from now on");
    if let Some(percent) = outcome.thread_percentage {
        text.push_str(&format!(", {percent} % of the SMs"));
    }
    if let Some(limit) = outcome.memory_bytes {
        text.push_str(&format!(", {} of each GPU", bytes(limit)));
    }
    if let Some(priority) = outcome.priority {
        let name = if priority == ClientPriority::Normal { "normal" } else { "below normal" };
        text.push_str(&format!(", priority {name}"));
    }
    text.push('\n');
    for one in &outcome.products {
        let (gpu, percent) = (&one.gpu, one.percent);
        match &one.products {
            Products::Right { found } => text.push_str(&format!("  {gpu} with {percent} %: {found} right\n")),
            Products::Unknown { reason } => {
                text.push_str(&format!("  {gpu} with {percent} %: products not proved: {reason}\n"))
            }
            // Refused above.
            Products::Wrong { .. } => {}
        }
    }
    let same = outcome.allotments.windows(2).all(|pair| pair[0].percent == pair[1].percent);
    match outcome.allotments.as_slice() {
        [] => {}
        [one, ..] if same => text.push_str(&format!("  {} SMs each\n", one.sms)),
        several => {
            for (number, one) in several.iter().enumerate() {
                text.push_str(&format!(
                    "  client {}: {PERCENTAGE_VARIABLE}={} ({} SMs)\n",
                    number + 1,
                    one.percent,
                    one.sms
                ));
            }
        }
    }
    text
}
