//! Each group of instructions against Rust's own arithmetic, over the edges of the types and other
//! values.
#![allow(
    clippy::double_comparisons,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "comparisons with NaN, spelt as the language describes them"
)]
#![allow(clippy::type_complexity, clippy::precedence, reason = "tables of operators and bit fields")]

use crate::gpu::{Gpu, Shape};

/// A value for each thread: operands and result.
type Row = [u64; 3];

/// Runs statements for each row. They find the operands in `%a`, `%b` and `%c` with the letter of
/// their width behind (`h` for 16, `w` for 32, `l` for 64 bits), and put the result into `%dh`,
/// `%dw`, `%dl` or the predicate `%p`, of so many bits.
fn run(statements: &str, bits: u32, rows: &[Row]) -> Vec<u64> {
    let store = match bits {
        1 => "selp.u64 %dl, 1, 0, %p;",
        16 => "cvt.u64.u16 %dl, %dh;",
        32 => "cvt.u64.u32 %dl, %dw;",
        _ => "",
    };
    let text = format!(
        ".version 8.7 .target sm_90 .address_size 64
        .visible .entry test(.param .u64 rows, .param .u64 results, .param .u32 count) {{
            .reg .pred %p, %q; .reg .b16 %ah, %bh, %ch, %dh; .reg .b32 %aw, %bw, %cw, %dw, %i, %n;
            .reg .b64 %al, %bl, %cl, %dl, %at; .reg .b32 %t<5>; .reg .b64 %u<5>;
            mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %aw, %tid.x; mad.lo.u32 %i, %i, %n, %aw;
            ld.param.u32 %n, [count]; setp.ge.u32 %p, %i, %n; @%p ret;
            ld.param.u64 %at, [rows]; mad.wide.u32 %at, %i, 24, %at;
            ld.global.u64 %al, [%at]; ld.global.u64 %bl, [%at+8]; ld.global.u64 %cl, [%at+16];
            cvt.u32.u64 %aw, %al; cvt.u32.u64 %bw, %bl; cvt.u32.u64 %cw, %cl;
            cvt.u16.u64 %ah, %al; cvt.u16.u64 %bh, %bl; cvt.u16.u64 %ch, %cl;
            setp.ne.u64 %p, %cl, 0; setp.ne.u64 %q, %cl, 0;
            mov.u64 %dl, 0; mov.u32 %dw, 0; mov.b16 %dh, 0;
            {statements}
            {store}
            ld.param.u64 %at, [results]; mad.wide.u32 %at, %i, 8, %at; st.global.u64 [%at], %dl;
            ret;
        }}"
    );
    let mut gpu = Gpu::default();
    let loaded = gpu.load(&text);
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    let (at, results) = (gpu.bytes(&bytes), gpu.bytes(&vec![0; rows.len() * 8]));
    let blocks = rows.len().div_ceil(128) as u32;
    let shape = Shape([blocks, 1, 1], [128, 1, 1], 0);
    gpu.launch(&loaded, "test", shape, &[at, results, rows.len() as u64]).unwrap();
    gpu.get_longs(results, rows.len())
}

const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    31,
    33,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
    0x0123_4567_89ab_cdef,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

fn rows() -> Vec<Row> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 29
    };
    let pairs = EDGES.iter().flat_map(|a| EDGES.iter().map(move |b| (*a, *b)));
    let edges: Vec<Row> = pairs.enumerate().map(|(i, (a, b))| [a, b, EDGES[i * 7 % EDGES.len()]]).collect();
    edges.into_iter().chain((0..400).map(|_| [random(), random(), random()])).collect()
}

fn check(statements: &str, bits: u32, expected: impl Fn(u64, u64, u64) -> u64) {
    check_rows(statements, bits, &rows(), expected);
}

fn check_rows(statements: &str, bits: u32, rows: &[Row], expected: impl Fn(u64, u64, u64) -> u64) {
    for (row, found) in rows.iter().zip(run(statements, bits, rows)) {
        let [a, b, c] = *row;
        let expected = expected(a, b, c);
        assert_eq!(found, expected, "{statements} of {a:#x}, {b:#x}, {c:#x}: {found:#x}, not {expected:#x}");
    }
}

