//! The pool against a simple model, and by example.

mod administration;

use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn limits() -> Limits {
    Limits { slab_bytes_max: 8 * MIB, bytes_max: 96 * MIB, batch_max: 16, ..Limits::default() }
}

/// Takes the pool's steps until the lease is given or refused.
fn lease(
    pool: &mut Pool,
    owner: OwnerId,
    bytes: u64,
    count: u32,
    now_ms: u64,
) -> Result<Vec<Lease>, Refusal> {
    for _ in 0..200 {
        match pool.lease(owner, bytes, count, 0, now_ms) {
            Ok(leases) => return Ok(leases),
            Err(Denied::Refused(refusal)) => return Err(refusal),
            Err(Denied::Until(Step::Add(plan))) => drop(pool.add_slab(plan, now_ms)?),
            Err(Denied::Until(Step::Remove(slab))) => pool.remove_slab(slab)?,
        }
    }
    panic!("a lease of {count} times {bytes} bytes is never decided: {pool:?}");
}

fn settle(pool: &mut Pool, now_ms: u64) {
    for _ in 0..1000 {
        match pool.step(now_ms) {
            None => return,
            Some(Step::Add(plan)) => drop(pool.add_slab(plan, now_ms).unwrap()),
            Some(Step::Remove(slab)) => pool.remove_slab(slab).unwrap(),
        }
    }
    panic!("the pool never settles: {pool:?}");
}

fn one() -> (Pool, OwnerId) {
    let mut pool = Pool::new(limits());
    let tenant = pool.add_tenant(64 * MIB).unwrap();
    let owner = pool.add_owner(tenant, 0).unwrap();
    (pool, owner)
}

#[test]
fn what_is_given_back_is_given_again_without_the_driver() {
    let (mut pool, owner) = one();
    let first = lease(&mut pool, owner, 100_000, 3, 0).unwrap();
    assert!(first.iter().all(|lease| lease.bytes == 106_496 && lease.offset % 512 == 0));
    let made = pool.totals().slabs_made_ever;
    for lease in &first {
        pool.free(lease.id, owner, 1).unwrap();
        assert_eq!(pool.free(lease.id, owner, 1), Err(Refusal::UnknownLease { lease: lease.id.0 }));
    }
    let second = lease(&mut pool, owner, 100_000, 3, 2).unwrap();
    assert_eq!((pool.totals().slabs_made_ever, pool.totals().used_bytes), (made, 3 * 106_496));
    assert!(second.iter().all(|new| first.iter().all(|old| old.id != new.id)));
}

#[test]
fn a_dead_owners_memory_rests_until_it_is_gone() {
    let (mut pool, owner) = one();
    let lease = lease(&mut pool, owner, 4 * MIB, 1, 0).unwrap()[0];
    pool.open(lease.slab, owner).unwrap();
    assert!(!pool.end(owner, 1).unwrap());
    assert_eq!((pool.totals().leases, pool.totals().resting, pool.totals().used_bytes), (0, 1, 4 * MIB));
    assert_eq!(pool.end(owner, 1), Err(Refusal::UnknownOwner { owner: owner.0 }));
    assert_eq!(pool.spare(None, None), None);
    pool.gone(owner, 2);
    assert_eq!(
        (pool.totals().resting, pool.totals().owners, pool.spare(None, None)),
        (0, 0, Some(lease.slab))
    );
    // No open slab: no need to wait.
    let tenant = pool.slabs().next().unwrap().tenant;
    let quick = pool.add_owner(tenant, 3).unwrap();
    super::tests::lease(&mut pool, quick, 4 * MIB, 1, 3).unwrap();
    assert!(pool.end(quick, 4).unwrap());
    assert_eq!((pool.totals().resting, pool.totals().owners), (0, 0));
}

