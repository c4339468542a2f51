//! The admission webhook: translates pods ([`translate`](crate::translate)), and makes the
//! templates that they name.
//!
//! The webhook refuses a pod that its author must change. Other failures, such as an API server
//! that does not answer, are HTTP errors: then the failure policy of the webhook's configuration
//! decides.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use base64::Engine;
use futures::StreamExt;
use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::{default_provider, sign::any_supported_type};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::server::TlsStream;

use crate::DRIVER;
use crate::args::WebhookArgs;
use crate::translate::{Refusal, Rules, sizes, translate};

/// How often the files of the certificate are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a client may take for its handshake, and the API server for a template. The API server
/// waits for the webhook at most 30 s.
const LIMIT: Duration = Duration::from_secs(10);
/// How long requests in flight have when the process is asked to end.
const LAST: Duration = Duration::from_secs(5);
/// An object of the API server has at most 1.5 MiB, and a review has two.
const BODY_BYTES_MAX: usize = 8 << 20;

/// A certificate whose files may change.
#[derive(Debug)]
struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    now: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone())
    }
}

type Files = (Vec<u8>, Vec<u8>);

fn files(cert: &Path, key: &Path) -> anyhow::Result<Files> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    Ok((read(cert)?, read(key)?))
}

/// The certificate and its key, which must belong together.
fn certified((cert, key): &Files) -> anyhow::Result<Arc<CertifiedKey>> {
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>();
    let chain = chain.context("the certificate is not PEM")?;
    if chain.is_empty() {
        return Err(anyhow!("the file of the certificate has none"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).context("the key is not PEM")?;
    let key = any_supported_type(&key).context("the key")?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().context("the key is not the certificate's")?;
    Ok(Arc::new(certified))
}

impl Certificate {
    /// Reads the files again whenever they change. One file may change before the other: until
    /// they belong together the old certificate holds.
    async fn keep(&self, mut known: Files) {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = match files(&self.cert, &self.key) {
                Ok(now) if now == known => continue,
                Ok(now) => now,
                // A mount that is being replaced; the next look finds it.
                Err(_) => continue,
            };
            match certified(&now) {
                Ok(certified) => {
                    *self.now.write().unwrap_or_else(std::sync::PoisonError::into_inner) = certified;
                    tracing::info!("the certificate changed");
                }
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "the new certificate is not used");
                }
            }
            known = now;
        }
    }
}

/// Connections whose handshakes are done. A slow client delays no other.
struct Connections {
    done: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl Connections {
    fn new(listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, done) = mpsc::channel(16);
        tokio::spawn(async move {
            loop {
                let (stream, peer) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Such as too many open files: they become fewer.
                        tracing::warn!(%error, "a connection was not accepted");
                        tokio::time::sleep(LOOK).await;
                        continue;
                    }
                };
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    match tokio::time::timeout(LIMIT, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => drop(sender.send((stream, peer)).await),
                        Ok(Err(error)) => tracing::debug!(%error, %peer, "a handshake failed"),
                        Err(_) => tracing::debug!(%peer, "a handshake took too long"),
                    }
                });
            }
        });
        Ok(Self { done, address })
    }
}

impl axum::serve::Listener for Connections {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.done.recv().await {
            Some(accepted) => accepted,
            // The task that accepts never ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

struct Webhook {
    client: Client,
    rules: Rules,
    slices: reflector::Store<ResourceSlice>,
}

/// A failure that the pod did not cause: the HTTP status, and the message.
type Failure = (StatusCode, String);

impl Webhook {
    /// The rules with the GPUs that the cluster has now.
    fn rules(&self) -> Rules {
        let is_listed = futures::FutureExt::now_or_never(self.slices.wait_until_ready());
        let is_listed = is_listed.is_some_and(|ready| ready.is_ok());
        let slices = || sizes(self.slices.state().iter().map(AsRef::as_ref));
        Rules { boards: is_listed.then(slices), ..self.rules.clone() }
    }

