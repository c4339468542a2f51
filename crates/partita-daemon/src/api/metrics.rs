//! `/metrics`: the daemon's own counts, and what tenants, chains and keepers are now, in
//! OpenMetrics.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use partita::gpu::Gpu;
use partita::mps::metrics::{Family as MpsFamily, Kind as MpsKind};
use partita::mps::status::ServiceStatus;
use partita::pace::TimesRow;
use partita::ps::TenantRow;
use partita::registry::GpuMeta;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::scrape::{Labels, Now};
use super::units::Units;
use super::{Shared, foreign};
use crate::audit::Finding;
use crate::audit::change::Open;
use crate::chains::Running;
use crate::memory::Keeper;
use crate::problem::{Kind, Problem};
use crate::store::events::{self, Event};

/// The media type of OpenMetrics.
const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends of the latency histogram, in seconds.
const LATENCY_S: [f64; 13] =
    [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    kind: &'static str,
    change: &'static str,
}

type Latencies = Family<RouteLabels, Histogram, fn() -> Histogram>;

/// The daemon's own counts.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    latencies: Latencies,
    audits: Counter,
    audits_failed: Counter,
    events: Family<EventLabels, Counter>,
    in_flight: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let requests = Family::<RequestLabels, Counter>::default();
        let latencies = Latencies::new_with_constructor(|| Histogram::new(LATENCY_S));
        let mut registry = Registry::with_prefix("partitad");
        registry.register("requests", "Requests that were answered", requests.clone());
        registry.register_with_unit(
            "request_duration",
            "How long requests took until their answer began",
            Unit::Seconds,
            latencies.clone(),
        );
        let (audits, audits_failed) = (Counter::default(), Counter::default());
        registry.register("audits", "Looks for processes without limits", audits.clone());
        registry.register(
            "audits_failed",
            "Looks for processes without limits that could not see all",
            audits_failed.clone(),
        );
        let events = Family::<EventLabels, Counter>::default();
        registry.register(
            "events",
            "Events of processes without limits, and decisions for targets",
            events.clone(),
        );
        let in_flight = Gauge::default();
        registry.register("requests_in_flight", "Requests that are being answered", in_flight.clone());
        Self { registry, in_flight, requests, latencies, audits, audits_failed, events }
    }

    /// Counts an audit.
    pub fn audit(&self, is_whole: bool) {
        self.audits.inc();
        if !is_whole {
            self.audits_failed.inc();
        }
    }

    /// Counts a stored event.
    pub fn event(&self, event: &Event) {
        let labels = EventLabels { kind: event.kind.word(), change: event.change.word() };
        self.events.get_or_create(&labels).inc();
    }

    /// Counts a request. `route` is one of the router's own, so there are few.
    pub fn request(&self, method: &Method, route: &str, status: u16, took: Duration) {
        let method = match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let route = route.to_owned();
        self.requests.get_or_create(&RequestLabels { method, route: route.clone(), status }).inc();
        self.latencies.get_or_create(&RouteLabels { method, route }).observe(took.as_secs_f64());
    }
}

impl Now {
    fn gpus(&mut self, gpus: &[(&Gpu, Units)]) {
        let labels = |gpu: &Gpu| {
            vec![
                ("gpu", gpu.facts.uuid.clone()),
                ("index", gpu.facts.index.to_string()),
                ("name", gpu.facts.name.clone()),
            ]
        };
        let mut each = |name: &str, help: &str, of: fn(&Gpu, Units) -> Option<f64>| {
            let samples = gpus.iter().filter_map(|&(gpu, units)| Some((labels(gpu), of(gpu, units)?)));
            self.gauge(name, help, samples);
        };
        each("gpu_sms", "SMs of a GPU", |_, units| units.sms.map(f64::from));
        each("gpu_free_sms", "SMs of a GPU that no tenant has", |_, units| units.free_sms.map(f64::from));
        each("gpu_memory_bytes", "Device memory of a GPU", |gpu, _| {
            Some(gpu.facts.memory_total_bytes as f64)
        });
        each("gpu_memory_used_bytes", "Device memory of a GPU that is in use by anybody", |gpu, _| {
            Some(gpu.facts.memory_used_bytes as f64)
        });
        each(
            "gpu_utilization_ratio",
            "The part of the last moments in which at least one kernel ran, as NVML reports it",
            |gpu, _| gpu.facts.utilization_percent.map(|percent| f64::from(percent) / 100.0),
        );
        each(
            "gpu_memory_utilization_ratio",
            "The part of the last moments in which device memory was read or written, as NVML reports it",
            |gpu, _| gpu.facts.memory_utilization_percent.map(|percent| f64::from(percent) / 100.0),
        );
    }

