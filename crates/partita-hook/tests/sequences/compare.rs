//! Runs sequences without the hook and as tenants, and finds where the traces differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use partita_testing::{Machine, build, ignored_test, is_real, without_own_variables};

use crate::plan::Operation;

/// Where the child finds its sequences, and where it writes its trace.
pub const INPUT: &str = "PARTITA_SEQUENCES_INPUT";
pub const OUTPUT: &str = "PARTITA_SEQUENCES_OUTPUT";

/// The tenants that are compared with a program without the hook, and their options of `partita
/// run`.
pub const TENANTS: [(&str, &str); 5] = [
    ("mask", "--sm 50%"),
    ("low priority", "--sm 50% --priority low"),
    ("high priority", "--sm 50% --priority high"),
    ("share of time", "--sm 50% --time 60%"),
    ("time alone", "--via time --time 60%"),
];

/// How long a program may go without a word: reached only by a hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// A sequence and its name.
pub type Named = (String, Vec<Operation>);

/// What one process has told of the sequences that it got to, and how it ended.
struct Part {
    traces: Vec<String>,
    end: String,
    complaints: String,
}

/// How a process ended. `partita run` passes the signal that ended its program on as a status above
/// 128, as shells do.
fn ending(status: ExitStatus) -> String {
    let signal = status.signal().or_else(|| status.code().filter(|code| *code > 128).map(|code| code - 128));
    signal.map_or_else(|| status.to_string(), |signal| format!("signal {signal}"))
}

/// The lines of one trace, with those of the other below them where they differ.
fn both(bare: &str, behind: &str) -> String {
    let mut told = String::new();
    let mut lines = (bare.lines(), behind.lines());
    loop {
        let _ = match (lines.0.next(), lines.1.next()) {
            (None, None) => return told,
            (Some(bare), Some(behind)) if bare == behind => writeln!(told, "      {bare}"),
            (bare, behind) => {
                let [bare, behind] = [bare, behind].map(|line| line.unwrap_or("(nothing)"));
                writeln!(told, "bare: {bare}\nhook: {behind}")
            }
        };
    }
}

/// The first of the traces that differ, and both.
fn difference(bare: &[String], behind: &[String]) -> Option<(usize, String)> {
    let at = bare.iter().zip(behind).position(|(bare, behind)| bare != behind)?;
    Some((at, both(&bare[at], &behind[at])))
}

/// What two traces differ in first: the call and its two results, without the values in memory and
/// the names of objects.
fn kind_of_difference(bare: &str, behind: &str) -> String {
    let mut lines = (bare.lines(), behind.lines());
    loop {
        let (bare, behind) = (lines.0.next(), lines.1.next());
        if bare.is_none() && behind.is_none() {
            return "nothing".to_owned();
        }
        if bare == behind {
            continue;
        }
        let line = bare.or(behind).unwrap_or_default();
        let call = if line.starts_with('t') { line.split(' ').nth(1) } else { line.split(' ').next() };
        let result = |line: Option<&str>| {
            let line = line.unwrap_or("nothing");
            let result = line.split_once("-> ").map_or(line, |(_, result)| result);
            let is_short = |word: &&str| word.len() < 12 && !word.starts_with(['[', 'g']);
            result.split(' ').take_while(is_short).take(8).collect::<Vec<_>>().join(" ")
        };
        return format!(
            "{}: bare \"{}\", hook \"{}\"",
            call.unwrap_or_default(),
            result(bare),
            result(behind)
        );
    }
}

/// The comparisons for one tenant.
#[derive(Default)]
struct Result {
    taken: Duration,
    compared: usize,
    differ: usize,
    /// How often sequences differ in the same way, and one of them.
    kinds: BTreeMap<String, (usize, String)>,
    /// The first that differs, in words.
    first: Option<String>,
}

/// How far a comparison goes.
pub struct Effort {
    /// When it ends, whatever is left.
    pub until: Option<Instant>,
    /// Whether it looks for the shortest sequence that still differs.
    pub shrinks: bool,
}

/// A machine on which sequences run.
pub struct World {
    machine: Machine,
    until: Option<Instant>,
    temp: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.partita("mps").args(["stop", "--force"]).output();
    }
}

