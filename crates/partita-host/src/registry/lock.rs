//! The registry under its lock: looking, making, removing.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use partita_core::{Present, TpcSet};
use partita_ledger::{FLAG_LENDS, MECHANISM_MASK};
use partita_mps::lock::{LockHolder, lock_within};

use super::dir::{Dir, own_user};
use super::layout::{
    CONTROL, ELASTIC, Home, LEDGER_VARIABLE, LOCK, TURNS, gpus, home_name, home_of, homes, is_owned,
    is_scratch, make_own, only_the_daemon, open_lock, open_root,
};
use super::name::check_name;
use super::owned::{NewPart, OwnedPart, OwnedTenant, make, make_elastic, make_gate};
use super::root::{Registry, Role};
use super::tenant::{Patience, Tenant, has_live_slot};
use super::user::acts_for_user;
use super::{elastic, memory, task_slots};
use crate::error::Error;
use crate::policy::present_rules;
use crate::process::{ProcessId, user_name};

/// How long planners wait for planners of other users. A process that holds that lock for longer is
/// not planning.
const OTHERS_LIMIT: Duration = Duration::from_secs(1);

/// The registry, locked until this is dropped.
#[derive(Debug)]
pub struct RegistryLock<'a> {
    pub(super) registry: &'a Registry,
    /// The current user's directory; `None` before this user has made anything.
    pub(super) home: Option<Arc<Dir>>,
    _own: Option<File>,
    _common: Option<OwnedFd>,
}

