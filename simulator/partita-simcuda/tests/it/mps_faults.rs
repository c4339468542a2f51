//! Faults in the stand-in for MPS: which clients they affect, which they spare, and the recovery.

use crate::mps_service;

use std::collections::BTreeMap;

use partita_mps::fault::{Part, ServerState, Tracker};
use partita_mps::log::Tail;
use partita_simcuda::shared::place::Place;
use partita_simcuda::shared::protocol::{MpsIdentity, ProcessStatus, Request};

use mps_service::{Client, Daemon, eventually, exists, kill, on, play_board};

fn faulty(pid: u32, server: u32) -> ProcessStatus {
    let mps = Some(MpsIdentity::unlimited(server, 1));
    ProcessStatus {
        pid,
        command: "tenant".to_owned(),
        contexts: 1,
        used_bytes: 0,
        mps,
        fault: 700,
        sm_percent: 0,
    }
}

#[test]
fn a_server_with_a_fault_admits_no_client_until_affected_ones_have_left() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    let mut hurt = Client::start(&daemon.dirs, &[]);
    hurt.outcome();
    let server = daemon.server();
    board.lock().unwrap().processes = vec![faulty(hurt.pid(), server)];
    eventually("the daemon hears of it", || daemon.dirs.log("server.log").contains("fatal GPU error"));
    assert_eq!(daemon.ask(&format!("get_server_status {server}")), "FAULT");
    assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), "error 807");
    board.lock().unwrap().processes.clear();
    assert_eq!(
        daemon.ask(&format!("get_server_status {server}")),
        "FAULT",
        "affected clients have to \
        leave"
    );
    drop(hurt);
    eventually("the server recovers", || daemon.ask(&format!("get_server_status {server}")) == "ACTIVE");
    assert_eq!(Client::start(&daemon.dirs, &[]).outcome(), format!("{server} 2 100 0"));
}

#[test]
fn before_volta_a_fault_ends_the_server() {
    let daemon = Daemon::start();
    let place = Place::new("p100", 0, Some(daemon.dirs.place().dir.into())).unwrap();
    let board = play_board(&place);
    let start = || Client::start(&daemon.dirs, &[("PARTITA_SIM_DEVICE", "p100")]);
    let (mut hurt, mut beside) = (start(), start());
    hurt.outcome();
    beside.outcome();
    let server = daemon.server();
    board.lock().unwrap().processes = vec![faulty(hurt.pid(), server)];
    eventually("the server ends", || {
        daemon.dirs.log("control.log").contains(&format!("Server {server} exited with status 0"))
    });
    board.lock().unwrap().processes.clear();
    // Its clients need not leave before the next program gets another server.
    let mut next = start();
    let outcome = next.outcome();
    assert_ne!(daemon.server(), server);
    assert_eq!(outcome, format!("{} 1 100 0", daemon.server()));
    drop((hurt, beside));
}

#[test]
fn clients_of_a_server_that_goes_lose_the_gpu_and_newcomers_get_a_new_one() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    for how in ["shutdown_server -f", "kill"] {
        let mut client = Client::start(&daemon.dirs, &[]);
        client.outcome();
        let server = daemon.server();
        if how == "kill" {
            kill(server, libc::SIGKILL);
        } else {
            assert_eq!(daemon.ask(&format!("shutdown_server {server} -f")), "");
        }
        eventually("the server goes", || daemon.ask("get_server_list").is_empty());
        assert!(!exists(server));
        assert_eq!(
            std::mem::take(&mut board.lock().unwrap().heard),
            [Request::ServerGone { server }],
            "{how}"
        );
        let mut next = Client::start(&daemon.dirs, &[]);
        let outcome = next.outcome();
        assert_eq!(outcome, format!("{} 1 100 0", daemon.server()));
        assert_ne!(daemon.server(), server);
        drop(next);
        let quiet = format!("shutdown_server {}", daemon.server());
        daemon.ask(&quiet);
        eventually("the unused server goes", || daemon.ask("get_server_list").is_empty());
    }
    assert!(daemon.dirs.log("control.log").contains("exited with status 137"));
}

