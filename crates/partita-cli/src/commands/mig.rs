//! `partita mig`.

use std::process::ExitCode;

use partita::gpu::Gpu;
use partita::gpus::{self, Selectors};
use partita::install::Install;
use partita::mig::{self, InstanceRow, MigChange, MigConfig, MigReport, Target};
use partita::registry::Registry;
use partita_console::{Failure, GpusOption, Table, print, print_json, select_several, selectors, tell};

use crate::args::{Mig, MigApply, MigChangeArgs, MigDestroy, MigShow, MigWanted};
use crate::commands::bytes;

/// Shows and changes the MIG instances of GPUs.
pub fn mig(arguments: &Mig) -> Result<ExitCode, Failure> {
    match arguments {
        Mig::Show(arguments) => show(arguments)?,
        Mig::Plan(arguments) => plan(arguments)?,
        Mig::Apply(arguments) => apply(arguments)?,
        Mig::Destroy(arguments) => destroy(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(arguments: &MigShow) -> Result<(), Failure> {
    let install = Install::of_this_program()?;
    let registry = Registry::open()?;
    let gpus = select_several(&install, &arguments.gpu)?;
    let reports =
        gpus.iter().map(|gpu| mig::show(&install, &registry, gpu)).collect::<Result<Vec<_>, _>>()?;
    if arguments.json {
        return print_json(&reports);
    }
    print(&reports.iter().map(report_text).collect::<Vec<_>>().join("\n"))
}

fn report_text(report: &MigReport) -> String {
    let mut text = format!("{}: MIG is {}\n", report.gpu, report.mode);
    if let Some(remedy) = &report.remedy {
        text.push_str(&format!("{remedy}\n"));
    }
    if report.is_interrupted {
        text.push_str(
            "a change was interrupted: repeat `partita mig apply`, or go back with `partita mig apply --restore`\n",
        );
    }
    if !report.profiles.is_empty() {
        let mut table = Table::new(&["PROFILE", ">ID", ">SLICES", ">SMS", ">MEMORY", ">MOST", "PLACEMENTS"]);
        for profile in &report.profiles {
            table.row([
                profile.name.clone(),
                profile.id.to_string(),
                profile.slices.to_string(),
                profile.sms.to_string(),
                bytes(profile.memory_bytes),
                profile.count_max.to_string(),
                match profile.placements.is_empty() {
                    true => "(for root)".to_owned(),
                    false => profile.placements.join(" "),
                },
            ]);
        }
        text.push_str(&table.render());
    }
    match &report.instances {
        None => text.push_str("the instances: NVML lists them for root only; run the command as root\n"),
        Some(instances) if instances.is_empty() => text.push_str("no instances\n"),
        Some(instances) => text.push_str(&instances_text(instances)),
    }
    text
}

fn instances_text(instances: &[InstanceRow]) -> String {
    let mut table = Table::new(&[">INSTANCE", "PROFILE", "PLACEMENT", "DEVICE", "USED BY"]);
    for instance in instances {
        let name = [instance.gpu_instance.to_string(), instance.profile.clone(), instance.placement.clone()];
        if instance.compute_instances.is_empty() {
            let [number, profile, placement] = name.clone();
            table.row([
                number,
                profile,
                placement,
                "none: it has no compute instance".to_owned(),
                String::new(),
            ]);
        }
        for compute in &instance.compute_instances {
            let [number, profile, placement] = name.clone();
            let mut users: Vec<String> = compute.processes.iter().map(u32::to_string).collect();
            if compute.is_taken && users.is_empty() {
                users.push("a `partita run --mig`".to_owned());
            }
            table.row([number, profile, placement, compute.uuid.clone(), users.join(" ")]);
        }
    }
    table.render()
}

/// The GPUs of a change, each with what it is to have.
struct Wish {
    install: Install,
    registry: Registry,
    targets: Vec<(Gpu, Target)>,
}

impl Wish {
    fn new(option: &GpusOption, target: &Target) -> Result<Self, Failure> {
        let install = Install::of_this_program()?;
        let targets = select_several(&install, option)?;
        let targets = targets.into_iter().map(|gpu| (gpu, target.clone())).collect();
        Ok(Self { install, registry: Registry::open()?, targets })
    }

    fn read(option: &GpusOption, wanted: &MigWanted) -> Result<Self, Failure> {
        match (&wanted.want, &wanted.config_file, &wanted.selected) {
            (Some(names), ..) => Self::new(option, &Target::Exactly(names.clone())),
            (None, Some(file), Some(name)) => Self::of_config(option, file, name),
            _ => Err(Failure::Told("name what you want with --want, or a --config-file".to_owned())),
        }
    }

    fn of_config(option: &GpusOption, file: &str, name: &str) -> Result<Self, Failure> {
        let config = MigConfig::read(file)?;
        let entries = config.select(name)?;
        let install = Install::of_this_program()?;
        let selectors = selectors(option.gpu.as_deref())?.unwrap_or(Selectors::All(None));
        let selected = gpus::select(&install, Some(&selectors))?;
        selected.notice.iter().for_each(|notice| tell(notice));
        let mut targets: Vec<(Gpu, Target)> = Vec::new();
        let mut has_matched = false;
        for entry in entries {
            let wanted = entry.wanted()?;
            for gpu in entry.gpus(&selected.gpus)? {
                has_matched = true;
                if targets.iter().any(|(other, _)| other.key() == gpu.key()) {
                    return Err(Failure::Told(format!(
                        "{file}: two entries of {name} are for {}; name each GPU once",
                        gpu.label()
                    )));
                }
                match &wanted {
                    Some(names) => targets.push((gpu.clone(), Target::Exactly(names.clone()))),
                    None if gpu.facts.mig_enabled != Some(true) => {}
                    None => {
                        return Err(Failure::Told(format!(
                            "MIG of {}: {name} wants it off, and it is on; an administrator destroys the \
                             instances with `partita mig destroy --all` and turns it off with \
                             `nvidia-smi -i {} -mig 0`",
                            gpu.label(),
                            gpu.facts.index
                        )));
                    }
                }
            }
        }
        if !has_matched {
            return Err(Failure::Told(format!(
                "{file}: no entry of {name} is for {}",
                gpus::labels(&selected.gpus)
            )));
        }
        Ok(Self { install, registry: Registry::open()?, targets })
    }

    fn plan(&self) -> Result<Vec<MigChange>, Failure> {
        let plan = |(gpu, target): &(Gpu, Target)| mig::plan(&self.install, &self.registry, gpu, target);
        Ok(self.targets.iter().map(plan).collect::<Result<_, _>>()?)
    }

    /// Changes all GPUs, after it is known that each can be changed.
    fn apply(&self, json: bool) -> Result<(), Failure> {
        if self.targets.len() > 1 {
            self.plan()?;
        }
        let mut changes = Vec::new();
        for (gpu, target) in &self.targets {
            let change = mig::apply(&self.install, &self.registry, gpu, target)?;
            if !json {
                print(&change_text(&change))?;
            }
            changes.push(change);
        }
        if json { print_json(&changes) } else { Ok(()) }
    }
}

fn plan(arguments: &MigChangeArgs) -> Result<(), Failure> {
    let changes = Wish::read(&arguments.gpu, &arguments.wanted)?.plan()?;
    if arguments.json {
        return print_json(&changes);
    }
    print(&changes.iter().map(change_text).collect::<String>())
}

fn apply(arguments: &MigApply) -> Result<(), Failure> {
    let wish = match arguments.restore {
        true => Wish::new(&arguments.gpu, &Target::Before)?,
        false => Wish::read(&arguments.gpu, &arguments.wanted)?,
    };
    wish.apply(arguments.json)
}

fn destroy(arguments: &MigDestroy) -> Result<(), Failure> {
    let target = match arguments.all {
        true => Target::Exactly(Vec::new()),
        false => Target::Without(arguments.instances.clone()),
    };
    Wish::new(&arguments.gpu, &target)?.apply(arguments.json)
}

fn change_text(change: &MigChange) -> String {
    let mut text = format!("{}:\n", change.gpu);
    if let Some(remedy) = &change.remedy {
        text.push_str(&format!("  first: {remedy}\n"));
    }
    for kept in &change.kept {
        text.push_str(&format!(
            "  keep GPU instance {} ({} at {})\n",
            kept.gpu_instance, kept.profile, kept.placement
        ));
    }
    for step in &change.steps {
        text.push_str(&format!("  {step}\n"));
    }
    text.push_str(match (change.steps.is_empty(), change.is_applied) {
        (true, _) => "nothing to change\n",
        (false, false) => "nothing was changed: this is a plan\n",
        (false, true) if change.is_continued => "done; a change that was interrupted is settled by this\n",
        (false, true) => "done\n",
    });
    text
}
