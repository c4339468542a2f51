//! Clients that are killed at random instants, again and again.
//!
//! They speak the protocol and use no GPU, so that thousands of them can be killed in a few
//! seconds. `PARTITA_TEST_KILLS` sets the number.

use crate::common;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::Keeper;
use partita_memory::pool::LeaseId;

/// How many live at one time.
const AT_ONCE: usize = 4;

fn kills() -> usize {
    std::env::var("PARTITA_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(600)
}

/// A client that does everything that clients do until it is killed.
#[test]
#[ignore = "a test runs it in child processes, and kills them"]
fn child_leases_until_it_is_killed() {
    let socket = std::path::PathBuf::from(std::env::var_os("SOCKET").unwrap());
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let tenant = ["one", "two"][seed as usize % 2];
    let chain = std::fs::File::open(std::env::var_os("CHAIN").unwrap()).unwrap();
    let mut client = common::connect(&socket, tenant);
    // A chain of one tenant; the other tenant refuses it.
    let number = client.join_chain(std::os::fd::AsFd::as_fd(&chain)).ok();
    let mut held: Vec<LeaseId> = Vec::new();
    let mut opened = Vec::new();
    loop {
        match random.u32(0..8) {
            0..3 => {
                let bytes = [4096, 5000, 70_000, 1 << 20][random.usize(0..4)];
                let owner = number.filter(|_| random.u32(0..4) == 0);
                let ttl_ms = [0, 0, 1, 1000][random.usize(0..4)];
                let Ok(leases) = client.lease(owner, bytes, random.u32(1..20), ttl_ms) else { continue };
                // Any member frees a chain's leases, or the chain's end does.
                if owner.is_none() || random.bool() {
                    held.extend(leases.iter().map(|lease| lease.id));
                }
                if !opened.contains(&leases[0].slab) && client.open(leases[0].slab).is_ok() {
                    opened.push(leases[0].slab);
                }
            }
            3..6 => {
                let count = random.usize(0..=held.len().min(100));
                let _ = client.free(&held.drain(..count).collect::<Vec<_>>());
            }
            6 => drop(client.beat()),
            _ => {
                if let Some(slab) = opened.pop() {
                    client.close(&[slab]).unwrap();
                }
            }
        }
    }
}

/// A child that holds a lock on a file until it is killed.
#[test]
#[ignore = "a test runs it in a child process"]
fn child_holds_a_lock() {
    let file = std::fs::File::options().write(true).open(std::env::var_os("CHAIN").unwrap()).unwrap();
    rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn child(name: &str, keeper: &Keeper, chain: &std::path::Path, seed: u64) -> Child {
    let mut command: Command = partita_testing::ignored_test(name);
    command.env("SOCKET", &keeper.socket).env("CHAIN", chain).env("SEED", seed.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::piped()).spawn().unwrap()
}

#[test]
fn nothing_is_lost_whenever_clients_are_killed() {
    let keeper = Keeper::new(|options| options.limits.bytes_max = 128 << 20);
    let chain = tempfile::NamedTempFile::new().unwrap();
    let mut holder = child("child_holds_a_lock", &keeper, chain.path(), 0);
    let mut random = fastrand::Rng::with_seed(1);
    let mut living: Vec<Child> = Vec::new();
    let mut most = 0;
    for seed in 0..kills() as u64 {
        living.push(child("child_leases_until_it_is_killed", &keeper, chain.path(), seed));
        if living.len() == AT_ONCE {
            // From before it connects to long after.
            std::thread::sleep(Duration::from_micros(random.u64(0..6000)));
            let mut killed = living.swap_remove(random.usize(0..AT_ONCE));
            killed.kill().unwrap();
            killed.wait().unwrap();
        }
        if seed % 16 == 0 {
            most = most.max(keeper.status().totals.leases);
        }
        // The chain ends and starts again, too.
        if seed % 64 == 63 {
            holder.kill().unwrap();
            holder.wait().unwrap();
            holder = child("child_holds_a_lock", &keeper, chain.path(), 0);
        }
    }
    for mut killed in living.into_iter().chain([holder]) {
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    assert!(most > 0 && keeper.status().totals.leased_ever > 100, "they have done nothing");
    keeper.is_clean_in_the_end();
}
