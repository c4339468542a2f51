//! Barriers, divergence, special registers, faults, refusals, and kernels that do not end.

use std::sync::Arc;
use std::time::Instant;

use partita_interpreter::{Block, Fault, Kernel, Launch, Progress, Start, initial_bytes};
use partita_ptx::Module;
use proptest::prelude::*;

use crate::gpu::{Gpu, Shape};

const HEAD: &str = ".version 8.7 .target sm_90 .address_size 64\n";

/// A module with one entry of a parameter, `out`, and registers of each kind.
fn module(before: &str, body: &str) -> String {
    format!(
        "{HEAD}{before}
        .visible .entry test(.param .u64 out) {{
            .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<9>;
            ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd0, %r0, 4, %rd0;
            {body}
        }}"
    )
}

/// The word that each thread of a block stores; before, it is 99.
fn words(before: &str, body: &str, threads: u32) -> Result<Vec<u32>, Fault> {
    let mut gpu = Gpu::default();
    let loaded = gpu.load(&module(before, body));
    let out = gpu.words(&vec![99; threads as usize]);
    let shape = Shape([1; 3], [threads, 1, 1], 64);
    gpu.launch(&loaded, "test", shape, &[out]).map_err(|failure| failure.fault)?;
    Ok(gpu.get_words(out, threads as usize))
}

const STORE: &str = "st.global.u32 [%rd0], %r1; ret;";

#[test]
fn the_ways_of_threads_part_and_meet() {
    // Each thread has a number of rounds of its own; behind the loop all are together.
    let body = "mov.u32 %r1, 0; mov.u32 %r2, %r0;
        LOOP: setp.eq.u32 %p1, %r2, 0; @%p1 bra DONE; add.u32 %r1, %r1, %r2; sub.u32 %r2, %r2, 1; bra LOOP;
        DONE: activemask.b32 %r3; popc.b32 %r3, %r3; mad.lo.u32 %r1, %r1, 100, %r3;";
    let found = words("", &format!("{body}{STORE}"), 32).unwrap();
    assert_eq!(found, (0..32).map(|i| i * (i + 1) / 2 * 100 + 32).collect::<Vec<u32>>());
    // Into the middle of a loop, and out of it in two ways.
    let body = "and.b32 %r2, %r0, 1; mov.u32 %r1, %r0; setp.eq.u32 %p1, %r2, 1; @%p1 bra MIDDLE;
        TOP: add.u32 %r1, %r1, 10;
        MIDDLE: add.u32 %r1, %r1, 1; setp.gt.u32 %p2, %r1, 60; @%p2 bra OUT; setp.gt.u32 %p3, %r1, 50;
        @%p3 ret; bra TOP;
        OUT: st.global.u32 [%rd0], %r1; ret;";
    let one = |thread: u32| {
        let (mut x, mut at_top) = (thread, thread.is_multiple_of(2));
        loop {
            x += if at_top { 11 } else { 1 };
            at_top = true;
            if x > 60 {
                return x;
            }
            if x > 50 {
                return 99;
            }
        }
    };
    assert_eq!(words("", body, 40).unwrap(), (0..40).map(one).collect::<Vec<u32>>());
}

#[test]
fn threads_that_have_ended_count_at_barriers() {
    // Half of each warp and one whole warp leave early.
    let body = "setp.ge.u32 %p1, %r0, 64; @%p1 ret; and.b32 %r2, %r0, 1; setp.eq.u32 %p2, %r2, 1; @%p2 exit;
        bar.sync 0; mov.u32 %r1, 5;";
    let found = words("", &format!("{body}{STORE}"), 96).unwrap();
    let expected: Vec<u32> = (0..96).map(|i| if i < 64 && i % 2 == 0 { 5 } else { 99 }).collect();
    assert_eq!(found, expected);
}

