//! The limits that a client sets for itself, by the variables of its environment.

use serde::{Deserialize, Serialize};

use super::limits::{self, MemoryLimit, OwnMemory};
use crate::shared::place::Place;
use crate::shared::visible::{device_uuid, name_of, uuid_text};

const ENV_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// With this one, each context has the percentage that the process's environment holds when it is
/// made.
const ENV_PER_CONTEXT: &str = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";
const ENV_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const ENV_PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// A client's own limits on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// Active thread percentage of the process, which can only lower the server's.
    pub percentage: Option<f32>,
    /// Its limit of device memory.
    pub memory: OwnMemory,
    /// Its priority: 0 normal, 1 below normal. `None` takes the daemon's.
    pub priority: Option<u32>,
}

impl Own {
    /// The limits in this process's environment, on the device of `place`, of those that it sees.
    #[must_use]
    pub fn from_env(place: &Place, visible: &[Place]) -> Self {
        let value = |name| std::env::var(name).ok();
        let names: Vec<[String; 2]> =
            visible.iter().map(|place| [uuid_text(device_uuid(place)), name_of(place)]).collect();
        let here = visible.iter().position(|one| one.socket() == place.socket());
        let memory = match (value(ENV_MEMORY), here) {
            (Some(list), Some(here)) => memory(&list, here, &names),
            _ => OwnMemory::Unset,
        };
        let percentage =
            if is_per_context() { None } else { value(ENV_PERCENTAGE).and_then(|text| parsed(&text)) };
        let priority = value(ENV_PRIORITY).and_then(|text| text.trim().parse().ok());
        Self { percentage, memory, priority: priority.filter(|level| *level <= 1) }
    }
}

/// The percentage of a context that this process makes now, if contexts have percentages of their
/// own.
#[must_use]
pub fn context_percentage() -> Option<f32> {
    if !is_per_context() {
        return None;
    }
    std::env::var(ENV_PERCENTAGE).ok().and_then(|text| parsed(&text))
}

fn is_per_context() -> bool {
    std::env::var(ENV_PER_CONTEXT).is_ok_and(|text| text.trim() == "1")
}

fn parsed(text: &str) -> Option<f32> {
    limits::percentage(text.trim()).ok()
}

/// The limit of the device number `here` in a list like `0=1G,GPU-…=512M`; the last one counts. The
/// driver ignores what it cannot read.
fn memory(list: &str, here: usize, names: &[[String; 2]]) -> OwnMemory {
    let mut found = OwnMemory::Unset;
    for (device, limit) in list.split(',').filter_map(|entry| entry.split_once('=')) {
        let Ok(limit) = MemoryLimit::parse(limit.trim()) else { continue };
        let device = device.trim();
        let is_named = |names: &[String; 2]| names.iter().any(|name| name.eq_ignore_ascii_case(device));
        let place = match device.parse::<usize>() {
            Ok(number) => (number < names.len()).then_some(number),
            Err(_) => names.iter().position(is_named),
        };
        match place {
            None => return OwnMemory::DropsAll,
            Some(place) if place == here => found = OwnMemory::Bytes(limit.bytes()),
            Some(_) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_devices_by_number_and_by_identifier() {
        let names = ["GPU-aa", "GPU-bb"].map(|name| [name.to_owned(), name.replace("GPU", "MIG")]);
        let bytes = |text| OwnMemory::Bytes(MemoryLimit::parse(text).unwrap().bytes());
        for (list, expected) in [
            ("0=1G", [bytes("1G"), OwnMemory::Unset]),
            ("1=512M,0=2g", [bytes("2G"), bytes("512M")]),
            (" gpu-BB = 3M ", [OwnMemory::Unset, bytes("3M")]),
            ("MIG-aa=3M", [bytes("3M"), OwnMemory::Unset]),
            ("0=1G,0=2G", [bytes("2G"), OwnMemory::Unset]),
            ("0=1G,junk,0=x,=", [bytes("1G"), OwnMemory::Unset]),
            ("0=1G,2=1G", [OwnMemory::DropsAll; 2]),
            ("GPU-cc=1G,0=1G", [OwnMemory::DropsAll; 2]),
            ("", [OwnMemory::Unset; 2]),
        ] {
            assert_eq!([0, 1].map(|here| memory(list, here, &names)), expected, "{list}");
        }
    }
}
