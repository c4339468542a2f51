//! Random kernels, as they are and rewritten: both leave the same memory.

use std::collections::BTreeSet;
use std::fmt::Write;

use fastrand::Rng;

use crate::gpu::{Gpu, Shape, Turns};

/// Kernels in a short run, and in a long one.
const KERNELS: [u64; 2] = [1_500, 100_000];
/// Registers of values.
const REGISTERS: u32 = 8;
/// Bytes of shared memory.
const SHARED: u32 = 1_024;

/// Writes a kernel in which all threads of a block take the same way to each meeting.
struct Writer {
    rng: Rng,
    text: String,
    labels: u32,
    counters: u32,
}

impl Writer {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "    {line}");
    }

    fn register(&mut self) -> String {
        format!("%v{}", self.rng.u32(0..REGISTERS))
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("$L{}", self.labels)
    }

    /// A value that each thread has for itself.
    fn arithmetic(&mut self) {
        let (to, a, b) = (self.register(), self.register(), self.register());
        let odd = self.rng.u32(..) | 1;
        let special = ["%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%tid.x"];
        let special = special[self.rng.usize(..special.len())];
        match self.rng.u32(..9) {
            0 => self.line(&format!("mad.lo.u32 {to}, {a}, {odd}, {b};")),
            1 => self.line(&format!("xor.b32 {to}, {a}, {b};")),
            2 => self.line(&format!("shf.l.wrap.b32 {to}, {a}, {b}, {};", odd % 32)),
            3 => self.line(&format!("mad.lo.u32 {to}, {special}, {odd}, {a};")),
            4 => self.line(&format!("mov.u32 {to}, {special}; add.u32 {to}, {to}, {b};")),
            5 => self.line(&format!("call.uni ({to}), mix, ({a}, {b});")),
            6 => self.line(&format!("st.local.u32 [own+4], {a}; ld.local.u32 {to}, [own+4]; sub.u32 {to}, {to}, {b};")),
            7 => self.line(&format!("cvt.u64.u32 %w0, {special}; mul.lo.u64 %w0, %w0, {odd}; cvt.u32.u64 %k0, %w0; xor.b32 {to}, {a}, %k0;")),
            _ => self.line(&format!("and.b32 %k0, {a}, 252; cvt.u64.u32 %w0, %k0; add.u64 %w0, %w0, %in; ld.global.u32 %k0, [%w0]; add.u32 {to}, {b}, %k0;")),
        }
    }

    /// Adds to memory in a way that does not depend on the order of blocks.
    fn count(&mut self) {
        let (a, b) = (self.register(), self.register());
        self.line(&format!("and.b32 %k0, {a}, 60; cvt.u64.u32 %w0, %k0; add.u64 %w0, %w0, %sums;"));
        match self.rng.u32(..3) {
            0 => self.line(&format!("red.global.add.u32 [%w0], {b};")),
            1 => self.line(&format!("atom.global.max.u32 %k0, [%w0+64], {b};")),
            _ => self.line(&format!("red.global.xor.b32 [%w0+128], {b};")),
        }
    }

    /// Threads of the block meet, and pass values on.
    fn meet(&mut self) {
        let (a, to) = (self.register(), self.register());
        let by = self.rng.u32(1..64);
        match self.rng.u32(..4) {
            0 => {
                let bar = ["bar.sync 0;", "barrier.sync 0;", "bar.sync 3;"][self.rng.usize(..3)];
                self.line(&format!("st.shared.u32 [%mine], {a}; {bar}"));
                self.line(&format!(
                    "add.u32 %k0, %thread, {by}; rem.u32 %k0, %k0, %threads; shl.b32 %k0, %k0, 2;"
                ));
                self.line(&format!(
                    "mov.u32 %k1, tile; add.u32 %k0, %k0, %k1; ld.shared.u32 {to}, [%k0]; {bar}"
                ));
            }
            1 => self.line(&format!("setp.gt.u32 %p0, {a}, {}; bar.red.popc.u32 {to}, 0, %p0;", by << 25)),
            2 => self.line(&format!(
                "setp.gt.s32 %p0, {a}, 0; bar.red.or.pred %p1, 0, %p0; selp.u32 {to}, {by}, {a}, %p1;"
            )),
            _ => self
                .line(&format!("shfl.sync.bfly.b32 %k0, {a}, {}, 31, -1; add.u32 {to}, {to}, %k0;", by % 32)),
        }
    }

    /// Only some threads do something. They do not meet.
    fn part(&mut self, depth: u32) {
        let (a, over) = (self.register(), self.label());
        let bits = self.rng.u32(0..4);
        self.line(&format!("and.b32 %k0, {a}, {bits}; setp.eq.u32 %p0, %k0, 0; @%p0 bra {over};"));
        self.body(depth, false);
        self.line(&format!("{over}:"));
    }

    /// A loop. Threads meet inside only if all of them go round as often.
    fn rounds(&mut self, depth: u32, meets: bool) {
        self.counters += 1;
        let (counter, top) = (format!("%c{}", self.counters), self.label());
        let a = self.register();
        let limit = self.rng.u32(1..4);
        match meets {
            true => self.line(&format!("and.b32 {counter}, %nz, {limit};")),
            false => self.line(&format!("and.b32 {counter}, {a}, {limit};")),
        }
        self.line(&format!("{top}:"));
        self.body(depth, meets);
        // The rewriter does not follow a register from one value to the next.
        let goes_on = if meets { "%p2" } else { "%p0" };
        self.line(&format!(
            "sub.u32 {counter}, {counter}, 1; setp.gt.s32 {goes_on}, {counter}, 0; @{goes_on} bra {top};"
        ));
    }

    fn body(&mut self, depth: u32, meets: bool) {
        for _ in 0..self.rng.u32(1..6) {
            match self.rng.u32(..12) {
                0 if depth > 0 => self.part(depth - 1),
                1 if depth > 0 => self.rounds(depth - 1, meets),
                2 => self.count(),
                3 if depth > 0 => {
                    self.line("{ .reg .b32 %k0; mov.u32 %k0, %ctaid.x; add.u32 %v0, %v0, %k0; }");
                }
                // The block as a whole ends.
                4 if meets => {
                    let (x, end) = (self.rng.u32(..4), ["ret", "exit"][self.rng.usize(..2)]);
                    self.line(&format!("setp.eq.u32 %p2, %ctaid.x, {x}; @%p2 {end};"));
                }
                5..8 if meets => self.meet(),
                _ => self.arithmetic(),
            }
        }
    }

    fn kernel(seed: u64) -> String {
        let mut writer = Self { rng: Rng::with_seed(seed), text: String::new(), labels: 0, counters: 0 };
        writer.body(3, true);
        let out = "mul.wide.u32 %w0, %index, 4; add.u64 %w0, %w0, %out;";
        writer.line(out);
        writer.line("st.global.u32 [%w0], %v0;");
        // From here on threads end as they like.
        writer.line("and.b32 %k0, %v1, 3; setp.eq.u32 %p0, %k0, 1; @%p0 exit;");
        writer.body(2, false);
        writer.line("setp.gt.u32 %p0, %v2, 9999999; @%p0 ret;");
        writer.line(out);
        for register in 0..REGISTERS {
            writer.line(&format!("mad.lo.u32 %v0, %v0, 31, %v{register};"));
        }
        writer.line("st.global.u32 [%w0], %v0;");
        if writer.rng.bool() {
            writer.line("ret;");
        }
        let start: String = (0..REGISTERS)
            .map(|register| {
                format!("    mad.lo.u32 %v{register}, %index, {}, {register};\n", 2 * seed % 999 + 1)
            })
            .collect();
        format!(
            ".version 8.0 .target sm_90 .address_size 64
.func (.reg .b32 %r) mix(.reg .b32 %a, .reg .b32 %b) {{ mad.lo.u32 %r, %a, 7, %b; ret; }}
.visible .entry test(.param .u64 in, .param .u64 out, .param .u64 sums, .param .u32 n, .param .u64 places) {{
    .reg .pred %p<3>; .reg .b64 %w0, %in, %out, %sums, %places;
    .reg .b32 %v<{REGISTERS}>, %k<2>, %c<{}>, %index, %thread, %threads, %mine, %block, %nz;
    .shared .align 4 .b8 tile[{SHARED}]; .local .align 4 .b8 own[8];
    ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; ld.param.u64 %sums, [sums]; ld.param.u32 %nz, [n];
    ld.param.u64 %places, [places];
    mov.u32 %thread, %tid.z; mov.u32 %k0, %ntid.y; mov.u32 %k1, %tid.y; mad.lo.u32 %thread, %thread, %k0, %k1;
    mov.u32 %k0, %ntid.x; mov.u32 %k1, %tid.x; mad.lo.u32 %thread, %thread, %k0, %k1;
    mov.u32 %threads, %ntid.z; mov.u32 %k1, %ntid.y; mul.lo.u32 %threads, %threads, %k1; mul.lo.u32 %threads, %threads, %k0;
    mov.u32 %block, %ctaid.z; mov.u32 %k0, %nctaid.y; mov.u32 %k1, %ctaid.y; mad.lo.u32 %block, %block, %k0, %k1;
    mov.u32 %k0, %nctaid.x; mov.u32 %k1, %ctaid.x; mad.lo.u32 %block, %block, %k0, %k1;
    mad.lo.u32 %index, %block, %threads, %thread;
    mul.wide.u32 %w0, %block, 4; add.u64 %w0, %w0, %places; mov.u32 %k0, %smid; add.u32 %k0, %k0, 1; st.global.u32 [%w0], %k0;
    mov.u32 %mine, tile; shl.b32 %k0, %thread, 2; add.u32 %mine, %mine, %k0; st.shared.u32 [%mine], %index; st.local.u32 [own+4], %index;
    bar.sync 0;
{start}{}}}\n",
            writer.counters + 1,
            writer.text
        )
    }
}

