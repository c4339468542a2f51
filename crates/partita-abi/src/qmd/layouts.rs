//! Where each version of the launch descriptor keeps what Partita reads and
//! writes.
//!
//! Sources, each number standing under the field's own name there:
//! `cla0c0qmd.h` (V01_06), `clc0c0qmd.h` (V01_07, V02_00, V02_01),
//! `clc3c0qmd.h` (V02_02), `clc6c0qmd.h` (V02_03, V02_04, V03_00) and
//! `clcbc0qmd.h` (V03_00, V04_00), from `NVIDIA/open-gpu-doc`,
//! `classes/compute`. Every version up to V03_00 is 256 bytes long, V04_00 is
//! 384 bytes long (highest defined bit 2047 and 3071).

use super::{QmdCga, QmdField, QmdLayout, QmdMask, QmdMaskBeyond, QmdProgram, QmdVersion};

const fn mw(hi: u16, lo: u16) -> QmdField {
    QmdField::mw(hi, lo)
}

/// `SM_DISABLE_MASK_LOWER` MW(703:672) and `SM_DISABLE_MASK_UPPER`
/// MW(735:704), without a bit that says whether the mask counts.
const MASK_64: QmdMask =
    QmdMask { first_word: 672 / 32, words: 2, beyond: QmdMaskBeyond::Nothing, valid: None };

/// `CTA_RASTER_WIDTH`, `_HEIGHT` and `_DEPTH` of V01.
const GRID_V01: [QmdField; 3] = [mw(415, 384), mw(431, 416), mw(447, 432)];

/// `CTA_RASTER_WIDTH`, `_HEIGHT` and `_DEPTH` of V02 and V03.
const GRID_V02: [QmdField; 3] = [mw(415, 384), mw(431, 416), mw(463, 448)];

/// `CTA_THREAD_DIMENSION0` to `2` of V01 to V03.
const BLOCK_V01: [QmdField; 3] = [mw(607, 592), mw(623, 608), mw(639, 624)];

/// `PROGRAM_ADDRESS_LOWER` and `_UPPER` of V02_02 to V03_00: 49 bits.
const PROGRAM_V02: QmdProgram = QmdProgram::Address { lower: mw(1567, 1536), upper: mw(1584, 1568) };

/// Kepler.
pub static V01_06: QmdLayout = QmdLayout {
    version: QmdVersion::V01_06,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(197, 192),
    grid: GRID_V01,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(1503, 1496), // REGISTER_COUNT
    barriers: mw(1471, 1467),
    program: QmdProgram::Offset(mw(287, 256)),
    cga: None,
    mask: MASK_64,
};

/// Kepler to Pascal.
pub static V01_07: QmdLayout = QmdLayout {
    version: QmdVersion::V01_07,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(197, 192),
    grid: GRID_V01,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(1503, 1496), // REGISTER_COUNT
    barriers: mw(1471, 1467),
    program: QmdProgram::Offset(mw(287, 256)),
    cga: None,
    mask: MASK_64,
};

/// Pascal.
pub static V02_00: QmdLayout = QmdLayout {
    version: QmdVersion::V02_00,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(197, 192),
    grid: GRID_V02,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(991, 984), // REGISTER_COUNT
    barriers: mw(959, 955),
    program: QmdProgram::Offset(mw(287, 256)),
    cga: None,
    mask: MASK_64,
};

/// Pascal.
pub static V02_01: QmdLayout = QmdLayout {
    version: QmdVersion::V02_01,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(133, 128),
    grid: GRID_V02,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(991, 984), // REGISTER_COUNT
    barriers: mw(959, 955),
    program: QmdProgram::Offset(mw(287, 256)),
    cga: None,
    mask: MASK_64,
};

/// Volta.
pub static V02_02: QmdLayout = QmdLayout {
    version: QmdVersion::V02_02,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(133, 128),
    grid: GRID_V02,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(656, 648), // REGISTER_COUNT_V
    barriers: mw(959, 955),
    program: PROGRAM_V02,
    cga: None,
    mask: MASK_64,
};

/// Turing and Ampere.
pub static V02_03: QmdLayout = QmdLayout {
    version: QmdVersion::V02_03,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(133, 128),
    grid: GRID_V02,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(656, 648), // REGISTER_COUNT_V
    barriers: mw(959, 955),
    program: PROGRAM_V02,
    cga: None,
    mask: MASK_64,
};

/// Ampere and Ada.
pub static V02_04: QmdLayout = QmdLayout {
    version: QmdVersion::V02_04,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(133, 128),
    grid: GRID_V02,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(656, 648), // REGISTER_COUNT_V
    barriers: mw(959, 955),
    program: PROGRAM_V02,
    cga: None,
    mask: MASK_64,
};

/// Ampere and Hopper. The same version on Ada has a longer mask, which this
/// layout does not describe.
pub static V03_00: QmdLayout = QmdLayout {
    version: QmdVersion::V03_00,
    version_offset_bytes: 72,
    bytes: 256,
    group_id: mw(133, 128),
    grid: GRID_V02,
    block: BLOCK_V01,
    shared_memory_bytes: mw(561, 544),
    registers_per_thread: mw(656, 648), // REGISTER_COUNT_V
    barriers: mw(767, 763),
    program: PROGRAM_V02,
    cga: None,
    mask: MASK_64,
};

/// Hopper.
pub static V04_00: QmdLayout = QmdLayout {
    version: QmdVersion::V04_00,
    version_offset_bytes: 72,
    bytes: 384,
    group_id: mw(21, 16),
    grid: [mw(1055, 1024), mw(1071, 1056), mw(1103, 1088)], // GRID_WIDTH, _HEIGHT, _DEPTH
    block: [mw(1167, 1152), mw(1183, 1168), mw(1199, 1184)],
    shared_memory_bytes: mw(601, 584),
    registers_per_thread: mw(1208, 1200), // REGISTER_COUNT
    barriers: mw(1215, 1211),
    // PROGRAM_ADDRESS_LOWER and _UPPER: 57 bits.
    program: QmdProgram::Address { lower: mw(1247, 1216), upper: mw(1272, 1248) },
    cga: Some(QmdCga {
        kind: mw(25, 23), // QMD_TYPE
        // GPC_CGA_WIDTH, _HEIGHT, _DEPTH
        cluster: [mw(2149, 2144), mw(2157, 2152), mw(2165, 2160)],
        // GPU_CGA_WIDTH, _HEIGHT, _DEPTH
        resident: [mw(2223, 2208), mw(2239, 2224), mw(2255, 2240)],
        distribution: mw(2207, 2207), // CGA_CTA_DISTRIBUTION_MODE
    }),
    // TPC_DISABLE_MASK(i) MW(2463+32i:2432+32i), i in 0..4, and
    // TPC_DISABLE_MASK_VALID.
    mask: QmdMask {
        first_word: 2432 / 32,
        words: 4,
        beyond: QmdMaskBeyond::Nothing,
        valid: Some(mw(31, 31)),
    },
};

/// Every layout, in ascending order of version.
pub static ALL: &[&QmdLayout] =
    &[&V01_06, &V01_07, &V02_00, &V02_01, &V02_02, &V02_03, &V02_04, &V03_00, &V04_00];
