//! The work on one device: what it has, what is wanted, and the writes between.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use partita_core::Count;
use partita_core::vf::{
    Binding, Board, Form, Layout, Place, Policy, Refusal, SchedulerState, Step, Vgpu, VgpuType, of_ratio,
    plan, resolve, steps,
};

use super::device::{DEVICES, Device};
use super::journal;
use super::meaning::meaning;
use super::nvml::{Host, Known};
use super::report::{FunctionRow, Hostdev, VfChange, VfReport, VfStep, VfWrite, VgpuRow, VgpuTypeRow};
use super::sysfs::Sysfs;
use super::target::{VfTarget, VfTime};
use super::users::{holders, users};
use super::vendor::{Vendor, Write};
use super::which;
use crate::journal::Journal;

/// A device at this time.
pub(super) struct Here<'a> {
    sysfs: &'a dyn Sysfs,
    host: &'a dyn Host,
    /// What NVML knows.
    known: Known,
    device: Device,
    vendor: Box<dyn Vendor>,
    types: Vec<VgpuType>,
    layout: Layout,
    /// Who has which file of VFIO; looked up at the first question.
    holders: OnceCell<BTreeMap<PathBuf, Vec<u32>>>,
}

impl<'a> Here<'a> {
    pub fn read(sysfs: &'a dyn Sysfs, host: &'a dyn Host, address: &str) -> Result<Self, String> {
        let shown = |error: io::Error| format!("{address}: {error}");
        let device = Device::read(sysfs, address).map_err(shown)?;
        let vendor = which::of(sysfs, &device);
        let types = vendor.types(sysfs, &device).map_err(shown)?;
        let known = host.known()?;
        let layout = Layout {
            functions: u16::try_from(device.functions.len()).map_err(|error| error.to_string())?,
            bindings: device.bindings(),
            vgpus: vendor.vgpus(sysfs, &device).map_err(shown)?,
            is_mixed: known.is_mixed,
            scheduler: known.scheduler,
        };
        Ok(Self { host, known, sysfs, device, vendor, types, layout, holders: OnceCell::new() })
    }

    pub fn report(&self, is_interrupted: bool) -> VfReport {
        let functions = (0..).zip(&self.device.functions).map(|(at, function)| FunctionRow {
            function: at,
            address: function.address.clone(),
            driver: function.driver.clone(),
            driver_override: function.forced.clone(),
            users: self.users_of_function(at),
        });
        let type_row = |one: &VgpuType| VgpuTypeRow {
            id: one.id,
            name: one.name.clone(),
            memory_bytes: one.memory_mib << 20,
        };
        let vgpu_row = |vgpu: &Vgpu| VgpuRow {
            name: self.name(vgpu),
            kind: vgpu.kind,
            type_name: self.type_name(vgpu.kind),
            on: self.parent(vgpu.place).to_owned(),
            users: self.users_of(vgpu),
        };
        VfReport {
            device: self.device.address.clone(),
            id: format!("{:04x}:{:04x}", self.device.vendor, self.device.id),
            way: self.vendor.words().to_owned(),
            is_nvidia: self.vendor.form() != Form::Plain,
            driver: self.device.driver.clone(),
            functions_max: self.device.functions_max,
            functions: functions.collect(),
            types: self.types.iter().map(type_row).collect(),
            vgpus: self.layout.vgpus.iter().map(vgpu_row).collect(),
            remedy: self.enabling(),
            is_interrupted,
        }
    }

    /// What enables the functions, if the vendor's program must and has not.
    fn enabling(&self) -> Option<String> {
        let enabler = self.vendor.enabler(&self.device).filter(|_| self.layout.functions == 0)?;
        Some(format!("an administrator enables the functions with `{enabler}`"))
    }

    fn parent(&self, place: Place) -> &str {
        match place {
            Place::Function(at) => {
                self.device.functions.get(usize::from(at)).map_or("?", |function| &function.address)
            }
            Place::Device => &self.device.address,
        }
    }

    fn name(&self, vgpu: &Vgpu) -> String {
        if vgpu.uuid.is_empty() { self.parent(vgpu.place).to_owned() } else { vgpu.uuid.clone() }
    }

    fn type_name(&self, id: u32) -> String {
        let found = self.known.types.iter().chain(&self.types).find(|one| one.id == id);
        found.map_or_else(|| format!("type {id}"), |one| one.short().to_owned())
    }

