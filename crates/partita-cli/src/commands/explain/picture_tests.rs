use partita::explain::Neighbour;
use partita::slo::TargetRow;
use proptest::prelude::*;

use super::*;

fn level(tpcs: u32, p99_us: f64, mean_us: f64) -> LevelRow {
    LevelRow { tpcs, count: 100, mean_us, p99_us }
}

fn example() -> Explanation {
    Explanation {
        name: "serve <&>".to_owned(),
        gpu: "sim:h200".to_owned(),
        tpcs: Some(20),
        tpcs_of_device: Some(66),
        slo: Some("p99=8ms".to_owned()),
        target: Some(TargetRow { bound_us: Some(8_000.0), ..TargetRow::default() }),
        levels: vec![
            level(4, 90_000.0, 14_000.0),
            level(12, 11_000.0, 4_400.0),
            level(16, 8_600.0, 3_200.0),
            level(20, 7_100.0, 2_600.0),
            level(33, 4_300.0, 1_600.0),
            level(58, 2_600.0, 900.0),
        ],
        others: vec![Neighbour {
            name: "train".to_owned(),
            tpcs: Some(46),
            levels: vec![
                level(8, 70_000.0, 62_000.0),
                level(33, 18_000.0, 15_000.0),
                level(46, 13_000.0, 11_000.0),
            ],
        }],
        ..Explanation::default()
    }
}

/// The number of an attribute of an element.
fn number(element: &str, attribute: &str) -> f64 {
    let (_, rest) = element.split_once(&format!(" {attribute}=\"")).unwrap();
    rest.split('"').next().unwrap().parse().unwrap()
}

fn elements<'a>(svg: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    svg.lines().filter(move |line| line.starts_with(kind))
}

#[test]
fn it_shows_what_was_measured_and_the_target() {
    let svg = picture(&example()).unwrap();
    if let Some(file) = std::env::var_os("PARTITA_TEST_PICTURE") {
        std::fs::write(file, &svg).unwrap();
    }
    assert!(
        svg.contains("serve &lt;&amp;&gt;") && svg.contains("now 20") && svg.contains(">target<"),
        "{svg}"
    );
    let circles: Vec<&str> = elements(&svg, "<circle").collect();
    assert_eq!(circles.len(), 6 + 3);
    let bound_y = number(elements(&svg, "<line").find(|line| line.contains(BOUND)).unwrap(), "y1");
    let own: Vec<(f64, f64)> =
        circles[..6].iter().map(|circle| (number(circle, "cx"), number(circle, "cy"))).collect();
    // More TPCs are further to the right; longer times are higher, and those within the bound
    // below it.
    assert!(own.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{own:?}");
    let within: Vec<bool> = own.iter().map(|(_, y)| *y > bound_y).collect();
    assert_eq!(within, [false, false, false, true, true, true]);
    // The first is beyond the upper edge.
    assert!(circles[0].contains("fill=\"white\"") && own[0].1 == TOP);
    // Throughput rises.
    let others: Vec<f64> = circles[6..].iter().map(|circle| number(circle, "cy")).collect();
    assert!(others.windows(2).all(|pair| pair[0] > pair[1]), "{others:?}");
    assert!(svg.contains("throughput of others") && svg.contains("train, now on 46"));
}

#[test]
fn nothing_is_drawn_of_nothing() {
    let nothing = Explanation { levels: Vec::new(), others: Vec::new(), ..example() };
    assert_eq!(picture(&nothing), None);
    let alone = Explanation { others: Vec::new(), target: None, slo: None, ..example() };
    let svg = picture(&alone).unwrap();
    assert!(!svg.contains("throughput") && !svg.contains(BOUND), "{svg}");
}

proptest! {
    #[test]
    fn everything_is_inside(
        levels in prop::collection::vec((1u32..300, 0.0f64..1e9, 0.0f64..1e9), 0..8),
        other in prop::collection::vec((1u32..300, 0.0f64..1e9, 0.0f64..1e9), 0..8),
        bound_us in prop::option::of(2.0f64..1e9), tpcs in prop::option::of(0u32..300),
        tpcs_of_device in prop::option::of(0u32..300),
    ) {
        let rows = |levels: Vec<(u32, f64, f64)>| -> Vec<LevelRow> {
            levels.into_iter().map(|(tpcs, p99_us, mean_us)| level(tpcs, p99_us, mean_us)).collect()
        };
        let one = Explanation {
            levels: rows(levels),
            others: vec![Neighbour { name: "o".to_owned(), tpcs: None, levels: rows(other) }],
            target: Some(TargetRow { bound_us, ..TargetRow::default() }),
            tpcs: tpcs.zip(tpcs_of_device).map(|(tpcs, all)| tpcs.min(all)),
            tpcs_of_device,
            ..example()
        };
        let svg = picture(&one).unwrap();
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
        for (kind, attributes) in [("<circle", ["cx", "cy"]), ("<text", ["x", "y"]), ("<line", ["x2", "y2"])] {
            for element in elements(&svg, kind) {
                let (x, y) = (number(element, attributes[0]), number(element, attributes[1]));
                prop_assert!((0.0..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y), "{}", element);
            }
        }
    }
}
