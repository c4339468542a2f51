//! Frames as they look, and what holds for every frame.

use super::*;
use crate::commands::top::reading::{Target, Tenant, Time, Times, Waiting};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn tenant(name: &str, sms: u32) -> Tenant {
    Tenant {
        name: name.to_owned(),
        user: "ann".to_owned(),
        gpu: "GPU 0 (NVIDIA H200)".to_owned(),
        sms: Some(sms),
        sms_of_device: Some(132),
        memory_used_bytes: Some(12 * GIB),
        memory_quota_bytes: Some(40 * GIB),
        priority: Some("high".to_owned()),
        via: Some("mask".to_owned()),
        launches: Some(1),
        bursts: Some(Times { count: 9, sum_s: 1.0, p50_us: Some(1200.0), p99_us: Some(3400.0) }),
        command: Some(vec!["python3".to_owned(), format!("{name}.py")]),
        ..Tenant::default()
    }
}

fn reading() -> Reading {
    let train = Tenant {
        priority: Some("low".to_owned()),
        time: Some(Time { share_percent: 50.0, used_percent: Some(49.4) }),
        memory_used_bytes: Some(20 * GIB),
        memory_quota_bytes: Some(20 * GIB),
        memory_spilled_bytes: Some(3 * GIB / 2),
        ..tenant("train", 38)
    };
    let batch = Tenant {
        user: "a-long-user-name".to_owned(),
        memory_quota_bytes: None,
        priority: Some("normal".to_owned()),
        stopped: Some(true),
        ..tenant("a-name-of-many-characters", 12)
    };
    Reading {
        gpus: vec![Gpu {
            gpu: "GPU 0 (NVIDIA H200)".to_owned(),
            memory_total_bytes: Some(140 * GIB),
            memory_used_bytes: Some(46 * GIB),
            busy_percent: Some(97),
            memory_busy_percent: Some(12),
        }],
        tenants: vec![batch, tenant("serve", 66), train],
        waiting: vec![Waiting {
            name: "eval".to_owned(),
            user: "a-long-user-name".to_owned(),
            gpus: vec!["GPU 0 (NVIDIA H200)".to_owned()],
            ahead: 0,
            waited_s: 242,
            pid: 4711,
        }],
        outsiders: vec![Outside {
            gpu: "GPU 0 (NVIDIA H200)".to_owned(),
            pid: 4242,
            user: "bob".to_owned(),
            memory_used_bytes: Some(GIB),
            command: vec!["python3".to_owned(), "\u{1b}[2Jnotebook.py".to_owned()],
        }],
        unseen: Vec::new(),
    }
}

fn all(reading: &Reading) -> Vec<Row> {
    let row = |tenant: &Tenant| Row {
        tenant: tenant.clone(),
        launches_per_s: Some(812.4),
        duty_percent: Some(37.6),
    };
    reading.tenants.iter().map(row).collect()
}

fn at_80(reading: &Reading, view: &View) -> String {
    plain(&frame(reading, &all(reading), view, Size { columns: 80, rows: Some(21) }))
}

#[test]
fn a_frame_of_80_columns() {
    let frame = at_80(&reading(), &View::default());
    assert_eq!(frame, include_str!("frame_80.txt"), "\n{frame}");
}

#[test]
fn questions_and_help_are_in_the_frame() {
    let reading = reading();
    let mut view = View { mode: Mode::End { name: "serve".to_owned() }, ..View::default() };
    assert!(at_80(&reading, &view).ends_with("end serve? y: yes, any other key: no\n"));
    view.mode = Mode::Resize { name: "serve".to_owned(), option: "sm", text: "20".to_owned() };
    assert!(at_80(&reading, &view).ends_with("new --sm of serve (30%, 20tpc, gpc:0; Esc: none): 20_\n"));
    view = View { message: Some("serve: 40 SMs".to_owned()), ..View::default() };
    assert!(at_80(&reading, &view).ends_with("\nserve: 40 SMs\n"));
    view.mode = Mode::Help;
    assert!(at_80(&reading, &view).contains("e          end the selected tenant"));
}

#[test]
fn the_selected_tenant_is_seen_however_small_the_window() {
    let tenants: Vec<Tenant> = (0..40).map(|number| tenant(&format!("t{number:02}"), 2)).collect();
    let reading = Reading { tenants, ..reading() };
    let rows = all(&reading);
    for place in [0, 17, 39] {
        let view = View { selected: Some(rows[place].key()), ..View::default() };
        for height in [9, 12, 24, 60] {
            let text = plain(&frame(&reading, &rows, &view, Size { columns: 80, rows: Some(height) }));
            assert_eq!(text.lines().count(), height, "{text}");
            assert!(text.contains(&format!(">t{place:02}")), "{height}: {text}");
        }
    }
}

