//! Connections, requests and sockets of one user do not delay others.

use crate::common;

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use common::{Daemon, PATIENCE, World, check_problem, parse};
use partita::registry::Registry;
use partita_testing::eventually;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use serde_json::Value;

/// Two users who need no account.
const ONE: u32 = 65_533;
const OTHER: u32 = 65_534;

/// A world that other users reach, if this test can become them.
fn shared_world() -> Option<World> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can ask as several users");
        return None;
    }
    let world = World::new();
    fs::set_permissions(world.dir(), Permissions::from_mode(0o755)).unwrap();
    // Every connection is a descriptor of this process, too.
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: now.maximum.or(Some(8192)), ..now }).unwrap();
    Some(world)
}

/// Does this as another user. The kernel knows users by thread.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let user = Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// That many connections of a user, on each of which this was sent.
fn hold(daemon: &Daemon, user: u32, count: usize, sent: &[u8]) -> Vec<UnixStream> {
    as_user(user, || {
        let connect = |_| {
            let mut stream = UnixStream::connect(daemon.socket()).unwrap();
            // It may have been refused already.
            let _ = stream.write_all(sent);
            stream
        };
        (0..count).map(connect).collect()
    })
}

/// How many of these connections the daemon has not closed.
fn open(held: &[UnixStream]) -> usize {
    let is_open = |mut stream: &UnixStream| {
        stream.set_nonblocking(true).unwrap();
        stream.read(&mut [0; 64]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    held.iter().filter(|stream| is_open(stream)).count()
}

/// The status that a user is answered with; none if there is no answer.
fn status_for(daemon: &Daemon, user: u32) -> Option<u16> {
    as_user(user, || parse(&daemon.raw(b"GET /v1/tenants HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")))
        .map(|(status, _, _)| status)
}

#[test]
fn connections_that_do_nothing_keep_neither_root_nor_anybody_else_out() {
    let Some(world) = shared_world() else { return };
    let daemon = world.start();
    for sent in [&b""[..], b"GET /v1/tenants HTTP/1.1\r\nhost: x\r\nx: a"] {
        let held = [hold(&daemon, ONE, 512, sent), hold(&daemon, OTHER, 512, sent)];
        for _ in 0..20 {
            assert_eq!(status_for(&daemon, 0), Some(200));
        }
        eventually("each has as many as a user may have", || held.iter().all(|held| open(held) <= 256));
        assert_eq!(status_for(&daemon, 65_532), Some(200), "a third user");
        drop(held);
        eventually("the two are let in again", || {
            [ONE, OTHER].iter().all(|&user| status_for(&daemon, user) == Some(200))
        });
    }
}

#[test]
fn requests_of_one_user_take_no_room_from_others() {
    let Some(world) = shared_world() else { return };
    let daemon = world.start_with(["--body-s", "600"]);
    let half = b"POST /v1/chains HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let held = hold(&daemon, ONE, 65, half);
    eventually("one more than may be is refused", || {
        open(&held) <= 64 && status_for(&daemon, ONE) == Some(429)
    });
    for user in [0, OTHER] {
        assert_eq!(status_for(&daemon, user), Some(200), "{user}");
    }
    let (status, headers, body) = as_user(ONE, || daemon.send("GET /v1/chains HTTP/1.1", b""));
    assert!(status == 429 && headers.contains("retry-after: 1"), "{status} {headers}");
    check_problem(429, &serde_json::from_str(&body).unwrap());
    drop(held);
    eventually("there is room again", || status_for(&daemon, ONE) == Some(200));
}

#[test]
fn requests_of_one_user_do_not_crowd_the_registrys_lock() {
    let Some(world) = shared_world() else { return };
    let daemon = world.start();
    let run = world.dir().join("run");
    let file = run.join(".lock");
    let descriptors = format!("/proc/{}/fd", daemon.pid());
    let waiting = || {
        let open = fs::read_dir(&descriptors).unwrap().flatten();
        open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|path| path == file)).count()
    };
    let registry = Registry::at(&run).unwrap();
    let lock = registry.lock().unwrap();
    let _held = hold(&daemon, ONE, 40, b"GET /v1/tenants HTTP/1.1\r\nhost: x\r\n\r\n");
    // Four, and one for each kind of the daemon's own work.
    eventually("requests wait for the lock", || waiting() >= 4);
    let most = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        waiting()
    });
    let most = most.max().unwrap();
    assert!(most <= 12, "{most} of 40 requests wait for the lock at once");
    drop(lock);
    eventually("all are answered", || status_for(&daemon, ONE) == Some(200));
}

#[test]
fn a_flood_does_not_fill_the_log() {
    let world = World::new();
    let daemon = world.start_with(["--log-format", "json"]);
    const BATCHES: usize = 100;
    const REQUESTS: usize = BATCHES * 50;
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let batch = b"GET /v1/nowhere HTTP/1.1\r\nhost: x\r\n\r\n".repeat(REQUESTS / BATCHES);
    let mut answers = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..BATCHES).for_each(|_| stream.write_all(&batch).unwrap());
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        answers.read_to_end(&mut Vec::new()).unwrap();
    });
    let lines = || -> Vec<Value> {
        let log = daemon.log();
        log.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
            .collect()
    };
    let written = || lines().iter().filter(|line| line["message"] == "request").count();
    let left_out = || -> usize {
        let told = lines().into_iter().filter(|line| line["message"].as_str().unwrap().contains("left out"));
        told.map(|line| line["lines"].as_u64().unwrap() as usize).sum()
    };
    eventually("the log says how many lines it left out", || written() + left_out() == REQUESTS);
    assert!(written() < REQUESTS / 2, "{}", written());
    let before = lines().len();
    daemon.ok("POST", "/v1/chains", Some(common::definition("seen")));
    eventually("lines of another kind are there", || {
        lines()[before..].iter().any(|line| line["method"] == "POST" && line["status"] == 201)
    });
}

