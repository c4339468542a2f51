//! Launch descriptors as this driver fills them, beyond the layouts of `partita-abi`.

use partita_abi::CuResult;
use partita_abi::qmd::{
    self, HOPPER_PRIORITY_GROUPS, LaunchShape, QMD_WORDS_MAX, QmdLayout, QmdVersion, write_field,
};
use partita_core::Topology;
use partita_sim::SmSpec;

/// A descriptor.
pub type Image = [u32; QMD_WORDS_MAX];

/// The fewest registers that the driver writes.
const REGISTERS_MIN: u32 = 16;

/// The descriptor of a function before any launch: program, registers and barriers.
///
/// # Errors
/// `INVALID_VALUE` when one of them does not fit its field.
pub fn template(layout: &QmdLayout, program: u64, registers: u32) -> Result<Image, CuResult> {
    let mut image = layout.empty_image();
    layout.write_program(&mut image, program).map_err(|_| CuResult::INVALID_VALUE)?;
    let fits = write_field(&mut image, layout.registers_per_thread, registers.max(REGISTERS_MIN))
        && write_field(&mut image, layout.barriers, 1);
    if fits { Ok(image) } else { Err(CuResult::INVALID_VALUE) }
}

/// Shared memory of a block as the descriptor has it: with the system's reserve, in whole units.
pub fn shared_field_bytes(sm: &SmSpec, bytes: u32) -> u32 {
    (bytes + sm.shared_reserved_per_block_bytes).next_multiple_of(sm.shared_unit_bytes)
}

/// Writes a launch into a function's descriptor. `shared_bytes` is static and dynamic memory of a
/// block.
///
/// # Errors
/// `INVALID_VALUE` when a dimension does not fit its field.
#[inline]
pub fn fill(
    image: &mut Image,
    layout: &QmdLayout,
    shape: &LaunchShape,
    block: [u32; 3],
    shared_bytes: u32,
    priority: i32,
    sm: &SmSpec,
) -> Result<(), CuResult> {
    layout.write_shape(image, shape).map_err(|_| CuResult::INVALID_VALUE)?;
    let mut fits = layout.shared_memory.write_bytes(image, shared_field_bytes(sm, shared_bytes));
    for (field, threads) in layout.block.iter().zip(block) {
        fits &= write_field(image, *field, threads);
    }
    if layout.version == QmdVersion::V04_00 {
        // Cooperative launches share the most urgent queue, whatever their priority.
        let level =
            if shape.cooperative == Some(true) { 5 } else { priority.clamp(-5, 0).unsigned_abs() as usize };
        fits &= write_field(image, layout.group_id, HOPPER_PRIORITY_GROUPS[level]);
    }
    if fits { Ok(()) } else { Err(CuResult::INVALID_VALUE) }
}

/// For clusters of more than two blocks on a stream without a mask the driver itself disables every
/// number beyond the GPCs of more than one TPC: words 2 and 3 of the mask read `ffffff00 ffffffff`
/// on the H200 that was measured.
pub fn leave_out_singletons(image: &mut Image, layout: &QmdLayout, topology: &Topology) {
    let last = topology
        .gpcs()
        .iter()
        .filter(|gpc| gpc.tpcs.len() > 1)
        .filter_map(|gpc| topology.physical_set(&gpc.tpcs).last_tpc())
        .max()
        .unwrap_or(u8::MAX);
    let mut disable = [0; 8];
    for bit in u32::from(last) + 1..layout.mask.tpcs_max() {
        disable[bit as usize / 32] |= 1 << (bit % 32);
    }
    merge(image, layout, &disable);
}

/// Merges a stream's mask (set bits disable, logical numbers) into a descriptor, as the driver
/// does: numbers that belong to no TPC stay clear.
#[inline]
pub fn merge_stream_mask(image: &mut Image, layout: &QmdLayout, disable: &[u32; 4], topology: &Topology) {
    let mut physical = [0; 8];
    for (logical, tpc) in topology.tpcs().iter().enumerate().take(128) {
        if disable[logical / 32] >> (logical % 32) & 1 != 0 {
            physical[usize::from(tpc.physical) / 32] |= 1 << (tpc.physical % 32);
        }
    }
    merge(image, layout, &physical);
}

/// Merges physical disable words into a descriptor's mask. Every image here has the length of the
/// longest descriptor.
#[inline]
pub fn merge(image: &mut Image, layout: &QmdLayout, disable: &[u32; 8]) {
    let merged = qmd::merge_disable_mask(image, layout, disable);
    debug_assert!(merged.is_ok());
}

/// The descriptor's bytes.
#[inline]
pub fn bytes<'a>(image: &'a Image, layout: &QmdLayout) -> &'a [u8] {
    let words = &image[..layout.words()];
    // SAFETY: the words are plain numbers, and a byte has no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 4) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_abi::qmd::{layout_for, read_disable_mask};
    use partita_sim::catalogue;

    #[test]
    fn clusters_leave_singletons_out_as_on_hardware() {
        let spec = catalogue::device("h200").unwrap();
        let layout = layout_for(90, 0x40).unwrap();
        let mut image = template(layout, 0x1_2345_6700, 11).unwrap();
        let shape = LaunchShape { grid: [8, 1, 1], cluster: [4, 1, 1], cooperative: Some(false) };
        fill(&mut image, layout, &shape, [96, 1, 1], 0, 0, &spec.sm).unwrap();
        leave_out_singletons(&mut image, layout, &spec.topology);
        // From the dump of such a launch.
        assert_eq!((image[32], image[67], image[78], image[79]), (2, 0x0001_0104, 0xffff_ff00, 0xffff_ffff));
        assert_eq!((image[0] >> 23 & 7, image[0] >> 31, image[36]), (3, 1, 0x0001_0060));
        assert_eq!(layout.shape(&image).unwrap(), shape);
        assert_eq!(layout.program(&image).unwrap(), 0x1_2345_6700);
    }

    #[test]
    fn a_stream_mask_sets_live_numbers_only() {
        let spec = catalogue::device("h200").unwrap();
        let layout = layout_for(90, 0x40).unwrap();
        let mut image = template(layout, 0x100, 11).unwrap();
        merge_stream_mask(&mut image, layout, &[!3u32, !0, !0, !0], &spec.topology);
        // From the dump of a launch on a stream with TPCs 0 and 1.
        assert_eq!(image[76..80], [0xfbfd_fc0e, 0xffdf_eff7, 0x000a_48ff, 0]);
        assert!(read_disable_mask(&image, layout).is_some());
    }
}
