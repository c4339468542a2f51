//! Whether cuBLAS's matrix products are correct on a partition.
//!
//! On an H200, cuBLAS leaves parts of its output unwritten, without an error, when it sees a
//! reduced number of SMs, as with an MPS thread percentage (measured, see `docs/hardware.md`). So
//! each mechanism is checked: half-precision products of several shapes, into poisoned output, are
//! compared with products computed here in double precision at sampled elements.

use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_int, c_void};

use crate::error::Error;
use crate::gpu::Gpu;
use crate::library::{Library, symbols};

symbols! {
    /// cuBLAS's entry points.
    pub struct Cublas;
    fn create = cublasCreate_v2(handle: *mut *mut c_void);
    fn destroy = cublasDestroy_v2(handle: *mut c_void);
    fn get_version = cublasGetVersion_v2(handle: *mut c_void, version: *mut c_int);
    fn gemm_ex = cublasGemmEx(
        handle: *mut c_void, transpose_a: c_int, transpose_b: c_int,
        m: c_int, n: c_int, k: c_int,
        alpha: *const c_void,
        a: u64, a_type: c_int, a_leading: c_int,
        b: u64, b_type: c_int, b_leading: c_int,
        beta: *const c_void,
        c: u64, c_type: c_int, c_leading: c_int,
        compute_type: c_int, algorithm: c_int,
    );
}

/// A 16-bit format of matrix elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// IEEE half precision.
    Fp16,
    /// bfloat16.
    Bf16,
}

/// The result of one product.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// Element format of all three matrices.
    pub format: Format,
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Inner dimension.
    pub k: u32,
    /// ‖result − reference‖ / ‖reference‖ over the sampled elements; NaN or infinite if any of them
    /// is.
    pub relative_error: f64,
}

/// All products on one partition.
#[derive(Debug, Clone, PartialEq)]
pub struct Numerics {
    /// cuBLAS's version: major × 10000 + minor × 100 + patch.
    pub cublas_version: i32,
    /// SMs that the library saw.
    pub sms_reported: u32,
    /// Every product that was tried.
    pub products: Vec<Product>,
}

/// Errors above this are wrong: correct half-precision products stay below 3e-3 (bf16) on these
/// inputs, wrong ones begin at 6e-2.
pub const RELATIVE_ERROR_MAX: f64 = 1e-2;

impl Product {
    /// Whether the product is correct.
    pub fn is_right(&self) -> bool {
        self.relative_error <= RELATIVE_ERROR_MAX
    }
}

/// `cudaDataType_t` of `library_types.h`.
const CUDA_R_16F: c_int = 2;
const CUDA_R_16BF: c_int = 14;
/// `CUBLAS_COMPUTE_32F` of `cublas_api.h`.
const COMPUTE_32F: c_int = 68;
/// `CUBLAS_GEMM_DEFAULT`.
const ALGORITHM_DEFAULT: c_int = -1;
/// Shapes: squares of the sizes that failed, and two that transformers use.
const SHAPES: [[u32; 3]; 6] =
    [[512; 3], [1024; 3], [2048; 3], [4096; 3], [256, 4096, 1024], [4096, 1024, 4096]];
/// Elements of a result that are compared.
const SAMPLES: u64 = 4096;

/// Runs every product through the cuBLAS at `library`.
///
/// # Errors
/// [`Error::Load`] if the library cannot be opened; those of the driver or of cuBLAS.
pub fn check(gpu: &Gpu<'_>, library: &CStr) -> Result<Numerics, Error> {
    let cublas = Cublas::resolve(Library::open(library)?);
    let mut handle = core::ptr::null_mut();
    let mut version = 0;
    // SAFETY: valid pointers; the GPU's context is current on this thread.
    unsafe {
        cublas.create(&mut handle)?;
        cublas.get_version(handle, &mut version)?;
    }
    let mut products = Vec::new();
    for format in [Format::Fp16, Format::Bf16] {
        for [m, n, k] in SHAPES {
            products.push(product(gpu, &cublas, handle, format, [m, n, k])?);
        }
    }
    // SAFETY: the handle from create, used no more.
    unsafe { cublas.destroy(handle)? };
    Ok(Numerics { cublas_version: version, sms_reported: gpu.facts().sms, products })
}

