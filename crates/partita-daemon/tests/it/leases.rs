//! Leases of a keeper, taken back over REST; and a keeper that does not answer.

use crate::common;

use std::process::{Child, Stdio};

use common::{World, check_problem};
use partita_memory::Place;
use partita_memory::client::Connection;
use partita_testing::eventually;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

struct Keeper {
    child: Child,
    place: Place,
}

impl Keeper {
    fn start(world: &World) -> Self {
        let mut command = world.partitad(["keeper", "--handles", "fd"]);
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
    assert!(detail.contains(&pid) && detail.contains("force=true"), "{problem}");
    assert_eq!(daemon.ok("DELETE", &format!("{of_owner}?force=true"), None), json!({ "leases": 2 }));
    assert_eq!(daemon.get("/v1/leases"), json!([]));
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
