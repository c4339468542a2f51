//! The source of frames' memory, and access to that of another process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use partita_driver::ipc::{HANDLE_BYTES, MemoryHandle, OpenedMemory, Span};
use partita_driver::{Buffer, Gpu};
use partita_frames::{ChainSeat, KEEPER_VARIABLE, Lease, SlabOwner, SlabPlan, SlabRef};
use partita_memory::client::OpenSlab;

use crate::error::Error;

/// Allocations are a multiple of this, in bytes: smaller ones may share a block of the driver's,
/// and a handle would open the whole block.
const UNIT_BYTES: u64 = 2 << 20;

/// An allocation, in this process.
pub enum Memory<'g> {
    /// Allocated here.
    Own(Buffer<'g>),
    /// Opened: a keeper's, or the first component's.
    Opened(OpenSlab<'g>),
}

impl Memory<'_> {
    /// All of it.
    pub fn span(&self) -> Span<'_> {
        match self {
            Self::Own(buffer) => buffer.span(),
            Self::Opened(opened) => opened.span(),
        }
    }
}

/// Memory granted to a chain.
pub struct Granted<'g> {
    /// Its handle for others; unused with a keeper, which gives handles on request.
    pub handle: [u8; HANDLE_BYTES],
    /// Start of the chain's part of it, in bytes.
    pub begins_at: u64,
    /// End of that part, in bytes.
    pub bytes: u64,
    /// Its owner; `None` for this process.
    pub keeper: Option<u64>,
    /// Two words of the granting owner, which identify it.
    pub tag: [u64; 2],
    /// The memory, if this process has allocated it itself; otherwise it opens it as all others do.
    pub memory: Option<Memory<'g>>,
}

/// The source of a component's memory for frames: the first component gets it granted, and each
/// component opens memory of a keeper.
pub trait Slabs<'g> {
    /// At least this many bytes, in one allocation.
    ///
    /// # Errors
    /// Why there is no memory.
    fn grant(&mut self, gpu: &'g Gpu<'g>, bytes: u64) -> Result<Granted<'g>, Error>;

    /// Which of these allocations, each granted by a keeper, the chain keeps; they are all living
    /// ones in its file. Other memory that was granted to the chain is returned: its requester died
    /// before the file had it. Called once, when the first component attaches.
    ///
    /// # Errors
    /// Why that cannot be found out.
    fn still_there(&mut self, gpu: &'g Gpu<'g>, known: &[SlabPlan]) -> Result<Vec<bool>, Error>;

    /// Opens an allocation of a keeper's in this process; `None` if the chain no longer has it.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open(&mut self, gpu: &'g Gpu<'g>, plan: &SlabPlan) -> Result<Option<Memory<'g>>, Error>;

    /// All opened memory is closed and unused.
    fn closed(&mut self);
}

/// The first component's own memory: it goes with that component.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnSlabs;

impl<'g> Slabs<'g> for OwnSlabs {
    fn grant(&mut self, gpu: &'g Gpu<'g>, bytes: u64) -> Result<Granted<'g>, Error> {
        // The driver refuses impossible sizes.
        let bytes = bytes.checked_next_multiple_of(UNIT_BYTES).unwrap_or(bytes);
        let buffer = gpu.alloc(bytes as usize).map_err(Error::driver("memory for frames"))?;
        let handle =
            MemoryHandle::of(gpu, &buffer).map_err(Error::driver("a handle of the frames' memory"))?;
        Ok(Granted {
            handle: handle.to_bytes(),
            begins_at: 0,
            bytes,
            keeper: None,
            tag: [0; 2],
            memory: Some(Memory::Own(buffer)),
        })
    }

    fn still_there(&mut self, _gpu: &'g Gpu<'g>, known: &[SlabPlan]) -> Result<Vec<bool>, Error> {
        Ok(vec![false; known.len()])
    }

    fn open(&mut self, _gpu: &'g Gpu<'g>, _plan: &SlabPlan) -> Result<Option<Memory<'g>>, Error> {
        // If this process opened it without the keeper's knowledge, the keeper would reuse it while
        // this process can write there.
        let reason = "is not set, but a keeper owns the memory of the chain's frames".to_owned();
        Err(Error::Environment { variable: KEEPER_VARIABLE, reason })
    }

    fn closed(&mut self) {}
}

