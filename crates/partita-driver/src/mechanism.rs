//! A common interface of the ways to restrict launches to some TPCs.
//!
//! A [`Mechanism`] makes [`Lane`]s: a lane is a stream with a set, on which launches stay inside
//! the set. There are three mechanisms: the mask in launch descriptors, the mask of a stream, and
//! green contexts. They differ in the sets that they offer and in the cost of changing a set.
//!
//! None of them prevents a launch that cannot fit its set from hanging: the driver checks launches
//! against the whole device, and the hardware waits forever. So launches are checked above the
//! mechanism. [`Mechanism::fits`] is that check, and [`Lane::prepare`] refuses a launch that fails
//! it; code that launches on a lane's stream by other means must call it first. In a tenant the
//! hook checks every launch by the same rules ([`partita_core::Residence`]), and the program gets
//! CUDA's error from the call.

use alloc::format;
use alloc::rc::Rc;
use core::ffi::CStr;

use partita_abi::kernels;
use partita_core::{Residence, Topology, TpcSet};

use crate::error::Error;
use crate::gpu::{Buffer, Gpu, Grid, Launch, Place};
use crate::green::{self, Coscheduling, GreenContext, GreenPool};
use crate::masked_stream::MaskedStream;
use crate::process_masks::{PreparedMask, ProcessMasks, Scope};
use crate::stream::{Stream, StreamRef};
use crate::stream_mask::StreamMasks;

/// The sets that a mechanism offers, by size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// TPCs of the smallest set.
    pub least_tpcs: u32,
    /// TPCs between two sizes.
    pub step_tpcs: u32,
    /// Whether any TPCs can be chosen, or only unions of fixed groups.
    pub any_tpcs: bool,
}

/// What a change of a lane's set costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retarget {
    /// A store: the next launch uses the new set, on the same stream.
    InPlace,
    /// Another context, which must be created once; later launches go to that context's stream.
    Switch,
}

/// A way to restrict launches to a set of TPCs.
pub trait Mechanism<'g> {
    /// Its name in tables: `mask`, `stream` or `green`.
    fn name(&self) -> &'static str;

    /// The sizes that it offers.
    ///
    /// # Errors
    /// Those of the driver, if it must be queried.
    fn step(&self) -> Result<Step, Error>;

    /// What a change of a lane's set costs.
    fn retarget(&self) -> Retarget;

    /// A lane on exactly `set`.
    ///
    /// # Errors
    /// [`Error::NotOffered`] with the nearest sets, [`Error::Refused`] for a set that no launch can
    /// run on; those of the driver.
    fn lane(&self, set: &TpcSet) -> Result<Lane<'g>, Error>;

    /// Whether a launch can ever run on a lane with that set; one that cannot would hang.
    ///
    /// # Errors
    /// [`Error::Misfit`], with the reason and the remedy.
    fn fits(&self, set: &TpcSet, launch: &Residence) -> Result<(), Error>;
}

/// The facts by which launches on a mechanism's lanes are checked.
#[derive(Debug)]
struct Judge {
    topology: Topology,
    /// Whether the GPC of each SM is known. If not, a cluster can rely only on the SMs of one TPC.
    by_gpc: bool,
}

impl Judge {
    /// If all TPCs of a topology are in one GPC, GPCs are unknown.
    fn new(topology: &Topology) -> Rc<Self> {
        Rc::new(Self { topology: topology.clone(), by_gpc: topology.gpcs().len() > 1 })
    }

    fn fits(&self, set: &TpcSet, launch: &Residence) -> Result<(), Error> {
        if self.by_gpc {
            return Ok(launch.fits(&self.topology, set)?);
        }
        let tpcs = (self.topology.all() & *set).len() as usize;
        Ok(launch.fits_groups(core::iter::repeat_n(self.topology.sms_per_tpc(), tpcs))?)
    }
}

/// A stream with a set, on which launches stay inside the set.
pub struct Lane<'m> {
    set: TpcSet,
    judge: Rc<Judge>,
    gpu: &'m Gpu<'m>,
    way: Way<'m>,
}

