//! `partitad keeper`, as it is typed: on a simulated GPU, with a client and with the daemon that
//! shows it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use partita_daemon::memory::{Keepers, Memory};
use partita_memory::Place;
use partita_memory::client::{Connection, Error};
use partita_memory::wire::HandleKind;
use partita_testing::{eventually, without_own_variables};

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn keeper(temp: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partitad"));
    without_own_variables(&mut command);
    command.env("PARTITA_LIB_DIR", partita_testing::build()).env("PARTITA_SIM_DIR", temp.join("sim"));
    command.env("PARTITA_RUN_DIR", temp.join("run"));
    command.args(["keeper", "--gpu", "sim:h200"]).args(arguments).stdin(Stdio::null());
    command
}

fn connect(place: &Place, tenant: Option<&str>) -> Result<Connection, Error> {
    let tenant = tenant.map(|tenant| tenant.parse().unwrap());
    Connection::connect(&place.socket, tenant, Duration::from_secs(60))
}

#[test]
fn a_keeper_serves_at_its_place_and_ends_when_unused() {
    let temp = tempfile::Builder::new().prefix("pt-keeper-").tempdir_in("/tmp").unwrap();
    let run = temp.path().join("run");
    let arguments = ["--handles", "fd", "--quota", "4MiB", "--idle-s", "1"];
    let mut first = Ended(keeper(temp.path(), &arguments).spawn().unwrap());
    let mut places = Vec::new();
    eventually("it listens in the run directory", || {
        places = Place::all(&run).unwrap();
        !places.is_empty() && connect(&places[0], None).is_ok()
    });
    assert!(places[0].gpu_key.starts_with("sim-h200-"), "{places:?}");
    let mut client = connect(&places[0], Some("one")).unwrap();
    assert_eq!(client.welcome().handles, HandleKind::Descriptor);
    assert_eq!(client.welcome().pid, first.0.id());
    client.lease(None, 1 << 20, 2, 60_000).unwrap();
    let refused = client.lease(None, 4 << 20, 1, 0).unwrap_err().to_string();
    assert!(refused.contains("quota of 4.0MiB"), "{refused}");

    // What the daemon shows of it.
    let keepers = Keepers::new(partita::registry::Registry::at(&run).unwrap());
    let shown = keepers.keepers().unwrap();
    assert_eq!((shown.len(), shown[0].pid, shown[0].leases), (1, first.0.id(), 2));
    assert_eq!((shown[0].leased_bytes, &shown[0].gpu), (2 << 20, &places[0].gpu_key));
    let leases = keepers.leases().unwrap();
    assert!(leases.len() == 2 && leases.iter().all(|lease| lease.holder == "one" && lease.bytes == 1 << 20));
    assert!(leases.iter().all(|lease| lease.left_ms.is_some_and(|left_ms| left_ms <= 60_000)));

    // A second one gets the name of the first.
    let second = keeper(temp.path(), &[]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.code() == Some(125) && said.contains("another keeper serves"), "{said}");

    drop(client);
    assert!(first.0.wait().unwrap().success());
    assert_eq!(keepers.keepers().unwrap(), []);
    assert!(matches!(connect(&places[0], None), Err(Error::NoKeeper { .. })));
}

#[test]
fn what_it_cannot_do_it_says() {
    let temp = tempfile::Builder::new().prefix("pt-keeper-").tempdir_in("/tmp").unwrap();
    for (arguments, reason) in [
        (&["--socket", "/none/such/keeper"][..], "/none/such/keeper"),
        (&["--quota", "1GB"], "1GB"),
        (&["--handles", "udp"], "udp"),
    ] {
        let output = keeper(temp.path(), arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(125) && said.contains(reason), "{said}");
    }
}

#[test]
fn a_name_is_no_proof_of_whose_a_keeper_is() {
    let temp = tempfile::Builder::new().prefix("pt-keeper-").tempdir_in("/tmp").unwrap();
    let run = temp.path().join("run");
    let own = rustix::process::geteuid().as_raw();
    std::fs::create_dir(&run).unwrap();
    let places = [Place::of(&run, own, "mine"), Place::of(&run, own + 1, "theirs")];
    let start = |place: &Place| {
        let socket = place.socket.to_str().unwrap();
        let started = Ended(keeper(temp.path(), &["--handles", "fd", "--socket", socket]).spawn().unwrap());
        eventually("it listens", || connect(place, None).is_ok());
        started
    };
    let (mine, theirs) = (start(&places[0]), start(&places[1]));
    let keepers = Keepers::new(partita::registry::Registry::at(&run).unwrap());
    let shown: Vec<(u32, u32)> =
        keepers.keepers().unwrap().iter().map(|keeper| (keeper.user, keeper.pid)).collect();
    assert_eq!(shown, [(own, mine.0.id())]);
    // Nor is it asked for anything.
    let caller = partita_daemon::api::Caller { user: 0, rights: partita_daemon::api::Rights::All };
    let problem = keepers.take_back(caller, theirs.0.id(), 1).unwrap_err();
    assert_eq!(problem.code(), partita_daemon::Kind::NotFound, "{}", problem.detail);
}
