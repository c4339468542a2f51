//! Finds functions in the libraries that the dynamic linker has loaded, without calling it.
//!
//! The hook exports `dlsym` itself, so looking that name up gives the hook. It reads the linker's
//! own list of loaded objects instead, the one that debuggers use, and each object's GNU hash
//! table. This calls, allocates and locks nothing: a sanitizer's runtime resolves names before any
//! call is safe, `dl_iterate_phdr` among them.
//!
//! The list grows at its end, and only objects that were opened later leave it. So searches that
//! end at an object from the start are safe beside other threads' `dlopen`.

use core::ffi::{CStr, c_char, c_int, c_void};

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// The names under which C libraries, and the parts that older ones are divided into, are loaded.
const C_LIBRARIES: [&[u8]; 8] = [
    b"libc.so",
    b"libc-",
    b"libdl.so",
    b"libdl-",
    b"libpthread.so",
    b"libpthread-",
    b"ld-musl",
    b"libc.musl",
];

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
    section: u16,
    value: u64,
    _size: u64,
}

/// The public part of `struct r_debug` of link.h.
#[repr(C)]
struct Debug {
    _version: c_int,
    first: *const Loaded,
}

/// One loaded object: the public part of `struct link_map` of link.h, which musl shares.
#[repr(C)]
pub struct Loaded {
    base: u64,
    name: *const c_char,
    dynamic: *const Dyn,
    next: *const Loaded,
}

// The linker's list: glibc's `_r_debug`, or the target of musl's `_dl_debug_addr`. Weak, so that
// each is null with the other C library.
core::arch::global_asm!(
    ".weak _r_debug",
    ".weak _dl_debug_addr",
    ".pushsection .text.partita_elf, \"ax\", %progbits",
    ".globl partita_linkers_list",
    ".hidden partita_linkers_list",
    ".type partita_linkers_list, %function",
    "partita_linkers_list:",
    #[cfg(target_arch = "x86_64")]
    "mov rax, qword ptr [rip + _r_debug@GOTPCREL]
     test rax, rax
     jne 2f
     mov rax, qword ptr [rip + _dl_debug_addr@GOTPCREL]
     test rax, rax
     je 2f
     mov rax, qword ptr [rax]",
    #[cfg(target_arch = "aarch64")]
    "adrp x0, :got:_r_debug
     ldr x0, [x0, :got_lo12:_r_debug]
     cbnz x0, 2f
     adrp x0, :got:_dl_debug_addr
     ldr x0, [x0, :got_lo12:_dl_debug_addr]
     cbz x0, 2f
     ldr x0, [x0]",
    "2:",
    "ret",
    ".size partita_linkers_list, . - partita_linkers_list",
    ".globl partita_own_dynamic",
    ".hidden partita_own_dynamic",
    ".type partita_own_dynamic, %function",
    "partita_own_dynamic:",
    #[cfg(target_arch = "x86_64")]
    "lea rax, [rip + _DYNAMIC]",
    #[cfg(target_arch = "aarch64")]
    "adrp x0, _DYNAMIC
     add x0, x0, :lo12:_DYNAMIC",
    "ret",
    ".size partita_own_dynamic, . - partita_own_dynamic",
    ".popsection",
);

unsafe extern "C" {
    safe fn partita_linkers_list() -> *const Debug;
    safe fn partita_own_dynamic() -> *const Dyn;
}

/// The loaded objects in the order in which names are searched.
fn loaded() -> impl Iterator<Item = &'static Loaded> {
    // SAFETY: null or the linker's structure, which lives as long as the process.
    let debug = unsafe { partita_linkers_list().as_ref() };
    // SAFETY: null or the list's first element, the program, which is never unloaded.
    let first = debug.and_then(|debug| unsafe { debug.first.as_ref() });
    // SAFETY: null or the list's next element; see the module for why it lives.
    core::iter::successors(first, |at| unsafe { at.next.as_ref() })
}

/// A function of the C library itself, null if it has none of that name.
pub fn in_c_library(name: &CStr) -> *mut c_void {
    let mut libraries = loaded().filter(|object| object.is_c_library());
    libraries.find_map(|object| object.function(name)).unwrap_or(core::ptr::null_mut())
}

/// The next function of that name behind this library; null if no other library has one.
pub fn behind_this_library(name: &CStr) -> *mut c_void {
    let own = loaded().find(|object| object.is_own());
    own.and_then(|own| own.next_function(name)).unwrap_or(core::ptr::null_mut())
}

