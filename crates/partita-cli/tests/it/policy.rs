//! The policy of a site, in both modes: defaults, maxima, reservations, and mistakes.

use crate::common;

use std::fs;
use std::path::PathBuf;

use common::{Answering, World, compile, refusal, succeeds, text};
use partita_core::ByteSize;

/// A world whose commands and daemon read this policy, and its file.
fn world(policy: &str) -> (World, PathBuf) {
    let mut file = None;
    let world = World::plan().in_memory().on(|dir| {
        let path = dir.join("policy.toml");
        fs::write(&path, policy).unwrap();
        file = Some(path.clone());
        vec![("PARTITA_POLICY", path.into())]
    });
    (world, file.unwrap())
}

#[test]
fn without_a_policy_and_with_the_shipped_one_everything_is_as_it_was() {
    let shipped =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/policy.toml")).unwrap();
    let (world, file) = world(&shipped);
    let _one = world.idle("--name one");
    assert_eq!(world.row("one")["sms"], 132);
    let path = file.display();
    assert_eq!(
        succeeds(&mut world.partita(["policy", "check"])).trim(),
        format!("{path}: 0 rules and 0 reservations, without mistakes")
    );
    let shown = succeeds(&mut world.partita(["policy", "show"]));
    fs::remove_file(&file).unwrap();
    let without = succeeds(&mut world.partita(["policy", "show"]));
    assert_eq!(shown.lines().skip(1).collect::<Vec<_>>(), without.lines().skip(1).collect::<Vec<_>>());
    assert!(without.starts_with("no "), "{without}");
    let checked = succeeds(&mut world.partita(["policy", "check"]));
    assert!(checked.contains("no policy holds"), "{checked}");
    fs::write(&file, "[outside]\nprograms = \"limit\"\nsm = \"25%\"\ngroups = [\"root\"]\n").unwrap();
    let limiting = succeeds(&mut world.partita(["policy", "show"]));
    let line = "line 1: programs outside of tenants: made tenants with --sm 25%, except those of root and \
                group root; ";
    assert!(limiting.contains(line), "{limiting}");
    fs::remove_file(&file).unwrap();
    assert!(world.line("run --name two --sm 50% -- true").status.success());
}

#[test]
fn defaults_are_given_and_a_change_of_the_file_holds_at_once() {
    let (world, file) = world("[default]\nsm = \"25%\"\nmem = \"10GiB\"\n");
    let output = world.line("run --name said -- true");
    let said = text(&output.stderr);
    assert!(
        said.contains("said has 32 of 132 SMs of ") && said.contains("by the policy of this site"),
        "{said}"
    );
    let _one = world.idle("--name one");
    assert_eq!(
        (&world.row("one")["sms"], &world.row("one")["memory_quota_bytes"]),
        (&32.into(), &(10u64 << 30).into())
    );
    let _two = world.idle("--name two --sm 10tpc --mem 1GiB");
    assert_eq!(
        (&world.row("two")["sms"], &world.row("two")["memory_quota_bytes"]),
        (&20.into(), &(1u64 << 30).into())
    );
    fs::write(&file, "[default]\nsm = \"10%\"\n").unwrap();
    let _three = world.idle("--name three");
    assert_eq!(world.row("three")["sms"], 12);
    assert_eq!(world.row("one")["sms"], 32, "what runs keeps what it has");
}

