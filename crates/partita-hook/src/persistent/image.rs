//! From a program's image to rewritten PTX.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::hash::Hasher;

use hashbrown::HashSet;
use partita_abi::CuResult;
use partita_ledger::mutex::Mutex;
use partita_ptx::Module;
use partita_ptx::fatbin::{self, Kind};
use partita_ptx::persistent::rewrite;

use crate::account::tenant::Tenant;
use crate::sys::fork::in_child;
use crate::sys::report;

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
/// Kernels that a module's refusals name, at most.
const NAMED_MAX: usize = 8;

/// Hashes of images that the driver linked of rewritten parts.
static LINKED: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

// A child loads its own images; what its parent linked stays rewritten.
in_child! {
    LINKED.reset_after_fork();
}

/// What the driver gets.
pub enum Image {
    /// PTX text, with a zero behind it.
    Text(Vec<u8>),
    /// The program's own image: it is rewritten already.
    AsIs,
}

/// An image at an address, in any form that a driver takes.
///
/// # Errors
/// The code for the load, and a line that says why.
///
/// # Safety
/// The address is null or that of a whole image.
pub unsafe fn at(tenant: &Tenant, image: *const u8) -> Result<Image, CuResult> {
    if image.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: every kind of image is longer than its magic number, except text, which ends with a
    // zero.
    let magic = unsafe {
        let mut magic = [0u8; 4];
        for (index, byte) in magic.iter_mut().enumerate() {
            *byte = image.add(index).read();
            if *byte == 0 {
                break;
            }
        }
        magic
    };
    let number = |at: usize| {
        // SAFETY: a container and its wrapper have a header of 16 bytes.
        unsafe { image.add(at).cast::<u64>().read_unaligned() }
    };
    match u32::from_le_bytes(magic) {
        _ if magic == ELF_MAGIC => {
            // SAFETY: a whole file.
            let bytes = unsafe { core::slice::from_raw_parts(image, elf_bytes(image)) };
            of_bytes(tenant, bytes)
        }
        fatbin::MAGIC => {
            // SAFETY: the header says how long the container is.
            let bytes = unsafe {
                let header = core::slice::from_raw_parts(image, fatbin::HEADER_BYTES);
                let length = fatbin::length(header).ok_or(CuResult::INVALID_IMAGE)?;
                core::slice::from_raw_parts(image, length)
            };
            of_bytes(tenant, bytes)
        }
        // SAFETY: the wrapper has the address of the container.
        fatbin::WRAPPER_MAGIC => unsafe { at(tenant, number(8) as *const u8) },
        _ => {
            // SAFETY: any other image is text that ends with a zero.
            let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
            of_bytes(tenant, text.to_bytes())
        }
    }
}

/// An image of known length.
///
/// # Errors
/// As for [`at`].
pub fn of_bytes(tenant: &Tenant, bytes: &[u8]) -> Result<Image, CuResult> {
    if is_linked(bytes) {
        return Ok(Image::AsIs);
    }
    if bytes.starts_with(&ELF_MAGIC) {
        return Err(without_ptx(kernel_of(bytes)));
    }
    if bytes.first_chunk() == Some(&fatbin::MAGIC.to_le_bytes()) {
        return of_fatbin(tenant, bytes);
    }
    rewritten(bytes)
}

/// The best PTX of a container: that for the newest architecture which the device has.
fn of_fatbin(tenant: &Tenant, bytes: &[u8]) -> Result<Image, CuResult> {
    let parts = fatbin::parts(bytes).ok_or(CuResult::INVALID_IMAGE)?;
    let cubin = parts.iter().find(|part| part.kind == Kind::Cubin);
    let kernel = cubin.and_then(|part| part.bytes.as_deref()).and_then(kernel_of);
    let ptx = parts
        .iter()
        .filter(|part| part.kind == Kind::Ptx && part.architecture <= tenant.compute_capability)
        .max_by_key(|part| part.architecture);
    match ptx.map(|part| part.bytes.as_deref()) {
        Some(Some(text)) => rewritten(text),
        Some(None) => {
            report::line(format_args!(
                "{}: a fat binary was refused: its PTX cannot be unpacked; compile it with nvcc \
                 -no-compress, or use --via mask",
                report::program()
            ));
            Err(CuResult::INVALID_IMAGE)
        }
        None => Err(without_ptx(kernel)),
    }
}

