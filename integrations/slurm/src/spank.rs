//! The part of Slurm's `spank.h` that the plugin uses. The process that loads it has the functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::environment::Change;

/// `ESPANK_SUCCESS`.
pub const SUCCESS: c_int = 0;
/// `S_JOB_ENV`: the job's environment.
const JOB_ENVIRONMENT: c_int = 10;
/// Variables of a job that are read at most: a list without an end is not Slurm's.
const VARIABLES_MAX: usize = 65_536;

/// `spank_t`.
pub type Handle = *mut c_void;

/// `struct spank_option`.
#[repr(C)]
pub struct OptionEntry {
    pub name: *const c_char,
    pub argument: *const c_char,
    pub usage: *const c_char,
    pub has_argument: c_int,
    pub value: c_int,
    pub callback: Option<unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

/// Which of Slurm's programs has loaded the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// `srun`.
    Local,
    /// `slurmstepd`.
    Remote,
    /// `sbatch` and `salloc`.
    Allocator,
    /// Any other.
    Other,
}

unsafe extern "C" {
    fn spank_context() -> c_int;
    fn spank_option_register(handle: Handle, option: *mut OptionEntry) -> c_int;
    fn spank_job_control_setenv(
        handle: Handle,
        name: *const c_char,
        value: *const c_char,
        overwrite: c_int,
    ) -> c_int;
    fn spank_get_item(handle: Handle, item: c_int, ...) -> c_int;
    fn spank_setenv(handle: Handle, name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int;
    fn spank_unsetenv(handle: Handle, name: *const c_char) -> c_int;
    fn slurm_error(format: *const c_char, ...);
    fn slurm_spank_log(format: *const c_char, ...);
}

fn check(what: &str, code: c_int) -> Result<(), String> {
    if code == SUCCESS { Ok(()) } else { Err(format!("Slurm refuses to {what} (code {code})")) }
}

/// The program that has loaded the plugin.
pub fn context() -> Context {
    // SAFETY: takes nothing.
    match unsafe { spank_context() } {
        1 => Context::Local,
        2 => Context::Remote,
        3 => Context::Allocator,
        _ => Context::Other,
    }
}

/// Reports an error where Slurm reports its own.
pub fn error(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: a format for one string, and a string.
    unsafe { slurm_error(c"%s".as_ptr(), text.as_ptr()) };
}

/// Prints a line to the user of a command or of a task.
pub fn print(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: a format for one string, and a string.
    unsafe { slurm_spank_log(c"%s".as_ptr(), text.as_ptr()) };
}

/// Adds an option to Slurm's commands.
///
/// # Errors
/// Slurm's refusal.
///
/// # Safety
/// The handle is Slurm's, and the entry's strings are static.
pub unsafe fn register(handle: Handle, mut option: OptionEntry) -> Result<(), String> {
    // SAFETY: by the caller's word; Slurm copies the entry.
    check("add the option --partita", unsafe { spank_option_register(handle, &raw mut option) })
}

/// Passes a variable to the job's prolog and epilog, which see it with the prefix `SPANK_`.
///
/// # Errors
/// Slurm's refusal.
///
/// # Safety
/// The handle is Slurm's.
pub unsafe fn set_for_prolog(handle: Handle, name: &CStr, value: &CStr) -> Result<(), String> {
    // SAFETY: by the caller's word; C strings, which Slurm copies.
    let code = unsafe { spank_job_control_setenv(handle, name.as_ptr(), value.as_ptr(), 1) };
    check("pass the request to the prolog", code)
}

/// The words behind the plugin in `plugstack.conf`. What is not UTF-8 is left out.
///
/// # Safety
/// `words` has `count` C strings.
pub unsafe fn words(count: c_int, words: *mut *mut c_char) -> Vec<String> {
    let Ok(count) = usize::try_from(count) else { return Vec::new() };
    if words.is_null() {
        return Vec::new();
    }
    (0..count)
        .filter_map(|at| {
            // SAFETY: by the caller's word.
            let word = unsafe { *words.add(at) };
            // SAFETY: by the caller's word, and not null.
            (!word.is_null()).then(|| unsafe { CStr::from_ptr(word) }.to_str().ok().map(str::to_owned))?
        })
        .collect()
}

/// The environment of the job's task, as `NAME=VALUE`.
///
/// # Errors
/// Slurm's refusal.
///
/// # Safety
/// The handle is Slurm's.
pub unsafe fn job_environment(handle: Handle) -> Result<Vec<CString>, String> {
    let mut list: *mut *mut c_char = std::ptr::null_mut();
    // SAFETY: by the caller's word; the item takes a pointer to a list.
    let code = unsafe { spank_get_item(handle, JOB_ENVIRONMENT, &raw mut list) };
    check("show the job's environment", code)?;
    let mut found = Vec::new();
    while !list.is_null() && found.len() < VARIABLES_MAX {
        // SAFETY: Slurm's list ends with a null pointer, which is not passed.
        let entry = unsafe { *list.add(found.len()) };
        if entry.is_null() {
            break;
        }
        // SAFETY: not null, so a C string of Slurm's.
        found.push(unsafe { CStr::from_ptr(entry) }.to_owned());
    }
    Ok(found)
}

/// Changes the environment of the task.
///
/// # Errors
/// Slurm's refusal.
///
/// # Safety
/// The handle is Slurm's.
pub unsafe fn change(handle: Handle, change: &Change) -> Result<(), String> {
    match change {
        Change::Set(name, value) => {
            // SAFETY: by the caller's word; C strings, which Slurm copies.
            let code = unsafe { spank_setenv(handle, name.as_ptr(), value.as_ptr(), 1) };
            check(&format!("set {}", name.to_string_lossy()), code)
        }
        Change::Unset(name) => {
            // SAFETY: by the caller's word; a C string.
            unsafe { spank_unsetenv(handle, name.as_ptr()) };
            Ok(())
        }
        Change::Print(line) => {
            print(line);
            Ok(())
        }
    }
}