#[test]
fn barriers_of_some_warps_and_their_census() {
    // Two warps produce for two others, through barrier 1, and barrier 2 joins the consumers.
    let before = ".shared .align 4 .b8 data[512];";
    let body = "mov.u32 %r4, data; mad.lo.u32 %r4, %r0, 4, %r4; setp.ge.u32 %p1, %r0, 64; @%p1 bra CONSUME;
        mul.lo.u32 %r5, %r0, 3; st.shared.u32 [%r4], %r5; bar.arrive 1, 128; mov.u32 %r1, 0; bra END;
        CONSUME: bar.sync 1, 128; ld.shared.u32 %r1, [%r4+-256]; bar.sync 2, 64;
        END: setp.gt.u32 %p2, %r1, 90; bar.red.popc.u32 %r6, 0, %p2; bar.red.or.pred %p3, 0, %p2;
        bar.red.and.pred %p4, 0, %p2; selp.u32 %r7, 1000, 0, %p3; selp.u32 %r8, 10000, 0, %p4;
        add.u32 %r1, %r1, %r7; add.u32 %r1, %r1, %r8; mad.lo.u32 %r1, %r6, 100000, %r1;";
    let found = words(before, &format!("{body}{STORE}"), 128).unwrap();
    let value = |i: u32| if i < 64 { 0 } else { (i - 64) * 3 };
    let count = (0..128).filter(|i| value(*i) > 90).count() as u32;
    assert_eq!(found, (0..128).map(|i| value(i) + 1_000 + count * 100_000).collect::<Vec<u32>>());
}

#[test]
fn members_of_a_shuffle_wait_for_each_other() {
    // Odd threads come later, by another way, to the same shuffle.
    let body = "mov.u32 %r2, %r0; and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra MEET;
        mov.u32 %r4, 0; SLOW: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 3000; @%p2 bra SLOW; bra MEET;
        LATER: ret;
        MEET: shfl.sync.bfly.b32 %r1|%p3, %r2, 1, 31, -1;";
    let found = words("", &format!("{body}{STORE}"), 32).unwrap();
    assert_eq!(found, (0..32).map(|i| i ^ 1).collect::<Vec<u32>>());
    // Threads that have ended are not waited for.
    let body = "setp.ge.u32 %p1, %r0, 20; @%p1 ret; vote.sync.ballot.b32 %r1, 1, -1;";
    let found = words("", &format!("{body}{STORE}"), 32).unwrap();
    assert_eq!(found[..20], [(1 << 20) - 1; 20]);
    // Two halves with masks of their own at one instruction.
    let body =
        "setp.lt.u32 %p1, %r0, 16; selp.b32 %r2, 0xffff, 0xffff0000, %p1; redux.sync.add.u32 %r1, %r0, %r2;";
    let found = words("", &format!("{body}{STORE}"), 32).unwrap();
    assert_eq!(found, (0..32).map(|i| if i < 16 { 120 } else { 376 }).collect::<Vec<u32>>());
    let body =
        "match.all.sync.b32 %r2|%p1, 7, -1; selp.u32 %r3, 1, 0, %p1; match.all.sync.b32 %r4|%p2, %r0, -1;
        selp.u32 %r5, 2, 0, %p2; or.b32 %r1, %r3, %r5; elect.sync %r6|%p3, -1; @%p3 add.u32 %r1, %r1, 4;
        or.b32 %r1, %r1, %r4;";
    let found = words("", &format!("{body}{STORE}"), 32).unwrap();
    assert_eq!(found, (0..32).map(|i| if i == 0 { 5 } else { 1 }).collect::<Vec<u32>>());
}

#[test]
fn shuffles_in_segments() {
    for (how, by, limits, expected) in [
        ("up", 3, 0, (|i| if i < 3 { i } else { i - 3 }) as fn(u32) -> u32),
        ("up", 2, 0x1800, |i| if i % 8 < 2 { i } else { i - 2 }),
        ("down", 3, 31, |i| if i > 28 { i } else { i + 3 }),
        ("down", 1, 0x1c03, |i| if i % 4 == 3 { i } else { i + 1 }),
        ("bfly", 5, 31, |i| i ^ 5),
        ("idx", 6, 31, |_| 6),
        ("idx", 2, 0x1807, |i| i / 8 * 8 + 2),
    ] {
        let body = format!("shfl.sync.{how}.b32 %r1, %r0, {by}, {limits}, -1; {STORE}");
        assert_eq!(words("", &body, 32).unwrap(), (0..32).map(expected).collect::<Vec<u32>>(), "{how} {by}");
    }
}

