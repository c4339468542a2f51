//! Memory in pages that hold nothing else, which a GPU can map: pages have 4 KiB on x86-64, and up
//! to 64 KiB on aarch64.

/// So many zero bytes at the start of a page, for as long as the process. Null where there is no
/// memory. The kernel rounds the size up.
pub fn zeroed(bytes: usize) -> *mut u8 {
    // SAFETY: a fresh mapping overlaps nothing.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED { core::ptr::null_mut() } else { at.cast() }
}
