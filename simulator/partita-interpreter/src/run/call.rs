//! Calls and returns.

use super::Fault;
use super::warp::{Context, Flow, Frame, Together, Warp, threads};
use crate::kernel::{Call, Callee, FUNCTION_BYTES, FUNCTIONS_AT, Formal, Kernel, Op, Passed};
use crate::lanes::{LANES, ones};

/// Rows of registers of a warp, at most: 64 MiB.
const ROWS_MAX: usize = 1 << 18;
/// Local memory of a thread, in bytes, as on hardware.
pub(super) const LOCAL_BYTES: u64 = 512 << 10;

impl Warp {
    pub(super) fn call(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
        call: &Call,
    ) -> Result<Flow, Fault> {
        for lane in threads(group.threads & !group.active) {
            self.next[lane] = group.step + 1;
        }
        match call.to {
            Callee::Direct(callee) => self.enter(context, kernel, group, call, callee)?,
            Callee::Indirect(address) => {
                let addresses = *self.values(kernel, group.base, address);
                let mut left = group.active;
                while left != 0 {
                    let address = addresses[left.trailing_zeros() as usize];
                    let same = threads(left).filter(|lane| addresses[*lane] == address);
                    let same = same.fold(0, |mask, lane| mask | 1 << lane);
                    left &= !same;
                    let callee = function_at(kernel, address).ok_or(Fault::BadCall(address))?;
                    let formals = &kernel.functions[callee as usize];
                    if (formals.params.len(), formals.returns.len())
                        != (call.arguments.len(), call.results.len())
                    {
                        return Err(Fault::BadCall(address));
                    }
                    self.enter(context, kernel, Together { active: same, ..group }, call, callee)?;
                }
            }
        }
        Ok(Flow::Apart)
    }

    fn enter(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
        call: &Call,
        callee: u32,
    ) -> Result<(), Fault> {
        let function = &kernel.functions[callee as usize];
        let caller = self.function_of(group);
        let caller = &kernel.functions[caller as usize];
        let base = group.base + caller.registers as usize;
        let rows = base + function.registers as usize;
        if rows > ROWS_MAX {
            return Err(Fault::StackOverflow);
        }
        if rows > self.registers.len() {
            self.registers.resize(rows, [0; LANES]);
        }
        for lane in threads(group.active) {
            for row in &mut self.registers[base..rows] {
                row[lane] = 0;
            }
            let local = self.locals[lane];
            // A call without variables takes room as well, for the address to return to.
            let inner = local + caller.frame_bytes.max(16);
            if u64::from(inner) + u64::from(function.frame_bytes) > LOCAL_BYTES {
                return Err(Fault::StackOverflow);
            }
            for (argument, formal) in call.arguments.iter().zip(&function.params) {
                self.pass(context, kernel, lane, (group.base, local, *argument), (base, inner, *formal))?;
            }
            let frame = Frame { call: group.step, base: group.base as u32, local, callee };
            self.frames[lane].push(frame);
            self.bases[lane] = base as u32;
            self.locals[lane] = inner;
            self.next[lane] = function.entry;
        }
        Ok(())
    }

    /// The function in which some threads are: one, as they have the same registers.
    fn function_of(&self, group: Together) -> u32 {
        let lane = group.active.trailing_zeros() as usize;
        self.frames[lane].last().map_or(0, |frame| frame.callee)
    }

    /// `ret`: back to the caller, or the end.
    pub(super) fn leave(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        group: Together,
    ) -> Result<Flow, Fault> {
        let ends = threads(group.active).filter(|lane| self.frames[*lane].is_empty());
        let ends = ends.fold(0, |mask, lane| mask | 1 << lane);
        if ends == group.active {
            return Ok(self.exit(context, group));
        }
        for lane in threads(group.active) {
            let Some(frame) = self.frames[lane].pop() else { continue };
            let function = &kernel.functions[frame.callee as usize];
            if let Op::Call(call) = &kernel.steps[frame.call as usize].op {
                for (formal, result) in function.returns.iter().zip(&call.results) {
                    let (base, local) = (self.bases[lane] as usize, self.locals[lane]);
                    self.give(
                        context,
                        lane,
                        (base, local, *formal),
                        (frame.base as usize, frame.local, *result),
                    )?;
                }
            }
            self.bases[lane] = frame.base;
            self.locals[lane] = frame.local;
            self.next[lane] = frame.call + 1;
        }
        for lane in threads(group.threads & !group.active) {
            self.next[lane] = group.step + 1;
        }
        Ok(Flow::Apart)
    }

    /// Copies an argument to its parameter.
    fn pass(
        &mut self,
        context: &mut Context<'_>,
        kernel: &Kernel,
        lane: usize,
        (from_base, from_local, argument): (usize, u32, Passed),
        (to_base, to_local, formal): (usize, u32, Formal),
    ) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        match argument {
            Passed::Frame { offset, bytes: count } => {
                bytes.resize(count as usize, 0);
                self.read_local(lane, u64::from(from_local + offset), &mut bytes)?;
            }
            Passed::Value(source, count) => {
                let value = self.values(kernel, from_base, source)[lane];
                bytes.extend_from_slice(&value.to_le_bytes()[..count as usize]);
            }
        }
        self.put(context, lane, &bytes, (to_base, to_local, formal))
    }

    fn put(
        &mut self,
        _: &mut Context<'_>,
        lane: usize,
        bytes: &[u8],
        (base, local, formal): (usize, u32, Formal),
    ) -> Result<(), Fault> {
        match formal {
            Formal::Frame { offset, bytes: count } => {
                let kept = bytes.get(..count as usize).unwrap_or(bytes);
                self.write_local(lane, u64::from(local + offset), kept)
            }
            Formal::Register { register, bytes: count } => {
                let mut word = [0; 8];
                let length = bytes.len().min(8);
                word[..length].copy_from_slice(&bytes[..length]);
                let value = u64::from_le_bytes(word) & ones(count * 8);
                self.registers[base + register as usize][lane] = value;
                Ok(())
            }
        }
    }

    /// Copies a result to where the call wants it.
    fn give(
        &mut self,
        context: &mut Context<'_>,
        lane: usize,
        (from_base, from_local, formal): (usize, u32, Formal),
        (to_base, to_local, result): (usize, u32, Passed),
    ) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        match formal {
            Formal::Frame { offset, bytes: count } => {
                bytes.resize(count as usize, 0);
                self.read_local(lane, u64::from(from_local + offset), &mut bytes)?;
            }
            Formal::Register { register, bytes: count } => {
                let value = self.registers[from_base + register as usize][lane];
                bytes.extend_from_slice(&value.to_le_bytes()[..count.min(8) as usize]);
            }
        }
        let to = match result {
            Passed::Frame { offset, bytes } => Formal::Frame { offset, bytes },
            Passed::Value(crate::kernel::Source::Register(register), bytes) => {
                Formal::Register { register, bytes }
            }
            Passed::Value(..) => return Ok(()),
        };
        self.put(context, lane, &bytes, (to_base, to_local, to))
    }
}

/// The function at an address.
fn function_at(kernel: &Kernel, address: u64) -> Option<u32> {
    let offset = address.checked_sub(FUNCTIONS_AT).filter(|offset| offset % FUNCTION_BYTES == 0)?;
    *kernel.by_number.get(usize::try_from(offset / FUNCTION_BYTES).ok()?)?
}
