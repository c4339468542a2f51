//! Start, versions, error texts and the lookup of entry points.

use core::ffi::{c_char, c_int, c_void};

use partita_abi::CuResult;
use partita_abi::types::*;
use partita_abi::versions;

use super::{callback, exports, get, gpus, put, put_if, text};
use crate::shared::place::Place;

fn cuda_version() -> Result<u32, CuResult> {
    match gpus::runtime() {
        Ok(runtime) => Ok(runtime.spec.driver.cuda_version),
        // Programs can query the version before `cuInit`.
        Err(_) => Place::from_env()
            .map(|place| place.spec.driver.cuda_version)
            .map_err(|_| CuResult::NOT_INITIALIZED),
    }
}

/// The export that serves a name for a version: address and query result.
fn lookup(symbol: &str, version: c_int, flags: u64) -> Result<(*const c_void, u32), CuResult> {
    let legacy = u64::from(CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    let threaded = u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if flags > threaded || version < 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let _ = legacy;
    let driver = cuda_version()?;
    // A name of a later driver is unavailable, whatever version the program requests.
    let version = (version as u32).min(driver);
    let export = versions::resolve(symbol, version, flags == threaded);
    match export.and_then(exports::address) {
        Some(address) => Ok((address, CU_GET_PROC_ADDRESS_SUCCESS)),
        None if versions::is_known(symbol) => {
            Ok((std::ptr::null(), CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT))
        }
        None => Ok((std::ptr::null(), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)),
    }
}

driver_api! {
    /// Connects this process to the boards of the GPUs that it sees; they are started when they do
    /// not run.
    fn cuInit(flags) {
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        gpus::initialize()
    }

    /// The CUDA version of the simulated driver.
    fn cuDriverGetVersion(version) {
        put(version, cuda_version()? as c_int)
    }

    /// The text of an error.
    fn cuGetErrorString(error, string) {
        let known = error.c_description();
        put(string, known.map_or(std::ptr::null(), |known| known.as_ptr()))?;
        known.map(drop).ok_or(CuResult::INVALID_VALUE)
    }

    /// The name of an error.
    fn cuGetErrorName(error, string) {
        let known = error.c_name();
        put(string, known.map_or(std::ptr::null(), |known| known.as_ptr()))?;
        known.map(drop).ok_or(CuResult::INVALID_VALUE)
    }

    /// Looks up an entry point.
    fn cuGetProcAddress(symbol, function, version, flags) {
        let (address, _) = lookup(text(symbol)?, version, flags)?;
        put(function, address.cast_mut())?;
        if address.is_null() { Err(CuResult::NOT_FOUND) } else { Ok(()) }
    }

    /// Looks up an entry point and reports why it is missing.
    fn cuGetProcAddress_v2(symbol, function, version, flags, status) {
        let (address, found) = lookup(text(symbol)?, version, flags)?;
        put(function, address.cast_mut())?;
        put_if(status, found);
        if found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND { Err(CuResult::NOT_FOUND) } else { Ok(()) }
    }

    /// Hands out the driver's undocumented tables, of which the debug callback's is simulated.
    fn cuGetExportTable(table, id) {
        let found = callback::export_table(&get(id)?);
        put(table, found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(CuResult::INVALID_VALUE)
    }
}
