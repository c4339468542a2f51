//! A share of time or a priority without compute units means turns. A refusal says what to type,
//! and that works.

use crate::common;

use std::time::{Duration, Instant};

use common::{Answering, PATIENCE, World, compile, gpu_program, text, tpcs};

/// The commands that a message tells the user to type.
fn advised(message: &str) -> Vec<String> {
    let parts = message.split("`partita ").skip(1);
    parts.map(|part| part.split('`').next().unwrap().to_owned()).collect()
}

#[test]
fn shares_of_time_and_priorities_alone_take_turns_with_each_other() {
    let world = World::in_memory();
    for (first, second) in [
        ("--time 50%", "--time 50%"),
        ("--priority high", "--priority low"),
        ("--time 30%", "--via time --time 70%"),
    ] {
        let _first = world.idle(&format!("--name first {first}"));
        let _second = world.idle(&format!("--name second {second}"));
        assert_eq!((&world.row("first")["sms"], &world.row("second")["sms"]), (&132.into(), &132.into()));
    }
}

#[test]
fn those_who_take_turns_get_what_an_ended_partition_had() {
    let world = World::in_memory();
    let masked = world.idle("--name masked --sm 20tpc");
    let _one = world.idle("--name one --via time --priority low");
    let _two = world.idle("--name two --priority low");
    let tpcs_of = |name: &str| tpcs(world.row(name)["tpcs"].as_str().unwrap()).len();
    assert_eq!((tpcs_of("one"), tpcs_of("two")), (46, 46));
    drop(masked);
    let deadline = Instant::now() + PATIENCE;
    while (tpcs_of("one"), tpcs_of("two")) != (66, 66) {
        assert!(Instant::now() < deadline, "{:?}", world.ps());
        std::thread::sleep(Duration::from_millis(20));
    }
    // They keep it against a later partition, as before.
    assert!(world.refused("run --sm 10% -- true").contains("take turns"));
}

#[test]
fn turns_beside_a_partition_share_what_it_leaves() {
    let world = World::in_memory();
    let _masked = world.idle("--name masked --sm 20tpc");
    let program = compile(&world, "time");
    let start = |name: &str| {
        let mut command = world.partita(["run", "--name", name, "--time", "45%", "--"]);
        let mut program = Answering::start(command.arg(&program).arg(&gpu_program().1));
        assert_eq!(program.tenant.next_line(), "ready");
        program
    };
    let (mut one, _two) = (start("one"), start("two"));
    let set = |name: &str| tpcs(world.row(name)["tpcs"].as_str().unwrap());
    assert_eq!((set("one").len(), set("one")), (46, set("two")));
    assert!(set("masked").iter().all(|tpc| !set("one").contains(tpc)));
    // Its launches carry the mask, and are charged.
    let (share, kernels_us) = one
        .line("share kernel 1000000 50 300")
        .split_once(' ')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert!(share.parse::<u32>().unwrap() > 0 && kernels_us.parse::<f64>().unwrap() > 0.0);
    let row = world.row("one");
    assert_eq!(row["processes"][0]["mask_verified"], true, "{row}");
    assert_eq!(row["isolation"], "shared", "{row}");
    // A third finds too little time, and the command that it names helps.
    let refused = world.refused("run --name three --time 20% -- true");
    assert!(refused.contains("10% of the time") && refused.contains("`--time 10%`"), "{refused}");
    let commands = advised(&refused);
    assert_eq!(commands.len(), 1, "{refused}");
    world.ok(&commands[0]);
    assert!(world.line("run --name three --time 20% -- true").status.success());
    // Tenants that take turns hold their units against partitions; a partition can make room.
    let refused = world.refused("run --name four --sm 10% -- true");
    assert!(refused.contains("to take turns with tenant `one`, use `--time 20%`"), "{refused}");
    let commands = advised(&refused);
    assert!(commands.len() == 1 && commands[0].starts_with("set masked --sm "), "{refused}");
    world.ok(&commands[0]);
    assert!(world.line("run --name four --sm 10% -- true").status.success());
    let refused = world.refused("set one --sm 10%");
    assert!(refused.contains("shares its compute units"), "{refused}");
}

#[test]
fn a_refusal_names_the_command_that_makes_room() {
    let world = World::new();
    for asked in ["--sm 100%", "--sm all", "--sm 10%"] {
        let output = world.line(&format!("run --name all {asked} -- true"));
        assert_eq!(text(&output.stderr), "", "{asked}");
    }
    let _all = world.idle("--name all --sm 100%");
    for asked in ["", "--sm 60%", "--sm 50tpc", "--sm 120sm", "--sm tpc:0-9"] {
        let run = format!("run --name next {asked} -- true");
        let refused = world.refused(&run);
        let commands = advised(&refused);
        assert!(commands.len() == 1 && commands[0].starts_with("set all --sm "), "{refused}");
        world.ok(&commands[0]);
        assert!(world.line(&run).status.success(), "{asked}");
        world.ok("set all --sm 100%");
    }
    let refused = world.refused("run --name next --sm 100% -- true");
    assert_eq!(advised(&refused), ["kill all"], "{refused}");
}

#[test]
fn without_a_share_a_program_takes_turns_where_others_do() {
    let world = World::in_memory();
    for (first, second, third) in [
        ("--time 50%", "--time 25%", "--time 12.5%"),
        ("--priority high", "--priority low", "--priority low"),
    ] {
        let _first = world.idle(&format!("--name first {first}"));
        let _second = world.idle("--name second");
        assert_eq!(world.row("second")["sms"], 132);
        let option = |name: &str| match second.split_once(' ').unwrap().1 {
            "low" => world.row(name)["priority"].as_str().unwrap().to_owned(),
            _ => format!("{}%", world.row(name)["time"]["share_percent"].as_f64().unwrap()),
        };
        assert_eq!(option("second"), second.split_once(' ').unwrap().1);
        let planned = world.ok("run --name third --dry-run");
        assert!(planned.contains(third.trim_start_matches("--")), "{planned}");
        let output = world.line("run --name third -- true");
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        let expected =
            format!("no --sm: third takes turns with the tenants that are there, as with `{third}`");
        assert!(said.contains(&expected) && said.lines().count() == 1, "{said}");
    }
}
