//! Versions of the launch descriptor, and which GPU may use which.

use super::layouts;
use super::{LaunchShape, QmdLayout};
use core::fmt;

/// A version of the QMD. The discriminant is the version byte, major version
/// in the high half: `QMD_MAJOR_VERSION << 4 | QMD_VERSION` of the headers.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types)] // The headers' own names.
pub enum QmdVersion {
    /// Kepler to Maxwell, without a TPC mask.
    V00_06 = 0x06,
    /// Kepler.
    V01_06 = 0x16,
    /// Kepler to Pascal.
    V01_07 = 0x17,
    /// Pascal.
    V02_00 = 0x20,
    /// Pascal.
    V02_01 = 0x21,
    /// Volta.
    V02_02 = 0x22,
    /// Turing and Ampere.
    V02_03 = 0x23,
    /// Ampere and Ada.
    V02_04 = 0x24,
    /// Ampere, Ada (where the mask has eight more bits) and Hopper.
    V03_00 = 0x30,
    /// Hopper.
    V04_00 = 0x40,
    /// Blackwell.
    V04_01 = 0x41,
    /// Blackwell.
    V05_00 = 0x50,
    /// Blackwell.
    V05_01 = 0x51,
}

impl QmdVersion {
    /// Every version that NVIDIA's headers describe, in ascending order.
    pub const ALL: [QmdVersion; 13] = [
        Self::V00_06,
        Self::V01_06,
        Self::V01_07,
        Self::V02_00,
        Self::V02_01,
        Self::V02_02,
        Self::V02_03,
        Self::V02_04,
        Self::V03_00,
        Self::V04_00,
        Self::V04_01,
        Self::V05_00,
        Self::V05_01,
    ];

    /// The version with this version byte, or `None` for an unknown one.
    pub const fn from_byte(byte: u8) -> Option<QmdVersion> {
        let mut index = 0;
        while index < Self::ALL.len() {
            if Self::ALL[index] as u8 == byte {
                return Some(Self::ALL[index]);
            }
            index += 1;
        }
        None
    }

    /// The version byte.
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }
}

/// `V04_00`, as in the headers.
impl fmt::Display for QmdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "V{:02}_{:02}", self.byte() >> 4, self.byte() & 0xf)
    }
}

/// A generation's compute class and the versions that its header defines.
///
/// From the class headers in `NVIDIA/open-gpu-doc`, `classes/compute`; the
/// compute capabilities are those of the GPUs that expose the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdClass {
    /// The class's name, such as `HOPPER_COMPUTE_A`.
    pub name: &'static str,
    /// Compute capabilities (major × 10 + minor) of the class.
    pub capabilities: &'static [u32],
    /// The versions that the class's QMD header defines.
    pub versions: &'static [QmdVersion],
    /// The layouts of those versions that this crate can read and write.
    layouts: &'static [&'static QmdLayout],
}

use QmdVersion as V;

/// Every compute class from Kepler on.
pub static CLASSES: &[QmdClass] = &[
    QmdClass {
        name: "KEPLER_COMPUTE_A",
        capabilities: &[30, 32],
        versions: &[V::V00_06, V::V01_06, V::V01_07],
        layouts: &[&layouts::V01_06, &layouts::V01_07],
    },
    QmdClass {
        name: "KEPLER_COMPUTE_B",
        capabilities: &[35, 37],
        versions: &[V::V00_06, V::V01_07],
        layouts: &[&layouts::V01_07],
    },
    QmdClass {
        name: "MAXWELL_COMPUTE_A",
        capabilities: &[50],
        versions: &[V::V00_06, V::V01_07],
        layouts: &[&layouts::V01_07],
    },
    QmdClass {
        name: "MAXWELL_COMPUTE_B",
        capabilities: &[52, 53],
        versions: &[V::V00_06, V::V01_07],
        layouts: &[&layouts::V01_07],
    },
    QmdClass {
        name: "PASCAL_COMPUTE_A",
        capabilities: &[60],
        versions: &[V::V01_07, V::V02_00, V::V02_01],
        layouts: &[&layouts::V01_07, &layouts::V02_00, &layouts::V02_01],
    },
    QmdClass {
        name: "PASCAL_COMPUTE_B",
        capabilities: &[61, 62],
        versions: &[V::V01_07, V::V02_00, V::V02_01],
        layouts: &[&layouts::V01_07, &layouts::V02_00, &layouts::V02_01],
    },
    QmdClass {
        name: "VOLTA_COMPUTE_A",
        capabilities: &[70, 72],
        versions: &[V::V02_02],
        layouts: &[&layouts::V02_02],
    },
    QmdClass {
        name: "TURING_COMPUTE_A",
        capabilities: &[75],
        versions: &[V::V02_03],
        layouts: &[&layouts::V02_03],
    },
    QmdClass {
        name: "AMPERE_COMPUTE_A",
        capabilities: &[80],
        versions: &[V::V02_03, V::V02_04, V::V03_00],
        layouts: &[&layouts::V02_03, &layouts::V02_04, &layouts::V03_00],
    },
    QmdClass {
        name: "AMPERE_COMPUTE_B",
        capabilities: &[86, 87],
        versions: &[V::V02_03, V::V02_04, V::V03_00],
        layouts: &[&layouts::V02_03, &layouts::V02_04, &layouts::V03_00],
    },
    QmdClass {
        name: "ADA_COMPUTE_A",
        capabilities: &[89],
        versions: &[V::V02_04, V::V03_00],
        // V03_00 of this class spreads eight more mask bits over word 11
        // (EXT_LOWER MW(377:372), EXT_UPPER MW(380:379)). A writer that left
        // them alone would leave up to eight TPCs unmasked, so it is refused.
        layouts: &[&layouts::V02_04],
    },
    QmdClass {
        name: "HOPPER_COMPUTE_A",
        capabilities: &[90],
        versions: &[V::V03_00, V::V04_00],
        layouts: &[&layouts::V03_00, &layouts::V04_00],
    },
    QmdClass {
        name: "BLACKWELL_COMPUTE_A",
        capabilities: &[100, 101, 103, 110],
        versions: &[V::V04_01, V::V05_00, V::V05_01],
        layouts: &[],
    },
    QmdClass {
        name: "BLACKWELL_COMPUTE_B",
        capabilities: &[120, 121],
        versions: &[V::V04_01, V::V05_00, V::V05_01],
        layouts: &[],
    },
];

