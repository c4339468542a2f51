//! The exported functions. Of several copies in one process, one does the work (`copies`).
//!
//! libsmctrl declares the setters as `void`. Here they return a number too, which callers of the
//! old declaration ignore. For those callers, a failure is also a line on standard error.

mod copies;

use core::ffi::{c_char, c_int, c_void};

use self::copies::Head;
use crate::fault::Fault;
use crate::mask::{self, Numbering, Wide};
use crate::state::{self, State};
use crate::{info, report, thread, validate};

/// Defines the exported functions, and one copy's table of the functions that they call.
macro_rules! interface {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $work:path;)*) => {
        /// The functions of one copy of this library.
        #[repr(C)]
        pub struct Table {
            /// The part that all versions have in common.
            pub head: Head,
            $($name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        /// This copy's.
        pub static OWN: Table = Table { head: Head::new(size_of::<Table>()), $($name: $work,)* };

        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's arguments, to a function of the same type.
                unsafe { (copies::worker().$name)($($argument),*) }
            }
        )*
    };
}

interface! {
    /// Initialises the library; other functions do it on demand.
    fn libsmctrl_init() -> c_int = init;
    /// As [`libsmctrl_init`], for a program that has a CUDA context.
    fn libsmctrl_init_from_cuda() -> c_int = init_from_cuda;
    /// Whether launches are masked.
    fn libsmctrl_is_init() -> bool = is_init;
    /// The version's name.
    fn libsmctrl_get_version() -> *const c_char = version;
    /// Masks every launch without a more specific mask.
    fn libsmctrl_set_global_mask(mask: u64) -> c_int = set_global;
    /// Masks the next launch of this thread.
    fn libsmctrl_set_next_mask(mask: u64) -> c_int = set_next;
    /// Masks the launches of a stream.
    fn libsmctrl_set_stream_mask(stream: *mut c_void, mask: u64) -> c_int = set_stream;
    /// As [`libsmctrl_set_stream_mask`], with 128 bits.
    fn libsmctrl_set_stream_mask_ext(stream: *mut c_void, mask: u128) -> c_int = set_stream_ext;
    /// As [`libsmctrl_set_global_mask`], with 128 bits.
    fn libsmctrl_set_global_mask_ext(mask: u128) -> c_int = set_global_ext;
    /// As [`libsmctrl_set_next_mask`], with 128 bits.
    fn libsmctrl_set_next_mask_ext(mask: u128) -> c_int = set_next_ext;
    /// As [`libsmctrl_set_global_mask`], with 256 bits.
    fn libsmctrl_set_global_mask_wide(mask: *const u64) -> c_int = set_global_wide;
    /// As [`libsmctrl_set_next_mask`], with 256 bits.
    fn libsmctrl_set_next_mask_wide(mask: *const u64) -> c_int = set_next_wide;
    /// As [`libsmctrl_set_stream_mask`], with 256 bits.
    fn libsmctrl_set_stream_mask_wide(stream: *mut c_void, mask: *const u64) -> c_int = set_stream_wide;
    /// Removes the process's mask.
    fn libsmctrl_clear_global_mask() -> c_int = clear_global;
    /// Removes this thread's mask for its next launch.
    fn libsmctrl_clear_next_mask() -> c_int = clear_next;
    /// Removes a stream's mask.
    fn libsmctrl_clear_stream_mask(stream: *mut c_void) -> c_int = clear_stream;
    /// The mask that enables a range of TPCs.
    fn libsmctrl_make_mask(result: *mut u64, low: u32, high_exclusive: u32) -> c_int = make_mask;
    /// As [`libsmctrl_make_mask`], with 128 bits.
    fn libsmctrl_make_mask_ext(result: *mut u128, low: u32, high_exclusive: u32) -> c_int = make_mask_ext;
    /// Whether a stream's blocks run inside a range of TPCs.
    fn libsmctrl_validate_stream_mask(stream: *mut c_void, low: c_int, high_exclusive: c_int, echo: bool) -> c_int = validate_stream;
    /// The TPCs of each GPC.
    fn libsmctrl_get_gpc_info(gpcs: *mut u32, tpcs_for_gpc: *mut *mut u64, device: c_int) -> c_int = gpc_info;
    /// As [`libsmctrl_get_gpc_info`], with 128 bits.
    fn libsmctrl_get_gpc_info_ext(gpcs: *mut u32, tpcs_for_gpc: *mut *mut u128, device: c_int) -> c_int = gpc_info_ext;
    /// How many TPCs a GPU has.
    fn libsmctrl_get_tpc_info(tpcs: *mut u32, device: c_int) -> c_int = tpc_info;
    /// How many TPCs a GPU has, by CUDA's numbering.
    fn libsmctrl_get_tpc_info_cuda(tpcs: *mut u32, cuda_device: c_int) -> c_int = tpc_info_cuda;
    /// Sets what the bits of launch masks count.
    fn libsmctrl_set_numbering(numbering: c_int) -> c_int = set_numbering;
    /// What the bits of launch masks count.
    fn libsmctrl_get_numbering() -> c_int = get_numbering;
    /// The number of launches that could not be masked.
    fn libsmctrl_get_unmasked_launches(launches: *mut u64) -> c_int = unmasked_launches;
    /// The error number of this thread's last call.
    fn libsmctrl_last_error() -> c_int = last_error;
    /// The error text of this thread's last call.
    fn libsmctrl_error_string() -> *const c_char = error_string;
}

