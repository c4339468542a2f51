//! Chains: components that pass frames in GPU memory on, one to the next.
//!
//! A chain is a tenant, and a component is a process of that tenant. So its memory quota, its priority and its compute units are the
//! tenant's, and everything that ends, lists or resizes tenants does so with chains. What a component may use of the tenant's TPCs is
//! written into the chain's file, where the component's library (`partita-chain`) finds it at its next frame.
//!
//! One process runs a chain: [`supervise()`] starts the components, starts them anew when they fail, and has the compute units
//! divided. It is in the tenant itself, as any program that `partita run` starts.

mod control;
mod definition;
mod kept;
mod log;
mod plant;
mod state;
mod steer;
mod supervise;

use std::fs;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

pub use self::definition::{
    Algorithm, COMPONENTS_MAX, ComponentDefinition, Definition, DropPolicy, MemoryOwner, PERIOD_MS_MAX,
    PERIOD_MS_MIN,
};
pub use self::kept::{Definitions, read_file};
pub use self::log::{History, Period, read_log};
pub use self::state::{
    ChainState, ChainView, ComponentState, EVENTS_MAX, Event, Phase, RoleView, running, steer, view,
};
pub use self::steer::Steering;
pub use self::supervise::{Order, start, supervise};
use crate::error::Error;

/// The chain's file in the tenant's directory.
const CHAIN_FILE: &str = "chain";

/// Writes a value as JSON, so that a reader sees the whole of it or of what was there before.
fn write_whole(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let json =
        serde_json::to_vec(value).map_err(|error| Error::io(path.display().to_string())(error.into()))?;
    fs::File::create(&fresh)
        .and_then(|mut file| file.write_all(&json))
        .and_then(|()| fs::rename(&fresh, path))
        .map_err(Error::io(path.display().to_string()))
}