macro_rules! integers {
    ($($ty:ident $signed:ident $bits:literal $letter:literal $u:literal $s:literal;)*) => {$({
        let op = |name: &str, ty: &str, operands: &str| {
            let list: String = operands.chars().map(|o| format!(", %{o}{}", $letter)).collect();
            format!("{name}.{ty} %d{}{list};", $letter)
        };
        let two = |name: &str, ty: &str, f: &dyn Fn($ty, $ty) -> $ty| {
            check(&op(name, ty, "ab"), $bits, |a, b, _| f(a as $ty, b as $ty) as u64);
        };
        let signed = |name: &str, f: &dyn Fn($signed, $signed) -> $signed| {
            check(&op(name, $s, "ab"), $bits, |a, b, _| f(a as $signed, b as $signed) as $ty as u64);
        };
        two("add", $u, &|a, b| a.wrapping_add(b));
        two("sub", $s, &|a, b| a.wrapping_sub(b));
        two("mul.lo", $u, &|a, b| a.wrapping_mul(b));
        two("mul.hi", $u, &|a, b| (u128::from(a) * u128::from(b) >> $bits) as $ty);
        signed("mul.hi", &|a, b| (i128::from(a) * i128::from(b) >> $bits) as $signed);
        two("div", $u, &|a, b| a.checked_div(b).unwrap_or(!0));
        two("rem", $u, &|a, b| a.checked_rem(b).unwrap_or(a));
        signed("div", &|a, b| if b == 0 { -1 } else { a.wrapping_div(b) });
        signed("rem", &|a, b| if b == 0 { a } else { a.wrapping_rem(b) });
        two("min", $u, &|a, b| a.min(b));
        two("max", $u, &|a, b| a.max(b));
        signed("min", &|a, b| a.min(b));
        signed("max", &|a, b| a.max(b));
        let one = |name: &str, ty: &str, f: &dyn Fn($ty) -> $ty| {
            check(&op(name, ty, "a"), $bits, |a, _, _| f(a as $ty) as u64);
        };
        one("abs", $s, &|a| (a as $signed).wrapping_abs() as $ty);
        one("neg", $s, &|a| a.wrapping_neg());
        let bits = concat!("b", stringify!($bits));
        two("and", bits, &|a, b| a & b);
        two("or", bits, &|a, b| a | b);
        two("xor", bits, &|a, b| a ^ b);
        one("not", bits, &|a| !a);
        one("cnot", bits, &|a| <$ty>::from(a == 0));
        let sad = format!("sad.{} %d{l}, %a{l}, %b{l}, %c{l};", $s, l = $letter);
        check(&sad, $bits, |a, b, c| {
            (a as $signed).abs_diff(b as $signed).wrapping_add(c as $ty) as u64
        });
        let mad = format!("mad.lo.{} %d{l}, %a{l}, %b{l}, %c{l};", $u, l = $letter);
        check(&mad, $bits, |a, b, c| (a as $ty).wrapping_mul(b as $ty).wrapping_add(c as $ty) as u64);
        let shift = |name: &str, ty: &str, f: &dyn Fn($ty, u32) -> $ty| {
            let text = format!("{name}.{ty} %d{l}, %a{l}, %bw;", l = $letter);
            check(&text, $bits, |a, b, _| f(a as $ty, b as u32) as u64);
        };
        shift("shl", bits, &|a, b| a.checked_shl(b).unwrap_or(0));
        shift("shr", $u, &|a, b| a.checked_shr(b).unwrap_or(0));
        shift("shr", $s, &|a, b| (a as $signed >> b.min($bits - 1)) as $ty);
        for (name, f) in [
            ("eq", (|o| o.is_eq()) as fn(std::cmp::Ordering) -> bool),
            ("ne", |o| o.is_ne()),
            ("lt", |o| o.is_lt()),
            ("le", |o| o.is_le()),
            ("gt", |o| o.is_gt()),
            ("ge", |o| o.is_ge()),
        ] {
            let l = $letter;
            check(&format!("setp.{name}.{} %p, %a{l}, %b{l};", $u), 1, |a, b, _| {
                u64::from(f((a as $ty).cmp(&(b as $ty))))
            });
            check(&format!("setp.{name}.{} %p, %a{l}, %b{l};", $s), 1, |a, b, _| {
                u64::from(f((a as $signed).cmp(&(b as $signed))))
            });
        }
    })*};
}

#[test]
fn integers_of_each_width() {
    integers! {
        u16 i16 16 "h" "u16" "s16";
        u32 i32 32 "w" "u32" "s32";
        u64 i64 64 "l" "u64" "s64";
    }
}

