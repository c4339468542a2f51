//! The rig that launches the kernels of a batch: streams, graphs and counters, created once.

use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};

use partita_abi::attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
use partita_abi::kernels::{self, COUNT};
use partita_abi::types::{
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CUlaunchAttribute, CUlaunchAttributeValue, CUlaunchConfig,
    CUstream,
};
use partita_core::{Topology, TpcSet};

use super::chance::Chance;
use super::check::Expected;
use super::graph::{CountGraph, Node};
use super::routes::{LAUNCHES_PER_MASK_MAX, Route, Routes};
use crate::error::Error;
use crate::gpu::{Buffer, Gpu};
use crate::probe::runs_clusters;
use crate::stream::{Stream, StreamRef};

/// Streams of each priority.
const STREAMS_EACH: usize = 2;
/// Cooperative blocks of 32 threads that every SM holds at once: half of the smallest SM's number.
const COOPERATIVE_BLOCKS_PER_SM: u32 = 8;
/// Nodes of a graph, and the threads of their blocks.
const NODE_THREADS: [u32; 2] = [32, 128];
/// The largest cluster of any device; if a driver does not report its own, the largest portable
/// size is used.
const CLUSTER_BLOCKS_MAX: u32 = 16;
const CLUSTER_BLOCKS_PORTABLE: u32 = 8;

/// How the blocks of a mask are divided among its launches. A plain launch runs the remainder, and
/// what a route has no room for.
#[derive(Debug, Clone, Copy)]
struct Portions {
    blocks: u32,
    node: u32,
    cluster: u32,
    cooperative: u32,
    large: u32,
}

impl Portions {
    fn of(blocks: u64) -> Self {
        let part = |divisor: u64| (blocks / divisor).clamp(1, i32::MAX as u64) as u32;
        Self { blocks: part(1), node: part(8), cluster: part(8), cooperative: part(16), large: part(16) }
    }
}

/// Streams, graphs and counters.
pub(super) struct Rig<'g, 'a> {
    // The drop order: running work first, its counters last.
    graphs: Vec<CountGraph<'g>>,
    streams: Vec<(Route, Stream<'g>)>,
    counters: Buffer<'a>,
    gpu: &'g Gpu<'a>,
    topology: &'g Topology,
    gpcs_proved: bool,
    module: *mut c_void,
    function: *mut c_void,
    cluster_blocks_max: u32,
    portions: Portions,
    slots: u32,
    /// Masks since the counters were cleared.
    masks: u32,
    last_stream: usize,
    routes: Routes,
}

impl<'g, 'a> Rig<'g, 'a> {
    /// With counters for `slots` launches, for masks of about `blocks` blocks.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(
        gpu: &'g Gpu<'a>,
        topology: &'g Topology,
        gpcs_proved: bool,
        slots: u32,
        blocks: u64,
        routes: Routes,
    ) -> Result<Self, Error> {
        let cuda = gpu.cuda();
        let counters = gpu.alloc(slots as usize * Self::slot_bytes(topology))?;
        let (mut module, mut function) = (core::ptr::null_mut(), core::ptr::null_mut());
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: valid pointers, in the GPU's context, which is current.
        unsafe {
            cuda.module_load_data(&mut module, kernels::PTX_MODULE.as_ptr().cast())?;
            cuda.module_get_function(&mut function, module, COUNT.as_ptr())?;
            cuda.ctx_get_stream_priority_range(&mut least, &mut greatest)?;
        }
        let mut streams = Vec::new();
        let mut kinds =
            vec![(Route::LowPriority, least), (Route::Stream, 0), (Route::HighPriority, greatest)];
        kinds.retain(|(route, _)| routes.contains(*route));
        if kinds.is_empty() {
            kinds.push((Route::Stream, 0));
        }
        for (route, priority) in kinds {
            for _ in 0..STREAMS_EACH {
                streams.push((route, Stream::with_priority(cuda, priority)?));
            }
        }
        let mut rig = Self {
            graphs: Vec::new(),
            streams,
            counters,
            gpu,
            topology,
            gpcs_proved,
            module,
            function,
            cluster_blocks_max: 1,
            portions: Portions::of(blocks),
            slots,
            masks: 0,
            last_stream: 0,
            routes,
        };
        if routes.contains(Route::Graph) {
            rig.make_graphs()?;
        }
        rig.cluster_blocks_max = rig.cluster_limit();
        Ok(rig)
    }

