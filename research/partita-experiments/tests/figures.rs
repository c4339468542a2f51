//! Each figure's claim, on the model of the paper's device and of others.

use partita_experiments::experiment::{ALL, Experiment, Run, Verdict};
use partita_experiments::model;
use partita_sim::catalogue;

fn runs(experiment: &Experiment, device: &str) -> Vec<Run> {
    let spec = catalogue::device(device).unwrap();
    let scenarios = experiment.scenarios(&spec).unwrap().into_iter();
    scenarios
        .map(|scenario| {
            let record = model::run_scenario(&scenario, &spec, 0);
            let record = record.unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
            Run { scenario, record }
        })
        .collect()
}

fn check(device_of: impl Fn(&Experiment) -> String) {
    let mut told = String::new();
    for experiment in ALL {
        let device = device_of(experiment);
        let runs = runs(experiment, &device);
        let judgement = experiment.judge(&runs, &catalogue::device(&device).unwrap());
        assert!(!judgement.findings.is_empty(), "{} judges nothing", experiment.name);
        if let Verdict::Differs(reasons) = judgement.verdict() {
            told += &format!("{} on {device}: {reasons}\n", experiment.name);
        }
    }
    assert!(told.is_empty(), "{told}");
}

#[test]
fn the_model_of_the_papers_device_shows_what_the_paper_shows() {
    check(|experiment| experiment.header().unwrap().device);
}

#[test]
fn so_does_the_model_of_an_h200() {
    check(|_| "h200".to_owned());
}
