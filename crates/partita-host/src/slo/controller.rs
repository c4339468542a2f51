//! [`Controller`]: looks at the tenants of a GPU, asks the law, and moves TPCs as `partita set`
//! does. Of tenants that take turns it only says how their targets stand.

use std::time::{Duration, Instant};

use partita_core::slo::{Bound, Event, Goal, Law, Order, Room, Seen, Target, Timed, Wanted};
use partita_core::{Share, TpcSet};
use partita_ledger::{Pace, UsageView};

use super::record::Record;
use super::remembered;
use super::silence::Silence;
use crate::error::Error;
use crate::mps::incident::now_unix_ms;
use crate::partition;
use crate::process::ProcessId;
use crate::registry::{ControlTurn, Registry, Tenant};
use crate::site::{self, Site};
use crate::time;

/// How often it looks.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// How often it looks who is there.
const SCAN: Duration = Duration::from_millis(500);
/// A tenant that learns its own time has others wait until it has rested for so long.
const RESTS: Duration = Duration::from_secs(2);
/// How often it writes down how targets stand.
const WRITE: Duration = Duration::from_secs(1);

/// Moves the TPCs of the tenants on a GPU that have a target or a goal.
#[derive(Debug)]
pub struct Controller {
    registry: Registry,
    gpu_key: String,
    /// `None` in system mode, where `partitad` alone controls.
    turn: Option<ControlTurn>,
    law: Law,
    /// For tenants that take turns: none of their TPCs moves.
    law_of_turns: Law,
    /// While one of these works and learns its own time.
    silence: Option<Silence>,
    begun: Instant,
    scanned: Option<Instant>,
    written: Instant,
    room: Room,
    parts: Vec<Part>,
    next_id: u64,
}

/// A tenant that it moves.
#[derive(Debug)]
struct Part {
    id: u64,
    tenant: Tenant,
    run: ProcessId,
    target: Option<Target>,
    wanted: Wanted,
    takes_turns: bool,
    /// By the policy of the site.
    most_tpcs: u32,
    view: UsageView,
    pace: Pace,
    launches: u64,
    /// When it was last seen to work.
    worked: Option<Instant>,
    record: Record,
    is_changed: bool,
}

impl Part {
    fn held(&self) -> u32 {
        self.tenant.set().map_or(0, |set| set.len())
    }

    fn seen(&self) -> Seen<'_> {
        let held_tpcs = self.held();
        Seen {
            id: self.id,
            wanted: self.wanted,
            least_tpcs: self.tenant.promised_tpcs(),
            most_tpcs: if self.takes_turns { held_tpcs } else { self.most_tpcs },
            held_tpcs,
            times: if self.is_of_steps() { &self.pace.steps } else { &self.pace.bursts },
            launches: self.launches,
        }
    }

    fn is_of_steps(&self) -> bool {
        self.target.is_some_and(|target| target.timed == Timed::Steps)
    }

    /// The law's form of the target; a multiple needs its own time.
    fn wanted(&self) -> Wanted {
        match self.target.map(|target| target.bound) {
            None => Wanted::Throughput,
            Some(Bound::Ns(ns)) => Wanted::Within(ns),
            Some(Bound::Alone { permille }) => {
                self.record.alone_ns.map_or(Wanted::OfAlone(permille), |alone_ns| {
                    let ns = u128::from(alone_ns) * u128::from(permille) / 1000;
                    Wanted::Within(u64::try_from(ns).unwrap_or(u64::MAX))
                })
            }
        }
    }
}

impl Controller {
    /// The one of a GPU; `None` if there is nothing to control, or another process does it.
    #[must_use]
    pub fn take(registry: &Registry, gpu_key: &str) -> Option<Self> {
        let turn = match registry.is_system() {
            true => None,
            false => Some(ControlTurn::take(registry, gpu_key)?),
        };
        let now = Instant::now();
        Some(Self {
            registry: registry.clone(),
            gpu_key: gpu_key.to_owned(),
            turn,
            law: Law::new(),
            law_of_turns: Law::new(),
            silence: None,
            begun: now,
            scanned: None,
            written: now,
            room: Room { tpcs: 0, resting: 0 },
            parts: Vec::new(),
            next_id: 0,
        })
    }

