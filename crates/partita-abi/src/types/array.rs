//! CUDA arrays and how much memory they hold.

use super::layout;

/// The format of an array's elements.
pub type CUarray_format = u32;

/// How the bytes of a format follow from an extent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// Bytes of one channel; the descriptor says how many channels there are.
    PerChannel(u64),
    /// Bytes of one element, whatever the descriptor's channels.
    PerElement(u64),
    /// Bytes of a block of 4 by 4 elements.
    Block4x4(u64),
    /// A luma plane of so many bytes an element, and two chroma planes of the
    /// same depth, halved in width and, where the flag is set, in height.
    Subsampled { bytes: u64, rows_too: bool },
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $packing:expr;)*) => {
        $(
            $(#[$doc])*
            pub const $name: CUarray_format = $value;
        )*

        const fn packing(format: CUarray_format) -> Option<Packing> {
            match format {
                $($value => Some($packing),)*
                _ => None,
            }
        }

        /// Every format of CUDA 13.0.
        #[cfg(test)]
        const ALL_FORMATS: &[CUarray_format] = &[$($value),*];
    };
}

use Packing::{Block4x4, PerChannel, PerElement, Subsampled};

formats! {
    /// Unsigned 8-bit integers.
    CU_AD_FORMAT_UNSIGNED_INT8 = 0x01, PerChannel(1);
    /// Unsigned 16-bit integers.
    CU_AD_FORMAT_UNSIGNED_INT16 = 0x02, PerChannel(2);
    /// Unsigned 32-bit integers.
    CU_AD_FORMAT_UNSIGNED_INT32 = 0x03, PerChannel(4);
    /// Signed 8-bit integers.
    CU_AD_FORMAT_SIGNED_INT8 = 0x08, PerChannel(1);
    /// Signed 16-bit integers.
    CU_AD_FORMAT_SIGNED_INT16 = 0x09, PerChannel(2);
    /// Signed 32-bit integers.
    CU_AD_FORMAT_SIGNED_INT32 = 0x0a, PerChannel(4);
    /// 16-bit floating point.
    CU_AD_FORMAT_HALF = 0x10, PerChannel(2);
    /// 32-bit floating point.
    CU_AD_FORMAT_FLOAT = 0x20, PerChannel(4);
    /// Three channels of 10 bits and one of 2.
    CU_AD_FORMAT_UNORM_INT_101010_2 = 0x50, PerElement(4);
    /// BC1, unsigned.
    CU_AD_FORMAT_BC1_UNORM = 0x91, Block4x4(8);
    /// BC1, unsigned, sRGB.
    CU_AD_FORMAT_BC1_UNORM_SRGB = 0x92, Block4x4(8);
    /// BC2, unsigned.
    CU_AD_FORMAT_BC2_UNORM = 0x93, Block4x4(16);
    /// BC2, unsigned, sRGB.
    CU_AD_FORMAT_BC2_UNORM_SRGB = 0x94, Block4x4(16);
    /// BC3, unsigned.
    CU_AD_FORMAT_BC3_UNORM = 0x95, Block4x4(16);
    /// BC3, unsigned, sRGB.
    CU_AD_FORMAT_BC3_UNORM_SRGB = 0x96, Block4x4(16);
    /// BC4, unsigned.
    CU_AD_FORMAT_BC4_UNORM = 0x97, Block4x4(8);
    /// BC4, signed.
    CU_AD_FORMAT_BC4_SNORM = 0x98, Block4x4(8);
    /// BC5, unsigned.
    CU_AD_FORMAT_BC5_UNORM = 0x99, Block4x4(16);
    /// BC5, signed.
    CU_AD_FORMAT_BC5_SNORM = 0x9a, Block4x4(16);
    /// BC6H, unsigned half floats.
    CU_AD_FORMAT_BC6H_UF16 = 0x9b, Block4x4(16);
    /// BC6H, signed half floats.
    CU_AD_FORMAT_BC6H_SF16 = 0x9c, Block4x4(16);
    /// BC7, unsigned.
    CU_AD_FORMAT_BC7_UNORM = 0x9d, Block4x4(16);
    /// BC7, unsigned, sRGB.
    CU_AD_FORMAT_BC7_UNORM_SRGB = 0x9e, Block4x4(16);
    /// YUV 4:2:0, planar, 10 bits in 16.
    CU_AD_FORMAT_P010 = 0x9f, Subsampled { bytes: 2, rows_too: true };
    /// YUV 4:2:0, planar, 16 bits.
    CU_AD_FORMAT_P016 = 0xa1, Subsampled { bytes: 2, rows_too: true };
    /// YUV 4:2:2, planar, 8 bits.
    CU_AD_FORMAT_NV16 = 0xa2, Subsampled { bytes: 1, rows_too: false };
    /// YUV 4:2:2, planar, 10 bits in 16.
    CU_AD_FORMAT_P210 = 0xa3, Subsampled { bytes: 2, rows_too: false };
    /// YUV 4:2:2, planar, 16 bits.
    CU_AD_FORMAT_P216 = 0xa4, Subsampled { bytes: 2, rows_too: false };
    /// YUV 4:2:2, packed, 8 bits.
    CU_AD_FORMAT_YUY2 = 0xa5, PerElement(2);
    /// YUV 4:2:2, packed, 10 bits in 16.
    CU_AD_FORMAT_Y210 = 0xa6, PerElement(4);
    /// YUV 4:2:2, packed, 16 bits.
    CU_AD_FORMAT_Y216 = 0xa7, PerElement(4);
    /// YUV 4:4:4 and alpha, packed, 8 bits.
    CU_AD_FORMAT_AYUV = 0xa8, PerElement(4);
    /// YUV 4:4:4 and alpha, packed, 10 bits and 2.
    CU_AD_FORMAT_Y410 = 0xa9, PerElement(4);
    /// YUV 4:2:0, planar, 8 bits.
    CU_AD_FORMAT_NV12 = 0xb0, Subsampled { bytes: 1, rows_too: true };
    /// YUV 4:4:4 and alpha, packed, 12 bits in 16.
    CU_AD_FORMAT_Y416 = 0xb1, PerElement(8);
    /// YUV 4:4:4, planar, 8 bits.
    CU_AD_FORMAT_Y444_PLANAR8 = 0xb2, PerElement(3);
    /// YUV 4:4:4, planar, 10 bits in 16.
    CU_AD_FORMAT_Y444_PLANAR10 = 0xb3, PerElement(6);
    /// YUV 4:4:4, semi-planar, 8 bits (`CU_AD_FORMAT_YUV444_8bit_SemiPlanar`).
    CU_AD_FORMAT_YUV444_8BIT_SEMIPLANAR = 0xb4, PerElement(3);
    /// YUV 4:4:4, semi-planar, 16 bits (`CU_AD_FORMAT_YUV444_16bit_SemiPlanar`).
    CU_AD_FORMAT_YUV444_16BIT_SEMIPLANAR = 0xb5, PerElement(6);
    /// One unsigned normalised channel of 8 bits.
    CU_AD_FORMAT_UNORM_INT8X1 = 0xc0, PerElement(1);
    /// Two unsigned normalised channels of 8 bits.
    CU_AD_FORMAT_UNORM_INT8X2 = 0xc1, PerElement(2);
    /// Four unsigned normalised channels of 8 bits.
    CU_AD_FORMAT_UNORM_INT8X4 = 0xc2, PerElement(4);
    /// One unsigned normalised channel of 16 bits.
    CU_AD_FORMAT_UNORM_INT16X1 = 0xc3, PerElement(2);
    /// Two unsigned normalised channels of 16 bits.
    CU_AD_FORMAT_UNORM_INT16X2 = 0xc4, PerElement(4);
    /// Four unsigned normalised channels of 16 bits.
    CU_AD_FORMAT_UNORM_INT16X4 = 0xc5, PerElement(8);
    /// One signed normalised channel of 8 bits.
    CU_AD_FORMAT_SNORM_INT8X1 = 0xc6, PerElement(1);
    /// Two signed normalised channels of 8 bits.
    CU_AD_FORMAT_SNORM_INT8X2 = 0xc7, PerElement(2);
    /// Four signed normalised channels of 8 bits.
    CU_AD_FORMAT_SNORM_INT8X4 = 0xc8, PerElement(4);
    /// One signed normalised channel of 16 bits.
    CU_AD_FORMAT_SNORM_INT16X1 = 0xc9, PerElement(2);
    /// Two signed normalised channels of 16 bits.
    CU_AD_FORMAT_SNORM_INT16X2 = 0xca, PerElement(4);
    /// Four signed normalised channels of 16 bits.
    CU_AD_FORMAT_SNORM_INT16X4 = 0xcb, PerElement(8);
}

