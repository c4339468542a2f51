//! The service through its socket, with the host's memory in place of a GPU's.

use crate::common;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Keeper, MIB, PATIENCE};
use partita_memory::client::{Connection, Error, OpenedBy};
use partita_memory::keeper::End;
use partita_memory::pool::{Lease, LeaseId, OwnerId, SlabId};
use partita_memory::wire::Code;
use partita_testing::eventually;

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> Code {
    match result {
        Err(Error::Refused { code, text, .. }) => {
            assert!(text.contains(": ") || text.contains(", ") || text.contains("must"), "no remedy: {text}");
            code
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn ids(leases: &[Lease]) -> Vec<LeaseId> {
    leases.iter().map(|lease| lease.id).collect()
}

#[test]
fn leases_are_given_listed_and_taken_back() {
    let keeper = Keeper::new(|_| ());
    let mut client = keeper.client("one");
    assert_eq!(client.welcome().pid, std::process::id());
    let leases = client.lease(None, 100_000, 5, 0).unwrap();
    let other = client.lease(None, 3 * MIB, 1, 60_000).unwrap();
    assert!(leases.iter().all(|lease| lease.bytes >= 100_000 && lease.slab != other[0].slab));
    let opened = client.open(leases[0].slab).unwrap();
    let OpenedBy::Descriptor(descriptor) = opened.by else { panic!("{opened:?}") };
    assert_eq!(File::from(descriptor).metadata().unwrap().len(), opened.bytes);

    let mut admin = keeper.admin();
    let rows = admin.leases().unwrap();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row.pid == std::process::id() && row.tenant.as_str() == "one"));
    assert_eq!((rows[5].lease, rows[5].bytes_asked, rows[5].ttl_ms), (other[0], 3 * MIB, 60_000));
    assert!((1..=60_000).contains(&rows[5].left_ms) && rows[0].left_ms == 0);
    let tenants = admin.tenants().unwrap();
    assert_eq!((tenants.len(), tenants[0].owners, tenants[0].name.as_str()), (1, 1, "one"));
    assert_eq!(tenants[0].used_bytes, rows.iter().map(|row| row.lease.bytes).sum::<u64>());

    client.free(&ids(&leases)).unwrap();
    client.free(&ids(&other)).unwrap();
    assert_eq!(code(client.free(&ids(&other))), Code::Unknown);
    client.close(&[leases[0].slab]).unwrap();
    drop(client);
    keeper.is_clean_in_the_end();
    assert_eq!(keeper.end(), End::Told);
}

#[test]
fn a_listing_of_many_is_whole() {
    let keeper = Keeper::new(|_| ());
    let mut client = keeper.client("many");
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.extend(ids(&client.lease(None, 1, 100, 0).unwrap()));
    }
    let rows = keeper.admin().leases().unwrap();
    assert_eq!(rows.iter().map(|row| row.lease.id).collect::<Vec<_>>(), expected);
    let mut clients: Vec<Connection> = (0..120).map(|n| keeper.client(&format!("t{n:03}"))).collect();
    assert_eq!(keeper.admin().tenants().unwrap().len(), 121);
    assert_eq!(keeper.status().clients, 122);
    clients.truncate(3);
    eventually("tenants that have nothing are forgotten", || keeper.admin().tenants().unwrap().len() == 4);
}

#[test]
fn what_is_refused_changes_nothing() {
    let keeper = Keeper::new(|options| options.quota_bytes = 8 * MIB);
    let (mut one, mut other) = (keeper.client("one"), keeper.client("other"));
    let mine = one.lease(None, MIB, 2, 0).unwrap();
    let before = keeper.status().totals;

    assert_eq!(code(one.lease(None, 0, 1, 0)), Code::Bounds);
    assert_eq!(code(one.lease(None, u64::MAX, 1, 0)), Code::Bounds);
    assert_eq!(code(one.lease(None, 1, 129, 0)), Code::Bounds);
    assert_eq!(code(one.lease(None, 1, 1, u32::MAX)), Code::Bounds);
    assert_eq!(code(one.lease(None, MIB, 9, 0)), Code::Quota);
    assert_eq!(code(one.lease(Some(OwnerId(1 << 40)), 1, 1, 0)), Code::Unknown);
    // All or none.
    assert_eq!(code(one.free(&[mine[0].id, LeaseId(1 << 40)])), Code::Unknown);
    assert_eq!(code(one.free(&[mine[0].id, mine[0].id])), Code::Bounds);
    assert_eq!(code(one.close(&[mine[0].slab])), Code::Unknown);
    // Another tenant's objects look as if they did not exist.
    assert_eq!(code(other.free(&ids(&mine))), Code::Unknown);
    assert_eq!(code(other.open(mine[0].slab)), Code::Unknown);
    // Files that are not a chain's.
    let null = File::open("/dev/null").unwrap();
    assert_eq!(code(one.join_chain(null.as_fd())), Code::NotAChain);
    let unlocked = tempfile::tempfile().unwrap();
    assert_eq!(code(one.join_chain(unlocked.as_fd())), Code::NotAChain);
    // Without a tenant a client can only query.
    let mut admin = keeper.admin();
    assert_eq!(code(admin.lease(None, 1, 1, 0)), Code::NotAllowed);
    assert_eq!(code(admin.open(SlabId(1))), Code::NotAllowed);
    assert_eq!(code(admin.end_keeper(false)), Code::InUse);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(code(admin.set_quota(uid, "one".parse().unwrap(), 1)), Code::InUse);

    assert_eq!(keeper.status().totals, before);
    // The quota of one is not that of the other, nor of the same name of another user.
    admin.set_quota(uid, "one".parse().unwrap(), 64 * MIB).unwrap();
    admin.set_quota(uid + 1, "one".parse().unwrap(), MIB).unwrap();
    one.lease(None, MIB, 9, 0).unwrap();
    assert_eq!(code(other.lease(None, MIB, 9, 0)), Code::Quota);
}