/// The compute class of a compute capability (major × 10 + minor).
pub fn class_for(compute_capability: u32) -> Option<&'static QmdClass> {
    CLASSES.iter().find(|class| class.capabilities.contains(&compute_capability))
}

/// The layout of the descriptors that a GPU is launched with.
///
/// `compute_capability` is major × 10 + minor (90 for 9.0); `version_byte` is
/// what [`version_byte`] reads from a real descriptor of that GPU. The class
/// decides first and the byte must then match exactly, because one byte
/// cannot identify a version: the place where Hopper keeps its version holds
/// other data on later parts.
///
/// # Errors
/// Everything that is not known exactly is refused; the launch is then to be
/// left unmodified and the refusal reported.
pub fn layout_for(compute_capability: u32, version_byte: u8) -> Result<&'static QmdLayout, QmdError> {
    let class = class_for(compute_capability).ok_or(QmdError::UnknownCapability { compute_capability })?;
    if let Some(layout) = class.layouts.iter().find(|layout| layout.version.byte() == version_byte) {
        return Ok(layout);
    }
    // Without a readable layout the byte may be any data: name the class only.
    if class.layouts.is_empty() {
        return Err(QmdError::ClassNotYetSupported { compute_capability, class });
    }
    match QmdVersion::from_byte(version_byte) {
        Some(version) if class.versions.contains(&version) => {
            Err(QmdError::VersionNotYetSupported { compute_capability, class, version })
        }
        _ => Err(QmdError::UnexpectedVersion { compute_capability, class, version_byte }),
    }
}

/// The version byte of a descriptor of any class before Blackwell: byte 72,
/// `QMD_VERSION` MW(579:576) and `QMD_MAJOR_VERSION` MW(583:580).
///
/// `None` when the image is too short to hold it.
#[inline]
pub fn version_byte(image: &[u32]) -> Option<u8> {
    image.get(18).map(|word| *word as u8)
}

/// Why a launch descriptor cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QmdError {
    /// No compute class is known for the GPU.
    UnknownCapability {
        /// Major × 10 + minor.
        compute_capability: u32,
    },
    /// The GPU's class is known, but no version of it is supported.
    ClassNotYetSupported {
        /// Major × 10 + minor.
        compute_capability: u32,
        /// The GPU's class.
        class: &'static QmdClass,
    },
    /// The descriptor has a version of its class that is not supported.
    VersionNotYetSupported {
        /// Major × 10 + minor.
        compute_capability: u32,
        /// The GPU's class.
        class: &'static QmdClass,
        /// The descriptor's version.
        version: QmdVersion,
    },
    /// The version byte is none that the class's header defines.
    UnexpectedVersion {
        /// Major × 10 + minor.
        compute_capability: u32,
        /// The GPU's class.
        class: &'static QmdClass,
        /// The byte that was read.
        version_byte: u8,
    },
    /// The descriptor launches no blocks.
    NotAGrid {
        /// The version of the layout.
        version: QmdVersion,
        /// Its `QMD_TYPE`.
        kind: u32,
    },
    /// A launch of this shape cannot be written in this version.
    ShapeDoesNotFit {
        /// The version of the layout.
        version: QmdVersion,
        /// The shape.
        shape: LaunchShape,
    },
    /// The image is shorter than a descriptor of its version.
    ImageTooShort {
        /// The version of the layout.
        version: QmdVersion,
        /// Length of the image, in 32-bit words.
        words: usize,
    },
}

/// Prints a compute capability as `9.0`.
struct Capability(u32);

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

/// Prints `V03_00 or V04_00`.
struct OneOf(&'static [QmdVersion]);

impl fmt::Display for OneOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, version) in self.0.iter().enumerate() {
            let separator = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " or ",
                _ => ", ",
            };
            write!(f, "{separator}{version}")?;
        }
        Ok(())
    }
}

