//! A frame: pure, from rows and the view to lines of text with styles. Bars are ASCII, and every
//! style can go: what colours say, words say too.

use partita::escape::escape;
use partita::registry::Origin;
use partita_console::shorten;
use partita_core::Count;

use super::reading::{Gpu, Outside, Reading, Tenant, Waiting};
use super::rows::Row;
use super::view::{Mode, View};
use crate::commands::ps::{BY_POLICY, age, short_gpu, wrapped};
use crate::commands::{bytes, quantiles};

/// How a text looks where the terminal can show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    /// The selected tenant.
    Reverse,
    /// The full part of a bar.
    Bar,
    /// A bar that is nearly full, and problems.
    Alarm,
}

/// A line, as its parts.
pub type Line = Vec<(Style, String)>;

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    /// `None` where lines may be scrolled: on paper.
    pub rows: Option<usize>,
}

/// A bar is alarming from this part on, in percent.
const FULL_PERCENT: f64 = 95.0;
/// Characters of the bars of GPUs and of tenants.
const GPU_BAR: usize = 18;
const SMS_BAR: usize = 6;
const TIME_BAR: usize = 5;
const MEMORY_BAR: usize = 5;
/// The columns from which on bursts and targets are shown.
const WIDE: usize = 100;
/// Characters of a target.
const TARGET: usize = 11;

/// The frame.
pub fn frame(reading: &Reading, rows: &[Row], view: &View, size: Size) -> Vec<Line> {
    let mut lines = vec![title(reading, view)];
    let is_tight = size.rows.is_some_and(|rows| reading.gpus.len() * 4 > rows);
    lines.extend(reading.gpus.iter().flat_map(|gpu| gpu_lines(gpu, rows, is_tight)));
    lines.push(Line::new());
    if view.mode == Mode::Help {
        lines.extend(HELP.lines().map(|line| vec![(Style::Plain, line.to_owned())]));
    } else {
        let mut below = waiting(&reading.waiting);
        below.extend(outside(&reading.outsiders));
        below.extend(reading.unseen.iter().map(|line| vec![(Style::Alarm, escape(line).into_owned())]));
        // The lines of heads, of the prompt, and half of the rest at most for what is below.
        let left = size.rows.map(|rows| rows.saturating_sub(lines.len() + 2));
        if let Some(left) = left {
            below.truncate(left / 2);
        }
        let room = left.map_or(rows.len(), |left| left.saturating_sub(below.len()));
        lines.push(vec![(Style::Bold, head(size, rows))]);
        if rows.is_empty() {
            lines.push(vec![(Style::Dim, "  no tenant runs; start one with `partita run`".to_owned())]);
        }
        let place = view.place(rows);
        let first = (place + 1).saturating_sub(room);
        let shown = rows.iter().enumerate().skip(first).take(room);
        lines.extend(shown.map(|(at, row)| row_line(row, size, rows, at == place && size.rows.is_some())));
        lines.extend(below);
    }
    if let Some(height) = size.rows {
        let prompt = prompt(view, size.columns);
        let above = height.saturating_sub(prompt.len());
        lines.truncate(above);
        lines.resize(above, Line::new());
        lines.extend(prompt.into_iter().take(height.max(1)));
    }
    lines.into_iter().map(|line| cut(line, size.columns)).collect()
}

