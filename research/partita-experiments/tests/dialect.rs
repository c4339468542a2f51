//! Configurations: reading, writing, and the errors of wrong ones.

use partita_core::{Placement, Share, TpcSet};
use partita_experiments::dialect::{
    Benchmark, Config, Dims, Plugin, QueuedKernel, SHARED_WORDS, SmMask, Task,
};
use proptest::prelude::*;

/// A scenario whose first benchmark has these further members, on line 6 and following.
fn with(members: &str) -> String {
    format!(
        r#"{{
  "name": "a test",
  "max_iterations": 1, "max_time": 0, "cuda_device": 0,
  "benchmarks": [
    {{"filename": "./bin/timer_spin.so", "thread_count": 1024, "block_count": 20, "data_size": 0, "additional_info": 250000000
      {members}}}
  ]
}}"#
    )
}

#[test]
fn a_configuration_of_the_papers_shape_is_read() {
    let text = with(
        r#", "label": "K1", "sm_mask": "0xffffffffffffffe0", "release_time": 0.01, "stream_priority": -5, "cpu_core": 2"#,
    );
    let config = Config::parse(&text).unwrap();
    assert_eq!((config.name.as_str(), config.max_iterations, config.use_processes), ("a test", 1, false));
    let one = &config.benchmarks[0];
    assert_eq!(one.task, Task::TimerSpin { ns: 250_000_000, on_default_stream: false });
    assert_eq!((one.thread_count.count(), one.block_count.count()), (1024, 20));
    assert_eq!(one.sm_mask, SmMask::parse("0xffffffffffffffe0"));
    assert_eq!((one.release_time_s, one.stream_priority, one.cpu_core), (Some(0.01), Some(-5), Some(2)));
    assert_eq!((one.title(), one.log_file(3).as_str()), ("K1", "timer_spin_3.json"));
}