#[test]
fn wide_and_carried_sums_and_products() {
    check("mul.wide.u32 %dl, %aw, %bw;", 64, |a, b, _| u64::from(a as u32) * u64::from(b as u32));
    check("mul.wide.s32 %dl, %aw, %bw;", 64, |a, b, _| (i64::from(a as i32) * i64::from(b as i32)) as u64);
    check("mul.wide.s16 %dw, %ah, %bh;", 32, |a, b, _| {
        u64::from((i32::from(a as i16) * i32::from(b as i16)) as u32)
    });
    check("mad.wide.s32 %dl, %aw, %bw, %cl;", 64, |a, b, c| {
        (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
    });
    check("mul24.lo.s32 %dw, %aw, %bw;", 32, |a, b, _| {
        let low = |x: u64| i64::from((x as i32) << 8 >> 8);
        u64::from((low(a) * low(b)) as u32)
    });
    check("mul24.hi.u32 %dw, %aw, %bw;", 32, |a, b, _| {
        let low = |x: u64| x & 0xff_ffff;
        u64::from((low(a) * low(b) >> 16) as u32)
    });
    check("add.sat.s32 %dw, %aw, %bw;", 32, |a, b, _| u64::from((a as i32).saturating_add(b as i32) as u32));
    check("sub.sat.s32 %dw, %aw, %bw;", 32, |a, b, _| u64::from((a as i32).saturating_sub(b as i32) as u32));
    // 128 bits: the halves are a and b, and c and a.
    let sum = "add.cc.u64 %dl, %al, %cl; addc.u64 %dl, %bl, %al;";
    check(sum, 64, |a, b, c| {
        let left = u128::from(b) << 64 | u128::from(a);
        (left.wrapping_add(u128::from(a) << 64 | u128::from(c)) >> 64) as u64
    });
    let difference = "sub.cc.u64 %dl, %al, %cl; subc.cc.u64 %dl, %bl, %al;";
    check(difference, 64, |a, b, c| {
        let left = u128::from(b) << 64 | u128::from(a);
        (left.wrapping_sub(u128::from(a) << 64 | u128::from(c)) >> 64) as u64
    });
    let product = "mad.lo.cc.u32 %t0, %aw, %bw, %cw; madc.hi.u32 %dw, %aw, %bw, 5;";
    check(product, 32, |a, b, c| {
        let product = u64::from(a as u32) * u64::from(b as u32);
        let sum = (product & 0xffff_ffff) + u64::from(c as u32);
        ((product >> 32) + (sum >> 32) + 5) & 0xffff_ffff
    });
    for (name, signs) in [("u32.u32", (0, 0)), ("s32.u32", (1, 0)), ("u32.s32", (0, 1)), ("s32.s32", (1, 1))]
    {
        check(&format!("dp4a.{name} %dw, %aw, %bw, %cw;"), 32, |a, b, c| {
            let part = |x: u64, at: u32, signed: i32| {
                let byte = (x >> (8 * at)) as u8;
                if signed == 1 { i32::from(byte as i8) } else { i32::from(byte) }
            };
            let sum: i32 = (0..4).map(|at| part(a, at, signs.0) * part(b, at, signs.1)).sum();
            u64::from((c as i32).wrapping_add(sum) as u32)
        });
    }
}

#[test]
fn bits_and_bytes() {
    check("popc.b64 %dw, %al;", 32, |a, _, _| u64::from(a.count_ones()));
    check("clz.b32 %dw, %aw;", 32, |a, _, _| u64::from((a as u32).leading_zeros()));
    check("clz.b64 %dw, %al;", 32, |a, _, _| u64::from(a.leading_zeros()));
    check("brev.b32 %dw, %aw;", 32, |a, _, _| u64::from((a as u32).reverse_bits()));
    check("brev.b64 %dl, %al;", 64, |a, _, _| a.reverse_bits());
    check("bfind.u32 %dw, %aw;", 32, |a, _, _| u64::from((a as u32).checked_ilog2().unwrap_or(u32::MAX)));
    check("bfind.shiftamt.s64 %dw, %al;", 32, |a, _, _| {
        let bits = if (a as i64) < 0 { !a } else { a };
        u64::from(bits.checked_ilog2().map_or(u32::MAX, |place| 63 - place))
    });
    // One bit after the other, as the language's description has it.
    let field = |value: u64, width: u64, b: u64, c: u64, signed: bool| {
        let (from, length) = (b & 255, c & 255);
        let sign = if !signed || length == 0 { 0 } else { value >> (from + length - 1).min(width - 1) & 1 };
        (0..width).fold(0, |all, bit| {
            let is_inside = bit < length && from + bit < width;
            all | (if is_inside { value >> (from + bit) & 1 } else { sign }) << bit
        })
    };
    check("bfe.u32 %dw, %aw, %bw, %cw;", 32, |a, b, c| field(a & 0xffff_ffff, 32, b, c, false));
    check("bfe.s32 %dw, %aw, %bw, %cw;", 32, |a, b, c| field(a & 0xffff_ffff, 32, b, c, true));
    check("bfe.s64 %dl, %al, %bw, %cw;", 64, |a, b, c| field(a, 64, b, c, true));
    let insert = |what: u64, into: u64, width: u64, c: u64, d: u64| {
        (c & 255..)
            .take((d & 255) as usize)
            .enumerate()
            .take_while(|(_, to)| *to < width)
            .fold(into, |all, (from, to)| {
                all & !(1 << to) | (what.checked_shr(from as u32).unwrap_or(0) & 1) << to
            })
    };
    check("bfi.b32 %dw, %aw, %bw, %cw, 9;", 32, |a, b, c| insert(a, b & 0xffff_ffff, 32, c, 9));
    check("bfi.b64 %dl, %al, %bl, %cw, %cw;", 64, |a, b, c| insert(a, b, 64, c, c));
    for table in [0x00, 0x01, 0x2a, 0x80, 0x96, 0xca, 0xe8, 0xff] {
        check(&format!("lop3.b32 %dw, %aw, %bw, %cw, {table};"), 32, |a, b, c| {
            (0..32).fold(0, |all, bit| {
                let row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
                all | (table >> row & 1) << bit
            })
        });
    }
    let pair = |a: u64, b: u64| (b & 0xffff_ffff) << 32 | (a & 0xffff_ffff);
    check("shf.l.clamp.b32 %dw, %aw, %bw, %cw;", 32, |a, b, c| {
        (u128::from(pair(a, b)) << (c as u32).min(32) >> 32) as u64 & 0xffff_ffff
    });
    check("shf.l.wrap.b32 %dw, %aw, %bw, %cw;", 32, |a, b, c| {
        (u128::from(pair(a, b)) << (c & 31) >> 32) as u64 & 0xffff_ffff
    });
    check("shf.r.wrap.b32 %dw, %aw, %bw, %cw;", 32, |a, b, c| pair(a, b) >> (c & 31) & 0xffff_ffff);
    check("shf.r.clamp.b32 %dw, %aw, %bw, %cw;", 32, |a, b, c| {
        pair(a, b) >> (c as u32).min(32) & 0xffff_ffff
    });
    let byte = |a: u64, b: u64, which: u64| pair(a, b) >> (which % 8 * 8) & 255;
    check("prmt.b32 %dw, %aw, %bw, %cw;", 32, |a, b, c| {
        (0..4).fold(0, |all, place| {
            let control = c >> (place * 4) & 15;
            let byte = byte(a, b, control & 7);
            all | (if control > 7 { if byte > 127 { 255 } else { 0 } } else { byte }) << (place * 8)
        })
    });
    let modes: [(&str, fn(u64, u64) -> u64); 6] = [
        ("f4e", |c, i| c + i),
        ("b4e", |c, i| c + 8 - i),
        ("rc8", |c, _| c),
        ("ecl", |c, i| c.max(i)),
        ("ecr", |c, i| c.min(i)),
        ("rc16", |c, i| c % 2 * 2 + i % 2),
    ];
    for (mode, which) in modes {
        check(&format!("prmt.b32.{mode} %dw, %aw, %bw, %cw;"), 32, |a, b, c| {
            (0..4).fold(0, |all, i| all | byte(a, b, which(c % 4, i)) << (i * 8))
        });
    }
}

#[test]
fn selections_and_combined_predicates() {
    check("selp.b64 %dl, %al, %bl, %p;", 64, |a, b, c| if c == 0 { b } else { a });
    check("slct.u32.s32 %dw, %aw, %bw, %cw;", 32, |a, b, c| {
        (if c as i32 >= 0 { a } else { b }) & 0xffff_ffff
    });
    check("setp.lt.and.u32 %p, %aw, %bw, %q;", 1, |a, b, c| u64::from((a as u32) < b as u32 && c != 0));
    check("setp.lt.xor.s32 %p, %aw, %bw, !%q;", 1, |a, b, c| u64::from(((a as i32) < b as i32) ^ (c == 0)));
    // The guard is a destination, and the third operand the other one.
    check("@%p setp.eq.or.u32 %p|%q, %aw, %bw, %q; @%q not.pred %p, %p;", 1, |a, b, c| {
        let (equal, was) = (a as u32 == b as u32, c != 0);
        let (p, q) = if was { (equal || was, !equal || was) } else { (was, was) };
        u64::from(if q { !p } else { p })
    });
    check("set.gt.u32.s32 %dw, %aw, %bw;", 32, |a, b, _| if a as i32 > b as i32 { 0xffff_ffff } else { 0 });
    check("set.gt.f32.u32 %dw, %aw, %bw;", 32, |a, b, _| if a as u32 > b as u32 { 0x3f80_0000 } else { 0 });
    check("mov.b64 {%t0, %t1}, %al; mov.b64 %dl, {%t1, %t0};", 64, |a, _, _| a.rotate_left(32));
    check("mov.b32 {%ah, %bh}, %aw; mov.b64 %dl, {%bh, %ah, %ch, %dh};", 64, |a, _, c| {
        (a & 0xffff_ffff) >> 16 | (a & 0xffff) << 16 | (c & 0xffff) << 32
    });
}

const FLOATS: [f64; 26] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    0.1,
    -0.3,
    2.5,
    3.5,
    1e10,
    -1e10,
    1e-10,
    3.3e-44,
    1.2e-38,
    -1.2e-38,
    3.4028234e38,
    -3.4028234e38,
    1e300,
    -1e300,
    1e-310,
    16777217.0,
    4294967295.5,
    9.3e18,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

fn float_rows(of: fn(f64) -> u64) -> Vec<Row> {
    let mut state = 99u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = 2f64.powi((state >> 40) as i32 % 60 - 30);
        of((((state >> 11) as f64) / 9_007_199_254_740_992.0 - 0.5) * size)
    };
    let pairs = FLOATS.iter().flat_map(|a| FLOATS.iter().map(move |b| (*a, *b)));
    let edges: Vec<Row> =
        pairs.enumerate().map(|(i, (a, b))| [of(a), of(b), of(FLOATS[i * 11 % FLOATS.len()])]).collect();
    edges.into_iter().chain((0..1_000).map(|_| [random(), random(), random()])).collect()
}

