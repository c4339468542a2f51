//! The files of the `nvdebug` kernel module, where somebody has loaded it.
//!
//! They are registers of the chip as hexadecimal text, below `/proc/gpuN`; N counts the GPUs in the order of their PCI addresses, as
//! NVML does. A set bit of a mask is a unit that is switched off. `CWD_GPC_TPC_ID<i>` has a byte for each of four TPCs of the device:
//! the GPC in the upper half, the number inside it in the lower.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use partita_core::survey::NvdebugClaims;

/// Where the files are.
pub const PROC: &str = "/proc";

/// Registers of a GPU that is switched off read so, in their upper half.
const OFF: u64 = 0xbadf;
/// The most that a chip can have; more is not a count.
const GPCS_MAX: u64 = 32;
const TPCS_PER_GPC_MAX: u64 = 16;
/// A number is 18 characters; a file that is longer is another one.
const FILE_BYTES_MAX: u64 = 64;

/// Reads the files of GPU `index` below `proc`, which is [`PROC`] but in tests.
///
/// # Errors
/// Why there is nothing to be read.
pub fn read(proc: &Path, index: u32) -> Result<NvdebugClaims, String> {
    let dir = proc.join(format!("gpu{index}"));
    if !dir.join("gpc_mask").exists() {
        return Err("its kernel module is not loaded".to_owned());
    }
    let register = |name: &str| -> Result<u64, String> {
        optional(&dir.join(name))?.ok_or_else(|| format!("{} is missing", dir.join(name).display()))
    };
    let count = |name: &str, most: u64| -> Result<u64, String> {
        let value = register(name)?;
        let refuse = || format!("{}: {value} cannot be", dir.join(name).display());
        (1..=most).contains(&value).then_some(value).ok_or_else(refuse)
    };
    let gpcs = count("num_gpcs", GPCS_MAX)?;
    let tpcs_per_gpc = count("num_tpc_per_gpc", TPCS_PER_GPC_MAX)?;
    let gpc_mask = register("gpc_mask")?;
    let mut tpc_disable_masks = Vec::new();
    let mut tpcs = 0;
    for gpc in (0..gpcs).filter(|gpc| gpc_mask & 1 << gpc == 0) {
        let mask = register(&format!("gpc{gpc}_tpc_mask"))? & ((1 << tpcs_per_gpc) - 1);
        tpcs += tpcs_per_gpc - u64::from(mask.count_ones());
        tpc_disable_masks.push((gpc as u16, mask));
    }
    let mut places = Vec::new();
    for index in 0..tpcs.div_ceil(4) {
        match optional(&dir.join(format!("CWD_GPC_TPC_ID{index}")))? {
            Some(four) => {
                places.extend(
                    (0..4)
                        .map(|byte| four >> (8 * byte))
                        .map(|tpc| ((tpc >> 4 & 15) as u16, (tpc & 15) as u16)),
                );
            }
            // Newer chips have other registers.
            None if index == 0 => break,
            None => return Err(format!("{}/CWD_GPC_TPC_ID{index} is missing", dir.display())),
        }
    }
    places.truncate(tpcs as usize);
    Ok(NvdebugClaims {
        chip_gpcs: gpcs as u32,
        chip_tpcs_per_gpc: tpcs_per_gpc as u32,
        tpc_disable_masks,
        places,
    })
}

/// A register; none if there is no such file.
fn optional(path: &Path) -> Result<Option<u64>, String> {
    let refuse = |reason: String| format!("{}: {reason}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(error.to_string())),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| refuse(error.to_string()))?;
    let digits = text.trim();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    // `from_str_radix` would take a sign.
    let value = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let value = value.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let value = value.ok_or_else(|| refuse(format!("{:?} is no hexadecimal number", text.trim())))?;
    if value >> 16 == OFF {
        return Err(
            "the GPU is switched off, so its registers cannot be read: run something on it first".to_owned()
        );
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A chip of three GPCs of four TPCs, the second off, the third without its TPC 1.
    fn files(dir: &Path) {
        let gpu = dir.join("gpu0");
        fs::create_dir(&gpu).unwrap();
        for (name, text) in [
            ("num_gpcs", "0x00000003\n"),
            ("num_tpc_per_gpc", "0x4\n"),
            ("gpc_mask", "0xfffffffa\n"),
            ("gpc0_tpc_mask", "0x0\n"),
            ("gpc2_tpc_mask", "0x00000002\n"),
            ("CWD_GPC_TPC_ID0", "0x11011000\n"),
            ("CWD_GPC_TPC_ID1", "00031202"),
        ] {
            fs::write(gpu.join(name), text).unwrap();
        }
    }

    #[test]
    fn registers_are_read() {
        let temp = tempfile::tempdir().unwrap();
        assert_eq!(read(temp.path(), 0).unwrap_err(), "its kernel module is not loaded");
        files(temp.path());
        assert!(read(temp.path(), 1).is_err());
        let write = |name: &str, text: &str| fs::write(temp.path().join("gpu0").join(name), text).unwrap();
        write("gpc_mask", "0xfffffff8");
        write("gpc1_tpc_mask", "0xf");
        let claims = read(temp.path(), 0).unwrap();
        assert_eq!(claims.tpc_disable_masks, [(0, 0), (1, 15), (2, 2)], "nothing is left of GPC 1");
        write("gpc_mask", "0xfffffffa");
        let claims = read(temp.path(), 0).unwrap();
        assert_eq!((claims.chip_gpcs, claims.chip_tpcs_per_gpc), (3, 4));
        assert_eq!(claims.tpc_disable_masks, [(0, 0), (2, 2)]);
        assert_eq!(claims.places, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]);
        fs::remove_file(temp.path().join("gpu0/CWD_GPC_TPC_ID0")).unwrap();
        assert_eq!(read(temp.path(), 0).unwrap().places, []);
    }

    #[test]
    fn a_gpu_that_is_off_and_nonsense_are_told() {
        let temp = tempfile::tempdir().unwrap();
        files(temp.path());
        let path = temp.path().join("gpu0/gpc2_tpc_mask");
        for (text, said) in [
            ("0xbadf1201", "switched off"),
            ("-1", "no hexadecimal number"),
            ("", "no hexadecimal number"),
            ("0x", "no hexadecimal number"),
            ("fffffffffffffffff", "no hexadecimal number"),
            ("zebra", "\"zebra\""),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(temp.path(), 0).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(read(temp.path(), 0).unwrap_err().ends_with("gpc2_tpc_mask is missing"));
        fs::write(temp.path().join("gpu0/num_gpcs"), "0x1000").unwrap();
        assert!(read(temp.path(), 0).unwrap_err().ends_with("num_gpcs: 4096 cannot be"));
    }
}