/// What a launch leaves: the results and sums, and the SM of each block.
fn left(text: &str, turns: Option<Turns>, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let mut rng = Rng::with_seed(seed);
    let grid = [rng.u32(1..6), rng.u32(1..4), rng.u32(1..3)];
    let block = [rng.u32(1..40), rng.u32(1..3), rng.u32(1..3)];
    let blocks: u32 = grid.iter().product();
    let threads = blocks * block.iter().product::<u32>();
    let mut gpu = Gpu { turns, ..Gpu::default() };
    let loaded = gpu.load(text);
    let input = gpu.words(&(0..64).map(|_| rng.u32(..)).collect::<Vec<u32>>());
    let out = gpu.words(&vec![77; threads as usize]);
    let sums = gpu.words(&[0; 64]);
    let places = gpu.words(&vec![0; blocks as usize]);
    let params = [input, out, sums, rng.u64(0..4), places];
    gpu.launch(&loaded, "test", Shape(grid, block, 0), &params).unwrap_or_else(|failure| panic!("{failure}"));
    let mut found = gpu.get_words(out, threads as usize);
    found.extend(gpu.get_words(sums, 64));
    (found, gpu.get_words(places, blocks as usize))
}

/// Places of the device's blocks, and sets that change while the kernel runs.
fn some_turns(seed: u64) -> Turns {
    let mut rng = Rng::with_seed(!seed);
    // At least one block reaches each SM, as on a device that holds no others.
    let mut places: Vec<u32> = (0..4).chain((0..rng.u32(0..9)).map(|_| rng.u32(0..4))).collect();
    rng.shuffle(&mut places);
    let mut set = || loop {
        let set: Vec<u32> = (0..4).filter(|_| rng.bool()).collect();
        if !set.is_empty() {
            return set;
        }
    };
    let mut sets = vec![(0, set())];
    let mut from = 0;
    for _ in 0..seed % 4 {
        from += 1 + seed % 97;
        sets.push((from, set()));
    }
    Turns { places, slice: rng.u64(20..400), sets }
}

#[test]
fn random_kernels_compute_the_same() {
    let count = KERNELS[usize::from(partita_testing::is_long())];
    let (mut outside, mut changed) = (0, 0);
    for seed in 0..count {
        let text = Writer::kernel(seed);
        let turns = some_turns(seed);
        let (original, _) = left(&text, None, seed);
        let (rewritten, places) = left(&text, Some(turns.clone()), seed);
        assert_eq!(original, rewritten, "seed {seed}, {turns:?}\n{text}");
        assert!(places.iter().all(|place| *place != 0), "seed {seed}: every block ran");
        if turns.sets.len() == 1 {
            let set: BTreeSet<u32> = turns.sets[0].1.iter().copied().collect();
            outside += places.iter().filter(|place| !set.contains(&(*place - 1))).count();
        } else {
            changed += 1;
        }
    }
    println!(
        "{count} random kernels: 0 different, {outside} blocks outside of a set; {changed} with sets \
         that changed"
    );
    assert_eq!(outside, 0);
}
