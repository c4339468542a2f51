//! The token bucket (`--time-policy tokens`): launches pay for their blocks, and NVML's utilization
//! refills the bucket.

use crate::common;

use common::{Answering, World, compile, gpu_program, is_real};

const TOKENS: &str = "--isolation own --via time --time-policy tokens";

/// Kernels whose blocks cost far more tokens a second than the law refills at a small limit. On an
/// H200 that takes millions of blocks a second, which a busy machine cannot simulate: the refill
/// grows with the square of the SMs, so the simulated GPU is one of 30.
fn costly() -> &'static str {
    if is_real() { "rate kernel 2112 6250" } else { "rate kernel 528 62500" }
}

struct Program(Answering);

impl Program {
    fn start(world: &World, name: &str, options: &str) -> Self {
        let gpu = if is_real() { "" } else { "--gpu sim:rtx2060" };
        let line = format!("run --name {name} {gpu} {options} --");
        let mut command = world.partita(line.split_whitespace());
        command.arg(compile(world, "time")).arg(&gpu_program().1);
        let mut program = Answering::start(&mut command);
        assert_eq!(program.tenant.next_line(), "ready");
        Self(program)
    }

    /// Costly kernels that end in a second, after this time.
    fn rate(&mut self, skip_ms: u32) -> i64 {
        self.0.line(&format!("{} {skip_ms} 1000", costly())).parse().unwrap()
    }

    /// The share of the time in which kernels of one block run, in thousandths.
    fn share_of_cheap(&mut self) -> i64 {
        let answer = self.0.line("share kernel 1000000 200 500");
        answer.split_once(' ').unwrap().0.parse().unwrap()
    }
}

/// A measurement has this property in one of ten tries: a busy machine disturbs some.
fn is_seen(what: &str, mut measure: impl FnMut() -> i64, has: impl Fn(i64) -> bool) {
    let mut tries = Vec::new();
    while tries.len() < 10 {
        let value = measure();
        if has(value) {
            return;
        }
        tries.push(value);
    }
    panic!("{what}: {tries:?}");
}

#[test]
fn blocks_are_paid_for_and_long_kernels_of_one_block_escape() {
    let world = World::measured();
    let mut program = Program::start(&world, "paid", &format!("{TOKENS} --time 100%"));
    assert_eq!(world.row("paid")["time"]["policy"], "tokens");
    // 100 % is no limit.
    let mut all = 0;
    is_seen(
        "without a limit",
        || {
            all = program.rate(0).max(all);
            all
        },
        |rate| rate > 1000,
    );
    world.ok("set paid --time 10%");
    is_seen("costly kernels at 10 %", || program.rate(1500), |rate| rate < all * 7 / 10);
    // A refill of one step lasts for minutes of such kernels.
    is_seen("cheap kernels at 10 %", || program.share_of_cheap(), |share| share > 950);
    // The same kernels, within the budget.
    world.ok("set paid --time-policy hard");
    is_seen("cheap kernels by the budget", || program.share_of_cheap(), |share| share < 300);
    // The change releases launches that sleep, too.
    world.ok("set paid --time-policy tokens --time 1%");
    is_seen("costly kernels at 1 %", || program.rate(1500), |rate| rate < all * 7 / 10);
    world.ok("set paid --time 100%");
    is_seen("without a limit again", || program.rate(0), |rate| rate > all / 2);
}

#[test]
fn the_tenants_account_measures_what_the_bucket_lets_pass() {
    let world = World::measured();
    let mut program = Program::start(&world, "measured", &format!("{TOKENS} --time 50%"));
    program.share_of_cheap();
    let used = || world.row("measured")["time"]["used_s"].as_f64().unwrap();
    is_seen(
        "used",
        || {
            std::thread::sleep(std::time::Duration::from_millis(60));
            (used() * 1000.0) as i64
        },
        |ms| ms > 300,
    );
}

#[test]
fn a_bucket_that_cannot_be_refilled_is_refused() {
    let world = World::in_memory();
    for (options, reason) in [
        ("--isolation shared --via time --time 30%", "--isolation own"),
        ("--isolation own --via time --time 12.5%", "--time 13%"),
    ] {
        let refused = world.refused(&format!("run {options} --time-policy tokens -- true"));
        assert!(refused.contains(reason) && refused.contains("--time-policy tokens"), "{refused}");
    }
    let refused = world.refused("run --time-policy tokens -- true");
    assert!(refused.contains("--time"), "{refused}");
    let _budget = world.idle("--isolation own --name budget --via time --time 12.5%");
    let refused = world.refused("set budget --time-policy tokens");
    assert!(refused.contains("whole percentages"), "{refused}");
    world.ok("set budget --time-policy tokens --time 12%");
    assert_eq!(world.row("budget")["time"]["policy"], "tokens");
}
