//! Static SM partitions, of control programs from 13010 on and daemons that were started with `-S`.
//!
//! A client then needs one, by `CUDA_MPS_SM_PARTITION`, or is refused with error 915. A chunk has 8
//! SMs from compute capability 9.0 on and 4 before; the last chunk of a device also has the
//! remaining SMs. The table has the seven columns of the manual. NVIDIA does not publish the texts
//! of refusals, so those here are this module's own.

use std::fmt::Write;

use partita_sim::DeviceSpec;

use crate::shared::place::Place;
use crate::shared::visible::{device_uuid, uuid_text};

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Partition {
    uuid: String,
    id: String,
    first_chunk: u32,
    chunks: u32,
}

/// A device, as far as partitions of it are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    uuid: String,
    sms: u32,
    sms_per_tpc: u32,
    sms_per_chunk: u32,
}

impl Device {
    fn of(spec: &DeviceSpec, uuid: String) -> Self {
        let sms_per_chunk = if spec.compute_capability.major >= 9 { 8 } else { 4 };
        Self { uuid, sms: spec.sm_count(), sms_per_tpc: spec.topology.sms_per_tpc(), sms_per_chunk }
    }

    fn chunks(&self) -> u32 {
        self.sms / self.sms_per_chunk
    }

    /// The SMs of a partition: the first, and how many.
    fn sms_of(&self, partition: &Partition) -> (u32, u32) {
        let first = partition.first_chunk * self.sms_per_chunk;
        let is_last = partition.first_chunk + partition.chunks == self.chunks();
        let end =
            if is_last { self.sms } else { (partition.first_chunk + partition.chunks) * self.sms_per_chunk };
        (first, end - first)
    }
}

/// Every partition of a daemon's devices.
#[derive(Debug)]
pub(super) struct Partitions {
    devices: Vec<Device>,
    made: Vec<Partition>,
    next: u32,
}

/// The partitions in use: device and id.
pub(super) type InUse = Vec<(String, String)>;

impl Partitions {
    /// No partitions yet, of the machine's devices.
    pub fn of_machine() -> Self {
        let devices = Place::all_from_env().unwrap_or_default();
        let devices =
            devices.iter().map(|place| Device::of(&place.spec, uuid_text(device_uuid(place)))).collect();
        Self { devices, made: Vec::new(), next: 0 }
    }

    /// Creates a partition; it prints a sentence with its name, like real drivers.
    pub fn add(&mut self, uuid: &str, chunks: u32, in_use: &InUse) -> Result<String, String> {
        let failed = |why: &str| {
            Err(format!("Failed to fulfill the requested SM partition of {chunks} chunks: {why}"))
        };
        let Some(device) = self.devices.iter().find(|device| device.uuid == uuid) else {
            return Err(format!("Invalid device: {uuid}"));
        };
        if in_use.iter().any(|(user, _)| user == uuid) {
            return failed("the device has clients");
        }
        let taken = |chunk: &u32| {
            self.made.iter().any(|one| {
                one.uuid == uuid && (one.first_chunk..one.first_chunk + one.chunks).contains(chunk)
            })
        };
        let starts = 0..(device.chunks() + 1).saturating_sub(chunks);
        let first = starts.into_iter().find(|first| !(*first..first + chunks).any(|chunk| taken(&chunk)));
        let Some(first_chunk) = first.filter(|_| chunks > 0) else {
            return failed("there are not so many free ones side by side");
        };
        self.next += 1;
        // Base64 has slashes.
        let id = format!("Ab{}/=", self.next);
        self.made.push(Partition { uuid: uuid.to_owned(), id: id.clone(), first_chunk, chunks });
        Ok(format!("Partition {id} created on {uuid}"))
    }

    /// Removes an unused partition.
    pub fn remove(&mut self, uuid: &str, id: &str, in_use: &InUse) -> Result<String, String> {
        let Some(at) = self.made.iter().position(|one| one.uuid == uuid && one.id == id) else {
            return Err(format!("Partition {id} not found on {uuid}"));
        };
        if in_use.iter().any(|(user, used)| user == uuid && used == id) {
            return Err(format!("Failed to remove partition {id}: it is in use"));
        }
        self.made.remove(at);
        Ok(String::new())
    }

