//! Which driver is simulated: its versions, where it keeps streams' masks, and the version of its
//! launch descriptors.

use std::io;

use partita_abi::qmd::layout_for;
use partita_abi::stream::{self, StreamPlatform};
use partita_sim::{ComputeCapability, DeviceSpec, StreamMaskLayout, StreamMaskSpec};

/// The CUDA version of the simulated driver, as `13.0`. Default: that of the device's own in the
/// catalogue.
pub const ENV_DRIVER: &str = "PARTITA_SIM_DRIVER";
/// Where this driver keeps a stream's mask, in bytes from the stream's structure, decimal or `0x…`.
/// Default: the place that is known for the version, or one that the simulation invents.
pub const ENV_STREAM_OFFSET: &str = "PARTITA_SIM_STREAM_OFFSET";

/// The version of this driver's launch descriptors, as `2.4`: one that the device's compute class
/// knows and that has a mask. Default: that of the device in the catalogue.
pub const ENV_QMD: &str = "PARTITA_SIM_QMD";

/// Length of a stream's structure, in bytes. An H200's driver reads no further than 0x8e4.
pub const STRUCTURE_BYTES: u32 = 0x900;
/// The structure's first bytes hold other things in every driver.
const OFFSET_MIN: u32 = 0x40;

/// CUDA version and driver build. Builds are those on which offsets were tested, if any, else the
/// first of their branch (CUDA toolkit release notes, table of driver versions).
const BUILDS: &[(u32, &str)] = &[
    (8000, "375.26"),
    (9000, "384.81"),
    (9010, "390.157"),
    (9020, "396.26"),
    (10_000, "410.48"),
    (10_010, "418.113"),
    (10_020, "440.33.01"),
    (11_000, "450.51.05"),
    (11_010, "455.23.05"),
    (11_020, "460.27.03"),
    (11_030, "465.19.01"),
    (11_040, "470.223.02"),
    (11_050, "495.29.05"),
    (11_060, "510.39.01"),
    (11_070, "515.43.04"),
    (11_080, "520.56.06"),
    (12_000, "525.147.05"),
    (12_010, "530.30.02"),
    (12_020, "535.129.03"),
    (12_030, "545.29.06"),
    (12_040, "550.54.15"),
    (12_050, "555.58.02"),
    (12_060, "560.35.03"),
    (12_070, "565.77"),
    (12_080, "570.124.06"),
    (12_090, "575.51.03"),
    (13_000, "580.159.04"),
    (13_010, "590.44.01"),
    (13_020, "595.45.04"),
    (13_030, "610.43.02"),
];

/// Invented offsets of versions without a published one: nothing may rely on them.
const INVENTED: &[(u32, u32)] = &[(12_090, 0x50c), (13_010, 0x554), (13_020, 0x5ac)];

/// The driver versions that support a device (CUDA toolkit release notes).
fn served(capability: ComputeCapability) -> (u32, u32) {
    let first = match (capability.major, capability.minor) {
        (..=6, _) => 8000,
        (7, 0..=4) => 9000,
        (7, _) => 10_000,
        (8, 0) => 11_000,
        (8, ..=7) => 11_010,
        (8, _) | (9, _) => 11_080,
        (12, 1..) => 12_090,
        _ => 12_080,
    };
    let last = match (capability.major, capability.minor) {
        (..=3, _) => 11_040,
        (..=6, _) | (7, 0..=4) => 13_000,
        _ => u32::MAX,
    };
    (first, last)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Sets another driver for a device.
///
/// # Errors
/// `InvalidInput` for a version that is unknown or does not support the device.
pub fn set_version(spec: &mut DeviceSpec, wanted: &str) -> io::Result<()> {
    let parsed = wanted.split_once('.').and_then(|(major, minor)| {
        let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
        major.checked_mul(1000)?.checked_add(minor.checked_mul(10)?)
    });
    let build = BUILDS.iter().find(|(version, _)| Some(*version) == parsed);
    let Some((version, build)) = build.copied() else {
        let known: Vec<String> = BUILDS.iter().map(|(version, _)| text(*version)).collect();
        return Err(invalid(format!(
            "{ENV_DRIVER} is '{wanted}'; the CUDA versions of simulated drivers are {}",
            known.join(", ")
        )));
    };
    let (first, last) = served(spec.compute_capability);
    if !(first..=last).contains(&version) {
        let range = if last == u32::MAX { String::new() } else { format!(" and up to {}", text(last)) };
        return Err(invalid(format!(
            "{ENV_DRIVER} is '{wanted}', and no such driver supports compute capability {}: take CUDA \
             {} or newer{range}",
            spec.compute_capability,
            text(first)
        )));
    }
    let offset = stream::stream_hint(StreamPlatform::X86_64, version)
        .or_else(|| INVENTED.iter().find(|(invented, _)| *invented == version).map(|(_, offset)| *offset));
    let Some(offset_bytes) = offset else {
        return Err(invalid(format!("no offset of stream masks is known or invented for CUDA {wanted}")));
    };
    spec.driver.version = build;
    spec.driver.cuda_version = version;
    let layout = match stream::StreamMaskLayout::of(version) {
        stream::StreamMaskLayout::UpperLower => StreamMaskLayout::UpperLower,
        stream::StreamMaskLayout::EnabledWords => StreamMaskLayout::EnabledWords4,
    };
    spec.driver.stream_mask = StreamMaskSpec { offset_bytes, layout };
    Ok(())
}

/// Moves the masks of a device's streams.
///
/// # Errors
/// `InvalidInput` if the offset is not a multiple of four, or the mask would not be inside the
/// structure.
pub fn set_stream_offset(spec: &mut DeviceSpec, wanted: &str) -> io::Result<()> {
    let parsed = match wanted.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => wanted.parse(),
    };
    let last = STRUCTURE_BYTES - 20;
    match parsed {
        Ok(offset) if offset % 4 == 0 && (OFFSET_MIN..=last).contains(&offset) => {
            spec.driver.stream_mask.offset_bytes = offset;
            Ok(())
        }
        _ => Err(invalid(format!(
            "{ENV_STREAM_OFFSET} is '{wanted}'; it takes a multiple of 4 from {OFFSET_MIN:#x} to {last:#x}"
        ))),
    }
}

