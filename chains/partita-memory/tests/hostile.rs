//! Clients that send invalid data.

mod common;

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use common::{Keeper, MIB};
use partita_memory::TenantName;
use partita_memory::keeper::{ClientId, Facts, Handle, Memory, MemoryError, Options, Peer, Service};
use partita_memory::pool::{LeaseId, OwnerId, SlabId};
use partita_memory::wire::{Code, FRAME_BYTES_MAX, HandleKind, Privileged, Reply, Request, VERSION};
use partita_testing::eventually;
use proptest::prelude::*;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType,
};

/// A socket without a client behind it.
struct Raw(OwnedFd);

impl Raw {
    fn connect(socket: &Path) -> Self {
        let raw = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&raw, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        Self(raw)
    }

    fn greeted(socket: &Path) -> Self {
        let raw = Self::connect(socket);
        assert!(matches!(raw.ask(&frame(&hello("raw"))), Some(Reply::Welcome(_))));
        raw
    }

    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
    }

    /// The next answer; `None` once the keeper has closed the connection.
    fn answer(&self) -> Option<Reply> {
        let mut buffer = [0; FRAME_BYTES_MAX];
        let (bytes, _) = rustix::net::recv(&self.0, &mut buffer, RecvFlags::empty()).ok()?;
        (bytes > 0).then(|| Reply::decode(&buffer[..bytes]).unwrap())
    }

    fn ask(&self, bytes: &[u8]) -> Option<Reply> {
        self.send(bytes, &[]).then(|| self.answer()).flatten()
    }
}

fn frame(request: &Request) -> Vec<u8> {
    let mut frame = Vec::new();
    request.encode(42, &mut frame);
    frame
}

fn hello(tenant: &str) -> Request {
    Request::Hello { version: VERSION, tenant: Some(tenant.parse().unwrap()) }
}

