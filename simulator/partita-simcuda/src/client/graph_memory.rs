//! Memory nodes of graphs, and objects of the program that live as long as a graph.

use core::ffi::c_void;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::check_device;
use super::graph::{self, NodeKind};
use super::graph_exec::Flat;
use super::graph_kind::handles;
use super::object::Registry;
use super::pool;
use super::runtime::{Runtime, lock, runtime, runtime_at};
use super::{get, put};

/// Memory that a node allocates: there from the node on, at an address that never changes, until
/// the node's graph and its executables are gone.
#[derive(Debug)]
pub struct GraphMemory {
    /// Its address.
    pub address: u64,
}

/// What graphs own.
#[derive(Debug)]
struct Owned {
    memory: Weak<GraphMemory>,
    /// The same from a launch that allocates it to its free.
    held: Option<Arc<GraphMemory>>,
}

/// By address.
static OWNED: Mutex<BTreeMap<u64, Owned>> = Mutex::new(BTreeMap::new());

fn is_allocated(address: u64) -> bool {
    lock(&OWNED).get(&address).is_some_and(|owned| owned.held.is_some())
}

/// Frees what the launch of a graph has allocated; `None` for memory that no graph owns.
pub fn free(address: u64) -> Option<Result<(), CuResult>> {
    // What it held ends without the lock.
    let held = lock(&OWNED).get_mut(&address)?.held.take();
    Some(held.map(drop).ok_or(CuResult::INVALID_VALUE))
}

/// Whether a graph can have a node that frees an address: once, and only memory of graphs.
///
/// # Errors
/// `INVALID_VALUE`.
pub fn check_free(owner: usize, address: u64) -> Result<(), CuResult> {
    let is_there = lock(&OWNED).get(&address).is_some_and(|owned| owned.memory.strong_count() > 0);
    let nodes = lock(&graph::graph(owner)?.nodes).clone();
    let frees = |handle: &usize| {
        graph::node(*handle)
            .is_ok_and(|node| matches!(*lock(&node.kind), NodeKind::Free(freed) if freed == address))
    };
    if is_there && !nodes.iter().any(frees) { Ok(()) } else { Err(CuResult::INVALID_VALUE) }
}

/// Allocates and frees what a launch does. `frees_first`: what the last launch left is freed
/// before.
///
/// # Errors
/// `INVALID_VALUE` for memory that is allocated already, and for a free of another graph's memory
/// that is not.
pub(super) fn launch(flat: &Flat, frees_first: bool) -> Result<(), CuResult> {
    let runs = || flat.nodes.iter().map(|node| &node.kind);
    let own: BTreeMap<u64, &Arc<GraphMemory>> = runs()
        .filter_map(|kind| match kind {
            NodeKind::Alloc(memory) => Some((memory.address, memory)),
            _ => None,
        })
        .collect();
    let freed: Vec<u64> = runs()
        .filter_map(|kind| match kind {
            NodeKind::Free(address) => Some(*address),
            _ => None,
        })
        .collect();
    let is_there = |address: &u64| is_allocated(*address);
    if !frees_first && own.keys().any(is_there) {
        return Err(CuResult::INVALID_VALUE);
    }
    if freed.iter().any(|address| !own.contains_key(address) && !is_allocated(*address)) {
        return Err(CuResult::INVALID_VALUE);
    }
    for address in &freed {
        let _ = free(*address);
    }
    for (address, memory) in own.into_iter().filter(|(address, _)| !freed.contains(address)) {
        if let Some(owned) = lock(&OWNED).get_mut(&address) {
            owned.held = Some(Arc::clone(memory));
        }
    }
    Ok(())
}

impl GraphMemory {
    /// Allocates from what the device keeps for graphs.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`.
    pub fn new(runtime: &'static Runtime, bytes: u64) -> Result<Arc<Self>, CuResult> {
        let made = Arc::new(Self { address: pool::allocate(bytes, pool::of_graphs(runtime)?)? });
        let owned = Owned { memory: Arc::downgrade(&made), held: None };
        lock(&OWNED).insert(made.address, owned);
        Ok(made)
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        lock(&OWNED).remove(&self.address);
        if let Ok(runtime) = runtime_at(self.address) {
            let _ = super::memory::free(runtime, self.address);
        }
    }
}

/// Something of the program's with a count and a function that ends it.
#[derive(Debug)]
struct UserObject {
    count: Mutex<u32>,
    destroy: CUhostFn,
    data: usize,
}

static OBJECTS: Registry<Arc<UserObject>> = Registry::new(0x1a00_0000_0000);