#[test]
fn deadlines_end_leases_of_those_who_give_no_sign_of_life() {
    let keeper = Keeper::new(|_| ());
    let (mut silent, mut alive) = (keeper.client("one"), keeper.client("one"));
    let timed = silent.lease(None, 4096, 3, 1).unwrap();
    let kept = alive.lease(None, 4096, 1, 600_000).unwrap();
    eventually("the deadline has passed", || keeper.status().totals.resting == 3);
    // Other clients cannot return them, or lease them.
    assert_eq!(code(alive.free(&[timed[0].id])), Code::InUse);
    let more = alive.lease(None, 4096, 100, 0).unwrap();
    let block = |lease: &Lease| (lease.slab, lease.offset);
    assert!(more.iter().all(|new| timed.iter().all(|old| block(old) != block(new))));
    let beat = silent.beat().unwrap();
    assert_eq!((beat.expired, silent.beat().unwrap().expired), (3, 0));
    silent.free(&ids(&timed)).unwrap();
    assert_eq!((keeper.status().totals.resting, keeper.status().totals.leases), (0, 101));
    alive.free(&ids(&kept)).unwrap();
    drop((silent, alive));
    keeper.is_clean_in_the_end();
}

#[test]
fn racing_clients_never_get_the_same_block() {
    let keeper = Keeper::new(|_| ());
    let busy: Vec<AtomicU64> = (0..1 << 16).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for number in 1..=8u64 {
            let (keeper, busy) = (&keeper, &busy);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(number);
                let mut client = keeper.client("race");
                let mut held: Vec<Lease> = Vec::new();
                // Blocks of one size, so that its number names one in its slab.
                let place =
                    |lease: &Lease| &busy[(lease.slab.0 * 521 + lease.offset / 4096) as usize % (1 << 16)];
                for _ in 0..300 {
                    if random.bool() {
                        let leases = client.lease(None, 4096, random.u32(1..16), 0).unwrap();
                        for lease in &leases {
                            assert_eq!(place(lease).swap(number, Ordering::SeqCst), 0, "{lease:?}");
                        }
                        held.extend(leases);
                    } else {
                        let count = random.usize(0..=held.len().min(100));
                        let back: Vec<Lease> = held.drain(..count).collect();
                        for lease in &back {
                            assert_eq!(place(lease).swap(0, Ordering::SeqCst), number);
                        }
                        client.free(&ids(&back)).unwrap();
                    }
                }
                held.iter().for_each(|lease| place(lease).store(0, Ordering::SeqCst));
            });
        }
    });
    keeper.is_clean_in_the_end();
}

#[test]
fn a_chains_leases_outlive_connections_and_end_with_its_locks() {
    let keeper = Keeper::new(|_| ());
    let file = tempfile::NamedTempFile::new().unwrap();
    // Another process holds the lock: a description of this one would do, but that is not the usual
    // case.
    let mut holder = partita_testing::ignored_test("child_holds_a_lock");
    let mut holder = holder.env("FILE", file.path()).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let chain = File::open(file.path()).unwrap();
    let mut first = keeper.client("chain");
    let mut number = None;
    eventually("the lock is held", || {
        number = first.join_chain(chain.as_fd()).ok();
        number.is_some()
    });
    let number = number.unwrap();
    let frames = first.lease(Some(number), MIB, 4, 0).unwrap();
    first.open(frames[0].slab).unwrap();
    // A second member joins the same chain, and others of the tenant do not lease for it.
    let mut second = keeper.client("chain");
    assert_eq!(second.join_chain(chain.as_fd()).unwrap(), number);
    let mut stranger = keeper.client("chain");
    assert_eq!(code(stranger.lease(Some(number), 1, 1, 0)), Code::Unknown);
    let mut thief = keeper.client("thief");
    assert_eq!(code(thief.join_chain(chain.as_fd())), Code::NotAChain);
    assert_eq!(keeper.status().chains, 1);
    // The first connection ends, and the chain still has its memory.
    first.close(&[frames[0].slab]).unwrap();
    drop(first);
    let mut admin = keeper.admin();
    assert_eq!(admin.leases().unwrap().iter().filter(|row| row.owner == number && row.pid == 0).count(), 4);
    second.free(&[frames[3].id]).unwrap();
    second.open(frames[0].slab).unwrap();
    // The holder is killed: the lock is gone, and a member's open slabs rest until the member has
    // closed them.
    holder.kill().unwrap();
    holder.wait().unwrap();
    eventually("the chain has ended", || keeper.status().chains == 0);
    assert_eq!((keeper.status().totals.leases, keeper.status().totals.resting), (0, 3));
    second.close(&[frames[0].slab]).unwrap();
    assert_eq!(keeper.status().totals.resting, 0);
    assert_eq!(code(second.join_chain(chain.as_fd())), Code::NotAChain);
    drop((second, stranger, thief));
    keeper.is_clean_in_the_end();
}

