//! The real program as a webhook: reviews over TLS, with a certificate of the test's, against the
//! fake API server.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use k8s_openapi::api::resource::v1::ResourceSlice;
use partita_kubelet::device::{Board, slices};
use partita_kubelet::translate::{BoardSize, Rules, sizes, translate};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring::default_provider};

use crate::api::{self, Shared};
use crate::kubelet::PATIENCE;
use crate::world::World;

struct Pair {
    cert: rcgen::Certificate,
    key: String,
}

fn pair() -> Pair {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    Pair { key: made.signing_key.serialize_pem(), cert: made.cert }
}

struct Webhook {
    temp: tempfile::TempDir,
    store: Shared,
    process: Option<Child>,
    roots: Vec<CertificateDer<'static>>,
    address: String,
}

fn board() -> Board {
    Board {
        uuid: "GPU-00110000-2233-4455-6677-8899aabbccdd".to_owned(),
        selector: "0".to_owned(),
        product: "NVIDIA H200".to_owned(),
        pci: None,
        driver: "580.159.04".to_owned(),
        cuda: 13000,
        compute_capability: (9, 0),
        sms_per_tpc: 2,
        tpcs: 66,
        gpcs: None,
        memory_bytes: 150_123_456_789,
        clients: 48,
        is_simulated: true,
        fault: None,
        mig: None,
    }
}

impl Webhook {
    async fn start() -> Self {
        let (store, url) = api::start().await;
        for (which, spec) in slices("node-a", &[board()], 1).iter().enumerate() {
            store.lock().unwrap().put_slice(&format!("s{which}"), spec);
        }
        let temp = tempfile::Builder::new().prefix("pw").tempdir_in("/tmp").unwrap();
        let mut webhook = Self { temp, store, process: None, roots: Vec::new(), address: String::new() };
        let first = pair();
        webhook.put(&first);
        let log = std::fs::File::create(webhook.log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_partita-kubelet"));
        command.args(["webhook", "--listen", "127.0.0.1:0", "--api-server", &url]);
        command.arg("--cert").arg(webhook.file("tls.crt")).arg("--key").arg(webhook.file("tls.key"));
        webhook.process = Some(command.stderr(log).stdout(Stdio::null()).spawn().unwrap());
        let text = webhook.says("serves /mutate").await;
        webhook.address = text.rsplit_once("address=").unwrap().1.trim().to_owned();
        webhook
    }

    fn file(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.file("log")
    }

    /// Puts a pair in place, which the client believes from now on.
    fn put(&mut self, pair: &Pair) {
        std::fs::write(self.file("tls.crt"), pair.cert.pem()).unwrap();
        std::fs::write(self.file("tls.key"), &pair.key).unwrap();
        self.roots.push(pair.cert.der().clone());
    }

    /// Waits for a line of the log.
    async fn says(&self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = std::fs::read_to_string(self.log()).unwrap();
            let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
            if let Some(line) = whole.lines().rfind(|line| line.contains(words)) {
                return line.to_owned();
            }
            assert!(Instant::now() < deadline, "it never says {words:?}:\n{log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// One request over TLS: the status, the body, and the certificate that the server showed.
    async fn http(&self, method: &str, path: &str, body: &str) -> (u16, String, CertificateDer<'static>) {
        let mut roots = RootCertStore::empty();
        for root in &self.roots {
            roots.add(root.clone()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        assert!(read.is_ok() || !answer.is_empty(), "{read:?}");
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned(), shown)
    }

    async fn review(&self, pod: &Value, more: Value) -> (u16, Value) {
        let mut request = json!({
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team", "operation": "CREATE", "object": pod, "oldObject": null, "dryRun": false,
        });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let review =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let (code, body, _) = self.http("POST", "/mutate?timeout=5s", &review.to_string()).await;
        if code != 200 {
            return (code, body.into());
        }
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&answer["apiVersion"], &answer["kind"]), (&review["apiVersion"], &review["kind"]));
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        (code, answer["response"].clone())
    }

    fn templates(&self) -> Vec<Value> {
        let store = self.store.lock().unwrap();
        assert_eq!(store.invalid, Vec::<String>::new(), "the real server would refuse this");
        store.templates.values().cloned().collect()
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.log()).unwrap_or_default());
        }
    }
}

fn pod(limits: Value) -> Value {
    json!({"metadata": {"generateName": "serve-"}, "spec": {"containers": [
        {"name": "serve", "image": "i", "resources": {"limits": limits.clone(), "requests": limits}},
    ]}})
}

