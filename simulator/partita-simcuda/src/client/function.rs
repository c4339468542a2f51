//! Functions of loaded modules, and their attributes.

use core::ffi::{CStr, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use partita_abi::CuResult;
use partita_abi::attribute::*;
use partita_abi::kernels::KERNELS;
use partita_abi::stages::STAGES;
use partita_abi::types::*;
use partita_abi::workloads::WORKLOADS;
use partita_core::TpcSet;
use partita_sim::{Footprint, KernelWork};

use super::object::{Mark, Object};
use super::runtime::Runtime;
use super::source::Source;
use crate::shared::qmd::{Image, template};

/// An image's data about a kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelInfo {
    /// Entry name.
    pub name: String,
    /// Offset and size of each parameter; empty if the image does not contain them.
    pub params: Vec<(usize, usize)>,
    /// Registers of a thread; 0 if the image does not contain them.
    pub registers: u32,
    /// Static shared memory, in bytes.
    pub shared_bytes: u32,
    /// Threads of a block at most; 0 if the image does not contain them.
    pub threads_max: u32,
    /// PTX version × 10 and target × 10.
    pub ptx_version: u32,
    /// Compiled for this architecture × 10.
    pub binary_version: u32,
    /// The PTX that the board runs; without it, the kernel computes nothing.
    pub source: Option<Arc<Source>>,
    /// Why its PTX cannot be run.
    pub refused: Option<String>,
}

impl KernelInfo {
    /// Bytes of all parameters.
    pub fn param_bytes(&self) -> usize {
        self.params.iter().map(|(offset, size)| offset + size).max().unwrap_or(0)
    }

    /// Whether the board knows the kernel by its name. One with other parameters is the program's
    /// own, or was rewritten.
    pub fn is_built_in(&self) -> bool {
        let known = |(name, _): &&(&CStr, &[usize])| name.to_bytes() == self.name.as_bytes();
        let sizes = self.params.iter().map(|(_, size)| *size);
        let found = KERNELS.iter().chain(WORKLOADS).chain(STAGES).find(known);
        found.is_some_and(|(_, known)| self.params.is_empty() || sizes.eq(known.iter().copied()))
    }
}

/// A function, bound to a context.
#[derive(Debug)]
pub struct Function {
    mark: Mark,
    /// The data from its image.
    pub info: KernelInfo,
    /// The address that launch descriptors name it by.
    pub program: u64,
    /// Its module's handle.
    pub module: usize,
    /// Its device's ordinal.
    ordinal: i32,
    /// Bytes of all parameters.
    pub param_bytes: usize,
    /// Registers of a thread.
    pub registers: u32,
    /// The descriptor before any launch.
    pub template: Image,
    /// Dynamic shared memory that it may use, in bytes.
    pub dynamic_shared_max: AtomicI32,
    carveout: AtomicI32,
    /// Whether clusters of more than eight blocks are allowed.
    pub non_portable: AtomicBool,
    scheduling: AtomicI32,
}

impl Object for Function {
    const KIND: u64 = u64::from_le_bytes(*b"simfunc\0");
    const BAD: CuResult = CuResult::INVALID_HANDLE;
    fn mark(&self) -> &Mark {
        &self.mark
    }
}

