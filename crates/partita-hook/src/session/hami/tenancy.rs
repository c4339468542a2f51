//! A tenant that was not made beforehand: its first process makes it, the others find it.
//!
//! It is in `partita` beside the file that `CUDA_DEVICE_MEMORY_SHARED_CACHE` names, or in
//! `PARTITA_RUN_DIR`, in the form of the registry of the `partita` command. That file itself
//! belongs to HAMi-core and is neither read nor written.
//!
//! A tenant appears by one rename, under the directory's lock, which the kernel releases if the
//! holder dies. A tenant without a living process keeps its TPCs until another needs them, or until
//! its next process requests other limits.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use partita_core::hami::Asked;
use partita_core::kept::fnv1a;
use partita_core::{Present, TpcSet};
use partita_ledger::{
    At, FLAG_GATED, FLAG_TIMED, GATE_FILE_NAME, GateMap, LIMITS_FILE_NAME, Limits, LimitsFile,
    MECHANISM_MASK, NAME_BYTES_MAX, Problem, TIME_FILE_NAME, TimeMap, USAGE_FILE_NAME, UsageMap, UsageView,
};

use crate::session::claim::{Claim, Part};
use crate::session::hami::directory::{Lock, Open, Path};
use crate::session::hami::limits::{Board, Made, Wanted};
use crate::session::hami::meta;
use crate::sys::report;

/// How often a tenant that goes while a process enters it is looked for again.
const TRIES_MAX: u32 = 16;

/// Where a tenant is, on all of its GPUs.
pub struct Tenancy {
    root: Path,
    name: String,
    /// Tells tenants apart.
    hash: u64,
}

impl Tenancy {
    /// The tenant that an environment names.
    ///
    /// # Errors
    /// If it names none.
    pub fn of(asked: &Asked) -> Result<Self, String> {
        let cache = asked.cache();
        let shown = || format!("CUDA_DEVICE_MEMORY_SHARED_CACHE={:?}", String::from_utf8_lossy(cache));
        let Some(at) = cache.iter().rposition(|&byte| byte == b'/').filter(|_| cache.starts_with(b"/"))
        else {
            return Err(format!(
                "{}: must be an absolute path, which names one tenant for all processes",
                shown()
            ));
        };
        let (directory, file) = (if at == 0 { b"/".as_slice() } else { &cache[..at] }, &cache[at + 1..]);
        if file.is_empty() {
            return Err(format!("{}: must be the path of a file", shown()));
        }
        let directory = Path::new(directory);
        let identity =
            directory.directory().map_err(|reason| format!("{}: {reason}; make the directory", shown()))?;
        let (device, inode) = (identity.device.to_le_bytes(), identity.inode.to_le_bytes());
        let hash = fnv1a(&[device.as_slice(), &inode, file].concat());
        let root = match &asked.run_dir {
            Some(root) if root.starts_with(b"/") => Path::new(root),
            Some(_) => return Err("PARTITA_RUN_DIR must be an absolute path".to_string()),
            None => directory.join(b"partita"),
        };
        Ok(Self { root, name: tenant_name(file, hash), hash })
    }

    fn of_gpu(&self, gpu: &str) -> Path {
        self.root.join(gpu.as_bytes())
    }

    /// The tenant's directories that are there, one for each GPU.
    pub fn directories(&self) -> Vec<Path> {
        let is_device = |name: &Vec<u8>| name.starts_with(b"GPU-") || name.starts_with(b"MIG-");
        let of_gpus = self.root.names().into_iter().filter(is_device);
        of_gpus
            .map(|gpu| self.root.join(&gpu).join(self.name.as_bytes()))
            .filter(|directory| directory.identity().is_some())
            .collect()
    }

