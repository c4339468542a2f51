//! Answers to control commands.

use partita_abi::control::{
    GET_TIMESLICE, GPU_GET_ATTACHED_IDS, GPU_GET_ATTACHED_IDS_BYTES, GPU_GET_ID_INFO_V2,
    GPU_GET_ID_INFO_V2_BYTES, GR_GET_GLOBAL_SM_ORDER, GR_GET_GPC_MASK, GR_GET_GPC_MASK_BYTES,
    GR_GET_NUM_TPCS_FOR_GPC, GR_GET_NUM_TPCS_FOR_GPC_BYTES, GR_GET_TPC_MASK, GR_GET_TPC_MASK_BYTES,
    GRMGR_GET_GR_FS_INFO, GRMGR_GET_GR_FS_INFO_BYTES, ID_INFO_DEVICE_AT, ID_INFO_SUBDEVICE_AT, SET_TIMESLICE,
    SM_ORDER_ENTRIES, SmOrderLayout, TIMESLICE_BYTES,
};

use super::object::{Object, status};
use super::{Gpu, put, put_u32, u32_at};

/// Where `GPU_GET_ID_INFO_V2` has the board's id, the GPU's instance and its NUMA node.
const ID_INFO_BOARD_AT: usize = 20;
const ID_INFO_INSTANCE_AT: usize = 24;
const ID_INFO_NUMA_AT: usize = 28;
/// The offset of the GPC in `GR_GET_TPC_MASK`, and of the masks in it and in `GR_GET_GPC_MASK`:
/// after the route.
const BEHIND_ROUTE: usize = 16;

/// The SM order that a driver of a CUDA version was built with: 570 is 12.8, 575 is 12.9, 580 is
/// 13.0.
fn sm_order_layout(cuda_version: u32) -> SmOrderLayout {
    SmOrderLayout {
        fields: if cuda_version >= 13_000 {
            9
        } else if cuda_version >= 12_090 {
            7
        } else {
            6
        },
    }
}

/// The bytes of a command's parameters, where the object knows the command.
pub fn parameter_bytes(command: u32, object: Object, gpus: &[Gpu]) -> Option<usize> {
    match (object, command) {
        (Object::Client, GPU_GET_ATTACHED_IDS) => Some(GPU_GET_ATTACHED_IDS_BYTES),
        (Object::Client, GPU_GET_ID_INFO_V2) => Some(GPU_GET_ID_INFO_V2_BYTES),
        (Object::Subdevice { gpu }, GR_GET_GLOBAL_SM_ORDER) => {
            Some(sm_order_layout(gpus[gpu].spec.driver.cuda_version).bytes())
        }
        (Object::ChannelGroup { .. }, SET_TIMESLICE | GET_TIMESLICE) => Some(TIMESLICE_BYTES),
        (Object::Subdevice { .. }, GR_GET_GPC_MASK) => Some(GR_GET_GPC_MASK_BYTES),
        (Object::Subdevice { .. }, GR_GET_TPC_MASK) => Some(GR_GET_TPC_MASK_BYTES),
        (Object::Subdevice { .. }, GR_GET_NUM_TPCS_FOR_GPC) => Some(GR_GET_NUM_TPCS_FOR_GPC_BYTES),
        (Object::Subdevice { .. }, GRMGR_GET_GR_FS_INFO) => Some(GRMGR_GET_GR_FS_INFO_BYTES),
        _ => None,
    }
}

/// A client's commands.
pub fn of_client(command: u32, gpus: &[Gpu], attached: &[usize], parameters: &mut [u8]) -> Result<(), u32> {
    match command {
        GPU_GET_ATTACHED_IDS => {
            // NV0000_CTRL_GPU_INVALID_ID ends the list.
            parameters.fill(0xff);
            for (to, gpu) in parameters.chunks_exact_mut(4).zip(attached) {
                put_u32(to, 0, gpus[*gpu].id());
            }
            Ok(())
        }
        GPU_GET_ID_INFO_V2 => {
            let id = u32_at(parameters, 0);
            let found = attached.iter().copied().find(|gpu| gpus[*gpu].id() == id);
            let instance = found.ok_or(status::INVALID_ARGUMENT)? as u32;
            parameters[4..].fill(0);
            put_u32(parameters, ID_INFO_DEVICE_AT, instance);
            put_u32(parameters, ID_INFO_SUBDEVICE_AT, 0);
            put_u32(parameters, ID_INFO_BOARD_AT, id);
            put_u32(parameters, ID_INFO_INSTANCE_AT, instance);
            put_u32(parameters, ID_INFO_NUMA_AT, u32::MAX);
            Ok(())
        }
        _ => Err(status::NOT_SUPPORTED),
    }
}

/// A subdevice's commands.
pub fn of_subdevice(command: u32, gpu: &Gpu, parameters: &mut [u8]) -> Result<(), u32> {
    let control = &gpu.spec.control;
    match command {
        GR_GET_GLOBAL_SM_ORDER => {
            sm_order(gpu, parameters);
            Ok(())
        }
        // Measured: done, and no mask.
        GR_GET_GPC_MASK => {
            put_u32(parameters, BEHIND_ROUTE, 0);
            Ok(())
        }
        GR_GET_TPC_MASK => {
            let gpc = u32_at(parameters, BEHIND_ROUTE) as usize;
            let mask = control.tpc_masks.get(gpc).copied().unwrap_or(0);
            put_u32(parameters, BEHIND_ROUTE + 4, mask);
            Ok(())
        }
        GR_GET_NUM_TPCS_FOR_GPC => match control.tpcs_of(u32_at(parameters, 0)) {
            0 => Err(status::INVALID_ARGUMENT),
            count => {
                put_u32(parameters, 4, count);
                Ok(())
            }
        },
        // Measured: every query is refused.
        GRMGR_GET_GR_FS_INFO => Err(status::INVALID_ARGUMENT),
        _ => Err(status::NOT_SUPPORTED),
    }
}

fn sm_order(gpu: &Gpu, parameters: &mut [u8]) {
    let layout = sm_order_layout(gpu.spec.driver.cuda_version);
    let mut write = |at: usize, value: u32| put(parameters, at, &(value as u16).to_le_bytes());
    let sms = gpu.spec.control.sms(gpu.spec.topology.sms_per_tpc()).take(SM_ORDER_ENTRIES);
    for (index, sm) in sms.enumerate() {
        let newer = [sm.ugpu, sm.cpc, sm.virtual_tpc].map(Option::unwrap_or_default);
        let fields = [sm.gpc, sm.tpc_in_gpc, sm.sm_in_tpc, sm.tpc, sm.virtual_gpc, sm.migratable_tpc];
        for (field, value) in fields.into_iter().chain(newer).take(layout.fields).enumerate() {
            write(index * layout.entry_bytes() + 2 * field, value.into());
        }
    }
    write(layout.counts_at(), gpu.spec.sm_count());
    write(layout.counts_at() + 2, gpu.spec.tpc_count());
}
