//! A Slurm cluster of one node: `munged`, `slurmctld` and `slurmd` of the distribution, with
//! separate key, sockets, ports and files, and with the example files of `examples/batch/slurm` as
//! the node's scripts.

#![allow(dead_code)]

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use partita_testing::executable;
use rustix::process::{Pid, Signal};

use crate::batch_jobs::{number_of, write_settings};
use crate::common::{PATIENCE, World, program, text};

/// The required programs, of the packages slurmctld, slurmd, slurm-client and munge.
const PROGRAMS: [&str; 6] = ["munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol"];

/// Why a cluster is impossible here; `None` if it is possible.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("slurmd and the scripts of a node run as root".to_owned());
    }
    let lacking: Vec<&str> = PROGRAMS.into_iter().filter(|name| find(name).is_none()).collect();
    (!lacking.is_empty()).then(|| {
        format!("no {} here: apt-get install slurmctld slurmd slurm-client munge", lacking.join(", "))
    })
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"]);
    dirs.map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

pub struct Cluster<'a> {
    world: &'a World,
    dir: PathBuf,
    node: String,
    /// Ended in this order.
    daemons: Vec<(&'static str, Child)>,
}

impl<'a> Cluster<'a> {
    pub fn start(world: &'a World) -> Self {
        Self::start_with(world, false)
    }

    /// With the SPANK plugin in place of the TaskProlog.
    pub fn with_plugin(world: &'a World) -> Self {
        Self::start_with(world, true)
    }