enum Way<'m> {
    Mask { masks: ProcessMasks, mask: PreparedMask, stream: Stream<'m> },
    Stream(MaskedStream<'m>),
    Green { pool: Rc<GreenPool<'m, 'm>>, context: Rc<GreenContext<'m, 'm>> },
}

impl Lane<'_> {
    /// Its set.
    pub fn set(&self) -> TpcSet {
        self.set
    }

    /// Its stream. A change of the set of a lane of green contexts changes the stream.
    pub fn stream(&self) -> StreamRef<'_> {
        self.place().stream()
    }

    /// The place for launches of Partita's own kernels on the lane, for [`crate::Census::at`].
    pub fn place(&self) -> Place<'_> {
        match &self.way {
            Way::Mask { stream, .. } => self.gpu.place(stream.as_ref()),
            Way::Stream(stream) => self.gpu.place(stream.as_ref()),
            Way::Green { context, .. } => context.place(),
        }
    }

    /// Runs `work`. Every launch of this thread in it on the lane's stream stays inside the set. A
    /// mask in launch descriptors holds for all launches of `work`, on any stream.
    ///
    /// # Errors
    /// [`Error::Refused`] if launches cannot be masked any more; then `work` does not run.
    pub fn within<R>(&self, work: impl FnOnce(Place<'_>) -> R) -> Result<R, Error> {
        let _scope = match &self.way {
            Way::Mask { masks, mask, .. } => Some(Scope::with(*masks, *mask)?),
            Way::Stream(_) | Way::Green { .. } => None,
        };
        Ok(work(self.place()))
    }

    /// Whether a launch can ever run on the lane with its current set.
    ///
    /// # Errors
    /// As [`Mechanism::fits`].
    pub fn fits(&self, launch: &Residence) -> Result<(), Error> {
        self.judge.fits(&self.set, launch)
    }

    /// Prepares a launch of a known kernel on the lane; launch it [`within`](Lane::within).
    ///
    /// # Errors
    /// [`Error::Misfit`] for clusters that do not fit into the set; those of the driver.
    ///
    /// # Safety
    /// As for [`Gpu::prepare`].
    pub unsafe fn prepare(&self, kernel: &CStr, grid: Grid, arguments: &[u64]) -> Result<Launch<'_>, Error> {
        self.fits(&Residence {
            grid_blocks: grid.blocks.into(),
            cluster_blocks: grid.cluster_blocks,
            cooperative: false,
            blocks_per_sm: 1,
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { self.gpu.prepare_at(self.place(), kernel, grid, arguments) }
    }

    /// As [`Lane::prepare`], with all blocks resident at the same time. An SM holds `blocks_per_sm`
    /// of them, or more.
    ///
    /// # Errors
    /// [`Error::Misfit`] for more blocks than the set holds; those of the driver.
    ///
    /// # Safety
    /// As for [`Gpu::prepare`].
    pub unsafe fn prepare_cooperative(
        &self,
        kernel: &CStr,
        grid: Grid,
        blocks_per_sm: u32,
        arguments: &[u64],
    ) -> Result<Launch<'_>, Error> {
        let Grid { blocks, cluster_blocks, .. } = grid;
        self.fits(&Residence {
            grid_blocks: blocks.into(),
            cluster_blocks,
            cooperative: true,
            blocks_per_sm,
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { self.gpu.prepare_at(self.place(), kernel, grid, arguments) }?.cooperative()
    }

    /// Prepares `partita_spin` on the lane, as [`Gpu::prepare_spin`].
    ///
    /// # Errors
    /// Those of the driver.
    pub fn prepare_spin(&self, blocks: u32, threads: u32, duration_ns: u64) -> Result<Launch<'_>, Error> {
        // SAFETY: the kernel takes a duration and no address.
        unsafe { self.prepare(kernels::SPIN, Grid { blocks, threads, cluster_blocks: 1 }, &[duration_ns]) }
    }

    /// Prepares `partita_fma` on the lane, as [`Gpu::prepare_fma`].
    ///
    /// # Errors
    /// Those of the driver.
    pub fn prepare_fma<'b>(
        &'b self,
        grid: Grid,
        values: &'b Buffer<'_>,
        rounds: u32,
    ) -> Result<Launch<'b>, Error> {
        let (address, count) = (values.address(), values.bytes() as u64 / 4);
        let arguments = [address, address, address, address, count, u64::from(rounds)];
        // SAFETY: the kernel takes four addresses of `count` numbers, which may be the same; the
        // launch borrows the buffer.
        unsafe { self.prepare(kernels::FMA, grid, &arguments) }
    }

    /// Waits for everything launched on the lane.
    ///
    /// # Errors
    /// [`Error::Hang`] at the deadline; those of the driver.
    pub fn wait(&self, what: &'static str, deadline_ms: u64) -> Result<(), Error> {
        self.gpu.wait_on(self.stream(), what, deadline_ms)
    }

    /// Waits for everything launched on the lane, without a timeout.
    ///
    /// # Errors
    /// Those of the driver, if a kernel failed.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the lane's own stream.
        unsafe { self.gpu.cuda().stream_synchronize(self.stream().handle()) }
    }

    /// Changes the set. Earlier work keeps the previous set, and runs before later work.
    ///
    /// # Errors
    /// As [`Mechanism::lane`]; for a lane of green contexts, [`Error::Refused`] if the pool has no
    /// context for the set. To create one takes milliseconds, so [prepare](GreenMechanism::prepare)
    /// it first. After an error, the lane is unchanged.
    pub fn retarget(&mut self, set: &TpcSet) -> Result<(), Error> {
        match &mut self.way {
            Way::Mask { masks, mask, .. } => *mask = masks.prepare(set)?,
            Way::Stream(stream) => stream.set(set)?,
            Way::Green { pool, context } => {
                let next = pool.find(set).ok_or_else(|| {
                    Error::Refused(format!(
                        "no green context for TPCs {set} is prepared, and to create one takes \
                         milliseconds"
                    ))
                })?;
                next.follow(context)?;
                *context = next;
            }
        }
        self.set = *set;
        Ok(())
    }
}

