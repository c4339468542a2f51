//! Listeners that answer as no keeper does, or not at all.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_memory::client::{Connection, Error};
use partita_memory::pool::{Lease, LeaseId, OwnerId, SlabId};
use partita_memory::wire::{
    FRAME_BYTES_MAX, HandleKind, LeaseRow, ROWS_MAX, Reply, Request, TenantRow, VERSION, Welcome, tag_of,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};

/// Only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(60);

fn listen(dir: &Path, backlog: i32) -> (PathBuf, OwnedFd) {
    let path = dir.join("keeper");
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, backlog).unwrap();
    (path, listener)
}

/// A connection to a listener that greets and then answers everything in the same way.
fn connect(answer: impl Fn() -> Reply + Send + 'static) -> Connection {
    let temp = tempfile::Builder::new().prefix("pt-mem-").tempdir_in("/tmp").unwrap();
    let (path, listener) = listen(temp.path(), 1);
    std::thread::spawn(move || {
        let client = rustix::net::accept(&listener).unwrap();
        let (mut buffer, mut frame) = ([0; FRAME_BYTES_MAX], Vec::new());
        while let Ok((bytes @ 1.., _)) = rustix::net::recv(&client, &mut buffer, RecvFlags::empty()) {
            let reply = match Request::decode(&buffer[..bytes]).unwrap() {
                Request::Hello { .. } => Reply::Welcome(Welcome {
                    version: VERSION,
                    handles: HandleKind::Descriptor,
                    instance: 1,
                    gpu_uuid: [7; 16],
                    pid: 1,
                    batch_max: 1,
                    ttl_ms_max: 0,
                }),
                _ => answer(),
            };
            reply.encode(tag_of(&buffer[..bytes]), &mut frame);
            if rustix::net::send(&client, &frame, SendFlags::NOSIGNAL).is_err() {
                return;
            }
        }
    });
    Connection::connect(&path, None, PATIENCE).unwrap()
}

#[test]
fn a_list_that_never_ends_is_no_keepers() {
    let tenant = "one".parse().unwrap();
    let row = LeaseRow {
        lease: Lease { id: LeaseId(1), slab: SlabId(1), offset: 0, bytes: 1 },
        bytes_asked: 1,
        age_ms: 0,
        ttl_ms: 0,
        left_ms: 0,
        pid: 1,
        owner: OwnerId(1),
        uid: 0,
        is_resting: false,
        tenant,
    };
    let mut leases = connect(move || Reply::Leases(vec![row; ROWS_MAX]));
    let error = leases.leases().unwrap_err();
    assert!(matches!(error, Error::Answer { asked: "leases" }), "{error}");

    let row = TenantRow { uid: 0, owners: 0, quota_bytes: 0, slab_bytes: 0, used_bytes: 0, name: tenant };
    let mut tenants = connect(move || Reply::Tenants(vec![row; ROWS_MAX]));
    let error = tenants.tenants().unwrap_err();
    assert!(matches!(error, Error::Answer { asked: "tenants" }), "{error}");
}

#[test]
fn who_takes_no_connections_is_not_waited_for() {
    let temp = tempfile::Builder::new().prefix("pt-mem-").tempdir_in("/tmp").unwrap();
    let (path, _listener) = listen(temp.path(), 0);
    let connect = || Connection::connect(&path, None, Duration::from_millis(50)).map(drop).unwrap_err();
    // The kernel accepts one for it.
    let error = connect();
    assert!(matches!(error, Error::Silent { asked: "hello", .. }), "{error}");
    let error = connect();
    assert!(matches!(error, Error::Unattended { patience_ms: 50, .. }), "{error}");
}

#[test]
fn its_process_and_its_user_are_what_the_kernel_says() {
    let stranger = connect(|| Reply::Done);
    assert_eq!(stranger.welcome().pid, std::process::id(), "it says 1");
    assert_eq!(stranger.user(), rustix::process::geteuid().as_raw());
}

#[test]
fn root_leases_nothing_from_a_users_keeper() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can listen as another user");
    }
    let temp = tempfile::Builder::new().prefix("pt-mem-").tempdir_in("/tmp").unwrap();
    let (path, listener) = listen(temp.path(), 1);
    let user = rustix::process::Uid::from_raw(65534);
    let listening = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(user).unwrap();
        // The kernel notes who listens at each such call.
        rustix::net::listen(&listener, 1).unwrap();
        listener
    });
    let _listener = listening.join().unwrap();
    let connect =
        |tenant| Connection::connect(&path, tenant, Duration::from_millis(50)).map(drop).unwrap_err();
    let error = connect(Some("one".parse().unwrap()));
    assert!(matches!(error, Error::Stranger { uid: 65534, .. }), "{error}");
    // A query is sent.
    let error = connect(None);
    assert!(matches!(error, Error::Silent { asked: "hello", .. }), "{error}");
}
