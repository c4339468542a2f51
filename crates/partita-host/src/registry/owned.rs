//! A tenant that this process makes and owns.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use partita_core::TpcSet;
use partita_ledger::{
    ELASTIC_FILE_NAME, ElasticMap, FLAG_TIMED, GATE_FILE_NAME, GPU_LINK_PREFIX, GateMap, LIMITS_FILE_NAME,
    LedgerError, Limits, LimitsFile, NO_QUOTA, Problem, TIME_FILE_NAME, TimeMap, USAGE_FILE_NAME, UsageMap,
};

use super::dir::{Dir, own_user};
use super::layout::{ELASTIC, GATE, OWNER, TURNS, c_path};
use super::memory;
use super::tenant::{Meta, own_meta, write_meta};
use crate::dead;
use crate::error::Error;

/// `TMPFS_MAGIC` of linux/magic.h.
pub(crate) const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// A part of a tenant to make: the one on one GPU.
#[derive(Debug)]
pub struct NewPart {
    /// The name of the GPU's directory.
    pub gpu_key: String,
    /// Its metadata.
    pub meta: Meta,
    /// Its limits there.
    pub limits: Limits,
}

/// A tenant that this process owns: its `partita run`.
#[derive(Debug)]
pub struct OwnedTenant {
    /// One for each GPU, in the order in which programs see them. Never empty.
    pub(super) parts: Vec<OwnedPart>,
}

#[derive(Debug)]
pub(super) struct OwnedPart {
    /// None in a client, which cannot write there.
    pub dir: Option<Dir>,
    /// Its path, which the open directory is known by since it got its name.
    pub path: PathBuf,
    pub gpu_key: String,
    pub meta: Meta,
    pub owner: File,
}

impl OwnedTenant {
    /// The tenant's directory on its first GPU: the value of `PARTITA_LEDGER`.
    pub fn dir(&self) -> &Path {
        &self.parts[0].path
    }

    /// The open and locked files that keep the tenant alive, one for each GPU. A process that
    /// inherits them keeps the tenant alive too.
    pub fn owner_files(&self) -> impl Iterator<Item = &File> {
        self.parts.iter().map(|part| &part.owner)
    }

    /// The same files, which then are all that keeps it alive.
    pub fn into_owner_files(self) -> Vec<File> {
        self.parts.into_iter().map(|part| part.owner).collect()
    }

    /// The metadata of the tenant on its first GPU.
    pub fn meta(&self) -> &Meta {
        &self.parts[0].meta
    }

    /// Its SMs on each GPU, and those of the device.
    pub(crate) fn units(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.parts.iter().filter_map(|part| {
            let limits = part.limits()?;
            let tpcs = TpcSet::from_words(limits.set).len();
            let sms = |tpcs: u32| tpcs * limits.sms_per_tpc;
            Some((part.meta.gpu.label.as_str(), sms(tpcs), sms(limits.tpc_count)))
        })
    }

    /// The GPUs on which it is held to a part of the memory that is not promised, and the part in
    /// bytes.
    pub(crate) fn memory_rests(&self) -> impl Iterator<Item = (&str, u64)> {
        self.parts
            .iter()
            .filter_map(|part| Some((part.meta.gpu.label.as_str(), memory::rest(&part.limits()?)?)))
    }

    /// The GPUs on which it has a quota of memory, and the quota in bytes.
    pub(crate) fn memory_quotas(&self) -> impl Iterator<Item = (&str, u64)> {
        let quota = |part: &OwnedPart| Some(part.limits()?.memory_quota_bytes).filter(|it| *it != NO_QUOTA);
        self.parts.iter().filter_map(move |part| Some((part.meta.gpu.label.as_str(), quota(part)?)))
    }

    /// Changes the metadata of the tenant, for readers.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn update_meta(&mut self, change: impl Fn(&mut Meta)) -> Result<(), Error> {
        for part in &mut self.parts {
            if let Some(now) = part.dir.as_ref().and_then(own_meta) {
                // `partita set` writes there, too.
                part.meta = now;
            }
            change(&mut part.meta);
            if let Some(dir) = &part.dir {
                write_meta(dir, &part.path, &part.meta)?;
            }
        }
        Ok(())
    }

    /// The tenant that `partitad` has made for this process: for each of its GPUs the directory,
    /// the metadata, and the locked file that keeps it alive.
    pub(crate) fn received(parts: impl IntoIterator<Item = (PathBuf, Meta, File)>) -> Self {
        let part = |(path, meta, owner): (PathBuf, Meta, File)| OwnedPart {
            dir: None,
            path,
            gpu_key: meta.gpu.key.clone(),
            meta,
            owner,
        };
        Self { parts: parts.into_iter().map(part).collect() }
    }

    /// The data for a client that gets it: see [`OwnedTenant::received`].
    pub(crate) fn handed_out(&self) -> impl Iterator<Item = (&Path, &Meta, &File)> {
        self.parts.iter().map(|part| (part.path.as_path(), &part.meta, &part.owner))
    }
}

impl OwnedPart {
    /// Its limits as they are now.
    fn limits(&self) -> Option<Limits> {
        let path = c_path(&self.path.join(LIMITS_FILE_NAME.to_str().ok()?)).ok()?;
        Limits::read(path.as_c_str()).ok().map(|(_, limits)| limits)
    }
}