    /// Adds this process to the tenant on a GPU, whose number among the container's is `number`.
    ///
    /// # Errors
    /// Why it cannot be added, and the remedy.
    pub fn enter(&self, asked: &Asked, board: &Board, number: usize, index: u8) -> Result<Claim, String> {
        let wanted = Wanted::of(asked, number, board);
        let of_gpu = self.of_gpu(&board.name);
        let directory = of_gpu.join(self.name.as_bytes());
        let mut is_new = false;
        for _ in 0..TRIES_MAX {
            let Some(before) = directory.identity() else {
                self.make(&of_gpu, &directory, asked, &wanted, board)?;
                is_new = true;
                continue;
            };
            // Of an earlier tenant whose limits it takes over.
            let is_first = asked.log_level >= 3 && !is_new && !is_alive(&directory);
            if !directory.is_trusted() && directory.identity() == Some(before) {
                return Err(format!(
                    "{}: belongs to another user, whose limits cannot apply to your program; name \
                     another cache, or a directory of your own with PARTITA_RUN_DIR",
                    directory.as_c().to_string_lossy()
                ));
            }
            // Whatever fails because the tenant went meanwhile is tried again.
            let is_there = || directory.identity() == Some(before);
            let entered = Part::open(directory.as_c().into()).and_then(|part| {
                if part.limits.gpu_uuid != board.uuid {
                    return Err(format!("{}: is of another GPU", directory.as_c().to_string_lossy()));
                }
                if !wanted.is_in(&part.limits) && !is_alive(&directory) {
                    return Ok(None);
                }
                part.claim(index).map(Some)
            });
            match entered {
                Ok(Some(claim)) if is_there() && claim.gpu.slot.map().reap().is_ok() => {
                    match claim.gpu.limits_now() {
                        _ if asked.log_level < 3 => {}
                        Some(limits) if wanted.is_in(&limits) => {
                            if is_first {
                                report::line(format_args!("{}: {}", board.name, wanted.shown(&limits)));
                            }
                        }
                        _ => report::line(format_args!(
                            "{}: this process is held by the limits that its tenant has, not by those that it was started with",
                            board.name
                        )),
                    }
                    return Ok(claim);
                }
                Err(reason) if is_there() => return Err(reason),
                Ok(None) => self.end(&of_gpu, &directory)?,
                _ => {}
            }
        }
        Err(format!(
            "{}: is removed again and again; stop the program that removes it",
            directory.as_c().to_string_lossy()
        ))
    }

    /// Makes the tenant on a GPU, unless another process does.
    fn make(
        &self,
        of_gpu: &Path,
        directory: &Path,
        asked: &Asked,
        wanted: &Wanted,
        board: &Board,
    ) -> Result<(), String> {
        self.root.make_shared()?;
        let is_made = || directory.identity().is_some();
        let Some(_lock) = Lock::take(&self.root, is_made)? else { return Ok(()) };
        of_gpu.make_shared()?;
        clear(of_gpu);
        let plan = |present: &[Present]| {
            wanted.limits(asked, board, &self.name, present, self.hash, of_gpu.is_in_memory())
        };
        let mut made = plan(&present(&self.root, &board.uuid))?;
        if made.overlaps {
            // Tenants without a living process lose their TPCs.
            for name in tenants(of_gpu).into_iter().filter(|name| !is_alive(&of_gpu.join(name))) {
                remove(of_gpu, &name);
            }
            made = plan(&present(&self.root, &board.uuid))?;
        }
        let process = format!(".new-{}-{}", self.name, own_pid());
        let fresh = of_gpu.join(process.as_bytes());
        let done = self.fill(&fresh, of_gpu, &made, wanted, board).and_then(|()| fresh.rename(directory));
        if done.is_err()
            && let Some(open) = of_gpu.open()
        {
            open.remove(process.as_bytes());
        }
        done?;
        tell(asked, board, wanted, &made);
        Ok(())
    }

    fn fill(
        &self,
        fresh: &Path,
        of_gpu: &Path,
        made: &Made,
        wanted: &Wanted,
        board: &Board,
    ) -> Result<(), String> {
        let words = |error: partita_ledger::LedgerError| error.to_string();
        // Those with a share of time alone take turns by it.
        if made.limits.flags & (FLAG_GATED | FLAG_TIMED) != 0 {
            let turns = of_gpu.join(b".turns");
            if turns.identity().is_none() {
                turns.make()?;
            }
            match GateMap::create(of_gpu.join(GATE_FILE_NAME.to_bytes()).as_c(), 0o666) {
                Err(error) if *error.problem() != Problem::Exists => return Err(words(error)),
                _ => {}
            }
        }
        fresh.make()?;
        LimitsFile::create(fresh.join(LIMITS_FILE_NAME.to_bytes()).as_c(), &made.limits, 0o644)
            .map_err(words)?;
        // A container's processes may be of several users.
        UsageMap::create(fresh.join(USAGE_FILE_NAME.to_bytes()).as_c(), 0o666).map_err(words)?;
        if made.limits.flags & FLAG_TIMED != 0 {
            TimeMap::create(fresh.join(TIME_FILE_NAME.to_bytes()).as_c(), 0o666).map_err(words)?;
        }
        fresh.join(b"meta.json").write(meta::of(&self.name, &board.name, wanted.percent).as_bytes())
    }