#[test]
fn special_registers_tell_the_place_and_the_time() {
    let text = format!(
        "{HEAD}.visible .entry where(.param .u64 out) {{
            .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p;
            mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
            mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
            mov.u32 %r2, %ntid.z; mov.u32 %r3, %tid.z; mad.lo.u32 %r1, %r1, %r2, %r3;
            mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
            mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
            ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r1, 32, %rd1;
            mov.u32 %r4, %smid; mov.u32 %r5, %nsmid; mov.u32 %r6, %laneid; mov.u32 %r7, %warpid;
            mov.u32 %r8, %lanemask_lt; mov.u32 %r9, %lanemask_ge; mov.u32 %r10, %nwarpid; mov.u32 %r11, %lanemask_eq;
            st.global.v4.u32 [%rd1], {{%r4, %r5, %r6, %r7}}; st.global.v4.u32 [%rd1+16], {{%r8, %r9, %r10, %r11}};
            ret;
        }}
        .visible .entry wait(.param .u64 out) {{
            .reg .b64 %rd<9>; .reg .pred %p; ld.param.u64 %rd1, [out];
            mov.u64 %rd2, %globaltimer; mov.u64 %rd5, %clock64;
            SPIN: mov.u64 %rd3, %globaltimer; sub.u64 %rd4, %rd3, %rd2; setp.lt.u64 %p, %rd4, 5000000; @%p bra SPIN;
            mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5; st.global.u64 [%rd1], %rd4; st.global.u64 [%rd1+8], %rd6;
            ret;
        }}"
    );
    let mut gpu = Gpu::default();
    let loaded = gpu.load(&text);
    let (grid, block) = ([2, 3, 2], [5, 4, 3]);
    let out = gpu.words(&vec![0; 12 * 60 * 8]);
    gpu.launch(&loaded, "where", Shape(grid, block, 0), &[out]).unwrap();
    for (index, found) in gpu.get_words(out, 12 * 60 * 8).chunks(8).enumerate() {
        let (block, thread) = ((index / 60) as u32, (index % 60) as u32);
        let bit = 1u32 << (thread % 32);
        let expected = [block % 4, 4, thread % 32, thread / 32, bit - 1, !(bit - 1), 2, bit];
        assert_eq!(found, expected, "{index}");
    }
    let took = gpu.launch(&loaded, "wait", Shape([1; 3], [32, 1, 1], 0), &[out]).unwrap();
    let found = gpu.get_longs(out, 2);
    assert!(
        (5_000_000..5_010_000).contains(&found[0]) && (4_990_000..5_010_000).contains(&found[1]),
        "{found:?}"
    );
    assert!((4_995_000..5_010_000).contains(&took[0]), "{took:?}");
}

#[test]
fn memory_of_each_space() {
    // Vectors, signs, and generic addresses of shared, local and parameter memory.
    let before = ".shared .align 16 .b8 tile[64]; .extern .shared .align 128 .b8 rest[];
        .const .align 4 .u32 table[4] = {10, 20, 30, 40}; .global .align 2 .u16 pair[2] = {1, 2};
        .global .u64 where = generic(pair)+2;";
    let body = ".local .align 16 .b8 own[32];
        mov.u32 %r1, tile; mov.u32 %r2, rest; sub.u32 %r3, %r2, %r1;
        mov.u64 %rd1, own; cvta.local.u64 %rd1, %rd1; st.v2.u32 [%rd1], {%r0, %r3}; ld.local.u32 %r4, [own+4];
        isspacep.local %p1, %rd1; isspacep.shared %p2, %rd1; @%p2 trap; @!%p1 trap;
        cvt.u64.u32 %rd2, %r2; cvta.shared.u64 %rd3, %rd2; st.u16 [%rd3+2], %r0; mov.u32 %r5, -2;
        st.shared.u16 [%r2], %r5; ld.shared.s16 %r5, [%r2]; ld.s8 %r6, [%rd3];
        add.u32 %r7, %r5, %r6; cvta.param.u64 %rd4, out; ld.u64 %rd5, [%rd4]; ld.param.u64 %rd6, [out];
        setp.ne.u64 %p3, %rd5, %rd6; @%p3 trap; ld.const.u32 %r8, [table+8]; ld.global.u64 %rd7, [where];
        ld.u16 %r9, [%rd7]; add.u32 %r1, %r4, %r7; add.u32 %r1, %r1, %r8; add.u32 %r1, %r1, %r9;";
    // The dynamic memory begins behind the other, at a multiple of 128.
    assert_eq!(words(before, &format!("{body}{STORE}"), 1).unwrap(), [128 - 2 - 2 + 30 + 2]);
    // Copies from global to shared memory, one with bytes left out.
    let before = ".shared .align 16 .b8 tile[64]; .global .align 16 .u32 from[8] = {1, 2, 3, 4, 5, 6, 7, 8};";
    let body = "mov.u32 %r2, tile; mov.u64 %rd1, from; mov.u32 %r3, 9; cp.async.cg.shared.global [%r2], [%rd1+16], 16;
        cp.async.ca.shared.global.L2::128B [%r2+16], [%rd1], 16, %r3; cp.async.commit_group; cp.async.wait_group 0;
        ld.shared.u32 %r4, [tile+8]; ld.shared.u32 %r5, [tile+24]; mad.lo.u32 %r1, %r4, 1000, %r5;";
    assert_eq!(words(before, &format!("{body}{STORE}"), 1).unwrap(), [7_003]);
}

