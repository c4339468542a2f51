//! Attributes of addresses.

use core::ffi::{c_int, c_void};

use partita_abi::CuResult;
use partita_abi::attribute::*;
use partita_abi::types::*;

use super::gpus::runtime_at;
use super::region::{Kind, Region};
use super::{context, get, list, put};

/// Stores an attribute of a region, or of ordinary memory (`None`).
///
/// # Safety
/// The pointer is null or valid for the attribute's type.
unsafe fn store(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    region: Option<&Region>,
    address: u64,
) -> Result<(), CuResult> {
    let region = region.ok_or(CuResult::INVALID_VALUE);
    let device = region.is_ok_and(|r| matches!(r.kind, Kind::Device | Kind::Managed | Kind::Reserved));
    // SAFETY: by the caller's word, in each arm.
    unsafe {
        match attribute {
            CU_POINTER_ATTRIBUTE_CONTEXT => {
                put(data.cast(), context::by_id(region?.ctx).map_or(CUcontext::NULL, |found| found.handle()))
            }
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                region?;
                put(data.cast(), if device { CU_MEMORYTYPE_DEVICE } else { CU_MEMORYTYPE_HOST })
            }
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
                region?;
                put(data.cast(), address)
            }
            CU_POINTER_ATTRIBUTE_HOST_POINTER => match region?.kind {
                Kind::Device | Kind::Reserved => Err(CuResult::INVALID_VALUE),
                _ => put(data.cast(), address),
            },
            CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => put(data.cast::<c_int>(), 0),
            CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
                put(data.cast::<u64>(), region?.id)
            }
            CU_POINTER_ATTRIBUTE_IS_MANAGED => put(data.cast(), u32::from(region?.kind == Kind::Managed)),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                region?;
                put(data.cast::<c_int>(), runtime_at(address)?.ordinal)
            }
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                let region = region?;
                let capable = region.kind == Kind::Device && !region.imported && region.pool == 0;
                put(data.cast(), u8::from(capable))
            }
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
                put(data.cast(), region?.start)
            }
            CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
                put(data.cast(), region?.bytes)
            }
            CU_POINTER_ATTRIBUTE_MAPPED => put(data.cast(), u8::from(region?.kind != Kind::Reserved)),
            CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => put(data.cast::<u64>(), 0),
            CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => put(data.cast(), u8::from(device)),
            CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => put(data.cast::<u32>(), if region.is_ok() { 3 } else { 0 }),
            CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => put(data.cast::<usize>(), region?.pool),
            CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => put(data.cast(), 0u8),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

/// Stores an attribute of an address that this library does not know.
///
/// # Safety
/// As for [`store`].
unsafe fn store_nothing(data: *mut c_void, attribute: CUpointer_attribute) -> Result<(), CuResult> {
    // SAFETY: by the caller's word.
    unsafe {
        match attribute {
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(data.cast::<c_int>(), -2),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE
            | CU_POINTER_ATTRIBUTE_IS_MANAGED
            | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => put(data.cast::<u32>(), 0),
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
            | CU_POINTER_ATTRIBUTE_MAPPED
            | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
            | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => put(data.cast::<u8>(), 0),
            attribute if pointer_attribute_name(attribute).is_some() => put(data.cast::<u64>(), 0),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

driver_api! {
    /// One attribute of an address. Ordinary memory has none. Without a current context the call
    /// fails (as documented; not measured).
    fn cuPointerGetAttribute(data, attribute, address) {
        context::current()?;
        let region = runtime_at(address)?.regions.find(address);
        store(data, attribute, region.as_ref(), address)
    }

    /// Several attributes of an address; those that ordinary memory lacks are zero. This works
    /// without a current context (an H200 with driver 580.159.04).
    fn cuPointerGetAttributes(count, attributes, data, address) {
        let region = runtime_at(address)?.regions.find(address);
        for (index, attribute) in list(attributes, count as usize)?.iter().enumerate() {
            let to = get(data.add(index))?;
            if store(to, *attribute, region.as_ref(), address).is_err() {
                store_nothing(to, *attribute)?;
            }
        }
        Ok(())
    }
}
