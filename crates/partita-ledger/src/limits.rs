//! The limits of a tenant.

use core::ffi::CStr;

use partita_core::time::Policy;
use partita_core::words;

use crate::error::LimitsFault;

/// The value for no memory quota.
pub const NO_QUOTA: u64 = u64::MAX;
/// The default driver allowance: the device memory that the driver may allocate for itself in each
/// process before it counts against the quota, 1 GiB. A context takes 0.5 GiB on an H200, and
/// PyTorch's libraries load as much again for a network (`docs/hardware.md`).
pub const DRIVER_ALLOWANCE_BYTES: u64 = 1 << 30;
/// The allowances for all processes of a tenant together, as a multiple of one: without a bound
/// each further process would be another gigabyte beside the quota.
pub const DRIVER_ALLOWANCES: u64 = 4;
/// The longest tenant name in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// In [`Limits::flags`]: the device's GPCs are not proved, so clusters are limited to one TPC.
pub const FLAG_GPCS_UNPROVED: u32 = 1;
/// In [`Limits::flags`]: a launch that can never fit the set runs on the whole GPU instead of an
/// error.
pub const FLAG_ON_MISFIT_WIDEN: u32 = 2;

/// In [`Limits::flags`]: an allocation that does not fit the quota gets host memory that the device
/// can access.
pub const FLAG_SPILL_HOST: u32 = 4;
/// In [`Limits::flags`]: the tenant was started with a priority, and its launches go through the
/// GPU's gate.
pub const FLAG_GATED: u32 = 8;
/// In [`Limits::flags`]: the tenant was started with a share of time, and its launches are
/// measured.
pub const FLAG_TIMED: u32 = 16;
/// In [`Limits::flags`]: the tenant may use time that no other tenant needs, beyond its share.
pub const FLAG_TIME_SOFT: u32 = 32;
/// In [`Limits::flags`]: programs that query the number of SMs get the tenant's, NVIDIA's libraries
/// get the device's.
pub const FLAG_SM_COUNT_PARTITION: u32 = 64;
/// In [`Limits::flags`]: the tenant gets no share of the kernels that the device runs at once, and
/// may run them all.
pub const FLAG_ALL_TASK_SLOTS: u32 = 128;
/// In [`Limits::flags`]: the tenant shares its TPCs, in turns, with other tenants that have this
/// flag. Without a mask it has the whole device in its turns.
pub const FLAG_TURNS: u32 = 256;
/// In [`Limits::flags`]: the tenant was promised no memory. Its quota is its part of what is not
/// promised to others; it has none while they have no promise.
pub const FLAG_MEMORY_REST: u32 = 512;
/// In [`Limits::flags`]: the share of time is enforced by a token bucket.
pub const FLAG_TIME_TOKENS: u32 = 1024;
/// In [`Limits::flags`]: the tenant's processes show in the GPU's elastic file when they are at
/// work, so that others may borrow its TPCs while they rest.
pub const FLAG_LENDS: u32 = 2048;
/// In [`Limits::flags`]: other tenants use the device, too, so large copies between host and device
/// are made in pieces.
pub(crate) const FLAG_NEIGHBOURS: u32 = 4096;
/// In [`Limits::flags`]: some of these other tenants are out of this one's sight.
const FLAG_STRANGERS: u32 = 8192;

/// In [`Limits::mechanism`]: the tenant has no partition; its launches are unchanged.
pub const MECHANISM_NONE: u32 = 0;
/// In [`Limits::mechanism`]: every launch carries the set, as a mask in its descriptor.
pub const MECHANISM_MASK: u32 = 1;
/// In [`Limits::mechanism`]: kernels are rewritten into persistent blocks, which keep to the set by
/// themselves.
pub const MECHANISM_PERSISTENT: u32 = 2;

/// The number of words of the limits in the file.
pub(crate) const WORDS: usize = 128;
/// The word whose low half is [`Limits::max_cluster_sms`].
pub(crate) const MAX_CLUSTER_WORD: usize = 14;
/// The word with [`Limits::driver_allowance_bytes`].
pub(crate) const DRIVER_ALLOWANCE_WORD: usize = 17;
/// The word whose low half is [`Limits::flags`], and whose high half is [`Limits::task_slots`].
pub(crate) const FLAGS_WORD: usize = 16;

