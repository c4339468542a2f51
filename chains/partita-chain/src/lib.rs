//! Chains of components: receive a frame in GPU memory, work on it, pass it on.
//!
//! An application is a chain of processes on one GPU. Frames begin in the first one and end in the
//! last; what passes from hand to hand is a number in shared memory, and the frame stays where it
//! is. The GPU keeps the order: who gets a frame has its stream wait for the one before, and no
//! host waits for any GPU.
//!
//! ```no_run
//! use partita_chain::{Attach, Received};
//! use partita_driver::{Cuda, Gpu};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cuda = Cuda::load(None)?;
//! let gpu = Gpu::open(&cuda, 0)?;
//! // The chain and the role that `partita chain` started this process for.
//! let component = Attach::from_environment()?.attach(&gpu)?;
//! loop {
//!     match component.receive(None)? {
//!         Received::Frame(frame) => {
//!             let (address, stream) = (frame.address(), component.stream().handle());
//!             // Launch on `stream` what works on the memory at `address` ...
//!             # let _ = (address, stream);
//!             component.send(frame)?;
//!         }
//!         Received::Late => {}
//!         Received::Ended => break,
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Chain`] is the whole chain, for the process that makes it, starts its processes and watches
//! it. [`Component`] is one role in it. Whatever happens to a process, no frame's memory is lost:
//! see [`partita_frames`].
//!
//! # Whose the memory is
//! Where there is a memory manager ([`KeeperSlabs`]; `partita chain` starts one), frames are its,
//! and outlive every component. Without one, the first component allocates them itself
//! ([`OwnSlabs`], the default): then frames that are on their way when it dies are dropped, and
//! counted; the chain goes on with new ones.
//!
//! # Compute units
//! What was suggested to a component ([`Chain::suggest`]) holds from its next frame on. How is up
//! to [`Steer`]: masks in every launch ([`Masks`], the default), prepared green contexts
//! ([`GreenContexts`]), or contexts of MPS ([`AffinityContexts`]).
//!
//! # What is not kept in order
//! If a component dies while the next one's stream waits for its GPU work, what that stream does
//! then is the driver's affair: the frame may come out with work missing. The last component can
//! tell ([`Frame::is_whole`]): behind the work of each one the GPU writes a stamp, unless the host
//! saw it done. Frames that have not been received by then are dropped. [`Attach::on_host`] holds
//! frames back until the GPU is done with them, at the price of a wait on the host that ends when
//! their sender dies.

mod attach;
mod chain;
mod component;
mod error;
mod keeper;
mod memory;
mod order;
mod process;
mod steer;
pub mod transport;

pub use attach::{Attach, Role};
pub use chain::Chain;
pub use component::{Component, Frame, Outcome, Received};
pub use error::Error;
pub use keeper::KeeperSlabs;
pub use memory::{Granted, Memory, OwnSlabs, Slabs};
pub use order::Waits;
pub use partita_frames::{
    CHAIN_VARIABLE, COMPONENT_VARIABLE, Census, ChainPlan, KEEPER_VARIABLE, Policy, RoleStatus, SlabOwner,
};
pub use steer::{AffinityContexts, GreenContexts, Masks, Steer};
