//! Runs sequences without the hook and as tenants, and finds where the traces differ.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use partita_testing::{Machine, ignored_test, is_real, without_own_variables};

use crate::plan::Operation;

/// Where the child finds its sequences, and where it writes its trace.
pub const INPUT: &str = "PARTITA_SEQUENCES_INPUT";
pub const OUTPUT: &str = "PARTITA_SEQUENCES_OUTPUT";

/// The tenants that are compared with a program without the hook, and what `partita run` is told for each.
pub const TENANTS: [(&str, &str); 5] = [
    ("mask", "--sm 50%"),
    ("low priority", "--sm 50% --priority low"),
    ("high priority", "--sm 50% --priority high"),
    ("share of time", "--sm 50% --time 60%"),
    ("time alone", "--via time --time 60%"),
];

/// How long a program may go without a word: reached only by a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// The programs and libraries.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| partita_testing::build(&["partita-cli"]));

/// A sequence and its name.
pub type Named = (String, Vec<Operation>);

/// What one process has told of the sequences that it got to, and how it ended.
struct Part {
    traces: Vec<String>,
    end: String,
    complaints: String,
}

/// The first of the traces that differ, with the lines of one below those of the other where they do.
fn difference(bare: &[String], behind: &[String]) -> Option<(usize, String)> {
    let at = bare.iter().zip(behind).position(|(bare, behind)| bare != behind)?;
    let mut told = String::new();
    let mut lines = (bare[at].lines(), behind[at].lines());
    loop {
        let _ = match (lines.0.next(), lines.1.next()) {
            (None, None) => return Some((at, told)),
            (Some(bare), Some(behind)) if bare == behind => writeln!(told, "      {bare}"),
            (bare, behind) => {
                let [bare, behind] = [bare, behind].map(|line| line.unwrap_or("(nothing)"));
                writeln!(told, "bare: {bare}\nhook: {behind}")
            }
        };
    }
}

