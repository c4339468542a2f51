//! The content of a client's ring: launches as raw bytes, everything else as [`Command`].

use std::mem;

use serde::{Deserialize, Serialize};

/// A launch: [`LaunchHead`], then the launch descriptor (QMD), then the parameters.
pub const KIND_LAUNCH: u32 = 1;
/// A [`Command`] in postcard form.
pub const KIND_COMMAND: u32 = 2;

/// Data about a launch beside the QMD. The board reads grid, clusters, block, shared memory,
/// registers, program and mask from the QMD itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchHead {
    /// [`LaunchHead::COOPERATIVE`].
    pub flags: u32,
    /// Length of the QMD that follows, in bytes.
    pub qmd_bytes: u32,
    /// Length of the parameters after it, in bytes.
    pub param_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

impl LaunchHead {
    /// All blocks must be resident at once. Counts where the QMD's version has no field for it.
    pub const COOPERATIVE: u32 = 1;

    /// The head's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the struct is repr(C) of 4-byte numbers without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), mem::size_of::<Self>()) }
    }

    /// Splits a launch's body into head, QMD and parameters; `None` when the lengths do not fit.
    pub fn split(body: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (bytes, rest) = body.split_at_checked(mem::size_of::<Self>())?;
        // SAFETY: the slice has the struct's length, and every bit pattern is valid.
        let head = unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() };
        let (qmd, params) = rest.split_at_checked(head.qmd_bytes as usize)?;
        (params.len() == head.param_bytes as usize).then_some((head, qmd, params))
    }
}

/// Where a copy's bytes travel; it decides the engine and the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Route {
    /// Host to device, over the bus.
    HostToDevice,
    /// Device to host, over the bus.
    DeviceToHost,
    /// Inside the device's memory.
    DeviceToDevice,
    /// Inside the host's memory.
    HostToHost,
}

/// A box of bytes, with source and destination. A plain copy has height and depth 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rect {
    /// Address of the first byte written.
    pub dst: u64,
    /// Bytes between rows at the destination.
    pub dst_pitch: u64,
    /// Bytes between slices at the destination.
    pub dst_slice: u64,
    /// Address of the first byte read.
    pub src: u64,
    /// Bytes between rows at the source.
    pub src_pitch: u64,
    /// Bytes between slices at the source.
    pub src_slice: u64,
    /// Bytes in a row.
    pub width: u64,
    /// Rows in a slice.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

impl Rect {
    /// `bytes` in a row.
    pub fn line(dst: u64, src: u64, bytes: u64) -> Self {
        Self {
            dst,
            dst_pitch: bytes,
            dst_slice: bytes,
            src,
            src_pitch: bytes,
            src_slice: bytes,
            width: bytes,
            height: 1,
            depth: 1,
        }
    }

    /// Bytes that move in all.
    pub fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }

    /// Each row as (destination, source), in order.
    pub fn rows(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.depth).flat_map(move |z| {
            (0..self.height).map(move |y| {
                let dst = self.dst.wrapping_add(z.wrapping_mul(self.dst_slice));
                let src = self.src.wrapping_add(z.wrapping_mul(self.src_slice));
                (
                    dst.wrapping_add(y.wrapping_mul(self.dst_pitch)),
                    src.wrapping_add(y.wrapping_mul(self.src_pitch)),
                )
            })
        })
    }
}

/// A command that is not a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// No effect: it completes in its turn.
    Mark,
    /// Takes the time of a copy; the client then moves the bytes itself (`token`: its worker does,
    /// in stream order; 0: the thread that waits for it).
    HostCopy {
        /// Where the bytes travel.
        route: Route,
        /// How many.
        bytes: u64,
        /// Host work to run at the end, or 0.
        token: u64,
    },
    /// A copy between addresses that the board can reach; the board moves the bytes.
    Copy {
        /// Where the bytes travel.
        route: Route,
        /// Which bytes.
        rect: Rect,
    },
    /// Fills a rectangle with a value of 1, 2 or 4 bytes.
    Fill {
        /// First byte.
        dst: u64,
        /// Bytes between rows.
        pitch: u64,
        /// Bytes in a row.
        width: u64,
        /// Rows.
        height: u64,
        /// The value, in its lowest bytes.
        value: u32,
        /// 1, 2 or 4.
        element_bytes: u8,
    },
    /// Marks an event as recorded for the `count`-th time.
    Record {
        /// The event's slot in the board's table.
        event: u32,
        /// Which recording.
        count: u64,
    },
    /// Holds the stream until an event's `count`-th recording is complete.
    Wait {
        /// The event's slot in the board's table.
        event: u32,
        /// Which recording.
        count: u64,
    },
    /// Host work that the stream waits for: a host function or a callback.
    Host {
        /// The client's name for it.
        token: u64,
    },
    /// The worker finished the host work `token`. Belongs to no stream.
    HostDone {
        /// The client's name for it.
        token: u64,
    },
    /// Holds the stream until the word at `address` satisfies a condition.
    WaitValue {
        /// Address of the word.
        address: u64,
        /// The value to compare with.
        value: u64,
        /// 0 GEQ (cyclic), 1 EQ, 2 AND, 3 NOR, as `CUstreamWaitValue_flags`.
        condition: u8,
        /// Eight bytes and not four.
        wide: bool,
    },
    /// Writes a word.
    WriteValue {
        /// Address of the word.
        address: u64,
        /// The value to write.
        value: u64,
        /// Eight bytes and not four.
        wide: bool,
    },
    /// Returns an allocation to its pool.
    Free {
        /// Its first address.
        address: u64,
    },
    /// Runs an uploaded graph.
    Graph {
        /// Its number.
        graph: u64,
    },
}