#[test]
fn minus_hundred_is_no_priority_and_null_is_nothing() {
    let config = Config::parse(&with(r#", "stream_priority": -100, "label": null, "comment": [1]"#)).unwrap();
    assert_eq!((config.benchmarks[0].stream_priority, config.benchmarks[0].title()), (None, "timer_spin"));
}

/// The errors of wrong configurations, verbatim.
#[test]
fn errors_name_the_field_the_line_and_what_is_accepted() {
    let told = [
        (
            with(r#", "sm_mask": "0xzz""#),
            r#"benchmarks[0].sm_mask, line 6: "0xzz" is not accepted: a mask, "0x1f" with a bit for each TPC that is off, or "~0x1f" for each that is on; at most 64 digits"#,
        ),
        (
            with(r#", "relase_time": 1"#),
            r#"benchmarks[0].relase_time, line 6: there is no key "relase_time"; the nearest is "release_time""#,
        ),
        (
            with(r#", "label": "a", "label": "b""#),
            "benchmarks[0].label, line 6: the key stands here for the second time",
        ),
        (
            with(r#", "partition": "150%""#),
            "benchmarks[0].partition, line 6: `150%` is not a share of the GPU: it is above 100%; write 30% or 12.5%, 40sm, 20tpc, gpc:0-2 or tpc:0-9",
        ),
        (
            with(r#", "partition": "30%", "sm_mask": "0x1""#),
            "benchmarks[0].partition, line 6: partition is not accepted beside sm_mask: both say which TPCs there are",
        ),
        (with(r#", "placement": "spread""#), "benchmarks[0].placement, line 6: placement needs a partition"),
        (
            with(r#", "mps_thread_percentage": 50"#),
            "benchmarks[0].mps_thread_percentage, line 6: mps_thread_percentage is about processes: set use_processes to true",
        ),
        (
            with(r#", "stream_priority": 3"#),
            "benchmarks[0].stream_priority, line 6: 3 is not accepted: a whole number from -100 to 0",
        ),
        (
            with(r#", "release_time": "soon""#),
            r#"benchmarks[0].release_time, line 6: "soon" is not accepted: a number of seconds, 0 and above"#,
        ),
        (with(r#", "terminator": 1"#), "benchmarks[0].terminator, line 6: 1 is not accepted: true or false"),
        (
            with("").replace("1024,", "[32, 33],"),
            "benchmarks[0].thread_count, line 5: [32, 33] is not accepted: at most 1024 threads in a block",
        ),
        (
            with("").replace("20,", "[1, 2, 3, 4],"),
            "benchmarks[0].block_count, line 5: [1, 2, 3, 4] is not accepted: a whole number of 1 and above, or an array of one to three",
        ),
        (
            with("").replace("timer_spin", "timer_spn"),
            r#"benchmarks[0].filename, line 5: "./bin/timer_spn.so" is not accepted: a plugin's file, one of timer_spin, timer_spin_default_stream, counter_spin, sharedmem_timer_spin, mandelbrot, matrix_multiply, random_walk, inorder_walk, multikernel, stream_action, cpu_inorder_walk, cpu_random_walk, task_host"#,
        ),
        (
            with("").replace(r#""max_iterations": 1"#, r#""max_iterations": 0"#),
            "benchmarks[0], line 5: it would never end: max_iterations and max_time are 0, and no benchmark that ends is a terminator",
        ),
        (
            with("").replace(r#""cuda_device": 0,"#, ""),
            "line 1: cuda_device is missing: CUDA's number of the device",
        ),
        (
            with("").replace(r#""max_time": 0"#, r#""max_time": -1"#),
            "max_time, line 3: -1 is not accepted: a number of seconds, 0 and above",
        ),
        (
            with("").replace("250000000", "[]"),
            "benchmarks[0].additional_info, line 5: [] is not accepted: a whole number, 0 to 3600000000000",
        ),
        (with(", "), "line 6: no JSON: expected `\"` or trailing comma"),
        ("".to_owned(), "line 1: no JSON: EOF while parsing a value (column 0)"),
        ("[]".to_owned(), "line 1: [] is not accepted: an object, { … }"),
    ];
    for (text, expected) in told {
        let error = Config::parse(&text).unwrap_err();
        if expected.contains("no JSON: expected") {
            assert!(error.to_string().starts_with("line 6: no JSON: ") && error.line == 6, "{error}");
        } else {
            assert_eq!(error.to_string(), expected);
        }
    }
}

#[test]
fn errors_inside_additional_info_have_their_own_path() {
    let text = r#"{"name": "x", "max_iterations": 1, "max_time": 0, "cuda_device": 0, "benchmarks": [
        {"filename": "multikernel.so", "thread_count": 1, "block_count": 1, "data_size": 0, "additional_info": [
            {"kernel_label": "a", "duration": 1, "block_count": 1, "thread_count": 32},
            {"kernel_label": "b", "duration": 1, "block_count": 1, "thread_count": 32, "shared_memory_size": 5}]}]}"#;
    assert_eq!(
        Config::parse(text).unwrap_err().to_string(),
        "benchmarks[0].additional_info[1].shared_memory_size, line 4: 5 is not accepted: 0, 4096, 8192 or 10240 words of 32 bits"
    );
    let text = text.replace("multikernel.so", "stream_action.so");
    let list = text.find("[\n            {\"kernel").unwrap();
    let text = format!(
        "{}{{\"actions\": [{{\"type\": \"free\"}},{}{{\"type\": \"memcpy\", \"parameters\": {{\"size\": 1, \"direction\": \"up\"}}}}]}}}}]}}",
        &text[..list],
        "\n"
    );
    assert_eq!(
        Config::parse(&text).unwrap_err().to_string(),
        "benchmarks[0].additional_info.actions[1].parameters.direction, line 3: \"up\" is not accepted: \"deviceToDevice\", \"deviceToHost\" or \"hostToDevice\""
    );
}

fn masks() -> impl Strategy<Value = SmMask> {
    (any::<[u64; 4]>(), any::<bool>(), any::<bool>()).prop_map(|(words, enables, is_wide)| {
        let bits = TpcSet::from_words(words);
        let bits = if is_wide { bits } else { bits & TpcSet::first(64) };
        SmMask { bits, enables, is_wide }
    })
}

fn queued() -> impl Strategy<Value = QueuedKernel> {
    (
        ".{0,8}",
        0u64..1 << 40,
        1u32..5000,
        1u32..=1024,
        0.0..9.0f64,
        proptest::option::of(masks()),
        0usize..4,
        0u64..1 << 40,
    )
        .prop_map(|(label, duration_ns, block_count, thread_count, delay_s, sm_mask, shared, bytes)| {
            QueuedKernel {
                label,
                duration_ns,
                block_count,
                thread_count,
                delay_s,
                sm_mask,
                shared_words: SHARED_WORDS[shared],
                copy_in_bytes: bytes,
                copy_out_bytes: bytes / 3,
            }
        })
}

fn tasks() -> impl Strategy<Value = Task> {
    prop_oneof![
        (0u64..1 << 41, any::<bool>())
            .prop_map(|(ns, on_default_stream)| Task::TimerSpin { ns, on_default_stream }),
        (0u64..1 << 47).prop_map(|loops| Task::CounterSpin { loops }),
        (0u64..1 << 41, 0usize..4)
            .prop_map(|(ns, i)| Task::SharedmemTimerSpin { ns, shared_words: SHARED_WORDS[i] }),
        (1u64..1 << 32).prop_map(|max_iterations| Task::Mandelbrot { max_iterations }),
        (1u32..1 << 20, any::<bool>())
            .prop_map(|(width, skips_copies)| Task::MatrixMultiply { width, skips_copies }),
        (1u64..1 << 40).prop_map(|accesses| Task::RandomWalk { accesses }),
        (1u64..1 << 40).prop_map(|accesses| Task::InorderWalk { accesses }),
        (1u64..1 << 40, any::<bool>()).prop_map(|(accesses, random)| Task::CpuWalk { random, accesses }),
        proptest::collection::vec(queued(), 1..5).prop_map(|kernels| Task::Multikernel { kernels }),
    ]
}

prop_compose! {
    fn benchmarks()(
        task in tasks(),
        label in proptest::option::of("\\PC{0,12}"),
        threads in (1u32..=32, 1u32..=32),
        blocks in (1u32..5000, 1u32..9, 1u32..9),
        data_size_bytes in 4u64..1 << 40,
        times in proptest::option::of((0u64..99, 0.0..1e6f64)),
        release_time_s in proptest::option::of(0.0..1e3f64),
        stream_priority in proptest::option::of(-99i32..=0),
        mask in proptest::option::of(masks()),
        share in proptest::option::of((1u32..=100_000, any::<bool>())),
        (terminator, record_blocks) in any::<(bool, bool)>(),
    ) -> Benchmark {
        let partition = share.filter(|_| mask.is_none());
        let placement = if partition.is_some_and(|(_, spread)| spread) { Placement::Spread } else { Placement::Packed };
        Benchmark {
            filename: format!("./bin/{}.so", task.plugin().name()),
            task,
            log_name: label.clone(),
            label,
            thread_count: Dims([threads.0, threads.1, 1]),
            block_count: Dims([blocks.0, blocks.1, blocks.2]),
            data_size_bytes,
            max_iterations: times.map(|(iterations, _)| iterations),
            max_time_s: times.map(|(_, time)| time),
            terminator,
            release_time_s,
            cpu_core: None,
            stream_priority,
            mps_thread_percentage: None,
            sm_mask: mask,
            partition: partition.map(|(milli, _)| Share::Percent(milli)),
            placement,
            record_blocks,
            comment: None,
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(benchmarks in proptest::collection::vec(benchmarks(), 1..4), name in "\\PC{0,20}", max_time_s in 0.001..1e5f64, flags in any::<[bool; 3]>()) {
        let config = Config {
            name,
            max_iterations: 3,
            max_time_s,
            cuda_device: 1,
            use_processes: flags[0],
            base_result_directory: None,
            pin_cpus: flags[1],
            do_warmup: flags[2],
            sync_every_iteration: false,
            mps: flags[0].then_some(flags[1]),
            comment: None,
            benchmarks,
        };
        // A benchmark without limits needs one that ends it.
        prop_assume!(config.benchmarks.iter().all(|one| one.max_iterations.unwrap_or(3) > 0 || one.max_time_s.unwrap_or(1.0) > 0.0));
        for text in [config.to_json().to_string(), serde_json::to_string_pretty(&config.to_json()).unwrap()] {
            prop_assert_eq!(&Config::parse(&text).unwrap(), &config);
        }
    }

    #[test]
    fn no_text_breaks_the_reader(text in "\\PC{0,80}") {
        let _ = Config::parse(&text);
        let _ = Config::parse(&with(&format!(", {text}")));
    }
}

#[test]
fn every_plugin_has_a_file() {
    for plugin in Plugin::ALL {
        assert_eq!(Plugin::of_file(&format!("../bin/{}.so", plugin.name())), Some(*plugin));
        assert_eq!(Plugin::of_file(plugin.name()), Some(*plugin));
    }
    assert_eq!(Plugin::of_file("other.so"), None);
}