/// A frame without styles.
pub fn plain(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let line: String = line.iter().map(|(_, part)| part.as_str()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn title(reading: &Reading, view: &View) -> Line {
    let outside = match reading.outsiders.len() {
        0 => String::new(),
        number => format!(", {} outside of tenants", Count(number as u32, "program")),
    };
    let waiting = match reading.waiting.len() {
        0 => String::new(),
        number => format!(", {number} waiting"),
    };
    let tenants = Count(reading.tenants.len() as u32, "tenant");
    vec![
        (Style::Bold, "partita top".to_owned()),
        (Style::Plain, format!("  {tenants}{waiting}{outside}  sorted by {}", view.sort.word())),
    ]
}

fn gpu_lines(gpu: &Gpu, rows: &[Row], is_tight: bool) -> Vec<Line> {
    let label = format!("{:<9} ", named(gpu.gpu.split(" (").next().unwrap_or_default()));
    let here = || rows.iter().filter(|row| row.tenant.gpu == gpu.gpu);
    let of_device = here().find_map(|row| row.tenant.sms_of_device);
    // Tenants that take turns have the same SMs.
    let taken: u32 = here()
        .filter(|row| row.tenant.via.as_deref() != Some("time"))
        .filter_map(|row| row.tenant.sms)
        .fold(0, u32::saturating_add);
    let sms = of_device.map(|all| f64::from(taken) * 100.0 / f64::from(all.max(1)));
    let sms_text = of_device.map_or_else(|| "no tenant".to_owned(), |all| format!("{taken}/{all}"));
    let memory = part(gpu.memory_used_bytes, gpu.memory_total_bytes);
    let memory_text = match (gpu.memory_used_bytes, gpu.memory_total_bytes) {
        (Some(used), Some(total)) => format!("{}/{}", bytes(used), bytes(total)),
        _ => "?".to_owned(),
    };
    let percent = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |value| format!("{value}%"));
    let meter = |name: &str, value: Option<f64>, text: &str, width: usize| {
        let mut line = vec![(Style::Dim, format!("{name:<5}"))];
        line.extend(bar(value, GPU_BAR));
        line.push((Style::Plain, format!(" {text:<width$}")));
        line
    };
    let mut first = vec![(Style::Bold, label)];
    first.extend(meter("SMs", sms, &sms_text, 19));
    first.extend(meter("busy", gpu.busy_percent.map(f64::from), &percent(gpu.busy_percent), 4));
    let mut second = vec![(Style::Plain, " ".repeat(10))];
    second.extend(meter("mem", memory, &memory_text, 19));
    second.extend(meter("bus", gpu.memory_busy_percent.map(f64::from), &percent(gpu.memory_busy_percent), 4));
    if is_tight { vec![first] } else { vec![first, second] }
}

/// Whether there is room for rates of launches: in 80 columns the GPU's name takes their place.
fn has_rate(size: Size, rows: &[Row]) -> bool {
    !names_gpus(rows) || size.columns >= WIDE
}

/// A part of something, in percent.
fn part(used: Option<u64>, all: Option<u64>) -> Option<f64> {
    let (used, all) = used.zip(all)?;
    (all > 0).then(|| used as f64 * 100.0 / all as f64)
}

/// A bar of so many characters; blank where nothing is known.
fn bar(percent: Option<f64>, width: usize) -> Line {
    let Some(percent) = percent else { return vec![(Style::Plain, " ".repeat(width))] };
    let parts = (percent.clamp(0.0, 100.0) / 100.0 * width as f64).round();
    // A little is not nothing.
    let full = if percent > 0.0 { (parts as usize).clamp(1, width) } else { 0 };
    let style = if percent >= FULL_PERCENT { Style::Alarm } else { Style::Bar };
    vec![(style, "|".repeat(full)), (Style::Dim, ".".repeat(width - full))]
}

/// A GPU's name in nine characters, of which the last ones tell GPUs apart.
fn named(gpu: &str) -> String {
    const MOST: usize = 9;
    let name = short_gpu(gpu);
    let name = escape(name.split(" (").next().unwrap_or_default()).into_owned();
    let length = name.chars().count();
    match name.strip_prefix("sim:") {
        _ if length <= MOST => name,
        Some(simulated) if length - 4 <= MOST => simulated.to_owned(),
        _ => ['…'].into_iter().chain(name.chars().skip(length + 1 - MOST)).collect(),
    }
}

/// Whether tenants of several GPUs are shown.
fn names_gpus(rows: &[Row]) -> bool {
    rows.windows(2).any(|pair| pair[0].tenant.gpu != pair[1].tenant.gpu)
}

/// Whether a tenant with a target is shown.
fn has_targets(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.tenant.target.is_some())
}

/// A target's bound and whether it holds: `2.5ms holds`; nothing without one.
fn target(tenant: &Tenant) -> Option<(Style, String)> {
    let target = tenant.target?;
    let bound = tenant.slo.as_ref().and_then(|slo| slo.split_once('=')).map_or("?", |(_, bound)| bound);
    let (style, stands) = match (target.holds, target.unmet) {
        (_, true) => (Style::Alarm, "unmet"),
        (Some(false), _) => (Style::Alarm, "late"),
        (Some(true), _) => (Style::Plain, "holds"),
        (None, _) => (Style::Plain, "?"),
    };
    Some((style, format!("{} {stands}", escape(bound))))
}

/// How wide names may be: what 80 columns leave, or more.
fn name_width(size: Size, rows: &[Row]) -> usize {
    let longest = rows.iter().map(|row| row.tenant.name.chars().count()).max().unwrap_or(0);
    let spare = size.columns.saturating_sub(80) / 2;
    longest.clamp(10, 10 + spare.min(30))
}

