//! The hook's table: one row for each wrapped export of libcuda.
//!
//! [`hooks!`] checks a row against the table of all exports and turns it into
//! three things that therefore cannot disagree: the exported C function, its
//! entry in [`ROWS`] (which `dlsym` and `cuGetProcAddress` answer from), and the
//! typed pointer to the driver's own function that the row's body receives.
//! `per_thread STREAM` gives the body the stream by the name that it has for all
//! calls: to those whose names end in `_ptsz` null means the thread's own.
//! `straight if CONDITION, ARGUMENT` spares a call the body where the condition holds.

use core::ffi::{c_char, c_int, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::exports::{self, Policy};
use partita_abi::types::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEM_ALLOC_NODE_PARAMS, CUdevResource, CUgraphExecUpdateResultInfo,
    CUgraphNodeParams, CUipcMemHandle, CUlaunchConfig, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemLocation, CUuuid,
};

use crate::account::tenant;
use crate::driver::row::Row;
use crate::driver::{capture, real, stream};
use crate::entry::resolve;
use crate::gate::waits;
use crate::launch::{fast_path, green, occupancy, query, subscribers};
use crate::memory::driver_memory::Charging;
use crate::memory::{device, graph_memory, holdings, imports, managed, multicast, pools, stream_memory, vmm};
use crate::session::{attach, contexts};
use crate::{graph, launch};

/// What a row's function does: its body, or the driver's call alone.
macro_rules! go_on {
    (, $real:expr, $($argument:expr),*) => { $real($($argument),*) };
    ($body:path, $real:expr, $($argument:expr),*) => { $body($real, $($argument),*) };
}

/// Whether a row has this call go to the driver as it is.
macro_rules! is_straight {
    () => {
        false
    };
    ($straight:path, $of:ident) => {
        $straight($of)
    };
}

macro_rules! hooks {
    ($(
        $policy:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?)
        $(= $body:path)? $(, per_thread $stream:ident)? $(, straight if $straight:path, $of:ident)?;
    )*) => {
        $(
            #[doc = concat!("Wraps `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As the driver documents for the call of that name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> CuResult {
                type Call = unsafe extern "C" fn($($type),*) -> CuResult;
                let mut call: Call = wrapped::$name;
                if is_straight!($($straight, $of)?) {
                    let real = rows::$name.real_to_call();
                    if !real.is_null() {
                        // SAFETY: as in `wrapped`.
                        call = unsafe { core::mem::transmute::<*mut c_void, Call>(real) };
                    }
                }
                // One call for both, of which the compiler makes a jump: the arguments stay where
                // they are. SAFETY: the caller keeps the contract of the driver's call.
                unsafe { call($($argument),*) }
            }
        )*

        /// What the calls do that do not go straight to the driver.
        mod wrapped {
            #![allow(non_snake_case)]
            use super::*;
            $(
            pub unsafe extern "C" fn $name($($argument: $type),*) -> CuResult {
                let mut real = rows::$name.real_to_call();
                if real.is_null() {
                    if !load() {
                        return CuResult::NOT_INITIALIZED;
                    }
                    real = rows::$name.real();
                    if real.is_null() {
                        return CuResult::NOT_SUPPORTED;
                    }
                }
                type Real = unsafe extern "C" fn($($type),*) -> CuResult;
                // SAFETY: the address was resolved under this very name, whose
                // prototype in cuda.h this is.
                let real = unsafe { core::mem::transmute::<*mut c_void, Real>(real) };
                if matches!(Policy::$policy, Policy::Context | Policy::Charge)
                    && let Err(refused) = attach::late()
                {
                    return refused;
                }
                // Until it is made, what ended with a context at the same address is not looked
                // for.
                let _contexts = match Policy::$policy {
                    Policy::Context => tenant::current().map(|_| holdings::contexts()),
                    _ => None,
                };
                $(let $stream = stream::per_thread($stream);)?
                let _charging = Charging::begin(match Policy::$policy {
                    Policy::Charge => true,
                    // What nodes allocate is charged when they are made, and comes with some
                    // launch.
                    Policy::Graph => graph_memory::is_any(),
                    _ => false,
                });
                // SAFETY: the caller keeps the contract of the driver's call.
                unsafe { go_on!($($body)?, real, $($argument),*) }
            }
            )*
        }

        mod rows {
            #![allow(non_upper_case_globals)]
            use super::*;
            $(
                pub static $name: Row =
                    Row::new(concat!(stringify!($name), "\0"), super::$name as *mut c_void);
            )*
        }

        // Every row has the policy that the table of all exports gives it…
        $(const _: () = assert!(
            matches!(exports::policy_of(stringify!($name)), Some(Policy::$policy)),
            concat!(stringify!($name), ": the hook and partita_abi::exports disagree on its policy"),
        );)*
        // … and no export that it says is wrapped lacks a row.
        const _: () = assert!(ROWS.len() == exports::wrapped_count());

        /// Every wrapped export.
        pub static ROWS: &[&Row] = &[$(&rows::$name),*];
    };
}

