//! The simulated board: one process that owns the engine, the clock and the device's memory.
//!
//! It has one thread. A pass advances virtual time to real time, takes commands from the clients'
//! rings, and answers requests; between passes the thread sleeps until the engine's next event, a
//! doorbell or a message, whichever comes first.

mod client;
mod code;
mod effects;
mod events;
mod exec;
mod graph;
mod interpret;
mod kernels;
mod mps;
mod phys;
pub mod program;
mod ranges;
mod request;
mod serve;
mod space;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;

use partita_abi::CuResult;
use partita_abi::qmd::{QmdLayout, layout_for};
use partita_core::TpcSet;
use partita_sim::{DeviceSpec, Engine, GroupId, WorkId};

use client::Client;
use effects::Fill;
use events::Events;
use interpret::Execution;
use phys::PhysMemory;

use crate::shared::command::Rect;
use crate::shared::page::BoardPage;
use crate::shared::place::{Place, usable_bytes};
use crate::shared::protocol::BoardStatus;

pub use serve::run;

/// Names a connection for as long as the board lives.
type ClientId = u64;

/// The action when a work starts.
#[derive(Debug)]
enum OnStart {
    /// Nothing.
    Nothing,
    /// The client's worker calls a function.
    Host(u64),
    /// The client's worker does its part of a copy.
    HostCopy(u64),
    /// The work ends with an event's recording.
    Event { slot: u32, count: u64 },
    /// The work ends when a word has a value.
    Value { address: u64, value: u64, condition: u8, wide: bool },
}

/// The action when a work completes.
#[derive(Debug)]
enum Effect {
    /// Nothing.
    Nothing,
    /// The effect of a known kernel.
    Kernel(Box<kernels::Run>),
    /// Bytes are copied.
    Copy(Rect),
    /// Bytes are filled.
    Fill(Fill),
    /// An event is recorded.
    Record { slot: u32, count: u64 },
    /// A word is written.
    WriteValue { address: u64, value: u64, wide: bool },
    /// An allocation returns to its pool.
    Free(u64),
}

/// The board's data about a work of the engine.
#[derive(Debug)]
struct Job {
    client: ClientId,
    slot: u32,
    /// The command that is complete when this work is.
    seq: Option<u64>,
    on_start: OnStart,
    effect: Effect,
    /// How long one of its blocks takes, in nanoseconds, if it is a kernel. A kernel counts as
    /// running between start and end.
    kernel: Option<u64>,
    /// TPCs that the kernel may use.
    enabled: TpcSet,
}

/// A wait on a word, at the head of its stream.
#[derive(Debug)]
struct ValueWait {
    client: ClientId,
    work: WorkId,
    address: u64,
    value: u64,
    condition: u8,
    wide: bool,
}

/// How much of the time a kernel ran.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    running: u64,
    since_ns: u64,
    busy_ns: u64,
    window_start_ns: u64,
    last_percent: u32,
}

/// How much of the time DRAM carried traffic.
#[derive(Debug, Default)]
pub(crate) struct MemoryBusy {
    window_start_ns: u64,
    busy_start_ns: u64,
    last_percent: u32,
}

impl MemoryBusy {
    /// `busy_ns`: [`Engine::memory_busy_ns`].
    fn settle(&mut self, now: u64, busy_ns: impl FnOnce() -> u64) {
        let window = now.saturating_sub(self.window_start_ns);
        if window >= BUSY_WINDOW_NS {
            let all = busy_ns();
            let busy = all.saturating_sub(self.busy_start_ns);
            *self = Self {
                window_start_ns: now,
                busy_start_ns: all,
                last_percent: (busy.saturating_mul(100) / window).min(100) as u32,
            };
        }
    }
}

/// Window over which utilization is averaged, as in NVML, in nanoseconds.
const BUSY_WINDOW_NS: u64 = 166_000_000;

impl Busy {
    fn change(&mut self, now: u64, started: bool) {
        self.settle(now);
        self.running = if started { self.running + 1 } else { self.running.saturating_sub(1) };
    }

