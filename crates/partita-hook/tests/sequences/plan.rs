//! Random sequences of calls, from a seed alone.
//!
//! An operation names what it works on by number. Numbers are taken modulo what there is when it
//! runs, and one whose object is not there is skipped: so every part of a sequence is a sequence,
//! and a failing one can be shrunk by leaving operations out.

use std::fmt;
use std::str::FromStr;

macro_rules! kinds {
    ($($kind:ident = $name:literal,)*) => {
        /// What an operation does. The numbers behind it are explained where it runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $(#[doc = $name] $kind,)* }

        const KINDS: &[(Kind, &str)] = &[$((Kind::$kind, $name),)*];
    };
}

kinds! {
    Begin = "begin", BeginToGraph = "begin-to-graph", End = "end", Status = "status", Info = "info",
    UpdateDependencies = "update-dependencies", ExchangeMode = "exchange-mode",
    Kernel = "kernel", Fill = "fill", Copy = "copy", Host = "host", Write = "write",
    Record = "record", Wait = "wait", Allocate = "allocate", Free = "free",
    Query = "query", Synchronize = "synchronize", QueryEvent = "query-event", SynchronizeEvent = "synchronize-event",
    SynchronizeContext = "synchronize-context", AllocateNow = "allocate-now", RenewStream = "renew-stream",
    Check = "check",
    Create = "create", Destroy = "destroy", Clone = "clone",
    AddKernel = "add-kernel", AddFill = "add-fill", AddCopy = "add-copy", AddHost = "add-host", AddEmpty = "add-empty",
    AddChild = "add-child", AddRecord = "add-record", AddWait = "add-wait", AddAllocation = "add-allocation",
    AddFree = "add-free", AddBatch = "add-batch", AddConditional = "add-conditional", AddNode = "add-node",
    Connect = "connect", Disconnect = "disconnect", DestroyNode = "destroy-node", OpenChild = "open-child",
    Nodes = "nodes", Edges = "edges", Describe = "describe", FindInClone = "find-in-clone",
    SetKernel = "set-kernel", SetFill = "set-fill", SetNode = "set-node", SetAttribute = "set-attribute",
    Instantiate = "instantiate", Upload = "upload", Launch = "launch", DestroyExecutable = "destroy-executable",
    Flags = "flags", Update = "update", Enable = "enable", Enabled = "enabled",
    ExecKernel = "exec-kernel", ExecFill = "exec-fill", ExecCopy = "exec-copy", ExecHost = "exec-host",
    ExecChild = "exec-child", ExecEvent = "exec-event", ExecNode = "exec-node",
    CreateObject = "create-object", RetainObject = "retain-object", ReleaseObject = "release-object",
}

/// One call, or a few that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub kind: Kind,
    /// Which of the two threads does it.
    pub thread: u8,
    /// Whether by the entry points to which the null stream is the thread's own.
    pub per_thread: bool,
    /// What it works on, and how.
    pub with: [u8; 4],
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("?", |(_, name)| name);
        let [a, b, c, d] = self.with;
        let entries = if self.per_thread { "p" } else { "" };
        write!(f, "t{}{entries} {name} {a} {b} {c} {d}", self.thread)
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let bad = || {
            format!("{line:?} is no operation; one looks like \"t0 begin 0 2 0 0\" or \"t1p end 0 2 0 0\"")
        };
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or_else(bad);
        let who = word()?.strip_prefix('t').ok_or_else(bad)?;
        let thread = who.trim_end_matches('p').parse().map_err(|_| bad())?;
        let name = word()?;
        let kind = KINDS.iter().find(|(_, known)| *known == name).ok_or_else(bad)?.0;
        let mut with = [0; 4];
        for number in &mut with {
            *number = word()?.parse().map_err(|_| bad())?;
        }
        Ok(Self { kind, thread, per_thread: who.ends_with('p'), with })
    }
}

struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, end: u8) -> u8 {
        self.0.u8(0..end)
    }

    fn any(&mut self) -> u8 {
        self.0.u8(..)
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.below(n) == 0
    }

    fn of(&mut self, kinds: &[Kind]) -> Kind {
        kinds[self.0.usize(0..kinds.len())]
    }

    /// A stream: mostly one that was made, now and then the legacy, the per-thread or the null one.
    fn stream(&mut self) -> u8 {
        if self.one_in(25) { 4 + self.below(3) } else { self.below(4) }
    }
}

