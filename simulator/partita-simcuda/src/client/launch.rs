//! Kernel launches.

use core::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_abi::qmd::LaunchShape;
use partita_abi::types::*;

use super::context::green::Confines;
use super::function::{Function, KernelInfo};
use super::runtime::Runtime;
use super::{get, list};
use crate::shared::command::LaunchHead;
use crate::shared::qmd::{self, Image};
use crate::shared::sys::lock;

/// The longest parameter list, in bytes, as `cuda.h` documents it for devices from Volta on.
pub const PARAM_BYTES_MAX: usize = 32764;
/// Clusters of more blocks than this need a function's consent.
pub const CLUSTER_PORTABLE_MAX: u32 = 8;

/// A launch as the program requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub dynamic_shared: u32,
    /// Blocks of a cluster along x, y and z.
    pub cluster: [u32; 3],
    /// All blocks at once.
    pub cooperative: bool,
    /// The launch's own priority.
    pub priority: Option<i32>,
}

impl Launch {
    fn shape(&self) -> LaunchShape {
        LaunchShape { grid: self.grid, cluster: self.cluster, cooperative: Some(self.cooperative) }
    }

    /// Checks it against function and device. A launch that fits the device but not a mask hangs,
    /// as on hardware.
    ///
    /// # Errors
    /// Those that `cuLaunchKernel` documents; `NOT_SUPPORTED` for a kernel that is not simulated.
    #[inline]
    pub fn check(&self, runtime: &Runtime, function: &Function) -> Result<(), CuResult> {
        function.check_simulated()?;
        let sm = &runtime.spec.sm;
        let threads =
            self.block.iter().fold(1u64, |product, threads| product.saturating_mul(u64::from(*threads)));
        let sizes = self.grid.iter().chain(&self.block).all(|size| *size > 0)
            && self.grid[0] <= i32::MAX as u32
            && self.grid[1] <= 65535
            && self.grid[2] <= 65535
            && self.block[2] <= 64
            && threads <= u64::from(sm.threads_per_block_max);
        if !sizes {
            return Err(CuResult::INVALID_VALUE);
        }
        if threads > u64::from(function.threads_max(runtime)) {
            return Err(CuResult::LAUNCH_OUT_OF_RESOURCES);
        }
        if self.dynamic_shared > function.dynamic_shared_max.load(Ordering::Relaxed) as u32 {
            return Err(CuResult::INVALID_VALUE);
        }
        if self.cluster != [1; 3] {
            self.check_cluster(runtime, function)?;
        }
        if self.cooperative {
            let blocks = self.shape().grid_blocks();
            let resident = function.resident_blocks(runtime, threads as u32, self.dynamic_shared);
            if blocks > u64::from(resident) * u64::from(runtime.sms) {
                return Err(CuResult::COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        Ok(())
    }

    fn check_cluster(&self, runtime: &Runtime, function: &Function) -> Result<(), CuResult> {
        let most = runtime.spec.sm.cluster_blocks_max;
        let divides =
            self.grid.iter().zip(self.cluster).all(|(grid, cluster)| cluster > 0 && grid % cluster == 0);
        if !divides {
            return Err(CuResult::INVALID_VALUE);
        }
        let allowed =
            if function.non_portable.load(Ordering::Relaxed) { most } else { most.min(CLUSTER_PORTABLE_MAX) };
        if self.shape().cluster_blocks() > allowed {
            return Err(CuResult::INVALID_CLUSTER_SIZE);
        }
        Ok(())
    }

    /// Fills a descriptor for a launch that is held to these TPCs and has this priority.
    ///
    /// # Errors
    /// `INVALID_VALUE` for dimensions that no descriptor can hold.
    #[inline]
    pub fn describe(
        &self,
        runtime: &Runtime,
        function: &Function,
        confines: &Confines,
        priority: i32,
    ) -> Result<Image, CuResult> {
        let mut image = function.template;
        let mut shape = self.shape();
        if runtime.qmd.cga.is_none() {
            shape.cooperative = None;
        }
        let priority = self.priority.unwrap_or(priority);
        let shared = function.info.shared_bytes + self.dynamic_shared;
        qmd::fill(&mut image, runtime.qmd, &shape, self.block, shared, priority, &runtime.spec.sm)?;
        match &confines.mask {
            Some(disable) => {
                qmd::merge_stream_mask(&mut image, runtime.qmd, disable, &runtime.spec.topology);
            }
            None if shape.cluster_blocks() > 2 => {
                qmd::leave_out_singletons(&mut image, runtime.qmd, &runtime.spec.topology);
            }
            None => {}
        }
        if let Some(disable) = &confines.green {
            qmd::merge(&mut image, runtime.qmd, disable);
        }
        Ok(image)
    }

    /// The data for the board beside the descriptor.
    pub fn head(&self, runtime: &Runtime, param_bytes: usize) -> LaunchHead {
        LaunchHead {
            flags: if self.cooperative { LaunchHead::COOPERATIVE } else { 0 },
            qmd_bytes: runtime.qmd.bytes as u32,
            param_bytes: param_bytes as u32,
            reserved: 0,
        }
    }
}

/// A buffer for parameters: on the stack if they are few.
pub struct ParamBuffer {
    few: [MaybeUninit<u8>; 512],
    many: Vec<u8>,
    length: usize,
}

impl ParamBuffer {
    /// Collects the parameters of a launch as the kernel will see them.
    ///
    /// # Errors
    /// `INVALID_VALUE` for missing parameters, or too many.
    ///
    /// # Safety
    /// `params` is null or holds a pointer to each parameter; `extra` is null or a list as in
    /// `cuda.h`.
    #[inline]
    pub unsafe fn gather(
        function: &Function,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Self, CuResult> {
        let length = function.param_bytes;
        let mut buffer = Self { few: [MaybeUninit::uninit(); 512], many: Vec::new(), length };
        if !extra.is_null() {
            if !params.is_null() {
                return Err(CuResult::INVALID_VALUE);
            }
            // SAFETY: by the caller's word.
            buffer.many = unsafe { buffer_of_extra(extra)? };
            buffer.length = buffer.many.len();
            return Ok(buffer);
        }
        if length == 0 {
            return Ok(buffer);
        }
        if params.is_null() || length > PARAM_BYTES_MAX {
            return Err(CuResult::INVALID_VALUE);
        }
        if length > buffer.few.len() {
            buffer.many = vec![0; length];
        }
        let to = if length > buffer.few.len() {
            buffer.many.as_mut_ptr()
        } else {
            buffer.few[..length].fill(MaybeUninit::new(0));
            buffer.few.as_mut_ptr().cast::<u8>()
        };
        for (index, (offset, size)) in function.info.params.iter().enumerate() {
            // SAFETY: the program gave a pointer for each parameter; offset and size lie inside
            // `length`.
            unsafe {
                let from = *params.add(index);
                if from.is_null() {
                    return Err(CuResult::INVALID_VALUE);
                }
                std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.add(*offset), *size);
            }
        }
        Ok(buffer)
    }

    /// The parameters.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if self.many.is_empty() {
            // SAFETY: `gather` initialised `length` bytes.
            unsafe { std::slice::from_raw_parts(self.few.as_ptr().cast(), self.length) }
        } else {
            &self.many
        }
    }
}

/// The buffer that an `extra` list names.
///
/// # Safety
/// The list is as in `cuda.h`.
unsafe fn buffer_of_extra(extra: *mut *mut c_void) -> Result<Vec<u8>, CuResult> {
    let (mut buffer, mut bytes) = (std::ptr::null::<u8>(), 0usize);
    for pair in 0..8 {
        // SAFETY: the list is read no further than its end mark.
        let (key, value) = unsafe { (*extra.add(2 * pair), extra.add(2 * pair + 1)) };
        match key.addr() {
            CU_LAUNCH_PARAM_END => break,
            // SAFETY: a key other than the end mark has a value.
            CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = unsafe { *value }.cast_const().cast(),
            // SAFETY: as above; the value points to a size.
            CU_LAUNCH_PARAM_BUFFER_SIZE => bytes = unsafe { get((*value).cast_const().cast::<usize>())? },
            _ => return Err(CuResult::INVALID_VALUE),
        }
    }
    if bytes > PARAM_BYTES_MAX {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: by the caller's word the buffer has that size.
    Ok(unsafe { list(buffer, bytes)? }.to_vec())
}

/// Reports once for each name that a kernel computes nothing, or cannot be run.
pub fn note_unknown(function: &Function) {
    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let KernelInfo { name, source, refused, .. } = &function.info;
    if function.info.is_built_in() || (source.is_some() && refused.is_none()) {
        return;
    }
    let mut seen = lock(&SEEN);
    if seen.contains(name) {
        return;
    }
    seen.push(name.clone());
    match refused {
        Some(why) => eprintln!("partita-sim: kernel '{name}' cannot be launched: {why}"),
        None => {
            let us = std::env::var("PARTITA_SIM_KERNEL_US").unwrap_or_else(|_| "10".to_owned());
            eprintln!(
                "partita-sim: kernel '{name}' has no PTX and is not simulated: each block takes {us} us and computes nothing"
            );
        }
    }
}

/// Reads the attributes of a launch.
///
/// # Safety
/// The configuration is null or valid, with as many attributes as it says.
pub unsafe fn configured(config: *const CUlaunchConfig) -> Result<(Launch, CUstream), CuResult> {
    // SAFETY: by the caller's word.
    let config = unsafe { get(config)? };
    let mut launch = Launch {
        grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
        block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
        dynamic_shared: config.shared_mem_bytes,
        cluster: [1; 3],
        cooperative: false,
        priority: None,
    };
    // SAFETY: by the caller's word.
    for attribute in unsafe { list(config.attrs, config.num_attrs as usize)? } {
        match attribute.id {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => launch.cooperative = attribute.value.as_i32() != 0,
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                launch.cluster = attribute.value.as_dim3();
                if launch.cluster.contains(&0) {
                    return Err(CuResult::INVALID_VALUE);
                }
            }
            CU_LAUNCH_ATTRIBUTE_PRIORITY => launch.priority = Some(attribute.value.as_i32()),
            // Hints, and attributes that allow a looser order than here.
            0 | CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW | 3 | 5 | 6 | 9 | 10 | 11 | 14 | 16 => {}
            _ => return Err(CuResult::NOT_SUPPORTED),
        }
    }
    Ok((launch, config.stream))
}