#[test]
fn a_chains_memory_rests_until_its_members_have_left() {
    let (mut pool, chain) = one();
    let tenant = pool.owner_view(chain).unwrap().tenant;
    let members = [0, 1].map(|_| pool.add_owner(tenant, 0).unwrap());
    let frame = lease(&mut pool, chain, MIB, 1, 0).unwrap()[0];
    for member in members {
        pool.add_member(chain, member).unwrap();
        pool.open(frame.slab, member).unwrap();
    }
    assert!(!pool.end(chain, 1).unwrap());
    pool.close(frame.slab, members[0], 2).unwrap();
    assert_eq!(pool.totals().resting, 1);
    pool.gone(members[1], 3);
    assert_eq!((pool.totals().resting, pool.totals().owners), (0, 1));
    // An owner cannot be a member of another tenant's, nor open or free its memory.
    let other = pool.add_tenant(MIB).unwrap();
    let stranger = pool.add_owner(other, 3).unwrap();
    let own = lease(&mut pool, members[0], MIB, 1, 3).unwrap()[0];
    assert!(pool.add_member(members[0], stranger).is_err());
    assert!(pool.open(own.slab, stranger).is_err());
    assert!(pool.free(own.id, stranger, 3).is_err());
    assert!(pool.close(own.slab, members[0], 3).is_err(), "it has not opened it");
}

#[test]
fn a_passed_deadline_ends_a_lease_and_its_owner_alone_frees_it() {
    let (mut pool, owner) = one();
    let tenant = pool.owner_view(owner).unwrap().tenant;
    let other = pool.add_owner(tenant, 0).unwrap();
    lease(&mut pool, owner, 4096, 2, 0).unwrap();
    let timed = pool.lease(owner, 4096, 1, 50, 100).unwrap()[0];
    pool.seen(owner, 120).unwrap();
    assert_eq!(pool.expire(169), 0, "it was seen at 120");
    assert_eq!((pool.expire(170), pool.take_expired(owner), pool.take_expired(owner)), (1, 1, 0));
    assert_eq!(pool.free(timed.id, other, 171), Err(Refusal::Resting { lease: timed.id.0 }));
    assert_eq!((pool.totals().leases, pool.totals().resting), (2, 1));
    pool.free(timed.id, owner, 171).unwrap();
    assert_eq!((pool.totals().leases, pool.totals().resting, pool.expire(u64::MAX)), (2, 0, 0));
}

#[test]
fn a_quota_counts_slabs_and_what_lies_idle_makes_room() {
    let (mut pool, owner) = one();
    let small: Vec<Lease> = lease(&mut pool, owner, MIB, 16, 0).unwrap();
    pool.open(small[15].slab, owner).unwrap();
    small.iter().for_each(|small| pool.free(small.id, owner, 1).unwrap());
    assert!(pool.totals().slabs > 1, "16 MiB in slabs of 8");
    // Of 64 MiB, open slabs cannot make room.
    let refused = lease(&mut pool, owner, 64 * MIB, 1, 2).unwrap_err();
    assert!(matches!(refused, Refusal::Quota { slab_bytes: 8388608, .. }), "{refused}");
    assert_eq!(pool.retiring(owner).collect::<Vec<_>>(), [small[15].slab]);
    pool.close(small[15].slab, owner, 3).unwrap();
    let large = lease(&mut pool, owner, 64 * MIB, 1, 4).unwrap()[0];
    assert_eq!((pool.totals().slabs, pool.totals().slab_bytes), (1, 64 * MIB));
    let tenant = pool.owner_view(owner).unwrap().tenant;
    assert!(matches!(pool.set_quota(tenant, MIB), Err(Refusal::QuotaInUse { .. })));
    assert!(matches!(lease(&mut pool, owner, 1, 1, 5), Err(Refusal::Quota { .. })));
    pool.free(large.id, owner, 6).unwrap();
    lease(&mut pool, owner, 1, 1, 7).unwrap();
}

#[test]
fn a_request_that_is_refused_makes_nothing() {
    let (mut pool, owner) = one();
    assert!(matches!(lease(&mut pool, owner, 5 * MIB, 16, 0), Err(Refusal::Quota { .. })));
    for bytes in [0, u64::MAX, 1 << 60] {
        assert!(matches!(lease(&mut pool, owner, bytes, 1, 0), Err(Refusal::Bytes { .. })));
    }
    for count in [0, 17] {
        assert!(matches!(lease(&mut pool, owner, 1, count, 0), Err(Refusal::Batch { .. })));
    }
    assert_eq!(pool.totals().slabs_made_ever, 0);
    // Slabs are rounded up one by one, so all together may need more than a single one.
    let tenant = pool.owner_view(owner).unwrap().tenant;
    pool.set_quota(tenant, 10 * MIB).unwrap();
    let mut tight = Pool::new(Limits { slab_bytes_max: 3 * MIB, ..limits() });
    let tenant = tight.add_tenant(10 * MIB).unwrap();
    let owner = tight.add_owner(tenant, 0).unwrap();
    assert!(matches!(lease(&mut tight, owner, 3 * MIB, 3, 0), Err(Refusal::Quota { .. })));
}

