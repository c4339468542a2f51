//! Start, end, and who is let in.

use crate::common;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Daemon, PATIENCE, World, check_problem, definition, parse};
use partita_testing::eventually;
use rustix::process::Signal;
use serde_json::{Value, json};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn one_daemon_serves_a_socket_and_one_a_state() {
    let world = World::new();
    let mut first = world.start();
    let mode = fs::metadata(world.socket()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, if is_root() { 0o666 } else { 0o600 });
    let second = world.refused::<&str>([]);
    assert!(second.contains("another partitad") && second.contains(&first.pid().to_string()), "{second}");
    let other = world.dir().join("other.sock");
    let state = world.refused(["--socket", other.to_str().unwrap()]);
    assert!(state.contains("another partitad has it open") && state.contains("--state"), "{state}");
    assert!(!other.exists());

    // What one that was killed leaves is no obstacle.
    first.ok("POST", "/v1/chains", Some(definition("kept")));
    first.kill();
    assert!(world.socket().exists());
    let third = world.start();
    assert_eq!(third.get("/v1/chains/kept")["defined"]["revision"], 1);
    third.end();
    assert!(!world.socket().exists());

    fs::write(world.socket(), "another user's").unwrap();
    let foreign = world.refused::<&str>([]);
    assert!(foreign.contains("another file is there"), "{foreign}");
    assert_eq!(fs::read_to_string(world.socket()).unwrap(), "another user's");
}

