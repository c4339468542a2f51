//! A machine with several GPUs, as C programs see it.

use crate::common;

use common::World;

const TWO: (&str, &str) = ("PARTITA_SIM_GPUS", "2");

/// A program's view with this list of devices: the result of its start, then identifier and place
/// of each.
fn seen(world: &World, list: Option<&str>) -> Vec<String> {
    let mut env = vec![TWO];
    env.extend(list.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
    world.run_with("gpus", "visible", &env).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn each_gpu_is_seen_by_index_and_by_identifier() {
    let world = World::new("seen");
    let both = seen(&world, None);
    assert_eq!((both.len(), both[0].as_str()), (3, "0"));
    let (first, second) = (both[1].clone(), both[2].clone());
    assert!(first.ends_with("@0000:1b:00.0") && second.ends_with("@0000:1c:00.0"), "{both:?}");
    assert_ne!(first[..32], second[..32]);
    let uuid = |seen: &str| {
        let groups = [&seen[..8], &seen[8..12], &seen[12..16], &seen[16..20], &seen[20..32]];
        format!("GPU-{}", groups.join("-"))
    };
    assert_eq!(seen(&world, Some("1")), ["0", &second]);
    assert_eq!(seen(&world, Some("1,0")), ["0", &second, &first]);
    assert_eq!(seen(&world, Some(&uuid(&second))), ["0", &second]);
    let turned = format!("{},{}", uuid(&second), uuid(&first));
    assert_eq!(seen(&world, Some(&turned)), ["0", &second, &first]);
    assert_eq!(seen(&world, Some("0,7,1")), ["0", &first]);
    assert_eq!(seen(&world, Some("")), ["100"]);
    assert_eq!(seen(&world, Some("2")), ["100"]);
    let output = world.output("gpus", "visible", &[("PARTITA_SIM_GPUS", "many")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("PARTITA_SIM_GPUS is 'many'"));
}

#[test]
fn gpus_have_memory_and_work_of_their_own() {
    World::new("apart").run_with("gpus", "apart", &[TWO]);
}

#[test]
fn bytes_and_order_cross_from_one_to_the_other() {
    World::new("together").run_with("gpus", "together", &[TWO]);
}

#[test]
fn masks_and_graphs_belong_to_one_gpu() {
    World::new("masked").run_with("gpus", "masked", &[TWO]);
}

#[test]
fn a_forked_child_can_use_no_gpu() {
    World::new("forked").run_with("gpus", "forked", &[TWO]);
}
