//! The board's state of one connected process.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use partita_core::TpcSet;
use partita_sim::{Connections, GroupId, StreamId, WorkId};

use super::Busy;
use super::code::Program;
use super::effects::Owner;
use super::graph::Graph;
use super::space::Space;
use crate::shared::channel::{Channel, Consumer, STREAMS_MAX, push_host_work};
use crate::shared::protocol::{FunctionSpec, MpsIdentity, StreamKind};
use crate::shared::sys::{is_readable, pidfd};

/// The priorities of streams: -5 to 0.
const STREAM_LEVELS: i32 = 6;

/// A context.
#[derive(Debug)]
pub struct Ctx {
    /// Slot of its legacy stream.
    pub legacy: u32,
    /// The block for the memory that a context itself uses.
    pub overhead: u64,
    /// TPCs that it may use (an MPS percentage or an affinity).
    pub allowed: TpcSet,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// In the engine.
    pub engine: StreamId,
    /// Its context.
    pub ctx: u32,
    /// Its relation to the legacy stream.
    pub kind: StreamKind,
    /// Its last work.
    pub last: Option<WorkId>,
    /// The last work of the legacy stream for which it has waited.
    pub legacy_seen: Option<WorkId>,
    /// The program has destroyed it; it is removed when it is idle.
    pub closing: bool,
}

/// A function that a program loaded.
#[derive(Debug)]
pub struct Function {
    /// As the client described it.
    pub spec: FunctionSpec,
    /// Its code, if the program has it in a form that can be run.
    pub program: Option<Rc<Program>>,
}

/// The GPU work of a process.
#[derive(Debug)]
pub struct Client {
    /// The process.
    pub pid: u32,
    /// The process with its program.
    pub owner: Owner,
    /// Readable when the process has ended; `None` if it had ended when it came.
    exit: Option<OwnedFd>,
    /// Its name.
    pub command: String,
    /// The slow path.
    pub socket: OwnedFd,
    /// The fast path.
    pub channel: Channel,
    /// The fast path's reader.
    pub consumer: Consumer,
    /// Its addresses.
    pub space: Space,
    /// Its time-slice group.
    pub group: GroupId,
    /// Its MPS server.
    pub mps: Option<MpsIdentity>,
    /// TPCs that it may use.
    pub allowed: TpcSet,
    /// Its hardware queues, where it has set their number; otherwise each stream has its own.
    pub connections: Option<Connections>,
    /// How much of the time one of its kernels ran.
    pub busy: Busy,
    /// Contexts.
    pub ctxs: BTreeMap<u32, Ctx>,
    /// Streams by slot.
    pub streams: HashMap<u32, Stream>,
    /// Last sequence number of each slot that was ever used.
    pub last_seq: HashMap<u32, u64>,
    /// Code by number.
    programs: HashMap<u32, Rc<Program>>,
    /// Functions by program address.
    pub functions: HashMap<u64, Function>,
    /// Graphs by the client's number.
    pub graphs: HashMap<u64, Graph>,
    /// References to blocks that the program holds by handle.
    pub handles: HashMap<u64, u32>,
    /// Host work that did not fit into the queue.
    pub backlog: VecDeque<u64>,
    /// Host work that the client is doing.
    pub host: HashMap<u64, WorkId>,
    /// Those works of `host` that are copies.
    pub copies: HashSet<u64>,
    /// Events that it created or opened.
    pub events: Vec<u32>,
    /// The error that ended its work, or 0.
    pub fault: i32,
    next_ctx: u32,
    next_slot: u32,
    next_program: u64,
    next_code: u32,
}

/// The parameters of a new client.
#[derive(Debug)]
pub struct Arrival {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// The slow path.
    pub socket: OwnedFd,
    /// The fast path.
    pub channel: Channel,
    /// First address of its window.
    pub window: u64,
    /// Its time-slice group.
    pub group: GroupId,
    /// Its MPS server.
    pub mps: Option<MpsIdentity>,
    /// TPCs that it may use.
    pub allowed: TpcSet,
    /// Its hardware queues, where it has set their number.
    pub connections: Option<Connections>,
}

