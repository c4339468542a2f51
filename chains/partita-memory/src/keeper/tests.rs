//! The service's requests to its memory.

use std::cell::RefCell;
use std::rc::Rc;

use crate::pool::LeaseId;

use super::*;
use crate::wire::{Code, HandleKind, Privileged, Reply, Request, VERSION};

const MIB: u64 = 1 << 20;

/// The requests: bytes, and whether to clear them.
type Log = Rc<RefCell<Vec<(u64, bool)>>>;

/// Imaginary memory of a given size.
struct Noted {
    log: Log,
    left: Rc<RefCell<u64>>,
}

struct NotedSlab(u64, Rc<RefCell<u64>>);

impl Drop for NotedSlab {
    fn drop(&mut self) {
        *self.1.borrow_mut() += self.0;
    }
}

impl Memory for Noted {
    type Slab = NotedSlab;

    fn granularity_bytes(&self) -> u64 {
        MIB
    }

    fn allocate(&mut self, bytes: u64, clear: bool) -> Result<NotedSlab, MemoryError> {
        let mut left = self.left.borrow_mut();
        if bytes > *left {
            return Err(MemoryError { is_full: true, text: format!("{left} bytes are left") });
        }
        *left -= bytes;
        self.log.borrow_mut().push((bytes, clear));
        Ok(NotedSlab(bytes, self.left.clone()))
    }

    fn handle<'s>(&self, _: &'s NotedSlab) -> Handle<'s> {
        Handle::Ipc([1; 64])
    }
}

struct World {
    service: Service<Noted>,
    log: Log,
    now_ms: u64,
}

impl World {
    fn new(bytes: u64) -> Self {
        let log = Log::default();
        let mut options = Options::new("/nowhere".into());
        options.handles = HandleKind::Ipc;
        let facts = Facts { gpu_uuid: [0; 16], instance: 1, pid: 1, uid: 7 };
        let memory = Noted { log: log.clone(), left: Rc::new(RefCell::new(bytes)) };
        Self { service: Service::new(memory, facts, &options), log, now_ms: 0 }
    }

    fn client(&mut self, tenant: &str) -> ClientId {
        let client = self.service.join(Peer { pid: 9, uid: 7 });
        let hello = Request::Hello { version: VERSION, tenant: Some(tenant.parse().unwrap()) };
        assert!(matches!(self.ask(client, &hello), Reply::Welcome(_)));
        client
    }

    fn ask(&mut self, client: ClientId, request: &Request) -> Reply {
        let (mut frame, mut out) = (Vec::new(), Vec::new());
        request.encode(1, &mut frame);
        self.service.answer(client, &frame, Vec::new(), false, self.now_ms, &mut out);
        Reply::decode(&out).unwrap()
    }

    fn lease(&mut self, client: ClientId, bytes: u64, count: u32) -> Reply {
        self.ask(client, &Request::Lease { owner: None, bytes, count, ttl_ms: 0 })
    }

