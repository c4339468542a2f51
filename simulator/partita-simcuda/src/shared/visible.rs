//! Identifiers of devices, and which of them `CUDA_VISIBLE_DEVICES` shows.

use std::io;

use partita_core::visible;

use super::place::Place;

/// The identifier of a simulated device: the same for every process that uses the same place, and
/// of equal boards in all directories with the same file `serial`.
pub fn device_uuid(place: &Place) -> [u8; 16] {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let serial = place.serial();
    let mut uuid = [0u8; 16];
    for (half, part) in uuid.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (half, place.spec.id).hash(&mut hasher);
        match &serial {
            Some(serial) => serial.hash(&mut hasher),
            None => place.dir.hash(&mut hasher),
        }
        if place.index > 0 {
            place.index.hash(&mut hasher);
        }
        if let Some(number) = place.gpu_instance() {
            ("instance", number).hash(&mut hasher);
        }
        part.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    // A random (version 4) identifier by its marked bits, as real boards have.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// `GPU-` and the identifier in the usual groups.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    format!("GPU-{}", partita_abi::types::CUuuid { bytes: uuid })
}

/// The name by which lists mean the device of a place: `GPU-` or, of a MIG instance, `MIG-`, and
/// its identifier.
pub fn name_of(place: &Place) -> String {
    let text = uuid_text(device_uuid(place));
    if place.gpu_instance().is_some() { text.replacen("GPU-", "MIG-", 1) } else { text }
}

/// The places of the devices that `CUDA_VISIBLE_DEVICES` shows, in its order.
///
/// # Errors
/// Instances that cannot be.
pub fn visible_devices(list: Option<&str>, gpus: &[Place]) -> io::Result<Vec<Place>> {
    let instances = gpus.iter().map(Place::instances).collect::<io::Result<Vec<_>>>()?;
    let known: Vec<visible::Gpu> = gpus
        .iter()
        .zip(&instances)
        .map(|(gpu, instances)| visible::Gpu {
            uuid: device_uuid(gpu),
            instances: instances.as_ref().map(|all| all.iter().map(instance).collect()),
        })
        .collect();
    let place = |shown: visible::Shown| match shown.instance {
        None => gpus.get(shown.gpu).cloned(),
        Some(instance) => instances.get(shown.gpu)?.as_ref()?.get(instance).cloned(),
    };
    Ok(visible::shown(list, &known).into_iter().filter_map(place).collect())
}

/// An instance as the list names it.
fn instance(place: &Place) -> visible::Instance {
    visible::Instance {
        uuid: device_uuid(place),
        gpu_instance: place.gpu_instance().unwrap_or(0),
        compute_instance: 0,
    }
}

/// Whether `CUDA_VISIBLE_DEVICES` shows one device, for a caller that knows no others.
pub fn is_visible(list: Option<&str>, index: u32, uuid: [u8; 16]) -> bool {
    let could_mean = |entry| visible::Entry::parse(entry).is_some_and(|entry| entry.could_mean(index, &uuid));
    list.is_none_or(|list| list.split(',').any(could_mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_devices_of_the_machine() {
        let gpu = |index| Place::new("h200", index, Some("/tmp/none".into())).unwrap();
        let gpus = [gpu(0), gpu(1)];
        let uuid = name_of(&gpus[1]);
        assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{uuid}");
        let shown = |list: &str| -> Vec<u32> {
            visible_devices(Some(list), &gpus).unwrap().iter().map(|place| place.index).collect()
        };
        assert_eq!(shown("1,0"), [1, 0]);
        assert_eq!(shown(&uuid), [1]);
        assert_eq!(shown(""), []);
        assert_eq!(visible_devices(None, &gpus).unwrap().len(), 2);
        let own = device_uuid(&gpus[0]);
        assert!(
            is_visible(Some("1,0"), 0, own) && !is_visible(Some("1"), 0, own) && is_visible(None, 0, own)
        );
    }
}
