//! The names by which users ask for profiles.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::profile::Profile;

/// A name that no profile of the GPU has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no MIG profile {name:?} on this GPU; it has {}", known.join(", "))]
pub struct UnknownProfile {
    /// The name.
    pub name: String,
    /// The names of the GPU's profiles.
    pub known: Vec<String>,
}

/// The profile of a name: `3g.71gb` in full; `3g` for the smallest of three slices without an
/// attribute; `1g+me` for the smallest of one slice with it. Kubernetes writes `.me` for `+me`.
///
/// # Errors
/// [`UnknownProfile`]; also for compute instances of a part of the slices, as `1c.3g.71gb`.
pub fn resolve<'a>(profiles: &'a [Profile], name: &str) -> Result<&'a Profile, UnknownProfile> {
    let wanted = name.trim().to_ascii_lowercase().replace(".me", "+me");
    let exact = profiles.iter().find(|profile| profile.name.to_ascii_lowercase() == wanted);
    let smallest = || {
        let (slices, attribute) = wanted.split_once('g')?;
        let digits = !slices.is_empty() && slices.bytes().all(|byte| byte.is_ascii_digit());
        let slices: u32 = slices.parse().ok().filter(|_| digits)?;
        let fits = |profile: &&Profile| profile.slices == slices && profile.attribute() == attribute;
        profiles.iter().filter(fits).min_by_key(|profile| profile.memory_mib)
    };
    exact.or_else(smallest).ok_or_else(|| UnknownProfile {
        name: name.to_string(),
        known: profiles.iter().map(|profile| profile.name.clone()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn profile(id: u32, name: &str, slices: u32, memory_mib: u64) -> Profile {
        let name = name.to_string();
        Profile { id, name, slices, sms: 1, memory_mib, count_max: 1, slots: vec![] }
    }

    #[test]
    fn names_are_full_or_short() {
        let profiles = [
            profile(15, "1g.35gb", 1, 33_024),
            profile(19, "1g.18gb", 1, 16_384),
            profile(20, "1g.18gb+me", 1, 16_384),
            profile(9, "3g.71gb", 3, 71_168),
        ];
        for (name, id) in [
            ("3g", 9),
            ("3g.71gb", 9),
            ("3G.71GB", 9),
            (" 1g ", 19),
            ("1g.35gb", 15),
            ("1g+me", 20),
            ("1g.18gb+me", 20),
            ("1g.18gb.me", 20),
        ] {
            assert_eq!(resolve(&profiles, name).map(|profile| profile.id), Ok(id), "{name}");
        }
        for name in ["", "g", "2g", "+1g", "3g.70gb", "1c.3g.71gb", "1g+gfx", "3", "99999999999g"] {
            let error = resolve(&profiles, name).unwrap_err().to_string();
            assert_eq!(
                error,
                alloc::format!(
                    "no MIG profile {name:?} on this GPU; it has 1g.35gb, 1g.18gb, 1g.18gb+me, 3g.71gb"
                )
            );
        }
    }
}