/// Records the result of a `void` function, and prints a failure.
fn record_and_print(name: &str, result: Result<(), Fault>) -> c_int {
    if let Err(fault) = &result {
        report::line(format_args!("{name}: {fault}"));
    }
    thread::record(result)
}

extern "C" fn init() -> c_int {
    thread::record(State::get().and_then(State::launches).map(drop))
}

extern "C" fn init_from_cuda() -> c_int {
    let ready = || {
        let state = State::get()?;
        let mut context = core::ptr::null_mut();
        // SAFETY: a valid pointer.
        unsafe { state.cuda().ctx_get_current(&mut context)? };
        if context.is_null() {
            let text = "this thread has no CUDA context: call the CUDA runtime first, or libsmctrl_init";
            return Err(Fault::new(libc::ENXIO, text));
        }
        state.launches().map(drop)
    };
    thread::record(ready())
}

extern "C" fn is_init() -> bool {
    State::made().is_some_and(State::masks_launches)
}

extern "C" fn version() -> *const c_char {
    copies::version_text()
}

extern "C" fn set_global(mask: u64) -> c_int {
    record_and_print("libsmctrl_set_global_mask", state::set_global(&mask::from_64(mask)))
}

extern "C" fn set_next(mask: u64) -> c_int {
    record_and_print("libsmctrl_set_next_mask", state::set_next(&mask::from_64(mask)))
}

unsafe extern "C" fn set_stream(stream: *mut c_void, mask: u64) -> c_int {
    // SAFETY: the caller guarantees it.
    record_and_print("libsmctrl_set_stream_mask", unsafe { state::set_stream(stream, &mask::from_64(mask)) })
}

unsafe extern "C" fn set_stream_ext(stream: *mut c_void, mask: u128) -> c_int {
    // SAFETY: the caller guarantees it.
    record_and_print("libsmctrl_set_stream_mask_ext", unsafe {
        state::set_stream(stream, &mask::from_128(mask))
    })
}

extern "C" fn set_global_ext(mask: u128) -> c_int {
    thread::record(state::set_global(&mask::from_128(mask)))
}

extern "C" fn set_next_ext(mask: u128) -> c_int {
    thread::record(state::set_next(&mask::from_128(mask)))
}

/// # Safety
/// Null, or the address of four words.
unsafe fn wide(mask: *const u64) -> Result<Wide, Fault> {
    if mask.is_null() {
        return Err(Fault::null("mask"));
    }
    // SAFETY: the caller guarantees it.
    Ok(unsafe { mask.cast::<Wide>().read_unaligned() })
}

unsafe extern "C" fn set_global_wide(mask: *const u64) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { wide(mask) }.and_then(|mask| state::set_global(&mask)))
}

unsafe extern "C" fn set_next_wide(mask: *const u64) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { wide(mask) }.and_then(|mask| state::set_next(&mask)))
}

unsafe extern "C" fn set_stream_wide(stream: *mut c_void, mask: *const u64) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { wide(mask).and_then(|mask| state::set_stream(stream, &mask)) })
}

extern "C" fn clear_global() -> c_int {
    thread::record(state::set_global(&[0; 4]))
}

extern "C" fn clear_next() -> c_int {
    thread::record(state::clear_next())
}

