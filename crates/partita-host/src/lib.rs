//! The GPUs of a machine and the tenants on them.
//!
//! | floor | modules |
//! |---|---|
//! | commands | [`mod@run`], [`mod@set`], [`mod@ps`], [`mod@kill`], [`mod@explain`] and what they take ([`request`]); [`slo`] moves TPCs for targets; [`system`] asks `partitad` instead, [`mod@answer`] answers, for programs without a command with `outside`; [`mode`] says which mode holds; [`detached`] runs programs without a terminal; [`mod@apply`] makes tenants as a file describes them; [`cdi`] makes tenants for containers; [`holder`] holds the work of dead processes; [`sandbox`] makes tenants to try things on |
//! | a program's own launches | [`restrict`], [`contexts`] |
//! | parts of devices | [`mig`]: the instances of a GPU, and programs in them; [`vf`]: virtual functions and vGPUs; [`mod@compare`]: all ways side by side |
//! | MPS | [`mps`]: the service that the tenants of a GPU share |
//! | tenants | [`registry`]: who has what; [`dead`]: its dead processes; [`limits`], [`partition`], [`time`], [`offered`], [`policy`]: from a request to the ledger |
//! | GPUs | [`gpu`], [`gpus`], [`groups`], [`facts`], [`calibration`], [`numerics`] |
//! | ground | [`child`], [`process`], [`program`], [`signals`], [`install`], [`simenv`], [`files`], `journal`, [`state`], [`escape`], `text`, `points`, [`error`] |
//!
//! A module imports modules of its own floor or of a lower one, and no two files import each other.

pub mod answer;
pub mod apply;
mod cache;
pub mod calibration;
pub mod cdi;
pub mod child;
pub mod compare;
pub mod contexts;
pub mod dead;
pub mod detached;
pub mod error;
pub mod escape;
pub mod explain;
pub mod facts;
pub mod files;
pub mod gpu;
pub mod gpu_job;
pub mod gpus;
pub mod groups;
pub mod holder;
pub mod install;
pub mod jobs;
mod journal;
pub mod kill;
pub mod limits;
pub mod mig;
pub mod mode;
pub mod mps;
pub mod numerics;
pub mod offered;
mod outside;
pub mod pace;
pub mod partition;
#[doc(hidden)]
pub mod points;
pub mod policy;
pub mod preload;
pub mod process;
pub mod program;
pub mod ps;
pub mod queue;
pub mod registry;
pub mod request;
pub mod restrict;
pub mod run;
pub mod sandbox;
pub mod set;
pub mod signals;
pub mod simenv;
pub mod site;
pub mod slo;
pub mod state;
pub mod system;
mod terminal;
mod text;
pub mod time;
pub mod vf;

pub use error::Error;
