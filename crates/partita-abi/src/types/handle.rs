//! Handles and scalars.

use core::ffi::c_void;
use core::fmt;

/// A device, by ordinal.
pub type CUdevice = i32;
/// An address in a device's memory, or in the unified address space.
pub type CUdeviceptr = u64;
/// The device pointer of the API before CUDA 3.2, which the unversioned
/// exports such as `cuMemAlloc` still take.
pub type CUdeviceptr_v1 = u32;
/// A texture object.
pub type CUtexObject = u64;
/// A surface object.
pub type CUsurfObject = u64;
/// Physical memory made by `cuMemCreate`.
pub type CUmemGenericAllocationHandle = u64;
/// A conditional node's handle.
pub type CUgraphConditionalHandle = u64;

/// A host function that a stream calls (`cuLaunchHostFunc`).
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A callback of `cuStreamAddCallback`.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: crate::CuResult, user_data: *mut c_void)>;
/// Maps a block size to the dynamic shared memory that it needs, in bytes.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: i32) -> usize>;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(core::ptr::null_mut());

            /// Whether the handle is null.
            #[inline]
            pub const fn is_null(self) -> bool {
                self.0.is_null()
            }

            /// The handle as a number, for tables and messages.
            #[inline]
            pub fn addr(self) -> usize {
                self.0.addr()
            }

            /// A handle that is a number and points nowhere, such as
            /// `CU_STREAM_LEGACY` or a simulator's table index.
            #[inline]
            pub const fn from_addr(addr: usize) -> $name {
                $name(core::ptr::without_provenance_mut(addr))
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::NULL
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.addr())
            }
        }

        const _: () = assert!(size_of::<$name>() == 8);
        impl super::Erase for $name {
            type Raw = *mut c_void;
        }
    )*};
}

handles! {
    /// A context.
    CUcontext;
    /// A loaded module.
    CUmodule;
    /// A kernel of a module, bound to its context.
    CUfunction;
    /// A library: a module without a context.
    CUlibrary;
    /// A kernel of a library, not bound to a context.
    CUkernel;
    /// A CUDA array.
    CUarray;
    /// A mip-mapped CUDA array.
    CUmipmappedArray;
    /// A texture reference (removed from the API's surface, not from drivers).
    CUtexref;
    /// A surface reference.
    CUsurfref;
    /// An event.
    CUevent;
    /// A stream. Besides pointers, 0 is the default stream of the calling
    /// flavour, 1 the legacy one and 2 the per-thread one.
    CUstream;
    /// A graph.
    CUgraph;
    /// A node of a graph.
    CUgraphNode;
    /// An executable graph.
    CUgraphExec;
    /// A kernel node that the device may update.
    CUgraphDeviceNode;
    /// A user object of graphs.
    CUuserObject;
    /// A memory pool.
    CUmemoryPool;
    /// A green context.
    CUgreenCtx;
    /// A descriptor of device resources for a green context.
    CUdevResourceDesc;
    /// A just-in-time linker.
    CUlinkState;
    /// A graphics resource.
    CUgraphicsResource;
    /// Imported external memory.
    CUexternalMemory;
    /// An imported external semaphore.
    CUexternalSemaphore;
    /// A registration for asynchronous notifications.
    CUasyncCallbackHandle;
    /// A registration for the driver's log.
    CUlogsCallbackHandle;
}

impl CUstream {
    /// `CU_STREAM_LEGACY`: the default stream that synchronises with others.
    pub const LEGACY: CUstream = CUstream::from_addr(1);
    /// `CU_STREAM_PER_THREAD`: the calling thread's own default stream.
    pub const PER_THREAD: CUstream = CUstream::from_addr(2);

    /// Whether the handle names a default stream. Such a handle is a small
    /// number and must never be followed as a pointer.
    #[inline]
    pub fn is_default(self) -> bool {
        self.addr() <= 2
    }
}

/// A universally unique identifier, in the order in which it is printed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CUuuid {
    /// The sixteen bytes.
    pub bytes: [u8; 16],
}
super::layout!(CUuuid, 16);

/// `2c8e0ad8-0710-ab4e-90dd-54719fe5f74b`.
impl fmt::Display for CUuuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::ToString;

    #[test]
    fn default_streams_are_no_pointers() {
        assert!(CUstream::NULL.is_default());
        assert!(CUstream::LEGACY.is_default());
        assert!(CUstream::PER_THREAD.is_default());
        assert!(!CUstream::from_addr(0x1000).is_default());
        assert_eq!(format!("{:?}", CUstream::LEGACY), "CUstream(0x1)");
    }

    #[test]
    fn uuids_print_in_the_usual_groups() {
        let uuid = CUuuid { bytes: *b"\x2c\x8e\x0a\xd8\x07\x10\xab\x4e\x90\xdd\x54\x71\x9f\xe5\xf7\x4b" };
        assert_eq!(uuid.to_string(), "2c8e0ad8-0710-ab4e-90dd-54719fe5f74b");
    }
}
