//! Every export of libcuda, and what the hook does with it.
//!
//! One row for each of the 707 names that libcuda 580.159.04 (CUDA 13.0) exports, listed with `nm
//! -D` on 2026-11-21. Tests compare the hook's own table with this one, and this one with the
//! exports of the installed library: `doctor` reports a name that is not here as new.

/// What the hook does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The process attaches to its tenant in this call (`cuInit`).
    Attach,
    /// Returns entry points; the hook substitutes its own functions.
    Resolve,
    /// Creates a context, without which a process cannot use a GPU: passed through, but only if the
    /// process is part of its tenant.
    Context,
    /// Answered with the tenant's quota in place of the device's total, or with what its partition
    /// can run; or by the hook alone for host memory that replaces device memory.
    Query,
    /// Allocates device memory; the hook reserves it in the ledger before it calls the driver.
    Charge,
    /// Releases memory, or changes what holds it.
    Release,
    /// Waits for work on the GPU, or queries whether it is done. Before the call goes to the
    /// driver, the gate opens behind the program's launches; after a synchronisation, memory that
    /// pools have released is credited.
    Wait,
    /// Copies or fills memory and does not wait for it: counted, so that the holder of the dead
    /// knows of copies in flight.
    Copy,
    /// Launches work that can be too large for a partition: checked at the call, then masked by the
    /// launch callback. Or creates or destroys a stream; the hook counts the streams with work.
    Launch,
    /// Loads code: rewritten for tenants whose kernels are persistent blocks.
    Load,
    /// Creates, changes or destroys an executable graph. Its kernels keep the mask with which they
    /// were uploaded, so the hook tracks them: after the limits change, it updates them before the
    /// next launch. Or begins or ends a capture, which must not contain any work of the hook.
    Graph,
    /// A way around a limit that the hook does not account for yet: refused, if that limit is set,
    /// with an error that the call documents.
    Refuse,
    /// Passed through unchanged.
    Pass,
}

impl Policy {
    /// Whether the hook wraps calls of this kind.
    pub const fn is_wrapped(self) -> bool {
        !matches!(self, Policy::Pass)
    }
}

/// One row of [`EXPORTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// The exported name, version and per-thread suffixes included.
    pub name: &'static str,
    /// What the hook does with it.
    pub policy: Policy,
}

macro_rules! exports {
    ($($policy:ident { $($name:ident)* })*) => {
        /// Every export of libcuda, grouped by policy and sorted by name within
        /// a group.
        pub const EXPORTS: &[Export] = &[
            $($(Export { name: stringify!($name), policy: Policy::$policy },)*)*
        ];
    };
}

