//! What the hook's tests share: the built library, C programs, a tenant's ledger.

#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use partita_ledger::{LIMITS_FILE_NAME, Limits, LimitsFile, USAGE_FILE_NAME, UsageMap, UsageView};

/// The hook's shared library, built beside the test executable.
pub fn library() -> PathBuf {
    let executable = std::env::current_exe().expect("a running test has a path");
    let deps = executable.parent().expect("an executable lies in a directory");
    let places = [
        deps.join("libpartita.so"),
        deps.parent().expect("deps lies in the profile's directory").join("libpartita.so"),
    ];
    places
        .iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| {
            panic!("libpartita.so is in neither of {places:?}: run `cargo build --workspace` first")
        })
        .clone()
}

fn cc(arguments: &[&str], source: &str, output: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let given = Command::new("cc")
        .args(["-O1", "-w", "-o"])
        .arg(output)
        .arg(source)
        .args(arguments)
        .output()
        .expect("the tests need a C compiler, `cc`");
    assert!(given.status.success(), "{}", String::from_utf8_lossy(&given.stderr));
}

/// A directory with a stub `libcuda.so.1`, a tenant's ledger and programs.
pub struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    /// Builds the stub driver and creates the ledger with these limits.
    pub fn new(limits: &Limits) -> Self {
        let fixture = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        cc(&["-shared", "-fPIC"], "stub_driver.c", &fixture.path("libcuda.so.1"));
        LimitsFile::create(&fixture.file(LIMITS_FILE_NAME.to_str().expect("ASCII")), limits, 0o644)
            .expect("limits");
        UsageMap::create(&fixture.file(USAGE_FILE_NAME.to_str().expect("ASCII")), 0o644).expect("usage");
        fixture
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same for the ledger's interface.
    pub fn file(&self, name: &str) -> CString {
        CString::new(self.path(name).to_str().expect("UTF-8")).expect("no zero byte")
    }

    /// Compiles a program of `tests/programs` and runs it as the tenant.
    pub fn run(&self, source: &str, arguments: &[&str]) -> Output {
        let program = self.path(source.trim_end_matches(".c"));
        cc(&["-rdynamic", "-ldl", "-pthread"], source, &program);
        Command::new(program)
            .args(arguments)
            .env("LD_PRELOAD", library())
            .env("LD_LIBRARY_PATH", self.directory.path())
            .env("PARTITA_LEDGER", self.directory.path())
            .output()
            .expect("the program starts")
    }

    /// What the tenant's processes have reported.
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
        ..Limits::default()
    };
    for tpc in 0..66 {
        limits.physical_of_logical[tpc as usize] = tpc;
        limits.gpc_of_logical[tpc as usize] = (tpc / 9) as u8;
    }
    limits
}
