//! The driver's callback table, shared between the tenant's mask and the program's tools.
//!
//! The driver takes one subscriber a process. The mask needs that place for the launch callback,
//! and so do profilers, sanitizers and libraries that mask launches themselves. So a tenant's
//! process is given a table of the hook's own: it has one place too, which answers as the driver's
//! would. The hook holds the real place, passes every callback on that the tool has switched on,
//! and applies the tenant's mask last, so that a tool can narrow a launch and cannot widen it.
//!
//! A tool may subscribe before the process attaches: the driver loads injected tools in `cuInit`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use partita_abi::CuResult;
use partita_abi::callback::{
    CBID_QMD_READY, CODE_INVALID, CODE_INVALID_HANDLE, CODE_NOT_SUBSCRIBED, CODE_TAKEN, CallbackFn, CountFn,
    DOMAIN_LAUNCH, DOMAINS, DeclareFn, EXPORT_TABLE_UUID, EnableAllFn, EnableDomainFn,
    FEATURE_GREEN_CONTEXTS, FEATURES, HANDLE, NAME_BYTES_MAX, NAME_UNKNOWN, StateFn, TABLE_INDEX_COUNT,
    TABLE_INDEX_DECLARE, TABLE_INDEX_ENABLE, TABLE_INDEX_ENABLE_ALL, TABLE_INDEX_ENABLE_DOMAIN,
    TABLE_INDEX_STATE, TABLE_INDEX_SUBSCRIBE, TABLE_INDEX_SUBSCRIBE_NAMED, TABLE_INDEX_UNSUBSCRIBE,
};
use partita_abi::types::CUuuid;
use partita_driver::callback::{GetExportTable, SubscribeError, Table};
use partita_ledger::mutex::Mutex;

use crate::account::origin::may_be_tenant;
use crate::account::tenant;
use crate::launch::mask;
use crate::sys::fork::in_child;

/// A subscriber of the program. Never freed: a callback may be about to call it.
struct Tool {
    callback: CallbackFn,
    user: *mut c_void,
    /// The one before it, to use it again.
    older: *const Tool,
}

/// The data under the lock. Switches are under it too: the driver's own only store words, so
/// nothing waits for the driver here.
struct Places {
    /// The driver's table, after the first request for it.
    driver: Option<Table>,
    /// Whether the hook holds the driver's one place.
    subscribed: bool,
    /// Whether launches are masked, so that the launch callback must stay on.
    masks: bool,
    /// The name that the tool has given.
    name: [u8; NAME_BYTES_MAX],
    /// Every tool there has been.
    tools: *const Tool,
}

// SAFETY: the tools are never changed or freed.
unsafe impl Send for Places {}

static PLACES: Mutex<Places> = Mutex::new(Places {
    driver: None,
    subscribed: false,
    masks: false,
    name: [0; NAME_BYTES_MAX],
    tools: core::ptr::null(),
});
/// The hook's table; null before the first request for it.
static TABLE: AtomicPtr<*const c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The program's subscriber; null without one.
static TOOL: AtomicPtr<Tool> = AtomicPtr::new(core::ptr::null_mut());
/// Whether that has switched the launch callback on.
static TOOL_SEES_LAUNCHES: AtomicBool = AtomicBool::new(false);
/// Whether that has declared that it supports green contexts.
static TOOL_SUPPORTS_GREEN: AtomicBool = AtomicBool::new(false);

// Makes the lock usable in a forked child.
in_child! {
    PLACES.reset_after_fork();
}

/// Has every later launch of this process masked.
///
/// # Errors
/// See [`SubscribeError`].
pub fn mask_launches(get_export_table: GetExportTable) -> Result<(), SubscribeError> {
    // SAFETY: the driver's own function.
    let driver = unsafe { Table::get(get_export_table)? };
    let mut places = PLACES.lock();
    let first = !places.subscribed;
    subscribe_once(&mut places, driver)?;
    places.masks = true;
    // SAFETY: the driver's own function, with the handle that it gave.
    match unsafe { (driver.enable())(1, HANDLE, DOMAIN_LAUNCH, CBID_QMD_READY) } {
        0 => {}
        code => return Err(SubscribeError::NotEnabled(code)),
    }
    drop(places);
    if first {
        declare_to(driver);
    }
    Ok(())
}