    /// The board.
    pub fn topology(&self) -> &'g Topology {
        self.topology
    }

    fn slot_bytes(topology: &Topology) -> usize {
        (topology.sm_count() as usize + 1) * 4
    }

    fn counter(&self, slot: u32) -> u64 {
        self.counters.address() + u64::from(slot) * Self::slot_bytes(self.topology) as u64
    }

    /// One graph for each mask of a batch; none if the driver's graphs cannot be updated.
    fn make_graphs(&mut self) -> Result<(), Error> {
        for mask in 0..self.slots / LAUNCHES_PER_MASK_MAX {
            let nodes: Vec<Node> = (0u32..)
                .zip(NODE_THREADS)
                .map(|(node, threads)| Node {
                    blocks: self.portions.node,
                    threads,
                    counters: self.counter(mask * LAUNCHES_PER_MASK_MAX + node),
                    sms: self.topology.sm_count(),
                })
                .collect();
            // SAFETY: the kernel just loaded; the counters outlive the graphs.
            match unsafe { CountGraph::new(self.gpu.cuda(), self.function, &nodes) } {
                Ok(graph) => self.graphs.push(graph),
                Err(Error::MissingSymbol(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The largest cluster that the device launches; 1 without clusters.
    fn cluster_limit(&self) -> u32 {
        if !runs_clusters(self.gpu) {
            return 1;
        }
        let config = self.config(self.streams[0].1.as_ref(), CLUSTER_BLOCKS_MAX, 32);
        let mut blocks: c_int = 0;
        // SAFETY: the kernel just loaded; valid pointers.
        let result = unsafe {
            let allow = CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            self.gpu.cuda().func_set_attribute(self.function, allow, 1).and_then(|()| {
                self.gpu.cuda().occupancy_max_potential_cluster_size(&mut blocks, self.function, &config)
            })
        };
        match (result, u32::try_from(blocks)) {
            (Ok(()), Ok(blocks)) if blocks > 0 => blocks.min(CLUSTER_BLOCKS_MAX),
            _ => CLUSTER_BLOCKS_PORTABLE,
        }
    }

    fn config(&self, stream: StreamRef<'_>, blocks: u32, threads: u32) -> CUlaunchConfig {
        CUlaunchConfig {
            grid_dim_x: blocks,
            grid_dim_y: 1,
            grid_dim_z: 1,
            block_dim_x: threads,
            block_dim_y: 1,
            block_dim_z: 1,
            shared_mem_bytes: 0,
            stream: CUstream(stream.handle()),
            attrs: core::ptr::null_mut(),
            num_attrs: 0,
        }
    }

    /// Clears all counters, once everything launched has ended.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.masks = 0;
        self.counters.fill(0)
    }

    /// The counts, launch by launch: one number for each SM, and one more.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn counts(&self) -> Result<Vec<u32>, Error> {
        let bytes = self.counters.read()?;
        Ok(bytes
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect())
    }

    /// Whether the last launch is still running.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn is_busy(&self) -> Result<bool, Error> {
        let stream = self.streams[self.last_stream].1.as_ref();
        Ok(!self.gpu.is_idle(stream)?)
    }

    /// Waits for everything launched.
    ///
    /// # Errors
    /// [`Error::Hang`]; those of the driver.
    pub fn wait(&self, deadline_ms: u64) -> Result<(), Error> {
        self.streams.iter().try_for_each(|(_, stream)| {
            self.gpu.wait_on(stream.as_ref(), "a batch of masked launches", deadline_ms)
        })
    }

    /// Launches by every route that the device offers and that fits into the set, with the current
    /// mask, which enables `set`. Appends each launch to `expected`, with the number of its
    /// counters.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn launch(
        &mut self,
        mask: u32,
        set: TpcSet,
        chance: &mut Chance,
        expected: &mut Vec<(u32, Expected)>,
    ) -> Result<(), Error> {
        let place = self.masks;
        self.masks += 1;
        let first = place * LAUNCHES_PER_MASK_MAX;
        let mut left = self.portions.blocks;
        let mut note = |slot: u32, route, grid| {
            left = left.saturating_sub(grid);
            expected.push((slot, Expected { mask, set, route, grid }));
        };
        let portions = self.portions;

        let stream = self.pick(chance);
        if let Some(graph) = self.graphs.get_mut(place as usize) {
            graph.launch(self.streams[stream].1.as_ref())?;
            for node in 0..NODE_THREADS.len() as u32 {
                note(first + node, Route::Graph, portions.node);
            }
        }
        let mut slot = first + NODE_THREADS.len() as u32;
        let mut next = || {
            slot += 1;
            slot - 1
        };

        if self.routes.contains(Route::LargeBlocks) {
            let stream = self.pick(chance);
            let (threads, at) = (64 << chance.below(5), next());
            self.plain(stream, portions.large, threads, at)?;
            note(at, Route::LargeBlocks, portions.large);
        }

        let sizes = [2, 4, 8, 16].into_iter().filter(|&size| size <= self.cluster_room(set)).count();
        if sizes > 0 && self.routes.contains(Route::Cluster) {
            let size = 2 << chance.below(sizes as u32);
            let (stream, at) = (self.pick(chance), next());
            let grid = portions.cluster.next_multiple_of(size);
            self.clusters(stream, grid, size, at)?;
            note(at, Route::Cluster, grid);
        }

        let most = set.len() * self.topology.sms_per_tpc() * COOPERATIVE_BLOCKS_PER_SM;
        if self.routes.contains(Route::Cooperative) {
            let (stream, grid, at) = (self.pick(chance), portions.cooperative.min(most), next());
            self.cooperative(stream, grid, at)?;
            note(at, Route::Cooperative, grid);
        }

        let (stream, grid, at) = (self.pick(chance), left.max(1), next());
        self.plain(stream, grid, 32, at)?;
        expected.push((at, Expected { mask, set, route: self.streams[stream].0, grid }));
        Ok(())
    }

    /// A random stream.
    fn pick(&mut self, chance: &mut Chance) -> usize {
        self.last_stream = chance.below(self.streams.len() as u32) as usize;
        self.last_stream
    }

    /// Blocks of the largest cluster that starts inside `set`: a larger one would hang.
    fn cluster_room(&self, set: TpcSet) -> u32 {
        let room = match self.gpcs_proved {
            true => self.topology.max_cluster_sms(&set),
            // A TPC is in one GPC, whatever the others are.
            false => self.topology.sms_per_tpc(),
        };
        room.min(self.cluster_blocks_max)
    }

    fn plain(&self, stream: usize, blocks: u32, threads: u32, slot: u32) -> Result<(), Error> {
        let (mut counters, mut sms) = (self.counter(slot), self.topology.sm_count());
        let mut arguments = [(&raw mut counters).cast::<c_void>(), (&raw mut sms).cast()];
        let (stream, none) = (self.streams[stream].1.as_ref().handle(), core::ptr::null_mut());
        let arguments = arguments.as_mut_ptr();
        // SAFETY: the kernel and its two parameters, which the driver copies; the slot has room for
        // a count of every SM and one more.
        unsafe {
            self.gpu.cuda().launch_kernel(
                self.function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                arguments,
                none,
            )
        }
    }

    fn clusters(&self, stream: usize, blocks: u32, size: u32, slot: u32) -> Result<(), Error> {
        let (mut counters, mut sms) = (self.counter(slot), self.topology.sm_count());
        let mut arguments = [(&raw mut counters).cast::<c_void>(), (&raw mut sms).cast()];
        let mut attributes = [CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: CUlaunchAttributeValue::from_dim3([size, 1, 1]),
        }];
        let mut config = self.config(self.streams[stream].1.as_ref(), blocks, 32);
        config.attrs = attributes.as_mut_ptr();
        config.num_attrs = 1;
        let (arguments, none) = (arguments.as_mut_ptr(), core::ptr::null_mut());
        // SAFETY: as for plain launches; the attributes live through the call.
        unsafe { self.gpu.cuda().launch_kernel_ex(&config, self.function, arguments, none) }
    }

    fn cooperative(&self, stream: usize, blocks: u32, slot: u32) -> Result<(), Error> {
        let (mut counters, mut sms) = (self.counter(slot), self.topology.sm_count());
        let mut arguments = [(&raw mut counters).cast::<c_void>(), (&raw mut sms).cast()];
        let stream = self.streams[stream].1.as_ref().handle();
        let arguments = arguments.as_mut_ptr();
        // SAFETY: as for plain launches.
        unsafe {
            self.gpu.cuda().launch_cooperative_kernel(
                self.function,
                blocks,
                1,
                1,
                32,
                1,
                1,
                0,
                stream,
                arguments,
            )
        }
    }
}

impl Drop for Rig<'_, '_> {
    fn drop(&mut self) {
        self.graphs.clear();
        // SAFETY: loaded here and unloaded once. After a hang the process must end, and the owner
        // leaks the rig.
        let _ = unsafe { self.gpu.cuda().module_unload(self.module) };
    }
}
