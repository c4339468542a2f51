//! The entry points of copies.

use core::ffi::c_void;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::stream::resolve;
use super::copy::copy;
use super::{array, get};
use crate::shared::command::Rect;

fn line(dst: u64, src: u64, bytes: usize) -> Rect {
    Rect::line(dst, src, bytes as u64)
}

/// One side of a two- or three-dimensional copy.
struct Side {
    kind: CUmemorytype,
    host: u64,
    device: u64,
    array: CUarray,
    x: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
}

impl Side {
    /// First byte, bytes between rows, bytes between slices.
    fn resolve(&self, width: usize, rows: usize) -> Result<(u64, u64, u64), CuResult> {
        let (base, pitch, height) = match self.kind {
            CU_MEMORYTYPE_HOST => (self.host, self.pitch, self.height),
            CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => (self.device, self.pitch, self.height),
            CU_MEMORYTYPE_ARRAY => {
                let shape = array::shape(self.array)?;
                (shape.address, shape.pitch, shape.rows)
            }
            _ => return Err(CuResult::INVALID_VALUE),
        };
        // A pitch or height of 0 means tightly packed.
        let pitch = if pitch == 0 { self.x + width } else { pitch };
        let height = if height == 0 { self.y + rows } else { height };
        if pitch < self.x + width && rows > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        let (pitch, slice) = (pitch as u64, pitch as u64 * height as u64);
        let first = base + self.z as u64 * slice + self.y as u64 * pitch + self.x as u64;
        Ok((first, pitch, slice))
    }
}

fn boxed(to: &Side, from: &Side, width: usize, height: usize, depth: usize) -> Result<Rect, CuResult> {
    let (dst, dst_pitch, dst_slice) = to.resolve(width, height)?;
    let (src, src_pitch, src_slice) = from.resolve(width, height)?;
    Ok(Rect {
        dst,
        dst_pitch,
        dst_slice,
        src,
        src_pitch,
        src_slice,
        width: width as u64,
        height: height as u64,
        depth: depth as u64,
    })
}

/// The rectangle of a two-dimensional copy.
///
/// # Errors
/// `INVALID_VALUE`, `INVALID_HANDLE` for a bad array.
pub fn rect_2d(copy: &CUDA_MEMCPY2D) -> Result<Rect, CuResult> {
    let to = Side {
        kind: copy.dst_memory_type,
        host: copy.dst_host as u64,
        device: copy.dst_device,
        array: copy.dst_array,
        x: copy.dst_x_in_bytes,
        y: copy.dst_y,
        z: 0,
        pitch: copy.dst_pitch,
        height: 0,
    };
    let from = Side {
        kind: copy.src_memory_type,
        host: copy.src_host as u64,
        device: copy.src_device,
        array: copy.src_array,
        x: copy.src_x_in_bytes,
        y: copy.src_y,
        z: 0,
        pitch: copy.src_pitch,
        height: 0,
    };
    boxed(&to, &from, copy.width_in_bytes, copy.height, 1)
}

/// The box of a three-dimensional copy.
///
/// # Errors
/// As [`rect_2d`].
pub fn rect_3d(copy: &CUDA_MEMCPY3D) -> Result<Rect, CuResult> {
    let to = Side {
        kind: copy.dst_memory_type,
        host: copy.dst_host as u64,
        device: copy.dst_device,
        array: copy.dst_array,
        x: copy.dst_x_in_bytes,
        y: copy.dst_y,
        z: copy.dst_z,
        pitch: copy.dst_pitch,
        height: copy.dst_height,
    };
    let from = Side {
        kind: copy.src_memory_type,
        host: copy.src_host as u64,
        device: copy.src_device,
        array: copy.src_array,
        x: copy.src_x_in_bytes,
        y: copy.src_y,
        z: copy.src_z,
        pitch: copy.src_pitch,
        height: copy.src_height,
    };
    boxed(&to, &from, copy.width_in_bytes, copy.height, copy.depth)
}

