//! `partita chain plot`.

use partita_chain_host::{self as chain, History, Period};
use partita_console::{Failure, print};
use partita_core::Count;
use partita_plot::Picture;
use partita_plot::lines::{Panel, Series, scene};

use crate::args::ChainPlot;

/// Draws a log.
pub fn plot(arguments: &ChainPlot) -> Result<(), Failure> {
    let history = chain::read_log(&arguments.log)?;
    if history.periods.is_empty() {
        return Err(Failure::Told(format!(
            "{}: no period has ended yet; one lasts {} ms, and longer while few frames are finished",
            arguments.log.display(),
            history.definition.period_ms
        )));
    }
    let picture = picture(&history);
    let out = &arguments.out;
    let bytes = match out.extension().and_then(|ending| ending.to_str()) {
        Some("svg") => picture.svg().into_bytes(),
        Some("png") => picture.png().map_err(Failure::Told)?,
        _ => {
            return Err(Failure::Told(format!(
                "--out {}: name it with .svg or .png at its end",
                out.display()
            )));
        }
    };
    std::fs::write(out, bytes).map_err(|error| Failure::Told(format!("{}: {error}", out.display())))?;
    print(&format!("{}: {}\n", out.display(), Count(history.periods.len(), "period")))
}

fn picture(history: &History) -> Picture {
    let throughput = history.periods.iter().map(|period| (period.at_s, period.throughput_fps)).collect();
    let components = history.definition.components.iter().enumerate();
    let tpcs = components.map(|(at, component)| Series::dots(&component.name, steps(&history.periods, at)));
    let panels = [
        Panel {
            title: "Frames finished by the last component".to_owned(),
            x: "time in s".to_owned(),
            y: "frames/s".to_owned(),
            series: vec![Series::dots(&history.definition.name, throughput)],
            is_log: false,
        },
        Panel {
            title: "Compute units of each component".to_owned(),
            x: "time in s".to_owned(),
            y: "TPCs".to_owned(),
            series: tpcs.collect(),
            is_log: false,
        },
    ];
    let title = format!("{}: a period is {} ms", history.definition.name, history.definition.period_ms);
    Picture::of("chain", scene(&title, &panels))
}

fn steps(periods: &[Period], component: usize) -> Vec<(f64, f64)> {
    let tpcs = |period: &Period| Some((period.at_s, f64::from(*period.tpcs.as_ref()?.get(component)?)));
    periods.iter().filter_map(tpcs).collect()
}
