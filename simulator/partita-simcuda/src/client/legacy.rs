//! Launches in the way of the first CUDA: block shape and parameters are set on the function, one
//! by one.

use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::sync::Mutex;

use partita_abi::CuResult;
use partita_abi::types::*;

use super::function::Function;
use super::gpus::runtime;
use super::launch::PARAM_BYTES_MAX;
use super::launch_api::cuLaunchKernel;
use super::list;
use super::object::object;
use crate::shared::sys::lock;

/// The settings of a function.
#[derive(Clone, Debug)]
struct Settings {
    block: [u32; 3],
    shared_bytes: u32,
    params: Vec<u8>,
}

static SETTINGS: Mutex<Option<HashMap<usize, Settings>>> = Mutex::new(None);

fn change(function: CUfunction, action: impl FnOnce(&mut Settings)) -> Result<(), CuResult> {
    runtime()?;
    // SAFETY: the handle came from this library, by the word of the entry point's caller.
    let _: &'static Function = unsafe { object(function.0)? };
    let mut all = lock(&SETTINGS);
    let settings = all.get_or_insert_default().entry(function.addr()).or_insert_with(|| Settings {
        block: [1; 3],
        shared_bytes: 0,
        params: Vec::new(),
    });
    action(settings);
    Ok(())
}

fn set_param(function: CUfunction, offset: c_int, bytes: &[u8]) -> Result<(), CuResult> {
    let start = usize::try_from(offset).map_err(|_| CuResult::INVALID_VALUE)?;
    let end = start.saturating_add(bytes.len());
    if end > PARAM_BYTES_MAX {
        return Err(CuResult::INVALID_VALUE);
    }
    change(function, |settings| {
        if settings.params.len() < end {
            settings.params.resize(end, 0);
        }
        settings.params[start..end].copy_from_slice(bytes);
    })
}

/// Launches with the settings.
fn launch(function: CUfunction, width: c_int, height: c_int, stream: CUstream) -> Result<(), CuResult> {
    let mut found = None;
    change(function, |settings| found = Some(settings.clone()))?;
    let Some(mut settings) = found else { return Err(CuResult::UNKNOWN) };
    let dimension = |size: c_int| u32::try_from(size).map_err(|_| CuResult::INVALID_VALUE);
    let [x, y, z] = settings.block;
    let mut bytes = settings.params.len();
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        settings.params.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut bytes).cast(),
        std::ptr::null_mut(),
    ];
    let (width, height) = (dimension(width)?, dimension(height)?);
    let none = std::ptr::null_mut();
    // SAFETY: the list names a buffer and its length, both of which live until the call returns;
    // the handles are the program's.
    unsafe {
        let extra = extra.as_mut_ptr();
        cuLaunchKernel(function, width, height, 1, x, y, z, settings.shared_bytes, stream, none, extra).ok()
    }
}

driver_api! {
    /// Sets the threads of a block.
    fn cuFuncSetBlockShape(function, x, y, z) {
        if x <= 0 || y <= 0 || z <= 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        change(function, |settings| settings.block = [x as u32, y as u32, z as u32])
    }

    /// Sets the length of the parameters.
    fn cuParamSetSize(function, bytes) {
        if bytes as usize > PARAM_BYTES_MAX {
            return Err(CuResult::INVALID_VALUE);
        }
        change(function, |settings| settings.params.resize(bytes as usize, 0))
    }

    /// Sets bytes as parameter.
    fn cuParamSetv(function, offset, from, bytes) {
        set_param(function, offset, list(from.cast::<u8>(), bytes as usize)?)
    }

    /// Launches one block.
    fn cuLaunch(function) {
        launch(function, 1, 1, CUstream::NULL)
    }

    /// Launches a grid.
    fn cuLaunchGrid(function, width, height) {
        launch(function, width, height, CUstream::NULL)
    }

    /// Launches a grid in a stream.
    fn cuLaunchGridAsync(function, width, height, stream) {
        launch(function, width, height, stream)
    }
}
