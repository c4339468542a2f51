//! The paper's workload: matrix products of four sizes, and nine chains of five of them.
//!
//! J. Luo and X. Wei, «Dynamic GPU Resource Management in Component-Based Applications», 2023:
//! tables 1 and 2, and the results of its figure 4.

use std::fmt;

use partita_abi::workloads::MATMUL_PEAK_PERMILLE;
use partita_core::TpcSet;
use partita_sim::{DeviceSpec, KernelWork, Time};

/// SMs of the paper's GPU, an A100.
pub const PAPER_SMS: u32 = 108;

/// The load of a component: table 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// Small: 4 × 4 blocks.
    S,
    /// Medium: 8 × 8 blocks.
    M,
    /// Large: 12 × 12 blocks, more than there are SMs.
    L,
    /// Extra large: 16 × 16 blocks, more than twice as many as there are SMs.
    Xl,
}

impl Size {
    /// Blocks in a row of the grid, and rows.
    fn side(self) -> u32 {
        match self {
            Self::S => 4,
            Self::M => 8,
            Self::L => 12,
            Self::Xl => 16,
        }
    }

    /// Width of the square matrices: 30 elements to a block of 32, as printed.
    pub fn width(self) -> u32 {
        30 * self.side()
    }

    /// Blocks of the grid as printed.
    pub fn blocks_printed(self) -> u32 {
        self.side() * self.side()
    }

    /// Blocks of a grid that is the same part of a device with this many SMs as the printed one is
    /// of the paper's. Of all grids with as many rows as columns, or one more, the one with the
    /// nearest number of blocks. Rows and columns of a product keep their length, so a block does
    /// as much.
    pub fn blocks_scaled(self, sms: u32) -> u32 {
        let wanted = f64::from(self.blocks_printed() * sms) / f64::from(PAPER_SMS);
        let grids = (1..=wanted as u32 + 1).flat_map(|side| [side * side, side * (side + 1)]);
        let away = |blocks: &u32| (f64::from(*blocks) - wanted).abs();
        grids.min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or(1)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::S => "S",
            Self::M => "M",
            Self::L => "L",
            Self::Xl => "XL",
        })
    }
}

/// A component's computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A matrix product of table 1.
    Product(Size),
    /// Reads and writes an image: so many blocks to an SM, bound by DRAM.
    Streams { blocks_per_sm: u32 },
    /// Convolves: this many blocks to an SM, limited by an SM's issue rate.
    Convolves { blocks_per_sm: u32 },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product(size) => size.fmt(f),
            Self::Streams { blocks_per_sm } => write!(f, "stream {blocks_per_sm}"),
            Self::Convolves { blocks_per_sm } => write!(f, "convolve {blocks_per_sm}"),
        }
    }
}

/// A chain of table 2, or another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChainSet {
    /// Its name there.
    pub name: &'static str,
    /// The class of its load.
    pub class: &'static str,
    pub components: &'static [Kind],
    /// The most that the paper gains over default MPS in that class, in per cent.
    pub paper_gain_percent: Option<f64>,
}

impl ChainSet {
    /// Its components with commas between.
    pub fn list(&self) -> String {
        let names: Vec<String> = self.components.iter().map(Kind::to_string).collect();
        names.join(", ")
    }
}

/// The nine chains. Gains are the text's for a class («up to»); the figure's own bars are not
/// printed as numbers.
pub const CHAIN_SETS: [ChainSet; 9] = {
    use Kind::Product;
    const S: Kind = Product(Size::S);
    const M: Kind = Product(Size::M);
    const L: Kind = Product(Size::L);
    const XL: Kind = Product(Size::Xl);
    const fn set(
        name: &'static str,
        class: &'static str,
        components: &'static [Kind; 5],
        paper_gain_percent: f64,
    ) -> ChainSet {
        ChainSet { name, class, components, paper_gain_percent: Some(paper_gain_percent) }
    }
    [
        set("SC-1", "small", &[L, S, S, S, S], 6.45),
        set("SC-2", "small", &[S, S, S, XL, S], 6.45),
        set("MC-1", "medium", &[S, L, S, XL, S], 29.81),
        set("MC-2", "medium", &[S, L, M, S, S], 29.81),
        set("MC-3", "medium", &[M, S, XL, S, S], 29.81),
        set("LC-1", "large", &[M, S, XL, S, L], 5.11),
        set("LC-2", "large", &[M, L, XL, S, S], 5.11),
        set("XLC-1", "extra large", &[S, L, M, M, L], 2.62),
        set("XLC-2", "extra large", &[S, L, M, M, XL], 2.62),
    ]
};

