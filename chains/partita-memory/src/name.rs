//! Names of tenants, in the form of frames.

use std::fmt;
use std::str::FromStr;

use partita_ledger::NAME_BYTES_MAX;
use thiserror::Error;

/// A tenant's name: 1 to 63 letters, digits, dots, underscores and hyphens, the first a letter or a
/// digit, as everywhere in Partita.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName {
    /// Padded with zeros.
    bytes: [u8; NAME_BYTES_MAX + 1],
}

/// A text that is not a tenant's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a name of a tenant: 1 to 63 letters, digits, `.`, `_` and `-`, the first a letter or a \
     digit"
)]
pub struct BadName(pub String);

impl TenantName {
    /// Bytes of a name in a frame.
    pub(crate) const BYTES: usize = NAME_BYTES_MAX + 1;

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<Self, BadName> {
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let (name, rest) = bytes.split_at(length);
        let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        let first = name.first().is_some_and(u8::is_ascii_alphanumeric);
        if !first || rest.is_empty() || !name.iter().all(is_allowed) || rest.iter().any(|byte| *byte != 0) {
            return Err(BadName(String::from_utf8_lossy(name).escape_debug().to_string()));
        }
        Ok(Self { bytes })
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        self.bytes
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let length = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        // Checked at its creation.
        std::str::from_utf8(&self.bytes[..length]).unwrap_or_default()
    }
}

impl FromStr for TenantName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = || BadName(text.escape_debug().to_string());
        let mut bytes = [0; Self::BYTES];
        bytes.get_mut(..text.len()).ok_or_else(bad)?.copy_from_slice(text.as_bytes());
        if text.contains('\0') {
            return Err(bad());
        }
        Self::from_bytes(bytes).map_err(|_| bad())
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_registry() {
        for good in ["a", "0.b_c-D", &"x".repeat(63)] {
            assert_eq!(good.parse::<TenantName>().unwrap().as_str(), good);
        }
        for bad in ["", ".a", "-a", "a b", "a/b", "ä", "a\0", &"x".repeat(64), &"x".repeat(100)] {
            assert!(bad.parse::<TenantName>().is_err(), "{bad:?}");
        }
        let mut bytes = [0; 64];
        bytes[0] = b'a';
        bytes[9] = b'b';
        assert!(TenantName::from_bytes(bytes).is_err(), "something behind its end");
    }
}
