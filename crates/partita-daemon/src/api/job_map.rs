//! `--dcgm-job-map`: a file for each GPU with its tenants, from which dcgm-exporter labels its
//! metrics (`--hpc-job-mapping-dir`).
//!
//! A file has the GPU's index as its name and a job on each line. A GPU without tenants has no
//! file: dcgm-exporter then shows its metrics without the label.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use partita::gpu::Gpu;
use partita::ps::TenantRow;

use super::Shared;

/// The time between two looks at the tenants.
const EVERY: Duration = Duration::from_secs(5);

/// The tenants of each GPU, by its index.
type Jobs = BTreeMap<u32, BTreeSet<String>>;

/// Makes the directory, which the exporter's user can read.
///
/// # Errors
/// Those of the system.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    if !dir.is_dir() {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Keeps the files until the daemon ends, and then removes them: nobody would keep them right.
pub async fn map_jobs(app: Shared) {
    let mut ended = app.ended();
    let Some(dir) = app.job_map().map(Path::to_owned) else { return };
    // What an earlier daemon left is not known, so the first look writes or removes every file.
    let mut before: Option<Jobs> = None;
    loop {
        let gpus = app.gpus().await;
        let dir_now = dir.clone();
        let known = before.clone();
        let looked = app.blocking(move |app| {
            let (gpus, rows) = (gpus?, partita::ps::ps(app.registry())?);
            let now = jobs(&gpus, &rows);
            let written = write(&dir_now, known.as_ref(), &now);
            Ok(written.map(|()| now))
        });
        let looked = tokio::select! {
            _ = ended.wait_for(|&ended| ended) => break,
            looked = looked => looked,
        };
        match looked {
            Ok(Ok(now)) => before = Some(now),
            Ok(Err(error)) => {
                tracing::warn!(dir = %dir.display(), %error, "the map of jobs was not written; it is tried again");
            }
            Err(problem) => tracing::warn!(detail = problem.detail, "the map of jobs is as it was"),
        }
        tokio::select! {
            _ = ended.wait_for(|&ended| ended) => break,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
    let none = before.iter().flatten().map(|(gpu, _)| (*gpu, BTreeSet::new())).collect();
    if let Err(error) = write(&dir, before.as_ref(), &none) {
        tracing::warn!(dir = %dir.display(), %error, "the map of jobs was not removed");
    }
}

fn jobs(gpus: &[Gpu], rows: &[TenantRow]) -> Jobs {
    let of = |gpu: &Gpu| {
        let rows = rows.iter().filter(|row| row.gpu_uuid.as_deref() == Some(&*gpu.facts.uuid));
        (gpu.facts.index, rows.map(|row| row.name.clone()).collect())
    };
    gpus.iter().map(of).collect()
}

/// Writes the files that differ from `before`, each as a whole.
fn write(dir: &Path, before: Option<&Jobs>, now: &Jobs) -> io::Result<()> {
    for (gpu, tenants) in now {
        if before.is_some_and(|before| before.get(gpu) == Some(tenants)) {
            continue;
        }
        let path = dir.join(gpu.to_string());
        if tenants.is_empty() {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => continue,
            }
        }
        // The exporter passes over names that are no numbers.
        let fresh = dir.join(format!("{gpu}.new"));
        let lines: String = tenants.iter().map(|tenant| format!("{tenant}\n")).collect();
        fs::write(&fresh, lines)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o644))?;
        fs::rename(&fresh, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_follow_the_tenants() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = |of: &[(u32, &[&str])]| -> Jobs {
            of.iter()
                .map(|(gpu, names)| (*gpu, names.iter().map(|name| (*name).to_owned()).collect()))
                .collect()
        };
        let read = |gpu: &str| fs::read_to_string(dir.path().join(gpu)).ok();
        // An earlier daemon's.
        fs::write(dir.path().join("1"), "old\n").unwrap();
        let first = jobs(&[(0, &["b", "a"]), (1, &[])]);
        write(dir.path(), None, &first).unwrap();
        assert_eq!((read("0").as_deref(), read("1")), (Some("a\nb\n"), None));
        let second = jobs(&[(0, &[]), (1, &["c"])]);
        write(dir.path(), Some(&first), &second).unwrap();
        assert_eq!((read("0"), read("1").as_deref()), (None, Some("c\n")));
        // What did not change is not written again.
        fs::remove_file(dir.path().join("1")).unwrap();
        write(dir.path(), Some(&second), &second).unwrap();
        assert_eq!(read("1"), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
