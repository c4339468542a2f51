//! Shared by the hook's tests: the built library, C programs, a tenant's ledger.

#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use partita_ledger::{
    GATE_FILE_NAME, GateMap, LIMITS_FILE_NAME, Limits, LimitsFile, MECHANISM_MASK, USAGE_FILE_NAME, UsageMap,
    UsageView,
};
use partita_testing::{Aarch64, aarch64, build, succeed};

/// The hook's shared library.
pub fn library() -> PathBuf {
    build().join("libpartita.so")
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// The output of a program.
pub struct Said {
    /// Standard output, without the answers.
    pub lines: Vec<String>,
    /// On standard error.
    pub complaints: Vec<String>,
}

/// A directory with a stub `libcuda.so.1`, a tenant's ledger and programs.
pub struct Fixture {
    /// The GPU's directory, and below it the tenant's.
    of_gpu: tempfile::TempDir,
    directory: PathBuf,
    /// The emulated machine of its programs, if it is not this one.
    emulated: Option<&'static Aarch64>,
}

impl Fixture {
    /// Builds the stub driver and creates the ledger with these limits.
    pub fn new(limits: &Limits) -> Self {
        Self::on(None, limits)
    }

    /// For programs on aarch64; `None` where they cannot be emulated.
    pub fn on_aarch64(limits: &Limits) -> Option<Self> {
        aarch64().map(|machine| Self::on(Some(machine), limits))
    }

    fn on(emulated: Option<&'static Aarch64>, limits: &Limits) -> Self {
        let of_gpu = tempfile::tempdir().expect("a temporary directory");
        let fixture = Self { directory: of_gpu.path().join("test"), of_gpu, emulated };
        std::fs::create_dir(&fixture.directory).expect("a directory");
        let parts = ["stub_graphs.c", "stub_time.c"].map(|part| programs().join(part));
        let [graphs, time] = parts.each_ref().map(|part| part.to_str().expect("UTF-8"));
        fixture.cc(&["-shared", "-fPIC", graphs, time], "stub_driver.c", &fixture.path("libcuda.so.1"));
        LimitsFile::create(&fixture.file(LIMITS_FILE_NAME.to_str().expect("ASCII")), limits, 0o644)
            .expect("limits");
        UsageMap::create(&fixture.file(USAGE_FILE_NAME.to_str().expect("ASCII")), 0o644).expect("usage");
        fixture
    }

    /// Compiles a program or library of `tests/programs`.
    pub fn cc(&self, arguments: &[&str], source: &str, output: &Path) {
        let mut compiler = self.emulated.map_or_else(|| Command::new("cc"), Aarch64::cc);
        let source = programs().join(source);
        succeed(compiler.args(["-O1", "-w", "-o"]).arg(output).arg(source).args(arguments));
    }

    /// The hook's shared library.
    pub fn hook(&self) -> PathBuf {
        self.emulated.map_or_else(library, |machine| machine.built("libpartita.so"))
    }

    /// A compiled program, to be run as the tenant with these libraries preloaded.
    pub fn within(&self, program: &Path, preload: &[&Path]) -> Command {
        let preload: Vec<_> = preload.iter().map(|library| library.to_str().expect("UTF-8")).collect();
        let variables =
            [("LD_PRELOAD", preload.join(":")), ("LD_LIBRARY_PATH", self.path("").display().to_string())];
        let mut command = match self.emulated {
            None => {
                let mut command = Command::new(program);
                command.envs(variables);
                command
            }
            Some(machine) => machine.command(program, &variables),
        };
        command.env("PARTITA_LEDGER", &self.directory);
        command
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The GPU's gate file, newly made.
    pub fn gate(&self) -> GateMap {
        let path = self.of_gpu.path().join(GATE_FILE_NAME.to_str().expect("ASCII"));
        std::fs::create_dir(path.parent().expect("its directory")).expect("the directory");
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no zero byte");
        GateMap::create(&path, 0o600).expect("the gate file")
    }

    /// The same for the ledger's interface.
    pub fn file(&self, name: &str) -> CString {
        CString::new(self.path(name).to_str().expect("UTF-8")).expect("no zero byte")
    }

    /// The tenant's limits, to change them.
    pub fn limits_file(&self) -> LimitsFile {
        LimitsFile::open_rw(&self.file(LIMITS_FILE_NAME.to_str().expect("ASCII"))).expect("limits")
    }

    /// A program of `tests/programs`, compiled, to be run as the tenant.
    pub fn command(&self, source: &str, arguments: &[&str]) -> Command {
        let program = self.path(source.trim_end_matches(".c"));
        self.cc(&["-rdynamic", "-ldl", "-pthread"], source, &program);
        let mut command = self.within(&program, &[&self.hook()]);
        command.args(arguments);
        command
    }

    /// Compiles a program of `tests/programs` and runs it as the tenant.
    pub fn run(&self, source: &str, arguments: &[&str]) -> Output {
        self.command(source, arguments).output().expect("the program starts")
    }

    /// Runs a program that asks on its standard output: `answer` has an answer to a line, or lets
    /// it be one of the program's results.
    pub fn talk(
        &self,
        source: &str,
        arguments: &[&str],
        mut answer: impl FnMut(&str) -> Option<String>,
    ) -> Said {
        let mut command = self.command(source, arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut input = child.stdin.take().expect("a pipe");
        let mut lines = Vec::new();
        for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
            let line = line.expect("UTF-8");
            match answer(&line) {
                // How a program has ended that does not read is what its status says, below.
                Some(answer) => drop(writeln!(input, "{answer}")),
                None => lines.push(line),
            }
        }
        let output = child.wait_with_output().expect("the program ends");
        let complaints = String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect();
        assert!(output.status.success(), "{:?} {lines:#?} {complaints:?}", output.status);
        Said { lines, complaints }
    }

    /// The reports of the tenant's processes.
    pub fn usage(&self) -> UsageView {
        UsageView::open(&self.file(USAGE_FILE_NAME.to_str().expect("ASCII"))).expect("usage")
    }
}

/// Limits of a Hopper with 66 TPCs at bits 0–65, of which the tenant has 0–32.
pub fn limits() -> Limits {
    let mut limits = Limits {
        gpu_uuid: [7; 16],
        device_class: 90,
        qmd_version: 0x40,
        sms_per_tpc: 2,
        tpc_count: 66,
        set: [0x1_ffff_ffff, 0, 0, 0],
        qmd_disable: [0, !1, !0, !0, !0, !0, !0, !0],
        max_cluster_sms: 14,
        memory_quota_bytes: 1 << 30,
        memory_total_bytes: 1 << 40,
        name: Limits::name_field("test").expect("a short name"),
        mechanism: MECHANISM_MASK,
        ..Limits::default()
    };
    for tpc in 0..66 {
        limits.physical_of_logical[tpc as usize] = tpc;
        limits.gpc_of_logical[tpc as usize] = (tpc / 9) as u8;
    }
    limits
}
