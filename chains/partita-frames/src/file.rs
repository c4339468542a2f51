//! The chain file for processes of its user: its maker, its supervisor, observers.

use core::ffi::CStr;
use core::time::Duration;

use crate::error::ChainError;
use crate::fault::ChainFault;
use crate::flow::Line;
use crate::flow::{Flow, Recovered};
use crate::layout::{Edge, FRAMES_MAX, KIND, Layout, ROLES_MAX, RoleCells, SUGGESTING_OFFSET, role_range};
use crate::plan::ChainPlan;
use crate::state::Place;
use crate::wait::wake;
use partita_ledger::shared::{Access, MappedFile, is_locked, sleep, try_lock, unlink, unlock};
use partita_ledger::{LedgerError, Owner, Problem};

/// How long a writer of a suggestion waits for another one, which takes microseconds.
const LOCK_WAIT_MS_MAX: u32 = 2000;

/// A chain's file, mapped.
#[derive(Debug)]
pub struct ChainFile {
    file: MappedFile,
    plan: ChainPlan,
}

impl ChainFile {
    /// Creates the file, of mode 0600, with frames that have no memory yet.
    ///
    /// # Errors
    /// [`ChainError::Refused`] for an impossible plan, [`Problem::Exists`], or the failed system
    /// call; the file is then removed.
    pub fn create(path: &CStr, plan: &ChainPlan) -> Result<Self, ChainError> {
        let fault = |fault| ChainError::refused(path, ChainFault::Plan(fault));
        plan.check().map_err(fault)?;
        let file = MappedFile::create(KIND, path.into(), 0o600)?;
        let chain = Self { file, plan: plan.clone() };
        plan.write(&chain.layout().plan);
        chain.layout().header.finish(KIND);
        Ok(chain)
    }

    /// Maps an existing file.
    ///
    /// # Errors
    /// The file's problem, or the failed system call.
    pub fn open(path: &CStr) -> Result<Self, ChainError> {
        let file = MappedFile::open(KIND, path.into())?;
        // SAFETY: as in `layout`.
        let layout: &Layout = unsafe { file.as_ref() };
        let plan = ChainPlan::read(&layout.plan);
        let plan = plan.map_err(|fault| ChainError::refused(path, ChainFault::Plan(fault)))?;
        Ok(Self { file, plan })
    }

    /// Removes the file. Processes that have it mapped keep it.
    pub fn remove(self) {
        unlink(self.file.place.at());
    }

    pub(crate) fn layout(&self) -> &Layout {
        // SAFETY: the mapping has the size of the file, which is that of the layout; the layout
        // consists of words; the mapping is writable.
        unsafe { self.file.as_ref() }
    }

    /// The file's path at `open`.
    pub fn path(&self) -> &CStr {
        self.file.path()
    }

    pub fn plan(&self) -> &ChainPlan {
        &self.plan
    }

    /// How many roles the chain has.
    pub fn roles(&self) -> u8 {
        self.plan.roles.len() as u8
    }

    pub(crate) fn refuse(&self, fault: ChainFault) -> ChainError {
        ChainError::refused(self.file.path(), fault)
    }

    pub(crate) fn wrong(&self, problem: Problem) -> ChainError {
        LedgerError::new(self.file.path(), problem).into()
    }