fn single(x: f64) -> u64 {
    u64::from((x as f32).to_bits())
}

macro_rules! floats {
    ($float:ident $bits:literal $int:ident $letter:literal $name:literal $rows:expr) => {{
        let rows = $rows;
        let of = |x: u64| $float::from_bits(x as $int);
        // All NaNs are alike.
        let to = |x: $float| u64::from(if x.is_nan() { $float::NAN } else { x }.to_bits());
        let nan = to($float::NAN);
        let fix = |found: u64| if of(found).is_nan() { nan } else { found };
        let check = |text: &str, f: &dyn Fn($float, $float, $float) -> $float| {
            let operands = format!("%d{l}, %a{l}, %b{l}, %c{l}", l = $letter);
            let operands: Vec<&str> = operands.split(", ").collect();
            let (name, count) = text.split_once('/').unwrap();
            let list = operands[..=count.parse().unwrap()].join(", ");
            let text = format!("{name}.{} {list};", $name);
            for (row, found) in rows.iter().zip(run(&text, $bits, &rows)) {
                let [a, b, c] = row.map(of);
                assert_eq!(fix(found), to(f(a, b, c)), "{text} of {a:e}, {b:e}, {c:e}: {:e}", of(found));
            }
        };
        check("add.rn/2", &|a, b, _| a + b);
        check("sub.rn/2", &|a, b, _| a - b);
        check("mul.rn/2", &|a, b, _| a * b);
        check("div.rn/2", &|a, b, _| a / b);
        check("fma.rn/3", &|a, b, c| a.mul_add(b, c));
        check("sqrt.rn/1", &|a, _, _| a.sqrt());
        check("rcp.rn/1", &|a, _, _| 1.0 / a);
        check("neg/1", &|a, _, _| -a);
        check("abs/1", &|a, _, _| a.abs());
        check("min/2", &|a, b, _| {
            if a == b && a == 0.0 { if a.is_sign_negative() { a } else { b } } else { a.min(b) }
        });
        check("max/2", &|a, b, _| {
            if a == b && a == 0.0 { if a.is_sign_negative() { b } else { a } } else { a.max(b) }
        });
        check("copysign/2", &|a, b, _| b.copysign(a));
        // Directed roundings lie on the right side, next to the exact result or on it.
        for (name, count) in
            [("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3), ("sqrt", 1), ("rcp", 1)]
        {
            let found = ["rn", "rz", "rm", "rp"].map(|mode| {
                let list = ["%d", "%a", "%b", "%c"][..=count].iter().map(|r| format!("{r}{}", $letter));
                let list: Vec<String> = list.collect();
                let text = format!("{name}.{mode}.{} {};", $name, list.join(", "));
                run(&text, $bits, &rows).into_iter().map(of).collect::<Vec<$float>>()
            });
            for (index, row) in rows.iter().enumerate() {
                let [rn, rz, rm, rp] = [0, 1, 2, 3].map(|mode| found[mode][index]);
                if rn.is_nan() {
                    assert!(rz.is_nan() && rm.is_nan() && rp.is_nan());
                    continue;
                }
                let what = format!("{name} of {:?}: {rm:e} {rn:e} {rp:e}, {rz:e}", row.map(of));
                assert!(rm <= rn && rn <= rp && (rm == rp || rm.next_up() == rp), "{what}");
                assert_eq!(rz, if rp > 0.0 { rm } else { rp }, "{what}");
                assert!(rn == rm || rn == rp, "{what}");
            }
        }
        for (name, f) in [
            ("eq", (|a, b| a == b) as fn($float, $float) -> bool),
            ("ne", |a, b| a < b || a > b),
            ("lt", |a, b| a < b),
            ("ge", |a, b| a >= b),
            ("equ", |a, b| !(a < b || a > b)),
            ("neu", |a, b| a != b),
            ("ltu", |a, b| !(a >= b)),
            ("leu", |a, b| !(a > b)),
            ("gtu", |a, b| !(a <= b)),
            ("geu", |a, b| !(a < b)),
            ("num", |a, b| !a.is_nan() && !b.is_nan()),
            ("nan", |a, b| a.is_nan() || b.is_nan()),
        ] {
            let text = format!("setp.{name}.{} %p, %a{l}, %b{l};", $name, l = $letter);
            check_rows(&text, 1, &rows, |a, b, _| u64::from(f(of(a), of(b))));
        }
        for (name, f) in [
            ("finite", (|a| a.is_finite()) as fn($float) -> bool),
            ("infinite", |a| a.is_infinite()),
            ("number", |a| !a.is_nan()),
            ("notanumber", |a| a.is_nan()),
            ("normal", |a| a.is_normal()),
            ("subnormal", |a| a.is_subnormal()),
        ] {
            let text = format!("testp.{name}.{} %p, %a{};", $name, $letter);
            check_rows(&text, 1, &rows, |a, _, _| u64::from(f(of(a))));
        }
    }};
}

#[test]
fn floating_point_numbers_of_both_widths() {
    floats!(f32 32 u32 "w" "f32" float_rows(single));
    floats!(f64 64 u64 "l" "f64" float_rows(f64::to_bits));
}

/// Sums whose exact value needs one more bit than there is: the four roundings, by hand.
#[test]
fn directed_roundings_by_hand() {
    let (one, tiny) = (1f32.to_bits(), 2f32.powi(-30).to_bits());
    for (mode, sign, expected) in [
        ("rn", 0, 1.0f32),
        ("rz", 0, 1.0),
        ("rm", 0, 1.0),
        ("rp", 0, 1.0f32.next_up()),
        ("rn", 1, 1.0),
        ("rz", 1, 1.0f32.next_down()),
        ("rm", 1, 1.0f32.next_down()),
        ("rp", 1, 1.0),
    ] {
        let row = [u64::from(one), u64::from(tiny | sign << 31), 0];
        let found = run(&format!("add.{mode}.f32 %dw, %aw, %bw;"), 32, &[row]);
        assert_eq!(found, [u64::from(expected.to_bits())], "{mode} {sign}");
        let fma = run(&format!("fma.{mode}.f32 %dw, %aw, %aw, %bw;"), 32, &[row]);
        assert_eq!(fma, found, "{mode} {sign}");
    }
    let max = u64::from(f32::MAX.to_bits());
    assert_eq!(run("add.rz.f32 %dw, %aw, %aw;", 32, &[[max, 0, 0]]), [max]);
    assert_eq!(run("mul.rm.f32 %dw, %aw, %aw;", 32, &[[max, 0, 0]]), [max]);
    assert_eq!(run("mul.rp.f32 %dw, %aw, %aw;", 32, &[[max, 0, 0]]), [u64::from(f32::INFINITY.to_bits())]);
    let minus = u64::from((-1f32).to_bits());
    assert_eq!(run("add.rm.f32 %dw, %aw, %bw;", 32, &[[one.into(), minus, 0]]), [0x8000_0000]);
}

#[test]
fn subnormal_numbers_are_flushed_and_results_saturated() {
    let rows = float_rows(single);
    let flushed = |x: u64| {
        let x = f32::from_bits(x as u32);
        if x.is_subnormal() { 0f32.copysign(x) } else { x }
    };
    let bits = |x: f32| u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() });
    check_rows("mul.ftz.f32 %dw, %aw, %bw;", 32, &rows, |a, b, _| {
        bits(flushed(u64::from((flushed(a) * flushed(b)).to_bits())))
    });
    let sat = |x: f32| if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 };
    check_rows("add.sat.f32 %dw, %aw, %bw;", 32, &rows, |a, b, _| {
        bits(sat(f32::from_bits(a as u32) + f32::from_bits(b as u32)))
    });
    check_rows("fma.rn.ftz.sat.f32 %dw, %aw, %bw, %cw;", 32, &rows, |a, b, c| {
        bits(sat(flushed(u64::from(flushed(a).mul_add(flushed(b), flushed(c)).to_bits()))))
    });
}

