//! Whatever strangers send: a problem document, and nothing changes.

use crate::common;

use common::{Daemon, World, check_problem, definition, parse};
use serde_json::{Value, json};

/// What could change: the definitions, and whether the daemon still answers at all.
fn state(daemon: &Daemon) -> Value {
    json!([daemon.get("/v1/chains"), daemon.get("/v1/tenants")])
}

/// Sends a request whose answer must be a problem of this class.
fn refused(daemon: &Daemon, head: &str, body: &[u8]) -> u16 {
    let (status, headers, text) = daemon.send(head, body);
    let shown: String = head.chars().take(120).collect();
    assert!((400..500).contains(&status), "{shown}: {status} {text}");
    assert!(headers.contains("content-type: application/problem+json"), "{shown}: {headers}");
    check_problem(
        status,
        &serde_json::from_str(&text).unwrap_or_else(|error| panic!("{shown}: {error} in {text}")),
    );
    status
}

fn post(body: &[u8]) -> String {
    format!("POST /v1/chains HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: {}", body.len())
}

#[test]
fn bodies_of_every_kind_are_refused() {
    let world = World::new();
    let daemon = world.start();
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
    let before = state(&daemon);

    let deep = |open: &str, times: usize| open.repeat(times).into_bytes();
    let long = definition("c").to_string().replace("\"c\"", &format!("\"{}\"", "c".repeat(200_000)));
    let bodies: Vec<(u16, Vec<u8>)> = vec![
        (400, b"".to_vec()),
        (400, b"{".to_vec()),
        (400, b"{\"name\": \"\\ud800\"}".to_vec()),
        (400, b"\xff\xfe\x00".to_vec()),
        (400, b"{\"name\": 1e999}".to_vec()),
        (400, b"NaN".to_vec()),
        (400, b"{} {}".to_vec()),
        // No definition is an array, and no depth of nested arrays makes one.
        (400, deep("[", 100_000)),
        (400, deep("{\"name\":", 30_000)),
        (422, b"null".to_vec()),
        (422, b"\"text\"".to_vec()),
        (422, b"[[[[]]]]".to_vec()),
        (422, b"{\"name\": \"a\", \"name\": \"b\"}".to_vec()),
        // JSON, though no word is there where one should be.
        (422, definition("d").to_string().replacen('{', "{\"memory\": null, ", 1).into_bytes()),
        (422, definition("d").to_string().replacen('{', "{\"algorithm\": 5, ", 1).into_bytes()),
        // The values without their names.
        (422, definition_as_array("d").to_string().into_bytes()),
        (422, long.into_bytes()),
        (413, vec![b' '; 300_000]),
        (413, vec![b'{'; 5_000_000]),
    ];
    for (expected, body) in bodies {
        let status = refused(&daemon, &post(&body), &body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert!(
            status == expected || (expected == 400 && status == 422),
            "{shown}: {status}, not {expected}"
        );
    }
    // A length that is not true, and none at all.
    let huge =
        "POST /v1/chains HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 1000000000000000";
    assert_eq!(refused(&daemon, huge, b"{}"), 413);
    let chunked = "POST /v1/chains HTTP/1.1\r\ncontent-type: application/json\r\ntransfer-encoding: chunked";
    let mut body = Vec::new();
    for _ in 0..10 {
        body.extend_from_slice(b"10000\r\n");
        body.extend_from_slice(&[b'['; 0x10000]);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(refused(&daemon, chunked, &body), 413);
    for kind in [
        "text/plain",
        "application/xml",
        "application/json-patch+json",
        "",
        "application/jsonx; charset=utf-8",
    ] {
        let head = format!("POST /v1/chains HTTP/1.1\r\ncontent-type: {kind}\r\ncontent-length: 2");
        assert_eq!(refused(&daemon, &head, b"{}"), 415, "{kind}");
    }
    assert_eq!(refused(&daemon, "POST /v1/chains HTTP/1.1\r\ncontent-length: 2", b"{}"), 415);
    let whole = definition("d").to_string().into_bytes();
    assert_eq!(refused(&daemon, &format!("{}\r\ncontent-type: text/plain", post(&whole)), &whole), 415);
    assert_eq!(refused(&daemon, &format!("{}\r\ncontent-encoding: gzip", post(&whole)), &whole), 415);
    let latin = definition("d").to_string().replace("\"d\"", "\"d?\"").into_bytes();
    let latin: Vec<u8> = latin.into_iter().map(|byte| if byte == b'?' { 0xe9 } else { byte }).collect();
    assert_eq!(refused(&daemon, &post(&latin), &latin), 400, "it is no UTF-8");
    assert_eq!(state(&daemon), before);
}

fn definition_as_array(name: &str) -> Value {
    let component = definition(name)["component"].clone();
    json!([name, null, null, null, "4KiB", null, 8, "wait", "keeper", "ipc", 100, "steady", 10, component])
}

#[test]
fn a_header_that_is_there_twice_is_a_list_or_refused() {
    let world = World::new();
    let daemon = world.start();
    let body = definition("c").to_string().into_bytes();
    let twice = format!("{}\r\nidempotency-key: a\r\nidempotency-key: b", post(&body));
    assert_eq!(refused(&daemon, &twice, &body), 400);
    assert_eq!(daemon.get("/v1/chains"), json!([]));
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
    let put = post(&body).replacen("POST /v1/chains", "PUT /v1/chains/c", 1);
    assert_eq!(refused(&daemon, &format!("{put}\r\nif-match: \"7\"\r\nif-match: \"8\""), &body), 412);
    let (status, headers, _) = daemon.send(&format!("{put}\r\nif-match: \"7\"\r\nif-match: \"1\""), &body);
    assert!(status == 200 && headers.contains("etag: \"2\""), "{status} {headers}");
    let events = "GET /v1/chains/c/optimizer/events HTTP/1.1\r\nlast-event-id: 1\r\nlast-event-id: 2";
    assert_eq!(refused(&daemon, events, b""), 400);
}

#[test]
fn paths_of_every_kind_are_refused() {
    let world = World::new();
    let daemon = world.start();
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
    let before = state(&daemon);
    let long = "x".repeat(3000);
    let names = [
        "..",
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e",
        "%00",
        "c%00",
        "%ff%fe",
        "c%0d%0aset-cookie:%20x",
        "-rf",
        ".hidden",
        "a b",
        "%F0%9F%92%A9",
        "c'%20OR%20'1'='1",
        "c;DROP%20TABLE%20chain",
        "*",
        "%25",
        "{chain}",
        &long,
    ];
    for path in ["/v1/tenants/-rf", "/v1/chains/-rf", "/v1/chains/c/components/-rf/sm-suggestion"] {
        let problem = daemon.refused(404, "GET", path, None);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("nothing is named \"-rf\""), "{path}: {detail}");
    }
    for name in names {
        // A space ends the target of a request: what is sent must be one.
        let name = name.replace(' ', "+");
        for path in [
            format!("/v1/chains/{name}"),
            format!("/v1/tenants/{name}"),
            format!("/v1/gpus/{name}"),
            format!("/v1/chains/{name}/optimizer"),
            format!("/v1/chains/{name}/optimizer/events"),
            format!("/v1/chains/c/components/{name}/sm-suggestion"),
            format!("/{name}"),
        ] {
            let status = refused(&daemon, &format!("GET {path} HTTP/1.1"), b"");
            assert!([400, 404, 409].contains(&status), "{path}: {status}");
        }
        for method in ["DELETE", "PUT", "PATCH", "POST"] {
            for path in ["chains", "tenants"] {
                let head = format!(
                    "{method} /v1/{path}/{name} HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 2"
                );
                refused(&daemon, &head, b"{}");
            }
        }
    }
    let very_long = format!("GET /v1/chains/{} HTTP/1.1", "x".repeat(20_000));
    assert_eq!(refused(&daemon, &very_long, b""), 414);
    let queries =
        ["?limit=0", "?limit=-1", "?limit=x", "?limit=1&limit=2", "?after=1e9", "?unknown=1", "?limit=%ff"];
    for query in queries {
        let head = format!("GET /v1/chains/c/optimizer/history{query} HTTP/1.1");
        assert_eq!(refused(&daemon, &head, b""), 400, "{query}");
    }
    for id in ["x", "-", "1.5", "99999999999999999999"] {
        let head = format!("GET /v1/chains/c/optimizer/events HTTP/1.1\r\nlast-event-id: {id}");
        assert_eq!(refused(&daemon, &head, b""), 400, "{id}");
    }
    let headers = format!("GET /v1/chains HTTP/1.1\r\nx-long: {}", "x".repeat(20_000));
    assert_eq!(refused(&daemon, &headers, b""), 431);
    for method in ["DELETE", "PATCH", "PUT", "TRACE", "OPTIONS", "PROPFIND"] {
        assert_eq!(refused(&daemon, &format!("{method} /v1/chains HTTP/1.1"), b""), 405, "{method}");
    }
    assert_eq!(state(&daemon), before);
}

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

#[test]
fn bytes_that_are_no_request_do_no_harm() {
    let world = World::new();
    let daemon = world.start();
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
    let before = state(&daemon);
    let body = definition("d").to_string();
    let whole =
        format!("{}\r\nhost: x\r\nconnection: close\r\n\r\n{body}", post(body.as_bytes())).into_bytes();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for round in 0..400 {
        let bytes = match round % 4 {
            // Noise.
            0 => (0..numbers.next(2000)).map(|_| numbers.next(256) as u8).collect(),
            // A request that is cut off.
            1 => whole[..numbers.next(whole.len() - 1)].to_vec(),
            // One that is damaged in its head: what it says after that is not what it was.
            2 => {
                let mut bytes = whole.clone();
                let head = bytes.len() - body.len();
                for _ in 0..=numbers.next(4) {
                    bytes[numbers.next(head.min(20))] = numbers.next(256) as u8;
                }
                bytes
            }
            // Lines without an end.
            _ => {
                let mut bytes = b"GET / HTTP/1.1\r\n".to_vec();
                (0..numbers.next(300)).for_each(|at| bytes.extend(format!("x{at}: {at}\r\n").into_bytes()));
                bytes
            }
        };
        let answer = daemon.raw_to_its_end(&bytes);
        // Silence, or what HTTP has for it. Two requests in one piece of noise are as unlikely as
        // they are harmless.
        if !answer.is_empty() {
            let (status, _, _) =
                parse(&answer).unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&answer)));
            assert!((200..500).contains(&status), "{status} to {:?}", String::from_utf8_lossy(&bytes));
            assert!(round % 4 == 2 || status >= 400, "{status} to {:?}", String::from_utf8_lossy(&bytes));
        }
    }
    let after = daemon.get("/v1/chains");
    let names: Vec<&str> =
        after.as_array().unwrap().iter().map(|chain| chain["name"].as_str().unwrap()).collect();
    // Damage may hit a byte that means nothing.
    if names.contains(&"d") {
        daemon.ok("DELETE", "/v1/chains/d", None);
    }
    assert_eq!(state(&daemon), before);
}

