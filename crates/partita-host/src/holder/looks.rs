//! The holder's looks at the compute units of the dead, on a thread: each takes about a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use partita_core::TpcSet;
use partita_mps::Service;

use crate::error::Error;
use crate::gpu::{self, Selector};
use crate::install::Install;
use crate::mps::canary::Waiting;
use crate::mps::vacancy::{self, Vacancy};
use crate::process::ProcessId;
use crate::registry::{Registry, Tenant};
use crate::system;

/// The pause after a look: at least this, and this part of the time since the first one.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_PART: u32 = 4;
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// So many looks without an answer in a row, and the compute units do not tell.
const UNANSWERED_MAX: u32 = 5;

/// Compute units of one GPU.
struct Place {
    gpu: Selector,
    key: String,
    name: String,
    set: TpcSet,
}

/// The tenant's living processes, and how many launches and copies each had begun, when all of them
/// had ended.
pub(super) type Rest = Vec<((u64, u64), u64)>;

/// A look that goes on.
struct Look {
    began: Instant,
    /// None if a living process of the tenant worked when it began.
    rest: Option<Rest>,
    thread: JoinHandle<(Vacancy, Option<Late>)>,
}

/// A look whose blocks wait: this process's, or root's in system mode.
pub(super) enum Late {
    Own(Waiting),
    Roots(ProcessId),
}

impl Late {
    fn is_waiting(&mut self) -> bool {
        match self {
            Self::Own(look) => look.is_waiting(),
            Self::Roots(process) => process.lives(),
        }
    }
}

/// What a look has found, and when it began.
pub(super) struct Found {
    began: Instant,
    rest: Option<Rest>,
    vacancy: Vacancy,
    late: Option<Late>,
}

/// The looks of one holder.
#[derive(Default)]
pub(super) struct Looks {
    present: Option<Look>,
    /// One whose blocks have not run yet. No other begins meanwhile.
    late: Option<Late>,
    /// The last one that told something, and when it began.
    last: Option<(Instant, Vacancy)>,
    /// Whether one that has not begun is to begin.
    wanted: Arc<AtomicBool>,
    first: Option<Instant>,
    next: Option<Instant>,
    unanswered: u32,
}

impl Looks {
    /// What the last look found that began after this moment.
    pub fn since(&self, since: Instant) -> Option<&Vacancy> {
        self.last.as_ref().filter(|(began, _)| *began >= since).map(|(_, found)| found)
    }

    /// The result of a look that has ended. A process says that it uses the GPU before its first
    /// launch, so what it has said must be read between this call and [`Self::note`].
    pub fn ended(&mut self) -> Option<Found> {
        let Look { began, rest, thread } = self.present.take_if(|look| look.thread.is_finished())?;
        let (vacancy, late) = thread.join().unwrap_or((Vacancy::Unanswered, None));
        Some(Found { began, rest, vacancy, late })
    }

    /// Notes what a look has found. What it found taken may be taken by a living process of the
    /// tenant, and tells nothing of the dead, unless those have rested all the time. `rest` is what
    /// they have begun by now.
    pub fn note(&mut self, found: Found, rest: Option<Rest>) {
        let Found { began, rest: before, vacancy, late } = found;
        self.late = late;
        let first = *self.first.get_or_insert(began);
        self.next = Some(Instant::now() + (first.elapsed() / PAUSE_PART).clamp(PAUSE, PAUSE_MAX));
        let is_told = vacancy != Vacancy::Taken || (before.is_some() && before == rest);
        if !is_told && matches!(self.last, Some((_, Vacancy::Taken))) {
            return;
        }
        let vacancy = if is_told { vacancy } else { Vacancy::Unanswered };
        self.unanswered = if vacancy == Vacancy::Unanswered { self.unanswered + 1 } else { 0 };
        let vacancy = if self.unanswered >= UNANSWERED_MAX { Vacancy::Untold } else { vacancy };
        self.last = Some((began, vacancy));
    }

    /// None of the dead are held: from now on no look begins, until it is asked for again, for
    /// others.
    pub fn cancel(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
        (self.last, self.first, self.next, self.unanswered) = (None, None, None, 0);
    }

    /// Waits for the one that goes on. A client that dies while its server starts can make the
    /// control daemon hang (seen twice on an H100, driver 580.159.04).
    pub fn finish(&mut self) {
        self.cancel();
        if let Some(look) = self.present.take() {
            let _ = look.thread.join();
        }
    }

    /// Begins a look at the tenant's compute units, unless one goes on or ended just now.
    pub fn begin(
        &mut self,
        install: &Install,
        registry: &Registry,
        service: &Service,
        parts: &[Tenant],
        rest: Option<Rest>,
    ) {
        let is_early = self.next.is_some_and(|next| Instant::now() < next);
        if self.present.is_some() || is_early || self.late.as_mut().is_some_and(Late::is_waiting) {
            return;
        }
        self.late = None;
        let began = Instant::now();
        self.wanted.store(true, Ordering::Relaxed);
        let wanted = Arc::clone(&self.wanted);
        let (install, registry, service) = (install.clone(), registry.clone(), service.clone());
        let name = parts.first().map(|part| part.name.clone()).unwrap_or_default();
        let places = places(parts);
        let thread = std::thread::spawn(move || {
            let found = match registry.is_client() {
                true => system::look(&registry, &name).map(|(found, late)| (found, late.map(Late::Roots))),
                false => places.and_then(|places| {
                    let is_wanted = || wanted.load(Ordering::Relaxed);
                    let (found, late) = look_at(&install, &registry, &service, &places, is_wanted)?;
                    Ok((found, late.map(Late::Own)))
                }),
            };
            found.unwrap_or((Vacancy::Unanswered, None))
        });
        self.present = Some(Look { began, rest, thread });
    }
}

