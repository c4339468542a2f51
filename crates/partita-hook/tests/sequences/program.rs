//! The program that carries a sequence out and writes down what it sees.
//!
//! A trace is the same in each run: it names objects by number and holds no address, and queries
//! about work wait until the work has ended. The order of the nodes does not change the memory at
//! the end: kernels add to counters, and every other node writes the one value of its place.

use std::collections::HashSet;
use std::ffi::{CStr, c_uint, c_void};
use std::fmt::Write as _;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use partita_abi::kernels;
use partita_abi::types::*;

use crate::driver::{Code, Driver, Handle};
use crate::plan::{Kind, Operation};

/// Words of the device's memory: counters, cells of four words each, single words, and the sources
/// of copies.
const COUNTERS: u64 = 0;
const CELLS: u64 = 64;
const WORDS: u64 = 128;
const SOURCES: u64 = 192;
const TOTAL: u64 = 256;
/// Bytes of a cell.
const CELL: u64 = 16;

/// Calls of each host function since the sequence began.
static CALLED: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];
/// User objects that have ended since the sequence began.
static ENDED: AtomicU32 = AtomicU32::new(0);

extern "C" fn host(data: *mut c_void) {
    if let Some(calls) = CALLED.get(data.addr()) {
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

extern "C" fn ended(_: *mut c_void) {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

/// A graph that the program knows.
struct Graph {
    handle: Handle,
    /// Its number in the trace.
    id: u32,
    /// The graph that it lies in, as a child or as a body.
    inside: Option<u32>,
}

struct Object {
    handle: Handle,
    /// References of the program's own.
    own: u32,
}

/// A capture into a graph that was there before.
struct IntoGraph {
    stream: usize,
    graph: u32,
}

struct Program {
    /// The entry points that are called now.
    driver: Driver,
    /// Those with the other meaning of the null stream.
    other_entries: Driver,
    /// Whether the ones that are called are those to which the null stream is the thread's own.
    is_per_thread: bool,
    context: Handle,
    count: Handle,
    copy: Handle,
    spin: Handle,
    memory: u64,
    on_host: Handle,
    streams: [Handle; 7],
    events: [Handle; 4],
    graphs: [Option<Graph>; 6],
    /// Graphs to destroy when no capture goes into them.
    parked: Vec<Graph>,
    executables: [Option<Handle>; 4],
    allocations: [u64; 4],
    /// Whether this sequence has allocated.
    has_allocated: bool,
    objects: [Option<Object>; 2],
    objects_made: u32,
    into: Vec<IntoGraph>,
    graphs_made: u32,
    trace: String,
}

fn pick<T: Copy>(of: &[T], number: u8) -> Option<T> {
    (!of.is_empty()).then(|| of[usize::from(number) % of.len()])
}

/// What a kernel is given, which must stay where it is while the driver reads it.
struct KernelArguments {
    function: Handle,
    grid: [u32; 3],
    words: [u64; 3],
}

impl KernelArguments {
    fn pointers(&mut self) -> [*mut c_void; 3] {
        self.words.each_mut().map(|word| std::ptr::from_mut(word).cast())
    }

    fn node(&self, pointers: &mut [*mut c_void; 3]) -> CUDA_KERNEL_NODE_PARAMS_v2 {
        CUDA_KERNEL_NODE_PARAMS_v2 {
            func: CUfunction::from_addr(self.function),
            grid_dim: self.grid,
            block_dim: [32, 1, 1],
            shared_mem_bytes: 0,
            kernel_params: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: CUkernel::NULL,
            ctx: CUcontext::NULL,
        }
    }
}

impl Program {
    /// Opens the driver and makes what lasts for all sequences.
    fn new() -> Self {
        let driver = Driver::open(false);
        let (mut context, mut module) = (0, 0);
        let check = |what: &str, code: Code| assert_eq!(code, 0, "{what}");
        // SAFETY: valid pointers and handles that the driver has just given.
        unsafe {
            check("cuInit", driver.init(0));
            check("cuDevicePrimaryCtxRetain", driver.context_retain(&mut context, 0));
            check("cuCtxSetCurrent", driver.context_set(context));
            check("cuModuleLoadData", driver.module_load(&mut module, kernels::PTX_MODULE.as_ptr().cast()));
        }
        let function = |name: &CStr| {
            let mut function = 0;
            // SAFETY: valid pointers, a loaded module and a valid name.
            check("cuModuleGetFunction", unsafe {
                driver.module_function(&mut function, module, name.as_ptr())
            });
            // Loaded now, since loading is forbidden during a capture; older drivers load at once.
            // SAFETY: a function of the driver.
            let _ = unsafe { driver.function_load(function) };
            function
        };
        let (count, copy, spin) =
            (function(kernels::COUNT), function(kernels::COPY), function(kernels::SPIN));
        let (mut memory, mut on_host) = (0, 0);
        let mut streams = [0, 0, 0, 0, 1, 2, 0];
        // SAFETY: as above; the copy is of as many words as there are.
        unsafe {
            check("cuMemAlloc", driver.memory_alloc(&mut memory, 4 * TOTAL as usize));
            check("cuMemAllocHost", driver.memory_alloc_host(&mut on_host, 4 * 64));
            let sources: Vec<u32> = (0..64).map(|word| 1000 + word / 4).collect();
            let at = memory + 4 * SOURCES;
            check("cuMemcpyHtoD", driver.copy_to_device(at, sources.as_ptr().cast(), 4 * 64));
        }
        for (number, stream) in streams[..4].iter_mut().enumerate() {
            check("cuStreamCreate", make_stream(&driver, number, stream));
        }
        Self {
            driver,
            other_entries: Driver::open(true),
            is_per_thread: false,
            context,
            count,
            copy,
            spin,
            memory,
            on_host,
            streams,
            events: [0; 4],
            graphs: [const { None }; 6],
            parked: Vec::new(),
            executables: [None; 4],
            allocations: [0; 4],
            has_allocated: false,
            objects: [const { None }; 2],
            objects_made: 0,
            into: Vec::new(),
            graphs_made: 0,
            trace: String::new(),
        }
    }

    fn tell(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.trace.write_fmt(what);
    }

    fn code(&mut self, code: Code) -> bool {
        self.tell(format_args!(" {code}"));
        code == 0
    }

    // ---- what operations work on ----

    fn word(&self, at: u64) -> u64 {
        self.memory + 4 * at
    }

    fn kernel(&self, which: u8, place: u8) -> KernelArguments {
        let place = u64::from(place);
        match which % 8 {
            0..=4 => KernelArguments {
                function: self.count,
                grid: [1 + (place / 16) as u32 % 3, 1, 1],
                // An SM of number 0 or above counts at 0.
                words: [self.word(COUNTERS + place % 16), 0, 0],
            },
            5 | 6 => KernelArguments {
                function: self.copy,
                grid: [1, 1, 1],
                words: [
                    self.word(CELLS) + CELL * (8 + place % 8),
                    self.word(SOURCES) + CELL * (place % 8),
                    CELL,
                ],
            },
            _ => KernelArguments { function: self.spin, grid: [1, 1, 1], words: [2000, 0, 0] },
        }
    }

    fn fill(&self, place: u8) -> CUDA_MEMSET_NODE_PARAMS_v1 {
        let place = place % 8;
        CUDA_MEMSET_NODE_PARAMS_v1 {
            dst: self.word(CELLS) + CELL * u64::from(place),
            pitch: 0,
            value: 500 + u32::from(place),
            element_size: 4,
            width: 4,
            height: 1,
        }
    }

    fn copy(&self, which: u8, place: u8) -> CUDA_MEMCPY3D {
        let place = u64::from(place % 8);
        let to_host = which % 3 == 1;
        CUDA_MEMCPY3D {
            src_x_in_bytes: 0,
            src_y: 0,
            src_z: 0,
            src_lod: 0,
            src_memory_type: CU_MEMORYTYPE_DEVICE,
            src_host: std::ptr::null(),
            src_device: self.word(SOURCES) + CELL * place,
            src_array: CUarray::NULL,
            src_context: CUcontext::NULL,
            src_pitch: 0,
            src_height: 0,
            dst_x_in_bytes: 0,
            dst_y: 0,
            dst_z: 0,
            dst_lod: 0,
            dst_memory_type: if to_host { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE },
            dst_host: std::ptr::with_exposed_provenance_mut::<u8>(self.on_host + (CELL * place) as usize)
                .cast(),
            dst_device: self.word(CELLS) + CELL * (8 + place),
            dst_array: CUarray::NULL,
            dst_context: CUcontext::NULL,
            dst_pitch: 0,
            dst_height: 0,
            width_in_bytes: CELL as usize,
            height: 1,
            depth: 1,
        }
    }

    fn write(&self, place: u8) -> CUstreamBatchMemOpParams {
        CUstreamBatchMemOpParams {
            operation: CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address: self.word(WORDS + u64::from(place % 8)),
            value: 700 + u64::from(place % 8),
            ..CUstreamBatchMemOpParams::default()
        }
    }

    /// A stream's number and handle. The null one has the number of the stream that it means.
    fn stream(&self, number: u8) -> (usize, Handle) {
        let at = usize::from(number) % self.streams.len();
        let same = match at {
            6 if self.is_per_thread => 5,
            6 => 4,
            other => other,
        };
        (same, self.streams[at])
    }

    fn event(&self, number: u8) -> Handle {
        self.events[usize::from(number) % self.events.len()]
    }

    fn graph_at(&self, number: u8) -> Option<&Graph> {
        self.graphs[usize::from(number) % self.graphs.len()].as_ref()
    }

    fn executable(&self, number: u8) -> Option<Handle> {
        self.executables[usize::from(number) % self.executables.len()]
    }

    fn known(&self) -> impl Iterator<Item = &Graph> {
        self.graphs.iter().flatten().chain(&self.parked)
    }

    /// Whether one graph is another, or lies in it.
    fn is_within(&self, mut graph: u32, outer: u32) -> bool {
        while graph != outer {
            match self.known().find(|known| known.id == graph).and_then(|known| known.inside) {
                Some(next) => graph = next,
                None => return false,
            }
        }
        true
    }

    /// Whether a capture goes into a graph or into one that lies in it.
    fn is_captured_into(&self, graph: u32) -> bool {
        self.into.iter().any(|into| self.is_within(into.graph, graph) || self.is_within(graph, into.graph))
    }

    /// The nodes of a graph.
    fn nodes(&self, graph: Handle) -> Vec<Handle> {
        let mut count = 0;
        // SAFETY: a live graph; null asks for the number alone, and then there is room for so many.
        unsafe {
            if self.driver.graph_nodes(graph, std::ptr::null_mut(), &mut count) != 0 || count == 0 {
                return Vec::new();
            }
            let mut nodes = vec![0; count];
            let code = self.driver.graph_nodes(graph, nodes.as_mut_ptr(), &mut count);
            nodes.truncate(if code == 0 { count } else { 0 });
            nodes
        }
    }

    /// A node's name in the trace.
    fn name(&self, node: Handle) -> String {
        if node == 0 {
            return "-".to_owned();
        }
        let place = |graph: &Graph| {
            let at = self.nodes(graph.handle).iter().position(|known| *known == node)?;
            Some(format!("g{}.{at}", graph.id))
        };
        self.known().find_map(place).unwrap_or_else(|| "?".to_owned())
    }

    fn tell_nodes(&mut self, nodes: &[Handle]) {
        let names: Vec<String> = nodes.iter().map(|node| self.name(*node)).collect();
        self.tell(format_args!(" [{}]", names.join(" ")));
    }

    /// What a new node is to come after.
    fn after(&self, graph: Handle, which: u8) -> Vec<Handle> {
        let nodes = self.nodes(graph);
        let (Some(first), Some(last)) = (nodes.first().copied(), nodes.last().copied()) else {
            return Vec::new();
        };
        match which {
            0 => Vec::new(),
            1 | 5 => vec![last],
            2 => vec![first],
            3 => nodes[nodes.len().saturating_sub(2)..].to_vec(),
            4 => nodes[nodes.len().saturating_sub(4)..].to_vec(),
            250.. => vec![last, last],
            other => pick(&nodes, other).into_iter().collect(),
        }
    }

    /// Forgets what lies in a graph.
    fn forget_inside(&mut self, id: u32) {
        let gone: HashSet<u32> = self
            .known()
            .filter(|graph| graph.id != id && self.is_within(graph.id, id))
            .map(|graph| graph.id)
            .collect();
        for slot in &mut self.graphs {
            if slot.as_ref().is_some_and(|graph| gone.contains(&graph.id)) {
                *slot = None;
            }
        }
    }

    /// Forgets a graph that the driver has destroyed, since a capture into it failed.
    fn forget(&mut self, id: u32) {
        self.forget_inside(id);
        for slot in &mut self.graphs {
            if slot.as_ref().is_some_and(|graph| graph.id == id) {
                *slot = None;
            }
        }
        self.parked.retain(|graph| graph.id != id);
    }

    /// Lets go of the graph in a slot. Its own is destroyed, which the trace tells.
    fn let_go(&mut self, slot: usize) {
        let Some(graph) = self.graphs[slot].take() else { return };
        if graph.inside.is_some() {
            // What lies in this one can be opened again.
            let id = graph.id;
            self.graphs[slot] = Some(graph);
            self.forget_inside(id);
            self.graphs[slot] = None;
            return;
        }
        let id = graph.id;
        if self.is_captured_into_of(&graph) {
            self.parked.push(graph);
            return;
        }
        let handle = graph.handle;
        self.graphs[slot] = Some(graph);
        self.forget_inside(id);
        self.graphs[slot] = None;
        // SAFETY: a live graph of the program's own, which nothing names any more.
        let code = unsafe { self.driver.graph_destroy(handle) };
        self.tell(format_args!(" gone {code}"));
    }

    fn is_captured_into_of(&self, graph: &Graph) -> bool {
        // The graph itself has left its slot, so that its own parts are followed by hand.
        self.into.iter().any(|into| {
            let mut at = into.graph;
            loop {
                if at == graph.id {
                    return true;
                }
                match self.known().find(|known| known.id == at).and_then(|known| known.inside) {
                    Some(next) => at = next,
                    None => return false,
                }
            }
        })
    }

    /// Puts a graph into a slot, whose own is let go of.
    fn keep(&mut self, number: u8, handle: Handle, inside: Option<u32>) {
        let slot = usize::from(number) % self.graphs.len();
        self.let_go(slot);
        self.graphs_made += 1;
        self.graphs[slot] = Some(Graph { handle, id: self.graphs_made, inside });
        let id = self.graphs_made;
        self.tell(format_args!(" g{id}"));
    }

    /// Puts a graph that lies in another into a slot, unless that holds what it lies in.
    fn keep_inside(&mut self, number: u8, handle: Handle, outer: u32) {
        let slot = usize::from(number) % self.graphs.len();
        let holds_outer = self.graphs[slot].as_ref().is_some_and(|graph| self.is_within(outer, graph.id));
        if !holds_outer {
            self.keep(number, handle, Some(outer));
        }
    }

    // ---- operations ----

    fn step(&mut self, operation: &Operation) {
        let before = self.trace.len();
        if operation.per_thread != self.is_per_thread {
            std::mem::swap(&mut self.driver, &mut self.other_entries);
            self.is_per_thread = operation.per_thread;
        }
        if self.run(operation).is_none() {
            self.trace.truncate(before);
            self.tell(format_args!(" skipped"));
        }
    }

    /// Carries an operation out; `None` if its object is not there.
    fn run(&mut self, operation: &Operation) -> Option<()> {
        let [a, b, c, d] = operation.with;
        // SAFETY: handles are the driver's and alive (slots are emptied when what they hold ends,
        // and nodes are queried each time), and pointers are to values that live until the
        // call returns.
        unsafe {
            match operation.kind {
                Kind::Begin => {
                    let stream = self.stream(a).1;
                    let code = match c {
                        240.. => self.driver.capture_begin_v1(stream),
                        _ => self.driver.capture_begin(stream, c_uint::from(b % 3)),
                    };
                    self.code(code);
                }
                Kind::BeginToGraph => {
                    let (graph, id) = self.graph_at(b).map(|graph| (graph.handle, graph.id))?;
                    let lies_inside = self.graph_at(b).is_some_and(|graph| graph.inside.is_some());
                    let (at, stream) = self.stream(a);
                    let after = self.after(graph, c % 6);
                    let (from, count) = (after.as_ptr(), after.len());
                    let edges = std::ptr::null();
                    let code = self.driver.capture_begin_to_graph(
                        stream,
                        graph,
                        from,
                        edges,
                        count,
                        c_uint::from(d % 3),
                    );
                    if self.code(code) {
                        if lies_inside {
                            // A capture that fails destroys its graph, and the graph around it
                            // would destroy it again.
                            let fill = self.fill(c);
                            let code = self.driver.fill_async(fill.dst, fill.value, 4, stream);
                            self.code(code);
                            let mut ended = 0;
                            let code = self.driver.capture_end(stream, &mut ended);
                            self.code(code);
                        } else {
                            self.into.push(IntoGraph { stream: at, graph: id });
                        }
                    }
                }
                Kind::End => {
                    let (at, stream) = self.stream(a);
                    let mut handle = 0;
                    let code = self.driver.capture_end(stream, &mut handle);
                    self.code(code);
                    let (invalidated, unjoined, wrong_thread) = (901, 904, 908);
                    let into = self.into.iter().position(|into| into.stream == at);
                    let ends = [0, invalidated, unjoined, wrong_thread].contains(&code);
                    if let Some(into) = into.filter(|_| ends) {
                        let into = self.into.remove(into);
                        self.tell(format_args!(" g{}", into.graph));
                        if code != 0 {
                            self.forget(into.graph);
                        }
                    } else if code == 0 && handle != 0 {
                        self.keep(b, handle, None);
                    } else {
                        self.tell(format_args!(" {}", if handle == 0 { "null" } else { "a graph" }));
                    }
                }
                Kind::Status => {
                    let mut status = 9;
                    let code = self.driver.capture_status(self.stream(a).1, &mut status);
                    self.code(code);
                    self.tell(format_args!(" status {status}"));
                }
                Kind::Info => {
                    let (mut status, mut id, mut graph) = (9, 0, 0);
                    let (mut nodes, mut count) = (std::ptr::null(), 0);
                    let code = self.driver.capture_info(
                        self.stream(a).1,
                        &mut status,
                        &mut id,
                        &mut graph,
                        &mut nodes,
                        &mut count,
                    );
                    self.code(code);
                    self.tell(format_args!(" status {status}"));
                    if code == 0 && status == CU_STREAM_CAPTURE_STATUS_ACTIVE {
                        let all = self.nodes(graph);
                        let next: &[Handle] =
                            if count == 0 { &[] } else { std::slice::from_raw_parts(nodes, count) };
                        let mut places: Vec<_> =
                            next.iter().map(|node| all.iter().position(|known| known == node)).collect();
                        places.sort_unstable();
                        self.tell(format_args!(" nodes {} next {places:?}", all.len()));
                    }
                }
                Kind::UpdateDependencies => {
                    let stream = self.stream(a).1;
                    let (mut status, mut id, mut graph) = (9, 0, 0);
                    let (mut nodes, mut count) = (std::ptr::null(), 0);
                    let code = self.driver.capture_info(
                        stream,
                        &mut status,
                        &mut id,
                        &mut graph,
                        &mut nodes,
                        &mut count,
                    );
                    let mut next = match (code, status) {
                        (0, CU_STREAM_CAPTURE_STATUS_ACTIVE) => self.after(graph, b % 6),
                        _ => Vec::new(),
                    };
                    let code = self.driver.capture_update_dependencies(
                        stream,
                        next.as_mut_ptr(),
                        next.len(),
                        c_uint::from(c % 3),
                    );
                    self.code(code);
                }
                Kind::ExchangeMode => {
                    let mut mode = c_uint::from(a % 3);
                    let code = self.driver.capture_exchange_mode(&mut mode);
                    self.code(code);
                    self.tell(format_args!(" was {mode}"));
                }
                Kind::Kernel => {
                    let mut arguments = self.kernel(b, c);
                    let mut pointers = arguments.pointers();
                    let stream = self.stream(a).1;
                    let code = self.launch(&arguments, &mut pointers, b, stream);
                    self.code(code);
                }
                Kind::Fill => {
                    let fill = self.fill(c);
                    let code = self.driver.fill_async(fill.dst, fill.value, 4, self.stream(a).1);
                    self.code(code);
                }
                Kind::Copy => {
                    let copy = self.copy(0, c);
                    let (to, from) = (copy.dst_device, copy.src_device);
                    let code = self.driver.copy_async(to, from, CELL as usize, self.stream(a).1);
                    self.code(code);
                }
                Kind::Host => {
                    let data = std::ptr::without_provenance_mut(usize::from(c % 4));
                    let code = self.driver.launch_host(self.stream(a).1, Some(host), data);
                    self.code(code);
                }
                Kind::Write => {
                    let write = self.write(c);
                    let value = write.value as c_uint;
                    let code = self.driver.stream_write_value(self.stream(a).1, write.address, value, 0);
                    self.code(code);
                }
                Kind::Record => {
                    let (event, stream) = (self.event(a), self.stream(b).1);
                    let code = match c % 3 {
                        1 => self.driver.event_record_with_flags(event, stream, 1),
                        _ => self.driver.event_record(event, stream),
                    };
                    self.code(code);
                }
                Kind::Wait => {
                    let (stream, event) = (self.stream(a).1, self.event(b));
                    let code = self.driver.stream_wait_event(stream, event, c_uint::from(c % 3 == 1));
                    self.code(code);
                }
                Kind::Allocate => {
                    let slot = usize::from(c % 4);
                    if self.allocations[slot] != 0 {
                        return None;
                    }
                    let mut address = 0;
                    let code = self.driver.memory_alloc_async(&mut address, 4096, self.stream(a).1);
                    if self.code(code) {
                        self.allocations[slot] = address;
                    }
                }
                Kind::Free => {
                    let address = self.allocations[usize::from(c % 4)];
                    if address == 0 {
                        return None;
                    }
                    // A captured one stays in its slot: a graph may free it again at each launch.
                    // One that has happened does not, since whether a second is refused would
                    // depend on how far the stream is.
                    let (at, stream) = self.stream(a);
                    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
                    if at != 4 {
                        self.driver.capture_status(stream, &mut status);
                    }
                    let code = self.driver.memory_free_async(address, stream);
                    if self.code(code) && status == CU_STREAM_CAPTURE_STATUS_NONE {
                        self.allocations[usize::from(c % 4)] = 0;
                    }
                }
                Kind::Query => {
                    let stream = self.stream(a).1;
                    let done = self.driver.stream_synchronize(stream);
                    self.code(done);
                    let code = self.driver.stream_query(stream);
                    self.unless_busy(code);
                }
                Kind::Synchronize => {
                    let code = self.driver.stream_synchronize(self.stream(a).1);
                    self.code(code);
                }
                Kind::QueryEvent => {
                    let event = self.event(a);
                    if b % 2 == 0 {
                        let done = self.driver.event_synchronize(event);
                        self.code(done);
                    }
                    let code = self.driver.event_query(event);
                    self.unless_busy(code);
                }
                Kind::SynchronizeEvent => {
                    let code = self.driver.event_synchronize(self.event(a));
                    self.code(code);
                }
                Kind::SynchronizeContext => {
                    let code = self.driver.context_synchronize();
                    self.code(code);
                }
                Kind::AllocateNow => {
                    let mut address = 0;
                    let code = self.driver.memory_alloc(&mut address, 4096);
                    if self.code(code) {
                        let code = self.driver.memory_free(address);
                        self.code(code);
                    }
                }
                Kind::RenewStream => {
                    let (at, stream) = self.stream(a);
                    let mut status = 9;
                    if at >= 4
                        || self.driver.capture_status(stream, &mut status) != 0
                        || status != CU_STREAM_CAPTURE_STATUS_NONE
                    {
                        return None;
                    }
                    let code = self.driver.stream_destroy(stream);
                    self.code(code);
                    let code = make_stream(&self.driver, at, &mut self.streams[at]);
                    self.code(code);
                }
                Kind::Check => self.check(),
                Kind::Create => {
                    let mut handle = 0;
                    let code = self.driver.graph_create(&mut handle, 0);
                    if self.code(code) {
                        self.keep(a, handle, None);
                    }
                }
                Kind::Destroy => {
                    self.graph_at(a)?;
                    self.let_go(usize::from(a) % self.graphs.len());
                }
                Kind::Clone => {
                    let graph = self.free_graph(a)?;
                    let mut handle = 0;
                    let code = self.driver.graph_clone(&mut handle, graph.0);
                    if self.code(code) {
                        self.keep(b, handle, None);
                    }
                }
                Kind::AddKernel
                | Kind::AddFill
                | Kind::AddCopy
                | Kind::AddHost
                | Kind::AddEmpty
                | Kind::AddChild
                | Kind::AddRecord
                | Kind::AddWait
                | Kind::AddAllocation
                | Kind::AddFree
                | Kind::AddBatch
                | Kind::AddConditional
                | Kind::AddNode => self.add(operation)?,
                Kind::Connect | Kind::Disconnect => {
                    let graph = self.graph_at(a)?.handle;
                    let nodes = self.nodes(graph);
                    // Forward, mostly: the other way round makes circles.
                    let (mut from, mut to) = (pick(&nodes, b)?, pick(&nodes, c)?);
                    let place = |node| nodes.iter().position(|known| *known == node);
                    if d % 8 != 0 && place(from) > place(to) {
                        (from, to) = (to, from);
                    }
                    let code = if operation.kind == Kind::Connect {
                        self.driver.graph_connect(graph, &from, &to, 1)
                    } else {
                        self.driver.graph_disconnect(graph, &from, &to, 1)
                    };
                    self.code(code);
                }
                Kind::DestroyNode => {
                    let (graph, id) = self.free_graph(a)?;
                    let node = pick(&self.nodes(graph), b)?;
                    self.forget_inside(id);
                    let code = self.driver.node_destroy(node);
                    self.code(code);
                }
                Kind::OpenChild => {
                    let (graph, id) = self.graph_at(a).map(|graph| (graph.handle, graph.id))?;
                    let node = pick(&self.nodes(graph), b)?;
                    let mut child = 0;
                    let code = self.driver.node_child(node, &mut child);
                    if self.code(code) {
                        self.keep_inside(a.wrapping_add(1), child, id);
                    }
                }
                Kind::Nodes => self.list(a, b)?,
                Kind::Edges => self.edges(a, b)?,
                Kind::Describe => self.describe(a, b)?,
                Kind::FindInClone => {
                    let (graph, copy) = (self.graph_at(a)?.handle, self.graph_at(c)?.handle);
                    let node = pick(&self.nodes(graph), b)?;
                    let mut found = 0;
                    let code = self.driver.node_find_in_clone(&mut found, node, copy);
                    if self.code(code) {
                        self.tell_nodes(&[found]);
                    }
                }
                Kind::SetKernel => {
                    let node = pick(&self.nodes(self.graph_at(a)?.handle), b)?;
                    let mut arguments = self.kernel(c, d);
                    let mut pointers = arguments.pointers();
                    let parameters = arguments.node(&mut pointers);
                    let code = match c / 8 % 4 {
                        1 => self.driver.node_set_kernel_v1(node, (&raw const parameters).cast()),
                        _ => self.driver.node_set_kernel(node, &parameters),
                    };
                    self.code(code);
                }
                Kind::SetFill => {
                    let node = pick(&self.nodes(self.graph_at(a)?.handle), b)?;
                    let code = self.driver.node_set_fill(node, &self.fill(d));
                    self.code(code);
                }
                Kind::SetNode => {
                    let node = pick(&self.nodes(self.graph_at(a)?.handle), b)?;
                    let code =
                        self.with_parameters(c, d, 0, |driver, parameters| driver.node_set(node, parameters));
                    self.code(code);
                }
                Kind::SetAttribute => {
                    let node = pick(&self.nodes(self.graph_at(a)?.handle), b)?;
                    let value = CUlaunchAttributeValue::from_i32(-i32::from(c % 3));
                    let code =
                        self.driver.node_set_kernel_attribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value);
                    self.code(code);
                }
                Kind::Instantiate => self.instantiate(a, b, c, d)?,
                Kind::Upload => {
                    let code = self.driver.exec_upload(self.executable(a)?, self.stream(b).1);
                    self.code(code);
                }
                Kind::Launch => {
                    let code = self.driver.exec_launch(self.executable(a)?, self.stream(b).1);
                    self.code(code);
                }
                Kind::DestroyExecutable => {
                    let executable = self.executable(a)?;
                    self.free_allocations()?;
                    let code = self.driver.exec_destroy(executable);
                    // A capture may forbid it.
                    if self.code(code) {
                        self.executables[usize::from(a) % 4] = None;
                    }
                }
                Kind::Flags => {
                    let mut flags = 99;
                    let code = self.driver.exec_flags(self.executable(a)?, &mut flags);
                    self.code(code);
                    self.tell(format_args!(" flags {flags}"));
                }
                Kind::Update => self.update(a, b, c)?,
                Kind::Enable => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let code = self.driver.exec_enable(executable, node, c_uint::from(d % 2));
                    self.code(code);
                }
                Kind::Enabled => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let mut enabled = 9;
                    let code = self.driver.exec_enabled(executable, node, &mut enabled);
                    self.code(code);
                    self.tell(format_args!(" enabled {enabled}"));
                }
                Kind::ExecKernel => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    // The node's own function, mostly.
                    let mut arguments = self.kernel(if d % 4 == 0 { c } else { 0 }, d);
                    let mut pointers = arguments.pointers();
                    let parameters = arguments.node(&mut pointers);
                    let code = match d / 8 % 4 {
                        1 => self.driver.exec_set_kernel_v1(executable, node, (&raw const parameters).cast()),
                        _ => self.driver.exec_set_kernel(executable, node, &parameters),
                    };
                    self.code(code);
                }
                Kind::ExecFill => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let code = self.driver.exec_set_fill(executable, node, &self.fill(d), self.context);
                    self.code(code);
                }
                Kind::ExecCopy => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let code = self.driver.exec_set_copy(executable, node, &self.copy(0, d), self.context);
                    self.code(code);
                }
                Kind::ExecHost => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let data = std::ptr::without_provenance_mut(usize::from(d % 4));
                    let parameters = CUDA_HOST_NODE_PARAMS { func: Some(host), user_data: data };
                    let code = self.driver.exec_set_host(executable, node, &parameters);
                    self.code(code);
                }
                Kind::ExecChild => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let child = self.free_graph(d)?.0;
                    let code = self.driver.exec_set_child(executable, node, child);
                    self.code(code);
                }
                Kind::ExecEvent => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let code = if d % 2 == 0 {
                        self.driver.exec_set_record(executable, node, self.event(d / 2))
                    } else {
                        self.driver.exec_set_wait(executable, node, self.event(d / 2))
                    };
                    self.code(code);
                }
                Kind::ExecNode => {
                    let (executable, node) = (self.executable(a)?, self.node_of(b, c)?);
                    let child = self.free_graph(d).map_or(0, |(child, _)| child);
                    let code = self.with_parameters(c, d, child, |driver, parameters| {
                        driver.exec_set_node(executable, node, parameters)
                    });
                    self.code(code);
                }
                Kind::CreateObject => {
                    let slot = usize::from(b % 2);
                    if self.objects[slot].is_some() {
                        return None;
                    }
                    let mut handle = 0;
                    let none = std::ptr::null_mut();
                    let code = self.driver.object_create(&mut handle, none, Some(ended), 1, 1);
                    if self.code(code) {
                        self.objects[slot] = Some(Object { handle, own: 1 });
                        self.objects_made += 1;
                    }
                }
                Kind::RetainObject => {
                    let graph = self.graph_at(a)?.handle;
                    let slot = usize::from(b % 2);
                    let object = self.objects[slot].as_ref().filter(|object| object.own > 0)?.handle;
                    let moves = c % 3 == 0;
                    let code = self.driver.object_retain_in_graph(graph, object, 1, c_uint::from(moves));
                    if self.code(code) && moves {
                        self.objects[slot] = None;
                    }
                }
                Kind::ReleaseObject => {
                    let object = self.objects[usize::from(b % 2)].take()?;
                    let code = self.driver.object_release(object.handle, 1);
                    self.code(code);
                }
            }
        }
        Some(())
    }

    /// Launches a kernel, by one of the calls that do.
    ///
    /// # Safety
    /// The pointers are to the arguments of the kernel.
    unsafe fn launch(
        &self,
        arguments: &KernelArguments,
        pointers: &mut [*mut c_void; 3],
        form: u8,
        stream: Handle,
    ) -> Code {
        let function = arguments.function;
        let [x, y, z] = arguments.grid;
        let (pointers, none) = (pointers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: a function of the driver, a stream, and what it is launched with.
        unsafe {
            match form / 8 % 8 {
                6 => self.driver.launch_cooperative(function, x, y, z, 32, 1, 1, 0, stream, pointers),
                7 => {
                    let config = CUlaunchConfig {
                        grid_dim_x: x,
                        grid_dim_y: y,
                        grid_dim_z: z,
                        block_dim_x: 32,
                        block_dim_y: 1,
                        block_dim_z: 1,
                        shared_mem_bytes: 0,
                        stream: CUstream::from_addr(stream),
                        attrs: std::ptr::null_mut(),
                        num_attrs: 0,
                    };
                    self.driver.launch_ex(&config, function, pointers, none)
                }
                _ => self.driver.launch_kernel(function, x, y, z, 32, 1, 1, 0, stream, pointers, none),
            }
        }
    }

    /// The result of a question about work in flight.
    fn unless_busy(&mut self, code: Code) {
        const NOT_READY: Code = 600;
        self.code(if code == NOT_READY { 0 } else { code });
    }

    /// A graph that nothing is captured into.
    fn free_graph(&self, number: u8) -> Option<(Handle, u32)> {
        let graph = self.graph_at(number)?;
        (!self.is_captured_into(graph.id)).then_some((graph.handle, graph.id))
    }

    fn node_of(&self, graph: u8, which: u8) -> Option<Handle> {
        pick(&self.nodes(self.graph_at(graph)?.handle), which)
    }

    /// Runs `call` with the parameters of a node of a kind, as the general calls take them. `child`
    /// is the graph that it may be of, 0 for none.
    fn with_parameters(
        &self,
        which: u8,
        place: u8,
        child: Handle,
        call: impl FnOnce(&Driver, *mut CUgraphNodeParams) -> Code,
    ) -> Code {
        let mut arguments = self.kernel(place / 16, place);
        let mut pointers = arguments.pointers();
        let mut write = self.write(place);
        let mut payload = |kind| match kind {
            CU_GRAPH_NODE_TYPE_KERNEL => CUgraphNodePayload { kernel: arguments.node(&mut pointers) },
            CU_GRAPH_NODE_TYPE_MEMSET => CUgraphNodePayload {
                memset: CUDA_MEMSET_NODE_PARAMS_v2 {
                    memset: self.fill(place),
                    ctx: CUcontext::from_addr(self.context),
                },
            },
            CU_GRAPH_NODE_TYPE_MEMCPY => CUgraphNodePayload {
                memcpy: CUDA_MEMCPY_NODE_PARAMS {
                    flags: 0,
                    reserved: 0,
                    copy_ctx: CUcontext::from_addr(self.context),
                    copy_params: self.copy(place / 16, place),
                },
            },
            CU_GRAPH_NODE_TYPE_HOST => CUgraphNodePayload {
                host: CUDA_HOST_NODE_PARAMS {
                    func: Some(host),
                    user_data: std::ptr::without_provenance_mut(usize::from(place % 4)),
                },
            },
            CU_GRAPH_NODE_TYPE_EVENT_RECORD | CU_GRAPH_NODE_TYPE_WAIT_EVENT => CUgraphNodePayload {
                event: CUDA_EVENT_NODE_PARAMS { event: CUevent::from_addr(self.event(place)) },
            },
            CU_GRAPH_NODE_TYPE_GRAPH => CUgraphNodePayload {
                graph: CUDA_CHILD_GRAPH_NODE_PARAMS { graph: CUgraph::from_addr(child), ownership: 0 },
            },
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => CUgraphNodePayload {
                mem_op: CUDA_BATCH_MEM_OP_NODE_PARAMS {
                    ctx: CUcontext::from_addr(self.context),
                    count: 1,
                    param_array: &mut write,
                    flags: 0,
                },
            },
            _ => CUgraphNodePayload { reserved: [0; 29] },
        };
        let kind = [
            CU_GRAPH_NODE_TYPE_KERNEL,
            CU_GRAPH_NODE_TYPE_KERNEL,
            CU_GRAPH_NODE_TYPE_MEMSET,
            CU_GRAPH_NODE_TYPE_MEMCPY,
            CU_GRAPH_NODE_TYPE_HOST,
            CU_GRAPH_NODE_TYPE_EMPTY,
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            CU_GRAPH_NODE_TYPE_GRAPH,
        ][usize::from(which) % if child == 0 { 9 } else { 10 }];
        // All zero first: the union's members are shorter than it.
        let mut parameters = CUgraphNodeParams {
            kind,
            reserved0: [0; 3],
            payload: CUgraphNodePayload { reserved: [0; 29] },
            reserved2: 0,
        };
        let filled = payload(kind);
        // SAFETY: both are unions of the same size, and what is not written of the second is not
        // read.
        unsafe {
            let bytes = match kind {
                CU_GRAPH_NODE_TYPE_KERNEL => size_of::<CUDA_KERNEL_NODE_PARAMS_v2>(),
                CU_GRAPH_NODE_TYPE_MEMSET => size_of::<CUDA_MEMSET_NODE_PARAMS_v2>(),
                CU_GRAPH_NODE_TYPE_MEMCPY => size_of::<CUDA_MEMCPY_NODE_PARAMS>(),
                CU_GRAPH_NODE_TYPE_HOST => size_of::<CUDA_HOST_NODE_PARAMS>(),
                CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => size_of::<CUDA_BATCH_MEM_OP_NODE_PARAMS>(),
                CU_GRAPH_NODE_TYPE_EVENT_RECORD | CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
                    size_of::<CUDA_EVENT_NODE_PARAMS>()
                }
                CU_GRAPH_NODE_TYPE_GRAPH => size_of::<CUDA_CHILD_GRAPH_NODE_PARAMS>(),
                _ => 0,
            };
            let (from, to) = (&raw const filled, &raw mut parameters.payload);
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), bytes);
        }
        call(&self.driver, &mut parameters)
    }

    fn add(&mut self, operation: &Operation) -> Option<()> {
        let [a, b, c, d] = operation.with;
        let (graph, id) = self.graph_at(a).map(|graph| (graph.handle, graph.id))?;
        let after = self.after(graph, b);
        let (from, count) = (after.as_ptr(), after.len());
        let mut node = 0;
        let to = &mut node;
        // SAFETY: a live graph and nodes of it, as many as said; parameters that live until the
        // call returns.
        let code = unsafe {
            let driver = &self.driver;
            match operation.kind {
                Kind::AddKernel => {
                    let mut arguments = self.kernel(c, d);
                    let mut pointers = arguments.pointers();
                    let parameters = arguments.node(&mut pointers);
                    match c / 8 % 4 {
                        // The older form is the beginning of the newer one.
                        1 => {
                            driver.graph_add_kernel_v1(to, graph, from, count, (&raw const parameters).cast())
                        }
                        _ => driver.graph_add_kernel(to, graph, from, count, &parameters),
                    }
                }
                Kind::AddFill => driver.graph_add_fill(to, graph, from, count, &self.fill(d), self.context),
                Kind::AddCopy => {
                    driver.graph_add_copy(to, graph, from, count, &self.copy(c, d), self.context)
                }
                Kind::AddHost => {
                    let user_data = std::ptr::without_provenance_mut(usize::from(d % 4));
                    let parameters = CUDA_HOST_NODE_PARAMS { func: Some(host), user_data };
                    driver.graph_add_host(to, graph, from, count, &parameters)
                }
                Kind::AddEmpty => driver.graph_add_empty(to, graph, from, count),
                Kind::AddChild => {
                    let (child, within) = self.free_graph(c)?;
                    if self.is_within(id, within) {
                        // The driver ends the process for a graph in itself.
                        return None;
                    }
                    driver.graph_add_child(to, graph, from, count, child)
                }
                Kind::AddRecord => driver.graph_add_record(to, graph, from, count, self.event(c)),
                Kind::AddWait => driver.graph_add_wait(to, graph, from, count, self.event(c)),
                Kind::AddAllocation => {
                    let slot = usize::from(c % 4);
                    if self.allocations[slot] != 0 {
                        return None;
                    }
                    let mut parameters = CUDA_MEM_ALLOC_NODE_PARAMS {
                        pool_props: CUmemPoolProps {
                            alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
                            handle_types: CU_MEM_HANDLE_TYPE_NONE,
                            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
                            win32_security_attributes: std::ptr::null_mut(),
                            max_size: 0,
                            usage: 0,
                            reserved: [0; 54],
                        },
                        access_descs: std::ptr::null(),
                        access_desc_count: 0,
                        bytesize: 4096,
                        dptr: 0,
                    };
                    let code = driver.graph_add_alloc(to, graph, from, count, &mut parameters);
                    if code == 0 {
                        self.allocations[slot] = parameters.dptr;
                    }
                    code
                }
                Kind::AddFree => {
                    let address = self.allocations[usize::from(c % 4)];
                    if address == 0 {
                        return None;
                    }
                    driver.graph_add_free(to, graph, from, count, address)
                }
                Kind::AddBatch => {
                    let mut write = self.write(d);
                    let parameters = CUDA_BATCH_MEM_OP_NODE_PARAMS {
                        ctx: CUcontext::from_addr(self.context),
                        count: 1,
                        param_array: &mut write,
                        flags: 0,
                    };
                    driver.graph_add_batch(to, graph, from, count, &parameters)
                }
                Kind::AddConditional => return self.add_conditional(graph, id, &after, operation),
                _ => {
                    // The driver ends the process for a graph in itself.
                    let child = self.free_graph(d).filter(|(_, within)| !self.is_within(id, *within));
                    let child = child.map_or(0, |(child, _)| child);
                    self.with_parameters(c, d, child, |driver, parameters| {
                        if b % 2 == 0 {
                            driver.graph_add_node(to, graph, from, count, parameters)
                        } else {
                            driver.graph_add_node_v2(to, graph, from, std::ptr::null(), count, parameters)
                        }
                    })
                }
            }
        };
        if self.code(code) {
            self.tell_nodes(&[node]);
        }
        Some(())
    }

    /// An if whose body runs or not, a loop that does not run, or a switch. The body that is kept
    /// has the next number.
    fn add_conditional(
        &mut self,
        graph: Handle,
        id: u32,
        after: &[Handle],
        operation: &Operation,
    ) -> Option<()> {
        let [a, _, c, d] = operation.with;
        let (kind, value, size) = match c % 4 {
            0 => (0, 1, 1),
            1 => (0, 0, 1),
            2 => (1, 0, 1),
            _ => (2, u32::from(d % 3), 2),
        };
        let mut handle = 0;
        const ASSIGN_DEFAULT: c_uint = 1;
        // SAFETY: a live graph and a valid pointer.
        let code = unsafe {
            self.driver.conditional_create(&mut handle, graph, self.context, value, ASSIGN_DEFAULT)
        };
        if !self.code(code) {
            return Some(());
        }
        let conditional = CUDA_CONDITIONAL_NODE_PARAMS {
            handle,
            kind,
            size,
            graphs_out: std::ptr::null_mut(),
            ctx: CUcontext::from_addr(self.context),
        };
        let mut parameters = CUgraphNodeParams {
            kind: CU_GRAPH_NODE_TYPE_CONDITIONAL,
            reserved0: [0; 3],
            payload: CUgraphNodePayload { reserved: [0; 29] },
            reserved2: 0,
        };
        let mut node = 0;
        // SAFETY: the union has room for each of its members; the driver writes where the bodies
        // are.
        let (code, body) = unsafe {
            (&raw mut parameters.payload).cast::<CUDA_CONDITIONAL_NODE_PARAMS>().write(conditional);
            let code = self.driver.graph_add_node_v2(
                &mut node,
                graph,
                after.as_ptr(),
                std::ptr::null(),
                after.len(),
                &mut parameters,
            );
            let bodies = parameters.payload.conditional.graphs_out;
            let which = usize::from(d) % size as usize;
            (code, if code == 0 { (*bodies.add(which)).addr() } else { 0 })
        };
        if self.code(code) {
            self.tell_nodes(&[node]);
            self.keep_inside(a.wrapping_add(1), body, id);
        }
        Some(())
    }

    fn list(&mut self, a: u8, form: u8) -> Option<()> {
        let graph = self.graph_at(a)?.handle;
        let there = self.nodes(graph).len();
        let room = match form % 6 {
            0 => None,
            1 => Some(there),
            2 => Some(0),
            3 => Some(there.saturating_sub(1)),
            4 => Some(there + 2),
            _ => Some(there),
        };
        // Never a null pointer, and an unwritten place has a value of its own.
        const UNWRITTEN: Handle = 7;
        let mut nodes = vec![UNWRITTEN; room.unwrap_or(0).max(1)];
        let mut count = room.unwrap_or(99);
        let to = if room.is_some() { nodes.as_mut_ptr() } else { std::ptr::null_mut() };
        // SAFETY: a live graph, and room for as many as said.
        let code = unsafe {
            if form % 6 == 5 {
                self.driver.graph_roots(graph, to, &mut count)
            } else {
                self.driver.graph_nodes(graph, to, &mut count)
            }
        };
        self.code(code);
        self.tell(format_args!(" count {count}"));
        nodes.truncate(room.unwrap_or(0));
        let written: Vec<Handle> = nodes.into_iter().filter(|node| *node != UNWRITTEN).collect();
        self.tell_nodes(&written);
        Some(())
    }

    fn edges(&mut self, a: u8, form: u8) -> Option<()> {
        let graph = self.graph_at(a)?.handle;
        let none = std::ptr::null_mut();
        let mut there = 0;
        // SAFETY: a live graph; null asks for the number alone.
        let code = unsafe { self.driver.graph_edges(graph, none, none, &mut there) };
        self.code(code);
        self.tell(format_args!(" count {there}"));
        let mut count = match form % 4 {
            0 => 0,
            1 => there + 1,
            _ => there,
        };
        let room = count.max(1);
        let (mut from, mut to) = (vec![0; room], vec![0; room]);
        let mut data = vec![CUgraphEdgeData { kind: 9, ..CUgraphEdgeData::default() }; room];
        // SAFETY: as above, with room for as many as said.
        let code = unsafe {
            if form % 8 < 4 {
                self.driver.graph_edges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count)
            } else {
                let data = data.as_mut_ptr();
                self.driver.graph_edges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data, &mut count)
            }
        };
        if self.code(code) {
            self.tell(format_args!(" count {count}"));
            self.tell_nodes(&from);
            self.tell_nodes(&to);
        }
        Some(())
    }

    fn describe(&mut self, a: u8, b: u8) -> Option<()> {
        let node = pick(&self.nodes(self.graph_at(a)?.handle), b)?;
        let mut kind = 99;
        // SAFETY: a live node and valid pointers, here and below.
        let code = unsafe { self.driver.node_type(node, &mut kind) };
        self.code(code);
        self.tell(format_args!(" kind {kind}"));
        for dependents in [false, true] {
            let (mut nodes, mut count) = (vec![0; 32], 32);
            // SAFETY: as above.
            let code = unsafe {
                if dependents {
                    self.driver.node_dependents(node, nodes.as_mut_ptr(), &mut count)
                } else {
                    self.driver.node_dependencies(node, nodes.as_mut_ptr(), &mut count)
                }
            };
            self.code(code);
            nodes.truncate(count);
            self.tell_nodes(&nodes);
        }
        match kind {
            CU_GRAPH_NODE_TYPE_KERNEL => {
                let mut arguments = self.kernel(0, 0);
                let mut pointers = arguments.pointers();
                let mut parameters = arguments.node(&mut pointers);
                // SAFETY: as above.
                let code = unsafe { self.driver.node_kernel(node, &mut parameters) };
                if self.code(code) {
                    // SAFETY: every kernel of these has a parameter of eight bytes first.
                    let first = unsafe { (*parameters.kernel_params).cast::<u64>().read_unaligned() };
                    let first = first.checked_sub(self.memory).map_or(first, |at| at / 4);
                    let function = parameters.func.addr();
                    let which =
                        [self.count, self.copy, self.spin].iter().position(|known| *known == function);
                    let grid = parameters.grid_dim;
                    self.tell(format_args!(" kernel {which:?} grid {grid:?} first {first}"));
                }
                let mut value = CUlaunchAttributeValue::default();
                // SAFETY: as above.
                let code = unsafe {
                    self.driver.node_kernel_attribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &mut value)
                };
                self.code(code);
                self.tell(format_args!(" priority {}", value.as_i32()));
            }
            CU_GRAPH_NODE_TYPE_MEMSET => {
                let mut fill = self.fill(0);
                // SAFETY: as above.
                let code = unsafe { self.driver.node_fill(node, &mut fill) };
                if self.code(code) {
                    self.tell(format_args!(
                        " value {} width {} height {}",
                        fill.value, fill.width, fill.height
                    ));
                }
            }
            CU_GRAPH_NODE_TYPE_GRAPH => {
                let mut child = 0;
                // SAFETY: as above.
                let code = unsafe { self.driver.node_child(node, &mut child) };
                if self.code(code) {
                    let nodes = self.nodes(child).len();
                    self.tell(format_args!(" nodes {nodes}"));
                }
            }
            _ => {}
        }
        Some(())
    }

    fn instantiate(&mut self, a: u8, b: u8, c: u8, d: u8) -> Option<()> {
        let (graph, _) = self.free_graph(b)?;
        let slot = usize::from(a) % self.executables.len();
        if let Some(old) = self.executables[slot] {
            self.free_allocations()?;
            self.executables[slot] = None;
            // SAFETY: a live executable, which nothing names any more.
            let code = unsafe { self.driver.exec_destroy(old) };
            self.tell(format_args!(" gone {code}"));
            if code != 0 {
                // A capture forbids it.
                self.executables[slot] = Some(old);
                return Some(());
            }
        }
        let flags = match c % 12 {
            8 => CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
            9 => CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            10 => CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
            7 => CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            // A flag that there is not.
            11 if c > 128 => 1 << 20,
            _ => 0,
        };
        let (mut handle, mut node) = (0, 0);
        // SAFETY: a live graph and valid pointers.
        let code = unsafe {
            match d % 3 {
                0 => {
                    let mut log = [7; 64];
                    let (to, bytes) = (log.as_mut_ptr(), log.len());
                    let code = match d / 3 % 4 {
                        3 => self.driver.instantiate_v1(&mut handle, graph, &mut node, to, bytes),
                        _ => self.driver.instantiate(&mut handle, graph, &mut node, to, bytes),
                    };
                    self.tell_nodes(&[node]);
                    code
                }
                1 => self.driver.instantiate_with_flags(&mut handle, graph, flags),
                _ => {
                    let mut parameters = CUDA_GRAPH_INSTANTIATE_PARAMS {
                        flags,
                        upload_stream: CUstream::from_addr(self.stream(d / 3).1),
                        err_node_out: CUgraphNode::NULL,
                        result_out: 99,
                    };
                    let code = self.driver.instantiate_with_params(&mut handle, graph, &mut parameters);
                    self.tell(format_args!(" result {}", parameters.result_out));
                    self.tell_nodes(&[parameters.err_node_out.addr()]);
                    code
                }
            }
        };
        if self.code(code) {
            self.executables[slot] = Some(handle);
        }
        Some(())
    }

    fn update(&mut self, a: u8, b: u8, form: u8) -> Option<()> {
        let executable = self.executable(a)?;
        let (graph, _) = self.free_graph(b)?;
        // SAFETY: live handles and valid pointers.
        unsafe {
            if form % 3 == 2 {
                let (mut node, mut result) = (0, 99);
                let code = self.driver.exec_update(executable, graph, &mut node, &mut result);
                self.code(code);
                self.tell(format_args!(" result {result}"));
                self.tell_nodes(&[node]);
            } else {
                let mut info = CUgraphExecUpdateResultInfo {
                    result: 99,
                    error_node: CUgraphNode::NULL,
                    error_from_node: CUgraphNode::NULL,
                };
                let code = self.driver.exec_update_v2(executable, graph, &mut info);
                self.code(code);
                self.tell(format_args!(" result {}", info.result));
                self.tell_nodes(&[info.error_node.addr(), info.error_from_node.addr()]);
            }
        }
        Some(())
    }

    /// Frees what was allocated, before an executable ends: where a graph's memory outlives its
    /// executable, the driver reads records that it has freed (`docs/hardware.md`). Not during a
    /// capture, which that would spoil.
    fn free_allocations(&mut self) -> Option<()> {
        if self.allocations == [0; 4] {
            return Some(());
        }
        if self.is_capturing() {
            return None;
        }
        self.has_allocated = true;
        for address in std::mem::take(&mut self.allocations).into_iter().filter(|address| *address != 0) {
            // SAFETY: the driver checks the address.
            let code = unsafe { self.driver.memory_free(address) };
            self.code(code);
        }
        Some(())
    }

    fn is_capturing(&self) -> bool {
        let capturing = |stream: &Handle| {
            let mut status = 0;
            // SAFETY: a live stream. The legacy one is not among them: asking it would spoil the
            // captures of others.
            unsafe { self.driver.capture_status(*stream, &mut status) != 0 || status != 0 }
        };
        self.streams[..4].iter().chain([&self.streams[5]]).any(capturing)
    }

    /// Tells what is in memory, if nothing is captured, which reading would spoil.
    fn check(&mut self) {
        if self.is_capturing() {
            self.tell(format_args!(" capturing"));
            return;
        }
        // SAFETY: room for all the words that are read.
        let code = unsafe { self.driver.context_synchronize() };
        if !self.code(code) {
            return;
        }
        let mut words = [0u32; 192];
        // SAFETY: as above.
        let code =
            unsafe { self.driver.copy_to_host(words.as_mut_ptr().cast(), self.memory, 4 * words.len()) };
        self.code(code);
        let counters: Vec<_> = words[..16].to_vec();
        let cells: Vec<_> = words[CELLS as usize..WORDS as usize].chunks(4).map(|cell| cell[0]).collect();
        let written: Vec<_> = words[WORDS as usize..][..8].to_vec();
        // SAFETY: the driver's memory of as many words, which nothing writes to after the
        // synchronisation.
        let on_host =
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u32>(self.on_host), 32) };
        let on_host: Vec<_> = on_host.chunks(4).map(|cell| cell[0]).collect();
        let called: Vec<_> = CALLED.iter().map(|calls| calls.load(Ordering::Relaxed)).collect();
        self.tell(format_args!(" {counters:?} {cells:?} {written:?} {on_host:?} {called:?}"));
    }

    // ---- sequences ----

    fn set_up(&mut self) {
        for event in &mut self.events {
            // SAFETY: a valid pointer.
            let code = unsafe { self.driver.event_create(event, 0) };
            assert_eq!(code, 0, "cuEventCreate");
        }
        // SAFETY: the memory up to the sources, and the host's.
        unsafe {
            let code = self.driver.fill(self.memory, 0, SOURCES as usize);
            assert_eq!(code, 0, "cuMemsetD32");
            assert_eq!(self.driver.context_synchronize(), 0, "cuCtxSynchronize");
            std::ptr::with_exposed_provenance_mut::<u8>(self.on_host).write_bytes(0, 4 * 64);
        }
        for calls in &CALLED {
            calls.store(0, Ordering::Relaxed);
        }
        ENDED.store(0, Ordering::Relaxed);
        (self.graphs_made, self.objects_made) = (0, 0);
    }

    /// Ends everything after the captures have been ended, and tells what is left. Whether the
    /// driver still works.
    fn tear_down(&mut self) -> bool {
        self.into.clear();
        self.tell(format_args!("end"));
        self.check();
        // SAFETY: no arguments.
        let is_sound = unsafe { self.driver.context_synchronize() } == 0;
        let _ = self.free_allocations();
        for slot in 0..self.executables.len() {
            if let Some(executable) = self.executables[slot].take() {
                // SAFETY: a live executable, which nothing names any more.
                let code = unsafe { self.driver.exec_destroy(executable) };
                self.code(code);
            }
        }
        for slot in 0..self.graphs.len() {
            self.let_go(slot);
        }
        for graph in std::mem::take(&mut self.parked) {
            // SAFETY: a live graph, which nothing names any more.
            let code = unsafe { self.driver.graph_destroy(graph.handle) };
            self.tell(format_args!(" gone {code}"));
        }
        if std::mem::take(&mut self.has_allocated) {
            // SAFETY: no graph is left whose memory it could be.
            let code = unsafe { self.driver.graph_memory_trim(0) };
            self.code(code);
        }
        for object in &mut self.objects {
            if let Some(object) = object.take() {
                // SAFETY: a live object, of which this is the program's only reference.
                unsafe { self.driver.object_release(object.handle, 1) };
            }
        }
        for event in self.events {
            // SAFETY: a live event, which no graph names any more.
            let code = unsafe { self.driver.event_destroy(event) };
            self.code(code);
        }
        // They end on a thread of the driver's.
        let made = self.objects_made;
        let deadline = Instant::now() + Duration::from_secs(5);
        while ENDED.load(Ordering::Relaxed) < made && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
        self.tell(format_args!(" objects {made} ended {}\n", ENDED.load(Ordering::Relaxed)));
        is_sound
    }
}

