use super::layouts::ALL;
use super::*;
use proptest::prelude::*;
use std::vec::Vec;

/// Every field of a layout but the mask.
fn fields(layout: &QmdLayout) -> Vec<QmdField> {
    let mut all = std::vec![
        layout.group_id,
        layout.shared_memory.field,
        layout.registers_per_thread,
        layout.barriers,
        QmdField::mw(layout.version_offset_bytes * 8 + 3, layout.version_offset_bytes * 8),
        QmdField::mw(layout.version_offset_bytes * 8 + 7, layout.version_offset_bytes * 8 + 4),
    ];
    all.extend(layout.grid);
    all.extend(layout.block);
    match layout.program {
        QmdProgram::Offset(offset) => all.push(offset),
        QmdProgram::Address { lower, upper, .. } => all.extend([lower, upper]),
    }
    if let Some(cga) = layout.cga {
        all.extend([cga.kind, cga.distribution]);
        all.extend(cga.cluster);
        all.extend(cga.resident);
    }
    all.extend(layout.mask.valid);
    all
}

/// The bits that [`write_disable_mask`] may change, word by word.
fn mask_bits(layout: &QmdLayout) -> [u32; QMD_WORDS_MAX] {
    let mut bits = layout.mask.bits();
    if let Some(valid) = layout.mask.valid {
        bits[valid.word()] |= valid.mask();
    }
    bits
}