/// An additional chain, of components with different needs: decode and enhance move an image
/// through DRAM, which a part of the SMs can keep busy, and detect computes.
pub const IMAGE_CHAIN: ChainSet = ChainSet {
    name: "image",
    class: "decode, enhance, detect",
    components: &[
        Kind::Streams { blocks_per_sm: 8 },
        Kind::Streams { blocks_per_sm: 16 },
        Kind::Convolves { blocks_per_sm: 8 },
    ],
    paper_gain_percent: None,
};

/// The launched grids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grids {
    /// Those of table 1.
    Printed,
    /// Those of the same part of this device.
    Scaled,
}

/// How long the kernels are, in multiples of one product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    pub grids: Grids,
    /// How often each kernel computes its product: the paper's «kernel complexity».
    pub complexity: u32,
    /// Blocks vary evenly within ± this many thousandths of their length.
    pub jitter_permille: u16,
}

impl Workload {
    /// A component's kernel on a device.
    ///
    /// A product's block of 1024 threads does 1024 × width multiply-adds, each of which loads two
    /// words of shared memory, and the load port is the limit: [`MATMUL_PEAK_PERMILLE`] of the peak
    /// by the catalogue's lanes and clock, for any number of blocks on the SM. One block of 32
    /// warps keeps the port busy by itself, so two of them on an SM, of one component or of two,
    /// take twice as long each (the law by which [`crate::model`] reproduces the product's time on
    /// an H200). The matrices cross the DRAM bus once, which takes less time than that.
    ///
    /// The kernels of [`IMAGE_CHAIN`] are as long at any complexity: two of their blocks at a time
    /// fill an SM for 20 µs drawing all the memory bandwidth that it can, or 50 µs each computing.
    pub fn kernel(&self, spec: &DeviceSpec, kind: Kind, enabled: TpcSet) -> KernelWork {
        let kernel = |blocks: u32, block_ns| KernelWork {
            jitter_permille: self.jitter_permille,
            ..KernelWork::new(blocks.into(), 1024, block_ns, enabled)
        };
        match kind {
            Kind::Product(size) => {
                let blocks = match self.grids {
                    Grids::Printed => size.blocks_printed(),
                    Grids::Scaled => size.blocks_scaled(spec.sm_count()),
                };
                let multiplications = 1024.0 * f64::from(size.width()) * f64::from(self.complexity.max(1));
                let per_cycle = f64::from(spec.sm.fp32_lanes) * MATMUL_PEAK_PERMILLE as f64 / 1_000.0;
                let block_ns = multiplications / per_cycle * 1e6 / f64::from(spec.clocks.sm_khz);
                let smem_per_block = 2 * 32 * 32 * 4;
                KernelWork { sm_permille: 1_000, smem_per_block, ..kernel(blocks, block_ns as Time) }
            }
            Kind::Streams { blocks_per_sm } => {
                let block_ns = 20_000;
                let bytes_per_block = spec.memory.sm_bytes_per_s / 2 / 1_000_000 * (block_ns / 1_000);
                KernelWork { bytes_per_block, ..kernel(blocks_per_sm * spec.sm_count(), block_ns) }
            }
            Kind::Convolves { blocks_per_sm } => {
                KernelWork { sm_permille: 1_000, ..kernel(blocks_per_sm * spec.sm_count(), 50_000) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_sim::catalogue;

    #[test]
    fn classes_mean_on_132_sms_what_they_meant_on_108() {
        use Size::{L, M, S, Xl};
        assert_eq!([S, M, L, Xl].map(Size::blocks_printed), [16, 64, 144, 256]);
        assert_eq!([S, M, L, Xl].map(|size| size.blocks_scaled(PAPER_SMS)), [16, 64, 144, 256]);
        let scaled = [S, M, L, Xl].map(|size| size.blocks_scaled(132));
        assert_eq!(scaled, [20, 81, 182, 306]);
        // As many blocks on the busiest SM, which decides the time of a kernel alone.
        for (size, blocks) in [S, M, L, Xl].into_iter().zip(scaled) {
            assert_eq!(blocks.div_ceil(132), size.blocks_printed().div_ceil(PAPER_SMS), "{size}");
        }
    }

    #[test]
    fn a_block_takes_its_part_of_the_peak() {
        let spec = catalogue::device("h200").unwrap();
        let workload = Workload { grids: Grids::Printed, complexity: 3, jitter_permille: 0 };
        let kernel = workload.kernel(&spec, Kind::Product(Size::Xl), spec.topology.all());
        // 16 multiply-adds a cycle at 1.98 GHz.
        let expected = 1024.0 * 480.0 * 3.0 / 16.0 / 1.98;
        assert!((kernel.block_ns as f64 - expected).abs() < 1.0);
        assert_eq!((kernel.grid_blocks, kernel.threads_per_block), (256, 1024));
    }
}