/// The object whose code or data is at an address; `None` if the C library does not report it.
pub fn holder(address: *const c_void) -> Option<&'static Loaded> {
    /// `RTLD_DL_LINKMAP` of glibc's dlfcn.h.
    const LINKMAP: c_int = 2;
    type Dladdr1 =
        unsafe extern "C" fn(*const c_void, *mut libc::Dl_info, *mut Option<&'static Loaded>, c_int) -> c_int;
    let dladdr1 = in_c_library(c"dladdr1");
    if dladdr1.is_null() {
        return None;
    }
    // SAFETY: the prototype of that name in dlfcn.h.
    let dladdr1 = unsafe { core::mem::transmute::<*mut c_void, Dladdr1>(dladdr1) };
    let (mut about, mut object) = (core::mem::MaybeUninit::uninit(), None);
    // SAFETY: valid pointers; any address may be asked about.
    match unsafe { dladdr1(address, about.as_mut_ptr(), &mut object, LINKMAP) } {
        0 => None,
        _ => object,
    }
}

impl Loaded {
    /// The first function of that name in the objects behind this one.
    pub fn next_function(&self, name: &CStr) -> Option<*mut c_void> {
        let mut behind = loaded().skip_while(|object| !core::ptr::eq(*object, self)).skip(1);
        behind.find_map(|object| object.function(name))
    }

    /// The name of its file without the directory; empty for the program itself.
    pub fn file_name(&self) -> &[u8] {
        if self.name.is_null() {
            return b"";
        }
        // SAFETY: the linker's names are NUL-terminated strings, and stay while the object is
        // there.
        let path = unsafe { CStr::from_ptr(self.name) }.to_bytes();
        path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
    }

    fn is_c_library(&self) -> bool {
        C_LIBRARIES.iter().any(|prefix| self.file_name().starts_with(prefix))
    }

    /// Whether it is this library.
    pub fn is_own(&self) -> bool {
        self.dynamic == partita_own_dynamic()
    }

    /// The values of the entries of its dynamic section with these tags.
    fn dynamic<const N: usize>(&self, tags: [i64; N]) -> [Option<u64>; N] {
        let mut values = [None; N];
        let mut entry = self.dynamic;
        // SAFETY: the dynamic section is an array that ends with DT_NULL.
        while !entry.is_null() && unsafe { (*entry).tag } != DT_NULL {
            // SAFETY: not yet at the end, see the loop's condition.
            let Dyn { tag, value } = unsafe { &*entry };
            if let Some(at) = tags.iter().position(|wanted| wanted == tag) {
                values[at] = Some(*value);
            }
            // SAFETY: DT_NULL has not been reached, so another entry follows.
            entry = unsafe { entry.add(1) };
        }
        values
    }

    /// glibc relocates the pointers of a dynamic section in place, other linkers leave them
    /// relative to the load address.
    fn address(&self, value: u64) -> u64 {
        if value < self.base { self.base + value } else { value }
    }

    /// The name that the library gives itself.
    pub fn soname(&self) -> Option<&CStr> {
        let [Some(strings), Some(offset)] = self.dynamic([DT_STRTAB, DT_SONAME]) else { return None };
        // SAFETY: an offset into the object's strings.
        Some(unsafe { CStr::from_ptr((self.address(strings) + offset) as *const c_char) })
    }

    /// A function that the object defines, whatever its version.
    pub fn function(&self, name: &CStr) -> Option<*mut c_void> {
        let [Some(strings), Some(symbols), Some(hashes)] = self.dynamic([DT_STRTAB, DT_SYMTAB, DT_GNU_HASH])
        else {
            return None;
        };
        let strings = self.address(strings) as *const c_char;
        let symbols = self.address(symbols) as *const Sym;
        let table = self.address(hashes) as *const u32;
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // SAFETY: the layout of the GNU hash section: four words, a Bloom filter
        // of 64-bit words, the buckets, then one hash value for each symbol.
        unsafe {
            let (buckets, first, bloom_words) = (*table, *table.add(1), *table.add(2) as usize);
            if buckets == 0 {
                return None;
            }
            let bucket_table = table.add(4 + 2 * bloom_words);
            let chain = bucket_table.add(buckets as usize);
            let mut index = *bucket_table.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let link = *chain.add((index - first) as usize);
                let symbol = &*symbols.add(index as usize);
                if (link | 1) == (hash | 1)
                    && symbol.section != 0
                    && symbol.value != 0
                    && CStr::from_ptr(strings.add(symbol.name as usize)) == name
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