fn make_stream(driver: &Driver, number: usize, stream: &mut Handle) -> Code {
    // SAFETY: a valid pointer.
    unsafe {
        match number {
            // One that the legacy stream waits for.
            2 => driver.stream_create(stream, 0),
            3 => driver.stream_create_with_priority(stream, CU_STREAM_NON_BLOCKING, -1),
            _ => driver.stream_create(stream, CU_STREAM_NON_BLOCKING),
        }
    }
}

/// Carries sequences out, one after another, each behind a line with its name.
pub fn run(
    sequences: impl Iterator<Item = (String, Vec<Operation>)>,
    to: &mut dyn Write,
) -> std::io::Result<()> {
    let program = Arc::new(Mutex::new(Program::new()));
    let (ask, asked) = mpsc::channel::<Operation>();
    let (answer, answered) = mpsc::channel::<()>();
    let beside = Arc::clone(&program);
    let other = std::thread::spawn(move || {
        let lock = || beside.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let program = lock();
            // SAFETY: a live context.
            assert_eq!(unsafe { program.driver.context_set(program.context) }, 0, "cuCtxSetCurrent");
        }
        for operation in asked {
            lock().step(&operation);
            if answer.send(()).is_err() {
                return;
            }
        }
    });
    let step = |operation: &Operation| {
        if operation.thread == 0 {
            program.lock().unwrap_or_else(PoisonError::into_inner).step(operation);
        } else if ask.send(*operation).is_ok() {
            // The other thread lives until its channel closes.
            let _ = answered.recv();
        }
    };
    let take = || std::mem::take(&mut program.lock().unwrap_or_else(PoisonError::into_inner).trace);
    for (name, operations) in sequences {
        writeln!(to, "= {name}")?;
        program.lock().unwrap_or_else(PoisonError::into_inner).set_up();
        for operation in &operations {
            // Told before, so that the last line names what a program died of.
            write!(to, "{operation} ->")?;
            to.flush()?;
            step(operation);
            writeln!(to, "{}", take())?;
        }
        // Captures are ended by the thread that began them, whichever it was.
        for stream in 0..6 {
            for thread in [0, 1] {
                step(&Operation { kind: Kind::End, thread, per_thread: false, with: [stream, 5, 0, 0] });
            }
        }
        for thread in [0, 1] {
            step(&Operation { kind: Kind::ExchangeMode, thread, per_thread: false, with: [0; 4] });
        }
        take();
        let is_sound = program.lock().unwrap_or_else(PoisonError::into_inner).tear_down();
        write!(to, "{}", take())?;
        if !is_sound {
            // Nothing works in this process any more.
            break;
        }
    }
    to.flush()?;
    drop(ask);
    // It ends when the last sender is dropped.
    let _ = other.join();
    Ok(())
}
