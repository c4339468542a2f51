//! Device code of the example chains: the work of a component on a frame.
//!
//! A separate PTX module, for the same old target as [`crate::kernels`]. The simulator knows the
//! kernels by name and does what they do, bit for bit; [`reference`](mod@reference) does the same
//! on the host, so that a chain's result can be checked wherever it ran.

use core::ffi::CStr;

/// Multiplies square matrices of `f32`, several times over: `u64 c, u64 a, u64 b, u32 n, u32
/// rounds`.
///
/// Row-major `n` × `n`. The thread at global x `column` and global y `row` computes one element:
/// `acc = 0`, then `rounds` times for `k` ascending `acc = fma(a[row][k], b[k][column], acc)`
/// rounded to nearest. Meant for blocks of 32 × 32 threads and ⌈n / 32⌉ of them in x and y. `c`
/// must be other memory than `a` and `b`.
pub const MATRIX: &CStr = c"partita_stage_matrix";

/// Decodes a picture of bytes whose rows are coded as differences: `u64 out, u64 in, u32 width, u32
/// height`.
///
/// `out[row][x] = in[row][0] + … + in[row][x]` modulo 256, a thread a row.
pub const DECODE: &CStr = c"partita_stage_decode";

/// Sharpens a picture of bytes: `u64 out, u64 in, u32 width, u32 height`.
///
/// Five times the pixel, less those left, right, above and below, held to 0 and 255; pixels of the
/// edge stay as they are. A thread a pixel, blocks in x and y. `out` must be other memory than
/// `in`.
pub const ENHANCE: &CStr = c"partita_stage_enhance";

/// Finds bright pixels: `u64 out, u64 in, u32 pixels, u32 threshold`.
///
/// Adds to the `u32` at `out` how many bytes are `threshold` or more, and raises that behind it to
/// `value << 24 | (2²⁴ − 1 − index)` for each of them: the brightest, the first of several. Both
/// must be zeros before. `pixels` is 2²⁴ at most. Any grid in x.
pub const DETECT: &CStr = c"partita_stage_detect";

/// Every kernel of the module and the bytes of its parameters.
pub const STAGES: &[(&CStr, &[usize])] =
    &[(MATRIX, &[8, 8, 8, 4, 4]), (DECODE, &[8, 8, 4, 4]), (ENHANCE, &[8, 8, 4, 4]), (DETECT, &[8, 8, 4, 4])];

/// The module, for `cuModuleLoadData`.
pub const STAGES_MODULE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("stages.ptx"), "\0").as_bytes()) {
        Ok(module) => module,
        Err(_) => panic!("the module must have no NUL inside"),
    };

/// The computations of the kernels, on the host.
pub mod reference {
    /// As [`MATRIX`](super::MATRIX): `c` of `a` and `b`.
    ///
    /// The caller passes `mul_add` in, because `core` has none. It must round once, as the standard
    /// library's does.
    pub fn matrix(
        c: &mut [f32],
        a: &[f32],
        b: &[f32],
        n: usize,
        rounds: u32,
        mul_add: impl Fn(f32, f32, f32) -> f32,
    ) {
        if n == 0 {
            return;
        }
        for (to, from) in c.chunks_exact_mut(n).zip(a.chunks_exact(n)).take(n) {
            to.fill(0.0);
            for _ in 0..rounds {
                for (factor, line) in from.iter().zip(b.chunks_exact(n)) {
                    for (acc, b) in to.iter_mut().zip(line) {
                        *acc = mul_add(*factor, *b, *acc);
                    }
                }
            }
        }
    }

    /// As [`DECODE`](super::DECODE).
    pub fn decode(out: &mut [u8], coded: &[u8], width: usize) {
        for (to, from) in out.chunks_exact_mut(width.max(1)).zip(coded.chunks_exact(width.max(1))) {
            let mut sum = 0u8;
            for (to, from) in to.iter_mut().zip(from) {
                sum = sum.wrapping_add(*from);
                *to = sum;
            }
        }
    }

    /// The code that [`decode`] undoes.
    pub fn encode(coded: &mut [u8], picture: &[u8], width: usize) {
        for (to, from) in coded.chunks_exact_mut(width.max(1)).zip(picture.chunks_exact(width.max(1))) {
            let mut before = 0;
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.wrapping_sub(before);
                before = *from;
            }
        }
    }

    /// As [`ENHANCE`](super::ENHANCE).
    pub fn enhance(out: &mut [u8], picture: &[u8], width: usize, height: usize) {
        for row in 0..height {
            for column in 0..width {
                let at = row * width + column;
                let inside = (1..width.saturating_sub(1)).contains(&column)
                    && (1..height.saturating_sub(1)).contains(&row);
                out[at] = if inside {
                    let around = [at - 1, at + 1, at - width, at + width].map(|at| i32::from(picture[at]));
                    (5 * i32::from(picture[at]) - around.iter().sum::<i32>()).clamp(0, 255) as u8
                } else {
                    picture[at]
                };
            }
        }
    }

    /// As [`DETECT`](super::DETECT).
    pub fn detect(picture: &[u8], threshold: u32) -> [u32; 2] {
        let bright = picture.iter().zip(0..).filter(|(value, _)| u32::from(**value) >= threshold);
        bright.fold([0, 0], |[count, best], (value, at): (&u8, u32)| {
            [count + 1, best.max(u32::from(*value) << 24 | 0xff_ffffu32.wrapping_sub(at))]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx;
    use std::vec;

    #[test]
    fn every_stage_is_in_the_module_with_its_parameters() {
        ptx::has_kernels(STAGES_MODULE, STAGES);
        ptx::is_for_old_targets(STAGES_MODULE);
    }

    #[test]
    fn the_references_do_what_they_say() {
        let picture: [u8; 12] = [9, 200, 3, 0, 7, 90, 80, 255, 1, 2, 3, 255];
        let (mut coded, mut decoded) = ([0; 12], [0; 12]);
        reference::encode(&mut coded, &picture, 4);
        assert_eq!(coded[..4], [9, 191, 59, 253]);
        reference::decode(&mut decoded, &coded, 4);
        assert_eq!(decoded, picture);
        let mut sharp = [0; 12];
        reference::enhance(&mut sharp, &picture, 4, 3);
        assert_eq!(sharp[5], (5 * 90 - 7 - 80 - 200 - 2) as u8);
        assert_eq!(sharp[6], (5 * 80 - 90 - 255 - 3 - 3) as u8);
        assert_eq!((sharp[4], sharp[7]), (7, 255));
        assert_eq!(reference::detect(&picture, 200), [3, 255 << 24 | (0xff_ffff - 7)]);
        assert_eq!(reference::detect(&[0, 1], 2), [0, 0]);
        let mut c = vec![0.0; 4];
        reference::matrix(&mut c, &[1.0, 2.0, 3.0, 4.0], &[0.0, 1.0, 1.0, 0.0], 2, 3, f32::mul_add);
        assert_eq!(c, [6.0, 3.0, 12.0, 9.0]);
    }

    #[test]
    fn the_assembler_accepts_the_stages() {
        ptx::is_assembled(STAGES_MODULE, "stages");
    }
}
