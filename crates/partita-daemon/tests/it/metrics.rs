//! `/metrics`: what it says of MPS is what `partita mps status --metrics` says.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// The processes with this parent and this name in their command.
fn children(parent: u32, name: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_one = |directory: &std::path::Path| {
        let read = |file| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
        let of_parent = read("stat")
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&parent.to_string()));
        of_parent && read("cmdline").contains(name)
    };
    processes.filter(|entry| is_one(&entry.path())).count()
}

/// Control daemons, which end with this.
struct Services(Vec<Pid>);

impl Services {
    fn signal(&self, signal: Signal) {
        for &pid in &self.0 {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }
}

#[test]
fn services_that_do_not_answer_are_asked_at_the_same_time() {
    if needs_simulator("services of several GPUs that are stopped") {
        return;
    }
    const GPUS: usize = 4;
    let world = World::new();
    let machine = |command: &mut Command| {
        let all: Vec<String> = (0..GPUS).map(|gpu| gpu.to_string()).collect();
        command
            .env("PARTITA_SIM_GPUS", GPUS.to_string())
            .env("PARTITA_GPU", format!("sim:h200:{}", all.join(",")));
    };
    let partita = |line: &str| {
        let mut command = world.partita(line.split(' '));
        machine(&mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "partita {line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let start = |gpu| {
        partita(&format!("mps start --gpu sim:h200:{gpu}"));
        let told = partita(&format!("mps status --gpu sim:h200:{gpu} --json"));
        let service: serde_json::Value = serde_json::from_str(&told).unwrap();
        let pid = service["daemon"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).unwrap_or_else(|| panic!("{service}"))
    };
    let services = Services((0..GPUS).map(start).collect());
    let mut command = world.partitad::<&str>([]);
    machine(&mut command);
    let daemon = Daemon::start(&mut command, &world.socket(), &world.dir().join("log"));
    let answering = || {
        scraped(&daemon)
            .iter()
            .filter(|(what, up)| what.starts_with("partita_mps_up{") && **up == 1.0)
            .count()
    };
    assert_eq!(answering(), GPUS);

    services.signal(Signal::STOP);
    // Each is asked by a program of its own, which waits for the answer.
    let most = AtomicUsize::new(0);
    eventually("all are asked at the same time", || {
        std::thread::scope(|scope| {
            let page = scope.spawn(answering);
            while !page.is_finished() {
                most.fetch_max(children(daemon.pid(), "mps-control"), Ordering::Relaxed);
            }
            assert_eq!(page.join().unwrap(), 0);
        });
        most.load(Ordering::Relaxed) == GPUS
    });
    services.signal(Signal::CONT);
    eventually("all answer again", || answering() == GPUS);
    for gpu in 0..GPUS {
        partita(&format!("mps stop --gpu sim:h200:{gpu}"));
    }
}

#[test]
fn the_services_of_mps_are_on_the_page() {
    if needs_simulator("a service without other clients") {
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

/// A tenant that runs for as long as this lives.
fn tenant(world: &World, daemon: &Daemon) -> Ended {
    let mut command = world.partita(["run", "--name", "user", "--sm", "25%", "--mem", "1GiB", "--"]);
    let ended = Ended(command.args(["sleep", "1000"]).spawn().unwrap());
    eventually("the tenant is there", || daemon.get("/v1/tenants").as_array().unwrap().len() == 1);
    ended
}

#[test]
fn figures_have_other_exporters_names_too() {
    if needs_simulator("a known GPU") {
        return;
    }
    let world = World::new();
    let daemon = world.start_with(["--metric-names", "dcgm,hami"]);
    let _tenant = tenant(&world, &daemon);
    let page = daemon.send("GET /metrics HTTP/1.1", b"").2;
    let sample = |name: &str, label: &str| {
        let mut lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let line = lines.find(|line| line.contains(label)).unwrap_or_else(|| panic!("{name} in {page}"));
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert_eq!(sample("DCGM_FI_DEV_FB_TOTAL", "modelName=\"NVIDIA H200\""), f64::from(143_771));
    let free = sample("DCGM_FI_DEV_FB_FREE", "device=\"nvidia0\"");
    assert!(free > 140_000.0 && free <= 143_771.0, "{free}");
    assert_eq!(sample("hami_gpu_core_allocated_ratio", "device_index=\"0\"").round(), 24.0);
    assert_eq!(sample("hami_gpu_shared_count", "device_index"), 1.0);
    assert_eq!(sample("hami_vgpu_memory_limit_bytes", "pod=\"user\""), f64::from(1 << 30));
    assert_eq!(sample("hami_gpu_memory_allocated_bytes", "device_uuid=\"GPU-"), f64::from(1 << 30));
    // They are an option.
    drop(daemon);
    let page = world.start().send("GET /metrics HTTP/1.1", b"").2;
    assert!(!page.contains("DCGM") && !page.contains("hami_"), "{page}");
}

#[test]
fn the_board_for_grafana_shows_metrics_that_exist() {
    if needs_simulator("a tenant with all figures") {
        return;
    }
    let board = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/partita.json");
    let board: serde_json::Value = serde_json::from_slice(&std::fs::read(board).unwrap()).unwrap();
    let mut wanted = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let names =
                expression.split(|letter| !is_part(letter)).filter(|name| name.starts_with("partita"));
            wanted.extend(names.map(str::to_owned));
        }
    }
    assert!(wanted.len() > 8, "{wanted:?}");
    // One that uses the GPU and has a share of time, which needs memory that the GPU maps.
    let world = World::in_memory();
    let daemon = world.start();
    let socket = world.dir().join("keeper");
    let options = ["run", "--name", "user", "--sm", "25%", "--time", "50%", "--mem", "1GiB", "--"];
    let mut command = world.partita(options);
    command.arg(common::program()).args(["keeper", "--attached", "--socket"]).arg(&socket);
    let _user = Ended(command.spawn().unwrap());
    eventually("it uses the GPU", || Connection::connect(&socket, None, common::PATIENCE).is_ok());
    // The first scrape is the first request that it can count.
    daemon.send("GET /metrics HTTP/1.1", b"");
    let page = daemon.send("GET /metrics HTTP/1.1", b"").2;
    for name in wanted {
        // Before the samples there is a line for their family.
        let family = name.trim_end_matches("_total").trim_end_matches("_bucket");
        assert!(page.contains(&format!("# TYPE {family} ")), "{name} is not in {page}");
    }
}

#[test]
fn the_map_of_jobs_follows_the_tenants() {
    if needs_simulator("a known GPU") {
        return;
    }
    let world = World::new();
    let dir = world.dir().join("jobs");
    let daemon = world.start_with(["--dcgm-job-map", dir.to_str().unwrap()]);
    let held = tenant(&world, &daemon);
    let read = || std::fs::read_to_string(dir.join("0")).ok();
    eventually("the tenant is in the file of its GPU", || read().as_deref() == Some("user\n"));
    drop(held);
    eventually("the file ends with the tenant", || read().is_none());
    let _held = tenant(&world, &daemon);
    eventually("the tenant is there again", || read().is_some());
    daemon.signal(Signal::TERM);
    eventually("the daemon leaves no file", || std::fs::read_dir(&dir).unwrap().count() == 0);
}

/// The bursts of a program that has ended stay, as a histogram and over REST.
#[test]
fn bursts_are_a_histogram() {
    if needs_simulator("the program with launches is the simulator's") {
        return;
    }
    let world = World::in_memory();
    let daemon = world.start();
    let partita = common::partita();
    let over = world.dir().join("over");
    let script =
        format!("{} sim census > /dev/null; touch {}; exec sleep 1000", partita.display(), over.display());
    let _tenant = Ended(
        world.partita(["run", "--name", "t", "--sm", "30%", "--", "sh", "-c", &script]).spawn().unwrap(),
    );
    let part = || daemon.get("/v1/tenants")[0]["parts"][0].clone();
    eventually("the end of all bursts", || over.exists());
    let bursts = part()["bursts"].clone();
    let count = bursts["count"].as_u64().unwrap();
    assert!(count > 0 && bursts["p50_us"].as_f64() <= bursts["p99_us"].as_f64(), "{bursts}");
    assert_eq!(part()["steps"]["count"], 0);

    let (_, _, page) = daemon.send("GET /metrics HTTP/1.1", b"");
    let name = "partita_tenant_burst_duration_seconds";
    assert!(page.contains(&format!("# TYPE {name} histogram\n# UNIT {name} seconds\n")), "{page}");
    let of = |suffix: &str| {
        let begin = format!("{name}_{suffix}{{");
        let lines =
            page.lines().filter(move |line| line.starts_with(&begin) && line.contains("tenant=\"t\""));
        lines.map(|line| line.rsplit_once(' ').unwrap()).collect::<Vec<_>>()
    };
    let number = |text: &str| text.parse::<f64>().unwrap();
    assert_eq!(of("count").iter().map(|(_, value)| number(value)).collect::<Vec<_>>(), [count as f64]);
    assert!((number(of("sum")[0].1) - bursts["sum_s"].as_f64().unwrap()).abs() < 1e-9, "{page}");
    let buckets = of("bucket");
    assert!(buckets.windows(2).all(|pair| number(pair[0].1) <= number(pair[1].1)), "{buckets:?}");
    let (last, value) = buckets.last().unwrap();
    assert!(last.contains("le=\"+Inf\"") && number(value) == count as f64, "{last} {value}");
    assert!(page.contains("partita_tenant_step_duration_seconds_count{tenant=\"t\""), "{page}");
}
