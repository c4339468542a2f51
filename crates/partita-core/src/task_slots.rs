//! Shares of a GPU's task slots.
//!
//! A GPU runs a fixed number of kernels at once, for all clients of an MPS service together (128 on
//! an H100 and an H200). Masks do not change that: a kernel that finds no free slot waits until any
//! other kernel ends, even if its own TPCs are idle. So tenants get shares of the slots
//! ([`shares`]), and the processes of a tenant divide its share ([`of_process`]).
//!
//! A process holds its part with [`Queues`]: as many queues as it has slots. Each launch goes to
//! the end of a queue and starts when the launch before it in that queue has ended. So no more
//! launches run than there are queues.

use alloc::vec::Vec;

/// Kernels that each process may have in flight without being counted. The least part of a process,
/// so the parts of all clients of a service (60 at most) fit into the slots of every GPU that has
/// 128.
pub const UNCOUNTED: u32 = 2;
/// Slots that no tenant gets: for kernels that the hook does not count, such as those that the
/// driver launches to fill memory.
pub const RESERVE: u32 = 8;
/// The most queues of a process. More slots than that are no limit.
pub const QUEUES_MAX: u32 = 256;

/// The share of each tenant of a GPU with so many task slots, in proportion to the weights. None
/// where no tenant has a neighbour.
///
/// The shares add up to the slots without [`RESERVE`] at most, as long as there are enough for
/// [`UNCOUNTED`] each.
#[must_use]
pub fn shares(slots: u32, weights: &[u32]) -> Option<Vec<u32>> {
    let tenants = u32::try_from(weights.len()).unwrap_or(u32::MAX);
    if tenants < 2 {
        return None;
    }
    let spare = slots.saturating_sub(RESERVE).saturating_sub(UNCOUNTED.saturating_mul(tenants));
    let all: u64 = weights.iter().map(|&weight| u64::from(weight)).sum::<u64>().max(1);
    // At most `spare`, which is a u32.
    let part = |weight: &u32| (u64::from(spare) * u64::from(*weight) / all) as u32;
    Some(weights.iter().map(|weight| UNCOUNTED + part(weight)).collect())
}

/// The part of one of so many processes in the share of their tenant.
#[must_use]
pub fn of_process(share: u32, processes: u32) -> u32 {
    (share / processes.max(1)).max(UNCOUNTED)
}

/// A launch: the number of its stream, and how many launches the stream had with it. The count
/// wraps around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// The stream's number.
    pub stream: u32,
    /// How many launches the stream had, this one included.
    pub count: u32,
}

/// The place of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// The queue.
    pub queue: usize,
    /// The launch that must end first; none if nothing in the queue is in flight, or only launches
    /// of the same stream.
    pub behind: Option<Launch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// Nothing was launched in the queue.
    Nothing,
    /// Uncounted launches of this stream: they may be in flight at any time.
    Uncounted(u32),
    /// A thread is making a launch of this stream. No other launch can wait for it yet.
    Starting(u32),
    /// This launch.
    Launch(Launch),
}

/// The queues of a process.
#[derive(Debug)]
pub struct Queues {
    last: Vec<Last>,
    /// Where the next search begins: the queue that was entered the longest time ago.
    next: usize,
    uncounted: u32,
    counts: bool,
}

impl Default for Queues {
    fn default() -> Self {
        Self::new()
    }
}

