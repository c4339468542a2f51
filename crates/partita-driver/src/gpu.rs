//! One GPU, opened to run the kernels that Partita knows.

use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_void};
use core::marker::PhantomData;

use partita_abi::attribute;
use partita_abi::kernels;
use partita_abi::types::{
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CUlaunchAttribute, CUlaunchAttributeValue, CUlaunchConfig,
    CUstream, CUuuid,
};

use crate::cuda::Cuda;
use crate::error::Error;
use crate::stream::StreamRef;
use crate::time::Deadline;

/// How long a kernel of microseconds may take, in milliseconds: on a shared GPU it waits for its
/// turn, and the simulated GPU shares the processor with other programs.
pub const KERNEL_DEADLINE_MS: u64 = 30_000;

/// What the driver reports about a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// The product's name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Compute capability, major × 10 + minor.
    pub compute_capability: u32,
    /// SMs that the driver reports.
    pub sms: u32,
    /// CUDA version of the driver: major × 1000 + minor × 10.
    pub cuda_version: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Whether MPS runs this process's contexts.
    pub under_mps: bool,
}

/// A GPU with its primary context current on the opening thread, and the known kernels loaded.
pub struct Gpu<'a> {
    cuda: &'a Cuda,
    device: c_int,
    module: *mut c_void,
    stream: *mut c_void,
    facts: GpuFacts,
    /// Contexts are current on one thread.
    _not_send: PhantomData<*mut ()>,
}

/// Device memory, freed when dropped.
pub struct Buffer<'a> {
    pub(crate) cuda: &'a Cuda,
    address: u64,
    bytes: usize,
}

/// A launch's shape.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// Blocks in x.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster; 1 without clusters.
    pub cluster_blocks: u32,
}

/// A launch that can be repeated: its function is resolved and its arguments are laid out.
pub struct Launch<'a> {
    cuda: &'a Cuda,
    function: *mut c_void,
    stream: *mut c_void,
    grid: Grid,
    cooperative: bool,
    shared_bytes: u32,
    arguments: Vec<u64>,
    /// Addresses of the arguments as numbers; the driver takes an array of pointers.
    pointers: Vec<usize>,
}

/// The target of a launch: a stream, and the known kernels as loaded in the stream's context.
#[derive(Debug, Clone, Copy)]
pub struct Place<'s> {
    pub(crate) stream: StreamRef<'s>,
    pub(crate) module: *mut c_void,
}

impl<'s> Place<'s> {
    /// The stream.
    pub fn stream(&self) -> StreamRef<'s> {
        self.stream
    }
}

impl Launch<'_> {
    /// Changes the launch to a cooperative one: all blocks are resident at the same time, as a grid
    /// that synchronises needs it.
    ///
    /// # Errors
    /// [`Error::Refused`] for a launch with clusters.
    pub fn cooperative(mut self) -> Result<Self, Error> {
        if self.grid.cluster_blocks > 1 {
            return Err(Error::Refused(
                "cooperative launches with clusters are not supported here: leave out one of the two".into(),
            ));
        }
        self.cooperative = true;
        Ok(self)
    }

    /// Gives each block that much dynamic shared memory, in bytes.
    ///
    /// # Errors
    /// Those of the driver, beyond what a block can have.
    pub(crate) fn with_shared(mut self, bytes: u32) -> Result<Self, Error> {
        let limit = attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let value = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: a function of a module that is never unloaded.
        unsafe { self.cuda.func_set_attribute(self.function, limit, value)? };
        self.shared_bytes = bytes;
        Ok(self)
    }

    /// Launches once, without waiting or allocating.
    ///
    /// # Errors
    /// Those of the driver, for a shape that it refuses.
    pub fn launch(&mut self) -> Result<(), Error> {
        for (pointer, argument) in self.pointers.iter_mut().zip(&mut self.arguments) {
            *pointer = core::ptr::from_mut(argument).expose_provenance();
        }
        let pointers = self.pointers.as_mut_ptr().cast::<*mut c_void>();
        let Grid { blocks, threads, cluster_blocks } = self.grid;
        let none = core::ptr::null_mut();
        if self.cooperative {
            // SAFETY: as below.
            return unsafe {
                self.cuda.launch_cooperative_kernel(
                    self.function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    self.shared_bytes,
                    self.stream,
                    pointers,
                )
            };
        }
        if cluster_blocks <= 1 {
            // SAFETY: a function of a module that is never unloaded, and arguments as promised to
            // Gpu::prepare; the driver copies them before it returns.
            return unsafe {
                self.cuda.launch_kernel(
                    self.function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    self.shared_bytes,
                    self.stream,
                    pointers,
                    none,
                )
            };
        }
        let mut attributes = [CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: CUlaunchAttributeValue::from_dim3([cluster_blocks, 1, 1]),
        }];
        let config = CUlaunchConfig {
            grid_dim_x: blocks,
            grid_dim_y: 1,
            grid_dim_z: 1,
            block_dim_x: threads,
            block_dim_y: 1,
            block_dim_z: 1,
            shared_mem_bytes: self.shared_bytes,
            stream: CUstream(self.stream),
            attrs: attributes.as_mut_ptr(),
            num_attrs: 1,
        };
        // SAFETY: as above.
        unsafe { self.cuda.launch_kernel_ex(&config, self.function, pointers, none) }
    }
}

