//! What a node offers: the devices of its GPUs and their ResourceSlices. Pure.
//!
//! Each GPU is two devices: a shared one, whose capacities claims consume, and the whole one. Both
//! consume the GPU's one counter, which the scheduler takes once for a device, not once for a
//! share: so they exclude each other, and shares do not.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, CounterSet, Device, DeviceAttribute,
    DeviceCapacity, DeviceCounterConsumption, DeviceTaint, ResourcePool, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use partita_core::memory::RESERVE_BYTES;

use crate::DRIVER;
use crate::quantity::{count, mebibytes};

/// The compute units of a device, in SMs. The only axis of compute: the scheduler adds up each
/// capacity by itself.
pub const MULTIPROCESSORS: &str = "multiprocessors";
/// The device memory that tenants may have, including what the driver takes for itself in them.
pub const MEMORY: &str = "memory";
/// The clients of the GPU's MPS service.
pub const CLIENTS: &str = "clients";

/// The least memory of a claim: a context takes half of it.
pub const MEMORY_LEAST_MIB: u64 = 1024;
/// The counter of a GPU.
const COUNTER: &str = "whole";
/// The key of the taint of a device that is ill.
pub const TAINT: &str = "partita.dev/unusable";

/// Counter sets in a slice, and devices with counters in one: limits of the API.
const COUNTER_SETS_MAX: usize = 8;
const DEVICES_MAX: usize = 64;

/// A GPU as this module needs it, or an instance of one with MIG.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Board {
    /// `GPU-…`.
    pub uuid: String,
    /// The value of `--gpu` that names it.
    pub selector: String,
    /// The product's name.
    pub product: String,
    /// Its PCI address, if it has one.
    pub pci: Option<String>,
    /// The driver's build.
    pub driver: String,
    /// The newest CUDA, thousands for the major.
    pub cuda: u32,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// SMs of a TPC, the step of the compute axis.
    pub sms_per_tpc: u32,
    /// TPCs.
    pub tpcs: u32,
    /// GPCs, if the probe proved where they are.
    pub gpcs: Option<u32>,
    /// Bytes, as CUDA counts them.
    pub memory_bytes: u64,
    /// The most clients of its MPS service.
    pub clients: u32,
    /// Whether it is simulated.
    pub is_simulated: bool,
    /// Why nothing can run on it now.
    pub fault: Option<String>,
    /// What makes it an instance.
    pub mig: Option<Mig>,
}

/// A MIG instance. Its UUID is `MIG-…`, and its TPCs and memory are its own.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mig {
    /// Its GPU, `GPU-…`.
    pub parent: String,
    /// The name of its profile, as `3g.71gb`.
    pub profile: String,
}

impl Board {
    /// SMs.
    pub fn sms(&self) -> u32 {
        self.tpcs * self.sms_per_tpc
    }

    /// What tenants may have, in whole MiB. An instance is given whole.
    pub fn memory_mib(&self) -> u64 {
        match self.mig {
            Some(_) => self.memory_bytes >> 20,
            None => self.memory_bytes.saturating_sub(RESERVE_BYTES) >> 20,
        }
    }

    /// The name of the whole device. It is made of the UUID: an index would name another GPU after
    /// one has vanished.
    pub fn device(&self) -> String {
        self.uuid.to_ascii_lowercase()
    }

    /// The name of the shared device.
    pub fn shared_device(&self) -> String {
        format!("{}-shared", self.device())
    }

    /// The names of its devices.
    pub fn devices(&self) -> Vec<String> {
        match self.mig {
            Some(_) => vec![self.device()],
            None => vec![self.shared_device(), self.device()],
        }
    }

