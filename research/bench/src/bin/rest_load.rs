//! The load limit of `partitad`: many clients of its REST interface at once, while the keeper of a
//! GPU's memory serves allocations.
//!
//! A separate daemon and keeper, each a process. Each client has a connection, keeps it open, and
//! sends requests at fixed times, whether the last answer has come or not; the result is the time
//! from a request's fixed time to the end of its answer. Beside them connections to the keeper
//! lease and return at their own rate, with a number of other leases open. Then the same clients
//! without pauses, for the daemon's highest rate.
//!
//! ```text
//! cargo build --profile dist && target/dist/rest-load             # sim:h200
//! target/dist/rest-load --rounds 20 --clients 20 --rate 200       # with and without the page
//! ```
//!
//! With `--rounds` it compares instead: the same clients with and without pages open, each a stream
//! of `/v1/live` as the page reads it, beside tenants that launch kernels all the time. Both halves
//! of a round follow each other, and rounds begin with the one and the other in turn.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use partita_core::Samples;
use partita_memory::client::Connection;
use rustix::process::{Pid, Signal, kill_process};

/// The timeout of every wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// Requests of each client in the part without pauses.
const UNPACED_REQUESTS: u32 = 100;

/// Measures partitad under load.
#[derive(Clone, Parser)]
struct Options {
    /// The GPU, as `partita run` takes it.
    #[arg(long, default_value = "sim:h200")]
    gpu: String,
    /// Clients of the REST interface.
    #[arg(long, default_value_t = 200)]
    clients: u32,
    /// Requests a second of all of them.
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Connections that lease.
    #[arg(long, default_value_t = 4)]
    lessees: u32,
    /// Allocations a second of all of them; 0 for none.
    #[arg(long, default_value_t = 10_000)]
    leases: u32,
    /// Other leases that are open meanwhile.
    #[arg(long, default_value_t = 1000)]
    open: u32,
    /// The time, in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Rounds with and without pages open; 0 for the load limit.
    #[arg(long, default_value_t = 0)]
    rounds: u32,
    /// Pages that are open in one half of each round.
    #[arg(long, default_value_t = 1)]
    pages: u32,
    /// Tenants that launch kernels meanwhile.
    #[arg(long, default_value_t = 2)]
    tenants: u32,
    /// Where the daemon keeps its state [default: a directory in /tmp].
    #[arg(long)]
    state: Option<PathBuf>,
    /// The directory of the executables [default: this one's].
    #[arg(long)]
    programs: Option<PathBuf>,
}

/// The clients' requests, in turn: a change for nine queries, as from a panel and an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ask {
    Chain,
    Chains,
    Tenants,
    Leases,
    Define,
}

const MIX: [Ask; 10] = [
    Ask::Chain,
    Ask::Chains,
    Ask::Chain,
    Ask::Tenants,
    Ask::Chain,
    Ask::Define,
    Ask::Chain,
    Ask::Leases,
    Ask::Chain,
    Ask::Chain,
];

