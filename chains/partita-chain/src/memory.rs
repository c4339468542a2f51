//! The source of frames' memory, and access to that of another process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use partita_driver::ipc::{HANDLE_BYTES, MemoryHandle, OpenedMemory, Span};
use partita_driver::{Buffer, Gpu};
use partita_frames::{ChainSeat, KEEPER_VARIABLE, SlabInfo, SlabOwner, SlabPlan, SlabRef};
use partita_memory::client::OpenSlab;

use crate::cross::Site;
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
    /// At least this many bytes, in one allocation on a GPU of the chain. `gpu` is this process's.
    ///
    /// # Errors
    /// Why there is no memory.
    fn grant(&mut self, gpu: &'g Gpu<'g>, on: &Site, bytes: u64) -> Result<Granted<'g>, Error>;

    /// Which of these allocations on a GPU, each granted by a keeper, the chain keeps; they are all
    /// living ones there in its file. Other memory that was granted to the chain there is returned:
    /// its requester died before the file had it. Called when the first component attaches.
    ///
    /// # Errors
    /// Why that cannot be found out.
    fn still_there(&mut self, gpu: &'g Gpu<'g>, on: &Site, known: &[SlabPlan]) -> Result<Vec<bool>, Error>;

    /// Opens an allocation of a keeper's on a GPU in this process; `None` if the chain no longer
    /// has it.
    ///
    /// # Errors
    /// Why it cannot be opened; [`partita_memory::client::Error::Driver`] without access to that
    /// GPU.
    fn open(&mut self, gpu: &'g Gpu<'g>, on: &Site, plan: &SlabPlan) -> Result<Option<Memory<'g>>, Error>;

    /// All opened memory is closed and unused.
    fn closed(&mut self);
}

/// The first component's own memory: it goes with that component.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnSlabs;

impl<'g> Slabs<'g> for OwnSlabs {
    fn grant(&mut self, gpu: &'g Gpu<'g>, on: &Site, bytes: u64) -> Result<Granted<'g>, Error> {
        if on.uuid != gpu.facts().uuid && on.number > 0 {
            let reason = "is not set, but the chain is on several GPUs, and a keeper on each owns the \
                          frames' memory";
            return Err(Error::Environment { variable: KEEPER_VARIABLE, reason: reason.to_owned() });
        }
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

    fn still_there(&mut self, _gpu: &'g Gpu<'g>, _on: &Site, known: &[SlabPlan]) -> Result<Vec<bool>, Error> {
        Ok(vec![false; known.len()])
    }

    fn open(&mut self, _gpu: &'g Gpu<'g>, _on: &Site, _plan: &SlabPlan) -> Result<Option<Memory<'g>>, Error> {
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
        let sites = Site::all(seat.plan(), gpu.facts().uuid);
        let is_kept = |info: &SlabInfo| {
            let is_keeper_s = matches!(info.plan.owner, SlabOwner::Keeper(_));
            info.live && is_keeper_s && info.plan.elsewhere.is_none()
        };
        loop {
            let mut kept = seat.slabs();
            kept.retain(is_kept);
            // On another GPU a former first component may not have got as far.
            let mut gone: Vec<SlabRef> =
                kept.iter().filter(|info| !seat.is_everywhere(info)).map(|info| info.slab).collect();
            for site in &sites {
                let on_site: Vec<(SlabRef, SlabPlan)> = kept
                    .iter()
                    .filter_map(|home| Some((home.slab, seat.slab_on(site.number, home)?.0.plan)))
                    .collect();
                let plans: Vec<SlabPlan> = on_site.iter().map(|(_, plan)| plan.clone()).collect();
                let there = source.still_there(gpu, site, &plans)?;
                gone.extend(
                    on_site.iter().zip(there).filter(|(_, there)| !there).map(|((home, _), _)| *home),
                );
            }
            for slab in &gone {
                seat.retire_slab(*slab)?;
            }
            // Once more, so that what is left of a slab that has gone on one GPU is returned.
            if gone.is_empty() {
                break;
            }
        }
        let missing = seat.frames_missing();
        if missing == 0 {
            return Ok(());
        }
        let bytes = seat.plan().stride_bytes().saturating_mul(missing.into());
        let mut home = None;
        for site in &sites {
            let granted = source.grant(gpu, site, bytes)?;
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
                elsewhere: home.map(|home| (site.number, home)),
            };
            let slab = seat.add_slab(&plan)?;
            home.get_or_insert(slab);
            if let Some(memory) = granted.memory {
                self.keep(slab, memory);
            }
        }
        Ok(())
    }

    /// The memory of an allocation; `None` if the chain no longer has it.
    pub(crate) fn of(
        &self,
        gpu: &'g Gpu<'g>,
        seat: &ChainSeat,
        info: &SlabInfo,
    ) -> Result<Option<Rc<Memory<'g>>>, Error> {
        let slab = info.slab;
        if let Some((generation, memory)) = self.slabs.borrow().get(&slab.index)
            && *generation == slab.generation
        {
            return Ok(Some(Rc::clone(memory)));
        }
        let number = info.plan.elsewhere.map_or(0, |(number, _)| number);
        let opened = match info.plan.owner {
            SlabOwner::Keeper(_) if info.live => {
                let sites = Site::all(seat.plan(), gpu.facts().uuid);
                let Some(site) = sites.get(usize::from(number)) else { return Ok(None) };
                self.source.borrow_mut().open(gpu, site, &info.plan)?
            }
            SlabOwner::FirstRole(owner) if info.live => {
                let handle = MemoryHandle::from_bytes(info.plan.handle);
                match OpenedMemory::open(gpu, &handle, info.plan.bytes) {
                    Ok(opened) => Some(Memory::Opened(OpenSlab::Opened(opened))),
                    // Its owner has died, and no other one has noticed yet.
                    Err(_) if seat.incarnation(0) != owner || !seat.is_held(0)? => None,
                    Err(error) => return Err(Error::driver("memory of a frame")(error)),
                }
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
