//! Launch descriptors with any bytes in them: a mask is written only where the version's layout has
//! one, touches nothing else, never enables what the descriptor has disabled, and is read back as
//! it was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use partita_abi::qmd::{self, layout_of};

/// Compute capabilities of every generation that has descriptors with masks, and some that do not
/// exist.
const CAPABILITIES: [u32; 10] = [52, 61, 70, 75, 80, 86, 89, 90, 100, 255];

fuzz_target!(|input: &[u8]| {
    let [choice, rest @ ..] = input else { return };
    let (disable, rest) = rest.split_at(rest.len().min(32));
    let mut words = [0u32; 8];
    for (word, bytes) in words.iter_mut().zip(disable.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let mut image: Vec<u32> = rest.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let capability = CAPABILITIES[usize::from(*choice) % CAPABILITIES.len()];
    let Ok(layout) = layout_of(capability, &image) else { return };
    let _ = layout.shape(&image);
    let before = image.clone();
    let own = qmd::read_disable_mask(&image, layout);
    if qmd::merge_disable_mask(&mut image, layout, &words).is_err() {
        assert!(image == before, "refused and written to");
        return;
    }
    // On versions without a valid bit an empty mask reads as no mask.
    let now = qmd::read_disable_mask(&image, layout).unwrap_or_default();
    for (word, (now, asked)) in now.iter().zip(words).enumerate() {
        let own = own.map_or(0, |own| own[word]);
        assert_eq!(now & own, own, "enabled what was disabled");
        // Bits that this version's mask does not have cannot be set.
        assert_eq!(now & !(asked | own), 0, "disabled bits that were not requested");
    }
    assert!(layout.is_version_of(&image), "the version is no part of the mask");
});