/// A request with its times, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Taken {
    ask: Ask,
    /// From its fixed time to the end of its answer.
    from_due: f64,
    /// The client's own delay in that: from the fixed time, and the end of the answer before, to
    /// the sending. On cores with other work a client waits for its turn before it sends anything.
    client_late: f64,
    /// The daemon's own time, from the end of the request's headers to the start of the answer.
    in_daemon: f64,
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chain => "GET a chain",
            Self::Chains => "GET all chains",
            Self::Tenants => "GET all tenants",
            Self::Leases => "GET all leases",
            Self::Define => "PUT a chain (on the disk)",
        })
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let own = std::env::current_exe()?;
    let programs = match &options.programs {
        Some(programs) => programs.clone(),
        None => own.parent().context("a program lies in a directory")?.to_owned(),
    };
    let world = World::new(programs, &options)?;
    let daemon = world.start(&[])?;
    if options.rounds > 0 {
        let tenants = (0..options.tenants).map(|number| world.tenant(number, options.tenants));
        let tenants = tenants.collect::<Result<Vec<_>>>()?;
        compare(&options, &world.socket("partitad")?)?;
        drop(tenants);
        return daemon.end();
    }
    let keeper = world.start(&["keeper"])?;
    let (socket, memory) = (world.socket("partitad")?, world.socket("keeper")?);
    for client in 0..options.clients {
        let mut one = Rest::connect(&socket)?;
        one.ask("POST", "/v1/chains", &definition(client, 100))?;
    }

    let flushes = world.flushes()?;
    let holder = hold(&memory, options.open)?;
    println!(
        "{} REST clients, {} requests/s; {} allocations/s by {} connections, {} other leases open; {} s; {} processors\n",
        options.clients,
        options.rate,
        options.leases,
        options.lessees,
        options.open,
        options.seconds,
        std::thread::available_parallelism()?
    );
    let (rest, leases) = paced(&options, &socket, &memory)?;
    println!("| what | count | p50 | p99 | longest |\n|---|---|---|---|---|");
    for ask in [Ask::Chain, Ask::Chains, Ask::Tenants, Ask::Leases, Ask::Define] {
        let of = rest.iter().filter(|one| one.ask == ask);
        print_row(&ask.to_string(), of.map(|one| one.from_due).collect())?;
    }
    let all = |of: fn(&Taken) -> f64| rest.iter().map(of).collect();
    print_row("all requests", all(|one| one.from_due))?;
    print_row("of that, the client was late", all(|one| one.client_late))?;
    print_row("all requests, from when they were sent", all(|one| one.from_due - one.client_late))?;
    print_row("of that, in the daemon", all(|one| one.in_daemon))?;
    if !leases.is_empty() {
        print_row("lease and give back", leases)?;
    }
    print_row("the disk alone: 4 KiB and a flush", flushes)?;
    let (requests, seconds) = unpaced(&options, &socket)?;
    println!(
        "\nWithout pauses, and without allocations: {requests} requests in {seconds:.2} s, {:.0}/s.",
        f64::from(requests) / seconds
    );
    drop(holder);
    keeper.end()?;
    daemon.end()?;
    Ok(())
}

/// What one half of a round measured.
#[derive(Debug, Clone, Copy)]
struct Half {
    /// Answers a second.
    answers: f64,
    /// Times of requests, from when they were due, in milliseconds.
    p50: f64,
    p99: f64,
    /// Kernels a second of all tenants.
    kernels: f64,
}

/// Rounds with and without pages open.
fn compare(options: &Options, socket: &Path) -> Result<()> {
    let mut one = Rest::connect(socket)?;
    for client in 0..options.clients {
        one.ask("POST", "/v1/chains", &definition(client, 100))?;
    }
    let deadline = Instant::now() + PATIENCE;
    while launches(&mut one)?.iter().filter(|&&launches| launches > 0).count() < options.tenants as usize {
        ensure!(Instant::now() < deadline, "the tenants do not launch");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!(
        "{} REST clients, {} requests/s; {} tenants that launch; {} pages; {} rounds of two halves of {} s; {} processors\n",
        options.clients,
        options.rate,
        options.tenants,
        options.pages,
        options.rounds,
        options.seconds,
        std::thread::available_parallelism()?
    );
    let mut rounds: Vec<(Half, Half)> = Vec::new();
    for round in 0..options.rounds {
        let mut with = |pages| half(options, socket, pages, &mut one);
        rounds.push(match round % 2 {
            0 => (with(0)?, with(options.pages)?),
            _ => {
                let open = with(options.pages)?;
                (with(0)?, open)
            }
        });
    }
    println!(
        "| what | without | with | ratio, median of the rounds | from | to | rounds |\n|---|---|---|---|---|---|---|"
    );
    type Figure = fn(&Half) -> f64;
    let rows: [(&str, Figure); 4] = [
        ("answers/s", |half| half.answers),
        ("p50 of a request, ms", |half| half.p50),
        ("p99 of a request, ms", |half| half.p99),
        ("kernels/s of all tenants", |half| half.kernels),
    ];
    for (what, of) in rows {
        let samples = |numbers: Vec<f64>| Samples::new(numbers).map_err(|error| anyhow!("{what}: {error}"));
        let without = samples(rounds.iter().map(|(without, _)| of(without)).collect())?;
        let with = samples(rounds.iter().map(|(_, with)| of(with)).collect())?;
        let ratios = samples(rounds.iter().map(|(without, with)| of(with) / of(without)).collect())?;
        let least = rounds.iter().map(|(without, with)| of(with) / of(without)).fold(f64::INFINITY, f64::min);
        println!(
            "| {what} | {:.2} | {:.2} | {:.3} | {least:.3} | {:.3} | {} |",
            without.p50(),
            with.p50(),
            ratios.p50(),
            ratios.max(),
            ratios.count()
        );
    }
    Ok(())
}

/// One half of a round: the clients' load with so many pages open.
fn half(options: &Options, socket: &Path, pages: u32, one: &mut Rest) -> Result<Half> {
    let open = (0..pages).map(|_| Page::open(socket)).collect::<Result<Vec<_>>>()?;
    let (before, begin) = (launches(one)?, Instant::now());
    let load = Options { leases: 0, ..options.clone() };
    let (taken, _) = paced(&load, socket, Path::new(""))?;
    let (after, seconds) = (launches(one)?, begin.elapsed().as_secs_f64());
    // Without a sample nothing was compared.
    for page in open {
        let samples = page.close()?;
        ensure!(samples >= 1, "a page got no sample");
    }
    let times = Samples::new(taken.iter().map(|taken| taken.from_due).collect::<Vec<f64>>());
    let times = times.map_err(|error| anyhow!("a half without requests: {error}"))?;
    ensure!(before.len() == after.len(), "a tenant ended");
    let kernels: u64 = before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before)).sum();
    Ok(Half {
        answers: taken.len() as f64 / seconds,
        p50: times.p50(),
        p99: times.p99(),
        kernels: kernels as f64 / seconds,
    })
}

