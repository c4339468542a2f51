//! The examples' experiments show what the paper and the measurements show.

#[path = "../../examples/partitions/scenario.rs"]
mod partitions;
#[path = "../../examples/sharing/scenario.rs"]
mod sharing;

use partitions::{all, picture, run, span_ms};
use sharing::{Setting, percentile};

#[test]
fn partitions_act_as_in_the_papers_figures() {
    let figures = all();
    let spans: Vec<_> = figures
        .iter()
        .map(|experiment| {
            let blocks = run(experiment);
            assert!(!blocks.is_empty(), "{}", experiment.title);
            ['1', '2', 'K'].map(|label| span_ms(&blocks, label))
        })
        .collect();
    let none = (0, 0);
    assert_eq!(spans[0], [(0, 30), (30, 50), none]);
    assert_eq!(spans[1], [(0, 60), (0, 30), none]);
    assert_eq!(spans[2], [(0, 30), (0, 30), none]);
    assert_eq!(spans[3], [(0, 10), (10, 20), none]);
    assert_eq!(spans[4], [(0, 10), (0, 10), none]);
    // Without the crowd K would take 30 ms.
    assert_eq!(spans[5], [none, none, (0, 35)]);
    assert_eq!(spans[6], [none, none, (0, 30)]);

    let alternating = picture(&run(&figures[2]));
    for (sm, row) in alternating.iter().enumerate() {
        let label = if sm % 2 == 0 { '1' } else { '2' };
        assert!(row.len() == 12 && row.chars().all(|c| c == label), "SM {sm}: {row}");
    }
}

/// One in fifty comes late enough to miss its slice.
const REQUESTS: usize = 60;

#[test]
fn sharing_has_the_measured_shape() {
    for setting in Setting::ALL {
        let latencies = sharing::run(setting, REQUESTS);
        let (p50, p99) = setting.measured_us();
        for (percent, measured_us) in [(50, p50), (99, p99)] {
            let model = percentile(&latencies, percent) as f64 / 1_000.0;
            let ratio = model / f64::from(measured_us);
            assert!(
                (0.9..=1.1).contains(&ratio),
                "{}: p{percent} {model} µs, measured {measured_us}",
                setting.name()
            );
        }
    }
    let p99 = |setting| percentile(&sharing::run(setting, REQUESTS), 99) as f64;
    // Measured were 0.998 and 1.010. What is left in the model is the distributor, which serves
    // both.
    for setting in [Setting::Disjoint, Setting::DisjointCopy] {
        let ratio = p99(setting) / p99(Setting::SoloHalf);
        assert!((0.999..1.001).contains(&ratio), "{}: {ratio}", setting.name());
    }
    assert!(p99(Setting::Mps) > 50.0 * p99(Setting::Solo), "one server for all does not");
}