/// The allocations that this process has open, each once.
pub(crate) struct Opened<'g> {
    slabs: RefCell<HashMap<u8, (u64, Rc<Memory<'g>>)>>,
    source: RefCell<Box<dyn Slabs<'g> + 'g>>,
}

impl<'g> Opened<'g> {
    pub(crate) fn new(source: Box<dyn Slabs<'g> + 'g>) -> Self {
        Self { slabs: RefCell::default(), source: RefCell::new(source) }
    }

    fn keep(&self, slab: SlabRef, memory: Memory<'g>) -> Rc<Memory<'g>> {
        let memory = Rc::new(memory);
        // The former memory is closed when its last frame has gone.
        self.slabs.borrow_mut().insert(slab.index, (slab.generation, Rc::clone(&memory)));
        memory
    }

    /// As the first component, obtains the memory that the chain's frames still need.
    pub(crate) fn provide(&self, gpu: &'g Gpu<'g>, seat: &ChainSeat) -> Result<(), Error> {
        let mut source = self.source.borrow_mut();
        let mut kept = seat.slabs();
        kept.retain(|info| info.live && matches!(info.plan.owner, SlabOwner::Keeper(_)));
        let plans: Vec<SlabPlan> = kept.iter().map(|info| info.plan.clone()).collect();
        for (info, is_there) in kept.iter().zip(source.still_there(gpu, &plans)?) {
            if !is_there {
                seat.retire_slab(info.slab)?;
            }
        }
        let missing = seat.frames_missing();
        if missing == 0 {
            return Ok(());
        }
        let bytes = seat.plan().stride_bytes().saturating_mul(missing.into());
        let granted = source.grant(gpu, bytes)?;
        let owner = match granted.keeper {
            Some(keeper) => SlabOwner::Keeper(keeper),
            None => SlabOwner::FirstRole(seat.incarnation(0)),
        };
        let plan = SlabPlan {
            handle: granted.handle,
            begins_at: granted.begins_at,
            bytes: granted.bytes,
            owner,
            tag: granted.tag,
        };
        let slab = seat.add_slab(&plan)?;
        if let Some(memory) = granted.memory {
            self.keep(slab, memory);
        }
        Ok(())
    }

    /// The memory of a lease; `None` if the chain no longer has it.
    pub(crate) fn of(
        &self,
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        lease: &Lease,
    ) -> Result<Option<Rc<Memory<'g>>>, Error> {
        let slab = lease.slab;
        if let Some((generation, memory)) = self.slabs.borrow().get(&slab.index)
            && *generation == slab.generation
        {
            return Ok(Some(Rc::clone(memory)));
        }
        let info = seat.slab(slab).ok_or(Error::Damaged { offset: lease.offset, bytes: 0 })?;
        let opened = match info.plan.owner {
            SlabOwner::Keeper(_) if info.live => self.source.borrow_mut().open(gpu, &info.plan)?,
            SlabOwner::FirstRole(_) if info.live => {
                let handle = MemoryHandle::from_bytes(info.plan.handle);
                let opened = OpenedMemory::open(gpu, &handle, info.plan.bytes);
                Some(Memory::Opened(OpenSlab::Opened(opened.map_err(Error::driver("memory of a frame"))?)))
            }
            _ => None,
        };
        Ok(opened.map(|memory| self.keep(slab, memory)))
    }

    /// Closes all of it. It must be unused.
    pub(crate) fn close(&self) {
        let slabs = std::mem::take(&mut *self.slabs.borrow_mut());
        // Memory of a frame that was not returned stays open to the end of this process.
        let left = slabs.into_values().filter_map(|(_, memory)| Rc::try_unwrap(memory).err()).count();
        if left == 0 {
            self.source.borrow_mut().closed();
        }
    }
}