/// The limits of a tenant on its GPU.
///
/// Numbers that the ledger does not interpret (`priority`) pass through unchanged. The switches in
/// `flags` have types: [`OnMisfit`], [`Spill`], [`SmCount`],
/// [`TaskSlots`], and [`Limits::time_policy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The GPU's UUID.
    pub gpu_uuid: [u8; 16],
    /// Compute capability: major × 10 + minor.
    pub device_class: u32,
    /// The version of the device's launch descriptor, in a code that the hook and the planner
    /// share.
    pub qmd_version: u8,
    /// SMs per TPC.
    pub sms_per_tpc: u32,
    /// TPCs of the device.
    pub tpc_count: u32,
    /// Enabled TPCs, logical numbering.
    pub set: [u64; 4],
    /// Disable mask of the launches: physical numbering, a set bit disables.
    pub qmd_disable: [u32; 8],
    /// The largest cluster that fits into the partition, in SMs.
    pub max_cluster_sms: u32,
    /// The most device memory that all processes of the tenant hold together, in bytes;
    /// [`NO_QUOTA`] for no limit.
    pub memory_quota_bytes: u64,
    /// The device's memory in bytes; 0 if unknown.
    pub memory_total_bytes: u64,
    /// The memory that the driver may allocate for itself (contexts, code, variables of modules,
    /// stacks) in each process before it counts against the quota, in bytes; [`DRIVER_ALLOWANCES`]
    /// times that in all processes together.
    pub driver_allowance_bytes: u64,
    /// Share of the device's time, per mille.
    pub time_permille: u32,
    /// Priority of the tenant among the tenants of the device.
    pub priority: u32,
    /// Switches for the hook: [`FLAG_GPCS_UNPROVED`], [`FLAG_ON_MISFIT_WIDEN`],
    /// [`FLAG_SPILL_HOST`], [`FLAG_GATED`], [`FLAG_TIMED`], [`FLAG_TIME_SOFT`],
    /// [`FLAG_SM_COUNT_PARTITION`], [`FLAG_ALL_TASK_SLOTS`], [`FLAG_TURNS`],
    /// [`FLAG_MEMORY_REST`], [`FLAG_TIME_TOKENS`], [`FLAG_LENDS`], and what
    /// [`Limits::has_neighbours`] reads.
    pub flags: u32,
    /// The tenant's share of the kernels that the device runs at once; 0 for no limit.
    pub task_slots: u32,
    /// How the partition is enforced: [`MECHANISM_NONE`], [`MECHANISM_MASK`],
    /// [`MECHANISM_PERSISTENT`].
    pub mechanism: u32,
    /// The tenant's name: UTF-8, padded with zero bytes, of which it has at least one.
    pub name: [u8; NAME_BYTES_MAX + 1],
    /// Physical number of each logical TPC; entries from `tpc_count` on are unused.
    pub physical_of_logical: [u16; 256],
    /// GPC of each logical TPC; entries from `tpc_count` on are unused.
    pub gpc_of_logical: [u8; 256],
    /// The most TPCs that the tenant uses with what it borrows, its own included; 0 if it does not
    /// borrow.
    pub borrow_tpcs_max: u64,
    /// TPCs that it may not borrow, whether in use or not; logical numbering.
    pub not_lent: [u64; 4],
}

words! {
    /// What a launch gets that can never fit the partition.
    pub enum OnMisfit: Error {
        /// They get the CUDA error at the call.
        Error => "error",
        /// They run on the whole GPU, with a warning and a count.
        Widen => "widen",
    }
}

words! {
    /// What an allocation gets that the quota has no room for.
    pub enum Spill: None {
        /// They fail, as on a full GPU.
        None => "none",
        /// They get host memory that the GPU accesses over the bus.
        Host => "host",
    }
}

words! {
    /// The SM count that programs see. NVIDIA's libraries always see the GPU's.
    pub enum SmCount: Device {
        /// The GPU's.
        Device => "device",
        /// The partition's, for programs that size a cooperative grid by it.
        Partition => "partition",
    }
}

words! {
    /// How many of the kernels that the GPU runs at once the tenant may have beside neighbours.
    pub enum TaskSlots: Share {
        /// Its share: further kernels wait for others of the tenant.
        Share => "share",
        /// All, for programs with many kernels that wait for each other. Kernels of neighbours may
        /// then wait for the tenant's.
        All => "all",
    }
}

/// The two values of a switch, and its bit: set for the second value.
macro_rules! switch {
    ($Type:ident, $clear:ident, $set:ident, $flag:ident) => {
        impl $Type {
            /// The value in limits.
            pub fn of(limits: &Limits) -> Self {
                if limits.flags & $flag == 0 { Self::$clear } else { Self::$set }
            }

            /// Puts it into limits.
            pub fn put(self, limits: &mut Limits) {
                limits.put_flag($flag, self == Self::$set);
            }
        }
    };
}

