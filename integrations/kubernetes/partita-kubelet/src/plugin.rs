//! The kubelet's side: the sockets, and the two services on them.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use partita::points::reached;
use tokio::net::UnixListener;
use tokio::sync::{Mutex, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::DRIVER;
use crate::claims;
use crate::events::Events;
use crate::health::{Health, HealthV1, HealthV1Beta1, SERVICES};
use crate::journal::Entry;
use crate::metadata::{POD_CLAIM, base};
use crate::metrics::{Call, Calls};
use crate::plan::{self, Size};
use crate::prepare::Tenants;
use crate::status::Statuses;
use crate::wire::dra;
use crate::wire::health::dra_resource_health_server::DraResourceHealthServer;
use crate::wire::registration::registration_server::{Registration, RegistrationServer};
use crate::wire::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use dra::dra_plugin_server::{DraPlugin, DraPluginServer};

/// How often the sockets are looked at. Somebody may delete them.
const LOOK: Duration = Duration::from_secs(1);

/// The driver as the kubelet's calls need it.
pub struct Driver {
    /// The tenants.
    pub tenants: Arc<Tenants>,
    /// The API server.
    pub client: kube::Client,
    /// Events.
    pub events: Events,
    /// The node's name, which is the pool's.
    pub node: String,
    /// The kind of the CDI devices of the GPUs.
    pub gpu_kind: String,
    /// One change of tenants at a time: calls of the kubelet come several at once and twice.
    pub turn: Arc<Mutex<()>>,
    /// Counts of the kubelet's calls.
    pub calls: Arc<Calls>,
    /// Rises when a claim was prepared or ended.
    pub changed: watch::Sender<u64>,
    /// The claims whose status may have to be written.
    pub statuses: Statuses,
    /// When the GPUs were last looked at, in seconds of Unix time.
    pub looked_at_s: watch::Receiver<i64>,
    /// How often they are looked at, in seconds.
    pub look_s: u64,
}

impl Driver {
    /// Runs blocking work on the tenants.
    pub(crate) async fn on_tenants<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tenants) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let tenants = self.tenants.clone();
        let done = tokio::task::spawn_blocking(move || work(&tenants)).await;
        done.unwrap_or_else(|error| Err(format!("the work did not end: {error}")))
    }

    async fn prepare(&self, claim: &dra::Claim) -> Result<Vec<dra::Device>, String> {
        let _turn = self.turn.lock().await;
        reached("prepare-asked");
        let uid = claim.uid.clone();
        let known =
            self.on_tenants(move |tenants| tenants.journal.get(&uid).map_err(|error| error.to_string()));
        let definition = match known.await? {
            Some(entry) => {
                // The claim may be gone from the API server by now; the pod may not.
                let definition = entry.definition.clone();
                self.on_tenants(move |tenants| tenants.make(&entry)).await?;
                self.statuses.look_at(&claim.uid, &claim.namespace, &claim.name, None);
                definition
            }
            None => self.prepare_new(claim).await?,
        };
        self.changed.send_modify(|count| *count += 1);
        reached("prepare-done");
        let cdi_device_ids = self.tenants.cdi_ids(&definition, &self.gpu_kind);
        let device = |one: &plan::Allocated| dra::Device {
            // The kubelet compares it with a container's, which does not name an alternative.
            request_names: vec![base(&one.request).to_owned()],
            pool_name: one.pool.clone(),
            device_name: one.device.clone(),
            cdi_device_ids: cdi_device_ids.clone(),
            share_id: one.share_id.clone(),
        };
        Ok(definition.allocated.iter().map(device).collect())
    }

    async fn prepare_new(&self, asked: &dra::Claim) -> Result<plan::Definition, String> {
        let dra::Claim { namespace, name, uid } = asked;
        let found = claims::get(&self.client, namespace, name).await?;
        let claims::Claim { claim, raw } =
            found.ok_or_else(|| format!("there is no claim {namespace}/{name}"))?;
        reached("claim-read");
        let done = async {
            if let Some(reason) = self.tenants.why_none() {
                return Err(format!("this node offers no GPU now: {reason}"));
            }
            let definition = plan::plan(&claim, uid, &self.node, &self.tenants.boards())?;
            let annotations = claim.metadata.annotations.as_ref();
            let pod_claim = annotations.and_then(|all| all.get(POD_CLAIM)).map(String::as_str);
            let entry = Entry::new(namespace, name, uid, definition.clone()).in_pod(pod_claim);
            self.on_tenants(move |tenants| tenants.make_new(&entry)).await?;
            Ok(definition)
        };
        let done: Result<plan::Definition, String> = done.await;
        match &done {
            Ok(definition) => {
                let gpus: Vec<&str> = definition.allocated.iter().map(|one| one.uuid.as_str()).collect();
                let gpus = gpus.join(", ");
                let (reason, note) = match definition.size {
                    _ if definition.is_mig => ("InstancePrepared", format!("the claim has {gpus}")),
                    Some(Size { sms, memory_bytes }) => {
                        let size = format!("{sms} multiprocessors and {} MiB of memory", memory_bytes >> 20);
                        ("TenantPrepared", format!("tenant {} has {size} of {gpus}", definition.tenant))
                    }
                    None => (
                        "TenantPrepared",
                        format!("tenant {} has the whole GPU of {gpus}", definition.tenant),
                    ),
                };
                self.events.publish(&claim, false, reason, &note);
                self.statuses.look_at(uid, namespace, name, Some(raw));
            }
            Err(reason) => self.events.publish(&claim, true, "TenantNotPrepared", reason),
        }
        done
    }

    async fn unprepare(&self, claim: &dra::Claim) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        reached("unprepare-asked");
        let uid = claim.uid.clone();
        self.on_tenants(move |tenants| match tenants.journal.get(&uid) {
            // What was never prepared, or is ended already, needs nothing.
            Ok(None) => Ok(()),
            Ok(Some(entry)) => tenants.end(&entry),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        reached("unprepare-done");
        self.changed.send_modify(|count| *count += 1);
        self.statuses.look_at(&claim.uid, &claim.namespace, &claim.name, None);
        Ok(())
    }

    /// Has the status of every prepared claim looked at.
    pub fn look_at_all(&self) {
        for uid in self.tenants.journal.uids().unwrap_or_default() {
            if let Ok(Some(entry)) = self.tenants.journal.get(&uid) {
                self.statuses.look_at(&uid, &entry.namespace, &entry.name, None);
            }
        }
    }

    /// Ends the tenants of claims that the API server does not have any more: their pods ended
    /// while this driver and the kubelet's memory were away.
    pub async fn end_orphans(&self) {
        let uids = match self.tenants.journal.uids() {
            Ok(uids) => uids,
            Err(error) => return tracing::error!(%error, "the journal"),
        };
        for uid in uids {
            let entry = match self.tenants.journal.get(&uid) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(%error, "the journal");
                    continue;
                }
            };
            let is_there = match claims::get(&self.client, &entry.namespace, &entry.name).await {
                Ok(Some(claim)) if claim.claim.metadata.uid.as_deref() == Some(&uid) => {
                    self.statuses.look_at(&uid, &entry.namespace, &entry.name, Some(claim.raw));
                    true
                }
                Ok(_) => false,
                // Without an answer nothing is ended.
                Err(_) => {
                    self.statuses.look_at(&uid, &entry.namespace, &entry.name, None);
                    true
                }
            };
            if !is_there {
                let claim = dra::Claim { namespace: entry.namespace, uid, name: entry.name };
                match self.unprepare(&claim).await {
                    Ok(()) => tracing::info!(claim.uid, claim.name, "ended: the claim is gone"),
                    Err(error) => tracing::error!(claim.uid, error, "the tenant of a claim that is gone"),
                }
            }
        }
    }
}

