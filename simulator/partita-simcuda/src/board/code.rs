//! Code that programs load, and the kernels of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use partita_abi::CuResult;
use partita_interpreter::Kernel;
use partita_ptx::Module;

use crate::shared::protocol::Code;

/// Longest code, in bytes.
const CODE_BYTES_MAX: u64 = 1 << 28;

/// A PTX module whose variables have addresses.
#[derive(Debug)]
pub struct Program {
    module: Module,
    symbols: BTreeMap<String, u64>,
    /// Kernels that were launched.
    kernels: RefCell<HashMap<String, Arc<Kernel>>>,
}

impl Program {
    /// Reads the code in a file.
    ///
    /// # Errors
    /// `INVALID_PTX` for text that is no PTX, `INVALID_VALUE` for a file that is no code.
    pub fn read(file: OwnedFd, bytes: u64) -> Result<Self, CuResult> {
        if bytes > CODE_BYTES_MAX {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut buffer = vec![0; bytes as usize];
        File::from(file).read_exact_at(&mut buffer, 0).map_err(|_| CuResult::INVALID_VALUE)?;
        let code: Code = postcard::from_bytes(&buffer).map_err(|_| CuResult::INVALID_VALUE)?;
        let module = Module::parse(&code.text).map_err(|_| CuResult::INVALID_PTX)?;
        Ok(Self { module, symbols: code.symbols, kernels: RefCell::default() })
    }

    /// A kernel, ready to run.
    ///
    /// # Errors
    /// `ILLEGAL_INSTRUCTION` for one that is not simulated: the client does not launch it.
    pub fn kernel(&self, name: &str) -> Result<Arc<Kernel>, CuResult> {
        let mut kernels = self.kernels.borrow_mut();
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        let made =
            Kernel::new(&self.module, name, &self.symbols).map_err(|_| CuResult::ILLEGAL_INSTRUCTION)?;
        let made = Arc::new(made);
        kernels.insert(name.to_owned(), Arc::clone(&made));
        Ok(made)
    }
}
