//! The shared ring: the usual method of a component.

use std::time::Duration;

use partita_frames::monotonic_ns;

use super::{Item, Passed, Transport, Work};
use crate::component::{Component, Outcome, Received};
use crate::error::Error;
use crate::order::Waits;

/// The word of a frame's note with the time of its release.
const LET_GO: usize = 3;

/// A component's usual method. It uses the last word of a frame's note for the time.
pub struct RingTransport<'g> {
    component: Component<'g>,
}

impl<'g> RingTransport<'g> {
    /// For an attached component.
    pub fn new(component: Component<'g>) -> Self {
        Self { component }
    }

    pub fn component(&self) -> &Component<'g> {
        &self.component
    }
}

impl Transport for RingTransport<'_> {
    fn step(&mut self, limit: Duration, work: &mut Work<'_>) -> Result<Option<Passed>, Error> {
        let component = &self.component;
        let Received::Frame(mut frame) = component.receive(Some(limit))? else { return Ok(None) };
        let hand_over_ns =
            (!component.is_first()).then(|| monotonic_ns().saturating_sub(frame.meta()[LET_GO]));
        let passed = Passed { sequence: frame.sequence(), hand_over_ns };
        work(Item { span: frame.span()?, stream: component.stream(), sequence: frame.sequence() })?;
        if component.is_last() {
            component.finish(frame)?;
            return Ok(Some(passed));
        }
        frame.meta_mut()[LET_GO] = monotonic_ns();
        match component.send(frame)? {
            Outcome::Ended => Ok(None),
            _ => Ok(Some(passed)),
        }
    }

    fn waits(&self) -> Option<Waits> {
        Some(self.component.waits())
    }
}
