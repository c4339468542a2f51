//! Contexts of MPS with some SMs each: the paper's method.

use std::collections::HashMap;

use partita_core::TpcSet;
use partita_driver::{AffinityContext, Gpu, StreamRef};

use super::{Steer, refused, sms_per_tpc};
use crate::error::Error;

/// Contexts that a component makes at most; each holds device memory.
const CONTEXTS_MAX: usize = 32;

/// A pool of contexts of MPS, each made at the first use of its size and cached for the life of the
/// process.
///
/// It uses only the size of a suggestion: MPS chooses the SMs. Work has to use
/// [`Component::stream`](crate::Component::stream), which changes with each suggestion, and belongs
/// to another context than the primary one: load kernels as `CUkernel`s, which belong to no
/// context. An event is recorded only in its own context, so each frame that is passed on costs one
/// event and one wait more than with the other methods.
#[derive(Default)]
pub struct AffinityContexts<'g> {
    contexts: HashMap<u32, &'g AffinityContext<'g, 'g>>,
    current: Option<&'g AffinityContext<'g, 'g>>,
}

impl<'g> AffinityContexts<'g> {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The context for work; `None` before the first suggestion.
    #[must_use]
    pub fn current(&self) -> Option<&'g AffinityContext<'g, 'g>> {
        self.current
    }
}

impl<'g> Steer<'g> for AffinityContexts<'g> {
    fn apply(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<(), Error> {
        let sms = set.len() * sms_per_tpc(gpu);
        if sms == 0 {
            return Err(refused("an empty set; suggest at least one TPC"));
        }
        if !self.contexts.contains_key(&sms) {
            if self.contexts.len() >= CONTEXTS_MAX {
                return Err(refused(format!(
                    "all {CONTEXTS_MAX} contexts of this component have other sizes"
                )));
            }
            // A component is a process, whose streams are in use to its end.
            let context: &'g _ = Box::leak(Box::new(AffinityContext::create(gpu, sms).map_err(refused)?));
            self.contexts.insert(sms, context);
        }
        self.current = self.contexts.get(&sms).copied();
        Ok(())
    }

    fn stream(&self) -> Option<StreamRef<'g>> {
        self.current.map(AffinityContext::stream)
    }

    fn join(&self, stream: StreamRef<'_>) -> Result<bool, Error> {
        let Some(current) = self.current else { return Ok(false) };
        current.join(stream).map_err(Error::driver("the order of two contexts"))?;
        Ok(true)
    }

    fn name(&self) -> &'static str {
        "contexts of MPS"
    }

    fn code(&self) -> u64 {
        3
    }
}
