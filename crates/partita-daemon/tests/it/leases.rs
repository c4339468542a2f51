//! Leases of a keeper, taken back over REST; and a keeper that does not answer.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use common::{World, check_problem};
use partita_driver::ipc::{MemoryHandle, OpenedMemory};
use partita_driver::{Cuda, Gpu};
use partita_memory::Place;
use partita_memory::client::Connection;
use partita_testing::{build, eventually, ignored_test, is_real};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

struct Keeper {
    child: Child,
    place: Place,
}

impl Keeper {
    fn start(world: &World) -> Self {
        Self::start_with(world, "fd")
    }

    fn start_with(world: &World, handles: &str) -> Self {
        let mut command = world.partitad(["keeper", "--handles", handles]);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let run = world.dir().join("run");
        let mut place = None;
        eventually("the keeper serves", || {
            place = Place::all(&run).ok().and_then(|places| places.into_iter().next());
            place
                .as_ref()
                .is_some_and(|place| Connection::connect(&place.socket, None, common::PATIENCE).is_ok())
        });
        Self { child, place: place.unwrap() }
    }

    fn client(&self, tenant: &str) -> Connection {
        Connection::connect(&self.place.socket, Some(tenant.parse().unwrap()), common::PATIENCE).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn leases_are_taken_back_by_who_may_and_what_cannot_be_is_a_problem() {
    let world = World::new();
    let keeper = Keeper::start(&world);
    let daemon = world.start();
    let base = format!("/v1/keepers/{}", keeper.child.id());
    let mut client = keeper.client("one");
    let leases = client.lease(None, 1 << 20, 2, 0).unwrap();
    client.open(leases[0].slab).unwrap();
    let shown = daemon.get("/v1/leases");
    let rows = shown.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, lease) in rows.iter().zip(&leases) {
        assert_eq!((&row["id"], &row["keeper"]), (&json!(lease.id.0), &json!(keeper.child.id())));
        assert_eq!((&row["pid"], &row["resting"]), (&json!(std::process::id()), &json!(false)));
    }
    let (lease, owner) = (format!("{base}/leases/{}", leases[0].id.0), rows[0]["owner"].clone());
    let of_owner = format!("{base}/owners/{owner}");

    for (status, path, about) in [
        (404, format!("{base}/leases/999999"), "lease 999999"),
        (404, format!("{base}/leases/x"), "x"),
        (404, format!("{base}/leases/-1"), "-1"),
        (404, "/v1/keepers/1/leases/1".to_owned(), "process 1"),
        (404, "/v1/keepers/99999999999/leases/1".to_owned(), ""),
        (404, format!("{base}/owners/999999"), "owner 999999"),
        (400, format!("{of_owner}?force=perhaps"), "force"),
        (400, format!("{of_owner}?hard=true"), "hard"),
        (409, of_owner.clone(), "lives"),
        (409, format!("{of_owner}?force=true"), "lives"),
    ] {
        let problem = daemon.refused(status, "DELETE", &path, None);
        assert!(problem["detail"].as_str().unwrap().contains(about), "{path}: {problem}");
    }
    assert_eq!(daemon.get("/v1/leases"), shown, "nothing has changed");

    assert_eq!(daemon.ok("DELETE", &lease, None), Value::Null);
    let rests = |daemon: &common::Daemon| -> Vec<bool> {
        let rows = daemon.get("/v1/leases");
        rows.as_array().unwrap().iter().map(|row| row["resting"].as_bool().unwrap()).collect()
    };
    assert_eq!(rests(&daemon), [true, false]);
    assert_eq!(client.beat().unwrap().expired, 1, "its owner learns it");
    let problem = daemon.refused(409, "DELETE", &lease, None);
    assert!(problem["detail"].as_str().unwrap().contains("has ended"), "{problem}");

    // Its connection ends; the process, which is this one, has the memory open.
    drop(client);
    eventually("both leases rest", || rests(&daemon) == [true, true]);
    let problem = daemon.refused(409, "DELETE", &of_owner, None);
    let pid = format!("process {}", std::process::id());
    let detail = problem["detail"].as_str().unwrap();
    let remedy = "and the keeper releases the leases, or pass force=true";
    assert!(detail.contains(&pid) && detail.contains(remedy), "{problem}");
    assert_eq!(daemon.ok("DELETE", &format!("{of_owner}?force=true"), None), json!({ "leases": 2 }));
    assert_eq!(daemon.get("/v1/leases"), json!([]));
}

/// A process that opens leased memory: it reads lines, `write`, `reverse` or `read`, a handle, the
/// bytes behind it, and an offset.
#[test]
#[ignore = "run by another one as a program of its own"]
fn child_that_opens_memory() {
    let cuda = Cuda::load(None).unwrap();
    let gpu = Gpu::open(&cuda, 0).unwrap();
    println!("\nready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let [what, handle, bytes, offset] = words[..] else { panic!("{line}") };
        let byte = |at: usize| u8::from_str_radix(&handle[2 * at..2 * at + 2], 16).unwrap();
        let handle = MemoryHandle::from_bytes(std::array::from_fn(byte));
        let opened = OpenedMemory::open(&gpu, &handle, bytes.parse().unwrap()).unwrap();
        let part = opened.span().part(offset.parse().unwrap(), 16).unwrap();
        let mut found = *b"leased over HTTP";
        if what != "write" {
            part.read(&mut found).unwrap();
        }
        if what == "reverse" {
            found.reverse();
        }
        if what != "read" {
            part.write(&found).unwrap();
        }
        println!("{}", String::from_utf8_lossy(&found));
    }
}

/// That process.
struct Opener {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Opener {
    fn start(world: &World) -> Self {
        let mut command = ignored_test("child_that_opens_memory");
        world.surround(&mut command);
        if !is_real() {
            let libraries = world.dir().join("libraries");
            let _ = std::fs::create_dir(&libraries);
            let library = build().join("libpartita_simcuda.so");
            let _ = std::os::unix::fs::symlink(library, libraries.join("libcuda.so.1"));
            command.env("LD_LIBRARY_PATH", libraries).env("PARTITA_SIM_DEVICE", "h200");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut this = Self { child, output };
        while this.line() != "ready" {}
        this
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "it has ended");
        line.trim_end().to_owned()
    }

