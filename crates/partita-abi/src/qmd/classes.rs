//! The table of compute classes: which GPU can use which version of the launch descriptor.

use super::class::QmdClass;
use super::{QmdError, QmdLayout, QmdVersion, layouts};

use QmdVersion as V;

const PASCAL: [QmdVersion; 3] = [V::V01_07, V::V02_00, V::V02_01];
const AMPERE: [QmdVersion; 3] = [V::V02_03, V::V02_04, V::V03_00];
const BLACKWELL: [QmdVersion; 3] = [V::V04_01, V::V05_00, V::V05_01];

const fn class(
    name: &'static str,
    capabilities: &'static [u32],
    versions: &'static [QmdVersion],
    masked: &'static [QmdVersion],
    layouts: &'static [&'static QmdLayout],
) -> QmdClass {
    QmdClass { name, capabilities, versions, masked, layouts }
}

/// Every compute class from Kepler on.
pub static CLASSES: &[QmdClass] = &[
    class(
        "KEPLER_COMPUTE_A",
        &[30, 32],
        &[V::V00_06, V::V01_06, V::V01_07],
        &[V::V01_06, V::V01_07],
        &[&layouts::V01_06, &layouts::V01_07],
    ),
    class("KEPLER_COMPUTE_B", &[35, 37], &[V::V00_06, V::V01_07], &[V::V01_07], &[&layouts::V01_07]),
    class("MAXWELL_COMPUTE_A", &[50], &[V::V00_06, V::V01_07], &[V::V01_07], &[&layouts::V01_07]),
    class("MAXWELL_COMPUTE_B", &[52, 53], &[V::V00_06, V::V01_07], &[V::V01_07], &[&layouts::V01_07]),
    class(
        "PASCAL_COMPUTE_A",
        &[60],
        &PASCAL,
        &PASCAL,
        &[&layouts::V01_07, &layouts::V02_00, &layouts::V02_01],
    ),
    class(
        "PASCAL_COMPUTE_B",
        &[61, 62],
        &PASCAL,
        &PASCAL,
        &[&layouts::V01_07, &layouts::V02_00, &layouts::V02_01],
    ),
    class("VOLTA_COMPUTE_A", &[70, 72], &[V::V02_02], &[V::V02_02], &[&layouts::V02_02]),
    class("TURING_COMPUTE_A", &[75], &[V::V02_03], &[V::V02_03], &[&layouts::V02_03]),
    class(
        "AMPERE_COMPUTE_A",
        &[80],
        &AMPERE,
        &AMPERE,
        &[&layouts::V02_03, &layouts::V02_04, &layouts::V03_00],
    ),
    class(
        "AMPERE_COMPUTE_B",
        &[86, 87],
        &AMPERE,
        &AMPERE,
        &[&layouts::V02_03, &layouts::V02_04, &layouts::V03_00],
    ),
    class(
        "ADA_COMPUTE_A",
        &[89],
        &[V::V02_04, V::V03_00],
        &[V::V02_04, V::V03_00],
        // V03_00 of this class has eight more mask bits than elsewhere.
        &[&layouts::V02_04, &layouts::V03_00_ADA],
    ),
    class(
        "HOPPER_COMPUTE_A",
        &[90],
        &[V::V03_00, V::V04_00],
        &[V::V03_00, V::V04_00],
        &[&layouts::V03_00, &layouts::V04_00],
    ),
    class(
        "BLACKWELL_COMPUTE_A",
        &[100, 101, 103, 110],
        &BLACKWELL,
        &[V::V04_01, V::V05_00],
        &[&layouts::V04_01, &layouts::V05_00],
    ),
    class(
        "BLACKWELL_COMPUTE_B",
        &[120, 121],
        &BLACKWELL,
        &[V::V04_01, V::V05_00],
        &[&layouts::V04_01, &layouts::V05_00],
    ),
];

/// The compute class of a compute capability (major × 10 + minor).
pub fn class_for(compute_capability: u32) -> Option<&'static QmdClass> {
    CLASSES.iter().find(|class| class.capabilities.contains(&compute_capability))
}

/// The layout of a GPU's descriptors of a known version.
///
/// `compute_capability` is major × 10 + minor (90 for 9.0); `version_byte` is that of a descriptor
/// that [`layout_of`] read before. The same byte can stand for different layouts of different
/// classes.
///
/// # Errors
/// Every unknown combination is refused; leave the launch unmodified then, and report the refusal.
pub fn layout_for(compute_capability: u32, version_byte: u8) -> Result<&'static QmdLayout, QmdError> {
    let class = class_for(compute_capability).ok_or(QmdError::UnknownCapability { compute_capability })?;
    match QmdVersion::from_byte(version_byte) {
        Some(version) if class.versions.contains(&version) => {
            layout_in(class, version).ok_or(QmdError::NoMask { compute_capability, class, version })
        }
        _ => Err(QmdError::UnexpectedVersion { compute_capability, class, version_byte }),
    }
}

/// How much of a descriptor [`layout_of`] reads, in 32-bit words. Every version is longer.
pub const QMD_HEAD_WORDS: usize = 19;