fn product(
    gpu: &Gpu<'_>,
    cublas: &Cublas,
    handle: *mut c_void,
    format: Format,
    [m, n, k]: [u32; 3],
) -> Result<Product, Error> {
    let mut random = Random(u64::from(m) << 40 | u64::from(n) << 20 | u64::from(k));
    let mut matrix = |elements: u64| -> Vec<f32> { (0..elements).map(|_| random.element()).collect() };
    let (m64, n64, k64) = (u64::from(m), u64::from(n), u64::from(k));
    let a = matrix(m64 * k64);
    let b = matrix(k64 * n64);
    let (a_device, b_device, c_device) =
        (gpu.alloc(a.len() * 2)?, gpu.alloc(b.len() * 2)?, gpu.alloc((m64 * n64 * 2) as usize)?);
    a_device.write(&encode(&a, format))?;
    b_device.write(&encode(&b, format))?;
    // All ones is NaN in both formats, so that unwritten elements are visible.
    c_device.fill(0xff)?;
    let (one, zero) = (1f32, 0f32);
    let element = match format {
        Format::Fp16 => CUDA_R_16F,
        Format::Bf16 => CUDA_R_16BF,
    };
    // SAFETY: column-major matrices of the given shapes in buffers of their size; scalars of the
    // compute type.
    unsafe {
        cublas.gemm_ex(
            handle,
            0,
            0,
            m as c_int,
            n as c_int,
            k as c_int,
            (&raw const one).cast(),
            a_device.address(),
            element,
            m as c_int,
            b_device.address(),
            element,
            k as c_int,
            (&raw const zero).cast(),
            c_device.address(),
            element,
            m as c_int,
            COMPUTE_32F,
            ALGORITHM_DEFAULT,
        )?;
        gpu.cuda().ctx_synchronize()?;
    }
    let result = c_device.read()?;
    let (mut difference, mut norm) = (0f64, 0f64);
    for sample in 0..SAMPLES {
        // A stride prime to both dimensions visits every tile of the result.
        let index = sample * 2_654_435_761 % (m64 * n64);
        let (row, column) = (index % m64, index / m64);
        let exact: f64 = (0..k64)
            .map(|inner| {
                f64::from(a[(inner * m64 + row) as usize]) * f64::from(b[(column * k64 + inner) as usize])
            })
            .sum();
        let at = 2 * index as usize;
        let got = f64::from(decode(u16::from_le_bytes([result[at], result[at + 1]]), format));
        difference += (got - exact) * (got - exact);
        norm += exact * exact;
    }
    Ok(Product { format, m, n, k, relative_error: square_root(difference / norm) })
}

/// Newton's method: `core` has no square root. NaN and infinity are returned as they are.
fn square_root(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return value;
    }
    let mut root = f64::from_bits((value.to_bits() >> 1) + (1023 << 51));
    for _ in 0..6 {
        root = 0.5 * (root + value / root);
    }
    root
}

/// A small generator of matrix elements (xorshift64*).
struct Random(u64);

impl Random {
    /// A multiple of 1/8 in −2…2, which both formats hold exactly.
    fn element(&mut self) -> f32 {
        self.0 = self.0.max(1);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (drawn % 33) as f32 / 8.0 - 2.0
    }
}

fn encode(values: &[f32], format: Format) -> Vec<u8> {
    values.iter().flat_map(|&value| encode_one(value, format).to_le_bytes()).collect()
}

/// Exact for the elements that [`Random`] draws.
fn encode_one(value: f32, format: Format) -> u16 {
    let bits = value.to_bits();
    match format {
        Format::Bf16 => (bits >> 16) as u16,
        Format::Fp16 if bits << 1 == 0 => (bits >> 16) as u16,
        Format::Fp16 => {
            let exponent = ((bits >> 23 & 0xff) + 15 - 127) as u16;
            (bits >> 16 & 0x8000) as u16 | exponent << 10 | (bits >> 13 & 0x3ff) as u16
        }
    }
}

fn decode(bits: u16, format: Format) -> f32 {
    match format {
        Format::Bf16 => f32::from_bits(u32::from(bits) << 16),
        Format::Fp16 => {
            let sign = u32::from(bits & 0x8000) << 16;
            let fraction = u32::from(bits & 0x3ff);
            match bits >> 10 & 0x1f {
                0 => {
                    let magnitude = fraction as f32 / 16_777_216.0;
                    if sign == 0 { magnitude } else { -magnitude }
                }
                31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
                exponent => f32::from_bits(sign | (u32::from(exponent) + 112) << 23 | fraction << 13),
            }
        }
    }
}

/// The library's file names, newest first.
pub const CUBLAS_NAMES: [&CStr; 3] = [c"libcublas.so.13", c"libcublas.so.12", c"libcublas.so.11"];

/// A cuBLAS version in the usual notation.
pub fn version_text(version: i32) -> String {
    alloc::format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn elements_survive_both_formats() {
        let mut random = Random(7);
        for _ in 0..10_000 {
            let value = random.element();
            assert!((-2.0..=2.0).contains(&value));
            for format in [Format::Fp16, Format::Bf16] {
                assert_eq!(decode(encode_one(value, format), format), value, "{value} in {format:?}");
            }
        }
    }

    #[test]
    fn poison_is_not_a_number() {
        assert!(decode(0xffff, Format::Fp16).is_nan());
        assert!(decode(0xffff, Format::Bf16).is_nan());
    }

    #[test]
    fn roots_are_roots() {
        for value in [1e-12f64, 2e-3, 0.5, 1.0, 3.0, 1e9] {
            assert!((square_root(value) - value.sqrt()).abs() <= 1e-12 * value.sqrt());
        }
        assert!(square_root(f64::NAN).is_nan());
    }

    #[test]
    fn a_wrong_product_is_detected() {
        let product = |relative_error| Product { format: Format::Fp16, m: 1, n: 1, k: 1, relative_error };
        assert!(product(1e-3).is_right());
        assert!(!product(6e-2).is_right());
        assert!(!product(f64::NAN).is_right());
    }
}