    /// Looks once and moves what is to move. False if there is nothing left to control.
    ///
    /// # Errors
    /// [`Error::RunDirectory`], [`Error::DamagedTenant`], [`Error::Io`]: the tenants run on with
    /// the division that they have, and the next look tries again.
    pub fn look(&mut self) -> Result<bool, Error> {
        let now = Instant::now();
        if self.scanned.is_none_or(|scanned| now - scanned >= SCAN) {
            if self.turn.as_ref().is_some_and(|turn| !turn.lasts(&self.registry, &self.gpu_key)) {
                return Ok(false);
            }
            self.scan()?;
            self.scanned = Some(now);
        }
        if self.parts.is_empty() {
            return Ok(false);
        }
        for part in &mut self.parts {
            // A file that cannot be read tells nothing new.
            if let (Ok(pace), Ok(launches)) = (part.view.pace(), part.view.launches()) {
                let count = |pace: &Pace| (pace.bursts.count(), pace.steps.count());
                if count(&pace) != count(&part.pace) || launches != part.launches {
                    part.worked = Some(now);
                }
                (part.pace, part.launches) = (pace, launches);
            }
        }
        let now_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let (in_turns, others): (Vec<&Part>, Vec<&Part>) =
            self.parts.iter().partition(|part| part.takes_turns);
        // Each has all TPCs, as if they were its own: there is nothing to give.
        let tpcs = in_turns.iter().map(|part| part.held()).fold(0, u32::saturating_add);
        let in_turns: Vec<Seen<'_>> = in_turns.into_iter().map(Part::seen).collect();
        let events = self.law_of_turns.look(now_ns, Room { tpcs, resting: 0 }, &in_turns).events;
        let others: Vec<Seen<'_>> = others.into_iter().map(Part::seen).collect();
        let look = self.law.look(now_ns, self.room, &others);
        for (id, event) in events.into_iter().chain(look.events) {
            self.note(id, event);
        }
        self.keep_silence(now);
        let made = if look.orders.is_empty() { Ok(()) } else { self.apply(&look.orders) };
        self.write(now);
        made.map(|()| true)
    }

    /// Has tenants of low priority wait while one that takes turns works and learns its own time.
    fn keep_silence(&mut self, now: Instant) {
        let works = |part: &Part| part.worked.is_some_and(|worked| now - worked < RESTS);
        let mut parts = self.parts.iter();
        let learns = parts.any(|part| works(part) && self.law_of_turns.is_learning(part.id));
        match (learns, &self.silence) {
            (true, None) => self.silence = Silence::begin(&self.registry, &self.gpu_key),
            (false, Some(_)) => self.silence = None,
            _ => {}
        }
    }

    /// Reads the tenants, and how many TPCs there are to divide.
    fn scan(&mut self) -> Result<(), Error> {
        let tenants = self.registry.lock()?.tenants()?;
        self.take_over(&tenants);
        Ok(())
    }

