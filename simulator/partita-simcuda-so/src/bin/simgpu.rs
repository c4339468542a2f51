//! The simulated board.

use std::process::ExitCode;

fn main() -> ExitCode {
    simcuda::board::program::main()
}