/// `depth` counts layers and not slices.
pub const CUDA_ARRAY3D_LAYERED: u32 = 0x01;
/// Surfaces may load from and store to the array.
pub const CUDA_ARRAY3D_SURFACE_LDST: u32 = 0x02;
/// The array is a cube of six faces, or layers of cubes.
pub const CUDA_ARRAY3D_CUBEMAP: u32 = 0x04;
/// Textures may gather from the array.
pub const CUDA_ARRAY3D_TEXTURE_GATHER: u32 = 0x08;
/// The array is a depth texture.
pub const CUDA_ARRAY3D_DEPTH_TEXTURE: u32 = 0x10;
/// The array may be drawn to.
pub const CUDA_ARRAY3D_COLOR_ATTACHMENT: u32 = 0x20;
/// The array holds no memory until some is mapped.
pub const CUDA_ARRAY3D_SPARSE: u32 = 0x40;
/// The array holds no memory until some is mapped, all at once.
pub const CUDA_ARRAY3D_DEFERRED_MAPPING: u32 = 0x80;
/// Video units may use the array.
pub const CUDA_ARRAY3D_VIDEO_ENCODE_DECODE: u32 = 0x100;

/// An array of one or two dimensions (`CUDA_ARRAY_DESCRIPTOR_v2`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    /// Elements of a row.
    pub width: usize,
    /// Rows; zero for one dimension.
    pub height: usize,
    /// Format of a channel or an element.
    pub format: CUarray_format,
    /// Channels of an element.
    pub num_channels: u32,
}
layout!(CUDA_ARRAY_DESCRIPTOR, 24, format @ 16);