exports! {
    // the first call: the hook attaches to its tenant here
    Attach {
        cuInit
    }
    // returns entry points: the hook's own where it has one
    Resolve {
        cuGetExportTable cuGetProcAddress cuGetProcAddress_v2
    }
    // creates a context: passed through if the process is part of its tenant
    Context {
        cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuDevicePrimaryCtxRetain cuGreenCtxCreate
    }
    // answers with the quota, or the partition, instead of the device; does nothing for managed
    // memory that stays on the host
    Query {
        cuCtxGetDevResource cuDevResourceGenerateDesc cuDevSmResourceSplitByCount cuDeviceGetAttribute
        cuDeviceGetDevResource cuDeviceTotalMem cuDeviceTotalMem_v2 cuFuncGetAttribute cuFuncGetParamInfo
        cuGreenCtxGetDevResource cuKernelGetAttribute cuKernelGetParamInfo cuMemAdvise cuMemAdvise_v2
        cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz cuMemDiscardBatchAsync
        cuMemDiscardBatchAsync_ptsz cuMemGetInfo cuMemGetInfo_v2 cuMemPrefetchAsync cuMemPrefetchAsync_ptsz
        cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz cuMemPrefetchBatchAsync
        cuMemPrefetchBatchAsync_ptsz cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSize
        cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize cuStreamAttachMemAsync
        cuStreamAttachMemAsync_ptsz
    }
    // allocates device memory: reserved in the ledger first
    Charge {
        cuArray3DCreate cuArray3DCreate_v2 cuArrayCreate cuArrayCreate_v2 cuCtxSetLimit
        cuGraphAddMemAllocNode cuGraphAddNode cuGraphAddNode_v2 cuImportExternalMemory cuIpcOpenMemHandle
        cuIpcOpenMemHandle_v2 cuMemAlloc cuMemAllocAsync cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync
        cuMemAllocFromPoolAsync_ptsz cuMemAllocManaged cuMemAllocPitch cuMemAllocPitch_v2 cuMemAlloc_v2
        cuMemCreate cuMemImportFromShareableHandle cuMipmappedArrayCreate
    }
    // releases memory, or changes who holds it
    Release {
        cuArrayDestroy cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach cuDestroyExternalMemory cuDeviceGraphMemTrim
        cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset
        cuDevicePrimaryCtxReset_v2 cuDeviceSetMemPool cuGreenCtxDestroy cuIpcCloseMemHandle cuIpcGetMemHandle
        cuMemExportToShareableHandle cuMemFree cuMemFreeAsync cuMemFreeAsync_ptsz cuMemFree_v2 cuMemMap
        cuMemPoolDestroy cuMemPoolTrimTo cuMemRelease cuMemRetainAllocationHandle cuMemSetMemPool cuMemUnmap
        cuMipmappedArrayDestroy cuMulticastBindAddr cuMulticastBindMem cuMulticastUnbind
    }
    // waits for work on the GPU, or queries whether it is done
    Wait {
        cuCtxSynchronize cuCtxSynchronize_v2 cuEventQuery cuEventSynchronize cuMemcpy cuMemcpy2DUnaligned_v2
        cuMemcpy2DUnaligned_v2_ptds cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy3DPeer cuMemcpy3DPeer_ptds
        cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds cuMemcpyAtoD_v2
        cuMemcpyAtoD_v2_ptds cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds
        cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyHtoA_v2
        cuMemcpyHtoA_v2_ptds cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyPeer cuMemcpyPeer_ptds
        cuMemcpy_ptds cuStreamQuery cuStreamQuery_ptsz cuStreamSynchronize cuStreamSynchronize_ptsz
    }
    // copies or fills memory and does not wait: counted
    Copy {
        cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz
        cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz
        cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz
        cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz cuMemcpyBatchAsync
        cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz cuMemcpyDtoDAsync_v2
        cuMemcpyDtoDAsync_v2_ptsz cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyHtoAAsync_v2
        cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemcpyPeerAsync
        cuMemcpyPeerAsync_ptsz cuMemsetD16Async cuMemsetD16Async_ptsz cuMemsetD16_v2 cuMemsetD16_v2_ptds
        cuMemsetD2D16Async cuMemsetD2D16Async_ptsz cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds cuMemsetD2D32Async
        cuMemsetD2D32Async_ptsz cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds cuMemsetD2D8Async
        cuMemsetD2D8Async_ptsz cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds cuMemsetD32Async cuMemsetD32Async_ptsz
        cuMemsetD32_v2 cuMemsetD32_v2_ptds cuMemsetD8Async cuMemsetD8Async_ptsz cuMemsetD8_v2
        cuMemsetD8_v2_ptds
    }
    // launches work that may not fit the partition: checked, then masked; or creates or destroys a
    // stream
    Launch {
        cuFuncSetAttribute cuGreenCtxStreamCreate cuKernelSetAttribute cuLaunch cuLaunchCooperativeKernel
        cuLaunchCooperativeKernel_ptsz cuLaunchGrid cuLaunchGridAsync cuLaunchKernel cuLaunchKernelEx
        cuLaunchKernelEx_ptsz cuLaunchKernel_ptsz cuLibraryUnload cuModuleUnload cuStreamCreate
        cuStreamCreateWithPriority cuStreamDestroy cuStreamDestroy_v2
    }
    // loads code: rewritten where the tenant has persistent blocks
    Load {
        cuLibraryLoadData cuLibraryLoadFromFile cuLinkAddData cuLinkAddData_v2 cuLinkAddFile
        cuLinkAddFile_v2 cuLinkComplete cuModuleLoad cuModuleLoadData cuModuleLoadDataEx
        cuModuleLoadFatBinary
    }
    // executable graphs: their kernels are updated when the mask has changed
    Graph {
        cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddDependencies_v2 cuGraphAddKernelNode
        cuGraphAddKernelNode_v2 cuGraphClone cuGraphDestroy cuGraphDestroyNode
        cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy cuGraphExecKernelNodeSetParams
        cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams
        cuGraphExecNodeSetParams cuGraphExecUpdate cuGraphExecUpdate_v2 cuGraphInstantiate
        cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz
        cuGraphInstantiate_v2 cuGraphKernelNodeCopyAttributes cuGraphKernelNodeSetAttribute
        cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphLaunch_ptsz
        cuGraphMemcpyNodeSetParams cuGraphMemsetNodeSetParams cuGraphNodeGetEnabled cuGraphNodeSetEnabled
        cuGraphNodeSetParams cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 cuGraphUpload
        cuGraphUpload_ptsz cuStreamBeginCapture cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
        cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz cuStreamEndCapture
        cuStreamEndCapture_ptsz
    }
    // cannot be enforced yet: refused if it would escape a limit
    Refuse {
        cuLaunchCooperativeKernelMultiDevice cuMemMapArrayAsync cuMemMapArrayAsync_ptsz
    }
    // passed through unchanged
    Pass {
        cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayGetDescriptor cuArrayGetDescriptor_v2
        cuArrayGetMemoryRequirements cuArrayGetPlane cuArrayGetSparseProperties
        cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState
        cuCheckpointProcessLock cuCheckpointProcessRestore cuCheckpointProcessUnlock cuCoredumpGetAttribute
        cuCoredumpGetAttributeGlobal cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuCtxAttach
        cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxFromGreenCtx cuCtxGetApiVersion
        cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetExecAffinity
        cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange
        cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxPushCurrent cuCtxPushCurrent_v2 cuCtxRecordEvent
        cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags
        cuCtxSetSharedMemConfig cuCtxWaitEvent cuDestroyExternalSemaphore cuDeviceCanAccessPeer
        cuDeviceComputeCapability cuDeviceGet cuDeviceGetByPCIBusId cuDeviceGetCount
        cuDeviceGetDefaultMemPool cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute
        cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid cuDeviceGetMemPool cuDeviceGetName
        cuDeviceGetNvSciSyncAttributes cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute
        cuDeviceGetPCIBusId cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid
        cuDeviceGetUuid_v2 cuDevicePrimaryCtxGetState cuDevicePrimaryCtxSetFlags
        cuDevicePrimaryCtxSetFlags_v2 cuDeviceRegisterAsyncNotification cuDeviceSetGraphMemAttribute
        cuDeviceUnregisterAsyncNotification cuDriverGetVersion cuEGLApiInit cuEGLStreamConsumerAcquireFrame
        cuEGLStreamConsumerConnect cuEGLStreamConsumerConnectWithFlags cuEGLStreamConsumerDisconnect
        cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect
        cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame cuEventCreate cuEventDestroy
        cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2 cuEventRecord cuEventRecordWithFlags
        cuEventRecordWithFlags_ptsz cuEventRecord_ptsz cuExternalMemoryGetMappedBuffer
        cuExternalMemoryGetMappedMipmappedArray cuFlushGPUDirectRDMAWrites cuFuncGetModule cuFuncGetName
        cuFuncIsLoaded cuFuncLoad cuFuncSetBlockShape cuFuncSetCacheConfig cuFuncSetSharedMemConfig
        cuFuncSetSharedSize cuGLCtxCreate cuGLCtxCreate_v2 cuGLGetDevices cuGLGetDevices_v2 cuGLInit
        cuGLMapBufferObject cuGLMapBufferObjectAsync cuGLMapBufferObjectAsync_v2
        cuGLMapBufferObjectAsync_v2_ptsz cuGLMapBufferObject_v2 cuGLMapBufferObject_v2_ptds
        cuGLRegisterBufferObject cuGLSetBufferObjectMapFlags cuGLUnmapBufferObject
        cuGLUnmapBufferObjectAsync cuGLUnregisterBufferObject cuGetErrorName cuGetErrorString
        cuGraphAddBatchMemOpNode cuGraphAddEmptyNode cuGraphAddEventRecordNode cuGraphAddEventWaitNode
        cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode
        cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphBatchMemOpNodeGetParams
        cuGraphBatchMemOpNodeSetParams cuGraphChildGraphNodeGetGraph cuGraphConditionalHandleCreate
        cuGraphCreate cuGraphDebugDotPrint cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent
        cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent cuGraphExecBatchMemOpNodeSetParams
        cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent
        cuGraphExecExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams
        cuGraphExecGetFlags cuGraphExecHostNodeSetParams cuGraphExternalSemaphoresSignalNodeGetParams
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams
        cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetNodes
        cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphKernelNodeGetAttribute
        cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2 cuGraphMemAllocNodeGetParams
        cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemsetNodeGetParams
        cuGraphNodeFindInClone cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2
        cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetType
        cuGraphReleaseUserObject cuGraphRetainUserObject cuGraphicsEGLRegisterImage
        cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsMapResources
        cuGraphicsMapResources_ptsz cuGraphicsResourceGetMappedEglFrame
        cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer
        cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags cuGraphicsResourceSetMapFlags_v2
        cuGraphicsSubResourceGetMappedArray cuGraphicsUnmapResources cuGraphicsUnmapResources_ptsz
        cuGraphicsUnregisterResource cuGraphicsVDPAURegisterOutputSurface
        cuGraphicsVDPAURegisterVideoSurface cuGreenCtxGetId cuGreenCtxRecordEvent cuGreenCtxWaitEvent
        cuImportExternalSemaphore cuIpcGetEventHandle cuIpcOpenEventHandle cuKernelGetFunction
        cuKernelGetLibrary cuKernelGetName cuKernelSetCacheConfig cuLaunchHostFunc cuLaunchHostFunc_ptsz
        cuLibraryEnumerateKernels cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetKernelCount
        cuLibraryGetManaged cuLibraryGetModule cuLibraryGetUnifiedFunction cuLinkCreate cuLinkCreate_v2
        cuLinkDestroy cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback
        cuLogsUnregisterCallback cuMemAddressFree cuMemAddressReserve cuMemAllocHost cuMemAllocHost_v2
        cuMemFreeHost cuMemGetAccess cuMemGetAddressRange cuMemGetAddressRange_v2
        cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemGetAttribute
        cuMemGetAttribute_v2 cuMemGetDefaultMemPool cuMemGetHandleForAddressRange cuMemGetMemPool
        cuMemHostAlloc cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2 cuMemHostGetFlags
        cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister cuMemPoolCreate cuMemPoolExportPointer
        cuMemPoolExportToShareableHandle cuMemPoolGetAccess cuMemPoolGetAttribute
        cuMemPoolImportFromShareableHandle cuMemPoolImportPointer cuMemPoolSetAccess cuMemPoolSetAttribute
        cuMemRangeGetAttribute cuMemRangeGetAttributes cuMemSetAccess cuMemcpy2D cuMemcpy2DAsync
        cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpyAtoA cuMemcpyAtoD cuMemcpyAtoH
        cuMemcpyAtoHAsync cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync
        cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D16
        cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32 cuMemsetD8 cuMipmappedArrayGetLevel
        cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties cuModuleEnumerateFunctions
        cuModuleGetFunction cuModuleGetFunctionCount cuModuleGetGlobal cuModuleGetGlobal_v2
        cuModuleGetLoadingMode cuModuleGetSurfRef cuModuleGetTexRef cuMulticastAddDevice cuMulticastCreate
        cuMulticastGetGranularity cuOccupancyAvailableDynamicSMemPerBlock
        cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv cuPointerGetAttribute
        cuPointerGetAttributes cuPointerSetAttribute cuProfilerInitialize cuProfilerStart cuProfilerStop
        cuSignalExternalSemaphoresAsync cuSignalExternalSemaphoresAsync_ptsz cuStreamAddCallback
        cuStreamAddCallback_ptsz cuStreamBatchMemOp cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2
        cuStreamBatchMemOp_v2_ptsz cuStreamCopyAttributes cuStreamCopyAttributes_ptsz cuStreamGetAttribute
        cuStreamGetAttribute_ptsz cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz
        cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v2_ptsz cuStreamGetCaptureInfo_v3
        cuStreamGetCaptureInfo_v3_ptsz cuStreamGetCtx cuStreamGetCtx_ptsz cuStreamGetCtx_v2
        cuStreamGetCtx_v2_ptsz cuStreamGetDevice cuStreamGetDevice_ptsz cuStreamGetFlags
        cuStreamGetFlags_ptsz cuStreamGetGreenCtx cuStreamGetId cuStreamGetId_ptsz cuStreamGetPriority
        cuStreamGetPriority_ptsz cuStreamIsCapturing cuStreamIsCapturing_ptsz cuStreamSetAttribute
        cuStreamSetAttribute_ptsz cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_ptsz
        cuStreamUpdateCaptureDependencies_v2 cuStreamUpdateCaptureDependencies_v2_ptsz cuStreamWaitEvent
        cuStreamWaitEvent_ptsz cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2
        cuStreamWaitValue32_v2_ptsz cuStreamWaitValue64 cuStreamWaitValue64_ptsz cuStreamWaitValue64_v2
        cuStreamWaitValue64_v2_ptsz cuStreamWriteValue32 cuStreamWriteValue32_ptsz cuStreamWriteValue32_v2
        cuStreamWriteValue32_v2_ptsz cuStreamWriteValue64 cuStreamWriteValue64_ptsz cuStreamWriteValue64_v2
        cuStreamWriteValue64_v2_ptsz cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc
        cuSurfRefGetArray cuSurfRefSetArray cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide
        cuTensorMapEncodeTiled cuTensorMapReplaceAddress cuTexObjectCreate cuTexObjectDestroy
        cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc cuTexRefCreate
        cuTexRefDestroy cuTexRefGetAddress cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray
        cuTexRefGetBorderColor cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat
        cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode cuTexRefGetMipmapLevelBias
        cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray cuTexRefSetAddress cuTexRefSetAddress2D
        cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3 cuTexRefSetAddressMode cuTexRefSetAddress_v2
        cuTexRefSetArray cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat
        cuTexRefSetMaxAnisotropy cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias
        cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray cuThreadExchangeStreamCaptureMode
        cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain cuVDPAUCtxCreate cuVDPAUCtxCreate_v2
        cuVDPAUGetDevice cuWaitExternalSemaphoresAsync cuWaitExternalSemaphoresAsync_ptsz cudbgApiAttach
        cudbgApiClientPid cudbgApiClientRevision cudbgApiDetach cudbgApiInit cudbgAttachHandlerAvailable
        cudbgDebuggerCapabilities cudbgDebuggerInitialized cudbgDetachSuspendedDevicesMask
        cudbgEnableIntegratedMemcheck cudbgEnableLaunchBlocking cudbgEnablePreemptionDebugging cudbgGetAPI
        cudbgGetAPIVersion cudbgInjectionPath cudbgIpcFlag cudbgMain cudbgReportDriverApiError
        cudbgReportDriverApiErrorFlags cudbgReportDriverInternalError cudbgReportedDriverApiErrorCode
        cudbgReportedDriverApiErrorFuncNameAddr cudbgReportedDriverApiErrorFuncNameSize
        cudbgReportedDriverApiErrorNameAddr cudbgReportedDriverApiErrorNameSize
        cudbgReportedDriverApiErrorSource cudbgReportedDriverApiErrorStringAddr
        cudbgReportedDriverApiErrorStringSize cudbgReportedDriverInternalErrorCode
        cudbgResumeForAttachDetach cudbgRpcEnabled cudbgSessionId cudbgUseExternalDebugger
    }
}

