//! The guide's own examples and rules for states.

use proptest::prelude::*;

use super::*;
use crate::log::LogReader;

/// Clients A on device 0, B on 0 and 1, C on 1, D on 2: section 2.3.3.2 of the guide.
fn four_clients() -> BTreeMap<char, BTreeSet<u32>> {
    [('A', vec![0]), ('B', vec![0, 1]), ('C', vec![1]), ('D', vec![2])]
        .into_iter()
        .map(|(client, devices)| (client, devices.into_iter().collect()))
        .collect()
}

#[test]
fn the_four_clients_of_the_guide() {
    let clients = four_clients();
    let hit = contain(&clients, &0);
    assert_eq!(hit.devices, BTreeSet::from([0, 1]));
    assert_eq!(hit.clients, BTreeSet::from(['A', 'B', 'C']));
    assert_eq!(contain(&clients, &1), hit, "from either of the devices");
    assert_eq!(contain(&clients, &2).clients, BTreeSet::from(['D']));
    assert!(contain(&clients, &3).clients.is_empty());
    assert_eq!(domains(&clients), [hit, contain(&clients, &2)]);
}

/// The same four as processes 100 to 103 of server 7, followed through a fault that client A
/// causes.
fn log_of_the_four() -> String {
    let mut text = String::new();
    let mut line = |source: &str, pid: Pid, words: &str| {
        text.push_str(&format!("[2026-11-21 10:00:00.000 {source} {pid}] {words}\n"));
    };
    line("Control", 1, "Starting new server 7 for user 0");
    line("Server", 7, "Creating server context on device 0");
    line("Control", 1, "NEW SERVER 7: Ready");
    for client in 100..104 {
        line("Server", 7, &format!("Client {{PID: {client}, Context ID: 0}} connected"));
        line("Server", 7, &format!("Status of client {{PID: {client}, Context ID: 1}} is ACTIVE"));
    }
    line("Server", 7, "Server is handling a fatal GPU error.");
    for client in 100..103 {
        line("Server", 7, &format!("Status of client {{PID: {client}, Context ID: 1}} is INACTIVE"));
    }
    line("Server", 7, "The following devices");
    line("Server", 7, "0");
    line("Server", 7, "1");
    line("Server", 7, "The following clients have a sticky error set:");
    for client in 100..103 {
        line("Server", 7, &client.to_string());
    }
    text
}

fn entries(log: &str) -> Vec<Entry> {
    LogReader::new().push(log.as_bytes())
}

fn apply(tracker: &mut Tracker, log: &str) -> Vec<Change> {
    entries(log).iter().filter_map(|entry| tracker.apply(entry)).collect()
}

#[test]
fn a_server_goes_through_its_states() {
    let mut tracker = Tracker::new();
    let states: Vec<ServerState> =
        apply(&mut tracker, &log_of_the_four()).iter().map(|change| change.to).collect();
    assert_eq!(states, [ServerState::Initializing, ServerState::Active, ServerState::Fault]);
    let fault = tracker.fault(7).unwrap();
    assert_eq!(fault.devices, BTreeSet::from([0, 1]));
    assert_eq!(fault.hit, BTreeSet::from([100, 101, 102]));
    assert_eq!(fault.staying, fault.hit);
    assert_eq!(fault.spared, BTreeSet::from([103]));
    let culprit = fault.culprit(&BTreeMap::new());
    assert_eq!(pids(&culprit), [100, 101, 102]);
    let parts = [100, 103, 999].map(|pid| fault.part_of(pid, &culprit));
    assert_eq!(parts, [Part::Hit, Part::Spared, Part::Absent]);

    let leave: String = (100..103)
        .map(|client| format!("[2026-11-21 10:00:01.000 Server 7] Client process {client} disconnected\n"))
        .collect();
    assert!(apply(&mut tracker, &leave).is_empty(), "its contexts are yet to be made");
    assert!(tracker.fault(7).unwrap().staying.is_empty());
    let first = "[2026-11-21 10:00:02.000 Server 7] Creating server context on device 0\n";
    assert!(apply(&mut tracker, first).is_empty(), "one of two");
    let second = "[2026-11-21 10:00:03.000 Server 7] Creating server context on device 1\n";
    let changes = apply(&mut tracker, second);
    assert_eq!(changes, [Change { server: 7, from: Some(ServerState::Fault), to: ServerState::Active }]);
    assert_eq!(tracker.fault(7).unwrap().ended.unwrap().second, 3);
    assert_eq!(tracker.clients(7).collect::<Vec<_>>(), [103], "the spared one is still there");
    let exit = "[2026-11-21 10:00:04.000 Control 1] Server 7 exited with status 0\n";
    assert_eq!(apply(&mut tracker, exit)[0].to, ServerState::Ended);
    assert_eq!(tracker.state(7), None);
}