    fn take_over(&mut self, tenants: &[Tenant]) {
        let most_tpcs = most_of_policy(tenants);
        let here: Vec<Tenant> =
            tenants.iter().filter(|tenant| tenant.gpu_key == self.gpu_key).cloned().collect();
        let is_mine =
            |tenant: &Tenant| tenant.is_controlled() && tenant.is_kept_here() && tenant.limits.is_ok();
        let counts = here.iter().filter(|tenant| tenant.counts() && tenant.rests().is_none());
        let firm = counts
            .filter(|tenant| !is_mine(tenant) || !tenant.is_steered())
            .filter_map(|tenant| tenant.set().ok());
        let firm = firm.fold(TpcSet::EMPTY, |all, set| all | set);
        let all = here
            .iter()
            .find_map(|tenant| tenant.limits().ok()?.topology().ok())
            .map(|topology| topology.all());
        self.room = Room {
            tpcs: all.map_or(0, |all| (all - firm).len()),
            resting: here.iter().filter(|tenant| tenant.rests().is_some()).count() as u32,
        };
        let mut before = std::mem::take(&mut self.parts);
        for tenant in here.into_iter().filter(is_mine) {
            let Ok(meta) = tenant.meta() else { continue };
            let takes_turns = time::takes_turns(&tenant);
            let most_tpcs = most_tpcs(&tenant);
            let (run, target, slo) = (meta.run, meta.target(), meta.slo.clone());
            debug_assert!(target.is_some() || meta.goal == Goal::Throughput);
            let known = before.iter().position(|part| part.run == run && part.tenant.is_of_same(&tenant));
            let mut part = match known.map(|at| before.swap_remove(at)) {
                Some(part) => Part { tenant, takes_turns, most_tpcs, ..part },
                None => {
                    let Ok(view) = tenant.usage() else { continue };
                    let record = Record::of(&tenant);
                    self.next_id += 1;
                    let (pace, launches) = (view.pace().unwrap_or_default(), view.launches().unwrap_or(0));
                    let wanted = Wanted::Throughput;
                    let id = self.next_id;
                    let is_changed = true;
                    Part {
                        id,
                        tenant,
                        run,
                        target: None,
                        wanted,
                        takes_turns,
                        most_tpcs,
                        view,
                        pace,
                        launches,
                        worked: None,
                        record,
                        is_changed,
                    }
                }
            };
            let is_new = part.record.slo != slo;
            if is_new || part.target != target || known.is_none() {
                let was_of_steps = part.is_of_steps();
                part.target = target;
                if part.is_of_steps() != was_of_steps {
                    // What the law has seen of bursts says nothing of steps, so it starts again.
                    self.next_id += 1;
                    part.id = self.next_id;
                }
                if is_new {
                    let is_of_steps =
                        |slo: &Option<String>| slo.as_ref().is_some_and(|slo| slo.starts_with("step-"));
                    if is_of_steps(&part.record.slo) != is_of_steps(&slo) {
                        part.record.alone_ns = None;
                    }
                    (part.record.slo, part.record.target) = (slo, None);
                }
                if matches!(target.map(|target| target.bound), Some(Bound::Alone { .. })) {
                    let key = remembered::key(&part.tenant, part.is_of_steps());
                    part.record.alone_ns = part.record.alone_ns.or_else(|| remembered::recall(&key));
                }
                part.wanted = part.wanted();
                part.is_changed = true;
            }
            self.parts.push(part);
        }
    }

    /// Writes an event down.
    fn note(&mut self, id: u64, event: Event) {
        let has_neighbours = self.parts.len() > 1;
        let Some(part) = self.parts.iter_mut().find(|part| part.id == id) else { return };
        let mut why = event.to_string();
        match event {
            Event::Learnt { alone_ns } => {
                part.record.alone_ns = Some(alone_ns);
                let key = remembered::key(&part.tenant, part.is_of_steps());
                why.push_str(&match remembered::remember(&key, alone_ns) {
                    Some(file) => format!("; remembered for this command in {}", file.display()),
                    None => "; for this run only, as there is no directory of state that can be written"
                        .to_owned(),
                });
                if part.takes_turns && self.silence.is_none() {
                    why.push_str("; others worked meanwhile, as the gate had no lane left");
                }
            }
            Event::Unmet { best_ns, .. } => {
                let loose = best_ns.map(|ns| partita_core::slo::Time(ns + ns / 8));
                let slo = loose.map_or_else(
                    || "none".to_owned(),
                    |loose| {
                        let step = if part.is_of_steps() { "step-" } else { "" };
                        format!("{step}p99={loose}")
                    },
                );
                let others = if part.takes_turns { "end" } else { "end or shrink" };
                why.push_str(&format!(
                    "; loosen it with `partita set {} --slo {slo}`, or {others} another tenant",
                    part.tenant.name
                ));
                // Alone it cannot be met in turns either.
                if let Some(slo) = part.record.slo.as_ref().filter(|_| has_neighbours) {
                    let key = remembered::key(&part.tenant, part.is_of_steps());
                    // Without a directory of state the next run has masks again.
                    let _ = remembered::remember_missed(&key, slo, part.takes_turns);
                }
            }
            _ => {}
        }
        let held = part.held();
        part.record.add(now_unix_ms(), event.name(), held, held, why);
        part.is_changed = true;
    }

