//! Accesses to memory.

use super::Fault;
use super::call::LOCAL_BYTES;
use super::warp::{Context, Together, Warp, threads};
use crate::kernel::{
    Access, Change, Kernel, LOCAL_WINDOW, PARAM_WINDOW, Place, Register, SHARED_WINDOW, Source, WINDOW_BYTES,
};
use crate::lanes::{LANES, Lanes, Value, extended, ones};
use partita_ptx::Type;

/// The most bytes that one instruction moves for one thread: eight elements of eight bytes.
const ACCESS_BYTES_MAX: usize = 64;

/// The space and the address in it.
fn resolve(place: Place, address: u64) -> (Place, u64) {
    if place != Place::Generic {
        return (place, address);
    }
    match address / WINDOW_BYTES {
        1 => (Place::Shared, address - SHARED_WINDOW),
        2 => (Place::Local, address - LOCAL_WINDOW),
        3 => (Place::Param, address - PARAM_WINDOW),
        _ => (Place::Global, address),
    }
}

/// The part of a block's memory at an address.
fn inside(memory: &[u8], address: u64, bytes: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(address).ok()?;
    let end = start.checked_add(bytes)?;
    (end <= memory.len()).then_some(start..end)
}

/// An element of a buffer.
fn element(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let length = bytes.len().min(8);
    word[..length].copy_from_slice(&bytes[..length]);
    u64::from_le_bytes(word)
}

