//! A stand-in for `nvidia-cuda-mps-control`.

use std::process::ExitCode;

fn main() -> ExitCode {
    simcuda::mps::control::main()
}
