//! Contexts of MPS with some SMs each: the paper's method.

use std::collections::BTreeMap;

use partita_core::TpcSet;
use partita_driver::{AffinityContext, Gpu, StreamRef};

use super::{Steer, refused, sms_per_tpc};
use crate::error::Error;

/// Contexts that a component makes at most; each holds device memory.
const CONTEXTS_MAX: usize = 32;
/// Sizes of a prepared pool.
const LADDER_STEPS: u32 = 8;

/// A pool of contexts of MPS, each made at the first use of its size and cached for the life of the
/// process.
///
/// It uses only the size of a suggestion: MPS chooses the SMs. Work has to use
/// [`Component::stream`](crate::Component::stream), which changes with each suggestion, and belongs
/// to another context than the primary one: load kernels as `CUkernel`s, which belong to no
/// context. An event is recorded only in its own context, so each frame that is passed on costs one
/// event and one wait more than with the other methods.
///
/// [`AffinityContexts::prepared`] makes the contexts before the first frame, as the paper does: a
/// switch then costs no 110 to 143 ms for a new one, and suggestions are rounded to the sizes of
/// the pool.
#[derive(Default)]
pub struct AffinityContexts<'g> {
    contexts: BTreeMap<u32, &'g AffinityContext<'g, 'g>>,
    is_prepared: bool,
    current: Option<&'g AffinityContext<'g, 'g>>,
}

impl<'g> AffinityContexts<'g> {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A pool that makes contexts of eight sizes, in equal steps up to the whole GPU, when the
    /// component attaches, and no others.
    #[must_use]
    pub fn prepared() -> Self {
        Self { is_prepared: true, ..Self::default() }
    }

    /// Makes the context of so many SMs.
    fn make(&mut self, gpu: &'g Gpu<'g>, sms: u32) -> Result<(), Error> {
        // A component is a process, whose streams are in use to its end.
        let context: &'g _ = Box::leak(Box::new(AffinityContext::create(gpu, sms).map_err(refused)?));
        self.contexts.insert(sms, context);
        Ok(())
    }

    /// The context for work; `None` before the first suggestion.
    #[must_use]
    pub fn current(&self) -> Option<&'g AffinityContext<'g, 'g>> {
        self.current
    }
}

/// The sizes of a prepared pool on a GPU of so many SMs, in SMs.
fn ladder(sms: u32, per_tpc: u32) -> impl Iterator<Item = u32> {
    let tpcs = sms / per_tpc.max(1);
    (1..=LADDER_STEPS).map(move |step| (tpcs * step).div_ceil(LADDER_STEPS) * per_tpc)
}

impl<'g> Steer<'g> for AffinityContexts<'g> {
    fn prepare(&mut self, gpu: &'g Gpu<'g>) -> Result<(), Error> {
        if self.is_prepared {
            for sms in ladder(gpu.facts().sms, sms_per_tpc(gpu)) {
                if !self.contexts.contains_key(&sms) {
                    self.make(gpu, sms)?;
                }
            }
        }
        Ok(())
    }

    fn apply(&mut self, gpu: &'g Gpu<'g>, set: &TpcSet) -> Result<(), Error> {
        let sms = set.len() * sms_per_tpc(gpu);
        if sms == 0 {
            return Err(refused("an empty set; suggest at least one TPC"));
        }
        if self.is_prepared {
            // The largest size inside the suggestion, or the smallest.
            let inside = self.contexts.range(..=sms).next_back().or_else(|| self.contexts.iter().next());
            self.current = inside.map(|(_, context)| *context);
            return Ok(());
        }
        if !self.contexts.contains_key(&sms) {
            if self.contexts.len() >= CONTEXTS_MAX {
                return Err(refused(format!(
                    "all {CONTEXTS_MAX} contexts of this component have other sizes"
                )));
            }
            self.make(gpu, sms)?;
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