impl Function {
    /// Makes a function of a kernel that the board has loaded.
    ///
    /// # Errors
    /// `INVALID_VALUE` for numbers that no launch descriptor can hold.
    pub fn create(
        runtime: &Runtime,
        info: KernelInfo,
        program: u64,
        module: usize,
    ) -> Result<&'static Self, CuResult> {
        // A compiler's usual number for a small kernel, if the image does not contain it.
        let registers = if info.registers == 0 { 32 } else { info.registers };
        let plain = runtime.spec.sm.shared_per_block_bytes;
        Ok(Box::leak(Box::new(Self {
            mark: Mark::live(Self::KIND),
            template: template(runtime.qmd, program, registers)?,
            param_bytes: info.param_bytes(),
            dynamic_shared_max: AtomicI32::new(plain.saturating_sub(info.shared_bytes) as i32),
            carveout: AtomicI32::new(-1),
            non_portable: AtomicBool::new(false),
            scheduling: AtomicI32::new(0),
            registers,
            program,
            module,
            ordinal: runtime.ordinal,
            info,
        })))
    }

    /// Checks that it was loaded for a device.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when it was loaded for another.
    #[inline]
    pub fn check_device(&self, runtime: &Runtime) -> Result<(), CuResult> {
        if self.ordinal == runtime.ordinal { Ok(()) } else { Err(CuResult::INVALID_HANDLE) }
    }

    /// Checks that the board can run it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if its PTX has an instruction that is not simulated.
    #[inline]
    pub fn check_simulated(&self) -> Result<(), CuResult> {
        if self.info.refused.is_none() || self.info.is_built_in() {
            Ok(())
        } else {
            Err(CuResult::NOT_SUPPORTED)
        }
    }

    /// Ends it.
    pub fn retire(&self) {
        self.mark.kill(Self::KIND);
    }

    /// Its handle.
    pub fn handle(&self) -> CUfunction {
        CUfunction(std::ptr::from_ref(self).cast_mut().cast())
    }

    /// Its blocks for the model, for queries of occupancy.
    pub fn work(&self, threads: u32, dynamic_shared: u32) -> KernelWork {
        let mut work = KernelWork::new(1, threads.max(1), 0, TpcSet::EMPTY);
        work.regs_per_thread = self.registers.max(16);
        work.smem_per_block = self.info.shared_bytes.saturating_add(dynamic_shared);
        work
    }

    /// Blocks that one SM holds at once.
    pub fn resident_blocks(&self, runtime: &Runtime, threads: u32, dynamic_shared: u32) -> u32 {
        let sm = &runtime.spec.sm;
        Footprint::of(&self.work(threads, dynamic_shared), sm).blocks_per_sm(sm)
    }

    /// Threads of a block at most.
    pub fn threads_max(&self, runtime: &Runtime) -> u32 {
        let sm = &runtime.spec.sm;
        let by_registers = sm.registers_per_block_max / self.registers.next_multiple_of(8).max(1);
        let limit = sm.threads_per_block_max.min(by_registers / sm.warp_threads * sm.warp_threads);
        if self.info.threads_max > 0 { limit.min(self.info.threads_max) } else { limit }
    }

    /// An attribute, as `cuda.h` names them.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown one.
    pub fn attribute(&self, runtime: &Runtime, attribute: CUfunction_attribute) -> Result<c_int, CuResult> {
        let capability = runtime.spec.compute_capability;
        let native = u32::from(capability.major) * 10 + u32::from(capability.minor);
        Ok(match attribute {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => self.threads_max(runtime) as c_int,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => self.info.shared_bytes as c_int,
            CU_FUNC_ATTRIBUTE_NUM_REGS => self.registers as c_int,
            CU_FUNC_ATTRIBUTE_PTX_VERSION => match self.info.ptx_version {
                0 => native as c_int,
                version => version as c_int,
            },
            CU_FUNC_ATTRIBUTE_BINARY_VERSION => match self.info.binary_version {
                0 => native as c_int,
                version => version as c_int,
            },
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                self.dynamic_shared_max.load(Ordering::Relaxed)
            }
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => self.carveout.load(Ordering::Relaxed),
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                c_int::from(self.non_portable.load(Ordering::Relaxed))
            }
            CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => self.scheduling.load(Ordering::Relaxed),
            attribute if function_attribute_name(attribute).is_some() => 0,
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// `INVALID_VALUE` for one that cannot be set and a value that cannot be.
    pub fn set_attribute(
        &self,
        runtime: &Runtime,
        attribute: CUfunction_attribute,
        value: c_int,
    ) -> Result<(), CuResult> {
        match attribute {
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let room =
                    runtime.spec.sm.shared_per_block_optin_bytes.saturating_sub(self.info.shared_bytes);
                if value < 0 || value as u32 > room {
                    return Err(CuResult::INVALID_VALUE);
                }
                self.dynamic_shared_max.store(value, Ordering::Relaxed);
            }
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                if !(-1..=100).contains(&value) {
                    return Err(CuResult::INVALID_VALUE);
                }
                self.carveout.store(value, Ordering::Relaxed);
            }
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                self.non_portable.store(value != 0, Ordering::Relaxed);
            }
            CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                self.scheduling.store(value, Ordering::Relaxed);
            }
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    }

    /// Offset and size of a parameter.
    ///
    /// # Errors
    /// `INVALID_VALUE` for one that there is not.
    pub fn param(&self, index: usize) -> Result<(usize, usize), CuResult> {
        self.info.params.get(index).copied().ok_or(CuResult::INVALID_VALUE)
    }
}
