//! The kernels of experiments, for safe code: each owns the memory that it works on, and a record
//! for each of its blocks.

use alloc::format;
use alloc::vec::Vec;
use core::ffi::c_void;

use partita_abi::workloads::{CHAIN, COUNTER, MANDELBROT, MATMUL, TIMER, WALK, WORKLOADS_MODULE};

use crate::census::{BlockRecord, RECORD_BYTES, read_records};
use crate::error::Error;
use crate::gpu::{Buffer, Gpu};
use crate::stream::StreamRef;

/// The deadline for building a chain, which takes a fraction of a second.
const CHAIN_DEADLINE_MS: u64 = 60_000;
/// A full period modulo a power of two: the factor is one more than a multiple of four, and the
/// step is odd (Hull and Dobell).
const JUMP: (u64, u64) = (1_664_525, 1_013_904_223);
/// This odd number spreads the starts of the threads of a random walk.
const APART: u64 = 2_654_435_761;

/// What a kernel does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// It spins for a time, in nanoseconds.
    Timer {
        /// The time.
        ns: u64,
    },
    /// It counts.
    Counter {
        /// How far.
        loops: u64,
    },
    /// It multiplies matrices.
    Matmul {
        /// Elements of a row.
        width: u32,
    },
    /// It follows a chain through memory.
    Walk {
        /// Whether the chain jumps; otherwise it goes to the next word.
        is_random: bool,
        /// Reads of each thread.
        accesses: u64,
        /// Length of the memory, in bytes; at least 4.
        bytes: u64,
    },
    /// It computes the Mandelbrot set.
    Mandelbrot {
        /// Pixels.
        pixels: u64,
        /// Iterations of a pixel inside the set.
        rounds_max: u64,
    },
}

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkShape {
    /// Blocks along x and y.
    pub grid: [u32; 2],
    /// Threads of a block along x and y.
    pub block: [u32; 2],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

impl WorkShape {
    fn blocks(self) -> u64 {
        u64::from(self.grid[0]) * u64::from(self.grid[1])
    }
}

/// The kernels, loaded.
pub struct Workloads<'g, 'a> {
    gpu: &'g Gpu<'a>,
    module: *mut c_void,
}

impl<'g, 'a> Workloads<'g, 'a> {
    /// Loads the kernels into the context of `gpu`.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn load(gpu: &'g Gpu<'a>) -> Result<Self, Error> {
        let mut module = core::ptr::null_mut();
        // SAFETY: a valid pointer and a module that ends with a zero; the GPU's context is current.
        unsafe { gpu.cuda().module_load_data(&mut module, WORKLOADS_MODULE.as_ptr().cast())? };
        Ok(Self { gpu, module })
    }

    fn function(&self, name: &core::ffi::CStr) -> Result<*mut c_void, Error> {
        let mut function = core::ptr::null_mut();
        // SAFETY: a valid pointer, the module just loaded and a name of it.
        unsafe { self.gpu.cuda().module_get_function(&mut function, self.module, name.as_ptr())? };
        Ok(function)
    }

    /// Prepares a launch, with its memory.
    ///
    /// # Errors
    /// [`Error::Refused`] for a shape that the kernel does not take; the driver's,
    /// `CUDA_ERROR_OUT_OF_MEMORY` among them.
    pub fn prepare(&self, work: Workload, shape: WorkShape) -> Result<PreparedWork<'g, 'a>, Error> {
        let alloc = |bytes: u64| {
            let bytes = usize::try_from(bytes).map_err(|_| {
                Error::Refused(format!("{bytes} bytes are more than this machine can address"))
            })?;
            self.gpu.alloc(bytes.max(8))
        };
        let records = alloc(shape.blocks() * RECORD_BYTES as u64)?;
        let mut memory = Vec::new();
        let (name, mut arguments) = match work {
            Workload::Timer { ns } => (TIMER, [ns].to_vec()),
            Workload::Counter { loops } => {
                memory.push(alloc(8)?);
                (COUNTER, [loops, memory[0].address()].to_vec())
            }
            Workload::Matmul { width } => {
                let [x, y] = shape.block;
                if x != y || x > 32 || shape.grid != [width.div_ceil(x.max(1)); 2] {
                    return Err(Error::Refused(format!(
                        "a matrix product takes square blocks of at most 32 × 32 threads that cover the matrix, not {x} × {y}"
                    )));
                }
                let bytes = u64::from(width) * u64::from(width) * 4;
                for _ in 0..3 {
                    memory.push(alloc(bytes)?);
                }
                // Zeroes multiply as fast as other numbers.
                for matrix in &memory {
                    matrix.fill(0)?;
                }
                let [c, a, b] = [0, 1, 2].map(|index: usize| memory[index].address());
                (MATMUL, [c, a, b, u64::from(width)].to_vec())
            }
            Workload::Walk { is_random, accesses, bytes } => {
                let words = (bytes / 4).clamp(1, u64::from(u32::MAX));
                memory.push(alloc(words * 4)?);
                let chain = memory[0].address();
                self.chain(chain, words, is_random)?;
                (WALK, [chain, words, accesses, if is_random { APART } else { 1 }].to_vec())
            }
            Workload::Mandelbrot { pixels, rounds_max } => {
                if pixels > u64::from(u32::MAX) {
                    return Err(Error::Refused(format!(
                        "{pixels} pixels are more than the maximum of a picture, 2^32"
                    )));
                }
                memory.push(alloc(pixels)?);
                (MANDELBROT, [memory[0].address(), pixels, pixels.isqrt().max(1), rounds_max].to_vec())
            }
        };
        arguments.insert(0, records.address());
        let function = self.function(name)?;
        Ok(PreparedWork { gpu: self.gpu, function, shape, arguments, records, memory })
    }

    /// Builds the chain of a walk, and waits for it.
    fn chain(&self, address: u64, words: u64, is_random: bool) -> Result<(), Error> {
        let (factor, step) = match (is_random, words.is_power_of_two()) {
            (true, true) => JUMP,
            // No factor works for every length; a long step visits all words if it shares no factor
            // with their number.
            (true, false) => (1, APART),
            (false, _) => (1, 1),
        };
        let function = self.function(CHAIN)?;
        let mut arguments = [address, words, factor, step];
        let mut pointers =
            arguments.each_mut().map(|argument| core::ptr::from_mut(argument).cast::<c_void>());
        let blocks = words.div_ceil(256).min(4096) as u32;
        let stream = self.gpu.stream();
        // SAFETY: a function of a module that stays loaded, its four parameters, and memory that
        // the caller holds until the wait below.
        unsafe {
            self.gpu.cuda().launch_kernel(
                function,
                blocks,
                1,
                1,
                256,
                1,
                1,
                0,
                stream.handle(),
                pointers.as_mut_ptr(),
                core::ptr::null_mut(),
            )?;
        }
        self.gpu.wait("making a chain", CHAIN_DEADLINE_MS)
    }
}

