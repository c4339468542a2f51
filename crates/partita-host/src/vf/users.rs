//! The processes that have functions or vGPUs: virtual machines hold their VFIO files open.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::sysfs::Sysfs;

/// The processes with an open file of VFIO, by the file's path. Files of other users' processes are
/// seen by root alone.
pub(super) fn holders(sysfs: &dyn Sysfs) -> BTreeMap<PathBuf, Vec<u32>> {
    let vfio = sysfs.root().join("dev/vfio");
    let vfio = vfio.canonicalize().unwrap_or(vfio);
    let mut holders: BTreeMap<PathBuf, Vec<u32>> = BTreeMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for target in files.filter_map(|file| fs::read_link(file.path()).ok()) {
            if target.starts_with(&vfio) {
                let pids = holders.entry(target.strip_prefix(&vfio).unwrap_or(&target).into()).or_default();
                if !pids.contains(&pid) {
                    pids.push(pid);
                }
            }
        }
    }
    holders
}

/// The processes that have the device whose directory this is.
pub(super) fn users(sysfs: &dyn Sysfs, holders: &BTreeMap<PathBuf, Vec<u32>>, directory: &str) -> Vec<u32> {
    let group = sysfs.link(&format!("{directory}/iommu_group")).into_iter().map(PathBuf::from);
    let own = sysfs.list(&format!("{directory}/vfio-dev")).unwrap_or_default();
    let own = own.into_iter().map(|name| PathBuf::from("devices").join(name));
    let mut pids: Vec<u32> =
        group.chain(own).filter_map(|file| holders.get(&file)).flatten().copied().collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}