impl<'a> Gpu<'a> {
    /// Opens the GPU with this ordinal among the visible ones.
    ///
    /// # Errors
    /// The call that failed.
    pub fn open(cuda: &'a Cuda, ordinal: u32) -> Result<Self, Error> {
        // SAFETY: each call gets valid pointers and handles that the driver just gave.
        unsafe {
            cuda.init(0)?;
            let mut device = 0;
            cuda.device_get(&mut device, c_int::try_from(ordinal).unwrap_or(c_int::MAX))?;
            let facts = facts(cuda, device)?;
            let mut context = core::ptr::null_mut();
            cuda.primary_retain(&mut context, device)?;
            cuda.ctx_set_current(context)?;
            let mut module = core::ptr::null_mut();
            cuda.module_load_data(&mut module, kernels::PTX_MODULE.as_ptr().cast())?;
            let mut stream = core::ptr::null_mut();
            // CU_STREAM_NON_BLOCKING: nothing here relies on the legacy stream.
            cuda.stream_create(&mut stream, 1)?;
            Ok(Self { cuda, device, module, stream, facts, _not_send: PhantomData })
        }
    }

    /// What the driver reports about it.
    pub fn facts(&self) -> &GpuFacts {
        &self.facts
    }

    /// The driver.
    pub fn cuda(&self) -> &'a Cuda {
        self.cuda
    }

    /// The driver's handle.
    pub fn device(&self) -> c_int {
        self.device
    }

    /// The stream for launches that name no other.
    pub fn stream(&self) -> StreamRef<'_> {
        // SAFETY: made in open() and never destroyed before the context; not a default stream.
        unsafe { StreamRef::from_raw(self.stream) }
            .expect("the driver created this stream, so it is not a default stream")
    }

    /// A stream of the GPU's primary context as a place for launches.
    pub fn place<'s>(&'s self, stream: StreamRef<'s>) -> Place<'s> {
        Place { stream, module: self.module }
    }

    /// Free and total memory in bytes, as the driver reports it to this process.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn memory_bytes(&self) -> Result<(u64, u64), Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid pointers.
        unsafe { self.cuda.mem_get_info(&mut free, &mut total)? };
        Ok((free as u64, total as u64))
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// Those of the driver; `CUDA_ERROR_OUT_OF_MEMORY` beyond a quota.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer<'a>, Error> {
        let mut address = 0;
        // SAFETY: a valid pointer.
        unsafe { self.cuda.mem_alloc(&mut address, bytes)? };
        Ok(Buffer { cuda: self.cuda, address, bytes })
    }

    /// Prepares a launch of a known kernel for repeated use.
    ///
    /// # Errors
    /// Those of the driver, for an unknown name.
    ///
    /// # Safety
    /// `arguments` are those of the kernel, as `partita_abi::kernels` documents: each 8 bytes
    /// little-endian, or 4 in the low half. Every address among them is memory that stays allocated
    /// until the last launch has ended.
    pub unsafe fn prepare(&self, kernel: &CStr, grid: Grid, arguments: &[u64]) -> Result<Launch<'_>, Error> {
        // SAFETY: the caller guarantees it.
        unsafe { self.prepare_at(self.place(self.stream()), kernel, grid, arguments) }
    }

    /// As [`Gpu::prepare`], at a place.
    ///
    /// # Errors
    /// As [`Gpu::prepare`].
    ///
    /// # Safety
    /// As for [`Gpu::prepare`].
    pub unsafe fn prepare_at<'s>(
        &'s self,
        place: Place<'s>,
        kernel: &CStr,
        grid: Grid,
        arguments: &[u64],
    ) -> Result<Launch<'s>, Error> {
        let mut function = core::ptr::null_mut();
        // SAFETY: a valid pointer, module and name.
        unsafe { self.cuda.module_get_function(&mut function, place.module, kernel.as_ptr())? };
        if grid.cluster_blocks > 1 {
            // SAFETY: the function just found.
            unsafe {
                self.cuda.func_set_attribute(
                    function,
                    attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )?;
            }
        }
        let arguments = arguments.to_vec();
        Ok(Launch {
            cuda: self.cuda,
            function,
            stream: place.stream.handle(),
            grid,
            cooperative: false,
            shared_bytes: 0,
            pointers: vec![0; arguments.len()],
            arguments,
        })
    }

    /// Launches a known kernel without waiting for it.
    ///
    /// # Errors
    /// Those of the driver, for an unknown name or a shape that it refuses.
    ///
    /// # Safety
    /// As for [`Gpu::prepare`].
    pub unsafe fn launch(&self, kernel: &CStr, grid: Grid, arguments: &[u64]) -> Result<(), Error> {
        // SAFETY: the caller guarantees it.
        unsafe { self.prepare(kernel, grid, arguments)? }.launch()
    }

    /// Prepares `partita_spin`: every thread of every block spins for a time.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn prepare_spin(&self, blocks: u32, threads: u32, duration_ns: u64) -> Result<Launch<'_>, Error> {
        let grid = Grid { blocks, threads, cluster_blocks: 1 };
        self.prepare_spin_at(self.place(self.stream()), grid, duration_ns)
    }

    /// As [`Gpu::prepare_spin`], at a place.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn prepare_spin_at<'s>(
        &'s self,
        place: Place<'s>,
        grid: Grid,
        duration_ns: u64,
    ) -> Result<Launch<'s>, Error> {
        // SAFETY: the kernel takes a duration and no address.
        unsafe { self.prepare_at(place, kernels::SPIN, grid, &[duration_ns]) }
    }

    /// Prepares `partita_copy`: copies the whole of `from` to the beginning of `to`.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If `to` is smaller than `from`.
    pub fn prepare_copy<'b>(
        &'b self,
        grid: Grid,
        to: &'b Buffer<'a>,
        from: &'b Buffer<'a>,
    ) -> Result<Launch<'b>, Error> {
        assert!(from.bytes <= to.bytes, "{} bytes into a buffer of {}", from.bytes, to.bytes);
        // SAFETY: the kernel takes two addresses and a size, inside buffers that the launch
        // borrows.
        unsafe { self.prepare(kernels::COPY, grid, &[to.address, from.address, from.bytes as u64]) }
    }

    /// Prepares `partita_fma`: `values[i] = values[i]² × rounds + values[i]` in `rounds` fused
    /// multiply-adds, over a buffer of `f32`.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn prepare_fma<'b>(
        &'b self,
        grid: Grid,
        values: &'b Buffer<'a>,
        rounds: u32,
    ) -> Result<Launch<'b>, Error> {
        let (address, count) = (values.address, values.bytes as u64 / 4);
        // SAFETY: the kernel takes four addresses of `count` numbers, which may be the same; the
        // launch borrows the buffer.
        unsafe {
            self.prepare(kernels::FMA, grid, &[address, address, address, address, count, u64::from(rounds)])
        }
    }

    /// Waits for everything launched, but not beyond the deadline.
    ///
    /// It polls, with short sleeps after the first millisecond, because a wait inside the driver
    /// cannot be interrupted.
    ///
    /// # Errors
    /// [`Error::Hang`] at the deadline; those of the driver if a kernel failed.
    pub fn wait(&self, what: &'static str, deadline_ms: u64) -> Result<(), Error> {
        self.wait_on(self.stream(), what, deadline_ms)
    }

    /// As [`Gpu::wait`], for another stream.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn wait_on(&self, stream: StreamRef<'_>, what: &'static str, deadline_ms: u64) -> Result<(), Error> {
        let deadline = Deadline::in_ms(deadline_ms);
        loop {
            if self.is_idle(stream)? {
                return Ok(());
            }
            if deadline.has_passed() {
                return Err(Error::Hang { what, deadline_ms });
            }
            deadline.pause();
        }
    }

    /// Whether a stream has finished its work.
    ///
    /// # Errors
    /// Those of the driver, if earlier work failed.
    pub fn is_idle(&self, stream: StreamRef<'_>) -> Result<bool, Error> {
        // SAFETY: a live stream.
        match unsafe { self.cuda.stream_query(stream.handle()) } {
            Ok(()) => Ok(true),
            Err(Error::Call { code, .. }) if code == partita_abi::CuResult::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for everything launched, without a timeout.
    ///
    /// # Errors
    /// Those of the driver, if a kernel failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: a live stream.
        unsafe { self.cuda.stream_synchronize(self.stream) }
    }

    /// Launches `partita_spin`, in which every thread spins for a time, without waiting for it.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn spin(&self, blocks: u32, threads: u32, duration_ns: u64) -> Result<(), Error> {
        self.prepare_spin(blocks, threads, duration_ns)?.launch()
    }

    /// As [`Gpu::spin`], on another stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn spin_on(&self, stream: StreamRef<'_>, grid: Grid, duration_ns: u64) -> Result<(), Error> {
        // SAFETY: the kernel takes a duration and no address.
        unsafe { self.prepare_at(self.place(stream), kernels::SPIN, grid, &[duration_ns])? }.launch()
    }
}

