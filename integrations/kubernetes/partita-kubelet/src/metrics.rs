//! `/metrics`: the tenants of pods and the kubelet's calls, in OpenMetrics.
//!
//! A sample of a tenant has the labels of its claim and of the containers that have the claim. A
//! claim that several containers share is one tenant with one sample, so that sums are right; the
//! label then has all names with commas between them, and `partita_pod_container` has them one by
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use partita::cdi;
use partita::ps::TenantRow;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

use crate::DRIVER;
use crate::journal::Entry;
use crate::prepare::Tenants;
use crate::shares::{has_tenants, tenant_name};
use crate::wire::podresources::ListPodResourcesResponse;
use crate::wire::podresources::pod_resources_lister_client::PodResourcesListerClient;

/// The media type of OpenMetrics.
const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Upper ends of the latency histogram, in seconds. The kubelet allows 45.
const LATENCY_S: [f64; 11] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 45.0];
/// How long the kubelet may take to list pods.
const LIMIT: Duration = Duration::from_secs(2);

/// A call of the kubelet for one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// NodePrepareResources.
    Prepare,
    /// NodeUnprepareResources.
    Unprepare,
}

impl Call {
    const ALL: [Self; 2] = [Self::Prepare, Self::Unprepare];

    fn word(self) -> &'static str {
        match self {
            Self::Prepare => "NodePrepare",
            Self::Unprepare => "NodeUnprepare",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    call: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    call: &'static str,
    result: &'static str,
}

/// Counts and times of the kubelet's calls.
#[derive(Debug)]
pub struct Calls {
    registry: Registry,
    calls: Family<ResultLabels, Counter>,
    durations: Family<CallLabels, Histogram, fn() -> Histogram>,
}

impl Default for Calls {
    fn default() -> Self {
        let calls = Family::<ResultLabels, Counter>::default();
        let durations = Family::<CallLabels, Histogram, fn() -> Histogram>::new_with_constructor(|| {
            Histogram::new(LATENCY_S)
        });
        // Without a first sample of 0, a rate misses the first call.
        for call in Call::ALL.map(Call::word) {
            for result in ["success", "error"] {
                drop(calls.get_or_create(&ResultLabels { call, result }));
            }
            drop(durations.get_or_create(&CallLabels { call }));
        }
        let mut registry = Registry::with_prefix("partita_kubelet");
        registry.register("calls", "Calls of the kubelet, one for each claim", calls.clone());
        registry.register_with_unit(
            "call_duration",
            "How long calls of the kubelet took, the wait for earlier ones included",
            Unit::Seconds,
            durations.clone(),
        );
        Self { registry, calls, durations }
    }
}

impl Calls {
    /// Counts a call.
    pub fn count(&self, call: Call, is_success: bool, took: Duration) {
        let result = if is_success { "success" } else { "error" };
        let call = call.word();
        self.calls.get_or_create(&ResultLabels { call, result }).inc();
        self.durations.get_or_create(&CallLabels { call }).observe(took.as_secs_f64());
    }
}

/// A container: namespace, pod, container.
type Container = (String, String, String);

/// The containers of each tenant, from the kubelet's list. Pure.
#[must_use]
pub fn containers(list: &ListPodResourcesResponse) -> BTreeMap<String, BTreeSet<Container>> {
    let prefix = format!("{}=", cdi::KIND);
    let mut all: BTreeMap<String, BTreeSet<Container>> = BTreeMap::new();
    for pod in &list.pod_resources {
        for container in &pod.containers {
            let named = || (pod.namespace.clone(), pod.name.clone(), container.name.clone());
            let of_driver = container
                .dynamic_resources
                .iter()
                .flat_map(|resource| &resource.claim_resources)
                .filter(|resource| resource.driver_name == DRIVER);
            for device in of_driver.flat_map(|resource| &resource.cdi_devices) {
                if let Some(tenant) = device.name.strip_prefix(&prefix) {
                    all.entry(tenant.to_owned()).or_default().insert(named());
                }
            }
            // Of the device plugin, if that is what offers the GPUs.
            for devices in container.devices.iter().filter(|one| has_tenants(&one.resource_name)) {
                for id in &devices.device_ids {
                    all.entry(tenant_name(id)).or_default().insert(named());
                }
            }
        }
    }
    all
}

type Labels = Vec<(&'static str, String)>;

/// The labels of a tenant on one GPU. Pure.
fn labels(entry: &Entry, row: &TenantRow, containers: &BTreeSet<Container>) -> Labels {
    let joined = |of: fn(&Container) -> &String| {
        let names: BTreeSet<&str> = containers.iter().map(|one| of(one).as_str()).collect();
        names.into_iter().collect::<Vec<_>>().join(",")
    };
    vec![
        // A device plugin is asked without a namespace.
        (
            "namespace",
            if entry.namespace.is_empty() { joined(|one| &one.0) } else { entry.namespace.clone() },
        ),
        ("pod", joined(|one| &one.1)),
        ("container", joined(|one| &one.2)),
        ("claim", entry.name.clone()),
        ("gpu", row.gpu_uuid.clone().unwrap_or_else(|| row.gpu.clone())),
        ("tenant", row.name.clone()),
    ]
}

struct Of {
    name: &'static str,
    help: &'static str,
    value: fn(&TenantRow) -> Option<f64>,
}

/// What is measured of a tenant on each of its GPUs.
const GAUGES: [Of; 11] = [
    Of {
        name: "sms",
        help: "SMs that the pod may use now, after resizes",
        value: |row| row.sms.map(f64::from),
    },
    Of { name: "gpu_sms", help: "SMs of the pod's GPU", value: |row| row.sms_of_device.map(f64::from) },
    Of {
        name: "memory_limit_bytes",
        help: "Device memory that the pod may hold now, after resizes; of a whole GPU there is no limit",
        value: |row| row.memory_quota_bytes().map(|bytes| bytes as f64),
    },
    Of {
        name: "memory_used_bytes",
        help: "Device memory that the pod holds",
        value: |row| row.memory_used_bytes.map(|bytes| bytes as f64),
    },
    Of {
        name: "memory_peak_bytes",
        help: "The most device memory that the pod ever held",
        value: |row| row.memory_peak_bytes.map(|bytes| bytes as f64),
    },
    Of {
        name: "memory_spilled_bytes",
        help: "Host memory that the pod has beyond its limit",
        value: |row| row.memory_spilled_bytes.map(|bytes| bytes as f64),
    },
    Of {
        name: "processes",
        help: "Processes of the pod that use the GPU",
        value: |row| Some(row.processes.len() as f64),
    },
    // Sums of living processes can fall, so they are not counters.
    Of {
        name: "launches",
        help: "Kernel launches of the pod's living processes",
        value: |row| row.launches.map(|launches| launches as f64),
    },
    Of {
        name: "widened_launches",
        help: "Kernel launches of the pod's living processes that did not fit its SMs and ran on the whole GPU",
        value: |row| row.widened_launches.map(|launches| launches as f64),
    },
    Of {
        name: "refused_allocations",
        help: "Allocations of the pod's living processes that its memory limit refused",
        value: |row| Some(row.processes.iter().map(|process| process.refused_allocations as f64).sum()),
    },
    Of {
        name: "problem",
        help: "1 if a limit of the pod is not enforced or cannot be read; `partita ps` says which",
        value: |row| Some(f64::from(u8::from(row.problem.is_some()))),
    },
];

/// The samples of this moment. Pure.
fn now(entries: &[Entry], rows: &[TenantRow], list: Option<&ListPodResourcesResponse>) -> Registry {
    let mut registry = Registry::with_prefix("partita_pod");
    let of_tenants = list.map(containers).unwrap_or_default();
    let none = BTreeSet::new();
    let tenants: Vec<(&Entry, &TenantRow, &BTreeSet<Container>)> = rows
        .iter()
        .filter_map(|row| {
            let entry = entries.iter().find(|entry| entry.definition.tenant == row.name)?;
            Some((entry, row, of_tenants.get(&row.name).unwrap_or(&none)))
        })
        .collect();
    let gauge = |samples: &mut dyn Iterator<Item = (Labels, f64)>| {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        samples.for_each(|(labels, value)| {
            family.get_or_create(&labels).set(value);
        });
        family
    };
    for Of { name, help, value } in GAUGES {
        let mut samples = tenants
            .iter()
            .filter_map(|(entry, row, containers)| Some((labels(entry, row, containers), value(row)?)));
        registry.register(name, help, gauge(&mut samples));
    }
    let mut one_by_one = tenants.iter().flat_map(|(entry, row, containers)| {
        containers.iter().map(|(namespace, pod, container)| {
            let labels = vec![
                ("namespace", namespace.clone()),
                ("pod", pod.clone()),
                ("container", container.clone()),
                ("claim", entry.name.clone()),
                ("tenant", row.name.clone()),
            ];
            (labels, 1.0)
        })
    });
    registry.register("container", "1 for each container that has a tenant", gauge(&mut one_by_one));
    registry
}

/// The page of `/metrics`.
pub struct Page {
    /// The tenants.
    pub tenants: Arc<Tenants>,
    /// The kubelet's calls of a DRA driver.
    pub calls: Option<Arc<Calls>>,
    /// The kubelet's directory.
    pub kubelet_dir: PathBuf,
}

/// The socket on which the kubelet lists pods.
#[must_use]
pub fn pod_resources_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("pod-resources/kubelet.sock")
}

/// The kubelet's list.
pub(crate) async fn list(socket: PathBuf) -> Result<ListPodResourcesResponse, String> {
    let asked = async {
        let connect = move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
        };
        let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await;
        let channel = channel.map_err(|error| format!("the socket: {error}"))?;
        // A node with many pods has more than the default of 4 MiB.
        let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(64 << 20);
        let answer = client.list(crate::wire::podresources::ListPodResourcesRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
    };
    tokio::time::timeout(LIMIT, asked).await.unwrap_or_else(|_| Err("no answer within 2 s".to_owned()))
}

impl Page {
    /// Writes the page. What cannot be read is missing, and `partita_kubelet_readable` says so.
    async fn text(&self) -> Result<String, fmt::Error> {
        let list = list(pod_resources_socket(&self.kubelet_dir)).await;
        let tenants = self.tenants.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut entries = Vec::new();
            for uid in tenants.journal.uids().map_err(|error| error.to_string())? {
                entries.extend(tenants.journal.get(&uid).map_err(|error| error.to_string())?);
            }
            let registry = partita::registry::Registry::open().map_err(|error| error.to_string())?;
            Ok((entries, partita::ps::ps(&registry).map_err(|error| error.to_string())?))
        });
        let read: Result<_, String> = read.await.unwrap_or_else(|error| Err(error.to_string()));
        let readable = Family::<Labels, Gauge>::default();
        for (what, reason) in [("pods", list.as_ref().err()), ("tenants", read.as_ref().err())] {
            readable.get_or_create(&vec![("what", what.to_owned())]).set(i64::from(reason.is_none()));
            if let Some(reason) = reason {
                tracing::warn!(reason, "/metrics without {what}");
            }
        }
        let (entries, rows) = read.unwrap_or_default();
        let mut own = Registry::with_prefix("partita_kubelet");
        own.register("readable", "Whether pods and tenants could be read for this page", readable);
        let boards = self.tenants.boards();
        let gpus = Family::<Labels, Gauge>::default();
        for (state, is_usable) in [("usable", true), ("unusable", false)] {
            let count = boards.iter().filter(|board| board.fault.is_none() == is_usable).count();
            gpus.get_or_create(&vec![("state", state.to_owned())]).set(count as i64);
        }
        own.register("gpus", "GPUs of the node that are offered, and those that are tainted", gpus);
        let mut text = String::new();
        encode_registry(&mut text, &now(&entries, &rows, list.ok().as_ref()))?;
        encode_registry(&mut text, &own)?;
        if let Some(calls) = &self.calls {
            encode_registry(&mut text, &calls.registry)?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }

    /// Serves the page at this address until the process ends.
    ///
    /// # Errors
    /// An address that cannot be had.
    pub async fn start(self, address: std::net::SocketAddr) -> anyhow::Result<()> {
        let listener = TcpListener::bind(address).await.with_context(|| format!("--metrics {address}"))?;
        tracing::info!(address = %listener.local_addr()?, "serves /metrics");
        tokio::spawn(self.serve(listener));
        Ok(())
    }

    async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        use axum::http::{StatusCode, header};
        let page = Arc::new(self);
        let get = move || async move {
            match page.text().await {
                Ok(text) => Ok(([(header::CONTENT_TYPE, MEDIA_TYPE)], text)),
                Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
            }
        };
        axum::serve(listener, axum::Router::new().route("/metrics", axum::routing::get(get))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Definition;
    use crate::wire::podresources::{
        CdiDevice, ClaimResource, ContainerResources, DynamicResource, PodResources,
    };

    fn list(containers: &[(&str, &str, &str, &str)]) -> ListPodResourcesResponse {
        let pod = |&(namespace, pod, container, device): &(&str, &str, &str, &str)| PodResources {
            name: pod.to_owned(),
            namespace: namespace.to_owned(),
            containers: vec![ContainerResources {
                name: container.to_owned(),
                devices: Vec::new(),
                dynamic_resources: vec![DynamicResource {
                    claim_resources: vec![ClaimResource {
                        driver_name: if device.starts_with("x") { "x" } else { DRIVER }.to_owned(),
                        cdi_devices: ["nvidia.com/gpu=GPU-1", device]
                            .map(|name| CdiDevice { name: name.to_owned() })
                            .to_vec(),
                        ..ClaimResource::default()
                    }],
                    ..DynamicResource::default()
                }],
            }],
        };
        ListPodResourcesResponse { pod_resources: containers.iter().map(pod).collect() }
    }

    fn entry(tenant: &str) -> Entry {
        let definition = Definition {
            tenant: tenant.to_owned(),
            selectors: Vec::new(),
            size: None,
            is_mig: false,
            limits: BTreeMap::new(),
            allocated: Vec::new(),
        };
        Entry::new("ns", "claim", tenant, definition)
    }

    #[test]
    fn a_shared_claim_has_one_sample_and_all_its_containers() {
        let tenant = "partita.dev/tenant=t-1";
        let list = list(&[
            ("ns", "b", "main", tenant),
            ("ns", "a", "main", tenant),
            ("ns", "c", "main", "partita.dev/tenant=t-2"),
            ("ns", "d", "main", "xpartita.dev/tenant=t-1"),
        ]);
        let row = TenantRow { name: "t-1".to_owned(), sms: Some(34), ..TenantRow::default() };
        // Made by hand: no pod's.
        let by_hand = TenantRow { name: "hand".to_owned(), sms: Some(2), ..TenantRow::default() };
        let mut text = String::new();
        encode_registry(&mut text, &now(&[entry("t-1")], &[row.clone(), by_hand.clone()], Some(&list)))
            .unwrap();
        let samples = |name: &str| {
            let begin = format!("partita_pod_{name}{{");
            text.lines().filter(|line| line.starts_with(&begin)).collect::<Vec<_>>()
        };
        assert_eq!(
            samples("sms"),
            [
                "partita_pod_sms{namespace=\"ns\",pod=\"a,b\",container=\"main\",claim=\"claim\",gpu=\"\",tenant=\"t-1\"} 34.0"
            ]
        );
        let pods: BTreeSet<&str> =
            samples("container").iter().map(|line| line.split('"').nth(3).unwrap()).collect();
        assert_eq!(pods, BTreeSet::from(["a", "b"]));
        // The kubelet does not answer: the claim still names the tenant.
        let mut text = String::new();
        encode_registry(&mut text, &now(&[entry("t-1")], &[row, by_hand], None)).unwrap();
        assert!(
            text.contains("partita_pod_sms{namespace=\"ns\",pod=\"\",container=\"\",claim=\"claim\""),
            "{text}"
        );
    }
}
