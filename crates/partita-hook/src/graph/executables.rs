//! The executable graphs of this process, so that a changed mask reaches them.
//!
//! A kernel in an executable graph keeps the mask with which it was uploaded. The
//! driver calls the launch callback again for a kernel node that was disabled and
//! enabled (measured, `docs/hardware.md`), but only through a node of the graph
//! from which the executable was made: such a graph outlives its end by the
//! program until its last executable ends.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use partita_ledger::GPUS_MAX;
use partita_ledger::mutex::{Guard, Mutex};

use crate::gate::inside::Waits;
use crate::graph::again::Again;
use crate::graph::edits;
use crate::launch::carried::Carried;
use crate::launch::misfit::{Needs, Shape};
use crate::sys::fork::{in_child, renew};

/// A kernel node and what it asks for, where that can be too much.
#[derive(Debug, Clone, Copy)]
pub struct KernelNode {
    /// The `CUgraphNode`, of the graph or of one embedded in it.
    pub node: usize,
    /// What it needs beside free SMs.
    pub needs: Needs,
    /// What it launches.
    pub shape: Shape,
    /// Whether it does not fit the partition, and is to run on the whole GPU.
    pub misfit: bool,
    /// Whether the hook has disabled it and not yet enabled it again.
    pub owed: bool,
}

impl KernelNode {
    /// Whether a small enough partition could not run it.
    pub fn is_demanding(&self) -> bool {
        !self.needs.nothing()
    }
}

/// What the uploaded descriptors of an executable's kernels carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Never uploaded: the next launch calls back for every kernel.
    Fresh,
    /// These disable words; none in the kernels that do not fit the partition, if the tenant may
    /// widen them.
    Masked([u32; 8]),
    /// Unknown: the limits changed during the upload, or it failed.
    Unknown,
}

/// One executable graph.
#[derive(Debug)]
pub struct Executable {
    /// The graph that it was made from.
    graph: usize,
    /// The GPU that its kernels run on.
    pub gpu: u8,
    /// Its kernels.
    pub kernels: Vec<KernelNode>,
    /// Whether the hook knows what each of them launches.
    pub complete: bool,
    /// What their uploaded descriptors carry.
    pub armed: Armed,
    /// Whether some of them carry no mask, because they do not fit the partition.
    pub wide: bool,
    /// What each of its descriptors carries. Shared with the call that is uploading them.
    pub carried: Arc<Carried>,
    /// The waits inside, if it has any.
    pub waits: Option<Waits>,
    /// How many of its kernels run at once, at most.
    pub width: u32,
    /// What is launched in its place, after a change of the limits.
    pub again: Again,
    /// The epoch of the limits at which it, or the one in its place, needed nothing.
    pub ready: Option<u64>,
}

impl Executable {
    /// An executable made from `graph`, for one GPU.
    pub fn new(graph: usize, gpu: u8, kernels: Vec<KernelNode>, armed: Armed, carried: Arc<Carried>) -> Self {
        Self {
            graph,
            gpu,
            kernels,
            complete: true,
            armed,
            wide: false,
            carried,
            waits: None,
            width: 1,
            again: Again::default(),
            ready: None,
        }
    }

    /// The graph that it was made from.
    pub fn graph(&self) -> usize {
        self.graph
    }
}

/// A graph that executables were made from.
#[derive(Debug, Default)]
struct Source {
    executables: u32,
    /// The count of changes of graphs when the program destroyed it.
    destroyed: Option<u64>,
}

/// Every executable graph of the process, and the graphs that they need.
pub struct Executables {
    executables: Option<HashMap<usize, Executable>>,
    sources: Option<HashMap<usize, Source>>,
}

/// What the program's destroying a graph comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destroy {
    /// The driver destroys it.
    Now,
    /// It waits for its executables.
    Later,
    /// It was destroyed before.
    Twice,
}

static EXECUTABLES: Mutex<Executables> = Mutex::new(Executables::new());

// Forgets the parent's.
in_child! {
    renew(&EXECUTABLES, Executables::new());
}

/// What the driver launches and changes for the program's handle.
pub fn real(executable: *mut c_void) -> *mut c_void {
    lock().get(executable as usize).map_or(executable, |of| of.again.real(executable))
}

/// The process's executable graphs, locked.
pub fn lock() -> Guard<'static, Executables> {
    EXECUTABLES.lock()
}

impl Executables {
    /// None.
    pub const fn new() -> Self {
        Self { executables: None, sources: None }
    }

