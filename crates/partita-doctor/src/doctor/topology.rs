//! The check that independent sources agree on where the units lie.

use partita_core::survey::SourceState;
use partita_host::calibration::Measured;
use partita_host::gpu::Gpu;

use super::check::Check;
use crate::topology;

const NAME: &str = "topology";

/// Compares what the calibration found with the other sources.
pub(super) fn check(gpu: &Gpu, measured: &Measured) -> Check {
    let report = measured.survey(topology::nvdebug_claims(gpu)).report();
    if let Some(first) = report.disagreements.first() {
        let more = match report.disagreements.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        return Check::failed(
            NAME,
            format!("{first}{more}"),
            "`partita topology --fresh` draws what each source says; report it with its --json",
        );
    }
    let speaking = |(source, state): &(_, SourceState)| {
        (!matches!(state, SourceState::Silent(_))).then(|| format!("{source}"))
    };
    let sources: Vec<String> = report.sources.iter().filter_map(speaking).collect();
    if report.confirmed_sms() == 0 {
        let silent = report.sources.iter().find_map(|(source, state)| match state {
            SourceState::Silent(reason) => Some(format!("{source} says nothing: {reason}")),
            _ => None,
        });
        let why = silent.unwrap_or_default();
        return Check::not_checked(NAME, format!("only {} places the SMs; {why}", sources.join(", ")), "");
    }
    Check::ok(
        NAME,
        format!(
            "{} of {} SMs placed alike by {}",
            report.confirmed_sms(),
            report.sm_count(),
            sources.join(", ")
        ),
    )
}
