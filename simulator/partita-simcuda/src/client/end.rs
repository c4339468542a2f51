//! The end of a context.

use partita_abi::CuResult;

use super::context::Context;
use super::{host, memory, module};

impl Context {
    /// Destroys it with everything in it.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED` after an earlier call.
    pub fn destroy(&'static self) -> Result<(), CuResult> {
        self.retire()?;
        module::forget_context(self.id);
        let regions = self.runtime.regions.remove_where(|region| region.ctx == self.id);
        regions.iter().for_each(memory::close_view);
        self.release()?;
        // After its work, which may have used them.
        let mut host = regions.iter().filter(|region| region.is_host());
        host.try_for_each(|region| host::withdraw_everywhere(region.start))
    }
}
