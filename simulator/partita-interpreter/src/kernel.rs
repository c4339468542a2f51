//! A kernel in the form that the interpreter runs.

use crate::lanes::{Lanes, Map};
use crate::math::convert::Conversion;
use partita_ptx::Position;
use partita_ptx::Type;

/// Generic addresses of shared memory begin here.
pub const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
/// Generic addresses of local memory begin here.
pub const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
/// Generic addresses of a kernel's parameters begin here.
pub const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
/// Bytes of each window.
pub(crate) const WINDOW_BYTES: u64 = 0x0100_0000_0000_0000;
/// Addresses of functions begin here, one for each function of a module.
pub(crate) const FUNCTIONS_AT: u64 = 0x0400_0000_0000_0000;
/// Bytes between them.
pub(crate) const FUNCTION_BYTES: u64 = 256;

/// A register, numbered within its function.
pub(crate) type Register = u32;

/// The value of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Register(Register),
    /// A constant of the kernel, by index.
    Constant(u32),
}

/// An operation with its guard.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The guarding register, and whether the operation runs if it is true.
    pub(crate) guard: Option<(Register, bool)>,
    /// Cycles from its issue to its result. 0 for a further step of one instruction.
    pub(crate) cycles: u16,
    pub(crate) op: Op,
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// An access to memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) place: Place,
    pub(crate) address: Source,
    pub(crate) offset: i64,
    /// Bytes of one element.
    pub(crate) bytes: u32,
}

/// What an atomic operation does to the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Increment,
    Decrement,
    Exchange,
    CompareAndSwap,
}

/// Where a shuffle reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// What threads of a barrier compute together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Census {
    Count,
    And,
    Or,
}

#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    pub(crate) number: Source,
    /// Threads that meet there; all of the block if not given.
    pub(crate) threads: Option<Source>,
    pub(crate) waits: bool,
    /// What is computed, of which predicate, for which register.
    pub(crate) census: Option<(Census, Source, Register)>,
}

/// An operation of a warp on values of all its members.
#[derive(Clone, Debug)]
pub(crate) enum Together {
    /// Threads only wait for each other.
    Meet,
    Shuffle {
        how: Shuffle,
        to: Register,
        inside: Option<Register>,
        value: Source,
        by: Source,
        limits: Source,
    },
    Vote {
        how: Vote,
        to: Register,
        value: Source,
    },
    MatchAny {
        to: Register,
        value: Source,
    },
    MatchAll {
        to: Register,
        all: Option<Register>,
        value: Source,
    },
    Reduce {
        how: Change,
        ty: Type,
        to: Register,
        value: Source,
    },
    Elect {
        leader: Register,
        chosen: Register,
    },
}

