//! The kernels of example chains, for safe code and parts of device memory.

use alloc::format;
use core::ffi::{CStr, c_void};

use partita_abi::stages::{DECODE, DETECT, ENHANCE, MATRIX, STAGES_MODULE};

use crate::cuda::Cuda;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::ipc::Span;
use crate::stream::StreamRef;

/// Threads of a block over a picture's rows, and over its pixels.
const THREADS: u32 = 256;
/// Side of a square block.
const SIDE: u32 = 32;
/// The most pixels that [`Stages::detect`] can address.
const PIXELS_MAX: u64 = 1 << 24;

/// The loaded kernels. Each call launches one and returns at once; the memory must stay allocated
/// until the stream is past it.
pub struct Stages<'a> {
    cuda: &'a Cuda,
    functions: [*mut c_void; 4],
}

impl<'a> Stages<'a> {
    /// Loads the kernels into the context of `gpu`.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn load(gpu: &Gpu<'a>) -> Result<Self, Error> {
        let cuda = gpu.cuda();
        let mut module = core::ptr::null_mut();
        // SAFETY: a valid pointer and a module that ends with a zero; the GPU's context is current.
        unsafe { cuda.module_load_data(&mut module, STAGES_MODULE.as_ptr().cast())? };
        let function = |name: &CStr| {
            let mut function = core::ptr::null_mut();
            // SAFETY: a valid pointer, the module just loaded, which is never unloaded, and a name
            // of it.
            unsafe { cuda.module_get_function(&mut function, module, name.as_ptr()) }.map(|()| function)
        };
        Ok(Self {
            cuda,
            functions: [function(MATRIX)?, function(DECODE)?, function(ENHANCE)?, function(DETECT)?],
        })
    }

    /// Multiplies `n` × `n` matrices of `f32`, `to = from × by`, `rounds` times ([`MATRIX`]).
    ///
    /// # Errors
    /// [`Error::Refused`] for memory that is too small; those of the driver.
    pub fn matrix(
        &self,
        stream: StreamRef<'_>,
        to: &Span<'_>,
        from: &Span<'_>,
        by: &Span<'_>,
        n: u32,
        rounds: u32,
    ) -> Result<(), Error> {
        let bytes = u64::from(n) * u64::from(n) * 4;
        let [to, from, by] = [address(to, bytes)?, address(from, bytes)?, address(by, bytes)?];
        let blocks = n.div_ceil(SIDE).max(1);
        let arguments = [to, from, by, n.into(), rounds.into()];
        // SAFETY: the kernel's arguments, in memory that was just checked to be large enough.
        unsafe { self.launch(0, stream, [blocks; 2], [SIDE; 2], arguments) }
    }

    /// Undoes the differences of each row of a picture ([`DECODE`]).
    ///
    /// # Errors
    /// As [`Stages::matrix`].
    pub fn decode(
        &self,
        stream: StreamRef<'_>,
        to: &Span<'_>,
        from: &Span<'_>,
        width: u32,
        height: u32,
    ) -> Result<(), Error> {
        let bytes = u64::from(width) * u64::from(height);
        let arguments = [address(to, bytes)?, address(from, bytes)?, width.into(), height.into()];
        // SAFETY: as in `matrix`.
        unsafe { self.launch(1, stream, [height.div_ceil(THREADS).max(1), 1], [THREADS, 1], arguments) }
    }

    /// Sharpens a picture ([`ENHANCE`]).
    ///
    /// # Errors
    /// As [`Stages::matrix`].
    pub fn enhance(
        &self,
        stream: StreamRef<'_>,
        to: &Span<'_>,
        from: &Span<'_>,
        width: u32,
        height: u32,
    ) -> Result<(), Error> {
        let bytes = u64::from(width) * u64::from(height);
        let arguments = [address(to, bytes)?, address(from, bytes)?, width.into(), height.into()];
        let grid = [width, height].map(|side| side.div_ceil(SIDE).max(1));
        // SAFETY: as in `matrix`.
        unsafe { self.launch(2, stream, grid, [SIDE; 2], arguments) }
    }

    /// Counts bright pixels of a picture and finds the brightest ([`DETECT`]); `to` has eight
    /// bytes.
    ///
    /// # Errors
    /// As [`Stages::matrix`]; [`Error::Refused`] for a picture of more than 2²⁴ pixels.
    pub fn detect(
        &self,
        stream: StreamRef<'_>,
        to: &Span<'_>,
        from: &Span<'_>,
        threshold: u32,
    ) -> Result<(), Error> {
        let pixels = from.bytes();
        if pixels > PIXELS_MAX {
            return Err(Error::Refused(format!(
                "a picture of {pixels} pixels is larger than {PIXELS_MAX}: pass a part of it"
            )));
        }
        let found = to.part(0, 8)?;
        found.fill(0, stream)?;
        let arguments = [found.address(), from.address(), pixels, threshold.into()];
        let blocks = (pixels as u32).div_ceil(THREADS).clamp(1, 1024);
        // SAFETY: as in `matrix`.
        unsafe { self.launch(3, stream, [blocks, 1], [THREADS, 1], arguments) }
    }

    /// # Safety
    /// `arguments` are the kernel's, each in the low bytes of its word, and its addresses are valid
    /// for what it does.
    unsafe fn launch<const N: usize>(
        &self,
        kernel: usize,
        stream: StreamRef<'_>,
        grid: [u32; 2],
        block: [u32; 2],
        mut arguments: [u64; N],
    ) -> Result<(), Error> {
        let mut pointers =
            arguments.each_mut().map(|argument| core::ptr::from_mut(argument).cast::<c_void>());
        // SAFETY: a function of a module that stays loaded, a live stream, and arguments that the
        // caller guarantees; the driver copies them.
        unsafe {
            self.cuda.launch_kernel(
                self.functions[kernel],
                grid[0],
                grid[1],
                1,
                block[0],
                block[1],
                1,
                0,
                stream.handle(),
                pointers.as_mut_ptr(),
                core::ptr::null_mut(),
            )
        }
    }
}

fn address(span: &Span<'_>, bytes: u64) -> Result<u64, Error> {
    span.part(0, bytes).map(|part| part.address())
}
