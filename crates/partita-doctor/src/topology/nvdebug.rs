//! The files of the `nvdebug` kernel module, if it is loaded.
//!
//! They are in `/proc/gpuN`; N counts the GPUs in the order of their PCI addresses, as NVML does.
//! `partita_core::survey` interprets them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use partita_core::survey::NvdebugClaims;

/// The directory of the files.
pub const PROC: &str = "/proc";

/// Reads the files of GPU `index` below `proc`, which differs from [`PROC`] only in tests.
///
/// # Errors
/// Why there is nothing to read.
pub fn read(proc: &Path, index: u32) -> Result<NvdebugClaims, String> {
    let dir = proc.join(format!("gpu{index}"));
    NvdebugClaims::read(|name| text(&dir.join(name)))
}

/// A register's text; `None` without such a file.
fn text(path: &Path) -> Result<Option<String>, String> {
    let refuse = |reason: String| format!("{}: {reason}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(error.to_string())),
    };
    let mut text = String::new();
    file.take(NvdebugClaims::FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| refuse(error.to_string()))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A chip with three GPCs of four TPCs; the second GPC is off, and the third lacks its TPC 1.
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
        assert_eq!(claims.tpc_disable_masks, [(0, 0), (1, 15), (2, 2)], "GPC 1 has no TPC left");
        write("gpc_mask", "0xfffffffa");
        let claims = read(temp.path(), 0).unwrap();
        assert_eq!((claims.chip_gpcs, claims.chip_tpcs_per_gpc), (3, 4));
        assert_eq!(claims.tpc_disable_masks, [(0, 0), (2, 2)]);
        assert_eq!(claims.places, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]);
        fs::remove_file(temp.path().join("gpu0/CWD_GPC_TPC_ID0")).unwrap();
        assert_eq!(read(temp.path(), 0).unwrap().places, []);
    }

    #[test]
    fn a_missing_gpu_and_nonsense_are_errors() {
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
        assert!(read(temp.path(), 0).unwrap_err().ends_with("num_gpcs: 4096 is out of range"));
    }
}
