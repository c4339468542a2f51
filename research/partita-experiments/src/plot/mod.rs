//! Pictures of experiments: blocks by SM over time, and those of [`partita_plot`].

pub mod blocks;

pub use partita_plot::{Picture, bars, grouped, lines};