/// An array of up to three dimensions (`CUDA_ARRAY3D_DESCRIPTOR_v2`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    /// Elements of a row.
    pub width: usize,
    /// Rows; zero for one dimension.
    pub height: usize,
    /// Slices or, with `CUDA_ARRAY3D_LAYERED`, layers; zero for neither.
    pub depth: usize,
    /// Format of a channel or an element.
    pub format: CUarray_format,
    /// Channels of an element.
    pub num_channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
}
layout!(CUDA_ARRAY3D_DESCRIPTOR, 40, format @ 24, flags @ 32);

/// The descriptor of the API before CUDA 3.2, which the unversioned
/// `cuArrayCreate` still takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUDA_ARRAY_DESCRIPTOR_v1 {
    /// Elements of a row.
    pub width: u32,
    /// Rows; zero for one dimension.
    pub height: u32,
    /// Format of a channel or an element.
    pub format: CUarray_format,
    /// Channels of an element.
    pub num_channels: u32,
}
layout!(CUDA_ARRAY_DESCRIPTOR_v1, 16);

/// The descriptor of the API before CUDA 3.2, which the unversioned
/// `cuArray3DCreate` still takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
    /// Elements of a row.
    pub width: u32,
    /// Rows; zero for one dimension.
    pub height: u32,
    /// Slices or layers; zero for neither.
    pub depth: u32,
    /// Format of a channel or an element.
    pub format: CUarray_format,
    /// Channels of an element.
    pub num_channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
}
layout!(CUDA_ARRAY3D_DESCRIPTOR_v1, 24);