impl Registry {
    /// Waits for the current user's lock: no other process of this user makes, changes or removes
    /// tenants meanwhile.
    ///
    /// # Errors
    /// [`Error::RunDirectory`] if another process holds it for too long.
    pub fn lock(&self) -> Result<RegistryLock<'_>, Error> {
        RegistryLock::take(self)
    }

    /// The same for changes of what tenants have: if all users cooperate, none of them plans
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Registry::lock`].
    pub fn lock_to_plan(&self) -> Result<RegistryLock<'_>, Error> {
        RegistryLock::take_to_plan(self, false)
    }

    /// The same for making tenants or services. Makes the current user's directory if it is
    /// missing.
    ///
    /// # Errors
    /// As [`Registry::lock`], and [`Error::RunDirectory`] if that directory cannot be made.
    pub fn lock_to_make(&self) -> Result<RegistryLock<'_>, Error> {
        RegistryLock::take_to_plan(self, true)
    }
}

impl<'a> RegistryLock<'a> {
    fn take(registry: &'a Registry) -> Result<Self, Error> {
        let root = open_root(&registry.root)?;
        match registry.role {
            Role::Planner => return Self::of_planner(registry, root, false),
            // It changes nothing.
            Role::Client => return Ok(Self { registry, home: None, _own: None, _common: None }),
            Role::User => {}
        }
        if root.is_own() {
            return Self::of_home(registry, root);
        }
        match root.sub(&home_name(own_user())) {
            Ok(home) if home.is_own() => Self::of_home(registry, home),
            // Nothing is the user's there, so nothing of it can change.
            _ => Ok(Self { registry, home: None, _own: None, _common: None }),
        }
    }

    /// `is_making`: makes the current user's directory if it is missing.
    fn take_to_plan(registry: &'a Registry, is_making: bool) -> Result<Self, Error> {
        let root = open_root(&registry.root)?;
        match registry.role {
            Role::Planner => return Self::of_planner(registry, root, is_making),
            Role::Client => return Err(only_the_daemon(&registry.root)),
            Role::User => {}
        }
        let is_shared = root.mode & 0o022 != 0;
        if root.is_own() && !is_shared {
            return Self::of_home(registry, root);
        }
        let home = match home_name(own_user()) {
            _ if root.is_own() => open_root(&registry.root)?,
            name if is_making => make_own(&root, &name)?,
            name => match root.sub(&name) {
                Ok(home) if home.is_own() => home,
                _ => return Ok(Self { registry, home: None, _own: None, _common: None }),
            },
        };
        let mut lock = Self::of_home(registry, home)?;
        let failed = || Error::io(root.path().display().to_string());
        lock._common = root.lock_within(OTHERS_LIMIT).map_err(failed())?;
        Ok(lock)
    }

    /// The lock of system mode: one for all users. `is_making`: makes the acting user's directory
    /// if it is missing.
    fn of_planner(registry: &'a Registry, root: Dir, is_making: bool) -> Result<Self, Error> {
        let lock = Self::of_home(registry, root)?;
        let user = registry.user;
        let Some(root) = lock.home.clone().filter(|root| root.user != user) else { return Ok(lock) };
        let home = match home_of(&root, user, true) {
            None if is_making => Some(make_home(&root, user)?),
            home => home,
        };
        Ok(Self { home: home.map(Arc::new), ..lock })
    }

    fn of_home(registry: &'a Registry, home: Dir) -> Result<Self, Error> {
        let path = home.path().join(LOCK);
        let refuse = |reason: String| Error::RunDirectory { path: path.clone(), reason };
        let failed = |error: io::Error| refuse(error.to_string());
        let mut file = open_lock(&home).map_err(failed)?;
        while lock_within(&file, registry.lock_limit).map_err(failed)? {
            // The file may have been removed meanwhile. Then another process locks the new one.
            let now = open_lock(&home).map_err(failed)?;
            let identity = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino()));
            if identity(&file).map_err(failed)? == identity(&now).map_err(failed)? {
                return Ok(Self { registry, home: Some(Arc::new(home)), _own: Some(file), _common: None });
            }
            file = now;
        }
        let holder = LockHolder::of(&file).map_or_else(|| "another process".to_owned(), |it| it.to_string());
        Err(refuse(format!(
            "the lock was not free for {} s, and {holder} holds it now; continue or end it (`fuser {}` lists \
             it)",
            registry.lock_limit.as_secs(),
            path.display()
        )))
    }

    /// Removes what dead tenants and killed commands of the current user left, and returns the
    /// living tenants of every user by GPU and name.
    ///
    /// # Errors
    /// [`Error::Io`] if the registry cannot be read.
    pub fn tenants(&self) -> Result<Vec<Tenant>, Error> {
        let mut found = Vec::new();
        for home in homes(open_root(&self.registry.root)?)? {
            let mut patience = Patience::with(&home.dir);
            for (gpu_key, gpu) in gpus(&home.dir)? {
                for name in gpu.texts().map_err(Error::io(gpu.path().display().to_string()))? {
                    if is_scratch(&name) {
                        if home.dir.is_own() && !gpu.sub_of_owner(&name).is_ok_and(|dir| is_owned(&dir)) {
                            let _ = gpu.remove(OsStr::new(&name));
                        }
                    } else if check_name(&name).is_ok()
                        // It may go meanwhile; then it is no tenant.
                        && let Ok(dir) = gpu.sub_of_owner(&name)
                        && patience.takes_one()
                    {
                        found.push(Tenant::read(&home, &gpu_key, &name, &dir, &mut patience));
                    }
                }
            }
        }
        found.sort_by(|a, b| (&a.gpu_key, &a.name, a.user).cmp(&(&b.gpu_key, &b.name, b.user)));
        // A process may use one GPU of several, and then holds no slot on the others.
        let groups: BTreeSet<_> = found.iter().filter(|part| part.alive).filter_map(Tenant::group).collect();
        let mut living = Vec::new();
        let mut is_any_removed = false;
        for mut tenant in found {
            tenant.alive |= tenant.group().is_some_and(|group| groups.contains(&group));
            if tenant.alive {
                living.push(tenant);
            } else if tenant.is_own() {
                // If this fails, the next command removes the rest.
                is_any_removed |= self.remove(&tenant).unwrap_or(false);
            }
        }
        if is_any_removed {
            task_slots::divide(&living);
            // While the policy has a mistake, no quota grows. The next plan reports it.
            if let Ok(rules) = present_rules(acts_for_user()) {
                memory::divide_all(&living, &rules);
            }
            elastic::divide(&living);
        }
        for Home { dir: home, user } in self.kept()? {
            for (key, gpu) in gpus(&home)? {
                if !living.iter().any(|tenant| tenant.user == user && tenant.gpu_key == key) {
                    let _ = gpu.remove(OsStr::new(TURNS));
                    let _ = gpu.unlink(OsStr::new(ELASTIC));
                    let _ = gpu.unlink(OsStr::new(CONTROL));
                }
                // Only an empty one goes.
                let _ = home.remove_empty(&key);
            }
        }
        Ok(living)
    }

    /// The directories that this process cleans: the acting user's, or those of all users if that
    /// is root in system mode.
    fn kept(&self) -> Result<Vec<Home>, Error> {
        let user = self.registry.user;
        if self.registry.role == Role::Planner && user == 0 {
            return homes(open_root(&self.registry.root)?);
        }
        Ok(self.home.iter().map(|dir| Home { dir: Arc::clone(dir), user }).collect())
    }

    /// The living tenant of this name: its part on each of its GPUs, in the order in which its
    /// programs see them. Never empty. If several users have a tenant of this name, the current
    /// user's.
    ///
    /// # Errors
    /// [`Error::NoSuchTenant`]; [`Error::SeveralTenants`] if the current user has none of them;
    /// [`Error::Io`].
    pub fn tenant(&self, name: &str) -> Result<Vec<Tenant>, Error> {
        self.tenant_of_user(name, self.registry.user)
    }

    /// The same for another calling user: if several users have a tenant of this name, that user's.
    ///
    /// # Errors
    /// As [`RegistryLock::tenant`].
    pub fn tenant_of_user(&self, name: &str, user: u32) -> Result<Vec<Tenant>, Error> {
        check_name(name)?;
        let (mut parts, tenants): (Vec<_>, Vec<_>) =
            self.tenants()?.into_iter().partition(|tenant| tenant.name == name);
        let users: BTreeSet<u32> = parts.iter().map(|part| part.user).collect();
        if users.len() > 1 && !users.contains(&user) {
            let first = users.first().copied().unwrap_or(user);
            let users = users.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::SeveralTenants { name: name.to_owned(), users, first });
        }
        if let Some(&only) = users.first() {
            let meant = if users.contains(&user) { user } else { only };
            parts.retain(|part| part.user == meant);
            parts.sort_by_key(Tenant::place);
            return Ok(parts);
        }
        let mut names: Vec<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        names.dedup();
        let present = if names.is_empty() && self.registry.role == Role::Client {
            "you have none on this machine; start one with `partita run --name NAME -- PROGRAM`".to_owned()
        } else if names.is_empty() {
            "no tenant runs; start one with `partita run --name NAME -- PROGRAM`".to_owned()
        } else {
            format!("there are {}; see `partita ps`", names.join(", "))
        };
        Err(Error::NoSuchTenant { name: name.to_owned(), present })
    }

    /// The living tenant that a process is of: the program that `partita run` started, any
    /// descendant of it that kept its environment, or `partita run` itself. As
    /// [`RegistryLock::tenant`].
    ///
    /// # Errors
    /// [`Error::NoTenantOfProcess`]; [`Error::Io`].
    pub fn tenant_of(&self, pid: u32) -> Result<Vec<Tenant>, Error> {
        let refuse = |reason: String| Error::NoTenantOfProcess { pid, reason };
        let Some(process) = ProcessId::living(pid) else {
            return Err(refuse("there is no such process".to_owned()));
        };
        // The environment is readable for its owner alone; the slots of those that use CUDA are for
        // all.
        let ledger = process.variable(LEDGER_VARIABLE);
        let is_of = |tenant: &Tenant| {
            let by_slot = tenant.usage().is_ok_and(|usage| {
                usage.slots().flatten().any(|slot| {
                    slot.live && u32::try_from(slot.pid) == Ok(pid) && slot.start_ticks == process.start_ticks
                })
            });
            let by_meta =
                tenant.meta.as_ref().is_ok_and(|meta| meta.run == process || meta.child == Some(process));
            let is_theirs = process.user() == Some(tenant.user);
            let by_variable = ledger.as_ref().is_some_and(|ledger| Path::new(ledger) == tenant.dir);
            is_theirs && (by_slot || by_meta || by_variable)
        };
        match self.tenants()?.iter().find(|tenant| is_of(tenant)) {
            Some(tenant) => self.tenant_of_user(&tenant.name, tenant.user),
            None => Err(refuse(
                "it was not started by `partita run`, or its tenant has ended; see `partita ps`".to_owned(),
            )),
        }
    }

    /// The tenants of one GPU in the planner's form.
    ///
    /// # Errors
    /// [`Error::DamagedTenant`] if the limits of a living tenant of the current user cannot be
    /// read: its TPCs are then unknown, and must not be given to others. An unreadable tenant of
    /// another user is promised nothing: only its owner writes there, and must not be able to stop
    /// all others.
    pub fn present(tenants: &[Tenant], gpu_key: &str) -> Result<Vec<Present>, Error> {
        let here = || tenants.iter().filter(|tenant| tenant.gpu_key == gpu_key && tenant.counts());
        let mut own = TpcSet::EMPTY;
        for tenant in here().filter(|tenant| tenant.is_own()) {
            own |= tenant.set()?;
        }
        here()
            .map(|tenant| {
                // What another user wrote about the current user's TPCs does not count.
                let taken = if tenant.is_kept_here() { TpcSet::EMPTY } else { own };
                Ok(Present { name: tenant.name_among_all(), set: tenant.set()? - taken })
            })
            .collect()
    }

    /// Makes a tenant that the calling process owns, on the GPUs of its parts, in the order in
    /// which its programs see them.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::NameInUse`], [`Error::Io`], [`Error::RunDirectory`],
    /// [`Error::Policy`]; then nothing is left behind on any of the GPUs.
    pub fn create(&self, parts: Vec<NewPart>) -> Result<OwnedTenant, Error> {
        let rules = present_rules(acts_for_user())?;
        let tenants = self.tenants()?;
        for part in &parts {
            check_name(&part.meta.name)?;
            if let Some(other) = tenants.iter().find(|tenant| tenant.name == part.meta.name) {
                return Err(other.name_in_use());
            }
        }
        // The first part comes last: it links to the others, and makes them part of a tenant.
        let links: Vec<PathBuf> = parts
            .iter()
            .skip(1)
            .map(|part| Path::new("../..").join(&part.gpu_key).join(&part.meta.name))
            .collect();
        let mut made: VecDeque<OwnedPart> = VecDeque::new();
        for (at, part) in parts.into_iter().enumerate().rev() {
            match self.create_part(part, if at == 0 { &links } else { &[] }) {
                Ok(part) => made.push_front(part),
                Err(error) => {
                    let home = self.own_home()?;
                    for part in made {
                        let _ = remove_dir(home, &part.gpu_key, &part.meta.name);
                    }
                    return Err(error);
                }
            }
        }
        let tenants = self.tenants()?;
        task_slots::divide(&tenants);
        memory::divide_all(&tenants, &rules);
        elastic::divide(&tenants);
        Ok(OwnedTenant { parts: made.into() })
    }

    /// Divides the task slots and the memory of every GPU again, after tenants were changed.
    ///
    /// # Errors
    /// As [`RegistryLock::tenants`]; [`Error::Policy`], and then no quota grows.
    pub(crate) fn divide(&self) -> Result<(), Error> {
        let tenants = self.tenants()?;
        task_slots::divide(&tenants);
        elastic::divide(&tenants);
        memory::divide_all(&tenants, &present_rules(acts_for_user())?);
        Ok(())
    }

    fn create_part(&self, part: NewPart, links: &[PathBuf]) -> Result<OwnedPart, Error> {
        let NewPart { gpu_key, meta, mut limits } = part;
        let home = self.own_home()?;
        let gpu = make_own(home, &gpu_key)?;
        if limits.has_gate() {
            make_gate(&gpu, self.registry.user, meta.prepared_boot.is_some())?;
        }
        if limits.mechanism == MECHANISM_MASK
            && meta.prepared_boot.is_none()
            && make_elastic(&gpu, self.registry.user, limits.borrow_tpcs_max != 0)?
        {
            limits.flags |= FLAG_LENDS;
        }
        let path = gpu.path().join(&meta.name);
        let failed = || Error::io(path.display().to_string());
        let scratch = format!(".new-{}-{}", meta.name, std::process::id());
        let made = gpu.make_new(&scratch).map_err(failed()).and_then(|dir| {
            let owner = make(&dir, &meta, &limits, links, self.registry.user)?;
            gpu.rename(&scratch, &meta.name).map_err(failed())?;
            Ok((dir, owner))
        });
        match made {
            Ok((dir, owner)) => Ok(OwnedPart { dir: Some(dir), path, gpu_key, meta, owner }),
            Err(error) => {
                let _ = gpu.remove(OsStr::new(&scratch));
                let _ = home.remove_empty(&gpu_key);
                Err(error)
            }
        }
    }

    fn own_home(&self) -> Result<&Dir, Error> {
        self.home.as_deref().ok_or_else(|| Error::RunDirectory {
            path: self.registry.root.clone(),
            reason: format!("{} has no tenants there", user_name(own_user())),
        })
    }

    /// Makes the current user's directory of one GPU, if it is missing. An empty one goes with the
    /// next command that holds the lock.
    ///
    /// # Errors
    /// [`Error::RunDirectory`].
    pub fn make_gpu_dir(&self, gpu_key: &str) -> Result<(), Error> {
        make_own(self.own_home()?, gpu_key).map(drop)
    }

    /// Removes an entry of the current user's directory of one GPU, and that if it is empty then.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn remove_from_gpu(&self, gpu_key: &str, name: &OsStr) -> Result<(), Error> {
        let Some(home) = &self.home else { return Ok(()) };
        let Ok(gpu) = home.sub_of_owner(gpu_key) else { return Ok(()) };
        match gpu.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io(gpu.path().join(name).display().to_string())(error));
            }
            _ => {}
        }
        let _ = home.remove_empty(gpu_key);
        Ok(())
    }

    /// Removes a tenant of the current user, and its GPU's directory if that is empty then. False
    /// if the tenant is another user's, or a process still uses it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove(&self, tenant: &Tenant) -> Result<bool, Error> {
        if !tenant.is_own() {
            return Ok(false);
        }
        remove_dir(&tenant.home, &tenant.gpu_key, &tenant.name)
    }
}