/// An export that is newer than the driver of [`EXPORTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Later {
    /// The exported name and what the hook does with it.
    pub export: Export,
    /// The CUDA version that brought it (major × 1000 + minor × 10).
    pub since: u32,
}

const fn later(name: &'static str, since: u32, policy: Policy) -> Later {
    Later { export: Export { name, policy }, since }
}

/// The declarations of `cuda.h` of CUDA 13.1 to 13.5 beyond [`EXPORTS`], with the versions of
/// `cudaTypedefs.h` of 13.5 (package 13.5.37). No such driver was tested.
pub const LATER: &[Later] = &[
    later("cuCheckpointOperationComplete", 13_040, Policy::Pass),
    later("cuCoredumpDeregisterCompleteCallback", 13_020, Policy::Pass),
    later("cuCoredumpDeregisterStartCallback", 13_020, Policy::Pass),
    later("cuCoredumpRegisterCompleteCallback", 13_020, Policy::Pass),
    later("cuCoredumpRegisterStartCallback", 13_020, Policy::Pass),
    later("cuDevSmResourceSplit", 13_010, Policy::Query),
    later("cuDeviceGetCliqueCount", 13_040, Policy::Pass),
    later("cuDeviceGetCliqueInfo", 13_040, Policy::Pass),
    later("cuDeviceGetFabricClusterUuid", 13_040, Policy::Pass),
    later("cuFabricCpyBatchAsync", 13_050, Policy::Copy),
    later("cuFabricCpyBatchAsync_ptsz", 13_050, Policy::Copy),
    later("cuFuncGetParamCount", 13_020, Policy::Query),
    later("cuGraphAddNode_v3", 13_040, Policy::Charge),
    later("cuGraphExecGetId", 13_010, Policy::Pass),
    later("cuGraphGetId", 13_010, Policy::Pass),
    later("cuGraphNodeGetContainingGraph", 13_010, Policy::Pass),
    later("cuGraphNodeGetLocalId", 13_010, Policy::Pass),
    later("cuGraphNodeGetParams", 13_020, Policy::Pass),
    later("cuGraphNodeGetToolsId", 13_010, Policy::Pass),
    later("cuGraphNodeSetParams_v2", 13_040, Policy::Pass),
    later("cuKernelGetParamCount", 13_020, Policy::Query),
    later("cuLaunchHostFunc_v2", 13_010, Policy::Pass),
    later("cuLaunchHostFunc_v2_ptsz", 13_010, Policy::Pass),
    later("cuLogicalEndpointAddDevice", 13_030, Policy::Pass),
    later("cuLogicalEndpointBindAddr", 13_030, Policy::Refuse),
    later("cuLogicalEndpointBindMem", 13_030, Policy::Refuse),
    later("cuLogicalEndpointCreate", 13_030, Policy::Pass),
    later("cuLogicalEndpointDestroy", 13_030, Policy::Pass),
    later("cuLogicalEndpointExport", 13_030, Policy::Pass),
    later("cuLogicalEndpointGetLimits", 13_030, Policy::Pass),
    later("cuLogicalEndpointIdRelease", 13_030, Policy::Pass),
    later("cuLogicalEndpointIdReserve", 13_030, Policy::Pass),
    later("cuLogicalEndpointImport", 13_030, Policy::Pass),
    later("cuLogicalEndpointQuery", 13_030, Policy::Pass),
    later("cuLogicalEndpointUnbind", 13_030, Policy::Pass),
    later("cuMemGetLocationInfo", 13_040, Policy::Pass),
    later("cuMemcpy3DWithAttributesAsync", 13_020, Policy::Copy),
    later("cuMemcpy3DWithAttributesAsync_ptsz", 13_020, Policy::Copy),
    later("cuMemcpyWithAttributesAsync", 13_020, Policy::Copy),
    later("cuMemcpyWithAttributesAsync_ptsz", 13_020, Policy::Copy),
    later("cuMulticastBindAddr_v2", 13_010, Policy::Release),
    later("cuMulticastBindMem_v2", 13_010, Policy::Release),
    later("cuStreamBeginCaptureToCig", 13_010, Policy::Graph),
    later("cuStreamBeginCaptureToCig_ptsz", 13_010, Policy::Graph),
    later("cuStreamBeginRecaptureToGraph", 13_030, Policy::Pass),
    later("cuStreamBeginRecaptureToGraph_ptsz", 13_030, Policy::Pass),
    later("cuStreamEndCaptureToCig", 13_010, Policy::Graph),
    later("cuStreamEndCaptureToCig_ptsz", 13_010, Policy::Graph),
    later("cuStreamGetDevResource", 13_010, Policy::Query),
    later("cuStreamGetDevResource_ptsz", 13_010, Policy::Query),
    later("cuTensorMapSetAllocationClass", 13_050, Policy::Pass),
];

