//! `partita mps partitions`.

use partita::mps::partitions;
use partita::mps::provisioned::Products;
use partita_mps::partition::{PARTITION_VARIABLE, PartitionName};
use serde::Serialize;

use super::Of;
use partita_console::{Failure, print, print_json};

use crate::args::{MpsPartitions, MpsPartitionsAdd, MpsPartitionsRemove, MpsShow, PartitionsVerb};

pub fn partitions(arguments: &MpsPartitions) -> Result<(), Failure> {
    match &arguments.verb {
        None => list(&arguments.show),
        Some(PartitionsVerb::Add(arguments)) => add(arguments),
        Some(PartitionsVerb::Remove(arguments)) => remove(arguments),
    }
}

/// Reads a partition's name.
pub fn partition(text: &str) -> Result<PartitionName, Failure> {
    text.parse().map_err(Failure::Told)
}

fn list(arguments: &MpsShow) -> Result<(), Failure> {
    let of = Of::find(&arguments.gpu)?;
    of.must_run()?;
    let rows = partitions::list(&of.service)?;
    if arguments.json {
        return print_json(&rows);
    }
    // The numbers differ between drivers: the daemon's own column heads stand above them.
    let table = of.service.control().command("lspart").map_err(partita::Error::from)?;
    print(&format!("{}\n", table.trim_end()))
}

#[derive(Serialize)]
struct Added {
    partition: String,
    gpu: String,
    #[serde(flatten)]
    products: Products,
}

fn add(arguments: &MpsPartitionsAdd) -> Result<(), Failure> {
    let of = Of::find_to_change(&arguments.gpu)?;
    of.must_run()?;
    let [gpu] = of.gpus.as_slice() else {
        return Err(Failure::Told("a partition belongs to one GPU: name it with --gpu".to_owned()));
    };
    let made = partitions::add(&of.install, gpu, &of.service, arguments.chunks, arguments.unproved)?;
    if arguments.json {
        let added = Added { partition: made.name.to_string(), gpu: gpu.label(), products: made.products };
        return print_json(&added);
    }
    let products = match &made.products {
        Products::Right { found } => format!("{found} right in it"),
        Products::Unknown { reason } => format!("products not proved: {reason}"),
        // Removed again.
        Products::Wrong { .. } => String::new(),
    };
    let name = &made.name;
    print(&format!(
        "{name}\n  {products}\n  partita run --mps-partition {name} -- CMD …\n  or, for a program without Partita: {PARTITION_VARIABLE}={name}\n"
    ))
}

fn remove(arguments: &MpsPartitionsRemove) -> Result<(), Failure> {
    let of = Of::find_to_change(&arguments.gpu)?;
    of.must_run()?;
    let names = arguments.names.iter().map(|name| partition(name)).collect::<Result<Vec<_>, Failure>>()?;
    for name in &names {
        partitions::remove(&of.service, name)?;
        print(&format!("{name}: removed\n"))?;
    }
    Ok(())
}
