//! The allocator: the C library's, which the tenant's process has anyway.
//!
//! Used when a process attaches and when it obtains or frees device memory,
//! never on the launch path.

use partita_driver::LibcHeap;

#[global_allocator]
static HEAP: LibcHeap = LibcHeap;