/// The policy for an exported name, or `None` for a name that the table does
/// not know.
///
/// A `const` function, so that the hook's table is checked against this one
/// while it is compiled.
pub const fn policy_of(name: &str) -> Option<Policy> {
    let mut row = 0;
    while row < EXPORTS.len() {
        if same(EXPORTS[row].name.as_bytes(), name.as_bytes()) {
            return Some(EXPORTS[row].policy);
        }
        row += 1;
    }
    row = 0;
    while row < LATER.len() {
        if same(LATER[row].export.name.as_bytes(), name.as_bytes()) {
            return Some(LATER[row].export.policy);
        }
        row += 1;
    }
    None
}

/// How many exports the hook wraps.
pub const fn wrapped_count() -> usize {
    let (mut row, mut count) = (0, 0);
    while row < EXPORTS.len() {
        if EXPORTS[row].policy.is_wrapped() {
            count += 1;
        }
        row += 1;
    }
    row = 0;
    while row < LATER.len() {
        if LATER[row].export.policy.is_wrapped() {
            count += 1;
        }
        row += 1;
    }
    count
}

const fn same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    // Backwards, because names differ most at their ends.
    let mut at = left.len();
    while at > 0 {
        at -= 1;
        if left[at] != right[at] {
            return false;
        }
    }
    true
}