/// The kernels that each tenant has launched so far.
fn launches(rest: &mut Rest) -> Result<Vec<u64>> {
    let (_, body) = rest.answer("GET", "/v1/tenants", "")?;
    let tenants: serde_json::Value = serde_json::from_slice(&body)?;
    let tenants = tenants.as_array().context("/v1/tenants: no list")?;
    let of_part = |part: &serde_json::Value| part["launches"].as_u64().unwrap_or(0);
    let of =
        |tenant: &serde_json::Value| tenant["parts"].as_array().map(|parts| parts.iter().map(of_part).sum());
    tenants.iter().map(|tenant| of(tenant).context("a tenant without parts")).collect()
}

/// A page that is open: a stream of samples, which a thread reads as the browser does.
struct Page {
    stream: UnixStream,
    reader: std::thread::JoinHandle<usize>,
}

impl Page {
    fn open(socket: &Path) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).context("the daemon's socket")?;
        stream.write_all(b"GET /v1/live HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n")?;
        let read = stream.try_clone()?;
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(read).lines().map_while(Result::ok);
            lines.filter(|line| line == "event: sample").count()
        });
        Ok(Self { stream, reader })
    }

    /// Closes it; how many samples it got.
    fn close(self) -> Result<usize> {
        self.stream.shutdown(std::net::Shutdown::Both)?;
        self.reader.join().map_err(|_| anyhow!("a page panicked"))
    }
}

fn print_row(what: &str, times_ms: Vec<f64>) -> Result<()> {
    let times = Samples::new(times_ms).map_err(|error| anyhow!("{what}: {error}"))?;
    println!(
        "| {what} | {} | {:.2} ms | {:.2} ms | {:.2} ms |",
        times.count(),
        times.p50(),
        times.p99(),
        times.max()
    );
    Ok(())
}

/// Leases that stay open as long as the result.
fn hold(memory: &Path, count: u32) -> Result<Connection> {
    let mut holder = Connection::connect(memory, Some("held".parse()?), PATIENCE)?;
    let batch_max = holder.welcome().batch_max;
    let mut left = count;
    while left > 0 {
        let batch = left.min(batch_max);
        holder.lease(None, 4096, batch, 0)?;
        left -= batch;
    }
    Ok(holder)
}

