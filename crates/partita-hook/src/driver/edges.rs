//! The edges of a graph.

use alloc::vec::Vec;
use core::ffi::c_void;

use partita_abi::prototypes;
use partita_abi::types::CUgraphEdgeData;

use crate::driver::calls::calls;
use crate::driver::real;

calls! {
    /// The entry point of every driver with graphs.
    struct EdgeCalls;
    // Without their properties; refused by the driver if one of them has some.
    edges = cuGraphGetEdges;
}

/// An edge, and whether the second node waits for the end of the first.
pub struct Edge {
    pub from: *mut c_void,
    pub to: *mut c_void,
    pub is_plain: bool,
}

/// Every edge of a graph.
pub fn edges(graph: *mut c_void) -> Option<Vec<Edge>> {
    let address = real::symbol(c"cuGraphGetEdges_v2");
    // SAFETY: the prototype of that name in cuda.h.
    let with_data = (!address.is_null())
        .then(|| unsafe { core::mem::transmute::<*mut c_void, prototypes::cuGraphGetEdges_v2>(address) });
    let calls = EdgeCalls::resolve().ok()?;
    let ask = |from: *mut *mut c_void, to, data, count: &mut usize| match with_data {
        // SAFETY: null asks for the number alone; else there is room for as many as `count` says.
        Some(ask) => unsafe { ask(graph, from, to, data, count) },
        // SAFETY: as above.
        None => unsafe { (calls.edges)(graph, from, to, count) },
    };
    let mut count = 0;
    let nowhere = core::ptr::null_mut();
    ask(nowhere, nowhere, core::ptr::null_mut(), &mut count).ok().ok()?;
    let none: *mut c_void = core::ptr::null_mut();
    let mut ends = [alloc::vec![none; count], alloc::vec![none; count]];
    let mut data = alloc::vec![CUgraphEdgeData::default(); count];
    let [from, to] = &mut ends;
    if count > 0 {
        ask(from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count).ok().ok()?;
    }
    let pairs = from.iter().zip(to.iter()).zip(&data).take(count);
    Some(
        pairs
            .map(|((&from, &to), data)| Edge { from, to, is_plain: *data == CUgraphEdgeData::default() })
            .collect(),
    )
}
