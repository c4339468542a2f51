//! The hook's table: one row for each wrapped export of libcuda.
//!
//! [`hooks!`] checks a row against the table of all exports and turns it into
//! three things that therefore cannot disagree: the exported C function, its
//! entry in [`ROWS`] (which `dlsym` and `cuGetProcAddress` answer from), and the
//! typed pointer to the driver's own function that the row's body receives. The arguments are
//! those of [`partita_abi::prototypes`].
//!
//! `per_thread` gives the body the stream by the name that it has for all calls: to those whose
//! names end in `_ptsz` null means the thread's own. `copied` and `filled` count the call as a copy
//! in its stream, or in the default stream. `straight if CONDITION` spares a call the body
//! where the condition holds for its first argument and its stream. `made` and `primary` say which
//! contexts the program has.

use partita_abi::exports::{self, Policy};
use partita_abi::prototypes;
use partita_abi::types::*;

use crate::account::tenant;
use crate::driver::row::Row;
use crate::driver::{capture, real, stream};
use crate::entry::resolve;
use crate::gate::{pieces, waits};
use crate::holder::{Opening, fences};
use crate::launch::{fast_path, green, occupancy, query, subscribers};
use crate::memory::driver_memory::Charging;
use crate::memory::{device, graph_memory, holdings, imports, managed, multicast, pools, stream_memory, vmm};
use crate::persistent::{function, load as code};
use crate::session::{attach, contexts};
use crate::slots::finished;
use crate::{graph, launch};

/// What a row's function does: its body, or the driver's call alone.
macro_rules! go_on {
    (, $real:expr, $($argument:expr),*) => { $real($($argument),*) };
    ($body:path, $real:expr, $($argument:expr),*) => { $body($real, $($argument),*) };
}

/// Whether a row has this call go to the driver as it is.
macro_rules! is_straight {
    (; $prototype:tt) => {
        false
    };
    ($condition:path; ($first:ident $($rest:tt)*)) => {
        $condition($first, stream_of! { ($($rest)*) })
    };
}

/// The stream among a call's arguments.
macro_rules! stream_of {
    (($stream:ident: CUstream $($rest:tt)*)) => { $stream };
    (($skipped:tt $($rest:tt)*)) => { stream_of! { ($($rest)*) } };
}

/// What a row has done before its body.
macro_rules! prepare {
    (straight $prototype:tt) => {};
    (made $prototype:tt) => { finished::context_made(); };
    (primary $prototype:tt) => { finished::primary_used(); };
    (copied $prototype:tt) => { fences::count_copy(stream_of!($prototype)); };
    (filled $prototype:tt) => { fences::count_copy(core::ptr::null_mut()); };
    (filled_per_thread $prototype:tt) => { fences::count_copy(stream::per_thread(core::ptr::null_mut())); };
    (per_thread ($stream:ident: CUstream $($rest:tt)*)) => { let $stream = stream::per_thread($stream); };
    (per_thread ($skipped:tt $($rest:tt)*)) => { prepare! { per_thread ($($rest)*) } };
}

/// A row's exported function.
macro_rules! exported {
    ($prototype:tt $name:ident $($condition:path)?) => {
        exported! { @ $prototype $prototype $name $($condition)? }
    };
    (@ ($($argument:ident: $type:ty),* $(,)?) $prototype:tt $name:ident $($condition:path)?) => {
        #[doc = concat!("Wraps `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As the driver documents for the call of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: Raw<$type>),*) -> CuResult {
            let mut call: prototypes::$name = wrapped::$name;
            if is_straight!($($condition)?; $prototype) {
                let real = rows::$name.real_to_call();
                if !real.is_null() {
                    // SAFETY: as in `wrapped`.
                    call = unsafe { core::mem::transmute::<*mut c_void, prototypes::$name>(real) };
                }
            }
            // One call for both, of which the compiler makes a jump: the arguments stay where
            // they are. SAFETY: the caller keeps the contract of the driver's call.
            unsafe { call($($argument),*) }
        }
    };
}