#[test]
fn arguments_that_cannot_be_are_refused_with_what_to_do() {
    let world = World::new();
    let token = world.dir().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o644)).unwrap();
    let token = token.to_str().unwrap();
    let listen = |more: &[&str]| world.refused(["--listen", "127.0.0.1:0"].iter().chain(more));
    assert!(listen(&["--token-file", token]).contains("chmod 600"));
    assert!(listen(&["--token-file", "/nowhere/token"]).contains("openssl rand"));
    fs::set_permissions(token, Permissions::from_mode(0o600)).unwrap();
    let open = world.refused(["--listen", "0.0.0.0:0", "--token-file", token]);
    assert!(open.contains("--allow-remote"), "{open}");
    let output = world.partitad(["--listen", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--token-file"));
    assert!(world.refused(["--log", "nonsense=nonsense"]).contains("--log"));
    assert!(!world.socket().exists());
}

#[test]
fn the_end_lets_requests_finish_and_begins_no_new_ones() {
    let world = World::new();
    let mut daemon = world.start();
    // A request that is half there when the end begins, and a stream that would never end.
    let mut half = UnixStream::connect(daemon.socket()).unwrap();
    half.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = definition("late").to_string();
    let (begin, rest) = body.split_at(20);
    let head = "POST /v1/chains HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length:";
    half.write_all(format!("{head} {}\r\n\r\n{begin}", body.len()).as_bytes()).unwrap();
    daemon.ok("POST", "/v1/chains", Some(definition("watched")));
    let mut events = UnixStream::connect(daemon.socket()).unwrap();
    events.set_read_timeout(Some(PATIENCE)).unwrap();
    events.write_all(b"GET /v1/chains/watched/optimizer/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut first = [0; 12];
    events.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    eventually("the half request is being answered", || {
        let page = daemon.send("GET /metrics HTTP/1.1", b"").2;
        page.lines().any(|line| line == "partitad_requests_in_flight 2")
    });

    daemon.signal(Signal::TERM);
    eventually("it ends", || daemon.log().contains("ending"));
    eventually("new connections are refused", || UnixStream::connect(daemon.socket()).is_err());
    half.write_all(rest.as_bytes()).unwrap();
    let mut answer = Vec::new();
    half.read_to_end(&mut answer).unwrap();
    assert_eq!(parse(&answer).unwrap().0, 201, "{}", String::from_utf8_lossy(&answer));
    let mut left = Vec::new();
    events.read_to_end(&mut left).unwrap();
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert_eq!(
        world.start().get("/v1/chains/late")["defined"]["revision"],
        1,
        "what was acknowledged is kept"
    );
}

#[test]
fn who_does_not_finish_is_cut_off_when_the_time_is_up() {
    let world = World::new();
    let mut daemon = world.start_with(["--drain-s", "0"]);
    let mut half = UnixStream::connect(daemon.socket()).unwrap();
    half.write_all(b"POST /v1/chains HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{")
        .unwrap();
    eventually("the request is there", || {
        daemon.send("GET /metrics HTTP/1.1", b"").2.contains("partitad_requests_in_flight 2")
    });
    daemon.signal(Signal::INT);
    assert!(daemon.wait().success());
    assert!(daemon.log().contains("cut off"));
}

#[test]
fn who_holds_the_registry_does_not_hold_the_end_up() {
    let world = World::new();
    let mut daemon = world.start();
    let registry = partita::registry::Registry::at(&world.dir().join("run")).unwrap();
    let lock = registry.lock().unwrap();
    // Long enough that the daemon looks at the chains meanwhile, and waits.
    std::thread::sleep(Duration::from_secs(1));
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    assert!(!daemon.log().contains("cannot be read"), "it has waited for the lock: {}", daemon.log());
    drop(lock);
}

#[test]
fn the_service_manager_hears_of_beginning_life_and_end() {
    let world = World::new();
    let path = world.dir().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = world.partitad(["--log-format", "json"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000");
    let daemon = Daemon::start(&mut command, &world.socket(), &world.dir().join("log"));
    let heard = || {
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
    };
    assert_eq!(heard(), "READY=1");
    assert_eq!(heard(), "WATCHDOG=1");
    assert_eq!(heard(), "WATCHDOG=1");
    daemon.signal(Signal::TERM);
    while heard() != "STOPPING=1" {}
    let log = {
        let mut daemon = daemon;
        assert!(daemon.wait().success());
        daemon.log()
    };
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(line["timestamp"].is_string() && line["message"].is_string(), "{line}");
    }
}

/// One request over TCP; the status and the body.
fn over_tcp(address: &str, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = if head.contains("\r\nhost:") { String::new() } else { format!("\r\nhost: {address}") };
    stream.write_all(format!("{head}{host}\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let (status, _, body) = parse(&answer).unwrap();
    (status, body)
}

#[test]
fn the_second_token_reads_and_changes_nothing() {
    let world = World::new();
    let all = world.token_file("all", "0123456789abcdef0123456789abcdef");
    let read = world.token_file("read", "fedcba9876543210fedcba9876543210");
    let same = world.refused(["--listen", "127.0.0.1:0", "--token-file", &all, "--read-token-file", &all]);
    assert!(same.contains("--read-token-file") && same.contains("another token"), "{same}");
    let alone = world.refused(["--gpu-groups", "0=root"]);
    assert!(alone.contains("--gpu-groups") && alone.contains("add --system"), "{alone}");
    let named = world.refused(["--listen", "localhost:7878", "--token-file", &all]);
    assert!(named.contains("an IP address and a port"), "{named}");
    fs::set_permissions(&read, Permissions::from_mode(0o640)).unwrap();
    let shown = world.refused(["--listen", "127.0.0.1:0", "--read-token-file", &read]);
    assert!(shown.contains("--read-token-file") && shown.contains("chmod 600"), "{shown}");
    fs::set_permissions(&read, Permissions::from_mode(0o600)).unwrap();

    for with_all in [true, false] {
        let more: &[&str] = if with_all { &["--token-file", &all] } else { &[] };
        let listen = ["--listen", "127.0.0.1:0", "--read-token-file", &read];
        let daemon = world.start_with(listen.iter().chain(more));
        let address = daemon.address();
        let ask = |head: &str, token: &str| {
            over_tcp(&address, &format!("{head} HTTP/1.1\r\nauthorization: bearer {token}"))
        };
        let (reads, changes) = ("fedcba9876543210fedcba9876543210", "0123456789abcdef0123456789abcdef");
        for path in ["/metrics", "/v1/tenants", "/v1/gpus", "/v1/chains", "/v1/events"] {
            assert_eq!(ask(&format!("GET {path}"), reads).0, 200, "{path}");
        }
        for head in
            ["DELETE /v1/tenants/a", "PATCH /v1/tenants/a", "POST /v1/chains/a/start", "PUT /v1/chains/a"]
        {
            let (status, body) = ask(head, reads);
            assert_eq!(status, 403, "{head}: {body}");
            assert!(body.contains("urn:partita:problem:read-only"), "{head}: {body}");
            let (status, body) = ask(head, changes);
            assert!(if with_all { ![401, 403].contains(&status) } else { status == 401 }, "{head}: {body}");
        }
        daemon.end();
    }
}

#[test]
fn other_names_and_origins_are_refused_over_tcp() {
    let world = World::new();
    let token = world.token_file("token", "0123456789abcdef0123456789abcdef");
    let listen = ["--listen", "127.0.0.1:0", "--token-file", &token, "--allow-host", "gpus.example.org"];
    let daemon = world.start_with(listen);
    let address = daemon.address();
    let ask = |headers: &str| {
        let with = "authorization: bearer 0123456789abcdef0123456789abcdef";
        over_tcp(&address, &format!("GET /v1/tenants HTTP/1.1\r\n{with}{headers}"))
    };
    for headers in [
        "",
        "\r\nhost: localhost:1",
        "\r\nhost: gpus.example.org",
        &format!("\r\nhost: {address}\r\norigin: http://{address}"),
        "\r\nhost: gpus.example.org\r\norigin: https://gpus.example.org",
    ] {
        assert_eq!(ask(headers), (200, "[]".to_owned()), "{headers}");
    }
    for (headers, status) in [
        ("\r\nhost: evil.example", 421),
        ("\r\nhost: evil.example\r\norigin: http://evil.example", 421),
        ("\r\norigin: http://evil.example", 403),
        ("\r\norigin: null", 403),
        ("\r\nhost: localhost\r\norigin: http://localhost:1", 403),
    ] {
        let (refused, body) = ask(headers);
        assert_eq!(refused, status, "{headers}: {body}");
        check_problem(status, &serde_json::from_str(&body).unwrap());
    }
    // The paths without a token are no exception.
    let rebound = over_tcp(&address, "GET /healthz HTTP/1.1\r\nhost: evil.example");
    assert!(rebound.0 == 421 && rebound.1.contains("--allow-host evil.example"), "{rebound:?}");
}

#[test]
fn over_tcp_the_token_counts() {
    let world = World::new();
    let path = world.dir().join("token");
    fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let daemon = world.start_with(["--listen", "127.0.0.1:0", "--token-file", path.to_str().unwrap()]);
    let log = daemon.log();
    let address = log.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
    for head in [
        "GET /v1/chains HTTP/1.1",
        "GET /metrics HTTP/1.1",
        "GET /v1/live HTTP/1.1",
        "GET /nowhere HTTP/1.1",
        "DELETE /healthz HTTP/1.1",
        "GET /v1/chains HTTP/1.1\r\nauthorization: Bearer 0123456789abcdef0123456789abcdee",
        "GET /v1/chains HTTP/1.1\r\nauthorization: Bearer",
        "GET /v1/chains HTTP/1.1\r\nauthorization: Basic 0123456789abcdef0123456789abcdef",
        "GET /docs/../v1/chains HTTP/1.1",
        "GET /healthz/../v1/chains HTTP/1.1",
    ] {
        let (status, body) = over_tcp(address, head);
        // A path that is not normalised is below an open one and leads nowhere.
        let expected = if head.contains("..") { 404 } else { 401 };
        assert_eq!(status, expected, "{head}: {body}");
        check_problem(status, &serde_json::from_str(&body).unwrap());
    }
    for path in ["/", "/page/main.js", "/healthz", "/openapi.json", "/docs/"] {
        for method in ["GET", "HEAD"] {
            let (status, _) = over_tcp(address, &format!("{method} {path} HTTP/1.1"));
            assert!(status == 200 || (path == "/healthz" && status == 503), "{method} {path}: {status}");
        }
    }
    let with = "authorization: bearer 0123456789abcdef0123456789abcdef";
    assert_eq!(over_tcp(address, &format!("GET /v1/chains HTTP/1.1\r\n{with}")), (200, "[]".to_owned()));
    assert!(!daemon.log().contains("0123456789abcdef"), "a token is no matter of the log");
}

/// A request of another user's, by curl.
fn as_user(user: u32, daemon: &Daemon, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--show-error",
        "--max-time",
        "60",
        "--request",
        method,
        "--write-out",
        "\n%{http_code}",
    ]);
    command.arg("--unix-socket").arg(daemon.socket()).arg(format!("http://partitad{path}"));
    if let Some(body) = body {
        command.args(["--header", "content-type: application/json", "--data"]).arg(body.to_string());
    }
    let output = command.uid(user).gid(user).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn a_thing_is_changed_by_its_owner_and_by_root() {
    if !is_root() {
        eprintln!("skipped: only root can ask as several users");
        return;
    }
    if common::lacks_curl() {
        return;
    }
    let world = World::new();
    fs::set_permissions(world.dir(), Permissions::from_mode(0o755)).unwrap();
    let daemon = world.start();
    let (one, other) = (65_533, 65_534);
    let (status, defined) = as_user(one, &daemon, "POST", "/v1/chains", Some(definition("mine")));
    assert_eq!((status, &defined["owner"]), (201, &json!(one)));
    let before = daemon.get("/v1/chains");
    assert_eq!(as_user(other, &daemon, "GET", "/v1/chains", None).1, before, "everybody may look");
    for (method, path, body) in [
        ("PUT", "/v1/chains/mine", Some(definition("mine"))),
        ("DELETE", "/v1/chains/mine", None),
        ("POST", "/v1/chains/mine/start", None),
        ("POST", "/v1/chains/mine/stop", None),
        ("PUT", "/v1/chains/mine/optimizer", Some(json!({ "algorithm": "none" }))),
        (
            "PUT",
            "/v1/chains/mine/sm-configuration",
            Some(json!({ "first": { "tpcs": 1 }, "second": { "tpcs": 1 } })),
        ),
    ] {
        let (status, problem) = as_user(other, &daemon, method, path, body);
        assert_eq!(status, 403, "{method} {path}: {problem}");
        check_problem(status, &problem);
    }
    // Root's daemon starts no program with root's rights for another user.
    let (status, problem) = as_user(one, &daemon, "POST", "/v1/chains/mine/start", None);
    assert_eq!(status, 403, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("partita chain start"), "{problem}");
    let problem = daemon.refused(403, "POST", "/v1/chains/mine/start", None);
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("user 65533's") && detail.contains("a daemon of your own"),
        "root neither: {problem}"
    );
    // And no user starts another user's definition by name, not even root.
    for user in [0, other] {
        let output = world.partita(["chain", "start", "mine"]).uid(user).gid(user).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(
            said.contains("user 65533 defined it") && said.contains("partita chain start FILE"),
            "{said}"
        );
    }
    assert_eq!(daemon.get("/v1/chains"), before);
    assert_eq!(as_user(one, &daemon, "PUT", "/v1/chains/mine", Some(definition("mine"))).0, 200);
    // Root may.
    daemon.ok("DELETE", "/v1/chains/mine", None);
}

#[test]
fn requests_whose_clients_leave_take_no_room() {
    let world = World::new();
    let daemon = world.start();
    let head =
        "POST /v1/chains HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    // More than may be answered at once, one after the other.
    for _ in 0..12 {
        let left: Vec<UnixStream> = (0..100)
            .map(|_| {
                let mut stream = UnixStream::connect(daemon.socket()).unwrap();
                stream.write_all(head.as_bytes()).unwrap();
                stream
            })
            .collect();
        drop(left);
    }
    // What asks is one of them.
    eventually("no other request is served", || {
        let (status, _, page) = daemon.send("GET /metrics HTTP/1.1", b"");
        status == 200 && page.lines().any(|line| line == "partitad_requests_in_flight 1")
    });
    assert_eq!(daemon.get("/v1/chains"), json!([]));
}
