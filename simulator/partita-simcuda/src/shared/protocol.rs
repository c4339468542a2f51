//! The slow path: requests and replies, one reply per request, in postcard form, in the memory that
//! the board shares with the client; long ones and those with descriptors over the board's socket.
//!
//! The board handles everything that waits in a client's ring before it answers that client's
//! request, so the two paths cannot overtake one another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::command::{Command, LaunchHead};

/// Raised whenever a message or the shared memory changes its form.
pub const PROTOCOL_VERSION: u32 = 8;

/// Pages of device memory, as on hardware.
pub const PAGE_BYTES: u64 = 2 << 20;

/// Length of the window of a client's device addresses.
pub const WINDOW_BYTES: u64 = 4 << 40;

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that runs GPU work.
    Client {
        /// First address of its window.
        window: u64,
        /// Its MPS server, when it is an MPS client.
        mps: Option<MpsIdentity>,
        /// Its `CUDA_DEVICE_MAX_CONNECTIONS`.
        connections: Option<String>,
    },
    /// A reader of the board's state (NVML, MPS control). It does not keep the board alive.
    Observer,
}

/// An MPS client's data about its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpsIdentity {
    /// Process id of the server.
    pub server: u32,
    /// The server's number of this client.
    pub client: u32,
    /// Active thread percentage, above 0 and up to 100.
    pub percentage: u32,
    /// The TPCs of its static partition, if it has one: the first, and how many.
    pub partition_tpcs: Option<(u32, u32)>,
    /// The most device memory that the process may allocate, in bytes, when the server limits it.
    pub memory_limit_bytes: Option<u64>,
    /// Whether its work gives way to that of the server's other clients, block by block.
    pub is_below_normal: bool,
}

impl MpsIdentity {
    /// That of a client without limits.
    #[must_use]
    pub fn unlimited(server: u32, client: u32) -> Self {
        Self {
            server,
            client,
            percentage: 100,
            partition_tpcs: None,
            memory_limit_bytes: None,
            is_below_normal: false,
        }
    }
}

/// A stream's relation to the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamKind {
    /// The legacy default stream of its context.
    Legacy,
    /// Waits for the legacy stream and is waited for by it.
    Blocking,
    /// Ignores the legacy stream.
    NonBlocking,
}

/// The purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocKind {
    /// `cuMemAlloc` and its like: small ones share pages.
    Device,
    /// Whole pages, so that the client can map them for the host (managed memory).
    Managed,
    /// From a memory pool.
    Pool(u32),
}

/// A piece of an address range and the location of its bytes in the device memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Offset in the file.
    pub offset: u64,
    /// Length, in bytes.
    pub bytes: u64,
}

/// A function of a loaded module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionSpec {
    /// Entry name.
    pub name: String,
    /// Its context.
    pub ctx: u32,
    /// The number of the code that has it, if it has any.
    pub code: Option<u32>,
}

/// The code of some functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// PTX.
    pub text: String,
    /// Addresses of its variables.
    pub symbols: BTreeMap<String, u64>,
}

/// One node of a graph to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphNode {
    /// Its place; nodes only depend on smaller places.
    pub index: u32,
    /// Places of the nodes that it waits for.
    pub after: Vec<u32>,
    /// Its work.
    pub work: NodeWork,
}

/// The work of a node of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeWork {
    /// No work: an empty or a disabled node.
    Empty,
    /// A launch, baked.
    Kernel {
        /// Beside the QMD.
        head: LaunchHead,
        /// The QMD after the callback.
        qmd: Vec<u8>,
        /// The parameters.
        params: Vec<u8>,
    },
    /// Anything else.
    Command(Command),
}

