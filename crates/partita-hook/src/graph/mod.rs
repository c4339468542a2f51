//! Executable graphs, which keep the mask that they were uploaded with.

pub mod add;
pub mod again;
pub mod change;
pub mod edits;
pub mod exec;
pub mod executables;
pub mod nodes;
pub mod place;
pub mod width;
