//! A tenant on several GPUs: each launch gets the mask of the GPU that it is for.

use crate::common;

use std::ffi::CString;

use common::{Fixture, limits};
use partita_ledger::{GPU_LINK_PREFIX, HookState, Limits, LimitsFile, UsageMap, UsageView};

/// The limits of the GPU that the stub driver shows second, with another set.
fn second() -> Limits {
    Limits { gpu_uuid: [8; 16], qmd_disable: [0xffff_0000, !0, !0, !0, 0, 0, 0, 0], ..limits() }
}

/// A tenant on two GPUs; the second's ledger is where a link in the first's leads.
fn fixture(second: &Limits) -> Fixture {
    let fixture = Fixture::new(&limits());
    std::fs::create_dir(fixture.path("other")).expect("a directory");
    LimitsFile::create(&fixture.file("other/limits"), second, 0o644).expect("limits");
    UsageMap::create(&fixture.file("other/usage"), 0o644).expect("usage");
    let link = fixture.path(&format!("{GPU_LINK_PREFIX}1"));
    std::os::unix::fs::symlink("other", link).expect("a link");
    fixture
}

#[test]
fn each_launch_has_its_gpu_s_mask_without_allocation_lock_or_system_call() {
    let fixture = fixture(&second());
    let output = fixture.run("several.c", &["2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?} {said}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[..2], ["0", "0"], "allocations and locks on the launch path");
    assert_eq!(words[2..6], ["00000000", "ffff0000", "ffff0000", "00000000"]);
    // A kernel that the driver launches itself belongs to the current context.
    assert_eq!(words[6..], ["00000000,fffffffe,ffffffff,ffffffff", "ffff0000,ffffffff,ffffffff,ffffffff"]);
    let usage = |file: CString| {
        let view = UsageView::open(&file).expect("usage");
        view.slots().next().expect("one slot").expect("readable")
    };
    for slot in [usage(fixture.file("usage")), usage(fixture.file("other/usage"))] {
        // Two of the four ways in each round: one to learn, 1,000 counted, 1,000 under seccomp; and
        // a memset.
        assert_eq!(slot.launches, 2 * 2001 + 1);
        assert_eq!(slot.state.flags, HookState::ATTACHED | HookState::MASK_VERIFIED);
    }
}

#[test]
fn new_limits_of_one_gpu_are_that_gpu_s() {
    let fixture = fixture(&second());
    let mut file = LimitsFile::open_rw(&fixture.file("other/limits")).expect("limits");
    file.update(|limits| limits.qmd_disable[0] = 0xff).expect("written");
    let output = fixture.run("several.c", &["2"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[2..6], ["00000000", "000000ff", "000000ff", "00000000"]);
}

#[test]
fn no_launch_of_the_driver_s_own_is_left_without_a_tpc() {
    // The second GPU's TPCs lie at bits 60–125, and the tenant's at 100–125, where the first has
    // none.
    let mut elsewhere = Limits { qmd_disable: [!0, !0, !0, 0xf, 0, 0, 0, 0], ..second() };
    for tpc in 0..66 {
        elsewhere.physical_of_logical[usize::from(tpc)] = 60 + tpc;
    }
    let output = fixture(&elsewhere).run("several.c", &["2"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(
        words[2..6],
        ["00000000", "ffffffff", "ffffffff", "00000000"],
        "launches have their GPU's mask"
    );
    let both = "00000000,fffffffe,ffffffff,0000000f";
    assert_eq!(
        words[6..],
        [both, both],
        "either GPU's set: a memset may be for another than the current one"
    );
}

/// The refusal of the program.
fn refusal(fixture: &Fixture, gpus: &str) -> String {
    let output = fixture.run("several.c", &[gpus]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_gpu_that_is_not_the_tenant_s_is_refused() {
    let said = refusal(&fixture(&second()), "3");
    assert!(said.contains("GPU 2") && said.contains("CUDA_VISIBLE_DEVICES"), "{said}");
    // A tenant of one GPU whose program has reached another.
    let said = refusal(&Fixture::new(&limits()), "2");
    assert!(said.contains("GPU 1") && said.contains("not its tenant's"), "{said}");
    let said = refusal(&Fixture::new(&second()), "1");
    assert!(said.contains("GPU 0"), "{said}");
    // Ledgers of kinds of GPUs that cannot be one process's.
    let said = refusal(&fixture(&Limits { device_class: 100, qmd_version: 0x50, ..second() }), "2");
    assert!(said.contains("different kinds"), "{said}");
    // A part that has gone.
    let broken = fixture(&second());
    std::fs::remove_file(broken.path("other/limits")).expect("the limits file");
    let said = refusal(&broken, "2");
    assert!(said.contains("limits"), "{said}");
}

#[test]
fn a_process_that_sees_one_of_them_takes_part_on_that_one() {
    // The stub shows the GPU that this tenant has second as the only one.
    let fixture = Fixture::new(&second());
    std::fs::create_dir(fixture.path("other")).expect("a directory");
    LimitsFile::create(&fixture.file("other/limits"), &limits(), 0o644).expect("limits");
    UsageMap::create(&fixture.file("other/usage"), 0o644).expect("usage");
    std::os::unix::fs::symlink("other", fixture.path(&format!("{GPU_LINK_PREFIX}1"))).expect("a link");
    let output = fixture.run("several.c", &["1"]);
    assert!(output.status.success(), "{:?}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.split_whitespace().skip(2).take(4).collect::<Vec<_>>(), ["00000000"; 4]);
    assert_eq!(fixture.usage().slots().count(), 0, "no slot on the GPU that it does not see");
}