/// A request of a client or an observer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message. A client's reply carries three descriptors: channel, device memory,
    /// doorbell; every reply carries the board page first.
    Hello {
        /// [`PROTOCOL_VERSION`].
        version: u32,
        /// Who connects.
        role: Role,
        /// The program's name, for lists.
        command: String,
    },
    /// The process exits normally: its work is dropped. Its neighbours under MPS notice only if a
    /// kernel that touches memory still runs when the memory is taken away.
    Bye,
    /// Makes a context.
    CtxCreate {
        /// Execution affinity in SMs, if requested.
        sms: Option<u32>,
    },
    /// Destroys a context and everything in it.
    CtxDestroy {
        /// Which.
        ctx: u32,
    },
    /// Sets the time slice of the process's work, if it takes turns.
    SetSlice {
        /// In microseconds.
        slice_us: u64,
    },
    /// Makes a stream.
    StreamCreate {
        /// In which context.
        ctx: u32,
        /// Smaller runs first.
        priority: i32,
        /// Towards the legacy stream.
        kind: StreamKind,
    },
    /// Destroys a stream once its work is done.
    StreamDestroy {
        /// Its slot.
        stream: u32,
    },
    /// Makes an event.
    EventCreate,
    /// Opens another process's event.
    EventOpen {
        /// Its slot.
        event: u32,
        /// Its secret.
        secret: u64,
    },
    /// Releases an event.
    EventDestroy {
        /// Its slot.
        event: u32,
    },
    /// Loads code: a [`Code`] in postcard form, in the memory file that comes with the request. It
    /// stays as long as it has functions.
    LoadCode {
        /// Length of the file.
        bytes: u64,
    },
    /// Loads functions; the reply has their addresses in order.
    Load {
        /// Which.
        functions: Vec<FunctionSpec>,
    },
    /// Forgets functions.
    Unload {
        /// Their addresses.
        programs: Vec<u64>,
    },
    /// Allocates device memory.
    Alloc {
        /// For which context.
        ctx: u32,
        /// How much.
        bytes: u64,
        /// What for.
        kind: AllocKind,
    },
    /// Frees an allocation of whatever kind.
    Free {
        /// Its first address.
        address: u64,
    },
    /// Reads the memory's state.
    MemInfo,
    /// Names host memory that the device may reach: shared (with its descriptor) or this process's
    /// own.
    HostMap {
        /// First address.
        address: u64,
        /// Length, in bytes.
        bytes: u64,
    },
    /// Forgets host memory.
    HostUnmap {
        /// Its first address.
        address: u64,
    },
    /// Makes a pool.
    PoolCreate {
        /// Bytes that it caches beyond those in use when streams are synchronised.
        threshold: u64,
    },
    /// Destroys a pool.
    PoolDestroy {
        /// Which.
        pool: u32,
    },
    /// Sets how much a pool keeps.
    PoolThreshold {
        /// Which.
        pool: u32,
        /// Bytes.
        bytes: u64,
    },
    /// Releases unused memory of a pool, down to a number of bytes.
    PoolTrim {
        /// Which.
        pool: u32,
        /// Bytes to keep.
        keep: u64,
    },
    /// Sets the high-water marks of a pool to the present values.
    PoolResetHigh {
        /// Which.
        pool: u32,
        /// Of the reserved bytes.
        reserved: bool,
        /// Of the used bytes.
        used: bool,
    },
    /// Reads a pool's counters.
    PoolInfo {
        /// Which.
        pool: u32,
    },
    /// Makes physical memory without an address.
    PhysCreate {
        /// How much; whole pages.
        bytes: u64,
    },
    /// Drops a reference to physical memory.
    PhysRelease {
        /// Which.
        phys: u64,
    },
    /// Adds a reference to the physical memory mapped at an address.
    PhysRetain {
        /// The address.
        address: u64,
    },
    /// Exports physical memory as a descriptor, which comes with the reply.
    PhysExport {
        /// Which.
        phys: u64,
    },
    /// Opens physical memory by the descriptor that comes with the request.
    PhysImport,
    /// Reserves addresses.
    Reserve {
        /// How many; whole pages.
        bytes: u64,
        /// Their alignment.
        align: u64,
        /// A wish, or 0.
        hint: u64,
    },
    /// Returns reserved addresses.
    Unreserve {
        /// First.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// Maps physical memory at reserved addresses.
    Map {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
        /// From which offset.
        offset: u64,
        /// Of what.
        phys: u64,
    },
    /// Undoes maps.
    Unmap {
        /// First address.
        address: u64,
        /// How much.
        bytes: u64,
    },
    /// Sets whether the device may reach mapped memory.
    SetAccess {
        /// First address.
        address: u64,
        /// How much.
        bytes: u64,
        /// 0 no access, 1 read, 3 read and write.
        access: u8,
    },
    /// Makes the handle with which another process opens an allocation.
    IpcExport {
        /// Any address inside.
        address: u64,
    },
    /// Opens another process's allocation.
    IpcOpen {
        /// Its memory.
        phys: u64,
        /// Its secret.
        secret: u64,
        /// Where it starts in the memory.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
    /// Adds nodes to a graph to be run, or replaces them.
    GraphNodes {
        /// The client's number for the graph.
        graph: u64,
        /// The nodes.
        nodes: Vec<GraphNode>,
    },
    /// Forgets a graph.
    GraphDrop {
        /// Which.
        graph: u64,
    },
    /// Reports that a program wrote into the driver's own state: the client's GPU work ends.
    Corrupted {
        /// Where in a stream's structure.
        offset_bytes: u32,
        /// The word that the driver found there.
        word: u32,
    },
    /// Reads the board's state.
    Status,
    /// Ends the GPU work of an MPS client.
    Terminate {
        /// Its MPS server.
        server: u32,
        /// Its process.
        pid: u32,
    },
    /// Ends the GPU work of all clients of an MPS server that is gone.
    ServerGone {
        /// The server.
        server: u32,
    },
    /// Answered with [`Reply::Status`] when a fault has hit clients of an MPS server, without a
    /// timeout.
    AwaitFault {
        /// The server.
        server: u32,
    },
    /// A fault on another board is contained together with this one: its clients of the MPS server
    /// fail too.
    Contain {
        /// The server.
        server: u32,
        /// The `CUresult`.
        code: i32,
    },
}

/// One process on the board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// Contexts that it has.
    pub contexts: u32,
    /// Device memory that it holds, with its contexts' own.
    pub used_bytes: u64,
    /// Its MPS server and number there, if any.
    pub mps: Option<MpsIdentity>,
    /// The error that ended its GPU work, or 0.
    pub fault: i32,
    /// Share of the last period in which one of its kernels ran, in percent.
    pub sm_percent: u32,
}

