//! Static SM partitions of a service: SMs for one client alone, by MPS itself.
//!
//! Control programs have them from CUDA 13.1 on, which a trial shows; a daemon has them if it was
//! started with them, and then every client needs one. A client sees only its SMs. Some libraries
//! compute wrong products when they see fewer SMs than there are (docs/hardware.md), so products
//! are proved in each new partition, as for percentages.

use partita_mps::partition::{PARTITION_VARIABLE, PartitionName, PartitionRow};
use partita_mps::{MpsError, Service};

use super::provisioned::{self, Products};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;

/// The first version of the control program that has them, thousands for the major.
const FIRST_VERSION: u32 = 13_010;

fn refuse<T>(option: &str, reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::NotOffered { option: option.to_owned(), reason: reason.into() })
}

/// A service that is to have static partitions.
pub(super) fn wanted(service: Service, running: bool) -> Result<Service, Error> {
    if running && !service.has_static_partitions()? {
        return refuse(
            "--static-partitions",
            "the service runs without them; stop it first with `partita mps stop`",
        );
    }
    Ok(service.with_static_partitions())
}

/// Why a daemon with static partitions did not start.
pub(super) fn unknown(service: &Service, error: MpsError) -> Error {
    let MpsError::StartFailed { reason } = error else { return error.into() };
    // A program that does not know the option prints how it is used, and no reason.
    let reason = match service.binary().version() {
        Ok(version) if version.number < FIRST_VERSION => format!(
            "the control program of this driver is of CUDA {version}, and they came with CUDA 13.1 (R590); \
             update the driver, or use masks: `partita run --sm`"
        ),
        _ => format!("the control program does not start with them: {reason}; use masks: `partita run --sm`"),
    };
    Error::NotOffered { option: "--static-partitions".to_owned(), reason }
}

/// Refuses a service without static partitions.
///
/// # Errors
/// [`Error::NotOffered`], with the reason: the control program's, or how the service was started.
pub fn check_offered(service: &Service) -> Result<(), Error> {
    const WHAT: &str = "the use of static SM partitions";
    match service.control().command("lspart") {
        Ok(_) => Ok(()),
        Err(MpsError::UnknownCommand { .. }) => refuse(
            WHAT,
            "the control program of this driver does not know them (`lspart`); they came with CUDA 13.1 (R590), and older drivers have \
             masks: `partita run --sm`",
        ),
        Err(MpsError::Refused { message, .. }) => refuse(
            WHAT,
            format!(
                "the service says {:?}; start it with them: `partita mps stop`, then `partita mps start --static-partitions`",
                message.trim()
            ),
        ),
        Err(error) => Err(error.into()),
    }
}

/// The partitions, and the free SMs, as the daemon lists them.
///
/// # Errors
/// As [`check_offered`]; [`Error::Mps`].
pub fn list(service: &Service) -> Result<Vec<PartitionRow>, Error> {
    check_offered(service)?;
    Ok(service.control().sm_partitions()?)
}

/// A partition that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// Its name.
    pub name: PartitionName,
    /// The result of the proof of products in it.
    pub products: Products,
}

/// Makes a partition of so many chunks and proves products in it. Removes it if they are wrong, or
/// if the proof is impossible and `trusted` does not allow that.
///
/// # Errors
/// As [`check_offered`]; [`Error::Mps`] with the daemon's message if it does not fit;
/// [`Error::NotOffered`] naming wrong products.
pub fn add(
    install: &Install,
    gpu: &Gpu,
    service: &Service,
    chunks: u32,
    trusted: bool,
) -> Result<Made, Error> {
    check_offered(service)?;
    let control = service.control();
    let name = control.add_sm_partition(&gpu.facts.uuid, chunks)?;
    let proved = match trusted {
        true => Ok(Products::Unknown { reason: "not asked, by --unproved".to_owned() }),
        false => provisioned::products_with(install, gpu, service, [(PARTITION_VARIABLE, name.to_string())]),
    };
    let what = format!("a static partition of {chunks} chunks on {}", gpu.label());
    let instead = "masks leave the SM count alone: `partita run --sm`";
    let checked = proved.and_then(|products| {
        provisioned::check_products(gpu, &what, &products, trusted, instead).map(|()| products)
    });
    match checked {
        Ok(products) => Ok(Made { name, products }),
        Err(error) => {
            // The reason counts; one that stays is seen in the list.
            let _ = control.remove_sm_partition(&name);
            Err(error)
        }
    }
}

/// Removes an unused partition.
///
/// # Errors
/// As [`check_offered`]; [`Error::Mps`] with the daemon's message for one in use.
pub fn remove(service: &Service, name: &PartitionName) -> Result<(), Error> {
    check_offered(service)?;
    Ok(service.control().remove_sm_partition(name)?)
}

/// Refuses a tenant that names a partition of a service without any, and one that names none if
/// each client needs one.
pub(crate) fn check_named(
    service: &Service,
    gpus: &[Gpu],
    named: Option<&PartitionName>,
) -> Result<(), Error> {
    let label = crate::gpus::labels(gpus);
    match named {
        None if service.has_static_partitions()? => refuse(
            &format!("a mask on {label}"),
            "its MPS service has static partitions, of which each client needs one; name one with \
             --mps-partition (`partita mps partitions` lists them), or restart the service \
             without them",
        ),
        None => Ok(()),
        Some(name) => match gpus {
            [gpu] if gpu.facts.uuid == name.gpu_uuid => check_there(service, name),
            // A service without any says so first.
            _ => check_offered(service).and_then(|()| {
                refuse(
                    &format!("--mps-partition {name}"),
                    format!("it is not one of {label}; name its GPU with --gpu"),
                )
            }),
        },
    }
}

/// Refuses a partition that is not there: a program that names one is limited by the service alone,
/// and not at all by one without partitions.
pub(crate) fn check_there(service: &Service, name: &PartitionName) -> Result<(), Error> {
    let is_it = |row: &PartitionRow| {
        row.id.as_ref() == Some(&name.id) && name.gpu_uuid.starts_with(row.gpu.trim_end_matches(['.', '…']))
    };
    if list(service)?.iter().any(is_it) {
        return Ok(());
    }
    refuse(
        &format!("--mps-partition {name}"),
        "there is no such partition; `partita mps partitions` lists them",
    )
}
