//! The control interface of NVIDIA's kernel driver, as far as it reports where SMs are and how long
//! a process's time slice is.
//!
//! Numbers and layouts are those of the published kernel modules (open-gpu-kernel-modules:
//! `nv-ioctl-numbers.h`, `nv-ioctl.h`, `nvos.h`, `ctrl0000gpu.h`, `ctrl2080gr.h`, `cl0080.h`,
//! `cl2080.h`), checked on an H200 with driver 580.159.04. Byte offsets are those of x86-64 and
//! aarch64; every field is little-endian. No call here needs root, and only [`SET_TIMESLICE`] and
//! [`RM_ALLOC`] change anything: objects of the caller.

/// Type letter of the driver's `ioctl` requests.
pub const IOCTL_TYPE: u8 = b'F';
/// `NV_ESC_RM_FREE`: releases an object; [`RM_FREE_BYTES`].
pub const RM_FREE: u8 = 0x29;
/// `NV_ESC_RM_CONTROL`: sends a control to an object; [`RM_CONTROL_BYTES`].
pub const RM_CONTROL: u8 = 0x2a;
/// `NV_ESC_RM_ALLOC`: creates an object; [`RM_ALLOC_BYTES`] or [`RM_ALLOC_LONG_BYTES`].
pub const RM_ALLOC: u8 = 0x2b;
/// `NV_ESC_CARD_INFO`: the GPUs and their device nodes; [`CARDS_MAX`] entries of [`CARD_BYTES`].
pub const CARD_INFO: u8 = 200;
/// `NV_ESC_REGISTER_FD`, on a GPU's node: `{i32 control node}`.
pub const REGISTER_FD: u8 = 201;

/// The `ioctl` request of one escape with an argument of `bytes` bytes: `_IOWR('F', escape, …)`.
#[must_use]
pub const fn request(escape: u8, bytes: usize) -> u32 {
    const READ_WRITE: u32 = 3;
    READ_WRITE << 30 | (bytes as u32 & 0x3fff) << 16 | (IOCTL_TYPE as u32) << 8 | escape as u32
}

/// `NVOS00_PARAMETERS`: `{u32 root, parent, object, status}`.
pub const RM_FREE_BYTES: usize = 16;
/// `NVOS21_PARAMETERS`: `{u32 root, parent, object, class; u64 parameters; u32 parameter bytes,
/// status}`.
pub const RM_ALLOC_BYTES: usize = 32;
/// `NVOS64_PARAMETERS`, the longer form, which libcuda uses (H200, driver 580.159.04): `{u32 root,
/// parent, object, class; u64 parameters, rights; u32 parameter bytes, flags, status}`.
pub const RM_ALLOC_LONG_BYTES: usize = 48;
/// The offset of the size of the parameters in the longer form. libcuda leaves it 0, since the
/// class implies it.
pub const RM_ALLOC_LONG_PARAMETER_BYTES_AT: usize = 32;
/// The offset of the driver's status in the longer form.
pub const RM_ALLOC_LONG_STATUS_AT: usize = 40;
/// `NVOS54_PARAMETERS`: `{u32 client, object, command, flags; u64 parameters; u32 parameter bytes,
/// status}`.
pub const RM_CONTROL_BYTES: usize = 32;
/// The offset of the object in [`RM_CONTROL`].
pub const RM_CONTROL_OBJECT_AT: usize = 4;
/// The offset of the command in [`RM_CONTROL`].
pub const RM_CONTROL_COMMAND_AT: usize = 8;
/// The offset of the parameters' address in [`RM_ALLOC`] and [`RM_CONTROL`].
pub const RM_PARAMETERS_AT: usize = 16;
/// The offset of the parameters' size in [`RM_ALLOC`] and [`RM_CONTROL`].
pub const RM_PARAMETER_BYTES_AT: usize = 24;
/// The offset of the driver's status in [`RM_ALLOC`] and [`RM_CONTROL`].
pub const RM_STATUS_AT: usize = 28;
/// The offset of the driver's status in [`RM_FREE`].
pub const RM_FREE_STATUS_AT: usize = 12;
/// The offset of the object in [`RM_ALLOC`] and [`RM_FREE`].
pub const RM_OBJECT_AT: usize = 8;

