//! The ground: the system, the loaded libraries, messages, resets after `fork`, the hook's thread.

pub mod c_library;
pub mod clock;
pub mod elf;
pub mod fork;
pub mod futex;
pub mod heap;
pub mod next;
pub mod onward;
pub mod pages;
pub mod process;
pub mod report;
pub mod thread_word;
pub mod unix_socket;
pub mod unwind;
pub mod watcher;