    fn tenants(&mut self, rows: &[TenantRow]) {
        let labels = |row: &TenantRow| {
            vec![
                ("tenant", row.name.clone()),
                ("user", row.user.clone()),
                ("gpu", row.gpu_uuid.clone().unwrap_or_else(|| row.gpu.clone())),
            ]
        };
        let mut each = |name: &str, help: &str, of: fn(&TenantRow) -> Option<f64>| {
            self.gauge(name, help, rows.iter().filter_map(|row| Some((labels(row), of(row)?))));
        };
        each("tenant_sms", "SMs that a tenant may use", |row| row.sms.map(f64::from));
        each("tenant_memory_used_bytes", "Device memory that a tenant holds", |row| {
            row.memory_used_bytes.map(|bytes| bytes as f64)
        });
        each("tenant_memory_quota_bytes", "Device memory that a tenant may hold", |row| {
            row.memory_quota_bytes().map(|bytes| bytes as f64)
        });
        each("tenant_time_share_ratio", "The part of the GPU's time that a tenant may use", |row| {
            row.time.map(|time| time.share_percent / 100.0)
        });
        each(
            "tenant_time_used_ratio",
            "The part of the GPU's time that a tenant used in the last second",
            |row| row.time.and_then(|time| time.used_percent).map(|percent| percent / 100.0),
        );
        each("tenant_processes", "Processes of a tenant that use the GPU", |row| {
            Some(row.processes.len() as f64)
        });
        // The sum of living processes can fall, so it is not a counter.
        each("tenant_launches", "Kernel launches of a tenant's living processes", |row| {
            row.launches.map(|launches| launches as f64)
        });
        let each = |of: fn(&TenantRow) -> Option<TimesRow>| {
            rows.iter().filter_map(move |row| Some((labels(row), of(row)?.histogram)))
        };
        self.times(
            "tenant_burst_duration",
            "Bursts of a tenant's work whose end was seen",
            each(|row| row.bursts),
        );
        self.times("tenant_step_duration", "Steps that a tenant's programs name", each(|row| row.steps));
    }

    /// What audits found that is not over. Tenants that behave are shown with 0.
    fn findings(&mut self, findings: &[Open], tenants: &[TenantRow]) {
        let gpu = |gpu: Option<&GpuMeta>| ("gpu", gpu.map_or_else(String::new, |gpu| gpu.uuid.clone()));
        let mut escaped: BTreeMap<Labels, f64> = BTreeMap::new();
        for row in tenants {
            let of_row = row.gpu_uuid.clone().unwrap_or_else(|| row.gpu.clone());
            escaped.insert(vec![("tenant", row.name.clone()), ("gpu", of_row)], 0.0);
        }
        let (mut strangers, mut blind) = (BTreeMap::<Labels, f64>::new(), BTreeMap::<Labels, f64>::new());
        let (mut outsiders, mut mistakes) = (BTreeMap::<Labels, f64>::new(), 0.0);
        for Open { finding, .. } in findings {
            let of_gpu = gpu(finding.gpu());
            *match finding {
                Finding::Escape { escape, .. } => {
                    escaped.entry(vec![("tenant", escape.tenant.clone()), of_gpu]).or_default()
                }
                Finding::Stranger { .. } => strangers.entry(vec![of_gpu]).or_default(),
                Finding::Outsider { .. } => outsiders.entry(vec![of_gpu]).or_default(),
                Finding::Policy { .. } => {
                    mistakes = 1.0;
                    continue;
                }
                Finding::Blind { .. } => blind.entry(vec![of_gpu]).or_default(),
            } += 1.0;
        }
        self.gauge(
            "tenant_escaped_processes",
            "Processes that use a GPU without the limits of their tenant",
            escaped.into_iter(),
        );
        self.gauge(
            "gate_strangers",
            "Processes that have the gate of a GPU open and belong to no tenant",
            strangers.into_iter(),
        );
        self.gauge(
            "outside_processes",
            "Processes that use a GPU of tenants and belong to no tenant",
            outsiders.into_iter(),
        );
        self.gauge(
            "policy_mistaken",
            "1 while the file of the site's policy has a mistake, and the old policy holds",
            [(Vec::new(), mistakes)].into_iter(),
        );
        self.gauge(
            "audit_blind",
            "1 for a GPU whose processes cannot be listed; an empty label means all GPUs",
            blind.into_iter(),
        );
    }