/// Looks at the compute units of a tenant of the acting user, as root.
///
/// # Errors
/// Those of [`vacancy::look`].
pub(crate) fn look_for(
    install: &Install,
    registry: &Registry,
    service: &Service,
    parts: &[Tenant],
) -> Result<(Vacancy, Option<Waiting>), Error> {
    look_at(install, registry, service, &places(parts)?, || true)
}

fn places(parts: &[Tenant]) -> Result<Vec<Place>, Error> {
    let place = |part: &Tenant| {
        let gpu = part.meta()?.gpu.selector();
        Ok(Place { gpu, key: part.gpu_key.clone(), name: part.name.clone(), set: part.set()? })
    };
    parts.iter().map(place).collect()
}

/// Free if all places are. Compute units that another tenant has, too, do not tell.
fn look_at(
    install: &Install,
    registry: &Registry,
    service: &Service,
    places: &[Place],
    is_wanted: impl Fn() -> bool,
) -> Result<(Vacancy, Option<Waiting>), Error> {
    for Place { gpu, key, name, set } in places {
        let has_some = |other: &Tenant| {
            let is_beside = other.gpu_key == *key && other.name != *name;
            is_beside && other.set().is_ok_and(|other| !(other & *set).is_empty())
        };
        if registry.lock()?.tenants()?.iter().any(has_some) {
            return Ok((Vacancy::Untold, None));
        }
        let gpu = gpu::select(install, Some(gpu))?.gpu;
        match vacancy::look(install, &gpu, service, set, &is_wanted)? {
            (Vacancy::Free, _) => {}
            found => return Ok(found),
        }
    }
    Ok((Vacancy::Free, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(began: Instant, rest: Option<Rest>, vacancy: Vacancy) -> Found {
        Found { began, rest, vacancy, late: None }
    }

    /// A living process that has begun so much.
    fn one(begun: u64) -> Option<Rest> {
        Some(vec![((7, 1), begun)])
    }

    #[test]
    fn a_look_beside_a_process_that_works_tells_only_that_the_compute_units_are_free() {
        let (mut looks, died) = (Looks::default(), Instant::now());
        for (before, after) in [(None, None), (None, one(3)), (one(3), None), (one(3), one(4))] {
            looks.note(found(died, before, Vacancy::Taken), after);
            assert_eq!(looks.since(died), Some(&Vacancy::Unanswered));
        }
        looks.note(found(Instant::now(), None, Vacancy::Free), None);
        assert_eq!(looks.since(died), Some(&Vacancy::Free));
    }

    #[test]
    fn beside_processes_that_rest_a_look_tells_of_the_dead_and_that_stands_until_one_finds_them_free() {
        for rest in [Some(Vec::new()), one(3)] {
            let (mut looks, died) = (Looks::default(), Instant::now());
            looks.note(found(died, rest.clone(), Vacancy::Taken), rest);
            assert_eq!(looks.since(died), Some(&Vacancy::Taken));
            for _ in 0..2 * UNANSWERED_MAX {
                looks.note(found(Instant::now(), None, Vacancy::Taken), None);
                assert_eq!(looks.since(died), Some(&Vacancy::Taken));
            }
            // Those who die later are others.
            let next_died = Instant::now();
            assert_eq!(looks.since(next_died), None);
            looks.note(found(Instant::now(), None, Vacancy::Free), None);
            assert_eq!(looks.since(died), Some(&Vacancy::Free));
            assert_eq!(looks.since(next_died), Some(&Vacancy::Free));
        }
    }

    #[test]
    fn a_process_that_begins_during_a_look_may_have_what_it_finds_taken() {
        let (mut looks, died) = (Looks::default(), Instant::now());
        looks.note(found(died, Some(Vec::new()), Vacancy::Taken), one(0));
        assert_eq!(looks.since(died), Some(&Vacancy::Unanswered));
        // It rests when the next look begins and ends.
        looks.note(found(Instant::now() + Duration::from_millis(1), one(0), Vacancy::Taken), one(0));
        assert_eq!(looks.since(died), Some(&Vacancy::Taken));
    }

    #[test]
    fn looks_without_an_answer_end_in_a_row_of_five() {
        let (mut looks, died) = (Looks::default(), Instant::now());
        for _ in 1..UNANSWERED_MAX {
            looks.note(found(died, None, Vacancy::Unanswered), None);
            assert_eq!(looks.since(died), Some(&Vacancy::Unanswered));
        }
        looks.note(found(died, None, Vacancy::Unanswered), None);
        assert_eq!(looks.since(died), Some(&Vacancy::Untold));
    }
}
