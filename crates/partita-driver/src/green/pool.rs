//! Prepared green contexts: to create one takes milliseconds, to switch to an existing one takes a
//! lookup.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use partita_core::TpcSet;

use super::{Green, GreenContext};
use crate::error::Error;

/// Contexts created in advance, so that a change of size is a lookup.
pub struct GreenPool<'g, 'a> {
    green: Green<'g, 'a>,
    contexts: RefCell<BTreeMap<TpcSet, Rc<GreenContext<'g, 'a>>>>,
    created: Cell<u32>,
}

impl<'g, 'a> GreenPool<'g, 'a> {
    /// The most contexts in a pool; each uses device memory.
    pub const CONTEXTS_MAX: usize = 64;

    /// An empty pool.
    pub fn new(green: Green<'g, 'a>) -> Self {
        Self { green, contexts: RefCell::new(BTreeMap::new()), created: Cell::new(0) }
    }

    /// The green contexts' splits.
    pub fn green(&self) -> &Green<'g, 'a> {
        &self.green
    }

    /// How many contexts were made so far.
    pub fn created(&self) -> u32 {
        self.created.get()
    }

    /// The context for `set` if it is in the pool.
    pub fn find(&self, set: &TpcSet) -> Option<Rc<GreenContext<'g, 'a>>> {
        self.contexts.borrow().get(set).cloned()
    }

    /// The context for `set`, created now if it is not in the pool.
    ///
    /// # Errors
    /// As [`Green::context`]; [`Error::Refused`] if the pool is full of contexts in use.
    pub fn obtain(&self, set: &TpcSet) -> Result<Rc<GreenContext<'g, 'a>>, Error> {
        if let Some(context) = self.find(set) {
            return Ok(context);
        }
        let mut contexts = self.contexts.borrow_mut();
        if contexts.len() >= Self::CONTEXTS_MAX {
            contexts.retain(|_, context| Rc::strong_count(context) > 1);
            if contexts.len() >= Self::CONTEXTS_MAX {
                return Err(Error::Refused(format!(
                    "all {} green contexts of the pool are in use: drop a lane first",
                    Self::CONTEXTS_MAX
                )));
            }
        }
        let context = Rc::new(self.green.context(set)?);
        self.created.set(self.created.get() + 1);
        contexts.insert(*set, Rc::clone(&context));
        Ok(context)
    }
}
