//! What cannot be rewritten is refused by name, and what can is not.

use partita_ptx::Module;
use partita_ptx::persistent::{Rewritten, rewrite};

fn rewritten(before: &str, directives: &str, body: &str) -> Rewritten {
    let text = format!(
        ".version 8.7 .target sm_90 .address_size 64
        {before}
        .visible .entry test(.param .u64 out, .param .u32 n) {directives} {{
            .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
            mov.u32 %r0, %tid.x; ld.param.u32 %r19, [n];
            {body}
        }}
        .visible .entry other() {{ ret; }}"
    );
    rewrite(&Module::parse(&text).unwrap())
}

#[test]
fn what_cannot_be_rewritten_is_refused_by_name() {
    let shuffle = "shfl.sync.down.b32 %r2, %r1, 1, 31, -1;";
    for (before, directives, body, subject, reason) in [
        ("", ".reqnctapercluster 2, 1, 1", "ret;", ".reqnctapercluster", "clusters"),
        (
            "",
            "",
            "mov.u32 %r1, %cluster_ctarank; ret;",
            "mov.u32",
            "%cluster_ctarank: the kernel needs clusters",
        ),
        ("", "", "barrier.cluster.arrive; ret;", "barrier.cluster.arrive", "clusters"),
        ("", "", "bar.arrive 1, 64; ret;", "bar.arrive", "left over"),
        ("", "", "mbarrier.init.shared.b64 [%rd1], 1; ret;", "mbarrier.init.shared.b64", "left over"),
        ("", "", "alloca.u64 %rd1, 8; ret;", "alloca.u64", "stack"),
        ("", "", "mov.u16 %h1, %ctaid.x; ret;", "mov.u16", "16 bits"),
        (
            ".func where(.reg .b32 %a) { mov.u32 %a, %ctaid.x; ret; }",
            "",
            "call.uni where, (%r1); ret;",
            "mov.u32",
            "function 'where' reads %ctaid.x",
        ),
        (".func end() { exit; }", "", "call.uni end, (); ret;", "exit", "function 'end' ends the thread"),
        (".extern .func far(.param .b32 a);", "", "call.uni far, (%r1); ret;", "call.uni", "another module"),
        (
            ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a, .param .b64 b);",
            "",
            "call.uni (%r1), cudaLaunchDeviceV2, (%rd1, %rd2); ret;",
            "call.uni",
            "dynamic parallelism",
        ),
        (
            ".shared .b8 all[49152];",
            "",
            "ld.shared.u32 %r1, [all]; ret;",
            "test",
            "leaves no room for 16 bytes",
        ),
        // Threads that end alone, and others that meet.
        ("", "", "setp.ge.u32 %p1, %r0, %r19; @%p1 ret; bar.sync 0; ret;", "ret", "divergent exit"),
        ("", "", "setp.ge.u32 %p1, %r0, 64; @%p1 bra E; bar.sync 0; E: ret;", "bra", "divergent exit"),
        ("", "", &format!("setp.ge.u32 %p1, %r0, %r19; @%p1 exit; {shuffle} ret;"), "exit", "divergent exit"),
        (
            "",
            "",
            "mov.u32 %r5, 0; setp.lt.u32 %p1, %r0, 7; @%p1 bra A; mov.u32 %r5, 1; A:
             setp.eq.u32 %p2, %r5, 1; @%p2 ret; bar.sync 0; ret;",
            "ret",
            "divergent exit",
        ),
        // Threads of the mask may end alone behind the place where it was taken.
        (
            "",
            "",
            "activemask.b32 %r1; setp.ge.u32 %p1, %r0, 7; @%p1 ret; shfl.sync.down.b32 %r2, %r0, 1, 31, %r1; ret;",
            "ret",
            "divergent exit",
        ),
        // So does what was made of an older mask.
        (
            "",
            "",
            "activemask.b32 %r1; setp.ge.u32 %p1, %r0, 7; @%p1 ret; and.b32 %r2, %r1, 255; \
             shfl.sync.down.b32 %r3, %r0, 1, 31, %r2; ret;",
            "ret",
            "divergent exit",
        ),
        // Only one of two ways takes the mask.
        (
            "",
            "",
            "mov.u32 %r1, -1; setp.ge.u32 %p1, %r0, 7; @%p1 ret; setp.eq.u32 %p2, %r19, 0; @%p2 bra A; \
             activemask.b32 %r1; A: shfl.sync.down.b32 %r2, %r0, 1, 31, %r1; ret;",
            "ret",
            "divergent exit",
        ),
        // A barrier waits for all threads, whatever was masked before.
        (
            "",
            "",
            "setp.ge.u32 %p1, %r0, 7; @%p1 ret; activemask.b32 %r1; bar.sync 0; ret;",
            "ret",
            "divergent exit",
        ),
        (
            ".func wait() { bar.sync 0; ret; }",
            "",
            "setp.eq.u32 %p1, %r0, 9; @%p1 ret; call.uni wait, (); ret;",
            "ret",
            "divergent exit",
        ),
    ] {
        let Rewritten { module, entries, refused, .. } = rewritten(before, directives, body);
        let [refusal] = refused.as_slice() else { panic!("{body}: {refused:?}") };
        assert_eq!(
            (entries.as_slice(), refusal.entry.as_str()),
            (&["other".to_owned()][..], "test"),
            "{body}"
        );
        assert!(!module.functions().any(|function| function.name == "test"), "{body}");
        assert_eq!(refusal.error.subject, subject, "{body}: {refusal}");
        assert!(refusal.error.reason.contains(reason), "{body}: {refusal}");
    }
}