    fn start_with(world: &'a World, has_plugin: bool) -> Self {
        let dir = world.dir().join("slurm");
        for name in ["", "state", "spool", "prolog.d", "epilog.d"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let node = host.trim().split('.').next().unwrap().to_owned();
        let mut cluster = Self { world, dir, node, daemons: Vec::new() };
        cluster.write_files(has_plugin);
        let at = |name: &str| cluster.dir.join(name).display().to_string();
        fs::write(
            at("munge.key"),
            (0..1024).map(|at| (at * 7 + std::process::id()) as u8).collect::<Vec<u8>>(),
        )
        .unwrap();
        fs::set_permissions(at("munge.key"), fs::Permissions::from_mode(0o600)).unwrap();
        let munge = ["key-file", "socket", "pid-file", "log-file", "seed-file"].map(|option| {
            format!("--{option}={}", at(&format!("munge.{}", option.split('-').next().unwrap())))
        });
        // The parent directories keep their owners.
        cluster.daemon("munged", munge.iter().map(String::as_str).chain(["--foreground", "--force"]));
        cluster.wait("munged listens", |cluster| cluster.dir.join("munge.socket").exists());
        let config = cluster.dir.join("slurm.conf").display().to_string();
        cluster.daemon("slurmctld", ["-D", "-f", &config].into_iter());
        let node = cluster.node.clone();
        cluster.daemon("slurmd", ["-D", "-f", &config, "-N", &node].into_iter());
        cluster.wait("the node is idle", |cluster| cluster.node_state() == "IDLE");
        cluster
    }

    /// Installs the plugin for this machine's Slurm, with the line that the command prints.
    fn install_plugin(&self) {
        let slurm = text(&self.command("slurmd").arg("-V").output().unwrap().stdout);
        let file = self.dir.join("spank_partita.so");
        let mut command = self.world.partita(["batch", "spank", file.to_str().unwrap()]);
        let output = command.args(["--slurm-version", slurm.trim()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stdout);
        let line = said.lines().find(|line| line.starts_with("optional ")).unwrap();
        let records = crate::batch_jobs::state_dir(self.world);
        let line = format!("{line} state-dir={}\n", records.display());
        fs::write(self.dir.join("plugstack.conf"), line).unwrap();
    }

    fn write_files(&self, has_plugin: bool) {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/batch/slurm");
        let dir = self.dir.display().to_string();
        let settings = self.dir.join("settings");
        let script = |name: &str| {
            let text = fs::read_to_string(examples.join(name)).unwrap();
            assert!(
                text.contains("/usr/local/bin/partita") && text.contains("/etc/default/partita"),
                "{name}"
            );
            let text = text.replace("/usr/local/bin/partita", &program().display().to_string());
            let text = text.replace("/etc/default/partita", &settings.display().to_string());
            let path = self.dir.join(name);
            executable(&path, text.as_bytes());
        };
        ["prolog.d/50-partita", "epilog.d/50-partita", "task-prolog", "task-epilog"]
            .into_iter()
            .for_each(script);
        write_settings(self.world, &settings);

        // Two GPUs. Slurm needs devices, of any kind.
        for name in ["gpu0", "gpu1"] {
            symlink("/dev/null", self.dir.join(name)).unwrap();
        }
        let gres = fs::read_to_string(examples.join("gres.conf")).unwrap();
        let gres =
            gres.replace("/dev/nvidia[0-3]", &format!("{dir}/gpu[0-1]")).replace("Count=400", "Count=200");
        fs::write(self.dir.join("gres.conf"), gres).unwrap();
        let example = fs::read_to_string(examples.join("slurm.conf")).unwrap();
        let lines =
            example.lines().filter(|line| !line.starts_with("NodeName=") && !line.starts_with("KillWait="));
        let lines = lines.filter(|line| !(has_plugin && line.starts_with("TaskProlog=")));
        let mut lines: String = lines.map(|line| line.replace("/etc/slurm", &dir) + "\n").collect();
        if has_plugin {
            self.install_plugin();
            lines += &format!("PlugStackConfig={dir}/plugstack.conf\n");
        }
        let Self { node, .. } = self;
        // Two listeners at once, to get different numbers.
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [controller, daemon] = ports.map(|listener| listener.local_addr().unwrap().port());
        // An epilog ends the processes of its job, also those of another cluster's job of this
        // number. Slurm's numbers end at 67,043,328.
        let first_job = 1 + number_of(self.world) % 67_000_000;
        fs::write(
            self.dir.join("slurm.conf"),
            format!(
                "{lines}
ClusterName=partita
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
FirstJobId={first_job}
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=2
NodeName={node} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2,mps:200 Feature=partita_mps State=UNKNOWN
PartitionName=all Nodes={node} Default=YES MaxTime=INFINITE State=UP
"
            ),
        )
        .unwrap();
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(find(name).unwrap());
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SLURM_CONF", self.dir.join("slurm.conf"))
            .current_dir(&self.dir)
            .stdin(Stdio::null());
        command
    }

    fn daemon<'b>(&mut self, name: &'static str, arguments: impl Iterator<Item = &'b str>) {
        let log = File::create(self.dir.join(format!("{name}.out"))).unwrap();
        let mut command = self.command(name);
        command.args(arguments).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.insert(0, (name, command.spawn().unwrap()));
    }

    /// Gives a script the environment of slurmd, and the commands of Slurm.
    pub fn put_in_environment(&self, command: &mut Command) {
        let scontrol = find("scontrol").unwrap();
        let path = format!("{}:/usr/bin:/bin", scontrol.parent().unwrap().display());
        command
            .env("SLURM_CONF", self.dir.join("slurm.conf"))
            .env("SLURMD_NODENAME", &self.node)
            .env("PATH", path);
    }

    /// The output of a Slurm command.
    pub fn ask(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.command(name).args(arguments).output().unwrap();
        text(&output.stdout)
    }

    pub fn node_state(&self) -> String {
        let shown = self.ask("scontrol", &["show", "node", &self.node, "--oneliner"]);
        let state = shown.split_whitespace().find_map(|word| word.strip_prefix("State="));
        state.unwrap_or_default().to_owned()
    }

    pub fn node_reason(&self) -> String {
        let shown = self.ask("scontrol", &["show", "node", &self.node, "--oneliner"]);
        shown.split_once("Reason=").map_or(String::new(), |(_, reason)| reason.trim().to_owned())
    }

    pub fn resume(&self) {
        let node = format!("nodename={}", self.node);
        self.ask("scontrol", &["update", &node, "state=resume"]);
        self.wait("the node is idle again", |cluster| cluster.node_state() == "IDLE");
    }

    /// Submits a script and returns the job's number.
    pub fn submit(&self, options: &[&str], script: &str) -> String {
        let output = self.try_submit(options, script);
        assert!(output.status.success(), "{output:?}\n{}", self.logs());
        text(&output.stdout).trim().to_owned()
    }

    pub fn try_submit(&self, options: &[&str], script: &str) -> Output {
        let file = self.dir.join(format!("job-{:x}.sh", script.len() * 31 + options.concat().len()));
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        let mut command = self.command("sbatch");
        command.args(["--parsable", "--output=out.%j", "--error=out.%j"]).args(options).arg(&file);
        command.output().unwrap()
    }

    /// The output of the job and its tasks.
    pub fn output(&self, job: &str) -> String {
        fs::read_to_string(self.dir.join(format!("out.{job}"))).unwrap_or_default()
    }

    pub fn job_state(&self, job: &str) -> String {
        let shown = self.ask("scontrol", &["show", "job", job, "--oneliner"]);
        let state = shown.split_whitespace().find_map(|word| word.strip_prefix("JobState="));
        state.unwrap_or_default().to_owned()
    }

    /// Waits until the job and its epilog are over, and returns the job's state.
    pub fn finish(&self, job: &str) -> String {
        self.wait("the job is over", |cluster| {
            let state = cluster.job_state(job);
            !["PENDING", "RUNNING", "CONFIGURING", "COMPLETING", ""].contains(&state.as_str())
                && cluster.node_state() == "IDLE"
        });
        self.job_state(job)
    }

    pub fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "never: {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    pub fn logs(&self) -> String {
        let mut found = String::new();
        for entry in fs::read_dir(&self.dir).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".log")
                || name.ends_with(".out")
                || name.starts_with("out.")
                || name == "munge.log"
            {
                found.push_str(&format!(
                    "== {name}\n{}\n",
                    fs::read_to_string(entry.path()).unwrap_or_default()
                ));
            }
        }
        found
    }

    /// Every process that this cluster started: they have its configuration in their environment.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let mark = format!("SLURM_CONF={}", self.dir.join("slurm.conf").display());
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|entry| entry == mark.as_bytes())
        })
        .map(|pid| {
            (pid, fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned())
        })
        .filter(|(_, name)| !name.starts_with("partita-simgpu"))
        .collect()
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            if let Some(pid) = Pid::from_raw(child.id() as i32) {
                let _ = rustix::process::kill_process(pid, Signal::TERM);
            }
            let deadline = Instant::now() + Duration::from_secs(10);
            while let Ok(None) = child.try_wait() {
                if Instant::now() >= deadline {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.processes().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = self.processes();
        for (pid, _) in &left {
            if let Some(pid) = Pid::from_raw(*pid as i32) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        if !std::thread::panicking() {
            assert!(left.is_empty(), "the cluster left {left:?}");
        }
    }
}