impl From<CUDA_ARRAY_DESCRIPTOR> for CUDA_ARRAY3D_DESCRIPTOR {
    fn from(flat: CUDA_ARRAY_DESCRIPTOR) -> Self {
        Self {
            width: flat.width,
            height: flat.height,
            depth: 0,
            format: flat.format,
            num_channels: flat.num_channels,
            flags: 0,
        }
    }
}

impl From<CUDA_ARRAY_DESCRIPTOR_v1> for CUDA_ARRAY3D_DESCRIPTOR {
    fn from(flat: CUDA_ARRAY_DESCRIPTOR_v1) -> Self {
        Self {
            width: flat.width as usize,
            height: flat.height as usize,
            depth: 0,
            format: flat.format,
            num_channels: flat.num_channels,
            flags: 0,
        }
    }
}

impl From<CUDA_ARRAY3D_DESCRIPTOR_v1> for CUDA_ARRAY3D_DESCRIPTOR {
    fn from(old: CUDA_ARRAY3D_DESCRIPTOR_v1) -> Self {
        Self {
            width: old.width as usize,
            height: old.height as usize,
            depth: old.depth as usize,
            format: old.format,
            num_channels: old.num_channels,
            flags: old.flags,
        }
    }
}

/// Bytes of an extent that has no zero in it.
fn extent_bytes(format: CUarray_format, channels: u64, extent: [u64; 3]) -> Option<u64> {
    let [width, height, depth] = extent;
    let slice = match packing(format)? {
        PerChannel(bytes) => width.checked_mul(height)?.checked_mul(channels)?.checked_mul(bytes)?,
        PerElement(bytes) => width.checked_mul(height)?.checked_mul(bytes)?,
        Block4x4(bytes) => width.div_ceil(4).checked_mul(height.div_ceil(4))?.checked_mul(bytes)?,
        Subsampled { bytes, rows_too } => {
            let luma = width.checked_mul(height)?;
            let rows = if rows_too { height.div_ceil(2) } else { height };
            let chroma = width.div_ceil(2).checked_mul(rows)?.checked_mul(2)?;
            luma.checked_add(chroma)?.checked_mul(bytes)?
        }
    };
    slice.checked_mul(depth)
}

/// Bytes of an array's elements.
///
/// This is what the descriptor implies and so the least that the driver can
/// allocate: a device also pads rows, tiles and allocations. A
/// sparse array or one of deferred mapping holds none of these bytes until
/// memory is mapped into it.
///
/// `None` for an unknown format, a width or number of channels of zero, and
/// for a size beyond 64 bits.
pub fn array_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<u64> {
    mipmap_level_bytes(descriptor, 0)
}

/// Bytes of one level of a mip-mapped array: level 0 is the whole array, and
/// each further level halves the extent, rounding down, to no less than one.
/// Layers and the faces of cubes are not halved.
///
/// `None` as for [`array_bytes`].
pub fn mipmap_level_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> Option<u64> {
    if descriptor.width == 0 || descriptor.num_channels == 0 {
        return None;
    }
    let halved = |extent: usize| (extent as u64).checked_shr(level).unwrap_or(0).max(1);
    let layers = descriptor.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layers { (descriptor.depth as u64).max(1) } else { halved(descriptor.depth) };
    extent_bytes(
        descriptor.format,
        u64::from(descriptor.num_channels),
        [halved(descriptor.width), halved(descriptor.height), depth],
    )
}

