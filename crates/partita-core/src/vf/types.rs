//! The types of vGPUs that a GPU offers.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// A type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VgpuType {
    /// The driver's number.
    pub id: u32,
    /// The name, as `NVIDIA A40-8Q`.
    pub name: String,
    /// The memory of one in MiB; 0 if it is unknown.
    pub memory_mib: u64,
}

impl VgpuType {
    /// A type whose memory is that of its name: `A40-8Q` has 8 GiB, and `T4-0B` half a GiB.
    #[must_use]
    pub fn named(id: u32, name: &str) -> Self {
        Self { id, name: name.to_string(), memory_mib: memory_of(name).unwrap_or(0) }
    }

    /// The name without the vendor: `A40-8Q`.
    #[must_use]
    pub fn short(&self) -> &str {
        short(&self.name)
    }

    /// Whether it lies on a MIG instance: `H200X-1-18C` has one slice. Such a type needs no place
    /// in the scheduler, and those of several sizes go together.
    #[must_use]
    pub fn is_of_mig(&self) -> bool {
        let mut parts = self.short().rsplit('-').skip(1);
        parts.next().is_some_and(|part| part.parse::<u8>().is_ok())
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("NVIDIA ").or_else(|| name.strip_prefix("GRID ")).unwrap_or(name)
}

fn memory_of(name: &str) -> Option<u64> {
    let (_, last) = name.rsplit_once('-')?;
    let digits: String = last.chars().take_while(char::is_ascii_digit).collect();
    let rest = &last[digits.len()..];
    let is_series = rest.len() <= 3 && rest.starts_with(|letter: char| letter.is_ascii_uppercase());
    match digits.parse::<u64>().ok().filter(|_| is_series)? {
        0 => Some(512),
        gib => gib.checked_mul(1024),
    }
}

/// No type has the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownType {
    name: String,
    known: Vec<String>,
}

impl fmt::Display for UnknownType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no vGPU type {:?} here; there are {}", self.name, self.known.join(", "))
    }
}

impl core::error::Error for UnknownType {}

/// Finds a type by its number, its name, or its name without the vendor or the board: `8Q`.
///
/// # Errors
/// [`UnknownType`] with the names that there are.
pub fn resolve<'a>(types: &'a [VgpuType], name: &str) -> Result<&'a VgpuType, UnknownType> {
    let is_meant = |one: &&VgpuType| {
        let short = one.short();
        let series = short.split_once('-').map(|(_, series)| series);
        one.id.to_string() == name
            || [Some(one.name.as_str()), Some(short), series]
                .into_iter()
                .flatten()
                .any(|known| known.eq_ignore_ascii_case(name))
    };
    types.iter().find(is_meant).ok_or_else(|| UnknownType {
        name: name.to_string(),
        known: match types.is_empty() {
            true => alloc::vec!["none".to_string()],
            false => types.iter().map(|one| one.short().to_string()).collect(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_memory_and_whether_a_type_lies_on_mig() {
        for (name, mib, is_of_mig) in [
            ("NVIDIA A40-8Q", 8192, false),
            ("NVIDIA H200X-141C", 144_384, false),
            ("NVIDIA H200X-1-18C", 18_432, true),
            ("NVIDIA A100-1-5CME", 5120, true),
            ("GRID T4-0B", 512, false),
            ("GRID V100D-16C", 16_384, false),
            ("Cambricon MLU", 0, false),
            ("A-8x", 0, false),
            ("A-99999999999999999999Q", 0, false),
        ] {
            let one = VgpuType::named(7, name);
            assert_eq!((one.memory_mib, one.is_of_mig()), (mib, is_of_mig), "{name}");
        }
    }

    #[test]
    fn a_type_is_found_by_any_of_its_names() {
        let types = [VgpuType::named(558, "NVIDIA A40-8Q"), VgpuType::named(559, "NVIDIA A40-1-8C")];
        for name in ["558", "NVIDIA A40-8Q", "a40-8q", "8Q"] {
            assert_eq!(resolve(&types, name).unwrap().id, 558, "{name}");
        }
        assert_eq!(resolve(&types, "1-8C").unwrap().id, 559);
        let error = resolve(&types, "9Q").unwrap_err().to_string();
        assert_eq!(error, "there is no vGPU type \"9Q\" here; there are A40-8Q, A40-1-8C");
        assert!(resolve(&[], "").unwrap_err().to_string().ends_with("there are none"));
    }
}
