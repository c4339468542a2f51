use partita::audit::Escape;
use partita::process::ProcessId;
use partita::registry::{GpuMeta, SimMeta};
use partita_chain_host::Definition;
use rusqlite::Connection;
use serde_json::json;

use super::*;
use crate::audit::change::{Change, Edge, Open, What};
use crate::audit::{self, End, Finding};
use crate::chains::{Running, RunningComponent, Step};
use crate::targets::{Decision, Whose};

fn definition(name: &str) -> Definition {
    let component = |name: &str| json!({ "name": name, "command": ["true"] });
    let json = json!({ "name": name, "frame": "4KiB", "component": [component("a"), component("b")] });
    serde_json::from_value(json).unwrap()
}

fn refused(dir: &Path) -> String {
    Store::open(dir).unwrap_err().to_string()
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let store = Store::open(&state).unwrap();
    let kept = store.write(|connection| chain::insert(connection, 7, &definition("c"))).await.unwrap();
    let seen = store.read(|connection| chain::get(connection, "c")).await.unwrap();
    assert_eq!((kept.revision, kept.owner), (1, 7));
    assert_eq!(seen, kept);
    let other = refused(&state);
    assert!(other.contains("another partitad") && other.contains(&std::process::id().to_string()), "{other}");
    drop(store);
    let store = Store::open(&state).unwrap();
    let again = store.read(chain::list).await.unwrap();
    assert_eq!(again, [kept]);
}

#[tokio::test]
async fn a_change_that_is_refused_changes_nothing_and_others_with_it_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let half = |name: &'static str| {
        store.write(move |connection| -> Result<(), Problem> {
            chain::insert(connection, 7, &definition(name))?;
            Err(Problem::new(Kind::Conflict, "no"))
        })
    };
    let whole =
        |name: &'static str| store.write(move |connection| chain::insert(connection, 7, &definition(name)));
    let (a, b, c, d) = tokio::join!(half("a"), whole("b"), half("c"), whole("d"));
    assert!(a.is_err() && c.is_err());
    b.unwrap();
    d.unwrap();
    let names: Vec<String> =
        store.read(chain::list).await.unwrap().into_iter().map(|kept| kept.definition.name).collect();
    assert_eq!(names, ["b", "d"]);
    let twice = whole("b").await.unwrap_err();
    assert_eq!(twice.code(), Kind::Conflict);
}

#[tokio::test]
async fn readers_cannot_write() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let written = store.read(|connection| chain::insert(connection, 7, &definition("c"))).await;
    assert_eq!(written.unwrap_err().code(), Kind::Unavailable);
}

#[test]
fn damaged_foreign_and_newer_files_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let dir = dir.path().join(name);
        drop(Store::open(&dir).unwrap());
        let path = dir.join(FILE);
        (dir, path)
    };

    let (newer, path) = file("newer");
    Connection::open(&path).unwrap().pragma_update(None, "user_version", VERSION + 1).unwrap();
    assert!(refused(&newer).contains(&format!("version {}", VERSION + 1)));

    let (foreign, path) = file("foreign");
    Connection::open(&path).unwrap().pragma_update(None, "application_id", 1).unwrap();
    assert!(refused(&foreign).contains("another program"));

    for (name, at) in [("header", 0), ("page", 4096)] {
        let (damaged, path) = file(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at..at + 64].fill(0xa5);
        std::fs::write(&path, &bytes).unwrap();
        let error = refused(&damaged);
        assert!(error.contains("damaged") && error.contains("move it"), "{name}: {error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}: left as it was");
    }

    let (cut, path) = file("cut");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(refused(&cut).contains("damaged"));
}

#[test]
fn a_directory_that_others_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused(dir.path()).contains("chmod go-w"));
}

fn running(started_unix_s: u64, steps: &[f64]) -> Running {
    let component = |name: &str| RunningComponent {
        name: name.to_owned(),
        live: true,
        pid: None,
        incarnation: 1,
        frames_in: 0,
        frames_out: 0,
        frames_dropped: 0,
        frames_queued: 0,
        gpu: "sim:h200".to_owned(),
        tpcs_of_gpu: 66,
        frames_by: None,
        frames_held: 0,
        busy_us: 0,
        wait_us: 0,
        tpcs: None,
        tpc_set: None,
        obeys: false,
        refuses: false,
    };
    Running {
        name: "c".to_owned(),
        gpu: "sim:h200".to_owned(),
        supervisor_pid: 1,
        supervised: true,
        started_unix_s,
        throughput_fps: None,
        algorithm: "steady".to_owned(),
        optimizer_state: "searching".to_owned(),
        periods: 0,
        tpcs: 66,
        components: vec![component("a"), component("b")],
        frames_finished: 0,
        frames_lost: 0,
        steps: steps
            .iter()
            .map(|&at_s| Step {
                at_s,
                what: format!("at {at_s}"),
                throughput_fps: Some(at_s),
                tpcs: Some(vec![4, 62]),
            })
            .collect(),
    }
}

