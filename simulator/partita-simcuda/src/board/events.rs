//! Events: slots in the shared table, their holders and their waiters.

use std::sync::atomic::Ordering;

use partita_abi::CuResult;
use partita_sim::WorkId;

use crate::shared::page::{BoardPage, EVENTS_MAX};

/// One event.
#[derive(Debug)]
struct Event {
    references: u32,
    secret: u64,
    /// The last recording that reached the board and the work that completes it.
    last: Option<(u64, WorkId)>,
    /// Works that wait for a recording and have reached the head of their stream.
    waiters: Vec<(u64, WorkId)>,
}

/// All events of the board.
#[derive(Debug)]
pub struct Events {
    slots: Vec<Option<Event>>,
    free: Vec<u32>,
    secrets: u64,
}

impl Events {
    /// No events.
    pub fn new(instance: u64) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), secrets: instance | 1 }
    }

    /// Makes an event that was never recorded: slot and secret.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the table is full.
    pub fn create(&mut self, page: &BoardPage) -> Result<(u32, u64), CuResult> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < EVENTS_MAX => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
            None => return Err(CuResult::OUT_OF_MEMORY),
        };
        // See `PhysMemory::allocate` for the purpose of such secrets.
        self.secrets =
            self.secrets.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if let Some(shared) = page.event(slot) {
            // Counts continue from event to event in a slot, so that a late recording of the
            // previous event has no effect on this one.
            shared.completed.store(shared.recorded.load(Ordering::Acquire), Ordering::Release);
        }
        let event = Event { references: 1, secret: self.secrets, last: None, waiters: Vec::new() };
        self.slots[slot as usize] = Some(event);
        Ok((slot, self.secrets))
    }

    fn get(&mut self, slot: u32) -> Option<&mut Event> {
        self.slots.get_mut(slot as usize).and_then(Option::as_mut)
    }

    /// Adds a holder.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if slot and secret do not match.
    pub fn open(&mut self, slot: u32, secret: u64) -> Result<(), CuResult> {
        let event = self.get(slot).filter(|event| event.secret == secret).ok_or(CuResult::INVALID_HANDLE)?;
        event.references += 1;
        Ok(())
    }

    /// Drops a holder. Returns the works that waited for an event that is now destroyed.
    pub fn release(&mut self, slot: u32) -> Vec<WorkId> {
        let Some(event) = self.get(slot) else { return Vec::new() };
        event.references -= 1;
        if event.references > 0 {
            return Vec::new();
        }
        let waiters = std::mem::take(&mut event.waiters);
        self.slots[slot as usize] = None;
        self.free.push(slot);
        waiters.into_iter().map(|(_, work)| work).collect()
    }

    /// Notes which work completes a recording.
    pub fn will_record(&mut self, slot: u32, count: u64, work: WorkId) {
        if let Some(event) = self.get(slot) {
            event.last = Some((count, work));
        }
    }

    /// The work that completes exactly this recording, if it is known.
    pub fn recorder(&mut self, slot: u32, count: u64) -> Option<WorkId> {
        self.get(slot)?.last.filter(|(last, _)| *last == count).map(|(_, work)| work)
    }

    /// Completes a recording at a virtual time. Returns the works that can continue.
    pub fn record(&mut self, page: &BoardPage, slot: u32, count: u64, time_ns: u64) -> Vec<WorkId> {
        let Some(event) = self.get(slot) else { return Vec::new() };
        if let Some(shared) = page.event(slot)
            && shared.completed.load(Ordering::Relaxed) < count
        {
            shared.time_ns.store(time_ns, Ordering::Relaxed);
            shared.completed.store(count, Ordering::Release);
        }
        let (done, left) = event.waiters.iter().partition(|(wanted, _)| *wanted <= count);
        event.waiters = left;
        let done: Vec<(u64, WorkId)> = done;
        done.into_iter().map(|(_, work)| work).collect()
    }

    /// Whether a recording is complete; if not, `work` is stored until it is. A destroyed event
    /// never blocks.
    pub fn reached(&mut self, page: &BoardPage, slot: u32, count: u64, work: WorkId) -> bool {
        let complete = page.event(slot).is_none_or(|s| s.completed.load(Ordering::Acquire) >= count);
        match self.get(slot) {
            Some(event) if !complete => {
                event.waiters.push((count, work));
                false
            }
            _ => true,
        }
    }
}