/// What a row's call does that does not go straight to the driver.
macro_rules! wrapped {
    ($prototype:tt $name:ident $policy:ident [$($body:path)?] $($how:ident)*) => {
        wrapped! { @ $prototype $prototype $name $policy [$($body)?] $($how)* }
    };
    (@ ($($argument:ident: $type:ty),* $(,)?) $prototype:tt
     $name:ident $policy:ident [$($body:path)?] $($how:ident)*) => {
        pub unsafe extern "C" fn $name($($argument: Raw<$type>),*) -> CuResult {
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
            // SAFETY: the address was resolved under this very name, whose
            // prototype in cuda.h this is.
            let real = unsafe { core::mem::transmute::<*mut c_void, prototypes::$name>(real) };
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
            $(prepare! { $how $prototype })*
            let _opening = Opening::begin(
                matches!(Policy::$policy, Policy::Attach | Policy::Context),
                matches!(Policy::$policy, Policy::Context),
            );
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
    };
}

macro_rules! hooks {
    ($($policy:ident $name:ident $(= $body:path)? $(, $how:ident $(if $condition:path)?)*;)*) => {
        $(partita_abi::prototype! { $name => exported! { $name $($($condition)?)* } })*

        /// What the calls do that do not go straight to the driver.
        mod wrapped {
            #![allow(non_snake_case)]
            use super::*;
            $(partita_abi::prototype! { $name => wrapped! { $name $policy [$($body)?] $($how)* } })*
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
    Attach cuInit = attach::init;

    Resolve cuGetProcAddress = resolve::get_proc_address;
    Resolve cuGetProcAddress_v2 = resolve::get_proc_address_v2;

    Resolve cuGetExportTable = subscribers::get_export_table;
    Context cuCtxCreate, made;
    Context cuCtxCreate_v2, made;
    Context cuCtxCreate_v3, made;
    Context cuCtxCreate_v4, made;
    Context cuDevicePrimaryCtxRetain, primary;
    Context cuGreenCtxCreate = green::create;

    Query cuMemGetInfo = query::mem_info;
    Query cuMemGetInfo_v2 = query::mem_info;
    Query cuDeviceTotalMem = query::total_mem;
    Query cuDeviceTotalMem_v2 = query::total_mem;

    Query cuDeviceGetDevResource = green::device_resource;
    Query cuCtxGetDevResource = green::context_resource;
    Query cuGreenCtxGetDevResource = green::green_resource;
    Query cuStreamGetDevResource = green::stream_resource;
    Query cuStreamGetDevResource_ptsz = green::stream_resource, per_thread;
    Query cuDevSmResourceSplitByCount = green::split_by_count;
    Query cuDevSmResourceSplit = green::split;
    Query cuDevResourceGenerateDesc = green::describe;
    Release cuGreenCtxDestroy = green::destroy;

    Query cuDeviceGetAttribute = query::device_attribute;
    Query cuOccupancyMaxPotentialBlockSize = query::potential_block_size;
    Query cuOccupancyMaxPotentialBlockSizeWithFlags = query::potential_block_size_with_flags;
    Query cuOccupancyMaxActiveClusters = occupancy::active_clusters;
    Query cuOccupancyMaxPotentialClusterSize = occupancy::potential_cluster_size;

    Query cuFuncGetAttribute = function::attribute;
    Query cuKernelGetAttribute = function::kernel_attribute;
    Query cuFuncGetParamInfo = function::parameter_info;
    Query cuKernelGetParamInfo = function::parameter_info;
    Query cuFuncGetParamCount = function::parameter_count;
    Query cuKernelGetParamCount = function::parameter_count;

    Load cuModuleLoad = code::file;
    Load cuModuleLoadData = code::data;
    Load cuModuleLoadDataEx = code::data_ex;
    Load cuModuleLoadFatBinary = code::fat_binary;
    Load cuLibraryLoadData = code::library;
    Load cuLibraryLoadFromFile = code::library_file;
    Load cuLinkAddData = code::link_data;
    Load cuLinkAddData_v2 = code::link_data;
    Load cuLinkAddFile = code::link_file;
    Load cuLinkAddFile_v2 = code::link_file;
    Load cuLinkComplete = code::link_complete;

    Query cuMemPrefetchAsync = managed::prefetch;
    Query cuMemPrefetchAsync_ptsz = managed::prefetch;
    Query cuMemPrefetchAsync_v2 = managed::prefetch_to;
    Query cuMemPrefetchAsync_v2_ptsz = managed::prefetch_to;
    Query cuMemAdvise = managed::advise;
    Query cuMemAdvise_v2 = managed::advise;
    Query cuStreamAttachMemAsync = managed::attach;
    Query cuStreamAttachMemAsync_ptsz = managed::attach;
    Query cuMemPrefetchBatchAsync = managed::prefetch_batch;
    Query cuMemPrefetchBatchAsync_ptsz = managed::prefetch_batch;
    Query cuMemDiscardAndPrefetchBatchAsync = managed::prefetch_batch;
    Query cuMemDiscardAndPrefetchBatchAsync_ptsz = managed::prefetch_batch;
    Query cuMemDiscardBatchAsync = managed::discard_batch;
    Query cuMemDiscardBatchAsync_ptsz = managed::discard_batch;

    Charge cuMemAlloc = device::alloc;
    Charge cuMemAlloc_v2 = device::alloc;
    Charge cuMemAllocPitch = device::alloc_pitch;
    Charge cuMemAllocPitch_v2 = device::alloc_pitch;
    Charge cuMemAllocManaged = device::alloc_managed;
    Charge cuMemAllocAsync = stream_memory::alloc_async;
    Charge cuMemAllocAsync_ptsz = stream_memory::alloc_async, per_thread;
    Charge cuMemAllocFromPoolAsync = stream_memory::alloc_from_pool;
    Charge cuMemAllocFromPoolAsync_ptsz = stream_memory::alloc_from_pool, per_thread;
    Charge cuArrayCreate = device::array;
    Charge cuArrayCreate_v2 = device::array;
    Charge cuArray3DCreate = device::array;
    Charge cuArray3DCreate_v2 = device::array;
    Charge cuMipmappedArrayCreate = device::mipmapped_array;
    Charge cuIpcOpenMemHandle = imports::open;
    Charge cuIpcOpenMemHandle_v2 = imports::open;
    Charge cuImportExternalMemory = imports::import_external;
    Charge cuMemImportFromShareableHandle = vmm::import;
    Charge cuCtxSetLimit = imports::set_limit;
    Charge cuGraphAddMemAllocNode = graph::add::add_memory_node;
    Charge cuGraphAddNode = graph::add::add_node;
    Charge cuGraphAddNode_v2 = graph::add::add_node_v2;
    Charge cuGraphAddNode_v3 = graph::add::add_node_v2;
    Charge cuMemCreate = vmm::create;

    Release cuMemFree = device::free;
    Release cuMemFree_v2 = device::free;
    Release cuMemFreeAsync = stream_memory::free_async;
    Release cuMemFreeAsync_ptsz = stream_memory::free_async, per_thread;
    Release cuArrayDestroy = device::destroy_array;
    Release cuMipmappedArrayDestroy = device::destroy_mipmapped_array;
    Release cuMemRelease = vmm::release;
    Release cuMemRetainAllocationHandle = vmm::retain;
    Release cuMemMap = vmm::map;
    Release cuMemUnmap = vmm::unmap;
    Release cuIpcGetMemHandle = imports::export;
    Release cuIpcCloseMemHandle = imports::close;
    Release cuDestroyExternalMemory = imports::destroy_external;
    Release cuMemExportToShareableHandle = vmm::export;
    Release cuMulticastBindMem = multicast::bind_memory;
    Release cuMulticastBindAddr = multicast::bind_address;
    Release cuMulticastBindMem_v2 = multicast::bind_memory_on;
    Release cuMulticastBindAddr_v2 = multicast::bind_address_on;
    Release cuMulticastUnbind = multicast::unbind;
    Release cuMemPoolTrimTo = pools::trim;
    Release cuMemPoolDestroy = pools::destroy;
    Release cuDeviceSetMemPool = pools::set_present;
    Release cuMemSetMemPool = pools::set_present_of;
    Release cuDeviceGraphMemTrim = pools::trim_graphs;
    Wait cuCtxSynchronize = waits::synchronize_current;
    Wait cuCtxSynchronize_v2 = waits::synchronize_context;
    Wait cuStreamSynchronize = waits::synchronize_stream;
    Wait cuStreamSynchronize_ptsz = waits::synchronize_stream, per_thread;
    Wait cuStreamQuery = waits::query_stream;
    Wait cuStreamQuery_ptsz = waits::query_stream, per_thread;
    Wait cuEventSynchronize = waits::synchronize;
    Wait cuEventQuery = waits::query_event;
    Wait cuMemcpy = waits::copy;
    Wait cuMemcpy_ptds = waits::copy;
    Wait cuMemcpy2DUnaligned_v2 = waits::copy_as_told;
    Wait cuMemcpy2DUnaligned_v2_ptds = waits::copy_as_told;
    Wait cuMemcpy2D_v2 = waits::copy_as_told;
    Wait cuMemcpy2D_v2_ptds = waits::copy_as_told;
    Wait cuMemcpy3DPeer = waits::copy_as_told;
    Wait cuMemcpy3DPeer_ptds = waits::copy_as_told;
    Wait cuMemcpy3D_v2 = waits::copy_as_told;
    Wait cuMemcpy3D_v2_ptds = waits::copy_as_told;
    Wait cuMemcpyAtoA_v2 = waits::copy_peer;
    Wait cuMemcpyAtoA_v2_ptds = waits::copy_peer;
    Wait cuMemcpyAtoD_v2 = waits::copy_array;
    Wait cuMemcpyAtoD_v2_ptds = waits::copy_array;
    Wait cuMemcpyAtoH_v2 = waits::copy_array;
    Wait cuMemcpyAtoH_v2_ptds = waits::copy_array;
    Wait cuMemcpyDtoA_v2 = waits::copy_array;
    Wait cuMemcpyDtoA_v2_ptds = waits::copy_array;
    Wait cuMemcpyDtoD_v2 = waits::copy;
    Wait cuMemcpyDtoD_v2_ptds = waits::copy;
    Wait cuMemcpyDtoH_v2 = pieces::to_host_now::<{ stream::LEGACY }>;
    Wait cuMemcpyDtoH_v2_ptds = pieces::to_host_now::<{ stream::PER_THREAD }>;
    Wait cuMemcpyHtoA_v2 = waits::copy_array;
    Wait cuMemcpyHtoA_v2_ptds = waits::copy_array;
    Wait cuMemcpyHtoD_v2 = pieces::to_device_now::<{ stream::LEGACY }>;
    Wait cuMemcpyHtoD_v2_ptds = pieces::to_device_now::<{ stream::PER_THREAD }>;
    Wait cuMemcpyPeer = waits::copy_peer;
    Wait cuMemcpyPeer_ptds = waits::copy_peer;
    Release cuCtxDetach = contexts::detach_context;
    Release cuCtxDestroy = contexts::destroy_context;
    Release cuCtxDestroy_v2 = contexts::destroy_context;
    Release cuDevicePrimaryCtxRelease = contexts::leave_primary_context;
    Release cuDevicePrimaryCtxRelease_v2 = contexts::leave_primary_context;
    Release cuDevicePrimaryCtxReset = contexts::leave_primary_context;
    Release cuDevicePrimaryCtxReset_v2 = contexts::leave_primary_context;

    Copy cuMemBatchDecompressAsync, copied;
    Copy cuMemBatchDecompressAsync_ptsz, per_thread, copied;
    Copy cuMemcpy2DAsync_v2, copied;
    Copy cuMemcpy2DAsync_v2_ptsz, per_thread, copied;
    Copy cuMemcpy3DAsync_v2, copied;
    Copy cuMemcpy3DAsync_v2_ptsz, per_thread, copied;
    Copy cuMemcpy3DBatchAsync, copied;
    Copy cuMemcpy3DBatchAsync_ptsz, per_thread, copied;
    Copy cuMemcpy3DBatchAsync_v2, copied;
    Copy cuMemcpy3DBatchAsync_v2_ptsz, per_thread, copied;
    Copy cuMemcpy3DPeerAsync, copied;
    Copy cuMemcpy3DPeerAsync_ptsz, per_thread, copied;
    Copy cuMemcpyAsync = pieces::either_way, copied;
    Copy cuMemcpyAsync_ptsz = pieces::either_way, per_thread, copied;
    Copy cuMemcpyAtoHAsync_v2, copied;
    Copy cuMemcpyAtoHAsync_v2_ptsz, per_thread, copied;
    Copy cuMemcpyBatchAsync, copied;
    Copy cuMemcpyBatchAsync_ptsz, per_thread, copied;
    Copy cuMemcpyBatchAsync_v2, copied;
    Copy cuMemcpyBatchAsync_v2_ptsz, per_thread, copied;
    Copy cuMemcpyDtoDAsync_v2, copied;
    Copy cuMemcpyDtoDAsync_v2_ptsz, per_thread, copied;
    Copy cuMemcpyDtoHAsync_v2 = pieces::to_host, copied;
    Copy cuMemcpyDtoHAsync_v2_ptsz = pieces::to_host, per_thread, copied;
    Copy cuMemcpyHtoAAsync_v2, copied;
    Copy cuMemcpyHtoAAsync_v2_ptsz, per_thread, copied;
    Copy cuMemcpyHtoDAsync_v2 = pieces::to_device, copied;
    Copy cuMemcpyHtoDAsync_v2_ptsz = pieces::to_device, per_thread, copied;
    Copy cuMemcpyPeerAsync, copied;
    Copy cuMemcpyPeerAsync_ptsz, per_thread, copied;
    Copy cuMemsetD16Async, copied;
    Copy cuMemsetD16Async_ptsz, per_thread, copied;
    Copy cuMemsetD16_v2, filled;
    Copy cuMemsetD16_v2_ptds, filled_per_thread;
    Copy cuMemsetD2D16Async, copied;
    Copy cuMemsetD2D16Async_ptsz, per_thread, copied;
    Copy cuMemsetD2D16_v2, filled;
    Copy cuMemsetD2D16_v2_ptds, filled_per_thread;
    Copy cuMemsetD2D32Async, copied;
    Copy cuMemsetD2D32Async_ptsz, per_thread, copied;
    Copy cuMemsetD2D32_v2, filled;
    Copy cuMemsetD2D32_v2_ptds, filled_per_thread;
    Copy cuMemsetD2D8Async, copied;
    Copy cuMemsetD2D8Async_ptsz, per_thread, copied;
    Copy cuMemsetD2D8_v2, filled;
    Copy cuMemsetD2D8_v2_ptds, filled_per_thread;
    Copy cuMemsetD32Async, copied;
    Copy cuMemsetD32Async_ptsz, per_thread, copied;
    Copy cuMemsetD32_v2, filled;
    Copy cuMemsetD32_v2_ptds, filled_per_thread;
    Copy cuMemsetD8Async, copied;
    Copy cuMemsetD8Async_ptsz, per_thread, copied;
    Copy cuMemsetD8_v2, filled;
    Copy cuMemsetD8_v2_ptds, filled_per_thread;
    Copy cuMemcpy3DWithAttributesAsync, copied;
    Copy cuMemcpy3DWithAttributesAsync_ptsz, per_thread, copied;
    Copy cuMemcpyWithAttributesAsync, copied;
    Copy cuMemcpyWithAttributesAsync_ptsz, per_thread, copied;
    Copy cuFabricCpyBatchAsync, copied;
    Copy cuFabricCpyBatchAsync_ptsz, per_thread, copied;

    Launch cuLaunchKernel = launch::calls::kernel, straight if fast_path::is_plain;
    Launch cuLaunchKernel_ptsz = launch::calls::kernel, per_thread,
        straight if fast_path::is_plain_per_thread;
    Launch cuLaunchKernelEx = launch::calls::kernel_ex;
    Launch cuLaunchKernelEx_ptsz = launch::calls::kernel_ex_per_thread;
    Launch cuLaunchCooperativeKernel = launch::calls::cooperative_kernel;
    Launch cuLaunchCooperativeKernel_ptsz = launch::calls::cooperative_kernel, per_thread;
    Launch cuLaunch = launch::calls::legacy;
    Launch cuLaunchGrid = launch::calls::legacy_grid;
    Launch cuLaunchGridAsync = launch::calls::legacy_grid_async;
    Launch cuFuncSetAttribute = launch::calls::set_attribute;
    Launch cuKernelSetAttribute = launch::calls::set_kernel_attribute;
    Launch cuStreamCreate = launch::calls::create_stream;
    Launch cuStreamCreateWithPriority = launch::calls::create_stream_with_priority;
    Launch cuGreenCtxStreamCreate = launch::calls::create_green_stream;
    Launch cuStreamDestroy = waits::destroy_stream;
    Launch cuStreamDestroy_v2 = waits::destroy_stream;
    Launch cuModuleUnload = launch::calls::unload;
    Launch cuLibraryUnload = launch::calls::unload;

    Graph cuStreamBeginCapture = capture::begin_global;
    Graph cuStreamBeginCapture_ptsz = capture::begin_global;
    Graph cuStreamBeginCapture_v2 = capture::begin;
    Graph cuStreamBeginCapture_v2_ptsz = capture::begin;
    Graph cuStreamBeginCaptureToGraph = capture::begin_to_graph;
    Graph cuStreamBeginCaptureToGraph_ptsz = capture::begin_to_graph;
    Graph cuStreamBeginCaptureToCig = capture::begin_to_cig;
    Graph cuStreamBeginCaptureToCig_ptsz = capture::begin_to_cig;
    Graph cuStreamEndCapture = capture::end;
    Graph cuStreamEndCapture_ptsz = capture::end;
    Graph cuStreamEndCaptureToCig = capture::end_to_cig;
    Graph cuStreamEndCaptureToCig_ptsz = capture::end_to_cig;
    Graph cuGraphInstantiate = graph::exec::instantiate;
    Graph cuGraphInstantiate_v2 = graph::exec::instantiate;
    Graph cuGraphInstantiateWithFlags = graph::exec::instantiate_with_flags;
    Graph cuGraphInstantiateWithParams = graph::exec::instantiate_with_params;
    Graph cuGraphInstantiateWithParams_ptsz = graph::exec::instantiate_with_params;
    Graph cuGraphLaunch = graph::exec::launch;
    Graph cuGraphLaunch_ptsz = graph::exec::launch, per_thread;
    Graph cuGraphUpload = graph::exec::upload;
    Graph cuGraphUpload_ptsz = graph::exec::upload, per_thread;
    Graph cuGraphExecUpdate = graph::change::update;
    Graph cuGraphExecUpdate_v2 = graph::change::update_v2;
    Graph cuGraphExecKernelNodeSetParams = graph::change::set_kernel;
    Graph cuGraphExecKernelNodeSetParams_v2 = graph::change::set_kernel_v2;
    Graph cuGraphExecNodeSetParams = graph::change::set_node;
    Graph cuGraphExecChildGraphNodeSetParams = graph::change::set_child;
    Graph cuGraphExecMemcpyNodeSetParams = graph::change::set_copy;
    Graph cuGraphExecMemsetNodeSetParams = graph::change::set_fill;
    Graph cuGraphNodeSetEnabled = graph::change::set_enabled;
    Graph cuGraphNodeGetEnabled = graph::change::get_enabled;
    Graph cuGraphAddDependencies = graph::edits::add_edges;
    Graph cuGraphAddDependencies_v2 = graph::edits::add_edges_v2;
    Graph cuGraphRemoveDependencies = graph::edits::remove_edges;
    Graph cuGraphRemoveDependencies_v2 = graph::edits::remove_edges_v2;
    Graph cuGraphDestroyNode = graph::edits::destroy_node;
    Graph cuGraphMemcpyNodeSetParams = graph::edits::set_copy;
    Graph cuGraphMemsetNodeSetParams = graph::edits::set_fill;
    Graph cuGraphKernelNodeSetAttribute = graph::edits::set_attribute;
    Graph cuGraphKernelNodeCopyAttributes = graph::edits::copy_attributes;
    Graph cuGraphKernelNodeSetParams = graph::place::set_kernel;
    Graph cuGraphKernelNodeSetParams_v2 = graph::place::set_kernel_v2;
    Graph cuGraphNodeSetParams = graph::place::set_node;
    Graph cuGraphAddKernelNode = graph::place::add_kernel;
    Graph cuGraphAddKernelNode_v2 = graph::place::add_kernel_v2;
    Graph cuGraphAddChildGraphNode = graph::place::add_child;
    Graph cuGraphClone = graph::place::clone;
    Graph cuGraphExecDestroy = graph::exec::destroy_executable;
    Graph cuGraphDestroy = graph::exec::destroy_graph;

    Refuse cuLaunchCooperativeKernelMultiDevice = launch::calls::multi_device;
    Refuse cuLogicalEndpointBindAddr = imports::bind_endpoint_address;
    Refuse cuLogicalEndpointBindMem = imports::bind_endpoint_memory;
    Refuse cuMemMapArrayAsync = imports::map_array;
    Refuse cuMemMapArrayAsync_ptsz = imports::map_array;
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