#[tokio::test]
async fn each_step_of_each_run_is_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let record = |chain: Running| store.write(move |connection| history::record(connection, &chain));
    assert_eq!(record(running(100, &[0.5, 1.0])).await.unwrap().len(), 2);
    // The chain drops its oldest steps; the daemon polls again, or has restarted.
    let fresh = record(running(100, &[1.0, 1.5])).await.unwrap();
    assert_eq!(fresh.len(), 1);
    assert_eq!((fresh[0].at_s, fresh[0].tpcs["b"]), (1.5, 62));
    // The next run counts its time from 0.
    assert_eq!(record(running(200, &[0.5])).await.unwrap().len(), 1);
    let all = store.read(|connection| history::newest(connection, "c", 1000)).await.unwrap();
    let times: Vec<(i64, f64)> = all.iter().map(|entry| (entry.run_unix_s, entry.at_s)).collect();
    assert_eq!(times, [(100, 0.5), (100, 1.0), (100, 1.5), (200, 0.5)]);
    let second = all[1].id;
    let rest = store.read(move |connection| history::after(connection, "c", second, 1)).await.unwrap();
    assert_eq!(rest, all[2..3]);
}

#[tokio::test]
async fn history_of_whatever_runs_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.write(|connection| chain::insert(connection, 7, &definition("c"))).await.unwrap();
    let most = history::UNDEFINED_CHAINS_MAX as usize;
    let kept = store.write(move |connection| {
        history::record(connection, &running(1, &[0.5]))?;
        for at in 0..most + 3 {
            let mut chain = Running { name: format!("x{at}"), ..running(1, &[0.5]) };
            chain.steps[0].what = "é".repeat(100_000);
            assert_eq!(history::record(connection, &chain)?[0].what.chars().count(), 500);
        }
        let mut query = connection.prepare("SELECT DISTINCT chain FROM history ORDER BY id")?;
        Ok(query.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?)
    });
    let kept = kept.await.unwrap();
    assert_eq!((kept.len(), &kept[0], &kept[1]), (most + 1, &"c".to_owned(), &"x3".to_owned()));
}

#[tokio::test]
async fn history_is_bounded_and_goes_with_its_chain() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let most = history::ENTRIES_MAX as usize;
    let steps: Vec<f64> = (0..most + 5).map(|at| at as f64).collect();
    let chain = running(1, &steps);
    store.write(move |connection| history::record(connection, &chain)).await.unwrap();
    let newest = store.read(move |connection| history::newest(connection, "c", 20_000)).await.unwrap();
    assert_eq!((newest.len(), newest[0].at_s), (most, 5.0));
    store
        .write(|connection| {
            chain::insert(connection, 1, &definition("c"))?;
            chain::delete(connection, "c")
        })
        .await
        .unwrap();
    let left = store.read(|connection| history::newest(connection, "c", 1)).await.unwrap();
    assert_eq!(left, []);
}

#[tokio::test]
async fn a_key_has_one_request_and_one_answer_a_user() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let answer = answers::Answer { status: 201, location: None, body: "{}".to_owned() };
    let kept = answer.clone();
    store.write(move |connection| answers::keep(connection, 7, "k", "request", &kept)).await.unwrap();
    let find = |owner, request: &'static str| {
        store.read(move |connection| answers::find(connection, owner, "k", request))
    };
    assert_eq!(find(7, "request").await.unwrap(), Some(answer));
    assert_eq!(find(8, "request").await.unwrap(), None);
    assert_eq!(find(7, "another").await.unwrap_err().code(), Kind::Invalid);
}

fn findings() -> [Finding; 4] {
    let process = |pid| ProcessId { pid, start_ticks: u64::MAX };
    let sim = SimMeta { device: "h200".to_owned(), dir: "/sim".into() };
    let gpu = GpuMeta {
        key: "sim-h200".to_owned(),
        uuid: "GPU-1".to_owned(),
        index: Some(0),
        label: "sim:h200".to_owned(),
        sim: Some(sim),
    };
    let user = || "eve".to_owned();
    let escape = Escape { tenant: "leaky".to_owned(), gpu: gpu.clone(), process: process(4) };
    [
        Finding::Escape { escape, user: user(), driver_bytes: Some(7), is_ended: false },
        Finding::Stranger { gate: "/run/.gate".to_owned(), gpu: None, process: process(5), user: user() },
        Finding::Blind { gpu: Some(gpu), reason: "it is silent".to_owned() },
        Finding::Blind { gpu: None, reason: "access denied".to_owned() },
    ]
}

fn began(at_unix_ms: i64) -> Vec<Change> {
    findings().map(|finding| Change { at_unix_ms, finding, what: What::Began }).to_vec()
}

