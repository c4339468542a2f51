//! Every frame is decoded unchanged, and any other bytes are refused without a panic.

use crate::pool::{Lease, LeaseId, OwnerId, SlabId, Totals};
use proptest::prelude::*;

use super::*;
use crate::name::TenantName;

fn name() -> impl Strategy<Value = TenantName> {
    "[A-Za-z0-9][A-Za-z0-9._-]{0,62}".prop_map(|name| name.parse().unwrap())
}

fn numbers() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), 1..=ITEMS_MAX)
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (any::<u32>(), prop::option::of(name()))
            .prop_map(|(version, tenant)| Request::Hello { version, tenant }),
        (prop::option::of(1..=u64::MAX), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
            |(owner, bytes, count, ttl_ms)| Request::Lease {
                owner: owner.map(OwnerId),
                bytes,
                count,
                ttl_ms
            }
        ),
        numbers().prop_map(|ids| Request::Free { leases: ids.into_iter().map(LeaseId).collect() }),
        any::<u64>().prop_map(|slab| Request::Open { slab: SlabId(slab) }),
        numbers().prop_map(|ids| Request::Close { slabs: ids.into_iter().map(SlabId).collect() }),
        Just(Request::Beat),
        Just(Request::Own),
        Just(Request::Status),
        any::<u64>().prop_map(|after| Request::Leases { after: LeaseId(after) }),
        any::<u32>().prop_map(|skip| Request::Tenants { skip }),
        (any::<u32>(), name(), any::<u64>())
            .prop_map(|(uid, tenant, bytes)| Request::Privileged(Privileged::Quota { uid, tenant, bytes })),
        any::<bool>().prop_map(|even_if_leased| Request::Privileged(Privileged::End { even_if_leased })),
        any::<u64>().prop_map(|id| Request::Privileged(Privileged::TakeBack { lease: LeaseId(id) })),
        any::<u64>().prop_map(|id| Request::Privileged(Privileged::Disown { owner: OwnerId(id) })),
        (any::<u32>(), any::<u32>(), name())
            .prop_map(|(uid, pid, tenant)| Request::Privileged(Privileged::SpeakFor { uid, pid, tenant })),
    ]
}

fn lease() -> impl Strategy<Value = Lease> {
    any::<[u64; 4]>().prop_map(|[id, slab, offset, bytes]| Lease {
        id: LeaseId(id),
        slab: SlabId(slab),
        offset,
        bytes,
    })
}

fn lease_row() -> impl Strategy<Value = LeaseRow> {
    (lease(), any::<[u64; 3]>(), any::<[u32; 4]>(), any::<bool>(), name()).prop_map(
        |(lease, [bytes_asked, age_ms, owner], [ttl_ms, left_ms, pid, uid], is_resting, tenant)| LeaseRow {
            lease,
            bytes_asked,
            age_ms,
            ttl_ms,
            left_ms,
            pid,
            owner: OwnerId(owner),
            uid,
            is_resting,
            tenant,
        },
    )
}

fn tenant_row() -> impl Strategy<Value = TenantRow> {
    (any::<[u32; 2]>(), any::<[u64; 3]>(), name()).prop_map(
        |([uid, owners], [quota_bytes, slab_bytes, used_bytes], name)| TenantRow {
            uid,
            owners,
            quota_bytes,
            slab_bytes,
            used_bytes,
            name,
        },
    )
}

