//! Kernels that the simulator knows by name: their cost and their effect on memory.
//!
//! The interpreter runs the others ([`super::interpret`]). One without PTX has a declared cost,
//! [`ENV_KERNEL_US`] for each block, and no effect.

mod stages;
mod workloads;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use partita_abi::CuResult;
use partita_abi::kernels::{CENSUS, COPY, COUNT, CensusRecord, FMA, MATMUL, SPIN, parameter_bytes};
use partita_sim::{BlockRecord, DeviceSpec, KernelWork};

use super::effects::Reach;
use crate::shared::command::Rect;
use stages::Stage;

/// The cost of a block of an unknown kernel, in microseconds; without it, what its instructions
/// take.
pub const ENV_KERNEL_US: &str = "PARTITA_SIM_KERNEL_US";
/// The cost of a block of a kernel without PTX, unless [`ENV_KERNEL_US`] declares one.
pub const UNKNOWN_NS: u64 = 10_000;
/// The cost of a block that counts itself: one atomic operation, for which it does not wait.
const COUNT_NS: u64 = 500;

/// Grid and block of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
}

impl Shape {
    /// Blocks in all.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|n| u64::from(*n)).fold(1, u64::saturating_mul)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().fold(1, |product: u32, n| product.saturating_mul(*n))
    }
}

/// The effect of a known kernel when it completes.
#[derive(Debug)]
pub enum Run {
    /// Write a record for each block.
    Census { out: u64 },
    /// Add one for each block to the count of its SM.
    Count { counts: u64, sms: u32 },
    /// Copy bytes.
    Copy(Rect),
    /// Multiply and add.
    Fma { out: u64, a: u64, b: u64, c: u64, n: u64, rounds: u32 },
    /// Multiply matrices.
    Matmul { c: u64, a: u64, b: u64, n: u32, columns: u32, rows: u32 },
    /// Do a component's work on a frame.
    Stage(Stage),
}

/// A kernel's parameters, taken from the front.
struct Params<'a>(&'a [u8]);

impl Params<'_> {
    fn u64(&mut self) -> u64 {
        let (value, rest) = self.0.split_first_chunk().unwrap_or((&[0; 8], &[]));
        self.0 = rest;
        u64::from_le_bytes(*value)
    }

    fn u32(&mut self) -> u32 {
        let (value, rest) = self.0.split_first_chunk().unwrap_or((&[0; 4], &[]));
        self.0 = rest;
        u32::from_le_bytes(*value)
    }
}

/// The declared cost of a block of an unknown kernel, in nanoseconds.
pub fn declared_ns() -> Option<u64> {
    static NS: OnceLock<Option<u64>> = OnceLock::new();
    *NS.get_or_init(|| {
        let us = std::env::var(ENV_KERNEL_US).ok().and_then(|us| us.parse::<f64>().ok());
        us.filter(|us| us.is_finite() && *us >= 0.0).map(|us| (us * 1000.0) as u64)
    })
}

/// Adds the cost of a known kernel to a launch: the outer option is set for known ones, the inner
/// one has the effect.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if a known kernel has fewer parameters than it reads: it would read beyond
/// them.
pub fn prepare(
    spec: &DeviceSpec,
    name: &str,
    shape: Shape,
    params: &[u8],
    kernel: &mut KernelWork,
) -> Result<Option<Option<Run>>, CuResult> {
    if let Some(run) = workloads::prepare(spec, name, params, kernel)? {
        return Ok(Some(run));
    }
    if let Some(stage) = stages::prepare(spec, name, shape, params, kernel)? {
        return Ok(Some(Some(Run::Stage(stage))));
    }
    let Some(known) =
        [SPIN, CENSUS, COUNT, COPY, FMA, MATMUL].into_iter().find(|k| k.to_bytes() == name.as_bytes())
    else {
        return Ok(None);
    };
    if params.len() < parameter_bytes(known).unwrap_or_default().iter().sum() {
        return Err(CuResult::ILLEGAL_ADDRESS);
    }
    let mut params = Params(params);
    let blocks = shape.blocks().max(1);
    // FP32 multiply-adds that one SM does in a nanosecond.
    let rate = f64::from(spec.sm.fp32_lanes) * f64::from(spec.clocks.sm_khz) / 1e6;
    let run = if known == SPIN {
        kernel.block_ns = params.u64();
        return Ok(Some(None));
    } else if known == CENSUS {
        let out = params.u64();
        kernel.block_ns = params.u64();
        kernel.record_blocks = true;
        Run::Census { out }
    } else if known == COUNT {
        kernel.block_ns = COUNT_NS;
        kernel.record_blocks = true;
        Run::Count { counts: params.u64(), sms: params.u32() }
    } else if known == COPY {
        let (dst, src, bytes) = (params.u64(), params.u64(), params.u64());
        kernel.bytes_per_block = bytes.saturating_mul(2) / blocks;
        kernel.block_ns = 1_000 + drawing_ns(kernel, spec);
        Run::Copy(Rect::line(dst, src, bytes))
    } else if known == FMA {
        let (out, a, b, c) = (params.u64(), params.u64(), params.u64(), params.u64());
        let (n, rounds) = (params.u64(), params.u32());
        kernel.bytes_per_block = n.saturating_mul(16) / blocks;
        let computing_ns = (n as f64 * f64::from(rounds) / blocks as f64 / rate) as u64;
        kernel.block_ns = 1_000 + computing_ns.max(drawing_ns(kernel, spec));
        Run::Fma { out, a, b, c, n, rounds }
    } else {
        let (c, a, b) = (params.u64(), params.u64(), params.u64());
        let n = params.u32();
        kernel.block_ns = 1_000 + (f64::from(shape.threads()) * f64::from(n) / rate) as u64;
        let columns = shape.grid[0].saturating_mul(shape.block[0]).min(n);
        let rows = shape.grid[1].saturating_mul(shape.block[1]).min(n);
        Run::Matmul { c, a, b, n, columns, rows }
    };
    Ok(Some(Some(run)))
}