/// Entries of a [`CARD_INFO`] (`NV_MAX_DEVICES`).
pub const CARDS_MAX: usize = 32;
/// Bytes of an entry (`nv_ioctl_card_info_t`).
pub const CARD_BYTES: usize = 72;
/// Offset of `valid`, a byte.
pub const CARD_VALID_AT: usize = 0;
/// Offset of the PCI domain, a `u32`.
pub const CARD_DOMAIN_AT: usize = 4;
/// Offset of the PCI bus, a byte.
pub const CARD_BUS_AT: usize = 8;
/// Offset of the PCI slot, a byte.
pub const CARD_SLOT_AT: usize = 9;
/// Offset of the GPU's id, a `u32`.
pub const CARD_GPU_ID_AT: usize = 16;
/// Offset of the minor number, a `u32`: the N of `/dev/nvidiaN`.
pub const CARD_MINOR_AT: usize = 56;

/// Class of a client, the root of its objects (`NV01_ROOT`).
pub const CLASS_ROOT: u32 = 0;
/// Class of a device (`NV01_DEVICE_0`); parameters begin with `u32 deviceId`.
pub const CLASS_DEVICE: u32 = 0x80;
/// Bytes of the parameters of [`CLASS_DEVICE`] (`NV0080_ALLOC_PARAMETERS`).
pub const CLASS_DEVICE_BYTES: usize = 56;
/// Class of a subdevice (`NV20_SUBDEVICE_0`); parameters are `u32 subDeviceId`.
pub const CLASS_SUBDEVICE: u32 = 0x2080;
/// Bytes of the parameters of [`CLASS_SUBDEVICE`].
pub const CLASS_SUBDEVICE_BYTES: usize = 4;

/// `NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS`, of a client: ids of the GPUs whose nodes are open, then
/// `0xffffffff`.
pub const GPU_GET_ATTACHED_IDS: u32 = 0x201;
/// Bytes of its parameters.
pub const GPU_GET_ATTACHED_IDS_BYTES: usize = 128;
/// `NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2`, of a client: `{u32 gpuId in, flags, device, subdevice,
/// …}`.
pub const GPU_GET_ID_INFO_V2: u32 = 0x205;
/// Bytes of its parameters.
pub const GPU_GET_ID_INFO_V2_BYTES: usize = 32;
/// Offset of the device instance in them.
pub const ID_INFO_DEVICE_AT: usize = 8;
/// Offset of the subdevice instance in them.
pub const ID_INFO_SUBDEVICE_AT: usize = 12;
/// `NV2080_CTRL_CMD_GR_GET_NUM_TPCS_FOR_GPC`, of a subdevice: `{u32 gpc in, tpcs out}`.
pub const GR_GET_NUM_TPCS_FOR_GPC: u32 = 0x2080_1234;
/// Bytes of its parameters.
pub const GR_GET_NUM_TPCS_FOR_GPC_BYTES: usize = 8;
/// `NV2080_CTRL_CMD_GR_GET_GPC_MASK`, of a subdevice: a route, `{u32 mask}`. Answered with no bits
/// on an H200.
pub const GR_GET_GPC_MASK: u32 = 0x2080_122a;
/// Bytes of its parameters.
pub const GR_GET_GPC_MASK_BYTES: usize = 24;
/// `NV2080_CTRL_CMD_GR_GET_TPC_MASK`, of a subdevice: a route, `{u32 gpc in, mask}`. An H200
/// numbers the GPCs differently from its SM order.
pub const GR_GET_TPC_MASK: u32 = 0x2080_122b;
/// Bytes of its parameters.
pub const GR_GET_TPC_MASK_BYTES: usize = 24;
/// `NV2080_CTRL_CMD_GRMGR_GET_GR_FS_INFO`, of a subdevice. An H200 refuses every query.
pub const GRMGR_GET_GR_FS_INFO: u32 = 0x2080_3801;
/// Bytes of its parameters.
pub const GRMGR_GET_GR_FS_INFO_BYTES: usize = 3080;
/// `NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER`, of a subdevice: [`SmOrderLayout`].
pub const GR_GET_GLOBAL_SM_ORDER: u32 = 0x2080_121b;