impl fmt::Display for QmdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownCapability { compute_capability } => write!(
                f,
                "no launch descriptor layout is known for compute capability {}; \
                 launches are left unmodified",
                Capability(compute_capability)
            ),
            Self::ClassNotYetSupported { compute_capability, class } => write!(
                f,
                "compute capability {} ({}) uses launch descriptors {}, which are not yet \
                 supported; launches are left unmodified",
                Capability(compute_capability),
                class.name,
                OneOf(class.versions)
            ),
            Self::VersionNotYetSupported { compute_capability, class, version } => write!(
                f,
                "launch descriptor {version} of compute capability {} ({}) {}, and is not yet \
                 supported; launches are left unmodified",
                Capability(compute_capability),
                class.name,
                match version {
                    QmdVersion::V00_06 => "has no TPC mask",
                    QmdVersion::V03_00 => "extends the TPC mask by eight bits",
                    _ => "differs from the known layouts",
                }
            ),
            Self::UnexpectedVersion { compute_capability, class, version_byte } => write!(
                f,
                "launch descriptor has version byte {version_byte:#04x}, but compute capability {} \
                 ({}) uses {}; launches are left unmodified",
                Capability(compute_capability),
                class.name,
                OneOf(class.versions)
            ),
            Self::NotAGrid { version, kind } => {
                write!(f, "launch descriptor {version} of type {kind} launches no blocks")
            }
            Self::ShapeDoesNotFit { version, shape } => write!(
                f,
                "a {}launch of {:?} blocks in clusters of {:?} does not fit a {version} descriptor",
                if shape.cooperative == Some(true) { "cooperative " } else { "" },
                shape.grid,
                shape.cluster
            ),
            Self::ImageTooShort { version, words } => write!(
                f,
                "launch descriptor image of {} bytes is shorter than a {version} descriptor",
                words * 4
            ),
        }
    }
}

impl core::error::Error for QmdError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn version_bytes_round_trip_and_print_as_in_the_headers() {
        for version in QmdVersion::ALL {
            assert_eq!(QmdVersion::from_byte(version.byte()), Some(version));
        }
        assert!(QmdVersion::ALL.is_sorted());
        assert_eq!(QmdVersion::from_byte(0x18), None);
        assert_eq!(QmdVersion::V04_00.to_string(), "V04_00");
        assert_eq!(QmdVersion::V01_06.to_string(), "V01_06");
    }

    #[test]
    fn each_capability_belongs_to_one_class() {
        for class in CLASSES {
            for capability in class.capabilities {
                assert_eq!(class_for(*capability), Some(class));
            }
            for layout in class.layouts {
                assert!(class.versions.contains(&layout.version));
            }
        }
    }

    #[test]
    fn the_byte_must_match_the_class() {
        let hopper = layout_for(90, 0x40).unwrap();
        assert_eq!(hopper.version, QmdVersion::V04_00);
        assert_eq!(layout_for(90, 0x30).unwrap().version, QmdVersion::V03_00);
        assert_eq!(layout_for(80, 0x30).unwrap().version, QmdVersion::V03_00);
        assert_eq!(layout_for(61, 0x21).unwrap().version, QmdVersion::V02_01);
        assert_eq!(layout_for(89, 0x24).unwrap().version, QmdVersion::V02_04);
        assert_eq!(
            layout_for(80, 0x40),
            Err(QmdError::UnexpectedVersion {
                compute_capability: 80,
                class: class_for(80).unwrap(),
                version_byte: 0x40
            })
        );
        assert_eq!(layout_for(33, 0x40), Err(QmdError::UnknownCapability { compute_capability: 33 }));
    }

    #[test]
    fn refusals_say_which_and_why() {
        assert_eq!(
            layout_for(120, 0x50).unwrap_err().to_string(),
            "compute capability 12.0 (BLACKWELL_COMPUTE_B) uses launch descriptors V04_01, \
             V05_00 or V05_01, which are not yet supported; launches are left unmodified"
        );
        assert_eq!(
            layout_for(89, 0x30).unwrap_err().to_string(),
            "launch descriptor V03_00 of compute capability 8.9 (ADA_COMPUTE_A) extends the \
             TPC mask by eight bits, and is not yet supported; launches are left unmodified"
        );
        assert_eq!(
            layout_for(90, 0x41).unwrap_err().to_string(),
            "launch descriptor has version byte 0x41, but compute capability 9.0 \
             (HOPPER_COMPUTE_A) uses V03_00 or V04_00; launches are left unmodified"
        );
        assert!(matches!(layout_for(50, 0x06), Err(QmdError::VersionNotYetSupported { .. })));
    }

    #[test]
    fn the_version_byte_is_byte_72() {
        let mut image = [0_u32; 96];
        image[18] = 0xabcd_ef40;
        assert_eq!(version_byte(&image), Some(0x40));
        assert_eq!(version_byte(&image[..18]), None);
    }
}