#[test]
fn maxima_hold_for_all_tenants_of_a_user_in_run_and_in_set() {
    let owner = World::new().owner();
    let (world, _file) = world(&format!(
        "[[rule]]\nusers = [\"{owner}\"]\nsm_max = \"20tpc\"\nmem_max = \"40GiB\"\npriorities = [\"normal\"]\n"
    ));
    if owner == "root" {
        eprintln!("skipped: no maximum holds for root");
        assert!(world.line("run --name free --sm 100% --priority high -- true").status.success());
        return;
    }
    let _one = world.idle("--name one --sm 12tpc --mem 30GiB");
    let said = world.refused("run --name two --sm 9tpc --mem 1GiB -- true");
    assert!(said.contains("policy (line 1) allows") && said.contains("--sm 8tpc or less"), "{said}");
    let said = world.refused("run --name two --sm 1tpc --mem 11GiB -- true");
    assert!(said.contains("--mem 10GiB or less"), "{said}");
    assert!(world.refused("set one --sm 21tpc").contains("--sm 20tpc or less"));
    assert!(world.refused("set one --mem 41GiB").contains("--mem 40GiB or less"));
    assert!(world.refused("run --name two --sm 1tpc --priority high -- true").contains("only normal"));
    assert!(world.refused("run --name two --time 50% -- true").contains("--sm 8tpc"));
    let _two = world.idle("--name two");
    let row = world.row("two");
    assert_eq!((&row["sms"], &row["memory_quota_bytes"]), (&8.into(), &(5u64 << 30).into()));
    world.ok("set one --sm 16tpc");
}

#[test]
fn what_is_reserved_is_promised_to_no_other_and_used_meanwhile() {
    let owner = World::new().owner();
    let (world, file) = world("[[reservation]]\nusers = [\"nobody-of-here\"]\nsm = \"20tpc\"\n");
    // Used by a tenant without a share, while its owner runs nothing.
    let _rest = world.idle("--name rest");
    assert_eq!(world.row("rest")["sms"], 132);
    let said = world.refused("run --name big --sm 46tpc -- true");
    assert!(
        said.contains("45 of 66 TPCs are free; reservation of the unknown user nobody-of-here (line 1 "),
        "{said}"
    );
    let named = world.refused("run --name big --sm tpc:1-65 -- true");
    assert!(
        named.contains("reservation of the unknown user nobody-of-here (line 1 of the policy) holds"),
        "{named}"
    );
    let big = world.idle("--name big --sm 45tpc");
    assert_eq!(world.row("rest")["sms"], 42);
    assert!(world.refused("set big --sm 46tpc").contains("reservation of the unknown user nobody-of-here"));
    // It is for the user of these commands now.
    fs::write(&file, format!("[[reservation]]\nusers = [\"{owner}\"]\nsm = \"20tpc\"\n")).unwrap();
    drop(big);
    let _mine = world.idle("--name mine");
    assert_eq!((&world.row("mine")["sms"], &world.row("rest")["sms"]), (&40.into(), &92.into()));
    let _all = world.idle("--name all --sm 45tpc");
    // Outside its hours there is none.
    let weekday =
        String::from_utf8(std::process::Command::new("date").arg("+%u").output().unwrap().stdout).unwrap();
    let days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    // Neither today nor tomorrow: midnight may come.
    let other = days[(weekday.trim().parse::<usize>().unwrap() + 2) % 7];
    fs::write(
        &file,
        format!("[[reservation]]\nusers = [\"nobody-of-here\"]\nwhen = \"{other}\"\nsm = \"60tpc\"\n"),
    )
    .unwrap();
    world.ok("kill mine all");
    assert!(world.line("run --name big --sm 60tpc -- true").status.success());
}