fn refused(reply: Option<Reply>) -> (Code, String) {
    match reply {
        Some(Reply::Error { code, text }) => (code, text),
        other => panic!("not refused: {other:?}"),
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// One test, since it counts the descriptors of its process.
#[test]
fn the_keeper_says_what_is_wrong_and_goes_on() {
    let keeper = Keeper::new(|_| ());
    let socket = keeper.socket.clone();
    let mut witness = keeper.client("witness");
    let held = witness.lease(None, MIB, 3, 0).unwrap();
    witness.open(held[0].slab).unwrap();
    let before = (keeper.status().totals, open_descriptors());

    // Before the greeting, and invalid greetings.
    let raw = Raw::connect(&socket);
    for request in [Request::Beat, Request::Free { leases: vec![held[0].id] }] {
        assert_eq!(refused(raw.ask(&frame(&request))).0, Code::Greeting);
    }
    let (code, text) = refused(raw.ask(&frame(&Request::Hello { version: 99, tenant: None })));
    assert!(code == Code::Version && text.contains("99") && text.contains(&VERSION.to_string()), "{text}");
    let mut wrong = frame(&hello("a"));
    wrong[16] ^= 1;
    assert!(refused(raw.ask(&wrong)).1.contains("magic"));
    wrong = frame(&hello("a"));
    wrong[32] = b'/';
    assert!(refused(raw.ask(&wrong)).1.contains("`/`"));
    assert!(matches!(raw.ask(&frame(&hello("a"))), Some(Reply::Welcome(_))));
    assert_eq!(refused(raw.ask(&frame(&hello("a")))).0, Code::Greeting);
    drop(raw);

    // Parts of frames, longer ones, and the end in the middle of one.
    let raw = Raw::greeted(&socket);
    let whole = frame(&Request::Lease { owner: None, bytes: MIB, count: 2, ttl_ms: 0 });
    for cut in 1..whole.len() {
        assert_eq!(refused(raw.ask(&whole[..cut])).0, Code::BadFrame);
    }
    let long = vec![0; 60_000];
    assert!(refused(raw.ask(&long)).1.contains("more than 8192"));
    assert!(raw.send(&whole[..20], &[]));
    drop(raw);
    assert!(Raw::connect(&socket).send(&whole[..7], &[]));

    // An empty packet is an end.
    assert_eq!(Raw::greeted(&socket).ask(&[]), None);

    // Descriptors where none belong, and too many of them.
    let raw = Raw::greeted(&socket);
    let null = File::open("/dev/null").unwrap();
    for (request, count) in [(Request::Beat, 1), (Request::Own, 0), (Request::Own, 2), (Request::Own, 20)] {
        assert!(raw.send(&frame(&request), &vec![null.as_fd(); count]));
        let (code, text) = refused(raw.answer());
        assert!(code == Code::BadFrame && text.contains("descriptors"), "{text}");
    }
    let pipe = rustix::pipe::pipe().unwrap();
    assert!(raw.send(&frame(&Request::Own), &[pipe.0.as_fd()]));
    assert_eq!(refused(raw.answer()).0, Code::NotAChain);
    drop((raw, pipe, null));

    // The keeper does not wait for a client that sends requests and reads no answers.
    let raw = Raw::greeted(&socket);
    let status = frame(&Request::Status);
    while raw.send(&status, &[]) {}
    drop(raw);

    witness.beat().unwrap();
    eventually("all of it is forgotten", || (keeper.status().totals, open_descriptors()) == before);
    assert!(keeper.status().bad_frames > 40);
    witness.free(&held.iter().map(|lease| lease.id).collect::<Vec<_>>()).unwrap();
    witness.close(&[held[0].slab]).unwrap();
    drop(witness);
    keeper.is_clean_in_the_end();
}

/// Imaginary memory.
struct Nowhere {
    left: u64,
}

impl Memory for Nowhere {
    type Slab = ();

    fn granularity_bytes(&self) -> u64 {
        4096
    }

    fn allocate(&mut self, bytes: u64, _clear: bool) -> Result<(), MemoryError> {
        // Now and then there is no memory.
        self.left = self.left.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(bytes | 1);
        if self.left >> 61 == 0 {
            return Err(MemoryError {
                is_full: self.left & 1 << 40 == 0,
                text: "none: try again".to_owned(),
            });
        }
        Ok(())
    }

    fn handle<'s>(&self, (): &'s ()) -> Handle<'s> {
        Handle::Ipc([9; 64])
    }
}

#[derive(Clone, Debug)]
enum Op {
    Join(u32),
    Ask(usize, Request),
    Bytes(usize, Vec<u8>),
    Bent { client: usize, request: Request, at: usize, flip: u8 },
    Leave(usize),
    Gone(usize),
    Pass(u64),
}

