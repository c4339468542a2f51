//! The sample kernels, as NVIDIA's compiler made them, against the same computed here.

use crate::gpu::{Gpu, Loaded, Shape};

const SAMPLES: &str = include_str!("../../../../crates/partita-ptx/tests/ptx/kernels/samples.ptx");

/// A row of numbers that does not repeat soon.
fn numbers(count: usize) -> Vec<u32> {
    let mut state = 12_345u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..count).map(next).collect()
}

fn fractions(count: usize) -> Vec<f32> {
    numbers(count).into_iter().map(|number| number as f32 / 65_536.0 - 100.0).collect()
}

fn line(blocks: u32, threads: u32) -> Shape {
    Shape([blocks, 1, 1], [threads, 1, 1], 0)
}

fn start() -> (Gpu, Loaded) {
    let mut gpu = Gpu::default();
    let loaded = gpu.load(SAMPLES);
    (gpu, loaded)
}

#[test]
fn vectors_are_added() {
    let (mut gpu, loaded) = start();
    let n = 1_000;
    let (a, b) = (fractions(n), fractions(2 * n)[n..].to_vec());
    let (at, bt, ct) = (gpu.floats(&a), gpu.floats(&b), gpu.floats(&vec![7.0; n + 24]));
    gpu.launch(&loaded, "vecAdd", line(4, 256), &[at, bt, ct, n as u64]).unwrap();
    let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).chain([7.0; 24]).collect();
    assert_eq!(gpu.get_floats(ct, n + 24), sums);
}

#[test]
fn saxpy_runs_in_strides() {
    let (mut gpu, loaded) = start();
    let n = 777;
    let (x, y) = (fractions(n), fractions(2 * n)[n..].to_vec());
    let (xt, yt) = (gpu.floats(&x), gpu.floats(&y));
    let factor = u64::from(2.5f32.to_bits());
    gpu.launch(&loaded, "saxpy", line(2, 96), &[n as u64, factor, xt, yt]).unwrap();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.5f32.mul_add(*x, *y)).collect();
    assert_eq!(gpu.get_floats(yt, n), expected);
}

#[test]
fn sums_through_shared_memory() {
    let (mut gpu, loaded) = start();
    let data = numbers(1_000);
    let (input, out) = (gpu.words(&data), gpu.words(&[0; 4]));
    gpu.launch(&loaded, "reduce", line(4, 256), &[input, out, 1_000]).unwrap();
    let sums: Vec<u32> =
        data.chunks(256).map(|part| part.iter().fold(0, |sum: u32, n| sum.wrapping_add(*n))).collect();
    assert_eq!(gpu.get_words(out, 4), sums);
}

#[test]
fn matrices_are_multiplied() {
    let (mut gpu, loaded) = start();
    let n = 50;
    let (a, b) = (fractions(n * n), fractions(2 * n * n)[n * n..].to_vec());
    let (at, bt, ct) = (gpu.floats(&a), gpu.floats(&b), gpu.floats(&vec![0.0; n * n]));
    let shape = Shape([4, 4, 1], [16, 16, 1], 0);
    gpu.launch(&loaded, "matmul", shape, &[at, bt, ct, n as u64]).unwrap();
    let product = gpu.get_floats(ct, n * n);
    for row in 0..n {
        for column in 0..n {
            let sum = (0..n).fold(0f32, |sum, k| a[row * n + k].mul_add(b[k * n + column], sum));
            assert_eq!(product[row * n + column], sum, "{row} {column}");
        }
    }
}

#[test]
fn histograms_use_atomic_operations_and_dynamic_shared_memory() {
    let (mut gpu, loaded) = start();
    let data: Vec<u8> = numbers(5_000).into_iter().map(|n| (n >> 3) as u8).collect();
    let (input, bins) = (gpu.bytes(&data), gpu.words(&[0; 256]));
    let shape = Shape([3, 1, 1], [128, 1, 1], 1_024);
    gpu.launch(&loaded, "histogram", shape, &[input, 5_000, bins]).unwrap();
    let mut expected = [0; 256];
    data.iter().for_each(|byte| expected[usize::from(*byte)] += 1);
    assert_eq!(gpu.get_words(bins, 256), expected);
}

