//! The entry points of stream capture.

use partita_abi::CuResult;
use partita_abi::types::*;

use super::capture::{Info, begin, end, exchange_mode, info, set_after};
use super::context::stream::resolve;
use super::gpus::runtime;
use super::graph;
use super::{get, list, put, put_if};

/// Returns a capture with its state and number.
///
/// # Safety
/// As for the entry points.
unsafe fn state(
    stream: CUstream,
    per_thread: bool,
    status: *mut u32,
    number: *mut u64,
) -> Result<Info, CuResult> {
    runtime()?;
    // SAFETY: the handle and the pointers are null or valid, by the caller's word.
    unsafe {
        let found = info(resolve(stream, per_thread)?)?;
        put(status, found.status)?;
        put_if(number, found.session);
        Ok(found)
    }
}

driver_api! {
    /// Starts to capture.
    fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz [per_thread] (stream, mode) {
        runtime()?;
        begin(resolve(stream, per_thread)?, mode, None)
    }

    /// Starts to capture, in the strictest mode.
    fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz [per_thread] (stream) {
        runtime()?;
        begin(resolve(stream, per_thread)?, 0, None)
    }

    /// Starts to capture into an existing graph, after some of its nodes.
    fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz [per_thread] (
        stream, owner, after, data, count, mode,
    ) {
        runtime()?;
        let _ = data;
        graph::graph(owner.addr())?;
        let after = list(after, count)?.iter().map(|node| node.addr()).collect();
        begin(resolve(stream, per_thread)?, mode, Some((owner.addr(), after)))
    }

    /// Ends a capture and returns its graph.
    fn cuStreamEndCapture | cuStreamEndCapture_ptsz [per_thread] (stream, handle) {
        runtime()?;
        let result = end(resolve(stream, per_thread)?);
        put(handle, result.map_or(CUgraph::NULL, CUgraph::from_addr))?;
        result.map(drop)
    }

    /// Whether a stream captures.
    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz [per_thread] (stream, status) {
        runtime()?;
        put(status, info(resolve(stream, per_thread)?)?.status)
    }

    /// A capture's state and number.
    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz [per_thread] (stream, status, number) {
        state(stream, per_thread, status, number).map(drop)
    }

    /// A capture's state, number, graph and current dependencies.
    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz [per_thread] (
        stream, status, number, owner, after, count,
    ) {
        let found = state(stream, per_thread, status, number)?;
        put_if(owner, CUgraph::from_addr(found.graph));
        put_if(after, found.after);
        put_if(count, found.count);
        Ok(())
    }

    /// Sets the dependencies of a capturing stream's next node.
    fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz [per_thread] (
        stream, after, count, flags,
    ) {
        runtime()?;
        set_after(resolve(stream, per_thread)?, list(after.cast_const(), count)?, flags)
    }

    /// Exchanges the thread's capture mode.
    fn cuThreadExchangeStreamCaptureMode(mode) {
        let new = get(mode.cast_const())?;
        if new > CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(CuResult::INVALID_VALUE);
        }
        put(mode, exchange_mode(new))
    }
}
