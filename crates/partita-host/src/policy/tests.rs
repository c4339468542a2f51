use partita_core::time::Priority;
use partita_core::{ByteSize, Quota, Share, Topology, Tpc};
use proptest::prelude::*;

use super::*;

fn h200() -> Topology {
    let tpc = |i: u16| Tpc { gpc: (i % 8) as u8, physical: 9 * (i % 8) + i / 8 };
    Topology::new(2, (0..66).map(tpc).collect::<Vec<_>>()).unwrap()
}

fn user(name: &str, groups: &[&str]) -> User {
    User {
        name: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        is_root: name == "root",
    }
}

const MONDAY_NOON: Moment = Moment { day: 0, minute: 12 * 60 };

fn decides(
    text: &str,
    user: &User,
    held: Held,
    wish: Wish,
    now: Moment,
) -> Result<Decided, (String, String)> {
    let (policy, topology) = (Policy::parse(text).unwrap(), h200());
    let device = Device { topology: &topology, memory_bytes: 80 << 30, driver_bytes: 1 << 30 };
    decide(&policy, user, &device, held, &wish, now)
}

#[test]
fn the_shipped_file_changes_nothing() {
    assert_eq!(Policy::parse(EXAMPLE), Ok(Policy::default()));
    assert_eq!(Policy::parse(""), Ok(Policy::default()));
    // What its comments show is a policy.
    let lines = EXAMPLE.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest,
        _ => line,
    });
    let policy = Policy::parse(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!((policy.rules.len(), policy.reservations.len()), (1, 1));
    assert!(policy.default_share.is_some() && policy.default_memory.is_some());
}

#[test]
fn a_mistake_is_named_with_its_line_and_its_key() {
    for (text, line, key, reason) in [
        ("[default]\nsm = \"50\"", 2, "sm", "no unit"),
        ("[default]\nsm = \"tpc:0-9\"", 2, "sm", "no places"),
        ("[default]\n\nmem = \"40\"", 3, "mem", "no unit"),
        ("[default]\nmemory = \"40GiB\"", 2, "memory", "unknown key"),
        ("[defaults]\nmem = \"40GiB\"", 1, "defaults", "unknown key"),
        ("[default]\nsm = 50", 2, "sm", "this is integer `50`: a text belongs here; write it in quotes"),
        ("[rule]\nsm_max = \"5%\"", 1, "rule", "write its name in [[ ]]"),
        ("default = 3", 1, "default", "write its name in [ ]"),
        ("[[rule]]\nusers = \"a\"\nsm_max = \"5%\"", 2, "users", "a list belongs here"),
        ("[[rule]]\nusers = []\nsm_max = \"5%\"", 2, "users", "the list is empty"),
        ("[outside]\nsm = \"5%\"", 1, "outside", "missing key `programs`"),
        ("[default]\nsm = \"50%\"\nsm = \"40%\"", 3, "sm", "duplicate key"),
        ("[[rule]]\nusers = [\"a\"]", 1, "rule", "limits nothing"),
        ("[[rule]]\nsm_max = \"5%\"\nwhen = \"noon\"", 3, "when", "mon, tue"),
        ("[[rule]]\nsm_max = \"5%\"\n[[rule]]\npriorities = [\"hi\"]", 4, "priorities", "high"),
        ("[[rule]]\npriorities = []", 1, "priorities", "none is allowed"),
        ("[[rule]]\ngroups = [\"\"]\nsm_max = \"5%\"", 2, "groups", "empty"),
        ("[[reservation]]\nsm = \"30%\"", 1, "reservation", "nobody in particular"),
        ("[[reservation]]\nusers = [\"a\"]", 1, "reservation", "it keeps nothing"),
        ("[[reservation]]\nusers = [\"a\"]\nmem = \"0GiB\"", 3, "mem", "no program starts"),
        ("[[reservation]]\nusers = [\"a\"]\nmem = \"40\"", 3, "mem", "no unit"),
        ("[[reservation]]\nusers = [\"a\"]\ngpu = \"zero\"\nsm = \"5%\"", 3, "gpu", "not understood"),
    ] {
        let error = Policy::parse(text).unwrap_err();
        assert_eq!((error.line, error.key.as_deref()), (line, Some(key)), "{text:?}: {error}");
        let said = error.to_string();
        assert!(said.contains(reason) && !said.contains('\n'), "{text:?}: {said}");
        assert!(!said.contains("gpc:"), "a policy takes no places: {said}");
    }
    assert_eq!(Policy::parse("[default]\nsm = \n").unwrap_err().line, 2);
}

