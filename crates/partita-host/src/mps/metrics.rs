//! Measurements of services, also in the text format of Prometheus.

use std::fmt::Write;

use partita_mps::ServerStatus;

use super::status::{ServerRow, ServiceState, ServiceStatus};

/// Names and values that identify a sample.
pub type Labels = Vec<(&'static str, String)>;

/// The kind of a family of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Something that goes up and down.
    Gauge,
    /// Something that only goes up, in whole numbers.
    Counter,
}

/// One thing that is measured, of every service or server.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Its name, without the prefix `partita_` and without a counter's ending `_total`.
    pub name: &'static str,
    /// Its description, without a full stop.
    pub help: &'static str,
    /// What it counts.
    pub kind: Kind,
    /// The measurements.
    pub samples: Vec<(Labels, f64)>,
}

/// Everything that is measured of these services. Each family is there once, whatever there is of
/// it.
#[must_use]
pub fn families(services: &[ServiceStatus]) -> Vec<Family> {
    let of_service = |of: &dyn Fn(&ServiceStatus) -> Option<f64>| {
        services.iter().filter_map(|service| Some((gpu(service), of(service)?))).collect::<Vec<_>>()
    };
    let of_server = |of: &dyn Fn(&ServerRow) -> Option<f64>| {
        servers(services).filter_map(|(labels, server)| Some((labels, of(server)?))).collect::<Vec<_>>()
    };
    let memory =
        services.iter().flat_map(|service| service.limits.iter().flat_map(|limits| &limits.memory_bytes));
    let gauges = [
        (
            "mps_up",
            "Whether the GPU's MPS service runs and answers",
            of_service(&|one| Some(f64::from(u8::from(one.state == ServiceState::Running)))),
        ),
        (
            "mps_contexts_max",
            "Client contexts that fit on a GPU",
            of_service(&|one| Some(f64::from(one.contexts_max))),
        ),
        ("mps_clients", "Client processes of a server", of_server(&|one| Some(one.clients.len() as f64))),
        ("mps_server_state", "1 for the state that a server is in, 0 for the others", states(services)),
        (
            "mps_thread_percentage",
            "Active thread percentage that a server gives to its next clients",
            of_server(&|one| one.thread_percentage),
        ),
        (
            "mps_default_thread_percentage",
            "Active thread percentage of the next server",
            of_service(&|one| Some(one.limits.as_ref()?.thread_percentage)),
        ),
        (
            "mps_default_memory_limit_bytes",
            "Limit of device memory for each client of the next server",
            memory.map(|(uuid, bytes)| (vec![("gpu", uuid.clone())], *bytes as f64)).collect(),
        ),
    ];
    let gauges =
        gauges.into_iter().map(|(name, help, samples)| Family { name, help, kind: Kind::Gauge, samples });
    let counters = COUNTERS.into_iter().map(|(name, help, of)| {
        let samples = of_service(&|one| Some(of(one) as f64));
        Family { name, help, kind: Kind::Counter, samples }
    });
    gauges.chain(counters).collect()
}

type Counter = (&'static str, &'static str, fn(&ServiceStatus) -> u64);

const COUNTERS: [Counter; 7] = [
    ("mps_servers_started", "Servers that were started", |one| one.counts.servers_started),
    ("mps_servers_failed", "Servers that ended with a failure", |one| one.counts.servers_failed),
    ("mps_clients_connected", "Connections of clients", |one| one.counts.clients_connected),
    ("mps_faults", "Fatal faults", |one| one.counts.faults),
    ("mps_clients_hit", "Clients that a fault was reported to", |one| one.counts.clients_hit),
    ("mps_clients_killed", "Clients killed from outside beside others", |one| one.counts.clients_killed),
    ("mps_restarts", "Programs restarted after a neighbour's fault", |one| one.counts.restarts),
];

fn states(services: &[ServiceStatus]) -> Vec<(Labels, f64)> {
    let names = [
        (ServerStatus::Initializing, "initializing"),
        (ServerStatus::Active, "active"),
        (ServerStatus::Fault, "fault"),
    ];
    let each = servers(services).flat_map(|(labels, server)| {
        names.map(|(state, name)| {
            let labels = [labels.as_slice(), &[("state", name.to_owned())]].concat();
            (labels, f64::from(u8::from(server.status == Some(state))))
        })
    });
    each.collect()
}

fn gpu(service: &ServiceStatus) -> Labels {
    let uuids: Vec<&str> = service.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    vec![("gpu", uuids.join(","))]
}

fn servers(services: &[ServiceStatus]) -> impl Iterator<Item = (Labels, &ServerRow)> {
    services.iter().flat_map(|service| {
        service.servers.iter().map(|server| {
            let mut labels = gpu(service);
            labels.push(("server", server.pid.to_string()));
            (labels, server)
        })
    })
}

/// All metrics of these services, as a scraper of files reads them.
#[must_use]
pub fn text(services: &[ServiceStatus]) -> String {
    let mut page = String::new();
    for Family { name, help, kind, samples } in families(services) {
        let (kind, ending) = match kind {
            Kind::Gauge => ("gauge", ""),
            Kind::Counter => ("counter", "_total"),
        };
        let name = format!("partita_{name}{ending}");
        // Writing to a string does not fail.
        let _ = write!(page, "# HELP {name} {help}.\n# TYPE {name} {kind}\n");
        for (labels, value) in samples {
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
            let _ = writeln!(page, "{name}{{{}}} {value}", labels.join(","));
        }
    }
    page
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::status::{Counts, GpuName, ServerRow};
    use super::*;

    #[test]
    fn the_page_has_the_form_that_scrapers_read() {
        let service = ServiceStatus {
            gpus: vec![GpuName { label: "GPU 0".to_owned(), uuid: "GPU-1\"\\".to_owned() }],
            state: ServiceState::Running,
            daemon: Some(1),
            version: None,
            pipe_directory: "/pipe".into(),
            log_directory: "/log".into(),
            all_users: false,
            contexts_max: 48,
            limits: None,
            servers: vec![ServerRow {
                pid: 7,
                user: Some(0),
                status: Some(ServerStatus::Fault),
                thread_percentage: Some(12.5),
                clients: Vec::new(),
                fault: None,
                stuck: false,
            }],
            counts: Counts { faults: 3, ..Counts::default() },
        };
        let page = text(&[service]);
        for line in [
            "# TYPE partita_mps_up gauge",
            r#"partita_mps_up{gpu="GPU-1\"\\"} 1"#,
            r#"partita_mps_server_state{gpu="GPU-1\"\\",server="7",state="fault"} 1"#,
            r#"partita_mps_server_state{gpu="GPU-1\"\\",server="7",state="active"} 0"#,
            r#"partita_mps_thread_percentage{gpu="GPU-1\"\\",server="7"} 12.5"#,
            "# TYPE partita_mps_faults_total counter",
            r#"partita_mps_faults_total{gpu="GPU-1\"\\"} 3"#,
        ] {
            assert!(page.lines().any(|one| one == line), "{line} in\n{page}");
        }
        let is_line = |line: &str| {
            line.starts_with("# ")
                || line.rsplit_once("} ").is_some_and(|(_, value)| value.parse::<f64>().is_ok())
        };
        assert!(page.lines().all(is_line), "{page}");
    }
}
