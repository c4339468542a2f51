//! How many kernels a GPU runs at once, told by the kernels themselves.

use alloc::vec::Vec;

use partita_abi::kernels;

use crate::census::{RECORD_BYTES, read_record};
use crate::error::Error;
use crate::gpu::{Gpu, Grid, KERNEL_DEADLINE_MS};
use crate::stream::Stream;

/// Kernels that are launched: more than any GPU that we know runs at once.
const KERNELS: usize = 272;
/// For how long each runs: several times as long as it takes to launch them all.
const KERNEL_NS: u64 = 10_000_000;
const GRID: Grid = Grid { blocks: 1, threads: 32, cluster_blocks: 1 };

/// Counts the kernels that the GPU runs at once, by kernels of one block in streams of their own.
/// None if it runs as many as were launched.
///
/// # Errors
/// The driver's; [`Error::Hang`]; [`Error::Disproved`] if a kernel left no record.
pub fn task_slots(gpu: &Gpu<'_>) -> Result<Option<u32>, Error> {
    let records = gpu.alloc(KERNELS * RECORD_BYTES)?;
    records.fill(0)?;
    let streams = (0..KERNELS).map(|_| Stream::new(gpu.cuda())).collect::<Result<Vec<_>, _>>()?;
    for (stream, at) in streams.iter().zip(0u64..) {
        let record = records.address() + at * RECORD_BYTES as u64;
        // SAFETY: the kernel takes the address of a record for each block and a duration; the
        // buffer lives until all have ended.
        let mut launch = unsafe {
            let arguments = [record, KERNEL_NS];
            gpu.prepare_at(gpu.place(stream.as_ref()), kernels::CENSUS, GRID, &arguments)?
        };
        launch.launch()?;
    }
    for stream in &streams {
        gpu.wait_on(stream.as_ref(), "a count of kernels", KERNEL_DEADLINE_MS)?;
    }
    let bytes = records.read()?;
    let times = bytes.chunks_exact(RECORD_BYTES).map(|record| {
        let record = read_record(0, record)?;
        Ok((record.start_ns, record.stop_ns))
    });
    let most = most_at_once(&times.collect::<Result<Vec<_>, Error>>()?);
    Ok(Some(most).filter(|most| *most < KERNELS as u32))
}

/// How many of some spans of time, each with its begin and its end, hold one moment at most.
fn most_at_once(spans: &[(u64, u64)]) -> u32 {
    let begins = spans.iter().map(|&(begin, _)| (begin, true));
    let ends = spans.iter().map(|&(_, end)| (end, false));
    // At one moment those that end come first: a slot passes from one kernel to the next.
    let mut changes: Vec<(u64, bool)> = begins.chain(ends).collect();
    changes.sort_unstable();
    let (mut present, mut most) = (0u32, 0);
    for (_, is_begin) in changes {
        present = if is_begin { present + 1 } else { present.saturating_sub(1) };
        most = most.max(present);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::most_at_once;

    #[test]
    fn spans_that_meet_are_not_at_once() {
        assert_eq!(most_at_once(&[]), 0);
        assert_eq!(most_at_once(&[(0, 10), (10, 20), (20, 30)]), 1);
        assert_eq!(most_at_once(&[(0, 10), (5, 20), (9, 30), (10, 12)]), 3);
    }
}
