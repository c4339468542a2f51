//! The Helm chart: what it renders to, that Kubernetes knows every field of it, that its role is
//! what the driver asks for and no more, and what its admission policy lets through.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::api::resource::v1::DeviceClass;
use partita_kubelet::args::{Args, Command as Subcommand};
use partita_kubelet::shares::{MemoryUnit, Offer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::Right;
use crate::helm::render;
use crate::world::World;

pub const NAMESPACE: &str = "gpus";

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../chart")
}

fn parsed(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

/// What `helm install --set` makes of values: objects are merged, the rest is replaced.
fn merge(values: &mut Value, changes: &Value) {
    match (values, changes) {
        (Value::Object(values), Value::Object(changes)) => {
            for (key, change) in changes {
                let value = values.get_mut(key).unwrap_or_else(|| panic!("there is no value {key}"));
                match value.as_object().is_some_and(|object| !object.is_empty()) {
                    true => merge(value, change),
                    false => *value = change.clone(),
                }
            }
        }
        (value, change) => *value = change.clone(),
    }
}

pub fn rendered(changes: &Value) -> String {
    let mut values = parsed(&std::fs::read_to_string(dir().join("values.yaml")).unwrap());
    merge(&mut values, changes);
    let context = json!({"Values": values, "Release": {"Namespace": NAMESPACE}});
    let files = std::fs::read_dir(dir().join("templates")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut all = String::new();
    for file in files {
        let text = render(&std::fs::read_to_string(&file).unwrap(), &context);
        if !text.trim().is_empty() {
            all += &format!("---\n{}\n", text.trim_matches('\n'));
        }
    }
    all
}

pub fn objects(yaml: &str) -> Vec<Value> {
    yaml.split("---\n").filter(|text| !text.trim().is_empty()).map(parsed).collect()
}

fn of_kind(kind: &str, changes: &Value) -> Vec<Value> {
    objects(&rendered(changes)).into_iter().filter(|object| object["kind"] == kind).collect()
}

/// Values with everything on that is off by default, and off what is on.
fn other_values() -> Value {
    json!({
        "image": {"repository": "registry.example/partita-kubelet", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "registry"}],
        "runtimeClassName": "",
        "mps": {"enabled": false},
        "metrics": {"podMonitor": true},
        "deviceClasses": {"extendedResourceName": "nvidia.com/gpu"},
        "tolerations": [],
        "podAnnotations": {"team": "gpus"},
        "webhook": {"enabled": true, "failurePolicy": "Fail", "defaultCores": 25, "certManager": true},
    })
}

/// Values for clusters without dynamic resource allocation.
fn plugin_values() -> Value {
    json!({
        "devicePlugin": {"enabled": true, "offer": ["--hami", "--split=4"]},
        "rbac": {"create": false}, "deviceClasses": {"create": false}, "admissionPolicy": {"create": false},
    })
}

/// The rights that the driver's role gives.
pub fn rights() -> BTreeSet<Right> {
    rights_of("partita-kubelet", &json!({}))
}

/// The rights that a role gives.
pub fn rights_of(name: &str, values: &Value) -> BTreeSet<Right> {
    const VERBS: [&str; 9] = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        // Of `resourceclaims/driver`, which no request names: the API server asks for it.
        "associated-node:patch",
    ];
    let roles = of_kind("ClusterRole", values);
    let role = roles.iter().find(|role| role["metadata"]["name"] == name).expect("the chart has the role");
    let role: ClusterRole = serde_json::from_value(role.clone()).unwrap();
    let mut all = BTreeSet::new();
    for rule in role.rules.unwrap() {
        assert!(rule.non_resource_urls.is_none(), "{rule:?}");
        let names = rule.resource_names.as_ref().map(|names| names.join(","));
        for group in rule.api_groups.unwrap() {
            for resource in rule.resources.iter().flatten() {
                let resource = names.as_ref().map_or(resource.clone(), |names| format!("{resource}:{names}"));
                for verb in &rule.verbs {
                    let verb = VERBS.iter().find(|known| *known == verb);
                    let verb = *verb.unwrap_or_else(|| panic!("{:?} has a word that is no verb", rule.verbs));
                    all.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    all
}

/// `PARTITA_TEST_BLESS=1` writes what the chart renders to now.
#[test]
fn the_chart_renders_as_written_down() {
    for (name, values) in [("default", json!({})), ("other", other_values()), ("plugin", plugin_values())] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/chart-{name}.yaml"));
        let now = rendered(&values);
        if std::env::var_os("PARTITA_TEST_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(&path, &now).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(golden == now, "{} is not what the chart renders to:\n{now}", path.display());
    }
}

/// Helm's own rendering has the same objects.
#[test]
fn helm_renders_the_same() {
    if Command::new("helm").arg("version").output().is_err() {
        eprintln!("skipped: helm is not on PATH");
        return;
    }
    for values in [json!({}), other_values(), plugin_values()] {
        let file = tempfile::NamedTempFile::new().unwrap();
        serde_json::to_writer(&file, &values).unwrap();
        let mut helm = Command::new("helm");
        helm.args(["template", "partita", "--namespace", NAMESPACE, "--kube-version", "1.36.2", "--values"]);
        let out = helm.arg(file.path()).arg(dir()).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        let sorted = |yaml: &str| {
            let mut all: Vec<String> = objects(yaml).iter().map(Value::to_string).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&String::from_utf8(out.stdout).unwrap()), sorted(&rendered(&values)));
    }
}

/// A field that the type does not know is lost on the way through it.
fn known<T: DeserializeOwned + Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    assert_eq!(serde_json::to_value(typed).unwrap(), *object);
}

#[test]
fn kubernetes_knows_every_field() {
    let mut kinds = BTreeSet::new();
    for values in [json!({}), other_values(), plugin_values()] {
        for object in objects(&rendered(&values)) {
            let kind = object["kind"].as_str().unwrap();
            kinds.insert(kind.to_owned());
            match kind {
                "DaemonSet" => known::<DaemonSet>(&object),
                "Deployment" => known::<Deployment>(&object),
                "Service" => known::<Service>(&object),
                "MutatingWebhookConfiguration" => known::<MutatingWebhookConfiguration>(&object),
                "DeviceClass" => known::<DeviceClass>(&object),
                "ServiceAccount" => known::<ServiceAccount>(&object),
                "ClusterRole" => known::<ClusterRole>(&object),
                "ClusterRoleBinding" => known::<ClusterRoleBinding>(&object),
                "ValidatingAdmissionPolicy" => known::<ValidatingAdmissionPolicy>(&object),
                "ValidatingAdmissionPolicyBinding" => known::<ValidatingAdmissionPolicyBinding>(&object),
                // Of operators, whose types are not here.
                "Issuer" | "Certificate" => assert_eq!(object["apiVersion"], "cert-manager.io/v1"),
                "PodMonitor" => assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1"),
                other => panic!("{other} is not checked"),
            }
        }
    }
    assert_eq!(kinds.len(), 13, "{kinds:?}");
    let mut off = json!({});
    for part in ["serviceAccount", "deviceClasses", "admissionPolicy"] {
        off[part] = json!({"create": false});
    }
    off["mps"] = json!({"enabled": false});
    let left: Vec<Value> = objects(&rendered(&off)).iter().map(|object| object["kind"].clone()).collect();
    assert_eq!(left, ["DaemonSet", "ClusterRole", "ClusterRoleBinding"]);
    let plugin = objects(&rendered(&plugin_values()));
    assert!(
        plugin
            .iter()
            .all(|object| ["DaemonSet", "ServiceAccount"].contains(&object["kind"].as_str().unwrap()))
    );
}

fn driver(changes: &Value) -> Value {
    let all = of_kind("DaemonSet", changes);
    all.into_iter().find(|set| set["metadata"]["name"] == "partita-kubelet").unwrap()
}

/// What a script of the chart asks `partita` for, on a node where GPUs 0 and 3 can have a service
/// and GPU 1 has MIG, and what it says.
fn asked_of_partita(script: &str, are_running: bool) -> (Vec<String>, String) {
    let dir = tempfile::tempdir().unwrap();
    // The fields in the order of `partita devices --json`.
    let gpu = |(selector, mig): (&str, &str)| {
        format!(
            "  {{\n    \"selector\": \"{selector}\",\n    \"uuid\": \"GPU-a\",\n    \"mig_enabled\": {mig},\n\
             \x20 }}"
        )
    };
    let devices = [("0", "false"), ("1", "true"), ("3", "null"), ("sim:h200", "false")].map(gpu).join(",\n");
    let runs = if are_running { "runs (daemon 7)" } else { "does not run" };
    let partita = format!(
        "case \"$1\" in devices) cat <<'END'\n{devices}\nEND\n;;\n\
         *) echo \"$*\" >>\"$0.log\"; echo '{runs}';; esac"
    );
    // A pause takes no time, and the longest is where a service of its own ends.
    let sleep = "[ \"$1\" != 10 ] || kill -TERM $PPID".to_owned();
    for (name, script) in [("partita", partita), ("sleep", sleep)] {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let out = Command::new("/bin/sh").args(["-ec", script]).env("PATH", path).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let log = std::fs::read_to_string(dir.path().join("partita.log")).unwrap();
    (log.lines().map(str::to_owned).collect(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn the_mps_services_are_those_of_the_gpus_that_are_offered() {
    for (gpu, wanted) in [("all", ["0", "3"]), ("GPU-b,2", ["GPU-b", "2"])] {
        let sets = of_kind("DaemonSet", &json!({"gpu": gpu}));
        let script = |set: &str, list: &str, container: &str| {
            let set = sets.iter().find(|one| one["metadata"]["name"] == set).unwrap();
            let all = set["spec"]["template"]["spec"][list].as_array().unwrap();
            let it = all.iter().find(|one| one["name"] == container).unwrap();
            it["args"][0].as_str().unwrap().to_owned()
        };
        let words = |verb: &str| wanted.map(|gpu| format!("mps {verb} --gpu {gpu}"));
        let (asked, _) = asked_of_partita(&script("partita-mps", "containers", "mps"), true);
        assert_eq!(asked, words("start"));
        let waits = script("partita-kubelet", "initContainers", "mps");
        assert_eq!(asked_of_partita(&waits, true), (words("status").to_vec(), String::new()));
        // The driver starts at last, and says what it does without.
        let (asked, said) = asked_of_partita(&waits, false);
        assert_eq!((&asked[..2], asked.len()), (&words("status")[..], 120));
        assert!(said.contains(&format!("no MPS service runs on GPU {} {};", wanted[0], wanted[1])), "{said}");
    }
}

#[test]
fn the_driver_takes_the_arguments_and_finds_its_directories() {
    for values in [json!({}), other_values(), plugin_values()] {
        let pod = &driver(&values)["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let words = container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        // Its environment names the node.
        let words: Vec<&str> = ["partita-kubelet"].into_iter().chain(words).collect();
        let is_plugin = words[1] == "device-plugin";
        let words = words.into_iter().chain((!is_plugin).then_some("--node-name=node-a"));
        let args = Args::try_parse_from(words).unwrap();
        let (node, sockets) = match args.command {
            None => {
                let dir = &args.node.kubelet_dir;
                let sockets = [
                    partita_kubelet::plugin::dra_socket(dir),
                    partita_kubelet::plugin::registration_socket(dir),
                ];
                (args.node, sockets.to_vec())
            }
            Some(Subcommand::DevicePlugin(plugin)) => {
                let dir = &plugin.device_plugins_dir;
                let sockets = vec![
                    partita_kubelet::device_plugin::kubelet_socket(dir),
                    partita_kubelet::metrics::pod_resources_socket(&plugin.node.kubelet_dir),
                ];
                assert_eq!(plugin.offer(), Offer::Hami { split: 4, memory: MemoryUnit::Mib(1) });
                (plugin.node, sockets)
            }
            other => panic!("{other:?}"),
        };
        let mounted: Vec<&str> = container["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| mount["mountPath"].as_str().unwrap())
            .collect();
        let of_env = |name: &str| {
            let all = container["env"].as_array().unwrap();
            PathBuf::from(all.iter().find(|one| one["name"] == name).unwrap()["value"].as_str().unwrap())
        };
        let dirs = [
            node.state_dir,
            node.cdi_dir,
            of_env("PARTITA_RUN_DIR"),
            of_env("PARTITA_CACHE_DIR"),
            of_env("PARTITA_LIB_DIR"),
        ];
        for path in sockets.into_iter().chain(dirs) {
            assert!(
                mounted.iter().any(|mount| path.starts_with(mount)),
                "{} is not on the node",
                path.display()
            );
        }
        // A container's path is the node's: CDI files name paths of the node.
        for volume in pod["volumes"].as_array().unwrap() {
            let path = volume["hostPath"]["path"].as_str().unwrap();
            assert!(mounted.contains(&path), "{path}");
        }
    }
}

#[test]
fn the_webhook_takes_the_arguments_and_its_service_finds_it() {
    for changes in [json!({"webhook": {"enabled": true, "caBundle": "Q0E="}}), other_values()] {
        let [deployment] = &of_kind("Deployment", &changes)[..] else { panic!("one deployment") };
        let pod = &deployment["spec"]["template"];
        let container = &pod["spec"]["containers"][0];
        let words = container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        let args = Args::try_parse_from(["partita-kubelet"].into_iter().chain(words)).unwrap();
        let Some(Subcommand::Webhook(args)) = args.command else { panic!("{args:?}") };
        assert_eq!(args.default_cores, changes["webhook"]["defaultCores"].as_u64().map(|value| value as u32));
        let mount = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
        assert!(args.cert.starts_with(mount) && args.key.starts_with(mount));
        assert_eq!(container["ports"][0]["containerPort"], args.listen.port());
        let [service] = &of_kind("Service", &changes)[..] else { panic!("one service") };
        assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"]);
        assert_eq!(service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]);
        let [configuration] = &of_kind("MutatingWebhookConfiguration", &changes)[..] else { panic!("one") };
        let client = &configuration["webhooks"][0]["clientConfig"];
        assert_eq!(client["service"]["name"], service["metadata"]["name"]);
        assert_eq!(client["service"]["port"], service["spec"]["ports"][0]["port"]);
        assert_eq!(client["service"]["path"], "/mutate");
        // Somebody gives the CA.
        let injected = &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        assert!(client["caBundle"].is_string() != injected.is_string(), "{configuration}");
        for certificate in of_kind("Certificate", &changes) {
            let (of, meta) = (&certificate["spec"], &certificate["metadata"]);
            assert_eq!(*injected, format!("{NAMESPACE}/{}", meta["name"].as_str().unwrap()));
            let host = format!("{}.{NAMESPACE}.svc", service["metadata"]["name"].as_str().unwrap());
            assert_eq!(of["dnsNames"], json!([host]));
            assert_eq!(of["secretName"], pod["spec"]["volumes"][0]["secret"]["secretName"]);
        }
    }
    let [default] = &of_kind("MutatingWebhookConfiguration", &json!({"webhook": {"enabled": true}}))[..]
    else {
        panic!("one configuration")
    };
    assert_eq!(default["webhooks"][0]["failurePolicy"], "Ignore");
}

/// A pod is sent exactly if it names what is translated.
#[test]
fn only_pods_that_ask_are_sent_to_the_webhook() {
    let [configuration] =
        &of_kind("MutatingWebhookConfiguration", &json!({"webhook": {"enabled": true}}))[..]
    else {
        panic!("one configuration")
    };
    let expression = configuration["webhooks"][0]["matchConditions"][0]["expression"].as_str().unwrap();
    let program = cel::Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let is_sent = |pod: Value| {
        let mut context = cel::Context::default();
        context.add_variable("object", pod).unwrap();
        program.execute(&context).unwrap() == cel::Value::Bool(true)
    };
    let with = |resources: Value| json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": resources}]}});
    for name in partita_kubelet::translate::RESOURCES {
        assert!(is_sent(with(json!({"limits": {"cpu": "1", name: "1"}}))), "{name}");
        assert!(is_sent(with(json!({"requests": {name: "1"}}))), "{name}");
        let inits = json!([{"name": "i", "resources": {"limits": {name: "1"}}}]);
        assert!(is_sent(json!({"spec": {"containers": [{"name": "a"}], "initContainers": inits}})), "{name}");
    }
    for resources in [json!({}), json!({"limits": {"cpu": "1", "nvidia.com/mig-1g.18gb": "1"}})] {
        assert!(!is_sent(with(resources)));
    }
}

/// The script of the init container, on other directories, twice as an upgrade does.
#[test]
fn the_parts_are_put_on_the_node() {
    let temp = tempfile::tempdir().unwrap();
    let [usr, state] = ["usr", "state"].map(|name| temp.path().join(name));
    for dir in ["bin", "lib/partita/python"] {
        std::fs::create_dir_all(usr.join(dir)).unwrap();
    }
    let put = |name: &str, content: &str| std::fs::write(usr.join(name), content).unwrap();
    let script = driver(&json!({}))["spec"]["template"]["spec"]["initContainers"][0]["args"][0].clone();
    let script = script.as_str().unwrap().replace("/usr/", &format!("{}/", usr.display()));
    let script = script.replace("/var/lib/partita", state.to_str().unwrap());
    let parts = state.join("parts/0.1.0");
    for round in ["old", "new"] {
        for name in ["bin/partita", "bin/partita-kubelet", "lib/partita/libpartita.so"] {
            put(name, round);
        }
        let held = std::fs::File::open(parts.join("libpartita.so")).ok();
        assert!(Command::new("/bin/sh").args(["-ec", &script]).status().unwrap().success());
        for name in ["partita", "partita-kubelet", "libpartita.so"] {
            assert_eq!(std::fs::read_to_string(parts.join(name)).unwrap(), round);
        }
        // What a running container has mounted stays what it was.
        let kept = held.map(|file| std::io::read_to_string(file).unwrap());
        assert_eq!(kept.as_deref(), (round == "new").then_some("old"));
    }
    assert_eq!(std::fs::read_dir(parts).unwrap().count(), 3);
}

/// Everything that the driver asks the API server for, at least once.
#[tokio::test(flavor = "multi_thread")]
async fn the_role_is_what_the_driver_asks_for() {
    let mut world = World::start(1).await;
    // An edited slice, and one too many: update and delete.
    {
        let mut store = world.store.lock().unwrap();
        let name = store.slices.keys().last().unwrap().clone();
        store.copy_slice(&name);
        store.edit_slice(&name, |slice| slice["spec"]["pool"]["generation"] = 77.into());
    }
    world.eventually("the slices stay edited", || world.is_published() && world.slices() == 2).await;
    let claim = world.share(1, "34", "10Gi");
    assert_eq!(world.kubelet.prepare(&claim).await.error, "");
    world.event("Pod", "pod-1", "TenantPrepared").await;
    world.eventually("no status is written", || !world.status_of("claim-1").is_empty()).await;
    world.store.lock().unwrap().annotate("default/claim-1", "multiprocessors=10");
    world.event("Pod", "pod-1", "TenantResized").await;
    // The same event again is a patch.
    let bad = world.claim(2, "gpu-gone-shared", json!({}), Value::Null);
    let has_patched = |world: &World| {
        world.store.lock().unwrap().asked.iter().any(|one| (one.1.as_str(), one.2) == ("events", "patch"))
    };
    for _ in 0..2 {
        assert!(!world.kubelet.prepare(&bad).await.error.is_empty());
        world.event("Pod", "pod-2", "TenantNotPrepared").await;
    }
    world.eventually("no event is repeated", || has_patched(&world)).await;
    world.kubelet.unprepare(&claim).await;
    world.kill_driver();
    world.start_driver();
    world.registered().await;
    let asked = world.store.lock().unwrap().asked.clone();
    assert_eq!(asked, rights(), "left: what the driver asked for; right: what the role allows");
}

/// Evaluates the policy as the API server does. The first reason why it refuses, if it does.
fn verdict(policy: &Value, request: &Value, object: &Value, old: &Value) -> Result<(), String> {
    let spec = &policy["spec"];
    let mut context = cel::Context::default();
    for (name, value) in [("request", request), ("object", object), ("oldObject", old)] {
        context.add_variable(name, value.clone()).unwrap();
    }
    let evaluate = |context: &cel::Context, one: &Value| {
        let expression = one["expression"].as_str().unwrap();
        let program =
            cel::Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        program.execute(context).unwrap_or_else(|error| panic!("{expression}: {error}"))
    };
    for condition in spec["matchConditions"].as_array().unwrap() {
        if evaluate(&context, condition) != cel::Value::Bool(true) {
            return Ok(());
        }
    }
    let mut variables = std::collections::HashMap::new();
    for variable in spec["variables"].as_array().unwrap() {
        variables.insert(variable["name"].as_str().unwrap().to_owned(), evaluate(&context, variable));
    }
    context.add_variable_from_value("variables", variables);
    for validation in spec["validations"].as_array().unwrap() {
        if evaluate(&context, validation) != cel::Value::Bool(true) {
            return Err(validation["message"].as_str().unwrap().to_owned());
        }
    }
    Ok(())
}

#[test]
fn the_policy_ties_slices_to_the_node() {
    let [policy] = &of_kind("ValidatingAdmissionPolicy", &json!({}))[..] else { panic!("one policy") };
    let slice = |node: &str, driver: &str, pool: &str| json!({"spec": {"nodeName": node, "driver": driver, "pool": {"name": pool}}});
    let own = slice("node-a", "partita.dev", "node-a");
    let other = slice("node-b", "partita.dev", "node-b");
    let foreign = slice("node-a", "gpu.nvidia.com", "node-a");
    let pool = slice("node-a", "partita.dev", "node-b");
    let for_all = json!({"spec": {"allNodes": true, "driver": "partita.dev", "pool": {"name": "node-a"}}});
    let driver = "system:serviceaccount:gpus:partita-kubelet";
    let key = "authentication.kubernetes.io/node-name";
    let of_node = |user: &str| json!({"username": user, "extra": {key: ["node-a"]}});
    let none = Value::Null;
    for (user, operation, object, old, refusal) in [
        (of_node(driver), "CREATE", &own, &none, None),
        (of_node(driver), "UPDATE", &own, &own, None),
        (of_node(driver), "DELETE", &none, &own, None),
        (of_node(driver), "CREATE", &other, &none, Some("its own node")),
        (of_node(driver), "UPDATE", &own, &other, Some("its own slices")),
        (of_node(driver), "UPDATE", &other, &own, Some("its own node")),
        (of_node(driver), "DELETE", &none, &other, Some("its own slices")),
        (of_node(driver), "CREATE", &for_all, &none, Some("its own node")),
        (of_node(driver), "DELETE", &none, &for_all, Some("its own slices")),
        (of_node(driver), "CREATE", &foreign, &none, Some("the driver partita.dev")),
        (of_node(driver), "DELETE", &none, &foreign, Some("its own slices")),
        (of_node(driver), "CREATE", &pool, &none, Some("its node's pool")),
        // A token that is bound to no pod.
        (json!({"username": driver}), "CREATE", &own, &none, Some("names no node")),
        (json!({"username": driver, "extra": {"a": ["b"]}}), "DELETE", &none, &own, Some("names no node")),
        // Kubelets, and other drivers.
        (of_node("system:node:node-b"), "DELETE", &none, &other, None),
        (json!({"username": "system:serviceaccount:x:partita-kubelet"}), "CREATE", &other, &none, None),
    ] {
        let request = json!({"operation": operation, "userInfo": user});
        let found = verdict(policy, &request, object, old);
        match refusal {
            None => assert_eq!(found, Ok(()), "{request}"),
            Some(words) => assert!(
                found.as_ref().is_err_and(|message| message.contains(words)),
                "{request} {object} {old}: {found:?}"
            ),
        }
    }
    let [binding] = &of_kind("ValidatingAdmissionPolicyBinding", &json!({}))[..] else {
        panic!("one binding")
    };
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
}