switch!(OnMisfit, Error, Widen, FLAG_ON_MISFIT_WIDEN);
switch!(Spill, None, Host, FLAG_SPILL_HOST);
switch!(SmCount, Device, Partition, FLAG_SM_COUNT_PARTITION);
switch!(TaskSlots, Share, All, FLAG_ALL_TASK_SLOTS);

impl Default for Limits {
    /// No device, no name, no limit: a value to fill in. It does not pass [`Limits::check`]
    /// unchanged.
    fn default() -> Self {
        Self {
            gpu_uuid: [0; 16],
            device_class: 0,
            qmd_version: 0,
            sms_per_tpc: 0,
            tpc_count: 0,
            set: [0; 4],
            qmd_disable: [0; 8],
            max_cluster_sms: 0,
            memory_quota_bytes: NO_QUOTA,
            memory_total_bytes: 0,
            driver_allowance_bytes: DRIVER_ALLOWANCE_BYTES,
            time_permille: 1000,
            priority: 0,
            flags: 0,
            task_slots: 0,
            mechanism: 0,
            name: [0; NAME_BYTES_MAX + 1],
            physical_of_logical: [0; 256],
            gpc_of_logical: [0; 256],
            borrow_tpcs_max: 0,
            not_lent: [0; 4],
        }
    }
}