hooks! {
    Attach fn cuInit(flags: c_uint) = attach::init;

    Resolve fn cuGetProcAddress(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64,
    ) = resolve::get_proc_address;
    Resolve fn cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int,
    ) = resolve::get_proc_address_v2;

    Resolve fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid) = subscribers::get_export_table;
    Context fn cuCtxCreate(context: *mut *mut c_void, flags: c_uint, device: c_int);
    Context fn cuCtxCreate_v2(context: *mut *mut c_void, flags: c_uint, device: c_int);
    Context fn cuCtxCreate_v3(
        context: *mut *mut c_void, affinities: *mut c_void, count: c_int, flags: c_uint, device: c_int,
    );
    Context fn cuCtxCreate_v4(
        context: *mut *mut c_void, parameters: *mut c_void, flags: c_uint, device: c_int,
    );
    Context fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int);
    Context fn cuGreenCtxCreate(
        context: *mut *mut c_void, resources: *mut c_void, device: c_int, flags: c_uint,
    ) = green::create;

    Query fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) = query::mem_info;
    Query fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = query::mem_info;
    Query fn cuDeviceTotalMem(bytes: *mut c_uint, device: c_int) = query::total_mem;
    Query fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) = query::total_mem;

    Query fn cuDeviceGetDevResource(device: c_int, resource: *mut CUdevResource, kind: c_uint) = green::device_resource;
    Query fn cuCtxGetDevResource(context: *mut c_void, resource: *mut CUdevResource, kind: c_uint) = green::context_resource;
    Query fn cuGreenCtxGetDevResource(green: *mut c_void, resource: *mut CUdevResource, kind: c_uint) = green::green_resource;
    Query fn cuStreamGetDevResource(stream: *mut c_void, resource: *mut CUdevResource, kind: c_uint) = green::stream_resource;
    Query fn cuStreamGetDevResource_ptsz(
        stream: *mut c_void, resource: *mut CUdevResource, kind: c_uint,
    ) = green::stream_resource, per_thread stream;
    Query fn cuDevSmResourceSplitByCount(
        groups: *mut CUdevResource, count: *mut c_uint, input: *const CUdevResource, rest: *mut CUdevResource,
        flags: c_uint, wanted: c_uint,
    ) = green::split_by_count;
    Query fn cuDevSmResourceSplit(
        groups: *mut CUdevResource, count: c_uint, input: *const CUdevResource, rest: *mut CUdevResource,
        flags: c_uint, wanted: *mut c_void,
    ) = green::split;
    Query fn cuDevResourceGenerateDesc(
        descriptor: *mut *mut c_void, resources: *mut CUdevResource, count: c_uint,
    ) = green::describe;
    Release fn cuGreenCtxDestroy(green: *mut c_void) = green::destroy;

    Query fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) = query::device_attribute;
    Query fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int, block: *mut c_int, function: *mut c_void, shared_of: *const c_void, shared: usize, limit: c_int,
    ) = query::potential_block_size;
    Query fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut c_int, block: *mut c_int, function: *mut c_void, shared_of: *const c_void, shared: usize, limit: c_int,
        flags: c_uint,
    ) = query::potential_block_size_with_flags;
    Query fn cuOccupancyMaxActiveClusters(
        clusters: *mut c_int, function: *mut c_void, config: *const CUlaunchConfig,
    ) = occupancy::active_clusters;
    Query fn cuOccupancyMaxPotentialClusterSize(
        blocks: *mut c_int, function: *mut c_void, config: *const CUlaunchConfig,
    ) = occupancy::potential_cluster_size;

    Query fn cuMemPrefetchAsync(address: u64, bytes: usize, device: c_int, stream: *mut c_void) = managed::prefetch;
    Query fn cuMemPrefetchAsync_ptsz(address: u64, bytes: usize, device: c_int, stream: *mut c_void) = managed::prefetch;
    Query fn cuMemPrefetchAsync_v2(
        address: u64, bytes: usize, location: CUmemLocation, flags: c_uint, stream: *mut c_void,
    ) = managed::prefetch_to;
    Query fn cuMemPrefetchAsync_v2_ptsz(
        address: u64, bytes: usize, location: CUmemLocation, flags: c_uint, stream: *mut c_void,
    ) = managed::prefetch_to;
    Query fn cuMemAdvise(address: u64, bytes: usize, advice: c_uint, device: c_int) = managed::advise;
    Query fn cuMemAdvise_v2(address: u64, bytes: usize, advice: c_uint, location: CUmemLocation) = managed::advise;
    Query fn cuStreamAttachMemAsync(stream: *mut c_void, address: u64, bytes: usize, flags: c_uint) = managed::attach;
    Query fn cuStreamAttachMemAsync_ptsz(stream: *mut c_void, address: u64, bytes: usize, flags: c_uint) = managed::attach;
    Query fn cuMemPrefetchBatchAsync(
        addresses: *mut u64, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, firsts: *mut usize,
        location_count: usize, flags: u64, stream: *mut c_void,
    ) = managed::prefetch_batch;
    Query fn cuMemPrefetchBatchAsync_ptsz(
        addresses: *mut u64, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, firsts: *mut usize,
        location_count: usize, flags: u64, stream: *mut c_void,
    ) = managed::prefetch_batch;
    Query fn cuMemDiscardAndPrefetchBatchAsync(
        addresses: *mut u64, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, firsts: *mut usize,
        location_count: usize, flags: u64, stream: *mut c_void,
    ) = managed::prefetch_batch;
    Query fn cuMemDiscardAndPrefetchBatchAsync_ptsz(
        addresses: *mut u64, sizes: *mut usize, count: usize, locations: *mut CUmemLocation, firsts: *mut usize,
        location_count: usize, flags: u64, stream: *mut c_void,
    ) = managed::prefetch_batch;
    Query fn cuMemDiscardBatchAsync(
        addresses: *mut u64, sizes: *mut usize, count: usize, flags: u64, stream: *mut c_void,
    ) = managed::discard_batch;
    Query fn cuMemDiscardBatchAsync_ptsz(
        addresses: *mut u64, sizes: *mut usize, count: usize, flags: u64, stream: *mut c_void,
    ) = managed::discard_batch;

    Charge fn cuMemAlloc(pointer: *mut c_uint, bytes: c_uint) = device::alloc;
    Charge fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) = device::alloc;
    Charge fn cuMemAllocPitch(
        pointer: *mut c_uint, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint,
    ) = device::alloc_pitch;
    Charge fn cuMemAllocPitch_v2(
        pointer: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint,
    ) = device::alloc_pitch;
    Charge fn cuMemAllocManaged(pointer: *mut u64, bytes: usize, flags: c_uint) = device::alloc_managed;
    Charge fn cuMemAllocAsync(pointer: *mut u64, bytes: usize, stream: *mut c_void) = stream_memory::alloc_async;
    Charge fn cuMemAllocAsync_ptsz(pointer: *mut u64, bytes: usize, stream: *mut c_void) = stream_memory::alloc_async, per_thread stream;
    Charge fn cuMemAllocFromPoolAsync(
        pointer: *mut u64, bytes: usize, pool: *mut c_void, stream: *mut c_void,
    ) = stream_memory::alloc_from_pool;
    Charge fn cuMemAllocFromPoolAsync_ptsz(
        pointer: *mut u64, bytes: usize, pool: *mut c_void, stream: *mut c_void,
    ) = stream_memory::alloc_from_pool, per_thread stream;
    Charge fn cuArrayCreate(array: *mut *mut c_void, shape: *const CUDA_ARRAY_DESCRIPTOR_v1) = device::array;
    Charge fn cuArrayCreate_v2(
        array: *mut *mut c_void, shape: *const CUDA_ARRAY_DESCRIPTOR,
    ) = device::array;
    Charge fn cuArray3DCreate(array: *mut *mut c_void, shape: *const CUDA_ARRAY3D_DESCRIPTOR_v1) = device::array;
    Charge fn cuArray3DCreate_v2(
        array: *mut *mut c_void, shape: *const CUDA_ARRAY3D_DESCRIPTOR,
    ) = device::array;
    Charge fn cuMipmappedArrayCreate(
        array: *mut *mut c_void, shape: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint,
    ) = device::mipmapped_array;
    Charge fn cuIpcOpenMemHandle(pointer: *mut u64, handle: CUipcMemHandle, flags: c_uint) = imports::open;
    Charge fn cuIpcOpenMemHandle_v2(pointer: *mut u64, handle: CUipcMemHandle, flags: c_uint) = imports::open;
    Charge fn cuImportExternalMemory(
        memory: *mut *mut c_void, wanted: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    ) = imports::import_external;
    Charge fn cuMemImportFromShareableHandle(
        handle: *mut u64, shareable: *mut c_void, kind: CUmemAllocationHandleType,
    ) = vmm::import;
    Charge fn cuCtxSetLimit(limit: c_uint, value: usize) = imports::set_limit;
    Charge fn cuGraphAddMemAllocNode(
        node: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, count: usize,
        parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    ) = graph::add::add_memory_node;
    Charge fn cuGraphAddNode(
        node: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, count: usize,
        parameters: *mut c_uint,
    ) = graph::add::add_node;
    Charge fn cuGraphAddNode_v2(
        node: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void,
        edges: *const c_void, count: usize, parameters: *mut c_uint,
    ) = graph::add::add_node_v2;
    Charge fn cuGraphAddNode_v3(
        node: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void,
        edges: *const c_void, count: usize, parameters: *mut c_uint,
    ) = graph::add::add_node_v2;
    Charge fn cuMemCreate(
        handle: *mut u64, bytes: usize, properties: *const CUmemAllocationProp, flags: u64,
    ) = vmm::create;

    Release fn cuMemFree(pointer: c_uint) = device::free;
    Release fn cuMemFree_v2(pointer: u64) = device::free;
    Release fn cuMemFreeAsync(pointer: u64, stream: *mut c_void) = stream_memory::free_async;
    Release fn cuMemFreeAsync_ptsz(pointer: u64, stream: *mut c_void) = stream_memory::free_async, per_thread stream;
    Release fn cuArrayDestroy(array: *mut c_void) = device::destroy_array;
    Release fn cuMipmappedArrayDestroy(array: *mut c_void) = device::destroy_mipmapped_array;
    Release fn cuMemRelease(handle: u64) = vmm::release;
    Release fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) = vmm::retain;
    Release fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) = vmm::map;
    Release fn cuMemUnmap(address: u64, bytes: usize) = vmm::unmap;
    Release fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, pointer: u64) = imports::export;
    Release fn cuIpcCloseMemHandle(pointer: u64) = imports::close;
    Release fn cuDestroyExternalMemory(memory: *mut c_void) = imports::destroy_external;
    Release fn cuMemExportToShareableHandle(
        shareable: *mut c_void, handle: u64, kind: CUmemAllocationHandleType, flags: u64,
    ) = vmm::export;
    Release fn cuMulticastBindMem(
        object: u64, offset: usize, memory: u64, memory_offset: usize, bytes: usize, flags: u64,
    ) = multicast::bind_memory;
    Release fn cuMulticastBindAddr(
        object: u64, offset: usize, address: u64, bytes: usize, flags: u64,
    ) = multicast::bind_address;
    Release fn cuMulticastBindMem_v2(
        object: u64, device: c_int, offset: usize, memory: u64, memory_offset: usize, bytes: usize, flags: u64,
    ) = multicast::bind_memory_on;
    Release fn cuMulticastBindAddr_v2(
        object: u64, device: c_int, offset: usize, address: u64, bytes: usize, flags: u64,
    ) = multicast::bind_address_on;
    Release fn cuMulticastUnbind(
        object: u64, device: c_int, offset: usize, bytes: usize,
    ) = multicast::unbind;
    Release fn cuMemPoolTrimTo(pool: *mut c_void, keep: usize) = pools::trim;
    Release fn cuMemPoolDestroy(pool: *mut c_void) = pools::destroy;
    Release fn cuDeviceSetMemPool(device: c_int, pool: *mut c_void) = pools::set_present;
    Release fn cuMemSetMemPool(
        location: *const CUmemLocation, kind: c_uint, pool: *mut c_void,
    ) = pools::set_present_of;
    Release fn cuDeviceGraphMemTrim(device: c_int) = pools::trim_graphs;
    Wait fn cuCtxSynchronize() = waits::synchronize_current;
    Wait fn cuCtxSynchronize_v2(context: *mut c_void) = waits::synchronize;
    Wait fn cuStreamSynchronize(stream: *mut c_void) = waits::synchronize_stream;
    Wait fn cuStreamSynchronize_ptsz(stream: *mut c_void) = waits::synchronize_stream, per_thread stream;
    Wait fn cuStreamQuery(stream: *mut c_void) = waits::query_stream;
    Wait fn cuStreamQuery_ptsz(stream: *mut c_void) = waits::query_stream, per_thread stream;
    Wait fn cuEventSynchronize(event: *mut c_void) = waits::synchronize;
    Wait fn cuEventQuery(event: *mut c_void) = waits::query_event;
    Wait fn cuMemcpy(to: u64, from: u64, bytes: usize) = waits::copy;
    Wait fn cuMemcpy_ptds(to: u64, from: u64, bytes: usize) = waits::copy;
    Wait fn cuMemcpy2DUnaligned_v2(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpy2DUnaligned_v2_ptds(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpy2D_v2(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpy2D_v2_ptds(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpy3DPeer(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpy3DPeer_ptds(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpy3D_v2(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpy3D_v2_ptds(what: *const c_void) = waits::copy_as_told;
    Wait fn cuMemcpyAtoA_v2(to: *mut c_void, offset: usize, from: *mut c_void, of: usize, bytes: usize) = waits::copy_peer;
    Wait fn cuMemcpyAtoA_v2_ptds(to: *mut c_void, offset: usize, from: *mut c_void, of: usize, bytes: usize) = waits::copy_peer;
    Wait fn cuMemcpyAtoD_v2(to: u64, from: *mut c_void, offset: usize, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyAtoD_v2_ptds(to: u64, from: *mut c_void, offset: usize, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyAtoH_v2(to: *mut c_void, from: *mut c_void, offset: usize, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyAtoH_v2_ptds(to: *mut c_void, from: *mut c_void, offset: usize, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyDtoA_v2(to: *mut c_void, offset: usize, from: u64, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyDtoA_v2_ptds(to: *mut c_void, offset: usize, from: u64, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) = waits::copy;
    Wait fn cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize) = waits::copy;
    Wait fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) = waits::copy;
    Wait fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: u64, bytes: usize) = waits::copy;
    Wait fn cuMemcpyHtoA_v2(to: *mut c_void, offset: usize, from: *const c_void, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyHtoA_v2_ptds(to: *mut c_void, offset: usize, from: *const c_void, bytes: usize) = waits::copy_array;
    Wait fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) = waits::copy;
    Wait fn cuMemcpyHtoD_v2_ptds(to: u64, from: *const c_void, bytes: usize) = waits::copy;
    Wait fn cuMemcpyPeer(to: u64, of: *mut c_void, from: u64, other: *mut c_void, bytes: usize) = waits::copy_peer;
    Wait fn cuMemcpyPeer_ptds(to: u64, of: *mut c_void, from: u64, other: *mut c_void, bytes: usize) = waits::copy_peer;
    Release fn cuCtxDetach(context: *mut c_void) = contexts::detach_context;
    Release fn cuCtxDestroy(context: *mut c_void) = contexts::destroy_context;
    Release fn cuCtxDestroy_v2(context: *mut c_void) = contexts::destroy_context;
    Release fn cuDevicePrimaryCtxRelease(device: c_int) = contexts::leave_primary_context;
    Release fn cuDevicePrimaryCtxRelease_v2(device: c_int) = contexts::leave_primary_context;
    Release fn cuDevicePrimaryCtxReset(device: c_int) = contexts::leave_primary_context;
    Release fn cuDevicePrimaryCtxReset_v2(device: c_int) = contexts::leave_primary_context;

    Launch fn cuLaunchKernel(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) = launch::calls::kernel, straight if fast_path::is_plain, function;
    Launch fn cuLaunchKernel_ptsz(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void, parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) = launch::calls::kernel, per_thread stream, straight if fast_path::is_plain, function;
    Launch fn cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: *mut c_void,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) = launch::calls::kernel_ex;
    Launch fn cuLaunchKernelEx_ptsz(
        config: *const CUlaunchConfig, function: *mut c_void,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    ) = launch::calls::kernel_ex_per_thread;
    Launch fn cuLaunchCooperativeKernel(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void, parameters: *mut *mut c_void,
    ) = launch::calls::cooperative_kernel;
    Launch fn cuLaunchCooperativeKernel_ptsz(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: *mut c_void, parameters: *mut *mut c_void,
    ) = launch::calls::cooperative_kernel, per_thread stream;
    Launch fn cuLaunch(function: *mut c_void) = launch::calls::legacy;
    Launch fn cuLaunchGrid(function: *mut c_void, width: c_int, height: c_int) = launch::calls::legacy_grid;
    Launch fn cuLaunchGridAsync(
        function: *mut c_void, width: c_int, height: c_int, stream: *mut c_void,
    ) = launch::calls::legacy_grid_async;
    Launch fn cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int) = launch::calls::set_attribute;
    Launch fn cuKernelSetAttribute(
        attribute: c_int, value: c_int, kernel: *mut c_void, device: c_int,
    ) = launch::calls::set_kernel_attribute;
    Launch fn cuStreamDestroy(stream: *mut c_void) = waits::destroy_stream;
    Launch fn cuStreamDestroy_v2(stream: *mut c_void) = waits::destroy_stream;
    Launch fn cuModuleUnload(module: *mut c_void) = launch::calls::unload;
    Launch fn cuLibraryUnload(library: *mut c_void) = launch::calls::unload;

    Graph fn cuStreamBeginCapture(stream: *mut c_void) = capture::begin_global;
    Graph fn cuStreamBeginCapture_ptsz(stream: *mut c_void) = capture::begin_global;
    Graph fn cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint) = capture::begin;
    Graph fn cuStreamBeginCapture_v2_ptsz(stream: *mut c_void, mode: c_uint) = capture::begin;
    Graph fn cuStreamBeginCaptureToGraph(
        stream: *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, edges: *const c_void,
        count: usize, mode: c_uint,
    ) = capture::begin_to_graph;
    Graph fn cuStreamBeginCaptureToGraph_ptsz(
        stream: *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, edges: *const c_void,
        count: usize, mode: c_uint,
    ) = capture::begin_to_graph;
    Graph fn cuStreamBeginCaptureToCig(stream: *mut c_void, parameters: *mut c_void) = capture::begin_to_cig;
    Graph fn cuStreamBeginCaptureToCig_ptsz(stream: *mut c_void, parameters: *mut c_void) = capture::begin_to_cig;
    Graph fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) = capture::end;
    Graph fn cuStreamEndCapture_ptsz(stream: *mut c_void, graph: *mut *mut c_void) = capture::end;
    Graph fn cuStreamEndCaptureToCig(stream: *mut c_void) = capture::end_to_cig;
    Graph fn cuStreamEndCaptureToCig_ptsz(stream: *mut c_void) = capture::end_to_cig;
    Graph fn cuGraphInstantiate(
        executable: *mut *mut c_void, graph: *mut c_void, bad_node: *mut *mut c_void, log: *mut c_char, bytes: usize,
    ) = graph::exec::instantiate;
    Graph fn cuGraphInstantiate_v2(
        executable: *mut *mut c_void, graph: *mut c_void, bad_node: *mut *mut c_void, log: *mut c_char, bytes: usize,
    ) = graph::exec::instantiate;
    Graph fn cuGraphInstantiateWithFlags(
        executable: *mut *mut c_void, graph: *mut c_void, flags: u64,
    ) = graph::exec::instantiate_with_flags;
    Graph fn cuGraphInstantiateWithParams(
        executable: *mut *mut c_void, graph: *mut c_void, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) = graph::exec::instantiate_with_params;
    Graph fn cuGraphInstantiateWithParams_ptsz(
        executable: *mut *mut c_void, graph: *mut c_void, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) = graph::exec::instantiate_with_params;
    Graph fn cuGraphLaunch(executable: *mut c_void, stream: *mut c_void) = graph::exec::launch;
    Graph fn cuGraphLaunch_ptsz(executable: *mut c_void, stream: *mut c_void) = graph::exec::launch, per_thread stream;
    Graph fn cuGraphUpload(executable: *mut c_void, stream: *mut c_void) = graph::exec::upload;
    Graph fn cuGraphUpload_ptsz(executable: *mut c_void, stream: *mut c_void) = graph::exec::upload, per_thread stream;
    Graph fn cuGraphExecUpdate(
        executable: *mut c_void, graph: *mut c_void, bad_node: *mut *mut c_void, result: *mut c_uint,
    ) = graph::change::update;
    Graph fn cuGraphExecUpdate_v2(
        executable: *mut c_void, graph: *mut c_void, result: *mut CUgraphExecUpdateResultInfo,
    ) = graph::change::update_v2;
    Graph fn cuGraphExecKernelNodeSetParams(
        executable: *mut c_void, node: *mut c_void, parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) = graph::change::set_kernel;
    Graph fn cuGraphExecKernelNodeSetParams_v2(
        executable: *mut c_void, node: *mut c_void, parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
    ) = graph::change::set_kernel_v2;
    Graph fn cuGraphExecNodeSetParams(
        executable: *mut c_void, node: *mut c_void, parameters: *mut CUgraphNodeParams,
    ) = graph::change::set_node;
    Graph fn cuGraphExecChildGraphNodeSetParams(
        executable: *mut c_void, node: *mut c_void, graph: *mut c_void,
    ) = graph::change::set_child;
    Graph fn cuGraphNodeSetEnabled(
        executable: *mut c_void, node: *mut c_void, enabled: c_uint,
    ) = graph::change::set_enabled;
    Graph fn cuGraphAddKernelNode(
        node: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v1,
    ) = graph::place::add_kernel;
    Graph fn cuGraphAddKernelNode_v2(
        node: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, count: usize,
        parameters: *const CUDA_KERNEL_NODE_PARAMS_v2,
    ) = graph::place::add_kernel_v2;
    Graph fn cuGraphAddChildGraphNode(
        node: *mut *mut c_void, graph: *mut c_void, dependencies: *const *mut c_void, count: usize,
        child: *mut c_void,
    ) = graph::place::add_child;
    Graph fn cuGraphClone(copy: *mut *mut c_void, graph: *mut c_void) = graph::place::clone;
    Graph fn cuGraphExecDestroy(executable: *mut c_void) = graph::exec::destroy_executable;
    Graph fn cuGraphDestroy(graph: *mut c_void) = graph::exec::destroy_graph;

    Refuse fn cuLaunchCooperativeKernelMultiDevice(
        launches: *mut c_void, devices: c_uint, flags: c_uint,
    ) = launch::calls::multi_device;
    Refuse fn cuLogicalEndpointBindAddr(
        endpoint: c_uint, device: c_int, offset: u64, address: *mut c_void, bytes: u64, flags: u64,
    ) = imports::bind_endpoint_address;
    Refuse fn cuLogicalEndpointBindMem(
        endpoint: c_uint, device: c_int, offset: u64, memory: u64, memory_offset: u64, bytes: u64, flags: u64,
    ) = imports::bind_endpoint_memory;
    Refuse fn cuMemMapArrayAsync(list: *mut c_void, count: c_uint, stream: *mut c_void) = imports::map_array;
    Refuse fn cuMemMapArrayAsync_ptsz(list: *mut c_void, count: c_uint, stream: *mut c_void) = imports::map_array;
}

/// The row of an exported name.
pub fn row(name: &[u8]) -> Option<&'static Row> {
    // Some hundred rows, looked up only while a program resolves its symbols.
    ROWS.iter().copied().find(|row| row.name.to_bytes() == name)
}

/// Loads the driver, unless that was done before; whether it is there.
#[cold]
pub fn load() -> bool {
    real::load(ROWS)
}
