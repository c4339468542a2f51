//! Modules and libraries.

use core::ffi::{c_char, c_void};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use partita_abi::CuResult;
use partita_abi::types::*;
use partita_interpreter::{function_address, initial_bytes};

use super::context::{Context, current};
use super::function::Function;
use super::gpus::runtime;
use super::image::{self, Initial, Loaded};
use super::launch::note_unknown;
use super::object::Registry;
use super::runtime::Runtime;
use super::source::Source;
use super::{memory, memory_api, moves};
use super::{put, put_if, text};
use crate::kernel::{group, vidmem};
use crate::shared::protocol::{AllocKind, Code, FunctionSpec, Reply, Request};
use crate::shared::sys::{lock, memfd};

/// A module: an image in a context.
#[derive(Debug)]
pub struct Module {
    runtime: &'static Runtime,
    ctx: u64,
    functions: Vec<&'static Function>,
    globals: Vec<(String, u64, u64)>,
    /// The allocations of the kernel driver for them.
    _memory: Vec<group::Taken>,
}

/// A library: an image, loaded into each context that uses it.
#[derive(Debug)]
struct Library {
    image: Loaded,
    modules: Mutex<HashMap<u64, usize>>,
    kernels: Mutex<Vec<usize>>,
}

/// First handle of kernels; far from every address that is mapped.
const KERNELS_AT: u64 = 0x1300_0000_0000;
/// The range of their handles.
const KERNELS_ROOM: u64 = 1 << 40;

static MODULES: Registry<Arc<Module>> = Registry::new(0x1100_0000_0000);
static LIBRARIES: Registry<Arc<Library>> = Registry::new(0x1200_0000_0000);
static KERNELS: Registry<(usize, Arc<str>)> = Registry::new(KERNELS_AT);

fn load(context: &'static Context, image: &Loaded) -> Result<usize, CuResult> {
    let context = context.home();
    let runtime = context.runtime;
    let capability = runtime.spec.compute_capability;
    // The driver's compiler does not go below the target.
    if image.ptx_target > Some(u32::from(capability.major) * 10 + u32::from(capability.minor)) {
        return Err(CuResult::INVALID_PTX);
    }
    let (globals, taken) = allocate_globals(context, image)?;
    let symbols: BTreeMap<String, u64> = globals.iter().map(|(name, at, _)| (name.clone(), *at)).collect();
    fill_globals(runtime, image, &symbols)?;
    // Kernels of one text share it.
    let mut codes: Vec<(&Arc<Source>, u32)> = Vec::new();
    let mut specs = Vec::new();
    for kernel in &image.kernels {
        let known = |source: &Arc<Source>| codes.iter().find(|(known, _)| Arc::ptr_eq(known, source));
        let code = match &kernel.source {
            Some(source) if !kernel.is_built_in() => match known(source) {
                Some((_, code)) => Some(*code),
                None => {
                    let code = load_code(runtime, source, &symbols)?;
                    codes.push((source, code));
                    Some(code)
                }
            },
            _ => None,
        };
        specs.push(FunctionSpec { name: kernel.name.clone(), ctx: context.number, code });
    }
    let mut programs = Vec::new();
    // A module of thousands of kernels does not fit one message.
    for part in specs.chunks(128) {
        let Reply::Programs(part) = runtime.call(&Request::Load { functions: part.to_vec() })? else {
            return Err(CuResult::UNKNOWN);
        };
        programs.extend(part);
    }
    // The handle is needed to make the functions and the functions to make the module.
    let handle = MODULES.insert(Arc::new(Module {
        runtime,
        ctx: context.id,
        functions: Vec::new(),
        globals: Vec::new(),
        _memory: Vec::new(),
    }));
    let functions: Result<Vec<_>, CuResult> = image
        .kernels
        .iter()
        .zip(programs)
        .map(|(info, program)| Function::create(runtime, info.clone(), program, handle))
        .collect();
    MODULES.replace(
        handle,
        Arc::new(Module { runtime, ctx: context.id, functions: functions?, globals, _memory: taken }),
    );
    Ok(handle)
}

/// A module's variables: names, addresses and lengths.
type Globals = Vec<(String, u64, u64)>;

