//! A stand-in for `nvidia-cuda-mps-control`: the control daemon, its server process, its commands
//! and its logs, and the client's side.
//!
//! The board implements the effects of MPS on programs (running at the same time, sharing a fault);
//! this service decides which programs belong to which server and with which limits. A program
//! finds it in the same way as the real one: if a daemon listens at `control` in
//! `CUDA_MPS_PIPE_DIRECTORY`, the program attaches before it opens its device, and is a client of
//! its server for as long as that connection lives.
//!
//! As with the control program of CUDA 13.0 ("v2") there is one server at a time, for one user;
//! other users wait until its clients are gone. The server is a separate process, so that it can be
//! listed, shut down and killed; the daemon holds all of its state.
//!
//! | module | |
//! |---|---|
//! | [`client`] | attaching, from inside a program |
//! | [`wire`] | messages over the socket |
//! | [`dirs`] | the directories and their contents |
//! | [`command`] | the commands as text |
//! | [`daemon`] | the daemon: connections, commands, the server's life |
//! | `admit` | clients: admission and departure |
//! | [`reply`] | the effect of each command |
//! | [`server`] | the server process |
//! | `daemon::contexts` | contexts of clients |
//! | `daemon::contain` | faults and the affected clients |
//! | `partitions` | static SM partitions |
//! | [`script`] | failures on demand |
//! | [`limits`] | thread percentages and memory limits |
//! | [`own`] | the limits that a client sets for itself |
//! | [`log`] | both logs |
//! | [`control`] | the program's command line |

mod admit;
pub mod client;
pub mod command;
pub mod control;
pub mod daemon;
pub mod dirs;
pub mod limits;
pub mod log;
pub mod own;
mod partitions;
mod peer;
pub mod reply;
pub mod script;
pub mod server;
mod wait;
pub mod wire;

pub use limits::percentage_sms;
use partita_sim::DeviceSpec;

/// Another version than [`BINARY_VERSION`] for the control program to be of.
const ENV_VERSION: &str = "PARTITA_SIM_MPS_VERSION";

/// Version that the control program reports, thousands for the major.
pub const BINARY_VERSION: u32 = 13_000;

/// The version with static partitions and more clients.
const PARTITIONS_SINCE: u32 = 13_010;

/// The version that this process is to be of.
fn binary_version() -> u32 {
    std::env::var(ENV_VERSION).ok().and_then(|text| text.parse().ok()).unwrap_or(BINARY_VERSION)
}

/// Whether it has static partitions.
fn has_partitions() -> bool {
    binary_version() >= PARTITIONS_SINCE
}

/// The most clients of a server on such a device. Before Volta the clients' work goes through one
/// context of the server, which has room for 16 (NVIDIA, «Multi-Process Service», 2.3.3.2).
fn clients_max(device: &DeviceSpec) -> usize {
    match is_before_volta(device) {
        true => 16,
        false if has_partitions() => 60,
        false => 48,
    }
}

/// Whether clients share one context of the server, and so have no limits of their own.
pub(crate) fn is_before_volta(device: &DeviceSpec) -> bool {
    device.compute_capability.major < 7
}
