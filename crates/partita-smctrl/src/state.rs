//! The driver, its GPUs, and the masks of this process: made at the first use, never freed.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use partita_core::TpcSet;
use partita_driver::{Cuda, Error, ProcessMasks, StreamField, StreamMasks, StreamRef, files};

use crate::board::{self, Board, Device};
use crate::contain;
use crate::fault::Fault;
use crate::lock::Mutex;
use crate::mask::{self, Numbering, Wide};

/// Null before the first use.
static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());
static MAKING: Mutex<()> = Mutex::new(());
/// [`Numbering`] by its number; below 0 until it is chosen or read from the environment.
static NUMBERING: AtomicI32 = AtomicI32::new(-1);

/// A value that is found once.
type Slot<T> = Mutex<Option<Result<&'static T, Fault>>>;

/// All that this library has found out.
pub struct State {
    cuda: Cuda,
    gpus: Vec<Gpu>,
    /// Null until launches are masked.
    launches: AtomicPtr<ProcessMasks>,
}

/// One GPU of the process.
struct Gpu {
    device: Device,
    board: Slot<Board>,
    streams: Slot<Streams>,
    /// The same, for fast access when masks are set.
    streams_made: AtomicPtr<Streams>,
}

/// The masks of a GPU's streams.
pub struct Streams {
    masks: StreamMasks<'static>,
    tpc_count: u32,
}

/// A context that is passed to another thread.
struct Context(*mut c_void);
// SAFETY: the driver's contexts may be used on any thread.
unsafe impl Send for Context {}

