//! `partitad`: chains, memory and partitions of a machine's GPUs over REST.
//!
//! | module | subject |
//! |---|---|
//! | [`args`] | the arguments |
//! | [`serve`] | sockets, tokens, limits of connections, start and end |
//! | [`api`] | the resources under `/v1`, health, metrics, the OpenAPI document |
//! | [`problem`] | the body of every failed request (RFC 9457) |
//! | [`store`] | chain definitions, history and events that outlive the daemon, in SQLite |
//! | [`chains`] | definitions and running instances of chains |
//! | [`audit`] | audits for processes that escape their limits |
//! | [`memory`] | leases and keepers as the daemon shows them |
//! | [`keeper`] | `partitad keeper`: the process that owns a GPU's leased memory |

pub mod api;
pub mod args;
pub mod audit;
mod caller;
pub mod chains;
pub mod keeper;
pub mod memory;
pub mod problem;
pub mod serve;
pub mod site;
pub mod store;
pub mod targets;
mod token;

pub use problem::{Kind, Problem};
