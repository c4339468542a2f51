//! `--dcgm-job-map`: a file for each GPU with its tenants, from which dcgm-exporter labels its
//! metrics (`--hpc-job-mapping-dir`).
//!
//! A file has the GPU's index as its name and a job on each line. A GPU without tenants has no
//! file: dcgm-exporter then shows its metrics without the label.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use partita::gpu::Gpu;
use partita::ps::TenantRow;

use super::Shared;
use crate::problem::{Kind, Problem};

/// The time between two updates.
const EVERY: Duration = Duration::from_secs(5);

/// The tenants of each GPU, by its index.
type Jobs = BTreeMap<u32, BTreeSet<String>>;

/// Makes the directory, which the exporter's user can read.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::PermissionDenied`] if other users could replace its files.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    if !dir.is_dir() {
        fs::create_dir_all(dir).map_err(|error| {
            let reason = match error.kind() {
                io::ErrorKind::AlreadyExists => "it is not a directory".to_owned(),
                _ => format!("it cannot be made: {error}"),
            };
            io::Error::new(error.kind(), format!("{reason}; name a directory that this user can write"))
        })?;
        fs::set_permissions(dir, Permissions::from_mode(0o755))?;
    }
    let meta = fs::metadata(dir)?;
    let user = rustix::process::geteuid().as_raw();
    if meta.uid() != user || meta.mode() & 0o022 != 0 {
        let reason = "other users can change it; name a directory that only this user can write";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(())
}

/// Updates the files until the daemon ends, and then removes them, because they would be out of
/// date.
pub async fn map_jobs(app: Shared) {
    let mut ended = app.ended();
    let Some(dir) = app.job_map().map(Path::to_owned) else { return };
    // Files of an earlier daemon may be there, so the first round writes or removes every file.
    let mut before: Option<Jobs> = None;
    let mut is_failing = false;
    loop {
        // Only a driver that hangs is left behind. A write that the end did not wait for could
        // leave a file behind.
        let gpus = tokio::select! {
            _ = ended.wait_for(|&ended| ended) => break,
            gpus = app.gpus() => gpus,
        };
        let updated = match gpus {
            Ok(gpus) => update(&app, gpus, &dir, before.as_ref()).await,
            Err(problem) => Err(problem),
        };
        match updated {
            Ok(now) => (before, is_failing) = (Some(now), false),
            // Once, until it works again.
            Err(problem) if !std::mem::replace(&mut is_failing, true) => {
                tracing::warn!(
                    dir = %dir.display(),
                    detail = problem.detail,
                    "the files of --dcgm-job-map are out of date; the daemon tries again every 5 s"
                );
            }
            Err(_) => {}
        }
        tokio::select! {
            _ = ended.wait_for(|&ended| ended) => break,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
    // Every file, because an update that failed may have written some of them.
    let empty = before.iter().flatten().map(|(gpu, _)| (*gpu, BTreeSet::new())).collect();
    if let Err(error) = write(&dir, None, &empty) {
        tracing::warn!(dir = %dir.display(), %error, "the files of --dcgm-job-map were not removed");
    }
}

async fn update(
    app: &Shared,
    gpus: Arc<Vec<Gpu>>,
    dir: &Path,
    before: Option<&Jobs>,
) -> Result<Jobs, Problem> {
    let (dir, before) = (dir.to_owned(), before.cloned());
    app.blocking(move |app| {
        let now = jobs(&gpus, &partita::ps::ps(app.registry())?);
        write(&dir, before.as_ref(), &now)
            .map_err(|error| Problem::new(Kind::Internal, format!("{}: {error}", dir.display())))?;
        Ok(now)
    })
    .await
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
        // The exporter ignores names that are not numbers.
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
        // A file of an earlier daemon.
        fs::write(dir.path().join("1"), "old\n").unwrap();
        let first = jobs(&[(0, &["b", "a"]), (1, &[])]);
        write(dir.path(), None, &first).unwrap();
        assert_eq!((read("0").as_deref(), read("1")), (Some("a\nb\n"), None));
        let second = jobs(&[(0, &[]), (1, &["c"])]);
        write(dir.path(), Some(&first), &second).unwrap();
        assert_eq!((read("0"), read("1").as_deref()), (None, Some("c\n")));
        // A file without changes is not written again.
        fs::remove_file(dir.path().join("1")).unwrap();
        write(dir.path(), Some(&second), &second).unwrap();
        assert_eq!(read("1"), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("a/b");
        make_dir(&made).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o755);
        make_dir(&made).unwrap();
        fs::set_permissions(&made, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(make_dir(&made).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