impl State {
    /// The state of this process. The first call loads and initialises the driver.
    ///
    /// # Errors
    /// `ENODEV` without a driver or a GPU; those of the driver.
    pub fn get() -> Result<&'static Self, Fault> {
        if let Some(state) = Self::made() {
            return Ok(state);
        }
        let _making = MAKING.lock();
        if let Some(state) = Self::made() {
            return Ok(state);
        }
        let state = contain::run(|| {
            let cuda = Cuda::load(None)?;
            let gpus = Device::all(&cuda)?;
            if gpus.is_empty() {
                return Err(Fault::new(
                    libc::ENODEV,
                    "CUDA sees no GPU in this process: see CUDA_VISIBLE_DEVICES",
                ));
            }
            let gpus = gpus.into_iter().map(|device| Gpu {
                device,
                board: Mutex::new(None),
                streams: Mutex::new(None),
                streams_made: AtomicPtr::new(core::ptr::null_mut()),
            });
            let state = State { cuda, gpus: gpus.collect(), launches: AtomicPtr::new(core::ptr::null_mut()) };
            Ok(Box::new(state))
        })?;
        // Never freed: the driver calls back into it.
        let state: &'static Self = Box::leak(state);
        STATE.store(core::ptr::from_ref(state).cast_mut(), Ordering::Release);
        Ok(state)
    }

    /// The state, if the first call has made it.
    pub fn made() -> Option<&'static Self> {
        // SAFETY: null, or what get() leaked.
        unsafe { STATE.load(Ordering::Acquire).as_ref() }
    }

    /// The driver.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// Whether launches are masked.
    pub fn masks_launches(&self) -> bool {
        !self.launches.load(Ordering::Acquire).is_null()
    }

    /// A GPU by CUDA's number.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn device(&self, ordinal: i32) -> Result<&Device, Fault> {
        let gpu = usize::try_from(ordinal).ok().and_then(|ordinal| self.gpus.get(ordinal));
        gpu.map(|gpu| &gpu.device).ok_or_else(|| {
            Fault::new(
                libc::ENODEV,
                format!("there is no CUDA device {ordinal}: this process sees {}", self.gpus.len()),
            )
        })
    }

    /// All GPUs.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.gpus.iter().map(|gpu| &gpu.device)
    }

    fn gpu(&self, ordinal: u32) -> Result<&Gpu, Fault> {
        self.gpus.get(ordinal as usize).ok_or_else(|| Fault::new(libc::ENODEV, "no such GPU"))
    }

    /// The mapping of a GPU's mask bits.
    ///
    /// # Errors
    /// As [`Board::find`]. A failure is cached, since finding out takes seconds.
    pub fn board(&'static self, ordinal: u32) -> Result<&'static Board, Fault> {
        if let Some(found) = &*self.gpu(ordinal)?.board.lock() {
            return found.clone();
        }
        contain::run(move || self.board_contained(ordinal))
    }

    /// As [`State::board`], within contained work, which cannot be nested.
    pub(crate) fn board_contained(&'static self, ordinal: u32) -> Result<&'static Board, Fault> {
        let gpu = self.gpu(ordinal)?;
        let found = gpu.board.lock().clone();
        if let Some(found) = found {
            return found;
        }
        // No lock is held meanwhile: a thread that panics never releases its locks.
        let found: Result<&'static Board, Fault> =
            Board::find(&self.cuda, &gpu.device).map(|board| &*Box::leak(Box::new(board)));
        *gpu.board.lock() = Some(found.clone());
        found
    }

    /// The masks of this process's launches. From the first call on, the driver calls back for
    /// every launch.
    ///
    /// # Errors
    /// As [`State::board`]; `EBUSY` if another library masks or profiles launches; `ENOTSUP` if the
    /// process sees several GPUs.
    pub fn launches(&'static self) -> Result<ProcessMasks, Fault> {
        // SAFETY: null, or leaked below.
        if let Some(masks) = unsafe { self.launches.load(Ordering::Acquire).as_ref() } {
            return Ok(*masks);
        }
        if self.gpus.len() > 1 {
            return Err(Fault::new(
                libc::ENOTSUP,
                format!(
                    "this process sees {} GPUs, whose launches the driver's callback cannot \
                     distinguish: name one in CUDA_VISIBLE_DEVICES, or set the masks of streams",
                    self.gpus.len()
                ),
            ));
        }
        let board = self.board(0)?;
        let masks = contain::run(move || Ok(Box::new(board.install(&self.cuda)?)))?;
        let masks = *Box::leak(masks);
        // Two threads may get here at once; both installed the same.
        self.launches.store(Box::leak(Box::new(masks)), Ordering::Release);
        Ok(masks)
    }

    /// A stream of this process, and the masks of its GPU's streams.
    ///
    /// # Errors
    /// `EINVAL` for a default or destroyed stream; `ENODATA` if the place of stream masks in this
    /// driver is not proved.
    ///
    /// # Safety
    /// The handle is that of a live stream of this process's driver.
    pub unsafe fn stream(
        &'static self,
        handle: *mut c_void,
    ) -> Result<(&'static Streams, StreamRef<'static>), Fault> {
        // SAFETY: the caller guarantees it.
        let stream = unsafe { StreamRef::from_raw(handle)? };
        let gpu = match self.gpus.as_slice() {
            [gpu] => gpu,
            // SAFETY: the caller guarantees it.
            _ => unsafe { self.gpu_of(handle)? },
        };
        // SAFETY: null, or leaked below.
        if let Some(masks) = unsafe { gpu.streams_made.load(Ordering::Acquire).as_ref() } {
            return Ok((masks, stream));
        }
        // SAFETY: the caller guarantees it.
        let context = unsafe { self.context_of(handle)? };
        let masks = once(&gpu.streams, move || {
            let board = self.board_contained(gpu.device.ordinal)?;
            let offset = board::stream_offset(&self.cuda, &gpu.device)?;
            let context = context;
            // SAFETY: the stream's own context, made current on this short-lived thread alone.
            unsafe { self.cuda.ctx_set_current(context.0)? };
            let field = StreamField::from_cache(&self.cuda, offset)?;
            let tpc_count = board.topology().tpc_count();
            Ok(Streams { masks: StreamMasks::new(&self.cuda, field, tpc_count), tpc_count })
        })?;
        gpu.streams_made.store(core::ptr::from_ref(masks).cast_mut(), Ordering::Release);
        Ok((masks, stream))
    }

    /// A stream's context and GPU.
    ///
    /// # Errors
    /// `EINVAL` for a destroyed stream; those of the driver.
    ///
    /// # Safety
    /// As for [`State::stream`].
    pub unsafe fn place_of(
        &'static self,
        handle: *mut c_void,
    ) -> Result<(*mut c_void, &'static Device), Fault> {
        let gpu = match self.gpus.as_slice() {
            [gpu] => gpu,
            // SAFETY: the caller guarantees it.
            _ => unsafe { self.gpu_of(handle)? },
        };
        // SAFETY: the caller guarantees it.
        Ok((unsafe { self.context_of(handle)? }.0, &gpu.device))
    }

    /// The GPU of a stream, if the process sees several.
    ///
    /// # Safety
    /// As for [`State::stream`].
    unsafe fn gpu_of(&'static self, handle: *mut c_void) -> Result<&'static Gpu, Fault> {
        // SAFETY: the caller guarantees it.
        let context = unsafe { self.context_of(handle)? };
        let device = contain::run(move || {
            let context = context;
            let mut device = 0;
            // SAFETY: the stream's own context, made current on this short-lived thread alone; a
            // valid pointer.
            unsafe {
                self.cuda.ctx_set_current(context.0)?;
                self.cuda.ctx_get_device(&mut device)?;
            }
            Ok(device)
        })?;
        let gpu = self.gpus.iter().find(|gpu| gpu.device.handle == device);
        gpu.ok_or_else(|| {
            Fault::new(
                libc::ENODEV,
                "the stream's GPU was not visible to this process when the driver \
                was initialised",
            )
        })
    }

    /// The context of a stream.
    ///
    /// # Safety
    /// As for [`State::stream`].
    unsafe fn context_of(&self, handle: *mut c_void) -> Result<Context, Fault> {
        let mut context = core::ptr::null_mut();
        // SAFETY: a live stream, as the caller promises, and a valid pointer.
        match unsafe { self.cuda.stream_get_ctx(handle, &mut context) } {
            Ok(()) => Ok(Context(context)),
            Err(Error::Call { code, .. }) => Err(Fault::new(
                libc::EINVAL,
                format!("stream {handle:?} has no context ({code}): is it still alive?"),
            )),
            Err(error) => Err(error.into()),
        }
    }
}

/// The value of a slot. The first call finds it by contained work; success and failure are both
/// cached, since it can take seconds.
fn once<T: Send + Sync + 'static>(
    slot: &Slot<T>,
    find: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<&'static T, Fault> {
    let mut slot = slot.lock();
    if let Some(result) = &*slot {
        return result.clone();
    }
    let found = contain::run(move || find().map(Box::new)).map(|found| &*Box::leak(found));
    *slot = Some(found.clone());
    found
}

/// What the bits of launch masks count: as chosen, else as `LIBSMCTRL_NUMBERING` says, else TPCs.
pub fn numbering() -> Numbering {
    if let Some(numbering) = Numbering::of(NUMBERING.load(Ordering::Relaxed)) {
        return numbering;
    }
    let numbering = match files::variable(c"LIBSMCTRL_NUMBERING").as_deref() {
        Some("physical") => Numbering::Physical,
        _ => Numbering::Logical,
    };
    choose_numbering(numbering);
    numbering
}

/// Chooses it for all masks set from now on.
pub fn choose_numbering(numbering: Numbering) {
    NUMBERING.store(numbering as i32, Ordering::Relaxed);
}

/// Masks every launch of the process without a more specific mask.
///
/// # Errors
/// As [`State::launches`] and [`mask::enabled`].
pub fn set_global(mask: &Wide) -> Result<(), Fault> {
    let launches = State::get()?.launches()?;
    let set = mask::enabled(mask, numbering(), launches.topology())?;
    // For the process, and only for it, a mask with all TPCs equals no mask.
    let set = Some(set).filter(|set| *set != launches.topology().all());
    launches.set_process(set.as_ref())?;
    Ok(())
}

/// Masks the next launch of this thread.
///
/// # Errors
/// As [`set_global`].
pub fn set_next(mask: &Wide) -> Result<(), Fault> {
    let launches = State::get()?.launches()?;
    let set = mask::enabled(mask, numbering(), launches.topology())?;
    launches.set_next(Some(&set))?;
    Ok(())
}

/// Removes this thread's mask for its next launch.
///
/// # Errors
/// As [`State::launches`].
pub fn clear_next() -> Result<(), Fault> {
    State::get()?.launches()?.set_next(None)?;
    Ok(())
}

/// Masks the launches of a stream.
///
/// # Errors
/// As [`State::stream`] and [`mask::enabled`].
///
/// # Safety
/// As for [`State::stream`].
pub unsafe fn set_stream(handle: *mut c_void, mask: &Wide) -> Result<(), Fault> {
    // SAFETY: the caller guarantees it.
    let (masks, stream) = unsafe { State::get()?.stream(handle)? };
    let set = stream_set(mask, masks.tpc_count)?;
    masks.masks.set(stream, &set).map_err(of_stream)?;
    Ok(())
}

/// Removes a stream's mask.
///
/// # Errors
/// As [`State::stream`].
///
/// # Safety
/// As for [`State::stream`].
pub unsafe fn clear_stream(handle: *mut c_void) -> Result<(), Fault> {
    // SAFETY: the caller guarantees it.
    let (masks, stream) = unsafe { State::get()?.stream(handle)? };
    masks.masks.clear(stream).map_err(of_stream)?;
    Ok(())
}

/// Bits of stream masks always count TPCs.
fn stream_set(mask: &Wide, tpc_count: u32) -> Result<TpcSet, Fault> {
    let set = !TpcSet::from_words(*mask) & TpcSet::first(tpc_count);
    if set.is_empty() {
        return Err(Fault::new(
            libc::EINVAL,
            format!(
                "the mask disables every TPC of this GPU (it has {tpc_count}): a launch with no TPC \
                 would never end; a set bit disables, so leave the bit of at least one TPC clear"
            ),
        ));
    }
    Ok(set)
}

fn of_stream(error: Error) -> Fault {
    match error {
        Error::Refused(text) => Fault::new(libc::EINVAL, text),
        other => other.into(),
    }
}
