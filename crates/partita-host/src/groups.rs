//! Which groups of users make tenants on which GPUs, in system mode.
//!
//! `partitad` reads this once and passes it on to the processes that answer users' commands.

use std::ffi::CString;
use std::fmt;
use std::str::FromStr;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};

use crate::error::Error;
use crate::gpu::{Gpu, Selector};
use crate::process::user_name;

/// The variable with the groups: `0=vision 1=vision,speech`.
pub const VARIABLE: &str = "PARTITAD_GPU_GROUPS";

/// The groups of some GPUs. Every user may use a GPU that is not named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuGroups(Vec<(Selector, Vec<String>)>);

impl GpuGroups {
    /// Whether no GPU is restricted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for GpuGroups {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |word: &str| {
            let form = || format!("{word:?} is not GPU=GROUP or GPU=GROUP,GROUP; use 0=vision");
            let (gpu, groups) = word.split_once('=').ok_or_else(form)?;
            let gpu: Selector = gpu.parse().map_err(|error: Error| error.to_string())?;
            let groups: Vec<String> = groups.split(',').map(str::to_owned).collect();
            if groups.iter().any(String::is_empty) {
                return Err(form());
            }
            Ok((gpu, groups))
        };
        let list = text.split_whitespace().map(one).collect::<Result<Vec<_>, _>>()?;
        for (number, (gpu, _)) in list.iter().enumerate() {
            if list[..number].iter().any(|(other, _)| other == gpu) {
                return Err(format!(
                    "{gpu} is there twice; name its groups in one word, as in 0=vision,speech"
                ));
            }
        }
        Ok(Self(list))
    }
}

impl fmt::Display for GpuGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> =
            self.0.iter().map(|(gpu, groups)| format!("{gpu}={}", groups.join(","))).collect();
        f.write_str(&words.join(" "))
    }
}

impl GpuGroups {
    /// Those that `partitad` passed on to this process.
    ///
    /// # Errors
    /// [`Error::Served`] if they are malformed.
    pub fn of_environment() -> Result<Self, Error> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        text.parse().map_err(|reason| Error::Served { reason: format!("{VARIABLE}: {reason}") })
    }

    /// Refuses groups that do not exist here.
    ///
    /// # Errors
    /// The group, with the remedy.
    pub fn check_exist(&self) -> Result<(), String> {
        match self.0.iter().flat_map(|(_, groups)| groups).find(|group| number_of(group).is_none()) {
            Some(group) => Err(format!("there is no group {group}; make it with `groupadd {group}`")),
            None => Ok(()),
        }
    }

    /// The GPUs among those that are named which are not among these.
    pub fn without_gpu(&self, gpus: &[Gpu]) -> Vec<String> {
        let is_here = |selector: &Selector| gpus.iter().any(|gpu| names(selector, gpu));
        let missing = self.0.iter().filter(|(selector, _)| !is_here(selector));
        missing.map(|(selector, _)| selector.to_string()).collect()
    }

    /// Refuses GPUs to a user who is in none of the groups of one of them. Root may use every GPU.
    ///
    /// # Errors
    /// [`Error::OtherGroup`].
    pub fn check_all(&self, gpus: &[Gpu], user: u32) -> Result<(), Error> {
        gpus.iter().try_for_each(|gpu| self.check(gpu, user))
    }

    fn check(&self, gpu: &Gpu, user: u32) -> Result<(), Error> {
        let Some(groups) = self.groups_of(gpu) else { return Ok(()) };
        if user == 0 || is_member(user, groups) {
            return Ok(());
        }
        Err(Error::OtherGroup {
            reason: format!(
                "{} is refused: only members of {} make tenants on it, and {} is in none; name another \
                 GPU with --gpu, or ask root for {VARIABLE} or the group",
                gpu.label(),
                groups.join(", "),
                user_name(user)
            ),
        })
    }

    fn groups_of(&self, gpu: &Gpu) -> Option<&[String]> {
        self.0.iter().find(|(selector, _)| names(selector, gpu)).map(|(_, groups)| groups.as_slice())
    }
}

fn names(selector: &Selector, gpu: &Gpu) -> bool {
    match selector {
        Selector::Index(index) => gpu.sim().is_none() && gpu.facts.index == *index,
        Selector::Uuid(uuid) => gpu.sim().is_none() && gpu.facts.uuid.starts_with(uuid),
        Selector::Sim(..) => gpu.selector() == *selector,
    }
}

fn number_of(group: &str) -> Option<Gid> {
    Group::from_name(group).ok().flatten().map(|group| group.gid)
}

fn is_member(user: u32, groups: &[String]) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(user)) else { return false };
    let name = CString::new(user.name).unwrap_or_default();
    let has = getgrouplist(&name, user.gid).unwrap_or_default();
    groups.iter().filter_map(|group| number_of(group)).any(|group| has.contains(&group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::GpuFacts;

    fn gpu(index: u32, uuid: &str) -> Gpu {
        let facts = GpuFacts { index, uuid: uuid.to_owned(), ..GpuFacts::example() };
        Gpu::of(facts, "580.1", 13000)
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["", "0=vision", "0=vision,speech GPU-12ab=root sim:h200:1=root"] {
            let groups: GpuGroups = text.parse().unwrap();
            assert_eq!(groups.to_string(), text);
        }
        for text in ["0", "0=", "0=a,", "=a", "0=a,,b", "x=a", "0=a 0=b"] {
            assert!(text.parse::<GpuGroups>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_gpu_has_the_groups_of_its_number_or_name() {
        let groups: GpuGroups = "1=vision GPU-ab=speech".parse().unwrap();
        let of = |gpu: &Gpu| groups.groups_of(gpu).map(|groups| groups.join(","));
        assert_eq!(of(&gpu(0, "GPU-00")), None);
        assert_eq!(groups.without_gpu(&[gpu(0, "GPU-ab"), gpu(1, "GPU-cd")]), Vec::<String>::new());
        assert_eq!(groups.without_gpu(&[gpu(0, "GPU-00")]), ["1", "GPU-ab"]);
        assert_eq!(of(&gpu(1, "GPU-00")).as_deref(), Some("vision"));
        assert_eq!(of(&gpu(0, "GPU-abcd")).as_deref(), Some("speech"));
    }

    #[test]
    fn users_outside_the_groups_are_refused() {
        let groups: GpuGroups = "0=root".parse().unwrap();
        groups.check_exist().unwrap();
        groups.check(&gpu(0, "GPU-00"), 0).unwrap();
        groups.check(&gpu(1, "GPU-01"), 65533).unwrap();
        let said = groups.check(&gpu(0, "GPU-00"), 65533).unwrap_err().to_string();
        assert!(said.contains("only members of root"), "{said}");
        let unknown: GpuGroups = "0=no-such-group".parse().unwrap();
        assert!(unknown.check_exist().unwrap_err().contains("groupadd no-such-group"));
    }
}
