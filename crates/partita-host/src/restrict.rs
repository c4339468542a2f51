//! Restricting a program's own launches to some TPCs, from inside it.
//!
//! For Rust programs that divide a GPU between their own streams. The unit is the [`TpcSet`], as
//! everywhere in Partita. Three things can be restricted, and the most specific restriction counts:
//!
//! 1. [`Launch::restrict`]: the next kernel launch of the calling thread;
//! 2. [`Stream::restrict`]: every launch on one stream;
//! 3. [`Process::restrict`]: every other launch of the process.
//!
//! Each returns a [`Restriction`], whose drop restores the previous one. Launched work keeps the
//! set of its launch. Under `partita run` the tenant's partition holds as well: a program can
//! narrow it, but never leave it. If the two share no TPC, only the tenant's set holds, because a
//! launch with no TPC would never end.
//!
//! The program must ensure that its launches fit: a grid of clusters needs a GPC with enough of its
//! TPCs in the set ([`Topology::max_cluster_sms`](partita_core::Topology::max_cluster_sms)), and a
//! cooperative grid no more blocks than the set's SMs hold; a launch that does not fit never ends.
//! A CUDA graph keeps the sets of its first launch. Green contexts must be created before the first
//! [`Process`] or [`Launch`].

use std::marker::PhantomData;
use std::sync::OnceLock;

use partita_core::{Topology, TpcSet};
pub use partita_driver::StreamRef;
use partita_driver::{Cuda, FormerMask, ProcessMasks, StreamField, StreamMasks};

use crate::calibration::{Cache, Measured};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::install::Install;

/// The masks that this process can set: its driver, as proved for its GPU.
pub struct Masks {
    install: Install,
    gpu: Gpu,
    measured: Measured,
    topology: Topology,
    /// The driver library stays loaded, as in every process.
    cuda: &'static Cuda,
    streams: OnceLock<StreamMasks<'static>>,
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks").field("gpu", &self.gpu.label()).finish_non_exhaustive()
    }
}

impl Masks {
    /// For `gpu`, which must be the one that this process sees.
    ///
    /// The driver is proved in child processes of `install`'s program unless
    /// that was done before. Nothing is restricted yet.
    ///
    /// # Errors
    /// [`Error::Unproved`]; [`Error::Restrict`] if this process sees another
    /// GPU than `gpu`, or several.
    pub fn new(install: &Install, gpu: &Gpu) -> Result<Self, Error> {
        let measured = Cache::open().get(install, gpu)?;
        let topology = measured.topology().map_err(refuse)?;
        let cuda: &'static Cuda = Box::leak(Box::new(Cuda::load(None).map_err(refuse)?));
        let seen = cuda.device_uuids().map_err(refuse)?;
        match seen.as_slice() {
            [uuid] if format!("GPU-{uuid}").eq_ignore_ascii_case(&gpu.facts.uuid) => {}
            [uuid] => {
                return Err(refuse(format!(
                    "this process sees GPU-{uuid} and not {}: set CUDA_VISIBLE_DEVICES={}",
                    gpu.label(),
                    gpu.facts.uuid
                )));
            }
            several => {
                return Err(refuse(format!(
                    "this process sees {} GPUs, whose launches cannot be distinguished: set \
                     CUDA_VISIBLE_DEVICES={}",
                    several.len(),
                    gpu.facts.uuid
                )));
            }
        }
        let streams = OnceLock::new();
        Ok(Self { install: install.clone(), gpu: gpu.clone(), measured, topology, cuda, streams })
    }

    /// The GPU's topology: which TPCs there are, and which share a GPC.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The masks of launch descriptors. From the first call on, the driver
    /// calls this process back for every launch.
    fn process(&self) -> Result<ProcessMasks, Error> {
        let layout = partita_abi::qmd::layout_for(self.measured.device_class, self.measured.qmd_version)
            .map_err(refuse)?;
        ProcessMasks::install(self.cuda, &self.topology, layout).map_err(refuse)
    }

    /// The masks of streams, at the place where this driver was proved to keep them.
    fn streams(&self) -> Result<&StreamMasks<'static>, Error> {
        if let Some(streams) = self.streams.get() {
            return Ok(streams);
        }
        let place = Cache::open().stream_place(&self.install, &self.gpu, &self.measured)?;
        let field = StreamField::from_cache(self.cuda, place.offset_bytes).map_err(refuse)?;
        Ok(self.streams.get_or_init(|| StreamMasks::new(self.cuda, field, self.topology.tpc_count())))
    }
}

/// The launches of this process.
#[derive(Debug, Clone, Copy)]
pub struct Process<'m> {
    masks: ProcessMasks,
    _masks: PhantomData<&'m Masks>,
}

impl<'m> Process<'m> {
    /// This process.
    ///
    /// # Errors
    /// [`Error::Restrict`] if the driver gives no launch callback, because a
    /// profiler holds it for example.
    pub fn of(masks: &'m Masks) -> Result<Self, Error> {
        Ok(Self { masks: masks.process()?, _masks: PhantomData })
    }