/// Both loads at once: the times of each request, and of each lease with its return, in
/// milliseconds.
fn paced(options: &Options, socket: &Path, memory: &Path) -> Result<(Vec<Taken>, Vec<f64>)> {
    let lessees = if options.leases == 0 { 0 } else { options.lessees };
    let barrier = &Barrier::new((options.clients + lessees) as usize);
    let span = Duration::from_secs(options.seconds.into());
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.clients)
            .map(|client| {
                scope.spawn(move || -> Result<Vec<Taken>> {
                    let connected = Rest::connect(socket);
                    barrier.wait();
                    let mut rest = connected?;
                    let mut taken: Vec<Taken> = Vec::new();
                    let mut free = Instant::now();
                    // Spread over time, and each kind of request over the clients.
                    let every = Duration::from_secs(1) * options.clients / options.rate;
                    let first = every * client / options.clients;
                    for due in Due::new(first, every, span) {
                        let number = taken.len() as u32;
                        let ask = MIX[((number + client) % 10) as usize];
                        let client_late = due.max(free).elapsed().as_secs_f64() * 1e3;
                        let in_daemon = rest.mixed(ask, client, 10 + number % 1000)?;
                        free = Instant::now();
                        let from_due = free.duration_since(due).as_secs_f64() * 1e3;
                        taken.push(Taken { ask, from_due, client_late, in_daemon });
                    }
                    Ok(taken)
                })
            })
            .collect();
        let lessees: Vec<_> = (0..lessees)
            .map(|lessee| {
                scope.spawn(move || -> Result<Vec<f64>> {
                    let tenant = "load".parse()?;
                    let connected = Connection::connect(memory, Some(tenant), PATIENCE);
                    barrier.wait();
                    let mut connection = connected?;
                    let every = Duration::from_secs(1) * options.lessees / options.leases;
                    let mut taken = Vec::new();
                    for due in Due::new(every * lessee / options.lessees, every, span) {
                        let leases = connection.lease(None, 65_536, 1, 0)?;
                        connection.free(&[leases[0].id])?;
                        taken.push(due.elapsed().as_secs_f64() * 1e3);
                    }
                    Ok(taken)
                })
            })
            .collect();
        let mut all = Vec::new();
        for client in clients {
            all.extend(client.join().map_err(|_| anyhow!("a client panicked"))??);
        }
        let mut leases = Vec::new();
        for lessee in lessees {
            leases.extend(lessee.join().map_err(|_| anyhow!("a lessee panicked"))??);
        }
        Ok((all, leases))
    })
}

