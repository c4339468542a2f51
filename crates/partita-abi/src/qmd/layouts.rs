//! Where each version of the launch descriptor has the fields that Partita reads and writes.
//!
//! Sources, with each number next to the field's name: `cla0c0qmd.h` (V01_06), `clc0c0qmd.h`
//! (V01_07, V02_00, V02_01), `clc3c0qmd.h` (V02_02), `clc6c0qmd.h` (V02_03, V02_04, V03_00),
//! `clc9c0qmd.h` (V03_00 of Ada), `clcbc0qmd.h` (V03_00, V04_00) and `clcdc0qmd.h` (V04_01,
//! V05_00), from `NVIDIA/open-gpu-doc`, `classes/compute`. Every version up to V03_00 is 256 bytes
//! long, later ones are 384 bytes long (highest defined bit 2047 and 3071).

use super::{QmdCga, QmdField, QmdLayout, QmdMask, QmdMaskBeyond, QmdProgram, QmdSize, QmdVersion};

const fn mw(hi: u16, lo: u16) -> QmdField {
    QmdField::mw(hi, lo)
}

/// A size in bytes.
const fn bytes(field: QmdField) -> QmdSize {
    QmdSize { field, shifted: 0 }
}

/// `SM_DISABLE_MASK_LOWER` MW(703:672) and `SM_DISABLE_MASK_UPPER`
/// MW(735:704), without a bit that says whether the mask counts.
const MASK_64: QmdMask =
    QmdMask { first_word: 672 / 32, words: 2, beyond: QmdMaskBeyond::Nothing, valid: None };

/// The common fields of V01_06 and V01_07, under V01_06's name.
const V01: QmdLayout = QmdLayout {
    version: QmdVersion::V01_06,
    version_offset_bytes: QmdVersion::V01_06.offset_bytes(),
    bytes: 256,
    group_id: mw(197, 192),                            // QMD_GROUP_ID
    grid: [mw(415, 384), mw(431, 416), mw(447, 432)],  // CTA_RASTER_WIDTH, _HEIGHT, _DEPTH
    block: [mw(607, 592), mw(623, 608), mw(639, 624)], // CTA_THREAD_DIMENSION0, 1, 2
    shared_memory: bytes(mw(561, 544)),                // SHARED_MEMORY_SIZE
    registers_per_thread: mw(1503, 1496),              // REGISTER_COUNT
    barriers: mw(1471, 1467),                          // BARRIER_COUNT
    program: QmdProgram::Offset(mw(287, 256)),         // PROGRAM_OFFSET
    cga: None,
    mask: MASK_64,
};

/// The common fields of V02_02 to V03_00, under V02_02's name.
const VOLTA: QmdLayout = QmdLayout {
    version: QmdVersion::V02_02,
    group_id: mw(133, 128),                           // QMD_GROUP_ID
    grid: [mw(415, 384), mw(431, 416), mw(463, 448)], // CTA_RASTER_WIDTH, _HEIGHT, _DEPTH
    registers_per_thread: mw(656, 648),               // REGISTER_COUNT_V
    barriers: mw(959, 955),                           // BARRIER_COUNT
    // PROGRAM_ADDRESS_LOWER and _UPPER: 49 bits.
    program: QmdProgram::Address { lower: mw(1567, 1536), upper: mw(1584, 1568), shifted: 0 },
    ..V01
};

/// Kepler.
pub static V01_06: QmdLayout = V01;

/// Kepler to Pascal.
pub static V01_07: QmdLayout = QmdLayout { version: QmdVersion::V01_07, ..V01 };

/// Pascal.
pub static V02_00: QmdLayout = QmdLayout {
    version: QmdVersion::V02_00,
    grid: VOLTA.grid,
    registers_per_thread: mw(991, 984), // REGISTER_COUNT
    barriers: VOLTA.barriers,
    ..V01
};

/// Pascal.
pub static V02_01: QmdLayout = QmdLayout {
    version: QmdVersion::V02_01,
    group_id: VOLTA.group_id,
    grid: VOLTA.grid,
    registers_per_thread: mw(991, 984), // REGISTER_COUNT
    barriers: VOLTA.barriers,
    ..V01
};

/// Volta.
pub static V02_02: QmdLayout = VOLTA;

/// Turing and Ampere.
pub static V02_03: QmdLayout = QmdLayout { version: QmdVersion::V02_03, ..VOLTA };

/// Ampere and Ada.
pub static V02_04: QmdLayout = QmdLayout { version: QmdVersion::V02_04, ..VOLTA };

/// Ampere and Hopper. The same version on Ada is [`V03_00_ADA`].
pub static V03_00: QmdLayout = QmdLayout {
    version: QmdVersion::V03_00,
    barriers: mw(767, 763), // BARRIER_COUNT
    ..VOLTA
};

/// V03_00 of class C9C0 (Ada), which has eight more mask bits, on both sides of
/// `API_VISIBLE_CALL_LIMIT` MW(378:378).
///
/// That they are TPCs 64 to 71, lowest first, is concluded from their names and
/// from AD102, which has 72 TPCs; calibration proves it on each board.
pub static V03_00_ADA: QmdLayout = QmdLayout {
    version: QmdVersion::V03_00,
    barriers: mw(767, 763), // BARRIER_COUNT
    mask: QmdMask {
        beyond: QmdMaskBeyond::Fields {
            lower: mw(377, 372), // SM_DISABLE_MASK_EXT_LOWER
            upper: mw(380, 379), // SM_DISABLE_MASK_EXT_UPPER
        },
        ..MASK_64
    },
    ..VOLTA
};

