//! The entry points of graphs' memory and of the program's objects in graphs.

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::check_device;
use super::gpus::{runtime, runtime_at};
use super::graph::{self, NodeKind};
use super::graph_kind::handles;
use super::graph_memory::GraphMemory;
use super::{get, pool, put, user_object};
use crate::shared::sys::lock;

driver_api! {
    /// Adds a node that allocates memory. Unlike on hardware, the memory exists before the first
    /// launch.
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

    /// Adds a node that frees another node's allocation. The address stays the graph's, so that it
    /// can be launched again.
    fn cuGraphAddMemFreeNode(made, owner, after, count, address) {
        runtime()?;
        if made.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        let region = runtime_at(address)?.regions.find(address);
        region.filter(|region| region.start == address).ok_or(CuResult::INVALID_VALUE)?;
        graph::check_free(owner.addr(), address)?;
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

    /// Adds references for a graph: new ones, or with the flag the caller's own.
    fn cuGraphRetainUserObject(owner, handle, count, flags) {
        runtime()?;
        let graph = graph::graph(owner.addr())?;
        match flags {
            0 => user_object::retain(handle.addr(), count)?,
            1 if count > 0 => {
                user_object::known(handle.addr())?;
            }
            _ => return Err(CuResult::INVALID_VALUE),
        }
        lock(&graph.objects).push((handle.addr(), count));
        Ok(())
    }
}
