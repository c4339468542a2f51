//! The C library's allocator, which every process has, for those libraries of Partita that have no
//! `std`.

use core::alloc::{GlobalAlloc, Layout};

/// `posix_memalign` and `free`, as a library's `#[global_allocator]`.
#[derive(Debug)]
pub struct LibcHeap;

// SAFETY: posix_memalign returns blocks of the requested size and alignment, or an error; free
// takes such blocks.
unsafe impl GlobalAlloc for LibcHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut block = core::ptr::null_mut();
        let alignment = layout.align().max(size_of::<*mut u8>());
        // SAFETY: the alignment is a power of two and a multiple of a pointer.
        let status = unsafe { libc::posix_memalign(&raw mut block, alignment, layout.size()) };
        if status == 0 { block.cast() } else { core::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the block came from posix_memalign above.
        unsafe { libc::free(block.cast()) };
    }
}