/// The board's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardStatus {
    /// Device memory in use, in bytes.
    pub used_bytes: u64,
    /// Share of the last period in which a kernel ran, in percent.
    pub busy_percent: u32,
    /// Share of the last period for which memory at its full speed would have carried the traffic,
    /// in percent.
    pub memory_percent: u32,
    /// How often a program wrote into the driver's own state.
    pub corruptions: u64,
    /// Processes, in the order of their connection.
    pub processes: Vec<ProcessStatus>,
}

/// A pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Release threshold, in bytes.
    pub threshold: u64,
    /// Bytes that it holds.
    pub reserved: u64,
    /// The most that it ever held.
    pub reserved_high: u64,
    /// Allocated bytes.
    pub used: u64,
    /// The most bytes that were ever allocated.
    pub used_high: u64,
}

/// An answer of the board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// Refused with this `CUresult`.
    Refused(i32),
    /// To [`Request::Hello`].
    Welcome {
        /// Catalogue name of the device.
        device: String,
        /// The board's random number, which distinguishes boards that ran one after the other.
        instance: u64,
        /// SMs that this client may use; fewer than the device's under an MPS percentage.
        sms: u32,
    },
    /// A context.
    Ctx {
        /// Its number.
        ctx: u32,
        /// SMs that it may use.
        sms: u32,
        /// Slot of its legacy stream.
        legacy: u32,
        /// The last number that a predecessor in that slot used.
        seq: u64,
    },
    /// A stream.
    Stream {
        /// Its slot.
        stream: u32,
        /// The last number that a predecessor in this slot used.
        seq: u64,
    },
    /// An event.
    Event {
        /// Its slot.
        event: u32,
        /// The secret with which another process opens it.
        secret: u64,
    },
    /// To [`Request::LoadCode`].
    Code(u32),
    /// Functions' addresses.
    Programs(Vec<u64>),
    /// Memory with an address.
    Memory {
        /// First address.
        address: u64,
        /// The location of the bytes.
        extents: Vec<Extent>,
    },
    /// Free and total bytes of the device.
    MemInfo {
        /// Free.
        free: u64,
        /// Total.
        total: u64,
    },
    /// A pool.
    Pool(u32),
    /// To [`Request::PoolInfo`].
    PoolInfo(PoolStatus),
    /// Physical memory.
    Phys {
        /// Its number.
        phys: u64,
        /// Its length.
        bytes: u64,
    },
    /// To [`Request::IpcExport`].
    Ipc {
        /// The memory.
        phys: u64,
        /// The secret with which another process opens it.
        secret: u64,
        /// Where the allocation starts in it.
        offset: u64,
        /// The allocation's length.
        bytes: u64,
    },
    /// To [`Request::Status`].
    Status(BoardStatus),
}