/// Functions of the management library (libnvidia-ml) that the hook wraps; it passes all others
/// through. They report memory and processes: in a tenant, its quota and its own processes.
pub const NVML_WRAPPED: &[&str] = &[
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
];

/// Whether [`NVML_WRAPPED`] has a name.
pub const fn is_wrapped_nvml(name: &str) -> bool {
    let mut row = 0;
    while row < NVML_WRAPPED.len() {
        if same(NVML_WRAPPED[row].as_bytes(), name.as_bytes()) {
            return true;
        }
        row += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_name_has_one_row() {
        let names: BTreeSet<_> =
            EXPORTS.iter().map(|row| row.name).chain(LATER.iter().map(|row| row.export.name)).collect();
        assert_eq!(names.len(), EXPORTS.len() + LATER.len());
        assert_eq!(EXPORTS.len(), 707);
        assert!(LATER.is_sorted_by_key(|row| row.export.name));
        assert!(LATER.iter().all(|row| (13_010..=13_050).contains(&row.since)));
    }

    #[test]
    fn both_stream_variants_of_a_call_share_a_policy() {
        for row in EXPORTS.iter().copied().chain(LATER.iter().map(|row| row.export)) {
            for suffix in ["_ptsz", "_ptds"] {
                if let Some(base) = row.name.strip_suffix(suffix) {
                    assert_eq!(policy_of(base), Some(row.policy), "{base} and {}", row.name);
                }
            }
        }
    }

    #[test]
    fn an_unknown_name_has_no_policy() {
        assert_eq!(policy_of("cuSomethingOfTomorrow"), None);
    }
}