#[test]
fn a_host_is_named_once_and_is_one() {
    let world = World::new();
    let daemon = world.start();
    let status = |version: &str, hosts: &[&str]| {
        let lines: String = hosts.iter().map(|host| format!("host: {host}\r\n")).collect();
        let request = format!("GET /v1/chains HTTP/{version}\r\n{lines}connection: close\r\n\r\n");
        let answer = daemon.raw(request.as_bytes());
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status: u16 =
            text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        if status != 200 {
            check_problem(status, &serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap());
        }
        status
    };
    for host in ["x", "", "partitad:80", "[::1]:7878", "evil.example"] {
        assert_eq!(status("1.1", &[host]), 200, "{host}");
    }
    for host in ["a b", "u@x", "x:y", "[::1", "x/y", "\u{e9}"] {
        assert_eq!(status("1.1", &[host]), 400, "{host}");
    }
    assert_eq!(status("1.1", &[]), 400);
    assert_eq!(status("1.0", &[]), 200, "it was not there yet");
    for version in ["1.0", "1.1"] {
        assert_eq!(status(version, &["a", "b"]), 400, "{version}");
        assert_eq!(status(version, &["a", "a"]), 400, "{version}");
    }
}

/// What hyper takes for no HTTP at all it answers itself, before anybody else sees a request: no
/// body, and the end of the connection.
#[test]
fn what_is_no_http_is_answered_by_a_bare_status_and_the_end() {
    let world = World::new();
    let daemon = world.start();
    let many: String = (0..300).map(|at| format!("x{at}: y\r\n")).collect();
    for (expected, bytes) in [
        (400, b"\x00\x01\x02\r\n\r\n".to_vec()),
        (400, b"HELO mail\r\n\r\n".to_vec()),
        (400, b"GET / HTTP/1.1\r\nno colon\r\n\r\n".to_vec()),
        (400, b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n".to_vec()),
        (414, format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)).into_bytes()),
        (431, format!("GET / HTTP/1.1\r\n{many}\r\n").into_bytes()),
        (431, format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(600_000)).into_bytes()),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let (status, headers, body) =
            parse(&daemon.raw(&bytes)).unwrap_or_else(|| panic!("{shown}: no answer"));
        assert_eq!((status, body.as_str()), (expected, ""), "{shown}");
        assert!(
            headers.contains("connection: close") && headers.contains("content-length: 0"),
            "{shown}: {headers}"
        );
    }
    assert_eq!(daemon.get("/v1/chains"), json!([]));
}