/// Section 4.3.2 of the guide, verbatim.
const GUIDE: &str = "\
[2022-04-28 15:56:07.410 Other 11570] Volta MPS: status of client {11661, 1} is ACTIVE
[2022-04-28 15:56:07.468 Other 11570] Volta MPS: status of client {11663, 1} is ACTIVE
[2022-04-28 15:56:07.518 Other 11570] Volta MPS: status of client {11643, 2} is ACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: Server is handling a fatal GPU error.
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11641, 1} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11643, 1} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11643, 2} is INACTIVE
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: The following devices
[2022-04-28 15:56:08.906 Other 11570] 0
[2022-04-28 15:56:08.907 Other 11570] 1
[2022-04-28 15:56:08.907 Other 11570] Volta MPS: The following clients have a sticky error set:
[2022-04-28 15:56:08.907 Other 11570] 11641
[2022-04-28 15:56:08.907 Other 11570] 11643
[2022-04-28 15:56:09.200 Other 11570] Client {11641, 1} exit
[2022-04-28 15:56:09.244 Other 11570] Client {11643, 1} exit
[2022-04-28 15:56:09.244 Other 11570] Client {11643, 2} exit
[2022-04-28 15:56:09.245 Other 11570] Volta MPS: Destroy server context on device 0
[2022-04-28 15:56:09.269 Other 11570] Volta MPS: Destroy server context on device 1
[2022-04-28 15:56:10.310 Other 11570] Volta MPS: Creating server context on device 0
[2022-04-28 15:56:10.397 Other 11570] Volta MPS: Creating server context on device 1
";

#[test]
fn the_log_of_the_guide() {
    let mut tracker = Tracker::new();
    let changes = apply(&mut tracker, GUIDE);
    assert_eq!(
        changes.iter().map(|change| change.to).collect::<Vec<_>>(),
        [ServerState::Fault, ServerState::Active]
    );
    let fault = tracker.fault(11570).unwrap();
    assert_eq!(fault.devices, BTreeSet::from([0, 1]));
    assert_eq!(fault.hit, BTreeSet::from([11641, 11643]));
    assert_eq!(fault.spared, BTreeSet::from([11661, 11663]));
    assert!(fault.staying.is_empty());
    assert_eq!(fault.began.unwrap().to_string(), "2022-04-28 15:56:08.906");
    assert_eq!(fault.ended.unwrap().to_string(), "2022-04-28 15:56:10.397");
}

#[test]
fn who_caused_it_is_said_as_surely_as_it_is_known() {
    let named = "[2026-11-21 10:00:01.000 Server 7] Client {101, 1} caused a fatal memory fault\n";
    let mut tracker = Tracker::new();
    apply(&mut tracker, &(log_of_the_four() + named));
    let fault = tracker.fault(7).unwrap();
    let culprit = fault.culprit(&BTreeMap::new());
    assert_eq!(culprit, Culprit::Known([Candidate { pid: 101, why: Why::Named }]));
    assert_eq!([100, 101].map(|pid| fault.part_of(pid, &culprit)), [Part::Hit, Part::Caused]);

    let mut tracker = Tracker::new();
    let alone = "[2026-11-21 10:00:01.000 Server 7] Server is handling a fatal GPU error.
[2026-11-21 10:00:01.000 Server 7] Status of client {5, 1} is INACTIVE\n";
    apply(&mut tracker, alone);
    let culprit = tracker.fault(7).unwrap().culprit(&BTreeMap::new());
    assert_eq!(culprit, Culprit::Known([Candidate { pid: 5, why: Why::NoOther }]));
}

fn pids(culprit: &Culprit) -> Vec<Pid> {
    culprit.candidates().iter().map(|one| one.pid).collect()
}

/// A fault at 10:00:03 with clients 5, 6 and others before it.
fn fault_after(before: &str, after: &str) -> Fault {
    let mut log = String::new();
    for client in [5, 6] {
        log += &format!(
            "[2026-11-21 10:00:00.000 Server 7] Client {{PID: {client}, Context ID: 0}} connected\n"
        );
    }
    log += before;
    log += "[2026-11-21 10:00:03.000 Server 7] Server is handling a fatal GPU error.
[2026-11-21 10:00:03.000 Server 7] The following clients have a sticky error set:
[2026-11-21 10:00:03.000 Server 7] 6\n";
    log += after;
    let mut tracker = Tracker::new();
    apply(&mut tracker, &log);
    tracker.fault(7).unwrap().clone()
}