#[test]
fn scans_use_shuffles() {
    let (mut gpu, loaded) = start();
    for count in [1_024, 512, 64] {
        let data = numbers(count);
        let (input, out) = (gpu.words(&data), gpu.words(&vec![0; count]));
        gpu.launch(&loaded, "scan", line(1, count as u32), &[input, out]).unwrap();
        let mut sum = 0u32;
        let sums: Vec<u32> = data
            .iter()
            .map(|n| {
                sum = sum.wrapping_add(*n);
                sum
            })
            .collect();
        assert_eq!(gpu.get_words(out, count), sums);
    }
}

fn collatz(mut x: u64) -> u32 {
    let mut count = 0;
    while x != 1 {
        if x == 0 {
            return u32::MAX;
        }
        x = if x & 1 == 1 { 3 * x + 1 } else { x / 2 };
        count += 1;
    }
    count
}

#[test]
fn threads_leave_at_different_times() {
    let (mut gpu, loaded) = start();
    let mut data = numbers(300);
    data[17] = 0;
    data[90] = 1;
    let (input, out) = (gpu.words(&data), gpu.words(&[9; 320]));
    gpu.launch(&loaded, "collatz", line(5, 64), &[input, out, 300]).unwrap();
    let steps: Vec<u32> = data.iter().map(|n| collatz(u64::from(*n))).chain([9; 20]).collect();
    assert_eq!(gpu.get_words(out, 320), steps);
}

fn ackermann(m: u32, n: u32) -> u32 {
    match (m, n) {
        (0, n) => n + 1,
        (m, 0) => ackermann(m - 1, 1),
        (m, n) => ackermann(m - 1, ackermann(m, n - 1)),
    }
}

#[test]
fn threads_recurse_to_different_depths() {
    let (mut gpu, loaded) = start();
    let out = gpu.words(&[0; 64]);
    gpu.launch(&loaded, "recurse", line(1, 64), &[out]).unwrap();
    let expected: Vec<u32> = (0..64).map(|thread| ackermann(thread % 3, thread % 5)).collect();
    assert_eq!(gpu.get_words(out, 64), expected);
}

#[test]
fn structures_are_passed_and_returned() {
    let (mut gpu, loaded) = start();
    let pair = |left: f64, right: i32| {
        let mut bytes = left.to_le_bytes().to_vec();
        bytes.extend(i64::from(right).to_le_bytes());
        bytes
    };
    let data: Vec<u8> = (0..40).flat_map(|i| pair(f64::from(i) * 1.5, i - 20)).collect();
    let (input, out) = (gpu.bytes(&data), gpu.bytes(&[0; 640]));
    let kernel = partita_interpreter::Kernel::new(&loaded.module, "structures", &loaded.symbols).unwrap();
    let mut params = [input.to_le_bytes(), out.to_le_bytes()].concat();
    params.extend(pair(0.25, 7));
    let launch = partita_interpreter::Launch {
        kernel: kernel.into(),
        params,
        grid: [1; 3],
        block: [40, 1, 1],
        dynamic_shared: 0,
        number: 1,
        sms: 1,
        clock_khz: 1_000_000,
    };
    gpu.launch_with(launch).unwrap();
    for i in 0..40 {
        let bytes = gpu.get(out + i * 16, 12);
        let left = f64::from_le_bytes(*bytes.first_chunk().unwrap());
        let right = i32::from_le_bytes(*bytes[8..].first_chunk().unwrap());
        let i = i as i32;
        assert_eq!((left, right), (f64::from((i - 13) * i), (f64::from(i) * 1.5 + 0.25) as i32));
    }
}

