//! `partita chain watch`.

use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};

use partita::registry::Registry;
use partita_chain_host::{self as chain, Algorithm, ChainView, Phase, RoleView, Steering};
use partita_console::{Failure, Table, pause, print_json, print_json_on, print_on, shorten};
use partita_core::Count;

use crate::args::ChainWatch;

/// The shortest and the longest pause between two updates, in seconds.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.05..=3600.0;
/// The sequence that clears a terminal and moves to its upper left corner.
const CLEAR: &str = "\x1b[2J\x1b[H";
/// The number of events shown.
const EVENTS: usize = 8;

/// Prints a chain's state now and then, until it ends.
pub fn watch(arguments: &ChainWatch) -> Result<(), Failure> {
    if !INTERVAL_S.contains(&arguments.interval) {
        return Err(Failure::Told(format!(
            "--interval {}: it must be {} to {} seconds",
            arguments.interval,
            INTERVAL_S.start(),
            INTERVAL_S.end()
        )));
    }
    let registry = Registry::open()?;
    let mut before: Option<(ChainView, Instant)> = None;
    loop {
        let view = match chain::view(&registry, &arguments.name) {
            // A chain that was shown before has ended.
            Err(_) if before.is_some() => return Ok(()),
            view => view?,
        };
        if arguments.json {
            if arguments.once {
                return print_json(&view);
            }
            print_json_on(&view)?;
        } else {
            let clear = if std::io::stdout().is_terminal() && !arguments.once { CLEAR } else { "" };
            print_on(&format!(
                "{clear}{}",
                text(&view, before.as_ref().map(|(view, at)| (view, at.elapsed().as_secs_f64())))
            ))?;
        }
        if arguments.once {
            return Ok(());
        }
        before = Some((view, Instant::now()));
        pause(Duration::from_secs_f64(arguments.interval))?;
    }
}

/// What divides the compute units, in a word.
pub fn steering(steering: &Steering) -> String {
    match steering {
        Steering::Algorithm(Algorithm::Steady) => "steady".to_owned(),
        Steering::Algorithm(Algorithm::Published) => "published".to_owned(),
        Steering::Algorithm(Algorithm::None) => "no algorithm".to_owned(),
        Steering::Tpcs(_) => "hand".to_owned(),
    }
}

/// The optimizer's activity, in a word.
pub fn phase(view: &ChainView) -> &'static str {
    match view.state.phase {
        _ if !view.supervised => "unsupervised",
        Phase::Waiting => "waiting",
        Phase::Searching => "searching",
        Phase::Settled => "settled",
        Phase::Off => "off",
    }
}

fn text(view: &ChainView, before: Option<(&ChainView, f64)>) -> String {
    let state = &view.state;
    let fps = state.throughput_fps.map_or_else(|| "?".to_owned(), |fps| format!("{fps:.1}"));
    let mut text = format!(
        "{} on {}: {fps} frames/s, {}; {} divided by {} ({}, {} of {} ms)\n",
        view.name,
        view.gpu,
        Count(view.frames_finished, "frame"),
        Count(state.tpcs_of_chain, "TPC"),
        steering(&state.steering),
        phase(view),
        Count(state.periods, "period"),
        state.definition.period_ms
    );
    if !view.supervised {
        text.push_str(&format!(
            "THE PROCESS THAT RAN IT ({}) HAS DIED: failed components are not restarted; `partita chain \
             start {}` ends the rest and restarts the chain\n",
            state.supervisor.pid, view.name
        ));
    }
    if view.frames_lost > 0 {
        text.push_str(&format!("{} FRAMES ARE LOST: the chain's file was damaged\n", view.frames_lost));
    }
    let mut table = Table::new(&[
        "COMPONENT",
        "GPU",
        ">PID",
        ">TPCS",
        "WHICH",
        ">OUT/S",
        ">BUSY",
        ">WAITS IN",
        ">WAITS OUT",
        ">QUEUED",
        ">DROPPED",
        ">RESTARTS",
    ]);
    for (at, role) in view.roles.iter().enumerate() {
        let earlier = before.and_then(|(view, interval_s)| Some((view.roles.get(at)?, interval_s)));
        table.row(cells(view, at, role, earlier));
    }
    text.push_str(&table.render());
    for event in state.events.iter().rev().take(EVENTS).rev() {
        text.push_str(&format!("{:>9.2} s  {}\n", event.at_s, event.what));
    }
    text
}

/// Rates are since the last update, or since the chain started.
fn cells(view: &ChainView, at: usize, role: &RoleView, before: Option<(&RoleView, f64)>) -> [String; 12] {
    let dash = || "-".to_owned();
    let known = view.state.components.get(at);
    let tpcs = view.state.tpcs.as_ref().and_then(|tpcs| tpcs.get(at)).map_or_else(dash, u32::to_string);
    // Until its next frame, a component keeps to the former units.
    let note = match (role.obeys, role.refuses) {
        (true, _) => "",
        (false, true) => " (refused)",
        (false, false) => " (soon)",
    };
    let which = role.tpcs.as_ref().map_or_else(dash, |set| shorten(set, 24) + note);
    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(view.state.started_unix_s);
    let whole_s = began.elapsed().map_or(1.0, |time| time.as_secs_f64()).max(1.0);
    let interval_s = before.map_or(whole_s, |(_, interval_s)| interval_s);
    let more =
        |of: fn(&RoleView) -> u64| of(role).saturating_sub(before.map_or(0, |(before, _)| of(before))) as f64;
    // The start of a chain is known to a second only.
    let part = |of| format!("{:.0}%", (more(of) / 1e7 / interval_s).min(100.0));
    [
        role.name.clone(),
        known.map_or_else(dash, |known| known.gpu.clone()),
        known.and_then(|known| known.process).map_or_else(dash, |process| process.pid.to_string()),
        tpcs,
        which,
        format!("{:.1}", more(|role| role.frames_out) / interval_s),
        part(|role| role.busy_ns),
        part(|role| role.wait_in_ns),
        part(|role| role.wait_out_ns),
        role.queued.to_string(),
        (role.dropped_full + role.dropped_by_owner + role.dropped_of_dead).to_string(),
        known.map_or_else(dash, |known| known.restarts.to_string()),
    ]
}