impl Drop for Gpu<'_> {
    fn drop(&mut self) {
        // SAFETY: releases the reference that open() took; at exit the driver may already be gone,
        // which does no harm.
        let _ = unsafe { self.cuda.primary_release(self.device) };
    }
}

impl Buffer<'_> {
    /// The device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies to the device, and returns when the data has arrived.
    ///
    /// # Errors
    /// Those of the driver.
    ///
    /// # Panics
    /// If `data` is larger than the buffer.
    pub fn write(&self, data: &[u8]) -> Result<(), Error> {
        assert!(data.len() <= self.bytes, "{} bytes into a buffer of {}", data.len(), self.bytes);
        // SAFETY: both ranges are valid for data.len() bytes.
        unsafe { self.cuda.write(self.address, data) }
    }

    /// Copies from the device, after all earlier work.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        let mut data = vec![0; self.bytes];
        // SAFETY: both ranges are valid for the buffer's size.
        unsafe { self.cuda.memcpy_to_host(data.as_mut_ptr().cast(), self.address, self.bytes)? };
        Ok(data)
    }

    /// Sets every byte.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn fill(&self, value: u8) -> Result<(), Error> {
        // SAFETY: the range is the buffer's.
        unsafe {
            self.cuda.memset_d8(self.address, value, self.bytes)?;
            self.cuda.ctx_synchronize()
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated in Gpu::alloc and freed once; failure means that the context is gone,
        // and the memory with it.
        let _ = unsafe { self.cuda.mem_free(self.address) };
    }
}

