//! [`Law`]: who holds how many TPCs of a GPU, look by look.
//!
//! # Its rules
//! * **A guarantee holds always.** No tenant gets fewer TPCs, whatever others count. Without one it
//!   has two TPCs at least, as long as there are many.
//! * **A violated target grows at once**: half of the way to all that there is if few bursts are
//!   late, to twice its TPCs if many are, and to all that there is if it is violated badly, or
//!   again within a second, or as its load has risen steeply. With looks every 100 ms, ten times
//!   the load is answered in 0.5 s. It takes what is free and what tenants for throughput have
//!   beyond their guarantee, never what another target holds.
//! * **A target that holds is tried on fewer TPCs**, with confidence (a sequential test) before and
//!   after. A trial that hurts is undone at once, one that stays open after some bursts, too.
//! * **A trial is judged on the TPCs that others have by then.** They still run what they launched
//!   before, until the end of a burst of theirs. Up to then a trial ends only if one burst in five
//!   is late.
//! * **Trials halve what is unknown.** After one has failed, the next one is half of the way to
//!   where it did, so that six find the fewest TPCs.
//! * **No flapping.** Then each trial that fails, and each one that is kept and is followed by a
//!   violation within a minute, doubles the time to the next one, up to two minutes.
//! * **A tenant at rest gives its TPCs away** if it worked for so long before that the bursts which
//!   come before the law gives them back are a quarter of those that may be late.
//! * **Right-sizing.** A tenant for throughput, or one whose target cannot be met, is tried on
//!   fewer TPCs, and keeps the fewer if its mean time stays within 2 %.
//! * **Counts may lie.** A tenant that counts wrongly moves its own TPCs only, within what is
//!   beyond the guarantees of others. A histogram that falls counts nothing. Time that runs back
//!   does not pass, and a jump ahead is a second at most, and no rest.

use alloc::vec::Vec;

use super::one::{Around, One};
use super::said::Reason;
use super::seen::{Look, Order, Room, Seen, Standing, Wanted};

/// The most that a look lets pass, in seconds.
const LOOK_S_MAX: f64 = 1.0;
/// What a tenant gets at least, whatever its guarantee, if that leaves half of the GPU: one on a
/// single TPC holds up its neighbours. Beside it 14 of 1,000 decode steps take 0.3 to 1 ms more,
/// and fewer than 10 beside the same program on two (H200, `docs/hardware.md`).
const LEAST_TPCS: u32 = 2;

/// Divides the TPCs of one GPU.
#[derive(Debug, Clone, Default)]
pub struct Law {
    last_ns: Option<u64>,
    time_s: f64,
    ones: Vec<One>,
    pressed: bool,
}