/// Makes a device launch with descriptors of another version. If they have no fields for clusters,
/// the device has none.
///
/// # Errors
/// `InvalidInput` for a version that is not one of the device's class, or that has no mask.
pub fn set_descriptors(spec: &mut DeviceSpec, wanted: &str) -> io::Result<()> {
    let parsed = wanted.split_once('.').and_then(|(major, minor)| {
        let (major, minor) = (major.parse::<u8>().ok()?, minor.parse::<u8>().ok()?);
        (major < 16 && minor < 16).then_some(major << 4 | minor)
    });
    let byte =
        parsed.ok_or_else(|| invalid(format!("{ENV_QMD} is '{wanted}'; it takes a version such as 2.4")))?;
    let capability = u32::from(spec.compute_capability.major) * 10 + u32::from(spec.compute_capability.minor);
    let layout =
        layout_for(capability, byte).map_err(|error| invalid(format!("{ENV_QMD} is '{wanted}': {error}")))?;
    spec.driver.qmd_version = byte;
    if layout.cga.is_none() {
        spec.sm.cluster_blocks_max = 1;
    }
    Ok(())
}

/// Applies the environment's settings of the driver.
///
/// # Errors
/// Those of [`set_version`], [`set_stream_offset`] and [`set_descriptors`].
pub fn from_env(spec: &mut DeviceSpec) -> io::Result<()> {
    let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(wanted) = value(ENV_DRIVER) {
        set_version(spec, &wanted)?;
    }
    if let Some(wanted) = value(ENV_STREAM_OFFSET) {
        set_stream_offset(spec, &wanted)?;
    }
    if let Some(wanted) = value(ENV_QMD) {
        set_descriptors(spec, &wanted)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_sim::catalogue;

    #[test]
    fn every_version_has_a_place_for_masks() {
        for (version, build) in BUILDS {
            let mut spec = catalogue::device("gtx1060-3gb").unwrap();
            spec.compute_capability =
                if *version > 13_000 { ComputeCapability::new(9, 0) } else { ComputeCapability::new(6, 1) };
            set_version(&mut spec, &text(*version)).unwrap();
            assert_eq!((spec.driver.cuda_version, spec.driver.version), (*version, *build));
            let old = spec.driver.stream_mask.layout == StreamMaskLayout::UpperLower;
            assert_eq!(old, *version < 12_000);
        }
        let listed = |version| stream::stream_hint(StreamPlatform::X86_64, version);
        assert!(INVENTED.iter().all(|(version, _)| listed(*version).is_none()), "known by now");
    }

    #[test]
    fn invalid_settings_are_refused_with_the_valid_ones() {
        let mut h200 = catalogue::device("h200").unwrap();
        let error = |result: io::Result<()>| result.unwrap_err().to_string();
        assert!(error(set_version(&mut h200, "13.9")).contains("13.2, 13.3"));
        assert!(error(set_version(&mut h200, "new")).contains("'new'"));
        assert!(error(set_version(&mut h200, "11.4")).contains("take CUDA 11.8 or newer"));
        let mut gtx = catalogue::device("gtx1060-3gb").unwrap();
        assert!(error(set_version(&mut gtx, "13.1")).contains("8.0 or newer and up to 13.0"));
        assert!(error(set_stream_offset(&mut h200, "0x51e")).contains("multiple of 4 from 0x40 to 0x8ec"));
        assert!(error(set_stream_offset(&mut h200, "2300")).contains("0x8ec"));
        set_stream_offset(&mut h200, "0x8ec").unwrap();
        assert_eq!(h200.driver.stream_mask.offset_bytes, 0x8ec);
    }

    #[test]
    fn descriptors_are_of_a_version_of_the_class_with_a_mask() {
        let mut ada = catalogue::device("l40s").unwrap();
        set_descriptors(&mut ada, "2.4").unwrap();
        assert_eq!(ada.driver.qmd_version, 0x24);
        let mut hopper = catalogue::device("h200").unwrap();
        set_descriptors(&mut hopper, "3.0").unwrap();
        assert_eq!((hopper.driver.qmd_version, hopper.sm.cluster_blocks_max), (0x30, 1));
        for (wanted, part) in
            [("4", "such as 2.4"), ("2.4", "uses V03_00 or V04_00"), ("99.1", "such as 2.4")]
        {
            let said = set_descriptors(&mut hopper, wanted).unwrap_err().to_string();
            assert!(said.starts_with("PARTITA_SIM_QMD is '") && said.contains(part), "{said}");
        }
        let mut b200 = catalogue::device("b200").unwrap();
        let said = set_descriptors(&mut b200, "5.1").unwrap_err().to_string();
        assert!(said.contains("V05_01") && said.contains("has no TPC mask"), "{said}");
    }
}
