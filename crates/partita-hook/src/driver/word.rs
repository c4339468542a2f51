//! Numbers of the driver's interface.

/// An unsigned integer of the driver's interface: 32 bits wide in the calls of
/// CUDA 3.1 and before, 64 bits since.
pub trait Word: Copy {
    /// Widens the value.
    fn to_u64(self) -> u64;
    /// Narrows a value, saturating, as the driver's 32-bit calls do.
    fn from_u64(value: u64) -> Self;
}

impl Word for u32 {
    fn to_u64(self) -> u64 {
        self.into()
    }
    fn from_u64(value: u64) -> Self {
        u32::try_from(value).unwrap_or(u32::MAX)
    }
}

impl Word for u64 {
    fn to_u64(self) -> u64 {
        self
    }
    fn from_u64(value: u64) -> Self {
        value
    }
}

impl Word for usize {
    fn to_u64(self) -> u64 {
        self as u64
    }
    fn from_u64(value: u64) -> Self {
        value as usize
    }
}
