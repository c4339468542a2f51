//! `partita topology`: where the units of a GPU lie, who holds them, and how that is known.

mod evidence;

pub use evidence::{ControlRecord, Evidence, SmRecord};
pub(crate) use evidence::gather;
