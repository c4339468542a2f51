//! Programs that restrict their own launches, alone and as tenants.
//!
//! Each runs as a child of this test program on a simulated GPU of its own:
//! the driver is found by the environment that a process starts with.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use partita::gpu::{self, Selector};
use partita::install::Install;
use partita::restrict::{Launch, Masks, Process, Stream};
use partita_core::TpcSet;
use partita_driver::{Census, Cuda, Grid, StreamRef};
use partita_testing::{build, ignored_test, succeed, without_own_variables};

/// Runs an ignored test of this program on a simulated H200, by `partita run` with these arguments
/// or plainly.
fn child(temp: &Path, test: &str, run: Option<&[&str]>) {
    let program = ignored_test(test);
    let partita = build().join("partita");
    let mut command = match run {
        Some(options) => {
            let mut command = Command::new(&partita);
            command.args(["run", "--gpu", "sim:h200", "--isolation", "own"]).args(options).arg("--");
            command
        }
        None => {
            let mut command = Command::new("sh");
            command.arg("-c").arg("eval \"$(\"$0\" sim env --gpu sim:h200)\" && exec \"$@\"").arg(&partita);
            command
        }
    };
    command.arg(program.get_program()).args(program.get_args());
    without_own_variables(&mut command);
    command
        .env("PARTITA_RUN_DIR", temp.join("run"))
        .env("PARTITA_CACHE_DIR", temp.join("cache"))
        .env("PARTITA_SIM_DIR", temp.join("sim"))
        .env("PARTITA_TEST_PROGRAM", &partita);
    let out = succeed(&mut command).stdout;
    let out = String::from_utf8_lossy(&out);
    assert!(out.contains("1 passed"), "it ran: {out}");
}

fn set(text: &str) -> TpcSet {
    text.parse().unwrap()
}

/// A program with a GPU and masks.
struct Program<'g> {
    gpu: &'g partita_driver::Gpu<'g>,
    masks: &'g Masks,
}

impl Program<'_> {
    /// The TPCs that a launch runs on.
    fn runs_on(&self, stream: StreamRef<'_>) -> TpcSet {
        let grid = Grid { blocks: self.gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
        let census = Census::at(self.gpu, self.gpu.place(stream), grid, 20_000).unwrap();
        let sms: BTreeSet<u32> = census.sms().unwrap();
        self.masks.topology().logical_from_smids(sms).unwrap()
    }
}

fn with_program(work: impl FnOnce(&Program<'_>)) {
    // The program that was built beside this one.
    let install = Install::of(std::env::var_os("PARTITA_TEST_PROGRAM").unwrap().into(), None);
    let cuda = Cuda::load(None).unwrap();
    let gpu = partita_driver::Gpu::open(&cuda, 0).unwrap();
    let selected = gpu::select(&install, Some(&Selector::Sim("h200".to_owned(), 0))).unwrap();
    let masks = Masks::new(&install, &selected.gpu).unwrap();
    work(&Program { gpu: &gpu, masks: &masks });
}

#[test]
#[ignore = "run by the others as a program of its own"]
fn child_alone() {
    with_program(|program| {
        let masks = program.masks;
        let all = masks.topology().all();
        let (one, other) = (
            partita_driver::Stream::new(program.gpu.cuda()).unwrap(),
            partita_driver::Stream::new(program.gpu.cuda()).unwrap(),
        );
        let on = |stream: &partita_driver::Stream<'_>| program.runs_on(stream.as_ref());
        let process = Process::of(masks).unwrap();
        let launch = Launch::of(masks).unwrap();
        let stream = Stream::of(masks, one.as_ref());
        assert_eq!((on(&one), process.restricted_to(), stream.restricted_to().unwrap()), (all, None, None));

        let half = process.restrict(&set("0-32")).unwrap();
        assert_eq!((on(&one), on(&other)), (set("0-32"), set("0-32")));
        {
            let _stream = stream.restrict(&set("40-49")).unwrap();
            assert_eq!((on(&one), on(&other)), (set("40-49"), set("0-32")), "a stream's counts more");
            assert_eq!(stream.restricted_to().unwrap(), Some(set("40-49")));
            {
                let _next = launch.restrict(&set("65")).unwrap();
                assert_eq!(on(&one), set("65"), "and a launch's most");
                assert_eq!((on(&one), launch.restricted_to()), (set("40-49"), None), "once");
            }
            drop(launch.restrict(&set("64")).unwrap());
            assert_eq!(
                on(&one),
                set("40-49"),
                "a restriction that is dropped before any launch has no effect"
            );
            {
                let _narrower = stream.restrict(&set("41")).unwrap();
                assert_eq!(on(&one), set("41"));
            }
            assert_eq!(on(&one), set("40-49"), "what was before comes back");
        }
        assert_eq!(on(&one), set("0-32"));
        drop(half);
        assert_eq!((on(&one), on(&other)), (all, all));
        process.restrict(&set("7")).unwrap().keep();
        assert_eq!(on(&other), set("7"));

        let refused = |result: Result<_, partita::Error>| result.map(drop).unwrap_err().to_string();
        assert!(refused(process.restrict(&TpcSet::EMPTY)).contains("at least one"));
        assert!(refused(stream.restrict(&set("0,99"))).contains("does not have TPCs 99"));
    });
}

#[test]
#[ignore = "run by the others as a program of its own"]
fn child_of_tpcs_10_to_19() {
    with_program(|program| {
        let masks = program.masks;
        let one = partita_driver::Stream::new(program.gpu.cuda()).unwrap();
        let on = || program.runs_on(one.as_ref());
        assert_eq!(on(), set("10-19"));
        {
            let _process = Process::of(masks).unwrap().restrict(&set("0-14")).unwrap();
            assert_eq!(on(), set("10-14"), "both hold");
            let _stream = Stream::of(masks, one.as_ref()).restrict(&set("12-40")).unwrap();
            assert_eq!(on(), set("12-19"), "both hold");
            let _next = Launch::of(masks).unwrap().restrict(&set("15,60")).unwrap();
            assert_eq!(on(), set("15"), "both hold");
            let _beside = Stream::of(masks, one.as_ref()).restrict(&set("50-60")).unwrap();
            assert_eq!(on(), set("10-19"), "nothing in common leaves the tenant's");
        }
        assert_eq!(on(), set("10-19"));
    });
}

#[test]
fn a_program_restricts_itself_and_what_was_before_comes_back() {
    let temp = tempfile::Builder::new().prefix("pr").tempdir_in("/tmp").unwrap();
    child(temp.path(), "child_alone", None);
}

#[test]
fn a_tenant_narrows_its_partition_and_never_leaves_it() {
    let temp = tempfile::Builder::new().prefix("pr").tempdir_in("/tmp").unwrap();
    child(temp.path(), "child_of_tpcs_10_to_19", Some(&["--sm", "tpc:10-19"]));
}
