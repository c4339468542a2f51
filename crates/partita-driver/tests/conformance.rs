//! The conformance suite: what every mechanism promises on every device, in one set of cases.
//!
//! A mechanism and a device are a test; each runs every case in a child process of its own ([`cases`]), because a mechanism that breaks its
//! promise may hang or crash the driver. What cannot run is part of the promise: it is refused, by the mechanism's own judgement
//! ([`Mechanism::fits`](partita_driver::mechanism::Mechanism::fits)) or with the driver's error at the call, and never hangs. `PARTITA_TEST_GPU=real` runs the same cases on the machine's first GPU.

#[path = "conformance/bench.rs"]
mod bench;
#[path = "conformance/cases.rs"]
mod cases;
mod common;

use std::process::{Command, Output};

use common::Sim;

/// The variable that tells a child its mechanism.
const MECHANISM: &str = "PARTITA_TEST_MECHANISM";

/// What a mechanism says on a device that does not offer it.
const NOT_OFFERED: &str = "not offered: ";

fn is_real() -> bool {
    std::env::var_os("PARTITA_TEST_GPU").is_some_and(|value| value == "real")
}

/// Runs a child of this program on the machine's own GPU, without MPS.
fn on_real_gpu(mechanism: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["child_conforms", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(MECHANISM, mechanism)
        .env("CUDA_MPS_PIPE_DIRECTORY", "/dev/null/no-mps")
        .output()
        .unwrap()
}

/// What the child on this device said, line by line.
fn said(mechanism: &str, device: &str) -> Vec<String> {
    if device != "real" {
        let sim = Sim::new(&format!("{mechanism}-{device}"), device);
        return sim.child_says("child_conforms", &[(MECHANISM, mechanism.to_owned())]);
    }
    let output = on_real_gpu(mechanism);
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{mechanism}: {}\n{out}{err}", output.status);
    out.lines().filter_map(|line| line.split_once("says: ")).map(|(_, said)| said.to_owned()).collect()
}

/// Runs all cases of a mechanism on a device.
fn conforms(mechanism: &str, device: &str, is_offered: bool) {
    if is_real() != (device == "real") {
        return;
    }
    let said = said(mechanism, device);
    let refused = said.iter().find_map(|line| line.strip_prefix(NOT_OFFERED));
    if device == "real" {
        // Which mechanisms a GPU offers is its own affair.
        eprintln!("{mechanism}: {}", refused.unwrap_or("conforms"));
    } else {
        assert_eq!(refused.is_none(), is_offered, "{mechanism} on {device}: {said:?}");
    }
    if refused.is_none() {
        assert_eq!(said, cases::CASES.map(|(name, _)| name), "{mechanism} on {device}");
    }
}

/// One module a device, one test a mechanism in it. Behind a device stands what it does not offer: green contexts came with CUDA 12.4, and
/// some simulated drivers are older.
macro_rules! devices {
    ($($module:ident = $device:literal $(without $absent:ident)*;)*) => {
        $(mod $module {
            const ABSENT: &[&str] = &[$(stringify!($absent)),*];

            fn conforms(mechanism: &str) {
                super::conforms(mechanism, $device, !ABSENT.contains(&mechanism));
            }

            #[test]
            fn mask() {
                conforms("mask");
            }

            #[test]
            fn stream() {
                conforms("stream");
            }

            #[test]
            fn green() {
                conforms("green");
            }
        })*

        /// Every simulated device, and the real one.
        const DEVICES: &[&str] = &[$($device),*];
    };
}

devices! {
    h200 = "h200";
    a100 = "a100";
    gtx1060_3gb = "gtx1060-3gb" without green;
    gtx_680 = "gtx-680" without green;
    tesla_k40 = "tesla-k40" without green;
    gtx970 = "gtx970" without green;
    p100 = "p100" without green;
    titan_v = "titan-v" without green;
    xavier = "xavier" without green;
    rtx2060 = "rtx2060";
    rtx3070 = "rtx3070";
    rtx6000_ada = "rtx6000-ada";
    l40s = "l40s";
    h100 = "h100";
    h100_v3 = "h100-v3" without green;
    b200 = "b200";
    gb10 = "gb10";
    real = "real";
}

#[test]
fn no_device_of_the_catalogue_is_left_out() {
    for name in partita_sim::catalogue::NAMES {
        assert!(DEVICES.contains(&name), "add {name} to the suite");
    }
}

#[test]
#[ignore = "the tests run it in child processes"]
fn child_conforms() {
    let mechanism = std::env::var(MECHANISM).unwrap();
    let cuda = common::cuda();
    let gpu = partita_driver::Gpu::open(&cuda, 0).unwrap();
    match bench::with_mechanism(&gpu, &mechanism, |bench| {
        for (name, case) in cases::CASES {
            // The name of the case that fails stands before the panic's words.
            eprintln!("case: {name}");
            case(bench);
            common::say(name);
        }
    }) {
        Ok(()) => {}
        Err(reason) => common::say(format!("{NOT_OFFERED}{reason}")),
    }
}
