//! The conformance suite: what every mechanism promises on every device, in one set of cases.
//!
//! A mechanism and a device are a test; each runs every case in a child process of its own
//! ([`cases`]), because a mechanism that breaks its promise may hang or crash the driver. What
//! cannot run is part of the promise: it is refused, by the mechanism's own judgement
//! ([`Mechanism::fits`](partita_driver::mechanism::Mechanism::fits)) or with the driver's error at
//! the call, and never hangs. `PARTITA_TEST_GPU=real` runs the same cases on the machine's first
//! GPU.

#[path = "conformance/bench.rs"]
mod bench;
#[path = "conformance/cases.rs"]
mod cases;
mod common;

use common::Sim;
use partita_testing::{ignored_test, is_real};

/// The variable that tells a child its mechanism.
const MECHANISM: &str = "PARTITA_TEST_MECHANISM";

/// What a mechanism says on a device that does not offer it.
const NOT_OFFERED: &str = "not offered: ";

/// What the child on this device said, line by line.
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
    if is_real() != (device == "real") {
        return;
    }
    let said = said(mechanism, device);
    let refused = said.iter().find_map(|line| line.strip_prefix(NOT_OFFERED));
    if device == "real" {
        // Which mechanisms a GPU offers is its own affair.
        eprintln!("{mechanism}: {}", refused.unwrap_or("conforms"));
    } else {
        let is_offered = mechanism != "green" || !WITHOUT_GREEN.contains(&device);
        assert_eq!(refused.is_none(), is_offered, "{mechanism} on {device}: {said:?}");
    }
    if refused.is_none() {
        assert_eq!(said, cases::CASES.map(|(name, _)| name), "{mechanism} on {device}");
    }
}

/// Green contexts came with CUDA 12.4, and these simulated drivers are older.
const WITHOUT_GREEN: [&str; 8] =
    ["gtx1060-3gb", "gtx-680", "tesla-k40", "gtx970", "p100", "titan-v", "xavier", "h100-v3"];

/// One module a device, one test a mechanism in it.
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
