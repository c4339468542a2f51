//! Share one NVIDIA GPU between programs that know nothing of each other.

pub mod calibration;
pub mod child;
pub mod demo;
pub mod doctor;
pub mod error;
pub mod facts;
pub mod gpu;
pub mod install;
pub mod jobs;
pub mod kill;
pub mod limits;
pub mod mps;
pub mod offered;
pub mod process;
pub mod program;
pub mod ps;
pub mod registry;
pub mod run;
pub mod sandbox;
pub mod set;
pub mod signals;
pub mod simenv;

pub use error::Error;