/// Part of a sequence, in its own order.
struct Scene(Vec<Operation>);

impl Scene {
    fn push(&mut self, kind: Kind, with: [u8; 4]) {
        self.0.push(Operation { kind, thread: 0, per_thread: false, with });
    }
}

const IN_STREAM: &[Kind] = &[
    Kind::Kernel,
    Kind::Kernel,
    Kind::Kernel,
    Kind::Fill,
    Kind::Copy,
    Kind::Host,
    Kind::Write,
    Kind::Record,
    Kind::Allocate,
    Kind::Free,
    Kind::Launch,
];

/// Captures `stream` into the graph of a number; now and then nothing at all.
fn capture(random: &mut Random, scene: &mut Scene, graph: u8) {
    use Kind::*;
    let stream = random.stream();
    let mode = random.below(3);
    if random.one_in(5) {
        if random.one_in(2) {
            scene.push(Create, [graph, 0, 0, 0]);
        }
        scene.push(BeginToGraph, [stream, graph, random.any(), mode]);
    } else {
        scene.push(Begin, [stream, mode, random.any(), 0]);
    }
    let length = if random.one_in(3) { 0 } else { 1 + random.below(5) };
    for _ in 0..length {
        match random.below(12) {
            0 | 1 => {
                // A fork that is joined, mostly.
                let (other, event) = (random.below(4), random.below(4));
                scene.push(Record, [event, stream, 0, 0]);
                scene.push(Wait, [other, event, 0, 0]);
                let kind = random.of(IN_STREAM);
                scene.push(kind, [other, random.any(), random.any(), 0]);
                if !random.one_in(6) {
                    scene.push(Record, [event, other, 0, 0]);
                    scene.push(Wait, [stream, event, 0, 0]);
                }
            }
            2 => scene.push(UpdateDependencies, [stream, random.any(), random.below(3), 0]),
            3 => {
                let kind = random.of(&[
                    Query,
                    Synchronize,
                    QueryEvent,
                    SynchronizeEvent,
                    AllocateNow,
                    SynchronizeContext,
                ]);
                if random.one_in(3) {
                    scene.push(ExchangeMode, [random.below(3), 0, 0, 0]);
                }
                scene.push(kind, [random.below(6), random.any(), 0, 0]);
            }
            4 => scene.push(random.of(&[Status, Info]), [stream, 0, 0, 0]),
            _ => {
                let kind = random.of(IN_STREAM);
                // The event of a recording comes first, the executable of a launch too.
                let with = match kind {
                    Record => [random.below(4), stream, u8::from(random.one_in(3)), 0],
                    Launch => [random.below(4), stream, 0, 0],
                    _ => [stream, random.any(), random.any(), 0],
                };
                scene.push(kind, with);
            }
        }
    }
    scene.push(End, [stream, graph, 0, 0]);
    if random.one_in(10)
        && let Some(end) = scene.0.last_mut()
    {
        // Another thread than the one that has begun it.
        end.thread = 1;
    }
    if random.one_in(12) {
        scene.push(End, [stream, graph, 0, 0]);
    }
}

const NODES: &[Kind] = &[
    Kind::AddKernel,
    Kind::AddKernel,
    Kind::AddFill,
    Kind::AddCopy,
    Kind::AddHost,
    Kind::AddEmpty,
    Kind::AddChild,
    Kind::AddRecord,
    Kind::AddWait,
    Kind::AddAllocation,
    Kind::AddFree,
    Kind::AddBatch,
    Kind::AddConditional,
    Kind::AddNode,
];