/// Runs work in a task of its own: a kubelet that hangs up leaves nothing half made.
pub(crate) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|error| Err(format!("the work did not end: {error}")))
}

/// The services on `dra.sock`.
#[derive(Clone)]
struct Plugin(Arc<Driver>);

#[tonic::async_trait]
impl DraPlugin for Plugin {
    async fn node_prepare_resources(
        &self,
        request: Request<dra::NodePrepareResourcesRequest>,
    ) -> Result<Response<dra::NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let driver = self.0.clone();
            let asked = claim.clone();
            let begin = Instant::now();
            let done = to_its_end(async move { driver.prepare(&asked).await }).await;
            self.0.calls.count(Call::Prepare, done.is_ok(), begin.elapsed());
            if let Err(reason) = &done {
                tracing::warn!(claim.uid, claim.namespace, claim.name, reason, "not prepared");
            }
            let (devices, error) = match done {
                Ok(devices) => (devices, String::new()),
                Err(reason) => (Vec::new(), reason),
            };
            claims.insert(claim.uid, dra::NodePrepareResourceResponse { devices, error });
        }
        Ok(Response::new(dra::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<dra::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<dra::NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let driver = self.0.clone();
            let asked = claim.clone();
            let begin = Instant::now();
            let done = to_its_end(async move { driver.unprepare(&asked).await }).await;
            self.0.calls.count(Call::Unprepare, done.is_ok(), begin.elapsed());
            if let Err(reason) = &done {
                tracing::warn!(claim.uid, claim.namespace, claim.name, reason, "not ended");
            }
            let error = done.err().unwrap_or_default();
            claims.insert(claim.uid, dra::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(dra::NodeUnprepareResourcesResponse { claims }))
    }
}