#[test]
fn reservations_add_up_to_one_gpu_at_most() {
    let entry = |user: &str, rest: &str| format!("[[reservation]]\nusers = [\"{user}\"]\n{rest}\n");
    let parse = |entries: &[String]| Policy::parse(&entries.concat());
    let a = entry("a", "sm = \"60%\"");
    let refused = parse(&[a.clone(), entry("b", "sm = \"50%\"")]).unwrap_err();
    assert_eq!((refused.line, refused.key.as_deref()), (4, Some("sm")));
    let said = refused.to_string();
    assert!(said.contains("line 1") && said.contains("110%"), "{said}");
    parse(&[a.clone(), entry("b", "sm = \"40%\"")]).unwrap();
    // Only GPU 1 has both.
    let on = |gpu: u32| entry("b", &format!("gpu = \"{gpu}\"\nsm = \"50%\""));
    parse(&[a.clone(), on(1)]).unwrap_err();
    parse(&[on(0), on(1), on(1)]).unwrap();
    parse(&[on(1), on(1), on(0), on(1)]).unwrap_err();
    // At the same time or not.
    let at = |hours: &str| entry("c", &format!("when = \"{hours}\"\nmem = \"70%\""));
    parse(&[at("08:00-12:00"), at("12:00-18:00"), a]).unwrap();
    let refused = parse(&[at("mon-fri 22:00-06:00"), at("sat 05:00-07:00")]).unwrap_err();
    assert_eq!((refused.line, refused.key.as_deref()), (5, Some("mem")));
    parse(&[at("mon-thu 22:00-06:00"), at("sat 05:00-07:00")]).unwrap();
    // Numbers are compared with a GPU, which is not known here.
    let many = || entry("d", "sm = \"100tpc\"\nmem = \"900GiB\"");
    parse(&[many(), many()]).unwrap();
}

#[test]
fn defaults_are_for_those_who_ask_for_nothing() {
    let text = "[default]\nsm = \"50%\"\nmem = \"25%\"";
    let alice = user("alice", &[]);
    let got = |wish| decides(text, &alice, Held::default(), wish, MONDAY_NOON).unwrap();
    let decided = got(Wish::default());
    assert_eq!((decided.share, decided.memory), (Some(Share::Percent(50_000)), Some(Quota::Percent(25_000))));
    let asked = Wish { share: Some(Share::Tpcs(3)), memory: Some(Quota::Percent(1000)), ..Wish::default() };
    assert_eq!(got(asked).share, Some(Share::Tpcs(3)));
    assert_eq!(got(asked).memory, Some(Quota::Percent(1000)));
    // Turns have no share, and a change changes what it names.
    assert_eq!(got(Wish { takes_turns: true, ..Wish::default() }).share, None);
    assert_eq!(got(Wish { is_change: true, ..Wish::default() }), Decided::default());
}