/// Makes a graph node by node: of every kind, of one kind alone, or of kernels in a row, which are
/// what is gated.
fn build(random: &mut Random, scene: &mut Scene, graph: u8) {
    use Kind::*;
    scene.push(Create, [graph, 0, 0, 0]);
    let only = match random.below(4) {
        0 => Some(random.of(NODES)),
        1 => Some(AddKernel),
        _ => None,
    };
    let count = match random.below(8) {
        0 => 0,
        1 => 8 + random.below(24),
        _ => 1 + random.below(5),
    };
    for _ in 0..count {
        let kind = only.unwrap_or_else(|| random.of(NODES));
        let after = if random.one_in(30) { random.any() } else { random.below(6) };
        scene.push(kind, [graph, after, random.any(), random.any()]);
        if kind == AddConditional && !random.one_in(3) {
            // Its body has the next number.
            let body = graph.wrapping_add(1);
            if random.one_in(3) {
                let stream = random.below(4);
                scene.push(BeginToGraph, [stream, body, 0, random.below(3)]);
                scene.push(random.of(&[Kernel, Fill, Copy]), [stream, random.any(), random.any(), 0]);
                scene.push(End, [stream, body, 0, 0]);
            } else {
                let kind = random.of(&[AddKernel, AddFill, AddCopy, AddEmpty, AddChild]);
                scene.push(kind, [body, 0, random.any(), random.any()]);
            }
        }
    }
    for _ in 0..random.below(3) {
        let kind = random.of(&[
            Connect,
            Disconnect,
            DestroyNode,
            OpenChild,
            SetKernel,
            SetFill,
            SetNode,
            SetAttribute,
            CreateObject,
            RetainObject,
            Clone,
        ]);
        scene.push(kind, [graph, random.any(), random.any(), random.any()]);
    }
}

/// Makes an executable of a graph, uses it and ends it.
fn execute(random: &mut Random, scene: &mut Scene, graph: u8) {
    use Kind::*;
    let executable = random.below(4);
    scene.push(Instantiate, [executable, graph, random.any(), random.any()]);
    if random.one_in(4) {
        scene.push(Destroy, [graph, 0, 0, 0]);
    }
    for _ in 0..random.below(7) {
        let stream = random.stream();
        let kind = random.of(&[
            Launch, Launch, Launch, Upload, Update, Update, Enable, Enable, Enabled, ExecKernel, ExecFill,
            ExecCopy, ExecHost, ExecChild, ExecEvent, ExecNode, Flags, Check,
        ]);
        match kind {
            Launch | Upload => scene.push(kind, [executable, stream, 0, 0]),
            Update => {
                let other = if random.one_in(2) { graph } else { random.below(6) };
                scene.push(kind, [executable, other, random.any(), 0]);
            }
            _ => scene.push(kind, [executable, graph, random.any(), random.any()]),
        }
    }
    scene.push(Launch, [executable, random.stream(), 0, 0]);
    if random.one_in(3) {
        scene.push(DestroyExecutable, [executable, 0, 0, 0]);
    }
}

fn ask(random: &mut Random, scene: &mut Scene, graph: u8) {
    use Kind::*;
    for _ in 0..1 + random.below(3) {
        let kind = random.of(&[Nodes, Edges, Describe, FindInClone, Nodes]);
        scene.push(kind, [graph, random.any(), random.any(), random.any()]);
    }
}

fn scene(random: &mut Random) -> Scene {
    let mut scene = Scene(Vec::new());
    let graph = random.below(6);
    match random.below(5) {
        0 | 1 => capture(random, &mut scene, graph),
        2 | 3 => build(random, &mut scene, graph),
        _ => {}
    }
    if !random.one_in(4) {
        ask(random, &mut scene, graph);
    }
    for _ in 0..random.below(3) {
        execute(random, &mut scene, graph);
    }
    scene
}

/// The sequence of a seed.
pub fn sequence(seed: u64) -> Vec<Operation> {
    let random = &mut Random(fastrand::Rng::with_seed(seed));
    let mut scenes: Vec<_> = (0..1 + random.below(3)).map(|_| scene(random).0.into_iter()).collect();
    // Most run one after another, some into each other.
    let mixed = random.one_in(3);
    let mut all = Vec::new();
    while !scenes.is_empty() {
        let at = if mixed { random.0.usize(0..scenes.len()) } else { 0 };
        match scenes[at].next() {
            Some(operation) => all.push(operation),
            None => drop(scenes.remove(at)),
        }
        if random.one_in(15) {
            let kind = KINDS[random.0.usize(0..KINDS.len())].0;
            all.push(Operation {
                kind,
                thread: 0,
                per_thread: false,
                with: [random.any(), random.any(), random.any(), random.any()],
            });
        }
    }
    if random.one_in(4) {
        for operation in &mut all {
            operation.thread |= u8::from(random.one_in(6));
        }
    }
    if random.one_in(3) {
        for operation in &mut all {
            operation.per_thread = random.one_in(4);
        }
    }
    all
}