#[test]
fn approximate_functions_are_close() {
    let rows: Vec<Row> = (0..400).map(|i| [single((f64::from(i) - 200.0) * 0.05), 0, 0]).collect();
    for (name, f) in [
        ("sin.approx", f64::sin as fn(f64) -> f64),
        ("cos.approx", f64::cos),
        ("ex2.approx", f64::exp2),
        ("tanh.approx", f64::tanh),
        ("lg2.approx", f64::log2),
        ("rsqrt.approx", |x| 1.0 / x.sqrt()),
        ("sqrt.approx", f64::sqrt),
        ("rcp.approx", |x| 1.0 / x),
    ] {
        for (row, found) in rows.iter().zip(run(&format!("{name}.f32 %dw, %aw;"), 32, &rows)) {
            let exact = f(f64::from(f32::from_bits(row[0] as u32)));
            let found = f64::from(f32::from_bits(found as u32));
            let is_close = (found - exact).abs() <= 1e-6 * exact.abs() + 1e-9;
            assert!(is_close || found == exact || (found.is_nan() && exact.is_nan()), "{name} {row:?}");
        }
    }
}

#[test]
fn conversions_between_integers() {
    check("cvt.u64.u8 %dl, %al;", 64, |a, _, _| u64::from(a as u8));
    check("cvt.s64.s8 %dl, %al;", 64, |a, _, _| i64::from(a as i8) as u64);
    check("cvt.s64.s32 %dl, %aw;", 64, |a, _, _| i64::from(a as i32) as u64);
    check("cvt.u64.s32 %dl, %aw;", 64, |a, _, _| i64::from(a as i32) as u64);
    check("cvt.s32.u16 %dw, %ah;", 32, |a, _, _| u64::from(a as u16));
    check("cvt.s32.s16 %dw, %ah;", 32, |a, _, _| u64::from(i32::from(a as i16) as u32));
    check("cvt.s8.s32 %dw, %aw;", 32, |a, _, _| u64::from(i32::from(a as i8) as u32));
    check("cvt.u8.u32 %dw, %aw;", 32, |a, _, _| u64::from(a as u8));
    check("cvt.sat.s8.s32 %dw, %aw;", 32, |a, _, _| u64::from((a as i32).clamp(-128, 127) as u32));
    check("cvt.sat.u16.s64 %dw, %al;", 32, |a, _, _| (a as i64).clamp(0, 65_535) as u64);
    check("cvt.sat.s32.u32 %dw, %aw;", 32, |a, _, _| u64::from((a as u32).min(i32::MAX as u32)));
    check("mov.b16 %dh, %ah; cvt.u16.u8 %dh, %dh;", 16, |a, _, _| a & 255);
}

