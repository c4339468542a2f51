//! One green context.

use alloc::collections::BTreeSet;
use alloc::format;
use core::ffi::c_void;

use partita_abi::kernels;
use partita_abi::types::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
use partita_core::TpcSet;

use super::Coscheduling;
use crate::census::Census;
use crate::current::Current;
use crate::error::Error;
use crate::gpu::{Gpu, Grid, Place};
use crate::stream::{Stream, StreamRef};

/// Spin of a census block, as in the calibration: blocks cover every SM before the first ends.
const CENSUS_NS: u64 = 20_000;
/// The number of censuses after which a missing SM counts as a contradiction.
const ROUNDS_MAX: u32 = 8;

/// A green context with one stream. Destroyed when dropped.
pub struct GreenContext<'g, 'a> {
    gpu: &'g Gpu<'a>,
    /// Destroyed before the context.
    stream: Option<Stream<'a>>,
    handle: *mut c_void,
    module: *mut c_void,
    /// Marks the end of its work, for a context that follows.
    event: *mut c_void,
    coscheduling: Coscheduling,
    sms: u32,
}

impl<'g, 'a> GreenContext<'g, 'a> {
    /// # Safety
    /// `handle` is a green context of `gpu`, and no other code destroys it.
    pub(super) unsafe fn adopt(
        gpu: &'g Gpu<'a>,
        handle: *mut c_void,
        coscheduling: Coscheduling,
        sms: u32,
    ) -> Result<Self, Error> {
        let cuda = gpu.cuda();
        let (module, event) = (core::ptr::null_mut(), core::ptr::null_mut());
        let mut green = Self { gpu, stream: None, handle, module, event, coscheduling, sms };
        let (mut stream, mut context) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the context just created; valid pointers. Kernels are loaded in it, and launches
        // on its streams were tested in this way.
        unsafe {
            cuda.ctx_from_green_ctx(&mut context, handle)?;
            let _current = Current::switch(cuda, context)?;
            cuda.module_load_data(&mut green.module, kernels::PTX_MODULE.as_ptr().cast())?;
            cuda.event_create(&mut green.event, CU_EVENT_DISABLE_TIMING)?;
            match cuda.green_ctx_stream_create(&mut stream, handle, CU_STREAM_NON_BLOCKING, 0) {
                // Before CUDA 12.5, a stream belongs to the current context.
                Err(Error::MissingSymbol(_)) => cuda.stream_create(&mut stream, CU_STREAM_NON_BLOCKING)?,
                other => other?,
            }
            green.stream = Some(Stream::adopt(cuda, stream));
        }
        Ok(green)
    }

    /// Its stream.
    pub fn stream(&self) -> StreamRef<'_> {
        self.stream.as_ref().map(Stream::as_ref).expect("set when the context is created")
    }

    /// The place for launches on its stream.
    pub fn place(&self) -> Place<'_> {
        Place { stream: self.stream(), module: self.module }
    }

    /// Makes later work on its stream wait for all earlier work on the other's.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn follow(&self, other: &Self) -> Result<(), Error> {
        let cuda = self.gpu.cuda();
        // SAFETY: live streams and the other context's own event; the wait has captured the event's
        // previous recording.
        unsafe {
            cuda.event_record(other.event, other.stream().handle())?;
            cuda.stream_wait_event(self.stream().handle(), other.event, 0)
        }
    }

    /// How many SMs it has.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// Whether its groups support clusters.
    pub fn coscheduling(&self) -> Coscheduling {
        self.coscheduling
    }

    /// The TPCs that its blocks run on.
    pub(super) fn census(&self, sms_per_tpc: u32) -> Result<TpcSet, Error> {
        let grid = Grid { blocks: self.gpu.facts().sms * 4, threads: 1024, cluster_blocks: 1 };
        let census = Census::at(self.gpu, self.place(), grid, CENSUS_NS)?;
        let mut seen = BTreeSet::new();
        // A census may miss an SM while another process has the GPU.
        for _ in 0..ROUNDS_MAX {
            seen.extend(census.sms()?);
            if seen.len() as u32 >= self.sms {
                break;
            }
        }
        let tpcs: TpcSet = seen.iter().filter_map(|sm| u8::try_from(sm / sms_per_tpc).ok()).collect();
        if seen.len() as u32 != self.sms || tpcs.len() * sms_per_tpc != self.sms {
            let sms = self.sms;
            return Err(Error::Disproved(format!("a green context of {sms} SMs ran blocks on SMs {seen:?}")));
        }
        Ok(tpcs)
    }
}

impl Drop for GreenContext<'_, '_> {
    fn drop(&mut self) {
        self.stream = None;
        let cuda = self.gpu.cuda();
        // SAFETY: created here and destroyed once, after its stream. An event that was never
        // created is null, which the driver refuses.
        unsafe {
            let _ = cuda.event_destroy(self.event);
            let _ = cuda.green_ctx_destroy(self.handle);
        }
    }
}
