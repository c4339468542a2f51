//! Where frames' memory comes from, and how a process gets at that of another.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use partita_driver::ipc::{HANDLE_BYTES, MemoryHandle, OpenedMemory, Span};
use partita_driver::{Buffer, Gpu};
use partita_ledger::chain::{ChainSeat, Lease, SlabOwner, SlabPlan, SlabRef};

use crate::error::Error;

/// Allocations are a multiple of this, in bytes: smaller ones may share a block of the driver's, which a handle would open as a whole.
const UNIT_BYTES: u64 = 2 << 20;

/// An allocation, as this process has it.
pub enum Memory<'g> {
    /// It allocated it.
    Own(Buffer<'g>),
    /// It opened it.
    Opened(OpenedMemory<'g>),
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

/// Memory that was granted to a chain.
pub struct Granted<'g> {
    /// What others open it by.
    pub handle: [u8; HANDLE_BYTES],
    /// Where the chain's part of it begins, in bytes.
    pub begins_at: u64,
    /// Where that ends, in bytes.
    pub bytes: u64,
    /// With whom it lives; `None` for this process.
    pub keeper: Option<u64>,
    /// Two words of whoever granted it.
    pub tag: [u64; 2],
    /// The memory, where this process has allocated it itself; otherwise it opens the handle as everybody does.
    pub memory: Option<Memory<'g>>,
}

/// Who gives a chain's first component memory for frames.
pub trait Slabs<'g> {
    /// At least that many bytes, in one allocation.
    ///
    /// # Errors
    /// Why there is none.
    fn grant(&mut self, gpu: &'g Gpu<'g>, bytes: u64) -> Result<Granted<'g>, Error>;

    /// Whether what a keeper of that number has granted is still there. Asked once, when the first component attaches.
    fn is_there(&mut self, keeper: u64) -> bool;
}

/// The first component's own memory: it goes when that does.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnSlabs;

impl<'g> Slabs<'g> for OwnSlabs {
    fn grant(&mut self, gpu: &'g Gpu<'g>, bytes: u64) -> Result<Granted<'g>, Error> {
        let bytes = bytes.next_multiple_of(UNIT_BYTES);
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

    fn is_there(&mut self, _keeper: u64) -> bool {
        false
    }
}

/// The allocations that this process has open, each once.
#[derive(Default)]
pub(crate) struct Opened<'g> {
    slabs: RefCell<HashMap<u8, (u64, Rc<Memory<'g>>)>>,
}

impl<'g> Opened<'g> {
    fn keep(&self, slab: SlabRef, memory: Memory<'g>) -> Rc<Memory<'g>> {
        let memory = Rc::new(memory);
        // What was there before is closed when the last frame in it has gone.
        self.slabs.borrow_mut().insert(slab.index, (slab.generation, Rc::clone(&memory)));
        memory
    }

    /// As the first component, obtains the memory that the chain's frames still need.
    pub(crate) fn provide(
        &self,
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        source: &mut dyn Slabs<'g>,
    ) -> Result<(), Error> {
        for info in seat.slabs() {
            if let (true, SlabOwner::Keeper(keeper)) = (info.live, info.plan.owner)
                && !source.is_there(keeper)
            {
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

    /// The memory of a lease.
    pub(crate) fn of(
        &self,
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        lease: &Lease,
    ) -> Result<Rc<Memory<'g>>, Error> {
        let slab = lease.slab;
        if let Some((generation, memory)) = self.slabs.borrow().get(&slab.index)
            && *generation == slab.generation
        {
            return Ok(Rc::clone(memory));
        }
        let info = seat.slab(slab).ok_or(Error::Damaged { offset: lease.offset, bytes: 0 })?;
        let handle = MemoryHandle::from_bytes(info.plan.handle);
        let opened =
            OpenedMemory::open(gpu, &handle, info.plan.bytes).map_err(Error::driver("memory of a frame"))?;
        Ok(self.keep(slab, Memory::Opened(opened)))
    }
}