#[test]
fn conversions_to_and_from_floating_point_numbers() {
    let rows = float_rows(single);
    let of = |x: u64| f32::from_bits(x as u32);
    check_rows("cvt.rzi.s32.f32 %dw, %aw;", 32, &rows, |a, _, _| u64::from(of(a) as i32 as u32));
    check_rows("cvt.rni.s32.f32 %dw, %aw;", 32, &rows, |a, _, _| {
        u64::from(of(a).round_ties_even() as i32 as u32)
    });
    check_rows("cvt.rmi.u8.f32 %dw, %aw;", 32, &rows, |a, _, _| u64::from(of(a).floor() as u8));
    check_rows("cvt.rpi.s64.f32 %dl, %aw;", 64, &rows, |a, _, _| {
        if of(a).is_nan() { 1 << 63 } else { of(a).ceil() as i64 as u64 }
    });
    check_rows(
        "cvt.rzi.u64.f32 %dl, %aw;",
        64,
        &rows,
        |a, _, _| {
            if of(a).is_nan() { 1 << 63 } else { of(a) as u64 }
        },
    );
    let plain = |x: f32| u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() });
    check_rows("cvt.rmi.f32.f32 %dw, %aw;", 32, &rows, |a, _, _| plain(of(a).floor()));
    check_rows("cvt.sat.f32.f32 %dw, %aw;", 32, &rows, |a, _, _| {
        let x = of(a);
        plain(if x > 0.0 { x.min(1.0) } else { 0.0 })
    });
    check_rows("cvt.f64.f32 %dl, %aw;", 64, &rows, |a, _, _| {
        let x = f64::from(of(a));
        if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() }
    });
    let wide = float_rows(f64::to_bits);
    check_rows("cvt.rn.f32.f64 %dw, %al;", 32, &wide, |a, _, _| plain(f64::from_bits(a) as f32));
    check_rows("cvt.rz.f32.f64 %dw, %al;", 32, &wide, |a, _, _| {
        let (exact, near) = (f64::from_bits(a), f64::from_bits(a) as f32);
        let is_beyond = f64::from(near).abs() > exact.abs();
        plain(if is_beyond { f32::from_bits(near.to_bits() - 1) } else { near })
    });
    check("cvt.rn.f32.s32 %dw, %aw;", 32, |a, _, _| u64::from((a as i32 as f32).to_bits()));
    check("cvt.rn.f64.u64 %dl, %al;", 64, |a, _, _| (a as f64).to_bits());
    check("cvt.rn.f32.u64 %dw, %al;", 32, |a, _, _| u64::from((a as f32).to_bits()));
    for (mode, up) in [("rp", true), ("rm", false)] {
        check(&format!("cvt.{mode}.f32.s64 %dw, %al;"), 32, |a, _, _| {
            let (exact, near) = (i128::from(a as i64), a as i64 as f32);
            let at = near as i128;
            let result = match up {
                true if at < exact => near.next_up(),
                false if at > exact => near.next_down(),
                _ => near,
            };
            u64::from(result.to_bits())
        });
    }
}