unsafe extern "C" fn clear_stream(stream: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { state::clear_stream(stream) })
}

/// Stores a result at the caller's address.
///
/// # Safety
/// `place` is null or valid.
unsafe fn store<T>(place: *mut T, name: &str, value: Result<T, Fault>) -> Result<(), Fault> {
    if place.is_null() {
        return Err(Fault::null(name));
    }
    // SAFETY: the caller guarantees it.
    unsafe { place.write(value?) };
    Ok(())
}

unsafe extern "C" fn make_mask(result: *mut u64, low: u32, high_exclusive: u32) -> c_int {
    let of_range = || {
        // Bit 63 stands for TPC 63 and all above, so a range up to the device's last TPC has a
        // mask.
        let is_last = || info::tpc_count_by_cuda(0).is_ok_and(|tpcs| tpcs == high_exclusive);
        let high = if low < 64 && high_exclusive > 64 && is_last() { 64 } else { high_exclusive };
        mask::of_range(low, high, 64).map(|mask| mask as u64)
    };
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { store(result, "result", of_range()) })
}

unsafe extern "C" fn make_mask_ext(result: *mut u128, low: u32, high_exclusive: u32) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { store(result, "result", mask::of_range(low, high_exclusive, 128)) })
}

unsafe extern "C" fn validate_stream(
    stream: *mut c_void,
    low: c_int,
    high_exclusive: c_int,
    echo: bool,
) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { validate::stream(stream, low, high_exclusive, echo) })
}

unsafe extern "C" fn gpc_info(gpcs: *mut u32, tpcs_for_gpc: *mut *mut u64, device: c_int) -> c_int {
    let found = || info::as_64(&info::gpcs(device)?);
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { store_gpcs(gpcs, tpcs_for_gpc, found(), thread::store_64) })
}

unsafe extern "C" fn gpc_info_ext(gpcs: *mut u32, tpcs_for_gpc: *mut *mut u128, device: c_int) -> c_int {
    let found = || info::as_128(&info::gpcs(device)?);
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { store_gpcs(gpcs, tpcs_for_gpc, found(), thread::store_128) })
}

/// # Safety
/// Both addresses are null or valid.
unsafe fn store_gpcs<M>(
    gpcs: *mut u32,
    masks_at: *mut *mut M,
    found: Result<alloc::vec::Vec<M>, Fault>,
    store_masks: fn(alloc::vec::Vec<M>) -> *mut M,
) -> Result<(), Fault> {
    if gpcs.is_null() || masks_at.is_null() {
        return Err(Fault::null(if gpcs.is_null() { "num_enabled_gpcs" } else { "tpcs_for_gpc" }));
    }
    let masks = found?;
    let count = masks.len() as u32;
    let stored = store_masks(masks);
    if stored.is_null() {
        return Err(Fault::new(libc::ENOMEM, "this process has too many thread-specific keys"));
    }
    // SAFETY: the caller guarantees it.
    unsafe {
        gpcs.write(count);
        masks_at.write(stored);
    }
    Ok(())
}

unsafe extern "C" fn tpc_info(tpcs: *mut u32, device: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { store(tpcs, "num_tpcs", info::tpc_count(device)) })
}

unsafe extern "C" fn tpc_info_cuda(tpcs: *mut u32, cuda_device: c_int) -> c_int {
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { store(tpcs, "num_tpcs", info::tpc_count_by_cuda(cuda_device)) })
}

extern "C" fn set_numbering(numbering: c_int) -> c_int {
    let chosen = Numbering::of(numbering)
        .map(state::choose_numbering)
        .ok_or_else(|| Fault::new(libc::EINVAL, format_args!("invalid numbering {numbering}")));
    thread::record(chosen)
}

extern "C" fn get_numbering() -> c_int {
    state::numbering() as c_int
}

unsafe extern "C" fn unmasked_launches(launches: *mut u64) -> c_int {
    let count = || match State::made().filter(|state| state.masks_launches()) {
        Some(state) => Ok(state.launches()?.unmasked()),
        None => Ok(0),
    };
    // SAFETY: the caller guarantees it.
    thread::record(unsafe { store(launches, "launches", count()) })
}

extern "C" fn last_error() -> c_int {
    thread::code()
}

extern "C" fn error_string() -> *const c_char {
    thread::text()
}
