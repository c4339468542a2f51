//! CUDA arrays: pitched device memory with a shape.

use std::sync::Arc;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::current;
use super::gpus::{runtime, runtime_at};
use super::memory::{self, PITCH_BYTES};
use super::object::Registry;
use super::{get, memory_api, put};
use crate::shared::protocol::AllocKind;

/// The layout of an array's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// First byte; 0 for an array that is to be mapped later, which has no memory.
    pub address: u64,
    /// Bytes of a row's content.
    pub width: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Rows of a slice.
    pub rows: usize,
    /// Slices.
    pub slices: usize,
}

impl Shape {
    fn of(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<Self, CuResult> {
        let element = element_bytes(descriptor)?;
        if !matches!(descriptor.num_channels, 1 | 2 | 4) || descriptor.width == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if descriptor.height == 0 && descriptor.depth != 0 && descriptor.flags & 1 == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if descriptor.flags & CUDA_ARRAY3D_SPARSE != 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let width = descriptor.width.checked_mul(element).ok_or(CuResult::INVALID_VALUE)?;
        let pitch = width.checked_next_multiple_of(PITCH_BYTES).ok_or(CuResult::OUT_OF_MEMORY)?;
        Ok(Self { address: 0, width, pitch, rows: descriptor.height.max(1), slices: descriptor.depth.max(1) })
    }

    /// Bytes of memory behind it.
    pub fn bytes(&self) -> Result<usize, CuResult> {
        self.pitch
            .checked_mul(self.rows)
            .and_then(|slice| slice.checked_mul(self.slices))
            .ok_or(CuResult::OUT_OF_MEMORY)
    }

    /// The address of a byte of a linear copy, which must stay inside the first row.
    ///
    /// # Errors
    /// `INVALID_VALUE` otherwise.
    pub fn inside(&self, offset: usize, bytes: usize) -> Result<u64, CuResult> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.width => Ok(self.address + offset as u64),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

/// An array, or one level of a mip-mapped one.
#[derive(Debug)]
struct Array {
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    shape: Shape,
    /// Levels belong to their mip-mapped array and are not destroyed alone.
    level: bool,
}

#[derive(Debug)]
struct Mipmapped {
    address: u64,
    levels: Vec<usize>,
}

static ARRAYS: Registry<Arc<Array>> = Registry::new(0x1400_0000_0000);
static MIPMAPPED: Registry<Arc<Mipmapped>> = Registry::new(0x1500_0000_0000);

/// Bytes of one element.
fn element_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<usize, CuResult> {
    let one = CUDA_ARRAY3D_DESCRIPTOR { width: 1, height: 0, depth: 0, flags: 0, ..*descriptor };
    array_bytes(&one).map(|bytes| bytes as usize).filter(|bytes| *bytes > 0).ok_or(CuResult::INVALID_VALUE)
}

fn array(handle: CUarray) -> Result<Arc<Array>, CuResult> {
    runtime()?;
    ARRAYS.get(handle.addr()).ok_or(CuResult::INVALID_HANDLE)
}

/// The layout of an array's bytes.
///
/// # Errors
/// `INVALID_HANDLE`; `INVALID_VALUE` for an array without memory.
pub fn shape(handle: CUarray) -> Result<Shape, CuResult> {
    let shape = array(handle)?.shape;
    if shape.address == 0 { Err(CuResult::INVALID_VALUE) } else { Ok(shape) }
}

/// The memory of an array. An array of deferred mapping has none, and nothing here maps it.
fn allocate(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, bytes: usize) -> Result<u64, CuResult> {
    let context = current()?;
    match descriptor.flags & CUDA_ARRAY3D_DEFERRED_MAPPING {
        0 => memory_api::allocate(context, bytes as u64, AllocKind::Device),
        _ => Ok(0),
    }
}

fn free(address: u64) -> Result<(), CuResult> {
    if address == 0 { Ok(()) } else { memory::free(runtime_at(address)?, address) }
}

fn create(descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Result<CUarray, CuResult> {
    let mut shape = Shape::of(&descriptor)?;
    shape.address = allocate(&descriptor, shape.bytes()?)?;
    Ok(CUarray::from_addr(ARRAYS.insert(Arc::new(Array { descriptor, shape, level: false }))))
}

driver_api! {
    /// Makes an array of one or two dimensions.
    fn cuArrayCreate_v2(handle, descriptor) {
        let flat = get(descriptor)?;
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            width: flat.width,
            height: flat.height,
            depth: 0,
            format: flat.format,
            num_channels: flat.num_channels,
            flags: 0,
        };
        if handle.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        put(handle, create(descriptor)?)
    }

    /// Makes an array of up to three dimensions.
    fn cuArray3DCreate_v2(handle, descriptor) {
        let descriptor = get(descriptor)?;
        if handle.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        put(handle, create(descriptor)?)
    }

    /// An array's shape.
    fn cuArray3DGetDescriptor_v2(descriptor, handle) {
        put(descriptor, array(handle)?.descriptor)
    }

    /// Destroys an array, after all work of the context.
    fn cuArrayDestroy(handle) {
        runtime()?;
        let found = array(handle)?;
        if found.level {
            return Err(CuResult::INVALID_HANDLE);
        }
        current()?.synchronize()?;
        ARRAYS.remove(handle.addr()).ok_or(CuResult::INVALID_HANDLE)?;
        free(found.shape.address)
    }

    /// Makes an array with ever smaller copies of itself.
    fn cuMipmappedArrayCreate(handle, descriptor, levels) {
        let full = get(descriptor)?;
        if handle.is_null() || levels == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let largest = full.width.max(full.height).max(full.depth).max(1);
        let levels = levels.min(largest.ilog2() + 1);
        let halved = |size: usize, level: u32| if size == 0 { 0 } else { (size >> level).max(1) };
        let parts: Result<Vec<_>, CuResult> = (0..levels)
            .map(|level| {
                let part = CUDA_ARRAY3D_DESCRIPTOR {
                    width: halved(full.width, level),
                    height: halved(full.height, level),
                    depth: halved(full.depth, level),
                    ..full
                };
                Shape::of(&part).map(|shape| (part, shape))
            })
            .collect();
        let parts = parts?;
        let mut bytes = 0usize;
        for (_, shape) in &parts {
            bytes = bytes.checked_add(shape.bytes()?).ok_or(CuResult::OUT_OF_MEMORY)?;
        }
        let address = allocate(&full, bytes)?;
        let mut at = address;
        let mut made = Vec::new();
        for (descriptor, mut shape) in parts {
            shape.address = at;
            if at != 0 {
                at += shape.bytes()? as u64;
            }
            made.push(ARRAYS.insert(Arc::new(Array { descriptor, shape, level: true })));
        }
        let mipmapped = Mipmapped { address, levels: made };
        put(handle, CUmipmappedArray::from_addr(MIPMAPPED.insert(Arc::new(mipmapped))))
    }

    /// One level of a mip-mapped array.
    fn cuMipmappedArrayGetLevel(level_array, handle, level) {
        runtime()?;
        let found = MIPMAPPED.get(handle.addr()).ok_or(CuResult::INVALID_HANDLE)?;
        let level = found.levels.get(level as usize).ok_or(CuResult::INVALID_VALUE)?;
        put(level_array, CUarray::from_addr(*level))
    }

    /// Destroys a mip-mapped array, after all work of the context.
    fn cuMipmappedArrayDestroy(handle) {
        runtime()?;
        current()?.synchronize()?;
        let found = MIPMAPPED.remove(handle.addr()).ok_or(CuResult::INVALID_HANDLE)?;
        for level in &found.levels {
            ARRAYS.remove(*level);
        }
        free(found.address)
    }
}
