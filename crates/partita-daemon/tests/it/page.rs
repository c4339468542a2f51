//! `GET /` and `/v1/live`: the page as it is served, and the stream that it shows.

use crate::common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::{Daemon, PATIENCE, World, check_problem, parse};
use partita_testing::eventually;
use serde_json::Value;

/// The most streams that are open at once.
const STREAMS_MAX: usize = 200;

/// A stream of samples, and what came with its head.
struct Stream {
    socket: UnixStream,
    text: String,
}

impl Stream {
    fn open(daemon: &Daemon) -> Self {
        let mut socket = UnixStream::connect(daemon.socket()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"GET /v1/live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut stream = Self { socket, text: String::new() };
        stream.read_until("\r\n\r\n");
        stream
    }

    fn read_until(&mut self, end: &str) {
        let mut bytes = [0; 4096];
        while !self.text.contains(end) {
            let count = self.socket.read(&mut bytes).unwrap();
            assert!(count > 0, "the stream has ended: {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }

    /// The data of the next event of this kind.
    fn next(&mut self, kind: &str) -> Value {
        let begin = format!("event: {kind}\ndata: ");
        self.read_until(&begin);
        let at = self.text.find(&begin).unwrap() + begin.len();
        self.text.drain(..at);
        self.read_until("\n\n");
        let end = self.text.find("\n\n").unwrap();
        serde_json::from_str(&self.text[..end]).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    fn is_open(&self) -> bool {
        self.text.starts_with("HTTP/1.1 200")
    }
}

#[test]
fn every_file_of_the_page_is_served_under_a_strict_policy() {
    let world = World::new();
    let daemon = world.start();
    let (status, headers, index) = daemon.send("GET / HTTP/1.1", b"");
    assert_eq!(status, 200, "{headers}");
    let mut files = vec!["/".to_owned()];
    files.extend(index.split('"').filter(|text| text.starts_with("/page/")).map(str::to_owned));
    assert!(files.len() > 4, "{files:?}");
    for file in files {
        let (status, headers, body) = daemon.send(&format!("GET {file} HTTP/1.1"), b"");
        assert!(status == 200 && !body.is_empty(), "{file}: {status}");
        for header in ["default-src 'none'", "script-src 'self'", "nosniff", "no-referrer", "same-origin"] {
            assert!(headers.contains(header), "{file}: no {header} in {headers}");
        }
        assert!(!headers.contains("unsafe-inline"), "{headers}");
        let mark = headers.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let again = daemon.send(&format!("GET {file} HTTP/1.1\r\nif-none-match: \"x\", {mark}"), b"");
        assert!(again.0 == 304 && again.2.is_empty() && again.1.contains(mark), "{file}: {again:?}");
    }
    for missing in ["/page/", "/page/none.js", "/page/../Cargo.toml", "/page/uplot"] {
        let (status, _, body) = daemon.send(&format!("GET {missing} HTTP/1.1"), b"");
        assert_eq!(status, 404, "{missing}");
        check_problem(status, &serde_json::from_str(&body).unwrap());
    }
}

#[test]
fn samples_come_while_somebody_reads() {
    let world = World::new();
    let daemon = world.start();
    let mut stream = Stream::open(&daemon);
    assert!(stream.is_open(), "{}", stream.text);
    let caller = stream.next("caller");
    assert_eq!(caller["may_change"], true, "{caller}");
    let first = stream.next("sample");
    assert_eq!(first["gpus"], daemon.get("/v1/gpus"));
    assert_eq!((&first["tenants"], &first["newest_event"]), (&serde_json::json!([]), &serde_json::json!(0)));
    let second = stream.next("sample");
    assert!(second["at_unix_ms"].as_i64() > first["at_unix_ms"].as_i64(), "{second}");
    // It does not hold the end up.
    daemon.end();
}

/// Among them those that never read, as a browser whose window is hidden for long.
#[test]
fn streams_are_limited_and_hold_no_other_request_up() {
    let world = World::new();
    let daemon = world.start();
    let mut streams: Vec<Stream> = (0..STREAMS_MAX).map(|_| Stream::open(&daemon)).collect();
    assert!(streams.iter().all(Stream::is_open));
    let (status, _, body) =
        parse(&daemon.raw(b"GET /v1/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).unwrap();
    assert_eq!(status, 429, "{body}");
    let problem = serde_json::from_str(&body).unwrap();
    check_problem(429, &problem);
    assert!(problem["detail"].as_str().unwrap().contains("200 event streams"), "{problem}");
    daemon.get("/v1/tenants");
    // The last one has samples as the first one has.
    for at in [0, STREAMS_MAX - 1] {
        streams[at].next("sample");
    }
    drop(streams.pop());
    eventually("there is room for another one", || Stream::open(&daemon).is_open());
}
