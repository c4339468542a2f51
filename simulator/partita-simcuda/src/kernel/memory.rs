//! A program's memory as a kernel reaches it: an address that is not mapped is an error and no
//! crash.

use super::Errno;

fn transfer(address: u64, local: *mut u8, bytes: usize, write: bool) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    let here = libc::iovec { iov_base: local.cast(), iov_len: bytes };
    let there =
        libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: bytes };
    // SAFETY: the local range is valid for `bytes`, for writing where it is written; the kernel
    // checks the other one.
    let moved = unsafe {
        if write {
            libc::process_vm_writev(libc::getpid(), &here, 1, &there, 1, 0)
        } else {
            libc::process_vm_readv(libc::getpid(), &here, 1, &there, 1, 0)
        }
    };
    if moved == bytes as isize { Ok(()) } else { Err(libc::EFAULT) }
}

/// Copies memory of the program.
///
/// # Errors
/// `EFAULT`.
pub fn read(address: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut copy = vec![0; bytes];
    transfer(address, copy.as_mut_ptr(), bytes, false)?;
    Ok(copy)
}

/// Copies into memory of the program.
///
/// # Errors
/// `EFAULT`.
pub fn write(address: u64, from: &[u8]) -> Result<(), Errno> {
    transfer(address, from.as_ptr().cast_mut(), from.len(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reached_or_refused() {
        let mut word = 7u32;
        let address = (&raw mut word).expose_provenance() as u64;
        assert_eq!(read(address, 4), Ok(vec![7, 0, 0, 0]));
        write(address, &[9, 1, 0, 0]).unwrap();
        // SAFETY: a local, written behind the compiler's back.
        assert_eq!(unsafe { (&raw const word).read_volatile() }, 0x109);
        assert_eq!((read(0x10, 4), write(0x10, &[1])), (Err(libc::EFAULT), Err(libc::EFAULT)));
    }
}
