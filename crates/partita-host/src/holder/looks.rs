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
use crate::mps::vacancy::{self, Vacancy};
use crate::registry::{Registry, Tenant};

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

/// A look that goes on.
struct Look {
    began: Instant,
    /// A process of the tenant lived when it began.
    is_beside: bool,
    thread: JoinHandle<Vacancy>,
}

/// What a look has found, and when it began.
pub(super) struct Found {
    began: Instant,
    is_beside: bool,
    vacancy: Vacancy,
}

/// The looks of one holder.
#[derive(Default)]
pub(super) struct Looks {
    present: Option<Look>,
    /// The last one that ended, and when it began.
    last: Option<(Instant, Vacancy)>,
    /// Whether one that has not begun is to begin.
    wanted: Arc<AtomicBool>,
    first: Option<Instant>,
    next: Option<Instant>,
    unanswered: u32,
    /// When a process of the tenant last said that it uses the GPU.
    joined: Option<Instant>,
}

impl Looks {
    /// What the last look found that began after this moment.
    pub fn since(&self, since: Instant) -> Option<&Vacancy> {
        self.last.as_ref().filter(|(began, _)| *began >= since).map(|(_, found)| found)
    }

    /// A process of the tenant has said that it uses the GPU.
    pub fn joined(&mut self) {
        self.joined = Some(Instant::now());
    }

    /// The result of a look that has ended. A process says that it uses the GPU before its first
    /// launch, so what it has said must be read between this call and [`Self::note`].
    pub fn ended(&mut self) -> Option<Found> {
        let Look { began, is_beside, thread } = self.present.take_if(|look| look.thread.is_finished())?;
        let vacancy = thread.join().unwrap_or(Vacancy::Unanswered);
        Some(Found { began, is_beside, vacancy })
    }

    /// Notes what a look has found. What it found taken beside a living process of the tenant may
    /// be taken by that one, and tells nothing of the dead.
    pub fn note(&mut self, Found { began, is_beside, vacancy }: Found) {
        let first = *self.first.get_or_insert(began);
        self.next = Some(Instant::now() + (first.elapsed() / PAUSE_PART).clamp(PAUSE, PAUSE_MAX));
        if vacancy == Vacancy::Taken && (is_beside || self.joined.is_some_and(|joined| joined >= began)) {
            return;
        }
        self.unanswered = if vacancy == Vacancy::Unanswered { self.unanswered + 1 } else { 0 };
        let vacancy = if self.unanswered >= UNANSWERED_MAX { Vacancy::Untold } else { vacancy };
        self.last = Some((began, vacancy));
    }

    /// From now on none begins, until it is asked for again.
    pub fn cancel(&self) {
        self.wanted.store(false, Ordering::Relaxed);
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
    /// `is_beside` says whether a process of the tenant lives.
    pub fn begin(&mut self, install: &Install, service: &Service, parts: &[Tenant], is_beside: bool) {
        if self.present.is_some() || self.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let began = Instant::now();
        self.wanted.store(true, Ordering::Relaxed);
        let (install, service, wanted) = (install.clone(), service.clone(), Arc::clone(&self.wanted));
        let places: Result<Vec<Place>, Error> = parts.iter().map(place).collect();
        let thread = std::thread::spawn(move || {
            let found = places.and_then(|places| look_at(&install, &service, &places, &wanted));
            found.unwrap_or(Vacancy::Unanswered)
        });
        self.present = Some(Look { began, is_beside, thread });
    }
}

fn place(part: &Tenant) -> Result<Place, Error> {
    let gpu = part.meta()?.gpu.selector();
    Ok(Place { gpu, key: part.gpu_key.clone(), name: part.name.clone(), set: part.set()? })
}

/// Free if all places are. Compute units that another tenant has, too, do not tell.
fn look_at(
    install: &Install,
    service: &Service,
    places: &[Place],
    wanted: &AtomicBool,
) -> Result<Vacancy, Error> {
    let registry = Registry::open()?;
    for Place { gpu, key, name, set } in places {
        let has_some = |other: &Tenant| {
            let is_beside = other.gpu_key == *key && other.name != *name;
            is_beside && other.set().is_ok_and(|other| !(other & *set).is_empty())
        };
        if registry.lock()?.tenants()?.iter().any(has_some) {
            return Ok(Vacancy::Untold);
        }
        let gpu = gpu::select(install, Some(gpu))?.gpu;
        match vacancy::look(install, &gpu, service, set, || wanted.load(Ordering::Relaxed))? {
            Vacancy::Free => {}
            found => return Ok(found),
        }
    }
    Ok(Vacancy::Free)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(began: Instant, is_beside: bool, vacancy: Vacancy) -> Found {
        Found { began, is_beside, vacancy }
    }

    #[test]
    fn a_look_beside_a_living_process_tells_only_that_the_compute_units_are_free() {
        let (mut looks, died) = (Looks::default(), Instant::now());
        looks.note(found(died, false, Vacancy::Taken));
        assert_eq!(looks.since(died), Some(&Vacancy::Taken));
        // The next one is not of the dead alone.
        looks.joined();
        let (next_died, next_began) = (Instant::now(), Instant::now());
        looks.note(found(next_began, true, Vacancy::Taken));
        assert_eq!(looks.since(died), Some(&Vacancy::Taken));
        assert_eq!(looks.since(next_died), None);
        looks.note(found(Instant::now(), true, Vacancy::Free));
        assert_eq!(looks.since(died), Some(&Vacancy::Free));
        assert_eq!(looks.since(next_died), Some(&Vacancy::Free));
    }

    #[test]
    fn a_process_that_begins_during_a_look_may_have_what_it_finds_taken() {
        let (mut looks, died) = (Looks::default(), Instant::now());
        looks.joined();
        looks.note(found(died, false, Vacancy::Taken));
        assert_eq!(looks.since(died), None);
        // It is over before the next look begins.
        looks.note(found(Instant::now() + Duration::from_millis(1), false, Vacancy::Taken));
        assert_eq!(looks.since(died), Some(&Vacancy::Taken));
    }

    #[test]
    fn looks_without_an_answer_end_in_a_row_of_five() {
        let (mut looks, died) = (Looks::default(), Instant::now());
        for _ in 1..UNANSWERED_MAX {
            looks.note(found(died, false, Vacancy::Unanswered));
            assert_eq!(looks.since(died), Some(&Vacancy::Unanswered));
        }
        looks.note(found(died, false, Vacancy::Unanswered));
        assert_eq!(looks.since(died), Some(&Vacancy::Untold));
    }
}