#[test]
fn bursts_keep_their_memory_and_what_is_superfluous_goes() {
    let (mut pool, owner) = one();
    let window_ms = pool.limits().window_ms;
    let long_ms = window_ms * WINDOWS as u64;
    let mut now_ms = 0;
    // A burst each ten windows.
    for _ in 0..20 {
        let burst = lease(&mut pool, owner, MIB, 16, now_ms).unwrap();
        burst.iter().for_each(|lease| pool.free(lease.id, owner, now_ms).unwrap());
        settle(&mut pool, now_ms);
        now_ms += 10 * window_ms;
    }
    assert_eq!(pool.totals().slab_bytes, 16 * MIB);
    assert_eq!((pool.totals().slabs_freed_ever, pool.totals().slabs_made_ever), (0, 2));
    // A block in use keeps only its slab.
    lease(&mut pool, owner, MIB, 1, now_ms).unwrap();
    settle(&mut pool, now_ms + 2 * long_ms);
    assert_eq!(pool.totals().slab_bytes, 8 * MIB);
}

#[test]
fn a_ramp_finds_memory_before_it_asks() {
    let (mut pool, owner) = one();
    let window_ms = pool.limits().window_ms;
    let mut waits = 0;
    for step in 0..12 {
        let now_ms = step * window_ms;
        for _ in 0..4 {
            let made = pool.totals().slabs_made_ever;
            lease(&mut pool, owner, MIB, 1, now_ms).unwrap();
            // The first two windows show that it is a ramp.
            waits += u64::from(step > 2) * (pool.totals().slabs_made_ever - made);
        }
        settle(&mut pool, now_ms + window_ms / 2);
    }
    assert_eq!(waits, 0);
}

#[test]
fn who_has_reached_a_bound_takes_no_room_from_others_that_grow() {
    let mut pool = Pool::new(limits());
    let owners = [12, 64].map(|quota| {
        let tenant = pool.add_tenant(quota * MIB).unwrap();
        pool.add_owner(tenant, 0).unwrap()
    });
    let window_ms = pool.limits().window_ms;
    for window in 0..3 {
        for owner in owners {
            lease(&mut pool, owner, MIB, 4, window * window_ms).unwrap();
        }
    }
    // Both are about to need more, and the first one cannot get it.
    let other = pool.owner_view(owners[1]).unwrap().tenant;
    let step = pool.step(2 * window_ms);
    assert!(matches!(step, Some(Step::Add(plan)) if plan.tenant == other), "{step:?}");
}

#[test]
fn a_request_that_cannot_be_met_costs_no_tenant_its_idle_tpcs() {
    let mut pool = Pool::new(limits());
    let owners = [64 * MIB, u64::MAX].map(|quota_bytes| {
        let tenant = pool.add_tenant(quota_bytes).unwrap();
        pool.add_owner(tenant, 0).unwrap()
    });
    for owner in owners {
        let idle = lease(&mut pool, owner, MIB, 2, 0).unwrap();
        pool.open(idle[0].slab, owner).unwrap();
        idle.iter().for_each(|idle| pool.free(idle.id, owner, 1).unwrap());
        lease(&mut pool, owner, 4096, 1, 1).unwrap();
    }
    let first = pool.slabs().next().unwrap().id;
    pool.close(first, owners[0], 1).unwrap();
    let (before, bytes_max) = (pool.totals(), pool.limits().bytes_max);
    // More than the quota, more than the limit of all leases, and many together.
    for (owner, bytes, count) in
        [(0, 65 * MIB, 1), (0, 10 * MIB, 7), (1, bytes_max, 2), (1, 20 * MIB, 5), (1, u64::MAX, 1)]
    {
        lease(&mut pool, owners[owner], bytes, count, 2).unwrap_err();
        assert_eq!(pool.totals(), before, "{count} times {bytes} bytes");
        assert!(
            owners.iter().all(|owner| pool.retiring(*owner).next().is_none()),
            "no owner is asked to close"
        );
    }
}

