//! An interpreter of PTX, NVIDIA's language of kernels.
//!
//! [`Kernel::new`] makes an entry of a [`Module`](partita_ptx::Module) ready to run, or names the
//! instruction that is not simulated. A [`Block`] runs it, in slices, over a [`Memory`].
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use partita_interpreter::{Block, Kernel, Launch, Memory, Progress, Start};
//! use partita_ptx::Module;
//!
//! struct Word([u8; 4]);
//! impl Memory for Word {
//!     fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
//!         into.copy_from_slice(&self.0);
//!         address == 4096
//!     }
//!     fn write(&mut self, address: u64, from: &[u8]) -> bool {
//!         self.0.copy_from_slice(from);
//!         address == 4096
//!     }
//! }
//!
//! let module = Module::parse("
//!     .version 8.0 .target sm_90 .address_size 64
//!     .visible .entry count(.param .u64 word) {
//!         .reg .u64 %to;
//!         ld.param.u64 %to, [word];
//!         red.global.add.u32 [%to], 1;
//!         ret;
//!     }")?;
//! let launch = Launch {
//!     kernel: Arc::new(Kernel::new(&module, "count", &BTreeMap::new())?),
//!     params: 4096u64.to_le_bytes().to_vec(),
//!     grid: [1, 1, 1],
//!     block: [100, 1, 1],
//!     dynamic_shared: 0,
//!     number: 0,
//!     sms: 1,
//!     clock_khz: 1_000_000,
//! };
//! let mut memory = Word([0; 4]);
//! let mut block = Block::new(&launch, Start { block: 0, sm: 0, at_ns: 0 });
//! assert_eq!(block.run(&launch, &mut memory, 1_000)?, Progress::Done);
//! assert_eq!(u32::from_le_bytes(memory.0), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod initial;
mod kernel;
mod lanes;
mod lower;
mod math;
mod run;

pub use initial::initial_bytes;
pub use kernel::{Kernel, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
pub use lanes::LANES;
pub use lower::function_address;
pub use run::{Block, Failure, Fault, Launch, Memory, Progress, Start};