fn head(size: Size, rows: &[Row]) -> String {
    let width = name_width(size, rows);
    let gpu = if names_gpus(rows) { format!("{:<9} ", "GPU") } else { String::new() };
    let rate = if has_rate(size, rows) { "LAUNCH/S " } else { "" };
    let mut bursts = String::new();
    if size.columns >= WIDE {
        bursts = format!(" {:>11} {:>5}", "BURSTS", "DUTY");
        if has_targets(rows) {
            bursts.push_str(&format!(" {:<TARGET$}", "TARGET"));
        }
    }
    let sms_width = SMS_BAR + 4;
    let time_width = TIME_BAR + 8;
    let memory_width = MEMORY_BAR + 14;
    format!(
        " {:<width$} {:<6} {gpu}{:<sms_width$} {:<time_width$} {:<memory_width$} \
         {rate}{:<7}{bursts}  COMMAND",
        "NAME", "USER", "SMS", "TIME", "MEMORY", "PRIO"
    )
}

fn row_line(row: &Row, size: Size, rows: &[Row], is_selected: bool) -> Line {
    let tenant = &row.tenant;
    let width = name_width(size, rows);
    let marker = if is_selected { '>' } else { ' ' };
    let style = if is_selected { Style::Reverse } else { Style::Plain };
    let name = shorten(&escape(&tenant.name), width);
    let user = shorten(&escape(&tenant.user), 6);
    let mut line = vec![(style, format!("{marker}{name:<width$}")), (Style::Plain, format!(" {user:<6} "))];
    if names_gpus(rows) {
        line.push((Style::Plain, format!("{:<9} ", named(&tenant.gpu))));
    }
    let sms = tenant.sms.zip(tenant.sms_of_device);
    line.extend(bar(sms.map(|(sms, all)| f64::from(sms) * 100.0 / f64::from(all.max(1))), SMS_BAR));
    line.push((
        Style::Plain,
        format!("{:>4} ", tenant.sms.map_or_else(|| "?".to_owned(), |sms| sms.to_string())),
    ));
    let used = tenant.time.and_then(|time| time.used_percent);
    line.extend(bar(used, TIME_BAR));
    let time = match tenant.time {
        Some(time) => {
            let used = used.map_or_else(|| "?".to_owned(), |used| format!("{used:.0}"));
            format!("{used}/{}%", time.share_percent)
        }
        None => "-".to_owned(),
    };
    line.push((Style::Plain, format!("{:>8} ", shorten(&time, 8))));
    line.extend(bar(part(tenant.memory_used_bytes, tenant.memory_quota_bytes), MEMORY_BAR));
    line.push((Style::Plain, format!("{:>14} ", shorten(&memory(row), 14))));
    if has_rate(size, rows) {
        let rate = row.launches_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
        line.push((Style::Plain, format!("{:>8} ", shorten(&rate, 8))));
    }
    let misses = target(tenant).is_some_and(|(style, _)| style == Style::Alarm) && size.columns < WIDE;
    line.push(match (tenant.stopped, tenant.priority.as_deref()) {
        (Some(true), _) => (Style::Alarm, format!("{:<7}", "stopped")),
        _ if misses => (Style::Alarm, format!("{:<7}", "late")),
        (_, priority) => (Style::Plain, format!("{:<7}", shorten(&escape(priority.unwrap_or("?")), 7))),
    });
    if size.columns >= WIDE {
        let bursts =
            tenant.bursts.map_or_else(|| "?".to_owned(), |times| quantiles(times.p50_us, times.p99_us));
        line.push((Style::Plain, format!(" {:>11}", shorten(&bursts, 11))));
        let duty = row.duty_percent.map_or_else(|| "-".to_owned(), |duty| format!("{duty:.0}%"));
        line.push((Style::Plain, format!(" {:>5}", shorten(&duty, 5))));
        if has_targets(rows) {
            let (style, target) = target(tenant).unwrap_or((Style::Dim, "-".to_owned()));
            line.push((Style::Plain, " ".to_owned()));
            line.push((style, format!("{:<TARGET$}", shorten(&target, TARGET))));
        }
    }
    let command = tenant.command.as_ref().map_or_else(String::new, |command| command.join(" "));
    let by = if tenant.origin.as_deref() == Some(Origin::Policy.name()) { BY_POLICY } else { "" };
    line.push((Style::Dim, format!("  {by}{}", escape(&command))));
    line
}

/// Memory in use and the quota; what is beyond it, in host memory, after a plus.
fn memory(row: &Row) -> String {
    let tenant = &row.tenant;
    let Some(used) = tenant.memory_used_bytes else { return "?".to_owned() };
    let spilled = tenant.memory_spilled_bytes.filter(|&spilled| spilled > 0);
    match (spilled, tenant.memory_quota_bytes) {
        (Some(spilled), _) => format!("{}+{}", bytes(used), bytes(spilled)),
        (None, Some(quota)) => format!("{}/{}", bytes(used), bytes(quota)),
        (None, None) => bytes(used),
    }
}