    fn settle(&mut self, now: u64) {
        if self.running > 0 {
            self.busy_ns += now.saturating_sub(self.since_ns);
        }
        self.since_ns = now;
        let window = now.saturating_sub(self.window_start_ns);
        if window >= BUSY_WINDOW_NS {
            self.last_percent = (self.busy_ns * 100 / window).min(100) as u32;
            self.window_start_ns = now;
            self.busy_ns = 0;
        }
    }
}

/// An exported block: the board's end of a pipe whose other end stands for the block.
#[derive(Debug)]
struct Exported {
    read_end: OwnedFd,
    inode: u64,
    phys: u64,
}

/// The GPU stands still after a fault under MPS, until the server's clients get the error.
#[derive(Debug)]
struct Standstill {
    /// When the clients get it, on the monotonic clock in nanoseconds.
    until_ns: u64,
    /// Whose work had the fault.
    client: ClientId,
    server: u32,
    code: CuResult,
}

/// How long that takes, in nanoseconds: the median of 16 faults, of 110 to 197 ms, on an H200. A
/// process without MPS made no progress meanwhile (`research/bench/results/recovery.md`).
const STANDSTILL_NS: u64 = 150_000_000;

/// The board.
struct Board {
    place: Place,
    spec: DeviceSpec,
    qmd: &'static QmdLayout,
    instance: u64,
    engine: Engine,
    page: BoardPage,
    page_fd: OwnedFd,
    doorbell: OwnedFd,
    memory: PhysMemory,
    events: Events,
    clients: BTreeMap<ClientId, Client>,
    observers: BTreeMap<ClientId, OwnedFd>,
    /// Observers that wait for a fault of clients of an MPS server.
    fault_watchers: Vec<(ClientId, u32)>,
    /// The state at the last fault of an MPS server for which no observer waited.
    unheard_faults: BTreeMap<u32, BoardStatus>,
    next_id: ClientId,
    works: HashMap<WorkId, Job>,
    /// Launches of programs' own kernels.
    executions: BTreeMap<WorkId, Execution>,
    /// How many there were.
    launches: u64,
    value_waits: Vec<ValueWait>,
    exports: Vec<Exported>,
    mps_groups: HashMap<u32, GroupId>,
    standstill: Option<Standstill>,
    /// MPS servers that wait for ever for the end of an exited client's launch.
    stuck_servers: HashSet<u32>,
    /// Clients to notify of progress at the end of the pass.
    dirty: HashSet<ClientId>,
    busy: Busy,
    memory_busy: MemoryBusy,
    /// How many times a client reported a write to the driver's state.
    corruptions: u64,
    smid_virtual: bool,
}

impl Board {
    fn new(place: Place, speed: f64) -> io::Result<Self> {
        let spec = place.spec.clone();
        let capability = spec.compute_capability;
        let qmd = layout_for(
            u32::from(capability.major) * 10 + u32::from(capability.minor),
            spec.driver.qmd_version,
        )
        .map_err(io::Error::other)?;
        let (page, page_fd) = BoardPage::create(speed)?;
        let mut random = [0u8; 8];
        // The function is in the C library from 2.25 on.
        // SAFETY: writes eight bytes into a local.
        unsafe { libc::syscall(libc::SYS_getrandom, random.as_mut_ptr(), random.len(), 0) };
        let instance = u64::from_le_bytes(random);
        Ok(Self {
            qmd,
            instance,
            engine: Engine::new(&spec, 0),
            page,
            page_fd,
            doorbell: crate::shared::sys::eventfd()?,
            memory: PhysMemory::new(usable_bytes(&spec), instance)?,
            events: Events::new(instance),
            clients: BTreeMap::new(),
            observers: BTreeMap::new(),
            fault_watchers: Vec::new(),
            unheard_faults: BTreeMap::new(),
            next_id: 1,
            works: HashMap::new(),
            executions: BTreeMap::new(),
            launches: 0,
            value_waits: Vec::new(),
            exports: Vec::new(),
            mps_groups: HashMap::new(),
            standstill: None,
            stuck_servers: HashSet::new(),
            dirty: HashSet::new(),
            busy: Busy::default(),
            memory_busy: MemoryBusy::default(),
            corruptions: 0,
            smid_virtual: std::env::var("PARTITA_SIM_MPS_VIRTUAL_SMID").is_ok_and(|value| value == "1"),
            spec,
            place,
        })
    }
}
