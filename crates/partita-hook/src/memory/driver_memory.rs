//! The driver's own memory on a GPU: contexts, code, variables of modules, stacks, queues.
//!
//! No call of a program names these bytes: a module's variables come with the module, a stack with
//! a launch. But libcuda allocates all memory from the kernel driver, by an `ioctl` that makes an
//! object of device memory and that the hook intercepts ([`ioctl`](crate::entry::ioctl)). On an
//! H200 the sum of these is, to the byte, what the device lacks and what `nvidia-smi` shows, except
//! for 5.6 MiB of a context that the kernel allocates by itself (`docs/hardware.md`). So an
//! allocation outside of a charged call is the driver's own.
//!
//! It is shown, and free up to the tenant's allowance
//! ([`Limits::driver_allowance_bytes`](partita_ledger::Limits)) in each process, and up to
//! [`DRIVER_ALLOWANCES`] times that in all of them: a quota limits what a program allocates, and a
//! program cannot avoid a context. Beyond that it is charged, before the kernel is called; if the
//! quota has no room for it, it is refused as a full device refuses it, and libcuda returns
//! `CUDA_ERROR_OUT_OF_MEMORY` from the load or the launch.
//!
//! Each of several GPUs is identified by the parent object of its memory, from the first allocation
//! of the program on it. Earlier driver memory there is charged then, as far as there is room.

use alloc::vec::Vec;
use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use partita_abi::control::{
    CLASS_DEVICE_MEMORY, DEVICE_MEMORY_FLAG_VIRTUAL, DEVICE_MEMORY_FLAGS_AT, DEVICE_MEMORY_SIZE_AT,
    NV_ERR_NO_MEMORY, NV_OK, RM_ALLOC_BYTES, RM_ALLOC_LONG_BYTES, RM_ALLOC_LONG_STATUS_AT, RM_OBJECT_AT,
    RM_PARAMETERS_AT, RM_STATUS_AT,
};
use partita_ledger::DRIVER_ALLOWANCES;
use partita_ledger::mutex::Mutex;

use crate::account::gpu::Gpu;
use crate::account::tenant::{self, Tenant};
use crate::driver::real::ask;
use crate::sys::fork::{in_child, renew};
use crate::sys::report;
use crate::sys::thread_word::ThreadWord;

/// One object of device memory.
#[derive(Debug, Clone, Copy)]
struct Taken {
    client: u32,
    parent: u32,
    object: u32,
    bytes: u64,
}

/// The object below which a GPU's memory is made, and which of the process's GPUs it is.
struct Device {
    client: u32,
    parent: u32,
    gpu: u8,
}

/// The charge for one GPU.
struct Charged {
    gpu: u8,
    bytes: u64,
}

struct Memory {
    taken: Vec<Taken>,
    devices: Vec<Device>,
    charged: Vec<Charged>,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory::NONE);

/// Bytes that are charged for contexts' limits (`cuCtxSetLimit`), which the driver takes later, at
/// a launch.
static LIMITS_BYTES: AtomicU64 = AtomicU64::new(0);

/// The state of each thread: null, or [`CHARGING`] and beyond.
static ABOUT: ThreadWord = ThreadWord::new();

/// In a thread's word: a charged call is under way, on a GPU that is not known yet. Each GPU is one
/// more than its number beyond it.
const CHARGING: usize = 1;

/// Allocates the key for the threads' state.
///
/// # Errors
/// The C library has no key left for values of threads.
pub fn prepare() -> Result<(), &'static str> {
    ABOUT.prepare(None)
}

fn set_about(about: usize) {
    // A thread's first word may find no memory: then the allocation counts as the driver's own.
    ABOUT.set(core::ptr::without_provenance(about));
}

/// A call whose memory is charged separately; ends on drop.
pub struct Charging {
    /// Whether it is this that the thread is about, and no call around it.
    is_outermost: bool,
}

impl Charging {
    /// Has the driver's requests of this thread be those of a charged call, if this is one.
    #[inline]
    pub fn begin(is_charged: bool) -> Self {
        let is_outermost = is_charged && ABOUT.is_ready() && ABOUT.get().is_null();
        if is_outermost {
            set_about(CHARGING);
        }
        Self { is_outermost }
    }

    /// Says for which GPU the call that is under way is.
    pub fn on(gpu: &Gpu) {
        if ABOUT.get().addr() == CHARGING {
            set_about(CHARGING + 1 + usize::from(gpu.index));
        }
    }
}

impl Drop for Charging {
    fn drop(&mut self) {
        if self.is_outermost {
            set_about(0);
        }
    }
}

/// The arguments of a request for an object.
struct Request {
    client: u32,
    parent: u32,
    class: u32,
    parameters: *const u8,
    status_at: usize,
}

