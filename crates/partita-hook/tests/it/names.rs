//! Whose function a name leads to, where the program or another library has the name too.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Fixture, limits};

fn compile(fixture: &Fixture, name: &str, options: &[&str]) -> PathBuf {
    let made = fixture.path(&format!("made-{name}"));
    fixture.cc(options, name, &made);
    made
}

/// Runs a program with these libraries preloaded, as a tenant's.
fn run(fixture: &Fixture, program: &Path, preload: &[&Path]) -> Output {
    fixture.within(program, preload).output().expect("the program starts")
}

/// A tenant here, and one on aarch64 where that can be emulated.
fn fixtures() -> impl Iterator<Item = Fixture> {
    std::iter::once(Fixture::new(&limits())).chain(Fixture::on_aarch64(&limits()))
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

/// Launches that the tenant's process has counted, which only those do that went through the hook.
fn launches(fixture: &Fixture) -> u64 {
    fixture.usage().slots().map(|slot| slot.expect("readable").launches).sum()
}

#[test]
fn a_program_that_exports_the_drivers_names_runs_in_its_tenant() {
    for fixture in fixtures() {
        let program = compile(&fixture, "wrangler.c", &["-rdynamic", "-ldl"]);
        let output = run(&fixture, &program, &[&fixture.hook()]);
        assert_eq!(said(&output), ("0 0\n".to_owned(), String::new()));
        assert_eq!(launches(&fixture), 1);
    }
}

#[test]
fn a_library_before_the_hook_goes_on_to_the_hook() {
    let fixture = Fixture::new(&limits());
    let driver = fixture.path("libcuda.so.1");
    let program = compile(&fixture, "linked.c", &[driver.to_str().expect("UTF-8")]);
    let wrapper = compile(&fixture, "wrapper.c", &["-shared", "-fPIC", "-ldl"]);
    let output = run(&fixture, &program, &[&wrapper, &fixture.hook()]);
    assert_eq!(said(&output), ("0 0\n".to_owned(), "wrapped\n".to_owned()));
    assert_eq!(launches(&fixture), 1);
}

/// Before the hook and behind it: each continues in the next, and none calls itself.
#[test]
fn libraries_that_interpose_the_linker_go_on_to_one_another() {
    for fixture in fixtures() {
        let openers = compile(&fixture, "openers.c", &["-shared", "-fPIC", "-ldl"]);
        let program = compile(&fixture, "wrangler.c", &["-ldl"]);
        let hook = fixture.hook();
        for preload in [[&*openers, &*hook], [&*hook, &*openers]] {
            let output = run(&fixture, &program, &preload);
            assert_eq!(said(&output), ("0 0\n".to_owned(), String::new()), "{preload:?}");
        }
    }
}