#[test]
fn jump_tables_and_calls_by_address() {
    let (mut gpu, loaded) = start();
    let what: Vec<u32> = (0..96).map(|i| i * 5 % 11).collect();
    let (input, out) = (gpu.words(&what), gpu.words(&[0; 96]));
    gpu.launch(&loaded, "choose", line(1, 96), &[input, out]).unwrap();
    let expected: Vec<u32> = what
        .iter()
        .enumerate()
        .map(|(i, what)| {
            let x = i as i32 * 7;
            (match what {
                0 => x + 11,
                1 => x * 3,
                2 => x ^ 0x55,
                3 => x.count_ones() as i32,
                4 => x.leading_zeros() as i32,
                5 => x.reverse_bits(),
                6 => -x,
                7 => x % 5,
                _ => x,
            }) as u32
        })
        .collect();
    assert_eq!(gpu.get_words(out, 96), expected);
    gpu.launch(&loaded, "indirect", line(1, 64), &[out]).unwrap();
    let expected: Vec<u32> = (0..64).map(|i| if i % 2 == 0 { 2 * i } else { i * i }).collect();
    assert_eq!(gpu.get_words(out, 64), expected);
}

#[test]
fn constants_and_variables_have_their_values() {
    let (mut gpu, loaded) = start();
    let data = fractions(64);
    let (input, out) = (gpu.floats(&data), gpu.floats(&[0.0; 64]));
    gpu.launch(&loaded, "weigh", line(1, 64), &[input, out]).unwrap();
    let weights = [0.25, 0.5, 1.0, -2.0];
    let expected: Vec<f32> = data.iter().enumerate().map(|(i, x)| x * weights[i % 4]).collect();
    assert_eq!(gpu.get_floats(out, 64), expected);
    assert_eq!(gpu.get_longs(loaded.symbols["total"], 1), [5 + 64 * 63 / 2]);
}

#[test]
fn functions_of_the_library_are_as_exact_as_they_promise() {
    let (mut gpu, loaded) = start();
    // Large arguments take the slow path through local memory.
    let data: Vec<f32> =
        (0..32).map(|i| if i < 16 { i as f32 * 0.7 } else { 1e5 * i as f32 * i as f32 }).collect();
    let (input, out) = (gpu.floats(&data), gpu.floats(&[0.0; 96]));
    gpu.launch(&loaded, "trigonometry", line(1, 32), &[input, out]).unwrap();
    for (x, found) in data.iter().zip(gpu.get_floats(out, 96).chunks(3)) {
        let wide = f64::from(*x);
        let expected = [wide.sin(), wide.cos(), (-wide.abs() / 100.0).exp() / (1.0 + wide * wide).sqrt()];
        for (found, expected) in found.iter().zip(expected) {
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= 3e-7 * expected.abs() + 1e-37, "{x}: {found} {expected}");
        }
    }
    let data: Vec<f64> = (1..33).map(|i| f64::from(i) * 17.3).collect();
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (input, out) = (gpu.bytes(&bytes), gpu.bytes(&[0; 1_024]));
    gpu.launch(&loaded, "doubles", line(1, 32), &[input, out]).unwrap();
    let found: Vec<f64> = gpu.get_longs(out, 128).into_iter().map(f64::from_bits).collect();
    for (x, found) in data.iter().zip(found.chunks(4)) {
        assert_eq!(found[..2], [x.sqrt(), 1.0 / x]);
        assert!((found[2] / (x / 1e3).exp() - 1.0).abs() < 1e-15, "{x}");
        assert_eq!(found[3], x.floor() + x % 3.0, "{x}");
    }
}

#[test]
fn long_integers_are_divided() {
    let (mut gpu, loaded) = start();
    let a: Vec<i64> = (0..32).map(|i| 0x0123_4567_89ab_cdefi64.wrapping_mul((i - 16) * (i + 3))).collect();
    let b: Vec<i64> = (0..32).map(|i| (i * i * i - 1_000) * 77 + 1).collect();
    let bytes = |of: &[i64]| of.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (at, bt, out) = (gpu.bytes(&bytes(&a)), gpu.bytes(&bytes(&b)), gpu.bytes(&[0; 768]));
    gpu.launch(&loaded, "division", line(1, 32), &[at, bt, out]).unwrap();
    let found = gpu.get_longs(out, 96);
    for ((a, b), found) in a.iter().zip(&b).zip(found.chunks(3)) {
        let high = ((i128::from(*a) * i128::from(*b)) >> 64) as u64;
        assert_eq!(found, [a.wrapping_div(*b) as u64, *a as u64 % *b as u64, high], "{a} {b}");
    }
}