    fn users_of_function(&self, at: u16) -> Vec<u32> {
        self.users_at(&format!("{DEVICES}/{}", self.parent(Place::Function(at))))
    }

    fn users_of(&self, vgpu: &Vgpu) -> Vec<u32> {
        match (vgpu.uuid.is_empty(), vgpu.place) {
            (true, Place::Function(at)) => self.users_of_function(at),
            _ => self.users_at(&format!("sys/bus/mdev/devices/{}", vgpu.uuid)),
        }
    }

    fn users_at(&self, directory: &str) -> Vec<u32> {
        users(self.sysfs, self.holders.get_or_init(|| holders(self.sysfs)), directory)
    }

    /// The layout of a target.
    pub fn wanted(&self, target: &VfTarget, time: VfTime, before: Option<Layout>) -> Result<Layout, String> {
        let layout = self.parts(target, before)?;
        let is_fixed = match time.policy {
            Some(policy) => policy == Policy::FixedShare,
            None => layout.scheduler.is_some_and(|state| state.policy == Policy::FixedShare),
        };
        let is_making = matches!(target, VfTarget::Vgpus(_) | VfTarget::Ratio(_));
        if is_making && is_fixed && layout.is_mixed == Some(true) {
            return Err("NVIDIA's driver has no fixed share while vGPUs of several sizes are allowed, which ends \
                        with the last vGPU; give --scheduler equal or best-effort, or run `partita vf destroy \
                        --all` first"
                .to_owned());
        }
        if time == VfTime::default() {
            return Ok(layout);
        }
        let now = self.layout.scheduler.ok_or(
            "the scheduler cannot be set here; it takes NVIDIA's vGPU driver, and no --scheduler or \
             --time-slice",
        )?;
        let policy = time.policy.unwrap_or(now.policy);
        let kept = (policy == now.policy).then_some(now);
        let scheduler = SchedulerState {
            policy,
            slice_ns: time.slice_ns.unwrap_or(kept.map_or(0, |state| state.slice_ns)),
            averaging: kept.and_then(|state| state.averaging).filter(|_| time.slice_ns.is_none()),
        };
        Ok(Layout { scheduler: Some(scheduler), ..layout })
    }

    fn parts(&self, target: &VfTarget, before: Option<Layout>) -> Result<Layout, String> {
        match target {
            VfTarget::Ratio(ratio) => {
                let types = if self.known.types.is_empty() { &self.types } else { &self.known.types };
                let found = of_ratio(types, ratio)
                    .ok_or("no types of vGPUs stand in this ratio; name types with --want")?;
                self.with_vgpus(&found.iter().map(u32::to_string).collect::<Vec<_>>())
            }
            VfTarget::Functions(count) => self.with_functions(*count),
            VfTarget::Vgpus(names) => self.with_vgpus(names),
            VfTarget::Without(names) => self.without(names),
            VfTarget::Empty => Ok(Layout {
                functions: if self.vendor.form() == Form::Plain { 0 } else { self.layout.functions },
                bindings: BTreeMap::new(),
                vgpus: Vec::new(),
                ..self.layout.clone()
            }),
            VfTarget::Bound(names) => self.bound(names, true),
            VfTarget::Released(names) => self.bound(names, false),
            VfTarget::Before => {
                before.ok_or_else(|| "no change was interrupted, so there is nothing to restore".to_owned())
            }
        }
    }

    fn with_functions(&self, count: u16) -> Result<Layout, String> {
        if let Some(enabler) = self.vendor.enabler(&self.device) {
            return Err(format!(
                "NVIDIA's driver enables its functions by `{enabler}` alone; name vGPUs with --want"
            ));
        }
        if self.vendor.form() == Form::MediatedDevice {
            return Err("it has no functions; name vGPUs with --want".to_owned());
        }
        let max = self.device.functions_max;
        if count > max {
            return Err(format!("{count} functions are too many; ask for at most {max}"));
        }
        if count == self.layout.functions {
            return Ok(self.layout.clone());
        }
        Ok(Layout { functions: count, ..Layout::default() })
    }