fn subscribe_once(places: &mut Places, driver: Table) -> Result<(), SubscribeError> {
    places.driver = Some(driver);
    if places.subscribed {
        return Ok(());
    }
    let mut handle = 0;
    // SAFETY: the driver's own function; the subscriber uses statics only.
    match unsafe { (driver.subscribe())(&mut handle, on_callback, core::ptr::null_mut()) } {
        0 if handle == HANDLE => {
            places.subscribed = true;
            Ok(())
        }
        0 => Err(SubscribeError::NoEntry),
        code => Err(SubscribeError::Refused(code)),
    }
}

/// Declares the features that both the hook and the tool, if there is one, support. The mask
/// supports green contexts: it unites with theirs. The other features stay as a new subscription
/// has them.
///
/// Without the lock, because the driver stops its contexts for this.
fn declare_to(driver: Table) {
    let supports = TOOL.load(Ordering::Acquire).is_null() || TOOL_SUPPORTS_GREEN.load(Ordering::Acquire);
    // SAFETY: an entry of this type (partita_abi::callback).
    if let Some(declare) = unsafe { entry::<DeclareFn>(driver, TABLE_INDEX_DECLARE) } {
        // SAFETY: the driver's own function, with the handle that it gave.
        unsafe { declare(u32::from(supports), HANDLE, FEATURE_GREEN_CONTEXTS) };
    }
}

/// An entry of the driver's table, if it has one there.
///
/// # Safety
/// `F` is the type of the entry.
unsafe fn entry<F: Copy>(table: Table, index: usize) -> Option<F> {
    let address = table.address(index);
    const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
    // SAFETY: a function's address, of the type that the caller vouches for.
    (!address.is_null()).then(|| unsafe { core::mem::transmute_copy::<*const c_void, F>(&address) })
}

fn is_launch(domain: c_int, cbid: c_int) -> bool {
    domain == DOMAIN_LAUNCH && cbid == CBID_QMD_READY
}

/// The hook's subscriber: `parameters` are the driver's own.
unsafe extern "C" fn on_callback(_: *mut c_void, domain: c_int, cbid: c_int, parameters: *const c_void) {
    let is_launch = is_launch(domain, cbid);
    if !is_launch || TOOL_SEES_LAUNCHES.load(Ordering::Relaxed) {
        // SAFETY: the driver's own arguments.
        unsafe { pass_on(domain, cbid, parameters) };
    }
    if is_launch {
        // SAFETY: as above.
        unsafe { mask::on_launch(parameters) };
    }
}

/// Calls the program's subscriber, if there is one.
///
/// # Safety
/// The arguments are those of the driver's callback.
#[cold]
unsafe fn pass_on(domain: c_int, cbid: c_int, parameters: *const c_void) {
    let tool = TOOL.load(Ordering::Acquire);
    // SAFETY: stored by subscribe_named(), and never freed.
    if let Some(tool) = unsafe { tool.as_ref() } {
        // SAFETY: the tool's own function and argument, and the driver's parameters.
        unsafe { (tool.callback)(tool.user, domain, cbid, parameters) };
    }
}

/// Wraps `cuGetExportTable`: the callback table is the hook's.
pub unsafe fn get_export_table(
    real: GetExportTable,
    table: *mut *const c_void,
    id: *const CUuuid,
) -> CuResult {
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { real(table, id) };
    // SAFETY: the driver has just read the identifier.
    if result.is_err() || !may_be_tenant() || unsafe { *id } != EXPORT_TABLE_UUID {
        return result;
    }
    let known = TABLE.load(Ordering::Acquire);
    // Without a mask the driver's place stays free, and the table the driver's.
    if known.is_null() && tenant::current().is_some_and(|tenant| !tenant.is_masked()) {
        return result;
    }
    // SAFETY: the driver has just written the table there.
    unsafe {
        if let Some(driver) = Table::from_raw(*table) {
            *table = shared(driver).cast();
        }
    }
    result
}