fn request() -> impl Strategy<Value = Request> {
    let tenant =
        prop::sample::select(vec!["a", "b", "c"]).prop_map(|name| name.parse::<TenantName>().unwrap());
    let small = 1u64..60;
    let ids = prop::collection::vec(small.clone(), 1..6);
    prop_oneof![
        3 => prop::option::of(tenant.clone()).prop_map(|tenant| Request::Hello { version: VERSION, tenant }),
        6 => (prop_oneof![1u64..10_000, 0u64..4 * MIB, any::<u64>()], 0u32..140, prop_oneof![Just(0u32), 1u32..500])
            .prop_map(|(bytes, count, ttl_ms)| Request::Lease { owner: None, bytes, count, ttl_ms }),
        4 => ids.clone().prop_map(|ids| Request::Free { leases: ids.into_iter().map(LeaseId).collect() }),
        4 => small.clone().prop_map(|slab| Request::Open { slab: SlabId(slab) }),
        2 => ids.prop_map(|ids| Request::Close { slabs: ids.into_iter().map(SlabId).collect() }),
        2 => Just(Request::Beat),
        1 => Just(Request::Own),
        1 => Just(Request::Status),
        1 => small.clone().prop_map(|after| Request::Leases { after: LeaseId(after) }),
        1 => any::<u32>().prop_map(|skip| Request::Tenants { skip }),
        1 => (tenant, 0u64..64 * MIB).prop_map(|(tenant, bytes)| Request::Privileged(Privileged::Quota {
            uid: 1000,
            tenant,
            bytes
        })),
        1 => Just(Request::Privileged(Privileged::End { even_if_leased: false })),
        1 => small.clone().prop_map(|id| Request::Privileged(Privileged::TakeBack { lease: LeaseId(id) })),
        1 => small.prop_map(|id| Request::Privileged(Privileged::Disown { owner: OwnerId(id) })),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0usize..6;
    prop_oneof![
        2 => (999u32..1002).prop_map(Op::Join),
        20 => (who.clone(), request()).prop_map(|(who, request)| Op::Ask(who, request)),
        1 => (who.clone(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(who, bytes)| Op::Bytes(who, bytes)),
        2 => (who.clone(), request(), any::<usize>(), 1u8..)
            .prop_map(|(client, request, at, flip)| Op::Bent { client, request, at, flip }),
        1 => who.clone().prop_map(Op::Leave),
        1 => who.prop_map(Op::Gone),
        2 => (0u64..400).prop_map(Op::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_is_answered_and_nothing_is_lost(ops in prop::collection::vec(op(), 1..150)) {
        let mut options = Options::new("/nowhere".into());
        options.handles = HandleKind::Ipc;
        options.quota_bytes = 64 * MIB;
        let facts = Facts { gpu_uuid: [1; 16], instance: 1, pid: 1, uid: 1000 };
        let mut service = Service::new(Nowhere { left: 1 }, facts, &options);
        let mut joined: Vec<ClientId> = Vec::new();
        let (mut now_ms, mut out) = (0, Vec::new());
        for op in ops {
            let client = |who: usize| joined.get(who % joined.len().max(1)).copied().unwrap_or(ClientId(99));
            let (client, frame) = match op {
                Op::Join(uid) => {
                    joined.push(service.join(Peer { pid: 5, uid }));
                    continue;
                }
                Op::Leave(who) => {
                    service.leave(client(who), now_ms);
                    continue;
                }
                Op::Gone(who) => {
                    service.leave(client(who), now_ms);
                    service.gone(client(who), now_ms);
                    continue;
                }
                Op::Pass(ms) => {
                    now_ms += ms;
                    service.tick(now_ms);
                    continue;
                }
                Op::Ask(who, request) => (client(who), frame(&request)),
                Op::Bytes(who, bytes) => (client(who), bytes),
                Op::Bent { client: who, request, at, flip } => {
                    let mut bent = frame(&request);
                    let at = at % bent.len();
                    bent[at] ^= flip;
                    (client(who), bent)
                }
            };
            let before = service.status(0).totals;
            service.answer(client, &frame, Vec::new(), false, now_ms, &mut out);
            let reply = Reply::decode(&out).unwrap();
            if let Reply::Error { text, .. } = &reply {
                prop_assert!(!text.is_empty());
                let after = service.status(0).totals;
                // It may have made or freed memory for it; no client's leases, tenants or
                // connections have changed.
                let kept = |totals: partita_memory::pool::Totals| {
                    (totals.leases, totals.resting, totals.used_bytes, totals.owners, totals.leased_ever)
                };
                prop_assert_eq!(kept(before), kept(after), "{}", text);
            }
        }
        for client in joined {
            service.leave(client, now_ms);
            service.gone(client, now_ms);
        }
        let totals = service.status(0).totals;
        prop_assert_eq!((totals.leases, totals.resting, totals.used_bytes, totals.owners), (0, 0, 0, 0));
        prop_assert_eq!(totals.leased_ever, totals.given_back_ever);
        for _ in 0..100 {
            now_ms += 10_000;
            service.tick(now_ms);
        }
        prop_assert_eq!((service.status(0).totals.slabs, service.status(0).clients, service.status(0).dying), (0, 0, 0));
    }
}
