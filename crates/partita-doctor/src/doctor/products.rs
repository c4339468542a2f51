//! cuBLAS's matrix products, on masks and under thread percentages.

use std::time::Duration;

use partita_host::error::Error;
use partita_host::gpu::Gpu;
use partita_host::install::Install;
use partita_host::limits::SmCount;
use partita_host::mps::provisioned::{self, Products};
use partita_host::numerics::{self, NumericsResult, cublas_candidates};
use partita_host::sandbox::Sandbox;
use partita_mps::Service;

use super::check::{Check, failed_job};

/// Timeout. Products of 4096³ are checked on the host, element by element.
const NUMERICS_LIMIT: Duration = Duration::from_secs(120);

/// cuBLAS's products on partitions of several sizes, with masks as tenants have them.
pub(super) fn under_masks(gpu: &Gpu, sandbox: &mut Sandbox<'_>) -> Result<Check, Error> {
    const NAME: &str = "products (mask)";
    if gpu.sim().is_some() {
        return Ok(Check::not_checked(NAME, "a simulated GPU runs no vendor code", ""));
    }
    let libraries = cublas_candidates();
    let topology = sandbox.topology().clone();
    let mut compared = 0;
    let mut worst = 0f64;
    let mut version = String::new();
    // The sizes at which a reduced SM count broke products. With `--sm-count partition` the job
    // sees a reduced count, but the library must not.
    let each = [20, 40, 60].map(|percent| [(percent, SmCount::Device), (percent, SmCount::Partition)]);
    for (percent, sm_count) in each.into_iter().flatten() {
        let wanted = (topology.tpc_count() * percent / 100).max(1);
        let plan = partita_core::plan(&topology, &[], partita_core::Share::Tpcs(wanted))
            .map_err(|error| Error::Plan { reason: error.to_string() })?;
        let (name, told_sms) = match sm_count {
            SmCount::Device => (format!("products{percent}"), topology.all().len() * topology.sms_per_tpc()),
            SmCount::Partition => (format!("counted{percent}"), plan.set.len() * topology.sms_per_tpc()),
        };
        let tenant = sandbox.tenant(&name, &plan.set, None)?;
        sandbox.set_sm_count(&tenant, sm_count)?;
        let job = sandbox.job(&tenant, numerics::JOB, &libraries, false)?.limit(NUMERICS_LIMIT);
        let result: NumericsResult = match job.run()? {
            Ok(result) => result,
            Err(error) => return failed_job(NAME, error, &format!("on {percent} % of the TPCs")),
        };
        let Some(cublas) = result.cublas else {
            return Ok(Check::not_checked(
                NAME,
                "no libcublas.so.11 to 13 found",
                "name its directory in LD_LIBRARY_PATH, or `pip install nvidia-cublas`, and run doctor again",
            ));
        };
        if result.sms != told_sms {
            return Ok(Check::failed(
                NAME,
                format!("a program on {percent} % of the TPCs sees {} SMs instead of {told_sms}", result.sms),
                "do not use --sm-count partition here; report the versions",
            ));
        }
        if !result.wrong.is_empty() {
            let (by, remedy) = match sm_count {
                SmCount::Device => ("", "do not run libraries in partitions here; report the versions"),
                SmCount::Partition => (
                    " with --sm-count partition",
                    "do not use --sm-count partition here; report the versions",
                ),
            };
            return Ok(Check::failed(
                NAME,
                format!("cuBLAS {cublas} on {percent} % of the TPCs{by}: {}", result.wrong.join(", ")),
                remedy,
            ));
        }
        compared += result.products;
        worst = worst.max(result.worst);
        version = cublas;
    }
    Ok(Check::ok(
        NAME,
        format!(
            "cuBLAS {version}: {compared} correct products on 20, 40 and 60 % of the TPCs, half of \
             them with --sm-count partition (worst error {worst:.1e})"
        ),
    ))
}

/// cuBLAS's products under thread percentages. Wrong products are not a failure of Partita, which
/// uses masks, but a reason to refuse percentages.
pub(super) fn under_percentages(install: &Install, gpu: &Gpu, service: &Service) -> Result<Check, Error> {
    const NAME: &str = "products (mps)";
    let mut right = Vec::new();
    // The sizes at which a reduced SM count broke products.
    for percent in [20.0, 36.0, 60.0] {
        match provisioned::products(install, gpu, service, percent)? {
            Products::Right { found } => right.push(found),
            Products::Wrong { library, products } => {
                return Ok(Check::weak(
                    NAME,
                    format!("{library} with {percent} % of the SMs by MPS: {}", products.join(", ")),
                    format!("percentages are refused here; masks work: `partita run --sm {percent}%`"),
                ));
            }
            Products::Unknown { reason } => return Ok(Check::not_checked(NAME, reason, "")),
        }
    }
    Ok(Check::ok(NAME, format!("{} each, correct with 20, 36 and 60 % of the SMs by MPS", right.join("; "))))
}