/// As many requests as possible; their number, and their time in seconds.
fn unpaced(options: &Options, socket: &Path) -> Result<(u32, f64)> {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.clients)
            .map(|client| {
                scope.spawn(move || -> Result<()> {
                    let mut rest = Rest::connect(socket)?;
                    for number in 0..UNPACED_REQUESTS {
                        rest.mixed(MIX[((number + client) % 10) as usize], client, 10 + number)?;
                    }
                    Ok(())
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    Ok((options.clients * UNPACED_REQUESTS, begin.elapsed().as_secs_f64()))
}

/// The fixed times; waits for each, unless it has passed.
struct Due {
    next: Instant,
    every: Duration,
    end: Instant,
}

impl Due {
    fn new(first: Duration, every: Duration, span: Duration) -> Self {
        let begin = Instant::now();
        Self { next: begin + first, every, end: begin + span }
    }
}

impl Iterator for Due {
    type Item = Instant;

    fn next(&mut self) -> Option<Instant> {
        let due = self.next;
        if due >= self.end {
            return None;
        }
        self.next += self.every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Some(due)
    }
}

fn definition(client: u32, period_ms: u32) -> String {
    format!(
        r#"{{"name":"c{client}","frame":"4MiB","period_ms":{period_ms},"component":[{{"name":"a","command":["a"]}},{{"name":"b","command":["b"]}}]}}"#
    )
}

/// A client with a persistent connection.
struct Rest {
    stream: BufReader<UnixStream>,
}

impl Rest {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("the daemon's socket")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    fn mixed(&mut self, ask: Ask, client: u32, period_ms: u32) -> Result<f64> {
        match ask {
            Ask::Chain => self.ask("GET", &format!("/v1/chains/c{client}"), ""),
            Ask::Chains => self.ask("GET", "/v1/chains", ""),
            Ask::Tenants => self.ask("GET", "/v1/tenants", ""),
            Ask::Leases => self.ask("GET", "/v1/leases", ""),
            Ask::Define => self.ask("PUT", &format!("/v1/chains/c{client}"), &definition(client, period_ms)),
        }
    }

    /// As [`Rest::answer`], without the answer.
    fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<f64> {
        Ok(self.answer(method, path, body)?.0)
    }

    /// A request, and its answer to the last byte. Returns the time that the daemon reports, in
    /// milliseconds, and the answer.
    fn answer(&mut self, method: &str, path: &str, body: &str) -> Result<(f64, Vec<u8>)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.clone();
        let (mut length, mut took_ms) = (0, None);
        while line != "\r\n" {
            line.clear();
            ensure!(self.stream.read_line(&mut line)? > 0, "{method} {path}: the answer ends early");
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse()?;
            } else if let Some(value) = line.strip_prefix("server-timing: total;dur=") {
                took_ms = Some(value.trim().parse()?);
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        ensure!(
            status.starts_with("HTTP/1.1 2"),
            "{method} {path}: {status}{}",
            String::from_utf8_lossy(&body)
        );
        let took_ms = took_ms.with_context(|| format!("{method} {path}: an answer without server-timing"))?;
        Ok((took_ms, body))
    }
}

/// The directories of a daemon and a keeper, removed with this.
struct World {
    programs: PathBuf,
    dir: PathBuf,
    state: PathBuf,
    gpu: String,
}

impl World {
    fn new(programs: PathBuf, options: &Options) -> Result<Self> {
        let name = format!("rest-load-{}", std::process::id());
        let dir = Path::new("/tmp").join(&name);
        let state = options.state.clone().unwrap_or_else(|| "/tmp".into()).join(format!("{name}-state"));
        std::fs::create_dir(&dir)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&state)?;
        Ok(Self { programs, dir, state, gpu: options.gpu.clone() })
    }

    /// The time of the disk alone: 4 KiB and a flush, in milliseconds.
    fn flushes(&self) -> Result<Vec<f64>> {
        let path = self.state.join("flush");
        let mut file = std::fs::File::create(&path)?;
        let times = (0..200).map(|_| {
            let begin = Instant::now();
            file.write_all(&[0x5a; 4096])?;
            file.sync_data()?;
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        });
        let times = times.collect::<Result<_>>()?;
        std::fs::remove_file(&path)?;
        Ok(times)
    }

    /// A tenant that launches kernels until it is ended, one of so many of the same size.
    fn tenant(&self, number: u32, of: u32) -> Result<Process> {
        let (name, share) = (format!("burn-{number}"), format!("{}%", 100 / of.max(1)));
        let program = self.programs.join("partita");
        let mut command = self.command("partita");
        command.args(["run", "--name", &name, "--sm", &share, "--"]).arg(program);
        command.args(["sim", "burn", "--seconds", "100000"]).stdout(Stdio::null());
        Ok(Process(command.spawn().context("partita")?))
    }

    fn start(&self, arguments: &[&str]) -> Result<Process> {
        Ok(Process(self.command("partitad").args(arguments).spawn().context("partitad")?))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.stdin(Stdio::null());
        command.env("PARTITA_GPU", &self.gpu).env("PARTITA_RUN_DIR", self.dir.join("run"));
        command.env("PARTITA_STATE_DIR", &self.state).env("PARTITA_SIM_DIR", self.dir.join("sim"));
        command.env("PARTITA_LIB_DIR", &self.programs).env("PARTITAD_LOG", "warn");
        command
    }

    /// The socket in the run directory with this prefix, as soon as a process listens.
    fn socket(&self, name: &str) -> Result<PathBuf> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            for entry in std::fs::read_dir(self.dir.join("run")).into_iter().flatten().flatten() {
                let file = entry.file_name().to_string_lossy().into_owned();
                if file.starts_with(&format!(".{name}-")) && file.ends_with(".sock") {
                    return Ok(entry.path());
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("{name} does not begin to serve")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The tenants' MPS service outlives them.
        let _ = self.command("partita").args(["mps", "stop"]).stdout(Stdio::null()).status();
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

/// A process that ends with this.
struct Process(Child);

impl Process {
    fn end(mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.0.id())?).context("a child has a number")?;
        kill_process(pid, Signal::TERM)?;
        let status = self.0.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // In order, if it lives: a killed `partita run` leaves its program.
        let pid = Pid::from_raw(self.0.id() as i32);
        if let (Ok(None), Some(pid)) = (self.0.try_wait(), pid) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