    fn architecture(&self) -> &'static str {
        match self.compute_capability {
            (6, _) => "Pascal",
            (7, 5) => "Turing",
            (7, _) => "Volta",
            (8, 9) => "Ada Lovelace",
            (8, _) => "Ampere",
            (9, _) => "Hopper",
            (10..=12, _) => "Blackwell",
            _ => "unknown",
        }
    }

    fn attributes(&self, kind: &str) -> BTreeMap<String, DeviceAttribute> {
        let text = |value: &str| DeviceAttribute {
            string: Some(value.chars().take(64).collect()),
            ..DeviceAttribute::default()
        };
        let number = |value: u32| DeviceAttribute { int: Some(value.into()), ..DeviceAttribute::default() };
        let flag = |value: bool| DeviceAttribute { bool: Some(value), ..DeviceAttribute::default() };
        let version = |value: String| DeviceAttribute { version: Some(value), ..DeviceAttribute::default() };
        let (major, minor) = self.compute_capability;
        let mut attributes = BTreeMap::from(
            [
                ("type", text(kind)),
                ("uuid", text(&self.uuid)),
                ("productName", text(&self.product)),
                ("architecture", text(self.architecture())),
                ("cudaComputeCapability", version(format!("{major}.{minor}.0"))),
                ("cudaDriverVersion", version(format!("{}.{}.0", self.cuda / 1000, self.cuda % 1000 / 10))),
                ("smsPerTpc", number(self.sms_per_tpc)),
                ("tpcs", number(self.tpcs)),
                ("simulated", flag(self.is_simulated)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        let own = match &self.mig {
            Some(mig) => [("profile", text(&mig.profile)), ("parentUUID", text(&mig.parent))],
            // The calibration proves masks, or there is no device.
            None => [("maskProved", flag(true)), ("gpcsProved", flag(self.gpcs.is_some()))],
        };
        attributes.extend(own.map(|(name, value)| (name.to_owned(), value)));
        attributes.extend(semantic(&self.driver).map(|text| ("driverVersion".to_owned(), version(text))));
        attributes.extend(self.gpcs.map(|gpcs| ("gpcs".to_owned(), number(gpcs))));
        let pci = self.pci.as_deref().map(|pci| ("resource.kubernetes.io/pciBusID".to_owned(), text(pci)));
        attributes.extend(pci);
        attributes
    }

    /// The attributes of one of its devices.
    pub fn attributes_of(&self, device: &str) -> BTreeMap<String, DeviceAttribute> {
        self.attributes(match device == self.device() {
            true if self.mig.is_some() => "mig",
            true => "gpu",
            false => "shared",
        })
    }

    fn consumption(&self) -> Vec<DeviceCounterConsumption> {
        vec![DeviceCounterConsumption { counter_set: self.device(), counters: counters() }]
    }

    fn taints(&self) -> Option<Vec<DeviceTaint>> {
        // A taint's value has the form of a label; the reason is in the driver's events.
        self.fault.as_ref().map(|_| {
            vec![DeviceTaint {
                key: TAINT.to_owned(),
                value: None,
                // Tenants that are there keep running: what ends them is not this driver's to know.
                effect: "NoSchedule".to_owned(),
                time_added: None,
            }]
        })
    }

    fn shared(&self) -> Device {
        let step = u64::from(self.sms_per_tpc);
        let ranged = |value: Quantity, default: Quantity, min: Quantity, step: Quantity| DeviceCapacity {
            request_policy: Some(CapacityRequestPolicy {
                default: Some(default),
                valid_range: Some(CapacityRequestPolicyRange {
                    max: Some(value.clone()),
                    min,
                    step: Some(step),
                }),
                valid_values: None,
            }),
            value,
        };
        let sms = count(self.sms().into());
        let memory = mebibytes(self.memory_mib());
        let capacity = [
            (MULTIPROCESSORS, ranged(sms.clone(), sms, count(step), count(step))),
            (MEMORY, ranged(memory.clone(), memory, mebibytes(MEMORY_LEAST_MIB), mebibytes(1))),
            (CLIENTS, ranged(count(self.clients.into()), count(1), count(1), count(1))),
        ];
        Device {
            name: self.shared_device(),
            allow_multiple_allocations: Some(true),
            attributes: Some(self.attributes("shared")),
            capacity: Some(capacity.map(|(name, value)| (name.to_owned(), value)).into()),
            consumes_counters: Some(self.consumption()),
            taints: self.taints(),
            ..Device::default()
        }
    }

    fn whole(&self) -> Device {
        let fixed = |value: Quantity| DeviceCapacity { request_policy: None, value };
        let capacity = [
            (MULTIPROCESSORS, fixed(count(self.sms().into()))),
            (MEMORY, fixed(mebibytes(self.memory_mib()))),
        ];
        Device {
            name: self.device(),
            attributes: Some(self.attributes_of(&self.device())),
            capacity: Some(capacity.map(|(name, value)| (name.to_owned(), value)).into()),
            // Instances exclude nothing: the hardware divides the GPU.
            consumes_counters: self.mig.is_none().then(|| self.consumption()),
            taints: self.taints(),
            ..Device::default()
        }
    }
}

fn counters() -> BTreeMap<String, Counter> {
    BTreeMap::from([(COUNTER.to_owned(), Counter { value: count(1) })])
}

/// NVIDIA's build as a semantic version, which has three numbers without leading zeros.
fn semantic(build: &str) -> Option<String> {
    let mut numbers = build.split('.').map(str::parse::<u64>).collect::<Result<Vec<_>, _>>().ok()?;
    numbers.resize(3, 0);
    Some(format!("{}.{}.{}", numbers[0], numbers[1], numbers[2]))
}

/// The slices of a node, in order. Counters have slices of their own, as the API requires.
pub fn slices(node: &str, boards: &[Board], generation: i64) -> Vec<ResourceSliceSpec> {
    let of_board = |board: &Board| match board.mig {
        Some(_) => vec![board.whole()],
        None => vec![board.shared(), board.whole()],
    };
    let devices: Vec<Device> = boards.iter().flat_map(of_board).collect();
    let counted = boards.iter().filter(|board| board.mig.is_none());
    let sets: Vec<CounterSet> =
        counted.map(|board| CounterSet { name: board.device(), counters: counters() }).collect();
    let count = sets.chunks(COUNTER_SETS_MAX).count() + devices.chunks(DEVICES_MAX).count();
    let empty = || ResourceSliceSpec {
        driver: DRIVER.to_owned(),
        node_name: Some(node.to_owned()),
        pool: ResourcePool { generation, name: node.to_owned(), resource_slice_count: count as i64 },
        ..ResourceSliceSpec::default()
    };
    let of_sets = sets
        .chunks(COUNTER_SETS_MAX)
        .map(|sets| ResourceSliceSpec { shared_counters: Some(sets.to_vec()), ..empty() });
    let of_devices = devices
        .chunks(DEVICES_MAX)
        .map(|devices| ResourceSliceSpec { devices: Some(devices.to_vec()), ..empty() });
    of_sets.chain(of_devices).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::quantity::whole;

    pub(crate) fn h200(which: u32) -> Board {
        Board {
            uuid: format!("GPU-0011{which:04}-2233-4455-6677-8899aabbccdd"),
            selector: which.to_string(),
            product: "NVIDIA H200".to_owned(),
            pci: Some("0000:18:00.0".to_owned()),
            driver: "580.159.04".to_owned(),
            cuda: 13000,
            compute_capability: (9, 0),
            sms_per_tpc: 2,
            tpcs: 66,
            gpcs: Some(8),
            memory_bytes: 150_123_456_789,
            clients: 48,
            is_simulated: false,
            fault: None,
            mig: None,
        }
    }

    pub(crate) fn instance(which: u32) -> Board {
        Board {
            uuid: format!("MIG-0022{which:04}-2233-4455-6677-8899aabbccdd"),
            tpcs: 8,
            gpcs: None,
            memory_bytes: 16 << 30,
            clients: 0,
            mig: Some(Mig { parent: h200(9).uuid, profile: "1g.18gb".to_owned() }),
            ..h200(9)
        }
    }

    /// The API server's rule for capacities: default and maximum are the least and whole steps.
    #[test]
    fn every_capacity_is_whole_steps() {
        for spec in slices("n", &[h200(0)], 1) {
            for device in spec.devices.into_iter().flatten() {
                for (name, capacity) in device.capacity.unwrap() {
                    let Some(policy) = capacity.request_policy else { continue };
                    let range = policy.valid_range.unwrap();
                    let min = whole(&range.min).unwrap();
                    let step = whole(&range.step.unwrap()).unwrap();
                    for value in [range.max.unwrap(), policy.default.unwrap(), capacity.value.clone()] {
                        let value = whole(&value).unwrap();
                        assert!(value >= min && (value - min).is_multiple_of(step), "{name}: {value}");
                    }
                }
            }
        }
    }

    #[test]
    fn shared_and_whole_device_exclude_each_other() {
        let specs = slices("n", &[h200(0), h200(1)], 7);
        assert_eq!(specs.len(), 2);
        assert!(specs[0].devices.is_none() && specs[1].shared_counters.is_none());
        assert!(specs.iter().all(|spec| spec.pool.resource_slice_count == 2 && spec.pool.generation == 7));
        let devices = specs[1].devices.as_ref().unwrap();
        assert_eq!(devices.len(), 4);
        for pair in devices.chunks(2) {
            assert_eq!(pair[0].consumes_counters, pair[1].consumes_counters);
            let set = &pair[0].consumes_counters.as_ref().unwrap()[0].counter_set;
            assert!(specs[0].shared_counters.as_ref().unwrap().iter().any(|one| one.name == *set));
            assert_eq!(
                (pair[0].allow_multiple_allocations, pair[1].allow_multiple_allocations),
                (Some(true), None)
            );
        }
        assert_ne!(devices[0].consumes_counters, devices[2].consumes_counters);
    }

    #[test]
    fn an_instance_is_one_device_that_excludes_none() {
        let specs = slices("n", &[h200(0), instance(0), instance(1)], 1);
        assert_eq!(specs[0].shared_counters.as_ref().unwrap().len(), 1);
        let devices = specs[1].devices.as_ref().unwrap();
        assert_eq!(devices.len(), 4);
        for device in &devices[2..] {
            assert!(device.name.starts_with("mig-") && device.consumes_counters.is_none());
            assert_eq!(device.allow_multiple_allocations, None);
            let attributes = device.attributes.as_ref().unwrap();
            let text = |name: &str| attributes[name].string.clone().unwrap();
            assert_eq!(
                (text("type"), text("profile"), text("parentUUID")),
                ("mig".into(), "1g.18gb".into(), h200(9).uuid)
            );
            assert!(!attributes.contains_key("maskProved"));
            let capacity = device.capacity.as_ref().unwrap();
            assert_eq!(whole(&capacity[MULTIPROCESSORS].value), Ok(16));
            assert_eq!(whole(&capacity[MEMORY].value), Ok(16 << 30));
        }
        // Alone they need no slice of counters.
        assert_eq!(slices("n", &[instance(0)], 1).len(), 1);
    }

    #[test]
    fn a_node_of_many_gpus_stays_within_the_limits_of_the_api() {
        let boards: Vec<Board> = (0..40).map(h200).collect();
        let specs = slices("n", &boards, 1);
        assert_eq!(specs.len(), 5 + 2);
        for spec in &specs {
            assert_eq!(spec.pool.resource_slice_count, 7);
            assert!(spec.shared_counters.iter().flatten().count() <= 8);
            assert!(spec.devices.iter().flatten().count() <= 64);
            for device in spec.devices.iter().flatten() {
                let attributes = device.attributes.as_ref().unwrap().len();
                assert!(attributes + device.capacity.as_ref().unwrap().len() <= 32);
                assert!(device.name.len() <= 63 && device.name.starts_with("gpu-"));
            }
        }
    }

    #[test]
    fn versions_are_semantic() {
        assert_eq!(semantic("580.159.04").as_deref(), Some("580.159.4"));
        assert_eq!(semantic("535.86").as_deref(), Some("535.86.0"));
        assert_eq!(semantic("unknown"), None);
        let ill = Board { fault: Some("it fell off the bus".to_owned()), ..h200(0) };
        let devices = slices("n", &[ill], 1)[1].devices.clone().unwrap();
        assert!(devices.iter().all(|device| device.taints.as_ref().unwrap()[0].key == TAINT));
    }
}
