//! `spank_partita.so`: the option `--partita` of `srun`, `sbatch` and `salloc`.
//!
//! ```text
//! srun --gres=gpu:1 --partita=sm=50%,mem=40GiB python3 train.py
//! ```
//!
//! The plugin checks the request when the job is submitted and passes it to the node's prolog,
//! which makes the tenant (`partita batch prolog`). Before each task it sets what the prolog
//! recorded, as `partita batch task-prolog` prints it. `spank` declares the part of Slurm's
//! interface that it uses; no header of Slurm is needed. `partita batch spank` writes the version
//! of the installed Slurm into the file.
//!
//! No function unwinds into Slurm: `contained` turns a panic into an error of the call.

mod environment;
mod program;
mod spank;

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::sync::Mutex;

use partita_batch::request::Request;

use environment::Change;
use spank::{Context, Handle, OptionEntry, SUCCESS};

/// Slurm reads these names when it loads a plugin.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 8] = *b"partita\0";
/// See above.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// The version of the plugin interface.
#[unsafe(no_mangle)]
pub static spank_plugin_version: u32 = 1;

/// The version of Slurm that may load this file, and the mark by which `partita batch spank` finds
/// it.
#[repr(C)]
pub struct Version {
    number: u32,
    mark: [u8; 20],
}

/// Slurm compares the number with its own, and reads nothing behind it. Zero loads nowhere.
#[unsafe(no_mangle)]
pub static plugin_version: Version = Version { number: 0, mark: *b"partita spank 1 mark" };

/// The request of this process's command line; on the node, of the job's.
static REQUESTED: Mutex<Option<CString>> = Mutex::new(None);

/// The name of the option; also of the variable by which the prolog gets the request, which Slurm
/// prefixes with `SPANK_`.
const OPTION: &CStr = c"partita";
const VARIABLE: &CStr = c"PARTITA";
/// The variable with a job's number, in its script and its steps.
const JOB_VARIABLE: &str = "SLURM_JOB_ID";
/// The variable with the job's request, which the plugin sets for its programs.
const REQUEST_VARIABLE: &CStr = c"PARTITA_REQUEST";

/// The result of a call, as Slurm takes it. A panic is an error.
fn contained(call: impl FnOnce() -> Result<(), String> + std::panic::UnwindSafe) -> c_int {
    let result = catch_unwind(call).unwrap_or_else(|_| Err("a bug of Partita: report it".to_owned()));
    match result {
        Ok(()) => SUCCESS,
        Err(reason) => {
            spank::error(&format!("partita: {reason}"));
            -1
        }
    }
}

/// Called in every process that loads the plugin: registers the option.
///
/// # Safety
/// Slurm calls it with its own handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(handle: Handle, _count: c_int, _words: *mut *mut c_char) -> c_int {
    contained(|| {
        if !matches!(spank::context(), Context::Local | Context::Allocator | Context::Remote) {
            return Ok(());
        }
        let option = OptionEntry {
            name: OPTION.as_ptr(),
            argument: c"REQUEST".as_ptr(),
            usage: c"the job's share of each of its GPUs: sm=50%,mem=40GiB, mps, or off".as_ptr(),
            has_argument: 1,
            value: 0,
            callback: Some(option),
        };
        // SAFETY: Slurm's handle; Slurm copies the entry, whose strings are static.
        unsafe { spank::register(handle, option) }
    })
}

/// Slurm calls this where the option is given: on the command line, and again on the node.
unsafe extern "C" fn option(_value: c_int, argument: *const c_char, remote: c_int) -> c_int {
    contained(|| {
        if argument.is_null() {
            return Err("--partita needs a request, as --partita=sm=50%".to_owned());
        }
        // SAFETY: not null, so a C string of Slurm's.
        let text = unsafe { CStr::from_ptr(argument) };
        if remote == 0 {
            let words = text.to_str().map_err(|_| "the request of --partita is not UTF-8".to_owned())?;
            Request::parse(words).map_err(|error| error.to_string().replace("partita:", "--partita="))?;
            check_step(words)?;
        }
        *REQUESTED.lock().map_err(|error| error.to_string())? = Some(text.to_owned());
        Ok(())
    })
}

/// Refuses a step that asks for other limits than its job has. A step inherits its job's option.
fn check_step(words: &str) -> Result<(), String> {
    let Ok(job) = std::env::var(JOB_VARIABLE) else { return Ok(()) };
    let own = std::env::var_os(OsStr::from_bytes(REQUEST_VARIABLE.to_bytes()));
    if spank::context() != Context::Local || own.is_some_and(|own| own == words) {
        return Ok(());
    }
    Err(format!(
        "job {job} has its limits already: give --partita to sbatch or salloc, or change them on the node with `partita set \
         slurm-{job}`"
    ))
}

/// Called when the command line has been read: passes the request to the prolog.
///
/// # Safety
/// Slurm calls it with its own handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    handle: Handle,
    _count: c_int,
    _words: *mut *mut c_char,
) -> c_int {
    contained(|| {
        let requested = REQUESTED.lock().map_err(|error| error.to_string())?.clone();
        let (Some(text), context @ (Context::Local | Context::Allocator)) = (requested, spank::context())
        else {
            return Ok(());
        };
        if context == Context::Local && std::env::var_os(JOB_VARIABLE).is_some() {
            // A step: the job's prolog has run.
            return Ok(());
        }
        // SAFETY: Slurm's handle.
        unsafe { spank::set_for_prolog(handle, VARIABLE, &text) }
    })
}

/// Called as the job's user before a task's program starts: sets the environment that the prolog
/// has recorded for the job.
///
/// # Safety
/// Slurm calls it with its own handle and the words of `plugstack.conf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    handle: Handle,
    count: c_int,
    words: *mut *mut c_char,
) -> c_int {
    contained(|| {
        if spank::context() != Context::Remote {
            return Ok(());
        }
        // SAFETY: Slurm's words, and Slurm's handle.
        let (words, job) = unsafe { (spank::words(count, words), spank::job_environment(handle)?) };
        let said = program::task_prolog(&words, &job)?;
        let requested = REQUESTED.lock().map_err(|error| error.to_string())?.clone();
        let own = requested.map(|text| Change::Set(REQUEST_VARIABLE.to_owned(), text));
        for change in environment::changes(&said)?.into_iter().chain(own) {
            // SAFETY: Slurm's handle.
            unsafe { spank::change(handle, &change)? };
        }
        Ok(())
    })
}