#[test]
fn json_of_every_kind_is_refused_or_kept_as_it_was_sent() {
    let world = World::new();
    let daemon = world.start();
    let mut numbers = Numbers(7);
    let mut kept = 0;
    for round in 0..200 {
        let mut body = definition(&format!("c{round}"));
        let strange = [
            json!(null),
            json!(true),
            json!(-1),
            json!(0.5),
            json!(u64::MAX),
            json!(""),
            json!("\u{0}\u{7f}\u{202e}"),
            json!("x".repeat(5000)),
            json!([]),
            json!({}),
            json!([[[]]]),
        ];
        let value = strange[numbers.next(strange.len())].clone();
        let pointers = [
            "/name",
            "/frame",
            "/component",
            "/component/0",
            "/component/1/name",
            "/component/1/command",
            "/component/0/command/1",
        ];
        let pointer = pointers[numbers.next(pointers.len())];
        *body.pointer_mut(pointer).unwrap() = value;
        let answer = daemon.ask("POST", "/v1/chains", Some(body.clone()));
        match answer.status {
            201 => {
                kept += 1;
                assert_eq!(answer.body["definition"].pointer(pointer), body.pointer(pointer), "{body}");
            }
            422 => {}
            other => panic!("{other} to {body}"),
        }
    }
    assert_eq!(daemon.get("/v1/chains").as_array().unwrap().len(), kept);
}