fn allocate_globals(
    context: &'static Context,
    image: &Loaded,
) -> Result<(Globals, Vec<group::Taken>), CuResult> {
    let (mut globals, mut taken) = (Vec::new(), Vec::new());
    for global in &image.globals {
        taken.push(vidmem::take(context.runtime.pci_bus, global.bytes.max(1))?);
        let address = memory_api::allocate(context, global.bytes.max(1), AllocKind::Device)?;
        globals.push((global.name.clone(), address, global.bytes));
    }
    Ok((globals, taken))
}

/// Writes the initial values, which may be addresses of other variables.
fn fill_globals(
    runtime: &'static Runtime,
    image: &Loaded,
    symbols: &BTreeMap<String, u64>,
) -> Result<(), CuResult> {
    for global in &image.globals {
        let made;
        let bytes: &[u8] = match &global.initial {
            Initial::Bytes(bytes) => bytes,
            Initial::Ptx(source, variable) => {
                let address = |name: &str| {
                    symbols.get(name).copied().or_else(|| function_address(&source.module, name))
                };
                made = initial_bytes(variable, address).map_err(|error| {
                    eprintln!("partita-sim: this PTX is refused: {error}");
                    CuResult::INVALID_PTX
                })?;
                &made
            }
        };
        if !bytes.is_empty() {
            moves::write_device(runtime, symbols[&global.name], bytes)?;
        }
    }
    Ok(())
}

/// Gives the board a PTX text with the addresses of its variables; returns its number there.
fn load_code(runtime: &Runtime, source: &Source, symbols: &BTreeMap<String, u64>) -> Result<u32, CuResult> {
    let code = Code { text: source.text.clone(), symbols: symbols.clone() };
    let bytes = postcard::to_allocvec(&code).map_err(|_| CuResult::OUT_OF_MEMORY)?;
    let file = memfd(c"partita-sim-code", bytes.len() as u64).map(File::from);
    let file = file.and_then(|file| file.write_all_at(&bytes, 0).map(|()| file));
    let file = file.map_err(|_| CuResult::OUT_OF_MEMORY)?;
    let request = Request::LoadCode { bytes: bytes.len() as u64 };
    match runtime.call_with(&request, &[file.as_fd()])? {
        (Reply::Code(code), _) => Ok(code),
        _ => Err(CuResult::UNKNOWN),
    }
}

fn unload(handle: usize) -> Result<(), CuResult> {
    let module = MODULES.remove(handle).ok_or(CuResult::INVALID_HANDLE)?;
    let runtime = module.runtime;
    for function in &module.functions {
        function.retire();
    }
    for (_, address, _) in &module.globals {
        let _ = memory::free(runtime, *address);
    }
    let programs: Vec<u64> = module.functions.iter().map(|function| function.program).collect();
    for part in programs.chunks(4096) {
        runtime.call(&Request::Unload { programs: part.to_vec() })?;
    }
    Ok(())
}

/// Removes the modules of a context that is being destroyed; the board removes its part by itself.
pub fn forget_context(ctx: u64) {
    for (handle, module) in MODULES.all() {
        if module.ctx == ctx {
            for function in &module.functions {
                function.retire();
            }
            MODULES.remove(handle);
        }
    }
    for (_, library) in LIBRARIES.all() {
        lock(&library.modules).remove(&ctx);
    }
}

fn module(handle: CUmodule) -> Result<Arc<Module>, CuResult> {
    runtime()?;
    MODULES.get(handle.addr()).ok_or(CuResult::INVALID_HANDLE)
}

fn find(module: &Module, name: &str) -> Result<&'static Function, CuResult> {
    let found = module.functions.iter().find(|function| function.info.name == name);
    let function = found.copied().ok_or(CuResult::NOT_FOUND)?;
    note_unknown(function);
    Ok(function)
}

fn library(handle: CUlibrary) -> Result<Arc<Library>, CuResult> {
    runtime()?;
    LIBRARIES.get(handle.addr()).ok_or(CuResult::INVALID_HANDLE)
}

/// The library's module in the current context, loaded when it is not.
fn module_of(library: &Library) -> Result<usize, CuResult> {
    let context = current()?.home();
    let mut modules = lock(&library.modules);
    if let Some(handle) = modules.get(&context.id) {
        return Ok(*handle);
    }
    let handle = load(context, &library.image)?;
    modules.insert(context.id, handle);
    Ok(handle)
}