    fn with_vgpus(&self, names: &[String]) -> Result<Layout, String> {
        if self.vendor.form() == Form::Plain {
            return Err("its functions have no types; say how many with --count".to_owned());
        }
        if let Some(remedy) = self.enabling() {
            return Err(format!("no functions are enabled; {remedy}"));
        }
        // The driver lists no type that is used up: such a one has its number alone, and can stay.
        let is_whole = !self.known.types.is_empty();
        let mut types = if is_whole { self.known.types.clone() } else { self.types.clone() };
        if !is_whole && self.vendor.form() == Form::Functions && !self.layout.vgpus.is_empty() {
            // What is left of the board says nothing of the whole.
            types.iter_mut().for_each(|one| one.memory_mib = 0);
        }
        for vgpu in &self.layout.vgpus {
            if types.iter().all(|one| one.id != vgpu.kind) {
                types.push(VgpuType { id: vgpu.kind, name: vgpu.kind.to_string(), memory_mib: 0 });
            }
        }
        let wanted: Vec<u32> = names
            .iter()
            .map(|name| resolve(&types, name).map(|one| one.id))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        let in_use: Vec<Vgpu> =
            self.layout.vgpus.iter().filter(|vgpu| !self.users_of(vgpu).is_empty()).cloned().collect();
        let can_mix = self.layout.is_mixed.is_some();
        let board = Board { form: self.vendor.form(), types: &types, can_mix };
        let mut layout =
            plan(&board, &self.layout, &wanted, &in_use).map_err(|refusal| self.refused(&refusal, names))?;
        if self.vendor.form() != Form::Functions {
            for vgpu in layout.vgpus.iter_mut().filter(|vgpu| vgpu.uuid.is_empty()) {
                vgpu.uuid = new_uuid().map_err(|error| format!("a UUID: {error}"))?;
            }
            layout.vgpus.sort();
        }
        Ok(layout)
    }

    fn refused(&self, refusal: &Refusal, names: &[String]) -> String {
        match refusal {
            Refusal::TooMany => format!(
                "{} vGPUs do not fit on {}; ask for fewer",
                names.len(),
                Count(u32::from(self.layout.functions), "function")
            ),
            Refusal::Memory { wanted_mib, board_mib, fits } => format!(
                "{} need {} GiB, and the GPU has {} GiB for vGPUs; {} would fit",
                names.join(","),
                wanted_mib >> 10,
                board_mib >> 10,
                if *fits == 0 { "none".to_owned() } else { names[..*fits].join(",") }
            ),
            Refusal::Sizes => "vGPUs of several sizes cannot be together here; ask for one size".to_owned(),
            Refusal::InUse(vgpus) => self.in_use(&vgpus.iter().map(|one| self.name(one)).collect::<Vec<_>>()),
        }
    }

    fn in_use(&self, names: &[String]) -> String {
        format!(
            "virtual machines hold what would have to go: {}; end them, or ask for what leaves these in \
             place",
            names.join(", ")
        )
    }

    fn without(&self, names: &[String]) -> Result<Layout, String> {
        let mut layout = self.layout.clone();
        for name in names {
            let at = layout.vgpus.iter().position(|vgpu| self.name(vgpu).eq_ignore_ascii_case(name));
            let Some(at) = at else {
                let is_function = self.device.functions.iter().any(|one| one.address == *name);
                let known: Vec<String> = self.layout.vgpus.iter().map(|one| self.name(one)).collect();
                return Err(match (is_function, self.vendor.form()) {
                    (true, Form::Plain) => format!(
                        "{name}: SR-IOV disables functions only all together; use --all, or \
                         `partita vf create --count` for another number"
                    ),
                    _ if known.is_empty() => format!("there is no vGPU {name}; there are none"),
                    _ => format!("there is no vGPU {name}; there are {}", known.join(", ")),
                });
            };
            layout.vgpus.remove(at);
        }
        Ok(layout)
    }

    fn bound(&self, names: &[String], is_bound: bool) -> Result<Layout, String> {
        let mut layout = self.layout.clone();
        for name in names {
            if self.layout.vgpus.iter().any(|vgpu| vgpu.uuid.eq_ignore_ascii_case(name)) {
                continue;
            }
            let found = (0..).zip(&self.device.functions).find(|(_, one)| one.address == *name);
            let Some((at, _)) = found else {
                return Err(format!("there is no function or vGPU {name}; `partita vf list` shows them"));
            };
            match self.vendor.driver_for_machines() {
                Some(driver) if is_bound => {
                    layout.bindings.insert(at, Binding { driver: driver.to_owned(), is_bound: true });
                }
                Some(_) => drop(layout.bindings.remove(&at)),
                None if self.layout.vgpus.iter().all(|vgpu| vgpu.place != Place::Function(at)) => {
                    return Err(format!("{name} has no vGPU; create one with `partita vf create --want`"));
                }
                // NVIDIA's own driver gives it to virtual machines.
                None => {}
            }
        }
        Ok(layout)
    }

