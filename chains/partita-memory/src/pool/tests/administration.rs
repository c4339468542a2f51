//! An administrator's actions on leases of others.

use super::*;

#[test]
fn a_revoked_lease_stays_reserved_while_its_owner_lives() {
    let (mut pool, owner) = one();
    let leases = lease(&mut pool, owner, MIB, 2, 0).unwrap();
    pool.open(leases[0].slab, owner).unwrap();
    pool.take_back(leases[0].id, 5).unwrap();
    assert_eq!((pool.totals().leases, pool.totals().resting, pool.take_expired(owner)), (1, 1, 1));
    assert_eq!(pool.take_back(leases[0].id, 5), Err(Refusal::Resting { lease: leases[0].id.0 }));
    assert_eq!(pool.take_back(LeaseId(999), 5), Err(Refusal::UnknownLease { lease: 999 }));
    assert_eq!(pool.disown(owner, 5), Err(Refusal::OwnerLives { owner: owner.0 }));
    // Its owner returns it, and then it is free.
    pool.free(leases[0].id, owner, 6).unwrap();
    assert_eq!((pool.totals().resting, pool.totals().leases), (0, 1));
}

#[test]
fn what_an_owner_left_is_freed_on_demand_and_its_slab_stays_until_it_is_closed() {
    let (mut pool, owner) = one();
    let leases = lease(&mut pool, owner, MIB, 2, 0).unwrap();
    pool.open(leases[0].slab, owner).unwrap();
    assert!(!pool.end(owner, 1).unwrap(), "its process is not known to be gone");
    assert_eq!(pool.take_back(leases[0].id, 1), Err(Refusal::Resting { lease: leases[0].id.0 }));
    assert_eq!(pool.disown(owner, 2), Ok(2));
    assert_eq!((pool.totals().resting, pool.totals().owners, pool.totals().used_bytes), (0, 1, 0));
    assert_eq!(pool.remove_slab(leases[0].slab), Err(Refusal::UnknownSlab { slab: leases[0].slab.0 }));
    pool.gone(owner, 3);
    assert_eq!(pool.totals().owners, 0);
    assert_eq!(pool.disown(owner, 4), Err(Refusal::UnknownOwner { owner: owner.0 }));
    pool.remove_slab(leases[0].slab).unwrap();
}