/// How long a block takes for its memory traffic without contention: an SM has a fixed bandwidth,
/// which its resident blocks share.
fn drawing_ns(kernel: &KernelWork, spec: &DeviceSpec) -> u64 {
    let sms = u64::from((kernel.enabled & spec.topology.all()).len() * spec.topology.sms_per_tpc()).max(1);
    let resident = u64::from(partita_sim::Footprint::of(kernel, &spec.sm).blocks_per_sm(&spec.sm)).max(1);
    let together = resident.min(kernel.grid_blocks.div_ceil(sms));
    let bytes = u128::from(kernel.bytes_per_block) * u128::from(together);
    u64::try_from(bytes * 1_000_000_000 / u128::from(spec.memory.sm_bytes_per_s.max(1))).unwrap_or(u64::MAX)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

fn read_bytes(reach: &Reach<'_>, address: u64, bytes: u64) -> Result<Vec<u8>, CuResult> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes as u64 <= reach.memory.total());
    let mut buffer = vec![0u8; bytes.ok_or(CuResult::ILLEGAL_ADDRESS)?];
    reach.read(address, &mut buffer)?;
    Ok(buffer)
}

fn read_floats(reach: &Reach<'_>, address: u64, count: u64) -> Result<Vec<f32>, CuResult> {
    read_bytes(reach, address, count.saturating_mul(4)).map(|bytes| floats(&bytes))
}

fn write_floats(reach: &Reach<'_>, address: u64, values: &[f32]) -> Result<(), CuResult> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    reach.write(address, &bytes)
}

impl Run {
    /// Whether the engine must record the blocks of this kernel.
    pub fn wants_blocks(&self) -> bool {
        matches!(self, Self::Census { .. } | Self::Count { .. })
    }

    /// Applies the kernel's effect to memory. With `dense`, SMs are renumbered from 0 in their
    /// order among those that the launch may use, as under MPS.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` for an access to unmapped memory.
    pub fn finish(
        &self,
        reach: &Reach<'_>,
        blocks: &[BlockRecord],
        dense: impl Fn(u32) -> u32,
    ) -> Result<(), CuResult> {
        match *self {
            Self::Census { out } => {
                for block in blocks {
                    let record = CensusRecord {
                        smid: u64::from(dense(block.sm)),
                        start_ns: block.start_ns,
                        stop_ns: block.stop_ns,
                        block_plus_one: block.block + 1,
                    };
                    let words = [record.smid, record.start_ns, record.stop_ns, record.block_plus_one];
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    reach.write(out.wrapping_add(block.block.wrapping_mul(32)), &bytes)?;
                }
                Ok(())
            }
            Self::Count { counts, sms } => {
                let mut by_sm: BTreeMap<u32, u32> = BTreeMap::new();
                for block in blocks {
                    *by_sm.entry(dense(block.sm).min(sms)).or_default() += 1;
                }
                for (sm, more) in by_sm {
                    let at = counts.wrapping_add(u64::from(sm) * 4);
                    let mut word = [0; 4];
                    reach.read(at, &mut word)?;
                    reach.write(at, &u32::from_le_bytes(word).wrapping_add(more).to_le_bytes())?;
                }
                Ok(())
            }
            Self::Copy(rect) => reach.copy(&rect),
            Self::Stage(ref stage) => stage.finish(reach),
            Self::Fma { out, a, b, c, n, rounds } => {
                let (a, b) = (read_floats(reach, a, n)?, read_floats(reach, b, n)?);
                let mut acc = read_floats(reach, c, n)?;
                for ((acc, a), b) in acc.iter_mut().zip(a).zip(b) {
                    for _ in 0..rounds {
                        *acc = a.mul_add(b, *acc);
                    }
                }
                write_floats(reach, out, &acc)
            }
            Self::Matmul { c, a, b, n, columns, rows } => {
                let count = u64::from(n) * u64::from(n);
                let (a, b) = (read_floats(reach, a, count)?, read_floats(reach, b, count)?);
                let n = n as usize;
                for row in 0..rows as usize {
                    let mut acc = vec![0f32; columns as usize];
                    for k in 0..n {
                        let factor = a[row * n + k];
                        for (acc, b) in acc.iter_mut().zip(&b[k * n..]) {
                            *acc = factor.mul_add(*b, *acc);
                        }
                    }
                    write_floats(reach, c.wrapping_add((row * n * 4) as u64), &acc)?;
                }
                Ok(())
            }
        }
    }
}