impl Limits {
    /// The name in the form of the `name` field.
    ///
    /// # Errors
    /// [`LimitsFault::Name`] if it is longer than [`NAME_BYTES_MAX`] or holds a zero byte.
    pub fn name_field(name: &str) -> Result<[u8; NAME_BYTES_MAX + 1], LimitsFault> {
        let mut field = [0; NAME_BYTES_MAX + 1];
        if name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(LimitsFault::Name);
        }
        field[..name.len()].copy_from_slice(name.as_bytes());
        Ok(field)
    }

    /// The tenant's name; empty if the field is invalid, which [`Limits::check`] refuses.
    pub fn name(&self) -> &str {
        CStr::from_bytes_until_nul(&self.name).ok().and_then(|name| name.to_str().ok()).unwrap_or("")
    }

    /// Whether it takes turns with other tenants on the same TPCs. A tenant of an environment has
    /// no mask and no flag, and takes turns where others do.
    pub fn takes_turns(&self) -> bool {
        self.mechanism == MECHANISM_NONE || self.flags & FLAG_TURNS != 0
    }

    /// Whether it uses the GPU's gate: with a priority, and with a share of time by which it takes
    /// turns.
    pub fn has_gate(&self) -> bool {
        self.flags & FLAG_GATED != 0 || self.flags & FLAG_TIMED != 0 && self.takes_turns()
    }

    /// Whether other tenants use the device, too.
    pub fn has_neighbours(&self) -> bool {
        self.flags & FLAG_NEIGHBOURS != 0
    }

    /// Says whether other tenants use the device, too.
    pub fn put_neighbours(&mut self, has: bool) {
        self.put_flag(FLAG_NEIGHBOURS, has);
    }

    /// Whether the device has tenants whose files this one's processes cannot read: those of other
    /// users, and for a tenant in a container all others. It does not know when they need the
    /// device.
    pub fn has_strangers(&self) -> bool {
        self.flags & FLAG_STRANGERS != 0
    }

    /// Says whether such tenants use the device.
    pub fn put_strangers(&mut self, has: bool) {
        self.put_flag(FLAG_STRANGERS, has);
    }

    fn put_flag(&mut self, flag: u32, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    /// How its share of time is enforced.
    pub fn time_policy(&self) -> Policy {
        match self.flags {
            flags if flags & FLAG_TIME_TOKENS != 0 => Policy::Tokens,
            flags if flags & FLAG_TIME_SOFT != 0 => Policy::Soft,
            _ => Policy::Hard,
        }
    }

    /// Changes how its share of time is enforced.
    pub fn put_time_policy(&mut self, policy: Policy) {
        self.put_flag(FLAG_TIME_SOFT, policy == Policy::Soft);
        self.put_flag(FLAG_TIME_TOKENS, policy == Policy::Tokens);
    }

    /// Checks for impossible values. Every write and every read of a file applies it.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), LimitsFault> {
        if !(1..=256).contains(&self.tpc_count) {
            return Err(LimitsFault::TpcCount(self.tpc_count));
        }
        if self.sms_per_tpc == 0 {
            return Err(LimitsFault::SmsPerTpc);
        }
        if let Some(word) = (0..4).rev().find(|&i| self.set[i] != 0) {
            let tpc = word as u32 * 64 + 63 - self.set[word].leading_zeros();
            if tpc >= self.tpc_count {
                return Err(LimitsFault::SetBeyondDevice { tpc, tpc_count: self.tpc_count });
            }
        }
        if self.borrow_tpcs_max > self.tpc_count.into() {
            return Err(LimitsFault::Borrows { tpcs: self.borrow_tpcs_max, tpc_count: self.tpc_count });
        }
        for (tpc, &physical) in (0..self.tpc_count).zip(&self.physical_of_logical) {
            if physical > 255 {
                return Err(LimitsFault::Physical { tpc, physical });
            }
        }
        if self.time_permille > 1000 {
            return Err(LimitsFault::Time(self.time_permille));
        }
        let (quota, total) = (self.memory_quota_bytes, self.memory_total_bytes);
        if quota != NO_QUOTA && total != 0 && quota > total {
            return Err(LimitsFault::Quota { quota, total });
        }
        match CStr::from_bytes_until_nul(&self.name).map(CStr::to_str) {
            Ok(Ok(_)) => Ok(()),
            _ => Err(LimitsFault::Name),
        }
    }

    /// The layout of the limits in the file. The fields for launches and allocations come first.
    pub(crate) fn encode(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let mut words = [0; WORDS];
        let mut rest = words.iter_mut();
        let mut put = |word| {
            if let Some(cell) = rest.next() {
                *cell = word;
            }
        };
        self.qmd_disable.as_chunks::<2>().0.iter().for_each(|&[low, high]| put(pair(low, high)));
        put(self.memory_quota_bytes);
        put(self.memory_total_bytes);
        self.set.iter().for_each(|&word| put(word));
        self.gpu_uuid.as_chunks::<8>().0.iter().for_each(|&bytes| put(u64::from_le_bytes(bytes)));
        put(pair(self.device_class, u32::from(self.qmd_version)));
        put(pair(self.sms_per_tpc, self.tpc_count));
        put(pair(self.max_cluster_sms, self.mechanism));
        put(pair(self.time_permille, self.priority));
        put(pair(self.flags, self.task_slots));
        put(self.driver_allowance_bytes);
        self.name.as_chunks::<8>().0.iter().for_each(|&bytes| put(u64::from_le_bytes(bytes)));
        for &[a, b, c, d] in self.physical_of_logical.as_chunks::<4>().0 {
            put(u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48);
        }
        self.gpc_of_logical.as_chunks::<8>().0.iter().for_each(|&bytes| put(u64::from_le_bytes(bytes)));
        put(self.borrow_tpcs_max);
        self.not_lent.iter().for_each(|&word| put(word));
        words
    }

    pub(crate) fn decode(words: &[u64; WORDS]) -> Self {
        let mut rest = words.iter().copied();
        let mut get = || rest.next().unwrap_or(0);
        let split = |word: u64| (word as u32, (word >> 32) as u32);
        let mut limits = Self::default();
        limits.qmd_disable.as_chunks_mut::<2>().0.iter_mut().for_each(|to| *to = split(get()).into());
        limits.memory_quota_bytes = get();
        limits.memory_total_bytes = get();
        limits.set.fill_with(&mut get);
        limits.gpu_uuid.as_chunks_mut::<8>().0.iter_mut().for_each(|to| *to = get().to_le_bytes());
        let (device_class, qmd_version) = split(get());
        (limits.device_class, limits.qmd_version) = (device_class, qmd_version as u8);
        (limits.sms_per_tpc, limits.tpc_count) = split(get());
        (limits.max_cluster_sms, limits.mechanism) = split(get());
        (limits.time_permille, limits.priority) = split(get());
        (limits.flags, limits.task_slots) = split(get());
        limits.driver_allowance_bytes = get();
        limits.name.as_chunks_mut::<8>().0.iter_mut().for_each(|to| *to = get().to_le_bytes());
        for to in limits.physical_of_logical.as_chunks_mut::<4>().0 {
            let word = get();
            *to = [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16];
        }
        limits.gpc_of_logical.as_chunks_mut::<8>().0.iter_mut().for_each(|to| *to = get().to_le_bytes());
        limits.borrow_tpcs_max = get();
        limits.not_lent.iter_mut().for_each(|to| *to = get());
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_place_in_the_file() {
        // Each word has another value, which fits the narrowest field.
        let words: [u64; WORDS] = core::array::from_fn(|at| (at as u64 + 1) * 0x1_0000_0001);
        let again = Limits::decode(&words).encode();
        let used = again.iter().rposition(|&word| word != 0).unwrap_or(0) + 1;
        assert_eq!((&again[..used], &again[used..]), (&words[..used], &[0; WORDS][used..]));
        assert!(used > FLAGS_WORD + (256 * 2 + 256) / 8, "{used}");
    }
}
