//! A fake kubelet, whose calls are those of a real one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use partita_kubelet::wire::dra::dra_plugin_client::DraPluginClient;
use partita_kubelet::wire::dra::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use partita_kubelet::wire::health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use partita_kubelet::wire::registration::registration_client::RegistrationClient;
use partita_kubelet::wire::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};

/// Programs on a busy machine are slow; what never comes is a failure.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Kubelet {
    dir: PathBuf,
}

/// `net/url`'s path escape, as grpc-go makes an authority of a socket's path.
fn escaped(path: &Path) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z'
        | b'A'..=b'Z'
        | b'0'..=b'9'
        | b'-'
        | b'_'
        | b'.'
        | b'~'
        | b'$'
        | b'&'
        | b'+'
        | b':'
        | b'='
        | b'@' => (byte as char).to_string(),
        _ => format!("%{byte:02X}"),
    };
    path.to_str().unwrap().bytes().map(escape).collect()
}

pub async fn dial(path: PathBuf, authority: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{authority}")).expect("the authority is one");
    let connect = move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    };
    endpoint.connect_with_connector(tower::service_fn(connect)).await
}

impl Kubelet {
    pub fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir.join("plugins_registry")).unwrap();
        Self { dir: dir.to_owned() }
    }

    /// Finds the plugin as the watcher of the registry does, asks who it is, and registers it.
    pub async fn register(&self) -> PluginInfo {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(info) = self.try_register().await {
                return info;
            }
            assert!(Instant::now() < deadline, "no plugin registers");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn try_register(&self) -> Option<PluginInfo> {
        let mut files = std::fs::read_dir(self.dir.join("plugins_registry")).unwrap();
        let path = files.next()?.unwrap().path();
        // No authority is set for this socket, so it is the path.
        let channel = dial(path.clone(), &escaped(&path)).await.ok()?;
        let mut client = RegistrationClient::new(channel);
        // The kubelet's limit; it tries again, so a busy machine is no failure here.
        let asked =
            tokio::time::timeout(Duration::from_secs(1), client.get_info(InfoRequest {})).await.ok()?;
        // A driver that was just killed may reset the connection, and the kubelet tries again.
        let info = asked.ok()?.into_inner();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        client.notify_registration_status(status).await.unwrap();
        Some(info)
    }

    /// The stream of health, by the service of this name.
    pub async fn watch_health(&self, service: &str) -> Streaming<NodeWatchResourcesResponse> {
        let channel = dial(self.dir.join("plugins/partita.dev/dra.sock"), "localhost").await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = format!("/{service}/NodeWatchResources").parse().unwrap();
        let codec = tonic_prost::ProstCodec::default();
        let request = Request::new(NodeWatchResourcesRequest {});
        client.server_streaming(request, path, codec).await.unwrap().into_inner()
    }

    async fn client(&self) -> Option<DraPluginClient<Channel>> {
        let path = self.dir.join("plugins/partita.dev/dra.sock");
        // `unix:` targets have this authority.
        dial(path, "localhost").await.ok().map(DraPluginClient::new)
    }

    /// One call; an error if the driver died in it.
    pub async fn try_prepare(&self, claims: &[Claim]) -> Option<Vec<NodePrepareResourceResponse>> {
        let request = NodePrepareResourcesRequest { claims: claims.to_vec() };
        let answer = self.client().await?.node_prepare_resources(request).await.ok()?.into_inner();
        assert_eq!(answer.claims.len(), claims.len(), "every claim of the request is in the answer");
        Some(claims.iter().map(|claim| answer.claims[&claim.uid].clone()).collect())
    }

    pub async fn prepare(&self, claim: &Claim) -> NodePrepareResourceResponse {
        let mut all = self.try_prepare(std::slice::from_ref(claim)).await.expect("the driver answers");
        all.remove(0)
    }

    pub async fn try_unprepare(&self, claim: &Claim) -> Option<String> {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let mut answer = self.client().await?.node_unprepare_resources(request).await.ok()?.into_inner();
        Some(answer.claims.remove(&claim.uid).expect("the claim is in the answer").error)
    }

    pub async fn unprepare(&self, claim: &Claim) {
        assert_eq!(self.try_unprepare(claim).await.expect("the driver answers"), "");
    }
}