#[test]
fn the_strictest_rule_of_the_hour_holds() {
    let text = "[[rule]]\nsm_max = \"50%\"\n[[rule]]\ngroups = [\"students\"]\nwhen = \"mon-fri 08:00-18:00\"\n\
                sm_max = \"10tpc\"\nmem_max = \"20GiB\"\npriorities = [\"normal\", \"low\"]";
    let student = user("eve", &["students"]);
    let wish = |tpcs| Wish { share: Some(Share::Tpcs(tpcs)), ..Wish::default() };
    let held = |tpcs| Held { tpcs, memory_bytes: 0 };
    let evening = Moment { day: 0, minute: 20 * 60 };
    assert!(decides(text, &student, held(0), wish(10), MONDAY_NOON).is_ok());
    let (option, reason) = decides(text, &student, held(4), wish(7), MONDAY_NOON).unwrap_err();
    assert_eq!(option, "--sm 7tpc");
    assert!(reason.contains("(line 3)") && reason.contains("--sm 6tpc or less"), "{reason}");
    assert!(decides(text, &student, held(4), wish(7), evening).is_ok());
    assert!(decides(text, &student, held(0), wish(34), evening).is_err());
    assert!(decides(text, &user("root", &[]), held(0), wish(66), evening).is_ok());
    // Without a share: a half of what is left, until nothing is.
    let none = Wish::default();
    assert_eq!(decides(text, &student, held(4), none, MONDAY_NOON).unwrap().share, Some(Share::Tpcs(3)));
    assert!(decides(text, &student, held(10), none, MONDAY_NOON).is_err());
    let turns = Wish { takes_turns: true, ..none };
    assert!(decides(text, &student, held(0), turns, MONDAY_NOON).unwrap_err().1.contains("--sm 10tpc"));
    let said = decides(text, &student, held(10), turns, MONDAY_NOON).unwrap_err().1;
    assert!(said.contains("end one of them") && !said.contains("--sm"), "{said}");
    let memory = |quota| Wish { memory: Some(quota), ..wish(1) };
    let gib = |gib| Quota::Bytes(ByteSize::from_gib(gib));
    assert!(decides(text, &student, held(0), memory(gib(20)), MONDAY_NOON).is_ok());
    let said = decides(text, &student, held(0), memory(gib(21)), MONDAY_NOON).unwrap_err().1;
    assert!(said.contains("--mem 20GiB or less"), "{said}");
    assert_eq!(decides(text, &student, held(0), wish(1), MONDAY_NOON).unwrap().memory, Some(gib(10)));
    let high = Wish { priority: Some(Priority::High), ..wish(1) };
    let said = decides(text, &student, held(0), high, MONDAY_NOON).unwrap_err().1;
    assert!(said.contains("normal and low"), "{said}");
    // A change keeps the priority that it does not name, and no other.
    let low = "[[rule]]\npriorities = [\"low\"]";
    let change = |priority| Wish { priority, is_change: true, ..Wish::default() };
    let change = |priority| decides(low, &student, held(0), change(priority), MONDAY_NOON);
    assert!(change(None).is_ok() && change(Some(Priority::Low)).is_ok());
    assert_eq!(change(Some(Priority::Normal)).unwrap_err().0, "--priority normal");
}

#[test]
fn hours_are_read_and_kept() {
    let at = |text: &str, day: u8, minute: u16| text.parse::<Hours>().unwrap().has(Moment { day, minute });
    assert!(at("mon-fri 08:00-18:00", 4, 8 * 60) && !at("mon-fri 08:00-18:00", 4, 18 * 60));
    assert!(!at("mon-fri 08:00-18:00", 5, 9 * 60));
    assert!(at("22:00-06:00", 3, 23 * 60) && at("22:00-06:00", 3, 0) && !at("22:00-06:00", 3, 6 * 60));
    // The night of Friday ends on Saturday, that of Sunday on Monday.
    assert!(at("fri 22:00-06:00", 5, 60) && !at("fri 22:00-06:00", 4, 60));
    assert!(at("sun 22:00-06:00", 0, 60) && at("sat-mon", 6, 0) && !at("sat-mon", 1, 0));
    assert!(at("00:00-24:00", 2, 1439));
    for text in
        ["", "noon", "mon fri", "8-18", "25:00-26:00", "08:00-08:00", "24:00-06:00", "mon-xyz", "08:60-09:00"]
    {
        assert!(text.parse::<Hours>().is_err(), "{text}");
    }
}