    /// Records a new executable. Returns a graph that is now to be destroyed: an older executable
    /// of the same address was destroyed along a way that the hook does not see, with its context
    /// for one.
    #[must_use]
    pub fn insert(&mut self, handle: usize, executable: Executable) -> Option<usize> {
        self.sources.get_or_insert_default().entry(executable.graph).or_default().executables += 1;
        let older = self.executables.get_or_insert_default().insert(handle, executable)?;
        self.let_go(older.graph)
    }

    /// An executable.
    pub fn get(&mut self, executable: usize) -> Option<&mut Executable> {
        self.executables.as_mut()?.get_mut(&executable)
    }

    /// Forgets an executable. Returns it, and the graph that is now to be destroyed, if any.
    pub fn remove(&mut self, executable: usize) -> Option<(Executable, Option<usize>)> {
        let removed = self.executables.as_mut()?.remove(&executable)?;
        let graph = self.let_go(removed.graph);
        Some((removed, graph))
    }

    /// The count of changes of graphs when the program destroyed this one, if it has.
    pub fn destroyed(&self, graph: usize) -> Option<u64> {
        self.sources.as_ref()?.get(&graph)?.destroyed
    }

    fn let_go(&mut self, graph: usize) -> Option<usize> {
        let sources = self.sources.as_mut()?;
        let source = sources.get_mut(&graph)?;
        source.executables = source.executables.saturating_sub(1);
        if source.executables > 0 {
            return None;
        }
        sources.remove(&graph)?.destroyed.map(|_| graph)
    }

    /// The program destroys a graph.
    pub fn destroy(&mut self, graph: usize) -> Destroy {
        match self.sources.as_mut().and_then(|sources| sources.get_mut(&graph)) {
            None => Destroy::Now,
            Some(source) if source.destroyed.is_some() => Destroy::Twice,
            Some(source) => {
                source.destroyed = Some(edits::count());
                Destroy::Later
            }
        }
    }
}

/// Executables whose kernels carry the mask of their GPU's limits at the epoch in
/// [`EPOCHS`]: one word each, its address above its width and the GPU's index. A collision only
/// costs a look at the table.
static READY: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];
static EPOCHS: [AtomicU64; GPUS_MAX] = [const { AtomicU64::new(u64::MAX) }; GPUS_MAX];

fn ready(executable: usize) -> &'static AtomicU64 {
    &READY[(executable >> 4) % READY.len()]
}

/// The largest width that a word can hold. Wider ones are stored as this one, which is more than a
/// launch waits for.
const WIDTH_MAX: u32 = 0xff;

/// The index of the GPU of an executable that needs nothing before it is launched, and its width,
/// if the limits there are of the epoch that `epoch_of` tells. Three loads.
#[inline]
pub fn ready_on(executable: usize, epoch_of: impl FnOnce(usize) -> Option<u64>) -> Option<(usize, u32)> {
    let entry = ready(executable);
    let found = entry.load(Ordering::Relaxed);
    let gpu = (found & 0xff) as usize;
    let epoch = EPOCHS.get(gpu)?.load(Ordering::Acquire);
    // Again, because an entry of an earlier epoch is gone before the next epoch appears.
    let stands = found >> 16 == executable as u64 && entry.load(Ordering::Acquire) == found;
    (stands && epoch_of(gpu) == Some(epoch)).then_some((gpu, (found >> 8 & 0xff) as u32))
}

/// Notes that it needs nothing. Called with the table locked, so that no other
/// thread moves an epoch meanwhile.
pub fn note_ready(executable: usize, gpu: u8, width: u32, epoch: u64) {
    let Some(of_gpu) = EPOCHS.get(usize::from(gpu)) else { return };
    if of_gpu.load(Ordering::Relaxed) != epoch {
        // No reader may find an old entry under the new epoch: none is left when it appears.
        of_gpu.store(u64::MAX, Ordering::Release);
        let is_of_gpu = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) & 0xff == u64::from(gpu);
        READY.iter().filter(is_of_gpu).for_each(|entry| entry.store(0, Ordering::Release));
        of_gpu.store(epoch, Ordering::Release);
    }
    let width = u64::from(width.min(WIDTH_MAX));
    ready(executable).store((executable as u64) << 16 | width << 8 | u64::from(gpu), Ordering::Release);
}

/// Has the next launch look at the table.
pub fn forget_ready(executable: usize) {
    let entry = ready(executable);
    let found = entry.load(Ordering::Acquire);
    if found >> 16 == executable as u64 {
        let _ = entry.compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