/// A user's keeper socket on which no process answers.
fn silent_keeper(run: &Path, user: u32, number: usize) -> OwnedFd {
    as_user(user, || {
        let path = run.join(format!(".keeper-{user}-GPU-x{number}.sock"));
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 50).unwrap();
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o777)).unwrap();
        socket
    })
}

#[test]
fn sockets_that_do_not_answer_are_waited_for_aside() {
    let Some(world) = shared_world() else { return };
    let daemon = world.start();
    let run = world.dir().join("run");
    // Longer than the daemon waits for one, and than it waits for all of a user.
    let silent: Vec<OwnedFd> = (0..4).map(|number| silent_keeper(&run, ONE, number)).collect();
    let asked = || -> Vec<OwnedFd> {
        silent
            .iter()
            .flat_map(|socket| std::iter::from_fn(move || rustix::net::accept(socket).ok()))
            .collect()
    };
    let mut connections = Vec::new();
    for path in ["/v1/keepers", "/metrics", "/v1/leases", "/healthz"] {
        let (status, _, _) = daemon.send(&format!("GET {path} HTTP/1.1"), b"");
        assert_eq!(status, 200, "{path}");
        let new = asked();
        if path == "/v1/keepers" {
            assert!(!new.is_empty(), "no request has come");
        }
        connections.extend(new);
    }
    // A client that waits for an answer has its connection open: the requests did not wait for it.
    let waits = |connection: &OwnedFd| {
        let mut buffer = [0; 4096];
        loop {
            match rustix::net::recv(connection, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok(_) => {}
                Err(error) => return error == rustix::io::Errno::AGAIN,
            }
        }
    };
    assert!(connections.iter().any(waits), "all of {} connections have been given up", connections.len());
    assert!(connections.len() < silent.len(), "all sockets were asked");
}

#[test]
fn files_of_another_user_are_read_up_to_a_bound() {
    let Some(world) = shared_world() else { return };
    let daemon = world.start();
    let gpu = world.dir().join("run").join(format!("user-{ONE}")).join("GPU-0");
    // Each of them is some 200 KiB, and its owner lives.
    let meta = format!("{{\"version\":1,\"x\":[{}1]}}", "1,".repeat(100_000));
    let owners: Vec<fs::File> = as_user(ONE, || {
        fs::create_dir_all(&gpu).unwrap();
        let make = |at| {
            let dir = gpu.join(format!("fat{at}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("meta.json"), &meta).unwrap();
            let owner = fs::File::create(dir.join("owner")).unwrap();
            rustix::fs::fcntl_lock(&owner, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
            owner
        };
        (0..300).map(make).collect()
    });
    let tenants = daemon.get("/v1/tenants");
    let problems: Vec<&str> =
        tenants.as_array().unwrap().iter().map(|tenant| tenant["problem"].as_str().unwrap()).collect();
    assert_eq!(problems.len(), 256, "as many as are looked at");
    let unread = problems.iter().filter(|problem| problem.contains("it is longer than")).count();
    assert_eq!(problems.len() - unread, (1 << 20) / meta.len(), "{:?}", problems[0]);
    drop(owners);
}

#[test]
fn health_answers_while_the_registry_is_locked_and_says_so() {
    let world = World::new();
    let daemon = world.start();
    eventually("the daemon has looked", || daemon.get("/healthz")["parts"].as_array().unwrap().len() == 4);
    let registry = Registry::at(&world.dir().join("run")).unwrap();
    let lock = registry.lock().unwrap();
    for _ in 0..20 {
        let answer = daemon.ask_health();
        assert_eq!((answer.0, &answer.1["healthy"]), (200, &Value::Bool(true)), "{}", answer.1);
    }
    // A look waits for the lock, aside, and gives up.
    eventually("health says that the registry does not answer", || {
        let (status, health) = daemon.ask_health();
        let parts = health["parts"].as_array().unwrap();
        status == 503 && parts.iter().any(|part| part["name"] == "registry" && part["works"] == false)
    });
    drop(lock);
    eventually("all is well again", || daemon.ask_health().0 == 200);
}

#[test]
fn who_says_that_nothing_more_comes_is_answered() {
    let world = World::new();
    let daemon = world.start();
    for path in ["/v1/tenants", "/healthz", "/metrics", "/v1/gpus"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        let answer = daemon.raw_to_its_end(request.as_bytes());
        assert_eq!(parse(&answer).map(|(status, _, _)| status), Some(200), "{path}");
    }
    let body = common::definition("c").to_string();
    let head = "POST /v1/chains HTTP/1.1\r\nhost: x\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = daemon.raw_to_its_end(request.as_bytes());
    assert_eq!(parse(&answer).map(|(status, _, _)| status), Some(201));
}
