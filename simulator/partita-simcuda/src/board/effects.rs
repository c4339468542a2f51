//! The effects of commands on memory, applied when they complete.

use std::os::unix::fs::FileExt;

use partita_abi::CuResult;

use super::phys::PhysMemory;
use super::space::{Piece, Space};
use crate::shared::command::Rect;
use crate::shared::protocol::PAGE_BYTES;
use crate::shared::sys::punch_hole;

/// The memory that one client's commands reach.
pub struct Reach<'a> {
    /// Its addresses.
    pub space: &'a Space,
    /// The device's memory.
    pub memory: &'a PhysMemory,
    /// The client's program, for memory that the board does not map.
    pub owner: Owner,
}

/// A process while it runs one program: after `exec` it has other memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pid: u32,
    /// Where the program's stack begins, which is random.
    stack: u64,
}

impl Owner {
    /// A process with the program that it runs now.
    pub fn of(pid: u32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `startstack` is the 28th field; the name, which is the second, may have blanks.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let stack = after_name.split(' ').nth(25).and_then(|field| field.parse().ok());
        Self { pid, stack: stack.unwrap_or(0) }
    }
}

const CHUNK_BYTES: u64 = 1 << 20;

impl Reach<'_> {
    fn pieces(&self, address: u64, bytes: u64, write: bool) -> Result<Vec<Piece>, CuResult> {
        self.space.pieces(self.memory, address, bytes, write).ok_or(CuResult::ILLEGAL_ADDRESS)
    }

    /// Copies memory out.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` when some of it cannot be read.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), CuResult> {
        let mut rest = into;
        for piece in self.pieces(address, rest.len() as u64, false)? {
            let (Piece::Here(_, bytes) | Piece::There(_, bytes)) = piece;
            let (part, left) = rest.split_at_mut(bytes as usize);
            match piece {
                // SAFETY: the piece is in a live mapping; the client may write there meanwhile, and
                // a torn value is what hardware would read as well.
                Piece::Here(from, _) => unsafe {
                    std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len());
                },
                Piece::There(from, _) => _ = transfer(self.owner, from, Local::Read(part))?,
            }
            rest = left;
        }
        Ok(())
    }

    /// Copies memory in.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` when some of it cannot be written.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), CuResult> {
        let mut rest = from;
        for piece in self.pieces(address, rest.len() as u64, true)? {
            let (Piece::Here(_, bytes) | Piece::There(_, bytes)) = piece;
            let (part, left) = rest.split_at(bytes as usize);
            match piece {
                // SAFETY: as in `read`.
                Piece::Here(to, _) => unsafe {
                    std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                },
                Piece::There(to, _) => _ = transfer(self.owner, to, Local::Write(part))?,
            }
            rest = left;
        }
        Ok(())
    }

    /// Copies a rectangle.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` when some of it cannot be reached.
    pub fn copy(&self, rect: &Rect) -> Result<(), CuResult> {
        let mut buffer = vec![0u8; rect.width.min(CHUNK_BYTES) as usize];
        for (dst, src) in rect.rows() {
            let mut done = 0;
            while done < rect.width {
                let part = &mut buffer[..(rect.width - done).min(CHUNK_BYTES) as usize];
                self.read(src + done, part)?;
                self.write(dst + done, part)?;
                done += part.len() as u64;
            }
        }
        Ok(())
    }

    /// Fills rows with a value.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS` when some of it cannot be written.
    pub fn fill(&self, fill: &Fill) -> Result<(), CuResult> {
        let size = usize::from(fill.element_bytes.clamp(1, 4));
        let value = &fill.value.to_le_bytes()[..size];
        let chunk = fill.width.min(CHUNK_BYTES) as usize;
        let pattern: Vec<u8> = value.iter().copied().cycle().take(chunk).collect();
        for row in 0..fill.height {
            let at = fill.dst.wrapping_add(row.wrapping_mul(fill.pitch));
            if fill.value == 0 && fill.width >= 2 * PAGE_BYTES {
                self.zero(at, fill.width)?;
                continue;
            }
            let mut done = 0;
            while done < fill.width {
                let part = (fill.width - done).min(chunk as u64);
                self.write(at + done, &pattern[..part as usize])?;
                done += part;
            }
        }
        Ok(())
    }

    /// Zeroes a long range by releasing its pages, so that clearing gigabytes takes no memory of
    /// the host.
    fn zero(&self, address: u64, bytes: u64) -> Result<(), CuResult> {
        let base = self.memory.map().base() as u64;
        for piece in self.pieces(address, bytes, true)? {
            match piece {
                Piece::Here(at, length)
                    if (at as u64).wrapping_sub(base) < self.memory.total()
                        && punch_hole(self.memory.file(), at as u64 - base, length).is_ok() => {}
                // SAFETY: the piece lies in a live mapping.
                Piece::Here(at, length) => unsafe { std::ptr::write_bytes(at, 0, length as usize) },
                Piece::There(at, length) => {
                    transfer(self.owner, at, Local::Write(&vec![0; length as usize]))?;
                }
            }
        }
        Ok(())
    }

    /// Reads a word of 4 or 8 bytes.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS`.
    pub fn read_word(&self, address: u64, wide: bool) -> Result<u64, CuResult> {
        let mut bytes = [0; 8];
        let part = &mut bytes[..if wide { 8 } else { 4 }];
        match self.pieces(address, part.len() as u64, false)?[..] {
            [Piece::There(from, _)] if !transfer(self.owner, from, Local::Read(part))? => {
                let known = || self.space.pinned_words.borrow().get(&address).copied().unwrap_or_default();
                Ok(self.pinned(address, wide).unwrap_or_else(known))
            }
            [Piece::There(..)] => Ok(u64::from_le_bytes(bytes)),
            _ => {
                self.read(address, part)?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }

    /// A word in a file that a dead process had registered.
    fn pinned(&self, address: u64, wide: bool) -> Option<u64> {
        let (start, path) = self.space.pinned_files.range(..=address).next_back()?;
        let mut bytes = [0; 8];
        let part = &mut bytes[..if wide { 8 } else { 4 }];
        std::fs::File::open(path).ok()?.read_exact_at(part, address - start).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Writes a word of 4 or 8 bytes.
    ///
    /// # Errors
    /// `ILLEGAL_ADDRESS`.
    pub fn write_word(&self, address: u64, value: u64, wide: bool) -> Result<(), CuResult> {
        let bytes = if wide { 8 } else { 4 };
        if let [Piece::There(..)] = self.pieces(address, bytes, true)?[..] {
            self.space.pinned_words.borrow_mut().insert(address, value);
        }
        self.write(address, &value.to_le_bytes()[..bytes as usize])
    }
}

/// Rows to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// First byte.
    pub dst: u64,
    /// Bytes between rows.
    pub pitch: u64,
    /// Bytes in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// The value, in its lowest bytes.
    pub value: u32,
    /// 1, 2 or 4.
    pub element_bytes: u8,
}

enum Local<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

/// Reads or writes another process's memory: host memory that a program registered after the fact.
/// False if its program has ended, by death or by `exec`, whose memory hardware would still have.
fn transfer(owner: Owner, address: u64, local: Local<'_>) -> Result<bool, CuResult> {
    let (base, length, write) = match &local {
        Local::Read(bytes) => (bytes.as_ptr().cast_mut(), bytes.len(), false),
        Local::Write(bytes) => (bytes.as_ptr().cast_mut(), bytes.len(), true),
    };
    let here = libc::iovec { iov_base: base.cast(), iov_len: length };
    let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
    let pid = owner.pid as libc::pid_t;
    // SAFETY: the local slice is valid for its length, for writing where it is written; the remote
    // address is only used by the kernel, in the other process.
    let moved = unsafe {
        if write {
            libc::process_vm_writev(pid, &here, 1, &there, 1, 0)
        } else {
            libc::process_vm_readv(pid, &here, 1, &there, 1, 0)
        }
    };
    let has_ended = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    match moved {
        -1 if has_ended() => Ok(false),
        _ if moved == length as isize => Ok(true),
        _ if Owner::of(owner.pid) != owner => Ok(false),
        _ => Err(CuResult::ILLEGAL_ADDRESS),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn memory_of_a_program_that_has_executed_another_is_as_that_of_a_dead_one() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; read line; exec sh -c 'echo two; read line'"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut input, mut output) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        assert_eq!(output.next().unwrap().unwrap(), "one");
        let owner = Owner::of(child.id());
        let mut byte = [0];
        let mut read = || transfer(owner, owner.stack, Local::Read(&mut byte));
        assert_eq!(read(), Ok(true));
        input.write_all(b"\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), "two");
        assert_eq!(read(), Ok(false));
        // What the living program has not mapped stays a fault.
        assert_eq!(transfer(Owner::of(child.id()), 8, Local::Read(&mut [0])), Err(CuResult::ILLEGAL_ADDRESS));
        input.write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!(transfer(owner, owner.stack, Local::Read(&mut [0])), Ok(false));
    }
}
