//! `partita sim`.

use std::process::ExitCode;
use std::time::Duration;

use partita::gpu::Selector;
use partita::install::Install;
use partita::registry::LEDGER_VARIABLE;
use partita::sample;
use partita::simenv::SimEnvironment;
use partita_console::{Failure, print, print_json};
use partita_core::ByteSize;

use crate::args::{Sim, SimBurn, SimEnv};

/// Runs a subcommand.
pub fn sim(arguments: &Sim) -> Result<ExitCode, Failure> {
    match arguments {
        Sim::Env(arguments) => env(arguments),
        Sim::Census(arguments) => {
            let census = sample::census().map_err(|reason| of_sample(&reason))?;
            let sms: Vec<String> = census.sms.iter().map(u32::to_string).collect();
            let text = format!("{} blocks ran on {} SMs: {}\n", census.blocks, sms.len(), sms.join(" "));
            if arguments.json {
                print_json(&census)?
            } else {
                print(&text)?
            }
            Ok(ExitCode::SUCCESS)
        }
        Sim::Burn(arguments) => burn(arguments),
    }
}

fn burn(arguments: &SimBurn) -> Result<ExitCode, Failure> {
    let size = arguments.mem.as_deref().map(str::parse::<ByteSize>).transpose();
    let size = size.map_err(|error| Failure::Told(format!("--mem: {error}")))?.unwrap_or(ByteSize(0));
    let bytes = usize::try_from(size.0).unwrap_or(usize::MAX);
    let burnt = sample::burn(Duration::from_secs(arguments.seconds.into()), bytes);
    let burnt = burnt.map_err(|reason| of_sample(&reason))?;
    let seconds = burnt.duration_ms as f64 / 1e3;
    let text = format!("{} kernels in {seconds:.1} s on {} SMs\n", burnt.kernels, burnt.sms);
    if arguments.json {
        print_json(&burnt)?
    } else {
        print(&text)?
    }
    Ok(ExitCode::SUCCESS)
}

/// The failure of a sample program, which is useless outside of tenants.
fn of_sample(reason: &str) -> Failure {
    let is_in_tenant = std::env::var_os(LEDGER_VARIABLE).is_some();
    // A full quota is no lack of a tenant.
    let remedy = if is_in_tenant || reason.contains("OUT_OF_MEMORY") {
        ""
    } else {
        "; run it in a tenant: `partita run -- partita sim …`"
    };
    Failure::Told(format!("{reason}{remedy}"))
}

/// Prints the lines that make a shell's programs use the simulated GPU.
fn env(arguments: &SimEnv) -> Result<ExitCode, Failure> {
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
