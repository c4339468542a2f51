//! The SPANK plugin's file, for one version of Slurm.
//!
//! Slurm loads a plugin only if its number is that of Slurm's own major and minor version. The file
//! that Partita ships has the number zero; the installed one has that of the machine's Slurm.

use std::fmt;

/// What follows the number in the file.
const MARK: &[u8; 20] = b"partita spank 1 mark";
/// Bytes of the number.
const NUMBER_BYTES: usize = 4;

/// A version of Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlurmVersion {
    major: u8,
    minor: u8,
    micro: u8,
}

impl fmt::Display for SlurmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}.{}", self.major, self.minor, self.micro)
    }
}

impl SlurmVersion {
    /// Reads what Slurm's programs print with `-V`, as `slurm-wlm 22.05.8`, or the number alone.
    pub fn parse(text: &str) -> Option<Self> {
        let word = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        let mut parts = word.split(['.', '-']);
        let mut part = || parts.next()?.parse::<u8>().ok();
        let (major, minor) = (part()?, part()?);
        Some(Self { major, minor, micro: part().unwrap_or(0) })
    }

    /// `SLURM_VERSION_NUMBER` of its headers.
    pub fn number(self) -> u32 {
        u32::from(self.major) << 16 | u32::from(self.minor) << 8 | u32::from(self.micro)
    }
}

/// Writes the version into the bytes of the plugin's file.
///
/// # Errors
/// The bytes are not those of the plugin.
pub fn mark(plugin: &mut [u8], version: SlurmVersion) -> Result<(), String> {
    let places: Vec<usize> = plugin
        .windows(MARK.len())
        .enumerate()
        .filter_map(|(at, bytes)| (bytes == MARK).then_some(at))
        .collect();
    let [at] = places[..] else {
        return Err(format!("it has {} places for Slurm's version, and a plugin has one", places.len()));
    };
    let number = at.checked_sub(NUMBER_BYTES).ok_or("it begins with the mark")?;
    plugin[number..at].copy_from_slice(&version.number().to_ne_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_slurms_programs() {
        for (text, shown, number) in [
            ("slurm-wlm 22.05.8\n", "22.05.8", 0x16_05_08),
            ("slurm 24.11.5-2", "24.11.5", 0x18_0b_05),
            ("26.05", "26.05.0", 0x1a_05_00),
        ] {
            let version = SlurmVersion::parse(text).unwrap();
            assert_eq!((version.to_string(), version.number()), (shown.to_owned(), number));
        }
        for text in ["", "slurm", "slurm 22", "x 1.2000"] {
            assert_eq!(SlurmVersion::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_a_plugin_is_marked() {
        let version = SlurmVersion::parse("22.05.8").unwrap();
        let mut plugin = [b"....\0\0\0\0".as_slice(), MARK, b".."].concat();
        mark(&mut plugin, version).unwrap();
        assert_eq!(plugin[4..8], 0x16_05_08_u32.to_ne_bytes());
        mark(&mut plugin, version).unwrap();
        assert!(mark(&mut [0; 64], version).unwrap_err().contains("0 places"));
        assert!(mark(&mut [plugin.clone(), plugin].concat(), version).unwrap_err().contains("2 places"));
        assert!(mark(&mut MARK.to_vec(), version).is_err());
    }
}
