//! `partita mps status` and `clients`.

use std::collections::BTreeSet;

use partita::mps::metrics;
use partita::mps::status::{self, Beside, Client, FaultRow, ServerRow, ServiceState, ServiceStatus};
use partita_mps::{Pid, ServerStatus};
use serde::Serialize;

use super::Of;
use partita_console::{Failure, Table, print, print_json, tell};

use crate::args::{MpsShow, MpsStatus};
use crate::commands::bytes;

pub fn status(arguments: &MpsStatus) -> Result<(), Failure> {
    let of = Of::find(&arguments.gpu)?;
    let status = status::status(&of.service, &of.gpus)?;
    if arguments.metrics {
        return print(&metrics::text(&[status]));
    }
    if arguments.json {
        return print_json(&status);
    }
    let beside = status::beside(&of.registry, &of.service);
    let line = |Beside { gpus, daemon }: &Beside| {
        format!("also runs: MPS of {gpus} (daemon {daemon}); --gpu with these GPUs shows it\n")
    };
    print(&(text(&of.label, &status) + &beside.iter().map(line).collect::<String>()))
}

fn text(label: &str, status: &ServiceStatus) -> String {
    let Some(daemon) = status.daemon else {
        let left = match status.state {
            ServiceState::Stale => "; a daemon that died left its files, which the next start replaces",
            ServiceState::Stopped | ServiceState::Running => "",
        };
        return format!("MPS of {label}: does not run{left}\n");
    };
    let version = status.version.as_deref().unwrap_or("of unknown version");
    let users = if status.all_users { ", for all users" } else { "" };
    let mut text = format!(
        "MPS of {label}: runs (daemon {daemon}, control program {version}{users})\n  CUDA_MPS_PIPE_DIRECTORY={}\n  CUDA_MPS_LOG_DIRECTORY={}\n",
        status.pipe_directory.display(),
        status.log_directory.display()
    );
    if let Some(limits) = &status.limits {
        text.push_str(&format!("  limits of the next server: {} % of the SMs", limits.thread_percentage));
        for (uuid, limit) in &limits.memory_bytes {
            text.push_str(&format!(", {} on {uuid}", bytes(*limit)));
        }
        text.push('\n');
    }
    for server in &status.servers {
        text.push_str(&server_text(server, status.contexts_max));
    }
    text
}

fn server_text(server: &ServerRow, contexts_max: u32) -> String {
    let state = match server.status {
        Some(ServerStatus::Initializing) => "INITIALIZING",
        Some(ServerStatus::Active) => "ACTIVE",
        Some(ServerStatus::Fault) => "FAULT: accepts no clients until the affected ones have exited",
        None => "does not report its state",
    };
    let percent =
        server.thread_percentage.map_or(String::new(), |percent| format!(", {percent} % of the SMs"));
    let clients = server.clients.len();
    let mut text =
        format!("  server {}: {state}{percent}, {clients} of {contexts_max} clients\n", server.pid);
    if server.stuck {
        text.push_str("    stuck: it runs no kernel of any client; `partita mps recover` restarts it\n");
    }
    if let Some(fault) = &server.fault {
        text.push_str(&format!("    {}\n", fault_text(fault)));
    }
    for client in &server.clients {
        let tenant = client.tenant.as_ref().map_or(String::new(), |tenant| format!(", tenant {tenant}"));
        text.push_str(&format!("    client {} of server {}{tenant}\n", client.pid, server.pid));
    }
    text
}

fn fault_text(row: &FaultRow) -> String {
    let fault = &row.fault;
    let list = |pids: &BTreeSet<Pid>| {
        let name = |pid: &Pid| match row.tenants.get(pid) {
            Some(tenant) => format!("{pid} of tenant {tenant}"),
            None => pid.to_string(),
        };
        let pids: Vec<String> = pids.iter().map(name).collect();
        if pids.is_empty() { "no process".to_owned() } else { pids.join(", ") }
    };
    let when = fault.began.map_or(String::new(), |began| format!(" of {began}"));
    let over = match fault.ended {
        Some(ended) => format!("over since {ended}"),
        None => format!("waits for {}", list(&fault.staying)),
    };
    let (hit, spared) = (list(&fault.hit), list(&fault.spared));
    format!("fault{when} {}; hit: {hit}; spared: {spared}; {over}", row.in_words)
}

/// A client with its server: a row of the list.
#[derive(Serialize)]
struct Row<'a> {
    server: Pid,
    #[serde(flatten)]
    client: &'a Client,
}

pub fn clients(arguments: &MpsShow) -> Result<(), Failure> {
    let of = Of::find(&arguments.gpu)?;
    let status = status::status(&of.service, &of.gpus)?;
    let rows: Vec<Row<'_>> = status
        .servers
        .iter()
        .flat_map(|server| server.clients.iter().map(move |client| Row { server: server.pid, client }))
        .collect();
    if arguments.json {
        return print_json(&rows);
    }
    // An empty table would not say why.
    if let Err(failure) = of.must_run() {
        tell(&failure.to_string());
    }
    let mut table = Table::new(&[">PID", ">ID", ">SERVER", "TENANT", "DEVICE", "COMMAND"]);
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    for Row { server, client } in rows {
        let id = client.id.map(|id| id.to_string());
        table.row([
            client.pid.to_string(),
            known(&id),
            server.to_string(),
            known(&client.tenant),
            known(&client.device),
            known(&client.command),
        ]);
    }
    print(&table.render())
}
