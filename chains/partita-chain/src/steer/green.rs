//! Green contexts: the driver's own method, with prepared sizes, each with its stream.

use std::collections::HashMap;

use partita_core::TpcSet;
use partita_driver::green::{Green, GreenContext};
use partita_driver::{Error as DriverError, Gpu, StreamRef};

use super::{Steer, refused, sms_per_tpc};
use crate::error::Error;

/// Contexts that a component makes at most; each holds device memory.
const CONTEXTS_MAX: usize = 64;

/// A pool of green contexts, each made at its first use and cached for the life of the process.
///
/// They have the sizes that the driver supports: for a suggestion between two of them it uses the
/// largest inside it, or without one the smallest around it. Work has to use
/// [`Component::stream`](crate::Component::stream), which changes with each suggestion.
#[derive(Default)]
pub struct GreenContexts<'g> {
    green: Option<Green<'g, 'g>>,
    contexts: HashMap<TpcSet, &'g GreenContext<'g, 'g>>,
    current: Option<&'g GreenContext<'g, 'g>>,
}

impl<'g> GreenContexts<'g> {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The context for work; `None` before the first suggestion.
    #[must_use]
    pub fn current(&self) -> Option<&'g GreenContext<'g, 'g>> {
        self.current
    }

    fn context(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<&'g GreenContext<'g, 'g>, DriverError> {
        if let Some(context) = self.contexts.get(set) {
            return Ok(context);
        }
        if self.contexts.len() >= CONTEXTS_MAX {
            return Err(DriverError::Refused(format!(
                "all {CONTEXTS_MAX} green contexts of this component are of other sizes; use masks"
            )));
        }
        let green = match &mut self.green {
            Some(green) => green,
            none => none.insert(Green::survey(gpu, sms_per_tpc(gpu))?),
        };
        // A component is a process, whose streams are in use to its end.
        let context: &'g _ = Box::leak(Box::new(green.context(set)?));
        self.contexts.insert(*set, context);
        Ok(context)
    }
}

impl<'g> Steer<'g> for GreenContexts<'g> {
    fn apply(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<(), Error> {
        let context = match self.context(gpu, set) {
            Err(DriverError::NotOffered { inside, around, .. }) => {
                let offered = if inside.is_empty() { around } else { inside };
                self.context(gpu, &offered)
            }
            other => other,
        };
        self.current = Some(context.map_err(refused)?);
        Ok(())
    }

    fn stream(&self) -> Option<StreamRef<'g>> {
        self.current.map(GreenContext::stream)
    }

    fn name(&self) -> &'static str {
        "green contexts"
    }

    fn code(&self) -> u64 {
        2
    }
}