impl Queues {
    /// No queue has a launch.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: Vec::new(), next: 0, uncounted: 0, counts: false }
    }

    /// Whether a launch that runs `width` kernels at once may skip the queues. It may while all
    /// streams that skip them fill no more than half of the `limit`. After the first refusal every
    /// launch is counted until [`Queues::reset_if_idle`] succeeds.
    pub fn is_free(&mut self, stream: u32, width: u32, limit: u32) -> bool {
        if self.counts {
            return false;
        }
        let has = self.last.iter().filter(|last| **last == Last::Uncounted(stream)).count() as u32;
        let more = width.saturating_sub(has);
        if self.uncounted.saturating_add(more) > limit.min(QUEUES_MAX) / 2 {
            self.counts = true;
            return false;
        }
        self.uncounted += more;
        self.last.extend((0..more).map(|_| Last::Uncounted(stream)));
        true
    }

    /// Whether launches are counted.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Puts a launch of a stream at the end of one of the first `limit` queues. No other launch
    /// gets that queue until [`Queues::launched`]. `own` is the queue of the stream's last launch.
    ///
    /// Prefers the stream's own queue, then one with nothing in flight, then the one that was
    /// entered the longest time ago. If the limit became smaller and only queues of uncounted
    /// streams are left, adds a queue. Returns `None` if a launch is being made in each queue.
    pub fn enter(
        &mut self,
        stream: u32,
        own: Option<usize>,
        limit: u32,
        has_ended: impl Fn(Launch) -> bool,
    ) -> Option<Entered> {
        self.counts = true;
        let limit = limit.clamp(1, QUEUES_MAX) as usize;
        if self.last.len() < limit {
            self.last.resize(limit, Last::Nothing);
        }
        if let Some(queue) = own.filter(|&queue| queue < limit && self.is_of(queue, stream)) {
            return Some(self.take(queue, stream, None));
        }
        let order = || (0..limit).map(|step| (self.next + step) % limit);
        let is_idle = |queue: &usize| match self.last[*queue] {
            Last::Nothing => true,
            Last::Launch(last) => has_ended(last),
            Last::Uncounted(of) => of == stream,
            Last::Starting(_) => false,
        };
        if let Some(queue) = order().find(is_idle) {
            return Some(self.take(queue, stream, None));
        }
        let waitable = |queue: usize| match self.last[queue] {
            Last::Launch(last) => Some((queue, last)),
            _ => None,
        };
        let found = order().chain(limit..self.last.len()).find_map(waitable);
        let Some((queue, last)) = found else {
            if self.last[..limit].iter().any(|last| matches!(last, Last::Starting(_))) {
                return None;
            }
            self.last.push(Last::Nothing);
            return Some(self.take(self.last.len() - 1, stream, None));
        };
        self.next = (queue + 1) % limit;
        Some(self.take(queue, stream, Some(last).filter(|last| last.stream != stream)))
    }

    fn is_of(&self, queue: usize, stream: u32) -> bool {
        match self.last.get(queue) {
            Some(Last::Uncounted(of)) => *of == stream,
            Some(Last::Launch(last)) => last.stream == stream,
            _ => false,
        }
    }

    fn take(&mut self, queue: usize, stream: u32, behind: Option<Launch>) -> Entered {
        if let Last::Uncounted(_) = self.last[queue] {
            self.uncounted -= 1;
        }
        self.last[queue] = Last::Starting(stream);
        Entered { queue, behind }
    }

    /// A launch was made in a queue that it had entered.
    pub fn launched(&mut self, queue: usize, launch: Launch) {
        if let Some(last) = self.last.get_mut(queue) {
            *last = Last::Launch(launch);
        }
    }

    /// Whether uncounted launches of a stream may be in flight.
    #[must_use]
    pub fn is_uncounted(&self, stream: u32) -> bool {
        self.last.contains(&Last::Uncounted(stream))
    }

    /// The uncounted launches of a stream end with this one.
    pub fn count(&mut self, launch: Launch) {
        for last in self.last.iter_mut().filter(|last| **last == Last::Uncounted(launch.stream)) {
            *last = Last::Launch(launch);
            self.uncounted -= 1;
        }
    }

    /// Empties the queues if every counted launch has ended, and returns whether it did. The caller
    /// knows that the uncounted ones have ended.
    pub fn reset_if_idle(&mut self, has_ended: impl Fn(Launch) -> bool) -> bool {
        let is_over = |last: &Last| match last {
            Last::Nothing | Last::Uncounted(_) => true,
            Last::Starting(_) => false,
            Last::Launch(launch) => has_ended(*launch),
        };
        let is_idle = self.last.iter().all(is_over);
        if is_idle {
            // The vector keeps its memory.
            self.last.clear();
            self.next = 0;
            self.uncounted = 0;
            self.counts = false;
        }
        is_idle
    }
}

/// A bound on how many kernels of a graph run at once: the paths, of nodes that each wait for the
/// one before, that it takes to hold every kernel. None if the edges are no graph's.
///
/// `kernels` says how many kernels each node runs at once, and an edge leads from a node to one
/// that waits for it.
#[must_use]
pub fn width(kernels: &[u32], edges: &[(usize, usize)]) -> Option<u32> {
    let mut before = alloc::vec![Vec::new(); kernels.len()];
    let mut behind = alloc::vec![Vec::new(); kernels.len()];
    for &(from, to) in edges {
        before.get_mut(to)?.push(from);
        behind.get_mut(from)?.push(to);
    }
    let mut missing: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut left: Vec<usize> = behind.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..kernels.len()).filter(|&node| missing[node] == 0).collect();
    // Paths that end at a node and that a later node may extend.
    let mut ends = alloc::vec![0u32; kernels.len()];
    let (mut paths, mut seen) = (0u32, 0);
    while let Some(node) = ready.pop() {
        seen += 1;
        for &from in &before[node] {
            left[from] -= 1;
            // The last that may have them gets the rest.
            let wanted =
                if left[from] == 0 { u32::MAX } else { kernels[node].max(1).saturating_sub(ends[node]) };
            let taken = wanted.min(ends[from]);
            ends[from] -= taken;
            ends[node] += taken;
        }
        let more = kernels[node].saturating_sub(ends[node]);
        paths = paths.saturating_add(more);
        ends[node] += more;
        for &to in &behind[node] {
            missing[to] -= 1;
            if missing[to] == 0 {
                ready.push(to);
            }
        }
    }
    (seen == kernels.len()).then_some(paths)
}

#[cfg(test)]
mod tests;
