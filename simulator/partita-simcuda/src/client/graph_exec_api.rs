//! The entry points of executable graphs.

use partita_abi::CuResult;
use partita_abi::types::*;

use super::capture;
use super::context::stream::resolve;
use super::gpus::runtime;
use super::graph::NodeKind;
use super::graph_exec::{
    EXECS, change, change_child, exec, has_batches, instantiate, launch, place, update, upload,
};
use super::graph_kind;
use super::object::object;
use super::{get, put, put_if, worker};
use crate::shared::protocol::Request;
use crate::shared::sys::lock;

driver_api! {
    /// Makes an executable graph.
    fn cuGraphInstantiateWithFlags(handle, graph, flags) {
        runtime()?;
        // There is no stream to upload it on.
        if flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let made = instantiate(graph.addr(), flags).map_err(|refusal| refusal.code)?;
        put(handle, CUgraphExec::from_addr(made))
    }

    /// As `cuGraphInstantiateWithFlags`, with a buffer for a report.
    fn cuGraphInstantiate(handle, graph, error_node, log, log_bytes) {
        runtime()?;
        put_if(error_node, CUgraphNode::NULL);
        if !log.is_null() && log_bytes > 0 {
            put(log, 0)?;
        }
        let made = instantiate(graph.addr(), 0).map_err(|refusal| refusal.code)?;
        put(handle, CUgraphExec::from_addr(made))
    }

    /// As `cuGraphInstantiate`.
    fn cuGraphInstantiate_v2(handle, graph, error_node, log, log_bytes) {
        cuGraphInstantiate(handle, graph, error_node, log, log_bytes).ok()
    }

    /// Creates an executable graph and, if requested, uploads it.
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz [per_thread] (
        handle, graph, params,
    ) {
        runtime()?;
        let mut wanted = get(params.cast_const())?;
        wanted.err_node_out = CUgraphNode::NULL;
        let made = instantiate(graph.addr(), wanted.flags);
        // CUDA_GRAPH_INSTANTIATE_SUCCESS is 0.
        let refused = made.as_ref().err();
        wanted.result_out = refused.map_or(0, |refusal| refusal.result);
        wanted.err_node_out = CUgraphNode::from_addr(refused.map_or(0, |refusal| refusal.node));
        put(params, wanted)?;
        let made = CUgraphExec::from_addr(made.map_err(|refusal| refusal.code)?);
        if wanted.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0 {
            resolve(wanted.upload_stream, per_thread)?;
            let exec = exec(made)?;
            upload(&exec, &mut lock(&exec.state), false)?;
        }
        put(handle, made)
    }

    /// The flag for freeing an executable's memory; the driver returns no other flag.
    fn cuGraphExecGetFlags(handle, flags) {
        put(flags, exec(handle)?.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
    }

    /// Uploads an executable, so that its launch does not have to.
    fn cuGraphUpload | cuGraphUpload_ptsz [per_thread] (handle, stream) {
        let stream = resolve(stream, per_thread)?;
        let exec = exec(handle)?;
        capture::refuse_captured(stream)?;
        let mut state = lock(&exec.state);
        upload(&exec, &mut state, false)
    }

    /// Launches an executable.
    fn cuGraphLaunch | cuGraphLaunch_ptsz [per_thread] (handle, stream) {
        launch(handle, resolve(stream, per_thread)?)
    }

    /// Destroys an executable; running launches complete.
    fn cuGraphExecDestroy(handle) {
        runtime()?;
        capture::refuse_unsafe()?;
        let gone = EXECS.remove(handle.addr()).ok_or(CuResult::INVALID_VALUE)?;
        let runtime = gone.runtime;
        let state = lock(&gone.state);
        let idle = state.last.is_none_or(|(stream, seq)| stream.reached(seq));
        for (object, count) in &gone.objects {
            super::user_object::release(*object, *count)?;
        }
        if idle {
            let tokens = state.flat.nodes.iter().flat_map(|node| node.token.iter().chain(&node.former));
            tokens.for_each(|token| worker::forget(runtime, *token));
        }
        match runtime.call(&Request::GraphDrop { graph: gone.number }) {
            Err(_) if runtime.healthy().is_err() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Takes all parameters from a graph of the same shape.
    fn cuGraphExecUpdate_v2(handle, graph, info) {
        let updated = update(handle, graph)?;
        let (_, result, node) = updated.err().unwrap_or((CuResult::SUCCESS, 0, 0));
        let error_node = CUgraphNode::from_addr(node);
        put(info, CUgraphExecUpdateResultInfo { result, error_node, error_from_node: CUgraphNode::NULL })?;
        updated.map_err(|(code, ..)| code)
    }

    /// As `cuGraphExecUpdate_v2`, but it refuses graphs whose nodes wait for or write words.
    fn cuGraphExecUpdate(handle, graph, node, code) {
        /// `CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED`: the result for such a graph, and for a graph
        /// with another number of nodes.
        const NOT_SUPPORTED: u32 = 6;
        let updated = match has_batches(handle, graph)? {
            true => Err((CuResult::GRAPH_EXEC_UPDATE_FAILURE, NOT_SUPPORTED, 0)),
            false => update(handle, graph)?,
        };
        let (_, found, at) = updated.err().unwrap_or((CuResult::SUCCESS, 0, 0));
        put_if(node, CUgraphNode::from_addr(at));
        put(code, if found > 0 && at == 0 { NOT_SUPPORTED } else { found })?;
        updated.map_err(|(code, ..)| code)
    }

    /// Switches a node of an executable on or off. Kernels, copies and fills can be.
    fn cuGraphNodeSetEnabled(handle, source, enabled) {
        let exec = exec(handle)?;
        let mut state = lock(&exec.state);
        let at = place(&state, source)?;
        let node = &mut state.flat.nodes[at];
        if !node.can_be_disabled() {
            return Err(CuResult::INVALID_VALUE);
        }
        if node.enabled != (enabled != 0) {
            node.enabled = enabled != 0;
            node.pending = true;
            state.rearmed = true;
        }
        Ok(())
    }

    /// Whether a node of an executable is switched on.
    fn cuGraphNodeGetEnabled(handle, source, enabled) {
        let exec = exec(handle)?;
        let state = lock(&exec.state);
        let node = &state.flat.nodes[place(&state, source)?];
        if !node.can_be_disabled() {
            return Err(CuResult::INVALID_VALUE);
        }
        put(enabled, u32::from(node.enabled))
    }

    /// Changes a kernel node of an executable.
    fn cuGraphExecKernelNodeSetParams(handle, source, params) {
        change(handle, source, graph_kind::kernel_v1(params)?)
    }

    /// Changes a kernel node of an executable.
    fn cuGraphExecKernelNodeSetParams_v2(handle, source, params) {
        change(handle, source, graph_kind::kernel_v2(params)?)
    }

    /// Changes a copy node of an executable.
    fn cuGraphExecMemcpyNodeSetParams(handle, source, params, context) {
        let _ = context;
        change(handle, source, graph_kind::copy_kind(&get(params)?)?)
    }

    /// Changes a fill node of an executable.
    fn cuGraphExecMemsetNodeSetParams(handle, source, params, context) {
        let _ = context;
        change(handle, source, graph_kind::fill_kind(&get(params)?)?)
    }

    /// Changes a host node of an executable.
    fn cuGraphExecHostNodeSetParams(handle, source, params) {
        let params = get(params)?;
        change(handle, source, NodeKind::Host(params.func, params.user_data as usize))
    }

    /// Changes a recording node of an executable.
    fn cuGraphExecEventRecordNodeSetEvent(handle, source, event) {
        change(handle, source, NodeKind::Record(object(event.0)?))
    }

    /// Changes a waiting node of an executable.
    fn cuGraphExecEventWaitNodeSetEvent(handle, source, event) {
        change(handle, source, NodeKind::Wait(object(event.0)?))
    }

    /// Has a node of an executable run another graph of the same shape.
    fn cuGraphExecChildGraphNodeSetParams(handle, source, child) {
        change_child(handle, source, child)
    }

    /// Changes a node of an executable.
    fn cuGraphExecNodeSetParams(handle, source, params) {
        let params = get(params.cast_const())?;
        if params.kind == CU_GRAPH_NODE_TYPE_GRAPH {
            return change_child(handle, source, params.payload.graph.graph);
        }
        change(handle, source, graph_kind::kind_of(&params)?)
    }
}