#[test]
fn what_can_be_rewritten_is_not_refused() {
    for (whole_rows, body) in [
        // A loop around a barrier, as often as a parameter says.
        (false, "T: bar.sync 0; sub.u32 %r19, %r19, 1; setp.ne.u32 %p1, %r19, 0; @%p1 bra T; ret;"),
        // Blocks end as a whole.
        (false, "mov.u32 %r1, %ctaid.x; setp.ge.u32 %p1, %r1, %r19; @%p1 ret; bar.sync 0; ret;"),
        // All threads load the same word.
        (
            false,
            "ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 ret; \
             bar.sync 0; ret;",
        ),
        // The result of a barrier is that of all threads.
        (false, "setp.eq.u32 %p1, %r0, 3; bar.red.or.pred %p2, 0, %p1; @%p2 ret; bar.sync 0; ret;"),
        // Threads part and end after the last meeting.
        (false, "bar.sync 0; setp.ge.u32 %p1, %r0, %r19; @%p1 ret; st.global.u32 [%rd1], %r0; ret;"),
        // The vote of a warp ends its loop.
        (false, "T: setp.eq.u32 %p1, %r0, 3; vote.sync.any.pred %p2, %p1, -1; @%p2 bra T; ret;"),
        // Some end, and the threads that are active then meet: all of them, or those of one value.
        (
            false,
            "setp.ge.u32 %p1, %r0, %r19; @%p1 ret; activemask.b32 %r1; match.any.sync.b32 %r2, %r0, %r1; \
             redux.sync.add.s32 %r3, %r0, %r2; ret;",
        ),
        (
            false,
            "T: setp.ge.u32 %p1, %r0, %r19; @%p1 bra E; activemask.b32 %r1; and.b32 %r2, %r1, 255; \
             shfl.sync.idx.b32 %r3, %r0, 0, 31, %r2; add.u32 %r0, %r0, 64; bra T; E: ret;",
        ),
        // The first warp reduces what all have stored.
        (
            true,
            "bar.sync 0; setp.gt.u32 %p1, %r0, 31; @%p1 bra E; shfl.sync.down.b32 %r2, %r0, 1, 31, \
             -1; E: ret;",
        ),
        (
            true,
            "shr.u32 %r1, %r0, 5; setp.ne.u32 %p1, %r1, 0; @%p1 ret; shfl.sync.down.b32 %r2, %r0, 1, \
             31, -1; ret;",
        ),
    ] {
        let Rewritten { entries, whole_rows: rows, refused, .. } = rewritten("", "", body);
        assert_eq!(refused, [], "{body}");
        assert_eq!(entries, ["test", "other"], "{body}");
        assert_eq!(rows.contains(&"test".to_owned()), whole_rows, "{body}");
    }
}

#[test]
fn a_rewritten_module_is_not_rewritten_again() {
    let once = rewritten("", "", "ret;");
    let twice = rewrite(&once.module);
    assert!(twice.entries.is_empty());
    assert!(twice.refused.iter().all(|refusal| refusal.error.reason.contains("rewritten already")));
}
