//! Sizes of blocks.

/// The smallest block, in bytes. Blocks start at multiples of an eighth of it, which is more than
/// the 256 bytes to which `cuMemAlloc` aligns (CUDA C++ Programming Guide, "Size and Alignment
/// Requirement").
pub(crate) const LEAST_BYTES: u64 = 4096;

/// Steps from one power of two to the next: a block is at most an eighth larger than the request.
const STEPS_LOG2: u32 = 3;

/// The largest step: above 16 MiB, where an eighth is much, a block is at most 2 MiB larger.
const STEP_BYTES_MAX_LOG2: u32 = 21;

/// The block size for a request of `bytes`: 4 KiB; eight sizes to each doubling up to 16 MiB; and
/// multiples of 2 MiB. `None` for 0 and for impossible sizes.
#[must_use]
pub fn block_bytes(bytes: u64) -> Option<u64> {
    match bytes {
        0 => None,
        1..=LEAST_BYTES => Some(LEAST_BYTES),
        _ => {
            let unit = 1u64 << ((bytes - 1).ilog2() - STEPS_LOG2).min(STEP_BYTES_MAX_LOG2);
            bytes.checked_next_multiple_of(unit)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_these() {
        let sizes = [1, 4096, 4097, 4608, 4609, 8192, 8193, 1 << 20, (1 << 20) + 1].map(block_bytes);
        let expected = [4096, 4096, 4608, 4608, 5120, 8192, 9216, 1 << 20, (1 << 20) + (1 << 17)];
        assert_eq!(sizes, expected.map(Some));
        let large = [(16 << 20) + 1, (1 << 30) + 1, 3 << 40].map(block_bytes);
        assert_eq!(large, [18 << 20, (1 << 30) + (2 << 20), 3 << 40].map(Some));
        assert_eq!([0, u64::MAX].map(block_bytes), [None, None]);
    }

    proptest! {
        #[test]
        fn blocks_fit_closely_and_are_sizes_themselves(bytes in 1u64..1 << 50) {
            let block = block_bytes(bytes).unwrap();
            let more = block - bytes;
            prop_assert!(bytes <= LEAST_BYTES || more < bytes.div_ceil(8) && more < 2 << 20);
            prop_assert_eq!(block_bytes(block), Some(block));
            prop_assert_eq!(block % 512, 0);
        }
    }
}