/// Makes everything of a tenant on one GPU in `dir`, which is new and its owner's alone. `links`
/// lead to its other GPUs'.
///
/// In system mode the tenant's user gets the files that its processes lock and write. The others
/// stay root's.
pub(super) fn make(
    dir: &Dir,
    meta: &Meta,
    limits: &Limits,
    links: &[PathBuf],
    user: u32,
) -> Result<File, Error> {
    let describe = || dir.path().display().to_string();
    let owner = dir.create(OWNER, 0o644).map_err(Error::io(describe()))?;
    match partita_ledger::lock_alone(owner.as_raw_fd()) {
        Ok(true) => {}
        Ok(false) => return Err(Error::io(describe())(io::ErrorKind::WouldBlock.into())),
        Err(partita_ledger::Errno(code)) => {
            return Err(Error::io(describe())(io::Error::from_raw_os_error(code)));
        }
    }
    let ledger = |error: LedgerError| Error::io("the ledger")(io::Error::other(error.to_string()));
    // Others read the limits to plan beside the tenant. Only its user can open the files that its
    // processes lock and map.
    LimitsFile::create(dir.at(LIMITS_FILE_NAME), limits, 0o644).map_err(ledger)?;
    // Any user of a container writes its use. On the host only its owner can enter the directory.
    let is_prepared = meta.prepared_boot.is_some();
    let written = if is_prepared { 0o666 } else { 0o600 };
    UsageMap::create(dir.at(USAGE_FILE_NAME), written).map_err(ledger)?;
    if limits.flags & FLAG_TIMED != 0 {
        check_memory(dir, "no share of time")?;
        TimeMap::create(dir.at(TIME_FILE_NAME), written).map_err(ledger)?;
    }
    let of_holder = [dead::FILE, dead::WORK_ENDED];
    for name in of_holder {
        dir.create(name, 0o600).map_err(Error::io(describe()))?;
    }
    for (link, number) in links.iter().zip(1..) {
        dir.link(link, &format!("{GPU_LINK_PREFIX}{number}")).map_err(Error::io(describe()))?;
    }
    write_meta(dir, dir.path(), meta)?;
    if user != own_user() {
        let time = (limits.flags & FLAG_TIMED != 0).then_some(TIME_FILE_NAME);
        let of_ledger =
            [Some(USAGE_FILE_NAME), time].into_iter().flatten().map(|name| name.to_string_lossy());
        let given = of_ledger.chain(of_holder.iter().map(|name| (*name).into()));
        given.into_iter().try_for_each(|name| dir.give(&name, user)).map_err(Error::io(describe()))?;
        // Only the user can open it, and so no other user can lock it.
        dir.give(OWNER, user).map_err(Error::io(describe()))?;
        rustix::fs::fchmod(&owner, rustix::fs::Mode::from_raw_mode(0o600))
            .map_err(|error| Error::io(describe())(error.into()))?;
    }
    dir.set_mode(if is_prepared { 0o700 } else { 0o755 }).map_err(Error::io(describe()))?;
    Ok(owner)
}

/// Refuses a directory whose files GPUs cannot map, if tenants need that.
///
/// The driver must map them, and long-lasting pins are for memory: the kernel refuses them for
/// pages that a file system writes back.
fn check_memory(dir: &Dir, without: &str) -> Result<(), Error> {
    if dir.is_on(TMPFS).map_err(Error::io(dir.path().display().to_string()))? {
        return Ok(());
    }
    Err(Error::RunDirectory {
        path: dir.path().to_owned(),
        reason: format!(
            "it is on no tmpfs, and a GPU maps no page of another file system, so that tenants here can have \
             {without}; leave PARTITA_RUN_DIR unset or put it below /dev/shm"
        ),
    })
}

/// Makes the gate between the tenants of a user on a GPU, if it is missing. On the host only that
/// user can write to it: a writer could end every process that has it mapped. `is_prepared`: for a
/// tenant whose containers may have any users.
pub(super) fn make_gate(gpu: &Dir, user: u32, is_prepared: bool) -> Result<(), Error> {
    check_memory(gpu, "no priority and no share of time")?;
    let path = gpu.path().join(TURNS);
    let failed = || Error::io(path.display().to_string());
    let turns = match gpu.make_new(TURNS) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => gpu.sub_of_owner(TURNS),
        made => made,
    }
    .map_err(failed())?;
    let made = match GateMap::create(gpu.at(GATE_FILE_NAME), 0o600) {
        Err(error) if *error.problem() == Problem::Exists => GateMap::open(gpu.at(GATE_FILE_NAME)),
        made => made,
    };
    made.map(drop).map_err(|error| failed()(io::Error::other(error.to_string())))?;
    if is_prepared {
        turns.set_file_mode(GATE, 0o666).map_err(failed())?;
    }
    if user != own_user() {
        // The directory of that user's tenants, which this one is in, keeps others away.
        turns.set_mode(0o755).and_then(|()| turns.give(GATE, user)).map_err(failed())?;
    }
    Ok(())
}

/// Makes the elastic file of a user's tenants on a GPU, if it is missing. False where GPUs cannot
/// map it: tenants there lend nothing, and borrowers are refused.
pub(super) fn make_elastic(gpu: &Dir, user: u32, is_needed: bool) -> Result<bool, Error> {
    if let Err(error) = check_memory(gpu, "no borrowed TPCs") {
        return if is_needed { Err(error) } else { Ok(false) };
    }
    let made = match ElasticMap::create(gpu.at(ELASTIC_FILE_NAME), 0o600) {
        Err(error) if *error.problem() == Problem::Exists => ElasticMap::open(gpu.at(ELASTIC_FILE_NAME)),
        made => made,
    };
    let path = gpu.path().join(ELASTIC).display().to_string();
    made.map(drop).map_err(|error| Error::io(path.clone())(io::Error::other(error.to_string())))?;
    if user != own_user() {
        gpu.give(ELASTIC, user).map_err(Error::io(path))?;
    }
    Ok(true)
}