#[test]
fn a_fault_is_written_down_and_its_reach_is_read_back() {
    let daemon = Daemon::start();
    let board = play_board(&daemon.dirs.place());
    let mut clients: Vec<Client> = (0..3).map(|_| Client::start(&daemon.dirs, &[])).collect();
    clients.iter_mut().for_each(|client| drop(client.outcome()));
    let (server, pids) = (daemon.server(), clients.iter().map(Client::pid).collect::<Vec<_>>());
    let mut control = Tail::from_start(&daemon.dirs.temp.path().join("log/control.log"));
    let mut tail = Tail::from_start(&daemon.dirs.temp.path().join("log/server.log"));
    let mut tracker = Tracker::new();
    let mut follow = |tracker: &mut Tracker| {
        for entry in control.poll().unwrap().into_iter().chain(tail.poll().unwrap()) {
            tracker.apply(&entry);
        }
    };
    eventually("every client is active", || {
        follow(&mut tracker);
        tracker.clients(server).count() == 3
    });
    assert_eq!(tracker.state(server), Some(ServerState::Active));
    board.lock().unwrap().processes = pids.iter().map(|&pid| faulty(pid, server)).collect();
    eventually("the fault is followed to its last word", || {
        follow(&mut tracker);
        tracker.fault(server).is_some_and(|fault| fault.hit.len() == 3 && !fault.devices.is_empty())
    });
    let fault = tracker.fault(server).unwrap();
    assert_eq!(tracker.state(server), Some(ServerState::Fault));
    let culprit = fault.culprit(&BTreeMap::new());
    let candidates: Vec<u32> = culprit.candidates().iter().map(|one| one.pid).collect();
    assert_eq!((candidates, culprit.known()), (fault.hit.iter().copied().collect(), None));
    assert_eq!(fault.part_of(pids[0], &culprit), Part::Hit);
    assert!(fault.spared.is_empty());
    board.lock().unwrap().processes.clear();
    clients.clear();
    eventually("the server is active again", || {
        follow(&mut tracker);
        tracker.state(server) == Some(ServerState::Active)
    });
    assert!(tracker.fault(server).unwrap().staying.is_empty());
}

/// Clients A on device 0, B on 0 and 1, C on 1, D on 2: section 2.3.3.2 of the MPS guide.
#[test]
fn the_four_clients_of_the_guide() {
    let daemon = Daemon::start();
    let places = [0, 1, 2].map(|index| on(&daemon.dirs.place(), index));
    let boards = places.each_ref().map(play_board);
    let mut clients: Vec<Client> =
        ["0", "0,1", "1", "2"].map(|gpus| Client::start(&daemon.dirs, &[("TEST_GPUS", gpus)])).into();
    clients.iter_mut().for_each(|client| drop(client.outcome()));
    let server = daemon.server();
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| clients[at].pid());
    let log = || daemon.dirs.log("server.log");
    eventually("every context is there", || log().matches("is ACTIVE").count() == 5);
    // The board of device 0 fails the clients that it knows.
    boards[0].lock().unwrap().processes = vec![faulty(a, server), faulty(b, server)];
    let mut tail = Tail::from_start(&daemon.dirs.temp.path().join("log/server.log"));
    let mut tracker = Tracker::new();
    eventually("the fault is written down", || {
        for entry in tail.poll().unwrap() {
            tracker.apply(&entry);
        }
        tracker.fault(server).is_some_and(|fault| fault.hit.len() == 3)
    });
    let fault = tracker.fault(server).unwrap().clone();
    assert_eq!(fault.devices.iter().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(fault.hit, [a, b, c].into());
    let culprit = fault.culprit(&BTreeMap::new());
    let parts = [a, b, c, d].map(|pid| fault.part_of(pid, &culprit));
    assert_eq!(parts, [Part::Hit, Part::Hit, Part::Hit, Part::Spared]);
    let contained = Request::Contain { server, code: 700 };
    assert_eq!(boards[1].lock().unwrap().heard, [contained], "client B ties device 1 to it");
    assert!(boards[2].lock().unwrap().heard.is_empty());
    let status = format!("get_server_status {server}");
    assert_eq!(daemon.ask(&status), "FAULT");
    boards[0].lock().unwrap().processes.clear();
    let last = clients.pop().unwrap();
    clients.clear();
    eventually("the server is active with the one that was spared", || daemon.ask(&status) == "ACTIVE");
    assert_eq!(daemon.ask(&format!("get_client_list {server}")), last.pid().to_string());
}

/// A client that sees a device on which another one's work breaks, and has contexts elsewhere
/// alone.
#[test]
fn a_client_is_hit_where_it_has_contexts() {
    let daemon = Daemon::start();
    let places = [0, 1].map(|index| on(&daemon.dirs.place(), index));
    let boards = places.each_ref().map(play_board);
    let mut breaks = Client::start(&daemon.dirs, &[("TEST_GPUS", "0")]);
    let mut spared = Client::start(&daemon.dirs, &[("TEST_GPUS", "1"), ("TEST_SEES", "0")]);
    breaks.outcome();
    spared.outcome();
    let server = daemon.server();
    let log = || daemon.dirs.log("server.log");
    eventually("every context is there", || log().matches("is ACTIVE").count() == 2);
    boards[0].lock().unwrap().processes = vec![faulty(breaks.pid(), server)];
    eventually("the fault is written down", || {
        log().contains("have a sticky error set:") && log().contains(&format!("] {}\n", breaks.pid()))
    });
    assert!(!log().contains(&format!("] {}\n", spared.pid())), "{}", log());
    assert!(boards[1].lock().unwrap().heard.is_empty(), "nothing ties its device to the fault");
    boards[0].lock().unwrap().processes.clear();
    drop(breaks);
    let status = format!("get_server_status {server}");
    eventually("the server is active with the one that was spared", || daemon.ask(&status) == "ACTIVE");
    assert_eq!(daemon.ask(&format!("get_client_list {server}")), spared.pid().to_string());
}