impl World {
    pub fn new() -> Self {
        // A GPU maps files there for gates between priorities.
        let temp = tempfile::Builder::new().prefix("pt").tempdir_in("/dev/shm").expect("a directory");
        Self { machine: Machine::new("sequences"), until: None, temp }
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// A command of `partita` in this world.
    fn partita(&self, name: &str) -> Command {
        let mut command = Command::new(build().join("partita"));
        command.arg(name);
        without_own_variables(&mut command);
        command
            .env("PARTITA_RUN_DIR", self.path("run"))
            .env("PARTITA_CACHE_DIR", self.path("cache"))
            .env("PARTITA_SIM_DIR", self.path("sim"))
            .env("PARTITA_LIB_DIR", build())
            .env("PARTITA_GPU", if is_real() { "0" } else { "sim:h200" });
        command
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
                let mut command = self.partita("run");
                command.args(["--name", "sequences"]).args(options.split_whitespace()).arg("--");
                command.arg(program.get_program()).args(program.get_args());
                command
            }
        };
        command.env(INPUT, input).env(OUTPUT, output).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Runs sequences, as many processes after each other as it takes: one ends where a sequence
    /// ends it. Returns the trace of each that was carried out in time.
    fn run(&self, tenant: Option<&str>, sequences: &[Named]) -> Vec<String> {
        let mut traces: Vec<String> = Vec::new();
        while traces.len() < sequences.len() && !self.is_late() {
            let part = self.run_part(tenant, &sequences[traces.len()..]);
            let Part { traces: told, end, complaints } = part;
            if !complaints.is_empty() {
                eprint!("{}: {complaints}", tenant.unwrap_or("without the hook"));
            }
            assert!(self.is_late() || !told.is_empty(), "the program does not start: {end}\n{complaints}");
            traces.extend(told);
            if self.is_late() {
                // What it was at has been cut off.
                traces.pop();
            } else if traces.len() < sequences.len()
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
                break ending(status);
            }
            let length = told();
            if length != last.1 {
                last = (Instant::now(), length);
            }
            if last.0.elapsed() > PATIENCE || self.is_late() {
                if tenant.is_some() {
                    let _ = self.partita("kill").arg("sequences").status();
                }
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

    /// The trace of the program, without the hook or as a tenant with these options.
    pub fn trace(&self, tenant: Option<&str>, sequences: &[Named]) -> String {
        self.run(tenant, sequences).into_iter().map(|trace| format!("= {trace}")).collect()
    }

    /// The first sequence whose traces differ, and both.
    fn difference(&self, tenant: &str, sequences: &[Named]) -> Option<(usize, String)> {
        difference(&self.run(None, sequences), &self.run(Some(tenant), sequences))
    }

    /// Compares these sequences for every tenant.
    ///
    /// # Panics
    /// At the first that differs.
    pub fn compare_all(&self, sequences: &[Named]) {
        let bare = self.run(None, sequences);
        for (name, options) in TENANTS {
            if let Some((at, told)) = difference(&bare, &self.run(Some(options), sequences)) {
                panic!("{name}: {} differs:\n{told}", sequences[at].0);
            }
        }
    }

    /// Leaves out of a sequence what its difference does not need. Some differences need what the
    /// process did before, too.
    fn shrink(&self, tenant: &str, before: &[Named], sequence: &[Operation]) -> String {
        let shows = |before: &[Named], sequence: &[Operation]| {
            let mut all = before.to_vec();
            all.push(("shrunk".to_owned(), sequence.to_vec()));
            let (at, told) = self.difference(tenant, &all)?;
            (at == before.len()).then_some(told)
        };
        let mut sequence = sequence.to_vec();
        let (before, mut told) = match (shows(&[], &sequence), shows(before, &sequence)) {
            (Some(told), _) => (&before[..0], told),
            (None, Some(told)) => (before, told),
            (None, None) => return "it does not show again\n".to_owned(),
        };
        let mut length = sequence.len() / 2;
        while length > 0 {
            let starts: Vec<usize> = (0..sequence.len()).step_by(length).collect();
            let without = |start: usize| {
                let end = (start + length).min(sequence.len());
                [&sequence[..start], &sequence[end..]].concat()
            };
            let shorter =
                starts.into_iter().map(without).find_map(|rest| Some((shows(before, &rest)?, rest)));
            match shorter {
                Some((text, rest)) => {
                    (told, sequence) = (text, rest);
                    length = length.min(sequence.len());
                }
                None => length /= 2,
            }
        }
        if let Some((first, _)) = before.first() {
            let _ = writeln!(told, "only behind the sequences from {first} on");
        }
        told
    }

    /// Compares the sequences of these seeds for every tenant, and tells what it has compared.
    ///
    /// # Panics
    /// If some differ, with the first of each tenant, or the shortest sequence that still does.
    pub fn compare(mut self, seeds: std::ops::Range<u64>, effort: &Effort) {
        // All tenants take their turns, whatever differs and however little time there is.
        const BATCH: u64 = 500;
        self.until = effort.until;
        let mut results: [Result; TENANTS.len()] = std::array::from_fn(|_| Result::default());
        let (mut done, mut taken) = (0, Duration::ZERO);
        let mut first = seeds.start;
        while first < seeds.end && !self.is_late() {
            let end = (first + BATCH).min(seeds.end);
            let sequences: Vec<Named> =
                (first..end).map(|seed| (format!("seed {seed}"), crate::plan::sequence(seed))).collect();
            let start = Instant::now();
            let bare = self.run(None, &sequences);
            (done, taken) = (done + bare.len(), taken + start.elapsed());
            for ((name, options), result) in TENANTS.into_iter().zip(&mut results) {
                let start = Instant::now();
                let behind = self.run(Some(options), &sequences);
                result.taken += start.elapsed();
                result.compared += bare.len().min(behind.len());
                for (at, (bare, behind)) in bare.iter().zip(&behind).enumerate() {
                    if bare == behind {
                        continue;
                    }
                    let seed = &sequences[at].0;
                    result.differ += 1;
                    let kind = kind_of_difference(bare, behind);
                    result.kinds.entry(kind).or_insert_with(|| (0, seed.clone())).0 += 1;
                    if result.first.is_none() {
                        let mut told = format!("{name}: {seed} differs:\n{}", both(bare, behind));
                        eprintln!("{told}");
                        if effort.shrinks {
                            let shrunk = self.shrink(options, &sequences[..at], &sequences[at].1);
                            let _ = write!(told, "\nshrunk:\n{shrunk}");
                        }
                        result.first = Some(told);
                    }
                }
            }
            first = end;
        }
        eprintln!("{done} sequences without the hook: {:.1} s", taken.as_secs_f64());
        for ((name, options), result) in TENANTS.iter().zip(&results) {
            let verdict = if result.differ == 0 { "the same" } else { "DIFFERENT" };
            let Result { taken, compared, differ, kinds, .. } = result;
            let taken = taken.as_secs_f64();
            eprintln!("{verdict}  {differ} of {compared} differ  {taken:7.1} s  {name} ({options})");
            let mut kinds: Vec<_> = kinds.iter().collect();
            kinds.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
            for (kind, (count, seed)) in kinds {
                eprintln!("    {count:5} like {seed}: {kind}");
            }
        }
        let found: Vec<String> = results.into_iter().filter_map(|result| result.first).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