#[tokio::test]
async fn events_are_kept_with_what_is_not_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let begun = store.write(|connection| events::record(connection, &began(1000))).await.unwrap();
    assert_eq!(
        begun.iter().map(|event| (event.id, event.began_id)).collect::<Vec<_>>(),
        [1, 2, 3, 4].map(|id| (id, id))
    );
    drop(store);
    // A new daemon knows what the last one reported.
    let store = Store::open(dir.path()).unwrap();
    let open = store.read(events::open).await.unwrap();
    assert_eq!(open.iter().map(|open| open.finding.clone()).collect::<Vec<_>>(), findings());
    let ends = [End::Gone, End::Held, End::Left, End::Told];
    let over: Vec<Change> = std::iter::zip(&open, ends)
        .map(|(Open { began_id, began_unix_ms, finding }, end)| Change {
            at_unix_ms: 2000,
            finding: finding.clone(),
            what: What::Ended { began_id: *began_id, began_unix_ms: *began_unix_ms, end },
        })
        .collect();
    let ended = store.write(move |connection| events::record(connection, &over)).await.unwrap();
    assert_eq!(store.read(events::open).await.unwrap(), []);
    let all = store.read(|connection| events::newest(connection, 1000)).await.unwrap();
    assert_eq!(all, [begun, ended].concat());
    assert_eq!(store.read(|connection| events::after(connection, 3, 2)).await.unwrap(), all[3..5]);
    assert_eq!(store.read(|connection| events::newest(connection, 2)).await.unwrap(), all[6..]);
    let (first, last) = (&all[0], &all[4]);
    assert_eq!(
        (first.kind, first.change, first.end, first.at_unix_ms),
        (audit::Kind::Escape, Edge::Began, None, 1000)
    );
    assert_eq!(
        (last.began_id, last.began_unix_ms, last.at_unix_ms, last.end),
        (1, 1000, 2000, Some(End::Gone))
    );
    assert_eq!((first.tenant.as_deref(), first.pid, first.driver_bytes), (Some("leaky"), Some(4), Some(7)));
    assert_eq!((first.gpu.as_deref(), first.gpu_uuid.as_deref()), (Some("sim:h200"), Some("GPU-1")));
    // Each word is in the answer as it is in the log and in the metrics.
    for event in &all {
        let json = serde_json::to_value(event).unwrap();
        let end = event.end.map(End::word);
        assert_eq!(
            (&json["kind"], &json["change"]),
            (&json!(event.kind.word()), &json!(event.change.word()))
        );
        assert_eq!(json["end"], json!(end));
        assert!(!event.detail.contains('\n') && event.detail.len() > 20, "{}", event.detail);
    }
}

#[tokio::test]
async fn events_are_bounded_and_what_is_open_outlives_its_event() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let many: Vec<Change> = (0..events::EVENTS_MAX / 4 + 1).flat_map(began).collect();
    store.write(move |connection| events::record(connection, &many)).await.unwrap();
    let kept = store.read(|connection| events::after(connection, 0, 20_000)).await.unwrap();
    assert_eq!((kept.len() as i64, kept[0].id), (events::EVENTS_MAX, 5));
    let open = store.read(events::open).await.unwrap();
    assert_eq!((open.len() as i64, open[0].began_id), (events::EVENTS_MAX + 4, 1));
}

#[tokio::test]
async fn decisions_are_bounded_and_drive_out_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.write(|connection| events::record(connection, &began(1))).await.unwrap();
    let whose = Whose { tenant: "a".to_owned(), user: "ann".to_owned(), gpu_uuid: "GPU-1".to_owned() };
    let decision = |at_unix_ms| Decision {
        whose: whose.clone(),
        gpu: "GPU 0".to_owned(),
        at_unix_ms,
        is_bad: false,
        detail: "a went from 8 to 16 TPCs".to_owned(),
    };
    let many: Vec<Decision> = (1..=events::DECISIONS_MAX + 5).map(decision).collect();
    let stored = store.write(move |connection| events::decide(connection, &many)).await.unwrap();
    assert_eq!(stored.len() as i64, events::DECISIONS_MAX + 5);
    let kept = store.read(|connection| events::after(connection, 0, 20_000)).await.unwrap();
    assert_eq!(kept.len() as i64, events::DECISIONS_MAX + 4);
    assert_eq!((kept[3].kind, kept[4].at_unix_ms), (audit::Kind::Audit, 6));
    assert_eq!((kept[4].kind, kept[4].change), (audit::Kind::Target, Edge::Happened));
    let last = store.read(events::decided).await.unwrap();
    assert_eq!(last.into_iter().collect::<Vec<_>>(), [(whose, events::DECISIONS_MAX + 5)]);
    // Findings drive out no decision, either.
    let many: Vec<Change> = (0..events::EVENTS_MAX / 4 + 1).flat_map(began).collect();
    store.write(move |connection| events::record(connection, &many)).await.unwrap();
    let kept = store.read(|connection| events::after(connection, 0, 20_000)).await.unwrap();
    assert_eq!(kept.len() as i64, events::DECISIONS_MAX + events::EVENTS_MAX);
}

#[tokio::test]
async fn an_older_file_is_brought_up_to_date_with_what_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let kept = store.write(|connection| chain::insert(connection, 7, &definition("c"))).await.unwrap();
    drop(store);
    let old = Connection::open(dir.path().join(FILE)).unwrap();
    old.execute_batch("DROP TABLE event; DROP TABLE finding; PRAGMA user_version = 1").unwrap();
    drop(old);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.read(chain::list).await.unwrap(), [kept]);
    store.write(|connection| events::record(connection, &began(1))).await.unwrap();
    assert_eq!(store.read(events::open).await.unwrap().len(), 4);
}