/// The layout of a descriptor, by its GPU's class and its version byte.
///
/// `compute_capability` is major × 10 + minor (90 for 9.0); the first [`QMD_HEAD_WORDS`] words of
/// `image` are enough. The class comes first, because one byte cannot identify a version: V05 has
/// its version at byte 58, where a V04 descriptor has part of a pointer, and has part of a
/// semaphore's payload at byte 72, where every other version has its version. Exactly one version
/// of the class must be at its own place.
///
/// # Errors
/// Every unknown combination is refused; leave the launch unmodified then, and report the refusal.
pub fn layout_of(compute_capability: u32, image: &[u32]) -> Result<&'static QmdLayout, QmdError> {
    let class = class_for(compute_capability).ok_or(QmdError::UnknownCapability { compute_capability })?;
    if image.len() < QMD_HEAD_WORDS {
        return Err(QmdError::ImageTooShort { version: class.versions[0], words: image.len() });
    }
    let mut found = class.versions.iter().copied().filter(|version| version.stands_in(image));
    if let (Some(version), None) = (found.next(), found.next()) {
        return layout_in(class, version).ok_or(QmdError::NoMask { compute_capability, class, version });
    }
    let byte_72 = QmdVersion::V04_01.byte_at_place(image).unwrap_or_default();
    if class.versions.iter().all(|version| version.offset_bytes() == QmdVersion::V04_01.offset_bytes()) {
        return Err(QmdError::UnexpectedVersion { compute_capability, class, version_byte: byte_72 });
    }
    let byte_58 = QmdVersion::V05_00.byte_at_place(image).unwrap_or_default();
    Err(QmdError::UnclearVersion { compute_capability, class, byte_72, byte_58 })
}

fn layout_in(class: &QmdClass, version: QmdVersion) -> Option<&'static QmdLayout> {
    class.layouts.iter().copied().find(|layout| layout.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmd::QMD_WORDS_MAX;
    use std::string::ToString;

    #[test]
    fn each_capability_belongs_to_one_class() {
        for class in CLASSES {
            for capability in class.capabilities {
                assert_eq!(class_for(*capability), Some(class));
            }
            let versions: std::vec::Vec<_> = class.layouts.iter().map(|layout| layout.version).collect();
            assert_eq!(versions, class.masked);
            assert!(class.masked.iter().all(|version| class.versions.contains(version)));
        }
    }

    #[test]
    fn a_descriptor_is_known_by_its_class_and_its_own_byte() {
        for class in CLASSES {
            for layout in class.layouts {
                for &capability in class.capabilities {
                    let image = layout.empty_image();
                    assert!(core::ptr::eq(layout_of(capability, &image).unwrap(), *layout));
                    assert!(core::ptr::eq(layout_for(capability, layout.version.byte()).unwrap(), *layout));
                    assert!(layout.version.stands_in(&image));
                }
            }
        }
        // The same byte is another layout on Ada.
        let (hopper, ada) = (layout_for(90, 0x30).unwrap(), layout_for(89, 0x30).unwrap());
        assert_eq!((hopper.version, hopper.mask.tpcs_max()), (QmdVersion::V03_00, 64));
        assert_eq!((ada.version, ada.mask.tpcs_max()), (QmdVersion::V03_00, 72));
    }

    #[test]
    fn a_class_with_two_places_needs_exactly_one_version() {
        let mut image = [0; QMD_WORDS_MAX];
        // A payload at V04's version byte in a V05 descriptor.
        image[14] = 0x0050_0000;
        image[18] = 0x1234_5677;
        assert_eq!(layout_of(120, &image).unwrap().version, QmdVersion::V05_00);
        image[18] = 0x1234_5641;
        assert_eq!(
            layout_of(120, &image).unwrap_err().to_string(),
            "launch descriptor has 0x41 at byte 72 and 0x50 at byte 58, which is not exactly one of V04_01, \
             V05_00 or V05_01 of compute capability 12.0 (BLACKWELL_COMPUTE_B); launches are left \
             unmodified"
        );
        image[14] = 0x00ff_0000;
        assert_eq!(layout_of(100, &image).unwrap().version, QmdVersion::V04_01);
        image[18] = 0;
        assert!(matches!(layout_of(100, &image), Err(QmdError::UnclearVersion { .. })));
        assert!(matches!(layout_of(100, &image[..18]), Err(QmdError::ImageTooShort { words: 18, .. })));
    }

    #[test]
    fn refusals_say_which_and_why() {
        assert_eq!(
            layout_for(120, 0x51).unwrap_err().to_string(),
            "launch descriptor V05_01 of compute capability 12.0 (BLACKWELL_COMPUTE_B) has no TPC mask; \
             launches are left unmodified, and a driver that uses V04_01 or V05_00 is needed"
        );
        assert_eq!(
            layout_for(35, 0x06).unwrap_err().to_string(),
            "launch descriptor V00_06 of compute capability 3.5 (KEPLER_COMPUTE_B) has no TPC mask; launches \
             are left unmodified, and a driver that uses V01_07 is needed"
        );
        assert_eq!(
            layout_for(90, 0x41).unwrap_err().to_string(),
            "launch descriptor has version byte 0x41, but compute capability 9.0 (HOPPER_COMPUTE_A) uses \
             V03_00 or V04_00; launches are left unmodified"
        );
        assert_eq!(layout_for(33, 0x40), Err(QmdError::UnknownCapability { compute_capability: 33 }));
        let mut image = [0; QMD_WORDS_MAX];
        image[14] = 0x0051_0000;
        assert!(matches!(layout_of(100, &image), Err(QmdError::NoMask { version: QmdVersion::V05_01, .. })));
        assert!(matches!(layout_of(90, &image), Err(QmdError::UnexpectedVersion { version_byte: 0, .. })));
    }
}
