//! `partita sim`.

use std::process::ExitCode;

use partita::gpu::Selector;
use partita::install::Install;
use partita::simenv::SimEnvironment;
use partita_console::{Failure, print};

use crate::args::Sim;

/// Prints the lines that make a shell's programs use the simulated GPU.
pub fn sim(arguments: &Sim) -> Result<ExitCode, Failure> {
    let Sim::Env(arguments) = arguments;
    let text = &arguments.gpu;
    let selector = if text.starts_with("sim") { text.parse()? } else { format!("sim:{text}").parse()? };
    let Selector::Sim(device, 0) = selector else {
        return Err(Failure::Told(format!("{text} is not a simulated device; use sim:h200")));
    };
    let environment = SimEnvironment::create(&Install::of_this_program()?, &device)?;
    let mut lines = String::new();
    for (key, value) in environment.variables() {
        let Some(value) = value.to_str() else {
            return Err(Failure::Told(format!(
                "{key} is not text: {value:?}; use a directory with a name in UTF-8"
            )));
        };
        lines.push_str(&format!("export {key}={}\n", quote(value)));
    }
    print(&lines)?;
    Ok(ExitCode::SUCCESS)
}

/// A shell word for exactly this text.
fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:+,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_read_back_what_was_meant() {
        for text in ["", "/plain/path:/other", "a b", "it's", "$HOME `x` \"y\"", "\\", "new\nline", "~"] {
            let script = format!("printf %s {}", quote(text));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}
