//! The kernels of example chains: the cost of their blocks, and their effect on memory.

use partita_abi::CuResult;
use partita_abi::stages::{DECODE, DETECT, ENHANCE, MATRIX, STAGES, reference};
use partita_sim::{DeviceSpec, KernelWork};

use super::{Reach, Shape, drawing_ns, floats, read_bytes};

/// The cost of a block that does nothing.
const LEAST_NS: u64 = 1_000;

/// The effect of such a kernel when it completes.
#[derive(Debug)]
pub enum Stage {
    /// Multiply matrices.
    Matrix { c: u64, a: u64, b: u64, n: u32, rounds: u32 },
    /// Undo the differences of each row.
    Decode { out: u64, coded: u64, width: u32, height: u32 },
    /// Sharpen.
    Enhance { out: u64, picture: u64, width: u32, height: u32 },
    /// Find bright pixels.
    Detect { out: u64, picture: u64, pixels: u32, threshold: u32 },
}

/// Adds the cost to a launch of one of these kernels, and returns its effect.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if the kernel has fewer parameters than it reads.
pub fn prepare(
    spec: &DeviceSpec,
    name: &str,
    shape: Shape,
    params: &[u8],
    kernel: &mut KernelWork,
) -> Result<Option<Stage>, CuResult> {
    let Some((known, sizes)) = STAGES.iter().find(|(known, _)| known.to_bytes() == name.as_bytes()) else {
        return Ok(None);
    };
    if params.len() < sizes.iter().sum() {
        return Err(CuResult::ILLEGAL_ADDRESS);
    }
    let mut rest = params;
    let mut next = |bytes: usize| {
        let (value, behind) = rest.split_at_checked(bytes).unwrap_or((&[], &[]));
        rest = behind;
        value.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let [first, second] = [(); 2].map(|()| next(8));
    let blocks = shape.blocks().max(1);
    // FP32 multiply-adds that one SM does in a nanosecond; the rest of a thread's work for a byte
    // costs about as much.
    let rate = f64::from(spec.sm.fp32_lanes) * f64::from(spec.clocks.sm_khz) / 1e6;
    let operations = |count: f64| LEAST_NS + (count / rate) as u64;
    let threads = f64::from(shape.threads());
    let stage = if *known == MATRIX {
        let (b, n, rounds) = (next(8), next(4) as u32, next(4) as u32);
        kernel.block_ns = operations(threads * f64::from(n) * f64::from(rounds));
        return Ok(Some(Stage::Matrix { c: first, a: second, b, n, rounds }));
    } else {
        let [one, two] = [(); 2].map(|()| next(4) as u32);
        let bytes = if *known == DETECT { u64::from(one) } else { u64::from(one) * u64::from(two) };
        kernel.bytes_per_block = bytes.saturating_mul(if *known == DETECT { 1 } else { 2 }) / blocks;
        kernel.block_ns =
            operations(bytes as f64 * 8.0 / blocks as f64).max(LEAST_NS + drawing_ns(kernel, spec));
        if *known == DECODE {
            Stage::Decode { out: first, coded: second, width: one, height: two }
        } else if *known == ENHANCE {
            Stage::Enhance { out: first, picture: second, width: one, height: two }
        } else {
            Stage::Detect { out: first, picture: second, pixels: one, threshold: two }
        }
    };
    Ok(Some(stage))
}

impl Stage {
    /// Applies the effect of the kernel, with a grid that covers its data, to memory.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` for an access to unmapped memory.
    pub fn finish(&self, reach: &Reach<'_>) -> Result<(), CuResult> {
        let picture = |address, width: u32, height: u32| {
            read_bytes(reach, address, u64::from(width) * u64::from(height))
        };
        match *self {
            Self::Matrix { c, a, b, n, rounds } => {
                let bytes = u64::from(n) * u64::from(n) * 4;
                let (a, b) = (floats(&read_bytes(reach, a, bytes)?), floats(&read_bytes(reach, b, bytes)?));
                let mut product = vec![0f32; a.len()];
                reference::matrix(&mut product, &a, &b, n as usize, rounds, f32::mul_add);
                let bytes: Vec<u8> = product.iter().flat_map(|value| value.to_le_bytes()).collect();
                reach.write(c, &bytes)
            }
            Self::Decode { out, coded, width, height } => {
                let coded = picture(coded, width, height)?;
                let mut decoded = vec![0; coded.len()];
                reference::decode(&mut decoded, &coded, width as usize);
                reach.write(out, &decoded)
            }
            Self::Enhance { out, picture: from, width, height } => {
                let from = picture(from, width, height)?;
                let mut sharp = vec![0; from.len()];
                reference::enhance(&mut sharp, &from, width as usize, height as usize);
                reach.write(out, &sharp)
            }
            Self::Detect { out, picture, pixels, threshold } => {
                let [count, best] = reference::detect(&read_bytes(reach, picture, pixels.into())?, threshold);
                let mut found = [0; 8];
                reach.read(out, &mut found)?;
                let word =
                    |at: usize| u32::from_le_bytes([found[at], found[at + 1], found[at + 2], found[at + 3]]);
                let words = [word(0).wrapping_add(count), word(4).max(best)];
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                reach.write(out, &bytes)
            }
        }
    }
}
