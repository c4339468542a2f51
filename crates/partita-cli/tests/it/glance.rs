//! What `ps` and `topology` show: programs outside of tenants, one tenant in full, memory of living
//! processes, and tables that fit a terminal.

use std::time::Instant;

use rustix::process::Signal;

use crate::common::{self, Tenant, World, text};

/// Starts a program on the GPU without Partita, and waits until it runs there.
fn outsider(world: &World) -> Tenant {
    let (program, kernels) = common::gpu_program();
    let mut command = world.bare(program);
    let mut outsider = Tenant::start(command.arg(kernels).arg("loop"));
    outsider.next_line();
    outsider
}

fn json(world: &World, line: &str) -> serde_json::Value {
    serde_json::from_str(&world.ok(line)).unwrap()
}

#[test]
fn programs_that_were_started_without_partita_are_shown() {
    let world = World::new();
    assert_eq!(json(&world, "ps --outside --json"), serde_json::json!([]));
    assert!(world.ok("ps --outside").contains("no program uses a GPU outside of tenants"));
    let outsider = outsider(&world);
    let pid = outsider.child.id();
    let is_named = |table: &str| {
        let row = |line: &&str| line.trim_start().starts_with(&format!("{pid} "));
        let row = table.lines().find(row).unwrap_or_else(|| panic!("{pid} in {table}"));
        assert!(row.contains("MiB") && row.contains("gpu"), "{row}");
    };
    // Without any tenant, and beside one, which is not among them.
    is_named(&world.ok("ps"));
    let mut tenant = Tenant::start(&mut world.gpu("--name held --sm 30%", "loop"));
    tenant.next_line();
    let table = world.ok("ps");
    is_named(&table);
    assert!(table.contains("not in a tenant"), "{table}");
    let rows = json(&world, "ps --outside --json");
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    let row = &rows[0];
    assert_eq!((&row["pid"], &row["user"]), (&pid.into(), &world.owner().into()), "{row}");
    assert!(row["memory_used_bytes"].as_u64() > Some(0) && row["command"][2] == "loop", "{row}");
    // JSON of tenants has tenants alone.
    assert_eq!(world.ps().len(), 1);
    let topology = world.ok("topology");
    assert!(topology.contains(&format!("process {pid} of {}", world.owner())), "{topology}");
    assert_eq!(json(&world, "topology --json")["outsiders"][0]["pid"], pid);
    drop(outsider);
    partita_testing::eventually("the program is gone", || {
        json(&world, "ps --outside --json").as_array().unwrap().is_empty()
    });
    assert!(!world.ok("ps").contains("not in a tenant"));
}

#[test]
fn memory_is_that_of_living_processes() {
    let world = World::new();
    let (program, kernels) = common::gpu_program();
    let script =
        format!("{} {} alloc 3221225472; echo ended; exec sleep 1000", program.display(), kernels.display());
    let mut tenant = Tenant::start(
        &mut world
            .partita(["run", "--name", "leak", "--sm", "10%", "--mem", "4GiB", "--", "sh", "-c", &script]),
    );
    while tenant.next_line() != "ended" {}
    assert!(world.row("leak")["memory_peak_bytes"].as_u64() >= Some(3 << 30));
    // Its holder may have it for some seconds.
    partita_testing::eventually("its slot is free", || {
        world.row("leak")["processes"] == serde_json::json!([])
    });
    let row = world.row("leak");
    assert_eq!((&row["memory_used_bytes"], &row["launches"]), (&0.into(), &serde_json::Value::Null), "{row}");
}

#[test]
fn one_tenant_is_shown_in_full() {
    let world = World::new();
    let mut tenant =
        Tenant::start(&mut world.gpu("--name full --sm 30% --mem 4GiB --spill host --isolation own", "loop"));
    tenant.next_line();
    let shown = world.ok("ps full");
    let value = |name: &str| {
        let line = shown.lines().find_map(|line| line.trim_start().strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {shown}")).trim().to_owned()
    };
    assert_eq!((value("SMs"), value("via")), ("38/132".to_owned(), "mask".to_owned()), "{shown}");
    assert_eq!((value("isolation"), value("spill")), ("own".to_owned(), "host".to_owned()), "{shown}");
    assert!(value("memory").contains("of 4GiB") && value("state").starts_with("started"), "{shown}");
    assert!(value("process").contains("launches"), "{shown}");
    let row = json(&world, "ps full --json");
    assert_eq!((&row["name"], &row["via"], &row["stopped"]), (&"full".into(), &"mask".into(), &false.into()));
    let refused = world.refused("ps nobody");
    assert!(refused.contains("there is no tenant nobody"), "{refused}");
}

#[test]
fn a_stopped_tenant_looks_stopped() {
    let world = World::new();
    let mut tenant = Tenant::start(&mut world.gpu("--name halts --sm 10%", "loop"));
    tenant.next_line();
    assert_eq!(world.row("halts")["stopped"], false);
    let pid = world.row("halts")["processes"][0]["pid"].as_i64().unwrap();
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    signal(Signal::STOP);
    let deadline = Instant::now() + common::PATIENCE;
    while world.row("halts")["stopped"] == false && Instant::now() < deadline {}
    let shown = [world.ok("ps"), world.ok("ps halts")];
    // First let go of it: a test that fails waits for its tenant.
    signal(Signal::CONT);
    tenant.signal(Signal::CONT);
    assert!(shown[0].contains("stopped") && shown[1].contains("stopped by a signal"), "{shown:?}");
    tenant.next_line();
    assert_eq!(world.row("halts")["stopped"], false);
}

#[test]
fn the_table_fits_the_terminal() {
    let world = World::new();
    let _tenants = [
        "--name serve --sm 40% --mem 40GiB --spill host",
        "--name a-name-that-is-rather-long --sm 20% --mem 1.5GiB --isolation own",
    ]
    .map(|options| world.idle(options));
    let _outsider = outsider(&world);
    for columns in [80, 120, 200] {
        let mut command = world.partita(["ps"]);
        let output = command.env("COLUMNS", columns.to_string()).output().unwrap();
        let table = text(&output.stdout);
        assert!(output.status.success() && table.contains("serve"), "{output:?}");
        for line in table.lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
        // These two differ from the default, so they stay longest.
        assert!(table.contains("ISOLATION") || columns == 80, "{table}");
        assert!(table.contains("SPILL") || columns == 80, "{table}");
    }
    // A pipe has no width.
    let table = world.ok("ps");
    for head in
        ["NAME", "USER", "GPU", "SMS", "MEMORY", "QUOTA", "SPILL", "BUSY", "PRIORITY", "VIA", "ISOLATION"]
    {
        assert!(table.contains(head), "{head} in {table}");
    }
}
