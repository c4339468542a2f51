//! A convolutional network as a chain of kernels: YOLOv2, layer by layer.
//!
//! Each convolution is a matrix product, as Darknet computes it: filters × (inputs · size²) times
//! (inputs · size²) × positions. A block computes a tile of the result; so layers with few
//! positions have few blocks, and do not gain from more SMs. Layers in between (pooling,
//! activation) move memory, are short, and are omitted.
//! activation) move memory, are short, and are left out.

use partita_sim::DeviceSpec;

use crate::dialect::QueuedKernel;

/// A convolution: filters, size, inputs, width and height of its output.
pub(crate) struct Layer {
    filters: u64,
    size: u64,
    inputs: u64,
    side: u64,
}

const fn layer(filters: u64, size: u64, inputs: u64, side: u64) -> Layer {
    Layer { filters, size, inputs, side }
}

/// The convolutions of YOLOv2 for PASCAL VOC at 416 × 416 (J. Redmon and A. Farhadi, «YOLO9000»,
/// 2017, and Darknet's `yolov2-voc.cfg`): the layers that add up to Darknet's 29.4 billion
/// operations.
#[rustfmt::skip]
pub(crate) const YOLO_V2: [Layer; 23] = [
    layer(32, 3, 3, 416), layer(64, 3, 32, 208),
    layer(128, 3, 64, 104), layer(64, 1, 128, 104), layer(128, 3, 64, 104),
    layer(256, 3, 128, 52), layer(128, 1, 256, 52), layer(256, 3, 128, 52),
    layer(512, 3, 256, 26), layer(256, 1, 512, 26), layer(512, 3, 256, 26), layer(256, 1, 512, 26), layer(512, 3, 256, 26),
    layer(1024, 3, 512, 13), layer(512, 1, 1024, 13), layer(1024, 3, 512, 13), layer(512, 1, 1024, 13), layer(1024, 3, 512, 13),
    layer(1024, 3, 1024, 13), layer(1024, 3, 1024, 13), layer(64, 1, 512, 26), layer(1024, 3, 1280, 13), layer(125, 1, 1024, 13),
];

/// The tile of a block: filters × positions, as large GEMM kernels have it.
const TILE: [u64; 2] = [128, 64];
/// Threads of a block: two blocks fill an SM.
const THREADS: u32 = 1024;
/// Blocks that share an SM's lanes.
const BLOCKS_PER_SM: u64 = 2;
/// Part of the FP32 peak that a block's product reaches. The only number fitted to the paper: with
/// it the network alone takes table III's 24 ms on eight TPCs of a Titan V.
const PEAK_PERMILLE: u64 = 570;

impl Layer {
    /// Operations, a multiply-add being two.
    #[cfg(test)]
    fn operations(&self) -> u64 {
        2 * self.filters * self.depth() * self.side * self.side
    }

    fn depth(&self) -> u64 {
        self.inputs * self.size * self.size
    }

    fn blocks(&self) -> u64 {
        self.filters.div_ceil(TILE[0]) * (self.side * self.side).div_ceil(TILE[1])
    }

    /// How long a block takes on a device, in nanoseconds.
    fn block_ns(&self, device: &DeviceSpec) -> u64 {
        let operations = 2 * TILE[0].min(self.filters) * TILE[1] * self.depth();
        // Operations of an SM in a microsecond.
        let per_us = 2 * u64::from(device.sm.fp32_lanes) * u64::from(device.clocks.sm_khz) / 1_000;
        operations * BLOCKS_PER_SM * 1_000_000 / PEAK_PERMILLE / per_us.max(1)
    }
}

/// A network's kernels on a device, with blocks of their tile's length.
pub(crate) fn kernels(layers: &[Layer], device: &DeviceSpec) -> Vec<QueuedKernel> {
    let kernels = layers.iter().zip(1..).map(|(layer, number)| QueuedKernel {
        label: format!("layer {number}"),
        duration_ns: layer.block_ns(device),
        block_count: layer.blocks() as u32,
        thread_count: THREADS,
        delay_s: 0.0,
        sm_mask: None,
        shared_words: 0,
        copy_in_bytes: 0,
        copy_out_bytes: 0,
    });
    kernels.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_are_those_that_darknet_counts() {
        let operations: u64 = YOLO_V2.iter().map(Layer::operations).sum();
        assert!((29_300_000_000..29_500_000_000).contains(&operations), "{operations}");
    }
}