/// The programs that wait for room, the first ones first.
fn waiting(programs: &[Waiting]) -> Vec<Line> {
    if programs.is_empty() {
        return Vec::new();
    }
    let head =
        format!(" {:>7} {:<10} {:<9} {:>5} {:>6}  WAITING FOR ROOM", "PID", "USER", "GPU", "AHEAD", "FOR");
    let line = |program: &Waiting| {
        let Waiting { name, user, gpus, ahead, waited_s, pid } = program;
        let gpus: Vec<String> = gpus.iter().map(|gpu| named(gpu)).collect();
        let (user, gpus) = (shorten(&escape(user), 10), shorten(&gpus.join(","), 9));
        let text =
            format!(" {pid:>7} {user:<10} {gpus:<9} {ahead:>5} {:>6}  {}", age(*waited_s), escape(name));
        vec![(Style::Plain, text)]
    };
    let head = vec![(Style::Bold, head)];
    [Line::new(), head].into_iter().chain(programs.iter().map(line)).collect()
}

fn outside(outsiders: &[Outside]) -> Vec<Line> {
    if outsiders.is_empty() {
        return Vec::new();
    }
    let head =
        format!(" {:>7} {:<10} {:<9} {:>9}  PROGRAM OUTSIDE OF TENANTS", "PID", "USER", "GPU", "MEMORY");
    let line = |outsider: &Outside| {
        let memory = outsider.memory_used_bytes.map_or_else(|| "?".to_owned(), bytes);
        let user = shorten(&escape(&outsider.user), 10);
        let gpu = named(&outsider.gpu);
        let command = outsider.command.join(" ");
        let text = format!(" {:>7} {user:<10} {gpu:<9} {memory:>9}  {}", outsider.pid, escape(&command));
        vec![(Style::Plain, text)]
    };
    let head = vec![(Style::Bold, head)];
    [Line::new(), head].into_iter().chain(outsiders.iter().map(line)).collect()
}

/// The last lines: a message that is longer than a line has several.
fn prompt(view: &View, columns: usize) -> Vec<Line> {
    let text = match (&view.mode, &view.message) {
        (Mode::Help, _) => return vec![vec![(Style::Dim, "any key goes back".to_owned())]],
        (Mode::Resize { name, option, text }, _) => {
            let example = if *option == "time" { "30%" } else { "30%, 20tpc, gpc:0" };
            format!("new --{option} of {} ({example}; Esc: none): {text}_", escape(name))
        }
        (Mode::End { name }, _) => format!("end {}? y: yes, any other key: no", escape(name)),
        (Mode::Rows, Some(message)) => escape(message).into_owned(),
        (Mode::Rows, None) => {
            let keys = "up/down select  s sort  r resize  e end  h help  q quit";
            return vec![vec![(Style::Dim, keys.to_owned())]];
        }
    };
    let lines = wrapped(&text, Some(columns));
    lines.lines().map(|line| vec![(Style::Bold, line.to_owned())]).collect()
}

const HELP: &str = "\
up, down   select a tenant (also k, j)
s          sort by name, SMs, time, memory, launches
r          resize the selected tenant: as `partita set --sm`, or --time for one in turns
e          end the selected tenant: as `partita kill`
q, Ctrl-C  quit

SMS        the part of the GPU's SMs that the tenant has
TIME       used in about the last second, and promised; only tenants with --time
MEMORY     of living processes, and the quota; +SIZE is host memory (--spill host)
LAUNCH/S   kernels, without those inside CUDA graphs; - where they are not counted
PRIO       with fewer than 100 columns, `late` if the tenant misses its target
BURSTS     how long half and 99 of 100 bursts of work take; from 100 columns on
DUTY       the part of the time inside bursts, by those that ended since the last look;
           above 100% of several processes at once, or after a long burst
TARGET     the bound of --slo, and whether it holds
busy       the part of the driver's last sample period in which any kernel ran
bus        the part of it in which device memory was read or written";

/// A line of at most so many characters.
fn cut(line: Line, columns: usize) -> Line {
    let mut left = columns;
    let mut cut = Line::new();
    for (style, text) in line {
        let length = text.chars().count();
        if length > left {
            cut.push((style, text.chars().take(left).collect()));
            break;
        }
        left -= length;
        cut.push((style, text));
    }
    cut
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
