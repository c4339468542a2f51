//! Whether the compute units of a dead client are free: the GPU's own answer where no fence says
//! whether its work has ended.
//!
//! A process of its own, a client of the same service with the same compute units, launches blocks
//! that start only on SMs without other work ([`Alone`]). Work that is queued has moments between
//! two kernels, so it must find all SMs free at many moments.

use std::fs::File;
use std::time::Duration;

use partita_core::TpcSet;
use partita_driver::{Alone, Error as DriverError, ProcessMasks};
use partita_mps::lock::lock_within;
use partita_mps::{Pid, Service};
use serde::{Deserialize, Serialize};

use super::canary::{Found, Waiting, ask, say_launches};
use crate::calibration::{Cache, Measured};
use crate::child::Job;
use crate::error::Error;
use crate::gpu::Gpu;
use crate::gpu_job::on_gpu;
use crate::install::Install;

/// The name of the job.
pub const JOB: &str = "mps-vacancy";
/// How many looks must find all SMs free.
const LOOKS: u32 = 10;
/// The pause before each of them: kernels of a queue that lasts take longer than a small part of
/// it.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a look may wait for a kernel that runs, in milliseconds.
const LOOK_LIMIT_MS: u64 = 300;
/// How long all looks may take.
const LIMIT: Duration = Duration::from_millis(1500);
const FREE: &str = "free";
const TAKEN: &str = "taken";
const UNTOLD: &str = "untold";
/// How long a look waits for those of other tenants: each is one more client of the service, and
/// many may die at once.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vacancy {
    /// Nothing runs there.
    Free,
    /// Something does.
    Taken,
    /// This look found out nothing; a later one may.
    Unanswered,
    /// These compute units do not tell.
    Untold,
}

/// Whether this client is the process of a look. Its command line says so: that is no boundary, and
/// serves those who do not claim it.
pub(crate) fn is_look(client: Pid) -> bool {
    let line = std::fs::read(format!("/proc/{client}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == JOB.as_bytes())
}

/// What the job is to look at.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    measured: Measured,
    set: [u64; 4],
}

/// Looks at some compute units, as a client of the service, if that is still wanted when its turn
/// has come. Returns a look that waits still, too: behind a kernel that has all SMs, or because the
/// service runs nothing at the moment. It is left alone, as a [canary](Waiting) is: on an H200 the
/// server ended the work of four such looks, and in three of these services all clients met an
/// illegal address within a second (driver 580.159.04, 2026-11-29).
///
/// # Errors
/// [`Error::Child`] if there can be no process; [`Error::Unproved`] if the GPU is not calibrated;
/// [`Error::Interrupted`].
pub fn look(
    install: &Install,
    gpu: &Gpu,
    service: &Service,
    set: &TpcSet,
    is_wanted: impl Fn() -> bool,
) -> Result<(Vacancy, Option<Waiting>), Error> {
    let request = Request { measured: Cache::open().get(install, gpu)?, set: set.to_words() };
    let turn = File::open(service.dirs().log()).map_err(Error::io("the directory of the service's logs"))?;
    if !lock_within(&turn, TURN_LIMIT).is_ok_and(|is_locked| is_locked) || !is_wanted() {
        return Ok((Vacancy::Unanswered, None));
    }
    let vacancy = match ask(Job::new(install, JOB, &request)?, gpu, service, LIMIT)? {
        Found::Works { line, .. } if line == FREE => Vacancy::Free,
        Found::Works { line, .. } if line == TAKEN => Vacancy::Taken,
        Found::Works { line, .. } if line == UNTOLD => Vacancy::Untold,
        Found::Stuck(look) => {
            let vacancy = if look.has_launched() { Vacancy::Taken } else { Vacancy::Unanswered };
            return Ok((vacancy, Some(look)));
        }
        Found::Works { .. } | Found::Unknown { .. } => Vacancy::Unanswered,
    };
    Ok((vacancy, None))
}

/// The job.
///
/// # Errors
/// Those of the driver, and why the SMs cannot be looked at.
pub fn look_here(request: &Request) -> Result<(), String> {
    let text = |error: DriverError| error.to_string();
    let Request { measured, set } = request;
    let set = TpcSet::from_words(*set);
    on_gpu(|gpu| {
        let topology = measured.topology().map_err(|error| error.to_string())?;
        let layout = partita_abi::qmd::layout_for(measured.device_class, measured.qmd_version)
            .map_err(|error| error.to_string())?;
        let masks = ProcessMasks::install(gpu.cuda(), &topology, layout).map_err(text)?;
        masks.set_process(Some(&set)).map_err(text)?;
        let sms = set.len() * measured.sms_per_tpc;
        say_launches();
        let alone = match Alone::new(gpu, sms) {
            Err(DriverError::Refused(_)) => {
                println!("{UNTOLD}");
                return Ok(());
            }
            alone => alone.map_err(text)?,
        };
        for _ in 0..LOOKS {
            std::thread::sleep(PAUSE);
            match alone.look(LOOK_LIMIT_MS) {
                Ok(true) => {}
                Ok(false) => {
                    println!("{TAKEN}");
                    return Ok(());
                }
                // Its blocks are in flight, and must end before this process does.
                Err(DriverError::Hang { .. }) => {
                    gpu.synchronize().map_err(text)?;
                    println!("{TAKEN}");
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        println!("{FREE}");
        Ok(())
    })
}
