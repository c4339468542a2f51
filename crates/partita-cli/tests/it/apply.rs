//! `partita apply`: tenants as a file describes them.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{World, refusal, succeeds};
use partita_testing::eventually;
use serde_json::Value;

/// A world with a file of tenants.
struct Fixture {
    world: World,
    file: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        Self::of(World::new())
    }

    fn of(world: World) -> Self {
        let file = world.make_dir("tenants").join("tenants.toml");
        Self { world, file }
    }

    fn write(&self, text: &str) {
        fs::write(&self.file, text).unwrap();
        self.world.give(&self.file);
    }

    fn apply(&self, options: &str) -> String {
        let mut command = self.world.partita(["apply"]);
        succeeds(command.arg(&self.file).args(options.split_whitespace()))
    }

    /// The message and the output of an apply that does not do everything.
    fn apply_in_part(&self, options: &str) -> (String, String) {
        let mut command = self.world.partita(["apply"]);
        let output = command.arg(&self.file).args(options.split_whitespace()).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        (common::text(&output.stdout), common::text(&output.stderr))
    }

    /// The processes of a tenant's `partita run`, to see a restart.
    fn run_of(&self, name: &str) -> Value {
        let dir: &Path = self.world.dir();
        let record = fs::read(dir.join("state/detached").join(name).join("run.json")).unwrap();
        serde_json::from_slice::<Value>(&record).unwrap()["run"].clone()
    }
}

const TWO: &str = r#"
[profile.small]
sm = "10%"
mem = "1GiB"

[[tenant]]
name = "serve"
profile = "small"
command = ["sh", "-c", "pwd; exec sleep 1000"]

[[tenant]]
name = "train"
profile = "small"
sm = "20%"
command = ["sleep", "1000"]
"#;

#[test]
fn a_file_starts_changes_restarts_and_ends_its_tenants() {
    let fixture = Fixture::new();
    let world = &fixture.world;
    fixture.write(TWO);
    let planned = fixture.apply("--dry-run");
    assert!(planned.contains("run --detach --name train --mem 1GiB --sm 20% -- sleep 1000\n"), "{planned}");
    assert!(world.ps().is_empty(), "a dry run starts nothing");
    assert_eq!(fixture.apply(""), "serve: started\ntrain: started\n");
    assert_eq!(
        (world.row("serve")["sms"].as_u64(), world.row("train")["sms"].as_u64()),
        (Some(12), Some(26))
    );
    let dir = fixture.file.parent().unwrap().canonicalize().unwrap();
    let mut follower = common::Tenant::start(&mut world.partita(["logs", "-f", "serve"]));
    assert_eq!(follower.next_line(), dir.display().to_string(), "programs start beside the file");
    drop(follower);
    for options in ["", "--restart --prune", "--dry-run"] {
        assert_eq!(fixture.apply(options), "", "a second apply does nothing");
    }

    // What can change does so while the programs run, however their sizes change places.
    let runs = [fixture.run_of("serve"), fixture.run_of("train")];
    fixture.write(&TWO.replace("sm = \"10%\"", "sm = \"85%\"").replace("sm = \"20%\"", "sm = \"10%\""));
    let changed = fixture.apply("");
    assert!(
        changed.contains("serve: changed to --sm 85%") && changed.contains("train: changed"),
        "{changed}"
    );
    assert_eq!(fixture.apply(""), "");
    assert_eq!([fixture.run_of("serve"), fixture.run_of("train")], runs);
    // A change by hand is undone.
    world.ok("set train --sm 5%");
    assert_eq!(fixture.apply(""), "train: changed to --sm 10%\n");

    // Another program needs a restart, and that needs consent.
    fixture.write(&TWO.replace("\"sleep\", \"1000\"", "\"sleep\", \"2000\""));
    let (done, said) = fixture.apply_in_part("");
    assert!(said.contains("train: command cannot"), "{said}");
    assert!(said.contains("--restart") && done.contains("serve: changed"), "{done} {said}");
    assert_eq!(fixture.run_of("train"), runs[1]);
    assert_eq!(fixture.apply("--restart"), "train: restarted for command\n");
    assert_ne!(fixture.run_of("train"), runs[1]);
    assert_eq!(fixture.run_of("serve"), runs[0]);

    // So does the end of a tenant that the file no longer names.
    let only = TWO.split("[[tenant]]\nname = \"train\"").next().unwrap();
    fixture.write(only);
    let output = world.partita(["apply"]).arg(&fixture.file).output().unwrap();
    assert!(output.status.success() && common::text(&output.stderr).contains("train: the file no longer"));
    assert_eq!(world.ps().len(), 2);
    assert_eq!(fixture.apply("--prune"), "train: ended\n");
    fixture.write("");
    assert_eq!(fixture.apply("--prune"), "serve: ended\n");
    assert!(world.ps().is_empty());
}

