//! The conformance suite: what every mechanism promises on every device, in one set of cases.
//!
//! Each pair of a mechanism and a device is a test. It runs every case in a separate child process
//! ([`cases`]), because a mechanism that breaks its promise can hang or crash the driver. Refusals
//! are part of the promise: a launch that cannot run is refused, by the mechanism's own check
//! ([`Mechanism::fits`](partita_driver::mechanism::Mechanism::fits)) or by an error of the driver's
//! call, and never hangs. `PARTITA_TEST_GPU=real` runs the same cases on the machine's first GPU.

mod bench;
mod cases;

use crate::common;

use common::Sim;
use partita_testing::{ignored_test, is_for_long_runs, is_real};

/// The variable that names a child's mechanism.
const MECHANISM: &str = "PARTITA_TEST_MECHANISM";

/// The child's answer for a device that does not offer the mechanism.
const NOT_OFFERED: &str = "not offered: ";

/// The child's output on this device, line by line.
fn said(mechanism: &str, device: &str) -> Vec<String> {
    if device != "real" {
        let sim = Sim::new(&format!("{mechanism}-{device}"), device);
        return sim.child_says("child_conforms", &[(MECHANISM, mechanism.to_owned())]);
    }
    // Without MPS.
    let mut child = ignored_test("child_conforms");
    common::says(child.env(MECHANISM, mechanism).env("CUDA_MPS_PIPE_DIRECTORY", "/dev/null/no-mps"))
}

/// Runs all cases of a mechanism on a device.
fn conforms(mechanism: &str, device: &str) {
    if is_real() != (device == "real") || is_for_long_runs(device) {
        return;
    }
    let said = said(mechanism, device);
    let refused = said.iter().find_map(|line| line.strip_prefix(NOT_OFFERED));
    if device == "real" {
        // A real GPU may lack a mechanism.
        eprintln!("{mechanism}: {}", refused.unwrap_or("conforms"));
    } else {
        let is_offered = mechanism != "green" || !WITHOUT_GREEN.contains(&device);
        assert_eq!(refused.is_none(), is_offered, "{mechanism} on {device}: {said:?}");
    }
    if refused.is_none() {
        assert_eq!(said, cases::CASES.map(|(name, _)| name), "{mechanism} on {device}");
    }
}

/// Green contexts came with CUDA 12.4; these simulated drivers are older.
const WITHOUT_GREEN: [&str; 8] =
    ["gtx1060-3gb", "gtx-680", "tesla-k40", "gtx970", "p100", "titan-v", "xavier", "h100-v3"];

/// One module a device, with one test a mechanism.
macro_rules! devices {
    ($($module:ident = $device:literal;)*) => {
        $(mod $module {
            #[test]
            fn mask() {
                super::conforms("mask", $device);
            }

            #[test]
            fn stream() {
                super::conforms("stream", $device);
            }

            #[test]
            fn green() {
                super::conforms("green", $device);
            }
        })*
    };
}

partita_testing::for_simulated_devices!(devices);
devices! { real = "real"; }

#[test]
#[ignore = "the tests run it in child processes"]
fn child_conforms() {
    let mechanism = std::env::var(MECHANISM).unwrap();
    let cuda = common::cuda();
    let gpu = partita_driver::Gpu::open(&cuda, 0).unwrap();
    match bench::with_mechanism(&gpu, &mechanism, |bench| {
        for (name, case) in cases::CASES {
            // The name of the failing case precedes the panic's message.
            eprintln!("case: {name}");
            case(bench);
            common::say(name);
        }
    }) {
        Ok(()) => {}
        Err(reason) => common::say(format!("{NOT_OFFERED}{reason}")),
    }
}
