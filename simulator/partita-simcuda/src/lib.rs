//! A simulated CUDA driver: `libcuda.so.1` and `libnvidia-ml.so.1` with the real C ABI over the
//! model of a GPU in `partita-sim`, so that programs written for a GPU run, unchanged, on a machine
//! without one.
//!
//! It has four parts. [`client`] and [`nvml`] are the libraries in a program's process: one shared
//! object, with symbolic links of both names. [`board`] is the process `partita-simgpu`, which owns
//! the engine, the clock and the device's memory; the first client starts it, and it exits shortly
//! after the last one. [`kernel`] stands for the kernel driver's device nodes. [`mps`] is a
//! stand-in for `nvidia-cuda-mps-control`.
//!
//! A launch is the same as on hardware: the client fills a launch descriptor (QMD) of the device's
//! generation, lets the debug callback see it, and publishes it in a ring in shared memory; the
//! board reads grid, block, resources, program and TPC mask from the descriptor.
//!
//! A write beside the mask in a stream's structure corrupts the driver's state, as on hardware. The
//! simulator finds it at the next launch that relies on the word, or at the next wait for the
//! stream. It reports the write on standard error and counts it (`partita_sim_corruptions`), and
//! the process's GPU work ends with `CUDA_ERROR_UNKNOWN`.
//!
//! # Environment
//! | variable | meaning |
//! |---|---|
//! | `PARTITA_SIM_DEVICE` | the device: `h200` (default) or another of [`partita_sim::catalogue`] |
//! | `PARTITA_SIM_GPUS` | how many of them the machine has; default 1 |
//! | `PARTITA_SIM_DIR` | the board's directory; default one per user in the temporary directory; directories with the same file `serial` have GPUs of the same identifiers |
//! | `PARTITA_SIM_SPEED` | simulated seconds per second; read when the board starts; default 1 |
//! | `PARTITA_SIMGPU` | the board's program; default `partita-simgpu` beside the library |
//! | `PARTITA_SIM_KERNEL_US` | cost of a block of a program's own kernel, microseconds |
//! | `PARTITA_SIM_WATCHDOG_MS` | timeout of launches that can never run, in milliseconds |
//! | `PARTITA_SIM_RESERVED_GIB` | addresses that a process reserves, in GiB; default 4096 |
//! | `PARTITA_SIM_MPS_VIRTUAL_SMID` | `1`: `%smid` counts from 0 for each limited MPS client |
//! | `PARTITA_SIM_DRIVER` | the driver's CUDA version, as `12.9`; default the device's own |
//! | `PARTITA_SIM_STREAM_OFFSET` | the offset of that driver's stream masks, in bytes, as `0x51c` |
//! | `PARTITA_SIM_QMD` | the version of its launch descriptors, as `3.0`; default the device's own |

pub mod board;
pub mod client;
pub mod kernel;
pub mod mps;
pub mod nvml;
pub mod shared;
