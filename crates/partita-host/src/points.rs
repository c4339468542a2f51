//! Named steps at which a test ends the process, to see that the next one goes on from there.

/// Ends the process without any clean-up if `PARTITA_TEST_END_AT` names this step. Does nothing in
/// builds without debug assertions, which are all that are released.
pub fn reached(name: &str) {
    if cfg!(debug_assertions) && std::env::var_os("PARTITA_TEST_END_AT").is_some_and(|at| at == name) {
        eprintln!("ends at the step {name}");
        std::process::abort();
    }
}