/// The hook's table, made on first use: the driver's, with the hook's functions in it.
fn shared(driver: Table) -> *const *const c_void {
    let mut places = PLACES.lock();
    let known = TABLE.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    places.driver = Some(driver);
    let mut words: Vec<*const c_void> = driver.words().to_vec();
    for (index, function) in [
        (TABLE_INDEX_SUBSCRIBE, subscribe as *const c_void),
        (TABLE_INDEX_UNSUBSCRIBE, unsubscribe as *const c_void),
        (TABLE_INDEX_STATE, state as *const c_void),
        (TABLE_INDEX_ENABLE, enable as *const c_void),
        (TABLE_INDEX_ENABLE_DOMAIN, enable_domain as *const c_void),
        (TABLE_INDEX_ENABLE_ALL, enable_all as *const c_void),
        (TABLE_INDEX_DECLARE, declare as *const c_void),
        (TABLE_INDEX_SUBSCRIBE_NAMED, subscribe_named as *const c_void),
    ] {
        if let Some(word) = words.get_mut(index).filter(|word| !word.is_null()) {
            *word = function;
        }
    }
    let table = Box::leak(words.into_boxed_slice()).as_mut_ptr();
    TABLE.store(table, Ordering::Release);
    table
}

/// The driver's table behind the hook's. Callers of an entry of the hook's have requested it.
fn driver() -> Option<Table> {
    PLACES.lock().driver
}

unsafe extern "C" fn subscribe(handle: *mut u32, callback: CallbackFn, user: *mut c_void) -> c_int {
    let none = core::ptr::null_mut();
    // SAFETY: the caller's arguments, and no name.
    unsafe { subscribe_named(handle, callback, user, none, none, 0) }
}

unsafe extern "C" fn subscribe_named(
    handle: *mut u32,
    callback: CallbackFn,
    user: *mut c_void,
    name: *const c_char,
    holder: *mut c_char,
    holder_bytes: usize,
) -> c_int {
    if handle.is_null() {
        return CODE_INVALID;
    }
    // SAFETY: null or the caller's string.
    let name = if name.is_null() { NAME_UNKNOWN } else { unsafe { CStr::from_ptr(name) } }.to_bytes();
    if name.len() >= NAME_BYTES_MAX {
        return CODE_INVALID;
    }
    let mut places = PLACES.lock();
    if !TOOL.load(Ordering::Relaxed).is_null() {
        if !holder.is_null() && holder_bytes > 0 {
            let mut text = places.name.iter().copied();
            // SAFETY: the caller's buffer, of as many bytes.
            let buffer = unsafe { core::slice::from_raw_parts_mut(holder.cast::<u8>(), holder_bytes) };
            buffer.fill_with(|| text.next().unwrap_or(0));
            buffer[holder_bytes - 1] = 0;
        }
        return CODE_TAKEN;
    }
    let Some(driver) = places.driver else { return CODE_INVALID };
    match subscribe_once(&mut places, driver) {
        Ok(()) => {}
        Err(SubscribeError::Refused(code)) => return code,
        Err(_) => return CODE_INVALID,
    }
    places.name = [0; NAME_BYTES_MAX];
    places.name.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
    TOOL_SUPPORTS_GREEN.store(false, Ordering::Relaxed);
    let tool = tool_of(&mut places, callback, user);
    TOOL.store(tool.cast_mut(), Ordering::Release);
    // SAFETY: not null, so valid by the caller's word.
    unsafe { handle.write(HANDLE) };
    drop(places);
    declare_to(driver);
    0
}

/// The tool of that function and argument, created on demand.
fn tool_of(places: &mut Places, callback: CallbackFn, user: *mut c_void) -> *const Tool {
    let mut at = places.tools;
    // SAFETY: tools are never freed.
    while let Some(tool) = unsafe { at.as_ref() } {
        if core::ptr::fn_addr_eq(tool.callback, callback) && tool.user == user {
            return at;
        }
        at = tool.older;
    }
    places.tools = Box::leak(Box::new(Tool { callback, user, older: places.tools }));
    places.tools
}

unsafe extern "C" fn unsubscribe(handle: u32) -> c_int {
    let places = PLACES.lock();
    let (true, Some(driver), false) =
        (handle == HANDLE, places.driver, TOOL.load(Ordering::Relaxed).is_null())
    else {
        return CODE_NOT_SUBSCRIBED;
    };
    TOOL.store(core::ptr::null_mut(), Ordering::Release);
    switch_all_off(&places, driver);
    drop(places);
    declare_to(driver);
    0
}

/// Switches off the tool's callbacks, and leaves the mask's on.
fn switch_all_off(places: &Places, driver: Table) {
    (0..DOMAINS).for_each(|domain| {
        switch_domain_off(places, driver, domain);
    });
}

