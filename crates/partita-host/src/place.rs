//! How the TPCs that Partita chooses lie over the GPCs.

use partita_core::Placement;
use serde::{Deserialize, Serialize};

/// `--place`: how the TPCs that Partita chooses lie over the GPCs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In as few GPCs as possible.
    #[default]
    Packed,
    /// Evenly over as many as possible.
    Spread,
}

impl From<Place> for Placement {
    fn from(place: Place) -> Self {
        match place {
            Place::Packed => Self::Packed,
            Place::Spread => Self::Spread,
        }
    }
}
