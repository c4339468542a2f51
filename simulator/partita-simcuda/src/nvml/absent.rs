//! The functions that the simulated device does not implement.
//!
//! The real library of driver 580 exports them, and programs look some of them up when they load
//! it. All of them return `NVML_ERROR_NOT_SUPPORTED`, which programs expect of boards that lack
//! something; before the library is initialised they report that.

use super::{NvmlReturn, first_device};

fn answer() -> NvmlReturn {
    first_device().err().unwrap_or(NvmlReturn::NOT_SUPPORTED)
}

macro_rules! absent {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: not supported. Its arguments are not looked at.")]
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub extern "C" fn $name() -> NvmlReturn {
                answer()
            }
        )*

        /// Names of these functions.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

absent! {
    nvmlComputeInstanceGetInfo nvmlDeviceClearAccountingPids nvmlDeviceClearCpuAffinity
    nvmlDeviceClearEccErrorCounts nvmlDeviceClearFieldValues nvmlDeviceDiscoverGpus
    nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceGetAPIRestriction
    nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingPids nvmlDeviceGetAccountingStats
    nvmlDeviceGetActiveVgpus nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetAddressingMode
    nvmlDeviceGetApplicationsClock nvmlDeviceGetAttributes nvmlDeviceGetAttributes_v2
    nvmlDeviceGetAutoBoostedClocksEnabled nvmlDeviceGetBAR1MemoryInfo
    nvmlDeviceGetBoardPartNumber nvmlDeviceGetBridgeChipInfo nvmlDeviceGetC2cModeInfoV
    nvmlDeviceGetCapabilities nvmlDeviceGetClkMonStatus nvmlDeviceGetClockOffsets
    nvmlDeviceGetConfComputeGpuAttestationReport nvmlDeviceGetConfComputeGpuCertificate
    nvmlDeviceGetConfComputeMemSizeInfo nvmlDeviceGetConfComputeProtectedMemoryUsage
    nvmlDeviceGetCoolerInfo nvmlDeviceGetCpuAffinity nvmlDeviceGetCpuAffinityWithinScope
    nvmlDeviceGetCreatableVgpus nvmlDeviceGetCurrentClockFreqs nvmlDeviceGetDecoderUtilization
    nvmlDeviceGetDefaultApplicationsClock nvmlDeviceGetDetailedEccErrors
    nvmlDeviceGetDramEncryptionMode nvmlDeviceGetDriverModel nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetDynamicPstatesInfo nvmlDeviceGetEncoderCapacity nvmlDeviceGetEncoderSessions
    nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderUtilization nvmlDeviceGetFBCSessions
    nvmlDeviceGetFBCStats nvmlDeviceGetFanControlPolicy_v2 nvmlDeviceGetFanSpeed
    nvmlDeviceGetFanSpeedRPM nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetFieldValues
    nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetGpuInstanceProfileInfoByIdV
    nvmlDeviceGetGpuOperationMode nvmlDeviceGetGridLicensableFeatures
    nvmlDeviceGetGridLicensableFeatures_v2 nvmlDeviceGetGridLicensableFeatures_v3
    nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetGspFirmwareMode
    nvmlDeviceGetGspFirmwareVersion nvmlDeviceGetHandleBySerial nvmlDeviceGetHandleByUUIDV
    nvmlDeviceGetHostVgpuMode nvmlDeviceGetHostname_v1 nvmlDeviceGetInforomConfigurationChecksum
    nvmlDeviceGetInforomImageVersion nvmlDeviceGetInforomVersion nvmlDeviceGetIrqNum
    nvmlDeviceGetJpgUtilization nvmlDeviceGetLastBBXFlushTime nvmlDeviceGetMarginTemperature
    nvmlDeviceGetMaxCustomerBoostClock nvmlDeviceGetMemClkMinMaxVfOffset
    nvmlDeviceGetMemClkVfOffset nvmlDeviceGetMemoryAffinity nvmlDeviceGetMemoryErrorCounter
    nvmlDeviceGetMinMaxClockOfPState nvmlDeviceGetMinMaxFanSpeed nvmlDeviceGetModuleId
    nvmlDeviceGetNumFans nvmlDeviceGetNumaNodeId nvmlDeviceGetNvLinkCapability
    nvmlDeviceGetNvLinkErrorCounter nvmlDeviceGetNvLinkInfo nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetNvLinkRemotePciInfo nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkUtilizationControl
    nvmlDeviceGetNvLinkUtilizationCounter nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvlinkBwMode
    nvmlDeviceGetNvlinkSupportedBwModes nvmlDeviceGetOfaUtilization nvmlDeviceGetP2PStatus
    nvmlDeviceGetPciInfoExt nvmlDeviceGetPcieReplayCounter nvmlDeviceGetPcieThroughput
    nvmlDeviceGetPdi nvmlDeviceGetPerformanceModes nvmlDeviceGetPgpuMetadataString
    nvmlDeviceGetPlatformInfo nvmlDeviceGetPowerMizerMode_v1 nvmlDeviceGetPowerSource
    nvmlDeviceGetProcessesUtilizationInfo
    nvmlDeviceGetRemappedRows nvmlDeviceGetRemappedRows_v2 nvmlDeviceGetRepairStatus
    nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPagesPendingStatus
    nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRowRemapperHistogram
    nvmlDeviceGetRunningProcessDetailList nvmlDeviceGetSamples nvmlDeviceGetSerial
    nvmlDeviceGetSramEccErrorStatus nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
    nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons
    nvmlDeviceGetSupportedEventTypes nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedPerformanceStates
    nvmlDeviceGetTargetFanSpeed nvmlDeviceGetTemperatureThreshold
    nvmlDeviceGetTemperatureV nvmlDeviceGetThermalSettings nvmlDeviceGetTopologyCommonAncestor
    nvmlDeviceGetTopologyNearestGpus nvmlDeviceGetTotalEccErrors
    nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetUnrepairableMemoryFlag_v1
    nvmlDeviceGetVbiosVersion nvmlDeviceGetVgpuCapabilities
    nvmlDeviceGetVgpuInstancesUtilizationInfo nvmlDeviceGetVgpuMetadata
    nvmlDeviceGetVgpuProcessUtilization nvmlDeviceGetVgpuProcessesUtilizationInfo
    nvmlDeviceGetVgpuSchedulerCapabilities nvmlDeviceGetVgpuSchedulerLog
    nvmlDeviceGetVgpuTypeCreatablePlacements
    nvmlDeviceGetVgpuTypeSupportedPlacements nvmlDeviceGetVgpuUtilization
    nvmlDeviceGetViolationStatus nvmlDeviceModifyDrainState
    nvmlDevicePowerSmoothingActivatePresetProfile nvmlDevicePowerSmoothingSetState
    nvmlDevicePowerSmoothingUpdatePresetProfileParam nvmlDeviceQueryDrainState
    nvmlDeviceReadPRMCounters_v1 nvmlDeviceReadWritePRM_v1 nvmlDeviceRegisterEvents
    nvmlDeviceRemoveGpu nvmlDeviceRemoveGpu_v2 nvmlDeviceResetApplicationsClocks
    nvmlDeviceResetGpuLockedClocks nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction nvmlDeviceSetAccountingMode nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetAutoBoostedClocksEnabled nvmlDeviceSetClockOffsets nvmlDeviceSetComputeMode
    nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetCpuAffinity
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetDramEncryptionMode nvmlDeviceSetDriverModel nvmlDeviceSetEccMode
    nvmlDeviceSetFanControlPolicy nvmlDeviceSetFanSpeed_v2 nvmlDeviceSetGpcClkVfOffset
    nvmlDeviceSetGpuLockedClocks nvmlDeviceSetGpuOperationMode nvmlDeviceSetHostname_v1
    nvmlDeviceSetMemClkVfOffset nvmlDeviceSetMemoryLockedClocks nvmlDeviceSetMigMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold nvmlDeviceSetNvLinkUtilizationControl
    nvmlDeviceSetNvlinkBwMode nvmlDeviceSetPersistenceMode nvmlDeviceSetPowerManagementLimit
    nvmlDeviceSetPowerManagementLimit_v2 nvmlDeviceSetPowerMizerMode_v1
    nvmlDeviceSetTemperatureThreshold nvmlDeviceSetVgpuCapabilities

    nvmlDeviceSetVirtualizationMode nvmlDeviceValidateInforom
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
    nvmlDeviceWorkloadPowerProfileGetProfilesInfo
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles nvmlEventSetCreate nvmlEventSetFree
    nvmlEventSetWait nvmlEventSetWait_v2 nvmlGetBlacklistDeviceCount
    nvmlGetBlacklistDeviceInfoByIndex nvmlGetExcludedDeviceCount
    nvmlGetExcludedDeviceInfoByIndex nvmlGetVgpuCompatibility nvmlGetVgpuDriverCapabilities
    nvmlGetVgpuVersion nvmlGpmMetricsGet nvmlGpmMigSampleGet nvmlGpmQueryDeviceSupport
    nvmlGpmQueryIfStreamingEnabled nvmlGpmSampleAlloc nvmlGpmSampleFree nvmlGpmSampleGet
    nvmlGpmSetStreamingEnabled nvmlGpuInstanceCreateComputeInstanceWithPlacement
    nvmlGpuInstanceGetActiveVgpus nvmlGpuInstanceGetComputeInstancePossiblePlacements
    nvmlGpuInstanceGetComputeInstanceProfileInfoV
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity nvmlGpuInstanceGetCreatableVgpus
    nvmlGpuInstanceGetVgpuHeterogeneousMode nvmlGpuInstanceGetVgpuSchedulerLog
    nvmlGpuInstanceGetVgpuSchedulerState nvmlGpuInstanceGetVgpuTypeCreatablePlacements
    nvmlGpuInstanceSetVgpuHeterogeneousMode nvmlGpuInstanceSetVgpuSchedulerState
    nvmlInternalGetExportTable nvmlSetVgpuVersion nvmlSystemEventSetCreate
    nvmlSystemEventSetFree nvmlSystemEventSetWait nvmlSystemGetConfComputeCapabilities
    nvmlSystemGetConfComputeGpusReadyState nvmlSystemGetConfComputeKeyRotationThresholdInfo
    nvmlSystemGetConfComputeSettings nvmlSystemGetConfComputeState nvmlSystemGetDriverBranch
    nvmlSystemGetHicVersion nvmlSystemGetNvlinkBwMode nvmlSystemGetTopologyGpuSet
    nvmlSystemRegisterEvents nvmlSystemSetConfComputeGpusReadyState
    nvmlSystemSetConfComputeKeyRotationThresholdInfo nvmlSystemSetNvlinkBwMode nvmlUnitGetCount
    nvmlUnitGetDevices nvmlUnitGetFanSpeedInfo nvmlUnitGetHandleByIndex nvmlUnitGetLedState
    nvmlUnitGetPsuInfo nvmlUnitGetTemperature nvmlUnitGetUnitInfo nvmlUnitSetLedState
    nvmlVgpuInstanceClearAccountingPids nvmlVgpuInstanceGetAccountingMode
    nvmlVgpuInstanceGetAccountingPids nvmlVgpuInstanceGetAccountingStats
    nvmlVgpuInstanceGetEccMode nvmlVgpuInstanceGetEncoderCapacity
    nvmlVgpuInstanceGetEncoderSessions nvmlVgpuInstanceGetEncoderStats
    nvmlVgpuInstanceGetFBCSessions nvmlVgpuInstanceGetFBCStats nvmlVgpuInstanceGetFbUsage
    nvmlVgpuInstanceGetFrameRateLimit nvmlVgpuInstanceGetGpuInstanceId
    nvmlVgpuInstanceGetGpuPciId nvmlVgpuInstanceGetLicenseInfo nvmlVgpuInstanceGetLicenseInfo_v2
    nvmlVgpuInstanceGetLicenseStatus nvmlVgpuInstanceGetMdevUUID nvmlVgpuInstanceGetMetadata
    nvmlVgpuInstanceGetPlacementId nvmlVgpuInstanceGetRuntimeStateSize nvmlVgpuInstanceGetType
    nvmlVgpuInstanceGetUUID nvmlVgpuInstanceGetVmDriverVersion nvmlVgpuInstanceGetVmID
    nvmlVgpuInstanceSetEncoderCapacity nvmlVgpuTypeGetBAR1Info nvmlVgpuTypeGetCapabilities
    nvmlVgpuTypeGetClass nvmlVgpuTypeGetDeviceID nvmlVgpuTypeGetFbReservation
    nvmlVgpuTypeGetFrameRateLimit
    nvmlVgpuTypeGetGpuInstanceProfileId nvmlVgpuTypeGetGspHeapSize nvmlVgpuTypeGetLicense
    nvmlVgpuTypeGetMaxInstances nvmlVgpuTypeGetMaxInstancesPerGpuInstance
    nvmlVgpuTypeGetMaxInstancesPerVm nvmlVgpuTypeGetNumDisplayHeads
    nvmlVgpuTypeGetResolution
}