#[test]
fn memory_is_kept_on_its_gpu_in_its_hours_for_its_users() {
    let policy = Policy::parse(
        "[[reservation]]\nusers = [\"ann\"]\ngroups = [\"lab\"]\nmem = \"50%\"\n[[reservation]]\nusers = [\"bob\"]\n\
         gpu = \"1\"\nwhen = \"mon-fri 08:00-18:00\"\nsm = \"10%\"\nmem = \"20GiB\"\n[[reservation]]\nusers = [\"eve\"]\n\
         sm = \"10%\"\n",
    )
    .unwrap();
    let users = [(1, user("ann", &[])), (2, user("bob", &["lab"])), (3, user("eve", &[]))];
    let kept = |now, index: u32| {
        let is_gpu = |selector: &crate::gpu::Selector| *selector == crate::gpu::Selector::Index(index);
        let total = (80 << 30) + partita_core::memory::RESERVE_BYTES;
        let kept = policy.kept_memory(now, is_gpu, total, &users);
        kept.into_iter().map(|kept| (kept.line, kept.who, kept.reserve)).collect::<Vec<_>>()
    };
    let reserve =
        |gib: u64, users: &[u32]| partita_core::memory::Reserve { bytes: gib << 30, users: users.into() };
    let lab = Who { users: vec!["ann".to_owned()], groups: vec!["lab".to_owned()] };
    let half = (1, lab, reserve(40, &[1, 2]));
    let bobs = Who { users: vec!["bob".to_owned()], groups: Vec::new() };
    let bobs = (5, bobs, reserve(20, &[2]));
    assert_eq!(kept(MONDAY_NOON, 1), [half.clone(), bobs]);
    assert_eq!(kept(MONDAY_NOON, 0), std::slice::from_ref(&half));
    assert_eq!(kept(Moment { day: 6, minute: 0 }, 1), [half]);
    assert!(policy.keeps_memory() && !Policy::parse(EXAMPLE).unwrap().keeps_memory());
}

proptest! {
    #[test]
    fn no_user_is_given_more_than_the_maximum(
        percent in 1u32..=100,
        runs in prop::collection::vec(prop::option::of(1u32..=66), 1..12),
    ) {
        let text = format!("[[rule]]\nsm_max = \"{percent}%\"\n[default]\nsm = \"30%\"");
        let most = decide::tpcs(Share::Percent(percent * 1000), &h200());
        let mut held = Held::default();
        for asked in runs {
            let wish = Wish { share: asked.map(Share::Tpcs), ..Wish::default() };
            match decides(&text, &user("eve", &[]), held, wish, MONDAY_NOON) {
                Ok(Decided { share: Some(share), .. }) => {
                    prop_assert!(asked.is_none_or(|tpcs| share == Share::Tpcs(tpcs)));
                    held.tpcs += decide::tpcs(share, &h200());
                }
                Ok(_) => prop_assert!(false, "a tenant without a share may have more"),
                Err(_) => prop_assert!(held.tpcs + asked.unwrap_or(19) > most),
            }
            prop_assert!(held.tpcs <= most);
        }
    }

    #[test]
    fn any_text_is_hours_or_an_error_and_prints_as_what_it_is(text in "[a-z,-]{0,12} ?[0-9:-]{0,12}") {
        if let Ok(hours) = text.parse::<Hours>() {
            prop_assert_eq!(hours.to_string().parse(), Ok(hours));
        }
    }
}

