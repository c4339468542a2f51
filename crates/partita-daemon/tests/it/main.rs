//! The black-box tests of `partita-daemon`, as one program: it links once, and its tests run
//! beside each other.

mod api;
mod boundary;
mod bounds;
mod browser;
mod chains;
mod command_line;
mod common;
mod docs;
mod durable;
mod escapes;
mod hostile;
mod hosts;
mod keeper;
mod leases;
mod metrics;
mod page;
mod serve;
mod spite;
mod targets;
mod waiting;
