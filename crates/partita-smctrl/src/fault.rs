//! [`Fault`]: why a call failed.

use alloc::string::{String, ToString};
use core::ffi::c_int;
use core::fmt;

use partita_driver::Error;
use partita_driver::callback::SubscribeError;
use partita_driver::control::ControlError;

/// An error for C programs: a number of `errno.h`, and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The number.
    pub code: c_int,
    /// What failed, why, and the remedy.
    pub text: String,
}

impl Fault {
    /// A fault with this number and text.
    pub fn new(code: c_int, text: impl fmt::Display) -> Self {
        Self { code, text: text.to_string() }
    }

    /// A null pointer instead of an address for the result.
    pub fn null(name: &str) -> Self {
        Self::new(libc::EFAULT, format_args!("{name} is a null pointer"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Load(_) => libc::ENODEV,
            Error::MissingSymbol(_) => libc::ENOSYS,
            Error::Subscribe(SubscribeError::Refused(_) | SubscribeError::Again) => libc::EBUSY,
            Error::Subscribe(_) | Error::Qmd(_) | Error::NotOffered { .. } => libc::ENOTSUP,
            Error::Hang { .. } => libc::ETIMEDOUT,
            Error::DefaultStream(_) => libc::EINVAL,
            Error::Refused(_) => libc::ENOTSUP,
            _ => libc::EIO,
        };
        Self::new(code, error)
    }
}

impl From<ControlError> for Fault {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::Open { errno, .. } => errno,
            ControlError::NoCard { .. } => libc::ENODEV,
            _ => libc::EIO,
        };
        Self::new(code, format_args!("the driver's control interface: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use partita_abi::CuResult;
    use partita_abi::types::CUuuid;
    use partita_driver::callback;

    /// Fails, and leaves an invalid table behind.
    unsafe extern "C" fn refuse(table: *mut *const c_void, _: *const CUuuid) -> CuResult {
        // SAFETY: the caller's pointer.
        unsafe { *table = core::ptr::without_provenance(8) };
        CuResult::NOT_SUPPORTED
    }

    unsafe extern "C" fn never(_: *mut c_void, _: c_int, _: c_int, _: *const c_void) {}

    #[test]
    fn a_driver_that_refuses_its_table_is_not_asked_further() {
        // SAFETY: nothing is subscribed.
        let refused = unsafe { callback::subscribe(refuse, never, core::ptr::null_mut()) }.unwrap_err();
        let fault = Fault::from(Error::from(refused));
        assert!(fault.code == libc::ENOTSUP && fault.text.contains("no launch-callback table"), "{fault}");
    }

    #[test]
    fn errors_that_callers_can_act_on_have_distinct_numbers() {
        for (error, code) in [
            (Error::Load("x".into()), libc::ENODEV),
            (Error::Subscribe(SubscribeError::Refused(210)), libc::EBUSY),
            (Error::DefaultStream(1), libc::EINVAL),
            (Error::MissingSymbol("cuX"), libc::ENOSYS),
        ] {
            assert_eq!(Fault::from(error).code, code);
        }
        let closed = ControlError::Open { path: "/dev/nvidiactl".into(), errno: libc::EACCES };
        assert_eq!(Fault::from(closed).code, libc::EACCES);
    }
}
