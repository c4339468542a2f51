//! The MIG instances of a simulated GPU, in a file beside its board's socket.
//!
//! Every process of the machine sees the same file. [`super::place::ENV_MIG`] turns MIG on and says
//! which instances there are at first. The file's first line repeats that: with another value of
//! the variable the machine is another one, and the file does not count.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use partita_core::mig::{self, Profile, Slot};
use partita_sim::MigSpec;

/// A GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its number, from 1 on.
    pub number: u32,
    /// The number of its profile.
    pub profile: u32,
    /// Where it lies.
    pub slot: Slot,
    /// Whether it has its compute instance, which has all its slices. The simulator has no others.
    pub has_compute: bool,
}

/// Why an instance is not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The profile does not exist, or cannot lie there.
    Impossible,
    /// Another instance is there, or there are too many of the profile.
    Taken,
}

/// The instances of one GPU, in the order of their creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// The instances.
    pub instances: Vec<Instance>,
}

impl Division {
    /// The instances that `list` asks for on an empty GPU, numbered in the order of the list.
    ///
    /// # Errors
    /// Names that are no profiles, and profiles that do not fit together.
    pub fn first(profiles: &[MigSpec], list: &str) -> Result<Self, String> {
        let profiles: Vec<Profile> = profiles.iter().map(|spec| spec.profile.clone()).collect();
        let names = list.split(',').filter(|name| !name.is_empty());
        let wanted: Vec<u32> = names
            .map(|name| mig::resolve(&profiles, name).map(|profile| profile.id))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let plan = mig::plan(&profiles, &[], &wanted, &[])
            .map_err(|_| "these instances do not fit on the GPU together".to_owned())?;
        let mut layout = plan.layout;
        let mut instances = Vec::new();
        for (profile, number) in wanted.into_iter().zip(1..) {
            let Some(at) = layout.iter().position(|placed| placed.profile == profile) else { continue };
            let slot = layout.remove(at).slot;
            instances.push(Instance { number, profile, slot, has_compute: true });
        }
        Ok(Self { instances })
    }

    /// Adds a GPU instance and returns its number.
    ///
    /// # Errors
    /// [`Conflict`].
    pub fn create(&mut self, profile: &Profile, slot: Slot) -> Result<u32, Conflict> {
        if !profile.slots.contains(&slot) {
            return Err(Conflict::Impossible);
        }
        if !self.is_free(profile, slot) {
            return Err(Conflict::Taken);
        }
        let is_unused = |number: &u32| self.instances.iter().all(|other| other.number != *number);
        let number = (1..).find(is_unused).ok_or(Conflict::Taken)?;
        self.instances.push(Instance { number, profile: profile.id, slot, has_compute: false });
        Ok(number)
    }

    /// Whether one more instance of the profile fits there.
    pub fn is_free(&self, profile: &Profile, slot: Slot) -> bool {
        let bits = |slot: Slot| slot.bits().unwrap_or(u64::MAX);
        let count = self.instances.iter().filter(|other| other.profile == profile.id).count();
        count < profile.count_max as usize
            && self.instances.iter().all(|other| bits(other.slot) & bits(slot) == 0)
    }

    /// The instance of a number.
    pub fn of(&mut self, number: u32) -> Option<&mut Instance> {
        self.instances.iter_mut().find(|instance| instance.number == number)
    }

    fn parse(text: &str, list: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|first| *first == list)?;
        let instance = |line: &str| {
            let numbers: Vec<u32> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
            let [number, profile, start, size, computes] = numbers[..] else { return None };
            Some(Instance { number, profile, slot: Slot { start, size }, has_compute: computes > 0 })
        };
        Some(Self { instances: lines.map(instance).collect::<Option<_>>()? })
    }

    fn text(&self, list: &str) -> String {
        let line = |instance: &Instance| {
            let Instance { number, profile, slot, has_compute } = instance;
            format!("{number} {profile} {} {} {}\n", slot.start, slot.size, u32::from(*has_compute))
        };
        format!("{list}\n{}", self.instances.iter().map(line).collect::<String>())
    }
}

/// The file, and the value of the variable for which it counts.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    list: String,
}

impl Store {
    /// The file at a path.
    pub fn new(path: PathBuf, list: String) -> Self {
        Self { path, list }
    }

    /// The instances; `None` if they were never changed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn read(&self) -> io::Result<Option<Division>> {
        match fs::read_to_string(&self.path) {
            Ok(text) => Ok(Division::parse(&text, &self.list)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the instances, whole or not at all.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&self, division: &Division) -> io::Result<()> {
        let fresh = beside(&self.path, &format!(".new-{}", std::process::id()));
        File::create(&fresh)?.write_all(division.text(&self.list).as_bytes())?;
        fs::rename(&fresh, &self.path)
    }

    /// Excludes other processes that change the instances, until the file is closed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn lock(&self) -> io::Result<File> {
        let path = beside(&self.path, ".lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        loop {
            // SAFETY: takes no pointers.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(file);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use partita_sim::catalogue;

    use super::*;

    #[test]
    fn instances_exclude_each_other_as_on_hardware() {
        let profiles = catalogue::device("h200").unwrap().mig.unwrap();
        let of = |name: &str| {
            profiles.iter().map(|spec| &spec.profile).find(|profile| profile.name == name).unwrap()
        };
        let mut division = Division::first(&profiles, "3g.71gb,1g.18gb").unwrap();
        assert_eq!(division.instances.iter().map(|one| one.number).collect::<Vec<_>>(), [1, 2]);
        let [first, second] = division.instances[..] else { panic!("{division:?}") };
        assert_eq!((first.profile, second.profile), (9, 19));
        assert_eq!(division.create(of("1g.18gb"), second.slot), Err(Conflict::Taken));
        assert_eq!(division.create(of("1g.18gb"), Slot { start: 7, size: 1 }), Err(Conflict::Impossible));
        assert_eq!(division.create(of("7g.141gb"), Slot { start: 0, size: 8 }), Err(Conflict::Taken));
        let me = of("1g.18gb+me");
        let free = *me.slots.iter().find(|slot| division.is_free(me, **slot)).unwrap();
        assert_eq!(division.create(me, free), Ok(3));
        assert!(me.slots.iter().all(|slot| !division.is_free(me, *slot)), "one at most");
        division.instances.remove(0);
        assert_eq!(division.create(of("3g.71gb"), first.slot), Ok(1));
        assert_eq!(Division::parse(&division.text("a"), "a"), Some(division.clone()));
        assert_eq!(Division::parse(&division.text("a"), "b"), None);
        for list in ["3g.71gb,3g.71gb,1g.18gb", "5g", "1g.18gb,"] {
            assert_eq!(Division::first(&profiles, list).is_ok(), list.ends_with(','), "{list}");
        }
    }
}