fn switch_domain_off(places: &Places, driver: Table, domain: c_int) -> c_int {
    if domain == DOMAIN_LAUNCH {
        TOOL_SEES_LAUNCHES.store(false, Ordering::Relaxed);
    }
    if domain == DOMAIN_LAUNCH && places.masks {
        // One by one: in a moment without the mask's callback a launch could escape.
        // SAFETY: an entry of this type (partita_abi::callback).
        let Some(count) = (unsafe { entry::<CountFn>(driver, TABLE_INDEX_COUNT) }) else { return 0 };
        let (mut callbacks, mut table) = (0, core::ptr::null());
        // SAFETY: valid pointers.
        unsafe { count(&mut callbacks, &mut table, domain) };
        let all = 0..c_int::try_from(callbacks).unwrap_or(c_int::MAX);
        for cbid in all.filter(|&cbid| cbid != CBID_QMD_READY) {
            // SAFETY: the driver's own function, with the handle that it gave.
            unsafe { (driver.enable())(0, HANDLE, domain, cbid) };
        }
        return 0;
    }
    // SAFETY: an entry of this type (partita_abi::callback), and the handle that the driver gave.
    unsafe {
        entry::<EnableDomainFn>(driver, TABLE_INDEX_ENABLE_DOMAIN).map_or(0, |off| off(0, HANDLE, domain))
    }
}

unsafe extern "C" fn state(on: *mut u32, handle: u32, domain: c_int, cbid: c_int) -> c_int {
    let Some(driver) = driver() else { return CODE_INVALID };
    // SAFETY: an entry of this type (partita_abi::callback).
    let Some(real) = (unsafe { entry::<StateFn>(driver, TABLE_INDEX_STATE) }) else { return CODE_INVALID };
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real(on, handle, domain, cbid) };
    if code == 0 && is_launch(domain, cbid) {
        // SAFETY: the driver has just written through it.
        unsafe { on.write(u32::from(TOOL_SEES_LAUNCHES.load(Ordering::Relaxed))) };
    }
    code
}

unsafe extern "C" fn enable(on: u32, handle: u32, domain: c_int, cbid: c_int) -> c_int {
    let places = PLACES.lock();
    let Some(driver) = places.driver else { return CODE_INVALID };
    if handle == HANDLE && is_launch(domain, cbid) {
        TOOL_SEES_LAUNCHES.store(on != 0, Ordering::Relaxed);
        if places.masks {
            return 0;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (driver.enable())(on, handle, domain, cbid) }
}

unsafe extern "C" fn enable_domain(on: u32, handle: u32, domain: c_int) -> c_int {
    let places = PLACES.lock();
    let Some(driver) = places.driver else { return CODE_INVALID };
    if handle == HANDLE && on == 0 {
        return switch_domain_off(&places, driver, domain);
    }
    if handle == HANDLE && domain == DOMAIN_LAUNCH {
        TOOL_SEES_LAUNCHES.store(true, Ordering::Relaxed);
    }
    // SAFETY: an entry of this type (partita_abi::callback), and the caller's arguments.
    unsafe {
        entry::<EnableDomainFn>(driver, TABLE_INDEX_ENABLE_DOMAIN)
            .map_or(CODE_INVALID, |real| real(on, handle, domain))
    }
}

unsafe extern "C" fn enable_all(on: u32, handle: u32) -> c_int {
    let places = PLACES.lock();
    let Some(driver) = places.driver else { return CODE_INVALID };
    if handle == HANDLE && on == 0 {
        switch_all_off(&places, driver);
        return 0;
    }
    if handle == HANDLE {
        TOOL_SEES_LAUNCHES.store(true, Ordering::Relaxed);
    }
    // SAFETY: an entry of this type (partita_abi::callback), and the caller's arguments.
    unsafe {
        entry::<EnableAllFn>(driver, TABLE_INDEX_ENABLE_ALL).map_or(CODE_INVALID, |real| real(on, handle))
    }
}

unsafe extern "C" fn declare(supports: u32, handle: u32, feature: u32) -> c_int {
    if handle != HANDLE {
        return CODE_INVALID_HANDLE;
    }
    if feature >= FEATURES {
        return CODE_INVALID;
    }
    if feature == FEATURE_GREEN_CONTEXTS {
        TOOL_SUPPORTS_GREEN.store(supports != 0, Ordering::Release);
        if let Some(driver) = driver() {
            declare_to(driver);
        }
    }
    0
}