/// A machine on which sequences run.
pub struct World {
    machine: Machine,
    temp: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        // A GPU maps files there for gates between priorities.
        let temp = tempfile::Builder::new().prefix("pt").tempdir_in("/dev/shm").expect("a directory");
        Self { machine: Machine::new(&BUILT, "sequences"), temp }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// The program, without the hook or as a tenant with these options.
    fn command(&self, tenant: Option<&str>, input: &Path, output: &Path) -> Command {
        let program = ignored_test("carries_sequences_out");
        let mut command = match tenant {
            None => {
                let mut command = program;
                if is_real() {
                    without_own_variables(&mut command);
                } else {
                    self.machine.surround(&mut command, "h200");
                }
                command
            }
            Some(options) => {
                let mut command = Command::new(BUILT.join("partita"));
                command.arg("run").args(options.split_whitespace()).arg("--");
                command.arg(program.get_program()).args(program.get_args());
                without_own_variables(&mut command);
                command
                    .env("PARTITA_RUN_DIR", self.path("run"))
                    .env("PARTITA_CACHE_DIR", self.path("cache"))
                    .env("PARTITA_SIM_DIR", self.path("sim"))
                    .env("PARTITA_LIB_DIR", BUILT.as_path())
                    .env("PARTITA_GPU", if is_real() { "0" } else { "sim:h200" });
                command
            }
        };
        command.env(INPUT, input).env(OUTPUT, output).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Runs sequences, as many processes after each other as it takes: one ends where a sequence ends it. Returns the trace of each.
    fn run(&self, tenant: Option<&str>, sequences: &[Named]) -> Vec<String> {
        let mut traces: Vec<String> = Vec::new();
        while traces.len() < sequences.len() {
            let part = self.run_part(tenant, &sequences[traces.len()..]);
            let Part { traces: told, end, complaints } = part;
            assert!(!told.is_empty(), "the program does not start: {end}\n{complaints}");
            traces.extend(told);
            if traces.len() < sequences.len()
                && let Some(last) = traces.last_mut()
            {
                let _ = writeln!(last, "\nthe process ended: {end}");
            }
        }
        traces
    }

    fn run_part(&self, tenant: Option<&str>, sequences: &[Named]) -> Part {
        let (input, output) = (self.path("input"), self.path("output"));
        let mut text = String::new();
        for (name, operations) in sequences {
            let _ = writeln!(text, "= {name}");
            for operation in operations {
                let _ = writeln!(text, "{operation}");
            }
        }
        std::fs::write(&input, text).expect("the sequences are written");
        let complaints = self.path("complaints");
        let mut command = self.command(tenant, &input, &output);
        command.stderr(std::fs::File::create(&complaints).expect("a file"));
        let _ = std::fs::remove_file(&output);
        let mut child = command.spawn().expect("the program starts");
        let told = || std::fs::metadata(&output).map_or(0, |file| file.len());
        let mut last = (Instant::now(), 0);
        let end = loop {
            if let Some(status) = child.try_wait().expect("a child of this process") {
                break status.to_string();
            }
            let length = told();
            if length != last.1 {
                last = (Instant::now(), length);
            }
            if last.0.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                break "it hung".to_owned();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let told = std::fs::read(&output).unwrap_or_default();
        let told = String::from_utf8_lossy(&told);
        let traces = told.split("= ").skip(1).map(str::to_owned).collect();
        let complaints = std::fs::read_to_string(complaints).unwrap_or_default();
        Part { traces, end, complaints }
    }

    /// The trace of the program without the hook, for whoever compares two machines.
    pub fn bare(&self, sequences: &[Named]) -> String {
        self.run(None, sequences).into_iter().map(|trace| format!("= {trace}")).collect()
    }

    /// The first sequence whose traces differ, and both.
    fn difference(&self, tenant: &str, sequences: &[Named]) -> Option<(usize, String)> {
        difference(&self.run(None, sequences), &self.run(Some(tenant), sequences))
    }

    /// Leaves out of a sequence what its difference does not need.
    fn shrink(&self, tenant: &str, mut sequence: Vec<Operation>) -> (Vec<Operation>, String) {
        let mut told = String::from("the difference does not show again\n");
        if let Some((_, text)) = self.difference(tenant, &[("all".to_owned(), sequence.clone())]) {
            told = text;
        } else {
            return (sequence, told);
        }
        let mut length = sequence.len() / 2;
        while length > 0 {
            let starts = (0..sequence.len()).step_by(length);
            let candidates: Vec<Named> = starts
                .map(|start| {
                    let end = (start + length).min(sequence.len());
                    (format!("without {start}..{end}"), [&sequence[..start], &sequence[end..]].concat())
                })
                .collect();
            match self.difference(tenant, &candidates) {
                Some((at, text)) => {
                    sequence = candidates[at].1.clone();
                    told = text;
                    length = length.min(sequence.len().max(1));
                }
                None => length /= 2,
            }
        }
        (sequence, told)
    }

    /// Compares the sequences of these seeds for every tenant.
    ///
    /// # Panics
    /// At the first difference, with the shortest sequence that still shows it.
    pub fn compare(&self, seeds: std::ops::Range<u64>) {
        const BATCH: u64 = 2000;
        let mut first = seeds.start;
        while first < seeds.end {
            let end = (first + BATCH).min(seeds.end);
            let sequences: Vec<Named> =
                (first..end).map(|seed| (format!("seed {seed}"), crate::plan::sequence(seed))).collect();
            let start = Instant::now();
            let bare = self.run(None, &sequences);
            eprintln!("seeds {first} to {end}: bare {:.1} s", start.elapsed().as_secs_f64());
            for (name, options) in TENANTS {
                let start = Instant::now();
                let behind = self.run(Some(options), &sequences);
                eprintln!("seeds {first} to {end}: {name} {:.1} s", start.elapsed().as_secs_f64());
                if let Some((at, whole)) = difference(&bare, &behind) {
                    let (sequence, told) = self.shrink(options, sequences[at].1.clone());
                    let lines: Vec<String> = sequence.iter().map(ToString::to_string).collect();
                    panic!(
                        "{} differs for a tenant with {options}:\n{whole}\nshrunk:\n{}\n\n{told}",
                        sequences[at].0,
                        lines.join("\n")
                    );
                }
            }
            first = end;
        }
    }
}
