//! The allocator: that of the C library, which every process has.

use partita_driver::LibcHeap;

#[global_allocator]
static HEAP: LibcHeap = LibcHeap;
