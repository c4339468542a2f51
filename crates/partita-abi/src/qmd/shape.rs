//! The shape of a launch: how many blocks, in clusters of how many, and
//! whether all of them must be resident at once.
//!
//! The meaning of the fields under clusters and cooperation is not in the
//! headers. It was measured on an H200 with driver 580.159.04 (V04_00), by
//! comparing descriptors of launches that differ in one thing:
//!
//! | launch | `QMD_TYPE` | `GRID_*` | `GPC_CGA_*` | `GPU_CGA_*` |
//! |---|---|---|---|---|
//! | plain | `GRID_CTA` | blocks | 0 | 0 |
//! | clusters | `GRID_GPC_CGA` | clusters | blocks of a cluster | 0 |
//! | cooperative | `GRID_GPU_CGA` | 1, 1, 1 | 0 | blocks |
//! | cooperative, clusters | `GRID_GPU_GPC_CGA` | 1, 1, 1 | blocks of a cluster | clusters |

use super::{LaunchShape, QmdError, QmdField, QmdLayout};

/// `QMD_TYPE_GRID_CTA`: single blocks.
pub const QMD_TYPE_GRID_CTA: u32 = 2;
/// `QMD_TYPE_GRID_GPC_CGA`: clusters, each within one GPC.
pub const QMD_TYPE_GRID_GPC_CGA: u32 = 3;
/// `QMD_TYPE_GRID_GPU_CGA`: single blocks, all resident at once.
pub const QMD_TYPE_GRID_GPU_CGA: u32 = 4;
/// `QMD_TYPE_GRID_GPU_GPC_CGA`: clusters, all resident at once.
pub const QMD_TYPE_GRID_GPU_GPC_CGA: u32 = 5;

/// The fields of clusters and cooperation, of the versions that have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdCga {
    /// `QMD_TYPE`.
    pub kind: QmdField,
    /// `GPC_CGA_WIDTH`, `_HEIGHT` and `_DEPTH`: blocks of a cluster.
    pub cluster: [QmdField; 3],
    /// `GPU_CGA_WIDTH`, `_HEIGHT` and `_DEPTH`: what is resident at once.
    pub resident: [QmdField; 3],
    /// `CGA_CTA_DISTRIBUTION_MODE`: the driver sets 1 (multicast) for clusters, unless load
    /// balancing was requested.
    pub distribution: QmdField,
}

fn get3(image: &[u32], fields: &[QmdField; 3]) -> [u32; 3] {
    fields.map(|field| field.get(image[field.word()]))
}

fn put3(image: &mut [u32], fields: &[QmdField; 3], values: [u32; 3]) -> bool {
    fields.iter().zip(values).all(|(field, value)| super::write_field(image, *field, value))
}

fn product3(a: [u32; 3], b: [u32; 3]) -> [u32; 3] {
    core::array::from_fn(|axis| a[axis].saturating_mul(b[axis]))
}

impl QmdLayout {
    /// Reads the shape of a launch.
    ///
    /// # Errors
    /// [`QmdError::ImageTooShort`], and [`QmdError::NotAGrid`] for a
    /// descriptor that launches no blocks (a queue, a null grid) or whose
    /// type the header does not define.
    #[inline]
    pub fn shape(&self, image: &[u32]) -> Result<LaunchShape, QmdError> {
        let image = self.whole(image)?;
        let grid = get3(image, &self.grid);
        let Some(cga) = &self.cga else {
            return Ok(LaunchShape { grid, cluster: [1; 3], cooperative: None });
        };
        let kind = cga.kind.get(image[cga.kind.word()]);
        let cluster = || get3(image, &cga.cluster);
        let resident = || get3(image, &cga.resident);
        let (grid, cluster, cooperative) = match kind {
            QMD_TYPE_GRID_CTA => (grid, [1; 3], false),
            QMD_TYPE_GRID_GPC_CGA => (product3(grid, cluster()), cluster(), false),
            QMD_TYPE_GRID_GPU_CGA => (product3(grid, resident()), [1; 3], true),
            QMD_TYPE_GRID_GPU_GPC_CGA => (product3(product3(grid, resident()), cluster()), cluster(), true),
            _ => return Err(QmdError::NotAGrid { version: self.version, kind }),
        };
        Ok(LaunchShape { grid, cluster, cooperative: Some(cooperative) })
    }

    /// Writes the shape of a launch, as the driver does.
    ///
    /// # Errors
    /// [`QmdError::ImageTooShort`], and [`QmdError::ShapeDoesNotFit`] when a
    /// number is too great for its field, the grid is not a multiple of the
    /// cluster, or the version has no clusters or cooperation and the shape
    /// does. The fields of the shape are then unspecified.
    pub fn write_shape(&self, image: &mut [u32], shape: &LaunchShape) -> Result<(), QmdError> {
        self.whole(image)?;
        let refused = Err(QmdError::ShapeDoesNotFit { version: self.version, shape: *shape });
        let clustered = shape.cluster != [1; 3];
        let cooperative = shape.cooperative == Some(true);
        let Some(cga) = &self.cga else {
            let fits = !clustered && !cooperative && put3(image, &self.grid, shape.grid);
            return if fits { Ok(()) } else { refused };
        };
        let divides =
            shape.grid.iter().zip(shape.cluster).all(|(blocks, of)| of != 0 && blocks.is_multiple_of(of));
        if !divides {
            return refused;
        }
        let clusters: [u32; 3] = core::array::from_fn(|axis| shape.grid[axis] / shape.cluster[axis]);
        let kind = match (clustered, cooperative) {
            (false, false) => QMD_TYPE_GRID_CTA,
            (true, false) => QMD_TYPE_GRID_GPC_CGA,
            (false, true) => QMD_TYPE_GRID_GPU_CGA,
            (true, true) => QMD_TYPE_GRID_GPU_GPC_CGA,
        };
        let (grid, resident) = if cooperative { ([1; 3], clusters) } else { (clusters, [0; 3]) };
        let cluster = if clustered { shape.cluster } else { [0; 3] };
        let fits = super::write_field(image, cga.kind, kind)
            && super::write_field(image, cga.distribution, u32::from(clustered))
            && put3(image, &self.grid, grid)
            && put3(image, &cga.cluster, cluster)
            && put3(image, &cga.resident, resident);
        if fits { Ok(()) } else { refused }
    }
}