/// Levels of a full chain of mip maps: down to an extent of one in every
/// halved dimension.
pub fn mipmap_levels_max(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> u32 {
    let layers = descriptor.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layers { 0 } else { descriptor.depth };
    let longest = descriptor.width.max(descriptor.height).max(depth).max(1);
    usize::BITS - longest.leading_zeros()
}

/// Bytes of a mip-mapped array of so many levels. Levels beyond a full chain
/// do not exist and count nothing.
///
/// `None` as for [`array_bytes`], and for zero levels.
pub fn mipmapped_array_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Option<u64> {
    if levels == 0 {
        return None;
    }
    (0..levels.min(mipmap_levels_max(descriptor)))
        .try_fold(0_u64, |total, level| total.checked_add(mipmap_level_bytes(descriptor, level)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(format: CUarray_format, channels: u32, extent: [usize; 3]) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            width: extent[0],
            height: extent[1],
            depth: extent[2],
            format,
            num_channels: channels,
            flags: 0,
        }
    }

    #[test]
    fn absent_dimensions_count_as_one() {
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_FLOAT, 1, [2048, 0, 0])), Some(8192));
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_FLOAT, 1, [64, 64, 0])), Some(16384));
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_HALF, 4, [64, 32, 16])), Some(262_144));
        let flat = CUDA_ARRAY_DESCRIPTOR {
            width: 3,
            height: 5,
            format: CU_AD_FORMAT_UNSIGNED_INT8,
            num_channels: 2,
        };
        assert_eq!(array_bytes(&flat.into()), Some(30));
    }

    #[test]
    fn formats_that_fix_their_channels_ignore_the_descriptors() {
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_UNORM_INT16X4, 4, [10, 10, 0])), Some(800));
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_UNORM_INT_101010_2, 4, [10, 10, 0])), Some(400));
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_BC1_UNORM, 4, [10, 10, 0])), Some(9 * 8));
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_BC7_UNORM, 4, [16, 16, 0])), Some(256));
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_NV12, 3, [1920, 1080, 0])), Some(3_110_400));
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_P210, 3, [1920, 1080, 0])), Some(8_294_400));
    }

    #[test]
    fn what_is_no_array_has_no_size() {
        assert_eq!(array_bytes(&array(0x7777, 1, [1, 1, 1])), None);
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_FLOAT, 1, [0, 1, 1])), None);
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_FLOAT, 0, [1, 1, 1])), None);
        assert_eq!(array_bytes(&array(CU_AD_FORMAT_FLOAT, 4, [usize::MAX, 2, 1])), None);
        assert_eq!(mipmapped_array_bytes(&array(CU_AD_FORMAT_FLOAT, 1, [4, 4, 0]), 0), None);
    }

    #[test]
    fn mip_maps_halve_the_extent_but_not_the_layers() {
        let square = array(CU_AD_FORMAT_FLOAT, 1, [8, 8, 0]);
        assert_eq!(mipmap_levels_max(&square), 4);
        assert_eq!(mipmapped_array_bytes(&square, 1), Some(256));
        assert_eq!(mipmapped_array_bytes(&square, 4), Some(4 * (64 + 16 + 4 + 1)));
        assert_eq!(mipmapped_array_bytes(&square, 99), Some(340));

        let volume = array(CU_AD_FORMAT_UNSIGNED_INT8, 1, [8, 4, 2]);
        assert_eq!(mipmapped_array_bytes(&volume, 4), Some(64 + 8 + 2 + 1));

        let layered = CUDA_ARRAY3D_DESCRIPTOR { flags: CUDA_ARRAY3D_LAYERED, ..volume };
        assert_eq!(mipmapped_array_bytes(&layered, 4), Some(2 * (32 + 8 + 2 + 1)));
    }

    #[test]
    fn every_format_has_a_size_that_grows_with_the_extent() {
        assert_eq!(ALL_FORMATS.len(), 51);
        for format in ALL_FORMATS {
            let small = array_bytes(&array(*format, 4, [16, 16, 0])).unwrap();
            let large = array_bytes(&array(*format, 4, [32, 32, 0])).unwrap();
            assert_eq!(large, small * 4, "format {format:#x}");
        }
    }
}