/// A value that a call passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Bytes of the frame.
    Frame { offset: u32, bytes: u32 },
    /// A value, of so many bytes in memory.
    Value(Source, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) to: Callee,
    pub(crate) arguments: Vec<Passed>,
    pub(crate) results: Vec<Passed>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Callee {
    /// By its index in [`Kernel::functions`].
    Direct(u32),
    /// By its address.
    Indirect(Source),
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Map {
        map: Map,
        to: Register,
        of: [Source; 3],
    },
    Lop3 {
        table: u8,
        to: Register,
        of: [Source; 3],
    },
    Convert {
        how: Conversion,
        bits: u32,
        to: Register,
        of: Source,
    },
    Special {
        what: Special,
        to: Register,
    },
    /// The local address of a place in the frame.
    Frame {
        to: Register,
        offset: u32,
    },
    /// Loads elements; a signed one is extended to so many bits.
    Load {
        access: Access,
        extend: u32,
        to: Vec<Register>,
    },
    Store {
        access: Access,
        of: Vec<Source>,
    },
    Atomic {
        access: Access,
        change: Change,
        ty: Type,
        to: Option<Register>,
        by: Source,
        with: Source,
    },
    /// Bytes from global to shared memory; those beyond `given` become zero.
    Copy {
        to: Access,
        from: Access,
        given: Option<Source>,
    },
    /// By index of a label before, and of a step after the labels are placed.
    Branch(u32),
    BranchIndexed {
        targets: Vec<u32>,
        index: Source,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    /// A call of `__assertfail`.
    FailAssertion,
    Barrier(Box<Barrier>),
    /// With the mask of its members; without one, the threads that come together.
    Together {
        members: Option<Source>,
        what: Box<Together>,
    },
    ActiveMask(Register),
    Sleep(Source),
    Nothing,
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(u8),
    Threads(u8),
    Block(u8),
    Blocks(u8),
    Lane,
    Warp,
    Warps,
    Sm,
    Sms,
    Grid,
    Clock,
    ClockHigh,
    Timer,
    TimerLow,
    TimerHigh,
    LanesEqual,
    LanesLess,
    LanesUpTo,
    LanesGreater,
    LanesFrom,
    DynamicShared,
    AllShared,
    Zero,
    One,
}

impl Special {
    /// The names, and the length in bits.
    pub(crate) const ALL: &[(&str, Self, u32)] = &[
        ("%tid.x", Self::Thread(0), 32),
        ("%tid.y", Self::Thread(1), 32),
        ("%tid.z", Self::Thread(2), 32),
        ("%ntid.x", Self::Threads(0), 32),
        ("%ntid.y", Self::Threads(1), 32),
        ("%ntid.z", Self::Threads(2), 32),
        ("%ctaid.x", Self::Block(0), 32),
        ("%ctaid.y", Self::Block(1), 32),
        ("%ctaid.z", Self::Block(2), 32),
        ("%nctaid.x", Self::Blocks(0), 32),
        ("%nctaid.y", Self::Blocks(1), 32),
        ("%nctaid.z", Self::Blocks(2), 32),
        ("%laneid", Self::Lane, 32),
        ("%warpid", Self::Warp, 32),
        ("%nwarpid", Self::Warps, 32),
        ("%smid", Self::Sm, 32),
        ("%nsmid", Self::Sms, 32),
        ("%gridid", Self::Grid, 64),
        ("%clock", Self::Clock, 32),
        ("%clock_hi", Self::ClockHigh, 32),
        ("%clock64", Self::Clock, 64),
        ("%globaltimer", Self::Timer, 64),
        ("%globaltimer_lo", Self::TimerLow, 32),
        ("%globaltimer_hi", Self::TimerHigh, 32),
        ("%lanemask_eq", Self::LanesEqual, 32),
        ("%lanemask_lt", Self::LanesLess, 32),
        ("%lanemask_le", Self::LanesUpTo, 32),
        ("%lanemask_gt", Self::LanesGreater, 32),
        ("%lanemask_ge", Self::LanesFrom, 32),
        ("%dynamic_smem_size", Self::DynamicShared, 32),
        ("%total_smem_size", Self::AllShared, 32),
        // Launches with clusters are refused, so that each block is its own cluster.
        ("%is_explicit_cluster", Self::Zero, 1),
        ("%cluster_ctarank", Self::Zero, 32),
        ("%cluster_nctarank", Self::One, 32),
        ("%cluster_ctaid.x", Self::Zero, 32),
        ("%cluster_ctaid.y", Self::Zero, 32),
        ("%cluster_ctaid.z", Self::Zero, 32),
        ("%cluster_nctaid.x", Self::One, 32),
        ("%cluster_nctaid.y", Self::One, 32),
        ("%cluster_nctaid.z", Self::One, 32),
        ("%clusterid.x", Self::Block(0), 32),
        ("%clusterid.y", Self::Block(1), 32),
        ("%clusterid.z", Self::Block(2), 32),
        ("%nclusterid.x", Self::Blocks(0), 32),
        ("%nclusterid.y", Self::Blocks(1), 32),
        ("%nclusterid.z", Self::Blocks(2), 32),
    ];
}

/// A place for a parameter or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Formal {
    Frame { offset: u32, bytes: u32 },
    Register { register: Register, bytes: u32 },
}

/// A function of a kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callable {
    /// Its first step.
    pub(crate) entry: u32,
    pub(crate) registers: u32,
    /// Bytes of local memory for parameters and variables.
    pub(crate) frame_bytes: u32,
    pub(crate) params: Vec<Formal>,
    pub(crate) returns: Vec<Formal>,
}

/// A kernel with all functions that it may call.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// The place in the text of each step.
    pub(crate) places: Vec<Position>,
    pub(crate) constants: Vec<Lanes>,
    /// The entry is the first one.
    pub(crate) functions: Vec<Callable>,
    /// Functions by their number in the module, for calls by address.
    pub(crate) by_number: Vec<Option<u32>>,
    pub(crate) shared_bytes: u32,
    pub(crate) param_bytes: u32,
}

impl Kernel {
    /// Its entry's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Static shared memory of a block, in bytes.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Bytes of all parameters.
    #[must_use]
    pub fn param_bytes(&self) -> u32 {
        self.param_bytes
    }
}