#[test]
fn blocks_wait_for_each_other() {
    let (mut gpu, loaded) = start();
    let (arrived, out) = (gpu.words(&[0]), gpu.words(&vec![0; 8 + 8 * 64]));
    gpu.launch(&loaded, "meet", line(8, 64), &[arrived, out]).unwrap();
    let found = gpu.get_words(out + 32, 8 * 64);
    for (block, values) in found.chunks(64).enumerate() {
        assert!(values.iter().all(|value| *value == (block as u32 + 1) % 8 + 1));
    }
}

#[test]
fn threads_of_a_warp_take_a_lock_in_turn() {
    let (mut gpu, loaded) = start();
    let words = gpu.words(&[0, 0]);
    gpu.launch(&loaded, "locked", line(3, 64), &[words, words + 4]).unwrap();
    assert_eq!(gpu.get_words(words, 2), [0, 192]);
}

#[test]
fn warps_vote_match_and_reduce() {
    let (mut gpu, loaded) = start();
    let data: Vec<u32> = (0..64).map(|i| (i * i + 3) % 9).collect();
    let (input, out) = (gpu.words(&data), gpu.words(&[0; 384]));
    gpu.launch(&loaded, "votes", line(1, 64), &[input, out]).unwrap();
    let found = gpu.get_words(out, 384);
    let counted = data.iter().filter(|value| **value > 1).count() as u32;
    for (thread, found) in found.chunks(6).enumerate() {
        let warp = &data[thread / 32 * 32..][..32];
        let mask = |is: &dyn Fn(u32) -> bool| {
            warp.iter().enumerate().fold(0u32, |mask, (lane, value)| mask | u32::from(is(*value)) << lane)
        };
        let lane = thread % 32;
        let odd = if lane % 2 == 1 { warp[lane ^ 2] } else { 0 };
        let flags = u32::from(warp.contains(&3)) * 2 + 1;
        let expected = [
            mask(&|value| value > 0),
            mask(&|value| value == warp[lane]),
            warp.iter().sum(),
            odd,
            flags,
            counted,
        ];
        assert_eq!(found, expected, "{thread}");
    }
}

/// The largest value of each remainder by five, of the first `n` numbers: threads beyond end, and
/// the active lanes of one remainder agree before one of them stores.
const LARGEST: &str = "
    .version 7.8 .target sm_80 .address_size 64
    .visible .entry largest(.param .u64 input, .param .u64 output, .param .u32 n) {
      .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<6>;
      ld.param.u64 %rd1, [input]; ld.param.u64 %rd2, [output]; ld.param.u32 %r1, [n];
      mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;
      setp.ge.u32 %p1, %r5, %r1; @%p1 ret;
      mul.wide.u32 %rd3, %r5, 4; add.u64 %rd3, %rd1, %rd3; ld.global.u32 %r6, [%rd3]; rem.u32 %r7, %r6, 5;
      setp.eq.u32 %p2, %r7, 4; @%p2 bra END;
      activemask.b32 %r8; match.any.sync.b32 %r9, %r7, %r8; redux.sync.max.u32 %r10, %r6, %r9;
      mov.u32 %r11, %lanemask_lt; and.b32 %r12, %r11, %r9; setp.ne.u32 %p3, %r12, 0; @%p3 bra END;
      mul.wide.u32 %rd4, %r7, 4; add.u64 %rd4, %rd2, %rd4; atom.global.max.u32 %r13, [%rd4], %r10;
      END: ret;
    }";

#[test]
fn active_threads_meet_after_others_have_ended() {
    let mut gpu = Gpu::default();
    let loaded = gpu.load(LARGEST);
    let (count, n) = (1_024, 1_000);
    let data = numbers(count);
    let (input, out) = (gpu.words(&data), gpu.words(&[0; 5]));
    gpu.launch(&loaded, "largest", line(8, 128), &[input, out, n as u64]).unwrap();
    let most = |remainder: u32| data[..n].iter().copied().filter(|of| of % 5 == remainder).max().unwrap();
    assert_eq!(gpu.get_words(out, 5), [most(0), most(1), most(2), most(3), 0]);
}