impl Client {
    /// A client without contexts.
    pub fn new(arrival: Arrival) -> Self {
        Self {
            pid: arrival.pid,
            owner: Owner::of(arrival.pid),
            exit: pidfd(arrival.pid).ok(),
            command: arrival.command,
            socket: arrival.socket,
            channel: arrival.channel,
            consumer: Consumer::default(),
            space: Space::new(arrival.window),
            group: arrival.group,
            mps: arrival.mps,
            allowed: arrival.allowed,
            connections: arrival.connections,
            busy: Busy::default(),
            ctxs: BTreeMap::new(),
            streams: HashMap::new(),
            last_seq: HashMap::new(),
            programs: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            handles: HashMap::new(),
            backlog: VecDeque::new(),
            host: HashMap::new(),
            copies: HashSet::new(),
            events: Vec::new(),
            fault: 0,
            next_ctx: 1,
            next_slot: 0,
            next_program: 0x100,
            next_code: 0,
        }
    }

    /// A number for a new context.
    pub fn ctx_number(&mut self) -> u32 {
        self.next_ctx += 1;
        self.next_ctx - 1
    }

    /// A slot for a new stream, or `None` when all are taken.
    pub fn free_slot(&mut self) -> Option<u32> {
        for _ in 0..STREAMS_MAX {
            let slot = self.next_slot;
            self.next_slot = (slot + 1) % STREAMS_MAX as u32;
            if !self.streams.contains_key(&slot) {
                return Some(slot);
            }
        }
        None
    }

    /// The engine's priority of a stream of this process. Below normal comes after every stream of
    /// a normal client, in whole blocks (H100 and H200: `docs/hardware.md`); that the priorities of
    /// its own streams stay apart is an assumption.
    pub fn engine_priority(&self, priority: i32) -> i32 {
        match self.mps {
            Some(MpsIdentity { is_below_normal: true, .. }) => priority.saturating_add(STREAM_LEVELS),
            _ => priority,
        }
    }

    /// Whether its process has ended. Its connection may be held by another one.
    pub fn is_dead(&self) -> bool {
        self.exit.as_ref().is_none_or(|exit| is_readable(exit.as_fd()))
    }

    /// Bytes that an MPS memory limit leaves to this process, if there is a limit.
    pub fn limit_left_bytes(&self) -> Option<u64> {
        let limit = self.mps?.memory_limit_bytes?;
        Some(limit.saturating_sub(self.space.device_bytes()))
    }

    /// Whether an MPS memory limit allows so many more bytes.
    pub fn may_allocate(&self, bytes: u64) -> bool {
        self.limit_left_bytes().is_none_or(|left| bytes <= left)
    }

    /// Loads a function and returns its address for launch descriptors.
    pub fn load(&mut self, spec: FunctionSpec) -> u64 {
        let address = self.next_program;
        // Code addresses are multiples of 256, and before Volta they are 32 bits wide.
        self.next_program += 0x100;
        let program = spec.code.and_then(|code| self.programs.get(&code).cloned());
        self.functions.insert(address, Function { spec, program });
        address
    }

    /// Keeps code and returns its number.
    pub fn keep(&mut self, program: Program) -> u32 {
        self.next_code += 1;
        self.programs.insert(self.next_code, Rc::new(program));
        self.next_code
    }

    /// Forgets functions, and code without functions.
    pub fn unload(&mut self, addresses: &[u64]) {
        for address in addresses {
            self.functions.remove(address);
        }
        self.programs.retain(|_, program| Rc::strong_count(program) > 1);
    }

    /// Queues host work for the client's worker, in order.
    pub fn queue_host(&mut self, token: u64) {
        self.backlog.push_back(token);
        self.flush_host();
    }

    /// Moves the backlog into the queue, as far as there is room.
    pub fn flush_host(&mut self) {
        while let Some(token) = self.backlog.front() {
            if !push_host_work(&self.channel, *token) {
                break;
            }
            self.backlog.pop_front();
        }
    }
}
