//! `/metrics`: what it says of MPS is what `partita mps status --metrics` says.

mod common;

use std::collections::BTreeMap;
use std::process::Child;

use common::{Daemon, World};
use partita_memory::client::Connection;
use partita_testing::{eventually, needs_simulator};
use rustix::process::{Pid, Signal};

/// A program that runs under Partita.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// The samples of a page that are about MPS, whichever of the two formats it has.
fn of_mps(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| line.starts_with("partita_mps_"));
    let samples = lines.map(|line| line.rsplit_once(' ').unwrap());
    samples.map(|(what, value)| (what.to_owned(), value.parse().unwrap())).collect()
}

fn scraped(daemon: &Daemon) -> BTreeMap<String, f64> {
    let (status, headers, page) = daemon.send("GET /metrics HTTP/1.1", b"");
    assert!(status == 200 && headers.contains("application/openmetrics-text"), "{status} {headers}");
    assert!(page.ends_with("# EOF\n"), "{page}");
    for line in ["# TYPE partita_mps_up gauge", "# TYPE partita_mps_servers_started counter"] {
        assert_eq!(page.lines().filter(|one| *one == line).count(), 1, "{line} in {page}");
    }
    of_mps(&page)
}

fn said(world: &World) -> BTreeMap<String, f64> {
    let output = world.partita(["mps", "status", "--metrics"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    of_mps(&String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_services_of_mps_are_on_the_page() {
    if needs_simulator("a service that nobody else has clients of") {
        return;
    }
    let world = World::new();
    let daemon = world.start();
    let value = |samples: &BTreeMap<String, f64>, name: &str| -> Vec<f64> {
        let of = samples.iter().filter(|(what, _)| what.starts_with(&format!("{name}{{")));
        of.map(|(_, value)| *value).collect()
    };
    let before = scraped(&daemon);
    assert_eq!((value(&before, "partita_mps_up"), &before), (vec![0.0], &said(&world)));

    // A program that uses the GPU as a client of the service.
    let socket = world.dir().join("keeper");
    let mut command = world.partita(["run", "--name", "user", "--sm", "25%", "--"]);
    command.arg(common::program()).args(["keeper", "--attached", "--socket"]).arg(&socket);
    let _user = Ended(command.spawn().unwrap());
    eventually("it uses the GPU", || Connection::connect(&socket, None, common::PATIENCE).is_ok());
    let now = scraped(&daemon);
    assert_eq!(now, said(&world));
    assert_eq!(value(&now, "partita_mps_up"), [1.0]);
    assert_eq!(
        (value(&now, "partita_mps_clients"), value(&now, "partita_mps_servers_started_total")),
        (vec![1.0], vec![1.0])
    );
    assert_eq!(value(&now, "partita_mps_server_state").iter().sum::<f64>(), 1.0, "{now:?}");
}