#[test]
fn a_client_that_leaves_around_a_fault_is_remembered() {
    let leaves =
        |second| format!("[2026-11-21 10:00:0{second}.500 Server 7] Client process 5 disconnected\n");
    let sets = |fault: &Fault| {
        [&fault.hit, &fault.left, &fault.gone, &fault.spared]
            .map(|set| set.iter().copied().collect::<Vec<_>>())
    };
    let fault = fault_after("", "");
    assert_eq!(sets(&fault), [vec![6], vec![], vec![], vec![5]], "it lives");
    let fault = fault_after("", &leaves(4));
    assert_eq!(sets(&fault), [vec![6], vec![5], vec![], vec![]]);
    assert_eq!(pids(&fault.culprit(&BTreeMap::new())), [5, 6]);
    let fault = fault_after(&leaves(2), "");
    assert_eq!(sets(&fault), [vec![6], vec![], vec![5], vec![]]);
    let fault = fault_after(&leaves(0), "");
    assert_eq!(sets(&fault), [vec![6], vec![], vec![], vec![]], "long before");
    // Its context has ended, and its connection has not. When that ends, it has left.
    let context = "[2026-11-21 10:00:00.000 Server 7] Client {PID: 5, Context ID: 1} connected
[2026-11-21 10:00:02.900 Server 7] Client {PID: 5, Context ID: 1} exiting. Number of active \
        client contexts is 1.\n";
    let fault = fault_after(context, "");
    assert_eq!((sets(&fault), &fault.lost), ([vec![6], vec![], vec![], vec![]], &BTreeSet::from([5])));
    assert_eq!(pids(&fault.culprit(&BTreeMap::new())), [5, 6]);
    let fault = fault_after(context, &leaves(4));
    assert_eq!((sets(&fault), fault.lost.len()), ([vec![6], vec![5], vec![], vec![]], 0));
    // It has made another.
    let again = context.replace("02.900", "01.000")
        + "[2026-11-21 10:00:02.000 Server 7] Client {PID: 5, Context ID: 2} connected\n";
    assert_eq!(sets(&fault_after(&again, "")), [vec![6], vec![], vec![], vec![5]]);
    // The server ended its work first, as for `partita kill`.
    let ended =
        "[2026-11-21 10:00:02.000 Server 7] Status of client {5, 1} is INACTIVE\n".to_owned() + &leaves(2);
    assert_eq!(sets(&fault_after(&ended, "")), [vec![6], vec![], vec![], vec![]]);
}

#[test]
fn faults_of_a_server_are_counted() {
    let mut tracker = Tracker::new();
    let round = "[2026-11-21 10:00:01.000 Server 7] Server is handling a fatal GPU error.
[2026-11-21 10:00:01.000 Server 7] Creating server context on device 0\n";
    for number in 1..4 {
        apply(&mut tracker, round);
        assert_eq!(tracker.fault(7).unwrap().number, number);
    }
}

#[test]
fn a_terminated_client_is_no_fault_and_an_answer_counts_without_a_log() {
    let mut tracker = Tracker::new();
    apply(&mut tracker, "[2026-11-21 10:00:01.000 Server 7] Status of client {5, 1} is ACTIVE\n");
    apply(&mut tracker, "[2026-11-21 10:00:01.000 Server 7] Status of client {5, 1} is INACTIVE\n");
    assert_eq!((tracker.state(7), tracker.fault(7)), (Some(ServerState::Active), None));
    let change = tracker.observe(7, ServerStatus::Fault).unwrap();
    assert_eq!((change.from, change.to), (Some(ServerState::Active), ServerState::Fault));
    assert_eq!(tracker.observe(7, ServerStatus::Fault), None);
    assert_eq!(tracker.fault(7).unwrap().spared, BTreeSet::from([5]), "until a log says more");
    assert_eq!(tracker.observe(7, ServerStatus::Active).unwrap().to, ServerState::Active);
}

proptest! {
    /// Domains divide the clients that have devices: each client in one, no device in two, and each
    /// domain is the reach of a fault in it.
    #[test]
    fn domains_are_a_partition(
        clients in prop::collection::btree_map(0u32..12, prop::collection::btree_set(0u8..8, 0..3), 0..12)
    ) {
        let domains = domains(&clients);
        for (client, devices) in &clients {
            let of = domains.iter().filter(|domain| domain.clients.contains(client)).count();
            prop_assert_eq!(of, usize::from(!devices.is_empty()));
        }
        let mut seen = BTreeSet::new();
        for domain in &domains {
            for device in &domain.devices {
                prop_assert!(seen.insert(*device));
                prop_assert_eq!(&contain(&clients, device), domain);
            }
        }
    }

    /// Whatever a log says in whatever order: no client is both hit and spared, and only affected
    /// clients are waited for.
    #[test]
    fn attributions_hold_together(picks in prop::collection::vec(0usize..64, 0..200)) {
        let all: Vec<Entry> = entries(&(log_of_the_four() + GUIDE));
        let mut tracker = Tracker::new();
        for pick in picks {
            tracker.apply(&all[pick % all.len()]);
            for (server, _) in tracker.states().collect::<Vec<_>>() {
                if let Some(fault) = tracker.fault(server) {
                    prop_assert!(fault.hit.is_disjoint(&fault.spared));
                    prop_assert!(fault.staying.is_subset(&fault.hit));
                }
            }
        }
    }
}