    /// The table: a line for each device, and one for each partition of it.
    pub fn list(&self, in_use: &InUse) -> String {
        let mut table = "GPU            Partition  Free-chunk Used-chunk Free-SM Used-SM Clients".to_owned();
        for device in &self.devices {
            let short: String = device.uuid.chars().take(12).collect();
            let mine: Vec<&Partition> = self.made.iter().filter(|one| one.uuid == device.uuid).collect();
            let chunks: u32 = mine.iter().map(|one| one.chunks).sum();
            let sms: u32 = mine.iter().map(|one| device.sms_of(one).1).sum();
            let _ = write!(
                table,
                "\n{short:<14} {:<10} {:<10} {chunks:<10} {:<7} {sms:<7} -",
                "-",
                device.chunks() - chunks,
                device.sms - sms
            );
            for one in mine {
                let (_, sms) = device.sms_of(one);
                let clients = in_use.iter().filter(|(uuid, id)| *uuid == one.uuid && *id == one.id).count();
                let _ = write!(
                    table,
                    "\n{short:<14} {:<10} {:<10} {:<10} {:<7} {sms:<7} {clients}",
                    one.id, "-", one.chunks, "-"
                );
            }
        }
        table
    }

    /// The id, and the TPCs (the first, and how many), of the partition that a client of a device
    /// names by `CUDA_MPS_SM_PARTITION`.
    pub fn find(&self, uuid: &str, name: Option<&str>) -> Option<(String, (u32, u32))> {
        let (of, id) = name?.split_once('/')?;
        let device = self.devices.iter().find(|device| device.uuid == uuid && of == uuid)?;
        let partition = self.made.iter().find(|one| one.uuid == uuid && one.id == id)?;
        let (first, sms) = device.sms_of(partition);
        Some((partition.id.clone(), (first / device.sms_per_tpc, sms / device.sms_per_tpc)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> Partitions {
        let spec = partita_sim::catalogue::device("h200").unwrap();
        Partitions { devices: vec![Device::of(&spec, "GPU-1".to_owned())], made: Vec::new(), next: 0 }
    }

    #[test]
    fn partitions_are_disjoint_and_the_last_one_has_the_remainder() {
        let mut partitions = h200();
        assert_eq!(partitions.add("GPU-1", 14, &Vec::new()).unwrap(), "Partition Ab1/= created on GPU-1");
        assert!(partitions.add("GPU-1", 3, &Vec::new()).unwrap_err().contains("of 3 chunks"));
        partitions.add("GPU-1", 2, &Vec::new()).unwrap();
        assert_eq!(partitions.find("GPU-1", Some("GPU-1/Ab1/=")), Some(("Ab1/=".to_owned(), (0, 56))));
        assert_eq!(partitions.find("GPU-1", Some("GPU-1/Ab2/=")), Some(("Ab2/=".to_owned(), (56, 10))));
        for missing in [None, Some("GPU-1/Ab3/="), Some("GPU-2/Ab1/="), Some("Ab1/=")] {
            assert_eq!(partitions.find("GPU-1", missing), None, "{missing:?}");
        }
        assert!(partitions.add("GPU-2", 1, &Vec::new()).unwrap_err().contains("Invalid device"));
        assert!(partitions.add("GPU-1", 0, &Vec::new()).is_err());
    }

    #[test]
    fn partitions_in_use_stay() {
        let mut partitions = h200();
        partitions.add("GPU-1", 2, &Vec::new()).unwrap();
        let in_use = vec![("GPU-1".to_owned(), "Ab1/=".to_owned())];
        assert!(partitions.add("GPU-1", 2, &in_use).unwrap_err().contains("has clients"));
        assert!(partitions.remove("GPU-1", "Ab1/=", &in_use).unwrap_err().contains("in use"));
        let table = partitions.list(&in_use);
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["GPU-1", "-", "14", "2", "116", "16", "-"]);
        assert_eq!(words[2], ["GPU-1", "Ab1/=", "-", "2", "-", "16", "1"]);
        partitions.remove("GPU-1", "Ab1/=", &Vec::new()).unwrap();
        assert!(partitions.remove("GPU-1", "Ab1/=", &Vec::new()).unwrap_err().contains("not found"));
    }
}