    pub(crate) fn flow(&self) -> Flow<'_, Line, Edge, FRAMES_MAX> {
        let edges = self.layout().edges.get(..self.plan.roles.len() - 1).unwrap_or_default();
        Flow::new(&self.layout().leases, edges)
    }

    pub(crate) fn role_cells(&self, role: u8) -> &RoleCells {
        &self.layout().roles[usize::from(role) % ROLES_MAX]
    }

    fn known(&self, role: u8) -> Result<(), ChainError> {
        let roles = self.plan.roles.len();
        if usize::from(role) < roles {
            return Ok(());
        }
        Err(self.refuse(ChainFault::NoRole { role, roles }))
    }

    /// How often a process attached to the role.
    pub fn incarnation(&self, role: u8) -> u64 {
        // Truncated to the bits beside a role in one word.
        self.role_cells(role).incarnation.load() & (u64::MAX >> 8)
    }

    /// Whether a living process has the role.
    ///
    /// # Errors
    /// [`Problem::Replaced`], or the failed system call.
    pub fn is_held(&self, role: u8) -> Result<bool, ChainError> {
        let (start, bytes) = role_range(role);
        // Open the file again: this description's own lock would not be visible.
        let fd = self.file.reopened(Access::ReadOnly)?;
        Ok(is_locked(self.file.path(), &fd, start, bytes)?)
    }

    /// Takes a role's lock on this file's description. It changes nothing of the role before
    /// [`RoleClaim::take`].
    ///
    /// # Errors
    /// [`ChainError::Refused`] if there is no such role or a living process has it; or the failed
    /// system call.
    pub fn claim(self, role: u8) -> Result<RoleClaim, ChainError> {
        self.known(role)?;
        let (start, bytes) = role_range(role);
        if !self.file.try_lock(start, bytes)? {
            let pid = self.role_cells(role).pid.load();
            return Err(self.refuse(ChainFault::RoleHeld { role, pid }));
        }
        Ok(RoleClaim { chain: self, role })
    }

    /// Frees what the dead owner of a role held; `None` if a living one has it. The memory is not
    /// used again before `rests_until_ns` by the monotonic clock: the GPU may still work on it when
    /// the process is gone.
    ///
    /// # Errors
    /// As [`ChainFile::claim`]; [`Problem::Replaced`].
    pub fn recover(&self, role: u8, rests_until_ns: u64) -> Result<Option<Recovered>, ChainError> {
        self.known(role)?;
        let (start, bytes) = role_range(role);
        let fd = self.file.reopened(Access::ReadWrite)?;
        if !try_lock(self.file.path(), &fd, start, bytes)? {
            return Ok(None);
        }
        let recovered = self.recover_locked(role, rests_until_ns);
        unlock(self.file.path(), &fd, start, bytes)?;
        Ok(Some(recovered))
    }

    /// As the owner of the role's lock.
    pub(crate) fn recover_locked(&self, role: u8, rests_until_ns: u64) -> Recovered {
        let recovered = self.flow().recover(role, |lease| {
            self.frame_cells(lease).rests_until_ns.store(rests_until_ns);
            if self.is_backed(lease) { Place::Free } else { Place::Vacant }
        });
        let cells = self.role_cells(role);
        cells.sleeping.store(0);
        let add = |cell: &crate::sync::Word, n: u32| {
            if n > 0 {
                cell.store(cell.load().wrapping_add(n.into()));
            }
        };
        add(&cells.counters.dropped_of_dead, recovered.dropped + recovered.stranded);
        add(&cells.counters.completed_of_dead, recovered.completed);
        // The dead process may have ended before it woke others after its last change.
        self.note_freed();
        self.wake_all();
        recovered
    }

    pub(crate) fn note_freed(&self) {
        let common = &self.layout().common;
        common.freed.0.count();
        wake(&common.freed.0, &self.role_cells(0).sleeping);
    }

    fn wake_all(&self) {
        wake(&self.layout().common.freed.0, &self.role_cells(0).sleeping);
        for (role, edge) in (0..).zip(&self.layout().edges[..self.plan.roles.len() - 1]) {
            wake(&edge.0.head.0, &self.role_cells(role).sleeping);
            wake(&edge.0.tail.0, &self.role_cells(role + 1).sleeping);
        }
    }

    /// Stops the chain: no frame starts any more, frames on their way are passed on, and a process
    /// that waits for one that will not come gets an answer.
    pub fn stop(&self) {
        self.layout().common.stopping.0.store(1);
        self.wake_all();
    }

    /// Takes [`ChainFile::stop`] back.
    pub fn resume(&self) {
        self.layout().common.stopping.0.store(0);
    }

    /// Whether the chain is stopped.
    pub fn is_stopping(&self) -> bool {
        self.layout().common.stopping.0.load() != 0
    }

    /// Suggests a set of TPCs to a role, one bit each, logical numbering; it applies from the
    /// role's next frame on. Returns the suggestion's epoch. `&mut`, because two threads with one
    /// description would not exclude each other.
    ///
    /// # Errors
    /// [`ChainError::Refused`] if there is no such role; [`Problem::Locked`] if another process
    /// writes suggestions for longer than that can take.
    pub fn suggest(&mut self, role: u8, set: &[u64; 4]) -> Result<u64, ChainError> {
        self.known(role)?;
        let mut waited_ms = 0;
        while !self.file.try_lock(SUGGESTING_OFFSET, 1)? {
            if waited_ms >= LOCK_WAIT_MS_MAX {
                return Err(self.wrong(Problem::Locked { waited_ms }));
            }
            sleep(Duration::from_millis(1));
            waited_ms += 1;
        }
        let epoch = self.role_cells(role).suggestion.write(set);
        self.file.unlock(SUGGESTING_OFFSET, 1)?;
        Ok(epoch)
    }

    /// The last suggestion to a role, with its epoch; `None` before the first.
    pub fn suggestion(&self, role: u8) -> Option<(u64, [u64; 4])> {
        self.role_cells(role).suggestion.read().filter(|(epoch, _)| *epoch > 0)
    }
}

/// A role's lock, before its former owner has been examined.
#[derive(Debug)]
pub struct RoleClaim {
    pub(crate) chain: ChainFile,
    pub(crate) role: u8,
}

impl RoleClaim {
    /// The last owner of the role. Its process may still be about to end: the kernel releases its
    /// locks early.
    pub fn former(&self) -> Option<Owner> {
        let cells = self.chain.role_cells(self.role);
        let pid = i32::try_from(cells.pid.load()).ok().filter(|pid| *pid > 0)?;
        Some(Owner { pid, start_ticks: cells.start_ticks.load() })
    }
}