/// The function of a kernel in the current context.
///
/// # Errors
/// `INVALID_HANDLE`, and those of loading the library there.
pub fn kernel_function(kernel: CUkernel) -> Result<&'static Function, CuResult> {
    let (owner, name) = KERNELS.get(kernel.addr()).ok_or(CuResult::INVALID_HANDLE)?;
    let library = LIBRARIES.get(owner).ok_or(CuResult::INVALID_HANDLE)?;
    let module = MODULES.get(module_of(&library)?).ok_or(CuResult::INVALID_HANDLE)?;
    find(&module, &name)
}

/// The function of a handle that may be a kernel's: launches accept both. `None` if it is not a
/// kernel's.
#[inline]
pub fn kernel_as_function(handle: CUfunction) -> Option<Result<&'static Function, CuResult>> {
    let at = handle.addr() as u64;
    (KERNELS_AT..KERNELS_AT + KERNELS_ROOM).contains(&at).then(|| kernel_function(CUkernel(handle.0)))
}

fn add_kernel(library: usize, name: &str) -> usize {
    KERNELS.insert((library, Arc::from(name)))
}

driver_api! {
    /// Loads a file.
    fn cuModuleLoad(module, name) {
        let context = current()?;
        let mut bytes = std::fs::read(text(name)?).map_err(|_| CuResult::FILE_NOT_FOUND)?;
        bytes.push(0);
        let image = image::parse(bytes.as_ptr())?;
        put(module, CUmodule::from_addr(load(context, &image)?))
    }

    /// Loads PTX, a cubin or a fat binary.
    fn cuModuleLoadData(module, image) {
        let context = current()?;
        let image = image::parse(image.cast())?;
        put(module, CUmodule::from_addr(load(context, &image)?))
    }

    /// Unloads a module.
    fn cuModuleUnload(module) {
        runtime()?;
        unload(module.addr())
    }

    /// Finds a function.
    fn cuModuleGetFunction(function, owner, name) {
        let owner = module(owner)?;
        put(function, find(&owner, text(name)?)?.handle())
    }

    /// Finds a global variable.
    fn cuModuleGetGlobal_v2(address, bytes, owner, name) {
        let owner = module(owner)?;
        let name = text(name)?;
        let found = owner.globals.iter().find(|(known, _, _)| known == name);
        let (_, at, length) = found.ok_or(CuResult::NOT_FOUND)?;
        put_if(address, *at);
        put_if(bytes, *length as usize);
        Ok(())
    }

    /// Loads a library.
    fn cuLibraryLoadData(
        library, code, jit_options, jit_values, jit_count, options, values, count,
    ) {
        let _ = (jit_options, jit_values, jit_count, options, values, count);
        runtime()?;
        let image = image::parse(code.cast())?;
        let made = Library { image, modules: Mutex::default(), kernels: Mutex::default() };
        put(library, CUlibrary::from_addr(LIBRARIES.insert(Arc::new(made))))
    }

    /// Unloads a library from every context.
    fn cuLibraryUnload(library) {
        runtime()?;
        let gone = LIBRARIES.remove(library.addr()).ok_or(CuResult::INVALID_HANDLE)?;
        for kernel in lock(&gone.kernels).iter() {
            KERNELS.remove(*kernel);
        }
        let modules: Vec<usize> = lock(&gone.modules).values().copied().collect();
        modules.into_iter().try_for_each(unload)
    }

    /// Finds a kernel.
    fn cuLibraryGetKernel(kernel, owner, name) {
        let handle = owner.addr();
        let owner = library(owner)?;
        let name = text(name)?;
        if !owner.image.kernels.iter().any(|known| known.name == name) {
            return Err(CuResult::NOT_FOUND);
        }
        let made = add_kernel(handle, name);
        lock(&owner.kernels).push(made);
        put(kernel, CUkernel::from_addr(made))
    }

    /// The library's module in the current context.
    fn cuLibraryGetModule(module, owner) {
        put(module, CUmodule::from_addr(module_of(&*library(owner)?)?))
    }

    /// The function of a kernel in the current context.
    fn cuKernelGetFunction(function, kernel) {
        runtime()?;
        put(function, kernel_function(kernel)?.handle())
    }
}
