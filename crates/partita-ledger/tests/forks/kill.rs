//! SIGKILL at any time: every byte comes back, and no process is blocked.

use crate::common;

use std::ffi::CStr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::process::{End, Random, alone, fork, shared_words, wait_until};
use common::{dir, owner};
use partita_ledger::{Slot, UsageMap, UsageView};

const KILLS: u64 = 500;
const QUOTA: u64 = 1000;
/// The most that the surviving peer holds.
const PEER_BYTES_MAX: u64 = 100;
/// The most that a victim holds: with the peer's, exactly the quota. So no request of either may
/// ever be refused.
const VICTIM_BYTES_MAX: u64 = QUOTA - PEER_BYTES_MAX;

fn claim(usage: &CStr) -> Slot {
    UsageMap::open(usage).unwrap().claim(owner()).unwrap()
}

/// While others reap without pause, and are preempted meanwhile: the first request gets a dead
/// process's bytes.
#[test]
fn a_request_that_fits_is_not_refused_beside_reaping() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let [stop] = shared_words::<1>();
    let reapers: Vec<_> = (0..4)
        .map(|_| {
            fork(|| {
                while stop.load(SeqCst) == 0 {
                    map.reap().unwrap();
                }
                0
            })
        })
        .collect();
    let own = claim(&path);
    for round in 0..400 {
        let dead = fork(|| {
            claim(&path).reserve(QUOTA, QUOTA).unwrap();
            0
        });
        assert_eq!(dead.wait(), End::Exit(0), "round {round}");
        own.reserve(QUOTA, QUOTA).unwrap_or_else(|error| panic!("round {round}: {error}"));
        own.release(QUOTA).unwrap();
    }
    stop.store(1, SeqCst);
    reapers.into_iter().for_each(|reaper| assert_eq!(reaper.wait(), End::Exit(0)));
}

/// Works until a stop or its death. Uses every operation that changes the file.
fn work(usage: &CStr, bytes_max: u64, seed: u64, mut go_on: impl FnMut(u64) -> bool) {
    let mut random = Random::new(seed);
    let mut slot = claim(usage);
    let mut held = 0;
    while go_on(held) {
        match random.below(40) {
            0 => {
                assert_eq!(slot.finish().unwrap(), held);
                held = 0;
                slot = claim(usage);
            }
            1 => {
                slot.map().reap().unwrap();
            }
            2..20 if held > 0 => {
                let bytes = 1 + random.below(held);
                slot.release(bytes).unwrap();
                held -= bytes;
            }
            _ if held < bytes_max => {
                let bytes = 1 + random.below(bytes_max - held);
                slot.reserve(bytes, QUOTA).unwrap();
                held += bytes;
            }
            _ => slot.count_launch(),
        }
        assert_eq!(slot.bytes(), held);
    }
    assert_eq!(slot.finish().unwrap(), held);
}

#[test]
fn five_hundred_kills_lose_no_byte_and_block_no_process() {
    let _alone = alone();
    let dir = dir();
    let path = dir.file("usage");
    let map = UsageMap::create(&path, 0o600).unwrap();
    let view = UsageView::open(&path).unwrap();
    let [stop, peer_rounds, peer_pid, victim_rounds, victim_bytes] = shared_words::<5>();
    let peer = fork(|| {
        peer_pid.store(std::process::id().into(), SeqCst);
        work(&path, PEER_BYTES_MAX, 1, |_| {
            peer_rounds.fetch_add(1, SeqCst);
            stop.load(SeqCst) == 0
        });
        0
    });
    wait_until("the peer", || peer_rounds.load(SeqCst) > 0);

    let mut random = Random::new(Instant::now().elapsed().as_nanos() as u64 + u64::from(std::process::id()));
    let (mut died_with_bytes, mut died_idle) = (0, 0);
    for kill in 0..KILLS {
        victim_rounds.store(0, SeqCst);
        victim_bytes.store(0, SeqCst);
        let victim = fork(|| {
            work(&path, VICTIM_BYTES_MAX, kill + 2, |held| {
                victim_bytes.store(held, SeqCst);
                victim_rounds.fetch_add(1, SeqCst);
                true
            });
            0
        });
        // From before it has opened the file to after hundreds of operations, whatever the
        // machine's load.
        let rounds = if kill % 8 == 0 { 0 } else { random.below(400) };
        while victim_rounds.load(SeqCst) < rounds {
            assert!(!victim.has_ended(), "kill {kill}: the victim has ended by itself");
            std::hint::spin_loop();
        }
        let delay = Duration::from_micros(random.below(20));
        let start = Instant::now();
        while start.elapsed() < delay {
            std::hint::spin_loop();
        }
        victim.kill();
        // Anything else than the signal would be a wrong refusal, or a wrong sum.
        assert_eq!(victim.wait(), End::Signal(libc::SIGKILL), "kill {kill}");

        let rounds = peer_rounds.load(SeqCst);
        wait_until("the peer goes on", || peer_rounds.load(SeqCst) > rounds + 2);
        assert!(map.used() <= QUOTA);
        // By the victim's own account: the peer may have reaped it already.
        *if victim_bytes.load(SeqCst) > 0 { &mut died_with_bytes } else { &mut died_idle } += 1;
        // Every other time the next victim finds the dead one's bytes in its way, and has to reap
        // them.
        if kill % 2 == 0 {
            let dead = |slot: &partita_ledger::SlotInfo| u64::from(slot.pid as u32) != peer_pid.load(SeqCst);
            map.reap().unwrap();
            assert!(map.used() <= PEER_BYTES_MAX, "bytes of the dead are left: {}", map.used());
            assert!(!view.slots().map(Result::unwrap).any(|slot| dead(&slot) && slot.bytes > 0));
        }
    }
    assert!(died_with_bytes > 0, "no victim held anything ({died_idle} idle): the test has tested nothing");
    map.reap().unwrap();
    stop.store(1, SeqCst);
    assert_eq!(peer.wait(), End::Exit(0));
    assert_eq!((map.used(), view.slots().count()), (0, 0));
    assert!(map.peak() <= QUOTA);
}
