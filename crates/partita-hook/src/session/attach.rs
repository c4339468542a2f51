//! `cuInit`: where a process becomes part of its tenant.
//!
//! Enforced or refused: if any limit cannot be enforced in this process, the
//! call fails, one line on standard error says why, and the wrapped calls of
//! this process fail from then on.

use alloc::boxed::Box;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ffi::{CStr, c_uint, c_void};

use partita_abi::CuResult;
use partita_abi::prototypes;
use partita_abi::types::CUuuid;
use partita_ledger::mutex::Mutex;
use partita_ledger::{GPUS_MAX, HookState, LimitsMap, UsageView};

use crate::account::locate;
use crate::account::origin::{self, Origin, is_tenant, may_be_tenant};
use crate::account::tenant::{self, Tenant};
use crate::driver::calls::{DriverCalls, export_table};
use crate::driver::places::PlaceCalls;
use crate::driver::{quiet, real};
use crate::gate::{lanes, look, pass};
use crate::launch::{borrow, counter, mask, subscribers};
use crate::memory::driver_memory;
use crate::session::claim::{Claim, Part, path};
use crate::session::{hami, outside};
use crate::slots::finished;
use crate::sys::fork::{self, in_child};
use crate::sys::report;
use crate::time::meter;

static ATTACHING: Mutex<()> = Mutex::new(());

// Lets a child attach.
in_child! {
    ATTACHING.reset_after_fork();
}

/// Wraps `cuInit`.
pub unsafe fn init(real: prototypes::cuInit, flags: c_uint) -> CuResult {
    // First: the driver reads the environment, which then names the tenant's GPUs and service.
    if !ask() {
        return CuResult::INVALID_DEVICE;
    }
    // SAFETY: the caller's flags, passed on.
    let result = unsafe { real(flags) };
    if result.is_err() || !is_tenant() || tenant::current().is_some() {
        return result;
    }
    match join() {
        true => result,
        // One of the codes that cuInit documents.
        false => CuResult::INVALID_DEVICE,
    }
}

