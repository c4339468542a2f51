//! The resources, as a client sees them, and the document that describes them.

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use common::{Daemon, World, definition};
use partita_testing::{eventually, needs_simulator};
use serde_json::{Value, json};

/// Every operation of the document: its method and its path.
fn operations(document: &Value) -> Vec<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let of = |(path, item): (&String, &Value)| -> Vec<(String, String)> {
        item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())).collect()
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn the_document_is_the_committed_one() {
    let printed = World::new().partitad(["openapi"]).output().unwrap();
    assert!(printed.status.success());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/partitad.openapi.json");
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        String::from_utf8(printed.stdout).unwrap() == committed,
        "the API has changed: look at the difference, then `partitad openapi > docs/partitad.openapi.json`"
    );
}

#[test]
fn every_path_of_the_document_is_there_and_says_what_it_answers() {
    let world = World::new();
    let daemon = world.start();
    let document = daemon.get("/openapi.json");
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let operations = operations(&document);
    assert!(operations.len() > 20, "{operations:?}");
    for (method, path) in operations {
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert!(operation["operationId"].is_string() && operation["summary"].is_string(), "{method} {path}");
        let problem = &operation["responses"]["default"]["content"]["application/problem+json"];
        assert_eq!(problem["schema"]["$ref"], "#/components/schemas/Problem", "{method} {path}");
        // With names that nothing has, each is a route that refuses, and no route that is missing.
        let concrete = path.replace("{gpu}", "99").replace(['{', '}'], "");
        if path.ends_with("/optimizer/events") || ["/metrics", "/v1/live"].contains(&&*path) {
            // Streams and pages that are no JSON have tests of their own.
            continue;
        }
        let answer = daemon.ask(&method, &concrete, Some(json!({})));
        let declared = operation["responses"].as_object().unwrap();
        if answer.status < 300 {
            assert!(declared.contains_key(&answer.status.to_string()), "{method} {path}: {}", answer.status);
        } else if path != "/healthz" {
            assert_ne!(answer.body["type"], "urn:partita:problem:no-route", "{method} {path}");
            assert!(answer.status < 500, "{method} {path}: {answer:?}");
        }
    }
}

#[test]
fn references_of_the_document_lead_somewhere() {
    let daemon_less = World::new().partitad(["openapi"]).output().unwrap().stdout;
    let document: Value = serde_json::from_slice(&daemon_less).unwrap();
    let mut references = Vec::new();
    let mut left = vec![&document];
    while let Some(value) = left.pop() {
        match value {
            Value::Object(members) => {
                references.extend(members.get("$ref").and_then(Value::as_str));
                left.extend(members.values());
            }
            Value::Array(items) => left.extend(items),
            _ => {}
        }
    }
    assert!(references.len() > 20);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn the_reference_page_needs_nothing_from_elsewhere() {
    let world = World::new();
    let daemon = world.start();
    let (status, head, page) = daemon.send("GET /docs/ HTTP/1.1", b"");
    assert_eq!(status, 200);
    assert!(head.contains("text/html"), "{head}");
    assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
    assert_eq!(daemon.send("GET /docs HTTP/1.1", b"").2, page);
    // Every operation of the document, and every form, is on the page.
    let document = daemon.get("/openapi.json");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let title = format!("<code>{} {path}</code>", method.to_uppercase());
            assert_eq!(page.matches(&title).count(), 1, "{title}");
        }
    }
    for form in document["components"]["schemas"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("<h3 id={form}>")), "{form}");
    }
    assert_eq!(daemon.send("GET /docs/nothing HTTP/1.1", b"").0, 404);
}

