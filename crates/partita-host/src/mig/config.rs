//! Files in the form of NVIDIA's mig-parted.
//!
//! `version: v1`, and under `mig-configs` a list of entries for each name. An entry says for which
//! GPUs it is, whether MIG is on there, and how many instances of each profile they have. Unknown
//! keys are errors, as mig-parted's are.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::Error;
use crate::files;
use crate::gpu::Gpu;

/// The most that is read of a file.
const BYTES_MAX: u64 = 1 << 20;
/// More instances than any GPU has.
const COUNT_MAX: u32 = 64;

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigConfig {
    version: String,
    #[serde(rename = "mig-configs")]
    configs: BTreeMap<String, Vec<ConfigEntry>>,
}

/// What one or more GPUs are to have.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConfigEntry {
    device_filter: Option<Filter>,
    devices: Devices,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
}

/// Which GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Devices {
    All,
    These(Vec<u32>),
}

/// PCI ids of GPUs, as `0x233510DE`: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Filter {
    One(String),
    Several(Vec<String>),
}

impl Filter {
    fn allows(&self, gpu: &Gpu) -> Result<bool, Error> {
        let ids = match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Several(ids) => ids,
        };
        for id in ids {
            let digits = id.strip_prefix("0x").or(id.strip_prefix("0X"));
            let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            let number = number.ok_or_else(|| Error::Refused {
                what: "device-filter".to_owned(),
                reason: format!("{id:?} is no PCI id; they are written as 0x233510DE"),
            })?;
            if gpu.facts.pci_device_id == Some(number) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AllOrNumbers;
        impl<'de> Visitor<'de> for AllOrNumbers {
            type Value = Devices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`all` or a list of GPU numbers for devices")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Devices, E> {
                if text == "all" {
                    return Ok(Devices::All);
                }
                Err(E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Devices, A::Error> {
                let mut numbers = Vec::new();
                while let Some(number) = list.next_element()? {
                    numbers.push(number);
                }
                Ok(Devices::These(numbers))
            }
        }
        from.deserialize_any(AllOrNumbers)
    }
}

impl MigConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Refused`] with line and column.
    pub fn read(file: &str) -> Result<Self, Error> {
        let refuse = |reason: String| Error::Refused { what: file.to_owned(), reason };
        let opened = files::open_regular(file.as_ref()).map_err(|error| refuse(error.to_string()))?;
        let mut text = String::new();
        let read = opened.take(BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| refuse(error.to_string()))?;
        if text.len() as u64 > BYTES_MAX {
            return Err(refuse(format!("it is longer than {BYTES_MAX} bytes")));
        }
        Self::parse(file, &text)
    }

    /// Reads a file's text; `file` is its name for messages.
    ///
    /// # Errors
    /// [`Error::Refused`] with line and column.
    pub fn parse(file: &str, text: &str) -> Result<Self, Error> {
        let refuse = |reason: String| Error::Refused { what: file.to_owned(), reason };
        let config: Self = serde_saphyr::from_str(text).map_err(|error| {
            let at = error.location().and_then(|at| usize::try_from(at.line()).ok());
            let line = at.and_then(|number| text.lines().nth(number.checked_sub(1)?));
            let line = line.map_or_else(String::new, |line| format!(": `{}`", line.trim()));
            refuse(format!("{}{line}", error.without_snippet()))
        })?;
        if config.version != "v1" {
            return Err(refuse(format!("version is {:?}; v1 is understood", config.version)));
        }
        Ok(config)
    }

    /// The entries of a name.
    ///
    /// # Errors
    /// [`Error::Refused`] with the names that there are.
    pub fn select(&self, name: &str) -> Result<&[ConfigEntry], Error> {
        self.configs.get(name).map(Vec::as_slice).ok_or_else(|| {
            let known: Vec<&str> = self.configs.keys().map(String::as_str).collect();
            let reason = format!("mig-configs has no such name; it has {}", known.join(", "));
            Error::Refused { what: format!("--selected {name}"), reason }
        })
    }
}

impl ConfigEntry {
    /// The GPUs of the entry among these.
    ///
    /// # Errors
    /// [`Error::Refused`] for a number that none of them has, and for a filter that is no PCI id.
    pub fn gpus<'a>(&self, gpus: &'a [Gpu]) -> Result<Vec<&'a Gpu>, Error> {
        let numbers = match &self.devices {
            Devices::All => gpus.iter().map(|gpu| gpu.facts.index).collect(),
            Devices::These(numbers) => numbers.clone(),
        };
        let mut found = Vec::new();
        for number in numbers {
            let gpu = gpus.iter().find(|gpu| gpu.facts.index == number).ok_or_else(|| {
                let known: Vec<String> = gpus.iter().map(|gpu| gpu.facts.index.to_string()).collect();
                let known = known.join(", ");
                let reason = format!("there is no GPU {number} among those that --gpu selects: {known}");
                Error::Refused { what: "devices".to_owned(), reason }
            })?;
            match &self.device_filter {
                Some(filter) if !filter.allows(gpu)? => {}
                _ => found.push(gpu),
            }
        }
        Ok(found)
    }

    /// The profiles that it wants, one for each instance; `None` where MIG is to be off.
    ///
    /// # Errors
    /// [`Error::Refused`] for a contradiction.
    pub fn wanted(&self) -> Result<Option<Vec<String>>, Error> {
        let refuse = |reason: String| Err(Error::Refused { what: "mig-devices".to_owned(), reason });
        if let Some((name, count)) = self.mig_devices.iter().find(|(_, count)| **count > COUNT_MAX) {
            return refuse(format!("{name}: {count} instances; no GPU has more than {COUNT_MAX}"));
        }
        let of = |(name, count): (&String, &u32)| vec![name.clone(); *count as usize];
        let wanted: Vec<String> = self.mig_devices.iter().flat_map(of).collect();
        match self.mig_enabled {
            true => Ok(Some(wanted)),
            false if wanted.is_empty() => Ok(None),
            false => refuse(
                "instances are wanted, but mig-enabled is false; set it to true, or remove mig-devices"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  balanced:
    - devices: [0, 2]
      mig-enabled: true
      mig-devices:
        \"1g.18gb\": 2
        3g.71gb: 1
    - devices: [1]
      mig-enabled: true
      mig-devices: {}
";

    #[test]
    fn a_file_of_mig_parted_is_read() {
        let config = MigConfig::parse("f.yaml", GOOD).unwrap();
        let [off] = config.select("all-disabled").unwrap() else { panic!() };
        assert_eq!((&off.devices, off.wanted().unwrap()), (&Devices::All, None));
        let [two, one] = config.select("balanced").unwrap() else { panic!() };
        let names = ["1g.18gb", "1g.18gb", "3g.71gb"].map(str::to_owned).to_vec();
        assert_eq!(two.wanted().unwrap(), Some(names));
        assert_eq!((&two.devices, one.wanted().unwrap()), (&Devices::These(vec![0, 2]), Some(vec![])));
        let error = config.select("all-enabled").unwrap_err().to_string();
        assert!(error.contains("it has all-disabled, balanced"), "{error}");
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_key() {
        for (from, to, parts) in [
            ("devices: all", "device: all", &["device", "line 4"][..]),
            ("devices: all", "devices: some", &["devices", "line 4"]),
            ("devices: [0, 2]", "devices: [0, -2]", &["line 7", "devices: [0, -2]"]),
            ("3g.71gb: 1", "3g.71gb: many", &["many", "line 11"]),
            ("3g.71gb: 1", "3g.71gb: 1\n        3g.71gb: 1", &["3g.71gb", "line 12"]),
            ("mig-enabled: false", "mig-enabled: perhaps", &["line 5", "mig-enabled: perhaps"]),
            ("      mig-enabled: false\n", "", &["mig-enabled", "line 4"]),
            ("version: v1", "version: v2", &["version is \"v2\"; v1 is understood"]),
            ("mig-configs:", "migconfigs:", &["migconfigs", "line 2"]),
            ("    - devices: [1]", "   - devices: [1]", &["line 12"]),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = MigConfig::parse("f.yaml", &GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with("f.yaml: "), "{error}");
            for part in parts {
                assert!(error.contains(part), "{to}: {error}");
            }
        }
        for text in ["", "- 1", "version: v1", "\u{0}", "a: [", "&a [*a]"] {
            assert!(MigConfig::parse("f.yaml", text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let entry = |text: &str| -> ConfigEntry { serde_saphyr::from_str(text).unwrap() };
        let off = entry("devices: all\nmig-enabled: false\nmig-devices: {1g: 1}\n");
        assert!(off.wanted().unwrap_err().to_string().contains("mig-enabled is false"));
        let many = entry("devices: all\nmig-enabled: true\nmig-devices: {1g: 65}\n");
        assert!(many.wanted().unwrap_err().to_string().contains("1g: 65 instances"));
    }
}