    /// Refuses steps that take something from a virtual machine.
    pub fn check(&self, steps: &[Step]) -> Result<(), String> {
        let mut busy = Vec::new();
        for step in steps {
            match step {
                Step::Remove(vgpu) if !self.users_of(vgpu).is_empty() => busy.push(self.name(vgpu)),
                Step::Functions(0) => {
                    let used =
                        (0..self.layout.functions).filter(|at| !self.users_of_function(*at).is_empty());
                    busy.extend(used.map(|at| self.parent(Place::Function(at)).to_owned()));
                }
                Step::Release { function } | Step::Bind { function, .. }
                    if !self.users_of_function(*function).is_empty() =>
                {
                    busy.push(self.parent(Place::Function(*function)).to_owned());
                }
                _ => {}
            }
        }
        busy.sort();
        busy.dedup();
        if busy.is_empty() { Ok(()) } else { Err(self.in_use(&busy)) }
    }

    /// The change to a layout, if nothing in use stands in its way.
    pub fn steps_to(&self, wanted: &Layout) -> Result<VfChange, String> {
        let steps = steps(&self.layout, wanted);
        self.check(&steps)?;
        Ok(self.change(&steps))
    }

    fn writes(&self, step: &Step) -> Vec<Write> {
        let at_function =
            |at: u16, name: &str| format!("{DEVICES}/{}/virtfn{at}/{name}", self.device.address);
        let probe =
            |at: u16| Write::new("sys/bus/pci/drivers_probe".to_owned(), self.parent(Place::Function(at)));
        let unbind = |at: u16| {
            let driver = self.device.functions.get(usize::from(at))?.driver.as_ref()?;
            let path = format!("sys/bus/pci/drivers/{driver}/unbind");
            Some(Write::new(path, self.parent(Place::Function(at))))
        };
        match step {
            Step::Remove(vgpu) => vec![self.vendor.remove(&self.device, vgpu)],
            Step::Create(vgpu) => vec![self.vendor.create(&self.device, vgpu)],
            Step::Functions(count) => {
                let path = format!("{DEVICES}/{}/sriov_numvfs", self.device.address);
                vec![Write::new(path, &count.to_string())]
            }
            Step::Bind { function, binding } => {
                let mut writes = vec![Write::new(at_function(*function, "driver_override"), &binding.driver)];
                if binding.is_bound {
                    writes.extend(unbind(*function));
                    writes.push(probe(*function));
                }
                writes
            }
            // The override goes after the driver: interrupted in between, it still shows.
            Step::Release { function } => {
                let mut writes: Vec<Write> = unbind(*function).into_iter().collect();
                writes.push(Write::new(at_function(*function, "driver_override"), "\n"));
                writes.push(probe(*function));
                writes
            }
            Step::Mixed(_) | Step::Schedule(_) => Vec::new(),
        }
    }

    fn words(&self, step: &Step) -> String {
        match step {
            Step::Remove(vgpu) => format!("remove vGPU {} ({})", self.name(vgpu), self.type_name(vgpu.kind)),
            Step::Create(vgpu) => {
                let uuid = if vgpu.uuid.is_empty() { String::new() } else { format!(" as {}", vgpu.uuid) };
                format!("create vGPU {} on {}{uuid}", self.type_name(vgpu.kind), self.parent(vgpu.place))
            }
            Step::Functions(0) => "disable all functions".to_owned(),
            Step::Functions(count) => format!("enable {}", Count(u32::from(*count), "function")),
            Step::Bind { function, binding } => {
                format!("bind {} to {}", self.parent(Place::Function(*function)), binding.driver)
            }
            Step::Release { function } => {
                format!("give {} back to its driver", self.parent(Place::Function(*function)))
            }
            Step::Mixed(true) => "allow vGPUs of several sizes (NVML)".to_owned(),
            Step::Mixed(false) => "allow vGPUs of one size alone (NVML)".to_owned(),
            Step::Schedule(state) => format!("set the scheduler: {state} (NVML)"),
        }
    }

    /// A change to this layout, in words.
    pub fn change(&self, steps: &[Step]) -> VfChange {
        let row = |step: &Step| VfStep {
            what: self.words(step),
            writes: self
                .writes(step)
                .into_iter()
                .map(|Write { path, value }| VfWrite {
                    path: format!("/{path}"),
                    value: value.trim_end().to_owned(),
                })
                .collect(),
        };
        VfChange {
            device: self.device.address.clone(),
            steps: steps.iter().map(row).collect(),
            is_applied: false,
            is_continued: false,
            hostdevs: self.hostdevs(),
        }
    }