#[test]
fn gpus_are_those_that_are_served() {
    if needs_simulator("the GPU's name is known") {
        return;
    }
    let world = World::new();
    let daemon = world.start();
    let gpus = daemon.get("/v1/gpus");
    assert_eq!(gpus.as_array().unwrap().len(), 1);
    assert_eq!((&gpus[0]["selector"], &gpus[0]["simulated"]), (&json!("sim:h200"), &json!(true)));
    let uuid = gpus[0]["uuid"].as_str().unwrap();
    for name in ["0", "sim:h200", uuid, &uuid[..8]] {
        assert_eq!(daemon.get(&format!("/v1/gpus/{name}"))["uuid"], uuid, "{name}");
    }
    let problem = daemon.refused(404, "GET", "/v1/gpus/7", None);
    assert!(problem["detail"].as_str().unwrap().contains("sim:h200"), "{problem}");
    let chart = daemon.get("/v1/gpus/0/topology");
    assert_eq!((&chart["tpcs"], &chart["sms"]), (&json!(66), &json!(132)));
    let health = daemon.get("/healthz");
    assert_eq!(health["healthy"], true, "{health}");
}

#[test]
fn a_gpu_that_mig_divides_has_no_topology() {
    if needs_simulator("MIG is turned on") {
        return;
    }
    let world = World::new();
    let mut command = world.partitad::<&str>([]);
    command.env("PARTITA_SIM_MIG", "3g.71gb,1g.18gb");
    let daemon = Daemon::start(&mut command, &world.socket(), &world.dir().join("log"));
    let problem = daemon.refused(409, "GET", "/v1/gpus/0/topology", None);
    assert!(problem["detail"].as_str().unwrap().contains("cut up by MIG"), "{problem}");
}

/// A tenant that does nothing.
struct Tenant(Child);