#[test]
fn on_paper_every_tenant_and_program_is_there() {
    let reading = reading();
    let text = plain(&frame(&reading, &all(&reading), &View::default(), Size { columns: 200, rows: None }));
    for word in ["a-name-of-many-characters", "serve", "train", "4711", "4242", "python3 serve.py"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(!text.contains("q quit"), "{text}");
    assert!(text.contains("BURSTS") && text.contains(" 1.2/3.4ms "), "{text}");
    assert!(text.contains(" DUTY ") && text.contains("  38%"), "{text}");
    assert!(!text.contains("TARGET"), "{text}");
    assert!(!text.contains("(by policy)"), "{text}");
    let outside = Tenant { origin: Some("policy".to_owned()), ..tenant("serve", 66) };
    let reading = Reading { tenants: vec![outside], ..reading };
    let text = plain(&frame(&reading, &all(&reading), &View::default(), Size { columns: 200, rows: None }));
    assert!(text.contains("  (by policy) python3 serve.py\n"), "{text}");
}

#[test]
fn gpus_are_told_apart_by_the_ends_of_their_names() {
    for (gpu, expected) in [
        ("GPU 12 (NVIDIA H200)", "12"),
        ("sim:h200 (NVIDIA H200)", "sim:h200"),
        ("sim:h200:1 (NVIDIA H200)", "h200:1"),
        ("sim:a100-pcie:13 (x)", "…-pcie:13"),
    ] {
        assert_eq!(named(gpu), expected);
    }
}

#[test]
fn a_tenant_has_its_gpu_beside_it_and_a_long_message_is_whole_in_80_columns() {
    let mut reading = reading();
    reading.tenants[0].gpu = "sim:h200:1 (NVIDIA H200)".to_owned();
    let message = "a message ".repeat(20) + "with its remedy at the end";
    let view = View { message: Some(message), ..View::default() };
    let text = at_80(&reading, &view);
    assert!(text.contains("  GPU       SMS") && text.contains(" h200:1 "), "{text}");
    assert!(text.lines().last().unwrap().ends_with("at the end"), "{text}");
}

#[test]
fn a_target_is_shown_with_whether_it_holds() {
    for (holds, unmet, stands) in [
        (Some(true), false, "2.5ms holds"),
        (Some(false), false, "2.5ms late"),
        (Some(false), true, "2.5ms unmet"),
        (None, false, "2.5ms ?"),
    ] {
        let target = Some(Target { holds, unmet });
        let serve = Tenant { slo: Some("step-p99=2.5ms".to_owned()), target, ..tenant("serve", 20) };
        let reading = Reading { tenants: vec![serve, tenant("train", 112)], ..reading() };
        let of = |columns| {
            let size = Size { columns, rows: Some(18) };
            let lines = frame(&reading, &all(&reading), &View::default(), size);
            let serve =
                lines.iter().find(|line| plain(&[(*line).clone()]).contains("serve")).unwrap().clone();
            (plain(&lines), serve)
        };
        let (text, serve) = of(120);
        assert!(text.contains("TARGET") && text.contains(stands), "{text}");
        let is_missed = holds == Some(false);
        let alarms =
            |line: &Line| line.iter().any(|(style, text)| *style == Style::Alarm && text.contains("late"));
        assert_eq!(
            serve.iter().any(|(style, text)| *style == Style::Alarm && text.contains("2.5ms")),
            is_missed
        );
        // Without room for the column, only a miss is shown.
        let (text, serve) = of(80);
        assert!(!text.contains("TARGET") && alarms(&serve) == is_missed, "{text}");
    }
}

proptest! {
    #[test]
    fn every_frame_fits_and_has_no_control_characters(
        columns in 0usize..200,
        height in prop::option::of(0usize..60),
        names in prop::collection::vec("\\PC{0,70}|[\x00-\x1f]{1,5}", 0..12),
        sms in prop::option::of((0u32..400, 0u32..200)),
        memory in prop::option::of(any::<u64>()),
        quota in prop::option::of(any::<u64>()),
        used in prop::option::of(-1.0f64..1e12),
        gpus in 0usize..9,
    ) {
        let tenants = names.iter().map(|name| Tenant {
            name: name.clone(),
            user: name.clone(),
            gpu: name.clone(),
            sms: sms.map(|(sms, _)| sms),
            sms_of_device: sms.map(|(_, all)| all),
            memory_used_bytes: memory,
            memory_quota_bytes: quota,
            memory_spilled_bytes: quota,
            time: used.map(|used| Time { share_percent: 12.5, used_percent: Some(used) }),
            command: Some(vec![name.clone()]),
            ..Tenant::default()
        });
        let gpu = Gpu { memory_total_bytes: quota, memory_used_bytes: memory, busy_percent: sms.map(|sms| sms.0), ..Gpu::default() };
        let reading = Reading {
            tenants: tenants.collect(),
            gpus: vec![gpu; gpus],
            outsiders: names.iter().map(|name| Outside { command: vec![name.clone()], user: name.clone(), ..Outside::default() }).collect(),
            unseen: names.clone(),
            waiting: names.iter().map(|name| Waiting { name: name.clone(), user: name.clone(), gpus: names.clone(), ..Waiting::default() }).collect(),
        };
        let rows: Vec<Row> = all(&reading).into_iter().map(|row| Row { launches_per_s: used, ..row }).collect();
        let lines = frame(&reading, &rows, &View::default(), Size { columns, rows: height });
        if let Some(height) = height {
            prop_assert_eq!(lines.len(), height.max(1));
        }
        for line in plain(&lines).lines() {
            prop_assert!(line.chars().count() <= columns, "{}: {:?}", columns, line);
            prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
        }
    }
}