    fn chains(&mut self, chains: &[Running]) {
        let labels = |chain: &Running| vec![("chain", chain.name.clone()), ("gpu", chain.gpu.clone())];
        self.gauge(
            "chain_throughput_frames_per_second",
            "Frames that came out of a chain's last component over its last period",
            chains.iter().filter_map(|chain| Some((labels(chain), chain.throughput_fps?))),
        );
        self.gauge(
            "chain_supervised",
            "Whether the process that runs a chain is alive; without it no component restarts",
            chains.iter().map(|chain| (labels(chain), f64::from(u8::from(chain.supervised)))),
        );
        self.gauge(
            "chain_frames_lost",
            "Frames whose memory is nowhere: 0, but for a damaged file",
            chains.iter().map(|chain| (labels(chain), f64::from(chain.frames_lost))),
        );
        self.gauge(
            "chain_optimizer_state",
            "1 for what a chain's optimizer does now",
            chains.iter().map(|chain| {
                let mut labels = labels(chain);
                labels.push(("state", chain.optimizer_state.clone()));
                (labels, 1.0)
            }),
        );
        self.counter(
            "chain_optimizer_periods",
            "Periods that a chain's optimizer measured",
            chains.iter().map(|chain| (labels(chain), chain.periods)),
        );
        let components = || {
            chains.iter().flat_map(|chain| {
                chain.components.iter().map(move |component| {
                    let mut labels = labels(chain);
                    labels.push(("component", component.name.clone()));
                    (labels, component)
                })
            })
        };
        self.gauge(
            "chain_component_tpcs",
            "TPCs that a component may use",
            components().filter_map(|(labels, component)| Some((labels, f64::from(component.tpcs?)))),
        );
        self.gauge(
            "chain_component_up",
            "Whether a component's process lives",
            components().map(|(labels, component)| (labels, f64::from(u8::from(component.live)))),
        );
        for (name, help, of) in COMPONENT_COUNTERS {
            self.counter(name, help, components().map(|(labels, component)| (labels, of(component))));
        }
    }

    fn mps(&mut self, services: &[ServiceStatus]) {
        for MpsFamily { name, help, kind, samples } in partita::mps::metrics::families(services) {
            let samples = samples.into_iter();
            match kind {
                MpsKind::Gauge => self.gauge(name, help, samples),
                // Counts of lines of a log: exact as they are.
                MpsKind::Counter => {
                    self.counter(name, help, samples.map(|(labels, value)| (labels, value as u64)));
                }
            }
        }
    }

    fn keepers(&mut self, keepers: &[Keeper]) {
        let each: [KeeperGauge; 3] = [
            ("keeper_held_bytes", "Device memory that a keeper holds", |keeper| keeper.held_bytes),
            ("keeper_leased_bytes", "Device memory that a keeper has leased", |keeper| keeper.leased_bytes),
            ("keeper_leases", "Leases of a keeper that are held", |keeper| keeper.leases),
        ];
        for (name, help, of) in each {
            let labels = |keeper: &Keeper| vec![("gpu", keeper.gpu.clone()), ("pid", keeper.pid.to_string())];
            self.gauge(name, help, keepers.iter().map(|keeper| (labels(keeper), of(keeper) as f64)));
        }
    }
}

type KeeperGauge = (&'static str, &'static str, fn(&Keeper) -> u64);

type ComponentCounter = (&'static str, &'static str, fn(&crate::chains::RunningComponent) -> u64);

const COMPONENT_COUNTERS: [ComponentCounter; 4] = [
    ("chain_component_frames_in", "Frames that a component received", |one| one.frames_in),
    ("chain_component_frames_out", "Frames that a component passed on", |one| one.frames_out),
    ("chain_component_frames_dropped", "Frames that were dropped at a component", |one| one.frames_dropped),
    ("chain_component_starts", "Processes that took a component's place", |one| one.incarnation),
];

/// Counts and measurements for scrapers
///
/// What cannot be read now is missing from the page; `/healthz` says why.
#[utoipa::path(get, path = "/metrics", tag = "machine", operation_id = "metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn metrics(State(app): State<Shared>) -> Result<Response, Problem> {
    let gpus = app.gpus().await;
    // After audits were turned off, earlier findings are unknown.
    let findings = match app.audit_every() {
        Some(_) => app.store().read(events::open).await.ok(),
        None => None,
    };
    let text = app.blocking(move |app| {
        let (mut now, mut others) = (Now::new("partita"), Now::default());
        let gpus = gpus.as_ref().map_or(&[][..], |gpus| gpus);
        if !gpus.is_empty()
            && let Ok(services) = partita::mps::status::all(app.install(), app.registry(), gpus)
        {
            now.mps(&services);
        }
        if let Ok(rows) = partita::ps::ps(app.registry()) {
            let gpus: Vec<_> = gpus.iter().map(|gpu| (gpu, Units::of(app.install(), gpu, &rows))).collect();
            now.gpus(&gpus);
            now.tenants(&rows);
            foreign::add(&mut others, app.metric_names(), app.host(), &gpus, &rows);
            if let Some(findings) = findings {
                now.findings(&findings, &rows);
            }
        }
        if let Ok(chains) = app.chains().running() {
            now.chains(&chains);
        }
        if let Ok(keepers) = app.memory().keepers() {
            now.keepers(&keepers);
        }
        app.metrics.in_flight.set(i64::try_from(app.requests_in_flight()).unwrap_or(i64::MAX));
        let mut text = String::new();
        now.encode(&mut text)
            .and_then(|()| others.encode(&mut text))
            .and_then(|()| encode_registry(&mut text, &app.metrics.registry))
            .and_then(|()| encode_eof(&mut text))
            .map_err(|error| Problem::new(Kind::Internal, format!("the page of metrics: {error}")))?;
        Ok(text)
    });
    Ok(([(header::CONTENT_TYPE, MEDIA_TYPE)], text.await?).into_response())
}