#[test]
fn reserved_memory_is_promised_to_no_other_and_no_other_grows_into_it() {
    let owner = World::new().owner();
    let others = |mem: &str| format!("[[reservation]]\nusers = [\"nobody-of-here\"]\nmem = \"{mem}\"\n");
    let (world, file) = world(&others("100GiB"));
    let program = compile(&world, "hold");
    let shown = succeeds(&mut world.partita(["policy", "show"]));
    assert!(shown.contains("line 1: 100GiB of the memory of each GPU is kept for nobody-of-here"), "{shown}");
    let said = world.refused("run --name big --sm 30% --mem 60GiB -- true");
    assert!(
        said.contains(
            "reservation of the unknown user nobody-of-here (line 1 of the site's policy) keeps 100.0GiB"
        ) && said.contains("have root change the reservation (line 1 of the policy)"),
        "{said}"
    );
    // What the message says can be had, and not a MiB more.
    let size: ByteSize =
        said.split("ask for --mem ").nth(1).unwrap().split([' ', ',']).next().unwrap().parse().unwrap();
    let more = size.0 + (1 << 30);
    world.refused(&format!("run --name big --sm 30% --mem {more}B -- true"));
    let big = world.idle(&format!("--name big --sm 30% --mem {}B", size.0));
    assert!(
        world
            .refused(&format!("set big --mem {more}B"))
            .contains("reservation of the unknown user nobody-of-here")
    );
    drop(big);
    partita_testing::eventually("the promise ends", || world.ps().is_empty());
    // Without a promise, and without any other tenant: growth stops where the reservation begins.
    let mut rest = Answering::start(world.partita("run --name rest --sm 30% --".split(' ')).arg(&program));
    assert_eq!(rest.line("drop 0"), "0");
    let mut take = |gib: u64| rest.line(&format!("take {}", gib << 10));
    let refused = "2";
    let most = world.row("rest")["memory_rest_bytes"].as_u64().unwrap();
    assert!(most < 42 << 30 && most > 30 << 30, "{most}");
    assert_eq!((take(45).as_str(), take(20).as_str()), (refused, "0"));
    // A change of the file holds at once where partitad plans, and with the next plan elsewhere.
    let holds = |world: &World| {
        if world.system.is_none() {
            world.ok("set rest --mem-driver 1GiB");
        }
    };
    let grows_to = || world.row("rest")["memory_rest_bytes"].as_u64();
    fs::write(&file, others("110GiB")).unwrap();
    holds(&world);
    partita_testing::eventually("the reservation grows", || {
        grows_to().is_some_and(|now| now + (9 << 30) < most)
    });
    // More than is free: what is in use stays, and nothing is added.
    fs::write(&file, others("100%")).unwrap();
    holds(&world);
    partita_testing::eventually("nothing is left", || grows_to().is_some_and(|now| now < 21 << 30));
    assert_eq!(take(1), refused);
    assert!(
        world
            .refused("run --name more --sm 10% -- true")
            .contains("reservation of the unknown user nobody-of-here")
    );
    assert!(world.refused("set rest --mem 30GiB").contains("reservation of the unknown user nobody-of-here"));
    // It is for the user of these commands now: a program without --mem gets what is left of it.
    fs::write(&file, format!("[[reservation]]\nusers = [\"{owner}\"]\nmem = \"50GiB\"\n")).unwrap();
    let _mine = world.idle("--name mine --sm 30%");
    let mine = world.row("mine")["memory_quota_bytes"].as_u64().unwrap();
    // The other's 20 GiB and what the driver may take in both count.
    assert!(mine < 30 << 30 && mine > 26 << 30, "{mine}");
    fs::write(&file, "").unwrap();
    world.ok("kill mine");
    partita_testing::eventually("no promise is left", || grows_to().is_none());
    assert_eq!(take(100), "0");
}

#[test]
fn a_file_with_a_mistake_names_line_and_key_and_the_old_one_stays() {
    let (world, file) = world("[default]\nsm = \"25%\"\n");
    let _one = world.idle("--name one");
    fs::write(&file, "[default]\nsm = \"25%\"\nmemory = \"1GiB\"\n").unwrap();
    let said = refusal(&mut world.partita(["policy", "check"]));
    assert!(said.contains("line 3: memory: ") && said.contains("unknown key"), "{said}");
    assert!(!said.contains("policy check"), "{said}");
    if world.system.is_some() {
        let _two = world.idle("--name two");
        assert_eq!(world.row("two")["sms"], 32, "the old policy stays");
    } else {
        let said = world.refused("run --name two -- true");
        assert!(said.contains("line 3: memory: ") && said.contains("partita policy check"), "{said}");
    }
    fs::write(&file, "[default]\nsm = \"10%\"\n").unwrap();
    let _three = world.idle("--name three");
    assert_eq!(world.row("three")["sms"], 12);
    // Names that nobody has.
    let other = world.dir().join("other.toml");
    fs::write(&other, "[[rule]]\nusers = [\"nobody-of-here\"]\nsm_max = \"5%\"\n").unwrap();
    let output = world.partita(["policy", "check"]).arg(&other).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("line 1: there is no user nobody-of-here"), "{output:?}");
    fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let said = refusal(world.partita(["policy", "check"]).arg(&other));
    assert!(said.contains("others than root can write it"), "{said}");
}
