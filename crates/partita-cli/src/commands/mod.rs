//! One file a command: arguments to requests, results to text.

pub mod apply;
pub mod background;
pub mod batch;
pub mod cdi;
pub mod compare;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod exec;
pub mod explain;
pub mod generate;
pub mod info;
pub mod kill;
pub mod mig;
pub mod mps;
pub mod other;
pub mod policy;
pub mod preload;
pub mod prove;
pub mod ps;
pub mod run;
pub mod set;
pub mod sim;
pub mod system;
pub mod terminal;
pub mod top;
pub mod topology;
pub mod vf;

use std::path::Path;

use partita::partition::{ClusterRow, MoveRow};
use partita_console::Failure;
use partita_core::ByteSize;

/// A size for readers.
fn bytes(bytes: u64) -> String {
    ByteSize(bytes).short()
}

/// Two times in microseconds for readers, as `1.2/3.4ms`; `-` without them.
fn quantiles(p50_us: Option<f64>, p99_us: Option<f64>) -> String {
    let (Some(p50), Some(p99)) = (p50_us, p99_us) else { return "-".to_owned() };
    let ((p50, unit), (p99, last)) = (short_time(p50), short_time(p99));
    if unit == last { format!("{p50}/{p99}{last}") } else { format!("{p50}{unit}/{p99}{last}") }
}

/// Refuses a file for a picture that does not end with `.svg`.
fn check_svg(file: &Path) -> Result<(), Failure> {
    match file.extension().is_some_and(|end| end == "svg") {
        true => Ok(()),
        false => Err(Failure::Told(format!(
            "--svg {}: it is a picture in SVG; name a file that ends with .svg",
            file.display()
        ))),
    }
}

/// A time in microseconds, in two digits or more, and its unit.
fn short_time(us: f64) -> (String, &'static str) {
    let (number, unit) = match us {
        ..999.5 => (us, "us"),
        ..999.5e3 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let digits = usize::from(number < 9.95);
    (format!("{number:.digits$}"), unit)
}

/// The clusters that a partition can run, in one line.
fn cluster_text(clusters: &ClusterRow) -> String {
    let active = clusters.active.iter().filter(|one| one.clusters > 0);
    let active: Vec<String> = active.map(|one| format!("{} of {}", one.clusters, one.blocks)).collect();
    format!(
        "clusters of up to {} blocks; active at once, a block an SM: {}",
        clusters.largest_sms,
        active.join(", ")
    )
}

/// The move of a tenant that makes room, in one line.
fn move_text(made: &MoveRow) -> String {
    let tpcs = if made.tpcs == 1 { "TPC" } else { "TPCs" };
    format!("{}: {} {tpcs} moved from tpc:{} to tpc:{}\n", made.tenant, made.tpcs, made.from, made.to)
}

#[cfg(test)]
mod tests {
    use super::quantiles;

    #[test]
    fn times_share_a_unit_where_they_can() {
        for (p50, p99, text) in [
            (1200.0, 3400.0, "1.2/3.4ms"),
            (850.0, 1200.0, "850us/1.2ms"),
            (1.0, 9.96, "1.0/10us"),
            (999.6, 999_600.0, "1.0ms/1.0s"),
            (274.9e6, 274.9e6, "275/275s"),
        ] {
            assert_eq!(quantiles(Some(p50), Some(p99)), text);
        }
        assert_eq!(quantiles(None, None), "-");
    }
}
