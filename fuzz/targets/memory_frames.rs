//! The memory manager's frames: every frame gets an answer, no client gets another's memory, and no
//! memory is lost after their end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use partita_memory::pool::Totals;
use partita_memory::keeper::{ClientId, Facts, Handle, Memory, MemoryError, Options, Peer, Service};
use partita_memory::wire::{HEADER_BYTES, HandleKind, Reply, Request, VERSION};

/// Imaginary memory, of which every eighth piece is refused.
struct Nowhere(u32);

impl Memory for Nowhere {
    type Slab = ();

    fn granularity_bytes(&self) -> u64 {
        4096
    }

    fn allocate(&mut self, _bytes: u64, _clear: bool) -> Result<(), MemoryError> {
        self.0 += 1;
        if self.0.is_multiple_of(8) {
            return Err(MemoryError { is_full: self.0.is_multiple_of(16), text: "none".to_owned() });
        }
        Ok(())
    }

    fn handle<'s>(&self, (): &'s ()) -> Handle<'s> {
        Handle::Ipc([1; 64])
    }
}

/// What no refused request changes.
fn held(totals: &Totals) -> [u64; 5] {
    [totals.leases, totals.resting, totals.used_bytes, totals.owners, totals.leased_ever]
}

/// Bytes are steps: who (its low bits), what (its high bits), and what belongs to it.
fn steps(mut data: &[u8], service: &mut Service<Nowhere>, clients: &mut Vec<ClientId>) -> u64 {
    let (mut now_ms, mut out) = (0, Vec::new());
    while let Some((&first, rest)) = data.split_first() {
        data = rest;
        let who = clients[usize::from(first & 3) % clients.len()];
        match first >> 4 {
            // A frame, whole but for its header, which is made to fit: otherwise hardly one would
            // be looked at.
            0..=11 => {
                let Some((&length, rest)) = data.split_first() else { return now_ms };
                let (body, rest) = rest.split_at(usize::from(length).min(rest.len()));
                data = rest;
                let mut frame = vec![0; HEADER_BYTES];
                frame.extend(body.get(1..).unwrap_or_default());
                let bytes = frame.len() as u32;
                frame[..4].copy_from_slice(&bytes.to_le_bytes());
                frame[4] = body.first().copied().unwrap_or(0);
                let before = held(&service.status(now_ms).totals);
                service.answer(who, &frame, Vec::new(), false, now_ms, &mut out);
                if let Reply::Error { text, .. } = Reply::decode(&out).expect("every answer is a frame") {
                    assert!(!text.is_empty());
                    assert_eq!(before, held(&service.status(now_ms).totals), "refused, and changed: {text}");
                }
            }
            // Any bytes.
            12 => {
                let (bytes, rest) = data.split_at(data.len().min(40));
                data = rest;
                service.answer(who, bytes, Vec::new(), false, now_ms, &mut out);
                Reply::decode(&out).expect("every answer is a frame");
            }
            13 => {
                if service.leave(who, now_ms) || first & 4 != 0 {
                    service.gone(who, now_ms);
                }
            }
            14 => greet(service, clients, u32::from(first & 1), now_ms),
            _ => {
                now_ms += u64::from(first & 15) * 50;
                service.tick(now_ms);
            }
        }
    }
    now_ms
}

fn greet(service: &mut Service<Nowhere>, clients: &mut Vec<ClientId>, uid: u32, now_ms: u64) {
    let client = service.join(Peer { pid: 2, uid });
    let tenant = ["one", "two"][clients.len() % 2].parse().expect("a name");
    let (mut frame, mut out) = (Vec::new(), Vec::new());
    Request::Hello { version: VERSION, tenant: Some(tenant) }.encode(1, &mut frame);
    service.answer(client, &frame, Vec::new(), false, now_ms, &mut out);
    clients.insert(0, client);
}

fuzz_target!(|data: &[u8]| {
    let mut options = Options::new("/nowhere".into());
    options.handles = HandleKind::Ipc;
    options.quota_bytes = 64 << 20;
    options.limits.bytes_max = 1 << 30;
    let facts = Facts { gpu_uuid: [0; 16], instance: 1, pid: 1, uid: 1 };
    let mut service = Service::new(Nowhere(0), facts, &options);
    let mut clients = Vec::new();
    greet(&mut service, &mut clients, 0, 0);
    greet(&mut service, &mut clients, 1, 0);
    let mut now_ms = steps(data, &mut service, &mut clients);
    for client in clients {
        service.leave(client, now_ms);
        service.gone(client, now_ms);
    }
    let totals = service.status(now_ms).totals;
    assert_eq!(held(&totals)[..4], [0; 4], "something is lost");
    assert_eq!(totals.leased_ever, totals.given_back_ever);
    for _ in 0..200 {
        now_ms += 10_000;
        service.tick(now_ms);
    }
    assert_eq!(service.status(now_ms).totals.slab_bytes, 0);
});