/// The common fields of V04_00 and V04_01, under V04_00's name.
const V04: QmdLayout = QmdLayout {
    version: QmdVersion::V04_00,
    version_offset_bytes: QmdVersion::V04_00.offset_bytes(),
    bytes: 384,
    group_id: mw(21, 16),                                    // QMD_GROUP_ID
    grid: [mw(1055, 1024), mw(1071, 1056), mw(1103, 1088)],  // GRID_WIDTH, _HEIGHT, _DEPTH
    block: [mw(1167, 1152), mw(1183, 1168), mw(1199, 1184)], // CTA_THREAD_DIMENSION0, 1, 2
    shared_memory: bytes(mw(601, 584)),                      // SHARED_MEMORY_SIZE
    registers_per_thread: mw(1208, 1200),                    // REGISTER_COUNT
    barriers: mw(1215, 1211),                                // BARRIER_COUNT
    // PROGRAM_ADDRESS_LOWER and _UPPER: 57 bits.
    program: QmdProgram::Address { lower: mw(1247, 1216), upper: mw(1272, 1248), shifted: 0 },
    cga: Some(QmdCga {
        kind: mw(25, 23),                                           // QMD_TYPE
        cluster: [mw(2149, 2144), mw(2157, 2152), mw(2165, 2160)],  // GPC_CGA_WIDTH, _HEIGHT, _DEPTH
        resident: [mw(2223, 2208), mw(2239, 2224), mw(2255, 2240)], // GPU_CGA_WIDTH, _HEIGHT, _DEPTH
        distribution: mw(2207, 2207),                               // CGA_CTA_DISTRIBUTION_MODE
    }),
    mask: QmdMask {
        first_word: 2432 / 32, // TPC_DISABLE_MASK(i) MW(2463+32i:2432+32i), i in 0..4
        words: 4,
        beyond: QmdMaskBeyond::Nothing,
        valid: Some(mw(31, 31)), // TPC_DISABLE_MASK_VALID
    },
};

/// Hopper.
pub static V04_00: QmdLayout = V04;

/// Blackwell.
///
/// The header does not say how many words `TPC_DISABLE_MASK_UPPER` has. As many
/// as `TPC_DISABLE_MASK`, whose four are bounded by the next field, is concluded
/// from the name: TPCs 128 to 255. The space up to the next field (MW(3038:3008))
/// would hold ten; those beyond four are never written.
pub static V04_01: QmdLayout = QmdLayout {
    version: QmdVersion::V04_01,
    // CTA_THREAD_DIMENSION0, 1, 2: eight bits of the last gave way to VIRTUAL_RESOURCE_COUNT.
    block: [mw(1167, 1152), mw(1183, 1168), mw(1191, 1184)],
    mask: QmdMask {
        first_word: 2432 / 32,
        words: 4,
        // TPC_DISABLE_MASK_UPPER(i) MW(2719+32i:2688+32i), i in 0..4
        beyond: QmdMaskBeyond::Words4 { first_word: 2688 / 32 },
        valid: Some(mw(31, 31)), // TPC_DISABLE_MASK_VALID
    },
    ..V04
};

/// Blackwell.
pub static V05_00: QmdLayout = QmdLayout {
    version: QmdVersion::V05_00,
    version_offset_bytes: QmdVersion::V05_00.offset_bytes(),
    bytes: 384,
    group_id: mw(149, 144),                                       // QMD_GROUP_ID
    grid: [mw(1279, 1248), mw(1295, 1280), mw(1327, 1312)],       // GRID_WIDTH, _HEIGHT, _DEPTH
    block: [mw(1103, 1088), mw(1119, 1104), mw(1127, 1120)],      // CTA_THREAD_DIMENSION0, 1, 2
    shared_memory: QmdSize { field: mw(1162, 1152), shifted: 7 }, // SHARED_MEMORY_SIZE_SHIFTED7
    registers_per_thread: mw(1136, 1128),                         // REGISTER_COUNT
    barriers: mw(1141, 1137),                                     // BARRIER_COUNT
    // PROGRAM_ADDRESS_LOWER_SHIFTED4 and _UPPER_SHIFTED4: 57 bits.
    program: QmdProgram::Address { lower: mw(1055, 1024), upper: mw(1076, 1056), shifted: 4 },
    cga: Some(QmdCga {
        kind: mw(153, 151),                                         // QMD_TYPE
        cluster: [mw(2053, 2048), mw(2061, 2056), mw(2069, 2064)],  // GPC_CGA_WIDTH, _HEIGHT, _DEPTH
        resident: [mw(2127, 2112), mw(2143, 2128), mw(2159, 2144)], // GPU_CGA_WIDTH, _HEIGHT, _DEPTH
        distribution: mw(2111, 2111),                               // CGA_CTA_DISTRIBUTION_MODE
    }),
    mask: QmdMask {
        // TPC_DISABLE_MASK(i) MW(2271+32i:2240+32i); eight words end at the next field,
        // MW(2527:2496).
        first_word: 2240 / 32,
        words: 8,
        beyond: QmdMaskBeyond::Nothing,
        valid: Some(mw(159, 159)), // TPC_DISABLE_MASK_VALID
    },
};

/// Every layout, in ascending order of version.
pub static ALL: &[&QmdLayout] = &[
    &V01_06,
    &V01_07,
    &V02_00,
    &V02_01,
    &V02_02,
    &V02_03,
    &V02_04,
    &V03_00,
    &V03_00_ADA,
    &V04_00,
    &V04_01,
    &V05_00,
];
