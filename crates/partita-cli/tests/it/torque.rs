//! The prologue, epilogue and job of `examples/batch/torque`, run by the rules of Torque's manual
//! for `pbs_mom`: with every argument, an empty environment, and a file of the job's GPUs.

use crate::batch_jobs;
use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use batch_jobs::{assert_clean, daemons, number_of, state_dir, write_settings};
use common::{World, gpu_program, program, sms, text};
use partita_testing::executable;

/// A node whose mother superior is this test.
struct Node<'a> {
    world: &'a World,
    user: String,
    host: String,
}

impl<'a> Node<'a> {
    fn new(world: &'a World) -> Self {
        let output = Command::new("id").arg("-un").output().unwrap();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let node = Self { world, user: text(&output.stdout).trim().to_owned(), host: host.trim().to_owned() };
        fs::create_dir_all(node.at("torque/aux")).unwrap();
        fs::create_dir_all(node.at("torque/mom_priv")).unwrap();
        ["prologue", "epilogue"].iter().for_each(|name| node.install(name));
        node
    }

    fn at(&self, name: &str) -> PathBuf {
        self.world.dir().join(name)
    }

    fn install(&self, name: &str) {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/batch/torque").join(name);
        let mut script = fs::read_to_string(example).unwrap();
        let settings = self.at("settings").display().to_string();
        let torque = self.at("torque").display().to_string();
        for (installed, here) in [
            ("/usr/local/bin/partita", program().display().to_string()),
            ("/etc/default/partita", settings),
            ("/var/spool/torque/aux", format!("{torque}/aux")),
        ] {
            assert!(script.contains(installed), "{name}: {installed}");
            script = script.replace(installed, &here);
        }
        executable(&self.at("torque/mom_priv").join(name), script.as_bytes());
        write_settings(self.world, &self.at("settings"));
    }

    /// The command that `pbs_mom` runs as root.
    fn mom(&self, name: &str, arguments: &[&str]) -> Output {
        let dir = self.at("torque/mom_priv");
        let mut command = Command::new(dir.join(name));
        command.args(arguments).env_clear().current_dir(dir).stdin(Stdio::null()).output().unwrap()
    }

    fn prologue(&self, id: &str, resources: &str, account: &str) -> Output {
        fs::write(self.at(&format!("torque/aux/{id}gpu")), format!("{}-gpu0\n", self.host)).unwrap();
        let script = format!("/var/spool/torque/mom_priv/jobs/{id}.SC");
        self.mom(
            "prologue",
            &[id, &self.user, "users", "job", resources, "batch", account, &script, &self.host],
        )
    }

    fn epilogue(&self, id: &str, resources: &str, account: &str) -> Output {
        let script = format!("/var/spool/torque/mom_priv/jobs/{id}.SC");
        let used = "cput=00:00:01,mem=1kb,vmem=1kb,walltime=00:00:02";
        let job = [id, &self.user, "users", "job", "4242", resources, used, "batch", account, "0", &script];
        self.mom("epilogue", &job)
    }

    /// The job's script up to its program, which is the CUDA test program.
    fn job(&self, id: &str) -> Output {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/batch/torque/job.sh");
        let (gpu, kernels) = gpu_program();
        let script = fs::read_to_string(example).unwrap();
        assert!(script.contains("$(partita ") && script.ends_with("exec ./program\n"), "{script}");
        let script = script.replace("$(partita ", &format!("$({} ", program().display()));
        let script = script.replace("./program", &format!("{} {} census", gpu.display(), kernels.display()));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env_clear().stdin(Stdio::null());
        command.envs([
            ("PATH", "/usr/bin:/bin"),
            ("HOME", "/nonexistent"),
            ("LOGNAME", &self.user),
            ("PBS_ENVIRONMENT", "PBS_BATCH"),
            ("PBS_JOBID", id),
            ("PBS_JOBNAME", "job"),
            ("PBS_QUEUE", "batch"),
            ("PBS_O_WORKDIR", "/"),
            ("PARTITA_BATCH_DIR", &state_dir(self.world).display().to_string()),
        ]);
        command.output().unwrap()
    }
}

