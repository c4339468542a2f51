//! A launch of a rewritten kernel: its grid, its parameters, and what it counts in.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{c_uint, c_void};

use partita_abi::CuResult;
use partita_ptx::persistent::{Turn, WHOLE_ROWS_TURN_BYTES};

use crate::account::gpu::Gpu;
use crate::account::tenant::Tenant;
use crate::persistent::function;
use crate::persistent::pool::{self, Piece};
use crate::sys::report;

/// Ends the list of `extra`.
const END: usize = 0;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`.
const BUFFER_POINTER: usize = 1;
/// `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const BUFFER_SIZE: usize = 2;
/// Threads of a warp.
const WARP: u32 = 32;

/// A launch as the program asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The `CUfunction` or `CUkernel`.
    pub function: *mut c_void,
    /// Its grid.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: c_uint,
    /// The parameters' addresses, or null.
    pub parameters: *mut *mut c_void,
    /// The parameters in one piece, or null.
    pub extra: *mut *mut c_void,
    /// Whether the launch is captured, and runs as often as its graph does.
    pub captured: bool,
}

/// A launch as the driver gets it.
pub struct Prepared {
    /// Blocks of its grid, which has one dimension.
    pub blocks: c_uint,
    piece: Piece,
    parameters: Vec<*mut c_void>,
    extra: [*mut c_void; 5],
    // What the pointers lead to.
    _turn: Box<[u8; WHOLE_ROWS_TURN_BYTES]>,
    _buffer: Vec<u64>,
    _size: Box<usize>,
}

impl Prepared {
    /// The parameters' addresses, or null.
    pub fn parameters(&self) -> *mut *mut c_void {
        if self.parameters.is_empty() { core::ptr::null_mut() } else { self.parameters.as_ptr().cast_mut() }
    }

    /// The parameters in one piece, or null.
    pub fn extra(&self) -> *mut *mut c_void {
        if self.parameters.is_empty() { self.extra.as_ptr().cast_mut() } else { core::ptr::null_mut() }
    }

    /// The driver has refused the launch.
    pub fn give_back(self) {
        self.piece.give_back();
    }
}

/// Prepares a launch in the current context.
///
/// # Errors
/// A code that the driver documents for launches.
///
/// # Safety
/// The pointers are those of a launch of the function.
pub unsafe fn prepare(tenant: &Tenant, gpu: &Gpu, asked: &Asked) -> Result<Prepared, CuResult> {
    let known = function::parameters(tenant, asked.function).ok_or(CuResult::INVALID_HANDLE)?;
    let threads = asked.block.iter().try_fold(1u32, |all, side| all.checked_mul(*side));
    let threads = threads.filter(|threads| *threads > 0).ok_or(CuResult::INVALID_VALUE)?;
    if asked.grid.contains(&0)
        || asked.grid[0] > i32::MAX as u32
        || asked.grid[1..].iter().any(|side| *side > 65_535)
    {
        return Err(CuResult::INVALID_VALUE);
    }
    if known.whole_rows && asked.block[1..] != [1, 1] && !asked.block[0].is_multiple_of(WARP) {
        report::once!(
            "{}: a launch with blocks of {} threads in a row was refused: some threads of its kernel \
             end before others of their \
             warp meet, unless a row is a multiple of {WARP} threads; use --via mask",
            report::program(),
            asked.block[0]
        );
        return Err(CuResult::INVALID_VALUE);
    }
    let per_sm = tenant.driver().blocks_per_sm(asked.function, threads, asked.shared_bytes);
    let per_sm = per_sm.ok_or(CuResult::INVALID_VALUE)?;
    let limits = gpu.limits_now().ok_or(CuResult::LAUNCH_OUT_OF_RESOURCES)?;
    let sms = limits.tpc_count * limits.sms_per_tpc;
    let blocks = per_sm.saturating_mul(sms);
    if blocks == 0 {
        return Err(CuResult::LAUNCH_OUT_OF_RESOURCES);
    }
    // SAFETY: the caller's pointers.
    let given = unsafe { given(asked, known.count, known.at) }?;
    let piece = pool::take(tenant, gpu)?;
    let turn = Turn {
        control: piece.control,
        set: piece.set,
        grid: asked.grid,
        blocks,
        // The graph runs it again.
        done: if asked.captured { 0 } else { piece.done },
    };
    let mut bytes = Box::new([0; WHOLE_ROWS_TURN_BYTES]);
    let own = turn.to_bytes();
    bytes[..own.len()].copy_from_slice(&own);
    let mut size = Box::new(0);
    let null = core::ptr::null_mut();
    let (mut parameters, mut buffer, mut extra) = (Vec::new(), Vec::new(), [null; 5]);
    match given {
        Given::Addresses(addresses) => {
            parameters = addresses;
            parameters.push(bytes.as_mut_ptr().cast());
        }
        Given::Bytes(given) => {
            let bytes_of_turn = if known.whole_rows { WHOLE_ROWS_TURN_BYTES } else { own.len() };
            buffer = vec![0u64; (known.at + bytes_of_turn).div_ceil(8)];
            *size = known.at + bytes_of_turn;
            let to = buffer.as_mut_ptr().cast::<u8>();
            // SAFETY: room for the parameters before the turn, and for it.
            unsafe {
                core::ptr::copy_nonoverlapping(given.as_ptr(), to, given.len().min(known.at));
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(known.at), bytes_of_turn);
            }
            let word = core::ptr::without_provenance_mut;
            extra = [word(BUFFER_POINTER), to.cast(), word(BUFFER_SIZE), (&raw mut *size).cast(), word(END)];
        }
    }
    Ok(Prepared { blocks, piece, parameters, extra, _turn: bytes, _buffer: buffer, _size: size })
}

/// The program's parameters.
enum Given<'a> {
    Addresses(Vec<*mut c_void>),
    Bytes(&'a [u8]),
}

/// # Safety
/// The pointers are those of a launch of a function with so many parameters.
unsafe fn given(asked: &Asked, count: usize, bytes: usize) -> Result<Given<'_>, CuResult> {
    if !asked.extra.is_null() {
        let (mut buffer, mut length) = (core::ptr::null::<u8>(), 0);
        let mut at = asked.extra;
        // SAFETY: pairs up to the end of the list.
        unsafe {
            while (*at).addr() != END {
                match (*at).addr() {
                    BUFFER_POINTER => buffer = (*at.add(1)).cast(),
                    BUFFER_SIZE => length = *(*at.add(1)).cast::<usize>(),
                    _ => return Err(CuResult::INVALID_VALUE),
                }
                at = at.add(2);
            }
        }
        if buffer.is_null() && bytes > 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if buffer.is_null() {
            return Ok(Given::Bytes(&[]));
        }
        // SAFETY: as long as the program says.
        return Ok(Given::Bytes(unsafe { core::slice::from_raw_parts(buffer, length) }));
    }
    if count == 0 {
        return Ok(Given::Addresses(Vec::with_capacity(1)));
    }
    if asked.parameters.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: an address for each parameter.
    let addresses = unsafe { core::slice::from_raw_parts(asked.parameters, count) };
    let mut all = Vec::with_capacity(count + 1);
    all.extend_from_slice(addresses);
    Ok(Given::Addresses(all))
}