fn patched(pod: &Value, response: &Value) -> Value {
    assert_eq!(
        (&response["allowed"], &response["patchType"]),
        (&true.into(), &"JSONPatch".into()),
        "{response}"
    );
    let patch =
        base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_names_of_hami_gets_a_claim() {
    let webhook = Webhook::start().await;
    let asks = pod(
        json!({"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "25"}),
    );
    // The slices may not be read yet, which the API server takes as a failure of the webhook.
    let deadline = Instant::now() + PATIENCE;
    let response = loop {
        match webhook.review(&asks, json!({"dryRun": true})).await {
            (200, response) => break response,
            (code, text) => assert!(code == 503 && Instant::now() < deadline, "{code} {text}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let after = patched(&asks, &response);
    assert_eq!(webhook.templates(), Vec::<Value>::new(), "a dry run makes nothing");
    // Twice, as two pods of a Deployment.
    for _ in 0..2 {
        let (code, response) = webhook.review(&asks, json!({})).await;
        assert_eq!((code, &patched(&asks, &response)), (200, &after));
        let [template] = &webhook.templates()[..] else { panic!("{:?}", webhook.templates()) };
        assert_eq!(template["metadata"]["namespace"], "team");
        assert_eq!(
            after["spec"],
            json!({
                "containers": [{"name": "serve", "image": "i", "resources": {
                    "limits": {"cpu": "1"}, "requests": {"cpu": "1"}, "claims": [{"name": "partita-serve"}]}}],
                "resourceClaims": [{"name": "partita-serve", "resourceClaimTemplateName": template["metadata"]["name"]}],
            })
        );
        let requests = &template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"];
        assert_eq!(*requests, json!({"multiprocessors": "32", "memory": "20000Mi"}));
    }
    // Asked again after another webhook, and what asks for nothing: left alone.
    for pod in [&after, &pod(json!({"cpu": "1"}))] {
        assert_eq!(webhook.review(pod, json!({})).await.1, json!({"uid": response["uid"], "allowed": true}));
    }
    let update = webhook.review(&asks, json!({"operation": "UPDATE"})).await.1;
    assert_eq!(update, json!({"uid": response["uid"], "allowed": true}));
    // Refused, with the reason and the remedy.
    let refused = webhook.review(&pod(json!({"nvidia.com/gpumem": "20000"})), json!({})).await.1;
    assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&false.into(), &422.into()));
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(message.contains("container serve") && message.contains("webhook.defaultCores"), "{message}");
    let warned = webhook
        .review(&pod(json!({"nvidia.com/gpumem": "9", "nvidia.com/gpucores": "100"})), json!({}))
        .await
        .1;
    assert!(warned["warnings"][0].as_str().unwrap().contains("1024 MiB"), "{warned}");
    // All that the role allows was asked for, and no more.
    let asked = webhook.store.lock().unwrap().asked.clone();
    assert_eq!(asked, crate::chart::rights_of("partita-webhook", &json!({"webhook": {"enabled": true}})));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_review_is_an_error_and_health_is_told() {
    let webhook = Webhook::start().await;
    assert_eq!(webhook.http("GET", "/healthz", "").await.0, 200);
    for body in ["", "{", "{}", "[]", "{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\"}"]
    {
        let (code, text, _) = webhook.http("POST", "/mutate", body).await;
        assert_eq!(code, 400, "{body}: {text}");
    }
    let (_, response) = webhook
        .review(&json!({}), json!({"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}))
        .await;
    assert_eq!(response["allowed"], true);
    // Whatever the object is, there is an answer.
    for pod in [json!(null), json!([]), json!({"spec": []}), json!({"spec": {"containers": {"a": 1}}})] {
        assert_eq!(webhook.review(&pod, json!({})).await.1["allowed"], true, "{pod}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_is_no_fault_of_the_pod() {
    let webhook = Webhook::start().await;
    webhook.store.lock().unwrap().is_down = true;
    let (code, text) = webhook.review(&pod(json!({"nvidia.com/gpu": "1"})), json!({})).await;
    assert!(
        code == 500 && text.as_str().unwrap().contains("ResourceClaimTemplate team/partita-"),
        "{code} {text}"
    );
    // Pods without GPUs need it not.
    assert_eq!(webhook.review(&pod(json!({"cpu": "1"})), json!({})).await.1["allowed"], true);
    webhook.store.lock().unwrap().is_down = false;
    assert_eq!(webhook.review(&pod(json!({"nvidia.com/gpu": "1"})), json!({})).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_used_once_it_has_its_key() {
    let mut webhook = Webhook::start().await;
    let first = webhook.roots[0].clone();
    let next = pair();
    // The certificate alone: the old one holds.
    std::fs::write(webhook.file("tls.crt"), next.cert.pem()).unwrap();
    webhook.says("the key is not the certificate's").await;
    assert_eq!(webhook.http("GET", "/healthz", "").await.2, first);
    std::fs::write(webhook.file("tls.key"), "nothing").unwrap();
    webhook.says("the key is not PEM").await;
    assert_eq!(webhook.http("GET", "/healthz", "").await.2, first);
    webhook.put(&next);
    webhook.says("the certificate changed").await;
    assert_eq!(webhook.http("GET", "/healthz", "").await.2, *next.cert.der());
    // A file that is gone changes nothing.
    std::fs::remove_file(webhook.file("tls.crt")).unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(webhook.http("GET", "/healthz", "").await.2, *next.cert.der());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_delay_no_other_and_no_end() {
    let mut webhook = Webhook::start().await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(&webhook.address).await.unwrap());
    }
    assert_eq!(webhook.http("GET", "/healthz", "").await.0, 200);
    let mut process = webhook.process.take().unwrap();
    assert!(Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap().success());
    assert!(process.wait().unwrap().success());
}

/// A file without a certificate, the key of another certificate, an address in use.
#[test]
fn what_cannot_be_served_is_said_at_the_start() {
    let temp = tempfile::tempdir().unwrap();
    let [mine, other] = [pair(), pair()];
    let put = |name: &str, text: &str| std::fs::write(temp.path().join(name), text).unwrap();
    put("cert", &mine.cert.pem());
    put("key", &mine.key);
    put("other", &other.key);
    put("none", "nothing");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let all: BTreeSet<(&str, &str, &str)> = BTreeSet::from([
        ("cert", "other", "not the certificate's"),
        ("none", "key", "has none"),
        ("cert", "none", "not PEM"),
        ("missing", "key", "missing"),
        ("cert", "key", &*address),
    ]);
    for (cert, key, words) in all {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partita-kubelet"));
        command.args(["webhook", "--api-server", "http://127.0.0.1:9", "--listen", &address]);
        command.arg("--cert").arg(temp.path().join(cert)).arg("--key").arg(temp.path().join(key));
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(125) && said.contains(words), "{words}: {said}");
    }
}

/// From a pod to its tenant: the test allocates the claim as a scheduler does, and the driver
/// prepares it.
#[tokio::test(flavor = "multi_thread")]
async fn the_driver_prepares_what_the_webhook_makes() {
    let world = World::start(1).await;
    let slices: Vec<ResourceSlice> = {
        let store = world.store.lock().unwrap();
        store.slices.values().map(|slice| serde_json::from_value(slice.clone()).unwrap()).collect()
    };
    let mut boards = sizes(&slices);
    let own = *boards.first().unwrap();
    // A cluster with another kind of GPU, too, so that the request has alternatives.
    boards.insert(BoardSize { tpcs: own.tpcs - 12, ..own });
    let rules = Rules {
        share_class: "partita-share".to_owned(),
        whole_class: "partita-gpu".to_owned(),
        default_cores: Some(20),
        boards: Some(boards),
    };
    let whole = world.shared().trim_end_matches("-shared").to_owned();
    for (which, (limits, device, sms, mib)) in [
        (json!({"nvidia.com/gpucores": "50", "nvidia.com/gpumem": "20000"}), world.shared(), 66, 20_000),
        (json!({"nvidia.com/gpumem-percentage": "10"}), world.shared(), 26, own.memory_mib / 10),
        (json!({"partita.dev/multiprocessors": "10", "partita.dev/memory": "2Gi"}), world.shared(), 10, 2048),
        (json!({"nvidia.com/gpu": "1"}), whole, 132, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let translation = translate(&pod(limits), &rules).unwrap().unwrap();
        let template = serde_json::to_value(&translation.templates[0]).unwrap();
        let request = &template["spec"]["spec"]["devices"]["requests"][0];
        let (name, chosen) = match request["firstAvailable"].as_array() {
            None => ("gpu".to_owned(), &request["exactly"]),
            Some(all) => {
                let is_it = |kind: &&Value| {
                    let selectors = kind["selectors"].to_string();
                    selectors.contains(&format!("tpcs == {} ", own.tpcs))
                };
                let kind = all.iter().find(is_it).unwrap();
                (format!("gpu/{}", kind["name"].as_str().unwrap()), kind)
            }
        };
        let mut consumed = chosen["capacity"]["requests"].clone();
        if consumed.is_object() {
            consumed["clients"] = "1".into();
        }
        let claim = world.claim_of(which as u32, &name, &device, consumed);
        let answer = world.kubelet.prepare(&claim).await;
        assert_eq!(answer.error, "", "{template}");
        // A container requests `gpu`, whatever alternative was chosen.
        assert_eq!(answer.devices[0].request_names, ["gpu"], "{name}");
        let [row] = &world.tenants()[..] else { panic!("{:?}", world.tenants()) };
        assert_eq!(row["sms"], sms, "{template}");
        if mib > 0 {
            let note = world.event("Pod", &format!("pod-{which}"), "TenantPrepared").await;
            assert!(note.contains(&format!("{sms} multiprocessors and {mib} MiB")), "{note}");
        }
        world.kubelet.unprepare(&claim).await;
    }
    world.assert_nothing();
}