#[test]
fn atomic_operations_return_what_was_there() {
    let before = ".global .align 8 .u64 word = 5; .shared .u32 near;";
    for (operation, ty, operands, last, old) in [
        ("add", "u32", "3", 8, 5),
        ("min", "s32", "-1", 0xffff_ffff, 5),
        ("max", "u32", "4", 5, 5),
        ("and", "b32", "4", 4, 5),
        ("or", "b32", "8", 13, 5),
        ("xor", "b32", "1", 4, 5),
        ("inc", "u32", "5", 0, 5),
        ("inc", "u32", "6", 6, 5),
        ("dec", "u32", "9", 4, 5),
        ("dec", "u32", "3", 3, 5),
        ("exch", "b32", "77", 77, 5),
        ("cas", "b32", "5, 9", 9, 5),
        ("cas", "b32", "6, 9", 5, 5),
        ("add", "u64", "3", 8, 5),
        ("max", "s64", "-3", 5, 5),
    ] {
        let (letter, cast) = if ty.ends_with("64") { ("rd", "cvt.u32.u64") } else { ("r", "mov.b32") };
        let body = format!(
            "atom.global.gpu.relaxed.{operation}.{ty} %{letter}2, [word], {operands};
            ld.global.{ty} %{letter}3, [word]; {cast} %r4, %{letter}2; {cast} %r5, %{letter}3;
            setp.ne.u32 %p1, %r4, {old}; @%p1 trap; mov.u32 %r1, %r5; {STORE}"
        );
        assert_eq!(words(before, &body, 1).unwrap(), [last], "{operation}.{ty} {operands}");
    }
    let body = "st.shared.f32 [near], 0f3F800000; atom.shared.add.f32 %f1, [near], 0f40000000;
        ld.shared.f32 %f2, [near]; cvt.rni.s32.f32 %r1, %f2;";
    assert_eq!(words(before, &format!("{body}{STORE}"), 1).unwrap(), [3]);
}

#[test]
fn faults_end_the_kernel() {
    let fault = |body: &str| words("", body, 32).unwrap_err();
    assert_eq!(fault("mov.u64 %rd1, 4096; st.global.u32 [%rd1], 1; ret;"), Fault::IllegalAddress(4096));
    assert_eq!(fault("ld.global.u32 %r1, [4098]; ret;"), Fault::Misaligned(4098));
    assert_eq!(fault("ld.shared.u32 %r1, [64]; ret;"), Fault::IllegalAddress(64));
    assert_eq!(fault("setp.eq.u32 %p1, %r0, 9; @%p1 trap; ret;"), Fault::Trap);
    assert_eq!(fault("bar.sync 16; ret;"), Fault::BadBarrier(16));
    assert_eq!(fault("mov.u64 %rd1, 64; call (%r1), %rd1, (%r0); ret;"), Fault::BadCall(64));
    let recursive = ".func down() { call.uni down, (); ret; }";
    assert_eq!(words(recursive, "call.uni down, (); ret;", 32).unwrap_err(), Fault::StackOverflow);
    let asserts = ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);";
    let body = "call.uni __assertfail, (%rd1, %rd1, %r1, %rd1, %rd1); ret;";
    assert_eq!(words(asserts, body, 32).unwrap_err(), Fault::Assertion);
    // Some wait at a barrier, the others for them in a shuffle.
    let body = "setp.lt.u32 %p1, %r0, 8; @%p1 bra AT; shfl.sync.up.b32 %r1, %r0, 1, 0, -1; ret; AT: bar.sync 0; ret;";
    assert_eq!(fault(body), Fault::Deadlock { at_barriers: 8, in_warps: 24 });
}

