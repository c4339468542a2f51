//! The just-in-time linker. Nothing is compiled here, so PTX texts are concatenated, and a single
//! image of another kind is passed on unchanged.

use core::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex};

use partita_abi::CuResult;
use partita_abi::types::*;

use super::gpus::runtime;
use super::image;
use super::object::Registry;
use super::{list, put, put_if};
use crate::shared::sys::lock;

#[derive(Debug, Default)]
struct Link {
    texts: Vec<u8>,
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
    let mut ended = bytes.to_vec();
    ended.push(0);
    match kind {
        CU_JIT_INPUT_PTX => {
            // SAFETY: the copy ends with a zero.
            unsafe { image::parse(ended.as_ptr())? };
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            lock(&link).texts.extend_from_slice(text);
        }
        CU_JIT_INPUT_CUBIN | CU_JIT_INPUT_FATBINARY => lock(&link).images.push(ended),
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
        let result = match (link.texts.is_empty(), link.images.len()) {
            (false, 0) => [link.texts.as_slice(), &[0]].concat(),
            (true, 1) => link.images[0].clone(),
            (true, 0) => return Err(CuResult::INVALID_VALUE),
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
