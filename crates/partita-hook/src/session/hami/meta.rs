//! The data of a tenant for the `partita` command beside its limits: its `meta.json`.

use alloc::format;
use alloc::string::String;

use partita_driver::files;

use crate::sys::process::this_process;

/// A command line longer than this is cut, in bytes.
const COMMAND_BYTES_MAX: u64 = 4096;

/// The content of the file, for a tenant that this process makes.
pub fn of(name: &str, gpu: &str, percent: Option<u32>) -> String {
    let own = this_process();
    let process = format!(r#"{{"pid":{},"start_ticks":{}}}"#, own.pid, own.start_ticks);
    let command = files::read_bytes("/proc/self/cmdline", COMMAND_BYTES_MAX).unwrap_or_default();
    let command = command.split(|&byte| byte == 0).filter(|word| !word.is_empty()).map(text);
    let command = command.reduce(|line, word| format!("{line},{word}")).unwrap_or_default();
    let (name, gpu) = (text(name.as_bytes()), text(gpu.as_bytes()));
    let share = percent.map_or_else(|| String::from("null"), |percent| format!("\"{percent}%\""));
    // SAFETY: a null pointer is allowed.
    let now_s = unsafe { libc::time(core::ptr::null_mut()) };
    format!(
        r#"{{"version":1,"name":{name},"gpu":{{"key":{gpu},"uuid":{gpu},"index":null,"label":{gpu},"sim":null}},"run":{process},"child":{process},"command":[{command}],"started_unix_s":{now_s},"share":{share},"place":"packed","isolation":"own"}}"#
    )
}

/// A string of JSON.
fn text(bytes: &[u8]) -> String {
    let mut json = String::from("\"");
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => json += &format!("\\u{:04x}", u32::from(c)),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}
