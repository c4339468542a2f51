//! The allocator: the C library's, which every process has anyway.

use partita_driver::LibcHeap;

#[global_allocator]
static HEAP: LibcHeap = LibcHeap;
