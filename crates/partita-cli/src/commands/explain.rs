//! `partita explain`.

mod picture;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use partita::escape::escape;
use partita::explain::{self, Explanation};
use partita::registry::Registry;
use partita::slo::StepRow;
use partita::system;
use partita_console::{Failure, print, print_json};

use crate::args::Explain;
use crate::commands::{check_svg, short_time};

/// Decisions that are printed; JSON has all that are kept.
const STEPS_MAX: usize = 12;

/// Says what a tenant has, why, and what would change it.
pub fn explain(arguments: &Explain) -> Result<ExitCode, Failure> {
    let registry = Registry::open()?;
    let explained = match registry.is_client() {
        // `partitad` may read what is measured, and writes no file for users.
        true => by_partitad(&registry, &arguments.name)?,
        false => explain::explain(&registry, &arguments.name)?,
    };
    if let Some(file) = &arguments.svg {
        draw(&explained, file)?;
    }
    match explained.as_slice() {
        [one] if arguments.json => print_json(one)?,
        all if arguments.json => print_json(&all)?,
        all => print(&all.iter().map(text).collect::<String>())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn by_partitad(registry: &Registry, name: &str) -> Result<Vec<Explanation>, Failure> {
    let words = ["explain", "--json", "--", name].map(str::to_owned);
    let printed = system::command(registry, words.to_vec())?;
    if let Some(reason) = printed.failure() {
        return Err(Failure::Told(reason));
    }
    let not_json = |error: serde_json::Error| Failure::Told(format!("the answer of partitad: {error}"));
    let one = serde_json::from_slice(&printed.stdout).map(|one| vec![one]);
    one.or_else(|_| serde_json::from_slice(&printed.stdout)).map_err(not_json)
}

fn draw(explained: &[Explanation], file: &Path) -> Result<(), Failure> {
    let refused = |reason: &str| Failure::Told(format!("--svg {}: {reason}", file.display()));
    check_svg(file)?;
    // A tenant with a target has one GPU.
    let [one] = explained else {
        return Err(refused("the tenant has several GPUs, and a picture shows one"));
    };
    let Some(svg) = picture::picture(one) else {
        return Err(refused(
            "nothing was measured yet; wait until bursts of the tenant have ended, with --slo or --goal throughput",
        ));
    };
    fs::write(file, svg).map_err(|error| refused(&format!("{error}; name another file")))
}

fn text(one: &Explanation) -> String {
    let mut text = format!("tenant {} on {}", one.name, one.gpu);
    if let Some(slo) = &one.slo {
        text.push_str(&format!(", target {slo}"));
    }
    if let Some(goal) = &one.goal {
        text.push_str(&format!(", goal {goal}"));
    }
    text.push('\n');
    one.why.iter().for_each(|line| text.push_str(&format!("  {}\n", escape(line))));
    if !one.levels.is_empty() {
        text.push_str("measured, by TPCs:\n");
        for level in &one.levels {
            let ((p99, p99_unit), (mean, mean_unit)) = (short_time(level.p99_us), short_time(level.mean_us));
            let mark = if one.tpcs == Some(level.tpcs) { " (now)" } else { "" };
            text.push_str(&format!(
                "  {:>3}  p99 {p99}{p99_unit}, mean {mean}{mean_unit}, {} times{mark}\n",
                level.tpcs, level.count
            ));
        }
    }
    if !one.steps.is_empty() {
        text.push_str("decisions, the last one first:\n");
        one.steps.iter().rev().take(STEPS_MAX).for_each(|step| text.push_str(&step_text(step)));
    }
    text.push_str("what would change it:\n");
    one.what_if.iter().for_each(|line| text.push_str(&format!("  {}\n", escape(line))));
    text
}

fn step_text(step: &StepRow) -> String {
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let ago_s = now_ms.saturating_sub(step.at_unix_ms) / 1000;
    let moved = if step.from_tpcs == step.tpcs {
        format!("{} TPCs", step.tpcs)
    } else {
        format!("{} to {} TPCs", step.from_tpcs, step.tpcs)
    };
    format!("  {ago_s:>6} s ago  {moved}: {}\n", escape(&step.why))
}