/// Whatever `partita set` can change, whether the file had it before or not.
#[test]
fn what_set_can_change_needs_no_restart() {
    let fixture = Fixture::of(World::in_memory());
    let write = |lines: &str| {
        fixture.write(&format!("[[tenant]]\nname = \"one\"\ncommand = [\"sleep\", \"1000\"]\n{lines}"))
    };
    write("mem = \"1GiB\"\n");
    let output = fixture.world.partita(["apply"]).arg(&fixture.file).output().unwrap();
    assert_eq!(common::text(&output.stdout), "one: started\n", "{output:?}");
    write("mem = \"1GiB\"\nsm = \"30%\"\n");
    assert_eq!(fixture.apply(""), "one: changed to --sm 30%\n");
    assert_eq!(fixture.apply(""), "");
    // Without a gate it has no priority.
    write("sm = \"30%\"\npriority = \"high\"\n");
    let (_, said) = fixture.apply_in_part("");
    assert!(said.contains("priority cannot change"), "{said}");
    fixture.apply("--restart");
    for priority in ["normal", "low"] {
        write(&format!("sm = \"30%\"\npriority = \"{priority}\"\n"));
        assert_eq!(fixture.apply(""), format!("one: changed to --priority {priority}\n"));
    }
    fixture.write("");
    fixture.apply("--prune");
}

#[test]
fn a_change_by_hand_on_any_gpu_is_undone() {
    if common::needs_simulator("it has two GPUs") {
        return;
    }
    let fixture = Fixture::of(World::plan().on(|_| vec![("PARTITA_SIM_GPUS", "2".into())]));
    fixture.write(
        "[[tenant]]\nname = \"both\"\ngpu = \"sim:h200:0,1\"\nisolation = \"own\"\nsm = \"10%\"\n\
         command = [\"sleep\", \"1000\"]\n",
    );
    fixture.apply("");
    for gpu in 0..2 {
        fixture.world.ok(&format!("set both --gpu sim:h200:{gpu} --sm 15%"));
        assert_eq!(fixture.apply(""), "both: changed to --sm 10%\n");
        assert_eq!(fixture.apply(""), "");
    }
    fixture.write("");
    fixture.apply("--prune");
}

#[test]
fn tenants_of_others_are_not_touched() {
    let fixture = Fixture::new();
    let _held = fixture.world.idle("--name train --sm 10%");
    fixture.write(TWO);
    let said = refusal(fixture.world.partita(["apply", "--restart", "--prune"]).arg(&fixture.file));
    assert!(said.contains("train") && said.contains("not started by `partita apply`"), "{said}");
    assert_eq!(fixture.world.ps().len(), 1, "nothing is started");
}

#[test]
fn what_fails_is_said_and_the_rest_is_done() {
    let fixture = Fixture::new();
    fixture.write(&TWO.replace("\"sleep\", \"1000\"", "\"/no/such/program\""));
    let (done, said) = fixture.apply_in_part("--json");
    let rows: Value = serde_json::from_str(&done).unwrap();
    assert_eq!(
        (&rows[0]["tenant"], &rows[0]["action"], &rows[0]["done"]),
        (&"serve".into(), &"start".into(), &true.into())
    );
    assert_eq!((&rows[1]["tenant"], &rows[1]["done"]), (&"train".into(), &false.into()));
    assert!(said.contains("no such program"), "{said}");
    // The next apply tries again.
    fixture.write(TWO);
    assert_eq!(fixture.apply(""), "train: started\n");
    fixture.write("");
    fixture.apply("--prune");
}

