//! Order in time, as a C program sees it.

use crate::common;

use common::World;

#[test]
fn streams_order_and_events_time() {
    World::new("order").run("streams", "order");
}

#[test]
fn the_legacy_stream_synchronises() {
    World::new("legacy").run("streams", "legacy");
}

#[test]
fn threads_have_default_streams_of_their_own() {
    World::new("threads").run("streams", "threads");
}

#[test]
fn host_functions_run_in_stream_order() {
    World::new("hostfn").run("streams", "host_functions");
}

#[test]
fn a_context_waits_for_the_work_of_destroyed_streams() {
    World::new("destroyed").run("streams", "destroyed");
}

#[test]
fn streams_wait_for_words_in_memory() {
    World::new("gate").run("streams", "gate");
}

#[test]
fn a_full_ring_makes_programs_wait_and_loses_nothing() {
    World::new("flood").run("streams", "flood");
}

#[test]
fn time_is_scaled() {
    // A virtual minute of kernels takes less than a real one.
    let world = World::new("speed");
    let start = std::time::Instant::now();
    world.run_with("slow", "a_minute", &[("PARTITA_SIM_SPEED", "50")]);
    assert!(start.elapsed() < std::time::Duration::from_secs(60));
    let world = World::new("nospeed");
    let output = world.output("slow", "a_minute", &[("PARTITA_SIM_SPEED", "fast")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("PARTITA_SIM_SPEED is 'fast'"), "{text}");
    let _ = std::fs::remove_dir_all(world.dir());
}