#[test]
fn a_fault_names_kernel_block_and_place() {
    let mut gpu = Gpu::default();
    let loaded =
        gpu.load(&module("", "mov.u32 %r1, %ctaid.x;\nsetp.eq.u32 %p1, %r1, 2;\n  @%p1 trap;\nret;"));
    let failure = gpu.launch(&loaded, "test", Shape([4, 1, 1], [32, 1, 1], 0), &[0]).unwrap_err();
    assert_eq!(failure.to_string(), "kernel 'test', block 2, line 8, column 3: trap");
}

#[test]
fn what_is_not_simulated_is_refused_by_name() {
    for (statement, subject, reason) in [
        ("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned", "tensor cores"),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};",
            "mma.sync",
            "tensor cores",
        ),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r1];", "ldmatrix", "tensor cores"),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [here, {%f1, %f2}];", "tex.2d", "textures"),
        ("suld.b.2d.b32.trap {%r1}, [here, {%r1, %r2}];", "suld", "surfaces"),
        ("mapa.u64 %rd1, %rd2, 1;", "mapa.u64", "clusters"),
        ("barrier.cluster.arrive;", "barrier.cluster", "clusters"),
        ("cp.async.bulk.commit_group;", "cp.async.bulk", "tensor memory accelerator"),
        ("mbarrier.init.shared.b64 [%rd1], 1;", "mbarrier.init", "asynchronous barriers"),
        ("nonsense.u32 %r1;", "nonsense.u32", "does not know"),
        ("add.rn.u32 %r1, %r1, %r1;", "add.rn.u32", "not simulated for the type .u32"),
        ("add.odd.u32 %r1, %r1, %r1;", "add.odd.u32", "modifier '.odd'"),
        ("add.u32 %r1, %r1;", "add.u32", "2 operands"),
        ("add.u32 %r1, %x, 1;", "add.u32", "'%x' is not declared"),
        ("add.u32 %r20, %r1, 1;", "add.u32", "'%r20' is no declared register"),
        ("bra NOWHERE;", "bra", "there is no label 'NOWHERE'"),
        ("call.uni vprintf, (%rd1, %rd1);", "call.uni", "'vprintf' is not declared"),
        ("ld.global.v4.u32 {%r1, %r2}, [%rd1];", "ld.global.v4.u32", "2 registers for 4 elements"),
    ] {
        let text = module("", &format!("ret;\n{statement}"));
        let parsed = Module::parse(&text).unwrap();
        let error = Kernel::new(&parsed, "test", &Default::default()).map(drop).unwrap_err();
        assert!(error.subject.starts_with(subject) && error.reason.contains(reason), "{error}");
        assert_eq!(error.at.line, 7, "{error}");
    }
}

fn launch(text: &str, threads: u32, out: u64) -> (Launch, Block) {
    let module = Module::parse(text).unwrap();
    let kernel = Arc::new(Kernel::new(&module, "test", &Default::default()).unwrap());
    let launch = Launch {
        kernel,
        params: out.to_le_bytes().to_vec(),
        grid: [1; 3],
        block: [threads, 1, 1],
        dynamic_shared: 0,
        number: 1,
        sms: 1,
        clock_khz: 1_000_000,
    };
    let block = Block::new(&launch, Start { block: 0, sm: 0, at_ns: 0 });
    (launch, block)
}

