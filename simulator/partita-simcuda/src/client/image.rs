//! A module image: PTX text, cubins (ELF) and fat binaries of both.

mod ptx;

use std::sync::Arc;

use partita_abi::CuResult;
use partita_ptx::fatbin::{self, Kind};
use partita_ptx::module::Variable;

use super::function::KernelInfo;
use super::source::Source;

/// The initial value of a global variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Initial {
    /// These bytes; zeroes if there are none.
    Bytes(Vec<u8>),
    /// That of a variable of PTX, which may have addresses in it.
    Ptx(Arc<Source>, Box<Variable>),
}

/// A global variable of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its initial value.
    pub initial: Initial,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Kernels, in the image's order.
    pub kernels: Vec<KernelInfo>,
    /// Global variables.
    pub globals: Vec<Global>,
    /// The target (90 for `sm_90`) that PTX on its own is written for: no older device runs it.
    pub ptx_target: Option<u32>,
}

impl Loaded {
    /// Adds what is new in another part. The board runs PTX, so a kernel of a cubin gets the PTX
    /// of its name, and a variable its initial value.
    fn add(&mut self, other: Self) {
        for kernel in other.kernels {
            match self.kernels.iter_mut().find(|known| known.name == kernel.name) {
                None => self.kernels.push(kernel),
                Some(known) if known.source.is_none() => {
                    known.shared_bytes = known.shared_bytes.max(kernel.shared_bytes);
                    (known.source, known.refused) = (kernel.source, kernel.refused);
                }
                Some(_) => {}
            }
        }
        for global in other.globals {
            match self.globals.iter_mut().find(|known| known.name == global.name) {
                None => self.globals.push(global),
                Some(known) if matches!(global.initial, Initial::Ptx(..)) => known.initial = global.initial,
                Some(_) => {}
            }
        }
    }
}

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// Reads an image of any kind at an address; only the image contains its length.
///
/// # Errors
/// `INVALID_VALUE` for null, `INVALID_IMAGE` and `INVALID_PTX` for unreadable images,
/// `NO_BINARY_FOR_GPU` for a fat binary whose parts all have an unknown compression.
///
/// # Safety
/// The address is null or that of a whole image.
pub unsafe fn parse(image: *const u8) -> Result<Loaded, CuResult> {
    if image.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: every kind of image is longer than its magic number, except text, which ends with a
    // zero.
    let magic = unsafe {
        let mut magic = [0u8; 4];
        for (index, byte) in magic.iter_mut().enumerate() {
            *byte = image.add(index).read();
            if *byte == 0 && index < 3 {
                break;
            }
        }
        magic
    };
    if magic == ELF_MAGIC {
        // SAFETY: the header says how long the file is.
        let bytes = unsafe { std::slice::from_raw_parts(image, elf::length(image)?) };
        return elf::parse(bytes);
    }
    match u32::from_le_bytes(magic) {
        fatbin::MAGIC => {
            // SAFETY: the header says how long the container is.
            let bytes = unsafe {
                let header = std::slice::from_raw_parts(image, fatbin::HEADER_BYTES);
                let length = fatbin::length(header).ok_or(CuResult::INVALID_IMAGE)?;
                std::slice::from_raw_parts(image, length)
            };
            of_fatbin(bytes)
        }
        fatbin::WRAPPER_MAGIC => {
            // SAFETY: the wrapper's second word pair is the pointer to the container.
            unsafe { parse(image.add(8).cast::<*const u8>().read_unaligned()) }
        }
        _ => {
            // SAFETY: any other image is text that ends with a zero.
            let text = unsafe { std::ffi::CStr::from_ptr(image.cast()) };
            ptx::parse(text.to_str().map_err(|_| CuResult::INVALID_PTX)?)
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads the parts of a fat binary: cubins as they are and packed ones, and PTX where there is no
/// cubin.
fn of_fatbin(bytes: &[u8]) -> Result<Loaded, CuResult> {
    let (mut binary, mut source, mut skipped) = (Loaded::default(), Loaded::default(), 0);
    for part in fatbin::parts(bytes).ok_or(CuResult::INVALID_IMAGE)? {
        match (part.kind, part.bytes) {
            (Kind::Cubin, Some(part)) if part.starts_with(&ELF_MAGIC) => binary.add(elf::parse(&part)?),
            (Kind::Ptx, Some(part)) => {
                let text = part.split(|byte| *byte == 0).next().unwrap_or_default();
                let text = std::str::from_utf8(text).map_err(|_| CuResult::INVALID_PTX)?;
                source.add(ptx::parse(text)?);
            }
            _ => skipped += 1,
        }
    }
    binary.add(source);
    if binary.kernels.is_empty() && skipped > 0 { Err(CuResult::NO_BINARY_FOR_GPU) } else { Ok(binary) }
}

mod elf {
    //! Cubins: ELF files with a section `.text.NAME` for each kernel and its properties in
    //! `.nv.info.NAME`.

    use super::{CuResult, Global, Initial, KernelInfo, Loaded, u16_at, u32_at, u64_at};

    /// `EIATTR_KPARAM_INFO`: ordinal, offset and size of a parameter.
    const PARAM_INFO: u8 = 0x17;
    /// `EIATTR_MAX_THREADS`: the launch bounds.
    const MAX_THREADS: u8 = 0x05;
    /// Attributes with a length and that many bytes.
    const FORMAT_SIZED: u8 = 0x04;
    /// Allocated, and code.
    const SHF_EXECINSTR: u64 = 4;

    struct Section<'a> {
        name: &'a str,
        flags: u64,
        info: u32,
        bytes: &'a [u8],
        length: u64,
    }

    /// The length of a file, from the ends of its section and program headers.
    ///
    /// # Safety
    /// The address is that of a whole ELF file.
    pub unsafe fn length(image: *const u8) -> Result<usize, CuResult> {
        // SAFETY: a whole file has a whole header.
        let header = unsafe { std::slice::from_raw_parts(image, 64) };
        let word = |at| u64_at(header, at).map(|value| value as usize).ok_or(CuResult::INVALID_IMAGE);
        let half = |at| u16_at(header, at).map(usize::from).ok_or(CuResult::INVALID_IMAGE);
        let programs = word(32)?.saturating_add(half(54)? * half(56)?);
        let headers = word(40)?;
        let mut end = programs.max(headers.saturating_add(half(58)? * half(60)?));
        for index in 0..half(60)? {
            // SAFETY: the section headers belong to the file.
            let section = unsafe { std::slice::from_raw_parts(image.add(headers + index * 64), 64) };
            let kind = u32_at(section, 4).unwrap_or(0);
            if kind != 8 {
                let offset = u64_at(section, 24).unwrap_or(0) as usize;
                end = end.max(offset.saturating_add(u64_at(section, 32).unwrap_or(0) as usize));
            }
        }
        Ok(end)
    }

    fn name(table: &[u8], at: u32) -> &str {
        let rest = table.get(at as usize..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }

    fn sections(bytes: &[u8]) -> Option<Vec<Section<'_>>> {
        let headers = u64_at(bytes, 40)? as usize;
        let count = usize::from(u16_at(bytes, 60)?);
        let raw = |index: usize| bytes.get(headers + index * 64..headers + index * 64 + 64);
        let content = |header: &[u8]| -> Option<&[u8]> {
            if u32_at(header, 4)? == 8 {
                return Some(&[]);
            }
            let offset = u64_at(header, 24)? as usize;
            bytes.get(offset..offset.checked_add(u64_at(header, 32)? as usize)?)
        };
        let names = content(raw(usize::from(u16_at(bytes, 62)?))?)?;
        (0..count)
            .map(|index| {
                let header = raw(index)?;
                Some(Section {
                    name: name(names, u32_at(header, 0)?),
                    flags: u64_at(header, 8)?,
                    info: u32_at(header, 44)?,
                    bytes: content(header)?,
                    length: u64_at(header, 32)?,
                })
            })
            .collect()
    }

    /// Parameters and launch bounds from a kernel's own attribute section.
    fn attributes(kernel: &mut KernelInfo, mut bytes: &[u8]) {
        let mut params = Vec::new();
        while bytes.len() >= 4 {
            let (format, attribute) = (bytes[0], bytes[1]);
            let size = usize::from(u16_at(bytes, 2).unwrap_or(0));
            let value = if format == FORMAT_SIZED { bytes.get(4..4 + size).unwrap_or_default() } else { &[] };
            match attribute {
                PARAM_INFO if format == FORMAT_SIZED => {
                    let ordinal = u16_at(value, 4).unwrap_or(0);
                    let offset = usize::from(u16_at(value, 6).unwrap_or(0));
                    // The size is in the upper bits of the last word, in fourths of its own unit.
                    let size = (u32_at(value, 8).unwrap_or(0) >> 18) as usize;
                    params.push((ordinal, offset, size));
                }
                MAX_THREADS if format == FORMAT_SIZED => {
                    let threads = [0, 4, 8].map(|at| u32_at(value, at).unwrap_or(1).max(1));
                    kernel.threads_max = threads.iter().product();
                }
                _ => {}
            }
            bytes = bytes.get(4 + value.len()..).unwrap_or_default();
        }
        params.sort_unstable();
        kernel.params = params.into_iter().map(|(_, offset, size)| (offset, size)).collect();
    }

    pub fn parse(bytes: &[u8]) -> Result<Loaded, CuResult> {
        let sections = sections(bytes).ok_or(CuResult::INVALID_IMAGE)?;
        let mut loaded = Loaded::default();
        let flags = u32_at(bytes, 48).unwrap_or(0);
        // Newer files keep the architecture in the second byte, older ones in the first.
        let architecture = if flags >> 8 & 0xff != 0 { flags >> 8 & 0xff } else { flags & 0xff };
        for section in &sections {
            let Some(kernel) = section.name.strip_prefix(".text.") else { continue };
            // Device functions have code as well; only kernels have attributes.
            let own = format!(".nv.info.{kernel}");
            let Some(info) = sections.iter().find(|other| other.name == own) else { continue };
            if section.flags & SHF_EXECINSTR == 0 {
                continue;
            }
            let mut found = KernelInfo {
                name: kernel.to_owned(),
                registers: section.info >> 24,
                binary_version: architecture,
                ..KernelInfo::default()
            };
            attributes(&mut found, info.bytes);
            let shared = format!(".nv.shared.{kernel}");
            found.shared_bytes =
                sections.iter().find(|other| other.name == shared).map_or(0, |other| other.length as u32);
            loaded.kernels.push(found);
        }
        loaded.globals = globals(&sections);
        Ok(loaded)
    }

    /// Symbols of data in the sections of global variables.
    fn globals(sections: &[Section<'_>]) -> Vec<Global> {
        let bytes_of = |wanted| sections.iter().find(|s| s.name == wanted).map_or(&[][..], |s| s.bytes);
        let (symbols, strings) = (bytes_of(".symtab"), bytes_of(".strtab"));
        symbols
            .chunks_exact(24)
            .filter_map(|symbol| {
                let object = symbol[4] & 15 == 1;
                let section = sections.get(usize::from(u16_at(symbol, 6)?))?;
                let bytes = u64_at(symbol, 16)?;
                let global = matches!(section.name, ".nv.global" | ".nv.global.init");
                if !object || !global || bytes == 0 {
                    return None;
                }
                let at = u64_at(symbol, 8)? as usize;
                let initial = section.bytes.get(at..at.checked_add(bytes as usize)?).unwrap_or_default();
                let name = name(strings, u32_at(symbol, 0)?).to_owned();
                Some(Global { name, bytes, initial: Initial::Bytes(initial.to_vec()) })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_images_are_refused() {
        let mut header = [0u8; 64];
        header[..4].copy_from_slice(&ELF_MAGIC);
        // SAFETY: the header says that there is nothing behind it.
        assert_eq!(unsafe { parse(header.as_ptr()) }, Err(CuResult::INVALID_IMAGE));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { parse(std::ptr::null()) }, Err(CuResult::INVALID_VALUE));
    }
}