    fn opens(&mut self, what: &str, lease: &Value) -> String {
        let text = |key: &str| lease[key].as_str().map_or_else(|| lease[key].to_string(), str::to_owned);
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{what} {} {} {}", text("handle"), text("slab_bytes"), text("offset")).unwrap();
        self.line()
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn memory_is_leased_over_http_for_as_long_as_its_process_lives() {
    let world = World::new();
    let keeper = Keeper::start_with(&world, "ipc");
    let daemon = world.start();
    let base = format!("/v1/keepers/{}/leases", keeper.child.id());
    let (mut writer, mut reader) = (Opener::start(&world), Opener::start(&world));
    let ask = |process: &Opener, bytes: u64| {
        let body = json!({ "bytes": bytes, "tenant": "cameras", "pid": process.child.id() });
        daemon.ok("POST", &base, Some(body))
    };
    let first = ask(&writer, 1 << 20);
    assert!(first["bytes"].as_u64().unwrap() >= 1 << 20 && first["tenant"] == "cameras", "{first}");
    assert_eq!(first["handle"].as_str().unwrap().len(), 128);
    let path = format!("{base}/{}", first["id"]);
    assert_eq!(daemon.get(&path), first);
    // One process writes through its lease, and another reads there: both open one slab.
    let second = ask(&reader, 4096);
    assert_eq!(writer.opens("write", &first), "leased over HTTP");
    assert_eq!(reader.opens("read", &first), "leased over HTTP");
    let rows = daemon.get("/v1/leases");
    let pids: Vec<&Value> = rows.as_array().unwrap().iter().map(|row| &row["pid"]).collect();
    assert_eq!(pids, [&json!(writer.child.id()), &json!(reader.child.id())]);

    // One is given back, the other ends with its process.
    assert_eq!(daemon.ok("DELETE", &path, None), Value::Null);
    assert!(daemon.refused(404, "GET", &path, None)["detail"].as_str().unwrap().contains("POST"));
    assert_eq!(daemon.get("/v1/leases").as_array().unwrap().len(), 1);
    drop(reader);
    eventually("the lease ends with its process", || daemon.get("/v1/leases") == json!([]));
    daemon.refused(404, "GET", &format!("{base}/{}", second["id"]), None);

    // By default it is the caller's, and this process stays.
    let own = daemon.ok("POST", &base, Some(json!({ "bytes": 1, "tenant": "cameras" })));
    assert_eq!(own["pid"], std::process::id());
    // A daemon that ends gives its leases up; the memory waits for the end of the process.
    daemon.end();
    let daemon = world.start();
    let rows = daemon.get("/v1/leases");
    assert_eq!((&rows[0]["id"], &rows[0]["resting"]), (&own["id"], &json!(true)), "{rows}");
}

#[test]
fn the_first_component_asks_for_memory_and_the_last_returns_it() {
    let world = World::new();
    let keeper = Keeper::start_with(&world, "ipc");
    let daemon = world.start();
    let base = format!("/v1/keepers/{}/leases", keeper.child.id());
    let (mut middle, mut last) = (Opener::start(&world), Opener::start(&world));
    // For the last one, so that the frame outlives the component that asks for it.
    let body = json!({ "bytes": 16 << 20, "tenant": "cameras", "pid": last.child.id() });
    let ask = || daemon.ok("POST", &base, Some(body.clone()));
    let mut goes_on = |frame: &Value| {
        assert_eq!(middle.opens("reverse", frame), "PTTH revo desael");
        assert_eq!(last.opens("read", frame), "PTTH revo desael");
        daemon.ok("DELETE", &format!("{base}/{}", frame["id"]), None);
    };
    for round in 0..3 {
        let mut first = Opener::start(&world);
        for _ in 0..16 {
            let frame = ask();
            assert_eq!(first.opens("write", &frame), "leased over HTTP");
            goes_on(&frame);
        }
        assert_eq!(daemon.get("/v1/leases"), json!([]), "round {round}");
        let held = daemon.get("/v1/keepers")[0]["held_bytes"].as_u64().unwrap();
        assert!(held <= 64 << 20, "frames use the same memory again: {held} in round {round}");
        // The first one dies with a frame on its way.
        let frame = ask();
        first.opens("write", &frame);
        drop(first);
        goes_on(&frame);
    }
}

#[test]
fn a_lease_that_cannot_be_made_is_a_problem() {
    let world = World::new();
    let keeper = Keeper::start(&world);
    let daemon = world.start();
    let base = format!("/v1/keepers/{}/leases", keeper.child.id());
    let body = |bytes: u64, tenant: &str, pid: u32| json!({ "bytes": bytes, "tenant": tenant, "pid": pid });
    let own = std::process::id();
    for (status, path, body, about) in [
        (409, base.clone(), body(1, "a", own), "--handles ipc"),
        (422, base.clone(), body(0, "a", own), "at least one byte"),
        (422, base.clone(), body(1, "", own), ""),
        (422, base.clone(), body(1, "a", 4_194_305), "does not exist"),
        (422, base.clone(), body(1 << 50, "a", own), "at most"),
        (404, "/v1/keepers/1/leases".to_owned(), body(1, "a", own), "process 1"),
        (422, base.clone(), json!({ "bytes": 1 }), "tenant"),
        (422, base.clone(), json!({ "bytes": 1, "tenant": "a", "more": 1 }), "more"),
    ] {
        let problem = daemon.refused(status, "POST", &path, Some(body));
        assert!(problem["detail"].as_str().unwrap().contains(about), "{path}: {problem}");
    }
    assert_eq!(daemon.get("/v1/leases"), json!([]), "nothing is half made");
}

#[test]
fn silent_sockets_delay_no_command() {
    let world = World::new();
    let keeper = Keeper::start(&world);
    let daemon = world.start();
    let user = rustix::process::geteuid().as_raw();
    // More than there is time for, one after the other; their names come after the keeper's, and
    // one of them would be a line of its own in the log.
    let silent: Vec<_> = (0..40)
        .map(|at| {
            let place = Place::of(&world.dir().join("run"), user, &format!("z{at}\nforged"));
            let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
            rustix::net::bind(&listener, &SocketAddrUnix::new(&place.socket).unwrap()).unwrap();
            rustix::net::listen(&listener, 0).unwrap();
            listener
        })
        .collect();
    let shown = daemon.get("/v1/keepers");
    assert_eq!((shown.as_array().unwrap().len(), &shown[0]["pid"]), (1, &json!(keeper.child.id())));
    let log = daemon.log();
    assert!(log.contains("a keeper does not answer") && log.contains("are not queried now"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
    drop(silent);
}

#[test]
fn a_slow_request_gets_a_timeout() {
    let world = World::new();
    let keeper = Keeper::start(&world);
    let daemon = world.start_with(["--answer-s", "1"]);
    keeper.signal(Signal::STOP);
    let problem = daemon.refused(504, "GET", "/v1/leases", None);
    assert!(problem["detail"].as_str().unwrap().contains("within 1 s"), "{problem}");
    // Others are answered meanwhile, and those who come back later, too.
    assert_eq!(daemon.get("/v1/chains"), json!([]));
    keeper.signal(Signal::CONT);
    eventually("the keeper answers again", || daemon.ask("GET", "/v1/keepers", None).status == 200);

    // A body that is promised and does not come, and one that stops. An answer's time has its
    // body's in it, so that is the longer one here: of two that are alike either could be over
    // first.
    drop(daemon);
    let daemon = world.start_with(["--body-s", "1"]);
    for sent in ["", "{\"name\": "] {
        let head =
            "POST /v1/chains HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100";
        let answer = daemon.raw(format!("{head}\r\n\r\n{sent}").as_bytes());
        let (status, headers, body) = common::parse(&answer).expect("an answer");
        assert_eq!(status, 408, "{body}");
        assert!(
            headers.contains("connection: close") && headers.contains("application/problem+json"),
            "{headers}"
        );
        check_problem(408, &serde_json::from_str(&body).unwrap());
    }
    assert_eq!(daemon.get("/v1/chains"), json!([]), "nothing was defined");
}