#[test]
fn tenants_share_no_slab() {
    let mut pool = Pool::new(limits());
    let owners = [0, 1].map(|_| {
        let tenant = pool.add_tenant(8 * MIB).unwrap();
        pool.add_owner(tenant, 0).unwrap()
    });
    let [one, other] = owners.map(|owner| lease(&mut pool, owner, 4096, 1, 0).unwrap()[0]);
    assert_ne!(one.slab, other.slab);
    for owner in owners {
        assert!(pool.end(owner, 1).unwrap());
    }
    settle(&mut pool, 2 * 100 * WINDOWS as u64);
    let tenants: Vec<TenantId> = pool.tenants.keys().copied().collect();
    assert!(tenants.iter().all(|tenant| pool.forget_tenant(*tenant)));
    assert_eq!((pool.totals().slabs, pool.totals().tenants), (0, 0));
}

#[derive(Clone, Debug)]
enum Op {
    Tenant(u64),
    Owner(usize),
    Member(usize, usize),
    Lease { owner: usize, bytes: u64, count: u32, ttl_ms: u32 },
    Free(usize, usize),
    Open(usize, usize),
    Close(usize, usize),
    End(usize),
    Gone(usize),
    Seen(usize),
    Pass(u64),
    Quota(usize, u64),
    TakeBack(usize),
    Disown(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0usize..64;
    let bytes = prop_oneof![1u64..10_000, 100_000u64..3 * MIB, MIB..20 * MIB, Just(0), Just(u64::MAX)];
    prop_oneof![
        1 => (0u64..80 * MIB).prop_map(Op::Tenant),
        3 => n.clone().prop_map(Op::Owner),
        2 => (n.clone(), n.clone()).prop_map(|(a, b)| Op::Member(a, b)),
        10 => (n.clone(), bytes, 0u32..18, prop_oneof![Just(0u32), 1u32..2000])
            .prop_map(|(owner, bytes, count, ttl_ms)| Op::Lease { owner, bytes, count, ttl_ms }),
        8 => (n.clone(), n.clone()).prop_map(|(a, b)| Op::Free(a, b)),
        5 => (n.clone(), n.clone()).prop_map(|(a, b)| Op::Open(a, b)),
        4 => (n.clone(), n.clone()).prop_map(|(a, b)| Op::Close(a, b)),
        2 => n.clone().prop_map(Op::End),
        2 => n.clone().prop_map(Op::Gone),
        2 => n.clone().prop_map(Op::Seen),
        4 => (0u64..3000).prop_map(Op::Pass),
        1 => (n.clone(), 0u64..80 * MIB).prop_map(|(a, b)| Op::Quota(a, b)),
        1 => n.clone().prop_map(Op::TakeBack),
        1 => n.prop_map(Op::Disown),
    ]
}

/// The required state, in the simplest form.
#[derive(Default)]
struct Model {
    quotas: BTreeMap<TenantId, u64>,
    /// Tenant, members, whether it has ended.
    owners: BTreeMap<OwnerId, (TenantId, BTreeSet<OwnerId>, bool)>,
    open: BTreeSet<(SlabId, OwnerId)>,
    /// Each lease that is not free, its owner, and whether it rests.
    leases: BTreeMap<LeaseId, (Lease, OwnerId, bool)>,
}

impl Model {
    /// Frees reusable memory: an owner has ended, and no process through which it used the memory
    /// has the slab open.
    fn settle(&mut self) {
        let Self { owners, open, leases, .. } = self;
        leases.retain(|_, (lease, owner, _)| {
            let (_, members, ended) = &owners[owner];
            let is_open = |by: &OwnerId| open.contains(&(lease.slab, *by));
            !ended || is_open(owner) || members.iter().any(is_open)
        });
    }

    fn add(&mut self, owner: OwnerId, given: &[Lease]) {
        for lease in given {
            for (other, ..) in self.leases.values() {
                let apart =
                    lease.offset + lease.bytes <= other.offset || other.offset + other.bytes <= lease.offset;
                assert!(lease.slab != other.slab || apart, "{lease:?} overlaps {other:?}");
            }
            assert!(self.leases.insert(lease.id, (*lease, owner, false)).is_none());
        }
    }

    fn end(&mut self, owner: OwnerId) {
        if let Some(known) = self.owners.get_mut(&owner) {
            known.2 = true;
        }
        self.leases.values_mut().filter(|(_, of, _)| *of == owner).for_each(|(_, _, rests)| *rests = true);
    }

