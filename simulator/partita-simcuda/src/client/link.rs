//! The just-in-time linker. Nothing is compiled here, so PTX modules become one text, and a single
//! image of another kind is passed on unchanged.

use core::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex};

use partita_abi::CuResult;
use partita_abi::types::*;
use partita_ptx::Module;

use super::gpus::runtime;
use super::object::Registry;
use super::{list, put, put_if};
use crate::shared::sys::lock;

#[derive(Debug, Default)]
struct Link {
    module: Option<Module>,
    images: Vec<Vec<u8>>,
    /// The result of `cuLinkComplete`; it lives as long as the link.
    result: Option<Box<[u8]>>,
}

static LINKS: Registry<Arc<Mutex<Link>>> = Registry::new(0x1b00_0000_0000);

fn link(handle: CUlinkState) -> Result<Arc<Mutex<Link>>, CuResult> {
    runtime()?;
    LINKS.get(handle.addr()).ok_or(CuResult::INVALID_HANDLE)
}

fn add(handle: CUlinkState, kind: u32, bytes: &[u8]) -> Result<(), CuResult> {
    let link = link(handle)?;
    match kind {
        CU_JIT_INPUT_PTX => {
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = std::str::from_utf8(text).map_err(|_| CuResult::INVALID_PTX)?;
            let module = Module::parse(text).map_err(|error| {
                eprintln!("partita-sim: this PTX is refused: {error}");
                CuResult::INVALID_PTX
            })?;
            let mut link = lock(&link);
            match &mut link.module {
                Some(linked) => linked.join(module),
                none => *none = Some(module),
            }
        }
        CU_JIT_INPUT_CUBIN | CU_JIT_INPUT_FATBINARY => lock(&link).images.push([bytes, &[0]].concat()),
        _ => return Err(CuResult::NOT_SUPPORTED),
    }
    Ok(())
}

driver_api! {
    /// Starts to link.
    fn cuLinkCreate_v2(count, options, values, handle) {
        let _ = (count, options, values);
        super::context::current()?;
        put(handle, CUlinkState::from_addr(LINKS.insert(Arc::default())))
    }

    /// Adds an image.
    fn cuLinkAddData_v2(handle, kind, data, bytes, name, count, options, values) {
        let _ = (name, count, options, values);
        add(handle, kind, list(data.cast::<u8>(), bytes)?)
    }

    /// Returns the result, which lives as long as the link.
    fn cuLinkComplete(handle, image, bytes) {
        let link = link(handle)?;
        let mut link = lock(&link);
        let result = match (&link.module, link.images.len()) {
            (Some(module), 0) => format!("{module}\0").into_bytes(),
            (None, 1) => link.images[0].clone(),
            (None, 0) => return Err(CuResult::INVALID_VALUE),
            _ => return Err(CuResult::NOT_SUPPORTED),
        };
        let result = link.result.insert(result.into());
        put(image, result.as_ptr().cast())?;
        put_if(bytes, result.len());
        Ok(())
    }

    /// Destroys a link.
    fn cuLinkDestroy(handle) {
        runtime()?;
        LINKS.remove(handle.addr()).map(drop).ok_or(CuResult::INVALID_HANDLE)
    }
}
