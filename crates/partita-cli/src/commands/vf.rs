//! `partita vf`.

use std::process::ExitCode;

use partita::install::Install;
use partita::registry::Registry;
use partita::vf::{self, Hostdev, VfChange, VfReport, VfTarget, VfTime};
use partita_console::{Failure, Table, print, print_json};

use crate::args::{Vf, VfOutput, VfWanted};
use crate::commands::bytes;

/// Shows and changes virtual functions and vGPUs.
pub fn vf(arguments: &Vf) -> Result<ExitCode, Failure> {
    let registry = Registry::open()?;
    match arguments {
        Vf::List(arguments) => list(&registry, arguments.json)?,
        Vf::Plan(arguments) => {
            let output = VfOutput { dry_run: true, json: arguments.json };
            change(
                &registry,
                arguments.device.device.as_deref(),
                &target(&arguments.wanted)?,
                time(&arguments.wanted),
                &output,
            )?;
        }
        Vf::Create(arguments) => {
            let target = if arguments.restore { VfTarget::Before } else { target(&arguments.wanted)? };
            change(
                &registry,
                arguments.device.device.as_deref(),
                &target,
                time(&arguments.wanted),
                &arguments.output,
            )?;
        }
        Vf::Assign(arguments) => {
            let names = arguments.names.clone();
            let target = match arguments.release {
                true => VfTarget::Released(names),
                false => VfTarget::Bound(names),
            };
            let device = arguments.device.device.as_deref();
            let made = made(&registry, device, &target, VfTime::default(), &arguments.output)?;
            let is_meant = |one: &Hostdev| arguments.names.contains(&one.name);
            let hostdevs = made.hostdevs.iter().filter(|one| is_meant(one)).cloned().collect();
            show(&VfChange { hostdevs, ..made }, arguments.output.json)?;
        }
        Vf::Destroy(arguments) => {
            let target = match arguments.all {
                true => VfTarget::Empty,
                false => VfTarget::Without(arguments.names.clone()),
            };
            change(
                &registry,
                arguments.device.device.as_deref(),
                &target,
                VfTime::default(),
                &arguments.output,
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn target(wanted: &VfWanted) -> Result<VfTarget, Failure> {
    match (wanted.count, &wanted.want, &wanted.ratio) {
        (Some(count), ..) => Ok(VfTarget::Functions(count)),
        (None, Some(names), _) => Ok(VfTarget::Vgpus(names.clone())),
        (None, None, Some(ratio)) => Ok(VfTarget::Ratio(ratio.clone())),
        (None, None, None) => Err(Failure::Told("name what you want with --count or --want".to_owned())),
    }
}

fn time(wanted: &VfWanted) -> VfTime {
    VfTime { policy: wanted.scheduler, slice_ns: wanted.time_slice.map(|us| us * 1000) }
}

fn made(
    registry: &Registry,
    device: Option<&str>,
    target: &VfTarget,
    time: VfTime,
    output: &VfOutput,
) -> Result<VfChange, Failure> {
    let install = Install::of_this_program()?;
    Ok(match output.dry_run {
        true => vf::plan(&install, registry, device, target, time)?,
        false => vf::apply(&install, registry, device, target, time)?,
    })
}

fn change(
    registry: &Registry,
    device: Option<&str>,
    target: &VfTarget,
    time: VfTime,
    output: &VfOutput,
) -> Result<(), Failure> {
    show(&made(registry, device, target, time, output)?, output.json)
}

fn show(change: &VfChange, json: bool) -> Result<(), Failure> {
    if json { print_json(change) } else { print(&change_text(change)) }
}

fn list(registry: &Registry, json: bool) -> Result<(), Failure> {
    let reports = vf::list(&Install::of_this_program()?, registry)?;
    if json {
        return print_json(&reports);
    }
    if reports.is_empty() {
        return print(
            "no accelerator of this machine has SR-IOV or vGPUs: `partita compare` shows what can be had\n",
        );
    }
    print(&reports.iter().map(report_text).collect::<Vec<_>>().join("\n"))
}

fn report_text(report: &VfReport) -> String {
    let driver = report.driver.as_deref().unwrap_or("none");
    let mut text = format!(
        "{} ({}): {}, driver {driver}, {} of {} functions enabled\n",
        report.device,
        report.id,
        report.way,
        report.functions.len(),
        report.functions_max
    );
    if let Some(remedy) = &report.remedy {
        text.push_str(&format!("{remedy}\n"));
    }
    if report.is_interrupted {
        text.push_str(
            "a change was interrupted: repeat the command, or go back with `partita vf create --restore`\n",
        );
    }
    if !report.types.is_empty() {
        let mut table = Table::new(&["TYPE", ">ID", ">MEMORY"]);
        for one in &report.types {
            let memory = if one.memory_bytes == 0 { "-".to_owned() } else { bytes(one.memory_bytes) };
            table.row([one.name.clone(), one.id.to_string(), memory]);
        }
        text.push_str(&table.render());
    }
    let pids = |users: &[u32]| users.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    if !report.functions.is_empty() {
        let mut table = Table::new(&[">FUNCTION", "ADDRESS", "DRIVER", "VGPU", "USED BY"]);
        for function in &report.functions {
            let vgpu = report.vgpus.iter().find(|vgpu| vgpu.on == function.address);
            table.row([
                function.function.to_string(),
                function.address.clone(),
                function.driver.clone().unwrap_or_else(|| "none".to_owned()),
                vgpu.map_or_else(|| "-".to_owned(), |vgpu| vgpu.type_name.clone()),
                pids(&function.users),
            ]);
        }
        text.push_str(&table.render());
    }
    let named: Vec<_> = report.vgpus.iter().filter(|vgpu| vgpu.name != vgpu.on).collect();
    if !named.is_empty() {
        let mut table = Table::new(&["VGPU", "TYPE", "ON", "USED BY"]);
        for vgpu in named {
            table.row([vgpu.name.clone(), vgpu.type_name.clone(), vgpu.on.clone(), pids(&vgpu.users)]);
        }
        text.push_str(&table.render());
    }
    text
}

fn change_text(change: &VfChange) -> String {
    let mut text = format!("{}:\n", change.device);
    for step in &change.steps {
        text.push_str(&format!("  {}\n", step.what));
        for write in &step.writes {
            text.push_str(&format!("    write {:?} to {}\n", write.value, write.path));
        }
    }
    for hostdev in change.hostdevs.iter().filter(|_| change.is_applied) {
        text.push_str(&format!("{}\n  {}\n  {}\n", hostdev.name, hostdev.libvirt, hostdev.qemu));
    }
    text.push_str(match (change.steps.is_empty(), change.is_applied) {
        (true, _) => "nothing to change\n",
        (false, false) => "nothing was changed: this is a plan\n",
        (false, true) if change.is_continued => "done; a change that was interrupted is settled by this\n",
        (false, true) => "done\n",
    });
    text
}
