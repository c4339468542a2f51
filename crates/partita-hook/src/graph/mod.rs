//! Graphs: their kernels carry the mask from upload to upload.

pub mod add;
pub mod change;
pub mod exec;
pub mod executables;
pub mod nodes;
pub mod place;