    /// Has every launch of this process run on `set` only, except on streams
    /// and of launches that are restricted themselves.
    ///
    /// # Errors
    /// [`Error::Restrict`] for an empty set, for TPCs that the GPU has not, and
    /// if this driver's launches turned out not to be those that were proved.
    pub fn restrict(&self, set: &TpcSet) -> Result<Restriction<'m>, Error> {
        let former = self.masks.set_process(Some(set)).map_err(refuse)?;
        Ok(Restriction::new(Former::Process(self.masks, former)))
    }

    /// The set that the process is restricted to.
    pub fn restricted_to(&self) -> Option<TpcSet> {
        self.masks.process()
    }
}

/// The next launch of the calling thread.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'m> {
    masks: ProcessMasks,
    _masks: PhantomData<&'m Masks>,
}

impl<'m> Launch<'m> {
    /// The next launch of whichever thread restricts it.
    ///
    /// # Errors
    /// As [`Process::of`].
    pub fn of(masks: &'m Masks) -> Result<Self, Error> {
        Ok(Self { masks: masks.process()?, _masks: PhantomData })
    }

    /// Restricts the next kernel launch of this thread to `set`, on any stream. If none has come
    /// when the result is dropped, the restriction ends.
    ///
    /// The first launch of a CUDA graph counts as one for each kernel.
    ///
    /// # Errors
    /// As [`Process::restrict`].
    pub fn restrict(&self, set: &TpcSet) -> Result<Restriction<'m>, Error> {
        self.masks.set_next(Some(set)).map_err(refuse)?;
        Ok(Restriction::new(Former::Launch(self.masks)))
    }

    /// The set that this thread's next launch is restricted to.
    pub fn restricted_to(&self) -> Option<TpcSet> {
        self.masks.next()
    }
}

/// One stream.
#[derive(Debug, Clone, Copy)]
pub struct Stream<'m> {
    masks: &'m Masks,
    stream: StreamRef<'m>,
}

impl<'m> Stream<'m> {
    /// A stream of this process, of whichever library:
    /// [`StreamRef::from_raw`] takes its handle. The default streams (handles
    /// 0, 1 and 2) are refused there.
    pub fn of(masks: &'m Masks, stream: StreamRef<'m>) -> Self {
        Self { masks, stream }
    }

    /// Restricts every later launch on the stream to `set`. It can be called while the stream has
    /// work, and again to change the set.
    ///
    /// # Errors
    /// [`Error::Unproved`] if the place of stream masks in this driver cannot be proved;
    /// [`Error::Restrict`] for a set that no launch can run on, or that the driver's masks cannot
    /// name, and for a destroyed stream.
    pub fn restrict(&self, set: &TpcSet) -> Result<Restriction<'m>, Error> {
        let streams = self.masks.streams()?;
        let former = streams.set(self.stream, set).map_err(refuse)?;
        Ok(Restriction::new(Former::Stream(streams, self.stream, former)))
    }

    /// The set that the stream is restricted to.
    ///
    /// # Errors
    /// As [`Stream::restrict`].
    pub fn restricted_to(&self) -> Result<Option<TpcSet>, Error> {
        self.masks.streams()?.get(self.stream).map_err(refuse)
    }
}

/// A restriction that holds until this is dropped, which restores the previous one. Drop
/// restrictions of one thing in the reverse order of their making.
#[must_use = "the restriction ends when this is dropped"]
pub struct Restriction<'m> {
    former: Option<Former<'m>>,
    /// The next launch is this thread's.
    _thread: PhantomData<*mut ()>,
}

enum Former<'m> {
    Process(ProcessMasks, Option<TpcSet>),
    Launch(ProcessMasks),
    Stream(&'m StreamMasks<'static>, StreamRef<'m>, FormerMask),
}

impl<'m> Restriction<'m> {
    fn new(former: Former<'m>) -> Self {
        Self { former: Some(former), _thread: PhantomData }
    }

    /// Leaves the restriction in force for good.
    pub fn keep(mut self) {
        self.former = None;
    }
}

impl std::fmt::Debug for Restriction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.former {
            Some(Former::Process(..)) => "Restriction(process)",
            Some(Former::Launch(_)) => "Restriction(launch)",
            Some(Former::Stream(..)) => "Restriction(stream)",
            None => "Restriction(kept)",
        })
    }
}

impl Drop for Restriction<'_> {
    fn drop(&mut self) {
        // The previous mask was accepted before. A destroyed stream has nothing to restore, and a
        // driver whose launches cannot be masked any more has reported that at the last restrict().
        match self.former.take() {
            Some(Former::Process(masks, former)) => _ = masks.set_process(former.as_ref()),
            Some(Former::Launch(masks)) => _ = masks.set_next(None),
            Some(Former::Stream(masks, stream, former)) => _ = masks.restore(stream, former),
            None => {}
        }
    }
}

fn refuse(reason: impl std::fmt::Display) -> Error {
    Error::Restrict { reason: reason.to_string() }
}