/// Tenants that wait do not keep the others back, and start in the order of the file.
#[test]
fn tenants_that_wait_start_after_the_others_in_the_order_of_the_file() {
    let fixture = Fixture::new();
    let world = &fixture.world;
    let held = world.idle("--name held --sm 60%");
    let tenant = |name: &str, sm: &str, wait: &str| {
        format!("[[tenant]]\nname = \"{name}\"\nsm = \"{sm}\"\ncommand = [\"sleep\", \"1000\"]\n{wait}\n")
    };
    let file =
        |wait: &str| tenant("big", "60%", wait) + &tenant("small", "5%", wait) + &tenant("now", "10%", "");
    fixture.write(&file("wait = true"));
    assert!(fixture.apply("--dry-run").contains("run --detach --name big --sm 60% --wait -- sleep 1000\n"));
    let mut apply = world.partita(["apply"]);
    let apply = apply.arg(&fixture.file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let queue = || -> Vec<String> {
        let rows: Vec<Value> = serde_json::from_str(&world.ok("ps --waiting --json")).unwrap();
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    eventually("both wait", || queue() == ["big", "small"]);
    assert_eq!(world.row("now")["sms"], 12);
    // What waits is seen.
    let shown = world.ok("top --once");
    let line = shown.lines().find(|line| line.ends_with("  big")).unwrap_or_else(|| panic!("{shown}"));
    assert!(shown.contains("2 tenants, 2 waiting") && shown.contains("WAITING FOR ROOM"), "{shown}");
    assert!(line.contains(&format!(" {} ", world.owner())), "{shown}");
    let look: Value = serde_json::from_str(&world.ok("top --once --json")).unwrap();
    assert_eq!((&look["waiting"][1]["name"], &look["waiting"][1]["ahead"]), (&"small".into(), &1.into()));
    drop(held);
    let output = apply.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut done: Vec<String> = common::text(&output.stdout).lines().map(str::to_owned).collect();
    done.sort();
    assert_eq!(done, ["big: started", "now: started", "small: started"]);
    // How long it would wait is nothing that a running tenant has.
    fixture.write(&file("wait = \"1s\""));
    assert_eq!(fixture.apply(""), "");
    fixture.write(&(file("wait = \"1s\"") + &tenant("late", "80%", "wait = \"1s\"")));
    let (done, said) = fixture.apply_in_part("--json");
    let rows: Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&rows[0]["tenant"], &rows[0]["done"]), (&"late".into(), &false.into()));
    assert!(said.contains("--wait 1s: no room within that time"), "{said}");
    assert_eq!(queue(), [""; 0]);
    fixture.write("");
    fixture.apply("--prune");
}

/// What waits for room is there for another apply: it is left, or its wait ends with `--prune`.
#[test]
fn a_tenant_that_waits_is_left_and_pruned() {
    let fixture = Fixture::new();
    let world = &fixture.world;
    let held = world.idle("--name held --sm 60%");
    let tenant = |name: &str| {
        format!("[[tenant]]\nname = \"{name}\"\nsm = \"60%\"\ncommand = [\"sleep\", \"9\"]\nwait = true\n")
    };
    fixture.write(&tenant("big"));
    let mut apply = world.partita(["apply"]);
    let apply = apply.arg(&fixture.file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let queue = || -> Vec<String> {
        let rows: Vec<Value> = serde_json::from_str(&world.ok("ps --waiting --json")).unwrap();
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    eventually("it waits", || queue() == ["big"]);
    let line = "run --wait --name hand --sm 60% -- sleep 9";
    let mut hand = world.partita(line.split(' ')).stderr(Stdio::null()).spawn().unwrap();
    eventually("both wait", || queue() == ["big", "hand"]);
    let said = |options: &[&str]| {
        let output = world.partita(["apply"]).arg(&fixture.file).args(options).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (common::text(&output.stdout), common::text(&output.stderr))
    };
    fixture.write(&(tenant("big") + &tenant("hand")));
    for options in [&[][..], &["--dry-run"], &["--restart", "--prune"]] {
        let (done, said) = said(options);
        assert_eq!(done, "", "{options:?}");
        assert!(said.contains("big: waits for room") && said.contains("hand: waits for room"), "{said}");
    }
    assert_eq!(queue(), ["big", "hand"]);
    // The one that was started by hand is not the file's.
    fixture.write("");
    let (done, left) = said(&[]);
    assert!(done.is_empty() && left.contains("big: the file no longer") && !left.contains("hand"), "{left}");
    let (done, _) = said(&["--prune"]);
    assert_eq!((done.as_str(), queue()), ("big: ended\n", vec!["hand".to_owned()]));
    let output = apply.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(world.partita(["kill", "hand"]).stderr(Stdio::null()).status().unwrap().success());
    hand.wait().unwrap();
    drop(held);
}

#[test]
fn mistakes_name_the_line() {
    let fixture = Fixture::new();
    fixture.write("[[tenant]]\nname = \"a\"\nsm = \"x\"\n");
    let said = refusal(fixture.world.partita(["apply"]).arg(&fixture.file));
    assert!(said.contains("tenants.toml:3: sm: "), "{said}");
    assert!(fixture.world.refused("apply /no/such/file").contains("/no/such/file"));
}