    /// Gives tenants the TPCs of the orders: first to fewer, then to more.
    fn apply(&mut self, orders: &[Order]) -> Result<(), Error> {
        let registry = self.registry.clone();
        let lock = registry.lock_to_plan()?;
        self.take_over(&lock.tenants()?);
        let (fewer, more): (Vec<&Order>, Vec<&Order>) =
            orders.iter().partition(|order| order.tpcs < order.from_tpcs);
        for order in fewer.into_iter().chain(more) {
            let Some(part) = self.parts.iter().find(|part| part.id == order.id) else { continue };
            // A command has changed it, or its guarantee, since the look.
            if part.held() != order.from_tpcs || order.tpcs < part.tenant.promised_tpcs() {
                continue;
            }
            let tenants = lock.tenants()?;
            if order.tpcs > order.from_tpcs && order.tpcs > most_of_policy(&tenants)(&part.tenant) {
                continue;
            }
            match partition::resize(&part.tenant, &tenants, Share::Tpcs(order.tpcs)) {
                Ok(()) => {}
                // A new tenant has taken them since the look; the next look sees it.
                Err(Error::Plan { .. }) => continue,
                Err(error) => return Err(error),
            }
            let Some(part) = self.parts.iter_mut().find(|part| part.id == order.id) else { continue };
            let Order { from_tpcs, tpcs, reason, .. } = *order;
            part.record.add(now_unix_ms(), reason.name(), from_tpcs, tpcs, reason.to_string());
            part.is_changed = true;
        }
        partition::divide(&lock)?;
        self.take_over(&lock.tenants()?);
        Ok(())
    }

    fn write(&mut self, now: Instant) {
        let is_due = now - self.written >= WRITE;
        for part in self.parts.iter_mut().filter(|part| part.is_changed || is_due) {
            let law = if part.takes_turns { &self.law_of_turns } else { &self.law };
            if let Some(standing) = law.standing(part.id) {
                part.record.stand(&standing, part.target.is_some());
            }
            // The tenant may have ended; else the next look writes it.
            part.is_changed = part.record.write(&part.tenant).is_err() && part.tenant.alive;
        }
        if is_due {
            self.written = now;
        }
    }
}

/// The most TPCs that the policy of the site lets a tenant hold among these. Where the policy
/// cannot be read, no tenant gets more than it has.
fn most_of_policy<'a>(tenants: &'a [Tenant]) -> impl Fn(&Tenant) -> u32 + use<'a> {
    let rules = site::present_rules();
    move |tenant| {
        let held = tenant.set().map_or(0, |set| set.len());
        let (Ok(rules), Ok(limits), Ok(meta)) = (&rules, tenant.limits(), tenant.meta()) else { return held };
        let Ok(topology) = limits.topology() else { return held };
        rules.most_tpcs(&Site {
            topology: &topology,
            gpu: &meta.gpu,
            gpu_key: &tenant.gpu_key,
            memory_bytes: limits.memory_total_bytes,
            driver_bytes: limits.driver_allowance_bytes,
            tenants,
            changed: Some(tenant),
        })
    }
}