/// A kernel with its memory, for any number of launches.
///
/// Wait for the stream before dropping it: no launch may be running.
pub struct PreparedWork<'g, 'a> {
    gpu: &'g Gpu<'a>,
    function: *mut c_void,
    shape: WorkShape,
    arguments: Vec<u64>,
    records: Buffer<'a>,
    #[expect(dead_code, reason = "held while the kernel runs")]
    memory: Vec<Buffer<'a>>,
}

impl PreparedWork<'_, '_> {
    /// Launches it on a stream of the GPU's primary context, without waiting.
    ///
    /// # Errors
    /// Those of the driver, for a shape that it refuses.
    pub fn launch(&mut self, stream: StreamRef<'_>) -> Result<(), Error> {
        let mut pointers: Vec<*mut c_void> =
            self.arguments.iter_mut().map(|argument| core::ptr::from_mut(argument).cast()).collect();
        let WorkShape { grid, block, shared_bytes } = self.shape;
        // SAFETY: a function of a module that stays loaded, and the parameters that it documents;
        // 4-byte ones are the low half of their word. self holds the memory, and freeing it waits
        // for running work.
        unsafe {
            self.gpu.cuda().launch_kernel(
                self.function,
                grid[0],
                grid[1],
                1,
                block[0],
                block[1],
                1,
                shared_bytes,
                stream.handle(),
                pointers.as_mut_ptr(),
                core::ptr::null_mut(),
            )
        }
    }

    /// The records of the last launch, which must have ended, in the order of blocks.
    ///
    /// # Errors
    /// Those of the driver; [`Error::Disproved`] if a block left no record.
    pub fn records(&self) -> Result<Vec<BlockRecord>, Error> {
        read_records(&self.records)
    }

    /// Clears the records of earlier launches.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn clear_records(&self) -> Result<(), Error> {
        self.records.fill(0)
    }
}