/// Masks in launch descriptors.
pub struct MaskMechanism<'g> {
    gpu: &'g Gpu<'g>,
    masks: ProcessMasks,
    judge: Rc<Judge>,
}

impl<'g> MaskMechanism<'g> {
    /// Uses the process's masks.
    pub fn new(gpu: &'g Gpu<'g>, masks: ProcessMasks) -> Self {
        Self { gpu, masks, judge: Judge::new(masks.topology()) }
    }
}

impl<'g> Mechanism<'g> for MaskMechanism<'g> {
    fn name(&self) -> &'static str {
        "mask"
    }

    fn step(&self) -> Result<Step, Error> {
        Ok(Step { least_tpcs: 1, step_tpcs: 1, any_tpcs: true })
    }

    fn retarget(&self) -> Retarget {
        Retarget::InPlace
    }

    fn lane(&self, set: &TpcSet) -> Result<Lane<'g>, Error> {
        let mask = self.masks.prepare(set)?;
        let way = Way::Mask { masks: self.masks, mask, stream: Stream::new(self.gpu.cuda())? };
        Ok(Lane { set: *set, judge: Rc::clone(&self.judge), gpu: self.gpu, way })
    }

    fn fits(&self, set: &TpcSet, launch: &Residence) -> Result<(), Error> {
        self.judge.fits(set, launch)
    }
}

/// Masks of streams.
pub struct StreamMechanism<'g> {
    gpu: &'g Gpu<'g>,
    masks: StreamMasks<'g>,
    judge: Rc<Judge>,
}

impl<'g> StreamMechanism<'g> {
    /// Uses masks at a proved offset, on a proved board.
    pub fn new(gpu: &'g Gpu<'g>, masks: StreamMasks<'g>, topology: &Topology) -> Self {
        Self { gpu, masks, judge: Judge::new(topology) }
    }
}

impl<'g> Mechanism<'g> for StreamMechanism<'g> {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn step(&self) -> Result<Step, Error> {
        Ok(Step { least_tpcs: 1, step_tpcs: 1, any_tpcs: true })
    }

    fn retarget(&self) -> Retarget {
        Retarget::InPlace
    }

    fn lane(&self, set: &TpcSet) -> Result<Lane<'g>, Error> {
        let stream = MaskedStream::new(Stream::new(self.gpu.cuda())?, self.masks, set)?;
        Ok(Lane { set: *set, judge: Rc::clone(&self.judge), gpu: self.gpu, way: Way::Stream(stream) })
    }

    fn fits(&self, set: &TpcSet, launch: &Residence) -> Result<(), Error> {
        self.judge.fits(set, launch)
    }
}

/// Green contexts out of a pool.
pub struct GreenMechanism<'g> {
    gpu: &'g Gpu<'g>,
    pool: Rc<GreenPool<'g, 'g>>,
    judge: Rc<Judge>,
}

impl<'g> GreenMechanism<'g> {
    /// Uses an empty pool. Contexts can be created only while the process has no launch callback.
    /// Of the topology, only the numbers of TPCs and SMs are used: groups of SMs for contexts do
    /// not follow GPCs.
    pub fn new(gpu: &'g Gpu<'g>, pool: GreenPool<'g, 'g>, topology: &Topology) -> Self {
        let judge = Rc::new(Judge { topology: topology.clone(), by_gpc: false });
        Self { gpu, pool: Rc::new(pool), judge }
    }

    /// The pool.
    pub fn pool(&self) -> &GreenPool<'g, 'g> {
        &self.pool
    }

    /// Creates the contexts for `sets` now, so that lanes switch between them by a lookup.
    ///
    /// # Errors
    /// As [`Mechanism::lane`].
    pub fn prepare(&self, sets: &[TpcSet]) -> Result<(), Error> {
        sets.iter().try_for_each(|set| self.pool.obtain(set).map(drop))
    }
}

impl<'g> Mechanism<'g> for GreenMechanism<'g> {
    fn name(&self) -> &'static str {
        green::NAME
    }

    fn step(&self) -> Result<Step, Error> {
        let sms_per_tpc = self.judge.topology.sms_per_tpc();
        let sizes = self.pool.green().sizes(Coscheduling::Ignored)?;
        Ok(Step {
            least_tpcs: sizes.least_sms() / sms_per_tpc,
            step_tpcs: sizes.step_sms() / sms_per_tpc,
            any_tpcs: self.pool.green().groups(Coscheduling::Ignored).iter().all(|group| group.len() == 1),
        })
    }

    fn retarget(&self) -> Retarget {
        Retarget::Switch
    }

    fn lane(&self, set: &TpcSet) -> Result<Lane<'g>, Error> {
        let context = self.pool.obtain(set)?;
        let way = Way::Green { pool: Rc::clone(&self.pool), context };
        Ok(Lane { set: *set, judge: Rc::clone(&self.judge), gpu: self.gpu, way })
    }

    fn fits(&self, set: &TpcSet, launch: &Residence) -> Result<(), Error> {
        self.judge.fits(set, launch)
    }
}
