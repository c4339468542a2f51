//! Which devices tests run on.

/// Calls a macro with every simulated device: the name of a test, and the device's name in the
/// catalogue.
///
/// ```ignore
/// macro_rules! tests {
///     ($($test:ident = $device:literal;)*) => { $(#[test] fn $test() { works_on($device); })* };
/// }
/// partita_testing::for_simulated_devices!(tests);
/// ```
#[macro_export]
macro_rules! for_simulated_devices {
    ($tests:ident) => {
        $tests! {
            h200 = "h200";
            a100 = "a100";
            gtx1060_3gb = "gtx1060-3gb";
            gtx_680 = "gtx-680";
            tesla_k40 = "tesla-k40";
            gtx970 = "gtx970";
            p100 = "p100";
            titan_v = "titan-v";
            xavier = "xavier";
            rtx2060 = "rtx2060";
            rtx3070 = "rtx3070";
            rtx6000_ada = "rtx6000-ada";
            l40s = "l40s";
            h100 = "h100";
            h100_v3 = "h100-v3";
            b200 = "b200";
            gb10 = "gb10";
        }
    };
}

macro_rules! names {
    ($($test:ident = $device:literal;)*) => {
        /// Every simulated device, by its name in the catalogue.
        pub const SIMULATED_DEVICES: &[&str] = &[$($device),*];
    };
}
for_simulated_devices!(names);

/// A device for each way in which launch descriptors hold masks.
pub const GENERATIONS: [&str; 6] = ["gtx1060-3gb", "titan-v", "a100", "rtx6000-ada", "h200", "gb10"];

/// Whether the tests run on the machine's own GPU: `PARTITA_TEST_GPU=real`.
#[must_use]
pub fn is_real() -> bool {
    std::env::var_os("PARTITA_TEST_GPU").is_some_and(|value| value == "real")
}

/// For tests that need the simulator: says so on a real GPU, and tells to stop.
#[must_use]
pub fn needs_simulator(why: &str) -> bool {
    if is_real() {
        eprintln!("skipped on a real GPU: {why}");
    }
    is_real()
}

/// The devices to run on: `real` alone, or these simulated ones.
#[must_use]
pub fn devices<'d>(simulated: &[&'d str]) -> Vec<&'d str> {
    if is_real() { vec!["real"] } else { simulated.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::SIMULATED_DEVICES;

    #[test]
    fn no_device_of_the_catalogue_is_left_out() {
        for name in partita_sim::catalogue::NAMES {
            assert!(SIMULATED_DEVICES.contains(&name), "add {name} to `for_simulated_devices!`");
        }
        assert_eq!(SIMULATED_DEVICES.len(), partita_sim::catalogue::NAMES.len());
    }
}
