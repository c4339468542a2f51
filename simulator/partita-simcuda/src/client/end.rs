//! The end of a context.

use partita_abi::CuResult;

use super::context::Context;
use super::{memory, module};

impl Context {
    /// Destroys it with everything in it.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED` after an earlier call.
    pub fn destroy(&'static self) -> Result<(), CuResult> {
        self.retire()?;
        module::forget_context(self.id);
        for region in self.runtime.regions.remove_where(|region| region.ctx == self.id) {
            memory::close_view(&region);
        }
        self.release()
    }
}