/// Says that an image has no PTX.
fn without_ptx(kernel: Option<String>) -> CuResult {
    let kernel = kernel.map_or_else(|| "an image".to_owned(), |name| format!("kernel '{name}'"));
    report::line(format_args!(
        "{}: {kernel} was refused: it has no PTX for this GPU, and persistent blocks are made of \
         PTX; compile it with PTX \
         (-gencode arch=compute_80,code=compute_80), or use --via mask",
        report::program()
    ));
    CuResult::NO_BINARY_FOR_GPU
}

/// The name of a kernel of a cubin, from the name of its section.
fn kernel_of(bytes: &[u8]) -> Option<String> {
    const SECTION: &[u8] = b".text.";
    let start = bytes.windows(SECTION.len()).position(|window| window == SECTION)? + SECTION.len();
    let name = bytes[start..].split(|byte| *byte == 0).next()?;
    core::str::from_utf8(name).ok().map(str::to_owned)
}

/// Rewrites PTX text. Kernels that cannot be rewritten are left out, each with a line.
fn rewritten(bytes: &[u8]) -> Result<Image, CuResult> {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = core::str::from_utf8(text).map_err(|_| CuResult::INVALID_PTX)?;
    let module = Module::parse(text).map_err(|error| {
        report::line(format_args!("{}: PTX was refused: {error}; use --via mask", report::program()));
        CuResult::INVALID_PTX
    })?;
    let made = rewrite(&module);
    for refusal in made.refused.iter().take(NAMED_MAX) {
        report::line(format_args!(
            "{}: {refusal}: it cannot run as persistent blocks, and the program does not find it; \
             use --via mask",
            report::program()
        ));
    }
    if made.refused.len() > NAMED_MAX {
        report::line(format_args!(
            "{}: {} more kernels of that module cannot run as persistent blocks",
            report::program(),
            made.refused.len() - NAMED_MAX
        ));
    }
    if made.entries.is_empty() && !made.refused.is_empty() {
        return Err(CuResult::NO_BINARY_FOR_GPU);
    }
    Ok(Image::Text(format!("{}\0", made.module).into_bytes()))
}

/// Records an image that the driver linked of rewritten parts, which programs load by its address
/// or as a copy.
pub fn note_linked(bytes: &[u8]) {
    LINKED.lock().get_or_insert_default().insert(hash(bytes));
}

fn is_linked(bytes: &[u8]) -> bool {
    LINKED.lock().as_ref().is_some_and(|linked| linked.contains(&hash(bytes)))
}

fn hash(bytes: &[u8]) -> u64 {
    // The driver may count the zero behind text.
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    let mut hasher = core::hash::BuildHasher::build_hasher(&hashbrown::DefaultHashBuilder::default());
    hasher.write(bytes);
    hasher.finish()
}

/// The length of an ELF file of 64 bits: where its section headers or its last section ends.
///
/// # Safety
/// The address is that of a whole file.
unsafe fn elf_bytes(image: *const u8) -> usize {
    const HEADER: usize = 64;
    // SAFETY: the offsets are those of an ELF header, and of section headers that it names.
    unsafe {
        let half = |at: usize| usize::from(image.add(at).cast::<u16>().read_unaligned());
        let word = |at: usize| image.add(at).cast::<u64>().read_unaligned() as usize;
        let (programs, sections) = (word(32), word(40));
        let mut end = HEADER.max(programs + half(54) * half(56)).max(sections + half(58) * half(60));
        for index in 0..half(60) {
            let section = sections + index * half(58);
            // A section without bytes in the file (SHT_NOBITS).
            if image.add(section + 4).cast::<u32>().read_unaligned() != 8 {
                end = end.max(word(section + 24) + word(section + 32));
            }
        }
        end
    }
}