/// A copy in a default stream, waited for.
fn now(rect: Rect, per_thread: bool) -> Result<(), CuResult> {
    // SAFETY: null is a default stream.
    copy(unsafe { resolve(CUstream::NULL, per_thread)? }, rect, true)
}

driver_api! {
    /// Copies between any two addresses.
    fn cuMemcpy | cuMemcpy_ptds [per_thread] (dst, src, bytes) {
        now(line(dst, src, bytes), per_thread)
    }

    /// Copies between any two addresses, in stream order.
    fn cuMemcpyAsync | cuMemcpyAsync_ptsz [per_thread] (dst, src, bytes, stream) {
        copy(resolve(stream, per_thread)?, line(dst, src, bytes), false)
    }

    /// Copies to the device.
    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds [per_thread] (dst, src, bytes) {
        now(line(dst, src as u64, bytes), per_thread)
    }

    /// Copies to the device, in stream order.
    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz [per_thread] (dst, src, bytes, stream) {
        copy(resolve(stream, per_thread)?, line(dst, src as u64, bytes), false)
    }

    /// Copies to the host.
    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds [per_thread] (dst, src, bytes) {
        now(line(dst as u64, src, bytes), per_thread)
    }

    /// Copies to the host, in stream order.
    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz [per_thread] (dst, src, bytes, stream) {
        copy(resolve(stream, per_thread)?, line(dst as u64, src, bytes), false)
    }

    /// Copies inside the device. Does not wait, as on hardware.
    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds [per_thread] (dst, src, bytes) {
        copy(resolve(CUstream::NULL, per_thread)?, line(dst, src, bytes), false)
    }

    /// Copies inside the device, in stream order.
    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz [per_thread] (dst, src, bytes, stream) {
        copy(resolve(stream, per_thread)?, line(dst, src, bytes), false)
    }

    /// Copies between contexts. The addresses determine them.
    fn cuMemcpyPeer | cuMemcpyPeer_ptds [per_thread] (dst, dst_context, src, src_context, bytes) {
        let _ = (dst_context, src_context);
        now(line(dst, src, bytes), per_thread)
    }

    /// Copies into an array.
    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds [per_thread] (dst, offset, src, bytes) {
        let dst = array::shape(dst)?.inside(offset, bytes)?;
        now(line(dst, src as u64, bytes), per_thread)
    }

    /// Copies out of an array.
    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds [per_thread] (dst, src, offset, bytes) {
        let src = array::shape(src)?.inside(offset, bytes)?;
        now(line(dst as u64, src, bytes), per_thread)
    }

    /// Copies from device memory into an array.
    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds [per_thread] (dst, offset, src, bytes) {
        let dst = array::shape(dst)?.inside(offset, bytes)?;
        now(line(dst, src, bytes), per_thread)
    }

    /// Copies from an array into device memory.
    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds [per_thread] (dst, src, offset, bytes) {
        let src = array::shape(src)?.inside(offset, bytes)?;
        now(line(dst, src, bytes), per_thread)
    }

    /// Copies between arrays.
    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds [per_thread] (
        dst, dst_offset, src, src_offset, bytes,
    ) {
        let dst = array::shape(dst)?.inside(dst_offset, bytes)?;
        let src = array::shape(src)?.inside(src_offset, bytes)?;
        now(line(dst, src, bytes), per_thread)
    }

    /// Copies a rectangle.
    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds [per_thread] (wanted) {
        now(rect_2d(&get(wanted)?)?, per_thread)
    }

    /// Copies a rectangle with any pitch.
    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds [per_thread] (wanted) {
        now(rect_2d(&get(wanted)?)?, per_thread)
    }

    /// Copies a box.
    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds [per_thread] (wanted) {
        now(rect_3d(&get(wanted)?)?, per_thread)
    }

    /// Copies a box between contexts. The addresses determine them.
    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds [per_thread] (wanted) {
        now(rect_3d(&get(wanted)?)?, per_thread)
    }
}
