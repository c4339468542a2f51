//! Pseudorandom numbers, the same for the same seed.

/// splitmix64 (Steele, Lea, Flood, «Fast splittable pseudorandom number generators», 2014).
#[derive(Debug, Clone)]
pub(super) struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// One of `0..count`; 0 for a count of 0.
    pub fn below(&mut self, count: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u32
    }

    /// True `permille` times of a thousand.
    pub fn happens(&mut self, permille: u32) -> bool {
        self.below(1000) < permille
    }
}
