//! [`LaunchShape`]: how many blocks a launch has, and how they must run.

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid in x, y and z.
    pub grid: [u32; 3],
    /// Blocks of a cluster in x, y and z; ones without clusters.
    pub cluster: [u32; 3],
    /// Whether all blocks must be resident at once; `None` where the version
    /// has no field for it.
    pub cooperative: Option<bool>,
}

impl LaunchShape {
    /// Blocks of the grid.
    pub fn grid_blocks(&self) -> u64 {
        // 2³¹ × 2¹⁶ × 2¹⁶ fits, so only nonsense saturates.
        self.grid.iter().fold(1, |product: u64, blocks| product.saturating_mul(u64::from(*blocks)))
    }

    /// Blocks of a cluster; 1 without clusters.
    pub fn cluster_blocks(&self) -> u32 {
        self.cluster.iter().fold(1, |product: u32, blocks| product.saturating_mul(*blocks))
    }
}
