//! Contexts with some SMs each: the pool that the MPS guide (section 5.2) recommends.
//!
//! For Rust programs that are clients of MPS and have their own kernels. To create a context takes
//! time and memory, so a program creates its contexts beforehand and chooses among them at each
//! launch. MPS chooses the SMs; a program only chooses their number.
//!
//! Use it only for kernels that the program knows. A library that queries the number of SMs gets
//! the context's number, and some compute wrong products with certain numbers, without an error
//! (docs/hardware.md): do not pass these streams to cuBLAS or to libraries that use it.
//! [`restrict`](crate::restrict) does not change the number, takes single TPCs, and needs no
//! contexts; tenants with a mask use it.
//!
//! Kernels belong to a context: load them in each, or as `CUkernel`s, which belong to no context.
//!
//! The command line does not offer this. An unmodified program works in the contexts that it
//! creates itself, above all the GPU's primary one, and the driver takes a number of SMs only when
//! a context is created; the percentages of [`crate::mps::provisioned`] are for whole processes.
//! Components of a chain have such a pool, `partita_chain::AffinityContexts`.

use partita_driver::{AffinityContext, Cuda, Gpu, StreamRef};
use partita_ledger::{LIMITS_FILE_NAME, LimitsMap, MECHANISM_NONE};
use partita_mps::admission::Capacity;
use partita_mps::provision::{Sms, affinity_pool};

use crate::error::Error;
use crate::registry::{LEDGER_VARIABLE, c_path};

/// Contexts of this process, the smallest first. They end with the pool.
pub struct ContextPool {
    contexts: Vec<Context>,
}

/// A context of a pool, and a stream in it.
pub struct Context {
    inner: AffinityContext<'static, 'static>,
}

impl std::fmt::Debug for ContextPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContextPool").field("sms", &self.sizes()).finish()
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("sms", &self.sms()).finish_non_exhaustive()
    }
}

impl ContextPool {
    /// Makes a context for each of these numbers of SMs, on the first GPU that this process sees.
    /// The driver rounds up: on an H200 to even numbers from 8 on; numbers that come to the same
    /// are one context.
    ///
    /// # Errors
    /// [`Error::Restrict`] if this process is no client of MPS, if it is a tenant with a mask,
    /// where a context would have fewer SMs than it says, if there is no room for so many contexts,
    /// and with the driver's words.
    pub fn new(sms: &[u32]) -> Result<Self, Error> {
        check_no_mask()?;
        // The driver library stays loaded, as in every process.
        let cuda: &'static Cuda = Box::leak(Box::new(Cuda::load(None).map_err(refuse)?));
        let gpu: &'static Gpu<'static> = Box::leak(Box::new(Gpu::open(cuda, 0).map_err(refuse)?));
        let facts = gpu.facts();
        if !facts.under_mps {
            return Err(refuse(
                "contexts with a number of SMs are for clients of MPS, and this process is not one: \
                 start it with the variables that `partita mps status` shows",
            ));
        }
        let capability = facts.compute_capability;
        let device = Sms { count: facts.sms, per_tpc: if matches!(capability, 60 | 70..) { 2 } else { 1 } };
        // Others' contexts count too; that there is room beside them only the driver knows.
        let capacity = Capacity::of((capability / 10, capability % 10), None);
        let sizes = affinity_pool(device, sms, 1, capacity.contexts_max).map_err(refuse)?;
        let mut contexts: Vec<Context> = Vec::new();
        for size in sizes {
            let inner = AffinityContext::create(gpu, size).map_err(refuse)?;
            if contexts.last().is_none_or(|last| last.sms() < inner.sms()) {
                contexts.push(Context { inner });
            }
        }
        Ok(Self { contexts })
    }

    /// How many SMs each has, ascending.
    #[must_use]
    pub fn sizes(&self) -> Vec<u32> {
        self.contexts.iter().map(Context::sms).collect()
    }

    /// The smallest one with so many SMs.
    #[must_use]
    pub fn at_least(&self, sms: u32) -> Option<&Context> {
        self.contexts.iter().find(|context| context.sms() >= sms)
    }

    /// The one with the most SMs; `None` for an empty pool.
    #[must_use]
    pub fn largest(&self) -> Option<&Context> {
        self.contexts.last()
    }
}

impl Context {
    /// How many SMs it has, as the driver says.
    #[must_use]
    pub fn sms(&self) -> u32 {
        self.inner.sms()
    }

    /// Its stream, whose launches run on its SMs.
    #[must_use]
    pub fn stream(&self) -> StreamRef<'_> {
        self.inner.stream()
    }
}

/// A tenant's mask and a context's SMs would both hold, and the context's number of SMs would be
/// wrong.
fn check_no_mask() -> Result<(), Error> {
    let Some(ledger) = std::env::var_os(LEDGER_VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let limits = std::path::Path::new(&ledger).join(LIMITS_FILE_NAME.to_string_lossy().as_ref());
    let mechanism = LimitsMap::open_ro(&c_path(&limits)?)
        .and_then(|map| map.load().map(|(_, limits)| limits.mechanism))
        .map_err(|error| refuse(format!("{}: {error}", limits.display())))?;
    if mechanism == MECHANISM_NONE {
        return Ok(());
    }
    Err(refuse(
        "this process is in a tenant with a mask, which holds in every context: narrow the mask with `partita::restrict` instead",
    ))
}

fn refuse(reason: impl std::fmt::Display) -> Error {
    Error::Restrict { reason: reason.to_string() }
}
