//! A service in the text format of Prometheus.

use std::fmt::Write;

use partita_mps::ServerStatus;

use super::status::{ServiceState, ServiceStatus};

/// All metrics of these services. Each is described once, whatever there is of it.
#[must_use]
pub fn text(services: &[ServiceStatus]) -> String {
    let mut page = Page::default();
    page.gauge("partita_mps_up", "Whether the GPU's MPS service runs and answers.");
    for service in services {
        page.sample(&gpu(service), u64::from(service.state == ServiceState::Running) as f64);
    }
    page.gauge("partita_mps_contexts_max", "Client contexts that fit on a GPU.");
    for service in services {
        page.sample(&gpu(service), f64::from(service.contexts_max));
    }
    page.gauge("partita_mps_clients", "Client processes of a server.");
    for (labels, server) in servers(services) {
        page.sample(&labels, server.clients.len() as f64);
    }
    page.gauge("partita_mps_server_state", "1 for the state that a server is in, 0 for the others.");
    for (labels, server) in servers(services) {
        for (state, name) in [
            (ServerStatus::Initializing, "initializing"),
            (ServerStatus::Active, "active"),
            (ServerStatus::Fault, "fault"),
        ] {
            let mut labels = labels.clone();
            labels.push(("state", name.to_owned()));
            page.sample(&labels, f64::from(u8::from(server.status == Some(state))));
        }
    }
    page.gauge(
        "partita_mps_thread_percentage",
        "Active thread percentage that a server gives to its next clients.",
    );
    for (labels, server) in servers(services) {
        if let Some(percent) = server.thread_percentage {
            page.sample(&labels, percent);
        }
    }
    page.gauge("partita_mps_default_thread_percentage", "Active thread percentage of the next server.");
    for service in services {
        if let Some(limits) = &service.limits {
            page.sample(&gpu(service), limits.thread_percentage);
        }
    }
    page.gauge(
        "partita_mps_default_memory_limit_bytes",
        "Limit of device memory for each client of the next server.",
    );
    for service in services {
        for (uuid, bytes) in service.limits.iter().flat_map(|limits| &limits.memory_bytes) {
            page.sample(&[("gpu", uuid.clone())], *bytes as f64);
        }
    }
    for (name, help, of) in COUNTERS {
        page.counter(name, help);
        for service in services {
            page.sample(&gpu(service), of(service) as f64);
        }
    }
    page.text
}

type Counter = (&'static str, &'static str, fn(&ServiceStatus) -> u64);

const COUNTERS: [Counter; 7] = [
    ("partita_mps_servers_started_total", "Servers that were started.", |one| one.counts.servers_started),
    ("partita_mps_servers_failed_total", "Servers that ended with a failure.", |one| {
        one.counts.servers_failed
    }),
    ("partita_mps_clients_connected_total", "Connections of clients.", |one| one.counts.clients_connected),
    ("partita_mps_faults_total", "Fatal faults.", |one| one.counts.faults),
    ("partita_mps_clients_hit_total", "Clients that a fault was reported to.", |one| one.counts.clients_hit),
    ("partita_mps_clients_killed_total", "Clients killed from outside beside others.", |one| {
        one.counts.clients_killed
    }),
    ("partita_mps_restarts_total", "Programs started anew after a neighbour's fault.", |one| {
        one.counts.restarts
    }),
];

type Labels = Vec<(&'static str, String)>;

fn gpu(service: &ServiceStatus) -> Labels {
    let uuids: Vec<&str> = service.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    vec![("gpu", uuids.join(","))]
}

fn servers(services: &[ServiceStatus]) -> impl Iterator<Item = (Labels, &super::status::ServerRow)> {
    services.iter().flat_map(|service| {
        service.servers.iter().map(|server| {
            let mut labels = gpu(service);
            labels.push(("server", server.pid.to_string()));
            (labels, server)
        })
    })
}

#[derive(Default)]
struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    fn gauge(&mut self, name: &'static str, help: &str) {
        self.begin(name, help, "gauge");
    }

    fn counter(&mut self, name: &'static str, help: &str) {
        self.begin(name, help, "counter");
    }

    fn begin(&mut self, name: &'static str, help: &str, kind: &str) {
        self.name = name;
        // Writing to a string does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, labels: &[(&'static str, String)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
        let _ = writeln!(self.text, "{}{{{}}} {value}", self.name, labels.join(","));
    }
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
