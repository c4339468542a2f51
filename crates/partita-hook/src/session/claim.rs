//! The tenant's ledger on one GPU: opened, looked at, or claimed for this process.

use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use core::ffi::CStr;

use partita_ledger::{
    ELASTIC_FILE_NAME, ElasticMap, FLAG_GATED, FLAG_LENDS, FLAG_TIMED, GATE_FILE_NAME, GateMap,
    LIMITS_FILE_NAME, Limits, LimitsMap, MECHANISM_MASK, MECHANISM_NONE, MECHANISM_PERSISTENT,
    TIME_FILE_NAME, TimeMap, USAGE_FILE_NAME, UsageMap, UsageView,
};

use crate::account::gpu::Gpu;
use crate::account::launch_mask::LaunchMask;
use crate::account::origin::{self, Origin};
use crate::account::presence::{self, Presence};
use crate::gate::lanes::Gate;
use crate::persistent::function;
use crate::sys::{clock, process};
use crate::time::meter::{Meter, NoMeter};
use crate::time::watch;

/// The tenant's ledger on one GPU.
pub struct Part {
    directory: CString,
    map: LimitsMap,
    /// Its limits when it was opened.
    pub limits: Limits,
}

/// This process's claim on its tenant on one GPU.
pub struct Claim {
    /// The account, with a slot of this process.
    pub gpu: Gpu,
    /// The gate, if the tenant has a priority.
    pub gate: Option<Gate>,
    /// The meter, if the tenant has a share of time.
    pub meter: Option<Meter>,
}

impl Part {
    /// Opens the ledger in a directory.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(directory: CString) -> Result<Self, String> {
        let map =
            LimitsMap::open_ro(&file(&directory, LIMITS_FILE_NAME)?).map_err(|error| format!("{error}"))?;
        let (_, limits) = map.load().map_err(|error| format!("{error}"))?;
        Ok(Self { directory, map, limits })
    }

    /// To look at.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn view(self) -> Result<(LimitsMap, UsageView), String> {
        let usage =
            UsageView::open(&file(&self.directory, USAGE_FILE_NAME)?).map_err(|error| format!("{error}"))?;
        Ok((self.map, usage))
    }

    /// Takes a slot of it for this process, which sees the GPU by that ordinal.
    ///
    /// # Errors
    /// Why its limits cannot be enforced.
    pub fn claim(self, index: u8) -> Result<Claim, String> {
        let mask = self.mask()?;
        let is_persistent = self.limits.mechanism == MECHANISM_PERSISTENT;
        if is_persistent && !function::is_told() {
            return Err(String::from(
                "libcuda exports no cuFuncGetParamInfo: persistent blocks need CUDA 12.4 or later; \
                 use --via mask",
            ));
        }
        let usage =
            UsageMap::open(&file(&self.directory, USAGE_FILE_NAME)?).map_err(|error| format!("{error}"))?;
        let slot = usage.claim(process::this_process()).map_err(|error| format!("{error}"))?;
        let gate = self.gate()?;
        let meter = self.meter(index)?;
        let presence = self.presence()?;
        Ok(Claim { gpu: Gpu { index, limits: self.map, slot, mask, is_persistent, presence }, gate, meter })
    }

    /// The masking data for the tenant's mechanism. An unknown mechanism is refused, and never
    /// treated as no mechanism.
    fn mask(&self) -> Result<Option<LaunchMask>, String> {
        match self.limits.mechanism {
            MECHANISM_NONE | MECHANISM_PERSISTENT => Ok(None),
            MECHANISM_MASK => LaunchMask::new(&self.limits)
                .map(Some)
                .map_err(|error| format!("this GPU's launches cannot be masked: {error}")),
            unknown => Err(format!(
                "the tenant's limits name mechanism {unknown}, which this library does not know; use the \
                 `partita` and libpartita.so of one release"
            )),
        }
    }

    /// The gate of the GPU, if the tenant was started with a priority.
    fn gate(&self) -> Result<Option<Gate>, String> {
        if self.limits.flags & FLAG_GATED == 0 {
            return Ok(None);
        }
        Self::check_clock()?;
        let page = GateMap::open(&self.gate_path()?).map_err(|error| format!("{error}"))?;
        let no_call = |name: &CStr| {
            format!("libcuda exports no {}: priorities need CUDA 11.7 or later", name.to_string_lossy())
        };
        Gate::new(page).map(Some).map_err(no_call)
    }

    /// The record of this process, if the tenant lends.
    fn presence(&self) -> Result<Option<Presence>, String> {
        if self.limits.flags & FLAG_LENDS == 0 {
            return Ok(None);
        }
        let path = path(&path(&self.directory, b"/../")?, ELASTIC_FILE_NAME.to_bytes())?;
        let map = ElasticMap::open(&path).map_err(|error| format!("{error}"))?;
        presence::begin_barriers();
        Presence::claim(map, self.map.epoch(), &self.limits).map_err(|error| format!("{error}"))
    }

    /// Refuses a container whose clock is not the machine's: its tenant's account and the gate hold
    /// times of that.
    fn check_clock() -> Result<(), String> {
        match is_container() && clock::is_shifted() {
            false => Ok(()),
            true => Err(String::from(
                "this container has a time namespace with a clock of its own, by which its tenant can have \
                 no priority and no share of time; start it without one",
            )),
        }
    }

    fn gate_path(&self) -> Result<CString, String> {
        let of_gpu = path(&self.directory, b"/../")?;
        path(&of_gpu, GATE_FILE_NAME.to_bytes())
    }

    /// The meter of the tenant's share of time, if it has one.
    fn meter(&self, index: u8) -> Result<Option<Meter>, String> {
        if self.limits.flags & FLAG_TIMED == 0 {
            return Ok(None);
        }
        Self::check_clock()?;
        let map =
            TimeMap::open(&file(&self.directory, TIME_FILE_NAME)?).map_err(|error| format!("{error}"))?;
        let turns = match self.limits.takes_turns() {
            true => match GateMap::open(&self.gate_path()?) {
                // Without `partita run`, the tenant may be alone in the directory, and does not
                // take turns.
                Err(error) if error.is_missing() && !is_container() => None,
                opened => Some(opened.map_err(|error| format!("{error}"))?),
            },
            false => None,
        };
        let meter = Meter::new(map, turns, self.directory.clone()).map_err(|why| match why {
            NoMeter::Call(name) => format!(
                "libcuda exports no {}: shares of time need CUDA 11.7 or later; run without --time and limit \
                 compute units with --sm",
                name.to_string_lossy()
            ),
            NoMeter::File(error) => format!("{error}"),
        })?;
        meter.prepare(index, &self.limits)?;
        watch::settle_seat(&meter, &self.limits, clock::now_ns());
        Ok(Some(meter))
    }
}

fn is_container() -> bool {
    origin::origin() == Origin::Container
}

/// The path of a name in a directory.
///
/// # Errors
/// If there is no such path.
pub fn path(directory: &CStr, rest: &[u8]) -> Result<CString, String> {
    CString::new([directory.to_bytes(), rest].concat())
        .map_err(|_| String::from("the tenant's directory has a zero byte in its name"))
}

fn file(directory: &CStr, name: &CStr) -> Result<CString, String> {
    path(directory, &[b"/", name.to_bytes()].concat())
}
