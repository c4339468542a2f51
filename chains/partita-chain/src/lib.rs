//! Chains of components: receive a frame in GPU memory, work on it, pass it on.
//!
//! An application is a chain of processes on one GPU or several. Frames start in the first one and
//! end in the last. Processes pass on only a number in shared memory; on one GPU the frame stays in
//! its place. The GPU keeps the order: the stream of a frame's receiver waits for its sender's, and
//! no host waits for the GPU.
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
//! it. [`Component`] is one role in it. A process that dies loses no frame's memory: see
//! [`partita_frames`].
//!
//! # The owner of the memory
//! With a memory manager ([`KeeperSlabs`]; `partita chain` starts one), it owns the frames, which
//! outlive every component. Without one, the first component allocates them itself ([`OwnSlabs`],
//! the default): then frames that are on their way when it dies are dropped, and counted; the chain
//! continues with new ones.
//!
//! # Several GPUs
//! If the chain's plan says that components are on different GPUs, each sees its own GPU alone, and
//! a frame has memory on every GPU of the chain. At each change of the GPU the sender waits for its
//! GPU, and the receiver copies the frame to its own: from the other GPU's memory, where the driver
//! gives access to it, otherwise from host memory.
//!
//! # Compute units
//! A suggestion to a component ([`Chain::suggest`]) applies from its next frame on. [`Steer`] is
//! the method: masks in every launch ([`Masks`], the default), prepared green contexts
//! ([`GreenContexts`]), or contexts of MPS ([`AffinityContexts`]).
//!
//! # Limits of the order
//! If a component dies while the next one's stream waits for its GPU work, the driver decides what
//! that stream does then: the frame may arrive with work missing. The last component can detect
//! this ([`Frame::is_whole`]): the GPU writes a stamp after each component's work, unless the host
//! saw it done. Frames that have not been received by then are dropped. [`Attach::on_host`] delays
//! frames until the GPU is done with them, at the price of a wait on the host, which ends if their
//! sender dies.

mod attach;
mod carry;
mod chain;
mod component;
mod cross;
mod error;
mod keeper;
mod memory;
mod order;
mod process;
mod steer;
pub mod transport;
mod wire;

pub use attach::{Attach, Role};
pub use carry::FrameTransport;
pub use chain::Chain;
pub use component::{Component, Frame, Outcome, Received};
pub use cross::Site;
pub use error::Error;
pub use keeper::KeeperSlabs;
pub use memory::{Granted, Memory, OwnSlabs, Slabs};
pub use order::Waits;
pub use partita_frames::{
    CHAIN_VARIABLE, COMPONENT_VARIABLE, Census, ChainPlan, KEEPER_VARIABLE, Policy, RoleStatus, SlabOwner,
};
pub use steer::{AffinityContexts, GreenContexts, Masks, Steer};