/// Makes the process part of its tenant before it creates a context or allocates memory: it may
/// have reached the driver's `cuInit` by a way that the hook does not wrap.
///
/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED` if the process was refused.
#[inline]
pub fn late() -> Result<(), CuResult> {
    if tenant::current().is_some() || !may_be_tenant() {
        return Ok(());
    }
    join_late()
}

#[cold]
fn join_late() -> Result<(), CuResult> {
    let count = real::symbol(c"cuDeviceGetCount");
    if !tenant::is_refused() && !count.is_null() {
        let mut gpus = 0;
        // SAFETY: the prototype of that name in cuda.h, and a valid pointer.
        let answer =
            unsafe { core::mem::transmute::<*mut c_void, prototypes::cuDeviceGetCount>(count)(&mut gpus) };
        if answer == CuResult::NOT_INITIALIZED {
            // The driver says so itself, to whatever the program calls.
            return Ok(());
        }
    }
    let is_free = ask() && !is_tenant();
    if is_free || join() { Ok(()) } else { Err(CuResult::NOT_INITIALIZED) }
}

/// Asks `partitad` whether the site limits this program, if no tenant was made for it. False if it
/// is refused.
fn ask() -> bool {
    if !origin::is_to_be_asked() {
        return true;
    }
    let _attaching = ATTACHING.lock();
    if !origin::is_to_be_asked() {
        return true;
    }
    outside::ask()
        .inspect_err(|reason| {
            tenant::refuse();
            report::line(format_args!("{reason}"));
        })
        .is_ok()
}

/// Attaches, unless that was done or refused before; whether the process is part of its tenant now.
fn join() -> bool {
    let _attaching = ATTACHING.lock();
    if tenant::current().is_some() {
        return true;
    }
    if tenant::is_refused() {
        return false;
    }
    if !is_tenant() {
        // Another thread has found that nothing limits this process.
        return true;
    }
    let attached = attach();
    if attached.is_err() && origin::origin() == Origin::Environment && hami::limits_nothing() {
        origin::settle(None);
        return true;
    }
    // From here on its slots keep the tenant.
    outside::let_go();
    match attached {
        Ok(tenant) => {
            tenant::publish(tenant);
            true
        }
        Err(reason) => {
            tenant::refuse();
            report::line(format_args!("{reason}"));
            false
        }
    }
}

fn attach() -> Result<&'static Tenant, String> {
    let no_call =
        |name: &CStr| format!("libcuda exports no {}: the driver is too old", name.to_string_lossy());
    let driver = DriverCalls::resolve().map_err(no_call)?;
    let get_export_table = export_table()
        .ok_or_else(|| String::from("libcuda exports no cuGetExportTable: masks cannot be set"))?;
    let uuids = driver.gpu_uuids().map_err(|code| format!("the driver does not report its GPUs ({code})"))?;

    let (claimed, compute_capability, unseen) = match origin::origin() {
        Origin::Environment => {
            let (claimed, compute_capability) = hami::enter(&uuids)?;
            (claimed, compute_capability, Vec::new())
        }
        _ => Parts::open(&ledger_directory()?)?.of(&uuids)?,
    };
    let places = match claimed.len() {
        1 => None,
        _ => Some(PlaceCalls::resolve().map_err(|name| {
            format!("{}; give the program one GPU (--gpu 0, or CUDA_VISIBLE_DEVICES)", no_call(name))
        })?),
    };
    if places.is_some() {
        locate::prepare()?;
    }
    fork::follow().map_err(|code| format!("pthread_atfork failed (error {code}): out of memory?"))?;
    counter::prepare();
    driver_memory::prepare()?;
    if claimed.iter().any(|claim| claim.meter.is_some()) {
        quiet::before_exit(meter::report_last);
    }
    let mut gpus = Vec::new();
    for Claim { gpu, gate, meter } in claimed {
        if gate.is_some() || meter.is_some() {
            pass::begin();
        }
        gate.into_iter().for_each(|gate| lanes::install(gpu.index, gate));
        meter.into_iter().for_each(|meter| meter::install(gpu.index, meter));
        if gpu.presence.as_ref().is_some_and(|presence| presence.borrows) {
            borrow::install(gpu.index).map_err(|name| {
                format!("{}: a tenant that borrows needs CUDA 11.7 or later", no_call(name))
            })?;
            pass::begin();
        }
        gpus.push(gpu);
    }
    // Kept for ever: launches on any thread read it.
    let tenant: &'static Tenant =
        Box::leak(Box::new(Tenant::new(gpus, compute_capability, driver, places, unseen)));
    look::prepare(tenant);
    if !tenant.is_masked() {
        // Nothing is written into launches, and the driver's one subscription stays free.
        tenant.report(HookState::ATTACHED);
        return Ok(tenant);
    }
    finished::begin(tenant);
    mask::begin(tenant);
    if let Err(error) = subscribers::mask_launches(get_export_table) {
        tenant.report(HookState::REFUSED);
        return Err(format!("{error}; without it this program would use the whole GPU"));
    }
    tenant.report(HookState::ATTACHED | HookState::MASK_VERIFIED);
    Ok(tenant)
}

/// The tenant's ledgers, one on each of its GPUs, to look at.
///
/// # Errors
/// Why they cannot be opened.
pub fn views() -> Result<Vec<(LimitsMap, UsageView)>, String> {
    match origin::origin() {
        Origin::Environment => hami::views(),
        _ => Parts::open(&ledger_directory()?)?.0.into_iter().map(Part::view).collect(),
    }
}

/// The tenant's ledgers: one on each of its GPUs.
struct Parts(Vec<Part>);

impl Parts {
    /// Opens the ledger in `first` and those that it links to.
    fn open(first: &CStr) -> Result<Self, String> {
        let mut parts = vec![Part::open(first.into())?];
        while parts.len() < GPUS_MAX {
            let directory = match origin::origin() {
                Origin::Container => {
                    path(c"/usr/local/partita/gpu", format!("/{}/tenant", parts.len()).as_bytes())?
                }
                _ => {
                    let link = format!("/{}{}", partita_ledger::GPU_LINK_PREFIX, parts.len());
                    path(first, link.as_bytes())?
                }
            };
            if !is_there(&directory) {
                break;
            }
            parts.push(Part::open(directory)?);
        }
        Ok(Self(parts))
    }

    /// The tenant on each of these GPUs, with a slot of this process, and their compute capability;
    /// and its accounts on its other GPUs.
    fn of(mut self, uuids: &[[u8; 16]]) -> Result<(Vec<Claim>, u32, Vec<UsageView>), String> {
        let mut gpus = Vec::new();
        let mut compute_capability = None;
        for (uuid, index) in uuids.iter().zip(0..) {
            let Some(at) = self.0.iter().position(|part| part.limits.gpu_uuid == *uuid) else {
                return Err(format!(
                    "this program sees GPU {index} ({}), which is not its tenant's; CUDA_VISIBLE_DEVICES may \
                     name GPUs of `partita run --gpu` only",
                    CUuuid { bytes: *uuid }
                ));
            };
            let part = self.0.swap_remove(at);
            if *compute_capability.get_or_insert(part.limits.device_class) != part.limits.device_class {
                return Err(String::from(
                    "the tenant's GPUs are of different kinds; give the program one of them",
                ));
            }
            gpus.push(part.claim(index)?);
        }
        let compute_capability =
            compute_capability.ok_or_else(|| String::from("this program sees no GPU; its tenant has one"))?;
        let unseen =
            self.0.into_iter().map(|part| part.view().map(|(_, usage)| usage)).collect::<Result<_, _>>()?;
        Ok((gpus, compute_capability, unseen))
    }
}

/// Whether something of that name is there, a link that leads nowhere included.
fn is_there(path: &CStr) -> bool {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a valid path, and room for what the call writes.
    unsafe { libc::lstat(path.as_ptr(), status.as_mut_ptr()) == 0 }
}

fn ledger_directory() -> Result<CString, String> {
    let none = || {
        String::from("PARTITA_LEDGER is empty or too long for a path; start the program with `partita run`")
    };
    origin::ledger_directory().map(CString::from).ok_or_else(none)
}