#[test]
fn a_kernel_without_end_runs_in_slices_until_its_word_changes() {
    let body = "AGAIN: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra AGAIN; ret;";
    let mut gpu = Gpu::default();
    let word = gpu.words(&[0; 32]);
    let (launch, mut block) = launch(&module("", body), 32, word);
    for _ in 0..100 {
        assert_eq!(block.run(&launch, &mut gpu, 1_000), Ok(Progress::Running));
    }
    block.catch_up(&launch, 7_000_000_000);
    assert!(block.elapsed_ns(&launch) >= 7_000_000_000);
    gpu.memory[..128].fill(1);
    assert_eq!(block.run(&launch, &mut gpu, 1_000), Ok(Progress::Done));
}

/// Says how fast the interpreter is on this machine; that it is correct is tested elsewhere.
#[test]
fn speed() {
    let body = "mov.u32 %r1, 0; mov.f32 %f1, 0f3F800000;
        LOOP: fma.rn.f32 %f1, %f1, %f1, %f1; xor.b32 %r2, %r1, %r0; add.u32 %r3, %r3, %r2; add.u32 %r1, %r1, 1;
        setp.lt.u32 %p1, %r1, 20000; @%p1 bra LOOP; st.global.u32 [%rd0], %r3; ret;";
    let mut gpu = Gpu::default();
    let out = gpu.words(&[0; 256]);
    let (launch, mut block) = launch(&module("", body), 256, out);
    let began = Instant::now();
    while block.run(&launch, &mut gpu, 1_000_000).unwrap() == Progress::Running {}
    let rate = (block.issued() * 32) as f64 / began.elapsed().as_secs_f64() / 1e6;
    println!("{} instructions of warps; {rate:.0} million instructions of threads a second", block.issued());
    assert_eq!(block.issued(), 8 * (20_000 * 6 + 7));
}

/// Kernels with numbers, names and modifiers exchanged, cut and repeated.
fn damaged() -> impl Strategy<Value = String> {
    let texts = vec![
        include_str!("../../../../crates/partita-ptx/tests/ptx/kernels/samples.ptx"),
        include_str!("../../../../crates/partita-abi/src/workloads.ptx"),
    ];
    let swap = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (prop::sample::select(texts), prop::collection::vec(swap, 1..12)).prop_map(|(text, swaps)| {
        let mut words: Vec<&str> = text.split_inclusive([' ', '\t', '\n', ',', '.']).collect();
        for (a, b) in swaps {
            let (a, b) = (a.index(words.len()), b.index(words.len()));
            words[a] = words[b];
        }
        words.concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn damaged_kernels_are_refused_or_end_or_run_in_slices(text in damaged(), threads in 1..130u32) {
        let Ok(module) = Module::parse(&text) else { return Ok(()) };
        let mut gpu = Gpu::default();
        let memory = gpu.bytes(&[3; 4_096]);
        let symbols = module.variables().map(|variable| (variable.name.clone(), memory)).collect();
        for variable in module.variables().filter(|variable| variable.bytes().is_some_and(|n| n < 1 << 20)) {
            let _ = initial_bytes(variable, |_| Some(memory));
        }
        for entry in module.functions().filter(|function| function.is_entry) {
            let Ok(kernel) = Kernel::new(&module, &entry.name, &symbols) else { continue };
            if kernel.shared_bytes() > 1 << 16 {
                continue;
            }
            let params = memory.to_le_bytes().into_iter().cycle().take(kernel.param_bytes() as usize).collect();
            let launch = Launch {
                kernel: Arc::new(kernel),
                params,
                grid: [3, 2, 1],
                block: [threads, 1, 1],
                dynamic_shared: 1_024,
                number: 1,
                sms: 4,
                clock_khz: 1_000_000,
            };
            let mut block = Block::new(&launch, Start { block: 4, sm: 1, at_ns: u64::MAX / 2 });
            for _ in 0..3 {
                if block.run(&launch, &mut gpu, 2_000) != Ok(Progress::Running) {
                    break;
                }
                block.catch_up(&launch, u64::MAX);
            }
        }
    }
}

/// `PARTITA_PTX_CASES` sets how many texts are damaged.
fn cases() -> u32 {
    std::env::var("PARTITA_PTX_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
}
