//! Other projects' interposers, to be measured in the same run: each a library whose path is a
//! parameter. None of them is part of this repository, and none is looked for.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};

/// The quota, as both projects read it.
const MEMORY: &str = "1024m";

/// A library to preload, as `NAME=PATH` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// What its rows are called: `hami-core`, `vgpu-manager`, or anything that reads HAMi-core's
    /// variables.
    pub name: String,
    /// What is preloaded.
    path: PathBuf,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(Self { name: name.to_owned(), path: path.into() })
            }
            _ => Err("a peer is NAME=PATH, as hami-core=/usr/local/vgpu/libvgpu.so".to_owned()),
        }
    }
}

impl Peer {
    /// The command line that comes before a program's to run it under the library, with a quota of
    /// 1 GiB and a core limit. What the library keeps, it keeps in `scratch`, a directory of this
    /// run alone.
    ///
    /// # Errors
    /// If there is no such library.
    pub fn words(&self, scratch: &Path, core_percent: u32) -> Result<Vec<OsString>> {
        let percent = core_percent.to_string();
        let preload =
            self.path.canonicalize().with_context(|| format!("{}: {}", self.name, self.path.display()))?;
        let cache = scratch.join(format!("{}-{core_percent}.cache", self.name));
        let variables: &[(&str, &OsStr)] = match self.name.as_str() {
            "vgpu-manager" => {
                &[("CUDA_MEM_LIMIT_0", MEMORY.as_ref()), ("CUDA_CORE_LIMIT_0", percent.as_ref())]
            }
            _ => &[
                ("CUDA_DEVICE_MEMORY_LIMIT", MEMORY.as_ref()),
                ("CUDA_DEVICE_SM_LIMIT", percent.as_ref()),
                ("CUDA_DEVICE_MEMORY_SHARED_CACHE", cache.as_ref()),
                // Else it counts as the monitor of its cluster says, and there is none.
                ("GPU_CORE_UTILIZATION_POLICY", "force".as_ref()),
                ("LIBCUDA_LOG_LEVEL", "0".as_ref()),
            ],
        };
        let assigned = |(name, value): (&str, &OsStr)| {
            let mut word = OsString::from(name);
            word.push("=");
            word.push(value);
            word
        };
        let variables = variables.iter().copied().chain([("LD_PRELOAD", preload.as_ref())]);
        Ok([OsString::from("env")].into_iter().chain(variables.map(assigned)).collect())
    }
}
