//! The device plugin, for clusters without dynamic resource allocation.
//!
//! Each resource has a socket of its own, with which the plugin registers, and again whenever the
//! kubelet has restarted. A device of [`shares::has_tenants`] is a tenant while a container has it.
//! The kubelet says when a container gets a device and never when it has given it back: the list of
//! pods shows that.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use partita::points::reached;
use tokio::sync::{Mutex, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::journal::Entry;
use crate::metrics::{list, pod_resources_socket};
use crate::plan::Definition;
use crate::plugin::{identity, listen, to_its_end, until_replaced};
use crate::prepare::Tenants;
use crate::shares::{self, Offer, Offered};
use crate::wire::deviceplugin as wire;
use crate::wire::podresources::ListPodResourcesResponse;
use wire::device_plugin_server::{DevicePlugin, DevicePluginServer};
use wire::registration_client::RegistrationClient;

/// The protocol's version.
const VERSION: &str = "v1beta1";
/// How often a registration is tried, and how long the kubelet may take for it.
const PAUSE: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(10);

/// The tenants whose pods the kubelet has listed, and in how many of the last queries it has not.
/// A tenant that a new container gets is not among them until the kubelet lists that one.
pub type Missing = BTreeMap<String, u32>;

/// The plugin.
pub struct Plugin {
    /// The tenants.
    pub tenants: Arc<Tenants>,
    /// How GPUs are offered.
    pub offer: Offer,
    /// The kubelet's directory.
    pub kubelet_dir: PathBuf,
    /// The directory of device plugins, with the kubelet's socket.
    pub plugins_dir: PathBuf,
    /// The kind of the CDI devices of the GPUs.
    pub gpu_kind: String,
    /// One change of tenants at a time.
    pub turn: Mutex<Missing>,
    /// Rises when the GPUs changed.
    pub boards_changed: watch::Receiver<u64>,
}

/// The socket on which the kubelet takes registrations.
#[must_use]
pub fn kubelet_socket(plugins: &Path) -> PathBuf {
    plugins.join("kubelet.sock")
}

impl Plugin {
    async fn on_tenants<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tenants) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let tenants = self.tenants.clone();
        let done = tokio::task::spawn_blocking(move || work(&tenants)).await;
        done.unwrap_or_else(|error| Err(format!("the work did not end: {error}")))
    }

    async fn pods(&self) -> Result<ListPodResourcesResponse, String> {
        let listed = list(pod_resources_socket(&self.kubelet_dir)).await;
        listed.map_err(|error| format!("the kubelet's list of pods: {error}"))
    }

    /// Makes the tenant of a device. A tenant of another size is that of a container that has
    /// ended: the kubelet gives a device to one container at a time.
    async fn make(&self, definition: Definition) -> Result<(), String> {
        self.on_tenants(move |tenants| {
            let uid = definition.tenant.clone();
            match tenants.journal.get(&uid).map_err(|error| error.to_string())? {
                Some(entry) if entry.definition == definition => return tenants.make(&entry),
                Some(entry) => tenants.end(&entry)?,
                None => {}
            }
            tenants.make_new(&Entry::new("", "", &uid, definition))
        })
        .await
    }

    fn cdi_devices(&self, definition: &Definition) -> Vec<wire::CdiDevice> {
        let ids = self.tenants.cdi_ids(definition, &self.gpu_kind);
        ids.into_iter().map(|name| wire::CdiDevice { name }).collect()
    }

    async fn allocate(&self, resource: &str, ids: &[String]) -> Result<Vec<wire::CdiDevice>, String> {
        if !shares::has_tenants(resource) {
            return Ok(Vec::new());
        }
        let boards = self.tenants.boards();
        let (board, id) = shares::the_device(&boards, resource, ids)?;
        let mut turn = self.turn.lock().await;
        match self.offer {
            Offer::Shared { replicas } => {
                let definition = shares::shared(board, id, replicas)?;
                turn.remove(&definition.tenant);
                reached("allocate-asked");
                self.end_last(&definition.tenant).await;
                self.make(definition.clone()).await?;
                reached("allocate-done");
                Ok(self.cdi_devices(&definition))
            }
            // Its size is not known before the container has all its devices.
            Offer::Hami { .. } => {
                let definition = shares::without_size(board, id);
                turn.remove(&definition.tenant);
                self.end_last(&definition.tenant).await;
                Ok(self.cdi_devices(&definition))
            }
        }
    }

    /// Ends the tenant that the last container of a device has left, so that the next one inherits
    /// no limit that was changed meanwhile. A tenant that a pod or a process has stays.
    async fn end_last(&self, tenant: &str) {
        let uid = tenant.to_owned();
        let known =
            self.on_tenants(move |tenants| tenants.journal.get(&uid).map_err(|error| error.to_string()));
        let ended = match known.await {
            Ok(None) => return,
            Ok(Some(_)) => match self.pods().await {
                Ok(pods) => self.end_unlisted(&pods, &mut |uid| uid == tenant).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::warn!(tenant, error, "the next container has the tenant of the last one, as it is");
        }
    }

    async fn start(&self, resource: &str, ids: &[String]) -> Result<(), String> {
        let Offer::Hami { memory, .. } = self.offer else { return Ok(()) };
        if !shares::has_tenants(resource) {
            return Ok(());
        }
        let boards = self.tenants.boards();
        let (board, id) = shares::the_device(&boards, resource, ids)?;
        let _turn = self.turn.lock().await;
        let pods = self.pods().await?;
        let definition = shares::hami(board, id, memory, &pods)?;
        reached("start-asked");
        let room = board.clone();
        let wanted = definition.clone();
        let fits = self.on_tenants(move |tenants| {
            let mut held = Vec::new();
            for uid in tenants.journal.uids().map_err(|error| error.to_string())? {
                held.extend(tenants.journal.get(&uid).map_err(|error| error.to_string())?);
            }
            Ok(shares::fits(&room, held.iter().map(|entry| &entry.definition), &wanted))
        });
        if !fits.await? {
            // The kubelet has counted, so what is in the way are tenants of pods that ended.
            self.end_unlisted(&pods, &mut |_| true).await?;
        }
        self.make(definition).await?;
        reached("start-done");
        Ok(())
    }

    /// Ends tenants that no pod has, nor a process, and that `is_due` names.
    async fn end_unlisted(
        &self,
        pods: &ListPodResourcesResponse,
        is_due: &mut (dyn FnMut(&str) -> bool + Send),
    ) -> Result<(), String> {
        let names: Vec<String> = [crate::translate::GPU, shares::SHARED]
            .into_iter()
            .flat_map(|resource| shares::held(pods, resource))
            .map(|id| shares::tenant_name(id))
            .collect();
        let uids =
            self.on_tenants(|tenants| tenants.journal.uids().map_err(|error| error.to_string())).await?;
        let due: Vec<String> = uids.into_iter().filter(|uid| !names.contains(uid) && is_due(uid)).collect();
        if due.is_empty() {
            return Ok(());
        }
        self.on_tenants(move |tenants| {
            let registry = partita::registry::Registry::open().map_err(|error| error.to_string())?;
            let rows = partita::ps::ps(&registry).map_err(|error| error.to_string())?;
            for uid in due {
                if rows.iter().any(|row| row.name == uid && !row.processes.is_empty()) {
                    tracing::warn!(tenant = uid, "no pod has it, and processes run in it: it stays");
                    continue;
                }
                if let Some(entry) = tenants.journal.get(&uid).map_err(|error| error.to_string())? {
                    tenants.end(&entry)?;
                    tracing::info!(tenant = uid, "ended: its pod is gone");
                }
            }
            Ok(())
        })
        .await
    }

    /// Ends the tenants of pods that ended, until the process ends.
    ///
    /// A kubelet that has just started may not know its pods yet. So only a pod that this kubelet
    /// has listed, and twice does not list any more, has ended. A tenant that stays otherwise takes
    /// nothing from others: its device is free, and the next container's Allocate ends it.
    pub async fn end_gone(&self, pause: Duration) {
        let mut kubelet = None;
        loop {
            tokio::time::sleep(pause).await;
            let mut missing = self.turn.lock().await;
            let now = identity(&kubelet_socket(&self.plugins_dir));
            if now != kubelet {
                missing.clear();
                kubelet = now;
            }
            let pods = match self.pods().await {
                Ok(pods) => pods,
                Err(error) => {
                    tracing::warn!(error, "no tenant is ended");
                    continue;
                }
            };
            for queries in missing.values_mut() {
                *queries += 1;
            }
            for resource in [crate::translate::GPU, shares::SHARED] {
                missing.extend(shares::held(&pods, resource).map(|id| (shares::tenant_name(id), 0)));
            }
            let mut is_due = |uid: &str| missing.get(uid).is_some_and(|&queries| queries >= 2);
            if let Err(error) = self.end_unlisted(&pods, &mut is_due).await {
                tracing::error!(error, "tenants of pods that ended");
            }
        }
    }

    /// Finishes what a killed plugin had begun: the tenants of its journal are there.
    pub async fn resume(&self) {
        let _turn = self.turn.lock().await;
        let done = self.on_tenants(|tenants| {
            for uid in tenants.journal.uids().map_err(|error| error.to_string())? {
                let Some(entry) = tenants.journal.get(&uid).map_err(|error| error.to_string())? else {
                    continue;
                };
                if let Err(error) = tenants.make(&entry) {
                    tracing::error!(tenant = uid, error, "the tenant of a container is not as it was");
                }
            }
            Ok(())
        });
        if let Err(error) = done.await {
            tracing::error!(error, "the journal");
        }
    }

    fn offered(&self) -> Offered {
        self.offer.resources(&self.tenants.boards()).unwrap_or_else(|error| {
            tracing::error!(error, "the GPUs cannot be offered any more");
            Offered::new()
        })
    }
}