    fn check(&self, pool: &Pool) {
        let slabs: BTreeMap<SlabId, SlabView> = pool.slabs().map(|slab| (slab.id, slab)).collect();
        let listed: Vec<(LeaseId, bool)> =
            pool.leases_after(LeaseId(0)).map(|lease| (lease.id, lease.is_resting)).collect();
        let expected: Vec<(LeaseId, bool)> = self.leases.iter().map(|(id, known)| (*id, known.2)).collect();
        assert_eq!(listed, expected, "none lost, none too many");
        for (lease, owner, _) in self.leases.values() {
            let slab = &slabs[&lease.slab];
            assert!(lease.offset + lease.bytes <= slab.bytes && slab.tenant == self.owners[owner].0);
        }
        for (slab, _) in &self.open {
            assert!(slabs.contains_key(slab), "an open slab stays");
        }
        let mut bytes = 0;
        for slab in slabs.values() {
            let used = self.leases.values().filter(|(lease, ..)| lease.slab == slab.id).count();
            assert_eq!(slab.blocks as usize, slab.free_blocks as usize + used);
            assert!(u64::from(slab.blocks) * slab.block_bytes <= slab.bytes && slab.blocks > 0);
            bytes += slab.bytes;
        }
        let totals = pool.totals();
        let used: u64 = self.leases.values().map(|(lease, ..)| lease.bytes).sum();
        assert!(bytes <= limits().bytes_max);
        assert_eq!((totals.slab_bytes, totals.used_bytes), (bytes, used));
        for (tenant, quota_bytes) in &self.quotas {
            let view = pool.tenant_view(*tenant).unwrap();
            let of = slabs.values().filter(|slab| slab.tenant == *tenant).map(|slab| slab.bytes).sum::<u64>();
            assert_eq!((view.slab_bytes, view.quota_bytes), (of, *quota_bytes));
            assert!(of <= *quota_bytes);
        }
    }
}

/// One of the present ones.
fn pick<T: Copy>(all: impl ExactSizeIterator<Item = T>, at: usize) -> Option<T> {
    let mut all = all;
    let count = all.len();
    if count == 0 { None } else { all.nth(at % count) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_is_leased_twice_none_is_lost_and_no_quota_is_exceeded(ops in prop::collection::vec(op(), 1..120)) {
        let mut pool = Pool::new(limits());
        let mut model = Model::default();
        let mut now_ms = 0;
        for tenant in [40 * MIB, 64 * MIB] {
            model.quotas.insert(pool.add_tenant(tenant).unwrap(), tenant);
        }
        for op in ops {
            apply(&mut pool, &mut model, op, &mut now_ms);
            model.settle();
            model.check(&pool);
        }
        // After everybody's end only idle memory remains, and after a while not even that.
        let everybody: Vec<OwnerId> = model.owners.keys().copied().collect();
        for owner in everybody {
            pool.gone(owner, now_ms);
        }
        let totals = pool.totals();
        prop_assert_eq!((totals.leases, totals.resting, totals.used_bytes, totals.owners), (0, 0, 0, 0));
        prop_assert_eq!(totals.leased_ever, totals.given_back_ever);
        settle(&mut pool, now_ms + 1_000_000);
        prop_assert_eq!((pool.totals().slabs, pool.totals().slab_bytes), (0, 0));
        for tenant in model.quotas.keys() {
            prop_assert!(pool.forget_tenant(*tenant));
        }
    }
}

fn apply(pool: &mut Pool, model: &mut Model, op: Op, now_ms: &mut u64) {
    let now = *now_ms;
    let owner = |at| pick(model.owners.keys().copied(), at);
    match op {
        Op::Tenant(quota) => {
            if model.quotas.len() < 5 {
                model.quotas.insert(pool.add_tenant(quota).unwrap(), quota);
            }
        }
        Op::Owner(at) => {
            let tenant = pick(model.quotas.keys().copied(), at).unwrap();
            model.owners.insert(pool.add_owner(tenant, now).unwrap(), (tenant, BTreeSet::new(), false));
        }
        Op::Member(a, b) => {
            let (Some(a), Some(b)) = (owner(a), owner(b)) else { return };
            let fits = a != b && model.owners[&a].0 == model.owners[&b].0;
            let fits = fits && !model.owners[&a].2 && !model.owners[&b].2;
            assert_eq!(pool.add_member(a, b).is_ok(), fits);
            if fits {
                model.owners.get_mut(&a).unwrap().1.insert(b);
            }
        }
        Op::Lease { owner: at, bytes, count, ttl_ms } => {
            let Some(owner) = owner(at) else { return };
            let before = pool.leases_after(LeaseId(0)).count();
            match lease(pool, owner, bytes, count, now) {
                Ok(mut given) => {
                    assert!(!model.owners[&owner].2 && given.len() == count as usize);
                    assert!(given.iter().all(|lease| Some(lease.bytes) == block_bytes(bytes)));
                    // The same again with a deadline, if that needs no new slab.
                    if ttl_ms != 0
                        && let Ok(timed) = pool.lease(owner, bytes, count, ttl_ms, now)
                    {
                        given.extend(timed);
                    }
                    model.add(owner, &given);
                }
                Err(_) => assert_eq!(pool.leases_after(LeaseId(0)).count(), before),
            }
        }
        Op::Free(at, by) => {
            let (Some(id), Some(by)) = (pick(model.leases.keys().copied(), at), owner(by)) else { return };
            let (_, of, rests) = model.leases[&id];
            let lives = !model.owners[&by].2 && model.owners[&by].0 == model.owners[&of].0;
            let fits = lives && (!rests || of == by);
            assert_eq!(pool.free(id, by, now).is_ok(), fits);
            if fits {
                model.leases.remove(&id);
            }
        }
        Op::Open(at, by) => {
            let (Some(slab), Some(by)) = (pick(pool.slabs().collect::<Vec<_>>().into_iter(), at), owner(by))
            else {
                return;
            };
            let fits = slab.tenant == model.owners[&by].0 && !model.owners[&by].2;
            assert_eq!(pool.open(slab.id, by).is_ok(), fits);
            if fits {
                model.open.insert((slab.id, by));
            }
        }
        Op::Close(at, by) => {
            let (Some((slab, _)), Some(by)) = (pick(model.open.iter().copied(), at), owner(by)) else {
                return;
            };
            let fits = model.open.contains(&(slab, by)) && !model.owners[&by].2;
            assert_eq!(pool.close(slab, by, now).is_ok(), fits);
            if fits {
                model.open.remove(&(slab, by));
            }
        }
        Op::End(at) => {
            let Some(owner) = owner(at) else { return };
            assert_eq!(pool.end(owner, now).is_ok(), !model.owners[&owner].2);
            model.end(owner);
        }
        Op::Gone(at) => {
            let Some(owner) = owner(at) else { return };
            pool.gone(owner, now);
            model.end(owner);
            model.open.retain(|(_, by)| *by != owner);
        }
        Op::Seen(at) => {
            let Some(owner) = owner(at) else { return };
            assert_eq!(pool.seen(owner, now).is_ok(), !model.owners[&owner].2);
        }
        Op::Pass(ms) => {
            *now_ms += ms;
            pool.expire(*now_ms);
            // The examples cover deadlines; here an expired lease rests.
            for lease in pool.leases_after(LeaseId(0)).filter(|lease| lease.is_resting) {
                model.leases.get_mut(&lease.id).unwrap().2 = true;
            }
            settle(pool, *now_ms);
        }
        Op::TakeBack(at) => {
            let Some(id) = pick(model.leases.keys().copied(), at) else { return };
            let (_, _, rests) = &mut model.leases.get_mut(&id).unwrap();
            assert_eq!(pool.take_back(id, now).is_ok(), !*rests);
            *rests = true;
        }
        Op::Disown(at) => {
            let Some(owner) = owner(at) else { return };
            let has_ended = model.owners[&owner].2;
            let left = model.leases.values().filter(|(_, of, _)| *of == owner).count();
            match pool.disown(owner, now) {
                Ok(freed) => {
                    assert!(has_ended && freed == left);
                    model.leases.retain(|_, (_, of, _)| *of != owner);
                }
                // One that has ended with nothing is forgotten.
                Err(_) => assert!(!has_ended || left == 0),
            }
        }
        Op::Quota(at, quota) => {
            let tenant = pick(model.quotas.keys().copied(), at).unwrap();
            if pool.set_quota(tenant, quota).is_ok() {
                model.quotas.insert(tenant, quota);
            }
        }
    }
}