    /// Ends the tenant on a GPU, if no process of it is alive.
    fn end(&self, of_gpu: &Path, directory: &Path) -> Result<(), String> {
        if let Some(_lock) = Lock::take(&self.root, || directory.identity().is_none())?
            && !is_alive(directory)
        {
            remove(of_gpu, self.name.as_bytes());
        }
        Ok(())
    }
}

/// The part of the file's name that a tenant's name can contain, and enough of the hash to be
/// unique.
fn tenant_name(file: &[u8], hash: u64) -> String {
    let stem = file.strip_suffix(b".cache").unwrap_or(file);
    let kept =
        stem.iter().map(|&byte| char::from(byte)).filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c));
    let stem: String = kept.skip_while(|c| !c.is_ascii_alphanumeric()).take(NAME_BYTES_MAX - 9).collect();
    let stem = if stem.is_empty() { "cache" } else { &stem };
    format!("{stem}-{:08x}", hash as u32)
}

fn own_pid() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::getpid() }
}

/// The names in a directory of tenants, or of GPUs, without unfinished ones.
fn tenants(of_gpu: &Path) -> Vec<Vec<u8>> {
    of_gpu.names().into_iter().filter(|name| !name.starts_with(b".")).collect()
}

/// The tenants with a partition of a GPU, whatever its directory is called (that of a simulated one
/// names its simulation). Unreadable ones count as without a partition.
fn present(root: &Path, uuid: &[u8; 16]) -> Vec<Present> {
    let partition = |of_gpu: &Path, name: &[u8]| {
        let (_, limits) = Limits::read(of_gpu.join(name).join(LIMITS_FILE_NAME.to_bytes()).as_c()).ok()?;
        let is_here = limits.mechanism == MECHANISM_MASK && limits.gpu_uuid == *uuid;
        let name = String::from_utf8_lossy(name).into_owned();
        is_here.then(|| Present { name, set: TpcSet::from_words(limits.set) })
    };
    let mut found = Vec::new();
    for of_gpu in tenants(root).into_iter().map(|gpu| root.join(&gpu)) {
        found.extend(tenants(&of_gpu).iter().filter_map(|name| partition(&of_gpu, name)));
    }
    found
}

/// Whether a process of a tenant is alive, or may be: `partita run` has a separate lock, which this
/// does not check.
fn is_alive(directory: &Path) -> bool {
    if directory.join(b"owner").exists() {
        return true;
    }
    has_live_slot(directory.join(USAGE_FILE_NAME.to_bytes()).as_c().into())
}

fn has_live_slot(usage: At<'_>) -> bool {
    UsageView::open(usage).is_ok_and(|view| view.slots().flatten().any(|slot| slot.live))
}

/// Removes a tenant of this user without living processes, under the lock. If a process has entered
/// in the meantime, the tenant is restored; a process that enters later finds that it is gone.
fn remove(of_gpu: &Path, name: &[u8]) {
    let Some(of_gpu) = of_gpu.open().filter(|of_gpu| of_gpu.own(name).is_some()) else { return };
    let dead = [b".dead-", name, format!("-{}", own_pid()).as_bytes()].concat();
    if !of_gpu.rename(name, &dead) {
        return;
    }
    let is_alive = |dead: Open| dead.has(c"owner") || has_live_slot(dead.file(USAGE_FILE_NAME));
    if of_gpu.own(&dead).is_some_and(is_alive) && of_gpu.rename(&dead, name) {
        return;
    }
    of_gpu.remove(&dead);
}

/// Removes what processes of this user left when they died while they made or removed a tenant. The
/// lock excludes others.
fn clear(of_gpu: &Path) {
    let names = of_gpu.names().into_iter();
    let left = names.filter(|name| name.starts_with(b".new-") || name.starts_with(b".dead-"));
    if let Some(open) = of_gpu.open() {
        left.for_each(|name| open.remove(&name));
    }
}

/// Reports once for each tenant the deviations from the request, and its limits for diagnostics.
fn tell(asked: &Asked, board: &Board, wanted: &Wanted, made: &Made) {
    if asked.log_level >= 1 {
        for note in &made.notes {
            report::line(format_args!("{note}"));
        }
        if made.overlaps {
            report::line(format_args!(
                "{}: other tenants' core limits leave no TPCs for it alone; it has at most its share, \
                 and shares some of it",
                board.name
            ));
        }
    }
    if asked.log_level >= 3 {
        report::line(format_args!("{}: {}", board.name, wanted.shown(&made.limits)));
    }
}