/// Drops references to an object; with the last one the program's function ends it.
///
/// # Errors
/// `INVALID_VALUE` for a bad handle and for more references than there are.
pub fn release(handle: usize, count: u32) -> Result<(), CuResult> {
    let object = OBJECTS.get(handle).ok_or(CuResult::INVALID_VALUE)?;
    let left = {
        let mut held = lock(&object.count);
        *held = held.checked_sub(count).filter(|_| count > 0).ok_or(CuResult::INVALID_VALUE)?;
        *held
    };
    if left == 0 {
        OBJECTS.remove(handle);
        if let Some(destroy) = object.destroy {
            // SAFETY: the program gave this function to be called once with this argument.
            unsafe { destroy(object.data as *mut c_void) };
        }
    }
    Ok(())
}

/// Adds references to an object.
///
/// # Errors
/// `INVALID_VALUE` for a bad handle and for none.
pub fn retain(handle: usize, count: u32) -> Result<(), CuResult> {
    let object = OBJECTS.get(handle).ok_or(CuResult::INVALID_VALUE)?;
    let mut held = lock(&object.count);
    *held = held.checked_add(count).filter(|_| count > 0).ok_or(CuResult::INVALID_VALUE)?;
    Ok(())
}

driver_api! {
    /// Adds a node that allocates memory. Other than on hardware the memory is there before the
    /// first launch.
    fn cuGraphAddMemAllocNode(made, owner, after, count, params) {
        runtime()?;
        let mut wanted = get(params.cast_const())?;
        let properties = &wanted.pool_props;
        if made.is_null()
            || properties.alloc_type != CU_MEM_ALLOCATION_TYPE_PINNED
            || properties.location.kind != CU_MEM_LOCATION_TYPE_DEVICE
            || properties.handle_types != CU_MEM_HANDLE_TYPE_NONE
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let runtime = check_device(properties.location.id)?;
        let after = handles(after, count)?;
        graph::graph(owner.addr())?;
        let bytes = wanted.bytesize as u64;
        let memory = GraphMemory::new(runtime, bytes)?;
        wanted.dptr = memory.address;
        let node = graph::add(owner.addr(), &after, NodeKind::Alloc(memory))?;
        put(params, wanted)?;
        put(made, CUgraphNode::from_addr(node))
    }

    /// Adds a node that frees what another one has allocated. The address stays the graph's, so
    /// that it can be launched again.
    fn cuGraphAddMemFreeNode(made, owner, after, count, address) {
        runtime()?;
        if made.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        runtime_at(address)?.regions.find(address).filter(|region| region.start == address).ok_or(CuResult::INVALID_VALUE)?;
        check_free(owner.addr(), address)?;
        let node = graph::add(owner.addr(), &handles(after, count)?, NodeKind::Free(address))?;
        put(made, CUgraphNode::from_addr(node))
    }

    /// Memory that the device keeps for graphs.
    fn cuDeviceGetGraphMemAttribute(device, attribute, value) {
        let status = pool::status_of_graphs(check_device(device)?)?;
        let number = match attribute {
            CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => status.used,
            CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => status.used_high,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => status.reserved,
            CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => status.reserved_high,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        put(value.cast::<u64>(), number)
    }

    /// Returns memory that the device keeps for graphs unused.
    fn cuDeviceGraphMemTrim(device) {
        pool::trim_graphs(check_device(device)?)
    }

    /// Puts a thing of the program's under a count.
    fn cuUserObjectCreate(handle, data, destroy, count, flags) {
        runtime()?;
        // The one flag says that the function will not synchronise, and it must be given.
        if handle.is_null() || destroy.is_none() || count == 0 || flags != 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        let object = UserObject { count: Mutex::new(count), destroy, data: data as usize };
        put(handle, CUuserObject::from_addr(OBJECTS.insert(Arc::new(object))))
    }

    /// Drops references.
    fn cuUserObjectRelease(handle, count) {
        runtime()?;
        release(handle.addr(), count)
    }

    /// Gives references to a graph: new ones, or with the flag the caller's own.
    fn cuGraphRetainUserObject(owner, handle, count, flags) {
        runtime()?;
        let graph = graph::graph(owner.addr())?;
        match flags {
            0 => retain(handle.addr(), count)?,
            1 if count > 0 => {
                OBJECTS.get(handle.addr()).ok_or(CuResult::INVALID_VALUE)?;
            }
            _ => return Err(CuResult::INVALID_VALUE),
        }
        lock(&graph.objects).push((handle.addr(), count));
        Ok(())
    }
}