    fn code(&mut self, client: ClientId, bytes: u64, count: u32) -> Code {
        match self.lease(client, bytes, count) {
            Reply::Error { code, .. } => code,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// A client leaves, and all unused memory is freed.
    fn leave(&mut self, client: ClientId) {
        assert!(self.service.leave(client, self.now_ms), "it has nothing open");
        for _ in 0..3 {
            self.now_ms += 10_000;
            self.service.tick(self.now_ms);
        }
        assert_eq!(self.service.status(0).totals.slabs, 0);
    }

    fn cleared(&self) -> Vec<bool> {
        self.log.borrow().iter().map(|(_, clear)| *clear).collect()
    }
}

#[test]
fn memory_that_may_have_been_another_tenants_is_cleared() {
    let mut world = World::new(1 << 30);
    for tenant in ["one", "one", "two", "two", "one"] {
        let client = world.client(tenant);
        assert!(matches!(world.lease(client, MIB, 1), Reply::Leased(_)));
        world.leave(client);
    }
    // The tenants are forgotten in between, so that even the same name is another tenant.
    assert_eq!(world.cleared(), [false, true, true, true, true]);
    let mut world = World::new(1 << 30);
    let (stays, goes) = (world.client("one"), world.client("one"));
    world.lease(goes, 3 * MIB, 1);
    world.service.leave(goes, 0);
    world.now_ms = 100_000;
    world.service.tick(world.now_ms);
    world.service.tick(world.now_ms);
    assert_eq!(world.service.status(0).totals.slabs_freed_ever, 1);
    world.lease(stays, MIB, 1);
    assert_eq!(world.cleared(), [false, false], "it was its own");
}

#[test]
fn a_full_gpu_gives_what_lies_idle_and_less_than_planned_before_it_refuses() {
    let mut world = World::new(16 * MIB);
    let (one, other) = (world.client("one"), world.client("other"));
    let Reply::Leased(leases) = world.lease(one, 4 * MIB, 2) else { panic!("there is room") };
    let ids = leases.iter().map(|lease| lease.id).collect();
    assert_eq!(world.ask(one, &Request::Free { leases: ids }), Reply::Done);
    // 8 MiB are idle at another tenant.
    assert!(matches!(world.lease(other, 12 * MIB, 1), Reply::Leased(_)));
    assert_eq!(world.service.status(0).totals.slabs_freed_ever, 1);
    // Four at once do not fit, two by two neither; none is given, and the memory made for them
    // stays for later.
    assert_eq!(world.code(one, 2 * MIB, 4), Code::OutOfMemory);
    assert_eq!(world.service.status(0).totals.leases, 1);
    assert!(matches!(world.lease(one, 2 * MIB, 2), Reply::Leased(_)));
    assert_eq!(world.code(one, 1, 1), Code::OutOfMemory);
}

#[test]
fn a_client_between_two_ticks_keeps_the_keeper() {
    let mut world = World::new(1 << 30);
    world.service.tick(4950);
    world.now_ms = 5000;
    let admin = world.service.join(Peer { pid: 9, uid: 7 });
    let hello = Request::Hello { version: VERSION, tenant: None };
    assert!(matches!(world.ask(admin, &hello), Reply::Welcome(_)));
    assert_eq!(world.service.idle_since_ms(), 0, "one that only looks does not keep it");
    world.client("one");
    assert_eq!(world.service.idle_since_ms(), 5000);
}

#[test]
fn each_request_of_its_owner_restarts_a_deadline() {
    let mut world = World::new(1 << 30);
    let client = world.client("one");
    let lease = Request::Lease { owner: None, bytes: MIB, count: 1, ttl_ms: 300 };
    assert!(matches!(world.ask(client, &lease), Reply::Leased(_)));
    let quota = Privileged::Quota { uid: 7, tenant: "two".parse().unwrap(), bytes: MIB };
    let refused = Request::Lease { owner: None, bytes: 0, count: 1, ttl_ms: 0 };
    for request in [
        Request::Beat,
        Request::Status,
        Request::Leases { after: LeaseId(0) },
        Request::Tenants { skip: 0 },
        Request::Privileged(quota),
        refused,
    ] {
        world.now_ms += 200;
        world.service.tick(world.now_ms);
        assert_eq!(world.service.status(0).totals.leases, 1, "before {request:?}");
        world.ask(client, &request);
    }
    world.now_ms += 300;
    world.service.tick(world.now_ms);
    assert_eq!(world.service.status(0).totals.resting, 1);
}

#[test]
fn a_file_that_the_keeper_had_no_room_for_is_not_the_clients_mistake() {
    let mut world = World::new(1 << 30);
    let client = world.client("one");
    let (mut frame, mut out) = (Vec::new(), Vec::new());
    Request::Own.encode(1, &mut frame);
    world.service.answer(client, &frame, Vec::new(), true, 0, &mut out);
    match Reply::decode(&out).unwrap() {
        Reply::Error { code: Code::TooMany, text } => assert!(text.contains("open files"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.service.status(0).bad_frames, 0);
}

#[test]
fn demand_that_cannot_be_met_keeps_nothing_from_going_back() {
    let mut world = World::new(16 * MIB);
    let (one, other) = (world.client("one"), world.client("other"));
    let Reply::Leased(idle) = world.lease(other, 8 * MIB, 1) else { panic!("there is room") };
    world.ask(other, &Request::Free { leases: vec![idle[0].id] });
    // Long after, another client's demand grows beyond the remaining memory.
    for now_ms in [6000, 6100, 6200] {
        world.now_ms = now_ms;
        assert!(matches!(world.lease(one, MIB, 2), Reply::Leased(_)));
    }
    assert_eq!(world.service.status(0).totals.slabs_freed_ever, 0);
    world.service.tick(world.now_ms);
    let totals = world.service.status(0).totals;
    assert_eq!(
        (totals.slabs_freed_ever, totals.slab_bytes),
        (1, 10 * MIB),
        "and the demand is met after all"
    );
}

#[test]
fn an_end_that_is_reported_twice_leaves_the_rest_to_the_process_end() {
    let mut world = World::new(1 << 30);
    let client = world.client("one");
    let Reply::Leased(leases) = world.lease(client, MIB, 1) else { panic!("there is room") };
    assert!(matches!(world.ask(client, &Request::Open { slab: leases[0].slab }), Reply::Slab { .. }));
    for _ in 0..2 {
        assert!(!world.service.leave(client, 0), "its process may still write there");
        assert_eq!((world.service.status(0).dying, world.service.status(0).totals.resting), (1, 1));
    }
    world.service.gone(client, 0);
    let status = world.service.status(0);
    assert_eq!((status.dying, status.totals.resting, status.totals.owners), (0, 0, 0));
}