/// # Safety
/// The argument is that of such a request, and lives.
unsafe fn u32_at(argument: *const u8, at: usize) -> u32 {
    // SAFETY: the caller's; every offset lies inside.
    unsafe { argument.add(at).cast::<u32>().read_unaligned() }
}

impl Request {
    /// # Safety
    /// As for ioctl(2), with the argument of a request of that many bytes.
    unsafe fn read(argument: *const u8, bytes: usize) -> Self {
        let status_at = if bytes == RM_ALLOC_LONG_BYTES { RM_ALLOC_LONG_STATUS_AT } else { RM_STATUS_AT };
        // SAFETY: the caller's.
        unsafe {
            let parameters = argument.add(RM_PARAMETERS_AT).cast::<u64>().read_unaligned();
            Self {
                client: u32_at(argument, 0),
                parent: u32_at(argument, 4),
                class: u32_at(argument, 12),
                parameters: core::ptr::with_exposed_provenance(parameters as usize),
                status_at,
            }
        }
    }

    /// The bytes of memory that it is for: asked for, or given.
    ///
    /// # Safety
    /// The request is for device memory, and its parameters live.
    unsafe fn bytes(&self) -> u64 {
        // SAFETY: the caller's.
        unsafe { self.parameters.add(DEVICE_MEMORY_SIZE_AT).cast::<u64>().read_unaligned() }
    }
}

/// Stands in for a request for an object.
///
/// # Safety
/// As for ioctl(2), with such a request.
pub unsafe fn on_alloc(node: c_int, wanted: c_ulong, argument: *mut c_void) -> c_int {
    let bytes = (wanted >> 16 & 0x3fff) as usize;
    debug_assert!(bytes == RM_ALLOC_BYTES || bytes == RM_ALLOC_LONG_BYTES);
    // SAFETY: the caller's.
    let request = unsafe { Request::read(argument.cast(), bytes) };
    // SAFETY: as above: parameters of this class are at least that long.
    let is_memory = request.class == CLASS_DEVICE_MEMORY
        && !request.parameters.is_null()
        && unsafe { u32_at(request.parameters, DEVICE_MEMORY_FLAGS_AT) } & DEVICE_MEMORY_FLAG_VIRTUAL == 0;
    let about = ABOUT.get().addr();
    let tenant = tenant::current().filter(|_| is_memory);
    let Some(tenant) = tenant else {
        // SAFETY: the caller guarantees it.
        return unsafe { ask(node, wanted, argument) };
    };
    if about != 0 {
        if let (Some(gpu), true) = (about.checked_sub(CHARGING + 1), tenant.gpus().len() > 1) {
            learn(tenant, &request, gpu as u8);
        }
        // SAFETY: the caller guarantees it.
        return unsafe { ask(node, wanted, argument) };
    }
    // SAFETY: it is a request for device memory.
    let wanted_bytes = unsafe { request.bytes() };
    let mut taken = Taken { client: request.client, parent: request.parent, object: 0, bytes: wanted_bytes };
    if !take(tenant, taken) {
        told_refusal(taken.bytes);
        // SAFETY: the request's own answer.
        unsafe {
            argument.cast::<u8>().add(request.status_at).cast::<u32>().write_unaligned(NV_ERR_NO_MEMORY)
        };
        return 0;
    }
    // SAFETY: the caller guarantees it.
    let asked = unsafe { ask(node, wanted, argument) };
    // SAFETY: the driver has written its answer.
    let (status, object, given) = unsafe {
        let argument = argument.cast::<u8>().cast_const();
        (u32_at(argument, request.status_at), u32_at(argument, RM_OBJECT_AT), request.bytes())
    };
    let mut memory = MEMORY.lock();
    let place = memory.taken.iter().rposition(|entry| {
        (entry.client, entry.parent, entry.object, entry.bytes)
            == (taken.client, taken.parent, 0, taken.bytes)
    });
    if asked == 0 && status == NV_OK {
        (taken.object, taken.bytes) = (object, given);
        if let Some(entry) = place.and_then(|place| memory.taken.get_mut(place)) {
            *entry = taken;
        }
    } else if let Some(place) = place {
        memory.taken.swap_remove(place);
    }
    memory.settle(tenant);
    asked
}

/// Removes the objects of a release before the kernel is called: afterwards the names may belong to
/// other objects. Returns whether there was any.
pub fn on_free(client: u32, object: u32) -> bool {
    let mut memory = MEMORY.lock();
    let before = memory.taken.len();
    let goes = |of: u32, parent: u32, name: u32| {
        of == client && (object == client || parent == object || name == object)
    };
    memory.taken.retain(|entry| !goes(entry.client, entry.parent, entry.object));
    memory.devices.retain(|device| !goes(device.client, device.parent, device.parent));
    memory.taken.len() < before
}