/// Makes the directory of a user in a run directory in system mode: root's, and only that user can
/// enter it.
fn make_home(root: &Dir, user: u32) -> Result<Dir, Error> {
    let name = home_name(user);
    let failed = || Error::io(root.path().join(&name).display().to_string());
    // Under another name until the user can enter it.
    let fresh = format!(".new-{name}");
    let _ = root.remove(OsStr::new(&fresh));
    let home = root.make_new(&fresh).map_err(failed())?;
    home.open_to(user).map_err(failed())?;
    root.rename(&fresh, &name).map_err(failed())?;
    home_of(root, user, true).ok_or_else(|| failed()(io::ErrorKind::NotFound.into()))
}

/// Removes a tenant's directory, and its GPU's if that is empty then. False if a process still uses
/// it.
fn remove_dir(home: &Dir, gpu_key: &str, name: &str) -> Result<bool, Error> {
    let Ok(gpu) = home.sub_of_owner(gpu_key) else { return Ok(true) };
    let gone = format!(".dead-{name}-{}", std::process::id());
    let failed = || Error::io(gpu.path().join(name).display().to_string());
    match gpu.rename(name, &gone) {
        // A process can enter a tenant that an environment names without `partita run`. If one has,
        // the tenant is restored.
        Ok(())
            if gpu.sub_of_owner(&gone).is_ok_and(|dir| has_live_slot(&dir))
                && gpu.rename(&gone, name).is_ok() =>
        {
            return Ok(false);
        }
        Ok(()) => gpu.remove(OsStr::new(&gone)).map_err(failed())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed()(error)),
    }
    let _ = home.remove_empty(gpu_key);
    Ok(true)
}