impl Warp {
    fn read(
        &self,
        context: &mut Context<'_>,
        lane: usize,
        place: Place,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Fault> {
        let (place, at) = resolve(place, address);
        let from = match place {
            Place::Generic | Place::Global => {
                let is_read = context.memory.read(at, into);
                return if is_read { Ok(()) } else { Err(Fault::IllegalAddress(at)) };
            }
            Place::Local => return self.read_local(lane, at, into),
            Place::Shared => context.shared.as_slice(),
            Place::Param => context.launch.params.as_slice(),
        };
        let range = inside(from, at, into.len()).ok_or(Fault::IllegalAddress(address))?;
        into.copy_from_slice(&from[range]);
        Ok(())
    }

    fn write(
        &mut self,
        context: &mut Context<'_>,
        lane: usize,
        place: Place,
        address: u64,
        from: &[u8],
    ) -> Result<(), Fault> {
        let (place, at) = resolve(place, address);
        match place {
            Place::Generic | Place::Global => {
                if context.memory.write(at, from) {
                    Ok(())
                } else {
                    Err(Fault::IllegalAddress(at))
                }
            }
            Place::Local => self.write_local(lane, at, from),
            Place::Shared => {
                let range = inside(context.shared, at, from.len()).ok_or(Fault::IllegalAddress(address))?;
                context.shared[range].copy_from_slice(from);
                Ok(())
            }
            // Parameters are constant.
            Place::Param => Err(Fault::IllegalAddress(address)),
        }
    }

    pub(super) fn read_local(&self, lane: usize, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let end = at.checked_add(into.len() as u64).filter(|end| *end <= LOCAL_BYTES);
        let end = end.ok_or(Fault::IllegalAddress(at.wrapping_add(LOCAL_WINDOW)))? as usize;
        // What was never written is zero.
        let memory = &self.local[lane];
        let start = (at as usize).min(memory.len());
        let written = &memory[start..end.clamp(start, memory.len())];
        into[..written.len()].copy_from_slice(written);
        into[written.len()..].fill(0);
        Ok(())
    }

    pub(super) fn write_local(&mut self, lane: usize, at: u64, from: &[u8]) -> Result<(), Fault> {
        let end = at.checked_add(from.len() as u64).filter(|end| *end <= LOCAL_BYTES);
        let end = end.ok_or(Fault::IllegalAddress(at.wrapping_add(LOCAL_WINDOW)))? as usize;
        let memory = &mut self.local[lane];
        if memory.len() < end {
            memory.resize(end, 0);
        }
        memory[at as usize..end].copy_from_slice(from);
        Ok(())
    }

    /// The addresses of an access, which must be multiples of its length.
    fn addresses(
        &self,
        kernel: &Kernel,
        group: Together,
        access: &Access,
        bytes: u32,
    ) -> Result<Lanes, Fault> {
        let base = self.values(kernel, group.base, access.address);
        let addresses: Lanes = std::array::from_fn(|lane| base[lane].wrapping_add_signed(access.offset));
        let wrong = threads(group.active).find(|lane| !addresses[*lane].is_multiple_of(bytes.max(1).into()));
        wrong.map_or(Ok(addresses), |lane| Err(Fault::Misaligned(addresses[lane])))
    }

    pub(super) fn load(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
        access: &Access,
        extend: u32,
        to: &[Register],
    ) -> Result<(), Fault> {
        let bytes = access.bytes as usize;
        let all = bytes * to.len();
        let addresses = self.addresses(kernel, group, access, all as u32)?;
        let mut buffer = [0; ACCESS_BYTES_MAX * LANES];
        let mut stride = all;
        let first = addresses[0];
        let is_whole = group.active == u32::MAX;
        let is_line =
            is_whole && (0..LANES).all(|lane| addresses[lane] == first.wrapping_add((lane * all) as u64));
        let is_one = is_whole && addresses.iter().all(|address| *address == first);
        let mut is_read = false;
        // The common forms take one access.
        if resolve(access.place, first).0 != Place::Local {
            if is_one {
                self.read(context, 0, access.place, first, &mut buffer[..all])?;
                (is_read, stride) = (true, 0);
            } else if is_line {
                is_read = self.read(context, 0, access.place, first, &mut buffer[..all * LANES]).is_ok();
            }
        }
        if !is_read {
            for lane in threads(group.active) {
                let part = &mut buffer[lane * all..][..all];
                self.read(context, lane, access.place, addresses[lane], part)?;
            }
        }
        for (index, register) in to.iter().enumerate() {
            let mut out = [0; LANES];
            for (lane, out) in out.iter_mut().enumerate() {
                let value = element(&buffer[lane * stride + index * bytes..][..bytes]);
                let signed = extended(value, access.bytes * 8) & ones(extend);
                *out = if extend > 0 { signed } else { value };
            }
            self.set(group, *register, &out);
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
        access: &Access,
        of: &[Source],
    ) -> Result<(), Fault> {
        let bytes = access.bytes as usize;
        let all = bytes * of.len();
        let addresses = self.addresses(kernel, group, access, all as u32)?;
        let mut buffer = [0; ACCESS_BYTES_MAX * LANES];
        for (index, source) in of.iter().enumerate() {
            let values = self.values(kernel, group.base, *source);
            for lane in threads(group.active) {
                let to = &mut buffer[lane * all + index * bytes..][..bytes];
                to.copy_from_slice(&values[lane].to_le_bytes()[..bytes]);
            }
        }
        let first = addresses[0];
        let is_line = group.active == u32::MAX
            && resolve(access.place, first).0 == Place::Global
            && (0..LANES).all(|lane| addresses[lane] == first.wrapping_add((lane * all) as u64));
        if is_line && context.memory.write(first, &buffer[..all * LANES]) {
            return Ok(());
        }
        for lane in threads(group.active) {
            self.write(context, lane, access.place, addresses[lane], &buffer[lane * all..][..all])?;
        }
        Ok(())
    }

    /// Changes words one after the other; returns the old values.
    #[allow(clippy::too_many_arguments, reason = "each is a property of one instruction")]
    pub(super) fn atomic(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
        access: &Access,
        (change, ty): (Change, Type),
        by: &Lanes,
        with: &Lanes,
    ) -> Result<Lanes, Fault> {
        let bytes = access.bytes as usize;
        let addresses = self.addresses(kernel, group, access, access.bytes)?;
        let mut olds = [0; LANES];
        for lane in threads(group.active) {
            let mut word = [0; 8];
            self.read(context, lane, access.place, addresses[lane], &mut word[..bytes])?;
            let old = u64::from_le_bytes(word);
            let new = changed(change, ty, old, by[lane], with[lane]);
            self.write(context, lane, access.place, addresses[lane], &new.to_le_bytes()[..bytes])?;
            olds[lane] = old;
        }
        Ok(olds)
    }

    pub(super) fn copy(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
        to: &Access,
        from: &Access,
        given: Option<Source>,
    ) -> Result<(), Fault> {
        let bytes = to.bytes as usize;
        let targets = self.addresses(kernel, group, to, to.bytes)?;
        let sources = self.addresses(kernel, group, from, from.bytes)?;
        let given = given.map(|given| *self.values(kernel, group.base, given));
        for lane in threads(group.active) {
            let mut buffer = [0; 16];
            let count = given.map_or(bytes, |given| (given[lane] as usize).min(bytes));
            if count > 0 {
                self.read(context, lane, from.place, sources[lane], &mut buffer[..count])?;
            }
            self.write(context, lane, to.place, targets[lane], &buffer[..bytes])?;
        }
        Ok(())
    }
}

/// The new value of a word.
pub(super) fn changed(change: Change, ty: Type, old: u64, by: u64, with: u64) -> u64 {
    let bits = ty.bits();
    let signed = |value: u64| extended(value, bits) as i64;
    let new = match change {
        Change::Add if ty == Type::F32 => (f32::from_bits(old as u32) + f32::from_bits(by as u32)).to(),
        Change::Add if ty == Type::F64 => (f64::from_bits(old) + f64::from_bits(by)).to(),
        Change::Add => old.wrapping_add(by),
        Change::Min if ty.is_signed() => signed(old).min(signed(by)) as u64,
        Change::Max if ty.is_signed() => signed(old).max(signed(by)) as u64,
        Change::Min => old.min(by),
        Change::Max => old.max(by),
        Change::And => old & by,
        Change::Or => old | by,
        Change::Xor => old ^ by,
        Change::Increment => {
            if old >= by {
                0
            } else {
                old + 1
            }
        }
        Change::Decrement => {
            if old == 0 || old > by {
                by
            } else {
                old - 1
            }
        }
        Change::Exchange => by,
        Change::CompareAndSwap => {
            if old == by {
                with
            } else {
                old
            }
        }
    };
    new & ones(bits)
}
