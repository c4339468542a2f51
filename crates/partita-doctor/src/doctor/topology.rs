//! Checks that independent sources agree on the location of the units.

use partita_core::survey::SourceState;
use partita_host::calibration::Measured;
use partita_host::gpu::Gpu;

use super::check::Check;
use crate::topology;

const NAME: &str = "topology";

/// Compares the calibration with the other sources.
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
            "`partita topology --fresh` draws each source's report; send it to the maintainers with \
             its --json",
        );
    }
    let speaking = |(source, state): &(_, SourceState)| {
        (!matches!(state, SourceState::Silent(_))).then(|| format!("{source}"))
    };
    let sources: Vec<String> = report.sources.iter().filter_map(speaking).collect();
    if report.confirmed_sms() == 0 {
        let silent = report.sources.iter().find_map(|(source, state)| match state {
            SourceState::Silent(reason) => Some(format!("{source} has no report: {reason}")),
            _ => None,
        });
        let why = silent.unwrap_or_default();
        return Check::not_checked(NAME, format!("only {} locates the SMs; {why}", sources.join(", ")), "");
    }
    Check::ok(
        NAME,
        format!(
            "{} of {} SMs located alike by {}",
            report.confirmed_sms(),
            report.sm_count(),
            sources.join(", ")
        ),
    )
}
