//! `CUDA_VISIBLE_DEVICES`: the devices that a program sees, and their order.
//!
//! Forms of an entry, from the CUDA Programming Guide and the MIG User Guide: a number; `GPU-` and
//! a UUID, or a prefix of it that only one GPU has; `MIG-` and the UUID of a MIG instance, or its
//! prefix; and `MIG-GPU-UUID/GI/CI`, the instance names of drivers before 470, which later ones
//! still accept. The driver shows the devices of the list up to its first entry that is invalid,
//! ambiguous, or repeats a device. A GPU in MIG mode is itself not a device: its number and its
//! UUID mean its first instance. A process sees one instance and no other device.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

/// The meaning of an entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The GPU with this number.
    Number(u32),
    /// The GPU whose UUID has this prefix.
    Gpu(&'a str),
    /// The MIG instance whose UUID has this prefix.
    Instance(&'a str),
    /// A MIG instance of the GPU with this UUID.
    InstanceOf {
        /// The GPU's UUID, whole.
        gpu: &'a str,
        /// The number of the GPU instance.
        gpu_instance: u32,
        /// The number of the compute instance in that.
        compute_instance: u32,
    },
}

impl<'a> Entry<'a> {
    /// Reads an entry; `None` if it is invalid.
    pub fn parse(entry: &'a str) -> Option<Self> {
        let entry = entry.trim();
        if let Some(number) = number(entry) {
            return Some(Self::Number(number));
        }
        if let Some(rest) = without_prefix(entry, "MIG-GPU-") {
            let mut parts = rest.split('/');
            let (gpu, gpu_instance, compute_instance) = (parts.next()?, parts.next()?, parts.next()?);
            let (gpu_instance, compute_instance) = (number(gpu_instance)?, number(compute_instance)?);
            let is_whole = gpu.len() == UUID_CHARS && is_beginning(gpu) && parts.next().is_none();
            return is_whole.then_some(Self::InstanceOf { gpu, gpu_instance, compute_instance });
        }
        if let Some(rest) = without_prefix(entry, "MIG-") {
            return is_beginning(rest).then_some(Self::Instance(rest));
        }
        without_prefix(entry, "GPU-").filter(|rest| is_beginning(rest)).map(Self::Gpu)
    }

    /// Whether it could mean a whole GPU with this number and UUID.
    pub fn could_mean(self, number: u32, uuid: &[u8; 16]) -> bool {
        match self {
            Self::Number(own) => own == number,
            Self::Gpu(beginning) => begins(beginning, uuid),
            Self::Instance(_) | Self::InstanceOf { .. } => false,
        }
    }
}

/// A MIG instance that programs can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The number of its GPU instance.
    pub gpu_instance: u32,
    /// The number of the compute instance in that.
    pub compute_instance: u32,
}

/// A GPU of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its instances, if it is in MIG mode.
    pub instances: Option<Vec<Instance>>,
}

/// A device that a program sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// Which GPU.
    pub gpu: usize,
    /// Which of its instances; `None` for a GPU that is not in MIG mode.
    pub instance: Option<usize>,
}

/// The devices that a program sees with this list (`None` if the variable is not set), by their
/// ordinals. GPUs are in the driver's order.
pub fn shown(list: Option<&str>, gpus: &[Gpu]) -> Vec<Shown> {
    let first_of = |gpu: usize| match &gpus[gpu].instances {
        None => Some(Shown { gpu, instance: None }),
        Some(instances) => (!instances.is_empty()).then_some(Shown { gpu, instance: Some(0) }),
    };
    let mut seen: Vec<Shown> = Vec::new();
    match list {
        None => {
            let all: Vec<Shown> = (0..gpus.len()).filter_map(first_of).collect();
            // Whole GPUs, if there are any.
            seen.extend(all.iter().filter(|device| device.instance.is_none()));
            if seen.is_empty() {
                seen.extend(all.first());
            }
        }
        Some(list) => {
            for entry in list.split(',') {
                let mut meant =
                    Entry::parse(entry).into_iter().flat_map(|entry| devices(entry, gpus, &first_of));
                match (meant.next(), meant.next()) {
                    (Some(device), None) if !seen.contains(&device) => seen.push(device),
                    _ => break,
                }
            }
            // An instance is alone, whatever else the list has.
            match seen.iter().position(|device| device.instance.is_some()) {
                Some(0) => seen.truncate(1),
                Some(at) => seen.truncate(at),
                None => {}
            }
        }
    }
    seen
}

/// Every device that an entry could mean.
fn devices(entry: Entry<'_>, gpus: &[Gpu], first_of: &dyn Fn(usize) -> Option<Shown>) -> Vec<Shown> {
    let of_gpus = |is_meant: &dyn Fn(usize) -> bool| -> Vec<Shown> {
        (0..gpus.len()).filter(|&gpu| is_meant(gpu)).filter_map(first_of).collect()
    };
    let of_instances = |is_meant: &dyn Fn(&Gpu, &Instance) -> bool| -> Vec<Shown> {
        let mut found = Vec::new();
        for (gpu, one) in gpus.iter().enumerate() {
            let instances = one.instances.iter().flatten().enumerate();
            let meant = instances.filter(|(_, instance)| is_meant(one, instance));
            found.extend(meant.map(|(instance, _)| Shown { gpu, instance: Some(instance) }));
        }
        found
    };
    match entry {
        Entry::Number(_) | Entry::Gpu(_) => {
            of_gpus(&|gpu| u32::try_from(gpu).is_ok_and(|number| entry.could_mean(number, &gpus[gpu].uuid)))
        }
        Entry::Instance(beginning) => of_instances(&|_, instance| begins(beginning, &instance.uuid)),
        Entry::InstanceOf { gpu, gpu_instance, compute_instance } => of_instances(&|of, instance| {
            begins(gpu, &of.uuid)
                && (instance.gpu_instance, instance.compute_instance) == (gpu_instance, compute_instance)
        }),
    }
}

/// Characters of a UUID: 32 digits and 4 dashes.
const UUID_CHARS: usize = 36;
/// Where the dashes are.
const DASHES: [usize; 4] = [8, 13, 18, 23];

/// Whether a text can be the prefix of a UUID: digits and dashes where a UUID has them.
fn is_beginning(text: &str) -> bool {
    let is_char = |(at, byte): (usize, u8)| match DASHES.contains(&at) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    (1..=UUID_CHARS).contains(&text.len()) && text.bytes().enumerate().all(is_char)
}

/// Whether a UUID has this prefix, which can be one of a UUID.
fn begins(text: &str, uuid: &[u8; 16]) -> bool {
    let own = uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(u32::from);
    let digits = text.bytes().filter(|byte| *byte != b'-').map(|byte| char::from(byte).to_digit(16));
    digits.zip(own).all(|(digit, own)| digit == Some(own))
}

fn number(text: &str) -> Option<u32> {
    // `parse` would accept a sign.
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn without_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}