    /// The response to a request of the API server.
    async fn review(&self, request: &Value) -> Result<Value, Failure> {
        let uid = &request["uid"];
        let untouched = json!({"uid": uid, "allowed": true});
        let kind = &request["kind"];
        if kind["group"] != "" || kind["kind"] != "Pod" || request["operation"] != "CREATE" {
            return Ok(untouched);
        }
        let pod = &request["object"];
        let namespace = request["namespace"].as_str().unwrap_or_default();
        let translation = match translate(pod, &self.rules()) {
            Ok(None) => return Ok(untouched),
            Ok(Some(translation)) => translation,
            Err(Refusal::NotYet) => {
                let reason = "the ResourceSlices of the cluster are not read yet; try again";
                return Err((StatusCode::SERVICE_UNAVAILABLE, reason.to_owned()));
            }
            Err(Refusal::NotExpressible(reason)) => {
                tracing::info!(namespace, reason, "a pod is refused");
                return Ok(json!({"uid": uid, "allowed": false, "status": {
                    "status": "Failure", "reason": "Invalid", "code": 422,
                    "message": format!("{DRIVER}: {reason}"),
                }}));
            }
        };
        if request["dryRun"] != true {
            for template in &translation.templates {
                self.make(namespace, template).await?;
            }
        }
        let patch = base64::engine::general_purpose::STANDARD.encode(translation.patch.to_string());
        Ok(json!({
            "uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch,
            "warnings": translation.warnings,
        }))
    }

    /// Makes a template, unless it is there: its name says that it has the same content.
    async fn make(&self, namespace: &str, template: &ResourceClaimTemplate) -> Result<(), Failure> {
        let api: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        let made = tokio::time::timeout(LIMIT, api.create(&params, template));
        let reason = match made.await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.reason == "AlreadyExists" => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", LIMIT.as_secs()),
        };
        let name = template.metadata.name.as_deref().unwrap_or_default();
        let reason = format!("the ResourceClaimTemplate {namespace}/{name} cannot be made: {reason}");
        tracing::warn!(reason);
        Err((StatusCode::INTERNAL_SERVER_ERROR, reason))
    }
}

async fn mutate(
    State(webhook): State<Arc<Webhook>>,
    Json(review): Json<Value>,
) -> Result<Json<Value>, Failure> {
    let (version, kind) = (&review["apiVersion"], &review["kind"]);
    if version != "admission.k8s.io/v1" || kind != "AdmissionReview" || !review["request"].is_object() {
        let reason = format!("{kind} of {version} is no AdmissionReview of admission.k8s.io/v1");
        return Err((StatusCode::BAD_REQUEST, reason));
    }
    let response = webhook.review(&review["request"]).await?;
    Ok(Json(json!({"apiVersion": version, "kind": kind, "response": response})))
}

/// Serves until `end` is true.
///
/// # Errors
/// A certificate that cannot be read, an address that cannot be had.
pub async fn serve(args: &WebhookArgs, client: Client, end: watch::Receiver<bool>) -> anyhow::Result<()> {
    let known = files(&args.cert, &args.key).context("the certificate")?;
    let now = certified(&known).context("the certificate")?;
    let certificate =
        Arc::new(Certificate { cert: args.cert.clone(), key: args.key.clone(), now: RwLock::new(now) });
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS")?
        .with_no_client_auth()
        .with_cert_resolver(certificate.clone());
    tokio::spawn(async move { certificate.keep(known).await });

    let (slices, writer) = reflector::store();
    let only = watcher::Config::default().fields(&format!("spec.driver={DRIVER}"));
    let events = watcher(Api::<ResourceSlice>::all(client.clone()), only).default_backoff();
    let events = reflector(writer, events).touched_objects();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            if let Err(error) = event {
                tracing::warn!(%error, "the watch of the slices");
            }
        }
    });
    let rules = Rules {
        share_class: args.share_class.clone(),
        whole_class: args.whole_class.clone(),
        default_cores: args.default_cores,
        boards: None,
    };
    let router = Router::new()
        .route("/mutate", post(mutate))
        .route("/healthz", get(|| async { "ok" }))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(Arc::new(Webhook { client, rules, slices }));
    let listener =
        TcpListener::bind(args.listen).await.with_context(|| format!("--listen {}", args.listen))?;
    let connections = Connections::new(listener, TlsAcceptor::from(Arc::new(config)))?;
    tracing::info!(address = %connections.address, "serves /mutate");
    let wait = |mut end: watch::Receiver<bool>| async move {
        let _ = end.wait_for(|is_end| *is_end).await;
    };
    let served = axum::serve(connections, router).with_graceful_shutdown(wait(end.clone()));
    // Requests in flight end; a client that sends nothing does not keep this process.
    let late = async {
        wait(end).await;
        tokio::time::sleep(LAST).await;
    };
    tokio::select! {
        served = served => served.context("the connections"),
        () = late => Ok(()),
    }
}