/// The service on the registration socket.
#[derive(Clone)]
struct Registrar {
    endpoint: String,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: ["v1.DRAPlugin"].into_iter().chain(SERVICES).map(str::to_owned).collect(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        match plugin_registered {
            true => tracing::info!("the kubelet registered this driver"),
            false => tracing::error!(error, "the kubelet refused this driver"),
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// The socket of the services.
#[must_use]
pub fn dra_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER).join("dra.sock")
}

/// The registration socket.
///
/// The kubelet dials it without an authority, so its gRPC library sends the path, percent-encoded.
/// Rust's HTTP library refuses `%` in a host. What stands before an `@` it takes as user
/// information, where `%` is allowed, and the kubelet's library leaves an `@` as it is.
#[must_use]
pub fn registration_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins_registry").join(format!("partita@{DRIVER}-reg.sock"))
}

/// What tells a file from another of its name, which may have its number again.
pub(crate) type Identity = (u64, u64, i64, i64);

/// The identity of a file; `None` if it is not there.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

/// A socket that listens, and the identity of its file.
pub(crate) fn listen(path: &Path) -> io::Result<(UnixListener, Identity)> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(at)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(at)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(at)?;
    let identity = identity(path).ok_or_else(|| at(io::ErrorKind::NotFound.into()))?;
    Ok((listener, identity))
}

/// Ends when the socket's file is another one, or gone.
pub(crate) async fn until_replaced(path: &Path, known: Identity) {
    while identity(path) == Some(known) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Serves both sockets until `end` is true, and makes them again when they were deleted. The
/// service comes before its registration.
///
/// # Errors
/// Sockets that cannot be made.
pub async fn serve(driver: Arc<Driver>, kubelet: &Path, end: watch::Receiver<bool>) -> io::Result<()> {
    let service = dra_socket(kubelet);
    let registration = registration_socket(kubelet);
    let endpoint = service.display().to_string();
    let mut end_seen = end;
    loop {
        let (dra, dra_identity) = listen(&service)?;
        let (reg, reg_identity) = listen(&registration)?;
        let (stop, stopped) = watch::channel(false);
        let wait = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|is_stopped| *is_stopped).await;
        };
        let health = DraResourceHealthServer::new(Health {
            tenants: driver.tenants.clone(),
            pool: driver.node.clone(),
            looked_at_s: driver.looked_at_s.clone(),
            look_s: driver.look_s,
            stopped: stopped.clone(),
        });
        let plugin = Server::builder()
            .add_service(DraPluginServer::new(Plugin(driver.clone())))
            .add_service(HealthV1(health.clone()))
            .add_service(HealthV1Beta1(health.clone()))
            .add_service(health)
            .serve_with_incoming_shutdown(UnixListenerStream::new(dra), wait(stopped.clone()));
        let registrar = Server::builder()
            .add_service(RegistrationServer::new(Registrar { endpoint: endpoint.clone() }))
            .serve_with_incoming_shutdown(UnixListenerStream::new(reg), wait(stopped));
        let servers = tokio::spawn(async move { tokio::join!(plugin, registrar) });
        tokio::select! {
            () = until_replaced(&service, dra_identity) => tracing::warn!("{} is gone: made again", service.display()),
            () = until_replaced(&registration, reg_identity) => {
                tracing::warn!("{} is gone: made again", registration.display());
            }
            _ = end_seen.wait_for(|is_end| *is_end) => {
                // First the registration: the kubelet then knows that the driver is away.
                let _ = std::fs::remove_file(&registration);
                let _ = std::fs::remove_file(&service);
                let _ = stop.send(true);
                // Calls in flight end; a client that stays connected does not keep this process.
                let _ = tokio::time::timeout(Duration::from_secs(5), servers).await;
                return Ok(());
            }
        }
        let _ = stop.send(true);
    }
}