/// # Safety
/// `device` is a device that the driver gave.
unsafe fn facts(cuda: &Cuda, device: c_int) -> Result<GpuFacts, Error> {
    let attribute = |number: u32| -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: a valid pointer and device.
        unsafe { cuda.device_get_attribute(&mut value, number, device)? };
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let mut name = [0u8; 256];
    let mut uuid = CUuuid { bytes: [0; 16] };
    let (mut version, mut memory_bytes) = (0, 0);
    // SAFETY: valid pointers and the length that goes with the buffer.
    unsafe {
        cuda.device_get_name(name.as_mut_ptr().cast(), name.len() as c_int, device)?;
        cuda.device_get_uuid(&mut uuid, device)?;
        cuda.driver_get_version(&mut version)?;
        cuda.device_total_mem(&mut memory_bytes, device)?;
    }
    Ok(GpuFacts {
        name: CString::from_vec_with_nul(
            name.split_inclusive(|&byte| byte == 0).next().unwrap_or(&[0]).to_vec(),
        )
        .unwrap_or_default()
        .to_string_lossy()
        .to_string(),
        uuid: uuid.bytes,
        compute_capability: 10 * attribute(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        sms: attribute(attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        cuda_version: u32::try_from(version).unwrap_or(0),
        memory_bytes: memory_bytes as u64,
        // Drivers before CUDA 12 do not report it, and have no other way to.
        under_mps: attribute(attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED).unwrap_or(0) != 0,
    })
}