impl Tenant {
    fn start(world: &World, options: &str) -> Self {
        let mut command = world.partita(["run"].into_iter().chain(options.split_whitespace()));
        command.args(["--", "sh", "-c", "echo ready; exec sleep 1000"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tenants_are_listed_changed_and_ended_as_by_the_commands() {
    if needs_simulator("a partition of a known GPU") {
        return;
    }
    let world = World::new();
    let daemon = world.start();
    assert_eq!(daemon.get("/v1/tenants"), json!([]));
    let _tenant = Tenant::start(&world, "--name train --sm 25% --mem 1GiB");
    // The program runs before `partita run` has noted that it started it.
    eventually("the tenant is noted as started", || daemon.get("/v1/tenants/train")["started"] == true);
    let mut tenant = daemon.get("/v1/tenants/train");
    tenant["age_s"] = json!(null);
    let mut all = daemon.get("/v1/tenants");
    all[0]["age_s"] = json!(null);
    assert_eq!(tenant["parts"][0]["sms"], 32);
    assert_eq!(tenant["parts"][0]["memory_quota_bytes"], 1 << 30);
    assert_eq!(all, json!([tenant]), "one tenant, the same but for its age, which grows");
    let partitions = daemon.get("/v1/partitions");
    assert_eq!((&partitions[0]["tenant"], &partitions[0]["sms_of_device"]), (&json!("train"), &json!(132)));

    let path = "/v1/tenants/train";
    let now = daemon.ok("PATCH", path, Some(json!({ "sm": "50%", "memory_quota_bytes": 2_u64 << 30 })));
    assert_eq!((&now[0]["sms"], &now[0]["memory_quota_bytes"]), (&json!(66), &json!(2_u64 << 30)));
    assert_eq!(daemon.get(path)["parts"][0]["sms"], 66);
    // As the command takes it.
    let now = daemon.ok("PATCH", path, Some(json!({ "mem": "3GiB", "mem-driver": "512MiB" })));
    assert_eq!(now[0]["memory_quota_bytes"], 3_u64 << 30);
    assert_eq!(daemon.get(path)["parts"][0]["memory_driver_allowance_bytes"], 512 << 20);

    let before = daemon.get(path);
    for (status, change) in [
        (422, json!({})),
        (422, json!({ "sm": "200%" })),
        (422, json!({ "sms": "50%" })),
        (422, json!({ "sm": 50 })),
        (422, json!({ "memory_quota_bytes": 0 })),
        (422, json!({ "memory_quota_bytes": 1_u64 << 50 })),
        (422, json!({ "memory_quota_bytes": -1 })),
        (422, json!({ "memory_quota_bytes": "1GiB" })),
        (422, json!({ "mem": 1_u64 << 30 })),
        (422, json!({ "mem": "0B" })),
        (422, json!({ "mem": "1GB" })),
        (422, json!({ "mem": "1GiB", "memory_quota_bytes": 1_u64 << 30 })),
        (422, json!({ "priority": "high" })),
        (422, json!({ "priority": "urgent" })),
        (422, json!({ "time": "30" })),
        (404, json!({ "gpu": "7", "sm": "50%" })),
        (422, json!([])),
    ] {
        daemon.refused(status, "PATCH", path, Some(change));
    }
    // Messages have the names that were sent.
    for (sent, name, begin) in [
        (json!({ "mem": "1GB" }), "mem", "mem: "),
        (json!({ "memory_quota_bytes": 0 }), "memory_quota_bytes", "memory_quota_bytes: "),
        (json!({ "memory_quota_bytes": 1_u64 << 50 }), "memory_quota_bytes", "memory_quota_bytes 1PiB: "),
        (json!({ "mem": "1PiB" }), "mem", "mem 1PiB: "),
        (json!({ "time": "30%" }), "time", "time 30% is refused: "),
        (json!({ "priority": "low" }), "priority", "priority low is refused: "),
        (json!({ "gpu": "zero", "sm": "50%" }), "gpu", "GPU \"zero\" is not understood"),
        (json!({ "gpu": "all,0", "sm": "50%" }), "gpu", "gpu all,0 is refused: "),
        (json!({ "sm": 50 }), "sm", "the body: invalid type: integer `50`"),
        (json!({ "sm": "50%", "compact": "yes" }), "compact", "the body: invalid type: string"),
        (json!({ "sms": "50%" }), "sms", "the body: unknown field `sms`"),
        (json!({ "on_misfit": "urgent" }), "on_misfit", "the body: unknown variant `urgent`"),
    ] {
        let problem = daemon.refused(422, "PATCH", path, Some(sent));
        assert_eq!(problem["field"], format!("/{name}"), "{problem}");
        assert!(problem["detail"].as_str().unwrap().starts_with(begin), "{problem}");
    }
    daemon.refused(404, "PATCH", "/v1/tenants/nobody", Some(json!({ "sm": "50%" })));
    daemon.refused(400, "DELETE", "/v1/tenants/train?grace_s=100", None);
    daemon.refused(400, "DELETE", "/v1/tenants/train?force=1", None);
    let after = daemon.get(path);
    assert_eq!(before["parts"], after["parts"], "what is refused changes nothing");

    let page = daemon.send("GET /metrics HTTP/1.1", b"").2;
    assert!(page.ends_with("# EOF\n"), "{page}");
    let is = |line: &&str| line.starts_with("partita_tenant_sms{tenant=\"train\"") && line.ends_with(" 66.0");
    assert_eq!(page.lines().filter(is).count(), 1, "{page}");
    let gpu = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(&format!("partita_gpu_{name}{{")));
        let line = line.unwrap_or_else(|| panic!("no partita_gpu_{name} in {page}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert_eq!((gpu("sms"), gpu("free_sms")), (132.0, 66.0));
    assert!(gpu("memory_bytes") > 1e11 && gpu("memory_used_bytes") < gpu("memory_bytes"));
    assert!((0.0..=1.0).contains(&gpu("utilization_ratio")));
    assert!(page.contains(
        "partitad_requests_total{method=\"PATCH\",route=\"/v1/tenants/{tenant}\",status=\"200\"} 2"
    ));

    let ended = daemon.ok("DELETE", "/v1/tenants/train?grace_s=1", None);
    assert!(ended["processes"].as_u64().unwrap() >= 1, "{ended}");
    daemon.refused(404, "GET", path, None);
    daemon.refused(404, "DELETE", path, None);
}

#[test]
fn targets_are_shown_and_changed() {
    if needs_simulator("a partition of a known GPU") {
        return;
    }
    let world = World::new();
    let daemon = world.start();
    let _tenant = Tenant::start(&world, "--name serve --sm 25% --slo p99=2.5ms");
    let (path, part) = ("/v1/tenants/serve", || daemon.get("/v1/tenants/serve")["parts"][0].clone());
    assert_eq!(part()["slo"], "p99=2.5ms");
    eventually("the controller has looked", || part()["target"]["bound_us"] == 2_500.0);
    // It has not worked yet.
    assert_eq!((&part()["target"]["holds"], &part()["target"]["unmet"]), (&json!(null), &json!(false)));
    for slo in ["p99=0", "p99=2", "p98=2ms", "fast", ""] {
        daemon.refused(422, "PATCH", path, Some(json!({ "slo": slo })));
    }
    daemon.refused(422, "PATCH", path, Some(json!({ "goal": "latency" })));
    assert_eq!(part()["slo"], "p99=2.5ms");
    daemon.ok("PATCH", path, Some(json!({ "slo": "step-p99=40ms" })));
    eventually("the controller has seen it", || part()["target"]["bound_us"] == 40_000.0);
    daemon.ok("PATCH", path, Some(json!({ "goal": "throughput" })));
    assert_eq!(
        (&part()["slo"], &part()["target"], &part()["goal"]),
        (&json!(null), &json!(null), &json!("throughput"))
    );
    daemon.ok("PATCH", path, Some(json!({ "goal": "none" })));
    assert_eq!((&part()["goal"], &part()["sms"]), (&json!(null), &json!(32)));
    daemon.ok("DELETE", "/v1/tenants/serve?grace_s=1", None);
}

fn with_header(
    daemon: &Daemon,
    method: &str,
    path: &str,
    header: &str,
    body: &Value,
) -> (u16, String, Value) {
    let body = body.to_string();
    let head = format!(
        "{method} {path} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{header}",
        body.len()
    );
    let (status, head, body) = daemon.send(&head, body.as_bytes());
    (status, head, serde_json::from_str(&body).unwrap_or(Value::Null))
}

#[test]
fn definitions_are_kept_changed_and_deleted() {
    let world = World::new();
    let daemon = world.start();
    assert_eq!(daemon.get("/v1/chains"), json!([]));
    let (status, head, defined) = with_header(&daemon, "POST", "/v1/chains", "x: y", &definition("c"));
    assert_eq!(status, 201, "{defined}");
    assert!(head.contains("location: /v1/chains/c") && head.contains("etag: \"1\""), "{head}");
    assert_eq!((&defined["definition"]["policy"], &defined["revision"]), (&json!("wait"), &json!(1)));
    daemon.refused(409, "POST", "/v1/chains", Some(definition("c")));

    let mut changed = definition("c");
    changed["period_ms"] = json!(50);
    let put = |header: &str, body: &Value| with_header(&daemon, "PUT", "/v1/chains/c", header, body).0;
    assert_eq!(put("if-match: \"2\"", &changed), 412);
    assert_eq!(put("if-match: \"1\"", &changed), 200);
    assert_eq!(put("if-match: \"1\"", &changed), 412);
    assert_eq!(put("if-match: *", &changed), 200);
    assert_eq!(put("x: y", &definition("d")), 422, "a chain keeps its name");
    let now = daemon.get("/v1/chains/c");
    assert_eq!(
        (&now["defined"]["revision"], &now["defined"]["definition"]["period_ms"]),
        (&json!(3), &json!(50))
    );
    assert_eq!(now["running"], Value::Null);
    assert_eq!(daemon.get("/v1/chains"), json!([now]));
    daemon.refused(404, "PUT", "/v1/chains/d", Some(definition("d")));

    for path in ["optimizer", "sm-configuration", "components/first/sm-suggestion"] {
        let problem = daemon.refused(409, "GET", &format!("/v1/chains/c/{path}"), None);
        assert!(problem["detail"].as_str().unwrap().contains("does not run"), "{problem}");
    }
    assert_eq!(daemon.get("/v1/chains/c/optimizer/history"), json!([]));
    assert_eq!(with_header(&daemon, "DELETE", "/v1/chains/c", "if-match: \"1\"", &json!({})).0, 412);
    assert_eq!(daemon.ask("DELETE", "/v1/chains/c", None).status, 204);
    daemon.refused(404, "DELETE", "/v1/chains/c", None);
    daemon.refused(404, "GET", "/v1/chains/c/optimizer/history", None);
}

#[test]
fn a_request_with_a_key_is_done_once() {
    let world = World::new();
    let mut daemon = world.start();
    let post = |daemon: &Daemon, key: &str, body: &Value| {
        let (status, head, body) =
            with_header(daemon, "POST", "/v1/chains", &format!("idempotency-key: {key}"), body);
        let location = head.lines().find(|line| line.starts_with("location")).map(str::to_owned);
        (status, location, body)
    };
    let first = post(&daemon, "k1", &definition("c"));
    assert_eq!(first.0, 201);
    assert_eq!(post(&daemon, "k1", &definition("c")), first);
    assert_eq!(post(&daemon, "k1", &definition("d")).0, 422);
    assert_eq!(post(&daemon, "k2", &definition("c")).0, 409);
    // What failed is not kept: the key is still free.
    assert_eq!(post(&daemon, "k2", &definition("d")).0, 201);
    assert_eq!(post(&daemon, &"k".repeat(256), &definition("e")).0, 400);
    daemon.kill();
    let daemon = world.start();
    assert_eq!(post(&daemon, "k1", &definition("c")), first, "also after a crash");
    assert_eq!(daemon.get("/v1/chains").as_array().unwrap().len(), 2);
}

#[test]
fn definitions_that_cannot_be_are_refused() {
    let world = World::new();
    let daemon = world.start();
    for (member, value) in [
        ("name", json!("../etc/passwd")),
        ("name", json!("")),
        ("name", json!("x".repeat(64))),
        ("name", json!("a\u{202e}b")),
        ("name", json!(7)),
        ("gpu", json!("sim:none")),
        ("sm", json!("0%")),
        ("mem", json!("1KiB")),
        ("frame", json!("0")),
        ("frame", json!(-4)),
        ("frames", json!(1_u64 << 40)),
        ("capacity", json!(0)),
        ("policy", json!("lose")),
        ("period_ms", json!(1)),
        ("algorithm", json!("magic")),
        ("component", json!([])),
        ("component", json!([{ "name": "a", "command": ["a"] }])),
        ("component", json!([{ "name": "a", "command": [] }, { "name": "b", "command": ["b"] }])),
        ("component", json!([{ "name": "a", "command": ["a\u{0}"] }, { "name": "b", "command": ["b"] }])),
        ("component", json!([{ "name": "a", "command": ["a"] }, { "name": "a", "command": ["b"] }])),
        ("extra", json!(1)),
    ] {
        let mut body = definition("c");
        body[member] = value.clone();
        let problem = daemon.refused(422, "POST", "/v1/chains", Some(body));
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.len() < 800, "{problem}");
        if detail.starts_with("the body: ") {
            assert_eq!(problem["field"], format!("/{member}"), "{problem}");
        }
    }
    for field in ["/gpu", "/component/1/gpu"] {
        let mut body = definition("c");
        match field {
            "/gpu" => body["gpu"] = json!("zero"),
            _ => body["component"][1]["gpu"] = json!("zero"),
        }
        assert_eq!(daemon.refused(422, "POST", "/v1/chains", Some(body))["field"], field);
    }
    assert_eq!(daemon.get("/v1/chains"), json!([]));
}

#[test]
fn leases_and_keepers_are_listed() {
    let world = World::new();
    let daemon = world.start();
    assert_eq!(daemon.get("/v1/keepers"), json!([]));
    assert_eq!(daemon.get("/v1/leases"), json!([]));
}
