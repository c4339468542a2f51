//! Active thread percentages of a service: by policy, and only if cuBLAS's products are correct.
//!
//! A percentage lowers the SM count that libraries see. On some devices their matrix products are
//! wrong then, without an error (docs/hardware.md), so each percentage is proved before it is set:
//! a client of the service with exactly that percentage multiplies.

use std::time::Duration;

use partita_mps::Service;
use partita_mps::provision::{Allotment, Policy, Sms, divide};
use serde::Serialize;

use crate::child::Job;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;
use crate::numerics::{self, NumericsResult, cublas_candidates};

/// Products of 4096³ are checked on the host, element by element.
const NUMERICS_LIMIT: Duration = Duration::from_secs(120);
/// The variable by which a client lowers its own percentage.
pub const PERCENTAGE_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// The result of the products under a percentage.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Products {
    /// All are right.
    Right {
        /// The library and its version, and how many products.
        found: String,
    },
    /// These are wrong.
    Wrong {
        /// The library and its version.
        library: String,
        /// The products.
        products: Vec<String>,
    },
    /// They were not multiplied.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl Products {
    fn of(result: NumericsResult) -> Self {
        match result {
            NumericsResult { cublas: None, .. } => {
                Self::Unknown { reason: "no libcublas.so.11 to 13 was found".to_owned() }
            }
            NumericsResult { cublas: Some(version), products, wrong, .. } if wrong.is_empty() => {
                Self::Right { found: format!("cuBLAS {version}, {products} products") }
            }
            NumericsResult { cublas: Some(version), wrong, .. } => {
                Self::Wrong { library: format!("cuBLAS {version}"), products: wrong }
            }
        }
    }
}

/// Multiplies matrices in a client of the service that has this percentage. Whatever the service's
/// own percentage is, the client's can only lower it.
///
/// # Errors
/// [`Error::Child`] if the client fails.
pub fn products(install: &Install, gpu: &Gpu, service: &Service, percent: f64) -> Result<Products, Error> {
    products_with(install, gpu, service, [(PERCENTAGE_VARIABLE, percent.to_string())])
}

/// Multiplies matrices in a client of the service that has these variables.
pub(super) fn products_with<const N: usize>(
    install: &Install,
    gpu: &Gpu,
    service: &Service,
    variables: [(&str, String); N],
) -> Result<Products, Error> {
    if gpu.sim().is_some() {
        return Ok(Products::Unknown { reason: "a simulated GPU runs no vendor code".to_owned() });
    }
    let job = Job::new(install, numerics::JOB, &cublas_candidates())?
        .envs(gpu.variables())
        .envs(service.client_env())
        .envs(variables)
        .limit(NUMERICS_LIMIT);
    job.run_flat().map(Products::of)
}

/// Divides a GPU's SMs by a policy.
///
/// # Errors
/// [`Error::NotOffered`] with the mistake in the policy.
pub fn plan(gpu: &Gpu, sms: Sms, policy: &Policy) -> Result<Vec<Allotment>, Error> {
    divide(sms, policy)
        .map_err(|reason| Error::NotOffered { option: format!("--policy on {}", gpu.label()), reason })
}

/// Refuses a percentage under which products are wrong, or might be.
///
/// # Errors
/// [`Error::NotOffered`], naming the products and offering a mask.
pub fn check(gpu: &Gpu, percent: f64, products: &Products, trusted: bool) -> Result<(), Error> {
    if percent >= 100.0 {
        return Ok(());
    }
    let what = format!("an active thread percentage of {percent} on {}", gpu.label());
    let mask = format!("a mask of the same size leaves the SM count alone: `partita run --sm {percent}%`");
    check_products(gpu, &what, products, trusted, &mask)
}

/// Refuses settings with wrong or unproved products, and names `instead` as the alternative.
pub(super) fn check_products(
    gpu: &Gpu,
    what: &str,
    products: &Products,
    trusted: bool,
    instead: &str,
) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::NotOffered { option: what.to_owned(), reason });
    match products {
        Products::Right { .. } => Ok(()),
        Products::Wrong { library, products } => {
            refuse(format!("{library} computes wrong products with it: {}; {instead}", products.join(", ")))
        }
        // Nothing that could be wrong runs there.
        Products::Unknown { .. } if gpu.sim().is_some() || trusted => Ok(()),
        Products::Unknown { reason } => refuse(format!(
            "whether products come out right with it is not known: {reason}; name the library's directory in LD_LIBRARY_PATH, or give \
             --unproved; {instead}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::GpuFacts;

    fn gpu() -> Gpu {
        let facts = GpuFacts::example();
        Gpu::of(facts, "580.159.04", 13000)
    }

    fn result(cublas: Option<&str>, wrong: &[&str]) -> NumericsResult {
        let wrong = wrong.iter().map(|&product| product.to_owned()).collect();
        NumericsResult { cublas: cublas.map(str::to_owned), products: 18, wrong, worst: 0.0, sms: 132 }
    }

    #[test]
    fn wrong_products_are_named_and_a_mask_is_offered() {
        let wrong = Products::of(result(Some("13.1"), &["fp16 4096x4096x4096 (relative error 2.9e0)"]));
        let error = check(&gpu(), 36.0, &wrong, true).unwrap_err().to_string();
        for words in ["percentage of 36", "cuBLAS 13.1", "fp16 4096x4096x4096", "partita run --sm 36%"] {
            assert!(error.contains(words), "{words}: {error}");
        }
        check(&gpu(), 100.0, &wrong, false).unwrap();
    }

    #[test]
    fn what_is_not_proved_is_refused_unless_asked_for() {
        check(&gpu(), 50.0, &Products::of(result(Some("13.1"), &[])), false).unwrap();
        let unknown = Products::of(result(None, &[]));
        let error = check(&gpu(), 50.0, &unknown, false).unwrap_err().to_string();
        assert!(error.contains("--unproved") && error.contains("libcublas"), "{error}");
        check(&gpu(), 50.0, &unknown, true).unwrap();
    }
}
