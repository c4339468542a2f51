//! Functions' entry points.

use partita_abi::CuResult;
use partita_abi::types::*;

use super::context::check_device;
use super::function::Function;
use super::gpus::runtime;
use super::object::{Object, object};
use super::{module, put, put_if};

/// The function of a handle, where a kernel's does not serve: as on an H200 (driver 580.159.04)
/// that is an invalid handle.
///
/// # Safety
/// As for [`object`].
unsafe fn function_at(handle: CUfunction) -> Result<&'static Function, CuResult> {
    match module::kernel_as_function(handle) {
        Some(_) => Err(Function::BAD),
        // SAFETY: the caller guarantees it.
        None => unsafe { object(handle.0) },
    }
}

driver_api! {
    /// Reads an attribute of a function.
    fn cuFuncGetAttribute(value, attribute, function) {
        let runtime = runtime()?;
        let function = function_at(function)?;
        put(value, function.attribute(runtime, attribute)?)
    }

    /// Sets an attribute of a function.
    fn cuFuncSetAttribute(function, attribute, value) {
        let runtime = runtime()?;
        let function = function_at(function)?;
        function.set_attribute(runtime, attribute, value)
    }

    /// Sets an attribute of a library's kernel.
    fn cuKernelSetAttribute(attribute, value, kernel, device) {
        let runtime = check_device(device)?;
        module::kernel_function(kernel)?.set_attribute(runtime, attribute, value)
    }

    /// A function's module.
    fn cuFuncGetModule(module, function) {
        runtime()?;
        let function = function_at(function)?;
        put(module, CUmodule::from_addr(function.module))
    }

    /// The offset and size of a parameter.
    fn cuFuncGetParamInfo(function, index, offset, size) {
        runtime()?;
        let function = function_at(function)?;
        let (at, bytes) = function.param(index)?;
        put(offset, at)?;
        put_if(size, bytes);
        Ok(())
    }

    /// Loads a function, which is loaded.
    fn cuFuncLoad(function) {
        runtime()?;
        function_at(function)?;
        Ok(())
    }
}
