//! Finds the C library's own `dlsym` and `dlvsym`.
//!
//! The hook exports both names, so asking the dynamic linker for them by name
//! gives the hook itself. The symbol tables of the loaded C library are read
//! instead: through `dl_iterate_phdr`, with the GNU hash table that every
//! modern libc carries. Nothing is allocated and no lock is taken besides the
//! linker's own.

use core::ffi::{CStr, c_char, c_int, c_void};

const PT_DYNAMIC: u32 = 2;
const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// `Elf64_Dyn` of the ELF specification.
#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

/// `Elf64_Sym` of the ELF specification.
#[repr(C)]
struct Sym {
    name: u32,
    _info: u8,
    _other: u8,
    _section: u16,
    value: u64,
    _size: u64,
}

/// The C library's own entry points.
#[derive(Clone, Copy)]
pub struct LibcLinker {
    /// Address of the real `dlsym`.
    pub dlsym: *mut c_void,
    /// Address of the real `dlvsym`, null where the C library has none (musl).
    pub dlvsym: *mut c_void,
}

/// Searches the loaded C library. Returns `None` where it exports no `dlsym`.
pub fn libc_linker() -> Option<LibcLinker> {
    let mut found = LibcLinker { dlsym: core::ptr::null_mut(), dlvsym: core::ptr::null_mut() };
    // SAFETY: the callback is given a pointer to `found`, which outlives the
    // call, and dl_iterate_phdr keeps neither.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    (!found.dlsym.is_null()).then_some(found)
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid description of one loaded object
    // and the pointer given to it, which is a LibcLinker.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<LibcLinker>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the linker's object names are NUL-terminated strings.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let is_libc = [&b"libc.so"[..], b"libc-", b"libdl.so", b"libdl-", b"ld-musl", b"libc.musl"]
        .iter()
        .any(|prefix| file.starts_with(prefix));
    if !is_libc {
        return 0;
    }
    // SAFETY: the object is mapped for as long as the callback runs.
    unsafe {
        let Some(object) = Object::of(info) else { return 0 };
        if let Some(address) = object.find(c"dlsym") {
            found.dlsym = address;
            found.dlvsym = object.find(c"dlvsym").unwrap_or(core::ptr::null_mut());
            return 1;
        }
    }
    0
}

/// The tables of one loaded object that a lookup needs.
struct Object {
    base: u64,
    strings: *const c_char,
    symbols: *const Sym,
    gnu_hash: *const u32,
}

impl Object {
    /// # Safety
    /// `info` describes an object that stays mapped while the result is used.
    unsafe fn of(info: &libc::dl_phdr_info) -> Option<Object> {
        let mut object = Object {
            base: info.dlpi_addr,
            strings: core::ptr::null(),
            symbols: core::ptr::null(),
            gnu_hash: core::ptr::null(),
        };
        for index in 0..info.dlpi_phnum as usize {
            // SAFETY: dlpi_phnum program headers lie at dlpi_phdr.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            if header.p_type != PT_DYNAMIC {
                continue;
            }
            let mut entry = (info.dlpi_addr + header.p_vaddr) as *const Dyn;
            // SAFETY: the dynamic section is an array that ends with DT_NULL.
            while unsafe { (*entry).tag } != DT_NULL {
                // SAFETY: not yet at the end, see the loop's condition.
                let Dyn { tag, value } = unsafe { &*entry };
                // glibc relocates these pointers in place, other linkers leave
                // them relative to the load address.
                let address = if *value < object.base { object.base + *value } else { *value };
                match *tag {
                    DT_STRTAB => object.strings = address as *const c_char,
                    DT_SYMTAB => object.symbols = address as *const Sym,
                    DT_GNU_HASH => object.gnu_hash = address as *const u32,
                    _ => {}
                }
                // SAFETY: DT_NULL has not been reached, so another entry follows.
                entry = unsafe { entry.add(1) };
            }
        }
        (!object.strings.is_null() && !object.symbols.is_null() && !object.gnu_hash.is_null())
            .then_some(object)
    }

    /// Looks a defined symbol up by name, whatever its version.
    ///
    /// # Safety
    /// The object is still mapped.
    unsafe fn find(&self, name: &CStr) -> Option<*mut c_void> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // SAFETY: the layout of the GNU hash section: four words, a Bloom filter
        // of 64-bit words, the buckets, then one hash value for each symbol.
        unsafe {
            let (buckets, first, bloom_words) =
                (*self.gnu_hash, *self.gnu_hash.add(1), *self.gnu_hash.add(2) as usize);
            if buckets == 0 {
                return None;
            }
            let bucket_table = self.gnu_hash.add(4 + 2 * bloom_words);
            let chain = bucket_table.add(buckets as usize);
            let mut index = *bucket_table.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let link = *chain.add((index - first) as usize);
                let symbol = &*self.symbols.add(index as usize);
                if (link | 1) == (hash | 1)
                    && symbol.value != 0
                    && CStr::from_ptr(self.strings.add(symbol.name as usize)) == name
                {
                    return Some((self.base + symbol.value) as *mut c_void);
                }
                if link & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }
}
