//! One lease, for as long as it is needed.

use std::rc::Rc;

use crate::pool::Lease;
use partita_driver::ipc::Span;

use super::{Client, Error, OpenSlab};

/// Leased memory, open in this process. It is returned when dropped; work launched on it must be
/// done by then.
pub struct Leased<'c, 'a> {
    client: &'c Client<'a>,
    lease: Lease,
    slab: Rc<OpenSlab<'a>>,
    bytes: u64,
    /// [`Client`]'s count at the time of the lease.
    endings: u64,
}

impl<'c, 'a> Leased<'c, 'a> {
    pub(super) fn new(
        client: &'c Client<'a>,
        lease: Lease,
        slab: Rc<OpenSlab<'a>>,
        bytes: u64,
        endings: u64,
    ) -> Self {
        Self { client, lease, slab, bytes, endings }
    }

    /// The memory, of the requested size.
    ///
    /// # Errors
    /// [`Error::Driver`] if the keeper's block lies outside of its slab.
    pub fn span(&self) -> Result<Span<'_>, Error> {
        Ok(self.slab.span().part(self.lease.offset, self.bytes)?)
    }

    /// The lease, in the form that others of the tenant need to find the memory.
    #[must_use]
    pub fn lease(&self) -> Lease {
        self.lease
    }
}

impl Drop for Leased<'_, '_> {
    fn drop(&mut self) {
        self.client.give_back(self.lease, self.endings);
    }
}
