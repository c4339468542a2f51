//! Chains: components that pass frames in GPU memory on, one to the next.
//!
//! A chain is a tenant, and a component is a process of that tenant. So its memory quota, its
//! priority and its compute units are the tenant's, and everything that ends, lists or resizes
//! tenants does so with chains. What a component may use of the tenant's TPCs is written into the
//! chain's file, where the component's library (`partita-chain`) finds it at its next frame.
//!
//! One process runs a chain: [`supervise()`] starts the components, starts them anew when they
//! fail, and has the compute units divided. It is in the tenant itself, as any program that
//! `partita run` starts.

mod control;
pub mod daemon;
mod definition;
mod kept;
mod log;
mod plant;
mod shared;
mod show;
mod state;
mod steer;
mod stop;
mod supervise;
mod supervisor;

pub use self::definition::{
    Algorithm, COMPONENTS_MAX, ComponentDefinition, Definition, Handles, MemoryOwner, PERIOD_MS_MAX,
    PERIOD_MS_MIN,
};
pub use self::kept::{Definitions, read_file};
pub use self::log::{History, Period, read_log};
pub use self::state::{
    ChainState, ChainView, ComponentState, EVENTS_MAX, Event, Phase, RoleView, running, steer, view,
};
pub use self::steer::Steering;
pub use self::stop::stop;
pub use self::supervise::{Order, start, supervise};