#[test]
fn numbers_of_sixteen_bits() {
    // Every number of sixteen bits keeps its value on the way to 32 bits and back.
    for (name, infinity) in [("f16", 0x7c00u64), ("bf16", 0x7f80)] {
        let all: Vec<Row> = (0..65_536).map(|bits| [bits, 0, 0]).collect();
        let text = format!("cvt.f32.{name} %dw, %ah; cvt.rn.{name}.f32 %dh, %dw;");
        check_rows(&text, 16, &all, |a, _, _| if a & 0x7fff > infinity { 0x7fff } else { a });
    }
    let f16 = |x: f32| run("cvt.rn.f16.f32 %dh, %aw;", 16, &[[u64::from(x.to_bits()), 0, 0]])[0];
    assert_eq!(
        [1.0, -2.0, 65_504.0, 65_520.0, 65_519.9, 5.96e-8, 2.9e-8, 6.1035e-5].map(f16),
        [0x3c00, 0xc000, 0x7bff, 0x7c00, 0x7bff, 0x0001, 0x0000, 0x0400]
    );
    let bf16 = |x: f32| run("cvt.rn.bf16.f32 %dh, %aw;", 16, &[[u64::from(x.to_bits()), 0, 0]])[0];
    assert_eq!([1.0, 1.003_906_2, 1.011_718_8, f32::MAX].map(bf16), [0x3f80, 0x3f80, 0x3f82, 0x7f80]);
    let pair = run("cvt.rn.f16x2.f32 %dw, %aw, %bw;", 32, &[[single(1.0), single(-2.0), 0]]);
    assert_eq!(pair, [0x3c00_c000]);
    // 1.5 + 0.25 and -2 * 3, each in one half.
    assert_eq!(run("add.f16x2 %dw, %aw, %bw;", 32, &[[0x3e00_3c00, 0x3400_3c00, 0]]), [0x3f00_4000]);
    assert_eq!(run("fma.rn.f16 %dh, %ah, %bh, %ch;", 16, &[[0xc000, 0x4200, 0x3c00]]), [0xc500]);
    assert_eq!(run("mul.bf16x2 %dw, %aw, %bw;", 32, &[[0x4000_3f80, 0x4040_bf80, 0]]), [0x40c0_bf80]);
}