#[test]
fn no_two_fields_of_a_layout_overlap() {
    for layout in ALL {
        let mut used = layout.mask.bits();
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

/// The bit of a descriptor that disables a TPC, straight from the headers' `MW` numbers.
fn header_bit(layout: &QmdLayout, tpc: usize) -> Option<usize> {
    use QmdVersion as V;
    let ada = core::ptr::eq(layout, &layouts::V03_00_ADA);
    match (layout.version, tpc) {
        (V::V04_00 | V::V04_01, 0..128) => Some(2432 + tpc),
        (V::V04_01, 128..256) => Some(2688 + tpc - 128),
        (V::V05_00, 0..256) => Some(2240 + tpc),
        (V::V04_00, _) => None,
        (_, 0..64) => Some(672 + tpc),
        (_, 64..70) if ada => Some(372 + tpc - 64),
        (_, 70..72) if ada => Some(379 + tpc - 70),
        _ => None,
    }
}

/// The bit that makes a mask count, straight from the headers.
fn header_valid_bit(layout: &QmdLayout) -> Option<usize> {
    match layout.version {
        QmdVersion::V04_00 | QmdVersion::V04_01 => Some(31),
        QmdVersion::V05_00 => Some(159),
        _ => None,
    }
}

fn bit(image: &[u32], bit: usize) -> bool {
    image[bit / 32] >> (bit % 32) & 1 != 0
}

#[test]
fn masks_are_as_long_as_the_headers_say() {
    for layout in ALL {
        let named = (0..300).filter(|tpc| header_bit(layout, *tpc).is_some()).count();
        assert_eq!(layout.mask.tpcs_max() as usize, named, "{}", layout.version);
        let bytes = if layout.version < QmdVersion::V04_00 { 256 } else { 384 };
        assert_eq!((layout.bytes, layout.version_offset_bytes), (bytes, layout.version.offset_bytes()));
    }
}

/// Bit 26 of word 11, between Ada's additional mask bits, is `API_VISIBLE_CALL_LIMIT`.
#[test]
fn adas_call_limit_is_kept() {
    for before in [0, 0xffff_ffff, 0x0400_0000] {
        let mut image = [0; QMD_WORDS_MAX];
        image[11] = before;
        write_disable_mask(&mut image, &layouts::V03_00_ADA, &[0, 0, 0xa5, 0, 0, 0, 0, 0]).unwrap();
        // 0xa5: TPCs 64, 66, 69 and 71.
        assert_eq!(image[11], before & !0x1bf0_0000 | 0x1250_0000);
    }
}

/// Words of descriptors that driver 580.159.04 made on an H200, by number.
/// Words not listed are zero or of no interest here.
fn measured(words: &[(usize, u32)]) -> [u32; QMD_WORDS_MAX] {
    let mut image = [0; QMD_WORDS_MAX];
    for (index, word) in words {
        image[*index] = *word;
    }
    image
}

/// 8 × 4 × 2 blocks of 64 × 2 × 1 threads with 4 KiB of dynamic shared memory.
const MEASURED_PLAIN: [(usize, u32); 11] = [
    (0, 0x113f_0000),
    (17, 0x0300_0640),
    (18, 0xbc14_0040),
    (32, 8),
    (33, 4),
    (34, 2),
    (35, 0x8001_0000),
    (36, 0x0002_0040),
    (37, 0x0810_0001),
    (38, 0x9b7a_0000),
    (39, 0x0000_7f4e),
];

#[test]
fn a_measured_hopper_descriptor_reads_as_it_was_launched() {
    let image = measured(&MEASURED_PLAIN);
    let layout = layout_of(90, &image).unwrap();
    let shape = layout.shape(&image).unwrap();
    assert_eq!(shape, LaunchShape { grid: [8, 4, 2], cluster: [1; 3], cooperative: Some(false) });
    assert_eq!((shape.grid_blocks(), shape.cluster_blocks()), (64, 1));
    assert_eq!(layout.block.map(|field| read_field(&image, field).unwrap()), [64, 2, 1]);
    assert_eq!(layout.shared_memory.read_bytes(&image), Some(4096 + 1024));
    assert_eq!(read_field(&image, layout.registers_per_thread), Some(16));
    assert_eq!(read_field(&image, layout.barriers), Some(1));
    assert_eq!(read_field(&image, layout.group_id), Some(63));
    assert_eq!(layout.program(&image), Ok(0x7f4e_9b7a_0000));
    assert_eq!(read_disable_mask(&image, layout), None);
}

#[test]
fn measured_clusters_and_cooperation_read_as_they_were_launched() {
    let layout = &layouts::V04_00;
    let launches: [(&[(usize, u32)], LaunchShape); 4] = [
        (
            &[(0, 0x11bf_0000), (32, 4), (33, 4), (34, 2), (67, 0x0001_0102), (68, 0x8000_0000)],
            LaunchShape { grid: [8, 4, 2], cluster: [2, 1, 1], cooperative: Some(false) },
        ),
        (
            &[(0, 0x91bf_0000), (32, 4), (33, 2), (34, 1), (67, 0x0002_0202), (68, 0x8000_0000)],
            LaunchShape { grid: [8, 4, 2], cluster: [2, 2, 2], cooperative: Some(false) },
        ),
        (
            &[(0, 0x1208_0000), (32, 1), (33, 1), (34, 1), (69, 0x0004_0008), (70, 2)],
            LaunchShape { grid: [8, 4, 2], cluster: [1; 3], cooperative: Some(true) },
        ),
        (
            &[
                (0, 0x1288_0000),
                (32, 1),
                (33, 1),
                (34, 1),
                (67, 0x0001_0102),
                (68, 0x8000_0000),
                (69, 0x0004_0004),
                (70, 2),
            ],
            LaunchShape { grid: [8, 4, 2], cluster: [2, 1, 1], cooperative: Some(true) },
        ),
    ];
    for (words, shape) in launches {
        let image = measured(words);
        assert_eq!(layout.shape(&image), Ok(shape));
        // The words that this crate writes equal those that the driver wrote.
        let mut written = measured(&MEASURED_PLAIN);
        layout.write_shape(&mut written, &shape).unwrap();
        for index in [32, 33, 34, 67, 68, 69, 70] {
            assert_eq!(written[index], image[index], "word {index} of {shape:?}");
        }
        let kind = layout.cga.unwrap().kind;
        assert_eq!(read_field(&written, kind), read_field(&image, kind));
    }
}

#[test]
fn shapes_that_a_version_cannot_hold_are_refused() {
    let plain = LaunchShape { grid: [70_000, 3, 2], cluster: [1; 3], cooperative: None };
    for layout in ALL {
        let mut image = layout.empty_image();
        assert!(layout.is_version_of(&image));
        layout.write_shape(&mut image, &LaunchShape { cooperative: Some(false), ..plain }).unwrap();
        assert_eq!(layout.shape(&image).unwrap().grid, plain.grid);

        let tall = LaunchShape { grid: [1, 65_536, 1], ..plain };
        let clustered = LaunchShape { cluster: [2, 1, 1], ..plain };
        let uneven = LaunchShape { cluster: [1, 2, 1], ..plain };
        let cooperative = LaunchShape { grid: [8, 1, 1], cooperative: Some(true), ..plain };
        let has_cga = layout.cga.is_some();
        assert!(layout.write_shape(&mut image, &tall).is_err());
        assert!(layout.write_shape(&mut image, &uneven).is_err());
        assert_eq!(layout.write_shape(&mut image, &clustered).is_ok(), has_cga);
        assert_eq!(layout.write_shape(&mut image, &cooperative).is_ok(), has_cga);
    }
    let empty = layouts::V04_00.empty_image();
    assert_eq!(
        layouts::V04_00.shape(&empty),
        Err(QmdError::NotAGrid { version: QmdVersion::V04_00, kind: 0 })
    );
}

#[test]
fn code_and_sizes_are_kept_in_the_versions_own_units() {
    let v05 = &layouts::V05_00;
    let mut image = v05.empty_image();
    v05.write_program(&mut image, 0x01ab_cdef_1234_5670).unwrap();
    assert_eq!((image[32], image[33]), (0xf123_4567, 0x001a_bcde));
    assert_eq!(v05.program(&image), Ok(0x01ab_cdef_1234_5670));
    assert!(v05.shared_memory.write_bytes(&mut image, 228 << 10));
    assert_eq!((image[36], v05.shared_memory.read_bytes(&image)), (1824, Some(228 << 10)));
    assert!(!v05.shared_memory.write_bytes(&mut image, 100));
    for (layout, address) in
        [(v05, 0x1_2345_6788), (v05, 1 << 57), (&layouts::V02_02, 1 << 49), (&layouts::V01_07, 1 << 32)]
    {
        let error = QmdError::ProgramDoesNotFit { version: layout.version, address };
        let before = image;
        assert_eq!(layout.write_program(&mut image, address), Err(error));
        assert_eq!(image, before);
    }
}

#[test]
fn merging_keeps_what_the_driver_disabled() {
    let layout = &layouts::V04_00;
    // As measured for clusters of four blocks or more.
    let mut image = measured(&[(0, 0x91bf_0000), (78, 0xffff_ff00), (79, 0xffff_ffff)]);
    let mine = [0xffff_0000, 0, 0xf, 0, 9, 9, 9, 9];
    merge_disable_mask(&mut image, layout, &mine).unwrap();
    let merged = Some([0xffff_0000, 0, 0xffff_ff0f, 0xffff_ffff, 0, 0, 0, 0]);
    assert_eq!(read_disable_mask(&image, layout), merged);

    // Words without the valid bit are not a mask and are dropped.
    let mut image = measured(&[(78, 0xffff_ff00)]);
    merge_disable_mask(&mut image, layout, &mine).unwrap();
    assert_eq!(read_disable_mask(&image, layout), Some([0xffff_0000, 0, 0xf, 0, 0, 0, 0, 0]));
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

        let mut expected = seed.clone();
        let mut named = [0_u32; 8];
        for tpc in 0..256 {
            let off = bit(&disable, tpc);
            if let Some(at) = header_bit(layout, tpc) {
                expected[at / 32] = expected[at / 32] & !(1 << (at % 32)) | u32::from(off) << (at % 32);
                named[tpc / 32] |= u32::from(off) << (tpc % 32);
            }
        }
        if let Some(at) = header_valid_bit(layout) {
            expected[at / 32] |= 1 << (at % 32);
        }
        prop_assert_eq!(&image[..], &expected[..]);

        let read = read_disable_mask(&image, layout);
        prop_assert_eq!(read, (header_valid_bit(layout).is_some() || named != [0; 8]).then_some(named));

        clear_disable_mask(&mut image, layout).unwrap();
        prop_assert_eq!(read_disable_mask(&image, layout), None);
        let touched = mask_bits(layout);
        for word in 0..QMD_WORDS_MAX {
            prop_assert_eq!(image[word], seed[word] & !touched[word]);
        }
    }

    #[test]
    fn merging_for_the_living_never_leaves_none(
        seed in proptest::collection::vec(any::<u32>(), QMD_WORDS_MAX),
        own in proptest::array::uniform8(any::<u32>()),
        disable in proptest::array::uniform8(any::<u32>()),
        live in proptest::collection::btree_set(0_usize..256, 1..12),
        index in 0..ALL.len(),
    ) {
        let layout = ALL[index];
        let mut words = [0_u32; 8];
        for tpc in live.iter().filter(|tpc| header_bit(layout, **tpc).is_some()) {
            words[tpc / 32] |= 1 << (tpc % 32);
        }
        let mut image = seed.clone();
        write_disable_mask(&mut image, layout, &own).unwrap();
        let before = read_disable_mask(&image, layout).unwrap_or_default();
        let both: [u32; 8] = std::array::from_fn(|word| disable[word] | before[word]);
        let left = (0..8).any(|word| !both[word] & words[word] != 0);
        let kept = merge_live(&mut image, layout, &disable, &words).unwrap();
        let had_one = layout.mask.valid.is_some() || before != [0; 8];
        prop_assert_eq!(kept, left || !had_one);
        let mut expected = seed.clone();
        write_disable_mask(&mut expected, layout, if kept { &both } else { &disable }).unwrap();
        prop_assert_eq!(image, expected);
    }

    #[test]
    fn merging_is_the_union_with_a_mask_that_counts(
        seed in proptest::collection::vec(any::<u32>(), QMD_WORDS_MAX),
        disable in proptest::array::uniform8(any::<u32>()),
        index in 0..ALL.len(),
    ) {
        let layout = ALL[index];
        let mut merged = seed.clone();
        merge_disable_mask(&mut merged, layout, &disable).unwrap();
        let mut expected = seed.clone();
        let own = read_disable_mask(&seed, layout).unwrap_or_default();
        let union = std::array::from_fn(|word| disable[word] | own[word]);
        write_disable_mask(&mut expected, layout, &union).unwrap();
        prop_assert_eq!(merged, expected);
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