#[test]
fn programs_outside_of_tenants_are_ended_but_for_those_of_root_and_of_the_named() {
    let outside = |text: &str| Policy::parse(text).unwrap().outside;
    for reports in ["", "[outside]\nprograms = \"report\"\n"] {
        assert!(!outside(reports).ends(&user("ann", &[])), "{reports}");
    }
    let ends = outside("[outside]\nprograms = \"end\"\nusers = [\"ann\"]\ngroups = [\"admins\"]\n");
    assert_eq!(ends.line, 1);
    let is_ended = |name: &str, groups: &[&str]| ends.ends(&user(name, groups));
    assert!(is_ended("bob", &[]) && is_ended("bob", &["students"]));
    assert!(!is_ended("ann", &[]) && !is_ended("bob", &["admins"]) && !is_ended("root", &[]));
    assert!(outside("[outside]\nprograms = \"end\"\n").ends(&user("ann", &[])));
    for (text, line, key) in [
        ("[outside]\nprograms = \"kill\"\n", 2, "programs"),
        ("[outside]\nprograms = \"end\"\nsm = \"10%\"\n", 3, "sm"),
        ("[outside]\nprograms = \"report\"\nmem = \"1GiB\"\n", 3, "mem"),
        ("[outside]\nprograms = \"limit\"\nsm = \"tpc:0-3\"\n", 3, "sm"),
        ("[outside]\nprograms = \"limit\"\nmem = \"0B\"\n", 3, "mem"),
        ("[outside]\nprograms = \"end\"\nusers = [\"\"]\n", 3, "users"),
    ] {
        let error = Policy::parse(text).unwrap_err();
        assert_eq!((error.line, error.key.as_deref()), (line, Some(key)), "{text}");
    }
}

#[test]
fn programs_that_escape_are_ended_but_for_those_of_the_named() {
    let escaped = |text: &str| Policy::parse(text).unwrap().escaped;
    for reports in ["", "[escaped]\nprograms = \"report\"\n"] {
        assert!(!escaped(reports).ends(&user("ann", &[])), "{reports}");
    }
    let ends = escaped("\n[escaped]\nprograms = \"end\"\nusers = [\"ann\"]\ngroups = [\"admins\"]\n");
    assert_eq!(ends.line, 2);
    assert!(ends.ends(&user("bob", &[])) && ends.ends(&user("root", &[])));
    assert!(!ends.ends(&user("ann", &[])) && !ends.ends(&user("bob", &["admins"])));
    for (text, line, key) in [
        ("[escaped]\nprograms = \"limit\"\n", 2, "programs"),
        ("[escaped]\nprograms = \"kill\"\n", 2, "programs"),
        ("[escaped]\nprograms = \"end\"\nusers = [\"\"]\n", 3, "users"),
        ("[escaped]\nprograms = \"end\"\nsm = \"10%\"\n", 3, "sm"),
    ] {
        let error = Policy::parse(text).unwrap_err();
        assert_eq!((error.line, error.key.as_deref()), (line, Some(key)), "{text}");
    }
}

#[test]
fn programs_outside_of_tenants_become_tenants_with_what_the_policy_gives_them() {
    let parse = |text: &str| Policy::parse(text).unwrap();
    let limit = parse("[outside]\nprograms = \"limit\"\nusers = [\"ann\"]\n").outside;
    assert!(limit.limits(&user("bob", &[])) && !limit.ends(&user("bob", &[])));
    assert!(!limit.limits(&user("ann", &[])) && !limit.limits(&user("root", &[])));
    for other in ["", "[outside]\nprograms = \"report\"\n", "[outside]\nprograms = \"end\"\n"] {
        assert!(!parse(other).outside.limits(&user("bob", &[])), "{other}");
    }

    let defaults = "[default]\nsm = \"50%\"\nmem = \"25%\"\n[outside]\nprograms = \"limit\"\n";
    for (text, share, memory) in [
        ("[outside]\nprograms = \"limit\"\n".to_owned(), None, None),
        (defaults.to_owned(), Some("50%"), Some("25%")),
        (format!("{defaults}sm = \"8tpc\"\n"), Some("8tpc"), Some("25%")),
        (format!("{defaults}mem = \"1GiB\"\n"), Some("50%"), Some("1GiB")),
    ] {
        let policy = parse(&text).for_outside();
        assert_eq!(policy.default_share, share.map(|share| share.parse().unwrap()), "{text}");
        assert_eq!(policy.default_memory, memory.map(|memory| memory.parse().unwrap()), "{text}");
    }
}
