//! Identifiers of devices, and which of them `CUDA_VISIBLE_DEVICES` shows.

use crate::shared::place::Place;

/// The identifier of a simulated device: the same for everybody who looks at the same place.
pub fn device_uuid(place: &Place) -> [u8; 16] {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut uuid = [0u8; 16];
    for (half, part) in uuid.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (half, place.spec.id, &place.dir).hash(&mut hasher);
        if place.index > 0 {
            place.index.hash(&mut hasher);
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

/// Whether an entry of `CUDA_VISIBLE_DEVICES` names a device: by index, by identifier or by the start of one.
fn names(entry: &str, index: u32, uuid: [u8; 16]) -> bool {
    let entry = entry.trim();
    if let Ok(number) = entry.parse::<u32>() {
        return number == index;
    }
    entry.len() > 4
        && entry.starts_with("GPU-")
        && uuid_text(uuid).starts_with(&entry.to_lowercase().replacen("gpu-", "GPU-", 1))
}

/// The devices that `CUDA_VISIBLE_DEVICES` shows, in its order. As with the real driver the list ends at the first
/// entry that names nothing, that could be one of several, or that was there already.
pub fn visible_devices(list: Option<&str>, uuids: &[[u8; 16]]) -> Vec<usize> {
    let Some(list) = list else { return (0..uuids.len()).collect() };
    let mut shown = Vec::new();
    for entry in list.split(',') {
        let mut named = (0..uuids.len()).filter(|index| names(entry, *index as u32, uuids[*index]));
        match (named.next(), named.next()) {
            (Some(index), None) if !shown.contains(&index) => shown.push(index),
            _ => break,
        }
    }
    shown
}

/// Whether `CUDA_VISIBLE_DEVICES` shows one device, for somebody who knows of no others.
pub fn is_visible(list: Option<&str>, index: u32, uuid: [u8; 16]) -> bool {
    list.is_none_or(|list| list.split(',').any(|entry| names(entry, index, uuid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_visible_by_index_and_by_identifier() {
        let uuid = *b"\x12\x34\x56\x78\x9a\xbc\x4d\xef\x80\x12\x34\x56\x78\x9a\xbc\xde";
        let other = *b"\x12\x99\x56\x78\x9a\xbc\x4d\xef\x80\x12\x34\x56\x78\x9a\xbc\xde";
        assert_eq!(uuid_text(uuid), "GPU-12345678-9abc-4def-8012-3456789abcde");
        let one = |list| visible_devices(Some(list), &[uuid]) == [0];
        assert_eq!(visible_devices(None, &[uuid, other]), [0, 1]);
        assert!(one("0") && one("0,1") && one("GPU-12345678-9abc-4def-8012-3456789abcde") && one("GPU-1234"));
        assert!(!one("") && !one("1,0") && !one("-1") && !one("GPU-999") && !one("GPU-"));
        let two = |list| visible_devices(Some(list), &[uuid, other]);
        assert_eq!(two("1,0"), [1, 0]);
        assert_eq!(two("1"), [1]);
        assert_eq!(two("GPU-1299, GPU-1234"), [1, 0]);
        assert_eq!(two("0,0"), [0]);
        // Both begin so.
        assert_eq!(two("GPU-12"), []);
        assert_eq!(two("2,0"), []);
        assert!(
            is_visible(Some("1,0"), 0, uuid) && !is_visible(Some("1"), 0, uuid) && is_visible(None, 0, uuid)
        );
    }
}
