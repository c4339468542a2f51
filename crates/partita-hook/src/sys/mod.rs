//! What needs neither the driver nor a tenant: the system, the loaded libraries, messages, the
//! one thread.

pub mod c_library;
pub mod clock;
pub mod elf;
pub mod fork;
pub mod futex;
pub mod heap;
pub mod next;
pub mod process;
pub mod report;
pub mod thread_word;
pub mod unwind;
pub mod watcher;
