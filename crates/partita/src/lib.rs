//! Share one NVIDIA GPU between programs that know nothing of each other.
//!
//! The library behind the command `partita`: it finds GPUs ([`gpu`]), proves how
//! their launches are masked ([`calibration`]), keeps the tenants of a machine
//! ([`registry`]), and runs, changes, lists and ends them ([`mod@run`], [`mod@set`],
//! [`mod@ps`], [`mod@kill`]). Real GPUs and simulated ones ([`simenv`]) go the same way.
//!
//! Whatever touches a driver happens in a child process ([`child`]): the library itself never loads
//! one, except for a program that restricts its own launches ([`restrict`], [`contexts`]) and so
//! has one anyway. That child is the `partita` program, so an [`install::Install`] is needed for
//! everything that starts something.
//!
//! ```no_run
//! use partita::install::Install;
//! use partita::registry::Registry;
//! use partita::run::{RunRequest, run};
//!
//! # fn main() -> Result<(), partita::Error> {
//! let install = Install::of("/usr/local/bin/partita".into(), None);
//! let request = RunRequest {
//!     share: Some(partita_core::Share::Percent(50_000)),
//!     name: Some("serve".to_owned()),
//!     command: vec!["python3".into(), "serve.py".into()],
//!     ..RunRequest::default()
//! };
//! let exit_code = run(&install, &request, |notice| eprintln!("{notice}"))?;
//! for tenant in partita::ps::ps(&Registry::open()?)? {
//!     println!("{} has {:?} SMs", tenant.name, tenant.sms);
//! }
//! # let _ = exit_code;
//! # Ok(())
//! # }
//! ```

pub mod answer;
pub mod audit;
pub mod batch;
mod cache;
pub mod calibration;
pub mod chain;
pub mod child;
pub mod contexts;
pub mod daemon;
pub mod demo;
pub mod doctor;
pub mod error;
pub mod escape;
pub mod facts;
mod files;
pub mod gpu;
mod gpu_job;
pub mod gpus;
pub mod install;
pub mod jobs;
pub mod kill;
pub mod limits;
pub mod mps;
pub mod numerics;
pub mod offered;
pub mod partition;
pub mod place;
pub mod process;
pub mod program;
pub mod prove;
pub mod ps;
pub mod registry;
pub mod request;
pub mod restrict;
pub mod run;
pub mod sandbox;
pub mod set;
pub mod signals;
pub mod simenv;
mod svg;
pub mod system;
mod terminal;
pub mod time;
pub mod topology;

pub use error::Error;