fn assert_quiet(output: &Output) {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn jobs_ask_by_account_or_resource_and_leave_nothing() {
    if common::is_real() {
        eprintln!("skipped: the job's GPU is a simulated one");
        return;
    }
    if common::needs_user_mode(common::OF_ROOT_FOR_USERS) {
        return;
    }
    let world = World::new();
    let node = Node::new(&world);
    let number = number_of(&world);
    let whole = "neednodes=1:gpus=1,nodes=1:gpus=1,walltime=01:00:00";
    for (at, resources, account, sms_wanted) in [
        (1, whole.to_owned(), "MPS=true", 132),
        (2, whole.to_owned(), "partita:sm=50%,mem=40GiB", 66),
        (3, format!("{whole},partita=sm=25%+mem=20GiB"), "physics", 33),
    ] {
        let id = format!("{number}{at}.head.example");
        assert_quiet(&node.prologue(&id, &resources, account));
        assert_eq!(daemons(&world).len(), 1, "the service of the job's GPU");
        let output = node.job(&id);
        assert_quiet(&output);
        let seen = sms(text(&output.stdout).trim()).len();
        assert!(seen.abs_diff(sms_wanted) <= 1, "{account}: {seen} SMs");
        assert_quiet(&node.epilogue(&id, &resources, account));
        assert!(daemons(&world).is_empty());
        // A cancelled job may have it called again.
        assert_quiet(&node.epilogue(&id, &resources, account));
        assert_clean(&world);
    }
    // A job without a request gets nothing.
    let id = format!("{number}4.head.example");
    assert_quiet(&node.prologue(&id, whole, "physics"));
    assert!(daemons(&world).is_empty());
    assert_quiet(&node.epilogue(&id, whole, "physics"));
    assert_clean(&world);
}

#[test]
fn a_prologue_of_openpbs_has_three_arguments() {
    if common::needs_user_mode(common::OF_ROOT_FOR_USERS) {
        return;
    }
    let world = World::new();
    let node = Node::new(&world);
    let id = format!("{}5.head", number_of(&world));
    assert_quiet(&node.mom("prologue", &[&id, &node.user, "users"]));
    assert!(daemons(&world).is_empty(), "its request is unknown");
    assert_quiet(&node.epilogue(&id, "select=1:ngpus=1", ""));
    assert_clean(&world);
}

#[test]
fn failures_have_exit_codes_and_drain_the_node_only_if_they_must() {
    if common::needs_user_mode(common::OF_ROOT_FOR_USERS) {
        return;
    }
    let world = World::new();
    let node = Node::new(&world);
    let log = node.at("pbsnodes.log");
    fs::create_dir(node.at("bin")).unwrap();
    let pbsnodes = format!("#!/bin/sh\nprintf '%s|' \"$@\" >> {}\n", log.display());
    executable(&node.at("bin/pbsnodes"), pbsnodes.as_bytes());
    let settings = fs::read_to_string(node.at("settings")).unwrap();
    fs::write(node.at("settings"), format!("{settings}PATH='{}':$PATH\n", node.at("bin").display())).unwrap();
    let number = number_of(&world);

    let wrong = node.prologue(&format!("{number}6.head"), "nodes=1:gpus=1", "partita:sm=0%");
    assert_eq!(wrong.status.code(), Some(1), "the job is aborted: {wrong:?}");
    assert!(text(&wrong.stderr).contains("sm") && !log.exists(), "{wrong:?}");
    assert!(node.epilogue(&format!("{number}6.head"), "nodes=1:gpus=1", "partita:sm=0%").status.success());

    fs::remove_dir_all(state_dir(&world)).unwrap();
    fs::write(state_dir(&world), "").unwrap();
    let broken = node.prologue(&format!("{number}7.head"), "nodes=1:gpus=1", "MPS=true");
    assert_eq!(broken.status.code(), Some(2), "it is queued again: {broken:?}");
    let told = fs::read_to_string(&log).unwrap();
    assert!(
        told.starts_with("-o|-N|partita: job pbs-") && told.ends_with(&format!("|{}|", node.host)),
        "{told}"
    );
    fs::remove_file(state_dir(&world)).unwrap();
    assert_clean(&world);
}
