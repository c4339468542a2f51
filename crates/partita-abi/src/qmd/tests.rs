use super::layouts::ALL;
use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// Every field of a layout but the mask.
fn fields(layout: &QmdLayout) -> Vec<QmdField> {
    let mut all = std::vec![
        layout.group_id,
        layout.shared_memory_bytes,
        layout.registers_per_thread,
        layout.barriers,
        QmdField::mw(579, 576),
        QmdField::mw(583, 580),
    ];
    all.extend(layout.grid);
    all.extend(layout.block);
    match layout.program {
        QmdProgram::Offset(offset) => all.push(offset),
        QmdProgram::Address { lower, upper } => all.extend([lower, upper]),
    }
    if let Some(cluster) = layout.cluster {
        all.push(cluster.kind);
        all.extend(cluster.blocks);
    }
    all.extend(layout.mask.valid);
    all
}

/// The bits that [`write_disable_mask`] may change, word by word.
fn mask_bits(layout: &QmdLayout) -> [u32; QMD_WORDS_MAX] {
    let mut bits = [0; QMD_WORDS_MAX];
    let first = layout.mask.first_word as usize;
    bits[first..first + layout.mask.words as usize].fill(u32::MAX);
    if let Some(valid) = layout.mask.valid {
        bits[valid.word()] |= valid.mask();
    }
    bits
}

#[test]
fn no_two_fields_of_a_layout_overlap() {
    for layout in ALL {
        let mut used = mask_bits(layout);
        if let Some(valid) = layout.mask.valid {
            used[valid.word()] &= !valid.mask();
        }
        for field in fields(layout) {
            assert_eq!(
                used[field.word()] & field.mask(),
                0,
                "{} MW({}:{})",
                layout.version,
                field.hi(),
                field.lo()
            );
            used[field.word()] |= field.mask();
            assert!(field.word() < layout.words());
        }
        assert!(layout.words() <= QMD_WORDS_MAX);
    }
}

#[test]
fn masks_lie_where_the_headers_put_them() {
    for layout in ALL {
        let byte = layout.mask.first_word as usize * 4;
        if layout.version == QmdVersion::V04_00 {
            assert_eq!((byte, layout.mask.tpcs_max(), layout.bytes), (304, 128, 384));
            assert_eq!(layout.mask.valid, Some(QmdField::mw(31, 31)));
        } else {
            assert_eq!((byte, layout.mask.tpcs_max(), layout.bytes), (84, 64, 256));
            assert_eq!(layout.mask.valid, None);
        }
    }
}

#[test]
fn a_hopper_descriptor_reads_back_what_a_launch_wrote() {
    let layout = layout_for(90, 0x40).unwrap();
    let mut image = layout.empty_image();
    assert_eq!(version_byte(&image), Some(0x40));
    for (field, value) in layout.grid.into_iter().zip([70_000, 3, 2]) {
        assert!(write_field(&mut image, field, value));
    }
    for (field, value) in layout.block.into_iter().zip([1024, 1, 1]) {
        assert!(write_field(&mut image, field, value));
    }
    let QmdProgram::Address { lower, upper } = layout.program else {
        panic!("Hopper has addresses");
    };
    assert!(write_field(&mut image, lower, 0x8000_1000));
    assert!(write_field(&mut image, upper, 0x7f));
    assert_eq!(layout.read3(&image, &layout.grid), Ok([70_000, 3, 2]));
    assert_eq!(layout.read3(&image, &layout.block), Ok([1024, 1, 1]));
    assert_eq!(layout.program(&image), Ok(0x7f_8000_1000));
    assert!(!write_field(&mut image, layout.grid[1], 0x1_0000));
    assert_eq!(read_disable_mask(&image, layout), None);
}

#[test]
fn a_valid_mask_of_zeros_is_a_mask_only_where_a_bit_says_so() {
    for layout in ALL {
        let mut image = layout.empty_image();
        write_disable_mask(&mut image, layout, &[0; 8]).unwrap();
        let read = read_disable_mask(&image, layout);
        assert_eq!(read.is_some(), layout.mask.valid.is_some());
    }
}

#[test]
fn a_short_image_is_refused_unchanged() {
    for layout in ALL {
        let mut image = [7_u32; QMD_WORDS_MAX];
        let short = layout.words() - 1;
        let error = QmdError::ImageTooShort { version: layout.version, words: short };
        assert_eq!(write_disable_mask(&mut image[..short], layout, &[1; 8]), Err(error));
        assert_eq!(image, [7; QMD_WORDS_MAX]);
        assert_eq!(read_disable_mask(&image[..short], layout), None);
        assert_eq!(layout.program(&image[..short]), Err(error));
    }
}

proptest! {
    #[test]
    fn writing_a_mask_changes_the_mask_and_no_other_bit(
        seed in proptest::collection::vec(any::<u32>(), QMD_WORDS_MAX),
        disable in proptest::array::uniform8(any::<u32>()),
        index in 0..ALL.len(),
    ) {
        let layout = ALL[index];
        let mut image: [u32; QMD_WORDS_MAX] = seed.clone().try_into().unwrap();
        write_disable_mask(&mut image, layout, &disable).unwrap();

        let touched = mask_bits(layout);
        for word in 0..QMD_WORDS_MAX {
            prop_assert_eq!(image[word] & !touched[word], seed[word] & !touched[word]);
        }
        let words = layout.mask.words as usize;
        let mut expected = [0; 8];
        expected[..words].copy_from_slice(&disable[..words]);
        let read = read_disable_mask(&image, layout);
        if layout.mask.valid.is_some() || expected != [0; 8] {
            prop_assert_eq!(read, Some(expected));
        } else {
            prop_assert_eq!(read, None);
        }
    }

    #[test]
    fn every_field_round_trips_alone(
        seed in proptest::collection::vec(any::<u32>(), QMD_WORDS_MAX),
        value in any::<u32>(),
        index in 0..ALL.len(),
    ) {
        let layout = ALL[index];
        let all = fields(layout);
        for written in &all {
            let mut image = seed.clone();
            prop_assert!(write_field(&mut image, *written, value & written.max()));
            for field in &all {
                let want = if field == written {
                    value & field.max()
                } else {
                    field.get(seed[field.word()])
                };
                prop_assert_eq!(read_field(&image, *field), Some(want));
            }
        }
    }
}