impl Law {
    /// A law without tenants.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a look at `now_ns`, by any clock in nanoseconds, and says what is to change. The
    /// caller makes the changes before the next look, and reports what tenants hold then.
    pub fn look(&mut self, now_ns: u64, room: Room, seen: &[Seen<'_>]) -> Look {
        let passed_s =
            self.last_ns.map_or(0.0, |last| now_ns.saturating_sub(last) as f64 / 1e9).min(LOOK_S_MAX);
        self.last_ns = Some(now_ns);
        self.time_s += passed_s;
        self.ones.retain(|one| seen.iter().any(|seen| seen.id == one.id && seen.wanted == one.wanted));
        let mut order = Vec::new();
        for seen in seen {
            let at = self.ones.iter().position(|one| one.id == seen.id).unwrap_or_else(|| {
                self.ones.push(One::new(seen, self.time_s));
                self.ones.len() - 1
            });
            if !order.contains(&at) {
                order.push(at);
            }
        }
        let seen: Vec<&Seen<'_>> =
            order.iter().filter_map(|at| seen.iter().find(|seen| seen.id == self.ones[*at].id)).collect();
        let raised = |one: &Seen<'_>| one.least_tpcs.max(LEAST_TPCS.min(one.most_tpcs));
        let all_raised = seen.iter().fold(room.resting, |all, one| all.saturating_add(raised(one)));
        let raised: Vec<Seen<'_>> = match all_raised <= room.tpcs / 2 {
            true => seen.iter().map(|one| Seen { least_tpcs: raised(one), ..**one }).collect(),
            false => seen.iter().map(|one| **one).collect(),
        };
        let seen: Vec<&Seen<'_>> = raised.iter().collect();
        let mut look = Look::default();
        let least: u32 = seen.iter().fold(room.resting, |all, one| all.saturating_add(one.least_tpcs));
        for (at, seen) in order.iter().zip(&seen) {
            self.ones[*at].count(seen, passed_s, self.time_s);
        }
        let bursts: Vec<(u64, u64)> = seen.iter().map(|seen| (seen.id, seen.times.count())).collect();
        for at in &order {
            self.ones[*at].see_others(&bursts, self.time_s);
        }
        if least > room.tpcs {
            // The guarantees do not fit: that is not the law's to mend.
            return look;
        }
        let floor = |at: usize, seen: &Seen<'_>| match self.ones[at].wanted {
            Wanted::Throughput => seen.least_tpcs,
            _ => seen.held_tpcs.max(seen.least_tpcs),
        };
        let floors: Vec<u32> = order.iter().zip(&seen).map(|(at, seen)| floor(*at, seen)).collect();
        let all_floors = floors.iter().fold(room.resting, |all, floor| all.saturating_add(*floor));
        // A violated target takes what it needs from those for throughput anyway.
        let uses_more = |one: &One, giver: &One| match (one.wanted, giver.wanted) {
            (Wanted::Throughput, _) => one.cap > one.tpcs,
            (_, Wanted::Throughput) => false,
            _ => one.evidence.is_alarm(),
        };
        let gains = order.iter().map(|giver| {
            let mut others = order.iter().filter(|other| *other != giver);
            room.resting > 0 || others.any(|other| uses_more(&self.ones[*other], &self.ones[*giver]))
        });
        let gains: Vec<bool> = gains.collect();
        let mut wants = Vec::new();
        for (i, (at, seen)) in order.iter().zip(&seen).enumerate() {
            let most = room.tpcs.saturating_sub(all_floors - floors[i]);
            let around = Around {
                most: most.min(seen.most_tpcs).max(seen.least_tpcs),
                gain: gains[i],
                pressed: self.pressed,
                time_s: self.time_s,
                passed_s,
            };
            let one = &mut self.ones[*at];
            let wanted = match one.wanted {
                Wanted::Throughput => one.size(seen, &around, &mut look.events),
                _ => one.target(seen, &around, &mut look.events),
            };
            wants.push(wanted);
        }
        self.divide(room, &order, &seen, &wants, &mut look);
        look
    }

    /// Whether a tenant learns its own time now, for which it should be alone.
    #[must_use]
    pub fn is_learning(&self, id: u64) -> bool {
        self.ones.iter().any(|one| one.id == id && one.is_learning())
    }

    /// How a tenant stands; `None` for one that was not in the last look.
    #[must_use]
    pub fn standing(&self, id: u64) -> Option<Standing> {
        self.ones.iter().find(|one| one.id == id).map(|one| one.standing(self.time_s))
    }

    /// From what each target wants to what each tenant gets.
    fn divide(
        &mut self,
        room: Room,
        order: &[usize],
        seen: &[&Seen<'_>],
        wants: &[(Option<u32>, Option<Reason>)],
        look: &mut Look,
    ) {
        let mut gets: Vec<u32> = seen.iter().map(|one| one.least_tpcs).collect();
        let mut left = room.tpcs - gets.iter().fold(room.resting, |all, one| all + one);
        let is_target = |i: usize| self.ones[order[i]].wanted != Wanted::Throughput;
        // What targets hold and still want stays theirs.
        for i in (0..seen.len()).filter(|i| is_target(*i)) {
            let wanted = wants[i].0.unwrap_or(seen[i].held_tpcs).min(seen[i].held_tpcs);
            let more = wanted.saturating_sub(gets[i]).min(left);
            gets[i] += more;
            left -= more;
        }
        // Those that grow take turns.
        let mut is_short = false;
        loop {
            let mut is_any = false;
            for i in (0..seen.len()).filter(|i| is_target(*i)) {
                if wants[i].0.is_some_and(|wanted| wanted > gets[i]) {
                    is_short |= left == 0;
                    if left > 0 {
                        gets[i] += 1;
                        left -= 1;
                        is_any = true;
                    }
                }
            }
            if !is_any {
                break;
            }
        }
        let waits = |i: usize| {
            let one = &self.ones[order[i]];
            is_target(i) && !one.unmet && one.evidence.is_alarm()
        };
        let pressed = is_short || (left == 0 && (0..seen.len()).any(waits));
        // The rest: to whom has least, one at a time.
        let mut resting = alloc::vec![1u32; room.resting as usize];
        while left > 0 {
            let cap = |i: usize| self.ones[order[i]].cap.min(seen[i].most_tpcs);
            let open = (0..seen.len()).filter(|i| !is_target(*i) && gets[*i] < cap(*i));
            let open = open.min_by_key(|i| (gets[*i], core::cmp::Reverse(seen[*i].held_tpcs)));
            let least = resting.iter_mut().min();
            match (open, least) {
                (Some(i), Some(rest)) if gets[i] > *rest => *rest += 1,
                (Some(i), _) => gets[i] += 1,
                (None, Some(rest)) => *rest += 1,
                (None, None) => break,
            }
            left -= 1;
        }
        self.pressed = pressed;
        let changed = (0..seen.len()).filter(|i| gets[*i] != seen[*i].held_tpcs);
        let changed: Vec<(u64, u64)> = changed.map(|i| (seen[i].id, seen[i].times.count())).collect();
        for (i, seen) in seen.iter().enumerate() {
            let one = &mut self.ones[order[i]];
            if gets[i] == seen.held_tpcs {
                continue;
            }
            let other = if gets[i] < seen.held_tpcs { Reason::GaveWay } else { Reason::Left };
            look.orders.push(Order {
                id: seen.id,
                from_tpcs: seen.held_tpcs,
                tpcs: gets[i],
                reason: wants[i].1.unwrap_or(other),
            });
            one.enter(gets[i], self.time_s);
            let is_back = matches!(wants[i].1, Some(Reason::Hurt { .. } | Reason::Open { .. }));
            one.wait_for_others(&changed, is_back, self.time_s);
        }
    }
}
