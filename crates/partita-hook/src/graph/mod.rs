//! Executable graphs, which keep the mask that they were uploaded with.

pub mod add;
pub mod change;
pub mod exec;
pub mod executables;
pub mod nodes;
pub mod place;
pub mod width;
