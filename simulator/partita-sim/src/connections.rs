//! A process's hardware queues, and their assignment to its streams.
//!
//! A process has 8 on a device, or the number in [`VARIABLE`], from 1 to 32, from compute
//! capability 3.5 on (CUDA C++ Programming Guide, «CUDA environment variables»); before, there was
//! one. Streams get them in turns, in order of creation (assumption: the real assignment is not
//! documented). Two streams on one queue wait for each other unnecessarily: a work leaves the queue
//! only after all earlier works of all its streams.

use core::fmt;

use crate::engine::{Engine, UnknownHandle};
use crate::spec::SchedulerSpec;
use crate::work::{GroupId, QueueId, StreamId};

/// The environment variable with a process's number of hardware queues.
pub const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// One process's hardware queues.
#[derive(Clone, Debug)]
pub struct Connections {
    group: GroupId,
    queues: Vec<QueueId>,
    count: usize,
    /// Streams assigned.
    dealt: usize,
}

/// [`VARIABLE`] has an invalid value for this device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadConnections {
    pub value: String,
    /// The largest valid value.
    pub max: u32,
}

impl fmt::Display for BadConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, max } = self;
        write!(f, "{VARIABLE} is '{value}': hardware queues of a process, give a number from 1 to {max}")
    }
}

impl core::error::Error for BadConnections {}

impl Connections {
    /// The queues of a process of that group. `variable` is the value of [`VARIABLE`], if it is
    /// set.
    ///
    /// # Errors
    /// A value that is not a number from 1 to the device's most.
    pub fn new(
        scheduler: &SchedulerSpec,
        group: GroupId,
        variable: Option<&str>,
    ) -> Result<Self, BadConnections> {
        let max = scheduler.queues_max.max(1);
        let count = match variable {
            None => scheduler.queues_default.clamp(1, max),
            Some(value) => match value.trim().parse() {
                Ok(count) if (1..=max).contains(&count) => count,
                _ => return Err(BadConnections { value: value.to_owned(), max }),
            },
        };
        Ok(Self { group, queues: Vec::new(), count: count as usize, dealt: 0 })
    }

    /// The queues that streams have been given so far.
    #[must_use]
    pub fn queues(&self) -> &[QueueId] {
        &self.queues
    }

    /// Adds a stream, on the next queue in turn.
    ///
    /// # Errors
    /// The group no longer exists.
    pub fn add_stream(&mut self, gpu: &mut Engine, priority: i32) -> Result<StreamId, UnknownHandle> {
        let turn = self.dealt % self.count;
        if turn == self.queues.len() {
            self.queues.push(gpu.add_queue(self.group)?);
        }
        let stream = gpu.add_stream_on(self.queues[turn], priority)?;
        self.dealt += 1;
        Ok(stream)
    }
}
