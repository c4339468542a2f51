//! The files of the `nvdebug` kernel module, which are registers of the chip.
//!
//! Each is a hexadecimal number. A set bit of a mask is a unit that is switched off.
//! `CWD_GPC_TPC_ID<i>` has a byte for each of four TPCs of the device: the GPC in the upper half,
//! the number inside it in the lower.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::NvdebugClaims;

/// The upper half of registers of a GPU that is switched off.
const OFF: u64 = 0xbadf;
/// The largest plausible count.
const GPCS_MAX: u64 = 32;
const TPCS_PER_GPC_MAX: u64 = 16;

impl NvdebugClaims {
    /// How many bytes of a file to read. A number has 18 characters; a longer file is not one of
    /// these.
    pub const FILE_BYTES_MAX: u64 = 64;

    /// The registers of one GPU. `file` returns the text of the file with a name, `None` if it does
    /// not exist.
    ///
    /// # Errors
    /// Why the files cannot be read, or the error of `file`.
    pub fn read(mut file: impl FnMut(&str) -> Result<Option<String>, String>) -> Result<Self, String> {
        let mut optional = |name: &str| -> Result<Option<u64>, String> {
            file(name)?.map(|text| number(name, &text)).transpose()
        };
        let Some(gpc_mask) = optional("gpc_mask")? else {
            return Err("its kernel module is not loaded".to_string());
        };
        let mut register = |name: &str| optional(name)?.ok_or_else(|| format!("nvdebug's {name} is missing"));
        let mut count = |name: &str, most: u64| -> Result<u64, String> {
            let value = register(name)?;
            let refuse = || format!("nvdebug's {name}: {value} is out of range");
            (1..=most).contains(&value).then_some(value).ok_or_else(refuse)
        };
        let gpcs = count("num_gpcs", GPCS_MAX)?;
        let tpcs_per_gpc = count("num_tpc_per_gpc", TPCS_PER_GPC_MAX)?;
        let mut tpc_disable_masks = Vec::new();
        let mut tpcs = 0;
        for gpc in (0..gpcs).filter(|gpc| gpc_mask & 1 << gpc == 0) {
            let mask = register(&format!("gpc{gpc}_tpc_mask"))? & ((1 << tpcs_per_gpc) - 1);
            tpcs += tpcs_per_gpc - u64::from(mask.count_ones());
            tpc_disable_masks.push((gpc as u16, mask));
        }
        let mut places = Vec::new();
        for index in 0..tpcs.div_ceil(4) {
            let name = format!("CWD_GPC_TPC_ID{index}");
            match optional(&name)? {
                Some(four) => {
                    places.extend(
                        (0..4)
                            .map(|byte| four >> (8 * byte))
                            .map(|tpc| ((tpc >> 4 & 15) as u16, (tpc & 15) as u16)),
                    );
                }
                // Newer chips have other registers.
                None if index == 0 => break,
                None => return Err(format!("nvdebug's {name} is missing")),
            }
        }
        places.truncate(tpcs as usize);
        Ok(Self { chip_gpcs: gpcs as u32, chip_tpcs_per_gpc: tpcs_per_gpc as u32, tpc_disable_masks, places })
    }
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    // `from_str_radix` would accept a sign.
    let value = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let value = value.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let value =
        value.ok_or_else(|| format!("nvdebug's {name}: {:?} is no hexadecimal number", text.trim()))?;
    if value >> 16 == OFF {
        return Err(
            "the GPU is switched off, so its registers cannot be read: run something on it first".to_string()
        );
    }
    Ok(value)
}