fn welcome() -> impl Strategy<Value = Welcome> {
    (any::<[u32; 4]>(), any::<bool>(), any::<u64>(), any::<[u8; 16]>()).prop_map(
        |([version, pid, batch_max, ttl_ms_max], descriptors, instance, gpu_uuid)| Welcome {
            version,
            handles: if descriptors { HandleKind::Descriptor } else { HandleKind::Ipc },
            instance,
            gpu_uuid,
            pid,
            batch_max,
            ttl_ms_max,
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let handle = prop::option::of(any::<[u8; 32]>().prop_map(|half| {
        let mut handle = [1; HANDLE_BYTES];
        handle[..32].copy_from_slice(&half);
        handle
    }));
    prop_oneof![
        welcome().prop_map(Reply::Welcome),
        prop::collection::vec(lease(), 1..=ITEMS_MAX).prop_map(Reply::Leased),
        Just(Reply::Done),
        (any::<[u64; 2]>(), handle).prop_map(|([slab, bytes], handle)| Reply::Slab {
            slab: SlabId(slab),
            bytes,
            handle
        }),
        (any::<u32>(), numbers()).prop_map(|(expired, slabs)| Reply::Beat(Beat {
            expired,
            retiring: slabs.into_iter().map(SlabId).collect()
        })),
        any::<u64>().prop_map(|owner| Reply::Owner(OwnerId(owner))),
        any::<[u64; 5]>().prop_map(|[leases, expired_ever, clients, dying, bad_frames]| {
            let totals = Totals { leases, expired_ever, ..Totals::default() };
            Reply::Status(Status { totals, clients, dying, bad_frames, ..Status::default() })
        }),
        prop::collection::vec(lease_row(), 0..=ROWS_MAX).prop_map(Reply::Leases),
        prop::collection::vec(tenant_row(), 0..=ROWS_MAX).prop_map(Reply::Tenants),
        ".{0,300}".prop_map(|text| Reply::Error { code: Code::Quota, text }),
    ]
}

proptest! {
    #[test]
    fn requests_come_back(request in request(), tag: u64) {
        let mut frame = vec![1, 2, 3];
        request.encode(tag, &mut frame);
        prop_assert!(frame.len() <= FRAME_BYTES_MAX);
        prop_assert_eq!(tag_of(&frame), tag);
        prop_assert_eq!(Request::decode(&frame), Ok(request));
        // Frames of one direction are invalid in the other.
        let is_reply = !matches!(Reply::decode(&frame), Err(BadFrame::Kind { .. }));
        prop_assert!(!is_reply);
    }

    #[test]
    fn replies_come_back(reply in reply(), tag: u64) {
        let mut frame = Vec::new();
        reply.encode(tag, &mut frame);
        prop_assert!(frame.len() <= FRAME_BYTES_MAX);
        prop_assert_eq!(Reply::decode(&frame), Ok(reply));
    }

    #[test]
    fn a_frame_with_a_wrong_byte_is_another_frame_or_none(request in request(), at: usize, flip in 1u8..) {
        let mut frame = Vec::new();
        request.encode(7, &mut frame);
        let at = at % frame.len();
        frame[at] ^= flip;
        if let Ok(other) = Request::decode(&frame) {
            // The tag is not part of a request; all else that is decoded is encoded in the same
            // way.
            prop_assert!((8..16).contains(&at) || other != request);
            let mut again = Vec::new();
            other.encode(tag_of(&frame), &mut again);
            prop_assert_eq!(frame, again);
        }
    }

    #[test]
    fn a_part_of_a_frame_is_no_frame(
        request in request(), cut: usize, more in prop::collection::vec(any::<u8>(), 1..9),
    ) {
        let mut frame = Vec::new();
        request.encode(7, &mut frame);
        prop_assert!(Request::decode(&frame[..cut % frame.len()]).is_err());
        frame.extend(more);
        prop_assert!(Request::decode(&frame).is_err());
        let length = u32::try_from(frame.len()).unwrap();
        frame[..4].copy_from_slice(&length.to_le_bytes());
        prop_assert!(Request::decode(&frame).is_err(), "nor if its length is right");
    }

    #[test]
    fn any_bytes_are_refused_with_a_reason(mut frame in prop::collection::vec(any::<u8>(), 0..300), kind in 0u16..15) {
        let length = frame.len() as u32;
        if let Some(header) = frame.first_chunk_mut::<8>() {
            header[..4].copy_from_slice(&length.to_le_bytes());
            header[4..6].copy_from_slice(&kind.to_le_bytes());
            header[6..].copy_from_slice(&[0; 2]);
        }
        for error in [Request::decode(&frame).err(), Reply::decode(&frame).err()].into_iter().flatten() {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn errors_are_cut_between_characters() {
    let mut frame = Vec::new();
    Reply::Error { code: Code::Driver, text: "ä".repeat(5000) }.encode(0, &mut frame);
    assert_eq!(Reply::decode(&frame), Ok(Reply::Error { code: Code::Driver, text: "ä".repeat(512) }));
}

#[test]
fn what_is_wrong_is_said() {
    let mut frame = Vec::new();
    Request::Free { leases: vec![LeaseId(1)] }.encode(0, &mut frame);
    let said = |frame: &[u8]| Request::decode(frame).unwrap_err().to_string();
    assert!(said(&frame[..5]).contains("5 bytes"));
    assert!(said(&frame[..20]).contains("says that it has 32"));
    assert!(said(&[0; FRAME_BYTES_MAX + 1]).contains("more than 8192"));
    let mut wrong = frame.clone();
    wrong[16] = 0;
    assert!(said(&wrong).contains("0 items"));
    wrong[16] = 200;
    assert!(said(&wrong).contains("200 items"));
    wrong[16] = 2;
    assert!(said(&wrong).contains("free frame of 32 bytes"));
    wrong = frame.clone();
    wrong[4] = 99;
    assert!(said(&wrong).contains("kind 99"));
    frame[6] = 1;
    assert!(said(&frame).contains("must be zero"));
}