/// A resource's service.
#[derive(Clone)]
struct Service {
    plugin: Arc<Plugin>,
    resource: &'static str,
}

impl Service {
    fn options(&self) -> wire::DevicePluginOptions {
        let has_tenants = shares::has_tenants(self.resource);
        wire::DevicePluginOptions {
            pre_start_required: has_tenants && self.plugin.offer.is_sized_late(),
            get_preferred_allocation_available: has_tenants,
        }
    }
}

/// The kubelet shows the message in the pod's events.
fn refused(resource: &str, what: &str, reason: String) -> Status {
    tracing::warn!(resource, reason, what);
    Status::failed_precondition(format!("{resource}: {reason}"))
}

type Devices = Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(self.options()))
    }

    type ListAndWatchStream = Devices;

    async fn list_and_watch(&self, _: Request<wire::Empty>) -> Result<Response<Devices>, Status> {
        let changed = self.plugin.boards_changed.clone();
        let begin = (self.clone(), changed, None::<Vec<wire::Device>>);
        let stream = futures::stream::unfold(begin, |(service, mut changed, last)| async move {
            loop {
                changed.borrow_and_update();
                let devices = service.plugin.offered().remove(service.resource).unwrap_or_default();
                if last.as_ref() != Some(&devices) {
                    let response = wire::ListAndWatchResponse { devices: devices.clone() };
                    return Some((Ok(response), (service, changed, Some(devices))));
                }
                changed.changed().await.ok()?;
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let one = |asked: wire::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(asked.allocation_size).unwrap_or(0);
            let ids = shares::preferred(&asked.available_device_i_ds, &asked.must_include_device_i_ds, size);
            wire::ContainerPreferredAllocationResponse { device_i_ds: ids }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(one).collect();
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for asked in request.into_inner().container_requests {
            let service = self.clone();
            let work = async move { service.plugin.allocate(service.resource, &asked.devices_ids).await };
            let done = to_its_end(work).await;
            let cdi_devices = done.map_err(|reason| refused(self.resource, "not allocated", reason))?;
            container_responses.push(wire::ContainerAllocateResponse { cdi_devices });
        }
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        let service = self.clone();
        let ids = request.into_inner().devices_ids;
        let done = to_its_end(async move { service.plugin.start(service.resource, &ids).await }).await;
        done.map_err(|reason| refused(self.resource, "not started", reason))?;
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

/// A resource's socket, beside the kubelet's.
#[must_use]
pub fn socket(plugins: &Path, resource: &str) -> PathBuf {
    plugins.join(format!("partita-{}.sock", resource.rsplit('/').next().unwrap_or(resource)))
}

async fn register(plugins: &Path, request: wire::RegisterRequest) -> Result<(), String> {
    let kubelet = kubelet_socket(plugins);
    let asked = async {
        let connect = move |_| {
            let kubelet = kubelet.clone();
            async move { tokio::net::UnixStream::connect(kubelet).await.map(hyper_util::rt::TokioIo::new) }
        };
        let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await;
        let channel = channel.map_err(|error| format!("the socket: {error}"))?;
        let registered = RegistrationClient::new(channel).register(request).await;
        registered.map(drop).map_err(|status| status.message().to_owned())
    };
    tokio::time::timeout(LIMIT, asked).await.unwrap_or_else(|_| Err("no answer within 10 s".to_owned()))
}

/// Serves a resource until `end` is true, and registers it with each kubelet that starts.
async fn serve_one(service: Service, mut end: watch::Receiver<bool>) -> io::Result<()> {
    let plugins = service.plugin.plugins_dir.clone();
    let (path, kubelet) = (socket(&plugins, service.resource), kubelet_socket(&plugins));
    let endpoint = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    loop {
        let (listener, own) = listen(&path)?;
        let (stop, mut stopped) = watch::channel(false);
        let server = Server::builder()
            .add_service(DevicePluginServer::new(service.clone()))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
                let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
            });
        let server = tokio::spawn(server);
        let live = async {
            // The identity comes first: a kubelet that starts during the registration is another.
            let mut known = identity(&kubelet);
            let mut last = String::new();
            loop {
                let request = wire::RegisterRequest {
                    version: VERSION.to_owned(),
                    endpoint: endpoint.clone(),
                    resource_name: service.resource.to_owned(),
                    options: Some(service.options()),
                };
                match register(&plugins, request).await {
                    Ok(()) => break,
                    Err(error) if error == last => {}
                    Err(error) => {
                        tracing::warn!(error, resource = service.resource, "not registered; tried again");
                        last = error;
                    }
                }
                tokio::time::sleep(PAUSE).await;
                known = identity(&kubelet);
            }
            tracing::info!(resource = service.resource, "registered");
            match known {
                Some(known) => until_replaced(&kubelet, known).await,
                None => tokio::time::sleep(PAUSE).await,
            }
        };
        tokio::select! {
            () = live => tracing::info!(resource = service.resource, "the kubelet's socket is another one"),
            () = until_replaced(&path, own) => tracing::info!("{} is gone: made again", path.display()),
            _ = end.wait_for(|is_end| *is_end) => {
                let _ = fs::remove_file(&path);
                let _ = stop.send(true);
                let _ = tokio::time::timeout(Duration::from_secs(5), server).await;
                return Ok(());
            }
        }
        let _ = stop.send(true);
    }
}

/// Serves all resources until `end` is true.
///
/// # Errors
/// GPUs that cannot be offered this way; sockets that cannot be made.
pub async fn serve(plugin: Arc<Plugin>, end: watch::Receiver<bool>) -> anyhow::Result<()> {
    let offered = plugin.offer.resources(&plugin.tenants.boards()).map_err(|error| anyhow::anyhow!(error))?;
    let services = offered.into_keys().map(|resource| {
        let service = Service { plugin: plugin.clone(), resource };
        serve_one(service, end.clone())
    });
    for served in futures::future::join_all(services).await {
        served?;
    }
    Ok(())
}
