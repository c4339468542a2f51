//! Chains: components that pass frames in GPU memory from one to the next.
//!
//! A chain is a tenant, and a component is a process of that tenant. So the tenant's memory quota,
//! priority and compute units hold for the chain, and every command that ends, lists or resizes
//! tenants works for chains. The chain file says which of the tenant's TPCs each component may use;
//! the component's library (`partita-chain`) reads it before each frame.
//!
//! One process runs a chain: [`supervise()`] starts the components, restarts those that fail, and
//! divides the compute units. It is a process of the tenant, as any program that `partita run`
//! starts.

mod control;
pub mod daemon;
mod definition;
pub mod joint;
mod log;
mod news;
mod place;
mod plant;
mod shared;
mod show;
mod state;
mod steer;
mod stop;
mod store;
mod supervise;
mod supervisor;

pub use self::definition::{
    Algorithm, COMPONENTS_MAX, ComponentDefinition, Definition, Handles, MemoryOwner, Method, PERIOD_MS_MAX,
    PERIOD_MS_MIN,
};
pub use self::log::{History, Period, read_log};
pub use self::state::{
    ChainState, ChainView, ComponentState, EVENTS_MAX, Event, GpuState, Phase, RoleView, running, steer, view,
};
pub use self::steer::Steering;
pub use self::stop::stop;
pub use self::store::{Definitions, Stored, read_file};
pub use self::supervise::{ChainRun, start, supervise};
