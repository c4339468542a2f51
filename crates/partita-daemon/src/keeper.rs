//! `partitad keeper`: the process that owns a GPU's leased memory.

use anyhow::bail;

use crate::args::Keeper;

/// Owns the memory of one GPU that is leased, until it is told to end.
///
/// # Errors
/// Why it cannot, with the remedy.
pub fn run(arguments: &Keeper) -> anyhow::Result<()> {
    let gpu = arguments.gpu.as_deref().unwrap_or("0");
    bail!("keeper of GPU {gpu}: this build has no memory manager; chains pass frames by copy without one")
}
