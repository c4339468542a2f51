//! Several copies of this library in one process: an archive linked into the program, a shared
//! library that a plug-in loads.
//!
//! The driver has one launch callback a process, and a mask must not depend on the copy that a
//! caller is linked with. So one copy does the work of all: the one that was called first, else the
//! one that was loaded first. Every copy has an ELF note that leads to its functions; notes are
//! found in every loaded object, even if its symbols are hidden.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::{OWN, Table};

/// The note's name with its terminator, and its type.
const NAME: &[u8; 8] = b"Partita\0";
const KIND: u32 = 0x736d_6331;

/// The first part of a [`Table`]. It is the same in all versions.
#[repr(C)]
pub struct Head {
    magic: u64,
    /// The table's size in bytes. Later versions only append.
    bytes: u32,
    version: u32,
    /// Whether this copy does the work.
    works: AtomicBool,
}

const MAGIC: u64 = u64::from_le_bytes(*b"smctrl\x01\0");
const VERSION: u32 = 1;

impl Head {
    /// The head of this copy's table.
    pub const fn new(bytes: usize) -> Self {
        Self { magic: MAGIC, bytes: bytes as u32, version: VERSION, works: AtomicBool::new(false) }
    }

    fn is_usable(&self) -> bool {
        self.magic == MAGIC && self.version == VERSION && self.bytes as usize >= size_of::<Table>()
    }
}

/// The copy that does the work; null before the first search.
static WORKER: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());

// The note: its name, and the distance from its description to the table.
core::arch::global_asm!(
    ".pushsection .note.partita.smctrl, \"a\", %note",
    ".balign 4",
    ".globl libsmctrl_note",
    ".hidden libsmctrl_note",
    "libsmctrl_note:",
    ".long 8",
    ".long 4",
    ".long 0x736d6331",
    ".ascii \"Partita\\0\"",
    ".long {table} - .",
    ".popsection",
    table = sym OWN,
);

unsafe extern "C" {
    /// A reference, so that the linker takes the note from the archive.
    static libsmctrl_note: u8;
}

/// The table of the copy that does the work.
#[inline]
pub fn worker() -> &'static Table {
    // SAFETY: null, or a table of a copy that is never unloaded.
    match unsafe { WORKER.load(Ordering::Acquire).as_ref() } {
        Some(table) => table,
        None => choose(),
    }
}

#[cold]
fn choose() -> &'static Table {
    let mut search = Search { first: None, working: None };
    // SAFETY: the callback gets the search, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), core::ptr::from_mut(&mut search).cast()) };
    let table = search.working.or(search.first).unwrap_or(&OWN);
    table.head.works.store(true, Ordering::Release);
    pin(table);
    WORKER.store(core::ptr::from_ref(table).cast_mut(), Ordering::Release);
    table
}

/// Pins the copy's object in memory: the driver calls into it until the process ends.
fn pin(table: &'static Table) {
    // SAFETY: plain memory, written by the call.
    let mut about: libc::Dl_info = unsafe { core::mem::zeroed() };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: dladdr takes any address and gives the linker's own name of the object. Opening the
    // main program fails, and it is never unloaded.
    unsafe {
        if libc::dladdr(core::ptr::from_ref(table).cast(), &mut about) != 0 && !about.dli_fname.is_null() {
            libc::dlopen(about.dli_fname, flags);
        }
    }
}

struct Search {
    first: Option<&'static Table>,
    working: Option<&'static Table>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: choose() passed it; the linker passes a loaded object's headers.
    unsafe {
        let search = &mut *search.cast::<Search>();
        let headers = core::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
        for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
            let start: *const u8 =
                core::ptr::with_exposed_provenance(((*info).dlpi_addr + header.p_vaddr) as usize);
            if let Some(table) = table_in(start, header.p_memsz as usize) {
                search.first = search.first.or(Some(table));
                if table.head.works.load(Ordering::Acquire) {
                    search.working = Some(table);
                }
            }
        }
    }
    0
}

/// Searches notes for this library's, and returns its table.
///
/// # Safety
/// So many bytes are readable.
unsafe fn table_in(start: *const u8, bytes: usize) -> Option<&'static Table> {
    // SAFETY: the caller guarantees it.
    let notes = unsafe { core::slice::from_raw_parts(start, bytes) };
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(notes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    };
    let mut at = 0usize;
    while let (Some(name), Some(description), Some(kind)) = (word(at), word(at + 4), word(at + 8)) {
        let padded = |length: u32| (length as usize).checked_next_multiple_of(4);
        let description_at = at.checked_add(12)?.checked_add(padded(name)?)?;
        if kind == KIND && notes.get(at + 12..description_at) == Some(NAME.as_slice()) {
            let distance = word(description_at)? as i32;
            // SAFETY: a copy of this library wrote the note, so the distance leads to its table,
            // which is in the same object.
            let table = unsafe { &*start.add(description_at).offset(distance as isize).cast::<Table>() };
            return Some(table).filter(|table| table.head.is_usable());
        }
        at = description_at.checked_add(padded(description)?)?;
    }
    None
}

/// Whether this copy does the work.
pub(crate) fn is_worker() -> bool {
    let note = core::ptr::addr_of!(libsmctrl_note);
    !note.is_null() && core::ptr::eq(worker(), &OWN)
}

/// The version of the library.
pub const VERSION_TEXT: &CStr =
    match CStr::from_bytes_with_nul(concat!("partita ", env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => c"partita",
    };

/// Its address, for C.
pub fn version_text() -> *const c_char {
    // Called here so that the linker keeps the note.
    let _ = is_worker();
    VERSION_TEXT.as_ptr()
}
