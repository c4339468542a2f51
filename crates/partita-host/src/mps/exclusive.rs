//! EXCLUSIVE_PROCESS: set only when asked for, and taken back with the service that asked.

use std::process::Command;

use partita_mps::Service;

use crate::error::Error;
use crate::gpu::Gpu;

/// The file that records whose setting it is.
const MARK: &str = "exclusive";

/// Lets the server alone onto the GPUs: programs that are no clients fail from then on.
///
/// # Errors
/// [`Error::NotOffered`] with the words of `nvidia-smi`.
pub fn set(service: &Service, gpus: &[Gpu]) -> Result<(), Error> {
    for gpu in gpus.iter().filter(|gpu| gpu.facts.compute_mode != "exclusive-process") {
        change(gpu, "EXCLUSIVE_PROCESS")?;
        let mark = service.dirs().root().join(MARK);
        std::fs::write(&mark, "").map_err(Error::io(mark.display().to_string()))?;
    }
    Ok(())
}

/// Admits all processes again, if [`set`] has changed that. Call it before the service's
/// directories are removed.
///
/// # Errors
/// As [`set`].
pub fn take_back(service: &Service, gpus: &[Gpu]) -> Result<(), Error> {
    let mark = service.dirs().root().join(MARK);
    if !mark.exists() {
        return Ok(());
    }
    gpus.iter().try_for_each(|gpu| change(gpu, "DEFAULT"))?;
    std::fs::remove_file(&mark).map_err(Error::io(mark.display().to_string()))
}

fn change(gpu: &Gpu, mode: &str) -> Result<(), Error> {
    let refuse = |reason: String| Error::NotOffered { option: format!("{mode} on {}", gpu.label()), reason };
    let output = Command::new("nvidia-smi")
        .args(["-i", &gpu.facts.uuid, "-c", mode])
        .env_remove("LD_PRELOAD")
        .output()
        .map_err(|error| {
            refuse(format!("nvidia-smi cannot be run: {error}; install the driver's utilities"))
        })?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim();
    Err(refuse(format!("nvidia-smi: {last}; it takes root, and no MIG")))
}