/// Class of device memory (`NV01_MEMORY_LOCAL_USER`): all device memory of a process except managed
/// memory, and except what the kernel driver itself allocates for a context (5.6 MiB of 523.6,
/// H200, driver 580.159.04; `docs/hardware.md`).
pub const CLASS_DEVICE_MEMORY: u32 = 0x40;
/// Bytes of its parameters (`NV_MEMORY_ALLOCATION_PARAMS`) that are known here: up to the size.
pub const DEVICE_MEMORY_BYTES: usize = 72;
/// The offset of the flags, a `u32`.
pub const DEVICE_MEMORY_FLAGS_AT: usize = 8;
/// In the flags: address space without memory (`NVOS32_ALLOC_FLAGS_VIRTUAL`).
pub const DEVICE_MEMORY_FLAG_VIRTUAL: u32 = 0x8_0000;
/// The offset of the size in bytes, a `u64`: the requested size, and in the answer the allocated
/// one.
pub const DEVICE_MEMORY_SIZE_AT: usize = 64;

/// Class of a channel group (`KEPLER_CHANNEL_GROUP_A`): the unit that takes turns on the GPU.
pub const CLASS_CHANNEL_GROUP: u32 = 0xa06c;
/// `NVA06C_CTRL_CMD_SET_TIMESLICE`, of a channel group: `{u64 µs}`. libcuda sends it for each
/// context with 2048 µs (H200, driver 580.159.04); the kernel modules require no privilege.
pub const SET_TIMESLICE: u32 = 0xa06c_0103;
/// `NVA06C_CTRL_CMD_GET_TIMESLICE`, the same, with the answer in the same place.
pub const GET_TIMESLICE: u32 = 0xa06c_0104;
/// Bytes of the parameters of both.
pub const TIMESLICE_BYTES: usize = 8;

/// Entries of a [`GR_GET_GLOBAL_SM_ORDER`].
pub const SM_ORDER_ENTRIES: usize = 512;

/// The parameters of [`GR_GET_GLOBAL_SM_ORDER`]: [`SM_ORDER_ENTRIES`] entries of `u16` fields, `u16
/// numSm, numTpc`, and at the next multiple of 8 the 16 bytes of a route, zero for «the GPU's
/// graphics engine».
///
/// A driver takes the size that it was built with and refuses the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmOrderLayout {
    /// Fields of an entry: `gpcId, localTpcId, localSmId, globalTpcId, virtualGpcId,
    /// migratableTpcId`, then `ugpuId`, then `physicalCpcId, virtualTpcId`.
    pub fields: usize,
}

impl SmOrderLayout {
    /// Every known size, newest first: drivers from 580, 575, and up to 570.
    pub const ALL: [Self; 3] = [Self { fields: 9 }, Self { fields: 7 }, Self { fields: 6 }];

    /// Bytes of an entry.
    #[must_use]
    pub const fn entry_bytes(self) -> usize {
        2 * self.fields
    }

    /// Offset of `numSm`; `numTpc` follows.
    #[must_use]
    pub const fn counts_at(self) -> usize {
        SM_ORDER_ENTRIES * self.entry_bytes()
    }

    /// Bytes of the parameters: 9240, 7192 or 6168.
    #[must_use]
    pub const fn bytes(self) -> usize {
        (self.counts_at() + 4).next_multiple_of(8) + 16
    }
}

/// The answer «done» (`nvstatuscodes.h`).
pub const NV_OK: u32 = 0;
/// `NV_ERR_INVALID_ARGUMENT`: also the answer to parameters of another size (H200, driver
/// 580.159.04).
pub const NV_ERR_INVALID_ARGUMENT: u32 = 0x1f;

/// `NV_ERR_NO_MEMORY`: the device has no room. libcuda turns it into `CUDA_ERROR_OUT_OF_MEMORY`.
pub const NV_ERR_NO_MEMORY: u32 = 0x51;

/// The name of a status with which these calls are known to fail.
#[must_use]
pub const fn status_name(status: u32) -> Option<&'static str> {
    Some(match status {
        0x1b => "INSUFFICIENT_PERMISSIONS",
        NV_ERR_INVALID_ARGUMENT => "INVALID_ARGUMENT",
        NV_ERR_NO_MEMORY => "NO_MEMORY",
        0x56 => "NOT_SUPPORTED",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_that_drivers_take() {
        assert_eq!(SmOrderLayout::ALL.map(SmOrderLayout::bytes), [9240, 7192, 6168]);
        assert_eq!(SmOrderLayout::ALL.map(SmOrderLayout::counts_at), [9216, 7168, 6144]);
        // _IOWR('F', 0x2a, 32 bytes), as <linux/ioctl.h> makes it.
        assert_eq!(request(RM_CONTROL, RM_CONTROL_BYTES), 0xc020_462a);
        assert_eq!(request(CARD_INFO, CARDS_MAX * CARD_BYTES), 0xc900_46c8);
    }
}