#[test]
#[ignore = "a test runs it in a child process"]
fn child_holds_a_lock() {
    let path = std::env::var_os("FILE").unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    // Until it is killed, or the test is.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_keeper_that_ends_is_a_typed_error_with_a_remedy() {
    let keeper = Keeper::new(|_| ());
    let socket = keeper.socket.clone();
    let mut client = keeper.client("one");
    client.lease(None, 4096, 1, 0).unwrap();
    assert_eq!(keeper.end(), End::Told);
    for _ in 0..2 {
        match client.lease(None, 4096, 1, 0) {
            Err(error @ (Error::KeeperGone { .. } | Error::OutOfStep)) => {
                assert!(error.to_string().contains("again"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    match Connection::connect(&socket, None, PATIENCE).err() {
        Some(error @ Error::NoKeeper { .. }) => {
            assert!(error.to_string().contains("partitad keeper"), "{error}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unused_keeper_ends() {
    let keeper = Keeper::new(|options| options.idle = Some(Duration::from_millis(150)));
    let mut client = keeper.client("one");
    client.lease(None, 4096, 1, 0).unwrap();
    // Longer than it would wait without a client.
    std::thread::sleep(Duration::from_millis(300));
    client.beat().unwrap();
    drop(client);
    // A connection that only queries does not keep it.
    let _admin = keeper.admin();
    assert_eq!(keeper.wait(), End::Idle);
}

#[test]
fn times_without_an_end_are_never_over() {
    let keeper = Keeper::new(|options| {
        options.idle = Some(Duration::MAX);
        options.settle = Some(Duration::MAX);
    });
    let mut client =
        Connection::connect(&keeper.socket, Some("one".parse().unwrap()), Duration::MAX).unwrap();
    client.lease(None, 4096, 1, 0).unwrap();
    drop(client);
    keeper.is_clean_in_the_end();
    assert_eq!(keeper.end(), End::Told);
}

#[test]
fn too_many_connections_are_refused_with_a_message() {
    let keeper = Keeper::new(|options| options.clients_max = 3);
    let clients: Vec<Connection> = (0..3).map(|_| keeper.client("one")).collect();
    let refused = Connection::connect(&keeper.socket, None, PATIENCE).err().unwrap().to_string();
    assert!(refused.contains("3 connections"), "{refused}");
    drop(clients);
    eventually("there is room again", || Connection::connect(&keeper.socket, None, PATIENCE).is_ok());
}

#[test]
fn a_silent_keeper_is_not_waited_for_for_ever() {
    let temp = tempfile::Builder::new().prefix("pt-mem-").tempdir_in("/tmp").unwrap();
    let socket = temp.path().join("silent");
    let listener =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
            .unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&socket).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let error = Connection::connect(&socket, None, Duration::from_millis(20)).err().unwrap();
    let own = std::process::id();
    assert!(matches!(error, Error::Silent { asked: "hello", pid, .. } if pid == own), "{error}");
    let _keep: OwnedFd = listener;
}

#[test]
fn a_keeper_that_accepts_no_client_does_not_block_for_ever() {
    let temp = tempfile::Builder::new().prefix("pt-mem-").tempdir_in("/tmp").unwrap();
    let socket = temp.path().join("stopped");
    let address = rustix::net::SocketAddrUnix::new(&socket).unwrap();
    let made =
        || rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None);
    let listener = made().unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    // There is room for this one.
    let first = made().unwrap();
    rustix::net::connect(&first, &address).unwrap();
    let path = socket.clone();
    let waiting =
        std::thread::spawn(move || Connection::connect(&path, None, Duration::from_millis(20)).err());
    eventually("it gives up", || waiting.is_finished());
    let error = waiting.join().unwrap().unwrap();
    assert!(matches!(error, Error::Unattended { patience_ms: 20, .. }), "{error}");
    assert!(error.to_string().contains("stopped"), "{error}");
    drop((listener, first));
}