/// Credits released memory, once the kernel has released it.
pub fn freed() {
    if let Some(tenant) = tenant::current() {
        MEMORY.lock().settle(tenant);
    }
}

/// Reserves memory before it is taken; false if the quota has no room for it.
fn take(tenant: &Tenant, taken: Taken) -> bool {
    let mut memory = MEMORY.lock();
    memory.taken.push(taken);
    let Some(gpu) = memory.gpu_of(tenant, taken) else { return true };
    let wanted = memory.beyond_allowance(tenant, gpu);
    let held = memory.charged_mut(gpu.index);
    let missing = wanted.saturating_sub(*held);
    // Pools are not trimmed for it: the caller may hold their locks.
    if gpu.reserve(missing) {
        *held += missing;
        return true;
    }
    memory.taken.pop();
    // Its unused allowance is available to other processes.
    memory.beyond_allowance(tenant, gpu);
    false
}

/// Notes below which object a GPU's memory is made.
fn learn(tenant: &Tenant, request: &Request, gpu: u8) {
    let mut memory = MEMORY.lock();
    let (client, parent) = (request.client, request.parent);
    if !memory.devices.iter().any(|device| (device.client, device.parent) == (client, parent)) {
        memory.devices.push(Device { client, parent, gpu });
        memory.settle(tenant);
    }
}

impl Memory {
    const NONE: Self = Self { taken: Vec::new(), devices: Vec::new(), charged: Vec::new() };

    /// The GPU that an object's memory is of, if that is known.
    fn gpu_of<'t>(&self, tenant: &'t Tenant, taken: Taken) -> Option<&'t Gpu> {
        if let [only] = tenant.gpus() {
            return Some(only);
        }
        let is_it = |device: &&Device| (device.client, device.parent) == (taken.client, taken.parent);
        tenant.gpus().get(usize::from(self.devices.iter().find(is_it)?.gpu))
    }

    /// Bytes that the driver has for itself on a GPU.
    fn own_bytes(&self, tenant: &Tenant, gpu: &Gpu) -> u64 {
        let of_gpu = |taken: &&Taken| self.gpu_of(tenant, **taken).is_some_and(|of| of.index == gpu.index);
        self.taken.iter().filter(of_gpu).fold(0, |sum, taken| sum.saturating_add(taken.bytes))
    }

    /// Those of them that count against the quota.
    fn beyond_allowance(&self, tenant: &Tenant, gpu: &Gpu) -> u64 {
        // Limits that change all the time are malicious; the current charge stays.
        let Ok(allowance) = gpu.limits.driver_allowance_bytes() else { return 0 };
        let own = self.own_bytes(tenant, gpu).saturating_sub(LIMITS_BYTES.load(Ordering::Relaxed));
        let bound = allowance.saturating_mul(DRIVER_ALLOWANCES);
        own - gpu.slot.take_driver_free(own.min(allowance), bound)
    }

    fn charged_mut(&mut self, gpu: u8) -> &mut u64 {
        let known = self.charged.iter().position(|charged| charged.gpu == gpu);
        let place = known.unwrap_or_else(|| {
            self.charged.push(Charged { gpu, bytes: 0 });
            self.charged.len() - 1
        });
        &mut self.charged[place].bytes
    }

    /// Adjusts the account to the taken memory, and shows it. An increase is charged only as far as
    /// there is room, because the memory is already taken.
    fn settle(&mut self, tenant: &Tenant) {
        for gpu in tenant.gpus() {
            gpu.slot.show_driver(self.own_bytes(tenant, gpu));
            let wanted = self.beyond_allowance(tenant, gpu);
            let held = self.charged_mut(gpu.index);
            if wanted < *held {
                gpu.credit(*held - wanted);
                *held = wanted;
            } else if gpu.reserve(wanted - *held) {
                *held = wanted;
            }
        }
    }
}

/// Notes how much is charged for a limit of a context instead of `before`: the driver takes it at
/// some launch.
pub fn limits_charged(before: u64, now: u64) {
    let change = |all: u64| Some(all.saturating_sub(before).saturating_add(now));
    let _ = LIMITS_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

#[cold]
fn told_refusal(bytes: u64) {
    report::once!(
        "the driver wants {bytes} bytes more for itself (context, code, variables of modules or \
         stacks), beyond its allowance, and the tenant's quota has no room for them; raise the \
         quota with `partita set --mem`, or the allowance with `--mem-driver`"
    );
}

// A forked child has no objects of the driver's: CUDA cannot be used in it.
in_child! {
    renew(&MEMORY, Memory::NONE);
    LIMITS_BYTES.store(0, Ordering::Relaxed);
    set_about(0);
}