    /// How virtual machines get what there is.
    pub fn hostdevs(&self) -> Vec<Hostdev> {
        let of_vgpu = |vgpu: &Vgpu| match vgpu.uuid.is_empty() {
            true => Hostdev::of_function(self.parent(vgpu.place)),
            false => Some(Hostdev::of_uuid(&vgpu.uuid)),
        };
        let bound = self.layout.bindings.iter().filter(|(_, one)| one.is_bound && one.driver == "vfio-pci");
        let functions = bound.filter_map(|(at, _)| Hostdev::of_function(self.parent(Place::Function(*at))));
        self.layout.vgpus.iter().filter_map(of_vgpu).chain(functions).collect()
    }
}

fn new_uuid() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// Does the steps to a layout, each with what the device is before it, and checks the result.
fn go(sysfs: &dyn Sysfs, host: &dyn Host, address: &str, wanted: &Layout) -> Result<(), String> {
    let first = Here::read(sysfs, host, address)?;
    for step in steps(&first.layout, wanted) {
        let here = Here::read(sysfs, host, address)?;
        let told = match &step {
            Step::Mixed(is_on) => here.host.set_mixed(*is_on),
            Step::Schedule(state) => here.host.schedule(state),
            _ => Ok(()),
        };
        told.map_err(|reason| format!("{}: {reason}", here.words(&step)))?;
        for write in here.writes(&step) {
            sysfs.write(&write.path, &write.value).map_err(|error| {
                format!(
                    "{}: writing {:?} to /{}: {}",
                    here.words(&step),
                    write.value.trim_end(),
                    write.path,
                    meaning(&write, &error)
                )
            })?;
        }
    }
    let now = Here::read(sysfs, host, address)?;
    probe_orphans(&now)?;
    // The driver reports the length of its default slice.
    let is_told =
        now.layout.scheduler.map(|state| state.policy) == wanted.scheduler.map(|state| state.policy);
    if is_told && (Layout { scheduler: wanted.scheduler, ..now.layout }) == *wanted {
        return Ok(());
    }
    Err("after all steps the device does not have what was planned".to_owned())
}

/// Gives functions without a driver to the one that the kernel finds: an interruption can leave
/// them so.
fn probe_orphans(here: &Here<'_>) -> Result<(), String> {
    let path = format!("{DEVICES}/{}/sriov_drivers_autoprobe", here.device.address);
    if here.sysfs.read(&path).is_ok_and(|value| value == "0") {
        return Ok(());
    }
    for function in here.device.functions.iter().filter(|one| one.driver.is_none() && one.forced.is_none()) {
        let probed = here.sysfs.write("sys/bus/pci/drivers_probe", &function.address);
        probed.map_err(|error| format!("{}: no driver takes it: {error}", function.address))?;
    }
    Ok(())
}

/// Does a change: the journal first, then the steps, and if one fails what was before.
pub(super) fn apply(
    sysfs: &dyn Sysfs,
    host: &dyn Host,
    journal: &Journal<journal::Before>,
    address: &str,
    target: &VfTarget,
    time: VfTime,
) -> Result<VfChange, String> {
    let here = Here::read(sysfs, host, address)?;
    let interrupted = journal.before()?.map(Layout::from);
    let is_continued = interrupted.is_some();
    let wanted = here.wanted(target, time, interrupted.clone())?;
    let before = interrupted.unwrap_or_else(|| here.layout.clone());
    let steps = steps(&here.layout, &wanted);
    here.check(&steps)?;
    let mut change = here.change(&steps);
    if !steps.is_empty() || is_continued {
        journal.begin(journal::Before::from(&before))?;
        if let Err(reason) = go(sysfs, host, address, &wanted) {
            return Err(match go(sysfs, host, address, &before) {
                Ok(()) => {
                    journal.end()?;
                    format!("{reason}; what was before is in place again")
                }
                Err(failed) => format!(
                    "{reason}; the way back failed too: {failed}; `partita vf create --restore` tries again"
                ),
            });
        }
    }
    journal.end()?;
    change.hostdevs = Here::read(sysfs, host, address)?.hostdevs();
    Ok(VfChange { is_applied: true, is_continued, ..change })
}
