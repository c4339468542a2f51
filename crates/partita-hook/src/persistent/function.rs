//! What the hook knows of functions, and what the program sees of them.

use core::ffi::{c_int, c_void};

use hashbrown::HashMap;
use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::CUfunction_attribute;
use partita_ledger::mutex::Mutex;
use partita_ptx::persistent::{SHARED_BYTES, WHOLE_ROWS_TURN_BYTES};

use crate::account::tenant::{self, Tenant};
use crate::driver::calls::{Kept, calls};
use crate::sys::fork::in_child;

/// `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`.
const ATTRIBUTE_SHARED: CUfunction_attribute = 1;

calls! {
    /// Entry points that tell a function's parameters, complete from CUDA 12.4 on.
    struct ParameterCalls;
    info = cuFuncGetParamInfo;
}

/// The parameters of a rewritten function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// How many the program knows.
    pub count: usize,
    /// Where the additional one begins, in bytes.
    pub at: usize,
    /// Whether its blocks must have rows of whole warps.
    pub whole_rows: bool,
}

/// Known functions, by their handles.
static KNOWN: Mutex<Option<HashMap<usize, Parameters>>> = Mutex::new(None);

// The handles stay those of the parent.
in_child! {
    KNOWN.reset_after_fork();
}

fn calls() -> Option<&'static ParameterCalls> {
    static CALLS: Kept<ParameterCalls> = Kept::new();
    CALLS.get(ParameterCalls::resolve)
}

/// Whether the driver tells the parameters of functions.
pub fn is_told() -> bool {
    calls().is_some()
}

/// Forgets all functions: what is loaded next may give another function the same address.
pub fn forget() {
    if let Some(known) = KNOWN.lock().as_mut() {
        known.clear();
    }
}

/// The parameters of a `CUfunction` or `CUkernel`; `None` if the driver does not know it.
pub fn parameters(tenant: &Tenant, handle: *mut c_void) -> Option<Parameters> {
    if let Some(known) = KNOWN.lock().as_ref().and_then(|known| known.get(&(handle as usize))) {
        return Some(*known);
    }
    let info = calls()?.info;
    let function = tenant.driver().function_of_kernel(handle).unwrap_or(handle);
    let (mut last, mut count) = (None, 0);
    loop {
        let (mut at, mut bytes) = (0, 0);
        // SAFETY: valid pointers; the driver checks the handle.
        if unsafe { info(function, count, &mut at, &mut bytes) }.is_err() {
            break;
        }
        last = Some((at, bytes));
        count += 1;
    }
    let (at, bytes) = last?;
    let found = Parameters { count: count - 1, at, whole_rows: bytes == WHOLE_ROWS_TURN_BYTES };
    KNOWN.lock().get_or_insert_default().insert(handle as usize, found);
    Some(found)
}

/// Wraps `cuFuncGetParamInfo` and `cuKernelGetParamInfo`: the last parameter is the hook's.
pub unsafe fn parameter_info(
    real: prototypes::cuFuncGetParamInfo,
    function: *mut c_void,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CuResult {
    if tenant::persistent().is_some() {
        let (mut at, mut bytes) = (0, 0);
        // SAFETY: the caller's handle, and valid pointers.
        let next = unsafe { real(function, index.saturating_add(1), &mut at, &mut bytes) };
        if next.is_err() {
            return next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real(function, index, offset, size) }
}

/// Wraps `cuFuncGetParamCount` and `cuKernelGetParamCount`.
pub unsafe fn parameter_count(
    real: prototypes::cuFuncGetParamCount,
    function: *mut c_void,
    count: *mut usize,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(function, count) };
    if result.is_ok() && tenant::persistent().is_some() {
        // SAFETY: the driver has just written through the pointer.
        unsafe { *count = (*count).saturating_sub(1) };
    }
    result
}

/// Wraps `cuFuncGetAttribute`: the shared memory is the program's.
pub unsafe fn attribute(
    real: prototypes::cuFuncGetAttribute,
    value: *mut c_int,
    attribute: CUfunction_attribute,
    function: *mut c_void,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(value, attribute, function) };
    // SAFETY: the driver has just written through the pointer.
    unsafe { without_own(result, value, attribute) };
    result
}

/// Wraps `cuKernelGetAttribute`.
pub unsafe fn kernel_attribute(
    real: prototypes::cuKernelGetAttribute,
    value: *mut c_int,
    attribute: CUfunction_attribute,
    kernel: *mut c_void,
    device: c_int,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(value, attribute, kernel, device) };
    // SAFETY: the driver has just written through the pointer.
    unsafe { without_own(result, value, attribute) };
    result
}

/// # Safety
/// `value` is valid if the call succeeded.
unsafe fn without_own(result: CuResult, value: *mut c_int, attribute: CUfunction_attribute) {
    if result.is_ok() && attribute == ATTRIBUTE_SHARED && tenant::persistent().is_some() {
        // SAFETY: says the caller.
        unsafe { *value = (*value).saturating_sub(SHARED_BYTES as c_int) };
    }
}
